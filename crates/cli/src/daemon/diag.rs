//! What the kernel knows of TCP sockets, asked through `NETLINK_SOCK_DIAG`: one exact socket, or all that live.
//!
//! The kernel answers only about the network namespace in which the netlink socket was made, so a socket found here is in
//! the daemon's own. Message layouts: `linux/inet_diag.h`, `linux/sock_diag.h`, `struct tcp_info` of `linux/tcp.h`.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use ropeway_socket::rendezvous::wire::Endpoint;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// One TCP socket as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    pub established: bool,
    /// Owner of the socket's inode: the file-system user id of the process that made or accepted it.
    pub uid: u32,
    pub inode: u32,
    pub counters: Counters,
}

/// A TCP socket in the list of all that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub cookie: u64,
    pub local: Endpoint,
    pub remote: Endpoint,
    /// Bytes that arrived and the program has not taken; a FIN counts as one.
    pub unread: u32,
    /// Bytes that the program sent and the other end has not acknowledged.
    pub unacknowledged: u32,
}

/// Bytes of the two directions since the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the network at least once, every byte counted once.
    pub sent: u64,
    /// Of those, acknowledged by the other end. An end that opened the connection counts its SYN too (measured:
    /// 1 more than the bytes on the connecting end, exact on the accepting one).
    pub acked: u64,
    /// Arrived in order.
    pub received: u64,
}

const FAMILY_V4: u8 = 2;
const FAMILY_V6: u8 = 10;
const PROTOCOL_TCP: u8 = 6;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const INET_DIAG_INFO: u16 = 2;
const TCP_ESTABLISHED: u8 = 1;
/// Every state but TIME_WAIT (6), CLOSE (7), LISTEN (10) and NEW_SYN_RECV (12): there a socket still has its cookie's owner.
const LIVE_STATES: u32 = 0x0fff & !(1 << 6 | 1 << 7 | 1 << 10);

const NETLINK_HEADER: usize = 16;
/// `struct inet_diag_msg`.
const DIAG_MSG: usize = 72;
/// Offsets in `struct tcp_info`.
const INFO_BYTES_ACKED: usize = 120;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANS: usize = 208;

/// A dump is cut into messages of this size by the kernel.
const REPLY_BYTES: usize = 64 * 1024;

/// The netlink socket.
#[derive(Debug)]
pub struct Diag {
    socket: OwnedFd,
    sequence: u32,
    reply: Vec<u8>,
}

