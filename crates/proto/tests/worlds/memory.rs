//! Too little memory: what cannot be kept has not arrived, and is asked for again (docs/protocol.md 5).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{ChannelId, Config, ErrorCode, Mode, Part, RecvError};
use ropeway_wire::{Packet, Type};

const MEMORY_BYTES: u64 = 1 << 20;

/// Many streams between two hosts, of which the receiving one has little memory.
fn streams(net: Net, config: &Config, count: usize, bytes: u64) -> (World, Vec<Flow>) {
    let mut world = World::new(2, net, config, 1);
    let mut flow = |_| {
        let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
        Flow::stream((0, client), (1, server), bytes)
    };
    let flows = (0..count).map(&mut flow).collect();
    (world, flows)
}

#[test]
fn what_was_dropped_for_want_of_memory_arrives_later() {
    for (gate_mode, window_packets) in [(GateMode::Esp, 1000), (GateMode::Grants, 0)] {
        let config = Config {
            receive_memory_bytes: MEMORY_BYTES,
            port_buffer_bytes: 8 << 20,
            gate_mode,
            window_packets,
            ..Config::default()
        };
        let net = Net { delay_ns: MS, loss_ppm: 20_000, ..Net::default() };
        let (mut world, mut flows) = streams(net, &config, 4, 3_000_000);
        carry(&mut world, &mut flows, 10 * S);
        let counters = world.hosts[1].counters();
        println!("{gate_mode:?}: {} of {} packets", counters.dropped_memory, counters.packets_received);
        assert!(counters.dropped_memory > 100, "{gate_mode:?}: {}", counters.dropped_memory);
        world.net.loss_ppm = 0;
        close_all_channels(&mut world, &flows.iter().flat_map(|flow| [flow.from, flow.to]).collect::<Vec<_>>());
    }
}

#[test]
fn what_waits_for_lost_packets_takes_a_quarter_of_what_is_free_and_they_find_room() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, port_buffer_bytes: 8 << 20, ..Config::default() };
    let (mut world, mut flows) = streams(Net::default(), &config, 16, 100_000);
    // The first packet of each, however often it is sent.
    let (mut channels, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    let is_lossy = Rc::new(Cell::new(true));
    let loses = Rc::clone(&is_lossy);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from == 0 && header.kind == Type::Data && channels.insert(header.channel) {
            numbers.insert(header.number);
        }
        !(loses.get() && from == 0 && header.kind == Type::Data && numbers.contains(&header.number))
    }));
    let mut most = 0;
    carry_until(&mut world, &mut flows, 50 * MS, |world, _| {
        most = most.max(world.hosts[1].buffers_in_use().1 as u64);
        false
    });
    let counters = world.hosts[1].counters();
    // A quarter of the rest is a fifth of all. Behind a lost packet full ones wait, but for the last.
    let share = MEMORY_BYTES / 5 / 1444;
    println!("{most} packets waited, at most {share}; {} were dropped", counters.dropped_memory);
    assert!((share * 3 / 4..=share).contains(&most), "{most} of {share}");
    assert!(counters.dropped_memory > 0 && flows.iter().all(|flow| flow.received == 0));
    is_lossy.set(false);
    carry(&mut world, &mut flows, S);
}

