//! Packets out: answers, control packets, what was asked for, and new data as far as grants go.

use std::io::IoSlice;

use ropeway_wire::{AbortFields, BASE_HEADER_BYTES, Backlog, BlockWriter, Flags, Header, RstFields, Type};

use super::commands::{enter_round, recount};
use super::queues::Reply;
use super::{Endpoint, Path};
use crate::answers;
use crate::association::{AskedBeyond, Association};
use crate::channel::Channel;
use crate::config::Config;
use crate::sent::{NOBODY, Packet, Sent};
use crate::time::Time;

/// Packets of one call of the sink: what one segmented send can carry.
pub const BATCH_PACKETS: usize = 64;
/// What most turns have at most: clearing room for a whole batch would cost more than sending these.
const FEW_PACKETS: usize = 4;
/// So many packets in a row, of many channels, leave with short headers before a control packet says what they leave out.
const MOST_UNSAID_PACKETS: u32 = 64;
/// Longest control packet: header and about eighty ranges. More goes into the next.
const CONTROL_BYTES: usize = 512;
/// Channels looked at in vain before an association's turn ends; those that wait for company have a timer.
const MOST_IDLE_CHANNELS: usize = 64;
/// What is missing is asked for again after this part of the time for which the peer has been silent, if that is later than it would be without.
const SILENCE_SHARE: u64 = 4;
/// Up to so many packets of a burst go before bulk data in the host's own queue.
const URGENT_PACKETS: usize = 2;
/// While the link is full, one packet of all attempts goes before open associations in this time: a link that has always something to send opens others even so, and in the three
/// seconds for which a kernel keeps what is for a host that is off, only 30 of them take up its buffer.
pub(super) const ASKING_NS: u64 = 100_000_000;
/// When the link takes nothing for who has not answered, it is tried again after so long: as long as a card of 1 Gbit/s takes for 80 full packets ...
pub(super) const LEAST_REST_NS: u64 = 1_000_000;
/// ... doubling up to this: 60 tries in a second cost no time worth speaking of.
const MOST_REST_NS: u64 = 16_000_000;
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

/// A few packets are urgent, but not behind bulk data of their own association: the receiver would take what they overtake for lost. What is sent again has been
/// overtaken already.
fn urgency(sent: &Sent, numbers: &[u64]) -> Urgency {
    let is_urgent =
        |&number: &u64| sent.get(number).is_some_and(|packet| packet.transmitted) || !is_behind_bulk(sent, number);
    if numbers.len() <= URGENT_PACKETS && numbers.iter().all(is_urgent) { Urgency::Urgent } else { Urgency::Bulk }
}

