//! How a link, an address there and a node behind it become the protocol's opaque path, and back.

use ropeway_link::{Address, Own};
use ropeway_proto::Path;
use std::net::SocketAddr;
use std::ops::Range;

/// Links that an engine or a gateway has at most: as many as a path tells apart.
pub const MOST_LINKS: usize = 32;

/// The first byte: the link's place, the kind of the address, and whether it is a gateway's, with the node behind it in `NODE_AT`.
const LINK: u8 = MOST_LINKS as u8 - 1;
const KIND: u8 = 0x60;
const UDP4: u8 = 0;
const UDP6: u8 = 0x20;
const ETHER: u8 = 0x40;
const SIM: u8 = 0x60;
const BEHIND: u8 = 0x80;

const ADDRESS_AT: Range<usize> = 1..17;
/// Port and node tell engines at one address apart. Which nodes are behind a gateway is the word of whoever sends from there, so all of them count as one host (docs/protocol.md 3, Places).
const PORT_AT: Range<usize> = Path::ENGINE_AT.start..19;
const NODE_AT: Range<usize> = 19..Path::ENGINE_AT.end;

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
    path.0[0] |= BEHIND;
    path.0[NODE_AT].copy_from_slice(&node.to_be_bytes());
    path
}

/// Layout: link and kind; address; port; the node, if it is behind a gateway; and the own address, here none. An IPv6 scope is not part of it: packets to a link-local address need a link that is bound to
/// its interface, or a path that is bound to an address of it.
pub fn encode(link: u8, address: Address) -> Path {
    debug_assert!(usize::from(link) < MOST_LINKS);
    let mut bytes = [0; Path::BYTES];
    let mut put = |kind: u8, port: u16, address: &[u8]| {
        bytes[0] = link & LINK | kind;
        bytes[PORT_AT].copy_from_slice(&port.to_be_bytes());
        bytes[ADDRESS_AT][..address.len()].copy_from_slice(address);
    };
    match address {
        Address::Udp(SocketAddr::V4(to)) => put(UDP4, to.port(), &to.ip().octets()),
        Address::Udp(SocketAddr::V6(to)) => put(UDP6, to.port(), &to.ip().octets()),
        Address::Ether(to) => put(ETHER, 0, &to),
        Address::Sim(host) => put(SIM, 0, &host.to_be_bytes()),
    }
    Path(bytes)
}

/// The host of an address whatever its port: over UDP port 0.
pub fn of_host(path: &Path) -> Path {
    let mut host = *path;
    if matches!(host.0[0] & KIND, UDP4 | UDP6) {
        host.0[PORT_AT].fill(0);
    }
    host
}

/// The place of the path's link.
pub fn link(path: &Path) -> usize {
    usize::from(path.0[0] & LINK)
}

/// What [`encode`] or [`behind`] made it of.
pub fn decode(path: &Path) -> Place {
    fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
        *bytes.first_chunk().expect("it was so long when it was encoded")
    }
    let (bytes, address) = (&path.0, &path.0[ADDRESS_AT]);
    let port = u16::from_be_bytes(first(&bytes[PORT_AT]));
    let address = match bytes[0] & KIND {
        UDP4 => Address::Udp(SocketAddr::new(first::<4>(address).into(), port)),
        UDP6 => Address::Udp(SocketAddr::new(first::<16>(address).into(), port)),
        ETHER => Address::Ether(first(address)),
        _ => Address::Sim(u32::from_be_bytes(first(address))),
    };
    let node = (bytes[0] & BEHIND != 0).then(|| u32::from_be_bytes(first(&bytes[NODE_AT])));
    Place { link: link(path), address, own: Own(path.own()), node }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_of_a_host_are_told_apart_and_known_to_be_of_one() {
        let udp = |text: &str| encode(3, Address::Udp(text.parse().unwrap()));
        let gateway = |text: &str, node| behind(3, Address::Udp(text.parse().unwrap()), node);
        for (one, other, are_of_one) in [
            (udp("10.1.2.3:4567"), udp("10.1.2.3:4568"), true),
            (udp("10.1.2.3:4567"), udp("10.1.2.4:4567"), false),
            (udp("[fd00::1:2]:80"), udp("[fd00::1:2]:81"), true),
            (udp("[fd00::1:2]:80"), udp("[fd00::1:3]:80"), false),
            (encode(3, Address::Sim(1)), encode(3, Address::Sim(2)), false),
            (encode(3, Address::Ether([1; 6])), encode(3, Address::Ether([2; 6])), false),
            // Whatever nodes are said to be behind a gateway, and at whatever port it is.
            (gateway("10.1.2.3:4567", 0x9_1234), gateway("10.1.2.3:4567", 0xA_1234), true),
            (gateway("10.1.2.3:4567", 17), gateway("10.1.2.3:4568", 17), true),
            (gateway("10.1.2.3:4567", 17), gateway("10.1.2.4:4567", 17), false),
            (gateway("[fd00::1:2]:80", 17), gateway("[fd00::1:2]:81", 18), true),
        ] {
            assert!(one != other && (one.host() == other.host()) == are_of_one, "{one:?} {other:?}");
        }
    }

    #[test]
    fn every_address_comes_back() {
        let all = [
            Address::Udp("10.1.2.3:4567".parse().unwrap()),
            Address::Udp("[fd00::1:2]:80".parse().unwrap()),
            Address::Ether([1, 2, 3, 4, 5, 6]),
            Address::Sim(77),
        ];
        for (link, address) in (MOST_LINKS - all.len()..).zip(all) {
            assert_eq!(decode(&encode(link as u8, address)), Place { link, address, own: Own::ANY, node: None });
            let host = match address {
                Address::Udp(to) => Address::Udp(SocketAddr::new(to.ip(), 0)),
                other => other,
            };
            assert_eq!(of_host(&encode(link as u8, address)), encode(link as u8, host));
            for node in [0, 17, 0xFFFF, 0x1_0000, 0x9_1234, u32::MAX] {
                let path = behind(link as u8, address, node);
                assert_eq!(decode(&path), Place { link, address, own: Own::ANY, node: Some(node) });
                assert!(path != encode(link as u8, address));
                let bound = path.bound(7);
                assert_eq!(decode(&bound), Place { link, address, own: Own(7), node: Some(node) });
                assert_eq!(bound.unbound(), path);
            }
        }
    }
}
