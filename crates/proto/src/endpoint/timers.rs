//! Time: which timer of an association is next, and what happens when one has run out (docs/protocol.md 5, 6, 8, 10).
//!
//! An association stands in the list of timers once at most, at a time not later than its earliest timer; when that comes the timers are looked at again.
//! So nothing is moved in the list when traffic pushes a timer into the future, which it does with every packet. And it enters the list only when somebody asks
//! what is due next: not on the way of a packet or an answer.

use ropeway_wire::{ErrorCode, Flags, Header, RstFields, Type};

use super::Endpoint;
use super::output::{ASKING, Presence};
use super::reserving::RESERVED;
use crate::answers;
use crate::arrivals::Drain;
use crate::association::{Association, Phase};
use crate::config::{Config, GateMode};
use crate::time::Time;

/// A timer that runs out so late says that nobody looked at the clock meanwhile: then silence is no proof against the peers ...
pub(super) const OVERSLEPT_NS: u64 = 1_000_000_000;
/// ... or later than this part of the time after which one is given up.
const OVERSLEPT_SHARE: u64 = 4;
/// Who will sleep looks so often for a timer that is not later by now: a wake-up in vain costs more than all of these.
const MOST_LOOKED_AFTER: u32 = 16;
/// What is acknowledged to a sender that waits for a grant, which can carry it, is so many times as much as usual ...
const RIDE_PACKETS: u16 = 4;
/// ... and as late.
const RIDE_DELAY: u64 = 40;
/// Stands in the list of timers for the pools of packet memory; there are fewer associations.
const POOLS: u32 = u32::MAX;
/// A PIN without an answer is followed by a STATE after this part of the usual time, and that by others: enough of them before the idle limit for a network that loses much.
const UNANSWERED_PIN_SHARE: u64 = 4;
/// If nothing comes of anybody for a lease, and so many have grants, the port stands still, or this host, and not all of them ...
const STILL_HOLDERS: u64 = 2;
/// ... unless one has been silent for longer than this.
pub(super) const STILL_NS: u64 = 250_000_000;
/// An association without channels is kept for so long after its last numbered packet: the next channel then opens without a round trip.
pub(super) const UNUSED_NS: u64 = 60_000_000_000;

impl Endpoint {
    /// When [`Endpoint::handle_timeout`] wants to be called next; it may be called earlier.
    pub fn next_timeout(&mut self, now: Time) -> Option<Time> {
        if !self.pools_stand_in_timers && (self.tx_pool.must_fade() || self.rx_pool.must_fade()) {
            self.fade_pools(now);
        }
        self.watch_reserved(now);
        while let Some(index) = self.unsettled.pop() {
            self.arm_timers(now, index);
        }
        self.timers.first().map(|&(at, _)| at)
    }

    /// The same for who will sleep until then, or until `woken_at` if that is earlier: where traffic has pushed the next timers into the future it is later.
    pub fn next_timeout_to_sleep(&mut self, now: Time, woken_at: Time) -> Option<Time> {
        for _ in 0..MOST_LOOKED_AFTER {
            let at = self.next_timeout(now)?;
            let &(_, index) = self.timers.first()?;
            let matters = at < woken_at;
            let Some(association) = self.associations.get(index as usize).filter(|_| matters) else { return Some(at) };
            let due = self.due_at(association, now);
            if due <= at {
                return Some(at);
            }
            self.timers.pop_first();
            self.timers.insert((due, index));
            self.associations[index as usize].timer_at = Some(due);
        }
        self.next_timeout(now)
    }

    /// Whether a timer is due of those that [`Endpoint::next_timeout`] has looked up.
    pub fn is_timer_due(&self, now: Time) -> bool {
        self.timers.first().is_some_and(|&(at, _)| at <= now)
    }

