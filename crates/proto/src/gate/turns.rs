//! Who is granted something next, and how much: quanta, ends and shares, and who is suspect (docs/protocol.md 6). Not here: what there is to grant.

use super::sender::{Demand, Sender};
use super::{Gate, SUSPECT_MIN_NS, SUSPECT_ROUND_TRIPS};
use crate::config::Order;
use crate::pace::PAIR_PACKETS;
use crate::time::Time;

/// Senders that hold grants at least, if so many are active and far from their ends: one that is slow to answer must not idle the line.
const HOLDERS: u64 = 8;
/// A grant is an eighth of the budget without the pipe (8 packets of 1472 bytes with a port of 128 KiB), up to one segmented send.
const QUANTUM_MOST_PACKETS: u64 = 44;
/// The end of a transfer is granted at once if it is no longer than so many of them ...
const END_QUANTA: u64 = 2;
/// ... or, divided by the number of the others, than this share of the budget. In turns, two that begin together both end when the later one does.
const END_NUMERATOR: u64 = 3;
const END_DENOMINATOR: u64 = 4;
/// Suspects are looked for no more often than this.
const SUSPECT_SCAN_NS: u64 = 250_000;
/// The share of the budget that may be granted again against suspects.
const SUSPECT_SHARE: u64 = 4;
/// All slow senders together have this share of the budget beside others, or one turn.
pub const SLOW_SHARE: u64 = 2;
/// All whose last grant was taken back have this share, or one packet, until they use something: who does has used it a round trip later, and who never does holds it for several leases.
pub const UNUSED_SHARE: u64 = 4;
/// Under `srpt` this share of the budget is not for the first one.
const SRPT_REST: u64 = 4;
/// Under `srpt` every so many quanta one goes to who has waited longest.
const SRPT_FIFO_EVERY: u64 = 8;

impl Gate {
    /// Hands out what is free: `grant(index, packets)` for each sender that gets some.
    pub fn distribute(&mut self, now: Time, mut grant: impl FnMut(u32, u64)) {
        self.has_freed = false;
        self.is_short = !self.waiting.is_empty() && self.grantable_bytes() == 0;
        if self.waiting.is_empty() || self.is_short {
            return;
        }
        while let Some((place, packets)) = self.choose() {
            let index = self.waiting[place];
            let Sender { demand, .. } = *self.sender(index);
            if packets == 0 {
                self.leave_queue(place);
                continue;
            }
            let bytes = packets * demand.frame_bytes;
            let cost = demand.cost(bytes);
            // A budget smaller than a quantum still lets one sender through.
            if cost > self.free_bytes() && self.sums.charged_bytes > 0 {
                self.counters.exhausted += 1;
                if self.find_suspects(now) {
                    // It may be this one, and who is next costs less.
                    continue;
                }
                self.is_short = true;
                return;
            }
            self.leave_queue(place);
            let wanted_packets = demand.wanted_packets - packets;
            let outstanding_packets = demand.outstanding_packets + packets;
            self.set_demand(index, Demand { outstanding_packets, wanted_packets, ..demand });
            self.fair_floor_bytes = self.fair_floor_bytes.max(self.sender(index).served_bytes);
            let sender = self.sender(index);
            sender.served_bytes += bytes;
            sender.heard_at = now;
            if wanted_packets > 0 {
                self.sender(index).waiting = true;
                self.waiting.push_back(index);
            }
            self.quanta += 1;
            self.counters.grants += 1;
            self.counters.granted_packets += packets;
            grant(index, packets);
        }
    }

    pub(super) fn leave_queue(&mut self, place: usize) {
        if let Some(index) = self.waiting.remove(place) {
            self.sender(index).waiting = false;
        }
    }

    /// The place in the queue of who is next, and what it gets.
    fn choose(&self) -> Option<(usize, u64)> {
        let sender = |index: u32| &self.senders[index as usize];
        let mut next = self.waiting.iter().enumerate().filter_map(|(place, &index)| {
            let packets = self.next_packets(sender(index))?;
            Some((place, index, packets))
        });
        let chosen = match self.order {
            Order::Srpt if !self.quanta.is_multiple_of(SRPT_FIFO_EVERY) => {
                next.min_by_key(|&(_, index, _)| sender(index).demand.backlog_bytes)
            }
            Order::Fair => next.min_by_key(|&(_, index, _)| sender(index).served_bytes),
            Order::Fifo | Order::Srpt => next.next(),
        };
        chosen.map(|(place, _, packets)| (place, packets))
    }

