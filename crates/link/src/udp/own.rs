//! Under which of the host's addresses packets come and go, where the socket is bound to none: answers must leave under the address that was asked.
//!
//! The kernel says with each arrival where it came to (`IP_PKTINFO`, `IPV6_PKTINFO`), and takes the same word for a send. Who asks others first says nothing, and leaves the choice to the kernel.

use super::{IpAddr, SocketAddr, constant};
use crate::Own;
use crate::sys::{self, Descriptor, message};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::os::fd::BorrowedFd;

/// Addresses that are told apart, as many as [`Own`] has numbers for. Only the host's own get there, as the kernel delivers no others, so hardly anybody ever needs more; what comes to one
/// beyond them is answered under the address that the kernel chooses.
const MOST_ADDRESSES: usize = 255;

/// The same of loopback's, all 16 million of which whoever is on this host can send to: they must not take the places of the others.
const MOST_LOOPBACK_ADDRESSES: usize = 127;

/// Bytes of an `in_pktinfo`: the device's index, the own address, and the one in the packet's header.
const INFO4_BYTES: usize = 12;
/// Bytes of an `in6_pktinfo`: the address, and the device's index.
const INFO6_BYTES: usize = 20;

/// The most that [`OwnAddress::write`] needs.
pub(super) const CONTROL_BYTES: usize = 40;

/// One of the host's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAddress {
    ip: IpAddr,
    /// The device's index, for an address that says nothing without it (IPv6, link-local). For all others 0: packets take any device that leads to the peer.
    device: u32,
}

impl OwnAddress {
    fn new(ip: IpAddr, device: u32) -> OwnAddress {
        let is_of_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        OwnAddress { ip, device: if is_of_link { device } else { 0 } }
    }

    /// That of a socket which is bound to one.
    pub fn of(bound: SocketAddr) -> OwnAddress {
        let device = if let SocketAddr::V6(bound) = bound { bound.scope_id() } else { 0 };
        OwnAddress::new(bound.ip(), device)
    }

    /// The address that a packet came to, by the control message of this level; `None`: it is not the host's alone (multicast, broadcast).
    pub fn read(level: i32, value: &[u8]) -> Option<OwnAddress> {
        match level {
            libc::IPPROTO_IP => {
                let info: &[u8; INFO4_BYTES] = value.first_chunk()?;
                let [device, own, asked] = [&info[..4], &info[4..8], &info[8..]];
                let ip = Ipv4Addr::from(<[u8; 4]>::try_from(own).ok()?);
                let device = u32::from_ne_bytes(device.try_into().ok()?);
                (own == asked && !ip.is_unspecified()).then(|| OwnAddress::new(ip.into(), device))
            }
            libc::IPPROTO_IPV6 => {
                let info: &[u8; INFO6_BYTES] = value.first_chunk()?;
                let (ip, device) = info.split_first_chunk::<16>()?;
                let ip = Ipv6Addr::from(*ip);
                let device = u32::from_ne_bytes(device.try_into().ok()?);
                (!ip.is_multicast() && !ip.is_unspecified()).then(|| OwnAddress::new(ip.into(), device))
            }
            _ => None,
        }
    }

    /// Writes the control message by which a send leaves under this address; returns where the next one begins.
    pub fn write(&self, control: &mut [u8], at: usize) -> usize {
        match self.ip {
            IpAddr::V4(ip) => {
                let mut info = [0; INFO4_BYTES];
                info[4..8].copy_from_slice(&ip.octets());
                message::push_control(control, at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
            }
            IpAddr::V6(ip) => {
                let mut info = [0; INFO6_BYTES];
                info[..16].copy_from_slice(&ip.octets());
                info[16..].copy_from_slice(&self.device.to_ne_bytes());
                message::push_control(control, at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
            }
        }
    }

    pub fn at_port(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, port),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, self.device)),
        }
    }

    /// Whether the host does not have it any more. The kernel refuses sends under it with an error that can mean many things, and is asked by another way.
    pub fn is_gone(&self) -> bool {
        let family = if self.ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let bound = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .and_then(|socket| rustix::net::bind(Descriptor::from(socket), &self.at_port(0)));
        // A device that is gone takes its link-local addresses with it.
        matches!(bound, Err(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::NODEV))
    }
}

/// The host's addresses that something came to, by their numbers.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    /// That of number 1 first. An address keeps its number as long as the link lives.
    known: Vec<OwnAddress>,
    /// The place of the one that was looked up last, which is the likely one.
    last: usize,
}

