//! Socket addresses and ECN bits, between the kernel's form and ours.

use super::{IpAddr, SocketAddr, SocketAddrV6};
use crate::Ecn;
use crate::sys::message::{self, NAME_BYTES};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The ECN bits of the byte that IPv4 calls TOS and IPv6 calls traffic class.
const ECN_MASK: u8 = 0b11;
pub(super) const ECT0: i32 = 0b10;

pub(super) fn ecn(traffic_class: u8) -> Ecn {
    match traffic_class & ECN_MASK {
        0b00 => Ecn::NotCapable,
        0b01 => Ecn::Capable1,
        0b10 => Ecn::Capable0,
        _ => Ecn::Congested,
    }
}

/// A socket address as the kernel takes it.
pub(super) struct Name {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Name {
        let mut bytes = [0; NAME_BYTES];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, 28)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Name { bytes, len }
    }
}

/// Writes the control message that has a packet leave from an address of this host, as [`message::push_control`] does.
pub(super) fn push_source(control: &mut [u8], at: usize, from: SocketAddr) -> usize {
    match from {
        SocketAddr::V4(v4) => {
            // `struct in_pktinfo`: the device, if one is meant, the address, and one for arrivals.
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&v4.ip().octets());
            message::push_control(control, at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
        }
        SocketAddr::V6(v6) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&v6.ip().octets());
            info[16..].copy_from_slice(&v6.scope_id().to_ne_bytes());
            message::push_control(control, at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
        }
    }
}

/// A socket address as the kernel gives it; flow labels, which may differ from packet to packet, are left out.
pub(super) fn address(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(name.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(name.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope)))
        }
        _ => None,
    }
}

/// The form in which arrivals name their sender.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        for text in ["10.1.2.3:4567", "[2001:db8::1]:80", "[fe80::1%7]:65535"] {
            let there: SocketAddr = text.parse().expect("an address");
            assert_eq!(address(Name::from(there).bytes()), Some(there));
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        let whole: SocketAddr = "[2001:db8::1]:80".parse().expect("an address");
        let name = Name::from(whole);
        assert!((0..NAME_BYTES).all(|len| address(&name.bytes()[..len]).is_none()));
        assert_eq!(address(&[0xff; NAME_BYTES]), None);
    }
}
