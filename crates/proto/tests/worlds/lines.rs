//! Lines that are not those of a rack with 1 Gbit/s: long ones and fast ones, filled without being told what they are.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{Config, Mode};

/// What may fly over a line of 1 Gbit/s that is not long: 3/4 of the usual port.
const SLOW_BUDGET: u64 = 96 << 10;

/// Room for what a long or fast line holds.
fn config() -> Config {
    Config { send_buffer_bytes: 8 << 20, receive_buffer_bytes: 8 << 20, ..Config::default() }
}

/// Goodput of `senders` after `warm_up`, of the payload rate, drops at the receiver's port, and the budget in the end.
fn goodput(net: Net, senders: usize, warm_up: u64, time: u64) -> (f64, u64, u64) {
    let line = net.rate as f64 * payload_bytes() / 1518.0;
    let mut world = World::new(senders + 1, net, &config(), 1);
    let mut flows: Vec<_> = (1..=senders)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), 1 << 40)
        })
        .collect();
    carry_until(&mut world, &mut flows, warm_up, |_, _| false);
    let received = |flows: &[Flow]| flows.iter().map(|flow| flow.received).sum::<u64>();
    let (before, begin) = (received(&flows), world.now);
    carry_until(&mut world, &mut flows, time, |_, _| false);
    let rate = (received(&flows) - before) as f64 * 8.0 * 1e9 / (world.now - begin) as f64;
    let (drops, budget) = (world.drops(0), world.hosts[0].gate().budget_bytes());
    println!("{:.4} of the payload rate, {drops} drops, budget {budget}", rate / line);
    (rate / line, drops, budget)
}

#[test]
fn a_long_line_is_filled_although_its_port_has_little_buffer() {
    let net = || Net { rate: 1_000_000_000, delay_ns: 2 * MS, ..Net::default() };
    for senders in [1, 8] {
        let (share, drops, _) = goodput(net(), senders, 4 * S, S);
        assert!(share > 0.95, "{senders} senders: {share}");
        assert_eq!(drops, 0, "{senders} senders");
    }
}

#[test]
fn a_fast_line_is_filled_and_its_larger_port_not_overrun() {
    let net = || Net { rate: 10_000_000_000, port_buffer: 1 << 20, ..Net::default() };
    for senders in [1, 16] {
        let (share, drops, budget) = goodput(net(), senders, 200 * MS, 50 * MS);
        assert!(share > 0.95, "{senders} senders: {share}");
        assert_eq!(drops, 0, "{senders} senders");
        assert!(budget > 4 * SLOW_BUDGET, "{senders} senders: {budget}");
    }
}

#[test]
fn a_fast_line_with_the_port_of_a_slow_one_is_found_out() {
    let net = Net { rate: 10_000_000_000, ..Net::default() };
    let (share, drops, budget) = goodput(net, 8, 200 * MS, 50 * MS);
    assert!(share > 0.9, "{share}");
    assert!(drops > 0 && budget < 2 * SLOW_BUDGET, "{drops} drops, {budget}");
}

#[test]
fn stray_losses_and_late_packets_make_no_line_slow() {
    let net = Net { rate: 10_000_000_000, port_buffer: 1 << 20, loss_ppm: 50, reordering_ppm: 500, ..Net::default() };
    let (share, _, budget) = goodput(net, 4, 200 * MS, 50 * MS);
    assert!(share > 0.9, "{share}");
    assert!(budget > 4 * SLOW_BUDGET, "{budget}");
}

