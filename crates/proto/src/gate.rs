//! The gate: how much may fly towards this host, and from whom (docs/protocol.md 6).
//!
//! One budget in bytes stands for what the last switch port before the host can queue. A grant charges it, an arrival releases it; who wants more than
//! there is waits in a queue. The gate knows senders by the index of their association and keeps no packet; the endpoint tells it what each sender
//! wants and sends what it grants. In [`GateMode::Esp`] it holds acknowledgments back instead, as document 2 did ([2:3.2.6]).

mod adaptation;
mod queue;
pub mod sender;
#[cfg(test)]
mod tests;
pub mod turns;

use std::collections::VecDeque;

use self::adaptation::{Adaptation, Change, Seen};
use self::queue::Queue;
pub use self::sender::{Demand, GateCounters, Wish};
use self::sender::{Sender, Sums};
use crate::arrivals::Line;
use crate::config::{Config, GateMode, Order};
use crate::time::Time;

/// A sender that holds a grant and is silent for so many round trips ...
pub const SUSPECT_ROUND_TRIPS: u64 = 2;
/// ... and at least for this long is suspect.
pub const SUSPECT_MIN_NS: u64 = 1_000_000;
/// Who has ended a transfer counts for a share for so long, and the time that all grants take to arrive: it may be woken to begin the next one.
const COMPANY_NS: u64 = 1_000_000;
/// The share of the budget that is kept free for idle senders that begin.
const STARTERS_SHARE: u64 = 3;
/// What the budget grows back to is never less than this.
pub const LIMIT_FLOOR_BYTES: u64 = 16 << 10;
/// The budget is this share of the port's buffer; the rest is for first flights, acknowledgments and other people's packets.
pub const BUDGET_NUMERATOR: u64 = 3;
pub const BUDGET_DENOMINATOR: u64 = 4;
/// What a line of 1 Gbit/s, for which the tunable stands, would carry in a millisecond without frames around it. Ports of faster lines have larger buffers.
const PORT_LINE_BYTES_PER_MS: u64 = 125_000;
/// A pipe that holds less than this share of the port's buffer is not counted.
const SHORT_PIPE_SHARE: u64 = 8;
/// This share of the budget without the pipe is left to others by all who were asked for what is missing: how much that is is their own word. No more is left, as what they are asked for flies whether it is
/// charged or not: if all that was granted was lost in the port, that and as much more as is left have room there.
const UNASKED_SHARE: u64 = 4;
/// The share of first flights in the budget.
pub const FIRST_FLIGHT_SHARE: u64 = 4;

/// The admission control of one receiving host.
#[derive(Debug)]
pub struct Gate {
    mode: GateMode,
    order: Order,
    /// What the budget grows back to.
    limit_bytes: u64,
    /// What the tunable says of the port's buffer, and how many times as much ports of faster lines are taken to have at most.
    port_buffer_bytes: u64,
    port_buffer_most_times: u64,
    line: Line,
    /// What of the limit stands for the port, and not for what lies before it.
    port_share_bytes: u64,
    /// Frames that the host's links keep while nobody takes them.
    receive_slots: u64,
    /// A full packet of this endpoint on the medium.
    frame_bytes: u64,
    budget_bytes: u64,
    /// The share of the budget that is this process's, where several share a host.
    share_bytes: Option<u64>,
    /// What of that it may have granted now: others may still use the rest.
    allowed_bytes: u64,
    window_packets: u64,
    first_flight_most: u64,
    senders: Vec<Sender>,
    /// Those to whom something is charged, in no order: there may be thousands of others.
    charged: Vec<u32>,
    /// The largest frame of those that want or hold something, or did; of who was heard of last, if nobody does.
    largest_frame_bytes: u64,
    /// Who wants more, and is to be served in which order.
    waiting: Queue,
    /// Whose acknowledgments are held back, oldest first.
    held: VecDeque<u32>,
    /// Over all senders.
    sums: Sums,
    /// The most that had a share at the same time of late, and when that was: who has ended a transfer may begin the next one, behind all that others hold by then.
    company: u64,
    company_at: Time,
    /// The longest lease of these, and of others since there were none.
    longest_lease_ns: u64,
    /// Somebody waits, and it is the budget that there is too little of.
    is_short: bool,
    /// What was granted to somebody who has gone has not been granted again.
    has_freed: bool,
    scan_at: Time,
    quanta: u64,
    adaptation: Adaptation,
    /// How long what was granted takes to arrive at the rate of the line.
    drain_ns: u64,
    /// Kept free for senders that begin with a packet that nobody granted.
    starters_bytes: u64,
    /// Under `fair`, the most that one who was served had been given: who joins does not get more than a turn for the time before. Who is slow and always waits has far less.
    fair_floor_bytes: u64,
    counters: GateCounters,
}

