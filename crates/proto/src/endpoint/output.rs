//! Packets out: what waits for each link takes its turn, answers first, then open associations, then attempts. What an association sends in its turn is made in `control` and `numbered`.

use std::io::IoSlice;

use ropeway_wire::Id;

use super::cookies::COOKIE_NS;
use super::queues::Reply;
use super::{Endpoint, Path};
use crate::time::Time;

/// Packets of one call of the sink: what one segmented send can carry.
pub const BATCH_PACKETS: usize = 64;
/// What most turns have at most: clearing room for a whole batch would cost more than sending these.
const FEW_PACKETS: usize = 4;
/// While the link is full, one packet of all attempts goes before open associations in this time: a link that has always something to send opens others even so, and in the three
/// seconds for which a kernel keeps what is for a host that is off, only 30 of them take up its buffer.
pub(super) const ASKING_NS: u64 = 100_000_000;
/// When the link takes nothing for who has not answered, it is tried again after so long: as long as a card of 1 Gbit/s takes for 80 full packets ...
pub(super) const LEAST_REST_NS: u64 = 1_000_000;
/// ... doubling up to this: 60 tries in a second cost no time worth speaking of.
const MOST_REST_NS: u64 = 16_000_000;
/// So many of the associations with one place are looked at, besides the newest, for one that was heard lately.
const MOST_ELDERS: usize = 8;
/// Stands in the list of timers for the end of that; there are fewer associations.
pub(super) const ASKING: u32 = u32::MAX - 1;

/// Whether packets should overtake bulk data in the sending host's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    Bulk,
    Urgent,
}

/// What is known of who is at the other end of a path (docs/protocol.md 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Heard,
    /// Something was asked, and no answer has come lately: the host may be off. What the link has no room for apart from others is to be lost; nothing waits for that, and it is said, or asked
    /// for, again in time.
    Silent,
    /// Nothing ever came. What is refused waits and is offered again after a while, whatever else the link takes.
    Unheard,
}

/// How packets are to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handling {
    pub urgency: Urgency,
    pub presence: Presence,
}

/// Takes packets for one path, in order, and says how many the link accepted; or, as [`Taken`], also what it drops of packets for who is silent ([`Presence::Silent`]).
pub type Sink<'a, T = usize> = dyn FnMut(&Path, Handling, &[IoSlice<'_>]) -> T + 'a;

/// What a link did with the packets that it was offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// It is done with so many, from the first on.
    pub packets: usize,
    /// Of these, the ones that it had no room for, and dropped.
    pub discarded: usize,
}

impl From<usize> for Taken {
    fn from(packets: usize) -> Taken {
        Taken { packets, discarded: 0 }
    }
}

/// What came of an association's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Finished,
    More,
}

/// A link was full, and what it was offered stays due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkFull {
    /// Its place among the queues.
    pub place: usize,
}

impl Endpoint {
    /// Hands everything that may be sent now to `sink`. `false`: a link was full, and there is more.
    pub fn transmit(&mut self, now: Time, sink: &mut Sink<'_>) -> bool {
        self.transmit_by(now, &mut || now, &mut |path, handling, packets| sink(path, handling, packets).into())
    }

    /// The same for who can read the `clock`, which is asked before each batch, but not before the first if all that waits there fits a few packets: who is stopped meanwhile must not go on
    /// with a lease that has ended.
    pub fn transmit_by(&mut self, now: Time, clock: &mut dyn FnMut() -> Time, sink: &mut Sink<'_, Taken>) -> bool {
        self.turn_at = now;
        let mut is_full = false;
        for place in 0..self.queues.count() {
            is_full |= !self.transmit_queue(now, place, clock, sink);
        }
        // Of an association with several paths it may have been another link than that of its queue.
        !is_full && self.queues.all().iter().all(|queue| queue.ready.is_empty())
    }

    /// What waits for one link. `false`: it was full.
    fn transmit_queue(
        &mut self,
        now: Time,
        place: usize,
        clock: &mut dyn FnMut() -> Time,
        sink: &mut Sink<'_, Taken>,
    ) -> bool {
        let asking_since = self.queues.at(place).asking_since;
        if asking_since.is_some_and(|since| now.since(since) >= ASKING_NS) && self.transmit_asking(now, place, 1, sink)
        {
            self.queues.at_mut(place).asking_since = Some(now);
        }
        // Answers first, as what an association sends may depend on them; but where the link is full by turns, so that neither keeps the other from it.
        let stand_back = std::mem::take(&mut self.queues.at_mut(place).replies_stand_back);
        let mut is_full = !stand_back && !self.transmit_replies(now, place, sink);
        is_full |= !self.transmit_associations(now, place, clock, sink);
        is_full = is_full || stand_back && !self.transmit_replies(now, place, sink);
        is_full = is_full || !self.transmit_asking(now, place, usize::MAX, sink);
        let queue = self.queues.at_mut(place);
        queue.forget_if_empty();
        queue.asking_since = if is_full && !queue.asking.is_empty() { queue.asking_since.or(Some(now)) } else { None };
        !is_full
    }

