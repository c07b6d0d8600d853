//! Packets out: answers, control packets, what was asked for, and new data as far as grants go.

use std::io::IoSlice;

use ropeway_wire::{BASE_HEADER_BYTES, BlockWriter, CHANNEL_HEADER_BYTES, Flags, Header, Type};

use super::commands::recount;
use super::{Endpoint, MOST_REPLIES, Path, Reply};
use crate::sent::Packet;
use crate::time::Time;

/// Packets of one call of the sink: what one segmented send can carry.
pub const BATCH_PACKETS: usize = 64;
/// Longest control packet: header and about eighty ranges. More goes into the next.
const CONTROL_BYTES: usize = 512;
/// Up to so many packets of a burst go before bulk data in the host's own queue.
const URGENT_PACKETS: usize = 2;

/// Whether packets should overtake bulk data in the sending host's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    Bulk,
    Urgent,
}

/// Takes packets for one path, in order, and says how many the link accepted.
pub type Sink<'a> = dyn FnMut(&Path, Urgency, &[IoSlice<'_>]) -> usize + 'a;

/// What came of an association's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Finished,
    More,
    LinkFull,
}

impl Endpoint {
    /// Hands everything that may be sent now to `sink`. `false`: the link was full, and there is more.
    pub fn transmit(&mut self, now: Time, sink: &mut Sink<'_>) -> bool {
        while let Some(reply) = self.replies.pop_front() {
            if sink(&reply.path, Urgency::Urgent, &[IoSlice::new(&reply.bytes)]) == 0 {
                self.replies.push_front(reply);
                return false;
            }
            self.counters.packets_sent += 1;
        }
        while let Some(index) = self.ready.pop_front() {
            match self.transmit_association(now, index, sink) {
                Turn::Finished => self.associations[index as usize].ready = false,
                Turn::More => self.ready.push_back(index),
                Turn::LinkFull => {
                    self.ready.push_front(index);
                    return false;
                }
            }
            self.settle_timers(now, index);
        }
        true
    }

