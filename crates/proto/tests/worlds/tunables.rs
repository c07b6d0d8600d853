//! What can be set does what docs/protocol.md says of it (10): each of these limits is kept, and reached.

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{ChannelId, Config, Mode};
use ropeway_wire::{Packet, Type};

const DELAY_NS: u64 = 20 * US;
const RTT: u64 = 2 * DELAY_NS;
/// Bits per second of a port, where there is one.
const LINE: u64 = 1_000_000_000;

type Times = Rc<RefCell<Vec<u64>>>;

/// When a host sends packets of a type for the first time, from now on.
fn times(world: &mut World, host: usize, kind: Type) -> Times {
    let times = Times::default();
    let out = Rc::clone(&times);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from == host && header.kind == kind {
            out.borrow_mut().push(now);
        }
        true
    }));
    times
}

/// The most that were sent within a round trip: so many were under way or not yet known to have arrived.
fn most_under_way(times: &[u64]) -> usize {
    let until = |at: u64| times.partition_point(|&time| time < at + RTT);
    times.iter().enumerate().map(|(place, &at)| until(at) - place).max().unwrap_or(0)
}

#[test]
fn burst_length_is_what_one_sender_has_in_flight() {
    for gate_mode in [GateMode::Grants, GateMode::Esp] {
        for window_packets in [4, 16, 40] {
            // With an acknowledgment for each packet the window opens with each.
            let config =
                Config { gate_mode, window_packets, packets_to_ack: 1, first_flight_packets: 1, ..Config::default() };
            let mut world = World::new(2, Net { delay_ns: DELAY_NS, ..Net::default() }, &config, 1);
            let (client, server) = pair(&mut world, Mode::Stream);
            let sent = times(&mut world, 0, Type::Data);
            stream(&mut world, (0, client), (1, server), 2_000_000, S);
            let most = most_under_way(&sent.borrow());
            assert_eq!(most, usize::from(window_packets), "{gate_mode:?}, {} packets", sent.borrow().len());
        }
    }
}

