//! Who waits for a grant, in the order in which they are served (docs/protocol.md 6). Not here: what each of them gets.
//!
//! Ten thousand may wait, and those who hold nothing and get nothing now have the reason in common with all of their kind. So each kind stands in a line of
//! its own, and the first such sender in it speaks for those behind it.

use std::collections::{BTreeMap, VecDeque};

use super::Gate;
use super::sender::{Demand, Sender};
use crate::config::Order;

/// Senders that share what bounds their grants: those that use them, slow ones, and those whose last grant was taken back.
const KINDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usual,
    Slow,
    Unused,
}

/// Where a sender stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    kind: Kind,
    /// What the order goes by, if not by who asked first: who has least is next.
    rank: u64,
    /// Counted up from one who asked to the next.
    ticket: u64,
    /// A full packet of it, in a place that would be empty.
    frame_bytes: u32,
}

impl Place {
    fn new(sender: &Sender, order: Order, ticket: u64) -> Place {
        let kind = match sender.demand {
            Demand { left_unused: true, .. } => Kind::Unused,
            Demand { most_held: Some(_), .. } => Kind::Slow,
            _ => Kind::Usual,
        };
        let rank = match order {
            Order::Fifo => 0,
            Order::Srpt => sender.demand.backlog_bytes,
            Order::Fair => sender.served_bytes,
        };
        Place { kind, rank, ticket, frame_bytes: sender.demand.frame_bytes as u32 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Tickets and senders, in the order of asking; but not under `fair`, which never goes by that. Who leaves does so near the front mostly, and by `srpt` anywhere.
    pub(super) by_age: [VecDeque<(u64, u32)>; KINDS],
    /// Senders by rank and ticket; but not under `fifo`.
    pub(super) ranked: [BTreeMap<(u64, u64), u32>; KINDS],
    count: usize,
    /// A full packet of each of them.
    packets_bytes: u64,
    tickets: u64,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A packet for each who waits.
    pub(super) fn packets_bytes(&self) -> u64 {
        self.packets_bytes
    }

    fn insert(&mut self, index: u32, place: Place, order: Order) {
        let Place { kind, rank, ticket, frame_bytes } = place;
        self.count += 1;
        self.packets_bytes += u64::from(frame_bytes);
        if order != Order::Fair {
            let line = &mut self.by_age[kind as usize];
            match line.back().is_none_or(|last| last.0 < ticket) {
                true => line.push_back((ticket, index)),
                false => line.insert(line.partition_point(|other| other.0 < ticket), (ticket, index)),
            }
        }
        if order != Order::Fifo {
            self.ranked[kind as usize].insert((rank, ticket), index);
        }
    }

    /// Its rank is another one.
    fn rank_anew(&mut self, index: u32, before: Place, rank: u64) {
        let line = &mut self.ranked[before.kind as usize];
        line.remove(&(before.rank, before.ticket));
        line.insert((rank, before.ticket), index);
    }

    fn remove(&mut self, place: Place, order: Order) {
        let Place { kind, rank, ticket, frame_bytes } = place;
        self.count -= 1;
        self.packets_bytes -= u64::from(frame_bytes);
        if order != Order::Fair {
            let line = &mut self.by_age[kind as usize];
            match line.front() {
                Some(first) if first.0 == ticket => line.pop_front(),
                _ => line.remove(line.partition_point(|other| other.0 < ticket)),
            };
        }
        if order != Order::Fifo {
            self.ranked[kind as usize].remove(&(rank, ticket));
        }
    }
}

impl Gate {
    /// It wants something, and goes behind all others that asked.
    pub(super) fn join_queue(&mut self, index: u32) {
        let (order, ticket) = (self.order, self.waiting.tickets);
        self.waiting.tickets += 1;
        let sender = self.sender(index);
        let place = Place::new(sender, order, ticket);
        sender.place = Some(place);
        self.waiting.insert(index, place, order);
    }

    pub(super) fn leave_queue(&mut self, index: u32) {
        if let Some(place) = self.sender(index).place.take() {
            self.waiting.remove(place, self.order);
        }
    }

    /// What it wants, or what it is, has changed: it keeps its place among those who asked, and may have another in its order.
    pub(super) fn move_in_queue(&mut self, index: u32) {
        let order = self.order;
        let sender = self.sender(index);
        let Some(before) = sender.place else { return };
        let after = Place::new(sender, order, before.ticket);
        if after == before {
            return;
        }
        sender.place = Some(after);
        if (after.kind, after.frame_bytes) == (before.kind, before.frame_bytes) {
            self.waiting.rank_anew(index, before, after.rank);
        } else {
            self.waiting.remove(before, order);
            self.waiting.insert(index, after, order);
        }
    }

    /// Another order, or none at all: who waits does so on, in the order of asking.
    pub(super) fn set_order(&mut self, order: Order, is_any: bool) {
        let ticket = |index: &u32| self.senders[*index as usize].place.map(|place| place.ticket);
        let mut waiting: Vec<_> = (0..self.senders.len() as u32).filter(|index| ticket(index).is_some()).collect();
        waiting.sort_by_key(ticket);
        waiting.iter().for_each(|&index| self.leave_queue(index));
        self.order = order;
        waiting.iter().filter(|_| is_any).for_each(|&index| self.join_queue(index));
    }

    /// Whether each sender stands where it should, and nobody else does: for tests.
    pub(super) fn queue_is_true(&self) -> bool {
        let Queue { by_age, ranked, count, packets_bytes, .. } = &self.waiting;
        let waiting = self.senders.iter().enumerate().filter_map(|(index, sender)| Some((index as u32, sender.place?)));
        let stands = |(index, place): (u32, Place)| {
            let Place { kind, rank, ticket, .. } = place;
            place == Place::new(&self.senders[index as usize], self.order, ticket)
                && (self.order == Order::Fair || by_age[kind as usize].binary_search(&(ticket, index)).is_ok())
                && (self.order == Order::Fifo || ranked[kind as usize].get(&(rank, ticket)) == Some(&index))
        };
        let by_age: usize = by_age.iter().map(VecDeque::len).sum();
        let ranked: usize = ranked.iter().map(BTreeMap::len).sum();
        waiting.clone().count() == *count
            && waiting.clone().all(stands)
            && waiting.map(|(_, place)| u64::from(place.frame_bytes)).sum::<u64>() == *packets_bytes
            && by_age == if self.order == Order::Fair { 0 } else { *count }
            && ranked == if self.order == Order::Fifo { 0 } else { *count }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{FRAME, demand};
    use super::*;
    use crate::config::Config;
    use crate::time::Time;

    /// Who asked, in that order, and who is next, as found by walking over all of them.
    struct Walk {
        asked: VecDeque<u32>,
        /// Of a kind, who holds nothing and gets nothing lets the others wait.
        bars: bool,
    }

    impl Walk {
        /// Something has happened; `granted`: somebody has had its turn.
        fn follow(&mut self, gate: &Gate, granted: Option<u32>) {
            self.asked.retain(|&index| gate.senders[index as usize].place.is_some() && Some(index) != granted);
            let joined = |index: &u32| gate.senders[*index as usize].place.is_some() && !self.asked.contains(index);
            let joined: Vec<_> = (0..gate.senders.len() as u32).filter(joined).collect();
            assert!(joined.len() <= 1, "one at a time");
            self.asked.extend(joined);
        }

        fn choose(&self, gate: &Gate) -> Option<(u32, u64)> {
            let sender = |index: u32| &gate.senders[index as usize];
            let mut in_order: Vec<_> = self.asked.iter().copied().collect();
            match gate.order {
                Order::Srpt if !gate.quanta.is_multiple_of(8) => {
                    in_order.sort_by_key(|&index| sender(index).demand.backlog_bytes)
                }
                Order::Fair => in_order.sort_by_key(|&index| sender(index).served_bytes),
                Order::Fifo | Order::Srpt => {}
            }
            let mut barred = Vec::new();
            in_order.into_iter().find_map(|index| {
                let demand = &sender(index).demand;
                let kind = (demand.left_unused, !demand.left_unused && demand.is_slow());
                if barred.contains(&kind) {
                    return None;
                }
                let packets = gate.next_packets(sender(index), &gate.turn(demand.frame_bytes));
                if packets.is_none() && self.bars && sender(index).holds_nothing() {
                    barred.push(kind);
                }
                packets.map(|packets| (index, packets))
            })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Replay with `PROPTEST_CASES=1 cargo test -p ropeway-proto --lib turns_are_those` and the seed that the failure prints.
        #[test]
        fn turns_are_those_that_a_walk_over_all_who_wait_finds(
            order: usize,
            is_alike: bool,
            allowed in 1..64u64,
            window_packets in prop_oneof![4 => Just(0u16), 1 => 1..20u16],
            steps in prop::collection::vec((0..24u32, 0..12u32, 0..50u64, 0..200u64, 0..4u32, any::<bool>()), 1..200),
        ) {
            let config = |order: usize| {
                let order = [Order::Fifo, Order::Fair, Order::Srpt][order % 3];
                Config { order, window_packets, ..Config::default() }
            };
            let mut gate = Gate::new(&config(order));
            gate.set_allowed(allowed * FRAME);
            // Where all of a kind get as much at a time, nobody has to let others wait.
            let mut walk = Walk { asked: VecDeque::new(), bars: !is_alike };
            for (step, (index, what, outstanding, backlog, asked, is_long)) in steps.into_iter().enumerate() {
                let now = Time::from_nanos(step as u64 * 200_000);
                let kind = what % 4;
                let mut demand = demand(if kind == 0 { outstanding } else { outstanding % 3 }, backlog + 100);
                demand.left_unused = kind == 1;
                demand.most_held = (kind > 1).then_some(2 + u64::from(what / 4));
                match kind {
                    1 if is_alike => (demand.outstanding_packets, demand.wanted_packets) = (0, 1),
                    2 | 3 if is_alike => demand.wanted_packets = 100 + backlog,
                    _ => demand.wanted_packets = backlog,
                }
                if !is_alike {
                    demand.is_quick = asked % 2 > 0;
                    demand.asked_packets = asked;
                    demand.frame_bytes = if is_long { 9100 } else { FRAME };
                }
                match what {
                    0 => gate.forget(index),
                    4 if is_long => gate.configure(&config(step)),
                    _ => gate.report(index, demand, if is_long { now } else { Time::ZERO }, now),
                }
                walk.follow(&gate, None);
                prop_assert!(gate.sums_are_true());
                gate.set_surroundings(100_000, 24, FRAME);
                for _ in 0..backlog % 7 {
                    prop_assert_eq!(gate.choose(), walk.choose(&gate));
                    let granted = gate.grant_next(now);
                    walk.follow(&gate, granted.map(|(index, _)| index));
                    prop_assert!(gate.sums_are_true());
                }
            }
        }
    }
}