fn is_behind_bulk(sent: &Sent, number: u64) -> bool {
    number.wrapping_sub(sent.una()) > URGENT_PACKETS as u64
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

/// What a control packet asks for again.
#[derive(Debug)]
struct Requests {
    /// First number and count of each.
    ranges: Vec<(u64, u16)>,
    /// When the next one will be due once these have left.
    again_at: Option<Time>,
    /// The end of what is asked for beyond the newest number.
    beyond: Option<u64>,
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
                // Of an association with several paths it may have been another link: it waits for that one, and nobody waits for it here.
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
        if self.associations[index as usize].routes.is_some() {
            self.transmit_over_others(now, index, first_flight, sink)?;
        }
        let association = &self.associations[index as usize];
        if association.asks(now) || association.state_due || association.pin_due || !association.words.is_empty() {
            self.transmit_control(now, index, first_flight, None, sink)?;
            let association = &self.associations[index as usize];
            if association.asks(now) || association.state_due || !association.words.is_empty() {
                return Ok(Turn::More);
            }
        }
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
        if let Some(turn) = turn {
            return turn;
        }
        if self.associations[index as usize].ack_due {
            self.transmit_control(now, index, first_flight, None, sink)?;
        }
        Ok(Turn::Finished)
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

    /// Numbers to send now, a batch at most: first those asked for, then new ones.
    fn collect(&mut self, now: Time, index: u32, numbers: &mut Vec<u64>) {
        let most = self.associations[index as usize].batch_packets();
        while numbers.len() < most
            && let Some(number) = self.associations[index as usize].sent.take_requested()
        {
            numbers.push(number);
        }
        self.collect_endings(now, index, numbers);
        let mut allowance = self.associations[index as usize].allowance(now);
        // Channels looked at since the last one that had something: a whole round without any ends the search.
        let mut idle = 0;
        while numbers.len() < most && allowance > 0 {
            let association = &mut self.associations[index as usize];
            if idle > association.round.len().min(MOST_IDLE_CHANNELS) {
                break;
            }
            let Some(at) = association.round.pop_front() else { break };
            // Channels take turns; one alone has all of them.
            let in_turn = if association.round.is_empty() { allowance.min((most - numbers.len()) as u64) } else { 1 };
            match self.next_of_channel(now, index, at, in_turn, numbers) {
                0 => idle += 1,
                count => {
                    idle = 0;
                    allowance = self.associations[index as usize].allowance(now).min(allowance - count);
                }
            }
        }
        let association = &mut self.associations[index as usize];
        if association.round.is_empty() {
            association.flush = false;
        }
        association.note_limit(now);
    }

    /// What ends a channel, or refuses one, needs no grant: closing must not wait behind other people's transfers. The receiver's window bounds it all the
    /// same.
    fn collect_endings(&mut self, now: Time, index: u32, numbers: &mut Vec<u64>) {
        while numbers.len() < BATCH_PACKETS {
            let association = &mut self.associations[index as usize];
            if association.refusals.is_empty() && association.ending.is_empty() || association.window() == 0 {
                return;
            }
            if let Some((channel, code)) = association.refusals.pop_front() {
                let mut bytes = [0; AbortFields::BYTES];
                let written = AbortFields { code }.write(&mut bytes).unwrap_or(0);
                let payload = self.tx_pool.exactly(&bytes[..written]);
                // Nothing was ever sent on that channel from here, so nothing has to come before it.
                let packet = Packet { channel, payload, ..Packet::new(Type::Abort, NOBODY) };
                numbers.push(number_packet(association, packet, now, &self.config));
            } else if let Some(at) = association.ending.pop_front() {
                self.number_next(now, index, at, 1, numbers);
            }
        }
    }

    /// Gives numbers to the next payloads of a channel that came up in the round, `most` of them, unless they wait for company. Says how many that were.
    fn next_of_channel(&mut self, now: Time, index: u32, at: u32, most: u64, numbers: &mut Vec<u64>) -> u64 {
        let association = &mut self.associations[index as usize];
        let channel = &mut self.channels[at as usize];
        // Full packets in front of a partial one wait with it: it decides when all of what was written is there. But not once the batch has begun.
        let payload_bytes = association.payload_bytes;
        let partial = !channel.outgoing.no_delay
            && match association.new_at >= self.turn_at {
                true => channel.outgoing.is_one_partial(payload_bytes),
                false => channel.outgoing.is_small_batch(payload_bytes),
            };
        let hold_until = association.new_at.after(self.config.coalesce_ns);
        if partial && !association.flush && association.sent.in_flight() > 0 && hold_until > now {
            association.flush_at = Some(hold_until);
            association.round.push_back(at);
            return 0;
        }
        self.number_next(now, index, at, most, numbers)
    }

    /// Gives numbers to the next payloads of a channel that has been taken out of its line, `most` of them as long as others follow, and puts it back if it has more. Says how many
    /// that were.
    fn number_next(&mut self, now: Time, index: u32, at: u32, most: u64, numbers: &mut Vec<u64>) -> u64 {
        let association = &mut self.associations[index as usize];
        let channel = &mut self.channels[at as usize];
        channel.outgoing.scheduled = false;
        let mut count = 0;
        while let Some(unsent) = channel.outgoing.pop_sendable() {
            count += 1;
            // The sums over what is queued are brought up to date for the last of them: before it there is more to come, and that is all that they are asked.
            let is_followed = count < most && channel.outgoing.goes_on();
            if !is_followed && recount(association, channel) {
                enter_round(association, channel, at);
            }
            // Everything below `una` is acknowledged: the channel's last number counts only if it is not. The window keeps the distance within 16 bits.
            let next = association.sent.next();
            let back = channel.outgoing.last_number.map_or(0, |last| next.wrapping_sub(last) as u16);
            channel.outgoing.last_number = Some(next);
            let packet = Packet {
                is_short: unsent.payload.len() > association.payload_bytes,
                flags: unsent.flags,
                channel: channel.number,
                back,
                payload: unsent.payload,
                ..Packet::new(unsent.kind, at)
            };
            numbers.push(number_packet(association, packet, now, &self.config));
            if !is_followed {
                break;
            }
        }
        count
    }

    /// Sends the packets with these numbers, `MOST` at most.
    pub(super) fn transmit_data<const MOST: usize>(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        numbers: &[u64],
        sink: &mut Sink<'_, Taken>,
    ) -> Result<Turn, LinkFull> {
        let association = &mut self.associations[index as usize];
        let template = association.header(Type::Data, 0, first_flight, &self.config, now);
        // What follows in the same batch has not left when this packet does: the receiver takes what is announced for what is still to come.
        let mut to_come = association.backlog_bytes + association.sent.unseen_bytes();
        if !association.open_sealed(numbers) {
            return Ok(Turn::Finished);
        }
        let is_keyed = association.sealing.is_keyed();
        for &number in numbers {
            let Some(packet) = association.sent.get_mut(number) else { continue };
            to_come -= if packet.transmitted { 0 } else { packet.payload.len() as u64 };
            let backlog = Backlog::from_bytes(to_come);
            let mut flags = packet.flags;
            flags.set(Flags::ECHO, template.flags.contains(Flags::ECHO) && !packet.is_short);
            flags.set(Flags::RTX, packet.transmitted);
            let length = packet.payload.len() as u16;
            let Packet { kind, is_short, channel, back, .. } = *packet;
            let number = number as u32;
            let header = Header { kind, is_short, flags, length, number, channel, back, backlog, ..template };
            debug_assert_eq!(header.bytes(), packet.header_bytes());
            // The headroom was made for it.
            let _ = header.write(packet.header_mut(is_keyed));
        }
        let ready = association.seal_packets(now, numbers);
        let mut slices = [IoSlice::new(&[]); MOST];
        for (slice, &number) in slices.iter_mut().zip(&numbers[..ready]) {
            if let Some(packet) = association.sent.get(number) {
                *slice = IoSlice::new(packet.bytes());
            }
        }
        let urgency = urgency(&association.sent, numbers);
        let handling =
            Handling { urgency, presence: association.presence(&association.path, &self.config, self.awake_at, now) };
        let taken = if ready > 0 { sink(&association.path, handling, &slices[..ready]) } else { Taken::default() };
        let accepted = taken.packets.min(ready);
        let (mut resent, mut bytes) = (0, 0);
        for (length, again) in numbers[..accepted].iter().filter_map(|&number| association.sent.took(number, now)) {
            resent += u64::from(again);
            bytes += length as u64;
        }
        association.counters.resent += resent;
        self.counters.resent += resent;
        self.counters.payload_sent_bytes += bytes;
        association.sent.put_back(&numbers[accepted..]);
        if ready > 0 {
            association.note_link_did(taken, self.awake_at, now, &self.config);
            self.queues.of_mut(&association.path).note_link_did(taken, now);
        }
        association.counters.packets_sent += accepted as u64;
        self.counters.packets_sent += accepted as u64;
        let says = |number: &u64| association.sent.get(*number).is_some_and(|packet| !packet.is_short);
        if numbers[..accepted].iter().any(says) {
            association.said(now);
        }
        if accepted < ready {
            Err(LinkFull { place: self.queues.place(&association.path) })
        } else if numbers.len() >= association.batch_packets() {
            Ok(Turn::More)
        } else {
            Ok(Turn::Finished)
        }
    }

    /// Sends one CONTROL, STATE or PIN with as many blocks as fit, over the path with the place `over` or the usual one.
    pub(super) fn transmit_control(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        over: Option<usize>,
        sink: &mut Sink<'_, Taken>,
    ) -> Result<(), LinkFull> {
        let mut bytes = [0; CONTROL_BYTES];
        let association = &self.associations[index as usize];
        let (counter_bytes, tag_bytes) = association.sealing.counter_and_tag_bytes();
        let most = CONTROL_BYTES.min(association.packet_bytes) - tag_bytes;
        let (head, body) = bytes[..most].split_at_mut(BASE_HEADER_BYTES);
        let mut blocks = BlockWriter::new(&mut body[counter_bytes..]);
        let requests = self.write_requests(now, index, &mut blocks);
        let words = self.write_words(index, &mut blocks);
        let association = &mut self.associations[index as usize];
        let path = association.control_path(over);
        let kind = match (association.state_due, association.pin_due) {
            (true, _) => Type::State,
            (false, true) if blocks.is_empty() => Type::Pin,
            _ => Type::Control,
        };
        if kind == Type::State {
            write_wants(association, &self.channels, &mut blocks);
            // An engine that does not know us (any more) answers with nothing longer than what it was asked with.
            while blocks.len() < RstFields::BYTES && blocks.credit(0, 0) {}
        }
        let length = blocks.len();
        let number = association.sent.next();
        let header =
            Header { length: length as u16, ..association.header(kind, number, first_flight, &self.config, now) };
        head.copy_from_slice(&header.to_bytes()[..BASE_HEADER_BYTES]);
        let packet = &mut bytes[..BASE_HEADER_BYTES + counter_bytes + length + tag_bytes];
        if !association.seal(now, packet, BASE_HEADER_BYTES) {
            return Ok(());
        }
        // It names the next number: what it overtakes would be missing.
        let urgency = if is_behind_bulk(&association.sent, number) { Urgency::Bulk } else { Urgency::Urgent };
        let taken = self.offer(now, index, &path, urgency, packet, sink)?;
        if taken.packets == 0 {
            let association = &mut self.associations[index as usize];
            // What is not this path's alone stays due. The next STATE tries the path after it.
            association.states_unanswered += u32::from(over.is_none());
            return Ok(());
        }
        self.note_requests(now, index, &requests, taken.discarded > 0);
        let association = &mut self.associations[index as usize];
        if association.routes.is_some() && kind != Type::Control {
            association.asked_over(&path, now, &self.config);
        }
        for at in association.words.drain(..words) {
            if let Some(channel) = self.channels.get_mut(at as usize).filter(|channel| channel.association == index) {
                (channel.credit_due, channel.hold_due, channel.has_words) = (false, false, false);
            }
        }
        association.counters.packets_sent += 1;
        self.counters.packets_sent += 1;
        match kind {
            Type::State => {
                association.state_due = false;
                association.states_unanswered += 1;
                association.note_limit(now);
                association.counters.states_sent += 1;
                self.counters.states_sent += 1;
            }
            Type::Pin => association.pin_due = false,
            _ => {}
        }
        association.said(now);
        Ok(())
    }

    /// RRQ blocks for what is missing and due.
    fn write_requests(&self, now: Time, index: u32, blocks: &mut BlockWriter<'_>) -> Requests {
        let association = &self.associations[index as usize];
        // Who does not answer is asked less and less often, and so is who answers and does not send it. Time in which this end did not run was no silence.
        let silence_ns = now.since(association.heard_at.max(self.awake_at));
        let silence_ns = silence_ns.max(association.in_vain_ns(now));
        let slower_ns = (silence_ns / SILENCE_SHARE).min(self.config.timer_max_ns);
        let again_ns = association.again_ns(&self.config).max(slower_ns);
        let late_ns = association.late_ns(&self.config).max(slower_ns);
        let slow = association.slow_from(now, &self.config).map(|number| (number, late_ns));
        let mut ranges = Vec::new();
        let again_at = association.received.ask(now, association.reorder_ns, again_ns, slow, |first, count| {
            let fits = blocks.rrq(first as u32, count);
            ranges.extend(fits.then_some((first, count)));
            fits
        });
        let mut beyond = None;
        if association.ask_beyond {
            // What was granted; and the end of a busy period that flew without a grant. The sender repeats only what it has sent.
            let granted = association.outstanding_packets().min(u64::from(u16::MAX)) as u16;
            let count = granted.max(u16::from(self.config.first_flight_packets));
            let first = association.received.next();
            beyond = blocks.rrq(first as u32, count).then(|| first.wrapping_add(count.into()));
        }
        Requests { ranges, again_at, beyond }
    }

    /// They have left, or were dropped for want of room.
    fn note_requests(&mut self, now: Time, index: u32, requests: &Requests, was_discarded: bool) {
        let association = &mut self.associations[index as usize];
        let asked_before = association.received.asked();
        for &(first, count) in &requests.ranges {
            association.received.mark_asked(first, count, now);
        }
        association.ask_at = requests.again_at;
        // What had no room beside the others goes with the next packet.
        association.ask_beyond &= requests.beyond.is_none();
        if association.received.missing() == 0 {
            association.in_vain = None;
        }
        let base = association.received.base();
        if requests.ranges.first().is_some_and(|&(first, _)| first == base) && !was_discarded {
            association.note_asked(now);
        }
        if let Some(end) = requests.beyond {
            association.asked_beyond = Some(AskedBeyond { end, queueing_ns: Some(association.queueing_ns()) });
        }
        let count = requests.ranges.len() as u64 + u64::from(requests.beyond.is_some());
        let lost = association.received.asked().saturating_sub(asked_before);
        association.counters.requests_sent += count;
        self.counters.requests_sent += count;
        if lost > 0 {
            let queueing_ns = association.queueing_ns();
            self.count_lost(index, lost, Some(queueing_ns));
            self.touch(index);
        }
    }

    /// So many packets were found lost, after others that stood in queues for so long: the gate hears of it at the end of the batch.
    pub(super) fn count_lost(&mut self, index: u32, lost: u32, queueing_ns: Option<u64>) {
        let association = &mut self.associations[index as usize];
        association.lost_unreported += lost;
        association.counters.lost += u64::from(lost);
        self.counters.lost += u64::from(lost);
        if let Some(queueing_ns) = queueing_ns {
            self.gate.note_overflow(queueing_ns, self.arrivals.bytes_per_ms());
        }
    }

    /// A repetition has come that was not known to be missing, as nothing had come behind it: it was lost if it is one of those that were asked for all the same.
    pub(super) fn count_lost_at_end(&mut self, index: u32, number: u64) {
        let Some(asked) = &mut self.associations[index as usize].asked_beyond else { return };
        if (asked.end.wrapping_sub(number) as i64) > 0 {
            let queueing_ns = asked.queueing_ns.take();
            self.count_lost(index, 1, queueing_ns);
        }
    }

    /// CREDIT and HOLD blocks; says of how many of the channels in line these are all.
    fn write_words(&self, index: u32, blocks: &mut BlockWriter<'_>) -> usize {
        let association = &self.associations[index as usize];
        for (done, &at) in association.words.iter().enumerate() {
            let Some(channel) = self.channels.get(at as usize).filter(|channel| channel.association == index) else {
                continue;
            };
            let fits = (!channel.credit_due || blocks.credit(channel.number, channel.incoming.limit()))
                && (!channel.hold_due || blocks.hold(channel.number));
            if !fits {
                return done;
            }
        }
        association.words.len()
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

    /// Makes an answer that belongs to no association, for who has just asked.
    pub(super) fn reply_with(&mut self, path: &Path, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        self.queue_reply(path, Presence::Heard, write);
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
}

/// Appends a packet to what has been sent, with the marks of the busy period. Fixed from here on.
fn number_packet(association: &mut Association, mut packet: Packet, now: Time, config: &Config) -> u64 {
    association.answers.answered(now, || answers::delay_ns(config, &association.rtt));
    if association.sent.in_flight() == 0 {
        association.waiting_since = now;
    }
    let begins = !std::mem::replace(&mut association.busy, true);
    if begins {
        packet.flags.insert(Flags::TXS);
    }
    if packet.is_short {
        association.unsaid_packets += 1;
        // A control packet says how much waits, and when it was: a channel that had no credit goes on in the middle of its packets, and those of many channels can
        // follow each other.
        association.ack_due |= begins || association.unsaid_packets >= MOST_UNSAID_PACKETS;
    }
    let is_last = association.backlog_bytes == 0;
    if is_last {
        packet.flags.insert(Flags::TXF);
    }
    association.new_at = now;
    let number = association.sent.push(packet);
    if is_last {
        // What is left of the grant goes back: the receiver sees the mark and charges it no longer.
        association.lease.give_back(number.wrapping_add(1));
    }
    number
}

/// WANT blocks for channels that wait for credit: as many as fit, the others in turn with the next STATE.
fn write_wants(association: &mut Association, channels: &slab::Slab<Box<Channel>>, blocks: &mut BlockWriter<'_>) {
    let first = association.want_next;
    for &number in association.blocked.range(first..).chain(association.blocked.range(..first)) {
        let Some(channel) = association.channel(number).and_then(|at| channels.get(at as usize)) else { continue };
        if !blocks.want(number, channel.outgoing.credit()) {
            association.want_next = number;
            return;
        }
    }
}
