//! `udp`: datagrams of the kernel. Messages are lost where a queue is full; the receiver says so after a short wait and the patterns count it.
//!
//! Each pair of ranks has a pair of connected sockets, so that nobody's messages fill another's queue. The ranks are joined by TCP as well, which carries the barriers. A datagram begins
//! with the number of barriers that its sender has passed: what is left of an earlier trial is not taken for one of this.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use super::streams::{Manner, Spin, readable};
use super::tcp::{self, Tcp, bind_addresses, join_host_port};
use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

/// The number of barriers that the sender has passed.
const HEADER_BYTES: usize = 4;

/// The largest datagram of IPv4, with our header.
const LARGEST_BYTES: usize = 65507;

/// Asked for in each socket; the kernel gives what `net.core.rmem_max` allows.
const BUFFER_BYTES: usize = 4 << 20;

/// What does not come within this time is lost. Longer than any queue of a local network, short enough to go on measuring.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// A rank that can be reached and is not connected yet.
#[derive(Debug)]
pub struct Pending {
    barriers: tcp::Pending,
    sockets: Vec<UdpSocket>,
    address: String,
}

/// One rank's sockets towards all others.
pub struct Udp {
    barriers: Tcp,
    spins: bool,
    patience: Duration,
    name: &'static str,
    /// By rank; the one to oneself is not used.
    sockets: Vec<UdpSocket>,
    passed: u32,
    buffer: Vec<u8>,
    /// Where [`Transport::wait_any`] looks first.
    next: Rank,
}

/// Makes the sockets. The address names all of them: that of the barriers, then a port for each rank.
pub fn listen(host: &str, ranks: usize) -> Result<Pending, Failure> {
    let barriers = tcp::listen(host)?;
    let mut address = barriers.address().to_owned();
    let mut sockets = Vec::with_capacity(ranks);
    for _ in 0..ranks {
        let socket = UdpSocket::bind(&bind_addresses(host)[..]).map_err(Failure::system("make a UDP socket"))?;
        let port = socket.local_addr().map_err(Failure::system("make a UDP socket"))?.port();
        address.push_str(&format!(" {}", join_host_port(host, port)));
        sockets.push(socket);
    }
    Ok(Pending { barriers, sockets, address })
}

impl Pending {
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn connect(self, manner: Manner, rank: Rank, addresses: &[String]) -> Result<Udp, Failure> {
        let malformed = || Failure::Unsupported("the address of a UDP rank is malformed".to_owned());
        let mut barrier_addresses = Vec::new();
        for (peer, text) in addresses.iter().enumerate() {
            let mut parts = text.split(' ');
            barrier_addresses.push(parts.next().ok_or_else(malformed)?.to_owned());
            // The socket that this peer has made for us.
            let ours = parts.nth(rank).ok_or_else(malformed)?;
            if peer != rank {
                connect(&self.sockets[peer], ours).map_err(|cause| Failure::Unreachable {
                    peer,
                    address: ours.to_owned(),
                    cause,
                })?;
            }
        }
        let barriers = Manner { name: manner.name, spins: false, patience: manner.patience };
        Ok(Udp {
            barriers: self.barriers.connect(barriers, rank, &barrier_addresses, None, false)?,
            spins: manner.spins,
            patience: manner.patience,
            name: manner.name,
            sockets: self.sockets,
            passed: 0,
            buffer: vec![0; LARGEST_BYTES],
            next: 0,
        })
    }
}

