//! Members of the cluster that are in the middle of transfers when they begin to say what they like: the hosts are stopped, and the tests speak for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use ropeway_proto::{ChannelId, Config, Mode};
use ropeway_wire::{Backlog, BlockWriter, Flags, Header, Packet, Type};

/// DATA with the long and the short header as its first byte.
pub const DATA: [u8; 2] = [0x17, 0x10];

/// So many senders, where nothing else is said, that use nothing of what they are granted, but speak, each every 19 ms, just before their leases would be over: all at once, or in turn.
pub const IDLERS: usize = 8;
pub const SPEAKS_NS: u64 = 19 * MS;

/// The first `count` hosts behind 0 are in the middle of transfers to it when they begin to do that; the last one has a channel and begins. Gives what they say.
pub fn idlers(count: usize, delay_ns: u64, rate: u64) -> (World, Vec<Flow>, Vec<Header>) {
    idlers_with(&Config::default(), count, delay_ns, rate)
}

/// The same between hosts with this configuration.
pub fn idlers_with(config: &Config, count: usize, delay_ns: u64, rate: u64) -> (World, Vec<Flow>, Vec<Header>) {
    let net = Net { rate, delay_ns, ..Net::default() };
    let mut world = World::new(count + 2, net, config, 1);
    let mut flows: Vec<_> = (1..=count + 1)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), if from <= count { 1 << 30 } else { 0 })
        })
        .collect();
    let said = Rc::new(RefCell::new(BTreeMap::new()));
    let out = Rc::clone(&said);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from > 0 && DATA.contains(&bytes[0]) {
            let next = header.number.wrapping_add(1);
            let newest = out.borrow().get(&from).map_or(header, |before: &Header| *before);
            // What is sent again is not the newest.
            let is_newer = next.wrapping_sub(newest.number) as i32 > 0;
            let moment = if header.is_short { newest } else { header };
            let number = if is_newer { next } else { newest.number };
            out.borrow_mut().insert(from, Header { number, ..moment });
        }
        true
    }));
    let have_some =
        |_: &World, flows: &[Flow]| flows[..count].iter().all(|flow| flow.received > 2_400_000 / count as u64);
    assert!(carry_until(&mut world, &mut flows, 5 * S, have_some));
    world.stopped.extend(1..=count);
    pass(&mut world, 10 * delay_ns);
    world.filter = None;
    let said = said.borrow().values().copied().collect();
    (world, flows, said)
}

pub fn granted(world: &World, flow: &Flow) -> u64 {
    let (host, channel): (usize, ChannelId) = flow.to;
    world.hosts[host].statistics(world.clock(host), channel).unwrap().association.unwrap().granted_packets
}

/// A packet of a host that says what it likes.
pub fn say(world: &mut World, from: usize, header: Header, payload: &[u8]) {
    say_flagged(world, from, Flags::NONE, header, payload);
}

fn say_flagged(world: &mut World, from: usize, flags: Flags, header: Header, payload: &[u8]) {
    let time = (world.now / (4 * US)) as u16;
    let mut bytes = [0; 64];
    let length = Header { is_short: false, flags, time, ..header }.write(&mut bytes).unwrap();
    world.inject(from, 0, &[&bytes[..length], payload].concat());
}

/// A host that says what it likes on channels to host 0, of which each has brought a byte, or a message of one, that was read.
pub struct Speaker {
    host: usize,
    /// The ends of its channels at host 0.
    pub readers: Vec<ChannelId>,
    /// Of its next packet.
    pub number: u32,
    channels: Vec<u16>,
    moment: Header,
}

impl Speaker {
    pub fn new(world: &mut World, host: usize, channels: usize, mode: Mode) -> Speaker {
        let said = Rc::new(RefCell::new(Vec::new()));
        let out = Rc::clone(&said);
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let header = Packet::parse(bytes).unwrap().header;
            if from == host && header.kind == Type::Data {
                out.borrow_mut().push(header);
            }
            true
        }));
        let readers = (0..channels)
            .map(|_| {
                let port = if mode == Mode::Stream { 10 } else { 11 };
                let (client, server) = open(world, host, 0, port, mode);
                let now = world.clock(host);
                world.hosts[host].send(now, client, &[7]).unwrap();
                world.hosts[host].flush(client);
                pass(world, MS);
                assert_eq!(world.hosts[0].recv(server, &mut [0; 10]), Ok(Some(1)));
                server
            })
            .collect();
        world.filter = None;
        world.stopped.insert(host);
        let said = said.take();
        assert_eq!(said.len(), channels, "each byte once");
        let channels = said.iter().map(|header| header.channel).collect();
        let moment = said[said.len() - 1];
        Speaker { host, readers, number: moment.number.wrapping_add(1), channels, moment }
    }

    /// A packet on this one of its channels, behind that with the number `back` lower; 0: behind what has arrived.
    pub fn say(&mut self, world: &mut World, channel: usize, back: u16, what: (Type, Flags), payload: &[u8]) {
        let (channel, length, number) = (self.channels[channel], payload.len() as u16, self.number);
        self.number = number.wrapping_add(1);
        let header = Header { kind: what.0, channel, back, length, number, ..self.moment };
        say_flagged(world, self.host, what.1, header, payload);
    }

    /// The number on the wire of one of its channels.
    pub fn channel(&self, channel: usize) -> u16 {
        self.channels[channel]
    }

    /// A CONTROL with these blocks.
    pub fn tell(&self, world: &mut World, write: impl FnOnce(&mut BlockWriter<'_>) -> bool) {
        let mut out = [0; 256];
        let mut blocks = BlockWriter::new(&mut out);
        assert!(write(&mut blocks));
        let length = blocks.len();
        let header = Header { kind: Type::Control, length: length as u16, number: self.number, ..self.moment };
        say(world, self.host, header, &out[..length]);
    }
}

/// Word after word of them for a while, and what the last one sends beside that.
pub fn speak(world: &mut World, flows: &mut [Flow], said: &[Header], in_turn: bool, kind: Type, lasts_ns: u64) {
    let end = world.now + lasts_ns;
    while world.now < end {
        for (sender, moment) in said.iter().enumerate() {
            say(world, sender + 1, Header { kind, length: 0, backlog: Backlog::from_bytes(1 << 20), ..*moment }, &[]);
            if in_turn {
                carry_until(world, &mut flows[said.len()..], SPEAKS_NS / said.len() as u64, |_, _| false);
            }
        }
        if !in_turn {
            carry_until(world, &mut flows[said.len()..], SPEAKS_NS, |_, _| false);
        }
    }
}