impl Gate {
    pub fn new(config: &Config) -> Gate {
        let mut gate = Gate {
            mode: config.gate_mode,
            order: config.order,
            limit_bytes: 0,
            port_buffer_bytes: 0,
            port_buffer_most_times: 1,
            line: Line::default(),
            port_share_bytes: 0,
            receive_slots: u64::MAX,
            frame_bytes: 0,
            budget_bytes: 0,
            share_bytes: None,
            allowed_bytes: u64::MAX,
            window_packets: 0,
            first_flight_most: 0,
            senders: Vec::new(),
            charged: Vec::new(),
            largest_frame_bytes: 0,
            waiting: Queue::default(),
            held: VecDeque::new(),
            sums: Sums::default(),
            company: 0,
            company_at: Time::ZERO,
            longest_lease_ns: 0,
            is_short: false,
            has_freed: false,
            scan_at: Time::ZERO,
            quanta: 0,
            adaptation: Adaptation::default(),
            drain_ns: 0,
            starters_bytes: 0,
            fair_floor_bytes: 0,
            counters: GateCounters::default(),
        };
        gate.configure(config);
        gate
    }

    /// Takes over changed settings.
    pub fn configure(&mut self, config: &Config) {
        // Nobody waits for a grant where there are none, and what has come free is for nobody.
        let grants = config.gate_mode == GateMode::Grants;
        if (self.mode, self.order) != (config.gate_mode, config.order) {
            self.mode = config.gate_mode;
            self.set_order(config.order, grants);
        }
        self.has_freed &= grants;
        self.port_buffer_bytes = u64::from(config.port_buffer_bytes);
        self.port_buffer_most_times = u64::from(config.port_buffer_most_times);
        self.frame_bytes = u64::from(config.packet_bytes) + u64::from(config.frame_overhead_bytes);
        self.set_limit();
        self.window_packets = u64::from(config.window_packets);
        self.first_flight_most = u64::from(config.first_flight_packets);
    }

    /// One more link, whose host keeps so many frames while nobody takes them: no more may fly, whatever the port could queue.
    pub fn add_receive_slots(&mut self, slots: u64) {
        self.receive_slots = self.receive_slots.min(slots);
        self.set_limit();
    }

    /// What is known of the way here has changed, perhaps.
    pub fn set_line(&mut self, line: Line) {
        if self.line != line {
            self.line = line;
            self.set_limit();
        }
    }

