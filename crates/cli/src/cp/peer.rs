//! The receiver as people write it, and how it is reached: at an address, through gateways that are named, or as the cluster's description says; over UDP, or as frames on a device.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use ropeway_engine::cluster::{Cluster, Hop, NODE_VAR, Node};
use ropeway_engine::gateway::engine_number;
use ropeway_engine::{Error, ErrorCode, LinkId, Routes, Target, Way, link};
use ropeway_socket::api::cluster::{self, CLUSTER_VAR, Keys};
use ropeway_socket::api::{Address, MessageSocket, PacketAddress, details};

use super::connect::{ATTEMPT, Connection, Number, WITHOUT_GATEWAYS, engine, on_device, udp_address};
use super::{CpError, USUAL_PORT};

/// A place as people write it, before anybody is asked what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written<'a> {
    Address(SocketAddr),
    OnDevice(PacketAddress),
    Number(u32, u16),
    Name(&'a str, u16),
}

impl Written<'_> {
    fn port(&self) -> u16 {
        match self {
            Written::Address(address) => address.port(),
            Written::OnDevice(address) => address.port,
            Written::Number(_, port) | Written::Name(_, port) => *port,
        }
    }

    /// `HOST[:PORT]`, as in URLs (an IPv6 address with a port stands in brackets), `@NODE[:PORT]`, or `DEVICE/HARDWARE-ADDRESS[:PORT]`.
    fn parse(text: &str) -> Result<Written<'_>, CpError> {
        if let Some(node) = text.strip_prefix('@') {
            let (node, port) = node.split_once(':').map_or((node, None), |(node, port)| (node, Some(port)));
            let numbers = (node.parse().ok(), port.map_or(Some(USUAL_PORT), |port| port.parse().ok()));
            let (Some(node), Some(port)) = numbers else {
                let what = format!("@NODE[:PORT] takes numbers, as @3 or @3:{USUAL_PORT}, not {text}");
                return Err(CpError::Usage(what));
            };
            return Ok(Written::Number(node, port));
        }
        if let Ok(address) = text.parse() {
            return Ok(Written::Address(address));
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Written::Address(SocketAddr::new(ip, USUAL_PORT)));
        }
        if let Some(address) = on_device_or_none(text) {
            return Ok(Written::OnDevice(address));
        }
        if text.contains('/') {
            let what = "DEVICE/HARDWARE-ADDRESS[:PORT] is written as eth0/02:00:00:00:00:07, or eth0/* for this host,";
            let no_path = "a directory is named at the receiver, and not behind HOST[:PORT]";
            return Err(CpError::Usage(format!("{what} not {text}; {no_path}")));
        }
        match text.rsplit_once(':').map(|(name, port)| (name, port.parse())) {
            Some((name, Ok(port))) => Ok(Written::Name(name, port)),
            // More than one colon is not a name's, and may be an IPv6 address with a device.
            Some((name, Err(_))) if !name.contains(':') => Err(CpError::Usage(format!(
                "HOST[:PORT] takes a port from 1 to 65535, as {name}:{USUAL_PORT}, not {text}"
            ))),
            _ => Ok(Written::Name(text, USUAL_PORT)),
        }
    }
}

/// An end on an Ethernet, with its port or without.
fn on_device_or_none(text: &str) -> Option<PacketAddress> {
    let with_port = |text: &str| match text.parse() {
        Ok(Address::Packet(address)) => Some(address),
        _ => None,
    };
    with_port(text).or_else(|| with_port(&format!("{text}:{USUAL_PORT}")))
}

fn cluster_of_process() -> Result<Option<&'static Cluster>, CpError> {
    cluster::get().map_err(CpError::Cluster)
}

/// A cluster's node that is reached from here, or that this is. What is none goes to the DNS.
fn node_of(name: &str) -> Result<Option<(&'static Cluster, &'static Node)>, CpError> {
    let Some(node) = cluster::named(name).map_err(CpError::Cluster)? else { return Ok(None) };
    Ok(cluster_of_process()?.map(|cluster| (cluster, node)))
}

/// All that a name stands for, in the order in which the system wants them tried.
fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, CpError> {
    let failed = |source| {
        let path = cluster::get().ok().flatten().map(|cluster| cluster.path().display().to_string());
        let cluster = path.unwrap_or_else(|| format!("a cluster file ({CLUSTER_VAR}; there is none)"));
        CpError::Resolve { host: name.into(), source, cluster }
    };
    let addresses: Vec<SocketAddr> = (name, port).to_socket_addrs().map_err(failed)?.collect();
    if addresses.is_empty() {
        return Err(failed(io::Error::new(ErrorKind::NotFound, "the name has no address")));
    }
    Ok(addresses)
}