#[test]
fn a_long_line_is_known_after_a_pause() {
    let net = Net { rate: 1_000_000_000, delay_ns: 2 * MS, ..Net::default() };
    let mut world = World::new(2, net, &config(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let first = stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    pass(&mut world, S);
    let second = stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    println!("{first}, and after a pause {second} ns, {} drops", world.drops(1));
    assert!(second < first, "{first} {second}");
    assert_eq!(world.drops(1), 0);
}

/// Asks all `peers` for a message each at once, `rounds` times, and says how many packets found the port full in the first round and later, and how much of the line's payload rate they made use of.
fn asked(rate: u64, peers: usize, message_bytes: usize, rounds: usize) -> (u64, u64, f64) {
    let mut world = World::new(peers + 1, Net { rate, ..Net::default() }, &config(), 5);
    let channels: Vec<_> = (1..=peers).map(|peer| open(&mut world, 0, peer, 7, Mode::Messages)).collect();
    let message = vec![7; message_bytes];
    let mut out = message.clone();
    let (mut first, mut begin) = (0, 0);
    for round in 0..rounds {
        let now = world.clock(0);
        for (own, _) in &channels {
            world.hosts[0].send(now, *own, &[1]).unwrap();
        }
        let mut arrived = 0;
        let end = world.now + 60 * S;
        let done = world.run(end, |world| {
            for (peer, (own, theirs)) in channels.iter().enumerate() {
                while let Ok(Some(_)) = world.hosts[peer + 1].recv(*theirs, &mut out) {
                    let now = world.clock(peer + 1);
                    assert_eq!(world.hosts[peer + 1].send(now, *theirs, &message), Ok(message_bytes));
                }
                while let Ok(Some(count)) = world.hosts[0].recv(*own, &mut out) {
                    assert_eq!(count, message_bytes);
                    arrived += 1;
                }
            }
            arrived == peers
        });
        assert!(done, "{arrived} of {peers} in round {round}");
        if round == 0 {
            (first, begin) = (world.drops(0), world.now);
        }
    }
    let bits = (message_bytes * peers * (rounds - 1)) as f64 * 8.0;
    let share = bits * 1e9 / (world.now - begin) as f64 / (rate as f64 * payload_bytes() / 1518.0);
    let drops = world.drops(0) - first;
    println!("{peers} x {message_bytes} at {rate}: {share:.4} of the payload rate, {first} + {drops} drops");
    (first, drops, share)
}

#[test]
fn peers_that_are_asked_at_once_do_not_overrun_the_port() {
    for rate in [1_000_000_000, 100_000_000] {
        for (peers, message_bytes) in [(8, 64 << 10), (32, 64 << 10), (32, 256 << 10)] {
            let (first, drops, share) = asked(rate, peers, message_bytes, 4);
            // All may begin before any has been heard: each is told how when it is asked.
            assert!(first <= peers as u64, "{first} drops at first: {peers} x {message_bytes} at {rate}");
            assert_eq!(drops, 0, "{peers} x {message_bytes} at {rate}");
            assert!(share > 0.95, "{peers} x {message_bytes} at {rate}: {share}");
        }
    }
}

/// Lines on which a packet takes milliseconds, and what may fly a second and more: longer than any round trip that 16 bits of time can tell.
#[test]
fn a_slow_line_with_a_deep_port_is_filled_and_its_port_not_overrun() {
    for (rate, senders, least, most_drops) in [
        (200_000, 1, 0.95, 0),
        (200_000, 2, 0.9, 100),
        (1_000_000, 2, 0.98, 20),
        (1_000_000, 8, 0.9, 200),
        (4_000_000, 8, 0.98, 20),
        (10_000_000, 8, 0.98, 20),
    ] {
        let (share, drops, _) = goodput(Net { rate, ..Net::default() }, senders, 60 * S, 60 * S);
        assert!(share > least && drops <= most_drops, "{senders} senders at {rate}: {share}, {drops} drops");
    }
}

/// A packet that is lost twice, of a sender that has sent nothing for long: how long until it is there. Beside it arrives nothing, or a packet of another sender every 12 ms, as over a line of 1 Mbit/s.
fn lost_twice(beside_a_slow_one: bool) -> u64 {
    let mut world = World::new(3, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let mut flows = [1, 2].map(|from| {
        let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
        Flow::stream((from, client), (0, server), if from == 1 { 100 } else { 1 << 30 })
    });
    let (queue, lost) = (Rc::new(RefCell::new(VecDeque::new())), Rc::new(Cell::new(0)));
    let (out, lose) = (Rc::clone(&queue), Rc::clone(&lost));
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_lost = from == 1 && [0x17, 0x10].contains(&bytes[0]) && lose.get() < 2;
        lose.set(lose.get() + u32::from(is_lost));
        if from == 2 {
            out.borrow_mut().push_back(bytes.to_vec());
        }
        from != 2 && !is_lost
    }));
    let come = |world: &mut World| {
        let bytes = queue.borrow_mut().pop_front().filter(|_| beside_a_slow_one);
        bytes.into_iter().for_each(|bytes| world.inject(2, 0, &bytes));
    };
    for _ in 0..100 {
        come(&mut world);
        carry_until(&mut world, &mut flows[1..], 12 * MS, |_, _| false);
    }
    come(&mut world);
    carry_until(&mut world, &mut flows[1..], 6 * MS, |_, _| false);
    let begin = world.now;
    while !flows[0].is_done() {
        assert!(world.now < begin + 20 * S, "never");
        carry_until(&mut world, &mut flows, 6 * MS, |_, _| false);
        come(&mut world);
        carry_until(&mut world, &mut flows, 6 * MS, |_, _| false);
    }
    assert_eq!(lost.get(), 2);
    flows[0].done_at[0] - begin
}

