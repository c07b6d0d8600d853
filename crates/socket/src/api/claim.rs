//! What processes on one network device must not share: ports, and the steering bits by which their packets are told apart. A port is claimed by the name of a
//! UNIX socket without a file, which is unique in the network namespace, as the device is, and goes with its process. Names are anybody's, as ports of UDP are. Steering bits, of which there are few,
//! are only for those who may open a link ([`packet::claim`]).

use ropeway_engine::link::{device_index, packet};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Steering bits: 12, of which all ones mean whoever listens at a port ...
const STEERINGS: u16 = 0xFFF;
/// ... and none that an engine is alone at its address.
const FIRST_STEERING: u16 = 1;
/// Ports for who asks for any, as TCP's.
const FIRST_FREE_PORT: u16 = 49_152;

/// Something that no other process has while this one keeps it.
#[derive(Debug)]
pub struct Claim {
    _socket: OwnedFd,
    port: Option<u16>,
}

impl Claim {
    /// A port on `device`, 0 for any.
    ///
    /// # Errors
    /// Somebody has it, or there is none left.
    pub fn port(device: &str, port: u16) -> io::Result<(u16, Claim)> {
        let ports = if port == 0 { FIRST_FREE_PORT..=u16::MAX } else { port..=port };
        let found = first_free(&known_as(device), ports)?;
        let (port, socket) = found.ok_or_else(|| {
            let what = if port == 0 { "every port".into() } else { format!("port {port}") };
            io::Error::new(ErrorKind::AddrInUse, format!("{what} on {device} is in use"))
        })?;
        Ok((port, Claim { _socket: socket.into(), port: Some(port) }))
    }

    /// So many steering bits in a row, and the first of them, a multiple of their number. Nobody has them on any device.
    ///
    /// # Errors
    /// `CAP_NET_RAW` is missing, or none are left.
    pub fn steering(count: usize) -> io::Result<(u16, Vec<Claim>)> {
        let count = u16::try_from(count).ok().filter(|&count| count > 0).ok_or(ErrorKind::InvalidInput)?;
        let (first, end) = (FIRST_STEERING.div_ceil(count), STEERINGS / count);
        // Where to begin does not matter; processes that start together begin apart.
        let begin = first + (std::process::id() % u32::from(end.saturating_sub(first).max(1))) as u16;
        let mut rows = (begin..end).chain(first..begin);
        // A claim that has found its number keeps it, so the first of a row looks for one that is free.
        while let Some((number, socket)) = packet::claim(rows.by_ref().map(|row| row * count))? {
            let others =
                (number + 1..number + count).map(|number| Ok(packet::claim([number])?.map(|(_, socket)| socket)));
            // Where somebody has one of them the others are let go of.
            let others: io::Result<Option<Vec<OwnedFd>>> = others.collect();
            if let Some(others) = others? {
                let sockets = std::iter::once(socket).chain(others);
                return Ok((number, sockets.map(|socket| Claim { _socket: socket, port: None }).collect()));
            }
        }
        let what = format!(
            "{} engines can use Ethernet here, and there is no room for {count} more",
            STEERINGS - FIRST_STEERING
        );
        Err(io::Error::new(ErrorKind::AddrInUse, what))
    }

    pub fn is_port(&self, port: u16) -> bool {
        self.port == Some(port)
    }
}

/// A device may have several names, and change them. Whether there is one says who opens it.
fn known_as(device: &str) -> String {
    device_index(device).map_or_else(|_| device.to_owned(), |index| index.to_string())
}

/// `device`: what [`known_as`] says.
fn first_free(device: &str, ports: impl IntoIterator<Item = u16>) -> io::Result<Option<(u16, UnixDatagram)>> {
    for port in ports {
        let name = SocketAddr::from_abstract_name(format!("ropeway/{device}/port/{port}"))?;
        match UnixDatagram::bind_addr(&name) {
            Ok(socket) => return Ok(Some((port, socket))),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_testkit::need_root;
    use rustix::process::{Resource, Rlimit};

    #[test]
    fn what_one_has_no_other_gets() {
        // There is no such device, which makes no difference here.
        let device = format!("test{}", std::process::id());
        let (port, held) = Claim::port(&device, 0).unwrap();
        assert!(port >= FIRST_FREE_PORT && held.is_port(port));
        assert_eq!(Claim::port(&device, port).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_ne!(Claim::port(&device, 0).unwrap().0, port);
        drop(held);
        assert_eq!(Claim::port(&device, port).unwrap().0, port);
    }

    #[test]
    fn what_steers_to_one_steers_to_no_other() {
        need_root!();
        let ((one, _a), (other, _b)) = (Claim::steering(1).unwrap(), Claim::steering(1).unwrap());
        assert!(one != other && one < STEERINGS && other < STEERINGS && one > 0 && other > 0);
        let (first, row) = Claim::steering(4).unwrap();
        assert!(first % 4 == 0 && first > 0 && first + 4 <= STEERINGS && row.len() == 4);
        assert!(!(first..first + 4).contains(&one) && !(first..first + 4).contains(&other));
        assert!(Claim::steering(5000).is_err());
    }

    /// Anybody can have names.
    #[test]
    fn no_names_of_others_keep_one_from_steering() {
        need_root!();
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
        let name = |number| format!("ropeway/{}/steering/{number}", device_index("lo").unwrap());
        let bind = |number| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name(number)).unwrap());
        let _taken: Vec<_> = (0..=STEERINGS).map(bind).collect();
        Claim::steering(1).unwrap();
    }
}