/// Where a receiver listens unless it is told: all addresses of this host, of the family in which a cluster's other nodes look for it, at the usual port; or on the device where
/// they do, or that `ROPEWAY_LINK` names.
pub fn everywhere() -> Result<Address, CpError> {
    let at = match cluster_of_process()? {
        Some(cluster) => match cluster::own().ok().flatten() {
            Some(own) if own.ips().next().is_none() => Address::Node { node: own.number.into(), port: USUAL_PORT },
            _ => SocketAddr::new(cluster.socket_ip(None), USUAL_PORT).into(),
        },
        None => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), USUAL_PORT).into(),
    };
    at.to_listen().map_err(CpError::Cluster)
}

/// An address of this host's: `ADDRESS:PORT`, `DEVICE/*[:PORT]`, or `NODE[:PORT]` with the name or the number of the node that it is.
pub fn own_address(text: &str) -> Result<Address, CpError> {
    let wrong = || {
        let what = "--bind takes ADDRESS:PORT, such as 0.0.0.0:7447, [::]:7447 or eth0/*:7447, or this node's name in the cluster file";
        CpError::Usage(format!("{what}, not {text}"))
    };
    let at = match text.parse::<SocketAddr>() {
        Ok(address) => Address::Udp(address),
        Err(_) => match Written::parse(text)? {
            Written::Address(_) => return Err(wrong()),
            Written::OnDevice(address) => Address::Packet(address),
            Written::Name(name, port) => {
                let (cluster, node) = node_of(name)?.ok_or_else(wrong)?;
                own_node(cluster, node, port)?
            }
            Written::Number(number, port) => {
                let cluster = cluster_of_process()?.ok_or_else(wrong)?;
                own_node(cluster, numbered(cluster, number)?, port)?
            }
        },
    };
    at.to_listen().map_err(CpError::Cluster)
}

/// The node itself, if it is this one.
fn own_node(cluster: &Cluster, node: &Node, port: u16) -> Result<Address, CpError> {
    check_own(cluster, cluster::own().map_err(CpError::Cluster)?, node).map_err(CpError::Usage)?;
    Ok(Address::Node { node: node.number.into(), port })
}

fn check_own(cluster: &Cluster, own: Option<&Node>, node: &Node) -> Result<(), String> {
    if own == Some(node) {
        return Ok(());
    }
    let path = cluster.path().display();
    let this = own.map_or_else(|| format!("no node of {path}"), |own| format!("{} in {path}", own.name));
    Err(format!("--bind {} is for that node itself, and this host is {this}; {NODE_VAR} says otherwise", node.name))
}

fn numbered(cluster: &Cluster, number: u32) -> Result<&Node, CpError> {
    let node = u16::try_from(number).ok().and_then(|number| cluster.node(number));
    let missing = || format!("{} has no node with the number {number}", cluster.path().display());
    node.ok_or_else(|| CpError::Cluster(io::Error::new(ErrorKind::NotFound, missing())))
}

/// A receiver, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As errors call it.
    name: String,
    port: u16,
    route: Route,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Address(SocketAddr),
    /// As frames on a device of this host.
    OnDevice(PacketAddress),
    /// One of these at least, which know the receiver by this number.
    Gateways(Vec<SocketAddr>, u32),
    Cluster(Described),
    /// At the first of a name's addresses that works: a receiver that listens at `0.0.0.0` is not reached at the host's IPv6 address, which comes first mostly.
    OneOf(Vec<Peer>),
}

/// How the cluster's description has a node reached from here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Described {
    node: u16,
    /// The default first. None leads over an Ethernet.
    hops: Vec<Hop>,
    bonded: bool,
    /// Where sockets of this host are.
    own: IpAddr,
    /// Of a host to which gateways lead, and not from here: what to do.
    hint: String,
}