impl Diag {
    pub fn open() -> io::Result<Diag> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        // The kernel answers inside the request, so this never expires; it only guards against a lost answer.
        let limit = Some(std::time::Duration::from_secs(2));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit)?;
        Ok(Diag { socket, sequence: 0, reply: vec![0; REPLY_BYTES] })
    }

    /// The socket with exactly these ends and this cookie; `None` if there is none.
    pub fn find(&mut self, local: &Endpoint, remote: &Endpoint, cookie: u64) -> io::Result<Option<TcpSocket>> {
        let (family, source, destination) = match (local.as_v4(), remote.as_v4()) {
            (Some(l), Some(r)) => (FAMILY_V4, widened(l), widened(r)),
            _ => (FAMILY_V6, local.addr, remote.addr),
        };
        let mut id = Vec::with_capacity(48);
        id.extend(local.port.to_be_bytes());
        id.extend(remote.port.to_be_bytes());
        id.extend(source);
        id.extend(destination);
        id.extend([0; 4]);
        id.extend(cookie.to_ne_bytes());
        let mut found = None;
        self.ask(family, !0, 1 << (INET_DIAG_INFO - 1), &id, 0, &mut |body| found = parse(body))?;
        // The lookup falls back to a listener of the same port on some kernels; the cookie tells.
        Ok(found.filter(|(_, c)| *c == cookie).map(|(socket, _)| socket))
    }

    /// Cookies of all TCP sockets that live in this namespace.
    pub fn live_cookies(&mut self) -> io::Result<HashSet<u64>> {
        Ok(self.live_sockets()?.into_iter().map(|socket| socket.cookie).collect())
    }

    /// All TCP sockets that live in this namespace.
    pub fn live_sockets(&mut self) -> io::Result<Vec<Listed>> {
        let mut sockets = Vec::new();
        for family in [FAMILY_V4, FAMILY_V6] {
            self.ask(family, LIVE_STATES, 0, &[0; 48], NLM_F_DUMP, &mut |body| sockets.extend(listed(body)))?;
        }
        Ok(sockets)
    }

    /// Sends one request and hands every answer's body to `each`.
    fn ask(
        &mut self,
        family: u8,
        states: u32,
        extensions: u8,
        id: &[u8],
        flags: u16,
        each: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut body = vec![family, PROTOCOL_TCP, extensions, 0];
        body.extend(states.to_ne_bytes());
        body.extend(id);
        let mut request = Vec::with_capacity(NETLINK_HEADER + body.len());
        request.extend(((NETLINK_HEADER + body.len()) as u32).to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(body);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        let dump = flags != 0;
        loop {
            let (n, _) = rustix::net::recv(&self.socket, &mut self.reply[..], RecvFlags::empty())?;
            let mut rest = &self.reply[..n];
            while let Some((kind, sequence, body, next)) = split_message(rest) {
                rest = next;
                if sequence != self.sequence {
                    continue; // the late answer to a request that timed out
                }
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = body.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
                        return match -code {
                            0 => Ok(()),
                            ENOENT | ESTALE => Ok(()), // no such socket, or its number has another owner now
                            errno => Err(io::Error::from_raw_os_error(errno)),
                        };
                    }
                    _ => {
                        each(body);
                        if !dump {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}

const ENOENT: i32 = 2;
const ESTALE: i32 = 116;

fn widened(v4: [u8; 4]) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&v4);
    out
}

/// First netlink message of `bytes`: type, sequence number, body, and the bytes after it.
fn split_message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let message = bytes.get(..length).filter(|m| m.len() >= NETLINK_HEADER)?;
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let sequence = u32::from_ne_bytes(*message[8..].first_chunk()?);
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, sequence, &message[NETLINK_HEADER..], next))
}