    /// Whether [`Endpoint::transmit`] has anything to do.
    pub fn wants_to_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.replies.is_empty()
    }

    fn transmit_association(&mut self, now: Time, index: u32, sink: &mut Sink<'_>) -> Turn {
        if !self.associations[index as usize].is_open() {
            return Turn::Finished;
        }
        let association = &self.associations[index as usize];
        let asks = association.ask_at.is_some_and(|at| at <= now) || association.ask_beyond;
        let first_flight = self.first_flight(index);
        if asks || association.state_due || association.pin_due || !association.words.is_empty() {
            if !self.transmit_control(now, index, first_flight, sink) {
                return Turn::LinkFull;
            }
            if !self.associations[index as usize].words.is_empty() {
                return Turn::More;
            }
        }
        let mut numbers = [0; BATCH_PACKETS];
        let count = self.collect(now, index, &mut numbers);
        if count > 0 {
            return self.transmit_data(now, index, first_flight, &numbers[..count], sink);
        }
        if self.associations[index as usize].ack_due && !self.transmit_control(now, index, first_flight, sink) {
            return Turn::LinkFull;
        }
        Turn::Finished
    }

    pub(super) fn first_flight(&self, index: u32) -> u8 {
        let association = &self.associations[index as usize];
        self.gate.first_flight(
            self.arrivals.active(),
            association.peer_backlog > 0,
            association.frame_bytes(&self.config),
        )
    }

    /// Numbers to send now: first those asked for, then new ones.
    fn collect(&mut self, now: Time, index: u32, numbers: &mut [u64; BATCH_PACKETS]) -> usize {
        let mut count = 0;
        while count < BATCH_PACKETS
            && let Some(number) = self.associations[index as usize].sent.take_requested()
        {
            numbers[count] = number;
            count += 1;
        }
        let mut allowance = self.associations[index as usize].allowance(now);
        // Channels looked at since the last one that had something: a whole round without any ends the search.
        let mut idle = 0;
        while count < BATCH_PACKETS && idle <= self.associations[index as usize].round.len() {
            let Some(at) = self.associations[index as usize].round.pop_front() else { break };
            match self.next_of_channel(now, index, at, allowance) {
                Some(number) => {
                    numbers[count] = number;
                    count += 1;
                    idle = 0;
                    allowance = self.associations[index as usize].allowance(now).min(allowance.saturating_sub(1));
                }
                None => idle += 1,
            }
        }
        let association = &mut self.associations[index as usize];
        if association.round.is_empty() {
            association.flush = false;
        }
        count
    }

    /// Gives a number to the next payload of a channel, if it may go; keeps the channel in the round if it has more.
    fn next_of_channel(&mut self, now: Time, index: u32, at: u32, allowance: u64) -> Option<u64> {
        let association = &mut self.associations[index as usize];
        let channel = &mut self.channels[at as usize];
        if !channel.outgoing.front_has_credit() {
            channel.outgoing.scheduled = false;
            return None;
        }
        let is_exempt = channel.outgoing.front().is_some_and(|unsent| unsent.is_exempt());
        let partial = !channel.outgoing.no_delay && channel.outgoing.is_one_partial(association.payload_bytes);
        let hold_until = association.new_at.after(self.config.coalesce_ns);
        if (allowance == 0 && !is_exempt)
            || (partial && !association.flush && association.sent.in_flight() > 0 && hold_until > now)
        {
            if allowance > 0 {
                association.flush_at = Some(hold_until);
            }
            association.round.push_back(at);
            return None;
        }
        let unsent = channel.outgoing.pop()?;
        let number = association.sent.next();
        let mut flags = unsent.flags;
        if !std::mem::replace(&mut association.busy, true) {
            flags.insert(Flags::TXS);
        }
        recount(association, channel);
        channel.outgoing.scheduled = channel.outgoing.front_has_credit();
        if channel.outgoing.scheduled {
            association.round.push_back(at);
        }
        if association.backlog_bytes == 0 {
            flags.insert(Flags::TXF);
        }
        // Everything below `una` is acknowledged: the channel's last number counts only if it is not.
        let back = channel.outgoing.last_number.map_or(0, |last| u16::try_from(number.wrapping_sub(last)).unwrap_or(0));
        channel.outgoing.last_number = Some(number);
        association.new_at = now;
        let packet = Packet {
            kind: unsent.kind,
            flags,
            channel: channel.number,
            back,
            owner: at,
            payload: unsent.payload,
            transmitted: false,
            requested: false,
        };
        Some(association.sent.push(packet))
    }

    fn transmit_data(&mut self, now: Time, index: u32, first_flight: u8, numbers: &[u64], sink: &mut Sink<'_>) -> Turn {
        let association = &mut self.associations[index as usize];
        let template = association.header(Type::Data, 0, first_flight, &self.config, now);
        for &number in numbers {
            let Some(packet) = association.sent.get_mut(number) else { continue };
            let mut flags = packet.flags;
            flags.set(Flags::ECHO, template.flags.contains(Flags::ECHO));
            flags.set(Flags::RTX, packet.transmitted);
            let length = packet.payload.len() as u16;
            let Packet { kind, channel, back, .. } = *packet;
            let header = Header { kind, flags, length, number: number as u32, channel, back, ..template };
            packet.payload.with_header(CHANNEL_HEADER_BYTES, |out| out.copy_from_slice(&header.to_bytes()));
        }
        let mut slices = [IoSlice::new(&[]); BATCH_PACKETS];
        let mut bytes = 0;
        for (slice, &number) in slices.iter_mut().zip(numbers) {
            if let Some(packet) = association.sent.get(number) {
                *slice = IoSlice::new(packet.payload.packet(CHANNEL_HEADER_BYTES));
                bytes += packet.payload.len() as u64;
            }
        }
        let urgency = if numbers.len() <= URGENT_PACKETS { Urgency::Urgent } else { Urgency::Bulk };
        let accepted = sink(&association.path, urgency, &slices[..numbers.len()]).min(numbers.len());
        for &number in &numbers[..accepted] {
            if let Some(packet) = association.sent.get_mut(number) {
                let again = std::mem::replace(&mut packet.transmitted, true);
                association.counters.resent += u64::from(again);
                self.counters.resent += u64::from(again);
            }
        }
        association.sent.put_back(&numbers[accepted..]);
        association.counters.packets_sent += accepted as u64;
        self.counters.packets_sent += accepted as u64;
        self.counters.payload_sent_bytes += bytes;
        if accepted > 0 {
            association.said(now);
        }
        if accepted < numbers.len() {
            Turn::LinkFull
        } else if numbers.len() == BATCH_PACKETS {
            Turn::More
        } else {
            Turn::Finished
        }
    }

    /// Sends one CONTROL, STATE or PIN with as many blocks as fit. `false`: the link was full, and everything stays due.
    fn transmit_control(&mut self, now: Time, index: u32, first_flight: u8, sink: &mut Sink<'_>) -> bool {
        let mut bytes = [0; CONTROL_BYTES];
        let (head, body) = bytes.split_at_mut(BASE_HEADER_BYTES);
        let mut blocks = BlockWriter::new(body);
        self.write_requests(now, index, &mut blocks);
        let words = self.write_words(index, &mut blocks);
        let association = &mut self.associations[index as usize];
        let kind = match (association.state_due, association.pin_due) {
            (true, _) => Type::State,
            (false, true) if blocks.is_empty() => Type::Pin,
            _ => Type::Control,
        };
        if kind == Type::State {
            write_wants(association, &self.channels, &mut blocks);
        }
        let length = blocks.len();
        let number = association.sent.next();
        let header =
            Header { length: length as u16, ..association.header(kind, number, first_flight, &self.config, now) };
        head.copy_from_slice(&header.to_bytes()[..BASE_HEADER_BYTES]);
        if sink(&association.path, Urgency::Urgent, &[IoSlice::new(&bytes[..BASE_HEADER_BYTES + length])]) == 0 {
            return false;
        }
        association.words.drain(..words);
        association.counters.packets_sent += 1;
        self.counters.packets_sent += 1;
        match kind {
            Type::State => {
                association.state_due = false;
                association.counters.states_sent += 1;
                self.counters.states_sent += 1;
            }
            Type::Pin => association.pin_due = false,
            _ => {}
        }
        association.said(now);
        true
    }

    /// RRQ blocks for what is missing and due.
    fn write_requests(&mut self, now: Time, index: u32, blocks: &mut BlockWriter<'_>) {
        let association = &mut self.associations[index as usize];
        let again_ns = association.again_ns(&self.config);
        let asked_before = association.received.asked();
        let mut requests = 0;
        association.ask_at = association.received.ask(now, association.reorder_ns, again_ns, |first, count| {
            let fits = blocks.rrq(first as u32, count);
            requests += u64::from(fits);
            fits
        });
        let lost = u64::from(association.received.asked().saturating_sub(asked_before));
        association.lost_unreported += lost;
        association.counters.lost += lost;
        self.counters.lost += lost;
        if std::mem::take(&mut association.ask_beyond) {
            let count = association.outstanding_packets().min(u64::from(u16::MAX)) as u16;
            if count > 0 && blocks.rrq(association.received.next() as u32, count) {
                requests += 1;
            }
        }
        association.counters.requests_sent += requests;
        self.counters.requests_sent += requests;
        if lost > 0 {
            self.touch(index);
        }
    }

    /// CREDIT and HOLD blocks; says how many of the channels in line are done with.
    fn write_words(&mut self, index: u32, blocks: &mut BlockWriter<'_>) -> usize {
        let association = &self.associations[index as usize];
        for (done, &at) in association.words.iter().enumerate() {
            let Some(channel) = self.channels.get_mut(at as usize).filter(|channel| channel.association == index)
            else {
                continue;
            };
            if channel.credit_due && !blocks.credit(channel.number, channel.incoming.limit()) {
                return done;
            }
            channel.credit_due = false;
            if channel.hold_due && !blocks.hold(channel.number) {
                return done;
            }
            channel.hold_due = false;
        }
        association.words.len()
    }

    /// Makes an answer that belongs to no association.
    pub(super) fn reply_with(&mut self, path: &Path, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        if self.replies.len() >= MOST_REPLIES {
            self.counters.replies_suppressed += 1;
            return;
        }
        let mut bytes = vec![0; usize::from(self.config.packet_bytes)];
        if let Some(length) = write(&mut bytes) {
            bytes.truncate(length);
            self.replies.push_back(Reply { path: *path, bytes });
        }
    }
}

/// WANT blocks for channels that wait for credit.
fn write_wants(
    association: &crate::association::Association,
    channels: &slab::Slab<crate::channel::Channel>,
    blocks: &mut BlockWriter<'_>,
) {
    for &at in association.channels.iter().filter(|&&at| at != crate::association::NO_CHANNEL) {
        let Some(channel) = channels.get(at as usize) else { continue };
        if channel.outgoing.is_blocked() && !blocks.want(channel.number, channel.outgoing.credit()) {
            return;
        }
    }
}
