//! Every transport by the name that a user gives it, and what opens it.
//!
//! A new transport needs a variant of [`Kind`] with its line in [`KINDS`], a variant of [`Pending`], and an arm in [`listen`] and in [`Pending::connect`]; nothing else names transports.

use std::fmt;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mpi::OverMpi;
use super::streams::Manner;
use super::{Rank, Transport, shm, tcp, udp, unix, wire};
use crate::Failure;

/// The transports that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    TcpSpin,
    Udp,
    UdpSpin,
    Unix,
    UnixSpin,
    Ropeway,
    RopewaySpin,
    RopewayUdp,
    RopewayPacket,
    RopewayXdp,
    Mpi,
    Sim,
    CacheLine,
    Memcpy,
    Shm,
    ShmSpin,
}

/// What there is to say about one of them.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub kind: Kind,
    pub name: &'static str,
    /// What older versions called it.
    pub old_name: Option<&'static str>,
    pub about: &'static str,
    /// What may follow the name and a colon; empty: nothing.
    pub options: &'static str,
}

const fn about(kind: Kind, name: &'static str, options: &'static str, about: &'static str) -> About {
    About { kind, name, old_name: None, about, options }
}

const fn renamed(of: About, old_name: &'static str) -> About {
    About { old_name: Some(old_name), ..of }
}

/// All of them, in the order in which help shows them.
pub const KINDS: &[About] = &[
    renamed(about(Kind::Tcp, "tcp", "CONGESTION", "TCP of the kernel, blocking send and recv"), "tcp-blocking"),
    renamed(
        about(Kind::TcpSpin, "tcp-spin", "CONGESTION", "TCP of the kernel, calls repeated until they succeed"),
        "tcp-spinning",
    ),
    about(Kind::Udp, "udp", "", "UDP of the kernel, blocking; counts what is lost"),
    about(Kind::UdpSpin, "udp-spin", "", "UDP of the kernel, calls repeated until they succeed"),
    about(Kind::Unix, "unix", "DIRECTORY", "AF_UNIX stream, blocking; one host"),
    about(Kind::UnixSpin, "unix-spin", "DIRECTORY", "AF_UNIX stream, calls repeated until they succeed; one host"),
    about(Kind::Shm, "shm", "", "Ropeway's rings in shared memory, used directly; polls 50 us, then sleeps; one host"),
    about(Kind::ShmSpin, "shm-spin", "", "the same, polled until something comes; one host"),
    about(Kind::Ropeway, "ropeway", "", "the program of tcp, unchanged, under `ropeway run`"),
    renamed(
        about(Kind::RopewaySpin, "ropeway-spin", "", "the program of tcp-spin, unchanged, under `ropeway run`"),
        "ropeway-spinning",
    ),
    about(
        Kind::RopewayUdp,
        "ropeway-udp",
        "NAME=VALUE,..",
        "Ropeway's own protocol over UDP; with any tunable, spin=MICROSECONDS or key=FILE",
    ),
    about(
        Kind::RopewayPacket,
        "ropeway-packet",
        "DEVICE,NAME=VALUE,..",
        "the same over raw Ethernet frames on DEVICE (usually eth0); needs CAP_NET_RAW",
    ),
    about(
        Kind::RopewayXdp,
        "ropeway-xdp",
        "DEVICE,NAME=VALUE,..",
        "the same frames through AF_XDP, past the kernel's network stack; needs root",
    ),
    about(Kind::Mpi, "mpi", "", "the MPI that is installed: ranks are started by its mpirun"),
    about(
        Kind::Sim,
        "sim",
        "NAME=VALUE,..",
        "a simulated network in virtual time, such as sim:L=5us,o=1us,g=2us,G=1ns",
    ),
    about(Kind::CacheLine, "cache-line", "", "limit of the machine: two processors hand a cache line to and fro"),
    about(Kind::Memcpy, "memcpy", "", "limit of the machine: one processor copies blocks that stay in its cache"),
];

impl Kind {
    pub fn about(self) -> &'static About {
        KINDS.iter().find(|about| about.kind == self).unwrap_or(&KINDS[0])
    }

    /// A limit of the machine: measured by the coordinator itself, without ranks.
    pub fn is_floor(self) -> bool {
        matches!(self, Kind::CacheLine | Kind::Memcpy)
    }

    /// Whether its ranks are started under `ropeway run`.
    pub fn is_preloaded(self) -> bool {
        matches!(self, Kind::Ropeway | Kind::RopewaySpin)
    }
}

/// A transport as the user asked for it: `tcp`, `tcp:bbr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub kind: Kind,
    /// What stood behind the colon.
    pub options: String,
}

impl Spec {
    pub fn plain(kind: Kind) -> Spec {
        Spec { kind, options: String::new() }
    }