#[test]
fn a_long_message_in_packets_much_shorter_than_this_ends_own_finds_memory() {
    const MESSAGE_BYTES: usize = 2 << 20;
    let short = Config { packet_bytes: 1472, ..Config::default() };
    let long = Config { packet_bytes: 8972, receive_memory_bytes: 8 * MEMORY_BYTES, ..Config::default() };
    for reads_as_it_comes in [false, true] {
        let hosts = vec![endpoint(0, &short, 1), endpoint(1, &long, 1)];
        let mut world = World::of(hosts, Net { rate: 1_000_000_000, ..Net::default() }, 1);
        let (client, server) = pair(&mut world, Mode::Messages);
        let message: Vec<u8> = (0..MESSAGE_BYTES as u64).map(pattern).collect();
        let now = world.time();
        assert_eq!(world.hosts[0].send(now, client, &message), Ok(MESSAGE_BYTES));
        let (mut out, mut part) = (vec![0; MESSAGE_BYTES], Part { is_of_whole: !reads_as_it_comes, ..Part::default() });
        wait_for(&mut world, S, "the message", |world| {
            loop {
                let received = world.hosts[1].recv_partly(server, &mut out, &mut part);
                if received != Err(RecvError::WouldBlock) || !part.has_more {
                    return received == Ok(Some(MESSAGE_BYTES));
                }
            }
        });
        assert!(out == message);
        assert_eq!(world.hosts[1].counters().dropped_memory, 0, "as it comes: {reads_as_it_comes}");
    }
}

/// A message that takes nearly all memory for long ones.
const LONG_BYTES: usize = 2_000_000;

/// Hosts 0 and 1 each have a message for host 2, which has memory for one of them: that of host 0 has begun, and is kept from coming by `keeps`. Gives the ends of its channel, too.
fn one_after_the_other(
    give_up_ns: u64,
    keeps: impl FnOnce(&mut World, &mut Flow),
) -> (World, Vec<Flow>, [(usize, ChannelId); 2]) {
    let config = Config { receive_memory_bytes: 4 * MEMORY_BYTES, give_up_ns, ..Config::default() };
    let mut world = World::new(3, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let mut flow = |from| {
        let (client, server) = open(&mut world, from, 2, 7, Mode::Messages);
        Flow::messages((from, client), (2, server), LONG_BYTES, 1)
    };
    let mut flows = vec![flow(0), flow(1)];
    let ends = [flows[0].from, flows[0].to];
    let begun = carry_until(&mut world, &mut flows[..1], S, |world, _| world.hosts[2].promised_bytes() > MEMORY_BYTES);
    assert!(begun, "the first has memory");
    keeps(&mut world, &mut flows[0]);
    (world, flows, ends)
}

#[test]
fn a_long_message_that_does_not_come_has_its_memory_until_another_has_waited_for_it() {
    let dies: fn(&mut World, &mut Flow) = |world, _| world.stopped.extend([0]);
    // It says a word now and then, and sends nothing.
    let speaks: fn(&mut World, &mut Flow) =
        |world, _| world.filter = Some(Box::new(|_, from, _, bytes| from != 0 || ![0x17, 0x10].contains(&bytes[0])));
    for (what, keeps) in [("it dies", dies), ("it speaks", speaks)] {
        let (mut world, mut flows, [_, (_, first)]) = one_after_the_other(10 * S, keeps);
        // Nobody else wants any.
        carry_until(&mut world, &mut flows[..1], 5 * S, |_, _| false);
        assert_eq!(world.hosts[2].readiness(first).unwrap().failed, None, "{what}");
        let waited_ns = carry(&mut world, &mut flows[1..], 60 * S);
        assert!((10 * S..12 * S).contains(&waited_ns), "{what}: {waited_ns} ns");
        assert_eq!(world.hosts[2].readiness(first).unwrap().failed, Some(ErrorCode::Timeout), "{what}");
    }
}

/// Lets one packet with data of host 0 through in each of these times, in their order.
fn slow_down(world: &mut World, every_ns: u64) {
    let (mut passed_at, mut next) = (0, None);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from != 0 || header.kind != Type::Data {
            return true;
        }
        let is_next = header.number == *next.get_or_insert(header.number);
        let passes = is_next && now >= passed_at + every_ns;
        if passes {
            (passed_at, next) = (now, Some(header.number.wrapping_add(1)));
        }
        passes
    }));
}

