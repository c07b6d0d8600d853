//! Too little memory for what many send at the same time, or have sent and nobody reads: everybody goes on (docs/protocol.md 5, 7).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode, Part};
use ropeway_wire::{Flags, Packet, Type};

pub const MEMORY_BYTES: u64 = 1 << 20;

pub fn world_of(hosts: usize) -> World {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    World::new(hosts, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1)
}

/// A message that fits the first window, on each of these channels from these hosts to host 0.
pub fn messages(world: &mut World, from: impl Iterator<Item = usize>, taken: bool) -> Vec<Flow> {
    let mut flow = |from| {
        let (client, server) = open(world, from, 0, 7, Mode::Messages);
        let taken = taken.then(|| (Vec::new(), Part::default()));
        Flow { taken, ..Flow::messages((from, client), (0, server), 30_000, 1) }
    };
    from.map(&mut flow).collect()
}

/// Streams of these hosts to `to`, each over so many channels, that nobody reads.
pub fn unread(world: &mut World, from: std::ops::Range<usize>, to: usize, channels: usize) -> Vec<Flow> {
    let mut flow = |from| {
        let (client, server) = open(world, from, to, 8, Mode::Stream);
        Flow { slow: true, ..Flow::stream((from, client), (to, server), 1 << 30) }
    };
    (0..channels).flat_map(|_| from.clone()).map(&mut flow).collect()
}

#[test]
fn messages_that_fit_their_windows_do_not_keep_each_other_from_their_ends() {
    const MESSAGES: usize = 60;
    for (hosts, taken) in [(MESSAGES, false), (1, false), (MESSAGES, true), (1, true)] {
        let mut world = world_of(hosts + 1);
        let mut flows = messages(&mut world, (0..MESSAGES).map(|place| 1 + place % hosts), taken);
        let ns = carry(&mut world, &mut flows, 60 * S);
        let dropped = world.hosts[0].counters().dropped_memory;
        println!("{hosts} hosts, as they come: {taken}: {} ms, {dropped} packets found no memory", ns / MS);
        assert!(dropped > 0, "there is too little memory");
        let ends = flows.iter().flat_map(|flow| [flow.from, flow.to]).collect::<Vec<_>>();
        close_all_channels(&mut world, &ends);
    }
}

#[test]
fn of_more_beginnings_than_memory_has_room_for_one_comes_to_its_end_after_the_other() {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, packet_bytes: 9000, ..Config::default() };
    for (hosts, count) in [(130, 130), (1, 130), (1, 250)] {
        let mut world = World::new(hosts + 1, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
        let mut flows = messages(&mut world, (0..count).map(|place| 1 + place % hosts), false);
        let ns = carry(&mut world, &mut flows, 60 * S);
        println!("{count} of {hosts} hosts: {} ms", ns / MS);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    }
}

#[test]
fn a_long_message_that_comes_slowly_keeps_no_short_ones_from_their_ends() {
    const HOSTS: usize = 60;
    let mut world = world_of(HOSTS + 2);
    let (client, server) = open(&mut world, HOSTS + 1, 0, 7, Mode::Messages);
    let (passed, seconds) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(1)));
    let (count, most) = (Rc::clone(&passed), Rc::clone(&seconds));
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_data = Packet::parse(bytes).unwrap().header.kind == Type::Data;
        let passes = from != HOSTS + 1 || !is_data || count.get() < most.get();
        count.set(count.get() + u64::from(from == HOSTS + 1 && is_data && passes));
        passes
    }));
    let mut long = [Flow::messages((HOSTS + 1, client), (0, server), 300_000, 1)];
    carry_until(&mut world, &mut long, 200 * MS, |_, _| false);
    assert!(world.hosts[0].promised_bytes() > 250_000, "it has memory");
    let mut flows = messages(&mut world, 1..=HOSTS, false);
    let are_through = |flows: &[Flow]| flows.iter().all(Flow::is_done);
    for second in 2..10 {
        seconds.set(second);
        if carry_until(&mut world, &mut flows, S, |_, flows| are_through(flows)) {
            break;
        }
    }
    assert!(are_through(&flows) && !long[0].is_done());
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
}

