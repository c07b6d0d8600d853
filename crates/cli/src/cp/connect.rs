//! What both ends connect by: an engine with one UDP link, whose port is the Ropeway port as well, and its keys.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropeway_engine::gateway::engine_number;
use ropeway_engine::key_file::Choice;
use ropeway_engine::link::{Link, udp};
use ropeway_engine::{ChannelId, ClusterKeys, Config as Tunables, Engine, Error, LinkId, Options};
use ropeway_socket::api::cluster::{self, Keys};

use super::CpError;
use crate::config::Config;

/// How long one attempt to connect lasts.
pub const ATTEMPT: Duration = Duration::from_secs(5);
/// A connection whose peer says nothing for so long is given up, and tried again.
const GIVE_UP_MS: u64 = 5_000;
/// Who waits for data learns by this that the other end is gone, and not only slow.
const KEEP_ALIVE_S: u64 = 2;
const IDLE_LIMIT_S: u64 = 8;
/// Memory for a long path: 4 MiB in flight are 1 Gbit/s over 32 ms.
const BUFFER_BYTES: u64 = 4 << 20;

/// A connection and the engine that carries it.
pub struct Connection {
    pub engine: Engine,
    pub channel: ChannelId,
}

impl Connection {
    pub fn send(&self, message: &[u8]) -> Result<(), CpError> {
        self.engine.send_all(self.channel, message, None).map_err(|(_, error)| CpError::Lost(error))
    }

    /// The next message; `None` at the end.
    pub fn recv<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, CpError> {
        match self.engine.recv(self.channel, buffer, None) {
            Ok(count) => Ok(count.map(|count| &buffer[..count])),
            Err(Error::TooShort { .. }) => Err(CpError::Nonsense("a message is too long")),
            Err(error) => Err(CpError::Lost(error)),
        }
    }

    /// Waits until everything has arrived, and lets go.
    pub fn finish(self) -> Result<(), CpError> {
        let result = self.engine.drain(self.channel, Some(Instant::now() + ATTEMPT)).map_err(CpError::Lost);
        self.engine.close(self.channel);
        result
    }
}

/// What the environment or the configuration says about keys, else what the cluster's description does. Within one host none is needed unless one was chosen.
pub fn keys(stays_here: bool) -> Result<Keys, CpError> {
    let configured = Config::load().map_err(|error| CpError::Usage(error.to_string()))?.keys();
    match Choice::from_environment().map_err(CpError::Key)?.or(configured) {
        Some(choice) => Ok(Keys { keys: choice.load().map_err(CpError::Key)?, keyless: None }),
        None => cluster::keys(stays_here).map_err(CpError::Cluster),
    }
}

/// By what gateways know an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// By what somebody told them.
    Told(u32),
    /// By its node in the cluster's description, and its UDP port.
    OfNode(u16),
}

impl Number {
    /// That of an engine at an address of this host, as the cluster's description has it. `None`: no gateways are there.
    pub fn of_cluster(local: IpAddr) -> Result<Option<Number>, CpError> {
        let node = cluster::behind_gateways(local).map_err(CpError::Cluster)?;
        Ok(node.map(|node| Number::OfNode(node.number)))
    }
}

/// An engine with one UDP link at `local`.
pub fn engine(
    local: SocketAddr,
    number: Option<Number>,
    keys: Option<Arc<ClusterKeys>>,
) -> Result<(Engine, LinkId), Error> {
    let opening = |source| Error::Link { doing: "opening a UDP socket", source };
    let link = udp::UdpLink::open(&udp::Options::new(local)).map_err(opening)?;
    let mut config =
        Tunables { packet_bytes: u16::try_from(link.max_packet()).unwrap_or(u16::MAX), ..Tunables::default() };
    let settings = [
        ("give_up", GIVE_UP_MS),
        ("keep_alive", KEEP_ALIVE_S),
        ("idle_limit", IDLE_LIMIT_S),
        ("send_buffer", BUFFER_BYTES),
        ("receive_buffer", BUFFER_BYTES),
    ];
    for (name, value) in settings {
        // The values lie in the ranges, which a test of the protocol's crate keeps.
        let _ = config.set(name, value);
    }
    let node = number.map(|number| match number {
        Number::Told(number) => number.into(),
        Number::OfNode(node) => engine_number(node, link.local_address().port()).into(),
    });
    let options = Options { config, keys, node, gateways: node.is_some(), ..Options::default() };
    let engine = Engine::new(&options)?;
    let id = engine.add_link(Box::new(link))?;
    Ok((engine, id))
}

/// The two ends of a connection over loopback.
#[cfg(test)]
pub fn pair() -> [Connection; 2] {
    use ropeway_engine::{Mode, Target};

    let [(client, from), (server, at)] = [(); 2].map(|()| engine("127.0.0.1:0".parse().unwrap(), None, None).unwrap());
    let address = server.local(at).unwrap();
    let ropeway_engine::link::Address::Udp(socket) = address else { panic!("{address} is not UDP") };
    server.listen(socket.port(), Mode::Messages, 1).unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    let channel = client.connect(Target { link: from, address }, socket.port(), Mode::Messages, deadline).unwrap();
    let accepted = server.accept(socket.port(), deadline).unwrap();
    [Connection { engine: client, channel }, Connection { engine: server, channel: accepted }]
}