    /// The network device that its ranks take for themselves, where each is alone on its host: two such transports cannot be measured in one run.
    pub fn device(&self) -> Option<&str> {
        self.device_and_rest().0
    }

    /// That device, where raw frames need one, and what stands behind it.
    fn device_and_rest(&self) -> (Option<&str>, impl Iterator<Item = &str>) {
        let mut parts = self.options.split(',').filter(|part| !part.is_empty()).peekable();
        let is_raw = matches!(self.kind, Kind::RopewayPacket | Kind::RopewayXdp);
        let device = is_raw.then(|| parts.next_if(|part| !part.contains('=')).unwrap_or(USUAL_DEVICE));
        (device, parts)
    }

    /// Reads a list such as `tcp,tcp:bbr,udp`. A comma in front of `name=` continues the options of the one before.
    pub fn list(text: &str) -> Result<Vec<Spec>, String> {
        let mut joined: Vec<String> = Vec::new();
        for part in text.split(',') {
            let continues = part.split_once('=').is_some_and(|(name, _)| !name.contains(':'));
            match joined.last_mut() {
                Some(last) if continues => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => joined.push(part.trim().to_owned()),
            }
        }
        joined.iter().map(|part| part.parse()).collect()
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let Some(about) = KINDS.iter().find(|about| about.name == name || about.old_name == Some(name)) else {
            let names: Vec<&str> = KINDS.iter().map(|about| about.name).collect();
            return Err(format!("there is no transport {name:?}; there are: {}", names.join(", ")));
        };
        if !options.is_empty() && about.options.is_empty() {
            return Err(format!("the transport {name} takes no options, such as {options:?}"));
        }
        Ok(Spec { kind: about.kind, options: options.to_owned() })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.about().name)?;
        if self.options.is_empty() { Ok(()) } else { write!(f, ":{}", self.options) }
    }
}

/// What a rank is told about the transport that it opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Written as [`Spec`].
    pub transport: String,
    pub rank: Rank,
    pub ranks: usize,
    /// Name or address at which the other ranks reach this one's host.
    pub host: String,
    /// Longest wait for a peer.
    pub patience_ms: u64,
    /// See [`tcp::Pending::connect`].
    pub joins_small_sends: bool,
}

/// A rank's transport that can be reached, and waits to be told where the others are.
pub enum Pending {
    Tcp(tcp::Pending),
    Udp(udp::Pending),
    Unix(unix::Pending),
    Wire(Box<wire::Pending>, String),
    Mpi,
    /// What joins the ranks that will share memory.
    Shm(unix::Pending),
}

/// Makes the end points of a rank.
pub fn listen(setting: &Setting) -> Result<Pending, Failure> {
    let spec: Spec = setting.transport.parse().map_err(Failure::Unsupported)?;
    match spec.kind {
        Kind::Tcp | Kind::TcpSpin | Kind::Ropeway | Kind::RopewaySpin => tcp::listen(&setting.host).map(Pending::Tcp),
        Kind::Udp | Kind::UdpSpin => udp::listen(&setting.host, setting.ranks).map(Pending::Udp),
        Kind::Unix | Kind::UnixSpin => {
            let directory = (!spec.options.is_empty()).then(|| PathBuf::from(&spec.options));
            unix::listen(directory.as_deref()).map(Pending::Unix)
        }
        Kind::RopewayUdp | Kind::RopewayPacket | Kind::RopewayXdp => {
            let (pending, address) = wire::listen(wire_options(&spec, setting)?)?;
            Ok(Pending::Wire(Box::new(pending), address))
        }
        Kind::Mpi => Ok(Pending::Mpi),
        Kind::Shm | Kind::ShmSpin => unix::listen(None).map(Pending::Shm),
        Kind::Sim | Kind::CacheLine | Kind::Memcpy => Err(Failure::Unsupported(format!("{spec} has no ranks"))),
    }
}

impl Pending {
    /// Where the other ranks reach this one.
    pub fn address(&self) -> &str {
        match self {
            Pending::Tcp(pending) => pending.address(),
            Pending::Udp(pending) => pending.address(),
            Pending::Unix(pending) | Pending::Shm(pending) => pending.address(),
            Pending::Wire(_, address) => address,
            // The launcher has joined the ranks.
            Pending::Mpi => "",
        }
    }

