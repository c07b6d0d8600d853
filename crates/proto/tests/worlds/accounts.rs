//! Who may have how much of the receive memory (docs/decisions/0031): exact accounts of associations and hosts, and messages that do not keep each other from their ends.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::crowded::{MEMORY_BYTES, messages, unread, world_of};
use crate::world::*;
use ropeway_proto::{Config, ErrorCode, Mode};
use ropeway_wire::{Flags, Packet, Type};

/// A piece of memory, with the room around a payload.
const PIECE_BYTES: usize = 1511;

#[test]
fn however_many_messages_have_begun_others_find_memory_that_is_free() {
    let config = Config { receive_memory_bytes: 16 * MEMORY_BYTES, ..Config::default() };
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let mut flows = [(); 30].map(|()| {
        let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
        Flow { slow: true, ..Flow::messages((1, client), (0, server), 60_000, 4) }
    });
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(flows.iter().all(|flow| flow.sent == flow.total));
    assert_eq!(world.hosts[0].counters().dropped_memory, 0);
    flows.iter_mut().for_each(|flow| flow.slow = false);
    carry(&mut world, &mut flows, S);
}

#[test]
fn who_is_read_goes_on_however_much_is_unread_of_its_own_association() {
    for others in [2, 6] {
        let mut world = world_of(others + 2);
        let stream = open(&mut world, 1, 0, 8, Mode::Stream);
        let messages = open(&mut world, 1, 0, 7, Mode::Messages);
        let mut flows = unread(&mut world, 1..others + 1, 0, 60);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        let read = [
            Flow::stream((1, stream.0), (0, stream.1), 100_000),
            Flow::messages((1, messages.0), (0, messages.1), 10_000, 5),
        ];
        let unread = flows.len();
        flows.extend(read);
        let arrives = carry_until(&mut world, &mut flows, 10 * S, |_, flows| flows[unread..].iter().all(Flow::is_done));
        assert!(arrives, "{others}: {:?} {:?}", &flows[unread..], world.hosts[0].counters());
    }
}

#[test]
fn who_comes_again_and_again_has_what_is_unread_of_before() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    let mut world = world_of(4);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Stream);
    let send = |world: &mut World| {
        for _ in 0..20 {
            let sender = try_connect(world, 2, 0, 8).unwrap();
            let now = world.time();
            let _ = world.hosts[2].send(now, sender, &[7; 30_000]);
            pass(world, 2 * MS);
            let _ = world.hosts[0].accept(8);
        }
    };
    open(&mut world, 2, 0, 8, Mode::Stream);
    // Its next packets would be more than its part of what such a host leaves, were that divided among all that it had.
    let slow = Flow { slow: true, ..Flow::stream((1, client), (0, server), 4_000) };
    carry_until(&mut world, &mut [slow], 100 * MS, |_, _| false);
    let other = open(&mut world, 1, 0, 8, Mode::Stream);
    for seed in 10..90 {
        send(&mut world);
        let now = world.time();
        world.hosts[2].close_all(now);
        pass(&mut world, 5 * MS);
        world.hosts[2] = endpoint(2, &config, seed);
    }
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    let before = world.hosts[0].buffers_in_use().1;
    assert!(before < MEMORY_BYTES as usize * 15 / 16 / 1500, "{before} buffers: half of the last eighth is left");
    // What comes to who has nothing unread.
    let newcomer = open(&mut world, 3, 0, 8, Mode::Stream);
    stream(&mut world, (3, newcomer.0), (0, newcomer.1), 10_000, S);
    stream(&mut world, (1, other.0), (0, other.1), 10_000, S);
}

#[test]
fn an_empty_packet_within_a_message_is_no_way_out_of_what_it_has() {
    let mut world = world_of(3);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let mut speaker = Speaker::new(&mut world, 2, 1, Mode::Messages);
    let first = [&300_000u32.to_be_bytes()[..], &[7; 1000]].concat();
    speaker.say(&mut world, 0, 0, (Type::Data, Flags::FIRST), &first);
    pass(&mut world, MS);
    assert!(world.hosts[0].promised_bytes() > 250_000, "it has memory");
    speaker.say(&mut world, 0, 0, (Type::Data, Flags::NONE), &[]);
    pass(&mut world, MS);
    assert_eq!(world.hosts[0].readiness(speaker.readers[0]).unwrap().failed, Some(ErrorCode::Protocol));
    assert_eq!((world.hosts[0].promised_bytes(), world.hosts[0].buffers_in_use().1), (0, 0));
    stream(&mut world, (1, client), (0, server), 100_000, S);
}

