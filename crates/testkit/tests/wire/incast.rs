//! Many senders into one port with 128 KiB: nothing is dropped there but what the first flights, which nobody granted, may be too many.

use crate::{Carrier, Mode, PORT, Waiting, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::incast::TcpIncast;
use ropeway_testkit::need_box;

const PORT_BUFFER_BYTES: u64 = 128 << 10;
/// Of all senders together: 0.4 s at 1 Gbit/s.
const ALL_BYTES: u64 = 48 << 20;
/// A full packet with its headers up to Ethernet's, as the port counts it.
const FRAME_BYTES: u64 = 1514;

/// docs/protocol.md 6 and 10: three quarters of the port are the budget, and a quarter of that is for first flights, shared among the senders that were
/// heard or spoken to; each is told between 1 and 16 packets.
const BUDGET_BYTES: u64 = PORT_BUFFER_BYTES * 3 / 4;
const FIRST_FLIGHT_MOST: u64 = 16;

/// What senders that begin at the same moment may lose at most: the k-th to knock was told the k-th part of what first flights may take, and all of them
/// use it while the whole budget is granted. What does not fit into the port is dropped.
fn first_flight_excess(senders: u64) -> u64 {
    let told = |before: u64| (BUDGET_BYTES / 4 / (before * FRAME_BYTES)).clamp(1, FIRST_FLIGHT_MOST);
    let flights: u64 = (1..=senders).map(told).sum();
    (flights * FRAME_BYTES + BUDGET_BYTES).saturating_sub(PORT_BUFFER_BYTES).div_ceil(FRAME_BYTES)
}

fn cluster(senders: usize) -> TestBox {
    let hosts = (senders + 1).to_string();
    TestBox::up(&["--hosts", &hosts, "--rate", "1gbit", "--port-buffer", "128KiB"])
}

fn incast(carrier: Carrier, senders: usize) {
    let _one = shaped();
    let cluster = cluster(senders);
    let _receiver = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
    let to = carrier.to(&cluster.port("h1"), PORT);
    let each = ALL_BYTES / senders as u64;
    let start = |variables: &[(&str, &str)]| -> Vec<Waiting> {
        let one = |host| Waiting::sender(&cluster, &format!("h{host}"), &to, each, Mode::Stream, variables);
        (2..senders + 2).map(one).collect()
    };
    // They share the port: all of them together have what the slowest has, as often as there are senders.
    let finish = |all: &[Waiting]| -> f64 {
        let rate = |one: &Waiting| one.result()["mbit_per_s"].as_f64().expect("a rate");
        all.iter().map(rate).fold(f64::INFINITY, f64::min) * senders as f64
    };

    // They all start at once and send as soon as they are connected.
    finish(&start(&[]));
    let cold = cluster.port("h1");
    // They are all known, and the credit of their first flights has aged to one packet when they begin together.
    let mut known = start(&[("PEER_HOLD", "1")]);
    known.iter().for_each(Waiting::is_connected);
    let connected = cluster.port("h1");
    known.iter_mut().for_each(Waiting::go);
    let rate = finish(&known);
    let warm = cluster.port("h1");
    let (first, connecting, later) = (cold.drops, connected.drops - cold.drops, warm.drops - connected.drops);
    let missed: u64 = cluster.ports().iter().map(|port| port.missed_packets).sum();
    println!(
        "{carrier:?}, {senders} senders: {rate:.0} Mbit/s; drops {first} of {} with first flights, {connecting} of SYNs, {later} after, {missed} missed",
        first_flight_excess(senders as u64)
    );
    assert!(first <= first_flight_excess(senders as u64), "{first} drops: more than first flights can explain");
    assert_eq!((connecting, later), (0, 0), "the gate let more fly than the port holds: {warm:?}");
    assert!(warm.sent_bytes - connected.sent_bytes > ALL_BYTES, "it was this port that everything passed");
}

/// The same with kernel TCP: it needs the drops to know when to slow down.
fn tcp_overruns(senders: usize) {
    // On a busy machine eight senders may need many: they hardly ever send at the same time.
    const ROUNDS: usize = 24;
    let _one = shaped();
    let cluster = cluster(senders);
    for _ in 0..ROUNDS {
        let said = TcpIncast::start(&cluster, senders, 1.0, "cubic").end();
        let drops = cluster.port("h1").drops;
        println!("tcp, {senders} senders: {said}; {drops} drops");
        if drops > first_flight_excess(senders as u64) {
            return;
        }
    }
    panic!("TCP does not overrun the port: the switch is not what it should be");
}

#[test]
fn two_senders_over_udp_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Udp4, 2);
}

#[test]
fn eight_senders_over_udp_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Udp4, 8);
}

#[test]
fn thirty_two_senders_over_udp_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Udp4, 32);
}

#[test]
fn two_senders_over_packet_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Packet, 2);
}

#[test]
fn eight_senders_over_packet_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Packet, 8);
}

#[test]
fn thirty_two_senders_over_packet_do_not_overrun_a_port() {
    need_box!();
    incast(Carrier::Packet, 32);
}

#[test]
fn tcp_senders_do_overrun_it() {
    need_box!();
    [2, 8, 32].into_iter().for_each(tcp_overruns);
}
