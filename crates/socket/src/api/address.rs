//! Addresses as programs and people write them, and what they mean on the links of this process.

use super::cluster;
use super::environment::{self, LinkChoice};
use super::neighbor;
use ropeway_engine::cluster::Hop;
use ropeway_engine::link::hardware_address;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Instant;

/// Where somebody listens, or is.
///
/// As text: `10.0.0.7:7000`, `[fd00::7]:7000` (UDP), `eth0/02:00:00:00:00:07:7000` (plain Ethernet: device of this host, address of the other one,
/// port) and, to listen on a device, `eth0/*:7000`. `:7000` is `0.0.0.0:7000`: every IPv4 address of this host to listen at, and this host to connect to. Where `ROPEWAY_LINK=packet:eth0` or `xdp:eth0` is set, the device may be left out. `@3:7000` is node 3 of the cluster, as
/// is its name (`node3:7000`) for whoever takes [texts](ToAddresses).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Over UDP: address and port of the other end's link. Who listens there listens at the same port of the protocol.
    Udp(SocketAddr),
    /// Over plain Ethernet.
    Packet(PacketAddress),
    /// On a simulated network, or in memory: for engines of one's own.
    Sim { host: u32, port: u16 },
    /// A node of the cluster, reached as its description says; or, of a connection through gateways over an engine of one's own, what they know that engine by.
    Node { node: u32, port: u16 },
}

/// An end on an Ethernet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PacketAddress {
    /// This host's network device; empty: the one that `ROPEWAY_LINK` names.
    pub device: String,
    /// The hardware address; `None`, to listen: that of the device.
    pub mac: Option<[u8; 6]>,
    pub port: u16,
}

impl Address {
    pub fn port(&self) -> u16 {
        match self {
            Address::Udp(address) => address.port(),
            Address::Packet(address) => address.port,
            Address::Sim { port, .. } | Address::Node { port, .. } => *port,
        }
    }

    /// The same as the standard library has it, for UDP.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Address::Udp(address) => Some(*address),
            Address::Packet(_) | Address::Sim { .. } | Address::Node { .. } => None,
        }
    }

    /// What is meant by an address to listen at: an IP address means the link that `ROPEWAY_LINK` names, a node this one's address.
    ///
    /// # Errors
    /// The node is another one; a variable makes no sense.
    pub fn to_listen(&self) -> io::Result<Address> {
        match (self, &environment::get()?.link) {
            (Address::Udp(address), LinkChoice::Packet { device } | LinkChoice::Xdp { device }) => {
                Ok(Address::Packet(PacketAddress { device: device.clone(), mac: None, port: address.port() }))
            }
            (Address::Udp(address), LinkChoice::Udp) => Ok(Address::Udp(plain(*address))),
            (Address::Sim { .. }, _) => Ok(self.clone()),
            (Address::Node { node, port }, _) => own_node(*node, *port)?.to_listen(),
            (Address::Packet(address), link) => {
                Ok(Address::Packet(PacketAddress { mac: None, ..named(address, link)? }))
            }
        }
    }

    /// What is meant by an address to connect to: [`Address::Packet`] where frames go there, as `ROPEWAY_LINK` or the cluster's description have it.
    ///
    /// # Errors
    /// Nobody on that device has the address, or no way leads there.
    pub fn to_connect(&self) -> io::Result<Address> {
        self.to_connect_by(None)
    }

    /// The same, but waits until `deadline` at most: who has an IP address on a device is asked, which takes up to 1.5 s where it does not answer.
    ///
    /// # Errors
    /// As [`Address::to_connect`]; nobody has answered in time.
    pub fn to_connect_by(&self, deadline: Option<Instant>) -> io::Result<Address> {
        match (self, &environment::get()?.link) {
            (Address::Udp(address), LinkChoice::Packet { device } | LinkChoice::Xdp { device }) => {
                let mac = Some(neighbor::hardware_address(address.ip(), device, deadline)?);
                Ok(Address::Packet(PacketAddress { device: device.clone(), mac, port: address.port() }))
            }
            (Address::Udp(address), LinkChoice::Udp) => Ok(Address::Udp(reachable(plain(*address))?)),
            (Address::Sim { .. }, _) => Ok(self.clone()),
            (Address::Node { node, port }, LinkChoice::Udp) => match cluster::ways_to(*node)?.first() {
                Some(&Hop::Ether(own, peer)) => Ok(on_ethernet(own, Some(peer), *port)?),
                _ => Ok(self.clone()),
            },
            (Address::Node { node, port }, link @ (LinkChoice::Packet { .. } | LinkChoice::Xdp { .. })) => {
                beside(*node, *port, link)?.to_connect_by(deadline)
            }
            (Address::Packet(PacketAddress { mac: None, .. }), _) => {
                Err(invalid(format!("{self} says where to listen; to connect, name the other end's hardware address")))
            }
            (Address::Packet(address), link) => Ok(Address::Packet(named(address, link)?)),
        }
    }
}