#[test]
fn messages_that_have_begun_keep_no_others_from_connecting_and_no_streams_from_going_on() {
    let mut world = world_of(3);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    // So many packets of each message come.
    let mut places = BTreeMap::new();
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if header.kind != Type::Data || header.flags.intersects(Flags::RECORDS) || from != 1 {
            return true;
        }
        let next = places.len();
        let place = places.entry(header.channel).or_insert((next, header.number));
        header.number.wrapping_sub(place.1) < if place.0 < 4 { 14 } else { 1 }
    }));
    let mut begun = messages(&mut world, (0..12).map(|_| 1), false);
    carry_until(&mut world, &mut begun, S, |_, _| false);
    world.filter = None;
    stream(&mut world, (1, client), (0, server), 10_000, S);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    stream(&mut world, (1, client), (0, server), 10_000, S);
}

#[test]
fn who_keeps_much_and_whose_other_association_begins_a_message_claims_nothing() {
    let mut world = world_of(4);
    open(&mut world, 1, 0, 8, Mode::Stream);
    let mut flows = unread(&mut world, 2..3, 0, 14);
    flows.iter_mut().for_each(|flow| flow.total = 30_000);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    let used = world.hosts[0].buffers_in_use().1;
    assert!((270..400).contains(&used), "{used} buffers");
    // Another association of that host.
    let now = world.time();
    world.hosts[2].close_all(now);
    pass(&mut world, 5 * MS);
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    world.hosts[2] = endpoint(2, &config, 2);
    let (sender, receiver) = open(&mut world, 2, 0, 7, Mode::Messages);
    let mut message = [Flow::messages((2, sender), (0, receiver), 500_000, 1)];
    carry_until(&mut world, &mut message, 100 * MS, |_, _| false);
    // What another host has unread is more than a part of the last memory.
    let mut slow = unread(&mut world, 1..2, 0, 6);
    carry_until(&mut world, &mut slow, 100 * MS, |_, _| false);
    let before = world.hosts[0].buffers_in_use().1;
    assert!(before > used + 60, "{before} after {used}");
}

/// Hosts from `first` on have begun messages of which nothing more comes: as many as each may until no other host may begin any, beside so many pieces that are here of others.
fn begin_all_that_may(world: &mut World, first: usize, others: usize) {
    let mut left = MEMORY_BYTES as usize / 8 / PIECE_BYTES - others;
    let begun = [&20_000u32.to_be_bytes()[..], &[7; 1000]].concat();
    let mut host = first;
    while left > 1 {
        let count = left / 2;
        let mut speaker = Speaker::new(world, host, count, Mode::Messages);
        (0..count).for_each(|channel| speaker.say(world, channel, 0, (Type::Data, Flags::FIRST), &begun));
        pass(world, MS);
        (left, host) = (left - count, host + 1);
    }
}