#[test]
fn a_long_message_of_which_a_packet_comes_now_and_then_loses_its_memory_and_a_slow_one_does_not() {
    let (mut world, mut flows, [_, (_, first)]) = one_after_the_other(10 * S, |world, _| slow_down(world, 2 * S));
    let waited_ns = carry(&mut world, &mut flows[1..], 60 * S);
    assert!((10 * S..12 * S).contains(&waited_ns), "{waited_ns} ns");
    assert_eq!(world.hosts[2].readiness(first).unwrap().failed, Some(ErrorCode::Timeout));

    // Over 10 Mbit/s it takes eight times `give_up`.
    let slow = |world: &mut World, _: &mut Flow| world.net.rate = 10_000_000;
    let (mut world, mut flows, _) = one_after_the_other(200 * MS, slow);
    let waited_ns = carry(&mut world, &mut flows, 10 * S);
    assert!(waited_ns > 10 * 200 * MS, "{waited_ns} ns");
}

#[test]
fn a_long_message_that_this_end_keeps_from_coming_is_waited_for() {
    let reads_late: fn(&mut World, &mut Flow) = |_, flow| flow.slow = true;
    let grants_nothing: fn(&mut World, &mut Flow) = |world, _| world.hosts[2].gate().set_allowed(0);
    for (what, keeps) in [("a slow reader", reads_late), ("a gate without budget", grants_nothing)] {
        let (mut world, mut flows, _) = one_after_the_other(10 * S, keeps);
        carry_until(&mut world, &mut flows, 60 * S, |_, _| false);
        assert!(flows.iter().all(|flow| flow.received == 0), "{what}");
        world.hosts[2].gate().set_allowed(u64::MAX);
        flows[0].slow = false;
        carry(&mut world, &mut flows, 10 * S);
    }
}

#[test]
fn a_long_message_whose_sender_sends_something_else_is_given_up_while_many_wait_for_grants() {
    let config = Config { receive_memory_bytes: 4 * MEMORY_BYTES, give_up_ns: 2 * S, ..Config::default() };
    let mut world = World::new(6, Net { rate: 100_000_000, ..Net::default() }, &config, 1);
    let [begun, waiting] = [1, 2].map(|from| (from, open(&mut world, from, 0, 7, Mode::Messages)));
    let streams = (1..6).map(|from| {
        let (client, server) = open(&mut world, from, 0, 8, Mode::Stream);
        Flow::stream((from, client), (0, server), 1 << 40)
    });
    let mut flows: Vec<_> = streams.collect();
    // Its program does not go on with it.
    let (from, (client, first)) = begun;
    let now = world.clock(from);
    let sent = world.hosts[from].send_part(now, client, &[7; LONG_BYTES], 0).unwrap();
    assert!(sent < LONG_BYTES, "a part of it");
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    assert!(world.hosts[0].promised_bytes() > MEMORY_BYTES, "it has memory");
    // Some packets at a time: most senders have no grant at most moments.
    world.hosts[0].gate().set_allowed(6_000);
    let (from, (client, server)) = waiting;
    flows.push(Flow::messages((from, client), (0, server), LONG_BYTES, 1));
    let arrives = carry_until(&mut world, &mut flows, 10 * S, |_, flows| flows[5].is_done());
    assert_eq!((world.hosts[0].readiness(first).unwrap().failed, arrives), (Some(ErrorCode::Timeout), true));
}

