//! A process's side of the rendezvous protocol, written once more from docs/rendezvous.md: what both sides of the product
//! would get wrong together shows here.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ropeway_testkit::World;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

pub const VERSION: u8 = 1;

/// Codes of docs/rendezvous.md.
pub mod reason {
    pub const RULE: u16 = 3;
    pub const LIMITS: u16 = 6;
    pub const OTHER_NETNS: u16 = 7;
    pub const NOT_OWNER: u16 = 8;
    pub const MISMATCH: u16 = 9;
    pub const SELF_CONNECT: u16 = 10;
    pub const SHARED_OWNERS: u16 = 11;
    pub const EXEC: u16 = 22;
}

#[derive(Debug)]
pub enum Answer {
    Welcome { spin_ns: u32, promote_after_calls: u32, promote_after_bytes: u64, ring_bytes: u32, mailbox: OwnedFd },
    Grant { token: u64, pair_id: u64, ring_bytes: u32, side: u8, segment: OwnedFd },
    Deny { token: u64, reason: u16, retry: bool },
    Adopted { token: u64, legacy: Vec<u8> },
    Entry { pid: u32, table: Option<OwnedFd> },
    EndOfList,
}

/// A connection to the daemon of a world.
#[derive(Debug)]
pub struct Client {
    pub socket: OwnedFd,
    pub mailbox: Option<OwnedFd>,
}

/// One message, built field by field.
pub struct Message(Vec<u8>);

impl Message {
    pub fn new(kind: u8) -> Message {
        Message(vec![b'R', b'W', VERSION, kind])
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Message {
        self.0.extend(bytes);
        self
    }

    pub fn u64(self, value: u64) -> Message {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Message {
        self.bytes(&value.to_le_bytes())
    }

    pub fn end(self, addr: SocketAddr) -> Message {
        let ip = match addr {
            SocketAddr::V4(a) => a.ip().to_ipv6_mapped(),
            SocketAddr::V6(a) => *a.ip(),
        };
        self.bytes(&ip.octets()).bytes(&addr.port().to_le_bytes())
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The nine hashes of the beginning of a direction, and how many bytes it had.
pub fn prefix(data: &[u8]) -> Vec<u8> {
    let fnv = |bytes: &[u8]| bytes.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    let mut out = Vec::new();
    for i in 0..9 {
        let hash = data.get(..1 << i).map_or(0, fnv);
        out.extend(hash.to_le_bytes());
    }
    out.extend((data.len() as u64).to_le_bytes());
    out
}

pub fn hello(profile: &str) -> Vec<u8> {
    let mut name = [0u8; 32];
    name[..profile.len()].copy_from_slice(profile.as_bytes());
    Message::new(1).u32(std::process::id()).bytes(b"test\0\0\0\0\0\0\0\0\0\0\0\0").bytes(&name).finish()
}

/// Asks for the processes that one may see.
pub fn list() -> Vec<u8> {
    Message::new(20).finish()
}

/// Asks how the daemon is.
pub fn status_query() -> Vec<u8> {
    Message::new(16).finish()
}

/// Takes a registration back.
pub fn unregister(token: u64) -> Vec<u8> {
    Message::new(4).u64(token).finish()
}

/// Tells the daemon to end.
pub fn stop() -> Vec<u8> {
    Message::new(18).finish()
}

pub fn cookie(socket: impl AsFd) -> u64 {
    rustix::net::sockopt::socket_cookie(socket).expect("a TCP socket has a cookie")
}

/// The registration of a socket on which `tx` was sent and `rx` received.
pub fn registration(token: u64, cookie: u64, socket: &TcpStream, tx: &[u8], rx: &[u8]) -> Vec<u8> {
    let (local, remote) = (socket.local_addr().expect("connected"), socket.peer_addr().expect("connected"));
    let fd = socket.as_raw_fd().cast_unsigned();
    let head = Message::new(3).u64(token).u64(cookie).u32(fd).end(local).end(remote);
    head.bytes(&prefix(tx)).bytes(&prefix(rx)).finish()
}

impl Client {
    /// Connects to the daemon that the world has now.
    pub fn connect(world: &World) -> Client {
        Client::try_connect(world).expect("the daemon listens")
    }

    pub fn try_connect(world: &World) -> rustix::io::Result<Client> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(world.socket().as_bytes())?)?;
        Ok(Client { socket, mailbox: None })
    }

    /// Connects and says hello.
    pub fn start(world: &World) -> Client {
        let mut client = Client::connect(world);
        client.send(&hello(""));
        match client.answer() {
            Answer::Welcome { mailbox, .. } => client.mailbox = Some(mailbox),
            other => panic!("{other:?}"),
        }
        client
    }

    pub fn send(&self, message: &[u8]) {
        self.try_send(message).expect("the daemon takes the message");
    }

    /// Sends a message with a descriptor beside it.
    pub fn send_with(&self, message: &[u8], descriptor: impl AsFd) {
        let passed = [descriptor.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)
            .expect("the daemon takes the message");
    }

    pub fn try_send(&self, message: &[u8]) -> rustix::io::Result<usize> {
        rustix::net::send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    pub fn register(&self, token: u64, socket: &TcpStream, tx: &[u8], rx: &[u8]) {
        self.send(&registration(token, cookie(socket), socket, tx, rx));
    }

    /// Returns when the daemon has acted on everything sent so far: by asking something that is always refused.
    #[track_caller]
    pub fn settle(&self, socket: &TcpStream) {
        const TOKEN: u64 = u64::MAX;
        self.send(&registration(TOKEN, 0, socket, b"", b""));
        self.denied(TOKEN);
    }

    /// The next answer, which must come soon.
    #[track_caller]
    pub fn answer(&self) -> Answer {
        self.next(Duration::from_secs(10)).expect("the daemon answers").expect("the daemon is still there")
    }

    #[track_caller]
    pub fn denied(&self, expected_token: u64) -> (u16, bool) {
        match self.answer() {
            Answer::Deny { token, reason, retry } if token == expected_token => (reason, retry),
            other => panic!("{other:?}"),
        }
    }

    /// A grant: pair, side, ring size and segment.
    #[track_caller]
    pub fn granted(&self, expected_token: u64) -> (u64, u8, u32, OwnedFd) {
        match self.answer() {
            Answer::Grant { token, pair_id, ring_bytes, side, segment } if token == expected_token => {
                (pair_id, side, ring_bytes, segment)
            }
            other => panic!("{other:?}"),
        }
    }

    /// True if nothing comes within a time in which the daemon would have answered.
    pub fn is_quiet(&self) -> bool {
        self.next(Duration::from_millis(100)).is_none()
    }

    /// The next answer within `limit`: `None` if none came, `Some(None)` if the daemon closed the connection.
    pub fn next(&self, limit: Duration) -> Option<Option<Answer>> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut ready, timeout.as_ref()).expect("poll works") == 0 {
                return None;
            }
            let mut data = [0u8; 512];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [rustix::io::IoSliceMut::new(&mut data)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let message = match rustix::net::recvmsg(&self.socket, &mut iov, &mut control, flags) {
                Ok(message) => message,
                Err(Errno::CONNRESET) => continue,
                Err(error) => panic!("recvmsg: {error}"),
            };
            if message.bytes == 0 {
                return Some(None);
            }
            assert!(!message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC), "cut: {:?}", message.flags);
            let fds: Vec<OwnedFd> = control
                .drain()
                .flat_map(|c| match c {
                    RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                    _ => Vec::new(),
                })
                .collect();
            return Some(Some(parse(&data[..message.bytes], fds)));
        }
    }

