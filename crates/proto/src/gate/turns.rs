//! Who is granted something next, and how much: quanta, ends and shares, and who is suspect (docs/protocol.md 6). Not here: what there is to grant.

use super::queue::Queue;
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
/// What a sender was asked for is a part of its share beyond this part of it.
const ASKED_FREE_SHARE: u64 = 2;
/// Under `srpt` this share of the budget is not for the first one.
const SRPT_REST: u64 = 4;
/// Under `srpt` every so many quanta one goes to who has waited longest.
const SRPT_FIFO_EVERY: u64 = 8;

/// What senders whose frames are of one length get and may hold, in packets.
#[derive(Default)]
pub(super) struct Turn {
    frame_bytes: u64,
    quantum: u64,
    /// The end of a transfer is granted at once if it is no longer.
    end: u64,
    share: u64,
    /// Nobody may have more.
    window: u64,
}

impl Turn {
    /// Packets that one sender may hold: a share, and `least` at least, unless `burst_length` is less.
    fn most_held(&self, least: u64) -> u64 {
        self.share.max(least).min(self.window)
    }
}

impl Gate {
    /// Hands out what is free: `grant(index, packets)` for each sender that gets some.
    pub fn distribute(&mut self, now: Time, mut grant: impl FnMut(u32, u64)) {
        self.has_freed = false;
        self.is_short = !self.waiting.is_empty() && self.grantable_bytes() == 0;
        if self.is_short {
            return;
        }
        while let Some((index, packets)) = self.grant_next(now) {
            grant(index, packets);
        }
    }

    /// Grants some to who is next, if there is room for that.
    pub(super) fn grant_next(&mut self, now: Time) -> Option<(u32, u64)> {
        loop {
            let (index, packets) = self.choose()?;
            let demand = self.sender(index).demand;
            if packets == 0 {
                self.leave_queue(index);
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
                return None;
            }
            self.leave_queue(index);
            let wanted_packets = demand.wanted_packets - packets;
            let outstanding_packets = demand.outstanding_packets + packets;
            self.set_demand(index, Demand { outstanding_packets, wanted_packets, ..demand });
            let sender = self.sender(index);
            let served_bytes = sender.served_bytes;
            (sender.served_bytes, sender.heard_at) = (served_bytes + bytes, now);
            self.fair_floor_bytes = self.fair_floor_bytes.max(served_bytes);
            if wanted_packets > 0 {
                self.join_queue(index);
            }
            self.quanta += 1;
            self.counters.grants += 1;
            self.counters.granted_packets += packets;
            return Some((index, packets));
        }
    }

    /// Who is next, and what it gets.
    pub(super) fn choose(&self) -> Option<(u32, u64)> {
        let by_asking = match self.order {
            Order::Fifo => true,
            Order::Srpt => self.quanta.is_multiple_of(SRPT_FIFO_EVERY),
            Order::Fair => false,
        };
        let Queue { by_age, ranked, .. } = &self.waiting;
        let first = if by_asking {
            let lines = by_age.iter().filter(|line| !line.is_empty());
            lines
                .filter_map(|line| self.first_that_fits(line.iter().map(|&(ticket, index)| ((0, ticket), index))))
                .min()
        } else {
            let lines = ranked.iter().filter(|line| !line.is_empty());
            lines.filter_map(|line| self.first_that_fits(line.iter().map(|(&place, &index)| (place, index)))).min()
        };
        first.map(|(_, index, packets)| (index, packets))
    }

    /// The first of a line that gets something now, and what. Who holds nothing and gets nothing lets those behind it wait, too: it is what all of the line hold that leaves it no room, and it would never have
    /// any if others went on with less. Who holds something is passed over, and of such there are no more than the budget has packets, or twice that, as slow ones are charged for half.
    fn first_that_fits(&self, line: impl Iterator<Item = ((u64, u64), u32)>) -> Option<((u64, u64), u32, u64)> {
        let mut turn = Turn::default();
        for (place, index) in line {
            let sender = &self.senders[index as usize];
            // Nearly all have frames of one length.
            if turn.frame_bytes != sender.demand.frame_bytes {
                turn = self.turn(sender.demand.frame_bytes);
            }
            match self.next_packets(sender, &turn) {
                Some(packets) => return Some((place, index, packets)),
                None if sender.holds_nothing() => return None,
                None => {}
            }
        }
        None
    }

