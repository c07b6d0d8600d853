//! The receiver as people write it, and how it is reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Instant;

use ropeway_engine::link::Address;
use ropeway_engine::{Mode, Routes, Target, Way};

use super::connect::{ATTEMPT, Connection, engine, keys};
use super::{CpError, USUAL_PORT};

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

/// A receiver, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its own address, or those of gateways.
    addresses: Vec<SocketAddr>,
    /// Its number behind the gateways.
    node: Option<u32>,
    port: u16,
}

impl Peer {
    /// `HOST[:PORT]`, or with gateways `@NODE[:PORT]`.
    pub fn parse(text: &str, gateways: &[String]) -> Result<Peer, CpError> {
        let Some(node) = text.strip_prefix('@') else {
            if !gateways.is_empty() {
                return Err(CpError::Usage("through gateways the receiver is named by its number, as @3".into()));
            }
            let address = resolve(text)?;
            return Ok(Peer { addresses: vec![address], node: None, port: address.port() });
        };
        let wrong = || CpError::Usage(format!("@NODE[:PORT] takes numbers, as @3 or @3:{USUAL_PORT}, not {text}"));
        let (node, port) = match node.split_once(':') {
            Some((node, port)) => (node, port.parse().map_err(|_| wrong())?),
            None => (node, USUAL_PORT),
        };
        let node = Some(node.parse().map_err(|_| wrong())?);
        if gateways.is_empty() {
            return Err(CpError::Usage(format!("{text} is reached through gateways; name some with --gateway")));
        }
        let address = |text: &String| {
            let wrong = || CpError::Usage(format!("--gateway takes ADDRESS:PORT, not {text}"));
            text.parse().map_err(|_| wrong())
        };
        let addresses = gateways.iter().map(address).collect::<Result<_, _>>()?;
        Ok(Peer { addresses, node, port })
    }

    /// Connects to it from the address `bind`, as the node `own`.
    pub fn connect(&self, bind: Option<SocketAddr>, own: Option<u32>) -> Result<Connection, CpError> {
        let first = self.addresses[0];
        let any: IpAddr = if first.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let local = bind.unwrap_or(SocketAddr::new(any, 0));
        let failed = |source| CpError::Bind { address: local.to_string(), source };
        let (engine, link) = engine(local, own, keys(first.ip())?).map_err(failed)?;
        let way = |&address: &SocketAddr| {
            let target = Target { link, address: Address::Udp(address) };
            self.node.map_or(Way::Direct(target), |node| Way::Through(target, node))
        };
        let ways: Vec<Way> = self.addresses.iter().map(way).collect();
        let (routes, deadline) = (Routes { ways: &ways, bonded: false }, Some(Instant::now() + ATTEMPT));
        let channel = engine
            .connect_over(&routes, self.port, Mode::Messages, deadline)
            .map_err(|source| CpError::Connect { peer: self.to_string(), source })?;
        Ok(Connection { engine, channel })
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.node {
            None => write!(f, "{}", self.addresses[0]),
            Some(node) => write!(f, "@{node}:{}", self.port),
        }
    }
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

    #[test]
    fn a_receiver_behind_gateways_is_named_by_its_number() {
        let gateways = ["10.0.1.201:7700".to_owned(), "10.0.1.202:7700".to_owned()];
        let peer = Peer::parse("@3", &gateways).unwrap();
        assert_eq!((peer.addresses.len(), peer.node, peer.port), (2, Some(3), USUAL_PORT));
        assert_eq!(Peer::parse("@3:99", &gateways).unwrap().to_string(), "@3:99");
        for (text, gateways) in [("@3", &[][..]), ("@x", &gateways), ("@3:x", &gateways), ("10.0.0.1", &gateways)] {
            assert!(matches!(Peer::parse(text, gateways), Err(CpError::Usage(_))), "{text}");
        }
        assert!(matches!(Peer::parse("@3", &["10.0.1.201".to_owned()]), Err(CpError::Usage(_))));
    }
}