    /// Joins the ranks, whose addresses stand in their order.
    pub fn connect(self, setting: &Setting, addresses: &[String]) -> Result<Box<dyn Transport>, Failure> {
        let spec: Spec = setting.transport.parse().map_err(Failure::Unsupported)?;
        let spins =
            matches!(spec.kind, Kind::TcpSpin | Kind::UdpSpin | Kind::UnixSpin | Kind::RopewaySpin | Kind::ShmSpin);
        let patience = Duration::from_millis(setting.patience_ms);
        let manner = Manner { name: spec.kind.about().name, spins, patience };
        let rank = setting.rank;
        Ok(match self {
            Pending::Tcp(pending) => {
                let congestion = (!spec.options.is_empty()).then_some(spec.options.as_str());
                Box::new(pending.connect(manner, rank, addresses, congestion, setting.joins_small_sends)?)
            }
            Pending::Udp(pending) => Box::new(pending.connect(manner, rank, addresses)?),
            Pending::Unix(pending) => Box::new(pending.connect(manner, rank, addresses)?),
            Pending::Wire(pending, _) => Box::new(pending.connect(addresses)?),
            Pending::Mpi => Box::new(OverMpi::begin_as(patience, rank, setting.ranks)?),
            Pending::Shm(pending) => Box::new(shm::connect(pending, manner, rank, addresses)?),
        })
    }
}

/// What stands behind the colon of a transport over Ropeway's protocol: a device first where it needs one, then tunables and `spin` and `key`.
fn wire_options(spec: &Spec, setting: &Setting) -> Result<wire::Options, Failure> {
    let wrong = |text: &str| Failure::Unsupported(format!("{spec}: `{text}` is no NAME=NUMBER"));
    let too_long = |text: &str| Failure::Unsupported(format!("{spec}: `{text}` is longer than any time"));
    let (device, parts) = spec.device_and_rest();
    let over = match device.map(str::to_owned) {
        Some(device) if spec.kind == Kind::RopewayXdp => wire::Over::Xdp(device),
        Some(device) => wire::Over::Packet(device),
        None => {
            let resolved =
                (setting.host.as_str(), 0).to_socket_addrs().map_err(Failure::system("find my own address"))?;
            let Some(address) = resolved.into_iter().next() else {
                return Err(Failure::Unsupported(format!("the name {} has no address", setting.host)));
            };
            wire::Over::Udp(address)
        }
    };
    let mut options = wire::Options::new(over, setting.rank, setting.ranks);
    options.patience = Duration::from_millis(setting.patience_ms);
    for part in parts {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let number = || value.parse::<f64>().ok().filter(|number| *number >= 0.0).ok_or_else(|| wrong(part));
        match name {
            "key" => options.key_file = Some(PathBuf::from(value)),
            "spin" => options.spin = Duration::try_from_secs_f64(number()? / 1e6).map_err(|_| too_long(part))?,
            _ => options.tunables.push((name.to_owned(), number()?)),
        }
    }
    Ok(options)
}

/// The device of raw frames unless the user names one: what hosts of a box have.
const USUAL_DEVICE: &str = "eth0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_options_that_have_commas() {
        let specs = Spec::list("tcp,tcp:bbr,unix:/tmp/a,b=1,udp").expect("a list");
        let texts: Vec<String> = specs.iter().map(Spec::to_string).collect();
        assert_eq!(texts, ["tcp", "tcp:bbr", "unix:/tmp/a,b=1", "udp"]);
    }

    #[test]
    fn a_time_that_there_is_not_is_refused() {
        let options = |text: &str| {
            let spec: Spec = text.parse().expect("a transport");
            let setting = Setting {
                transport: text.to_owned(),
                rank: 0,
                ranks: 2,
                host: "127.0.0.1".to_owned(),
                patience_ms: 1,
                joins_small_sends: false,
            };
            wire_options(&spec, &setting)
        };
        assert_eq!(options("ropeway-udp:spin=2.5").expect("a time").spin, Duration::from_nanos(2_500));
        for text in ["ropeway-udp:spin=1e30", "ropeway-udp:spin=inf"] {
            let error = options(text).map(|options| options.spin).expect_err(text).to_string();
            assert!(error.contains("longer than any time"), "{error}");
        }
        for text in ["ropeway-udp:spin=-1", "ropeway-udp:spin=NaN", "ropeway-udp:spin"] {
            let error = options(text).map(|options| options.spin).expect_err(text).to_string();
            assert!(error.contains("is no NAME=NUMBER"), "{error}");
        }
    }

    #[test]
    fn old_names_mean_the_new_ones() {
        assert_eq!("tcp-spinning".parse(), Ok(Spec::plain(Kind::TcpSpin)));
        assert_eq!("tcp-blocking".parse::<Spec>().map(|spec| spec.to_string()), Ok("tcp".to_owned()));
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let error = "tpc".parse::<Spec>().expect_err("no such transport");
        assert!(error.contains("tpc") && error.contains("tcp-spin") && error.contains("memcpy"), "{error}");
        assert!("udp:fast".parse::<Spec>().expect_err("no options").contains("no options"));
    }
}