/// `struct inet_diag_msg` and its attributes: the socket and its cookie.
fn parse(body: &[u8]) -> Option<(TcpSocket, u64)> {
    let state = *body.get(1)?;
    let cookie = u64_at(body, 44)?;
    let uid = u32_at(body, 64)?;
    let inode = u32_at(body, 68)?;
    let mut counters = Counters::default();
    let mut attributes = body.get(DIAG_MSG..)?;
    while let (Some(length), Some(kind)) = (u16_at(attributes, 0), u16_at(attributes, 2)) {
        let Some(value) = attributes.get(4..usize::from(length)) else { break };
        if kind == INET_DIAG_INFO {
            let sent = u64_at(value, INFO_BYTES_SENT)?;
            counters = Counters {
                sent: sent.saturating_sub(u64_at(value, INFO_BYTES_RETRANS)?),
                acked: u64_at(value, INFO_BYTES_ACKED)?,
                received: u64_at(value, INFO_BYTES_RECEIVED)?,
            };
        }
        attributes = attributes.get(usize::from(length).next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some((TcpSocket { established: state == TCP_ESTABLISHED, uid, inode, counters }, cookie))
}

/// `struct inet_diag_msg`: ends and queues.
fn listed(body: &[u8]) -> Option<Listed> {
    let family = *body.first()?;
    let end = |port: usize, address: usize| {
        let port = u16::from_be_bytes(*body.get(port..)?.first_chunk()?);
        Some(match family {
            FAMILY_V4 => Endpoint::v4(*body.get(address..)?.first_chunk()?, port),
            _ => Endpoint::v6(*body.get(address..)?.first_chunk()?, port),
        })
    };
    Some(Listed {
        cookie: u64_at(body, 44)?,
        local: end(4, 8)?,
        remote: end(6, 24)?,
        unread: u32_at(body, 56)?,
        unacknowledged: u32_at(body, 60)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn ends(s: &TcpStream) -> (Endpoint, Endpoint, u64) {
        let cookie = rustix::net::sockopt::socket_cookie(s).unwrap();
        (s.local_addr().unwrap().into(), s.peer_addr().unwrap().into(), cookie)
    }

    fn pair(listen: &str, connect: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let client = TcpStream::connect((connect, listener.local_addr().unwrap().port())).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_socket_is_found_by_ends_and_cookie_only() {
        let mut diag = Diag::open().unwrap();
        let (mut client, mut server) = pair("127.0.0.1:0", "127.0.0.1");
        client.write_all(&[1; 10]).unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        server.write_all(&[2; 7]).unwrap();
        client.read_exact(&mut [0; 7]).unwrap();
        let (local, remote, cookie) = ends(&client);
        let found = diag.find(&local, &remote, cookie).unwrap().unwrap();
        assert!(found.established);
        assert_eq!(found.uid, rustix::process::getuid().as_raw());
        assert_eq!(found.counters.sent, 10);
        assert_eq!(found.counters.received, 7);
        assert_eq!(diag.find(&local, &remote, cookie + 1).unwrap(), None);
        assert_eq!(diag.find(&remote, &local, cookie).unwrap(), None, "the other end has another cookie");
        drop(client);
        drop(server);
        assert!(diag.find(&local, &remote, cookie).unwrap().is_none_or(|s| !s.established));
    }

    #[test]
    fn a_dual_stack_socket_is_found_by_its_ipv4_ends() {
        let mut diag = Diag::open().unwrap();
        let (client, server) = pair("[::]:0", "127.0.0.1");
        let (local, remote, cookie) = ends(&server);
        assert!(local.as_v4().is_some(), "accepted on an IPv6 socket, mapped address");
        assert!(diag.find(&local, &remote, cookie).unwrap().is_some());
        let (_, _, client_cookie) = ends(&client);
        assert!(diag.find(&remote, &local, client_cookie).unwrap().is_some());
    }

    #[test]
    fn live_sockets_are_listed_with_their_ends_and_queues() {
        for (listen, connect) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let (mut client, server) = pair(listen, connect);
            client.write_all(&[1; 10]).unwrap();
            server.peek(&mut [0; 10]).unwrap();
            let all = Diag::open().unwrap().live_sockets().unwrap();
            let [client, server] = [&client, &server].map(|socket| {
                let (local, remote, cookie) = ends(socket);
                let listed = *all.iter().find(|listed| listed.cookie == cookie).unwrap();
                assert_eq!((listed.local, listed.remote), (local, remote), "{listen}");
                listed
            });
            assert_eq!((client.unread, server.unread, server.unacknowledged), (0, 10, 0), "{listen}");
        }
    }

    #[test]
    fn live_cookies_come_and_go_with_their_sockets() {
        let mut diag = Diag::open().unwrap();
        let pairs: Vec<_> =
            (0..500).map(|i| pair(["127.0.0.1:0", "[::1]:0"][i % 2], ["127.0.0.1", "::1"][i % 2])).collect();
        let cookies: Vec<u64> = pairs.iter().flat_map(|(a, b)| [ends(a).2, ends(b).2]).collect();
        let live = diag.live_cookies().unwrap();
        assert!(cookies.iter().all(|c| live.contains(c)));
        drop(pairs);
        let live = diag.live_cookies().unwrap();
        assert!(cookies.iter().all(|c| !live.contains(c)));
    }

    #[test]
    fn cut_messages_are_not_read_past_their_end() {
        assert!(split_message(&[0; 15]).is_none());
        assert!(split_message(&[200, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]).is_none());
        assert!(split_message(&[0; 16]).is_none(), "a length of zero would never end");
        for n in 0..DIAG_MSG {
            assert!(parse(&vec![1; n]).is_none());
            assert!(n >= 64 || listed(&vec![1; n]).is_none());
        }
        let mut endless = vec![0; DIAG_MSG + 8];
        endless[DIAG_MSG] = 0; // an attribute of length 0
        assert!(parse(&endless).is_some());
    }
}