/// Where this node listens, if it is the one that is meant.
fn own_node(node: u32, port: u16) -> io::Result<Address> {
    match cluster::own()? {
        Some(own) if u32::from(own.number) == node => match (own.ips().next(), own.hardware_addresses().next()) {
            (None, Some((_, mac))) => on_ethernet(mac, None, port),
            _ => Ok(Address::Udp(SocketAddr::new(cluster::own_ip()?, port))),
        },
        own => {
            let whose = own.map_or("this host is no node of the cluster".into(), |own| format!("this is {}", own.name));
            let what = format!("one listens at node {node} on that host, and {whose}");
            Err(io::Error::new(ErrorKind::AddrNotAvailable, what))
        }
    }
}

/// An end of the Ethernet on which this host has the address `own`.
fn on_ethernet(own: [u8; 6], mac: Option<[u8; 6]>, port: u16) -> io::Result<Address> {
    Ok(Address::Packet(PacketAddress { device: cluster::device_of(own)?, mac, port }))
}

/// The IP address of a node on a network of this one's, for frames on a device.
fn beside(node: u32, port: u16, link: &LinkChoice) -> io::Result<Address> {
    match cluster::ways_to(node)?.first() {
        Some(Hop::Direct(ip)) => Ok(Address::Udp(SocketAddr::new(*ip, port))),
        Some(&Hop::Ether(own, peer)) => on_ethernet(own, Some(peer), port),
        _ => {
            let what = format!("node {node} is behind gateways, which are reached over UDP: unset ROPEWAY_LINK={link}");
            Err(io::Error::new(ErrorKind::Unsupported, what))
        }
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what)
}

/// IPv4 in IPv6's clothes is IPv4: links have one family.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V4(ip), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn reachable(address: SocketAddr) -> io::Result<SocketAddr> {
    let ip = match address.ip() {
        // As TCP does it: nowhere in particular is here. The answer comes from an address that says so.
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            let what =
                format!("{ip} means something else on every device; use an address that does not begin with fe80");
            return Err(io::Error::new(ErrorKind::Unsupported, what));
        }
        _ => return Ok(address),
    };
    Ok(SocketAddr::new(ip, address.port()))
}

fn named(address: &PacketAddress, link: &LinkChoice) -> io::Result<PacketAddress> {
    match (address.device.as_str(), link) {
        ("", LinkChoice::Packet { device } | LinkChoice::Xdp { device }) => {
            Ok(PacketAddress { device: device.clone(), ..address.clone() })
        }
        ("", LinkChoice::Udp) => {
            Err(invalid(format!("{address} names no device: write eth0/{address}, or set ROPEWAY_LINK=packet:eth0")))
        }
        _ => Ok(address.clone()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp(address) => address.fmt(f),
            Address::Packet(address) => address.fmt(f),
            Address::Sim { host, port } => write!(f, "sim:{host}/{port}"),
            Address::Node { node, port } => write!(f, "@{node}:{port}"),
        }
    }
}

impl fmt::Display for PacketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.device.is_empty() {
            write!(f, "{}/", self.device)?;
        }
        match self.mac {
            Some([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?,
            None => f.write_str("*")?,
        }
        write!(f, ":{}", self.port)
    }
}