    fn set_limit(&mut self) {
        let share = |bytes: u64| bytes / BUDGET_DENOMINATOR * BUDGET_NUMERATOR;
        let least = self.port_buffer_bytes;
        let scaled = least * self.line.bytes_per_ms / PORT_LINE_BYTES_PER_MS;
        // After a cut not beyond the queue that was seen to overflow, if one was; and other processes of this host may not know how fast the line is.
        let most_times = if self.share_bytes.is_some() { 1 } else { self.port_buffer_most_times };
        let seen = self.adaptation.seen_port_bytes().unwrap_or(u64::MAX);
        let most = seen.min(least * most_times);
        let port_bytes = scaled.min(most).max(least);
        // Grants that are given all at once come back all at once: a short pipe is no room for them.
        let pipe_bytes = match self.share_bytes {
            None => self.line.pipe_bytes().saturating_sub(port_bytes / SHORT_PIPE_SHARE),
            Some(_) => 0,
        };
        let slots_bytes = self.receive_slots.saturating_mul(self.frame_bytes);
        self.port_share_bytes = share(port_bytes);
        let room = (self.port_share_bytes + pipe_bytes).min(share(slots_bytes)).max(LIMIT_FLOOR_BYTES);
        // What was cut stays cut, and grows back in its own time.
        let is_whole = self.budget_bytes == self.limit_bytes;
        self.limit_bytes = room;
        self.budget_bytes = if is_whole { room } else { self.budget_bytes.min(room) };
    }

    /// The part of the host's budget that this process may hand out; `None`: all of it.
    pub fn set_share(&mut self, bytes: Option<u64>) {
        let before = std::mem::replace(&mut self.share_bytes, bytes);
        if before.is_some() != bytes.is_some() {
            self.set_limit();
        }
    }

    /// No more than this may be granted now, whatever the budget: others may still use the rest. Until the first such word all of it may.
    pub fn set_allowed(&mut self, bytes: u64) {
        self.allowed_bytes = bytes;
    }

    pub fn counters(&self) -> GateCounters {
        self.counters
    }

    /// This process's part of the budget.
    pub fn budget_bytes(&self) -> u64 {
        self.share_bytes.map_or(self.budget_bytes, |share| share.min(self.budget_bytes))
    }

    /// What of it may be granted now.
    pub fn grantable_bytes(&self) -> u64 {
        self.budget_bytes().min(self.allowed_bytes)
    }

    /// The budget before it is shared with other processes.
    pub fn whole_budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// What that was before it was cut.
    pub fn uncut_budget_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub fn charged_bytes(&self) -> u64 {
        self.sums.charged_bytes
    }

    /// What may be on its way: of what is missing no more than could be granted, however much more each claims to have sent.
    pub fn flying_bytes(&self) -> u64 {
        self.sums.granted_bytes + self.sums.missing_bytes.min(self.limit_bytes)
    }

    /// How many senders have a grant.
    pub fn holders(&self) -> u64 {
        self.sums.holders
    }

    pub fn wish(&self) -> Wish {
        Wish {
            bytes: self.sums.charged_bytes + self.sums.wanted_bytes,
            packet_bytes: self.frame_bytes,
            lease_ns: self.longest_lease_ns,
        }
    }

    /// How many packets an idle sender may begin with, when `active` may begin, it among them; a sender `with_backlog` gets grants instead.
    pub fn first_flight(&self, active: u64, with_backlog: bool, frame_bytes: u64) -> u8 {
        if with_backlog {
            return 0;
        }
        let each = self.budget_bytes() / FIRST_FLIGHT_SHARE / (active.max(1) * frame_bytes.max(1));
        each.clamp(1, self.first_flight_most) as u8
    }

    #[inline]
    fn sender(&mut self, index: u32) -> &mut Sender {
        let index = index as usize;
        if index >= self.senders.len() {
            self.add_senders(index + 1);
        }
        &mut self.senders[index]
    }

    #[cold]
    fn add_senders(&mut self, count: usize) {
        self.senders.resize(count, Sender::default());
    }