    /// When this arrival must be acknowledged.
    pub(super) fn note_for_ack(association: &mut Association, kind: Type, flags: Flags, now: Time, config: &Config) {
        association.arrivals_unacked = association.arrivals_unacked.saturating_add(1);
        // A sender with more to come will get a grant: the acknowledgment rides on that.
        let may_ride = config.gate_mode == GateMode::Grants;
        let is_granted_soon = may_ride && association.peer_backlog > 0;
        // Nobody answers the end of a channel; and who has heard nothing for a lease may not go on before this is acknowledged.
        let is_answered_soon = may_ride
            && !is_granted_soon
            && matches!(kind, Type::Data | Type::Open)
            && now.since(association.new_at) < association.lease.lasts_ns()
            && association.answers.are_prompt();
        association.answers.asked(now, is_answered_soon);
        let (packets, delay_ns) = match (is_granted_soon, is_answered_soon) {
            (true, _) => (RIDE_PACKETS, config.ack_delay_ns * RIDE_DELAY),
            (_, true) => (1, answers::delay_ns(config, &association.rtt)),
            _ => (1, config.ack_delay_ns),
        };
        if association.arrivals_unacked >= config.packets_to_ack * packets || flags.contains(Flags::RTX) {
            association.ack_due = true;
        } else {
            let at = now.after(delay_ns);
            association.ack_at = Some(association.ack_at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// Runs what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        let _ = self.next_timeout(now);
        let overslept_ns = OVERSLEPT_NS.min(self.config.give_up_ns / OVERSLEPT_SHARE);
        if self.timers.first().is_some_and(|&(at, _)| now.since(at) >= overslept_ns) {
            // This process was stopped, or the clock was set forward: packets of that time may still wait to be read.
            self.awake_at = now;
            self.counters.overslept += 1;
        }
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            if index == POOLS {
                self.pools_stand_in_timers = false;
                self.fade_pools(now);
            }
            if index == ASKING {
                self.queues.all_mut().iter_mut().for_each(|queue| queue.asking_rests = false);
            }
            if index == RESERVED {
                self.end_unused_reservations(now);
            }
            let Some(association) = self.associations.get_mut(index as usize) else { continue };
            association.timer_at = None;
            let is_alive = match association.phase {
                Phase::Opening(_) => self.run_attempt(now, index),
                Phase::Open => self.run_timers(now, index),
            };
            if is_alive {
                self.settle_timers(now, index);
            }
        }
        self.finish_batch(now);
    }

    /// Gives back packet memory that nothing has needed lately, and sees to it that this is done again when there may be more.
    fn fade_pools(&mut self, now: Time) {
        let next = [self.tx_pool.fade(now), self.rx_pool.fade(now)].into_iter().flatten().min();
        if let Some(at) = next
            && !std::mem::replace(&mut self.pools_stand_in_timers, true)
        {
            // Not earlier than now: that would look as if nobody had been there.
            self.timers.insert((at.max(now), POOLS));
        }
    }

    /// Sees to it that what is due now is transmitted, and that the association is looked at when its earliest timer is due.
    pub(super) fn settle_timers(&mut self, now: Time, index: u32) {
        let Some(association) = self.associations.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut association.unsettled, true) {
            self.unsettled.push(index);
        }
        if association.ack_due || association.state_due || association.asks(now) {
            self.make_ready(index);
        }
    }

    fn arm_timers(&mut self, now: Time, index: u32) {
        let Some(association) = self.associations.get_mut(index as usize) else { return };
        association.note_blocked(now);
        let due = self.due_at(&self.associations[index as usize], now);
        let association = &mut self.associations[index as usize];
        association.unsettled = false;
        if association.timer_at.is_none_or(|at| at > due) {
            if let Some(at) = association.timer_at.replace(due) {
                self.timers.remove(&(at, index));
            }
            self.timers.insert((due, index));
        }
    }

