//! Channels share an association, and neither a long message nor a loss on one holds up another (docs/protocol.md 4, 7).

use std::cell::Cell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::config::Order;
use ropeway_proto::{ChannelId, Config, Mode};
use ropeway_wire::{Packet, Type};

const LINE: u64 = 1_000_000_000;

fn ways(world: &mut World, count: usize) -> Vec<((usize, ChannelId), (usize, ChannelId))> {
    (0..count)
        .map(|_| {
            let (client, server) = pair(world, Mode::Messages);
            ((0, client), (1, server))
        })
        .collect()
}

in_every_way!(a_short_message_overtakes_long_ones_of_other_channels);
fn a_short_message_overtakes_long_ones_of_other_channels() {
    for (order, longs) in [(Order::Fifo, 1), (Order::Srpt, 1), (Order::Fair, 1), (Order::Fifo, 7)] {
        let config = Config { order, ..Config::default() };
        let mut world = World::new(2, Net { rate: LINE, ..Net::default() }, &config, 1);
        let ways = ways(&mut world, longs + 1);
        let size = 2 << 20;
        let mut flows: Vec<_> = ways[1..].iter().map(|&(from, to)| Flow::messages(from, to, size / longs, 1)).collect();
        carry_until(&mut world, &mut flows, 3 * MS, |_, _| false);
        let begin = world.now;
        let (from, to) = ways[0];
        flows.push(Flow::messages(from, to, 1000, 1));
        let taken = carry(&mut world, &mut flows, S);
        let (short, longest) = (flows[longs].done_at[0] - begin, taken);
        // What had been granted when it came is before it, and no more than the budget flies.
        assert!(short < MS, "{order:?}: {short} ns behind {longs}");
        assert!(longest > 12 * MS, "the others were long: {longest} ns");
    }
}

in_every_way!(a_loss_stops_its_own_channel_only);
fn a_loss_stops_its_own_channel_only() {
    const CHANNELS: usize = 4;
    const MESSAGES: u64 = 400;
    let mut world = World::new(2, Net { rate: LINE, ..Net::default() }, &Config::default(), 1);
    let ways = ways(&mut world, CHANNELS);
    let mut flows: Vec<_> = ways.iter().map(|&(from, to)| Flow::messages(from, to, 2000, 50)).collect();
    carry(&mut world, &mut flows, S);
    // One packet of the third channel is lost, and its repetitions with it.
    let (number, losses) = (Cell::new(None), Rc::new(Cell::new(0)));
    let times = Rc::clone(&losses);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        let is_data = from == 0 && header.kind == Type::Data;
        if is_data && header.channel == 4 && number.get().is_none() {
            number.set(Some(header.number));
        }
        let is_lost = is_data && number.get() == Some(header.number);
        times.set(times.get() + u32::from(is_lost));
        !is_lost
    }));
    let before = flows[2].received;
    flows.iter_mut().for_each(|flow| flow.total += MESSAGES * 2000);
    let others = |flows: &[Flow]| flows.iter().enumerate().all(|(at, flow)| at == 2 || flow.is_done());
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| others(flows)), "the others go on");
    assert_eq!(flows[2].received, before, "nothing of it comes before what is missing");
    assert!(losses.get() > 3, "which was lost {} times", losses.get());
    world.filter = None;
    let taken = carry(&mut world, &mut flows, S);
    // A request comes at the latest when its timer has doubled that far.
    assert!(taken < 10 * MS, "{taken} ns until what was held is there");
}