    /// What a sender, which was heard at `heard_at` last, now wants and holds.
    pub fn report(&mut self, index: u32, demand: Demand, heard_at: Time, now: Time) {
        let (floor, mode) = (self.fair_floor_bytes, self.mode);
        let larger = if self.sums.demanding > 0 { self.largest_frame_bytes } else { 0 };
        self.largest_frame_bytes = demand.frame_bytes.max(larger);
        let sender = self.sender(index);
        let has_spoken = heard_at > sender.heard_at;
        sender.heard_at = sender.heard_at.max(heard_at);
        if demand.is_none() && sender.is_at_rest() {
            sender.demand = demand;
            return;
        }
        let waiting = sender.place.is_some();
        if sender.suspect && has_spoken {
            self.change(index, |sender| sender.suspect = false);
        }
        self.set_demand(index, demand);
        if self.sums.sharing >= self.company || now.since(self.company_at) > COMPANY_NS + self.drain_ns {
            (self.company, self.company_at) = (self.sums.sharing, now);
        }
        let sender = self.sender(index);
        if demand.wanted_packets > 0 && !waiting && !sender.suspect && mode == GateMode::Grants {
            sender.served_bytes = sender.served_bytes.max(floor);
            self.join_queue(index);
        }
    }

    fn set_demand(&mut self, index: u32, demand: Demand) {
        let missing = self.charged_asked(&demand) * demand.frame_bytes;
        let asked = if missing > 0 { missing.min(self.room_for_asked(index)) } else { 0 };
        self.counters.slow += u64::from(demand.has_slow_line() && !self.sender(index).demand.has_slow_line());
        self.change(index, |sender| {
            (sender.demand, sender.charged_bytes) = (demand, demand.cost(demand.granted_bytes()) + asked);
            (sender.asked_bytes, sender.missing_bytes) = (asked, missing);
        });
        self.move_in_queue(index);
        self.longest_lease_ns = if self.sums.demanding > 0 { self.longest_lease_ns.max(demand.lease_ns) } else { 0 };
    }

    /// What a sender may be charged of what it was asked for, beside all others that were.
    fn room_for_asked(&mut self, index: u32) -> u64 {
        let others_bytes = self.sums.asked_bytes - self.sender(index).asked_bytes;
        self.most_asked_bytes().saturating_sub(others_bytes)
    }

    /// What all may be charged of what they were asked for: a packet at least is left to others.
    fn most_asked_bytes(&self) -> u64 {
        let share = self.grantable_bytes().min(self.port_share_bytes) / UNASKED_SHARE;
        let left = share.max(self.largest_frame_bytes) + self.starters_bytes;
        self.grantable_bytes().saturating_sub(left)
    }

    /// What all are charged of that: the budget may have been cut since.
    fn charged_asked_bytes(&self) -> u64 {
        self.sums.asked_bytes.min(self.most_asked_bytes())
    }

