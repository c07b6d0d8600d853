//! The protocol over the links' simulated network: a switch with real queues, whose memory its ports have each or share, and which may mark instead of
//! dropping. In virtual time; what is seen replays from the seed.

mod world;

use ropeway_engine::link::Ecn;
use ropeway_engine::link::sim::{Config as Network, Host, SharedBuffer, Switch};
use ropeway_proto::Config;
use ropeway_proto::config::Order;
use world::{MS, S, US, World, jain};

const SEED: u64 = 1;
const LINE_BITS_PER_S: f64 = 1e9;
/// The usual buffer of a port.
const PORT_BYTES: u64 = 128 << 10;
/// A packet of usual size in its frame, as ports queue it.
const FRAME_BYTES: u64 = 1472 + 18;
/// Of the line, what is payload: seven of eight packets have the short header.
const PAYLOAD_SHARE: f64 = 1454.5 / (1472.0 + 18.0 + 20.0);

/// Each port has its own.
fn own_buffers() -> Switch {
    Switch { port_buffer_bytes: PORT_BYTES, ..Switch::default() }
}

/// A port may take half of all, if no other one has anything: that much.
fn shared_buffers() -> Switch {
    let shared = SharedBuffer { bytes: 2 * PORT_BYTES, threshold_percent: 100 };
    Switch { port_buffer_bytes: 2 * PORT_BYTES, shared: Some(shared), ..Switch::default() }
}

fn network(switch: Switch) -> Network {
    let host = Host { delay_ns: 10 * US, ..Host::default() };
    Network { switches: vec![switch], host, ..Network::default() }
}

/// What the flows carried in a while, as a part of the line, and each one's bytes.
fn carried(world: &mut World, ns: u64) -> (f64, Vec<u64>) {
    let before = world.received();
    world.run(ns, |_| false);
    let shares: Vec<u64> = world.received().iter().zip(&before).map(|(now, before)| now - before).collect();
    let bits = shares.iter().sum::<u64>() as f64 * 8.0;
    (bits * S as f64 / ns as f64 / LINE_BITS_PER_S / PAYLOAD_SHARE, shares)
}

#[test]
fn a_hundred_and_twenty_eight_senders_fill_a_port_of_128_kib_fairly_and_overflow_no_buffer() {
    for (name, switch) in [("own", own_buffers()), ("shared", shared_buffers())] {
        for order in [Order::Fifo, Order::Fair] {
            let config = Config { order, ..Config::default() };
            let mut world = World::fan_in(128, network(switch), &config, SEED);
            world.run(50 * MS, |_| false);
            world.send(1 << 30);
            // The first flight, a packet of each, and what the first to be heard is granted before the others are, at most half of what the port queues; then the time until what
            // they did is over.
            world.run(20 * MS, |_| false);
            let before = world.drops();
            let (goodput, shares) = carried(&mut world, 60 * MS);
            let (drops, port, jain) = (world.drops() - before, world.port(), jain(&shares));
            println!("{name}, {order:?}: {goodput:.4} of the line, Jain {jain:.4}, {before} + {drops} drops, {port:?}");
            let most = 128 - PORT_BYTES / 2 / FRAME_BYTES;
            assert!(before > 0 && before <= most, "{before} of the first flight, at most {most}");
            assert_eq!(drops, 0, "none after the first flight");
            assert!(goodput > 0.97 && goodput <= 1.001, "{goodput}");
            assert!(jain >= 0.95, "{shares:?}");
        }
    }
}

/// What eight senders do to a port that marks beyond a quarter of its buffer: its longest queue once it has settled, with goodput, marks, and the gate's cuts.
fn marked(ecn: Ecn) -> (u64, f64, u64, u64) {
    const MARKS_FROM: u64 = PORT_BYTES / 4;
    let network = network(Switch { ecn_threshold_bytes: Some(MARKS_FROM), ..own_buffers() });
    let network = Network { host: Host { ecn, ..network.host }, ..network };
    let config = Config::default();
    let mut world = World::fan_in(8, network, &config, SEED);
    let whole = world.receiver().gate().whole_budget_bytes();
    world.send(1 << 30);
    let mut longest_queue = 0;
    // A cut each round trip: it has settled long before.
    world.run(20 * MS, |_| false);
    let before = world.received();
    world.run(100 * MS, |world| {
        longest_queue = longest_queue.max(world.port().queued_bytes);
        false
    });
    let bytes: u64 = world.received().iter().zip(&before).map(|(now, before)| now - before).sum();
    let goodput = bytes as f64 * 8.0 / (0.1 * LINE_BITS_PER_S) / PAYLOAD_SHARE;
    let (budget, cuts) = (world.receiver().gate().budget_bytes(), world.receiver().counters().gate.cuts);
    println!(
        "{ecn:?}: {goodput:.4} of the line, queue {longest_queue}, budget {budget} of {whole}, {cuts} cuts, {:?}",
        world.port()
    );
    assert_eq!((world.drops(), world.sum(|counters| counters.lost)), (0, 0), "marks come instead of losses");
    assert_eq!(world.sum(|counters| counters.resent), 0);
    (longest_queue, goodput, world.port().marked_packets, cuts)
}

#[test]
fn marks_of_a_switch_cut_the_budget_and_its_queue_and_nothing_is_lost() {
    let (queue, goodput, marks, cuts) = marked(Ecn::Capable0);
    assert!(marks > 0 && cuts > 0);
    assert!(goodput > 0.97, "{goodput}");
    // Whose packets cannot be marked keeps the whole budget, and most of it waits at the port.
    let (unmarked_queue, _, marks, cuts) = marked(Ecn::NotCapable);
    assert_eq!((marks, cuts), (0, 0));
    assert!(queue * 3 < unmarked_queue * 2, "{queue} of {unmarked_queue}");
}

/// Requests, and packets sent again, of a host whose queue is where bytes for several others wait: its card is as fast as a port. The others may send as much to it on the same associations.
fn asked_again(urgent_first: bool, both_ways: bool) -> [u64; 2] {
    let network = network(own_buffers());
    let network = Network { host: Host { urgent_first, ..network.host }, ..network };
    let mut world = World::fan_out(4, network, &Config::default(), SEED);
    if both_ways {
        world.answer();
    }
    world.send(1 << 30);
    let (goodput, _) = carried(&mut world, 100 * MS);
    let queued = world.network.card(0).expect("there").queued_bytes;
    let again = [world.sum(|counters| counters.requests_sent), world.sum(|counters| counters.resent)];
    println!("{goodput:.4} of the line, {queued} bytes queued, requests and packets again: {again:?}");
    assert!(goodput > 0.97, "{goodput}");
    assert!(queued > PORT_BYTES / 2, "{queued}");
    again
}

#[test]
fn what_is_urgent_in_the_host_s_queue_overtakes_nothing_that_is_then_asked_for_again() {
    // Before a receiver knows of this queue it asks for a few, whatever the order.
    assert_eq!(asked_again(true, false), asked_again(false, false));
    // Neither do grants and acknowledgments of what comes the other way: they name numbers behind what waits here.
    assert_eq!(asked_again(true, true), asked_again(false, true));
}