impl Peer {
    /// `HOST[:PORT]`, where HOST may name a node of the cluster; or `@NODE[:PORT]`, a node's number or, with gateways, what they know the receiver by.
    pub fn parse(text: &str, gateways: &[String]) -> Result<Peer, CpError> {
        let written = Written::parse(text)?;
        if written.port() == 0 {
            return Err(CpError::Usage(format!("nobody receives at port 0, as {text} has it; ports begin with 1")));
        }
        let port = written.port();
        let of_node =
            |cluster, node: &'static Node| (Address::Node { node: node.number.into(), port }, Some((cluster, node)));
        let (address, node) = match written {
            Written::Number(number, port) if !gateways.is_empty() => return Peer::through(number, port, gateways),
            _ if !gateways.is_empty() => {
                let what = "through gateways that are named the receiver is named by its number, as @3";
                return Err(CpError::Usage(format!(
                    "{what}; without --gateway a node's name goes by the cluster file"
                )));
            }
            Written::Address(address) => (Address::Udp(address), None),
            Written::OnDevice(address) => (Address::Packet(address), None),
            Written::Number(number, _) => match cluster_of_process()? {
                Some(cluster) => of_node(cluster, numbered(cluster, number)?),
                None => {
                    let what = "is reached through gateways; name some with --gateway, or the cluster file in";
                    return Err(CpError::Usage(format!("{text} {what} {CLUSTER_VAR}")));
                }
            },
            Written::Name(name, port) => match node_of(name)? {
                Some((cluster, node)) => of_node(cluster, node),
                None => return Peer::at_one_of(&resolve(name, port)?, text, port),
            },
        };
        Peer::to(address, node, port)
    }

    /// At the first of these that works. Some may mean nothing over the link that `ROPEWAY_LINK` names.
    fn at_one_of(addresses: &[SocketAddr], name: &str, port: u16) -> Result<Peer, CpError> {
        let (mut peers, mut failure) = (Vec::new(), CpError::Cluster(ErrorKind::AddrNotAvailable.into()));
        for address in addresses {
            match Peer::to(Address::Udp(*address), None, port) {
                Ok(peer) => peers.push(peer),
                Err(error) => failure = error,
            }
        }
        if peers.is_empty() {
            return Err(failure);
        }
        Ok(Peer { name: name.into(), port, route: Route::OneOf(peers) })
    }

    /// At an address, or at all that the cluster's node has.
    fn to(address: Address, node: Option<(&'static Cluster, &'static Node)>, port: u16) -> Result<Peer, CpError> {
        let name = node.map_or_else(|| address.to_string(), |(_, node)| format!("{}:{port}", node.name));
        match (address.to_connect().map_err(CpError::Cluster)?, node) {
            (Address::Packet(address), _) => Ok(Peer { name, port, route: Route::OnDevice(address) }),
            (_, Some((cluster, node))) => Peer::here_to(cluster, node, port),
            (address, None) => Ok(Peer { name, port, route: Route::Address(udp_address(&address)?) }),
        }
    }

    /// At an address of UDP.
    #[cfg(test)]
    pub fn at(address: SocketAddr) -> Peer {
        Peer { name: address.to_string(), port: address.port(), route: Route::Address(address) }
    }

    fn through(number: u32, port: u16, gateways: &[String]) -> Result<Peer, CpError> {
        let address = |text: &String| {
            let wrong = || CpError::Usage(format!("--gateway takes ADDRESS:PORT, not {text}"));
            text.parse().map_err(|_| wrong())
        };
        let gateways = gateways.iter().map(address).collect::<Result<_, _>>()?;
        Ok(Peer { name: format!("@{number}:{port}"), port, route: Route::Gateways(gateways, number) })
    }

    fn here_to(cluster: &Cluster, node: &Node, port: u16) -> Result<Peer, CpError> {
        let own = cluster::own().map_err(CpError::Cluster)?;
        Peer::described(cluster, own, node, port).map_err(CpError::Cluster)
    }

    /// The ways from a node, or from a host that is none, to another one.
    fn described(cluster: &Cluster, own: Option<&Node>, node: &Node, port: u16) -> io::Result<Peer> {
        let path = cluster.path().display();
        let hops = cluster.ways(own, node).map_err(|error| io::Error::new(ErrorKind::HostUnreachable, error))?;
        let is_left_out = own.is_none() && cluster.has_gateways();
        let hint = format!(" This host is no node of {path}, so no gateways are tried; {NODE_VAR} says otherwise.");
        let described = Described {
            node: node.number,
            hops,
            bonded: cluster.is_bonded(),
            own: cluster.socket_ip(own),
            hint: if is_left_out { hint } else { String::new() },
        };
        Ok(Peer { name: format!("{}:{port}", node.name), port, route: Route::Cluster(described) })
    }

