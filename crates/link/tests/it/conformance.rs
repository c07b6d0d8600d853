//! What every link keeps, run on each of them, and on each wrapper.

use crate::support::{self, DEVICE, Hosts};
use ropeway_link::{Address, Batch, Link, Received, fault, memory, packet, pcap, sim, trace, udp, xdp};
use ropeway_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Two links that reach each other over a medium that loses nothing and keeps order.
struct Pair {
    a: Box<dyn Link>,
    b: Box<dyn Link>,
    /// A destination of the same kind where nobody is.
    nobody: Address,
    /// Lets what was sent arrive, where that does not happen by itself.
    settle: Box<dyn Fn()>,
    /// Sends to `b` what is no packet of ours, and says how many bad arrivals that makes.
    disturb: Option<Box<dyn Fn() -> u64>>,
    /// Packets may travel merged.
    merges: bool,
    /// Kept for as long as the links.
    _hosts: Option<Hosts>,
}

/// Longer than any machine needs for what has been sent.
const PATIENCE: Duration = Duration::from_secs(10);

impl Pair {
    /// Sends from `a`, in as many calls as it takes while `b` receives.
    fn send_all(&mut self, packets: &[Vec<u8>], seen: &mut Vec<Vec<u8>>) {
        let to = self.b.local();
        let mut rest = packets;
        let start = Instant::now();
        while !rest.is_empty() {
            let taken = send(&mut *self.a, to, rest);
            rest = &rest[taken..];
            if taken == 0 {
                assert!(start.elapsed() < PATIENCE, "{} packets are never taken", rest.len());
                self.receive_now(seen);
            }
        }
    }

    /// Receives at `b` what is there.
    fn receive_now(&mut self, seen: &mut Vec<Vec<u8>>) {
        (self.settle)();
        let mut keep = |packet: Received<'_>| seen.push(packet.bytes.to_vec());
        while self.b.receive(64, &mut keep).expect("the link works") > 0 {}
    }

    /// Receives at `b` until so many packets were seen.
    fn receive(&mut self, count: usize, seen: &mut Vec<Vec<u8>>) {
        let start = Instant::now();
        while seen.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} packets arrived", seen.len());
            self.receive_now(seen);
            if seen.len() < count {
                wait(&*self.b, Duration::from_millis(10));
            }
        }
    }

    /// Sends packets and receives exactly them.
    fn pass(&mut self, packets: &[Vec<u8>]) {
        let mut seen = Vec::new();
        self.send_all(packets, &mut seen);
        self.receive(packets.len(), &mut seen);
        let lens = |packets: &[Vec<u8>]| packets.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(&seen), lens(packets));
        assert!(seen == packets, "the same lengths, other bytes");
    }
}

fn send(link: &mut dyn Link, to: Address, packets: &[Vec<u8>]) -> usize {
    let packets: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
    link.send(&Batch::new(to, &packets)).expect("the link works")
}

/// Waits until the descriptor is readable, if there is one, and says whether it is.
fn wait(link: &dyn Link, at_most: Duration) -> Option<bool> {
    let descriptor = link.descriptor()?;
    let wait = Timespec::try_from(at_most).ok();
    Some(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], wait.as_ref()).expect("polls") == 1)
}

/// A packet whose bytes tell it from others of its length.
fn packet(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|at| (number.wrapping_mul(31) + at) as u8).collect()
}

fn packets_arrive_whole_and_in_order(pair: &mut Pair) {
    let most = pair.a.max_packet();
    for round in 0..20 {
        let packets: Vec<_> = (0..30).map(|n| packet(1 + (n * 97 + round * 7) % most.min(1400), n + round)).collect();
        pair.pass(&packets);
    }
}

fn every_size_up_to_the_longest_passes(pair: &mut Pair) {
    let most = pair.a.max_packet();
    assert_eq!(most, pair.b.max_packet());
    // All of an Ethernet's; of longer ones the ends and some between.
    let step = if most > 10_000 { 977 } else { 1 };
    let sizes: Vec<usize> = (1..most.min(300)).chain((300..most).step_by(step)).chain([most - 1, most]).collect();
    for some in sizes.chunks(16) {
        pair.pass(&some.iter().map(|len| packet(*len, *len)).collect::<Vec<_>>());
    }
}

