//! Settings that are changed while data is under way: nothing is lost, and the new ones hold.

use crate::world::{Flow, MS, Net, S, World, carry, carry_until, open};
use ropeway_proto::config::{GateMode, Order, SetError};
use ropeway_proto::{Config, Mode};

/// A port of 1 Gbit/s with 128 KiB.
fn net() -> Net {
    Net { rate: 1_000_000_000, ..Net::default() }
}

/// Opens a channel from each other host to host 0, each with one message to carry.
fn senders(world: &mut World, message_bytes: usize, count: u64) -> Vec<Flow> {
    (1..world.hosts.len())
        .map(|host| {
            let (client, server) = open(world, host, 0, 7, Mode::Messages);
            Flow::messages((host, client), (0, server), message_bytes, count)
        })
        .collect()
}

fn configure(world: &mut World, host: usize, change: impl FnOnce(&mut Config)) {
    let mut config = world.hosts[host].config().clone();
    change(&mut config);
    world.hosts[host].configure(config).unwrap();
    let now = world.clock(host);
    world.hosts[host].finish_batch(now);
    world.flush(host);
}

#[test]
fn the_gate_changes_its_mode_and_order_in_the_middle_of_an_incast() {
    let mut world = World::new(9, net(), &Config::default(), 1);
    let mut flows = senders(&mut world, 256 << 10, 8);
    let settings = [
        (GateMode::Esp, Order::Fifo),
        (GateMode::Grants, Order::Srpt),
        (GateMode::Grants, Order::Fair),
        (GateMode::Esp, Order::Fair),
        (GateMode::Grants, Order::Fifo),
    ];
    let received = |flows: &[Flow]| flows.iter().map(|flow| flow.received).sum::<u64>();
    for (gate_mode, order) in settings {
        let before = received(&flows);
        configure(&mut world, 0, |config| (config.gate_mode, config.order) = (gate_mode, order));
        let counters = world.hosts[0].counters().gate;
        let moved = carry_until(&mut world, &mut flows, S, |_, flows| received(flows) >= before + (2 << 20));
        assert!(moved, "{gate_mode:?}, {order:?}: {} of 2 MiB in a second", received(&flows) - before);
        let now = world.hosts[0].counters().gate;
        let (grants, held) = (now.grants - counters.grants, now.acks_held - counters.acks_held);
        assert_eq!(
            (grants > 0, held > 0),
            (gate_mode == GateMode::Grants, gate_mode == GateMode::Esp),
            "{gate_mode:?}"
        );
    }
    let rest_ns = carry(&mut world, &mut flows, 5 * S);
    // 16 MiB altogether.
    assert!(rest_ns < 200 * MS, "{rest_ns}");
}

#[test]
fn memory_for_what_peers_were_told_is_not_taken_away_and_memory_for_sending_is() {
    let mut world = World::new(2, net(), &Config::default(), 1);
    let lower = |world: &World, host: usize| {
        let config = world.hosts[host].config();
        Config { receive_memory_bytes: config.receive_memory_bytes - 1, ..config.clone() }
    };
    let lowered = lower(&world, 0);
    world.hosts[0].configure(lowered).unwrap();
    let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
    for host in 0..2 {
        let lowered = lower(&world, host);
        assert_eq!(world.hosts[host].configure(lowered), Err(SetError::Promised));
    }
    let mut flows = [Flow { slow: true, ..Flow::stream((0, client), (1, server), 4 << 20) }];
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    let queued = flows[0].sent;
    configure(&mut world, 0, |config| config.send_memory_bytes = 64 << 10);
    flows[0].slow = false;
    let most = |world: &World| world.hosts[0].buffers_in_use().0 * 1472;
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > queued));
    assert!(most(&world) <= 80 << 10, "{}", most(&world));
    carry(&mut world, &mut flows, 5 * S);
}

#[test]
fn memory_that_is_added_lets_in_who_waited_for_it() {
    let least = Config { receive_memory_bytes: 2 << 20, longest_message_bytes: 1 << 20, ..Config::default() };
    let mut world = World::new(5, net(), &least, 1);
    let mut flows = senders(&mut world, 1 << 20, 1);
    flows.iter_mut().for_each(|flow| flow.slow = true);
    let room = |world: &World| world.hosts[0].buffers_in_use().1 * 1472;
    let more = |bytes: usize| move |world: &World, _: &[Flow]| room(world) > bytes;
    assert!(!carry_until(&mut world, &mut flows, S, more(3 << 20)), "nobody reads, and two do not fit");
    configure(&mut world, 0, |config| config.receive_memory_bytes = 16 << 20);
    assert!(carry_until(&mut world, &mut flows, S, more(3 << 20)), "{}", room(&world));
    flows.iter_mut().for_each(|flow| flow.slow = false);
    carry(&mut world, &mut flows, 5 * S);
}

#[test]
fn who_changed_to_document_2s_scheme_after_a_long_transfer_is_still_understood() {
    let mut world = World::new(2, net(), &Config::default(), 1);
    let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
    // More packets than lie in a window.
    carry(&mut world, &mut [Flow::stream((0, client), (1, server), 30 << 20)], 5 * S);
    configure(&mut world, 1, |config| config.gate_mode = GateMode::Esp);
    let back_ns = carry(&mut world, &mut [Flow::stream((1, server), (0, client), 1000)], 5 * S);
    assert!(back_ns < MS, "{back_ns}");
    assert_eq!(world.hosts[0].counters().dropped_window, 0);
}
