//! Watches the transmission counters of sealed packets as they leave their hosts: no key may seal two packets with one counter (docs/protocol.md 9.4).
//!
//! It sees what an observer of the network sees. Towards one id counters only go up, through all changes of keys; they begin at 0 with each association, and
//! associations are no more than there are answers to attempts.

use std::collections::{BTreeMap, BTreeSet};

use ropeway_wire::{COUNTER_BYTES, Packet, Type};

use super::is_keyed;

/// Host, peer, and which of the peer's addresses.
type Way = (usize, usize, u64);

#[derive(Default)]
pub struct CounterOracle {
    /// The last counter towards an id.
    last: BTreeMap<(Way, u32), u64>,
    /// Associations that began, seen by their first packets in this direction.
    beginnings: BTreeMap<Way, usize>,
    /// Answers to attempts between two hosts, each once.
    answers: BTreeMap<Way, BTreeSet<Vec<u8>>>,
    /// Sealed packets seen.
    pub sealed: u64,
    /// Kept from looking where some hosts have no key.
    pub off: bool,
}

impl CounterOracle {
    pub fn note(&mut self, from: usize, to: usize, alias: u64, bytes: &[u8]) {
        if !is_keyed() || self.off {
            return;
        }
        let Ok(packet) = Packet::parse(bytes) else { return };
        let way = (from, to, alias);
        if packet.header.kind == Type::Opened {
            for way in [way, (to, from, alias)] {
                self.answers.entry(way).or_default().insert(packet.payload.to_vec());
            }
        }
        if !packet.header.kind.is_sealed() {
            return;
        }
        let sealed = packet.sealed().expect("what hosts with a key say to each other is sealed");
        self.sealed += 1;
        let low = u64::from(sealed.counter);
        let id = (way, packet.header.destination.0);
        if low == 0 && self.last.get(&id).is_none_or(|&last| last < u64::from(u32::MAX) / 2) {
            *self.beginnings.entry(way).or_default() += 1;
            // Who talks to himself goes both ways at once.
            let directions = if from == to { 2 } else { 1 };
            let answers = directions * self.answers.get(&way).map_or(0, BTreeSet::len);
            assert!(self.beginnings[&way] <= answers, "a counter begins again without a new key: {from} to {to}");
        } else {
            let last = self.last.get(&id).copied();
            assert!(last.is_some_and(|last| low > last), "counter {low} after {last:?} from {from} to {to}");
        }
        self.last.insert(id, low);
        assert_eq!(sealed.associated.len(), packet.header.bytes() + COUNTER_BYTES);
    }
}