    /// Changes what is known of a sender, and the sums by that.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Sender)) {
        let sender = self.sender(index);
        let before = sender.sums();
        change(sender);
        let after = sender.sums();
        self.sums = self.sums + after - before;
        match (before.charged_bytes > 0, after.charged_bytes > 0) {
            (false, true) => self.join_charged(index),
            (true, false) => self.leave_charged(index),
            _ => {}
        }
    }

    fn join_charged(&mut self, index: u32) {
        self.sender(index).charged_place = self.charged.len() as u32;
        self.charged.push(index);
    }

    fn leave_charged(&mut self, index: u32) {
        let place = self.sender(index).charged_place;
        self.charged.swap_remove(place as usize);
        if let Some(&moved) = self.charged.get(place as usize) {
            self.sender(moved).charged_place = place;
        }
    }

    /// The association is gone.
    pub fn forget(&mut self, index: u32) {
        self.has_freed |= self.mode == GateMode::Grants && self.sender(index).charged_bytes > 0;
        self.leave_queue(index);
        self.change(index, |sender| *sender = Sender { charged_place: sender.charged_place, ..Sender::default() });
        self.held.retain(|&held| held != index);
    }

    /// What the endpoint knows about the traffic as a whole: how long the outstanding grants take to arrive, and how many senders there are. Each idle one
    /// may begin with one packet at any moment, and all of them at the same.
    pub fn set_surroundings(&mut self, drain_ns: u64, senders: u64, frame_bytes: u64) {
        self.drain_ns = drain_ns;
        let idle = senders.saturating_sub(self.sums.demanding);
        self.starters_bytes = (idle * frame_bytes).min(self.grantable_bytes() / STARTERS_SHARE);
    }

    /// Whether nothing is granted and nobody waits for a grant.
    pub fn is_idle(&self) -> bool {
        self.sums.charged_bytes == 0 && self.waiting.is_empty()
    }

    /// Whether somebody waited in vain for budget when grants were handed out last.
    pub fn is_short(&self) -> bool {
        self.is_short && !self.waiting.is_empty()
    }

    /// Whether budget has come free by the end of an association, which nobody who waits knows of.
    pub fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// Whether a sender waits for a grant and has none, or for an acknowledgment that is held back: it may not send. Who left its last grant unused waits by its own fault, if there is any budget.
    pub fn withholds(&self, index: u32) -> bool {
        let is_out = self.grantable_bytes() == 0;
        let waits = |sender: &Sender| {
            sender.place.is_some() && sender.demand.outstanding_packets == 0 && (is_out || !sender.demand.left_unused)
        };
        self.senders.get(index as usize).is_some_and(|sender| waits(sender) || sender.held)
    }

    /// Whether a sender is charged for what it was asked for.
    pub fn charges_asked(&self, index: u32) -> bool {
        self.senders.get(index as usize).is_some_and(|sender| sender.demand.asked_packets > 0)
    }

    /// Whether anybody waits for a grant.
    pub fn is_waited_at(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Packets were found lost while the queues on their way delayed others by `queueing_ns`, and payload arrived at `bytes_per_ms`.
    pub fn note_overflow(&mut self, queueing_ns: u64, bytes_per_ms: u64) {
        self.adaptation.note_overflow(queueing_ns, bytes_per_ms, self.port_buffer_bytes);
    }

    pub fn port_estimate_bytes(&self) -> Option<u64> {
        self.adaptation.port_estimate_bytes()
    }

    /// Feeds the adaptation of the budget: packets that arrived, and that were found lost, and whether one carried a congestion mark.
    pub fn observe(&mut self, now: Time, round_trip_ns: u64, arrived: u64, lost: u64, congested: bool) {
        if self.adaptation.forgets(now) {
            self.set_limit();
        }
        match self.adaptation.judge(now, round_trip_ns, self.budget_bytes, Seen { arrived, lost, congested }) {
            Change::Nothing => {}
            Change::Cut { keeps, floor_bytes } => {
                // A packet for each who waits, up to half the limit; but other cuts may have gone deeper.
                let waiting_bytes = self.waiting.packets_bytes().min(self.limit_bytes / 2);
                let floor = floor_bytes.max(waiting_bytes).min(self.budget_bytes);
                self.budget_bytes = (self.budget_bytes * keeps / 10).max(floor).min(self.limit_bytes);
                self.counters.cuts += 1;
                self.set_limit();
            }
            Change::Growth if self.budget_bytes < self.limit_bytes => {
                self.budget_bytes = (self.budget_bytes + self.largest_frame_bytes).min(self.limit_bytes);
            }
            Change::Growth => {}
        }
    }

    /// `gate = esp`: an acknowledgment of `index` is due while `active` senders transmit. `release` is called for each that may go now.
    pub fn hold_ack(&mut self, index: u32, active: u64, release: impl FnMut(u32)) {
        if !std::mem::replace(&mut self.sender(index).held, true) {
            self.held.push_back(index);
            self.counters.acks_held += 1;
        }
        self.release_acks(active, release);
    }

    /// `gate = esp`: at most `active - 1` acknowledgments stay held.
    pub fn release_acks(&mut self, active: u64, mut release: impl FnMut(u32)) {
        while self.held.len() as u64 > active.saturating_sub(1) {
            let Some(index) = self.held.pop_front() else { return };
            self.sender(index).held = false;
            release(index);
        }
    }
}
