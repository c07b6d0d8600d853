//! What is refused for want of receive memory stops nothing else between the two (docs/protocol.md 5).

use crate::crowded::{MEMORY_BYTES, unread};
use crate::world::*;
use ropeway_proto::{Config, Mode};

/// With memory for more than is under way at any moment.
fn world_with_some(hosts: usize) -> World {
    let config = Config { receive_memory_bytes: 16 * MEMORY_BYTES, ..Config::default() };
    World::new(hosts, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1)
}

/// A stream that is read goes on for longer than its sender keeps what is not acknowledged.
const LONG: u64 = 30_000_000;

#[test]
fn a_stream_that_is_read_goes_on_beside_others_of_its_association_that_nobody_reads() {
    for others in [2, 6] {
        let mut world = world_with_some(others + 2);
        let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
        let mut flows = unread(&mut world, 1..others + 1, 0, 60);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        flows.push(Flow::stream((1, client), (0, server), LONG));
        let arrives = carry_until(&mut world, &mut flows, 20 * S, |_, flows| flows.last().unwrap().is_done());
        assert!(arrives, "{others}: {:?} {:?}", flows.last(), world.hosts[0].counters());
    }
}

#[test]
fn a_stream_that_is_read_goes_on_beside_a_long_message_that_waits_for_memory() {
    let mut world = world_with_some(3);
    let long = open(&mut world, 1, 0, 7, Mode::Messages);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let mut flows = unread(&mut world, 2..3, 0, 60);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    flows.push(Flow::messages((1, long.0), (0, long.1), 2_000_000, 1));
    flows.push(Flow::stream((1, client), (0, server), LONG));
    let arrives = carry_until(&mut world, &mut flows, 20 * S, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?} {:?}", flows.last(), world.hosts[0].counters());
    // And the message, when the others are read.
    flows.iter_mut().for_each(|flow| flow.slow = false);
    let arrives = carry_until(&mut world, &mut flows, 60 * S, |_, flows| flows[60].is_done());
    assert!(arrives, "{:?} {:?}", flows[60], world.hosts[0].counters());
}

#[test]
fn a_stream_that_was_told_to_wait_goes_on_as_soon_as_it_is_read() {
    let mut world = world_with_some(3);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let now = world.time();
    world.hosts[1].send(now, client, &[7; 3000]).unwrap();
    world.hosts[1].flush(client);
    // Those beside it take turns in what their host asks, ten times a second.
    let mut flows = unread(&mut world, 1..2, 0, 200);
    carry_until(&mut world, &mut flows, 2 * S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    assert_eq!(world.hosts[0].recv(server, &mut [0; 4000]), Ok(Some(3000)));
    flows.push(Flow::stream((1, client), (0, server), 1000));
    let arrives = carry_until(&mut world, &mut flows, 5 * MS, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?}", flows.last());
}

#[test]
fn a_look_at_all_ends_where_no_more_can_come_before_something_is_read() {
    let mut world = world_with_some(3);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let mut flows = unread(&mut world, 1..2, 0, 60);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    for _ in 0..4 {
        let now = world.time();
        world.hosts[1].send(now, client, &[7; 2000]).unwrap();
        world.hosts[1].flush(client);
        pass(&mut world, 50 * MS);
    }
    let mut out = [0; 8000];
    let there = world.hosts[0].peek(server, &mut out).unwrap().unwrap();
    assert!(there < out.len(), "no memory for more");
    assert_eq!(world.hosts[0].peek_all(server, &mut out), Ok(Some(there)));
}