fn runs_of_equal_packets_pass(pair: &mut Pair) {
    let most = pair.a.max_packet().min(9000);
    for len in [1, 24, 64, 1000, most] {
        pair.pass(&(0..100).map(|n| packet(len, n)).collect::<Vec<_>>());
    }
    // A run with a shorter last, one with a longer one, and single ones between.
    let lens = [900, 900, 900, 10, 900, 900, 1000, 1000, 3, 2, 1, 1, 1];
    pair.pass(&lens.iter().enumerate().map(|(n, len)| packet(*len, n)).collect::<Vec<_>>());
}

fn a_batch_beyond_all_queues_is_taken_in_part_or_dropped_and_counted(pair: &mut Pair) {
    // The neighbour is known before: packets that wait for its address are in nobody's count.
    pair.pass(&[packet(8, 8)]);
    let len = pair.a.max_packet().min(1400);
    let packets: Vec<_> = (0..6000).map(|n| packet(len, n)).collect();
    let taken = send(&mut *pair.a, pair.b.local(), &packets);
    assert!(taken > 0 && taken <= packets.len());
    assert_eq!(pair.a.counters().send_full > 0, taken < packets.len());
    let mut seen = Vec::new();
    pair.receive_now(&mut seen);
    // Some kernels tell what they dropped with the next arrival only; and virtual or real time may have to pass for it.
    let last = packet(7, 7);
    let start = Instant::now();
    while seen.last() != Some(&last) {
        assert!(start.elapsed() < PATIENCE, "nothing arrives after too much was sent");
        if send(&mut *pair.a, pair.b.local(), std::slice::from_ref(&last)) == 1 {
            pair.receive_now(&mut seen);
            wait(&*pair.b, Duration::from_millis(10));
            pair.receive_now(&mut seen);
        }
    }
    let (a, b) = (pair.a.counters(), pair.b.counters());
    let missing = a.sent_packets - b.received_packets;
    // Merged arrivals are dropped as one.
    assert!(
        if pair.merges { (missing > 0) == (b.receive_drops > 0) } else { missing == b.receive_drops },
        "{missing}, {b:?}"
    );
    assert_eq!(a.send_errors, 0);
    // What arrived is a part of what was sent, in order.
    let mut expected = packets.iter().chain(std::iter::repeat(&last));
    assert!(seen.iter().all(|one| expected.any(|sent| sent == one)));
    let kept = pair.b.receive_slots().expect("all these links know it").min(taken);
    assert!(seen.len() >= kept, "{} arrived, {kept} at least have room", seen.len());
}

fn a_packet_too_long_is_refused_and_counted(pair: &mut Pair) {
    let most = pair.a.max_packet();
    let packets = [packet(10, 1), packet(most + 1, 2), packet(10, 3)];
    assert_eq!(send(&mut *pair.a, pair.b.local(), &packets), 3);
    let mut seen = Vec::new();
    pair.receive(2, &mut seen);
    assert_eq!(seen, [packet(10, 1), packet(10, 3)]);
    assert_eq!((pair.a.counters().send_errors, pair.a.counters().sent_packets), (1, 2));
}

fn a_receive_takes_about_as_many_as_it_may(pair: &mut Pair) {
    // Growing lengths: such packets are never merged on the way, and a merged arrival is not split.
    let packets: Vec<_> = (0..20).map(|n| packet(100 + n, n)).collect();
    let mut seen = Vec::new();
    pair.send_all(&packets, &mut seen);
    (pair.settle)();
    assert_eq!(pair.b.receive(0, &mut |_| panic!("none may be taken")).expect("the link works"), 0);
    let start = Instant::now();
    while seen.len() < 20 {
        let count = pair.b.receive(3, &mut |packet| seen.push(packet.bytes.to_vec())).expect("the link works");
        assert!(count <= 3, "{count} packets");
        assert!(start.elapsed() < PATIENCE, "{} of 20 packets arrived", seen.len());
    }
    assert!(seen == packets);
}

