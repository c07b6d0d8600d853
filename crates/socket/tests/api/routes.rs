//! Several ways to a peer: over engines of one's own, and by the description of a cluster.

use crate::parts::{BYTES, another, command};
use crate::{SOON, kind, wait_until};
use ropeway_engine::cluster::Cluster;
use ropeway_engine::gateway::{Gateway, Host, Limits, Neighbour, engine_number};
use ropeway_engine::key_file;
use ropeway_engine::link::memory::{self, MemoryLink};
use ropeway_engine::link::udp::{self, UdpLink};
use ropeway_engine::link::{self, Link};
use ropeway_socket::api::{Config, Engine, LinkId, Options, Routes, Target, Way};
use ropeway_socket::{Address, Listener, MessageListener, MessageSocket, Stream};
use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PORT: u16 = 7;
const CLIENT: u32 = 1;
const SERVER: u32 = 3;

fn engine(node: u32, links: Vec<MemoryLink>) -> (Engine, Vec<LinkId>) {
    let packet_bytes = links[0].max_packet() as u16;
    let config = Config { packet_bytes, ..Config::default() };
    let options = Options { config, node: Some(node.into()), gateways: true, ..Options::default() };
    let engine = Engine::new(&options).unwrap();
    let links = links.into_iter().map(|link| engine.add_link(Box::new(link)).unwrap()).collect();
    (engine, links)
}

