use super::*;
use crate::core::LinkId;
use crate::engine::Target;
use crate::gateway::{Host, engine_number};
use crate::key_file::Choice;
use crate::routes::Way;
use ropeway_link::Address;
use std::fs::Permissions;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

/// Two segments, and two gateways between them.
const APART: &str = r#"
key_file = "key"

[[node]]
number = 1
name = "h1"
addresses = { compute = "10.0.1.1" }

[[node]]
number = 2
name = "h2"
addresses = { compute = "10.0.1.2" }

[[node]]
number = 3
name = "h3"
addresses = { io = "10.0.2.3" }

[[node]]
number = 201
name = "g1"
addresses = { compute = "10.0.1.201", io = "10.0.2.201" }
gateway = 7700

[[node]]
number = 202
name = "g2"
addresses = { compute = "10.0.1.202", io = "10.0.2.202" }
gateway = 7701
"#;

fn parse(text: &str) -> Result<Cluster, ClusterError> {
    Cluster::parse(text, Path::new("/etc/ropeway/cluster.toml"))
}

fn node(number: u16, addresses: &str, gateway: &str) -> String {
    format!("[[node]]\nnumber = {number}\nname = \"n{number}\"\naddresses = {{ {addresses} }}\n{gateway}\n")
}

fn hops(cluster: &Cluster, from: &str, to: &str) -> Vec<Hop> {
    cluster.ways(cluster.named(from), cluster.named(to).unwrap()).unwrap()
}

fn direct(address: &str) -> Hop {
    Hop::Direct(address.parse().unwrap())
}

fn through(address: &str) -> Hop {
    Hop::Through(address.parse().unwrap())
}

#[test]
fn nodes_are_found_by_number_name_and_address() {
    let cluster = parse(APART).unwrap();
    assert_eq!((cluster.nodes().len(), cluster.has_gateways(), cluster.is_bonded()), (5, true, false));
    assert_eq!(cluster.keys(), Some(Choice::File("/etc/ropeway/key".into())));
    let g1 = cluster.node(201).unwrap();
    assert_eq!(cluster.named("g1"), Some(g1));
    assert_eq!(cluster.at("::ffff:10.0.2.201".parse().unwrap()), Some(g1));
    assert_eq!(cluster.meant_by("201").unwrap(), g1);
    assert!(cluster.meant_by("g3").unwrap_err().to_string().contains("no node `g3`"));
}

#[test]
fn a_host_is_the_node_that_has_its_address() {
    let cluster = parse(APART).unwrap();
    let with = |addresses: &[&str]| {
        let places: Vec<Place> = addresses.iter().map(|address| Place::Ip(address.parse().unwrap())).collect();
        cluster.with_one_of(places.into_iter()).map(|node| node.map(|node| node.number))
    };
    assert_eq!(with(&["127.0.0.1", "10.0.1.201", "10.0.2.201"]).unwrap(), Some(201));
    assert_eq!(with(&["127.0.0.1"]).unwrap(), None);
    assert!(with(&["10.0.1.1", "10.0.2.3"]).unwrap_err().to_string().contains(NODE_VAR));
}

#[test]
fn neighbours_are_reached_directly_and_others_through_all_gateways_between() {
    let cluster = parse(APART).unwrap();
    assert_eq!(hops(&cluster, "h1", "h2"), [direct("10.0.1.2")]);
    assert_eq!(hops(&cluster, "h1", "g2"), [direct("10.0.1.202")]);
    assert_eq!(hops(&cluster, "h1", "h1"), [direct("10.0.1.1")]);
    // Two networks in common are two ways, but to oneself one is enough.
    assert_eq!(hops(&cluster, "g1", "g2"), [direct("10.0.1.202"), direct("10.0.2.202")]);
    assert_eq!(hops(&cluster, "g1", "g1"), [direct("10.0.1.201")]);
    assert_eq!(hops(&cluster, "h1", "h3"), [through("10.0.1.201:7700"), through("10.0.1.202:7701")]);
    assert_eq!(hops(&cluster, "h2", "h3"), [through("10.0.1.202:7701"), through("10.0.1.201:7700")]);
    assert_eq!(hops(&cluster, "h3", "h2"), [through("10.0.2.202:7701"), through("10.0.2.201:7700")]);
    // A host that is no node does not know on which networks it is.
    let stranger = cluster.ways(None, cluster.named("g1").unwrap()).unwrap();
    assert_eq!(stranger, [direct("10.0.1.201"), direct("10.0.2.201")]);
}