    /// Packets that a sender gets next: a quantum, or all the rest if that is little. Of messages of one length some need a turn more than others, by a packet, and that turn would be the last of a round.
    /// `None`: it holds too much for that. A part of them would be worse than nothing, or every arrival would be answered by a grant of one packet.
    pub(super) fn next_packets(&self, sender: &Sender, turn: &Turn) -> Option<u64> {
        let demand = &sender.demand;
        // With a window that is no more than an end it goes on in parts.
        let is_end = demand.wanted_packets <= turn.end.min(turn.window);
        let (turn, most) = match is_end {
            true => (demand.wanted_packets, turn.most_held(turn.end)),
            false => (turn.quantum, turn.most_held(turn.quantum)),
        };
        if demand.left_unused {
            let packets = turn.min(most);
            let held = self.sums.unused_bytes;
            let cost = packets * demand.frame_bytes;
            let are_many = held > 0 && (held + cost > self.grantable_bytes() / UNUSED_SHARE || cost > self.late_room());
            let fits = demand.outstanding_packets + packets <= most;
            return (fits && !are_many).then_some(packets);
        }
        if let Some(most) = demand.most_held.map(|paced| paced.min(most)).filter(|_| self.sums.demanding > 1) {
            // As much for each of them, or what is left of their part would always go to those who want less.
            let packets = turn.min(most).min(if demand.is_quick { most } else { PAIR_PACKETS });
            let fits = demand.outstanding_packets + packets <= most;
            let held = self.sums.slow_bytes;
            let cost = demand.cost(packets * demand.frame_bytes);
            let are_many = self.sums.sharing > 0
                && held > 0
                && (held + cost > self.grantable_bytes() / SLOW_SHARE || cost > self.late_room());
            return (fits && !are_many).then_some(packets);
        }
        let packets = turn.min(most);
        // Few that are missing do not stop the rest, or with shares of a turn each loss would.
        let asked = sender.asked_packets().saturating_sub(most / ASKED_FREE_SHARE);
        (demand.outstanding_packets + asked + packets <= most).then_some(packets)
    }

    /// What comes late or not at all: what was asked for, and what was granted to those who use it late or never.
    fn late_bytes(&self) -> u64 {
        self.charged_asked_bytes() + self.sums.unused_bytes + self.sums.slow_bytes
    }

    /// What more may be granted to those who use it late or never, so that others have a turn beside it: each kind has bounds of its own, and all of them together might leave none.
    /// A packet is for what a kind of which nobody holds any gets all the same.
    fn late_room(&self) -> u64 {
        let turn_bytes = self.grantable_bytes().min(self.port_share_bytes) / HOLDERS + self.largest_frame_bytes;
        self.grantable_bytes().saturating_sub(self.late_bytes() + self.starters_bytes + turn_bytes)
    }

    /// The longest end of a transfer, in packets, that is granted at once beside few others, out of a budget with `room` for so many. While somebody does not use what it has, all go on in turns: what is
    /// free may never be as much.
    fn end_beside_few(&self, room: u64) -> u64 {
        let others = self.company.saturating_sub(1);
        let late_bytes = self.late_bytes();
        let fits = late_bytes == 0 || late_bytes + self.starters_bytes <= self.grantable_bytes() / END_DENOMINATOR;
        if others == 0 || self.sums.suspect_bytes > 0 || !fits {
            0
        } else {
            room * END_NUMERATOR / END_DENOMINATOR / others
        }
    }

    /// The next turn of those whose frames are so long. A share is an equal one among those who want or hold something, or did of late, of which eight at most are counted: should one fall silent, the others go
    /// on with theirs. Under `srpt` who is first may have most of the budget.
    pub(super) fn turn(&self, frame_bytes: u64) -> Turn {
        let (budget, frame) = (self.grantable_bytes(), frame_bytes.max(1));
        let quantum = (budget.min(self.port_share_bytes) / (HOLDERS * frame)).clamp(1, QUANTUM_MOST_PACKETS);
        // Of a budget that is hardly one packet the end is no more than a quantum, nor is it where no more may come free.
        let room = budget / frame;
        let comes_free = budget.saturating_sub(self.late_bytes() + self.starters_bytes) / frame;
        let most = (room * END_QUANTA / HOLDERS).min(comes_free).max(quantum);
        let end = (END_QUANTA * quantum).min(most).max(self.end_beside_few(room));
        let share = match self.order {
            Order::Srpt if self.sums.demanding > 1 => budget - budget / SRPT_REST,
            _ => budget / self.company.clamp(1, HOLDERS),
        } / frame;
        // Grants are whole quanta, and what the pipe adds to a share is often less than one.
        let share = if budget > self.port_share_bytes { share.next_multiple_of(quantum) } else { share };
        let window = if self.window_packets > 0 { self.window_packets } else { u64::MAX };
        Turn { frame_bytes, quantum, end, share, window }
    }

    /// Packets that a sender is charged for as missing and asked for: no more than its share, as that is what can have been lost, and how far it has sent is its own word.
    pub(super) fn charged_asked(&self, demand: &Demand) -> u64 {
        match demand.asked_packets {
            0 => 0,
            asked => u64::from(asked).min(self.turn(demand.frame_bytes).most_held(1)),
        }
    }

    /// What can be granted now, counting a part of what suspects hold as free.
    fn free_bytes(&self) -> u64 {
        let (budget, sums) = (self.grantable_bytes(), &self.sums);
        let charged_bytes = sums.charged_bytes - sums.asked_bytes + self.charged_asked_bytes();
        (budget + sums.suspect_bytes.min(budget / SUSPECT_SHARE)).saturating_sub(charged_bytes + self.starters_bytes)
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
                // Nobody who is silent gets more; it comes back into the queue with its next word.
                self.leave_queue(index);
                self.counters.suspects += 1;
            }
        }
        self.counters.suspects > before
    }
}
