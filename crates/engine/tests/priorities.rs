//! What the kernel is told of packets: short ones and control go before bulk data, where a device's queue makes a difference.

#[path = "../../link/tests/support/mod.rs"]
mod support;

use ropeway_engine::{Engine, Mode, Options, Target};
use ropeway_link::udp::{self, UdpLink};
use ropeway_testkit::{need_kernel, need_program, skip};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Hosts, address, reason_against_hosts};

const PORT: u16 = 7;
const BYTES: usize = 4 << 20;
const ANSWERS: usize = 50;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn nft(hosts: &Hosts, end: usize, arguments: &[&str]) -> String {
    let output = hosts.on(end, || Command::new("nft").args(arguments).output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Counts what leaves a host: with the priority of what is urgent, and without any.
fn count(hosts: &Hosts, end: usize) {
    let begin = "add table inet seen; add chain inet seen out { type filter hook output priority 0; };";
    let rules = ["0:6", "none"].map(|priority| {
        format!("add rule inet seen out meta l4proto udp meta priority {priority} counter comment \"{priority}\"")
    });
    nft(hosts, end, &[&[begin, &rules[0], "; ", &rules[1]].concat()]);
}

/// Packets (merged ones count once) and bytes that left with this priority.
fn counted(hosts: &Hosts, end: usize, priority: &str) -> (u64, u64) {
    let listed = nft(hosts, end, &["list", "chain", "inet", "seen", "out"]);
    let line = listed.lines().find(|line| line.contains(&format!("comment \"{priority}\""))).unwrap();
    let after = |word: &str| line.split_whitespace().skip_while(|part| *part != word).nth(1).unwrap().parse().unwrap();
    (after("packets"), after("bytes"))
}

/// Bytes and answers from host 1 to host 0 and back, and what was counted there: urgent and other, at the sender and at the receiver.
fn carried(v6: bool, change: impl Fn(&mut udp::Options)) -> [(u64, u64); 4] {
    let hosts = Hosts::new(1500);
    let [server, client] = [0, 1].map(|end| {
        let mut options = udp::Options::new(SocketAddr::new(address(end, v6), 0));
        change(&mut options);
        count(&hosts, end);
        let link = hosts.on(end, || UdpLink::open(&options).unwrap());
        let engine = Engine::new(&Options::default()).unwrap();
        let link = engine.add_link(Box::new(link)).unwrap();
        (engine, link)
    });
    let target = Target { link: client.1, address: server.0.local(server.1).unwrap() };
    server.0.listen(PORT, Mode::Stream, 4).unwrap();
    let there = client.0.connect(target, PORT, Mode::Stream, soon()).unwrap();
    let here = server.0.accept(PORT, soon()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.0.send_all(there, &vec![7; BYTES], soon()).unwrap();
            for _ in 0..ANSWERS {
                client.0.recv(there, &mut [0], soon()).unwrap();
                client.0.send_all(there, &[1], soon()).unwrap();
            }
        });
        let (mut buffer, mut received) = (vec![0; 64 << 10], 0);
        while received < BYTES + ANSWERS {
            if received >= BYTES {
                server.0.send_all(here, &[2], soon()).unwrap();
            }
            received += server.0.recv(here, &mut buffer, soon()).unwrap().expect("no end yet");
        }
    });
    let seen = [(1, "0:6"), (1, "none"), (0, "0:6"), (0, "none")].map(|(end, what)| counted(&hosts, end, what));
    println!("IPv{}: {seen:?}", if v6 { 6 } else { 4 });
    seen
}

#[test]
fn short_packets_and_control_have_a_priority_and_bulk_data_has_none() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    need_kernel!(6, 14);
    need_program!("nft");
    for v6 in [false, true] {
        let [urgent, bulk, answers, others] = carried(v6, |_| ());
        assert!(urgent.0 >= ANSWERS as u64 && urgent.1 < BYTES as u64 / 4, "{urgent:?}");
        assert!(bulk.1 > BYTES as u64 * 3 / 4, "{bulk:?}");
        // Grants, acknowledgments and single bytes.
        assert!(answers.0 > ANSWERS as u64 && others == (0, 0), "{answers:?}, {others:?}");
        let [urgent, bulk, answers, others] = carried(v6, |options| options.urgent_priority = 0);
        assert_eq!([urgent, answers], [(0, 0); 2]);
        assert!(bulk.1 > BYTES as u64 && others.0 > ANSWERS as u64, "{bulk:?}, {others:?}");
    }
}