#[test]
fn hops_lead_to_a_port_of_the_node_or_to_a_gateway_that_knows_its_number() {
    let (link, number) = (LinkId(0), engine_number(3, 7000));
    let target = |address: &str| Target { link, address: Address::Udp(address.parse().unwrap()) };
    let way = |hop: Hop| hop.over_udp(link, 7000, number);
    assert_eq!(way(direct("10.0.1.2")), Some(Way::Direct(target("10.0.1.2:7000"))));
    assert_eq!(way(direct("fd00::2")), Some(Way::Direct(target("[fd00::2]:7000"))));
    assert_eq!(way(through("10.0.1.201:7700")), Some(Way::Through(target("10.0.1.201:7700"), number)));
    assert_eq!(way(Hop::Ether([2; 6], [4; 6])), None);
}

#[test]
fn a_node_has_its_sockets_at_its_only_address_or_at_all_of_its_host() {
    let cluster = parse(APART).unwrap();
    let at = |name: &str| cluster.socket_ip(cluster.named(name)).to_string();
    assert_eq!([at("h1"), at("g1"), at("nobody")], ["10.0.1.1", "0.0.0.0", "0.0.0.0"]);
    let text = ["trusted = true\n".to_owned(), node(1, "n = \"fd00::1\"", ""), node(2, "n = \"fd00::2\"", "")];
    let cluster = parse(&text.concat()).unwrap();
    assert_eq!(cluster.socket_ip(cluster.node(1)).to_string(), "fd00::1");
    assert_eq!(cluster.socket_ip(None).to_string(), "::");
}

#[test]
fn a_gateway_knows_every_node_and_where_it_receives() {
    let cluster = parse(APART).unwrap();
    let Forwarding { links, hosts } = cluster.forwarding(cluster.named("g1").unwrap()).unwrap();
    assert_eq!(links, ["10.0.1.201:7700".parse().unwrap(), "10.0.2.201:7700".parse().unwrap()]);
    let row = |number, link, address: &str| Host { number, link, address: Address::Udp(address.parse().unwrap()) };
    let expected =
        [row(1, 0, "10.0.1.1:0"), row(2, 0, "10.0.1.2:0"), row(3, 1, "10.0.2.3:0"), row(202, 0, "10.0.1.202:0")];
    assert_eq!(hosts, expected);
    let refused = cluster.forwarding(cluster.named("h1").unwrap()).unwrap_err().to_string();
    assert!(refused.contains("h1 is no gateway"), "{refused}");
}

/// Networks in a row, each with a node, and two gateways between each two.
fn row_of(networks: u16) -> Cluster {
    let mut text = "trusted = true\n".to_owned();
    for at in 0..networks {
        text += &node(at + 1, &format!("n{at} = \"10.0.{at}.1\""), "");
    }
    for at in 0..networks - 1 {
        for side in [101, 102] {
            let addresses = format!("n{at} = \"10.0.{at}.{side}\", n{} = \"10.0.{}.{}\"", at + 1, at + 1, side + 50);
            text += &node(side + 2 * at, &addresses, "gateway = 7700");
        }
    }
    parse(&text).unwrap()
}

#[test]
fn gateways_behind_each_other_hand_on_to_different_ones() {
    let cluster = row_of(3);
    assert_eq!(hops(&cluster, "n1", "n3"), [through("10.0.0.101:7700"), through("10.0.0.102:7700")]);
    let next_of = |gateway: u16, to: u16| {
        let forwarding = cluster.forwarding(cluster.node(gateway).unwrap()).unwrap();
        forwarding.hosts.iter().find(|host| host.number == to).map(|host| host.address.to_string()).unwrap()
    };
    assert_eq!(next_of(101, 3), "10.0.1.101:7700");
    assert_eq!(next_of(102, 3), "10.0.1.102:7700");
    assert_eq!(next_of(103, 1), "10.0.1.151:7700");
    assert_eq!(next_of(104, 1), "10.0.1.152:7700");
    assert_eq!(next_of(104, 3), "10.0.2.1:0");
}

