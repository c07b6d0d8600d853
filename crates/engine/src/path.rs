//! How a link, an address there and a node behind it become the protocol's opaque path, and back.

use ropeway_link::{Address, Own};
use ropeway_proto::Path;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const UDP4: u8 = 4;
const UDP6: u8 = 6;
const ETHER: u8 = 1;
const SIM: u8 = 2;
/// With the kind: the address is a gateway's, and the last four bytes name the node behind it.
const BEHIND: u8 = 0x80;
const NODE_AT: std::ops::Range<usize> = 20..24;
const PORT_AT: std::ops::Range<usize> = 2..4;

/// Where packets go to and come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The link's place among the engine's.
    pub link: usize,
    pub address: Address,
    /// Which of this host's own addresses the path is bound to.
    pub own: Own,
    /// The node behind the gateway at that address.
    pub node: Option<u32>,
}

/// The path to a node behind a gateway.
pub fn behind(link: u8, gateway: Address, node: u32) -> Path {
    let mut path = encode(link, gateway);
    path.0[1] |= BEHIND;
    path.0[NODE_AT].copy_from_slice(&node.to_be_bytes());
    path
}

/// Layout: link, kind, port, address; the node, if it is behind a gateway; and the own address, here none. An IPv6 scope is not part of it: packets to a link-local address need a link that is bound to
/// its interface, or a path that is bound to an address of it.
pub fn encode(link: u8, address: Address) -> Path {
    let mut bytes = [0; Path::BYTES];
    bytes[0] = link;
    match address {
        Address::Udp(SocketAddr::V4(to)) => {
            bytes[1] = UDP4;
            bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&to.ip().octets());
        }
        Address::Udp(SocketAddr::V6(to)) => {
            bytes[1] = UDP6;
            bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
            bytes[4..20].copy_from_slice(&to.ip().octets());
        }
        Address::Ether(to) => {
            bytes[1] = ETHER;
            bytes[4..10].copy_from_slice(&to);
        }
        Address::Sim(host) => {
            bytes[1] = SIM;
            bytes[4..8].copy_from_slice(&host.to_be_bytes());
        }
    }
    Path(bytes)
}

/// The host of an address whatever its port: over UDP port 0.
pub fn of_host(path: &Path) -> Path {
    let mut host = *path;
    if matches!(host.0[1] & !BEHIND, UDP4 | UDP6) {
        host.0[PORT_AT].fill(0);
    }
    host
}

/// What [`encode`] or [`behind`] made it of.
pub fn decode(path: &Path) -> Option<Place> {
    let bytes = &path.0;
    let is_behind = bytes[1] & BEHIND != 0;
    let node = is_behind.then(|| u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]));
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let address = match bytes[1] & !BEHIND {
        UDP4 => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Address::Udp(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        UDP6 => {
            let ip: [u8; 16] = bytes[4..20].try_into().ok()?;
            Address::Udp(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)), port))
        }
        ETHER => Address::Ether(bytes[4..10].try_into().ok()?),
        SIM => Address::Sim(u32::from_be_bytes(bytes[4..8].try_into().ok()?)),
        _ => return None,
    };
    Some(Place { link: usize::from(bytes[0]), address, own: Own(path.own()), node })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_comes_back() {
        let all = [
            Address::Udp("10.1.2.3:4567".parse().unwrap()),
            Address::Udp("[fd00::1:2]:80".parse().unwrap()),
            Address::Ether([1, 2, 3, 4, 5, 6]),
            Address::Sim(77),
        ];
        for (link, address) in all.into_iter().enumerate() {
            assert_eq!(decode(&encode(link as u8, address)), Some(Place { link, address, own: Own::ANY, node: None }));
            let host = match address {
                Address::Udp(to) => Address::Udp(SocketAddr::new(to.ip(), 0)),
                other => other,
            };
            assert_eq!(of_host(&encode(link as u8, address)), encode(link as u8, host));
            for node in [0, 17, u32::MAX] {
                let path = behind(link as u8, address, node);
                assert_eq!(decode(&path), Some(Place { link, address, own: Own::ANY, node: Some(node) }));
                assert!(path != encode(link as u8, address));
                let bound = path.bound(7);
                assert_eq!(decode(&bound), Some(Place { link, address, own: Own(7), node: Some(node) }));
                assert_eq!(bound.unbound(), path);
            }
        }
        assert_eq!(decode(&Path([0; Path::BYTES])), None);
    }
}
