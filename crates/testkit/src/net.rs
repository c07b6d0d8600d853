//! TCP ports of the loopback interface: free ones, and who listens, learned without connecting.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::{LazyLock, Mutex};

/// Below the range from which Linux takes the ports of outgoing connections (32768 and up): no client steals a port between
/// here and the server's bind.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Ports already given out by this process.
static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port on which nobody listens, different at every call. Test programs that run at the same time start at different
/// places, by their pid.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    let span = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(61) % span;
    let mut given = GIVEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    (0..span)
        .map(|step| PORTS.start + u16::try_from((start + step) % span).expect("less than 65536"))
        .find(|port| can_bind(*port) && given.insert(*port))
        .expect("a free port on the loopback interface")
}

fn can_bind(port: u16) -> bool {
    // A machine without IPv6 can still run the tests.
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
        && TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .map_or_else(|e| e.kind() != std::io::ErrorKind::AddrInUse, |_| true)
}

/// State of a socket that waits for a connection, and of one that both ends have closed, in `/proc/net/tcp`.
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Whether somebody listens on a TCP port in the network namespace of the process `pid`.
pub fn is_listening(pid: u32, port: u16) -> bool {
    any_socket(pid, port, |state| state == LISTEN)
}

/// Whether a connection that came in on a TCP port has an open descriptor, or bytes on their way, in the network namespace
/// of the process `pid`.
pub fn has_connections(pid: u32, port: u16) -> bool {
    any_socket(pid, port, |state| state != LISTEN && state != TIME_WAIT)
}

fn any_socket(pid: u32, port: u16, is_meant: impl Fn(&str) -> bool) -> bool {
    ["tcp", "tcp6"].into_iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().skip(1).filter_map(port_and_state).any(|(local, state)| local == port && is_meant(state))
    })
}

/// The local port and the state in a line of `/proc/net/tcp`.
fn port_and_state(line: &str) -> Option<(u16, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (_, local_port) = fields.nth(1)?.rsplit_once(':')?;
    Some((u16::from_str_radix(local_port, 16).ok()?, fields.nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let (a, b) = (free_port(), free_port());
        assert_ne!(a, b);
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, a)).expect("a free port can be bound");
    }

    #[test]
    fn a_listener_is_seen_and_its_end_too() {
        let port = free_port();
        assert!(!is_listening(std::process::id(), port));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a free port can be bound");
        assert!(is_listening(std::process::id(), port));
        drop(listener);
        // A test beside this one may be starting a program: until that has become another one, it holds the listener too.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_listening(std::process::id(), port) {
            assert!(std::time::Instant::now() < deadline, "a listener that was closed is still seen");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_connection_is_seen_until_both_ends_are_closed() {
        let (port, pid) = (free_port(), std::process::id());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a free port can be bound");
        assert!(!has_connections(pid, port));
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("somebody listens");
        let (server, _) = listener.accept().expect("a client has connected");
        assert!(has_connections(pid, port));
        drop(client);
        assert!(has_connections(pid, port));
        drop(server);
        assert!(!has_connections(pid, port));
    }
}