#[test]
fn packets_reach_whatever_the_ways_promise_and_no_way_is_longer_than_packets_may_go() {
    let cluster = row_of(6);
    for (from, to) in [("n1", "n5"), ("n5", "n1"), ("n1", "n2"), ("n2", "n6")] {
        let target = cluster.named(to).unwrap();
        for hop in hops(&cluster, from, to) {
            let mut at = hop;
            let mut passed = 0;
            while let Hop::Through(gateway) = at {
                passed += 1;
                assert!(passed <= crate::shimmed::MOST_HOPS, "{from} to {to}");
                let gateway = cluster.at(gateway.ip()).unwrap();
                let table = cluster.forwarding(gateway).unwrap();
                let host = table.hosts.iter().find(|host| host.number == target.number).unwrap();
                let Address::Udp(next) = host.address else { panic!("all is UDP here") };
                at = if next.port() == 0 { Hop::Direct(next.ip()) } else { Hop::Through(next) };
            }
            assert_eq!(at, Hop::Direct(target.ips().next().unwrap().1));
        }
    }
    let too_far = cluster.ways(cluster.named("n1"), cluster.named("n6").unwrap()).unwrap_err().to_string();
    assert!(too_far.contains("no way from n1 to n6"), "{too_far}");
}

#[test]
fn an_ethernet_is_a_way_where_no_ip_network_is_shared() {
    let mac = |number: u16| format!("wire = \"02:00:00:00:00:{number:02x}\"");
    let both = |number: u16| format!("a = \"10.0.0.{number}\", {}", mac(number));
    let cluster = parse(&[node(1, &both(1), ""), node(2, &both(2), ""), node(3, &mac(3), "")].concat()).unwrap();
    let [first, third] = [1, 3].map(|last| [2, 0, 0, 0, 0, last]);
    assert_eq!(hops(&cluster, "n1", "n2"), [direct("10.0.0.2")]);
    assert_eq!(hops(&cluster, "n1", "n3"), [Hop::Ether(first, third)]);
    assert_eq!(hops(&cluster, "n3", "n1"), [Hop::Ether(third, first)]);
    assert_eq!(cluster.at_place(Place::Ether(third)).unwrap().number, 3);
    let stranger = cluster.ways(None, cluster.named("n3").unwrap()).unwrap_err().to_string();
    assert!(stranger.contains("no node"), "{stranger}");
}

#[test]
fn what_cannot_be_meant_is_named_with_its_line() {
    let (one, two) = (node(1, "a = \"10.0.0.1\"", ""), node(2, "a = \"10.0.0.2\"", ""));
    let with = |more: &str| format!("{one}{two}{more}");
    let cases: &[(String, &str, &str)] = &[
        (String::new(), "line 1", "no node"),
        ("trusted = true\n".into(), "line 1", "no node"),
        (format!("key_file = \"k\"\ntrusted = true\n{one}{two}"), "line 2", "beside `key_file`"),
        (format!("colour = 1\n{one}"), "line 1", "colour"),
        (with("[[gateway]]\n"), "line 11", "gateway"),
        (with("[[node]]\nnumber = 3\n"), "line 11", "name"),
        (with(&node(3, "a = \"10.0.0.3\"", "port = 1")), "line 15", "port"),
        (with(&node(1, "a = \"10.0.0.3\"", "")), "line 12", "another node 1"),
        (with(&node(0, "a = \"10.0.0.3\"", "")), "line 12", "from 1"),
        (with("[[node]]\nnumber = 65536\n"), "line 12", "65536"),
        (with(&node(3, "a = \"10.0.0.3\"", "").replace("n3", "n2")), "line 13", "another node `n2`"),
        (with(&node(3, "a = \"10.0.0.3\"", "").replace("n3", "10.0.0.3")), "line 13", "no name"),
        (with(&node(3, "a = \"10.0.0.3\"", "").replace("n3", "a:b")), "line 13", "no name"),
        (with(&node(3, "a = \"10.0.0.3\"", "").replace("n3", "localhost")), "line 13", "no name"),
        (with(&node(3, "a = \"10.0.0.3\"", "").replace("n3", "LocalHost")), "line 13", "no name"),
        (with(&node(3, "a = \"10.0.0.2\"", "")), "line 14", "there already"),
        (with(&node(3, "a = \"fd00::3\"", "")), "line 14", "another kind"),
        (with(&node(3, "a = \"0.0.0.0\"", "")), "line 14", "not the address"),
        (with(&node(3, "a = \"ten\"", "")), "line 14", "IP address"),
        (with(&node(3, "a = \"10.0.0.3\", a = \"10.0.0.4\"", "")), "line 14", "duplicate"),
        (with(&node(3, "", "")), "line 14", "no address"),
        (with(&node(3, "a = \"10.0.0.3\", b = \"10.0.1.3\"", "")), "line 14", "network `b`"),
        (with(&node(3, "a = \"10.0.0.3\"", "gateway = 7700")), "line 15", "two IP networks"),
        (with(&node(3, "a = \"02:00:00:00:00:03\"", "")), "line 14", "another kind"),
        (with(&node(3, "b = \"03:00:00:00:00:03\"", "")), "line 14", "one host"),
        (with(&node(3, "b = \"02:00:00:00:00:3\"", "")), "line 14", "hardware address"),
        (with(&node(3, "a = \"10.0.0.3\", b = \"02:00:00:00:00:03\"", "gateway = 7")), "line 15", "two IP networks"),
        (with(&node(3, "a = \"10.0.0.3\", b = \"10.0.1.3\"", "gateway = 0")), "line 15", "port"),
    ];
    for (text, line, what) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with("/etc/ropeway/cluster.toml"), "{error}");
        assert!(error.contains(line) && error.contains(what), "{line}, {what}: {error}\n{text}");
    }
    assert!(parse(&with("")).is_ok());
}

