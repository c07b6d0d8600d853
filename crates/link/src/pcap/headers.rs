//! Made-up headers in front of captured packets.

use crate::{Address, Ecn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Ethernet, IPv6 and UDP.
const MOST_BYTES: usize = 14 + 40 + 8;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const IP_PROTOCOL_UDP: u8 = 17;
const HOPS: u8 = 64;

/// The headers of one packet.
pub(super) struct Headers {
    buffer: [u8; MOST_BYTES],
    len: usize,
}

impl Headers {
    pub fn new(source: Address, destination: Address, ecn: Ecn, ethertype: u16, bytes: &[u8]) -> Headers {
        let mut headers = Headers { buffer: [0; MOST_BYTES], len: 0 };
        headers.push(&hardware_address(destination));
        headers.push(&hardware_address(source));
        match (source, destination) {
            (Address::Udp(source), Address::Udp(destination)) => headers.push_udp(source, destination, ecn, bytes),
            _ => headers.push(&ethertype.to_be_bytes()),
        }
        headers
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push_udp(&mut self, source: SocketAddr, destination: SocketAddr, ecn: Ecn, bytes: &[u8]) {
        let udp_bytes = (bytes.len() + 8) as u16;
        let start = self.len + 2;
        // A wildcard address of one family may stand beside an address of the other only in a caller's mistake: then both are shown as IPv6.
        if let (IpAddr::V4(from), IpAddr::V4(to)) = (source.ip(), destination.ip()) {
            self.push(&ETHERTYPE_IPV4.to_be_bytes());
            self.push_ipv4(from, to, ecn, udp_bytes);
        } else {
            self.push(&ETHERTYPE_IPV6.to_be_bytes());
            self.push(&[0x60, ecn_bits(ecn) << 4, 0, 0]);
            self.push(&udp_bytes.to_be_bytes());
            self.push(&[IP_PROTOCOL_UDP, HOPS]);
            self.push(&octets(source.ip()));
            self.push(&octets(destination.ip()));
        }
        // Both families keep their addresses last.
        let addresses = if self.buffer[start] >> 4 == 4 { start + 12 } else { start + 8 };
        let udp_start = self.len;
        self.push(&source.port().to_be_bytes());
        self.push(&destination.port().to_be_bytes());
        self.push(&udp_bytes.to_be_bytes());
        self.push(&[0, 0]);
        let pseudo = [&self.buffer[addresses..udp_start], &[0, IP_PROTOCOL_UDP], &udp_bytes.to_be_bytes()].concat();
        let checksum = !sum(&[&pseudo, &self.buffer[udp_start..self.len], bytes]);
        // 0 would say that there is none.
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        self.buffer[udp_start + 6..udp_start + 8].copy_from_slice(&checksum.to_be_bytes());
    }

    fn push_ipv4(&mut self, from: Ipv4Addr, to: Ipv4Addr, ecn: Ecn, udp_bytes: u16) {
        let start = self.len;
        self.push(&[0x45, ecn_bits(ecn)]);
        self.push(&udp_bytes.saturating_add(20).to_be_bytes());
        // No number, not to be fragmented.
        self.push(&[0, 0, 0x40, 0, HOPS, IP_PROTOCOL_UDP, 0, 0]);
        self.push(&from.octets());
        self.push(&to.octets());
        let checksum = !sum(&[&self.buffer[start..self.len]]);
        self.buffer[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotCapable => 0b00,
        Ecn::Capable1 => 0b01,
        Ecn::Capable0 => 0b10,
        Ecn::Congested => 0b11,
    }
}

/// The real one, or a made-up one of those that anybody may use (the second-lowest bit of the first byte).
fn hardware_address(address: Address) -> [u8; 6] {
    match address {
        Address::Ether(address) => address,
        Address::Sim(host) => {
            let [a, b, c, d] = host.to_be_bytes();
            [2, 0, a, b, c, d]
        }
        Address::Udp(address) => {
            let octets = octets(address.ip());
            [2, 1, octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

/// The sum of IP's checksums, folded. All parts but the last have an even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words.map(|word| u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]))).sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    folded as u16
}