    /// Answers that belong to no association. `false`: the link was full.
    fn transmit_replies(&mut self, now: Time, place: usize, sink: &mut Sink<'_, Taken>) -> bool {
        let queue = self.queues.at_mut(place);
        while let Some(reply) = queue.replies.front() {
            let handling = Handling { urgency: Urgency::Urgent, presence: reply.presence };
            let taken = sink(&reply.path, handling, &[IoSlice::new(&reply.bytes)]);
            queue.note_link_did(taken, now);
            if taken.packets == 0 {
                queue.replies_stand_back = true;
                return false;
            }
            queue.replies.pop_front();
            self.counters.packets_sent += 1;
        }
        true
    }

    /// What up to `most` attempts have to say: after everything else, as most of it may be for hosts that are not there. `false`: the link was full.
    fn transmit_asking(&mut self, now: Time, place: usize, most: usize, sink: &mut Sink<'_, Taken>) -> bool {
        let mut taken = 0;
        while taken < most
            && let Some(&id) = self.queues.at(place).asking.front()
        {
            let presence = if self.is_answered(id) { Presence::Heard } else { Presence::Unheard };
            if presence == Presence::Unheard && self.queues.at(place).asking_rests {
                return false;
            }
            if let Some((path, bytes)) = self.unsent_of(place, id) {
                let handling = Handling { urgency: Urgency::Urgent, presence };
                if sink(path, handling, &[IoSlice::new(bytes)]).packets == 0 {
                    if presence == Presence::Unheard {
                        self.rest_asking(now, place);
                    }
                    return false;
                }
                if presence == Presence::Unheard {
                    self.queues.at_mut(place).asking_rest_ns = LEAST_REST_NS;
                }
                taken += 1;
                self.counters.packets_sent += 1;
                let found = self.find(id).and_then(|index| self.associations[index as usize].attempt_mut());
                if let Some(attempt) = found {
                    attempt.unsent = None;
                    attempt.asked_at = attempt.asked_at.map(|_| now);
                }
            }
            self.queues.at_mut(place).asking.pop_front();
        }
        true
    }

    /// No room for attempts whose peer has not answered. It may be hosts that are off that take it up, and nothing tells when they do no longer.
    fn rest_asking(&mut self, now: Time, place: usize) {
        let queue = self.queues.at_mut(place);
        queue.asking_rests = true;
        self.timers.insert((now.after(queue.asking_rest_ns), ASKING));
        queue.asking_rest_ns = (queue.asking_rest_ns * 2).min(MOST_REST_NS);
    }

    /// What open associations have to send. `false`: this link was full, and there is more.
    fn transmit_associations(
        &mut self,
        now: Time,
        place: usize,
        clock: &mut dyn FnMut() -> Time,
        sink: &mut Sink<'_, Taken>,
    ) -> bool {
        let mut now = now;
        // Behind another link's it may have become late.
        let mut is_first = place == 0;
        while let Some(index) = self.queues.at_mut(place).ready.pop_front() {
            let association = &self.associations[index as usize];
            if !is_first || association.backlog_bytes > (FEW_PACKETS * association.payload_bytes) as u64 {
                now = clock();
            }
            is_first = false;
            let turn = self.transmit_association(now, index, sink);
            let association = &mut self.associations[index as usize];
            association.leave_former_key();
            association.queued_in = None;
            match turn {
                // It may be full towards this peer alone, so the next round begins with the next one.
                Err(full) if full.place == place => self.queues.put_last(&mut association.queued_in, place, index),
                // Of an association with several paths it was another link: it waits for that one, and nobody waits for it here.
                Err(full) => self.queues.put_first(&mut association.queued_in, full.place, index),
                // Here, even if another link's is its own queue now: that one's round may be over.
                Ok(Turn::More) => self.queues.put_last(&mut association.queued_in, place, index),
                Ok(Turn::Finished) => {}
            }
            self.settle_timers(now, index);
            if turn == Err(LinkFull { place }) {
                return false;
            }
        }
        true
    }

    /// Whether [`Endpoint::transmit`] has anything to do.
    pub fn wants_to_transmit(&self) -> bool {
        self.queues.all().iter().any(|queue| {
            let asks = || queue.asking.front().is_some_and(|&id| !queue.asking_rests || self.is_answered(id));
            !queue.ready.is_empty() || !queue.replies.is_empty() || asks()
        })
    }