impl OwnAddresses {
    /// The number of an address that something came to.
    pub fn number(&mut self, address: OwnAddress) -> Own {
        if self.known.get(self.last) != Some(&address) {
            let Some(place) = self.place(address) else { return Own::ANY };
            self.last = place;
        }
        Own(self.last as u8 + 1)
    }

    fn place(&mut self, address: OwnAddress) -> Option<usize> {
        let known = self.known.iter().position(|known| *known == address);
        known.or_else(|| {
            let loopback = || self.known.iter().filter(|known| known.ip.is_loopback()).count();
            let is_crowded = address.ip.is_loopback() && loopback() >= MOST_LOOPBACK_ADDRESSES;
            if is_crowded || self.known.len() >= MOST_ADDRESSES {
                return None;
            }
            self.known.push(address);
            Some(self.known.len() - 1)
        })
    }

    pub fn get(&self, own: Own) -> Option<OwnAddress> {
        self.known.get(usize::from(own.0).checked_sub(1)?).copied()
    }
}

/// Has the kernel say with each arrival where it came to.
pub(super) fn ask(fd: BorrowedFd<'_>, local: &SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(_) => sys::set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        SocketAddr::V6(_) => sys::set_int(fd, libc::IPPROTO_IPV6, constant::IPV6_RECVPKTINFO, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u32) -> OwnAddress {
        OwnAddress::new(Ipv4Addr::from(0x0a00_0000 + n).into(), 3)
    }

    #[test]
    fn what_the_kernel_is_told_is_what_it_says() {
        for (ip, device) in [("10.1.2.3", 0), ("2001:db8::7", 0), ("fe80::7", 5)] {
            let own = OwnAddress::new(ip.parse().unwrap(), 5);
            assert_eq!(own.device, device, "{ip}");
            let mut control = [0; CONTROL_BYTES];
            let end = own.write(&mut control, 0);
            // What came has the address of the header as well.
            if let IpAddr::V4(ip) = own.ip {
                control[24..28].copy_from_slice(&ip.octets());
            }
            let read = message::controls(&control[..end]).find_map(|(level, _, value)| OwnAddress::read(level, value));
            assert_eq!(read, Some(own));
        }
    }

    #[test]
    fn what_came_to_many_or_is_cut_short_came_to_no_own_address() {
        let mut info = [0; INFO4_BYTES];
        info[4..8].copy_from_slice(&[10, 0, 0, 1]);
        info[8..].copy_from_slice(&[10, 0, 0, 255]);
        assert_eq!(OwnAddress::read(libc::IPPROTO_IP, &info), None, "broadcast");
        info[8..].copy_from_slice(&[10, 0, 0, 1]);
        assert!(OwnAddress::read(libc::IPPROTO_IP, &info).is_some());
        assert_eq!(OwnAddress::read(libc::IPPROTO_IP, &info[..11]), None);
        let mut info = [0; INFO6_BYTES];
        (info[0], info[1]) = (0xff, 2);
        assert_eq!(OwnAddress::read(libc::IPPROTO_IPV6, &info), None, "multicast");
    }

    #[test]
    fn addresses_keep_their_numbers_and_those_beyond_the_bound_have_none() {
        let mut own = OwnAddresses::default();
        let loopback = |n: u32| OwnAddress::new(Ipv4Addr::from(0x7f00_0001 + n).into(), 1);
        let numbers: Vec<u8> = (0..200).map(|n| own.number(loopback(n)).0).collect();
        let expected: Vec<u8> = (1..=127).chain(std::iter::repeat_n(0, 73)).collect();
        assert_eq!(numbers, expected, "some places are left for the others");
        let numbers: Vec<u8> = (0..200).map(|n| own.number(v4(n)).0).collect();
        assert_eq!(numbers, (128..=255).chain(std::iter::repeat_n(0, 72)).collect::<Vec<u8>>());
        assert_eq!((own.number(loopback(5)), own.number(v4(7))), (Own(6), Own(135)));
        assert_eq!((own.get(Own(135)), own.get(Own::ANY)), (Some(v4(7)), None));
    }

    #[test]
    fn an_address_that_the_host_does_not_have_is_gone() {
        let own = |ip: &str| OwnAddress::new(ip.parse().unwrap(), 1 << 20);
        assert!(own("192.0.2.1").is_gone() && own("2001:db8::1").is_gone() && own("fe80::1").is_gone());
        assert!(!own("127.0.0.1").is_gone() && !own("127.9.9.9").is_gone() && !own("::1").is_gone());
    }
}