    /// Packets that a sender gets next: a quantum, or all the rest if that is little. Of messages of one length some need a turn more than others, by a packet, and that turn would be the last of a round.
    /// `None`: it holds too much for that. A part of them would be worse than nothing, or every arrival would be answered by a grant of one packet.
    fn next_packets(&self, sender: &Sender) -> Option<u64> {
        let demand = &sender.demand;
        let quantum = self.quantum(demand.frame_bytes);
        // Of a budget that is hardly one packet the end is no more than a quantum, and with a window that is no more either it goes on in parts.
        let room = self.grantable_bytes() / demand.frame_bytes.max(1);
        let end = (END_QUANTA * quantum).min((room * END_QUANTA / HOLDERS).max(quantum)).max(self.end_beside_few(room));
        let fits = self.window_packets == 0 || demand.wanted_packets <= self.window_packets;
        let is_end = demand.wanted_packets <= end && fits;
        let (turn, least) = if is_end { (demand.wanted_packets, end) } else { (quantum, quantum) };
        let most = self.most_held(demand.frame_bytes, least);
        if demand.left_unused {
            let packets = turn.min(most);
            let held = self.sums.unused_bytes;
            let are_many = held > 0 && held + packets * demand.frame_bytes > self.grantable_bytes() / UNUSED_SHARE;
            let fits = demand.outstanding_packets + packets <= most;
            return (fits && !are_many).then_some(packets);
        }
        if let Some(most) = demand.most_held.map(|paced| paced.min(most)).filter(|_| self.sums.demanding > 1) {
            // As much for each of them, or what is left of their part would always go to those who want less.
            let packets = turn.min(PAIR_PACKETS).min(most);
            let fits = demand.outstanding_packets + packets <= most;
            let held = self.sums.slow_bytes;
            let are_many = self.sums.sharing > 0
                && held > 0
                && held + demand.cost(packets * demand.frame_bytes) > self.grantable_bytes() / SLOW_SHARE;
            return (fits && !are_many).then_some(packets);
        }
        let packets = turn.min(most);
        (sender.held_packets() + packets <= most).then_some(packets)
    }

    /// The longest end of a transfer, in packets, that is granted at once beside few others, out of a budget with `room` for so many. While somebody does not use what it has, all go on in turns: what is
    /// free may never be as much.
    fn end_beside_few(&self, room: u64) -> u64 {
        let others = self.company.saturating_sub(1);
        if others == 0 || self.sums.suspect_bytes > 0 { 0 } else { room * END_NUMERATOR / END_DENOMINATOR / others }
    }

    fn quantum(&self, frame_bytes: u64) -> u64 {
        let bytes = self.grantable_bytes().min(self.port_share_bytes);
        (bytes / (HOLDERS * frame_bytes.max(1))).clamp(1, QUANTUM_MOST_PACKETS)
    }

    /// Packets that one sender may hold: an equal share among those who want or hold something, or did of late, of which eight at most are counted. Should it fall silent,
    /// the others go on with theirs. Under `srpt` who is first may have most of it. It is `least` packets at least, unless `burst_length` is less.
    fn most_held(&self, frame_bytes: u64, least: u64) -> u64 {
        let budget = self.grantable_bytes();
        let share = match self.order {
            Order::Srpt if self.sums.demanding > 1 => budget - budget / SRPT_REST,
            _ => budget / self.company.clamp(1, HOLDERS),
        } / frame_bytes.max(1);
        let quantum = self.quantum(frame_bytes);
        // Grants are whole quanta, and what the pipe adds to a share is often less than one.
        let most = if budget > self.port_share_bytes { share.next_multiple_of(quantum) } else { share }.max(least);
        if self.window_packets > 0 { most.min(self.window_packets) } else { most }
    }

    /// Packets that a sender is charged for as missing and asked for: no more than its share, as that is what can have been lost, and how far it has sent is its own word.
    pub(super) fn charged_asked(&self, demand: &Demand) -> u64 {
        match demand.asked_packets {
            0 => 0,
            asked => u64::from(asked).min(self.most_held(demand.frame_bytes, 1)),
        }
    }

    /// What can be granted now, counting a part of what suspects hold as free.
    fn free_bytes(&self) -> u64 {
        let budget = self.grantable_bytes();
        (budget + self.sums.suspect_bytes.min(budget / SUSPECT_SHARE))
            .saturating_sub(self.sums.charged_bytes + self.starters_bytes)
    }

    /// Marks who holds grants and has been silent. Says whether that changed anything.
    pub(super) fn find_suspects(&mut self, now: Time) -> bool {
        if now.since(self.scan_at) < SUSPECT_SCAN_NS {
            return false;
        }
        self.scan_at = now;
        let before = self.counters.suspects;
        for place in 0..self.charged.len() {
            let index = self.charged[place];
            let sender = self.senders[index as usize];
            // A granted packet stands in the port's queue behind everything else that was granted.
            let patience = SUSPECT_MIN_NS.max(SUSPECT_ROUND_TRIPS * sender.demand.round_trip_ns) + self.drain_ns;
            if !sender.suspect && now.since(sender.heard_at) > patience {
                self.change(index, |sender| sender.suspect = true);
                self.counters.suspects += 1;
            }
        }
        let found = self.counters.suspects > before;
        if found {
            // Nobody who is silent gets more; it comes back into the queue with its next word.
            let senders = &mut self.senders;
            self.waiting.retain(|&index| {
                let sender = &mut senders[index as usize];
                sender.waiting = !sender.suspect;
                sender.waiting
            });
        }
        found
    }
}
