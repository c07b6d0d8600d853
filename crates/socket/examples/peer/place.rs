//! Where an end is: an engine that the library makes, as programs have it, or one of our own, whose link reorders or speaks another version.

use crate::version::VersionLink;
use crate::{is_set, wrong};
use ropeway_socket::api::link::fault::FaultLink;
use ropeway_socket::api::link::packet::{self, PacketLink};
use ropeway_socket::api::link::udp::{self, UdpLink};
use ropeway_socket::api::link::{self, Faults, Link};
use ropeway_socket::api::{
    Address, Config, Engine, LinkId, Listener, MessageListener, MessageSocket, Options, Stream, Target,
};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

/// Connections that may wait, at a listener.
const BACKLOG: usize = 16_000;
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// A connection of either kind.
pub enum Connection {
    Stream(Stream),
    Messages(MessageSocket),
}

impl Connection {
    /// Sends all of this, or one message.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Connection::Stream(stream) => { stream }.write_all(bytes),
            Connection::Messages(socket) => socket.send(bytes),
        }
    }

    /// Some bytes, or one message. `None`: the end.
    pub fn recv(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Connection::Stream(stream) => { stream }.read(out).map(|count| Some(count).filter(|&count| count > 0)),
            Connection::Messages(socket) => socket.recv(out),
        }
    }

    /// So many bytes, or a message of that length.
    pub fn recv_exactly(&self, out: &mut [u8]) -> io::Result<()> {
        match self {
            Connection::Stream(stream) => { stream }.read_exact(out),
            Connection::Messages(socket) if socket.recv(out)? == Some(out.len()) => Ok(()),
            Connection::Messages(_) => Err(wrong("a message of another length")),
        }
    }

    pub fn end_of_sending(&self) -> io::Result<()> {
        match self {
            Connection::Stream(stream) => stream.shutdown(Shutdown::Write),
            Connection::Messages(socket) => socket.shutdown(Shutdown::Write),
        }
    }
}

/// Either kind of listener.
pub enum Entrance {
    Streams(Listener),
    Messages(MessageListener),
}

impl Entrance {
    pub fn accept(&self) -> io::Result<Connection> {
        match self {
            Entrance::Streams(listener) => Ok(Connection::Stream(listener.accept()?.0)),
            Entrance::Messages(listener) => Ok(Connection::Messages(listener.accept()?.0)),
        }
    }
}

pub fn listen(at: &str) -> io::Result<Entrance> {
    let address: Address = at.parse().map_err(io::Error::other)?;
    let own = own_engine(&address, true)?;
    Ok(match (is_set("PEER_MESSAGES"), own) {
        (false, None) => Entrance::Streams(Listener::bind_with_backlog(address, BACKLOG)?),
        (true, None) => Entrance::Messages(MessageListener::bind_with_backlog(address, BACKLOG)?),
        (false, Some((engine, link))) => Entrance::Streams(Listener::bind_on(&engine, link, address.port(), BACKLOG)?),
        (true, Some((engine, link))) => {
            Entrance::Messages(MessageListener::bind_on(&engine, link, address.port(), BACKLOG)?)
        }
    })
}

/// As many listeners at one address as `PEER_WORKERS` says, of engines that the library makes.
pub fn listen_with_workers(at: &str) -> io::Result<Vec<Entrance>> {
    let workers = workers()?;
    if workers == 1 {
        return Ok(vec![listen(at)?]);
    }
    Ok(if is_set("PEER_MESSAGES") {
        MessageListener::bind_workers(at, workers)?.into_iter().map(Entrance::Messages).collect()
    } else {
        Listener::bind_workers(at, workers)?.into_iter().map(Entrance::Streams).collect()
    })
}

/// What `PEER_WORKERS` says; one, if it is not set.
pub fn workers() -> io::Result<usize> {
    std::env::var("PEER_WORKERS").map_or(Ok(1), |text| text.parse().map_err(|_| wrong("PEER_WORKERS is a number")))
}

pub fn connect(to: &str) -> io::Result<Connection> {
    let address: Address = to.parse().map_err(io::Error::other)?;
    let own = own_engine(&address, false)?.map(|(engine, link)| {
        let target = match &address {
            Address::Udp(to) => link::Address::Udp(*to),
            Address::Packet(to) => link::Address::Ether(to.mac.unwrap_or_default()),
            Address::Sim { host, .. } => link::Address::Sim(*host),
            Address::Node { .. } => return Err(wrong("an engine of our own knows no nodes")),
        };
        Ok((engine, Target { link, address: target }))
    });
    let own = own.transpose()?;
    let limit = Some(CONNECT_LIMIT);
    Ok(match (is_set("PEER_MESSAGES"), own) {
        (false, None) => Connection::Stream(Stream::connect(address)?),
        (true, None) => Connection::Messages(MessageSocket::connect(address)?),
        (false, Some((engine, target))) => {
            Connection::Stream(Stream::connect_on(&engine, target, address.port(), limit)?)
        }
        (true, Some((engine, target))) => {
            Connection::Messages(MessageSocket::connect_on(&engine, target, address.port(), limit)?)
        }
    })
}

/// An engine of our own, if the test wants something of it that the library's have not.
fn own_engine(address: &Address, listens: bool) -> io::Result<Option<(Engine, LinkId)>> {
    let (reorder, version) = (std::env::var("PEER_REORDER").ok(), std::env::var("PEER_VERSION").ok());
    if reorder.is_none() && version.is_none() {
        return Ok(None);
    }
    let mut link: Box<dyn Link> = match address {
        Address::Udp(at) if listens => Box::new(UdpLink::open(&udp::Options::new(*at))?),
        Address::Udp(_) => Box::new(UdpLink::open(&udp::Options::new(([0, 0, 0, 0], 0).into()))?),
        Address::Packet(at) => Box::new(PacketLink::open(&packet::Options::new(&at.device))?),
        Address::Sim { .. } | Address::Node { .. } => return Err(wrong("no such link between processes")),
    };
    if let Some(reorder) = reorder {
        link = Box::new(reordering(link, &reorder)?);
    }
    if let Some(version) = version {
        let version = version.parse().map_err(|_| wrong("PEER_VERSION is a number"))?;
        link = Box::new(VersionLink::new(link, version));
    }
    let config = Config { packet_bytes: link.max_packet() as u16, ..Config::default() };
    let engine = Engine::new(&Options { config, ..Options::default() })?;
    let link = engine.add_link(link)?;
    Ok(Some((engine, link)))
}

fn reordering(link: Box<dyn Link>, text: &str) -> io::Result<FaultLink<Box<dyn Link>>> {
    const SEED: u64 = 7;
    let parts = text.split_once(':').and_then(|(ppm, us)| Some((ppm.parse().ok()?, us.parse::<u64>().ok()?)));
    let (reorder_ppm, us) = parts.ok_or_else(|| wrong("PEER_REORDER is PPM:MICROSECONDS"))?;
    let link = FaultLink::new(link, SEED);
    link.control().set_receive(Faults { reorder_ppm, reorder_ns: us * 1000, ..Faults::default() });
    Ok(link)
}
