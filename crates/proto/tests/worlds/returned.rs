//! What finds no receive memory is given back, withdrawn and sent again under other numbers (docs/protocol.md 5.11): each byte comes once, and in its order.

use std::cell::RefCell;
use std::rc::Rc;

use crate::crowded::{MEMORY_BYTES, messages, unread, world_of};
use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode};
use ropeway_wire::{Block, Blocks, Flags, Packet, Type, Void};

/// What host 0 says of channels to host 1 from now on: the numbers from which something is given back, what it withdraws, and what it sends.
#[derive(Debug, Default)]
struct Said {
    returns: Vec<(u16, u32)>,
    voids: Vec<Void>,
    data: Vec<(u32, Vec<u8>)>,
    /// What it acknowledged last.
    ack: u32,
}

fn listen_to(world: &mut World) -> Rc<RefCell<Said>> {
    let said = Rc::new(RefCell::new(Said::default()));
    let out = Rc::clone(&said);
    world.filter = Some(Box::new(move |_, from, to, bytes| {
        let packet = Packet::parse(bytes).unwrap();
        let mut out = out.borrow_mut();
        match packet.header.kind {
            _ if (from, to) != (0, 1) => {}
            Type::Data => out.data.push((packet.header.number, packet.payload.to_vec())),
            Type::Control | Type::State => {
                out.ack = packet.header.ack;
                for block in Blocks::parse(packet.payload).unwrap() {
                    match block {
                        Block::Return(channel, low) => out.returns.push((channel, low)),
                        Block::Void(void) => out.voids.push(void),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        true
    }));
    said
}

const BYTES: usize = 1000;
const DATA: (Type, Flags) = (Type::Data, Flags::NONE);

/// Host 1, which says what it likes, has been given back the newest packet of its only channel, of those that host 0 took none was read, and there is memory now.
struct Returned {
    world: World,
    speaker: Speaker,
    said: Rc<RefCell<Said>>,
    /// So many were taken.
    taken: usize,
}

impl Returned {
    fn new() -> Returned {
        let mut world = world_of(8);
        let mut speaker = Speaker::new(&mut world, 1, 1, Mode::Stream);
        let mut flows = unread(&mut world, 2..8, 0, 10);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        let said = listen_to(&mut world);
        let mut count = 0;
        while said.borrow().returns.is_empty() {
            assert!(count < 30, "it is taken in any case");
            speaker.say(&mut world, 0, u16::from(count > 0), DATA, &[count as u8; BYTES]);
            count += 1;
            pass(&mut world, MS);
        }
        assert_eq!(said.borrow().returns, [(speaker.channel(0), speaker.number.wrapping_sub(1))]);
        flows.iter_mut().for_each(|flow| (flow.slow, flow.total) = (false, flow.sent));
        carry(&mut world, &mut flows, S);
        Returned { world, speaker, said, taken: count - 1 }
    }

    /// The packet with this number, behind the one with the number `back` lower.
    fn say(&mut self, number: u32, back: u16, byte: usize) {
        let next = std::mem::replace(&mut self.speaker.number, number);
        self.speaker.say(&mut self.world, 0, back, DATA, &[byte as u8; BYTES]);
        self.speaker.number = if next.wrapping_sub(number) as i32 > 0 { next } else { number.wrapping_add(1) };
        pass(&mut self.world, MS);
    }

    fn withdraw(&mut self, low: u32, count: u16, until: u16) {
        let void = Void { channel: self.speaker.channel(0), low, count, until };
        self.speaker.tell(&mut self.world, |blocks| blocks.void(&void));
        pass(&mut self.world, MS);
    }

    /// So many packets can be read, each once and in their order.
    fn assert_there(&mut self, packets: usize) {
        let mut out = vec![0; (packets + 5) * BYTES];
        let reader = self.speaker.readers[0];
        let there = self.world.hosts[0].peek(reader, &mut out).unwrap().unwrap();
        assert_eq!(there, packets * BYTES);
        assert!(out[..there].chunks(BYTES).zip(0..).all(|(packet, byte)| packet == [byte; BYTES]));
    }
}

#[test]
fn what_was_given_back_is_not_taken_before_its_sender_has_withdrawn_it() {
    let mut two = Returned::new();
    let (first, taken) = (two.speaker.number.wrapping_sub(1), two.taken);
    for _ in 0..3 {
        // Its sender may withdraw it at this moment.
        two.say(first, 1, taken);
    }
    two.assert_there(taken);
    assert_eq!(two.said.borrow().returns.len(), 4, "it is said again each time");
    // Nor what is behind that, even if it is behind what was taken.
    two.say(first.wrapping_add(1), 2, taken);
    two.assert_there(taken);
    two.withdraw(first, 1, 1);
    two.say(first.wrapping_add(1), 2, taken);
    two.say(first.wrapping_add(2), 1, taken + 1);
    two.assert_there(taken + 2);
}

#[test]
fn what_was_withdrawn_and_comes_late_brings_nothing() {
    let mut two = Returned::new();
    let (first, taken) = (two.speaker.number.wrapping_sub(1), two.taken);
    // The number between them is lost: what its sender says of these is in two ranges, of which one comes.
    two.say(first.wrapping_add(2), 2, taken + 1);
    two.withdraw(first, 1, 3);
    two.say(first.wrapping_add(2), 2, taken + 1);
    two.say(first, 1, taken);
    two.assert_there(taken);
    two.say(first.wrapping_add(3), 4, taken);
    two.assert_there(taken + 1);
    two.withdraw(first.wrapping_add(1), 1, 2);
    two.say(first.wrapping_add(4), 1, taken + 1);
    two.assert_there(taken + 2);
    let end = two.world.hosts[0].readiness(two.speaker.readers[0]).unwrap();
    assert_eq!(end.failed, None);
}

#[test]
fn what_the_peer_gives_back_is_withdrawn_and_goes_again_when_it_has_credit() {
    let mut world = world_of(2);
    let speaker = Speaker::new(&mut world, 1, 1, Mode::Stream);
    let said = listen_to(&mut world);
    let sent: Vec<u8> = (0..5 * BYTES).map(|at| pattern(at as u64)).collect();
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, speaker.readers[0], &sent), Ok(sent.len()));
    world.hosts[0].flush(speaker.readers[0]);
    pass(&mut world, MS);
    let before = std::mem::take(&mut said.borrow_mut().data);
    assert_eq!(before.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), sent.len());
    let (channel, returned) = (speaker.channel(0), before[1].0);
    let count = before.len() as u16 - 1;
    let void = Void { channel, low: returned, count, until: count };
    for times in 1..=3 {
        speaker.tell(&mut world, |blocks| blocks.give_back(channel, returned));
        pass(&mut world, MS);
        assert_eq!(said.borrow().voids, vec![void; times], "it may not have been heard");
    }
    assert_eq!(said.borrow().data, [], "not before there is credit");
    // What was never sent, or is another channel's, is not given back.
    speaker.tell(&mut world, |blocks| {
        blocks.give_back(channel, returned.wrapping_add(count.into())) && blocks.give_back(channel + 2, before[0].0)
    });
    speaker.tell(&mut world, |blocks| blocks.credit(channel, 1 << 20));
    pass(&mut world, MS);
    let after = &said.borrow().data;
    assert!(after.iter().all(|&(number, _)| number.wrapping_sub(returned) >= u32::from(count)));
    let received: Vec<u8> = before[..1].iter().chain(after).flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(received, sent);
    assert_eq!(world.hosts[0].counters().withdrawn, u64::from(count));
}

/// Host 1 leaves unread on host 0 what fills the memory.
fn full(hosts: usize) -> (World, Vec<Flow>) {
    let mut world = world_of(hosts);
    let mut flows = unread(&mut world, 1..hosts, 0, 60);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    (world, flows)
}

/// A channel to port 8 of host 0, where it is accepted at once, and both its ends; and so much that was sent with what opens it.
fn open_with(world: &mut World, from: usize, bytes: usize) -> (ChannelId, ChannelId) {
    let now = world.time();
    let client = try_connect(world, from, 0, 8).unwrap();
    let early: Vec<u8> = (0..bytes).map(|at| pattern(at as u64)).collect();
    assert_eq!(world.hosts[from].send(now, client, &early), Ok(bytes));
    world.hosts[from].flush(client);
    pass(world, 10 * MS);
    (client, world.hosts[0].accept(8).expect("it is open, whether its data find memory or not"))
}

#[test]
fn a_channel_opens_without_memory_for_what_was_sent_with_that() {
    let (mut world, mut flows) = full(2);
    // Of those that nobody has accepted none gets any of the last memory.
    let opened: Vec<_> = (0..20).map(|_| open_with(&mut world, 1, 700)).collect();
    assert!(world.hosts[1].counters().withdrawn > 0, "there is no memory for them");
    let later = |(client, server)| Flow { sent: 700, ..Flow::stream((1, client), (0, server), 10_000) };
    let mut late: Vec<_> = opened.into_iter().map(later).collect();
    // What is written on behind what was withdrawn waits with it.
    carry_until(&mut world, &mut late, 50 * MS, |_, _| false);
    flows.iter_mut().for_each(|flow| (flow.slow, flow.total) = (false, flow.sent));
    flows.extend(late);
    carry(&mut world, &mut flows, S);
}

#[test]
fn what_was_given_back_does_not_keep_a_reset_from_coming() {
    let (mut world, flows) = full(2);
    let Flow { from: (_, client), to: (_, server), .. } = flows[7];
    let now = world.time();
    world.hosts[1].abort(now, client);
    pass(&mut world, 5 * MS);
    assert!(world.hosts[0].readiness(server).unwrap().failed.is_some());
}

#[test]
fn a_stream_that_is_read_goes_on_however_many_others_of_its_association_nobody_reads() {
    let config = Config { receive_memory_bytes: 2 * MEMORY_BYTES, ..Config::default() };
    let mut world = World::new(3, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let (client, server) = open(&mut world, 1, 0, 8, Mode::Stream);
    let mut flows = unread(&mut world, 1..2, 0, 1000);
    flows.iter_mut().for_each(|flow| flow.total = 4000);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    flows.push(Flow::stream((1, client), (0, server), 10_000_000));
    let arrives = carry_until(&mut world, &mut flows, 5 * S, |_, flows| flows.last().unwrap().is_done());
    assert!(arrives, "{:?} {:?}", flows.last(), world.hosts[0].counters());
}

#[test]
fn very_many_messages_of_one_host_come_one_after_the_other() {
    let mut world = world_of(2);
    let mut flows = messages(&mut world, std::iter::repeat_n(1, 800), false);
    let ns = carry(&mut world, &mut flows, 60 * S);
    println!("{} ms, {} packets withdrawn", ns / MS, world.hosts[1].counters().withdrawn);
    assert!(world.hosts[1].counters().withdrawn > 0, "there is too little memory");
}

#[test]
fn messages_of_many_hosts_come_to_their_ends_in_what_is_left_for_those_who_keep_little() {
    for (hosts, bytes) in [(8, 8_000), (30, 3_000), (60, 8_000), (3, 30_000)] {
        let mut world = world_of(hosts + 2);
        let mut few: Vec<_> = (2..hosts + 2)
            .map(|host| {
                let (client, server) = open(&mut world, host, 0, 7, Mode::Messages);
                Flow::messages((host, client), (0, server), bytes, 1)
            })
            .collect();
        let mut flows = unread(&mut world, 1..2, 0, 60);
        carry_until(&mut world, &mut flows, S, |_, _| false);
        assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
        let ns = carry(&mut world, &mut few, 5 * S);
        println!("{hosts} hosts of {bytes}: {} ms", ns / MS);
    }
}

/// A world whose first host has no memory left for the second, which has sent so much on so many channels that nobody reads.
fn stuffed() -> World {
    let config = Config { receive_memory_bytes: 2 * MEMORY_BYTES, ..Config::default() };
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let mut flows = unread(&mut world, 1..2, 0, 700);
    flows.iter_mut().for_each(|flow| flow.total = 4000);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    assert!(world.hosts[0].counters().dropped_memory > 0, "there is too little memory");
    world
}

#[test]
fn what_is_given_back_was_not_lost() {
    let world = stuffed();
    assert_eq!(world.drops(0), 0);
    let counters = world.hosts[0].counters();
    assert_eq!((counters.lost, counters.gate.cuts, world.hosts[0].port_buffer_estimate_bytes()), (0, 0, None));
}

#[test]
fn what_was_sent_with_an_open_comes_as_soon_as_it_is_accepted() {
    for accepted_after in [0, 500 * MS] {
        let mut world = stuffed();
        for _ in 0..20 {
            let now = world.time();
            let client = try_connect(&mut world, 1, 0, 8).unwrap();
            assert_eq!(world.hosts[1].send(now, client, &[7; 700]), Ok(700));
            world.hosts[1].flush(client);
            pass(&mut world, accepted_after);
            let begin = world.now;
            let mut server = None;
            wait_for(&mut world, S, "it opens", |world| {
                server = server.or_else(|| world.hosts[0].accept(8).ok());
                server.is_some()
            });
            let mut out = [0; 1000];
            wait_for(&mut world, S, "it comes", |world| {
                world.hosts[0].recv(server.unwrap(), &mut out) == Ok(Some(700))
            });
            assert!(world.now - begin < 5 * MS, "{accepted_after}: {} us", (world.now - begin) / US);
        }
    }
}

#[test]
fn what_is_withdrawn_is_noted_where_others_have_all_the_room_for_what_is_missing() {
    const UNDER_WAY: u16 = 300;
    let mut world = world_of(74);
    let mut claimers: Vec<_> = (8..74).map(|host| Speaker::new(&mut world, host, 1, Mode::Stream)).collect();
    let mut speaker = Speaker::new(&mut world, 1, 1, Mode::Stream);
    for claimer in &mut claimers {
        claimer.number = claimer.number.wrapping_add(16_300);
        claimer.tell(&mut world, |_| true);
    }
    pass(&mut world, MS);
    let mut flows = unread(&mut world, 2..8, 0, 10);
    carry_until(&mut world, &mut flows, S, |_, _| false);
    let said = listen_to(&mut world);
    while said.borrow().returns.is_empty() {
        speaker.say(&mut world, 0, 1, DATA, &[7; BYTES]);
        pass(&mut world, MS);
    }
    let (channel, low) = said.borrow().returns[0];
    (1..UNDER_WAY).for_each(|_| speaker.say(&mut world, 0, 1, DATA, &[7; BYTES]));
    pass(&mut world, MS);
    let void = Void { channel, low, count: UNDER_WAY, until: UNDER_WAY };
    for _ in 0..10 {
        speaker.tell(&mut world, |blocks| blocks.void(&void));
        pass(&mut world, 10 * MS);
    }
    assert_eq!(said.borrow().ack.wrapping_sub(low), UNDER_WAY.into());
}