#[test]
fn a_packet_now_and_then_is_not_waited_for_as_one_of_a_slow_line_that_is_another_sender_s() {
    let (alone_ns, beside_ns) = (lost_twice(false), lost_twice(true));
    println!("{} us alone, {} us beside a slow one", alone_ns / US, beside_ns / US);
    assert!(beside_ns <= alone_ns && alone_ns < 10 * MS, "{beside_ns} {alone_ns}");
}

/// Streams to host 0 from so many senders whose own lines have `slow_rate`, and from so many others.
fn with_slow_lines(net: Net, slow: usize, slow_rate: u64, others: usize) -> (World, Vec<Flow>) {
    let mut world = World::new(1 + slow + others, net, &Config::default(), 1);
    let flows = (1..=slow + others)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), 1 << 34)
        })
        .collect();
    (1..=slow).for_each(|from| _ = world.uplinks.insert(from, Uplink::new(slow_rate)));
    (world, flows)
}

/// So many senders whose own lines have `slow_rate`, beside one whose line is as fast as the port: what that one gets of what they leave, and what they get of their lines.
fn beside_slow_senders(slow: usize, slow_rate: u64) -> (f64, f64) {
    let net = Net { rate: 1_000_000_000, ..Net::default() };
    let (mut world, mut flows) = with_slow_lines(net, slow, slow_rate, 1);
    // Until it is known who is slow: each of 128 has a turn by then.
    carry_until(&mut world, &mut flows, 2 * S, |_, _| false);
    let before: Vec<_> = flows.iter().map(|flow| flow.received).collect();
    let drops = world.drops(0);
    carry_until(&mut world, &mut flows, 500 * MS, |_, _| false);
    let gained: Vec<_> = flows.iter().zip(before).map(|(flow, before)| (flow.received - before) as f64).collect();
    let of_line = payload_bytes() / 1518.0 / 8.0 / 2.0;
    let others: f64 = gained[..slow].iter().sum();
    let fast = gained[slow] / (1e9 * of_line - others);
    let own = others / (slow_rate * slow as u64) as f64 / of_line;
    let drops = world.drops(0) - drops;
    println!(
        "{slow} with {} kbit/s: {fast:.3} for the fast one, {own:.3} of their own, {drops} drops",
        slow_rate / 1000
    );
    assert_eq!(drops, 0);
    let least = gained[..slow].iter().copied().fold(f64::MAX, f64::min);
    assert!(least > others / slow as f64 / 4.0, "one of them has {least} bytes, all {others}");
    (fast, own)
}

#[test]
fn senders_with_slow_lines_take_nothing_from_a_fast_one_and_have_what_they_can_use() {
    for (slow, rate, fast_least, own_least) in [
        (1, 10_000_000, 0.99, 0.97),
        (16, 10_000_000, 0.99, 0.97),
        (16, 25_000_000, 0.99, 0.95),
        (16, 40_000_000, 0.6, 0.8),
        (32, 1_000_000, 0.99, 0.9),
        // No more than half of the budget is theirs.
        (48, 10_000_000, 0.99, 0.6),
        (128, 1_000_000, 0.99, 0.3),
        // As fast as one of those who share the port.
        (8, 100_000_000, 0.99, 0.75),
    ] {
        let (fast, own) = beside_slow_senders(slow, rate);
        assert!(fast > fast_least && own > own_least, "{slow} with {rate} bit/s: {fast:.3}, {own:.3}");
    }
}

#[test]
fn senders_with_slow_lines_that_are_alone_have_what_they_can_use() {
    for (slow, rate) in [(16, 10_000_000), (32, 1_000_000)] {
        let net = Net { rate: 1_000_000_000, ..Net::default() };
        let (mut world, mut flows) = with_slow_lines(net, slow, rate, 0);
        carry_until(&mut world, &mut flows, 500 * MS, |_, _| false);
        let before: u64 = flows.iter().map(|flow| flow.received).sum();
        carry_until(&mut world, &mut flows, S, |_, _| false);
        let gained = flows.iter().map(|flow| flow.received).sum::<u64>() - before;
        let own = gained as f64 / (rate * slow as u64) as f64 / (payload_bytes() / 1518.0 / 8.0);
        println!("{slow} with {} kbit/s: {own:.3} of their own", rate / 1000);
        assert!(own > 0.9, "{slow} with {rate} bit/s: {own:.3}");
    }
}