/// Connects a socket to an address of its own family: one for all families speaks IPv4 as IPv6.
fn connect(socket: &UdpSocket, address: &str) -> std::io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    // What the kernel refuses to give stays as it is.
    let _ = setsockopt(socket, sockopt::RcvBuf, &BUFFER_BYTES);
    let _ = setsockopt(socket, sockopt::SndBuf, &BUFFER_BYTES);
    let v6 = socket.local_addr()?.is_ipv6();
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address of the right family");
    for address in address.to_socket_addrs()? {
        let address = match address.ip() {
            IpAddr::V4(ip) if v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        };
        match socket.connect(address) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Udp {
    /// Takes the next datagram of this trial out of the kernel into the buffer, without waiting; its length without the header.
    fn take(&mut self, from: Rank) -> Result<Option<usize>, Failure> {
        loop {
            match recv(self.sockets[from].as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(n) if self.buffer[..n].first_chunk() == Some(&self.passed.to_le_bytes()) => {
                    return Ok(Some(n - HEADER_BYTES));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                // Its process has gone.
                Err(Errno::ECONNREFUSED) => return Err(Failure::Closed { peer: from }),
                Err(errno) => return Err(Failure::System { what: "receive a datagram", cause: errno.into() }),
            }
        }
    }

    /// The same, waiting for as long as a message can be under way.
    fn wait(&mut self, from: Rank) -> Result<Option<usize>, Failure> {
        let mut end = None;
        loop {
            if let Some(length) = self.take(from)? {
                return Ok(Some(length));
            }
            // The clock is not read before the first look has failed.
            let left = end.get_or_insert_with(|| Instant::now() + LOST_AFTER).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if !self.spins {
                let socket = self.sockets[from].as_fd();
                readable([socket].into_iter(), Some(left)).map_err(Failure::system("wait for a datagram"))?;
            }
        }
    }

    fn copy(&self, length: usize, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        if length != into.len() {
            return Err(Failure::Damaged { peer: from, expected: into.len(), what: "another length" });
        }
        into.copy_from_slice(&self.buffer[HEADER_BYTES..HEADER_BYTES + length]);
        Ok(true)
    }
}

impl Transport for Udp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rank(&self) -> Rank {
        self.barriers.rank()
    }

    fn ranks(&self) -> usize {
        self.sockets.len()
    }

    fn is_reliable(&self) -> bool {
        false
    }

    fn largest_message(&self) -> usize {
        LARGEST_BYTES - HEADER_BYTES
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        let length = HEADER_BYTES + bytes.len();
        let Some(datagram) = self.buffer.get_mut(..length) else {
            return Err(Failure::Unsupported(format!("a datagram holds {} bytes", self.largest_message())));
        };
        datagram[..HEADER_BYTES].copy_from_slice(&self.passed.to_le_bytes());
        datagram[HEADER_BYTES..].copy_from_slice(bytes);
        let mut spin = Spin::new();
        loop {
            match send(self.sockets[to].as_raw_fd(), &self.buffer[..length], MsgFlags::MSG_DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::ECONNREFUSED) => return Err(Failure::Closed { peer: to }),
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => {
                    spin.turn(to, self.patience)?;
                    if !self.spins {
                        let mut room = [PollFd::new(self.sockets[to].as_fd(), PollFlags::POLLOUT)];
                        // Whatever it says, the next turn looks.
                        let _ = poll(&mut room, PollTimeout::from(50u8));
                    }
                }
                Err(errno) => return Err(Failure::System { what: "send a datagram", cause: errno.into() }),
            }
        }
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.wait(from)? {
            Some(length) => self.copy(length, from, into),
            None => Ok(false),
        }
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.take(from)? {
            Some(length) => self.copy(length, from, into),
            None => Ok(false),
        }
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let Some(length) = self.wait(from)? else { return Ok(0) };
        let Some(start) = into.get_mut(..length) else {
            return Err(Failure::Damaged { peer: from, expected: into.len(), what: "larger than the buffer" });
        };
        start.copy_from_slice(&self.buffer[HEADER_BYTES..HEADER_BYTES + length]);
        Ok(length)
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let count = self.ranks();
        let own = self.rank();
        let order = (0..count).map(|step| (self.next + step) % count).filter(|rank| *rank != own);
        let order: Vec<Rank> = order.collect();
        let end = Instant::now() + LOST_AFTER;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let limit = (!self.spins).then_some(left);
            let sockets = order.iter().map(|rank| self.sockets[*rank].as_fd());
            let ready = readable(sockets, limit).map_err(Failure::system("wait for a datagram"))?;
            if let Some(rank) = order.iter().zip(ready).find_map(|(rank, ready)| ready.then_some(*rank)) {
                self.next = rank + 1;
                return Ok(Some(rank));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.barriers.barrier()?;
        self.passed = self.passed.wrapping_add(1);
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
