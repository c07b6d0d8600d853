//! How the two ends find each other: a UDP port that is the Ropeway port as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropeway_engine::key_file::{self, KeyError};
use ropeway_engine::link::{Address, Link, udp};
use ropeway_engine::{ChannelId, ClusterKeys, Config as Tunables, Engine, Error, Mode, Options, Target};

use super::{CpError, USUAL_PORT};
use crate::config::Config;

/// How long one attempt to connect lasts.
const ATTEMPT: Duration = Duration::from_secs(5);
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

/// An engine with one UDP link at `local`.
pub fn engine(local: SocketAddr, keys: Option<Arc<ClusterKeys>>) -> Result<(Engine, ropeway_engine::LinkId), Error> {
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
    let engine = Engine::new(&Options { config, keys, ..Options::default() })?;
    let id = engine.add_link(Box::new(link))?;
    Ok((engine, id))
}

/// `HOST[:PORT]`, as in URLs: an IPv6 address with a port stands in brackets.
pub fn resolve(host: &str) -> Result<SocketAddr, CpError> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, USUAL_PORT));
    }
    let with_port = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        host.to_owned()
    } else {
        format!("{host}:{USUAL_PORT}")
    };
    let failed = |source| CpError::Resolve { host: host.into(), source };
    let none = || failed(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
    with_port.to_socket_addrs().map_err(failed)?.next().ok_or_else(none)
}

/// Connects to a receiver.
pub fn connect(peer: SocketAddr) -> Result<Connection, CpError> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let local = SocketAddr::new(any, 0);
    let (engine, link) =
        engine(local, keys(peer.ip())?).map_err(|source| CpError::Bind { address: local.to_string(), source })?;
    let target = Target { link, address: Address::Udp(peer) };
    let channel = engine
        .connect(target, peer.port(), Mode::Messages, Some(Instant::now() + ATTEMPT))
        .map_err(|source| CpError::Connect { peer: peer.to_string(), source })?;
    Ok(Connection { engine, channel })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_understood_with_and_without_port() {
        let cases = [
            ("10.0.0.1", "10.0.0.1:7447"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("::1", "[::1]:7447"),
            ("[::1]:99", "[::1]:99"),
            ("localhost:99", "127.0.0.1:99"),
        ];
        for (text, expected) in cases {
            let resolved = resolve(text).unwrap();
            assert!(
                resolved.to_string() == expected || (text.starts_with("localhost") && resolved.port() == 99),
                "{text}: {resolved}"
            );
        }
        assert!(matches!(resolve("no.such.host.invalid"), Err(CpError::Resolve { .. })));
    }
}
