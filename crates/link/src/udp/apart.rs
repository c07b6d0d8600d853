//! A second socket, for what goes to hosts that may be off.
//!
//! While the kernel asks for the hardware address of a host it keeps what is for it, three seconds if nobody answers, and counts that against the buffer of the socket that sent it: nine full
//! packets for each of five hosts that are off, and those that are there get nothing. Here such packets have a socket and a buffer of their own
//! ([decision 23](../../../../docs/decisions/0023-what-may-be-for-nobody-has-a-socket-of-its-own.md)).
//!
//! It has the link's port and sends from the link's address, but is bound to an address at which nothing arrives. So the link's own socket stays the only one at its address: what arrives is for
//! that one, before, while and after this one is opened, and so are the network's reports of what this one has sent, which look for the address that it was sent from.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::own::OwnAddress;
use super::{Options, UdpLink, constant, sending_socket};
use crate::sys::program::{RET, plain};
use crate::sys::{self, Descriptor};

/// Groups that stand in documents (RFC 6676), so that no network has members of them. A socket at a group's address that has not joined it gets nothing, and the kernel chooses the address that
/// its packets leave from unless they say one, as with a wildcard address.
const NOBODY_V4: Ipv4Addr = Ipv4Addr::new(233, 252, 0, 1);
const NOBODY_V6: Ipv6Addr = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xdb8, 0, 1);

/// How many other groups are tried where somebody has the port at that one. They are drawn from so many that nobody can have it at all of them.
const OTHER_GROUPS: usize = 4;

/// 48 full packets as the kernel counts. When it gives up a host it makes a report of each packet that it has kept, and no more than 50 at a time (`net.ipv4.icmp_msgs_burst`): with more packets some
/// of many hosts would have none, and who connects there would not learn why it is in vain.
const SEND_BUFFER_BYTES: usize = 108 << 10;

/// Ports below need a privilege, as the kernel is set up usually (`net.ipv4.ip_unprivileged_port_start`).
const PRIVILEGED_PORTS: u16 = 1024;

/// So many packets, or runs of them, go the usual way at most before it is tried again: what fails takes some ten system calls.
const MOST_PAUSE: u32 = 1023;

/// Between attempts that fail, counted in what could not leave apart meanwhile: none after the first, then twice as many and one each time.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    left: u32,
    next: u32,
}

impl Pauses {
    /// Whether to try again now; the next pause is longer.
    pub(super) fn is_over(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        (self.left, self.next) = (self.next, (2 * self.next + 1).min(MOST_PAUSE));
        true
    }
}

/// The network namespace that a socket is in, by a number that no other one has.
fn network(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = [0; 8];
    sys::get_option(fd, libc::SOL_SOCKET, constant::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

fn share(fd: BorrowedFd<'_>, shares: bool) -> io::Result<()> {
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, shares.into())
}

/// A group drawn by chance: of 2^24 that networks have by their own unicast addresses (RFC 6034), or of 2^112.
fn other_group(usual: IpAddr) -> io::Result<IpAddr> {
    let mut drawn = [0; 16];
    // So few bytes come whole.
    getrandom(&mut drawn, GetRandomFlags::empty())?;
    Ok(match usual {
        IpAddr::V4(_) => IpAddr::from([234, drawn[1], drawn[2], drawn[3]]),
        IpAddr::V6(_) => {
            [drawn[0], drawn[1]] = [0xff, 0x0e];
            IpAddr::from(drawn)
        }
    })
}

impl UdpLink {
    /// Opens it if it is not there yet, and says whether it is. Where the kernel or the limit of descriptors says no it is asked again, less and less often.
    pub(super) fn has_apart(&mut self) -> bool {
        if self.apart.is_none() && self.apart_pauses.is_over() {
            self.apart = self.open_apart().ok();
            if self.apart.is_some() {
                self.apart_pauses = Pauses::default();
            }
        }
        self.apart.is_some()
    }

    /// Opens it at once where a process that gives up its privileges could not do so later: at a wildcard address the kernel lets sockets of one user share, and lower ports are for the privileged.
    pub(super) fn open_apart_while_it_may(&mut self) {
        let is_of_root = self.local.ip().is_unspecified() && rustix::process::geteuid().is_root();
        if is_of_root || self.local.port() < PRIVILEGED_PORTS {
            self.apart = self.open_apart().ok();
        }
    }

    fn open_apart(&self) -> io::Result<Descriptor> {
        let urgent_priority = if self.paths.has_priority() { self.options.urgent_priority } else { 0 };
        let options = Options { urgent_priority, send_buffer_bytes: SEND_BUFFER_BYTES, ..self.options.clone() };
        let (socket, _) = sending_socket(&options)?;
        let fd = socket.as_fd();
        // The thread that sends may be elsewhere than the one that opened the link was.
        if network(fd)? != network(self.socket.as_fd())? {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        sys::set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &[plain(RET, 0)])?;
        // Links at other addresses may have the same port, and such a socket of their own.
        sys::set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if !self.local.ip().is_unspecified() {
            self.bind_to_nobody(fd)?;
            return Ok(socket);
        }
        // A wildcard address is every address to the kernel, so both must let the other in. Only for this moment: others of this user could come in as well.
        let is_grouped = self.options.group.is_some();
        share(fd, true)?;
        if !is_grouped {
            share(self.socket.as_fd(), true)?;
        }
        let bound = self.bind_to_nobody(fd);
        if !is_grouped {
            share(self.socket.as_fd(), false)?;
        }
        share(fd, false)?;
        bound?;
        Ok(socket)
    }

    fn bind_to_nobody(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let usual = if self.local.is_ipv4() { IpAddr::from(NOBODY_V4) } else { IpAddr::from(NOBODY_V6) };
        let mut bound = rustix::net::bind(fd, &SocketAddr::new(usual, self.local.port()));
        for _ in 0..OTHER_GROUPS {
            if bound != Err(Errno::ADDRINUSE) {
                break;
            }
            bound = rustix::net::bind(fd, &SocketAddr::new(other_group(usual)?, self.local.port()));
        }
        Ok(bound?)
    }

    /// The socket that packets leave by.
    pub(super) fn way_out(&self, apart: bool) -> BorrowedFd<'_> {
        self.apart.as_ref().filter(|_| apart).unwrap_or(&self.socket).as_fd()
    }

    /// The address that its packets have to name, if the kernel does not choose it for the link's own socket either.
    pub(super) fn apart_source(&self) -> Option<OwnAddress> {
        (!self.local.ip().is_unspecified()).then(|| OwnAddress::of(self.local))
    }
}