    /// When the earliest timer is due.
    fn due_at(&self, association: &Association, now: Time) -> Time {
        if let Phase::Opening(attempt) = &association.phase {
            return attempt.due_at();
        }
        let mut due = self.idle_due_at(association);
        let mut by = |at: Option<Time>| due = at.map_or(due, |at| due.min(at));
        by(association.ack_at);
        // What is due already waits for `transmit`, not for time; unless it became due since anybody looked.
        by(association.ask_at.filter(|&at| at > now || association.queued_in.is_none()));
        by(association.flush_at);
        by(association.deadline_at);
        // Looking at the links is all that is to be done then.
        by((!association.round.is_empty()).then(|| now.after(association.lease.look_ns())));
        by(association.state_due_at(&self.config));
        // What is granted takes less as soon as others send faster, which says nothing to this one: it looks again.
        let mut by_drain = |at: Option<Time>| by(at.map(|at| at.min(now.after(self.config.timer_max_ns))));
        by_drain(association.request_due_at(&self.config, || self.drain()));
        by_drain(association.take_back_at(&self.config, self.moves_at(association, now), || self.drain()));
        by_drain(self.asked_back_due_at(association));
        by(association.routes.as_ref().and_then(|routes| routes.due_at()));
        by(association.rests_at());
        due
    }

    /// How long all that is granted takes to arrive.
    pub(super) fn drain(&self) -> Drain {
        self.arrivals.drain(self.gate.flying_bytes())
    }

    /// Since when the port lets out what this sender was granted; later than now: it stands still, and silence does not count, nor does it that a sender only speaks.
    fn moves_at(&self, association: &Association, now: Time) -> Time {
        if self.gate.holders() < STILL_HOLDERS {
            return Time::ZERO;
        }
        let is_still = self.arrivals.is_still(now, association.lease.lasts_ns());
        let moves_at = if is_still { Time::MAX } else { self.arrivals.resumed_at() };
        moves_at.min(association.heard_at.min(association.unused_since()).after(STILL_NS))
    }

    /// When what a silent sender was asked for is charged to it no more. What is granted to it goes back first.
    fn asked_back_due_at(&self, association: &Association) -> Option<Time> {
        let is_charged =
            association.outstanding_packets() == 0 && self.gate.charges_asked(association.id.slot().into());
        is_charged.then(|| association.asked_back_at(&self.config, self.drain()))
    }

    /// When silence is next worth a look: a PIN, the end of an association without channels, or of a peer that is gone.
    fn idle_due_at(&self, association: &Association) -> Time {
        let mut due = association.heard_at.max(self.awake_at).after(self.config.idle_limit_ns);
        if association.is_opener() {
            due = due.min(self.pin_due_at(association));
        }
        if association.channels.is_empty() && !association.has_undelivered() {
            due = due.min(association.used_at().max(self.awake_at).after(UNUSED_NS));
        }
        due
    }

    /// When the opener asks a peer that says nothing whether it is there.
    fn pin_due_at(&self, association: &Association) -> Time {
        match association.pin_at > association.heard_at {
            true => association.pin_at.after(self.config.keep_alive_ns / UNANSWERED_PIN_SHARE),
            false => association.heard_at.after(self.config.keep_alive_ns),
        }
    }