#[test]
fn messages_that_are_whole_and_not_read_leave_some_for_others() {
    // The shorter ones find room in what the others leave.
    let lengths = [&[30_000; 4][..], &[16_000; 2], &[8_000; 2], &[4_000; 4], &[2_000; 8]].concat();
    for aborts in [false, true] {
        let mut world = world_of(10);
        let (client, server) = pair(&mut world, Mode::Stream);
        // Of each message the beginning comes, and then one after the other the rest.
        let opened = Rc::new(Cell::new(0));
        let (whole, mut places) = (Rc::clone(&opened), BTreeMap::new());
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let header = Packet::parse(bytes).unwrap().header;
            if from != 2 || header.kind != Type::Data {
                return true;
            }
            let next = places.len();
            let (place, first) = *places.entry(header.channel).or_insert((next, header.number));
            place < whole.get() || first == header.number
        }));
        let mut held = lengths
            .iter()
            .map(|&bytes| {
                let (client, server) = open(&mut world, 2, 1, 9, Mode::Messages);
                Flow { slow: true, ..Flow::messages((2, client), (1, server), bytes, 1) }
            })
            .collect::<Vec<_>>();
        carry_until(&mut world, &mut held, 100 * MS, |_, _| false);
        let mut flows = unread(&mut world, 3..9, 1, 10);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert!(world.hosts[1].counters().dropped_memory > 0, "there is too little memory");
        for count in 1..=held.len() {
            opened.set(count);
            carry_until(&mut world, &mut held, 200 * MS, |_, _| false);
            let Flow { from: (_, sender), to: (_, reader), .. } = held[count - 1];
            if aborts && world.hosts[1].message_bytes(reader).is_some() {
                let now = world.time();
                world.hosts[2].abort(now, sender);
            }
        }
        println!("aborts: {aborts}: {} buffers", world.hosts[1].buffers_in_use().1);
        stream(&mut world, (0, client), (1, server), 10_000, S);
    }
}

#[test]
fn what_readers_have_of_messages_that_do_not_come_keeps_nothing_from_others() {
    const HOSTS: usize = 60;
    for hosts in [HOSTS, 2] {
        let mut world = world_of(hosts + 2);
        let other = open(&mut world, hosts + 1, 0, 8, Mode::Stream);
        let mut flows = messages(&mut world, (0..HOSTS).map(|place| 1 + place % hosts), true);
        // So many packets of each come.
        let mut first = BTreeMap::new();
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let header = Packet::parse(bytes).unwrap().header;
            if header.kind != Type::Data || !(1..=hosts).contains(&from) {
                return true;
            }
            let first = *first.entry(from).or_insert(header.number);
            header.number.wrapping_sub(first) < (18 * HOSTS / hosts) as u32
        }));
        carry_until(&mut world, &mut flows, 500 * MS, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        flows.push(Flow::stream((hosts + 1, other.0), (0, other.1), 10_000));
        let arrives = carry_until(&mut world, &mut flows, 100 * MS, |_, flows| flows.last().unwrap().is_done());
        assert!(arrives, "{hosts} hosts: {:?}", world.hosts[0].counters());
    }
}

#[test]
fn what_is_unread_of_channels_that_are_over_is_of_their_senders_part() {
    type End = fn(&mut World, ChannelId);
    let aborts: End = |world, channel| {
        let now = world.time();
        world.hosts[2].abort(now, channel);
    };
    let closes: End = |world, channel| {
        let now = world.time();
        world.hosts[2].close(now, channel);
    };
    for (what, ends) in [("aborts", aborts), ("closes", closes)] {
        let mut world = world_of(3);
        let (client, server) = pair(&mut world, Mode::Stream);
        open(&mut world, 2, 1, 8, Mode::Stream);
        for _ in 0..80 {
            let sender = try_connect(&mut world, 2, 1, 8).unwrap();
            let now = world.time();
            let _ = world.hosts[2].send(now, sender, &[7; 20_000]);
            pass(&mut world, 2 * MS);
            let _ = world.hosts[1].accept(8);
            ends(&mut world, sender);
            pass(&mut world, 2 * MS);
        }
        assert!(world.hosts[1].counters().dropped_memory > 0, "{what}: there is too little memory");
        stream(&mut world, (0, client), (1, server), 10_000, S);
    }
}