    /// What the mailbox counts.
    pub fn mail_count(&self) -> u32 {
        let mut count = [0u8; 4];
        rustix::io::pread(self.mailbox.as_ref().expect("welcomed"), &mut count, 0).expect("the page can be read");
        u32::from_ne_bytes(count)
    }
}

fn parse(message: &[u8], fds: Vec<OwnedFd>) -> Answer {
    assert_eq!(&message[..3], [b'R', b'W', VERSION]);
    let body = &message[4..];
    let u16_at = |at: usize| u16::from_le_bytes(body[at..at + 2].try_into().expect("two bytes"));
    let u32_at = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
    let attached = fds.into_iter().next();
    match (message[3], body.len()) {
        (2, 24) => Answer::Welcome {
            spin_ns: u32_at(0),
            promote_after_calls: u32_at(4),
            promote_after_bytes: u64_at(8),
            ring_bytes: u32_at(16),
            mailbox: attached.expect("the mailbox comes with the welcome"),
        },
        (5, 21) => Answer::Grant {
            token: u64_at(0),
            pair_id: u64_at(8),
            ring_bytes: u32_at(16),
            side: body[20],
            segment: attached.expect("the segment comes with the grant"),
        },
        (6, 11) => Answer::Deny { token: u64_at(0), reason: u16_at(8), retry: body[10] == 1 },
        (21, 24) => Answer::Entry { pid: u32_at(0), table: attached },
        (22, 0) => Answer::EndOfList,
        (8, 112) => Answer::Adopted { token: u64_at(0), legacy: body[8..].to_vec() },
        (kind, length) => panic!("message of kind {kind} with {length} bytes"),
    }
}

/// A TCP connection over loopback on which each end sent something the other has read: client, server.
pub fn connection(listen: &str, connect: &str) -> (TcpStream, TcpStream) {
    use std::io::{Read, Write};
    let listener = TcpListener::bind(listen).expect("a port on loopback");
    let port = listener.local_addr().expect("bound").port();
    let mut client = TcpStream::connect((connect, port)).expect("somebody listens");
    let mut server = listener.accept().expect("a connection waits").0;
    client.write_all(REQUEST).expect("room for a request");
    server.read_exact(&mut [0; REQUEST.len()]).expect("the request");
    server.write_all(RESPONSE).expect("room for a response");
    client.read_exact(&mut [0; RESPONSE.len()]).expect("the response");
    (client, server)
}

pub const REQUEST: &[u8] = b"GET key";
pub const RESPONSE: &[u8] = b"+value";