#[test]
fn who_fills_the_memory_with_what_nobody_reads_keeps_nothing_from_others() {
    // By many channels of one, and of many.
    for (hostile, channels) in [(1, 60), (20, 3)] {
        let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
        let mut world = World::new(hostile + 3, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
        let mut flows: Vec<Flow> = (0..hostile * channels)
            .map(|place| {
                let from = 3 + place % hostile;
                let (client, server) = open(&mut world, from, 1, 7, Mode::Stream);
                Flow { slow: true, ..Flow::stream((from, client), (1, server), 1 << 30) }
            })
            .collect();
        carry_until(&mut world, &mut flows, S, |_, _| false);
        let dropped = world.hosts[1].counters().dropped_memory;
        assert!(dropped > 0, "it is full");
        // A message for which there is no memory waits, and takes nobody else's.
        let (sender, receiver) = open(&mut world, 2, 1, 8, Mode::Messages);
        let now = world.time();
        world.hosts[2].send(now, sender, &[7; MEMORY_BYTES as usize / 4]).unwrap();
        carry_until(&mut world, &mut flows, S, |_, _| false);
        let (client, server) = pair(&mut world, Mode::Stream);
        let begin = world.now;
        stream(&mut world, (0, client), (1, server), 1_000_000, 20 * S);
        println!("{hostile} x {channels}: a megabyte in {} ms", (world.now - begin) / MS);
        // Its end needs no memory.
        let now = world.time();
        world.hosts[2].abort(now, sender);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert_eq!(world.hosts[1].readiness(receiver).unwrap().failed, Some(ErrorCode::Reset));
        // When they are read they go on.
        let had: Vec<u64> = flows.iter().map(|flow| flow.sent).collect();
        flows.iter_mut().for_each(|flow| flow.slow = false);
        carry_until(&mut world, &mut flows, 2 * S, |_, flows| {
            flows.iter().zip(&had).all(|(flow, had)| flow.received > *had)
        });
        assert!(flows.iter().zip(&had).all(|(flow, had)| flow.received > *had), "{hostile}: not all went on");
    }
}

#[test]
fn what_comes_of_a_message_after_its_end_needs_no_memory() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    let hostile = 10;
    let mut world = World::new(hostile + 3, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    // Host 2 keeps more than its part, and its message waits for the memory of another one.
    let (client, server) = pair(&mut world, Mode::Messages);
    let (sender, receiver) = open(&mut world, 2, 1, 7, Mode::Messages);
    let stream = open(&mut world, 2, 1, 8, Mode::Stream);
    let unread = |flow| Flow { slow: true, ..flow };
    let mut flows = vec![
        unread(Flow::messages((0, client), (1, server), 300_000, 1)),
        unread(Flow::stream((2, stream.0), (1, stream.1), 20_000)),
    ];
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    // Of that the beginning comes, and what follows it is lost.
    let is_lossy = Rc::new(Cell::new(true));
    let (loses, mut sent) = (Rc::clone(&is_lossy), 0);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_part = from == 2 && Packet::parse(bytes).unwrap().header.kind == Type::Data;
        sent += u32::from(is_part);
        !(loses.get() && is_part && sent > 1)
    }));
    let now = world.time();
    world.hosts[2].send(now, sender, &[7; 360_000]).unwrap();
    for place in 0..hostile * 8 {
        let from = 3 + place % hostile;
        let (client, server) = open(&mut world, from, 1, 8, Mode::Stream);
        flows.push(unread(Flow::stream((from, client), (1, server), 1 << 30)));
    }
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > 0, "it is full");
    let in_flight = |world: &World| {
        let now = world.clock(2);
        world.hosts[2].association_statistics(now).map(|known| known.in_flight_packets).sum::<u64>()
    };
    assert!(in_flight(&world) > 1, "parts are missing");
    let now = world.time();
    world.hosts[2].abort(now, sender);
    is_lossy.set(false);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert_eq!(world.hosts[1].readiness(receiver).unwrap().failed, Some(ErrorCode::Reset));
    assert_eq!(in_flight(&world), 0, "{:?}", world.hosts[1].counters());
}