/// A text is not an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseAddressError {
    text: String,
}

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no address: write HOST:PORT, as in node3:7000, 10.0.0.7:7000 or [fd00::7]:7000, with a port up to 65535; on a device eth0/02:00:00:00:00:07:7000, a node by its number @7:7000, and to listen :7000 or eth0/*:7000",
            self.text
        )
    }
}

impl std::error::Error for ParseAddressError {}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Address, ParseAddressError> {
        let others = || parse_node(text).or_else(|| parse_packet(text).map(Address::Packet));
        let udp = text.parse().ok().or_else(|| parse_port(text)).map(Address::Udp);
        udp.or_else(others).ok_or_else(|| ParseAddressError { text: text.into() })
    }
}

/// A port alone, behind a colon.
fn parse_port(text: &str) -> Option<SocketAddr> {
    Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, text.strip_prefix(':')?.parse().ok()?)))
}

fn parse_node(text: &str) -> Option<Address> {
    let (node, port) = text.strip_prefix('@')?.split_once(':')?;
    Some(Address::Node { node: node.parse().ok()?, port: port.parse().ok()? })
}

fn parse_packet(text: &str) -> Option<PacketAddress> {
    let (device, rest) = text.split_once('/').unwrap_or(("", text));
    let (mac, port) = rest.rsplit_once(':')?;
    let mac = if mac == "*" { None } else { Some(hardware_address(mac)?) };
    Some(PacketAddress { device: device.into(), mac, port: port.parse().ok()? })
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Udp(address)
    }
}

impl From<PacketAddress> for Address {
    fn from(address: PacketAddress) -> Address {
        Address::Packet(address)
    }
}

/// What can be meant as an address, or several: texts (names of the cluster's nodes, and of hosts, are resolved), the standard library's addresses, and
/// [`Address`].
pub trait ToAddresses {
    /// # Errors
    /// It is no address, or its name is not known.
    fn to_addresses(&self) -> io::Result<Vec<Address>>;
}

impl ToAddresses for str {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        match self.parse::<Address>() {
            Ok(address) => Ok(vec![address]),
            // A name and a port, then.
            Err(error) => {
                match self.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?))) {
                    Some(host) if !self.contains(['/', '@']) => host.to_addresses(),
                    _ => Err(invalid(error.to_string())),
                }
            }
        }
    }
}

fn named_node(name: &str, port: u16) -> io::Result<Option<Address>> {
    Ok(cluster::named(name)?.map(|node| Address::Node { node: node.number.into(), port }))
}

impl ToAddresses for (&str, u16) {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        match named_node(self.0, self.1)? {
            Some(node) => Ok(vec![node]),
            None => Ok(self.to_socket_addrs()?.map(Address::Udp).collect()),
        }
    }
}

impl ToAddresses for (String, u16) {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        (self.0.as_str(), self.1).to_addresses()
    }
}

impl ToAddresses for String {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        self.as_str().to_addresses()
    }
}

impl ToAddresses for Address {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        Ok(vec![self.clone()])
    }
}

impl ToAddresses for [Address] {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        Ok(self.to_vec())
    }
}

impl<T: ToAddresses + ?Sized> ToAddresses for &T {
    fn to_addresses(&self) -> io::Result<Vec<Address>> {
        (**self).to_addresses()
    }
}

macro_rules! as_the_standard_library {
    ($($kind:ty),*) => {$(
        impl ToAddresses for $kind {
            fn to_addresses(&self) -> io::Result<Vec<Address>> {
                Ok(self.to_socket_addrs()?.map(Address::Udp).collect())
            }
        }
    )*};
}

as_the_standard_library!(
    SocketAddr,
    std::net::SocketAddrV4,
    std::net::SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    [SocketAddr]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_written() {
        for text in ["10.0.0.7:7000", "[fd00::7]:80", "eth0/02:00:00:00:00:ff:7000", "eth0.7/*:1", "*:7000", "@3:7000"]
        {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(text.to_addresses().unwrap(), [address]);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_examples() {
        for text in [
            "",
            "eth0",
            "eth0/7000",
            "eth0/02:00:00:00:00:7000",
            "eth0/+2:00:00:00:00:01:1",
            "eth0/*:70000",
            "@x:7",
            "@3",
            ":",
            ":70000",
            "::7000",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("eth0/*:7000"), "{error}");
        }
        for text in ["eth0/x:1", "127.0.0.1", "localhost", ":99999", "localhost:99999"] {
            let error = text.to_addresses().unwrap_err();
            let said = error.to_string();
            assert!(said.contains(&format!("`{text}`")) && said.contains("HOST:PORT"), "{said}");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{said}");
        }
    }

    #[test]
    fn names_are_resolved_and_nowhere_is_here() {
        let local = "localhost:7000".to_addresses().unwrap();
        assert!(local.iter().all(|address| address.socket_addr().unwrap().ip().is_loopback()), "{local:?}");
        let here = Address::Udp("0.0.0.0:7".parse().unwrap()).to_connect().unwrap();
        assert_eq!(here.to_string(), "127.0.0.1:7");
        let (port, whole) = (":7".to_addresses().unwrap(), "0.0.0.0:7".to_addresses().unwrap());
        assert_eq!((&port, port[0].to_listen().unwrap()), (&whole, whole[0].clone()));
        let mapped = Address::Udp("[::ffff:10.0.0.1]:7".parse().unwrap()).to_connect().unwrap();
        assert_eq!(mapped.to_string(), "10.0.0.1:7");
        let link_local = Address::Udp("[fe80::1]:7".parse().unwrap()).to_connect().unwrap_err();
        assert_eq!(link_local.kind(), ErrorKind::Unsupported);
        let nowhere = "*:7".parse::<Address>().unwrap().to_listen().unwrap_err().to_string();
        assert!(nowhere.contains("ROPEWAY_LINK"), "{nowhere}");
    }
}
