//! The kernel's TCP, blocking or spinning.

use crate::{Carrier, Connection, Handle, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;

pub struct Tcp {
    local: SocketAddr,
    spins: bool,
    listeners: OnceLock<[TcpListener; 2]>,
}

/// The socket for streams listens one port above that for messages.
fn with_kind(mut address: SocketAddr, kind: Kind) -> SocketAddr {
    address.set_port(address.port() + u16::from(kind == Kind::Stream));
    address
}

impl Tcp {
    pub fn new(local: &str, spins: bool) -> Tcp {
        Tcp { local: local.parse().expect("an address"), spins, listeners: OnceLock::new() }
    }

    /// By the congestion control that is asked for; accepted sockets have their listener's.
    fn control(socket: impl AsFd) {
        let control = std::env::var("CONGESTION").unwrap_or("cubic".into());
        rustix::net::sockopt::set_tcp_congestion(socket, &control).expect("this congestion control");
    }

    fn prepare(&self, stream: TcpStream) -> Box<dyn Connection> {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_nonblocking(self.spins).expect("O_NONBLOCK");
        Box::new(Socket { stream })
    }
}

impl Carrier for Tcp {
    fn accept(&self, kind: Kind) -> Box<dyn Connection> {
        let listeners = self.listeners.get_or_init(|| {
            [Kind::Messages, Kind::Stream].map(|kind| {
                let listener = TcpListener::bind(with_kind(self.local, kind)).expect("a free port");
                Tcp::control(&listener);
                listener
            })
        });
        self.prepare(listeners[usize::from(kind == Kind::Stream)].accept().expect("a connection").0)
    }

    fn connect(&self, peer: &str, kind: Kind) -> Box<dyn Connection> {
        let peer = with_kind(peer.parse().expect("an address"), kind);
        let stream = TcpStream::connect(peer).expect("a connection");
        Tcp::control(&stream);
        self.prepare(stream)
    }

    fn any(&self, connections: &[Handle], _: usize, ready: &mut Vec<usize>) {
        fn wait(handle: &Handle) -> PollFd<'_> {
            match handle {
                Handle::Socket(stream) => PollFd::new(stream, PollFlags::IN),
                Handle::Channel(_) => unreachable!("these are sockets"),
            }
        }
        let mut waits: Vec<_> = connections.iter().map(wait).collect();
        let patience = self.spins.then(Timespec::default);
        match poll(&mut waits, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        ready.extend((0..waits.len()).filter(|&place| !waits[place].revents().is_empty()));
    }
}

struct Socket {
    stream: TcpStream,
}

/// Again until the socket is ready; blocking sockets always are.
fn patiently(mut call: impl FnMut() -> std::io::Result<usize>) -> usize {
    loop {
        match call() {
            Ok(count) => return count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return 0,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Connection for Socket {
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[patiently(|| self.stream.write(bytes))..];
        }
    }

    fn receive(&mut self, mut into: &mut [u8]) -> bool {
        while !into.is_empty() {
            let count = patiently(|| self.stream.read(into));
            if count == 0 {
                return false;
            }
            into = &mut into[count..];
        }
        true
    }

    fn receive_some(&mut self, into: &mut [u8]) -> usize {
        patiently(|| self.stream.read(into))
    }

    fn finish(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn handle(&self) -> Handle {
        Handle::Socket(self.stream.try_clone().expect("a descriptor"))
    }
}