    /// Whether the cluster's description says how it is reached.
    pub fn is_of_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// Connects to it from the address `bind`, as what gateways were `told`.
    pub fn connect(&self, bind: Option<&Address>, told: Option<u32>) -> Result<Connection, CpError> {
        if let Route::OneOf(peers) = &self.route {
            return connect_to_one(peers, bind, told);
        }
        if let Route::OnDevice(to) = &self.route {
            return if told.is_none() {
                self.connect_on_device(bind, to)
            } else {
                Err(CpError::Usage(WITHOUT_GATEWAYS.into()))
            };
        }
        let first = self.route.first_ip();
        let any: IpAddr = if first.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let (own, bonded, hint) = match &self.route {
            Route::Cluster(Described { own, bonded, hint, .. }) => (*own, *bonded, hint.as_str()),
            _ => (any, false, ""),
        };
        let local = bind.map(udp_address).transpose()?.unwrap_or(SocketAddr::new(own, 0));
        if bind.is_some() && local.is_ipv4() != first.is_ipv4() {
            let what = "one is of IPv4, the other of IPv6";
            return Err(CpError::Usage(format!("{} cannot be reached from --bind {local}: {what}", self.name)));
        }
        let number = if self.is_of_cluster() { Number::of_cluster(local.ip())? } else { told.map(Number::Told) };
        let Keys { keys, keyless } = cluster::keys(first.is_loopback()).map_err(CpError::Cluster)?;
        let failed = |source| CpError::Bind { address: local.to_string(), source };
        let (engine, link) = engine(local, number, keys).map_err(failed)?;
        let routes = Routes { ways: &self.route.ways(link, self.port), bonded };
        let socket = MessageSocket::connect_over(&engine, &routes, self.port, Some(ATTEMPT)).map_err(|source| {
            let keyless = keyless.map(|why| format!(" This end has no key: {why}")).unwrap_or_default();
            self.unreached(source, ", and may UDP to that port pass", &format!("{hint}{keyless}"))
        })?;
        Ok(Connection::over(socket))
    }

    fn connect_on_device(&self, bind: Option<&Address>, to: &PacketAddress) -> Result<Connection, CpError> {
        let at = match bind {
            None => PacketAddress { device: to.device.clone(), mac: None, port: 0 },
            Some(Address::Packet(at)) => at.clone(),
            Some(other) => {
                let what = format!("--bind {other} is of UDP, and {} is reached as frames on {}", self.name, to.device);
                return Err(CpError::Usage(format!(
                    "{what}; as {}/*:{USUAL_PORT} it would be on that device",
                    to.device
                )));
            }
        };
        let local = on_device(&at).map_err(|source| CpError::Bind { address: at.to_string(), source })?;
        MessageSocket::connect_from(&local, &Address::Packet(to.clone()), Some(ATTEMPT))
            .map(Connection::over)
            .map_err(|source| self.unreached(source, " on that device", ""))
    }

    /// `way`: what may keep packets from arriving; `hint`: what else may be why, a sentence behind a space.
    fn unreached(&self, source: io::Error, way: &str, hint: &str) -> CpError {
        let has_answered = matches!(details(&source), Some(Error::Failed(ErrorCode::Key)));
        let advice = match (has_answered, hint) {
            (true, "") => String::new(),
            (true, hint) => format!(".{hint}"),
            (false, hint) => format!("; is `ropeway cp --receive DIR` running there{way}?{hint}"),
        };
        CpError::Connect { peer: self.name.clone(), source, advice }
    }
}

/// Connects to the first that can be reached. That one is of a family that this host has not, or was not told to use, is of no interest beside what became of another one.
fn connect_to_one(peers: &[Peer], bind: Option<&Address>, told: Option<u32>) -> Result<Connection, CpError> {
    let interest = |error: &CpError| match error {
        CpError::Connect { .. } => 2,
        CpError::Bind { .. } => 1,
        _ => 0,
    };
    let mut failure = None;
    for peer in peers {
        match peer.connect(bind, told) {
            Ok(connection) => return Ok(connection),
            Err(error) if failure.as_ref().is_some_and(|before| interest(before) > interest(&error)) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| CpError::Cluster(ErrorKind::AddrNotAvailable.into())))
}