fn the_descriptor_is_readable_while_something_waits(pair: &mut Pair) {
    let Some(readable) = wait(&*pair.b, Duration::ZERO) else {
        assert!(pair.b.name().ends_with("sim"), "only a simulated network has nothing to wait for");
        return;
    };
    assert!(!readable, "nothing was sent yet");
    for round in 0..3 {
        pair.send_all(&[packet(100, 1), packet(101, 2)], &mut Vec::new());
        assert_eq!(wait(&*pair.b, PATIENCE), Some(true));
        let mut seen = Vec::new();
        pair.receive(2, &mut seen);
        assert_eq!(seen.len(), 2, "round {round}");
        assert_eq!(wait(&*pair.b, Duration::ZERO), Some(false));
    }
}

fn counters_add_up(pair: &mut Pair) {
    let packets: Vec<_> = (0..50).map(|n| packet(200 + n % 3, n)).collect();
    let bytes: usize = packets.iter().map(Vec::len).sum();
    pair.pass(&packets);
    let (a, b) = (pair.a.counters(), pair.b.counters());
    assert_eq!((a.sent_packets, a.sent_bytes), (50, bytes as u64));
    assert_eq!((b.received_packets, b.received_bytes), (50, bytes as u64));
    assert!(a.send_calls > 0);
    assert_eq!((a.received_packets, b.sent_packets), (0, 0));
    assert_eq!((a.send_errors, a.send_fallbacks, b.receive_drops, b.receive_bad), (0, 0, 0, 0));
}

fn packets_to_nobody_do_no_harm(pair: &mut Pair) {
    for round in 0..3 {
        assert_eq!(send(&mut *pair.a, pair.nobody, &[packet(64, 1), packet(64, 2)]), 2, "round {round}");
        pair.pass(&[packet(64, round)]);
    }
    // Nor do those to an address of another kind of link.
    let foreign = match pair.nobody {
        Address::Ether(_) => Address::Sim(0),
        _ => Address::Ether([2; 6]),
    };
    let errors = pair.a.counters().send_errors;
    assert_eq!(send(&mut *pair.a, foreign, &[packet(64, 1), packet(64, 2)]), 2);
    assert_eq!(pair.a.counters().send_errors, errors + 2);
    pair.pass(&[packet(64, 9)]);
}

fn arrivals_that_are_no_packets_are_counted(pair: &mut Pair) {
    let Some(disturb) = &pair.disturb else {
        // Members of one process are not strangers to each other: nothing else can arrive.
        assert!(pair.b.name().contains("memory"), "{} has no disturbance", pair.b.name());
        return;
    };
    let bad = disturb();
    assert!(bad > 0);
    let mut seen = Vec::new();
    let start = Instant::now();
    while pair.b.counters().receive_bad < bad {
        assert!(start.elapsed() < PATIENCE, "{:?}, {bad} expected", pair.b.counters());
        pair.receive_now(&mut seen);
    }
    assert_eq!((seen.len(), pair.b.counters().receive_bad), (0, bad));
    pair.pass(&[packet(64, 9)]);
}