#[test]
fn a_lost_packet_finds_memory_however_much_waits_for_it() {
    let mut world = world_of(9);
    let (client, server) = pair(&mut world, Mode::Stream);
    let is_lossy = Rc::new(Cell::new(true));
    let (loses, mut lost) = (Rc::clone(&is_lossy), None);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        let is_first = from == 0 && header.kind == Type::Data && *lost.get_or_insert(header.number) == header.number;
        !(loses.get() && is_first)
    }));
    let mut flow = [Flow::stream((0, client), (1, server), 100_000)];
    carry_until(&mut world, &mut flow, 20 * MS, |_, _| false);
    assert!(world.hosts[1].buffers_in_use().1 > 10, "packets wait");
    let mut flows = unread(&mut world, 3..9, 1, 10);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > 0, "there is too little memory");
    is_lossy.set(false);
    carry(&mut world, &mut flow, S);
}

#[test]
fn what_waits_for_a_lost_packet_of_a_message_with_memory_takes_little_beside_that() {
    let mut world = world_of(8);
    let (client, server) = pair(&mut world, Mode::Messages);
    let (other, reader) = open(&mut world, 2, 1, 9, Mode::Stream);
    // Of this message, which memory is set aside for, its beginning comes; and then all but the packet behind that.
    #[derive(Clone, Copy, PartialEq)]
    enum Passes {
        Beginning,
        AllButOne,
        All,
    }
    let passes = Rc::new(Cell::new(Passes::Beginning));
    let (lets, mut first) = (Rc::clone(&passes), None);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from != 0 || header.kind != Type::Data {
            return true;
        }
        let place = header.number.wrapping_sub(*first.get_or_insert(header.number));
        place == 0 || lets.get() == Passes::All || lets.get() == Passes::AllButOne && place > 1
    }));
    let mut message = [Flow::messages((0, client), (1, server), MEMORY_BYTES as usize * 3 / 8, 1)];
    carry_until(&mut world, &mut message, 100 * MS, |_, _| false);
    assert!(world.hosts[1].promised_bytes() > MEMORY_BYTES / 4, "it has memory");
    let mut flows = unread(&mut world, 3..8, 1, 12);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    let dropped = world.hosts[1].counters().dropped_memory;
    assert!(dropped > 0, "there is too little memory");
    passes.set(Passes::AllButOne);
    carry_until(&mut world, &mut message, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > dropped, "more comes than may wait");
    stream(&mut world, (2, other), (1, reader), 10_000, 100 * MS);
    passes.set(Passes::All);
    carry(&mut world, &mut message, 5 * S);
}

#[test]
fn long_messages_in_packets_much_shorter_than_agreed_on_take_no_more_memory_than_they_need() {
    const LONG_BYTES: usize = 260_000;
    // So many behind a gap, in turn.
    for (packet_bytes, waiting) in [(1444, 0), (729, 0), (729, 1), (20, 0), (20, 30)] {
        let what = format!("{packet_bytes} bytes, {waiting} behind a gap");
        let mut world = world_of(4);
        let honest = open(&mut world, 1, 0, 8, Mode::Stream);
        let long = open(&mut world, 2, 0, 7, Mode::Messages);
        let mut speaker = Speaker::new(&mut world, 3, 2, Mode::Messages);
        for channel in 0..2 {
            let first = [&(LONG_BYTES as u32).to_be_bytes()[..], &[7; 60]].concat();
            speaker.say(&mut world, channel, 0, (Type::Data, Flags::FIRST), &first);
            pass(&mut world, MS);
        }
        assert!(world.hosts[0].promised_bytes() > 400_000, "{what}: both have memory");
        // All but the ends.
        let payload = vec![7; packet_bytes];
        let mut left = [LONG_BYTES - 60; 2];
        while left[0] > (waiting + 1) * packet_bytes {
            for (channel, left) in left.iter_mut().enumerate() {
                let first = speaker.number;
                speaker.number += 1;
                (0..waiting).for_each(|_| speaker.say(&mut world, channel, 1, (Type::Data, Flags::NONE), &payload));
                let next = std::mem::replace(&mut speaker.number, first);
                speaker.say(&mut world, channel, 0, (Type::Data, Flags::NONE), &payload);
                speaker.number = next;
                *left -= (waiting + 1) * packet_bytes;
            }
            pass(&mut world, 20 * US * (waiting as u64 + 1));
        }
        pass(&mut world, 5 * MS);
        let buffers = world.hosts[0].buffers_in_use().1;
        assert!(buffers < 2 * LONG_BYTES / 1444 * 17 / 16, "{what}: {buffers} buffers");
        stream(&mut world, (1, honest.0), (0, honest.1), 100_000, S);
        // They leave their memory to who waits for it.
        let mut flow = [Flow::messages((2, long.0), (0, long.1), 400_000, 1)];
        let waited_ns = carry(&mut world, &mut flow, 15 * S);
        assert!(waited_ns > 9 * S, "{what}: {waited_ns} ns");
        for &reader in &speaker.readers {
            assert!(world.hosts[0].message_bytes(reader).is_none(), "{what}");
        }
    }
}