    fn transmit_association(&mut self, now: Time, index: u32, sink: &mut Sink<'_, Taken>) -> Result<Turn, LinkFull> {
        if !self.associations[index as usize].is_open() {
            return Ok(Turn::Finished);
        }
        if self.associations[index as usize].sealing.is_mute() {
            self.associations[index as usize].fall_silent();
            return Ok(Turn::Finished);
        }
        let first_flight = self.first_flight(now, index);
        if self.associations[index as usize].has_to_refuse()
            && let Some(turn) = self.transmit_numbered(now, index, first_flight, sink)
            && turn? == Turn::More
        {
            return Ok(Turn::More);
        }
        if self.associations[index as usize].routes.is_some() {
            self.transmit_over_others(now, index, first_flight, sink)?;
        }
        let association = &self.associations[index as usize];
        if association.asks(now) || association.state_due || association.pin_due || association.has_words() {
            self.transmit_control(now, index, first_flight, None, sink)?;
            let association = &self.associations[index as usize];
            if association.asks(now) || association.state_due || association.has_words() {
                return Ok(Turn::More);
            }
        }
        if let Some(turn) = self.transmit_numbered(now, index, first_flight, sink) {
            return turn;
        }
        if self.associations[index as usize].ack_due {
            self.transmit_control(now, index, first_flight, None, sink)?;
        }
        Ok(Turn::Finished)
    }

    /// Sends a batch of numbered packets. `None`: there are none to send now.
    fn transmit_numbered(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        sink: &mut Sink<'_, Taken>,
    ) -> Option<Result<Turn, LinkFull>> {
        let mut numbers = std::mem::take(&mut self.numbers);
        self.collect(now, index, &mut numbers);
        let turn = match numbers.len() {
            0 => None,
            _ if self.associations[index as usize].routes.is_some() => {
                Some(self.transmit_spread(now, index, first_flight, &numbers, sink))
            }
            1..=FEW_PACKETS => Some(self.transmit_data::<FEW_PACKETS>(now, index, first_flight, &numbers, sink)),
            _ => Some(self.transmit_data::<BATCH_PACKETS>(now, index, first_flight, &numbers, sink)),
        };
        numbers.clear();
        self.numbers = numbers;
        turn
    }

    /// How the peer may begin, to be told to it now.
    pub(super) fn first_flight(&mut self, now: Time, index: u32) -> u8 {
        let association = &mut self.associations[index as usize];
        if association.peer_backlog == 0 {
            // All to whom something is said within a lease may begin at once, heard or not.
            self.arrivals.note_active(&mut association.epoch, now, self.config.lease_ns);
        }
        self.gate.first_flight(
            self.arrivals.active(),
            association.peer_backlog > 0,
            association.frame_bytes(&self.config),
        )
    }

    /// Makes an answer that belongs to no association. Whoever asked in the name of a host may not be that one, and the host not there.
    pub(super) fn reply_with(&mut self, now: Time, path: &Path, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let presence = self.presence_of_host(now, path);
        self.queue_reply(path, presence, write);
    }

    /// Whether the host at `path` has shown lately that it receives: who has opened something once may be off by now.
    pub(super) fn presence_of_host(&mut self, now: Time, path: &Path) -> Presence {
        let place = path.unbound();
        let elders = self.elders.range((place, Id(0))..=(place, Id(u32::MAX))).take(MOST_ELDERS);
        let mut of_place = self.peers.get(&place).into_iter().chain(elders.map(|(_, index)| index));
        let is_heard = of_place.any(|&index| {
            let association = &self.associations[index as usize];
            association.is_open() && now.since(association.heard_at) < COOKIE_NS
        });
        if is_heard || self.has_spent(now, path) { Presence::Heard } else { Presence::Silent }
    }

    /// The same for who may not have asked.
    pub(super) fn queue_reply(
        &mut self,
        path: &Path,
        presence: Presence,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) {
        let queue = self.queues.of_mut(path);
        if !queue.takes_replies() {
            self.counters.replies_suppressed += 1;
            return;
        }
        let mut bytes = vec![0; usize::from(self.config.packet_bytes)];
        if let Some(length) = write(&mut bytes) {
            bytes.truncate(length);
            queue.replies.push_back(Reply { path: *path, presence, bytes });
        }
    }

    /// The same for an answer that is there already.
    pub(super) fn reply_bytes(&mut self, path: &Path, bytes: Box<[u8]>) {
        let queue = self.queues.of_mut(path);
        if !queue.takes_replies() {
            self.counters.replies_suppressed += 1;
            return;
        }
        queue.replies.push_back(Reply { path: *path, presence: Presence::Heard, bytes: bytes.into_vec() });
    }
}
