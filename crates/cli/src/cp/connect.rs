//! What both ends connect by: an engine with one UDP link, whose port is the Ropeway port as well, and its keys.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropeway_engine::key_file::{self, KeyError};
use ropeway_engine::link::{Link, udp};
use ropeway_engine::{ChannelId, ClusterKeys, Config as Tunables, Engine, Error, LinkId, Options};

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

/// The keys for talking to, or listening at, that address. Within one host none is needed unless one was chosen.
pub fn keys(address: IpAddr) -> Result<Option<Arc<ClusterKeys>>, CpError> {
    let configured = Config::load().map_err(|error| CpError::Usage(error.to_string()))?.keys();
    match key_file::decide(configured) {
        Err(KeyError::Undecided) if address.is_loopback() => Ok(None),
        other => other.map_err(CpError::Key),
    }
}

/// An engine with one UDP link at `local`; gateways know it as `node`.
pub fn engine(local: SocketAddr, node: Option<u32>, keys: Option<Arc<ClusterKeys>>) -> Result<(Engine, LinkId), Error> {
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
    let options = Options { config, keys, node: node.map(u64::from), gateways: node.is_some(), ..Options::default() };
    let engine = Engine::new(&options)?;
    let id = engine.add_link(Box::new(link))?;
    Ok((engine, id))
}
