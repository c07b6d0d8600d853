//! Too little memory for what many send at the same time, or have sent and nobody reads: everybody goes on (docs/protocol.md 5, 7).

use std::collections::BTreeMap;

use crate::world::*;
use ropeway_proto::{Config, Mode, Part};
use ropeway_wire::{Packet, Type};

const MEMORY_BYTES: u64 = 1 << 20;

fn world_of(hosts: usize) -> World {
    let config = Config { receive_memory_bytes: MEMORY_BYTES, ..Config::default() };
    World::new(hosts, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1)
}

/// A message that fits the first window, on each of these channels from these hosts to host 0.
fn messages(world: &mut World, from: impl Iterator<Item = usize>, taken: bool) -> Vec<Flow> {
    let mut flow = |from| {
        let (client, server) = open(world, from, 0, 7, Mode::Messages);
        let taken = taken.then(|| (Vec::new(), Part::default()));
        Flow { taken, ..Flow::messages((from, client), (0, server), 30_000, 1) }
    };
    from.map(&mut flow).collect()
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