#[test]
fn short_packets_count_with_the_memory_that_they_take() {
    let one_on_each = |speaker: &mut Speaker, world: &mut World| {
        (0..speaker.readers.len()).for_each(|channel| speaker.say(world, channel, 0, (Type::Data, Flags::NONE), &[7]));
    };
    let behind_a_gap = |kind: Type, payload: &'static [u8]| {
        move |speaker: &mut Speaker, world: &mut World| {
            speaker.number += 1;
            (0..4000).for_each(|_| speaker.say(world, 0, 1, (kind, Flags::NONE), payload));
        }
    };
    // They wait for one that comes then, and nothing joins them.
    let behind_one_that_comes = |speaker: &mut Speaker, world: &mut World| {
        let missing = speaker.number;
        speaker.number += 1;
        for _ in 0..2000 {
            speaker.say(world, 0, 1, (Type::Data, Flags::FIRST), &[0, 0, 0, 2, 7]);
            speaker.say(world, 0, 1, (Type::Data, Flags::LAST), &[7]);
        }
        let next = std::mem::replace(&mut speaker.number, missing);
        speaker.say(world, 0, 0, (Type::Data, Flags::FIRST | Flags::LAST), &[7]);
        speaker.number = next;
    };
    type Says<'a> = &'a dyn Fn(&mut Speaker, &mut World);
    let (data, ends) = (behind_a_gap(Type::Data, &[7]), behind_a_gap(Type::Fin, &[0, 0]));
    let says: [(&str, Mode, usize, Says<'_>); 4] = [
        ("a byte on each channel", Mode::Stream, 100, &one_on_each),
        ("bytes that wait", Mode::Stream, 1, &data),
        ("ends that wait", Mode::Stream, 1, &ends),
        ("parts that have waited", Mode::Messages, 1, &behind_one_that_comes),
    ];
    for (what, mode, channels, says) in says {
        let mut world = world_of(11);
        let honest = open(&mut world, 1, 0, 7, Mode::Stream);
        let mut speakers = [2, 3, 4].map(|host| Speaker::new(&mut world, host, channels, mode));
        let mut flows = unread(&mut world, 5..11, 0, 10);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        let before = world.hosts[0].buffers_in_use().1;
        // All at one time.
        world.net.rate = 0;
        for speaker in &mut speakers {
            says(speaker, &mut world);
        }
        pass(&mut world, MS);
        world.net.rate = 1_000_000_000;
        println!("{what}: {} packets kept", world.hosts[0].buffers_in_use().1 - before);
        let mut flow = [Flow::stream((1, honest.0), (0, honest.1), 10_000)];
        let arrives = carry_until(&mut world, &mut flow, S, |_, flows| flows[0].is_done());
        assert!(arrives, "{what}: {:?}", world.hosts[0].counters());
    }
}

#[test]
fn a_message_that_waits_for_memory_keeps_none_from_streams_and_comes_when_others_are_read() {
    let mut world = world_of(10);
    let (client, server) = pair(&mut world, Mode::Stream);
    let (sender, receiver) = open(&mut world, 2, 1, 9, Mode::Messages);
    // So many packets of it come.
    let most = Rc::new(Cell::new(1));
    let (passes, mut first) = (Rc::clone(&most), None);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        from != 2
            || header.kind != Type::Data
            || header.number.wrapping_sub(*first.get_or_insert(header.number)) < passes.get()
    }));
    let mut message = [Flow::messages((2, sender), (1, receiver), 110_000, 1)];
    carry_until(&mut world, &mut message, 20 * MS, |_, _| false);
    let mut flows = unread(&mut world, 3..9, 1, 10);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[1].counters().dropped_memory > 0, "there is too little memory");
    most.set(u32::MAX);
    carry_until(&mut world, &mut message, S, |_, _| false);
    assert!(!message[0].is_done());
    stream(&mut world, (0, client), (1, server), 10_000, S);
    flows.iter_mut().for_each(|flow| flow.slow = false);
    flows.extend(message);
    let arrives = carry_until(&mut world, &mut flows, S, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?}", world.hosts[1].counters());
}