#[test]
fn the_example_of_the_documentation_means_what_stands_there() {
    let page = include_str!("../../../../docs/configuration.md");
    let section = page.split("## The cluster file").nth(1).unwrap();
    let example = section.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let cluster = parse(example).unwrap();
    assert_eq!(hops(&cluster, "node1", "node3"), [through("10.0.1.201:7700"), through("10.0.1.202:7700")]);
    assert!(!cluster.is_bonded() && cluster.keys().is_some());
}

#[test]
fn a_file_that_is_named_must_exist_and_the_usual_one_need_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.toml");
    let read = |said: Option<&Path>, usual: &Path| Cluster::from_variable(said.map(|said| said.into()), usual);
    assert!(read(None, &path).unwrap().is_none());
    let missing = read(Some(&path), Path::new("/nowhere")).unwrap_err().to_string();
    assert!(missing.contains(path.to_str().unwrap()) && missing.contains(CLUSTER_VAR), "{missing}");
    std::fs::write(&path, APART).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(read(None, &path).unwrap().unwrap().path(), path);
    assert!(read(Some(&path), Path::new("/nowhere")).unwrap().is_some());
    assert!(read(Some(Path::new("off")), &path).unwrap().is_none());
    assert!(read(Some(Path::new("")), &path).unwrap().is_some());
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(read(None, &path).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn a_file_that_others_can_write_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.toml");
    std::fs::write(&path, APART).unwrap();
    for mode in [0o600, 0o400, 0o644, 0o444, 0o755] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert!(Cluster::read(&path).is_ok(), "{mode:o}");
    }
    for mode in [0o620, 0o602, 0o664, 0o646, 0o666, 0o777] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        for read in [Cluster::read(&path).map(Some), Cluster::from_variable(None, &path)] {
            let error = read.unwrap_err();
            assert!(matches!(error, ClusterError::Permissions { mode: said, .. } if said == mode), "{error:?}");
            let said = error.to_string();
            assert!(said.contains(path.to_str().unwrap()) && said.contains("chmod go-w"), "{said}");
        }
    }
}

#[test]
fn a_file_of_another_user_is_not_believed() {
    // Nobody else can give a file away.
    ropeway_testkit::need_root!();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.toml");
    std::fs::write(&path, APART).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    chown(&path, Some(12_345), None).unwrap();
    let error = Cluster::read(&path).unwrap_err();
    assert!(matches!(error, ClusterError::Owner { owner: 12_345, .. }) && error.to_string().contains("12345"));
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for path in [&pipe, dir.path()] {
        assert!(matches!(Cluster::read(path), Err(ClusterError::NotAFile { .. })), "{path:?}");
    }
}

#[test]
fn only_a_usual_file_that_does_not_exist_is_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Cluster::from_variable(None, &dir.path().join("nothing")).unwrap().is_none());
    // What is behind a directory that cannot be searched, or behind something else, is not known: not to be there is not the same.
    let around = dir.path().join("around");
    symlink(&around, &around).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for path in [around, dir.path().join("file/cluster.toml")] {
        let error = Cluster::from_variable(None, &path).unwrap_err();
        assert!(matches!(error, ClusterError::Read { .. }), "{error:?}");
    }
}

#[test]
fn a_node_that_is_named_by_no_text_is_no_node() {
    let cluster = parse(APART).unwrap();
    assert_eq!(cluster.here_as(Some("h1".into())).unwrap().unwrap().number, 1);
    let error = cluster.here_as(Some(OsString::from_vec(vec![b'h', 0xff]))).unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchNode { .. }), "{error:?}");
}