/// A gateway on a thread of its own.
struct Running {
    gateway: Gateway,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(gateway: Gateway) -> Running {
        let runs = gateway.clone();
        let thread = std::thread::spawn(move || runs.run().unwrap());
        Running { gateway, thread: Some(thread) }
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.gateway.stop();
            thread.join().unwrap();
        }
    }

    fn forwarded_bytes(&self) -> u64 {
        self.gateway.counters().forwarded_bytes
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The client's engine and its ways through two gateways, the server's, and the gateways.
fn apart() -> (Engine, [Way; 2], (Engine, LinkId), [Running; 2]) {
    let side = || {
        let mut members = memory::hub(3, memory::Config::default()).unwrap().into_iter();
        [members.next(), members.next(), members.next()].map(|member| member.unwrap())
    };
    let ([client, near_one, near_two], [server, far_one, far_two]) = (side(), side());
    let table = [(CLIENT, 0), (SERVER, 1)].map(|(node, link)| Neighbour { node, link, address: link::Address::Sim(0) });
    let gateways = [[near_one, far_one], [near_two, far_two]].map(|links| {
        let links = links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect();
        Running::start(Gateway::new(links, &table, Limits::default()).unwrap())
    });
    let (client, links) = engine(CLIENT, vec![client]);
    let (server, link) = engine(SERVER, vec![server]);
    let way = |gateway| Way::Through(Target { link: links[0], address: link::Address::Sim(gateway) }, SERVER);
    (client, [way(1), way(2)], (server, link[0]), gateways)
}

#[test]
fn a_stream_over_gateways_names_its_ends_and_outlives_a_gateway() {
    let (client, ways, (server, link), mut gateways) = apart();
    let listener = Listener::bind_on(&server, link, PORT, 8).unwrap();
    let routes = Routes { ways: &ways, bonded: false };
    let mut stream = Stream::connect_over(&client, &routes, PORT, Some(SOON)).unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    assert_eq!(stream.peer_addr().unwrap(), Address::Node { node: SERVER, port: PORT });
    assert_eq!(peer, Address::Node { node: CLIENT, port: stream.ports().0 });
    assert_eq!(stream.local_addr().unwrap(), Address::Sim { host: 0, port: stream.ports().0 });
    stream.write_all(b"before").unwrap();
    accepted.read_exact(&mut [0; 6]).unwrap();
    gateways[0].stop();
    for _ in 0..100 {
        stream.write_all(&[7; 10_000]).unwrap();
        accepted.read_exact(&mut [0; 10_000]).unwrap();
    }
    accepted.write_all(b"after").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    assert!(gateways[1].forwarded_bytes() > 900_000);
}

#[test]
fn messages_go_over_bonded_links() {
    let config = memory::Config::default();
    let ((near_one, far_one), (near_two, far_two)) = (memory::pair(config).unwrap(), memory::pair(config).unwrap());
    let (client, links) = engine(CLIENT, vec![near_one, near_two]);
    let (server, far) = engine(SERVER, vec![far_one, far_two]);
    let listener = MessageListener::bind_on(&server, far[0], PORT, 8).unwrap();
    let ways = [0, 1].map(|place| Way::Direct(Target { link: links[place], address: link::Address::Sim(1) }));
    let routes = Routes { ways: &ways, bonded: true };
    let socket = MessageSocket::connect_over(&client, &routes, PORT, Some(SOON)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(socket.peer_addr().unwrap(), Address::Sim { host: 1, port: PORT });
    let message = vec![7; 100_000];
    let mut out = Vec::new();
    for _ in 0..40 {
        socket.send(&message).unwrap();
        assert!(accepted.recv_vec(&mut out).unwrap());
        assert_eq!(out, message);
    }
    let sent: Vec<u64> = client.links().iter().map(|(_, _, _, counters)| counters.sent_packets).collect();
    assert!(sent.iter().all(|&count| count > 800), "{sent:?}");
}

#[test]
fn no_way_and_a_way_that_an_engine_cannot_take_are_errors() {
    let (one, _other) = memory::pair(memory::Config::default()).unwrap();
    let engine = Engine::new(&Options::default()).unwrap();
    let link = engine.add_link(Box::new(one)).unwrap();
    let none = Routes { ways: &[], bonded: false };
    assert_eq!(kind(Stream::connect_over(&engine, &none, PORT, Some(SOON))), ErrorKind::InvalidInput);
    let ways = [Way::Through(Target { link, address: link::Address::Sim(1) }, SERVER)];
    let through = Routes { ways: &ways, bonded: false };
    assert_eq!(kind(Stream::connect_over(&engine, &through, PORT, Some(SOON))), ErrorKind::Unsupported);
}

/// Two nodes on this host that know of each other only what gateways tell, and the gateways' table.
fn cluster_in(dir: &Path, first: &str, port: u16) -> (PathBuf, Cluster) {
    let gateway = |number: u16| {
        let (near, far) = (number, number + 10);
        format!(
            "[[node]]\nnumber = {number}\nname = \"g{number}\"\ngateway = {port}\naddresses = {{ near = \"127.0.0.{near}\", far = \"127.0.0.{far}\" }}\n"
        )
    };
    let node = |number: u16, network: &str| {
        format!(
            "[[node]]\nnumber = {number}\nname = \"node{number}\"\naddresses = {{ {network} = \"127.0.0.{number}\" }}\n"
        )
    };
    let text = [format!("{first}\n"), node(2, "near"), node(3, "far"), gateway(201), gateway(202)].concat();
    let path = dir.join("cluster.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let cluster = Cluster::read(&path).unwrap();
    (path, cluster)
}

/// A UDP port that is free at an address of this host.
fn free_port(address: &str) -> u16 {
    UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

fn gateway_of(cluster: &Cluster, name: &str) -> Running {
    let forwarding = cluster.forwarding(cluster.named(name).unwrap()).unwrap();
    let open = |address| Box::new(UdpLink::open(&udp::Options::new(address)).unwrap()) as Box<dyn Link>;
    let links = forwarding.links.iter().copied().map(open).collect();
    Running::start(Gateway::with_hosts(links, &[], &forwarding.hosts, Limits::default()).unwrap())
}

#[test]
fn a_name_of_the_cluster_is_reached_through_its_gateways_and_goes_on_when_one_ends() {
    goes_on("trusted = true", "");
}

#[test]
fn the_clusters_key_is_that_of_its_nodes() {
    goes_on("key_file = \"key\"", "");
}

#[test]
fn the_shortest_packets_go_through_gateways_too() {
    goes_on("trusted = true", "256");
}

fn goes_on(first: &str, packet_bytes: &str) {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, (0..32).map(|at| format!("{:02x}", at * 7)).collect::<String>()).unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let (path, cluster) = cluster_in(dir.path(), first, free_port("127.0.0.201"));
    let mut gateways = ["g201", "g202"].map(|name| gateway_of(&cluster, name));
    let port = free_port("127.0.0.3");
    let path = path.to_str().unwrap();
    let environment =
        |node| [("ROPEWAY_CLUSTER", path), ("ROPEWAY_NODE", node), ("ROPEWAY_PACKET_BYTES", packet_bytes)];
    let mut server = another("serve a node", &format!("node3:{port}"), &environment("node3"));
    let mut client = another("talk to a node", &format!("node3:{port}"), &environment("2"));
    wait_until("a part has come", || gateways.iter().map(Running::forwarded_bytes).sum::<u64>() > BYTES as u64 / 5);
    gateways.sort_by_key(|gateway| std::cmp::Reverse(gateway.forwarded_bytes()));
    gateways[0].stop();
    assert!(client.wait().unwrap().success() && server.wait().unwrap().success());
    let forwarded = gateways.each_ref().map(Running::forwarded_bytes);
    assert!(forwarded.iter().all(|&bytes| bytes > BYTES as u64 / 10), "{forwarded:?}");
    for gateway in &gateways {
        let counters = gateway.gateway.counters();
        assert_eq!(counters.dropped(), counters.dropped_full, "{counters:?}");
    }
}

#[test]
fn mistakes_with_a_cluster_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = cluster_in(dir.path(), "trusted = true", 7700);
    let path = path.to_str().unwrap();
    let refused = |argument: &str, environment: &[(&str, &str)]| {
        let said = another("fail to reach a node", argument, environment).wait().unwrap();
        assert!(said.success(), "{argument} {environment:?}");
    };
    let as_node = |node| [("ROPEWAY_CLUSTER", path), ("ROPEWAY_NODE", node)];
    refused("@9:7 has no node 9", &as_node("2"));
    refused("node3:7 no node `77`", &as_node("77"));
    refused("node9:7 ", &as_node("2"));
    // A key that is named has to be there.
    std::fs::write(path, std::fs::read_to_string(path).unwrap().replace("trusted = true", "key_file = \"none\""))
        .unwrap();
    refused("node2:7 cannot read the key file", &as_node("2"));
    refused("@3:7 ROPEWAY_CLUSTER", &[("ROPEWAY_CLUSTER", "off")]);
    refused("127.0.0.1:7 cannot read the cluster file", &[("ROPEWAY_CLUSTER", "/nowhere/cluster.toml")]);
    // What no node can be called is nobody's in the cluster.
    for address in ["localhost:7", "10.0.0.1:7", "Localhost:80"] {
        let resolved = another("resolve", address, &[("ROPEWAY_CLUSTER", "/nowhere/cluster.toml")]).wait().unwrap();
        assert!(resolved.success(), "{address}");
    }
    refused("node2:7 packet:lo", &[("ROPEWAY_CLUSTER", path), ("ROPEWAY_NODE", "3"), ("ROPEWAY_LINK", "packet:lo")]);
    std::fs::write(path, "colour = 1\n").unwrap();
    refused("127.0.0.1:7 line 1", &[("ROPEWAY_CLUSTER", path)]);
}

#[test]
fn who_may_not_read_the_clusters_key_is_told_when_a_key_is_missed_on_loopback() {
    // Root's key, and another user.
    ropeway_testkit::need_root!();
    const NOBODY: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "00112233445566778899aabbccddeeff0f1e2d3c4b5a69788796a5b4c3d2e1f0\n").unwrap();
    let (path, _) = cluster_in(dir.path(), "key_file = \"key\"", 7700);
    for (path, mode) in [(dir.path(), 0o755), (key.as_path(), 0o600)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let environment = [("ROPEWAY_CLUSTER", path.to_str().unwrap())];
    let keys = Some(Arc::new(key_file::read(&key).unwrap()));
    let engine = Engine::new(&Options { keys, ..Options::default() }).unwrap();
    let link = UdpLink::open(&udp::Options::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let link::Address::Udp(address) = link.local() else { panic!("it is UDP") };
    let link = engine.add_link(Box::new(link)).unwrap();
    let _listener = Listener::bind_on(&engine, link, address.port(), 1).unwrap();
    let expected = format!("{address} cannot read the key file");
    let said = command("fail to reach a node", &expected, &environment).uid(NOBODY).gid(NOBODY).status();
    assert!(said.unwrap().success());
}

#[test]
fn packets_for_two_engines_of_a_host_go_to_their_ports() {
    let local = |port| Box::new(UdpLink::open(&udp::Options::new(([127, 0, 0, 1], port).into())).unwrap());
    let address = |link: &UdpLink| match link.local() {
        link::Address::Udp(address) => address,
        other => panic!("{other}"),
    };
    let (near, far) = (local(0), local(0));
    let gateway_at = address(&near);
    let ends: Vec<Box<UdpLink>> = (0..3).map(|_| local(0)).collect();
    let ports: Vec<u16> = ends.iter().map(|link| address(link).port()).collect();
    // Everybody is on this host; the two sides differ by the gateway's links.
    let host = |number, link| Host { number, link, address: link::Address::Udp(([127, 0, 0, 1], 0).into()) };
    let links: Vec<Box<dyn Link>> = vec![near, far];
    let hosts = [host(1, 0), host(2, 1)];
    let gateway = Running::start(Gateway::with_hosts(links, &[], &hosts, Limits::default()).unwrap());
    let mut engines = Vec::new();
    for (link, (host, port)) in ends.into_iter().zip([(1, ports[0]), (2, ports[1]), (2, ports[2])]) {
        let config = Config { packet_bytes: 1472, ..Config::default() };
        let node = Some(engine_number(host, port).into());
        let engine = Engine::new(&Options { config, node, gateways: true, ..Options::default() }).unwrap();
        let id = engine.add_link(link).unwrap();
        engines.push((engine, id));
    }
    let listeners: Vec<Listener> =
        engines[1..].iter().map(|(engine, link)| Listener::bind_on(engine, *link, PORT, 8).unwrap()).collect();
    for (listener, port) in listeners.iter().zip(&ports[1..]) {
        let (client, link) = &engines[0];
        let way =
            Way::Through(Target { link: *link, address: link::Address::Udp(gateway_at) }, engine_number(2, *port));
        let routes = Routes { ways: &[way], bonded: false };
        let mut stream = Stream::connect_over(client, &routes, PORT, Some(SOON)).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        stream.write_all(&[7; 50_000]).unwrap();
        accepted.read_exact(&mut [0; 50_000]).unwrap();
    }
    assert_eq!(gateway.gateway.counters().dropped(), 0);
}
