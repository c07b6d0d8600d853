//! A gateway whose neighbours, and others, send anything.

use ropeway_proto::gateway::{Accepted, Forwarder, GatewayCounters, Limits};
use ropeway_proto::{Path, SHIM_BYTES, Shim};
use std::collections::VecDeque;

const LIMITS: Limits = Limits { queue_bytes: 4096, mark_bytes: 1024 };

/// Of what the links bear.
const LONGEST_BYTES: usize = 1000;

fn path(number: u8) -> Path {
    Path([number; Path::BYTES])
}

/// The neighbour of each node.
const TABLE: [(u32, u8); 4] = [(1, 1), (2, 2), (3, 2), (17, 3)];

/// A host, and its neighbour.
const HOST: (u16, u8) = (5, 3);

/// The neighbour for a node: of its own, or its host's.
fn neighbour(node: u32) -> Option<u8> {
    let is_of_host = node >> 16 == u32::from(HOST.0) && node as u16 != 0;
    let own = TABLE.iter().find(|(known, _)| *known == node).map(|(_, to)| *to);
    own.or(is_of_host.then_some(HOST.1))
}

/// A script of packets: from whom (one byte), how long (two), the bytes. Nothing is forwarded but what came from a neighbour, is well formed and has hops left;
/// nothing is changed but hops and mark; and all that came is accounted for.
pub fn gateway(script: &[u8]) -> GatewayCounters {
    let table = TABLE.map(|(node, number)| (node, path(number)));
    let mut forwarder = Forwarder::with_hosts(&table, &[(HOST.0, path(HOST.1))], LIMITS).expect("a good table");
    // What may leave towards each neighbour: in the order in which it came.
    let mut came: Vec<VecDeque<(u8, Vec<u8>)>> = vec![VecDeque::new(); 256];
    let mut rest = script;
    while let [from, high, low, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([high & 0x07, *low])).min(tail.len());
        let (bytes, after) = tail.split_at(length);
        rest = after;
        let number = from & 0x07;
        forwarder.take(&path(number), from & 0x40 != 0, bytes);
        if let Ok((shim, _)) = Shim::parse(bytes)
            && let Some(to) = neighbour(shim.destination)
        {
            came[usize::from(to)].push_back((number, bytes.to_vec()));
        }
        let (packets, waiting_bytes) = forwarder.waiting();
        assert!(waiting_bytes <= 3 * LIMITS.queue_bytes && packets <= waiting_bytes);
        // Now and then links take some.
        if from & 0x80 != 0 {
            let most = usize::from(high >> 3);
            let mut taken = 0;
            forwarder.transmit_by(&mut |to, _, packets| {
                let count = packets.len().min(most - taken);
                taken += count;
                packets[..count].iter().for_each(|packet| check(to, packet, &mut came));
                Accepted { packets: count, longest_bytes: LONGEST_BYTES }
            });
        }
    }
    forwarder.transmit_by(&mut |to, _, packets| {
        packets.iter().for_each(|packet| check(to, packet, &mut came));
        Accepted { packets: packets.len(), longest_bytes: LONGEST_BYTES }
    });
    let counters = forwarder.counters();
    assert_eq!(forwarder.waiting(), (0, 0));
    assert_eq!(counters.received, counters.forwarded + counters.dropped());
    counters
}

fn check(to: &Path, packet: &[u8], came: &mut [VecDeque<(u8, Vec<u8>)>]) {
    let (shim, inside) = Shim::parse(packet).expect("a shim");
    let queue = &mut came[usize::from(to.0[0])];
    loop {
        // Some were dropped on the way.
        let (from, before) = queue.pop_front().expect("it came in before");
        let (was, inside_before) = Shim::parse(&before).expect("a shim");
        let is_it = inside == inside_before && was.hops.checked_sub(1) == Some(shim.hops);
        // Nothing goes back where it came from; the same may come from somebody else.
        let may_come = (1..=3).contains(&from) && path(from) != *to;
        if is_it && (was.destination, was.source) == (shim.destination, shim.source) && may_come {
            assert!(shim.congested || !was.congested, "a mark does not go away");
            assert_eq!(packet.len(), inside.len() + SHIM_BYTES);
            return;
        }
    }
}
