//! Addresses in the form of the socket calls: `sockaddr_in`, `sockaddr_in6`, and of ropeway.h `sockaddr_ropeway` for plain Ethernet and
//! `sockaddr_ropeway_node` for nodes of a cluster.

use crate::failure::{Failure, Outcome};
use ropeway_socket::{Address, PacketAddress};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const IN_BYTES: usize = size_of::<libc::sockaddr_in>();
const IN6_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Family, port, six bytes of address, 16 of the device's name.
const ETHER_BYTES: usize = 26;
const DEVICE: std::ops::Range<usize> = 10..26;
/// The family of nodes: the number of ropeway.h, far from those of the kernel.
const AF_NODE: i32 = 0x5257;
/// Family, port, four bytes of number.
const NODE_BYTES: usize = 8;

fn bad(what: impl Into<String>) -> Failure {
    Failure::new(libc::EINVAL, what)
}

/// What C handed over as an address.
pub fn read(bytes: &[u8]) -> Outcome<Address> {
    let family = bytes.first_chunk::<2>().map(|family| i32::from(u16::from_ne_bytes(*family)));
    let (family, least) = match family {
        Some(libc::AF_INET) => (libc::AF_INET, IN_BYTES),
        Some(libc::AF_INET6) => (libc::AF_INET6, IN6_BYTES),
        Some(libc::AF_PACKET) => (libc::AF_PACKET, ETHER_BYTES),
        Some(AF_NODE) => (AF_NODE, NODE_BYTES),
        Some(family) => {
            let what = format!(
                "addresses of family {family} are not known; AF_INET, AF_INET6, ROPEWAY_AF_ETHER and ROPEWAY_AF_NODE are"
            );
            return Err(Failure::new(libc::EAFNOSUPPORT, what));
        }
        None => return Err(bad("an address of no length")),
    };
    let Some(bytes) = bytes.get(..least) else {
        return Err(bad(format!("the address has {} bytes, those of its family {least}", bytes.len())));
    };
    let array = |range: std::ops::Range<usize>| &bytes[range];
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    Ok(match family {
        libc::AF_INET => {
            let ip: [u8; 4] = array(4..8).try_into().unwrap_or_default();
            Address::Udp(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = array(8..24).try_into().unwrap_or_default();
            let scope = u32::from_ne_bytes(array(24..28).try_into().unwrap_or_default());
            Address::Udp(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
        }
        AF_NODE => {
            let node = u32::from_ne_bytes(array(4..8).try_into().unwrap_or_default());
            Address::Node { node, port }
        }
        _ => {
            let mac: [u8; 6] = array(4..10).try_into().unwrap_or_default();
            let device = array(DEVICE).split(|&byte| byte == 0).next().unwrap_or_default();
            let device = std::str::from_utf8(device).map_err(|_| bad("the device's name is not a text"))?.to_owned();
            Address::Packet(PacketAddress { device, mac: (mac != [0; 6]).then_some(mac), port })
        }
    })
}

/// An address as C wants it.
pub fn write(address: &Address) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::with_capacity(IN6_BYTES);
    let mut begin = |family: i32, port: u16| {
        bytes.extend((family as u16).to_ne_bytes());
        bytes.extend(port.to_be_bytes());
    };
    match address {
        Address::Udp(SocketAddr::V4(address)) => {
            begin(libc::AF_INET, address.port());
            bytes.extend(address.ip().octets());
            bytes.resize(IN_BYTES, 0);
        }
        Address::Udp(SocketAddr::V6(address)) => {
            begin(libc::AF_INET6, address.port());
            bytes.extend([0; 4]);
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
        Address::Packet(address) => {
            begin(libc::AF_PACKET, address.port);
            bytes.extend(address.mac.unwrap_or_default());
            let name = address.device.as_bytes();
            bytes.extend(&name[..name.len().min(DEVICE.len() - 1)]);
            bytes.resize(ETHER_BYTES, 0);
        }
        Address::Node { node, port } => {
            begin(AF_NODE, *port);
            bytes.extend(node.to_ne_bytes());
        }
        Address::Sim { .. } => {
            return Err(Failure::new(libc::EAFNOSUPPORT, "C knows no addresses of simulated networks"));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_form_of_c() {
        for text in ["10.1.2.3:4567", "[fd00::7]:80", "eth0/02:00:00:00:00:07:7000", "averylongdevice/*:1", "@3:7000"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(read(&write(&address).unwrap()).unwrap(), address);
        }
    }

    #[test]
    fn short_and_strange_ones_are_refused() {
        let whole = write(&"[fd00::7]:80".parse().unwrap()).unwrap();
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]).unwrap_err().errno, libc::EINVAL, "{len}");
        }
        let local = (libc::AF_UNIX as u16).to_ne_bytes();
        assert_eq!(read(&local).unwrap_err().errno, libc::EAFNOSUPPORT);
        let mut device = write(&"eth0/*:1".parse().unwrap()).unwrap();
        device[DEVICE].fill(0xff);
        assert_eq!(read(&device).unwrap_err().errno, libc::EINVAL);
    }
}