fn each_end_knows_the_other_by_its_address(pair: &mut Pair) {
    for _ in 0..2 {
        let from = pair.a.local();
        assert_ne!(from, pair.b.local());
        pair.send_all(&[packet(77, 1)], &mut Vec::new());
        let start = Instant::now();
        let mut seen = Vec::new();
        while seen.is_empty() {
            assert!(start.elapsed() < PATIENCE, "nothing arrives");
            (pair.settle)();
            pair.b.receive(1, &mut |packet| seen.push(packet.from)).expect("the link works");
        }
        assert_eq!(seen, [from]);
        // And the other way round.
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
}

fn simulated() -> Pair {
    let network = sim::Network::new(sim::Config::default(), 1);
    let (a, b) = (network.attach(0), network.attach(1));
    let clock = network.clone();
    let stranger = std::sync::Mutex::new(network.attach_as(2, sim::Host { mtu: 3000, ..sim::Host::default() }));
    Pair {
        a: Box::new(a),
        b: Box::new(b),
        nobody: Address::Sim(99),
        settle: Box::new(move || clock.advance(clock.now() + 1_000_000_000)),
        disturb: Some(Box::new(move || {
            send(&mut *stranger.lock().expect("alone"), Address::Sim(1), &[packet(1501, 1), packet(3000, 1)]) as u64
        })),
        merges: false,
        _hosts: None,
    }
}

fn in_memory() -> Pair {
    let (a, b) = memory::pair(memory::Config::default()).expect("a pair");
    let (a, b) = (Box::new(a), Box::new(b));
    Pair { a, b, nobody: Address::Sim(99), settle: Box::new(|| ()), disturb: None, merges: false, _hosts: None }
}

fn udp_link(ip: std::net::IpAddr) -> udp::UdpLink {
    udp::UdpLink::open(&udp::Options::new(SocketAddr::new(ip, 0))).expect("a socket")
}

fn udp_pair(a: udp::UdpLink, b: udp::UdpLink, stranger: UdpSocket, hosts: Option<Hosts>) -> Pair {
    let to = b.local_address();
    // Connected to somebody else: the kernel refuses all others there.
    let elsewhere = UdpSocket::bind(SocketAddr::new(stranger.local_addr().expect("bound").ip(), 0)).ok();
    let nobody = SocketAddr::new(to.ip(), 1);
    Pair {
        a: Box::new(a),
        b: Box::new(b),
        nobody: Address::Udp(nobody),
        settle: Box::new(|| ()),
        disturb: Some(Box::new(move || {
            let _ = &elsewhere;
            stranger.send_to(&[], to).expect("sent");
            1
        })),
        merges: true,
        _hosts: hosts,
    }
}

fn udp_on_loopback(ip: &str) -> Pair {
    let ip = ip.parse().expect("an address");
    udp_pair(udp_link(ip), udp_link(ip), UdpSocket::bind(SocketAddr::new(ip, 0)).expect("a socket"), None)
}

fn udp_between_hosts(v6: bool) -> Pair {
    let hosts = Hosts::new(1500);
    let [a, b] = [0, 1].map(|end| hosts.on(end, || udp_link(support::address(end, v6))));
    let stranger = hosts.on(0, || UdpSocket::bind(SocketAddr::new(support::address(0, v6), 0)).expect("a socket"));
    udp_pair(a, b, stranger, Some(hosts))
}

fn packets_between_hosts(mtu: usize) -> Pair {
    let hosts = Hosts::new(mtu);
    let [a, b] = [0, 1].map(|end| {
        hosts
            .on(end, || packet::PacketLink::open(&packet::Options::new(DEVICE)).expect("root may open a packet socket"))
    });
    let stranger = hosts.on(0, || packet::PacketLink::open(&packet::Options::new(DEVICE)).expect("another one"));
    let stranger = std::sync::Mutex::new(stranger);
    Pair {
        a: Box::new(a),
        b: Box::new(b),
        nobody: Address::Ether([2, 0, 0, 0, 0, 99]),
        settle: Box::new(|| ()),
        disturb: Some(Box::new(move || {
            // To all, not to this host.
            let broadcast = Address::Ether([0xff; 6]);
            send(&mut *stranger.lock().expect("alone"), broadcast, &[packet(100, 1), packet(200, 1)]) as u64
        })),
        merges: false,
        _hosts: Some(hosts),
    }
}

fn frames_past_the_stack(mode: xdp::Mode) -> Pair {
    let hosts = Hosts::new(1500);
    let [a, b] = [0, 1].map(|end| {
        let options = xdp::Options { mode, ..xdp::Options::new(DEVICE) };
        hosts.on(end, || xdp::XdpLink::open(&options).expect("root may, and a veth pair can"))
    });
    // On the third host's behalf: a socket that only sends, from the side of `a`.
    let stranger = hosts.on(0, || packet::PacketLink::open(&packet::Options::new(DEVICE)).expect("a socket"));
    let stranger = std::sync::Mutex::new(stranger);
    Pair {
        a: Box::new(a),
        b: Box::new(b),
        nobody: Address::Ether([2, 0, 0, 0, 0, 99]),
        settle: Box::new(|| ()),
        disturb: Some(Box::new(move || {
            let broadcast = Address::Ether([0xff; 6]);
            send(&mut *stranger.lock().expect("alone"), broadcast, &[packet(100, 1), packet(200, 1)]) as u64
        })),
        merges: false,
        _hosts: Some(hosts),
    }
}

fn faulty(link: Box<dyn Link>) -> Box<dyn Link> {
    // Without faults; what they do is tested beside the wrapper.
    Box::new(fault::FaultLink::new(link, 1))
}

fn captured(link: Box<dyn Link>) -> Box<dyn Link> {
    Box::new(pcap::PcapLink::new(link, Box::new(std::io::sink()), pcap::Options::default()).expect("a sink takes all"))
}

fn traced(link: Box<dyn Link>) -> Box<dyn Link> {
    let describe = Box::new(|bytes: &[u8], line: &mut String| line.extend(bytes.first().map(|byte| char::from(*byte))));
    Box::new(trace::TraceLink::new(link, describe, Box::new(|line: &str| assert!(line.contains(" B: ")))))
}

fn wrapped(pair: Pair, wrap: impl Fn(Box<dyn Link>) -> Box<dyn Link>) -> Pair {
    Pair { a: wrap(pair.a), b: wrap(pair.b), ..pair }
}

/// A module of tests for one kind of link: its name, what it needs, how a pair of them is made.
macro_rules! conformance {
    ($name:ident, $against:expr, $make:expr) => {
        conformance!($name, $against, $make;
            packets_arrive_whole_and_in_order, every_size_up_to_the_longest_passes, runs_of_equal_packets_pass,
            a_batch_beyond_all_queues_is_taken_in_part_or_dropped_and_counted, a_packet_too_long_is_refused_and_counted,
            a_receive_takes_about_as_many_as_it_may, the_descriptor_is_readable_while_something_waits, counters_add_up,
            packets_to_nobody_do_no_harm, arrivals_that_are_no_packets_are_counted,
            each_end_knows_the_other_by_its_address);
    };
    ($name:ident, $against:expr, $make:expr; $($case:ident),+) => {
        mod $name {
            use super::*;
            $(#[test]
            fn $case() {
                let against: Option<String> = $against;
                if let Some(reason) = against {
                    skip!("{reason}");
                }
                super::$case(&mut $make);
            })+
        }
    };
}

conformance!(sim_link, None, simulated());
conformance!(memory_link, None, in_memory());
conformance!(udp_v4_loopback, None, udp_on_loopback("127.0.0.1"));
conformance!(udp_v6_loopback, None, udp_on_loopback("::1"));
conformance!(udp_v4, support::reason_against_hosts(), udp_between_hosts(false));
conformance!(udp_v6, support::reason_against_hosts(), udp_between_hosts(true));
conformance!(packet_link, support::reason_against_hosts(), packets_between_hosts(1500));
conformance!(packet_jumbo, support::reason_against_hosts(), packets_between_hosts(9000));
conformance!(xdp_copy, support::reason_against_hosts(), frames_past_the_stack(xdp::Mode::Copy));
conformance!(xdp_generic, support::reason_against_hosts(), frames_past_the_stack(xdp::Mode::CopyGeneric));
conformance!(fault_sim, None, wrapped(simulated(), faulty));
conformance!(fault_udp, None, wrapped(udp_on_loopback("127.0.0.1"), faulty));
conformance!(pcap_memory, None, wrapped(in_memory(), captured));
conformance!(pcap_udp_v6, None, wrapped(udp_on_loopback("::1"), captured));
conformance!(trace_memory, None, wrapped(in_memory(), traced));
conformance!(
    all_around_packet,
    support::reason_against_hosts(),
    wrapped(packets_between_hosts(1500), |link| traced(captured(faulty(link))))
);
conformance!(
    all_around_xdp,
    support::reason_against_hosts(),
    wrapped(frames_past_the_stack(xdp::Mode::Copy), |link| traced(captured(faulty(link))))
);