#[test]
fn an_unread_channel_gets_no_memory_packet_by_packet_and_is_not_given_up() {
    for bytes in [100, 700, 5_000] {
        let mut world = world_of(10);
        let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
        // A message that nobody reads, and one that waits for its memory.
        let (sender, receiver) = open(&mut world, 2, 0, 7, Mode::Messages);
        let mut long = [Flow { slow: true, ..Flow::messages((2, sender), (0, receiver), 500_000, 1) }];
        carry_until(&mut world, &mut long, 100 * MS, |_, _| false);
        assert_eq!(world.hosts[0].message_bytes(receiver), Some(500_000));
        let mut waiting = Speaker::new(&mut world, 2, 1, Mode::Messages);
        let begun = [&450_000u32.to_be_bytes()[..], &[7; 1000]].concat();
        waiting.say(&mut world, 0, 0, (Type::Data, Flags::FIRST), &begun);
        pass(&mut world, MS);
        assert!(world.hosts[0].promised_bytes() < 100_000, "it waits");
        begin_all_that_may(&mut world, 3, 1);
        let mut flows = [Flow { slow: true, ..Flow::messages((1, client), (0, server), bytes, 2_000) }];
        carry_until(&mut world, &mut flows, 15 * S, |_, _| false);
        assert_eq!(world.hosts[0].readiness(server).unwrap().failed, None, "{bytes}");
        let unread = world.hosts[0].statistics(world.clock(0), server).unwrap().unread_bytes;
        assert!((30_000..36_000 + bytes as u64).contains(&unread), "{bytes}: {unread} bytes are unread");
        flows[0].slow = false;
        let arrives = carry_until(&mut world, &mut flows, S, |_, flows| flows[0].is_done());
        assert!(arrives, "{bytes}: {:?}", flows[0]);
    }
}

#[test]
fn channels_that_nobody_has_accepted_do_not_stand_before_others_in_line() {
    let mut world = world_of(12);
    // Messages longer than the window on channels that wait to be accepted, of more associations than are looked at at once.
    world.hosts[0].listen(9, Mode::Messages, 64).unwrap();
    let (client, server) = open(&mut world, 11, 0, 7, Mode::Messages);
    let (reader, read) = open(&mut world, 10, 0, 8, Mode::Stream);
    let mut flows = unread(&mut world, 9..10, 0, 14);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    for host in 1..9 {
        for _ in 0..4 {
            let now = world.clock(host);
            let channel = world.hosts[host].connect(now, &path(0), 9, Mode::Messages).unwrap();
            pass(&mut world, MS);
            let now = world.clock(host);
            let _ = world.hosts[host].send(now, channel, &[7; 400_000]);
            pass(&mut world, MS);
        }
    }
    let mut long = [Flow::messages((11, client), (0, server), 450_000, 1)];
    carry_until(&mut world, &mut long, 50 * MS, |_, _| false);
    assert!(!long[0].is_done(), "there is too little memory");
    // Others go on, and what is read of the first comes to the one that waits.
    flows.iter_mut().for_each(|flow| (flow.slow, flow.total) = (false, flow.sent));
    flows.extend(long);
    flows.push(Flow::stream((10, reader), (0, read), 1 << 20));
    let arrives = carry_until(&mut world, &mut flows, 2 * S, |_, flows| flows.iter().all(Flow::is_done));
    assert!(arrives, "{:?}", world.hosts[0].counters());
}

#[test]
fn a_lost_packet_of_a_message_finds_memory_however_much_waits_for_it() {
    // The second packet of each message, and the first.
    for lost in [1, 0] {
        let mut world = world_of(9);
        let mut flows = [(); 2].map(|()| {
            let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
            Flow::messages((1, client), (0, server), 32_000, 1)
        });
        let is_lossy = Rc::new(Cell::new(true));
        let (loses, mut seen) = (Rc::clone(&is_lossy), BTreeMap::<u16, Vec<u32>>::new());
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let header = Packet::parse(bytes).unwrap().header;
            if from != 1 || header.kind != Type::Data {
                return true;
            }
            let numbers = seen.entry(header.channel).or_default();
            if !numbers.contains(&header.number) {
                numbers.push(header.number);
            }
            !loses.get() || numbers.get(lost) != Some(&header.number)
        }));
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        assert!(world.hosts[0].buffers_in_use().1 > 20, "packets wait");
        let mut others = unread(&mut world, 2..9, 0, 10);
        carry_until(&mut world, &mut others, S, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        is_lossy.set(false);
        carry(&mut world, &mut flows, S);
    }
}