/// Of routes over UDP.
impl Route {
    /// The address that is tried first.
    fn first_ip(&self) -> IpAddr {
        match self {
            Route::Address(address) => address.ip(),
            Route::Gateways(gateways, _) => gateways[0].ip(),
            Route::Cluster(described) => match described.hops.first() {
                Some(&Hop::Direct(ip)) => ip,
                Some(Hop::Through(gateway)) => gateway.ip(),
                Some(Hop::Ether(..)) | None => described.own,
            },
            Route::OnDevice(_) | Route::OneOf(_) => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    fn ways(&self, link: LinkId, port: u16) -> Vec<Way> {
        let target = |&address: &SocketAddr| Target { link, address: link::Address::Udp(address) };
        match self {
            Route::Address(address) => vec![Way::Direct(target(address))],
            Route::Gateways(gateways, number) => {
                gateways.iter().map(|gateway| Way::Through(target(gateway), *number)).collect()
            }
            Route::Cluster(Described { node, hops, .. }) => {
                let number = engine_number(*node, port);
                hops.iter().filter_map(|hop| hop.over_udp(link, port, number)).collect()
            }
            Route::OnDevice(_) | Route::OneOf(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn that_the_own_address_is_away_says_more_than_that_another_is_of_the_other_family() {
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let bind = other.local_addr().unwrap().into();
        let peers = ["127.0.0.1:1", "[::1]:1"].map(|at| Peer::at(at.parse().unwrap()));
        for peers in [peers.clone(), peers.into_iter().rev().collect::<Vec<_>>().try_into().unwrap()] {
            let failure = connect_to_one(&peers, Some(&bind), None).err().unwrap();
            assert!(matches!(failure, CpError::Bind { .. }), "{failure}");
        }
    }

    #[test]
    fn hosts_are_understood_with_and_without_port() {
        let address = |text: &str| Written::Address(text.parse().unwrap());
        let on_device = |device: &str, mac, port| Written::OnDevice(PacketAddress { device: device.into(), mac, port });
        let cases = [
            ("10.0.0.1", address("10.0.0.1:7447")),
            ("10.0.0.1:99", address("10.0.0.1:99")),
            ("::1", address("[::1]:7447")),
            ("[::1]:99", address("[::1]:99")),
            ("localhost:99", Written::Name("localhost", 99)),
            ("node3", Written::Name("node3", USUAL_PORT)),
            ("fe80::1%eth0", Written::Name("fe80::1%eth0", USUAL_PORT)),
            ("eth0/02:00:00:00:00:07", on_device("eth0", Some([2, 0, 0, 0, 0, 7]), USUAL_PORT)),
            ("eth0/02:00:00:00:00:07:99", on_device("eth0", Some([2, 0, 0, 0, 0, 7]), 99)),
            ("02:00:00:00:00:07", on_device("", Some([2, 0, 0, 0, 0, 7]), USUAL_PORT)),
            ("eth0/*", on_device("eth0", None, USUAL_PORT)),
            ("eth0/*:99", on_device("eth0", None, 99)),
            ("@3", Written::Number(3, USUAL_PORT)),
            ("@3:99", Written::Number(3, 99)),
        ];
        for (text, expected) in cases {
            assert_eq!(Written::parse(text).unwrap(), expected, "{text}");
        }
        for text in [
            "node3:",
            "node3:x",
            "node3:65536",
            "@",
            "@x",
            "@3:x",
            "@3:65536",
            "@-1",
            "eth0/",
            "eth0/02:00",
            "eth0/*:x",
        ] {
            assert!(matches!(Written::parse(text), Err(CpError::Usage(_))), "{text}");
        }
        for text in ["node3:0", "10.0.0.1:0", "@3:0", "eth0/02:00:00:00:00:07:0"] {
            assert!(matches!(Peer::parse(text, &[]), Err(CpError::Usage(_))), "{text}");
        }
        assert!(resolve("localhost", 99).unwrap().iter().all(|address| address.port() == 99));
        assert!(matches!(resolve("no.such.host.invalid", 99), Err(CpError::Resolve { .. })));
    }

    #[test]
    fn a_receiver_behind_gateways_that_are_named_is_named_by_its_number() {
        let gateways = ["10.0.1.201:7700".to_owned(), "10.0.1.202:7700".to_owned()];
        let peer = Peer::parse("@3", &gateways).unwrap();
        let addresses = gateways.iter().map(|gateway| gateway.parse().unwrap()).collect();
        assert_eq!((&peer.route, peer.port), (&Route::Gateways(addresses, 3), USUAL_PORT));
        assert_eq!(Peer::parse("@3:99", &gateways).unwrap().name, "@3:99");
        for text in ["@x", "@3:x", "10.0.0.1", "node3"] {
            assert!(matches!(Peer::parse(text, &gateways), Err(CpError::Usage(_))), "{text}");
        }
        assert!(matches!(Peer::parse("@3", &["10.0.1.201".to_owned()]), Err(CpError::Usage(_))));
    }

    /// A file with a cluster, for as long as this is there.
    struct ClusterFile(PathBuf);

    impl ClusterFile {
        fn new(nodes: &[(u16, &str)]) -> ClusterFile {
            let path = std::env::temp_dir().join(format!("ropeway-cp-cluster-{}-{}", std::process::id(), nodes.len()));
            let node =
                |(number, rest): &(u16, &str)| format!("[[node]]\nnumber = {number}\nname = \"n{number}\"\n{rest}\n");
            let text: String = nodes.iter().map(node).collect();
            std::fs::write(&path, format!("trusted = true\nbonded = true\n{text}")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            ClusterFile(path)
        }
    }

    impl Drop for ClusterFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_node_is_reached_by_all_ways_that_the_description_shows() {
        let file = ClusterFile::new(&[
            (1, "addresses = { compute = \"10.0.1.1\" }"),
            (2, "addresses = { compute = \"10.0.1.2\" }"),
            (3, "addresses = { io = \"10.0.2.3\" }"),
            (4, "addresses = { compute = \"10.0.1.4\", io = \"10.0.2.4\" }\ngateway = 7700"),
            (5, "addresses = { compute = \"10.0.1.5\", io = \"10.0.2.5\" }\ngateway = 7700"),
        ]);
        let cluster = Cluster::read(&file.0).unwrap();
        let peer = |from, to| Peer::described(&cluster, cluster.node(from), cluster.node(to).unwrap(), 99).unwrap();
        let described = |from, to| match peer(from, to).route {
            Route::Cluster(described) => described,
            other => panic!("{other:?}"),
        };
        let direct = |address: &str| Hop::Direct(address.parse().unwrap());
        let through = |address: &str| Hop::Through(address.parse().unwrap());
        let behind = described(1, 3);
        assert_eq!(behind.hops, [through("10.0.1.4:7700"), through("10.0.1.5:7700")]);
        assert_eq!((behind.node, behind.own.to_string(), behind.bonded), (3, "10.0.1.1".into(), true));
        assert_eq!(described(1, 2).hops, [direct("10.0.1.2")]);
        let twice = described(4, 5);
        assert_eq!(
            (twice.hops, twice.own.to_string()),
            (vec![direct("10.0.1.5"), direct("10.0.2.5")], "0.0.0.0".into())
        );
        let peer = peer(1, 3);
        assert_eq!(
            (peer.name.as_str(), peer.route.first_ip().to_string(), peer.is_of_cluster()),
            ("n3:99", "10.0.1.4".into(), true)
        );
        // A host that is no node is told why there may be no way.
        let stranger = described(9, 3);
        assert_eq!(stranger.hops, [direct("10.0.2.3")]);
        assert!(stranger.hint.contains(NODE_VAR) && behind.hint.is_empty(), "{}", stranger.hint);
        assert!(numbered(&cluster, 9).is_err() && numbered(&cluster, 65_537).is_err());
    }

    #[test]
    fn only_the_node_itself_is_an_address_of_this_host() {
        let file = ClusterFile::new(&[
            (1, "addresses = { compute = \"10.0.1.1\" }"),
            (2, "addresses = { compute = \"10.0.1.2\" }"),
        ]);
        let cluster = Cluster::read(&file.0).unwrap();
        let [one, two] = [1, 2].map(|number| cluster.node(number).unwrap());
        assert_eq!(check_own(&cluster, Some(one), one), Ok(()));
        for own in [Some(one), None] {
            let error = check_own(&cluster, own, two).unwrap_err();
            assert!(error.contains(NODE_VAR), "{error}");
        }
    }

    #[test]
    fn a_device_and_udp_and_families_are_not_mixed() {
        let on_device = Peer::parse("eth0/02:00:00:00:00:07", &[]).unwrap();
        let udp = Peer::at("127.0.0.1:99".parse().unwrap());
        let cases = [
            (&on_device, "0.0.0.0:7447", "eth0/*:7447"),
            (&udp, "eth0/*:7447", "over UDP"),
            (&udp, "[::]:7447", "of IPv6"),
        ];
        for (peer, bind, said) in cases {
            let error = peer.connect(Some(&bind.parse().unwrap()), None).map(|_| ()).unwrap_err();
            assert!(matches!(&error, CpError::Usage(what) if what.contains(said)), "{error}");
        }
        assert!(matches!(on_device.connect(None, Some(3)), Err(CpError::Usage(_))));
    }
}