#[test]
fn without_a_burst_length_the_budget_limits_and_document_2_s_gate_has_its_21() {
    for (gate_mode, expected) in [(GateMode::Grants, 64), (GateMode::Esp, 21)] {
        let config = Config { gate_mode, packets_to_ack: 1, first_flight_packets: 1, ..Config::default() };
        let mut world = World::new(2, Net { delay_ns: DELAY_NS, rate: LINE, ..Net::default() }, &config, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        let sent = times(&mut world, 0, Type::Data);
        stream(&mut world, (0, client), (1, server), 2_000_000, S);
        let most = most_under_way(&sent.borrow());
        println!("{gate_mode:?}: {most}");
        assert_eq!(most, expected, "{gate_mode:?}");
    }
}

#[test]
fn an_acknowledgment_is_sent_at_once_after_packets_to_ack_and_not_before() {
    for packets_to_ack in [1, 3, 8] {
        let config = Config { packets_to_ack, ack_delay_ns: 10 * MS, ..Config::default() };
        let mut world = World::new(2, Net { delay_ns: DELAY_NS, ..Net::default() }, &config, 1);
        let (client, _) = pair(&mut world, Mode::Messages);
        world.hosts[0].set_no_delay(client, true);
        // The first one is answered by the channel's credit, which acknowledges it.
        let now = world.time();
        world.hosts[0].send(now, client, b"a message").unwrap();
        pass(&mut world, MS);
        let acknowledged = times(&mut world, 1, Type::Control);
        let mut expected = Vec::new();
        for packet in 0..24 {
            let now = world.time();
            world.hosts[0].send(now, client, b"a message").unwrap();
            if (packet + 1) % u64::from(packets_to_ack) == 0 {
                expected.push(world.now + DELAY_NS);
            }
            pass(&mut world, 100 * US);
        }
        assert_eq!(*acknowledged.borrow(), expected, "{packets_to_ack}");
    }
}

/// A client of host 1 has heard from it last at the time given, and host 1 from so many others.
fn heard(config: &Config, clients: usize) -> (World, Vec<ChannelId>, u64) {
    let mut world = World::new(clients + 1, Net { delay_ns: DELAY_NS, ..Net::default() }, config, 1);
    let channels: Vec<_> = (1..=clients).map(|from| open(&mut world, from, 0, 7, Mode::Stream)).collect();
    pass(&mut world, 50 * MS);
    // Twice, as the first acknowledgment goes to who is counted alone.
    for _ in 0..2 {
        let mut flows: Vec<_> =
            channels.iter().enumerate().map(|(at, &(from, to))| Flow::stream((at + 1, from), (0, to), 100)).collect();
        carry(&mut world, &mut flows, S);
        pass(&mut world, MS);
    }
    let told = times(&mut world, 0, Type::Control);
    let mut flow = [Flow::stream((1, channels[0].0), (0, channels[0].1), 100)];
    carry(&mut world, &mut flow, S);
    pass(&mut world, MS);
    let last = told.borrow().last().copied().expect("an acknowledgment") + DELAY_NS;
    (world, channels.into_iter().map(|(from, _)| from).collect(), last)
}

#[test]
fn a_first_flight_is_its_share_of_the_budget_within_a_lease_and_one_packet_after_it() {
    let usual = Config::default();
    let large = Config { port_buffer_bytes: 1 << 20, ..usual.clone() };
    let lease_ns = usual.lease_ns;
    for (about, config, clients, after_ns, expected) in [
        ("alone", usual.clone(), 1, lease_ns, 16),
        ("alone, the lease is over", usual.clone(), 1, lease_ns + 1, 1),
        ("a small one", Config { first_flight_packets: 5, ..usual.clone() }, 1, lease_ns, 5),
        ("a large port", large.clone(), 1, lease_ns, 16),
        ("a large port and flight", Config { first_flight_packets: 64, ..large }, 1, lease_ns, 64),
        ("a quarter of the budget, for four", usual.clone(), 4, lease_ns, 4),
        ("for forty", usual, 40, lease_ns, 1),
    ] {
        let (mut world, channels, last) = heard(&config, clients);
        world.run(last + after_ns, |_| false);
        assert_eq!(world.now, last + after_ns, "{about}");
        let sent = times(&mut world, 1, Type::Data);
        let (now, begin) = (world.time(), world.now);
        world.hosts[1].send(now, channels[0], &[7; 150_000]).unwrap();
        pass(&mut world, RTT - 1);
        assert!(sent.borrow().iter().all(|&at| at == begin), "{about}: {:?}", sent.borrow());
        assert_eq!(sent.borrow().len(), expected, "{about}");
    }
}

#[test]
fn round_trip_time_is_what_an_end_assumes_that_has_measured_none() {
    for round_trip_time_ns in [200 * US, 5 * MS] {
        let config = Config { round_trip_time_ns, ..Config::default() };
        let mut world = World::new(2, Net { delay_ns: DELAY_NS, ..Net::default() }, &config, 1);
        world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
        try_connect(&mut world, 0, 1, 7).unwrap();
        let mut server = None;
        wait_for(&mut world, S, "a channel", |world| {
            server = world.hosts[1].accept(7).ok();
            server.is_some()
        });
        // From now on the client hears it, and is not heard.
        let asked = Times::default();
        let out = Rc::clone(&asked);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from == 1 && Packet::parse(bytes).unwrap().header.kind == Type::State {
                out.borrow_mut().push(now);
            }
            from == 1
        }));
        let (now, begin) = (world.time(), world.now);
        world.hosts[1].send(now, server.unwrap(), b"hello").unwrap();
        world.hosts[1].flush(server.unwrap());
        pass(&mut world, 100 * MS);
        // Smoothed + 4 x variation, of which the latter is half of the former.
        let expected = (3 * round_trip_time_ns).max(config.state_min_ns);
        assert_eq!(asked.borrow()[0] - begin, expected, "{round_trip_time_ns}");
    }
}

#[test]
fn port_buffer_most_times_limits_what_the_port_of_a_fast_line_is_taken_for() {
    let mut budgets = Vec::new();
    for port_buffer_most_times in [1, 4, 8, 64] {
        let config = Config { port_buffer_most_times, ..Config::default() };
        let net = Net { delay_ns: US, rate: 10 * LINE, port_buffer: 16 << 20, ..Net::default() };
        let mut world = World::new(2, net, &config, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 60_000_000, S);
        budgets.push(world.hosts[1].gate().whole_budget_bytes());
    }
    println!("{budgets:?}");
    let share = |times: f64| (f64::from(Config::default().port_buffer_bytes) * times * 0.75) as u64;
    assert_eq!(budgets[..3], [share(1.0), share(4.0), share(8.0)]);
    // Of each frame 95.8 % is payload: more than that the line does not carry.
    assert!(budgets[3].abs_diff(share(9.58)) < share(0.01), "{}", budgets[3]);
}

#[test]
fn the_longest_packets_come_whatever_the_receive_buffer_and_the_memory() {
    for packet_bytes in [8972, 65_507] {
        for (receive_buffer_bytes, receive_memory_bytes) in
            [(32 << 10, 256 << 20), (128 << 10, 256 << 20), (1 << 20, 16 << 20)]
        {
            let config = Config { packet_bytes, receive_buffer_bytes, receive_memory_bytes, ..Config::default() };
            let mut world = World::new(2, Net::default(), &config, 1);
            let (client, server) = pair(&mut world, Mode::Stream);
            let (asking, asked) = open(&mut world, 0, 1, 8, Mode::Messages);
            let mut flows = [
                Flow::stream((0, client), (1, server), 1_000_000),
                Flow::messages((0, asking), (1, asked), 60_000, 20),
                Flow::messages((1, asked), (0, asking), 300_000, 4),
            ];
            carry(&mut world, &mut flows, S);
        }
    }
}