#[test]
fn memory_that_is_set_aside_for_a_message_is_not_filled_by_others() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    let hostile = 4;
    let mut world = World::new(hostile + 2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    // Three eighths of the memory, of which nothing comes beyond what made it known.
    let (client, server) = pair(&mut world, Mode::Messages);
    let mut message = Flow::messages((0, client), (1, server), MEMORY_BYTES as usize * 3 / 8, 1);
    let begun = carry_until(&mut world, std::slice::from_mut(&mut message), S, |world, _| {
        world.hosts[1].promised_bytes() > MEMORY_BYTES / 4
    });
    assert!(begun, "it has memory");
    world.stopped.insert(0);
    let mut flows: Vec<Flow> = (0..hostile * 20)
        .map(|place| {
            let from = 2 + place % hostile;
            let (client, server) = open(&mut world, from, 1, 8, Mode::Stream);
            Flow { slow: true, ..Flow::stream((from, client), (1, server), 1 << 30) }
        })
        .collect();
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > 0, "there is no more for others");
    world.stopped.clear();
    flows.push(message);
    let arrives = carry_until(&mut world, &mut flows, 5 * S, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?}", world.hosts[1].counters());
}

#[test]
fn a_long_message_that_nobody_reads_keeps_no_memory_from_what_else_its_sender_has_to_say() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    let hostile = 4;
    let mut world = World::new(hostile + 2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let length = MEMORY_BYTES as usize * 3 / 8;
    let mut message = Flow { slow: true, ..Flow::messages((0, client), (1, server), length, 1) };
    carry_until(&mut world, std::slice::from_mut(&mut message), S, |_, _| false);
    assert!(world.hosts[1].readiness(server).unwrap().readable, "it is whole");
    let ping = open(&mut world, 0, 1, 9, Mode::Stream);
    // Others leave nothing but the part of each.
    let mut flows: Vec<Flow> = (0..hostile * 20)
        .map(|place| {
            let from = 2 + place % hostile;
            let (client, server) = open(&mut world, from, 1, 8, Mode::Stream);
            Flow { slow: true, ..Flow::stream((from, client), (1, server), 1 << 30) }
        })
        .collect();
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > 0, "there is no more for others");
    flows.push(Flow::stream((0, ping.0), (1, ping.1), 10_000));
    let arrives = carry_until(&mut world, &mut flows, 100 * MS, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?}", world.hosts[1].counters());
    message.slow = false;
    carry(&mut world, std::slice::from_mut(&mut message), S);
}

#[test]
fn many_long_messages_at_once_arrive_however_little_memory_there_is() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    // As many messages as hosts, of these lengths in turn. There is memory for the beginnings of a few dozens.
    for lengths in [&[250_000][..], &[250_000, 500_000], &[500_000, 250_000, 300_000, 270_000]] {
        let hosts = 60;
        let mut world = World::new(hosts + 1, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
        let mut flows: Vec<Flow> = (0..hosts)
            .map(|place| {
                let (client, server) = open(&mut world, 1 + place, 0, 7, Mode::Messages);
                Flow::messages((1 + place, client), (0, server), lengths[place % lengths.len()], 1)
            })
            .collect();
        let ns = carry(&mut world, &mut flows, 60 * S);
        println!("{lengths:?}: {} ms, {} packets found no memory", ns / MS, world.hosts[0].counters().dropped_memory);
    }
}

#[test]
fn a_long_message_gets_its_turn_however_many_shorter_ones_come_all_the_time() {
    let config = Config { receive_memory_bytes: 8 * MEMORY_BYTES, receive_buffer_bytes: 32 << 10, ..Config::default() };
    let hosts = 24;
    let mut world = World::new(hosts + 2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let mut flow = |from, bytes, count| {
        let (client, server) = open(&mut world, from, 0, 7, Mode::Messages);
        Flow::messages((from, client), (0, server), bytes, count)
    };
    let mut flows: Vec<Flow> = (1..=hosts).map(|from| flow(from, 250_000, 1 << 20)).collect();
    let long = flow(hosts + 1, 2_000_000, 1);
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    let begin = world.now;
    flows.push(long);
    let arrives = carry_until(&mut world, &mut flows, 2 * S, |_, flows| flows[hosts].is_done());
    assert!(arrives, "{:?}", world.hosts[0].counters());
    println!("after {} ms", (world.now - begin) / MS);
}