    /// `false`: the association is gone.
    fn run_timers(&mut self, now: Time, index: u32) -> bool {
        if self.associations[index as usize].deadline_at.is_some_and(|at| at <= now) {
            self.expire_messages(now, index);
        }
        let association = &mut self.associations[index as usize];
        // A moment is no refusal.
        let least_ns = self.config.state_min_ns;
        if association.queued_in.is_some_and(|place| self.queues.at(place.into()).full_ns(now) >= least_ns) {
            association.note_held_up(now);
        }
        if let Some(code) = association.ended_by_silence(self.awake_at, now, &self.config) {
            self.counters.timeouts += 1;
            self.end_association(index, code);
            return false;
        }
        if association.is_in_vain(self.awake_at, now, self.config.give_up_ns) {
            // The peer is there, and cannot know: it hears that something of it is missing, as it would of a path that loses much.
            self.counters.timeouts += 1;
            self.say_goodbye(now, index, ErrorCode::Timeout);
            self.end_association(index, ErrorCode::Timeout);
            return false;
        }
        if association.channels.is_empty()
            && !association.has_undelivered()
            && now.since(association.used_at().max(self.awake_at)) >= UNUSED_NS
        {
            // A channel of the peer may be on its way: it is opened anew where the association is unknown.
            self.say_goodbye(now, index, ErrorCode::Unknown);
            self.end_association(index, ErrorCode::Closed);
            return false;
        }
        if association.rests_at().is_some_and(|at| at <= now) {
            association.rest(now);
            self.rx_pool.ledger.rest(&mut association.account);
            association.channels.indices().for_each(|channel| self.channels[channel as usize].rest());
        }
        if association.routes.is_some() {
            self.run_routes(now, index);
        }
        let association = &mut self.associations[index as usize];
        let mut acts = false;
        if association.ack_at.is_some_and(|at| at <= now) {
            association.ack_at = None;
            association.ack_due |= association.arrivals_unacked > 0;
            association.answers.missed();
            acts = true;
            // With `gate = esp` the end of the batch decides about it.
            self.touch(index);
        }
        let association = &mut self.associations[index as usize];
        if association.flush_at.is_some_and(|at| at <= now) {
            association.flush_at = None;
            association.flush = !association.round.is_empty();
            acts = true;
        }
        acts |= association.ask_at.is_some_and(|at| at <= now);
        if association.state_due_at(&self.config).is_some_and(|at| at <= now) {
            let jitter = self.random.next_u64() as u16;
            association.ask_by_state(jitter, &self.config, now);
            acts = true;
        }
        let association = &self.associations[index as usize];
        let moves_at = self.moves_at(association, now);
        if association.request_due_at(&self.config, || self.drain()).is_some_and(|at| at <= now) {
            let association = &mut self.associations[index as usize];
            association.request_at = now;
            // What stands in the port comes, and copies would stand behind it.
            if moves_at <= now {
                association.request_doublings = association.request_doublings.saturating_add(1);
                let beyond = association.beyond_due();
                // If all the rest is to be asked for, and has waited for the link since, it still is.
                association.ask_beyond.get_or_insert(beyond);
                self.ask_soon(now, index);
                acts = true;
            }
        }
        let association = &self.associations[index as usize];
        if association.take_back_at(&self.config, moves_at, || self.drain()).is_some_and(|at| at <= now) {
            self.associations[index as usize].take_back(self.arrivals.heard_at(), now);
            self.touch(index);
        }
        if self.asked_back_due_at(&self.associations[index as usize]).is_some_and(|at| at <= now) {
            self.touch(index);
        }
        let association = &self.associations[index as usize];
        let is_pin_due = association.is_opener() && self.pin_due_at(association) <= now;
        let association = &mut self.associations[index as usize];
        if is_pin_due {
            // A PIN is too short for a reset to answer it; the second in vain is a STATE.
            if association.pin_at > association.heard_at {
                association.state_due = true;
            } else {
                association.pin_due = true;
            }
            association.pin_at = now;
            acts = true;
        }
        if acts {
            self.make_ready(index);
        }
        true
    }

    /// Tells the peer that the association is over. It may be off by now, as of an idle one nothing has come for long.
    pub(super) fn say_goodbye(&mut self, now: Time, index: u32, code: ErrorCode) {
        let association = &self.associations[index as usize];
        if !association.is_open() {
            return;
        }
        let (path, peer, id) = (association.path, association.peer, association.id);
        let fields = RstFields { token: self.own_token(id), code };
        let header = Header { length: RstFields::BYTES as u16, ..Header::new(Type::Rst, peer) };
        let presence = match self.presence_of_host(now, &path) {
            // When all are told it waits for room: nobody comes behind it, and nothing is said again.
            Presence::Silent if code == ErrorCode::Closed => Presence::Unheard,
            presence => presence,
        };
        self.queue_reply(&path, presence, |out| {
            let at = header.write(out).ok()?;
            Some(at + fields.write(out.get_mut(at..)?).ok()?)
        });
    }
}
