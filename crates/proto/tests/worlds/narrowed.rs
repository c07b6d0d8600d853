//! A path that bears no long packets any more: short ones still pass, so nobody is silent (docs/protocol.md 8).

use std::cell::Cell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, ErrorCode, Mode};

fn failure(world: &mut World, host: usize, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

/// Loses what is longer from now on, as long as the switch says.
fn narrow(world: &mut World, most_bytes: usize) -> Rc<Cell<bool>> {
    let is_narrow = Rc::new(Cell::new(true));
    let switch = Rc::clone(&is_narrow);
    world.filter = Some(Box::new(move |_, _, _, bytes| !switch.get() || bytes.len() <= most_bytes));
    is_narrow
}

with_and_without_a_key!(both_ends_of_a_path_that_has_become_too_narrow_give_up);
fn both_ends_of_a_path_that_has_become_too_narrow_give_up() {
    for (mode, to_server, to_client) in [
        (Mode::Stream, true, false),
        (Mode::Stream, false, true),
        (Mode::Stream, true, true),
        (Mode::Messages, true, false),
    ] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, mode);
        let flow = |from, to| match mode {
            Mode::Stream => Flow::stream(from, to, 1 << 40),
            Mode::Messages => Flow::messages(from, to, 100_000, 1 << 20),
        };
        let mut flows = Vec::new();
        flows.extend(to_server.then(|| flow((0, client), (1, server))));
        flows.extend(to_client.then(|| flow((1, server), (0, client))));
        carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
        narrow(&mut world, 600);
        let begin = world.now;
        wait_for(&mut world, 60 * S, "given up", |world| {
            failure(world, 0, client).is_some() && failure(world, 1, server).is_some()
        });
        let taken = world.now - begin;
        println!("given up after {} ms", taken / MS);
        let failures = (failure(&mut world, 0, client), failure(&mut world, 1, server));
        assert_eq!(failures, (Some(ErrorCode::Timeout), Some(ErrorCode::Timeout)));
        assert!((20 * S..21 * S).contains(&taken), "{taken}");
    }
}

with_and_without_a_key!(a_path_that_has_become_too_narrow_is_given_up_where_the_link_is_busy_as_well);
fn a_path_that_has_become_too_narrow_is_given_up_where_the_link_is_busy_as_well() {
    let mut world = World::new(3, Net::default(), &Config::default(), 1);
    world.counters.off = true;
    let (client, server) = pair(&mut world, Mode::Stream);
    let busy = open(&mut world, 0, 2, 7, Mode::Stream);
    world.filter = Some(Box::new(|_, _, to, bytes| to == 2 || bytes.len() <= 600));
    world.sockets.insert(0, Socket::with_room(32, MS));
    let mut flows =
        [((0, client), (1, server)), ((0, busy.0), (2, busy.1))].map(|(from, to)| Flow::stream(from, to, 1 << 40));
    flows[0].slow = true;
    let is_given_up = carry_until(&mut world, &mut flows, 21 * S, |world, _| world.hosts[1].counters().timeouts > 0);
    assert!(is_given_up && flows[1].received > 50_000_000, "{}", flows[1].received);
    pass(&mut world, 100 * MS);
    assert_eq!(failure(&mut world, 0, client), Some(ErrorCode::Timeout));
}

with_and_without_a_key!(a_path_that_bears_them_again_in_time_goes_on);
fn a_path_that_bears_them_again_in_time_goes_on() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    world.net.rate = 1_000_000_000;
    let mut flows = [Flow::stream((0, client), (1, server), 1 << 40)];
    // The count begins anew with each that comes.
    for _ in 0..5 {
        let is_narrow = narrow(&mut world, 600);
        carry_until(&mut world, &mut flows, 19 * S, |_, _| false);
        is_narrow.set(false);
        let before = flows[0].received;
        carry_until(&mut world, &mut flows, 300 * MS, |_, _| false);
        // Asked for ten times a second by then.
        let bytes = flows[0].received - before;
        assert!(bytes > 20_000_000, "{bytes}");
    }
    assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None));
}

with_and_without_a_key!(readers_who_leave_no_memory_are_not_given_up);
fn readers_who_leave_no_memory_are_not_given_up() {
    let config = Config { receive_memory_bytes: 1 << 20, give_up_ns: S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let mut flows: Vec<Flow> = (0..64)
        .map(|_| {
            let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
            Flow { slow: true, ..Flow::stream((0, client), (1, server), 100_000) }
        })
        .collect();
    carry_until(&mut world, &mut flows, 120 * S, |_, _| false);
    let counters = world.hosts[1].counters();
    println!("{} dropped for want of memory", counters.dropped_memory);
    assert!(counters.dropped_memory > 50, "{}", counters.dropped_memory);
    flows.iter_mut().for_each(|flow| flow.slow = false);
    carry(&mut world, &mut flows, 20 * S);
}

with_and_without_a_key!(a_network_that_loses_much_is_not_given_up);
fn a_network_that_loses_much_is_not_given_up() {
    for (seed, loss_ppm) in [(1, 200_000), (2, 200_000), (3, 500_000), (4, 700_000)] {
        // Of who waits for a grant one question in eleven is answered at the highest of these, and it asks ten times a second.
        let mut world = World::new(2, Net::default(), &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        world.net.loss_ppm = loss_ppm;
        let (end, mut bytes) = (world.now + 60 * S, 0);
        while world.now < end {
            bytes += 20_000;
            stream(&mut world, (0, client), (1, server), 20_000, 60 * S);
            pass(&mut world, 100 * MS);
        }
        println!("{bytes} bytes at a loss of {loss_ppm} ppm");
    }
}

with_and_without_a_key!(a_sender_that_was_stopped_while_something_was_missing_is_not_given_up);
fn a_sender_that_was_stopped_while_something_was_missing_is_not_given_up() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows = [Flow::stream((0, client), (1, server), 10_000_000)];
    carry_until(&mut world, &mut flows, 10 * MS, |_, _| false);
    let is_narrow = narrow(&mut world, 600);
    carry_until(&mut world, &mut flows, 5 * S, |_, _| false);
    world.stopped.insert(0);
    carry_until(&mut world, &mut flows, 60 * S, |_, _| false);
    world.stopped.clear();
    is_narrow.set(false);
    carry(&mut world, &mut flows, 10 * S);
}
