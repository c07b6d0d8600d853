//! From an IP address to the hardware address behind it, so that programs that know hosts by IP addresses run over plain Ethernet too. The kernel's
//! neighbour table knows; where it does not yet, an empty datagram makes it ask.

use ropeway_engine::link;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

const TABLE: &str = "/proc/net/arp";
/// The devices of this network namespace.
const DEVICES: &str = "/proc/net/dev";
/// The kernel asks three times, a second apart: whoever is there has answered the first.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Who does not wait gets what the kernel knows, or learns in so long: whoever is there mostly answers within one. It goes on asking, so that the next try finds it.
const NONBLOCKING_PATIENCE: Duration = Duration::from_millis(10);
/// It looks seldom later, and often first.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_FIRST_AFTER: Duration = Duration::from_micros(200);
/// The service that throws away what it gets.
const DISCARD_PORT: u16 = 9;
/// The entry is complete (`ATF_COM`).
const COMPLETE: u32 = 0x2;

/// Until when who does not wait looks for one.
pub fn nonblocking_deadline() -> Option<Instant> {
    Some(Instant::now() + NONBLOCKING_PATIENCE)
}

/// Waits until `deadline` at most.
///
/// # Errors
/// There is no such device; the address is not on its network, nobody has it or has said so in time, or it is not IPv4.
pub fn hardware_address(ip: IpAddr, device: &str, deadline: Option<Instant>) -> io::Result<[u8; 6]> {
    let IpAddr::V4(ip) = ip.to_canonical() else {
        let what =
            format!("over {device}, {ip} cannot be looked up: use IPv4 or hardware addresses ({device}/02:..:7000)");
        return Err(io::Error::new(ErrorKind::Unsupported, what));
    };
    if !is_among(&std::fs::read_to_string(DEVICES)?, device) {
        return Err(io::Error::new(ErrorKind::NotFound, format!("there is no network device {device}")));
    }
    // Refused, unreachable: whatever comes of it, the kernel asks, also for what it knows and has not heard of for long: frames of ours tell it nothing.
    let _ = UdpSocket::bind("0.0.0.0:0")?.send_to(&[], (ip, DISCARD_PORT));
    let begin = Instant::now();
    let end = deadline.map_or(begin + PATIENCE, |deadline| deadline.min(begin + PATIENCE));
    loop {
        if let Some(mac) = find(&std::fs::read_to_string(TABLE)?, ip, device) {
            return Ok(mac);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(begin.elapsed().clamp(LOOK_FIRST_AFTER, LOOK_EVERY).min(left));
    }
    let what = format!(
        "nobody on {device} has said that {ip} is its address (it must be on that network, and not this host's own)"
    );
    Err(io::Error::new(ErrorKind::HostUnreachable, what))
}

fn is_among(devices: &str, device: &str) -> bool {
    devices.lines().filter_map(|line| line.split_once(':')).any(|(name, _)| name.trim_start() == device)
}

fn find(table: &str, ip: Ipv4Addr, device: &str) -> Option<[u8; 6]> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _kind, flags, mac, _mask, on] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
        let is_it = on == device && flags & COMPLETE != 0 && address.parse() == Ok(ip);
        if is_it { link::hardware_address(mac) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x2         02:00:00:00:00:02     *        eth0
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.0.2         0x1         0x6         02:00:00:00:00:99     *        eth1
nonsense
";

    #[test]
    fn a_device_that_is_not_there_is_said_at_once() {
        let begin = Instant::now();
        let error = hardware_address(Ipv4Addr::new(10, 0, 0, 2).into(), "no-such-device", None).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::NotFound, "there is no network device no-such-device")
        );
        assert!(begin.elapsed() < PATIENCE);
        let devices = "Inter-|   Receive\n face |bytes\n    lo: 1 2\n  eth0: 3 4\n";
        assert_eq!(["lo", "eth0", "eth", "face "].map(|name| is_among(devices, name)), [true, true, false, false]);
    }

    #[test]
    fn complete_entries_of_the_device_are_found() {
        assert_eq!(find(TABLE, Ipv4Addr::new(10, 0, 0, 2), "eth0"), Some([2, 0, 0, 0, 0, 2]));
        assert_eq!(find(TABLE, Ipv4Addr::new(10, 0, 0, 2), "eth1"), Some([2, 0, 0, 0, 0, 0x99]));
        assert_eq!(find(TABLE, Ipv4Addr::new(10, 0, 0, 3), "eth0"), None);
        assert_eq!(find(TABLE, Ipv4Addr::new(10, 0, 0, 2), "eth2"), None);
    }
}
