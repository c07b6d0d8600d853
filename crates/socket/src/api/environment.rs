//! What the environment says about the engines that this process makes by itself.
//!
//! `ROPEWAY_SPIN_US` means what it means to `ropeway run`: how long a wait spins before it sleeps. A variable that makes no sense fails every
//! call that would have needed it, rather than being left out.

use once_cell::race::OnceBox;
use ropeway_engine::gateway::OVERHEAD_BYTES;
use ropeway_engine::link::Link;
use ropeway_engine::link::udp::{self, USUAL_URGENT_PRIORITY};
use ropeway_engine::{Config, LEAST_PACKET_BYTES, Options};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest spin that can be asked for: as the preload has it.
const MOST_SPIN_US: u64 = 10_000;
/// How long the end of a process, or of its last connection, waits for the peers' acknowledgments, unless told otherwise: long enough for a
/// peer that is busy, short enough for somebody who waits for the prompt.
const USUAL_LINGER: Duration = Duration::from_secs(5);
/// The longest UDP payload.
const MOST_PACKET_BYTES: usize = 65_507;

/// The kernel's highest priority for who has no privileges.
const MOST_PRIORITY: u64 = 6;

/// Which link plain addresses mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChoice {
    Udp,
    Packet {
        device: String,
    },
    /// As with packets; on this device alone frames go past the kernel's network stack.
    Xdp {
        device: String,
    },
}

impl LinkChoice {
    pub fn is_xdp(&self, on: &str) -> bool {
        matches!(self, LinkChoice::Xdp { device } if device == on)
    }
}

impl fmt::Display for LinkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkChoice::Udp => f.write_str("udp"),
            LinkChoice::Packet { device } => write!(f, "packet:{device}"),
            LinkChoice::Xdp { device } => write!(f, "xdp:{device}"),
        }
    }
}

/// What was read from the environment.
#[derive(Clone, Debug)]
pub struct Environment {
    pub link: LinkChoice,
    pub spin: Option<Duration>,
    pub linger: Duration,
    /// What the kernel is told of short packets and control over UDP.
    pub urgent_priority: u8,
    /// The longest packet that is tried, if that is said.
    pub most_packet_bytes: Option<usize>,
    pub config: Config,
}

/// The environment of this process, which is kept once it was read.
///
/// # Errors
/// A variable makes no sense.
pub fn get() -> io::Result<&'static Environment> {
    // Without a lock: a child that is forked while another thread reads could wait for it for ever.
    static ENVIRONMENT: OnceBox<Result<Environment, String>> = OnceBox::new();
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    let read = ENVIRONMENT.get_or_init(|| Box::new(parse(variable)));
    read.as_ref().map_err(|what| io::Error::new(ErrorKind::InvalidInput, what.as_str()))
}

/// What the environment says of a UDP link at `local`, for who makes an engine of their own.
///
/// # Errors
/// A variable makes no sense.
pub fn udp_options(local: SocketAddr) -> io::Result<udp::Options> {
    Ok(udp::Options { urgent_priority: get()?.urgent_priority, ..udp::Options::new(local) })
}

/// These options with what the environment says of an engine over `link`: all of the configuration, and the spin. `usual_packet_bytes` is the longest packet that is tried where the
/// environment does not say.
///
/// # Errors
/// A variable makes no sense.
pub fn engine_options(link: &dyn Link, usual_packet_bytes: usize, options: Options) -> io::Result<Options> {
    let environment = get()?;
    // What gateways need before a packet is taken off its length.
    let least = LEAST_PACKET_BYTES + if options.gateways { OVERHEAD_BYTES } else { 0 };
    let wanted = environment.most_packet_bytes.unwrap_or(usual_packet_bytes);
    let packet_bytes = u16::try_from(wanted.max(least.into()).min(link.max_packet())).unwrap_or(u16::MAX);
    let config = Config { packet_bytes, ..environment.config.clone() };
    Ok(Options { config, spin: environment.spin.unwrap_or(options.spin), ..options })
}

fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Environment, String> {
    let number = |name: &str, least: u64, most: u64| match get(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
            _ => Err(format!("{name} is a number from {least} to {most}, not `{text}`")),
        },
    };
    let link = match get("ROPEWAY_LINK").as_deref() {
        None | Some("" | "udp") => LinkChoice::Udp,
        Some(text) => match text.split_once(':') {
            Some(("packet", device)) if !device.is_empty() => LinkChoice::Packet { device: device.into() },
            Some(("xdp", device)) if !device.is_empty() => LinkChoice::Xdp { device: device.into() },
            _ => return Err(format!("ROPEWAY_LINK is `udp`, `packet:DEVICE` or `xdp:DEVICE`, not `{text}`")),
        },
    };
    let mut config = Config::default();
    for setting in get("ROPEWAY_TUNE").unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(format!("ROPEWAY_TUNE is name=value,name=value,...; `{setting}` is not"));
        };
        config.set_text(name.trim(), value.trim()).map_err(|error| format!("ROPEWAY_TUNE: {error}"))?;
    }
    let packet_bytes = number("ROPEWAY_PACKET_BYTES", LEAST_PACKET_BYTES.into(), MOST_PACKET_BYTES as u64)?;
    Ok(Environment {
        link,
        spin: number("ROPEWAY_SPIN_US", 0, u64::MAX)?.map(|us| Duration::from_micros(us.min(MOST_SPIN_US))),
        linger: number("ROPEWAY_LINGER_MS", 0, 3_600_000)?.map_or(USUAL_LINGER, Duration::from_millis),
        urgent_priority: number("ROPEWAY_URGENT_PRIORITY", 0, MOST_PRIORITY)?
            .map_or(USUAL_URGENT_PRIORITY, |priority| priority as u8),
        most_packet_bytes: packet_bytes.map(|bytes| bytes as usize),
        config,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_engine::config::Order;

    fn parsed(all: &[(&str, &str)]) -> Result<Environment, String> {
        parse(|name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn nothing_said_means_the_defaults() {
        let environment = parsed(&[]).unwrap();
        assert_eq!(environment.link, LinkChoice::Udp);
        assert_eq!((environment.spin, environment.linger), (None, USUAL_LINGER));
        assert_eq!(environment.urgent_priority, 6);
        assert_eq!(environment.config, Config::default());
        assert_eq!(environment.most_packet_bytes, None);
    }

    #[test]
    fn everything_can_be_said() {
        let environment = parsed(&[
            ("ROPEWAY_LINK", "packet:eth0"),
            ("ROPEWAY_SPIN_US", "99999"),
            ("ROPEWAY_LINGER_MS", "10"),
            ("ROPEWAY_URGENT_PRIORITY", "0"),
            ("ROPEWAY_PACKET_BYTES", "8972"),
            ("ROPEWAY_TUNE", "burst_length=21, packets_to_ack = 10, order = srpt,"),
        ])
        .unwrap();
        assert_eq!(environment.link, LinkChoice::Packet { device: "eth0".into() });
        assert_eq!(environment.spin, Some(Duration::from_millis(10)));
        assert_eq!(environment.linger, Duration::from_millis(10));
        assert_eq!(environment.most_packet_bytes, Some(8972));
        let xdp = parsed(&[("ROPEWAY_LINK", "xdp:eth0")]).unwrap().link;
        assert!(xdp.is_xdp("eth0") && !xdp.is_xdp("eth1") && !environment.link.is_xdp("eth0"));
        assert_eq!(environment.urgent_priority, 0);
        assert_eq!((environment.config.window_packets, environment.config.packets_to_ack), (21, 10));
        assert_eq!(environment.config.order, Order::Srpt);
    }

    #[test]
    fn nonsense_is_named() {
        for (name, value) in [
            ("ROPEWAY_LINK", "packet:"),
            ("ROPEWAY_LINK", "xdp:"),
            ("ROPEWAY_LINK", "tcp"),
            ("ROPEWAY_LINK", "tcp:eth0"),
            ("ROPEWAY_SPIN_US", "-1"),
            ("ROPEWAY_LINGER_MS", "long"),
            ("ROPEWAY_URGENT_PRIORITY", "7"),
            ("ROPEWAY_PACKET_BYTES", "255"),
            ("ROPEWAY_TUNE", "burst_length"),
            ("ROPEWAY_TUNE", "burst=1"),
            ("ROPEWAY_TUNE", "packets_to_ack=0"),
            ("ROPEWAY_TUNE", "packets_to_ack=few"),
            ("ROPEWAY_TUNE", "order=lifo"),
        ] {
            let error = parsed(&[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