#[test]
fn a_lost_packet_finds_memory_where_what_waits_for_it_counts_for_more_than_it_takes() {
    const WAITING: usize = 43;
    let mut world = world_of(12);
    let mut speaker = Speaker::new(&mut world, 1, 1, Mode::Messages);
    // Short parts of a message whose beginning is lost, each of which counts as a whole piece.
    let first = speaker.number;
    speaker.number += 1;
    for place in 1..=WAITING {
        let flags = if place == WAITING { Flags::LAST } else { Flags::NONE };
        speaker.say(&mut world, 0, 1, (Type::Data, flags), &[7; 100]);
    }
    pass(&mut world, MS);
    begin_all_that_may(&mut world, 2, WAITING);
    let mut others = unread(&mut world, 8..12, 0, 10);
    carry_until(&mut world, &mut others, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    speaker.number = first;
    let bytes = 1000 + WAITING * 100;
    let beginning = [&(bytes as u32).to_be_bytes()[..], &[7; 1000]].concat();
    speaker.say(&mut world, 0, 0, (Type::Data, Flags::FIRST), &beginning);
    pass(&mut world, MS);
    assert_eq!(world.hosts[0].message_bytes(speaker.readers[0]), Some(bytes));
}

#[test]
fn long_messages_that_wait_leave_the_last_memory_to_short_ones() {
    let mut world = world_of(12);
    let long = (1..9).map(|host| {
        let (client, server) = open(&mut world, host, 0, 7, Mode::Messages);
        Flow::messages((host, client), (0, server), 100_000, 1)
    });
    let mut long: Vec<_> = long.collect();
    let (client, server) = open(&mut world, 10, 0, 7, Mode::Messages);
    let mut flows = unread(&mut world, 9..10, 0, 40);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    carry_until(&mut world, &mut long, 50 * MS, |_, _| false);
    carry(&mut world, &mut [Flow::messages((10, client), (0, server), 8_000, 1)], S);
}

#[test]
fn short_beginnings_that_wait_count_as_what_they_become() {
    let mut world = world_of(3);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
    let mut speaker = Speaker::new(&mut world, 2, 300, Mode::Messages);
    // Each waits for a packet that comes then, of a channel that nobody knows, and memory is for no more than a part of what they begin.
    let first = [&20_000u32.to_be_bytes()[..], &[7]].concat();
    let gap = speaker.number;
    for channel in 0..300 {
        speaker.number = gap + 2 * channel as u32 + 1;
        speaker.say(&mut world, channel, 1, (Type::Data, Flags::FIRST), &first);
    }
    pass(&mut world, MS);
    for channel in 0..300 {
        speaker.number = gap + 2 * channel;
        speaker.say(&mut world, 0, 0, (Type::Data, Flags::FIRST | Flags::LAST), &[7]);
    }
    pass(&mut world, MS);
    println!("{} buffers", world.hosts[0].buffers_in_use().1);
    carry(&mut world, &mut [Flow::messages((1, client), (0, server), 60_000, 1)], S);
}

#[test]
fn streams_come_in_runs_however_many_messages_have_begun() {
    let mut world = world_of(3);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let mut speaker = Speaker::new(&mut world, 2, 60, Mode::Messages);
    let first = [&20_000u32.to_be_bytes()[..], &[7; 1000]].concat();
    (0..60).for_each(|channel| speaker.say(&mut world, channel, 0, (Type::Data, Flags::FIRST), &first));
    pass(&mut world, MS);
    world.net.rate = 0;
    stream(&mut world, (1, client), (0, server), 500_000, S);
    assert!(world.hosts[0].counters().packets_in_runs > 100, "{:?}", world.hosts[0].counters());
}

#[test]
fn an_end_by_abort_needs_no_memory_on_a_channel_that_nobody_has_accepted() {
    let mut world = world_of(4);
    world.hosts[0].listen(9, Mode::Messages, 64).unwrap();
    open(&mut world, 1, 0, 7, Mode::Stream);
    let now = world.clock(1);
    let sender = world.hosts[1].connect(now, &path(0), 9, Mode::Messages).unwrap();
    pass(&mut world, MS);
    let mut flows = unread(&mut world, 2..3, 0, 40);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    let now = world.clock(1);
    let _ = world.hosts[1].send(now, sender, &[7; 400_000]);
    pass(&mut world, 50 * MS);
    let now = world.clock(1);
    world.hosts[1].abort(now, sender);
    pass(&mut world, S);
    assert!(!world.hosts[0].has_incoming(9));
}
