//! Numbered packets reach their channels, each channel in its own order (docs/protocol.md 7).

use ropeway_wire::{
    AbortFields, ErrorCode, Extent, FinFields, Flags, Header, Malformed, Mode, OpenFields, Packet, Type,
};

use super::keeping::may_be_part;
use super::{Endpoint, Event, Landing};
use crate::channel::{ChannelId, Opening, Refused};
use crate::pool::Buffer;
use crate::received::Held;

/// What a packet brings that is none of the user's data.
struct Brought<'a> {
    kind: Type,
    flags: Flags,
    number: u64,
    channel: u16,
    payload: &'a [u8],
}

impl Endpoint {
    /// Delivers a packet, and those that waited for it; or lets it wait for the one before it.
    pub(super) fn deliver(
        &mut self,
        index: u32,
        number: u64,
        previous: Option<u64>,
        packet: &Packet<'_>,
        landing: &mut Option<Landing<'_>>,
    ) {
        let header = &packet.header;
        if let Some(previous) = previous {
            self.hold(index, number, previous, header, packet.payload);
            return;
        }
        let (Header { kind, flags, channel, .. }, payload) = (*header, packet.payload);
        if kind != Type::Data {
            self.bring(index, &Brought { kind, flags, number, channel, payload });
        } else if let Some(at) = self.recipient(index, number, channel) {
            self.take_payload(at, flags, payload, landing);
        }
        let mut at = number;
        while let Some((next, held)) = self.next_waiting(index, at) {
            let Held { kind, flags, channel, payload } = held;
            self.bring_buffer(index, kind, flags, next, channel, payload);
            at = next;
        }
    }

    fn next_waiting(&mut self, index: u32, number: u64) -> Option<(u64, Held)> {
        self.associations.get_mut(index as usize)?.received.take_follower(number)
    }

    /// The number that this packet has to wait for.
    pub(super) fn must_wait(&self, index: u32, number: u64, header: &Header) -> Option<u64> {
        if header.back == 0 {
            return None;
        }
        let association = &self.associations[index as usize];
        let previous = number.wrapping_sub(u64::from(header.back));
        // Below the base everything has arrived, and so has been delivered.
        if (previous.wrapping_sub(association.received.base()) as i64) < 0 {
            return None;
        }
        let Some(at) = association.channel(header.channel) else { return Some(previous) };
        let channel = &self.channels[at as usize];
        // Nothing is read any more, in whatever order it comes.
        (channel.failed.is_none() && channel.incoming.delivered != Some(previous)).then_some(previous)
    }

    fn hold(&mut self, index: u32, number: u64, previous: u64, header: &Header, payload: &[u8]) {
        let account = self.account_of(index);
        let mut buffer = self.rx_pool.copy(payload, account);
        let at = self.associations[index as usize].channel(header.channel);
        if may_be_part(header, at.map(|at| &*self.channels[at as usize])) {
            self.rx_pool.count_as_begun(&mut buffer);
        }
        let held = Held { kind: header.kind, flags: header.flags, channel: header.channel, payload: buffer };
        if let Err(held) = self.associations[index as usize].received.hold(number, previous, held) {
            self.rx_pool.give(held.payload);
            let Some(at) = self.associations[index as usize].channel(header.channel) else {
                // It was under way when the channel ended, behind one that had arrived before.
                self.counters.dropped_channel += 1;
                return;
            };
            self.counters.violations += 1;
            self.abort_channel(at, ErrorCode::Protocol);
        }
    }

    fn bring_buffer(&mut self, index: u32, kind: Type, flags: Flags, number: u64, channel: u16, payload: Buffer) {
        if kind == Type::Data {
            match self.recipient(index, number, channel) {
                Some(at) => self.take_kept(at, flags, payload),
                None => self.rx_pool.give(payload),
            }
            return;
        }
        self.bring(index, &Brought { kind, flags, number, channel, payload: payload.bytes() });
        self.rx_pool.give(payload);
    }

    fn bring(&mut self, index: u32, brought: &Brought<'_>) {
        let Brought { kind, flags, number, channel, payload } = *brought;
        match kind {
            Type::Open => self.bring_open(index, flags, number, channel, payload),
            Type::Fin => self.bring_fin(index, number, channel, payload),
            _ => self.bring_abort(index, number, channel, payload),
        }
    }

    /// The channel that a numbered packet is for, with the number noted as delivered. `None`: it is gone.
    fn recipient(&mut self, index: u32, number: u64, channel: u16) -> Option<u32> {
        let Some(at) = self.associations[index as usize].channel(channel) else {
            self.counters.dropped_channel += 1;
            return None;
        };
        let channel = &mut self.channels[at as usize];
        channel.incoming.delivered = Some(number);
        if channel.opening != Opening::Done {
            channel.opening = Opening::Done;
            self.announce_channel(at);
        }
        Some(at)
    }

    /// Takes the payload of a packet, for the reader who waits for it or for later.
    pub(super) fn take_payload(&mut self, at: u32, flags: Flags, payload: &[u8], landing: &mut Option<Landing<'_>>) {
        if self.turns_away(at, payload) {
            return;
        }
        if landing.as_mut().is_some_and(|landing| self.land(at, flags, payload, landing)) {
            // Who waits has got it: there is nothing to announce.
            self.after_arrival(at);
            return self.serve_line();
        }
        let longest = self.longest_to(at);
        let account = self.account_of(self.channels[at as usize].association);
        let channel = &mut self.channels[at as usize];
        channel.incoming.charge_to(account);
        let result = channel.incoming.take(channel.mode, flags, payload, longest, &mut self.rx_pool);
        self.end_taking(at, result);
    }

    /// The same for one that had to wait: it is looked at in place and kept.
    fn take_kept(&mut self, at: u32, flags: Flags, buffer: Buffer) {
        if self.turns_away(at, buffer.bytes()) {
            return self.rx_pool.give(buffer);
        }
        let longest = self.longest_to(at);
        let account = self.account_of(self.channels[at as usize].association);
        let channel = &mut self.channels[at as usize];
        channel.incoming.charge_to(account);
        let result = channel.incoming.take_buffer(channel.mode, flags, buffer, longest, &mut self.rx_pool);
        self.end_taking(at, result);
    }

    pub(super) fn longest_to(&self, at: u32) -> u64 {
        u64::from(self.associations[self.channels[at as usize].association as usize].own_longest)
    }

    fn end_taking(&mut self, at: u32, result: Result<(), Refused>) {
        match result {
            Ok(()) => {
                self.after_arrival(at);
                self.announce_channel(at);
            }
            Err(refused) => self.refuse_payload(at, refused),
        }
    }

    /// Counts and drops a payload if its channel has no reader any more.
    fn turns_away(&mut self, at: u32, payload: &[u8]) -> bool {
        let channel = &mut self.channels[at as usize];
        if !channel.released && channel.failed.is_none() {
            return false;
        }
        self.counters.dropped_channel += 1;
        // The peer learns that nobody reads when this end's last data have gone. If both ends wait for credit to get there, one must have some.
        if channel.failed.is_none() && !channel.outgoing.is_queue_empty() {
            channel.incoming.discard(payload, &mut self.rx_pool);
            self.after_arrival(at);
        }
        true
    }

    /// Something has come: a message that memory was set aside for may be whole.
    pub(super) fn after_arrival(&mut self, at: u32) {
        if self.channels[at as usize].incoming.is_past_reserved() {
            self.release_reservation(at);
        }
        self.let_come(at);
    }

    /// Credit for more, or for the message at hand, where the window alone would not let it come.
    pub(super) fn let_come(&mut self, at: u32) {
        let window = self.receive_window();
        let incoming = &self.channels[at as usize].incoming;
        let may_begin = || !self.rx_pool.has_only_the_last() && self.rx_pool.may_begin(incoming.account(), 0, 0);
        let goes_beyond = || incoming.lacks_memory() && !may_begin();
        if (incoming.is_longer_than(window) || goes_beyond()) && incoming.may_reserve(&self.rx_pool) {
            self.reserve_or_wait(at);
            return;
        }
        let incoming = &mut self.channels[at as usize].incoming;
        if incoming.raise_limit(window, &mut self.rx_pool) || incoming.raise_for_message(window, &mut self.rx_pool) {
            self.say_credit(at);
        }
    }

    pub(super) fn say_credit(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if channel.detached {
            return;
        }
        (channel.credit_due, channel.hold_due) = (true, false);
        self.end_pause(at);
        self.say_words(at);
    }

    /// A CREDIT or HOLD of this channel goes with the next control packet.
    pub(super) fn say_words(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        let index = channel.association;
        if !std::mem::replace(&mut channel.has_words, true) {
            self.associations[index as usize].words.push(at);
        }
        self.make_ready(index);
    }

    fn refuse_payload(&mut self, at: u32, refused: Refused) {
        match refused {
            Refused::Violation => {
                self.counters.violations += 1;
                self.abort_channel(at, ErrorCode::Protocol);
            }
            Refused::Malformed(malformed) => {
                self.note_malformed(malformed);
                self.abort_channel(at, ErrorCode::Protocol);
            }
            Refused::TooLong => self.abort_channel(at, ErrorCode::TooLong),
            // Its number was taken, so it cannot come again: memory was looked at before, and this is the last buffer gone meanwhile.
            Refused::NoMemory => {
                self.counters.dropped_memory += 1;
                self.abort_channel(at, ErrorCode::Busy);
            }
        }
    }

    /// What a channel judges breaks a rule as well.
    fn note_malformed(&mut self, malformed: Malformed) {
        self.counters.dropped_malformed[malformed.index()] += 1;
        self.counters.violations += 1;
    }

    pub(super) fn bring_open(&mut self, index: u32, flags: Flags, number: u64, channel: u16, payload: &[u8]) {
        let association = &self.associations[index as usize];
        let is_theirs = channel.is_multiple_of(2) != association.is_opener();
        if !is_theirs || association.channel(channel).is_some() {
            self.counters.violations += 1;
            return;
        }
        let fields = match OpenFields::parse(payload) {
            Ok(fields) => fields,
            Err(malformed) => {
                self.note_malformed(malformed);
                return self.refuse_open(index, channel, ErrorCode::Protocol);
            }
        };
        let refused = if association.channel_count() >= usize::from(self.config.max_channels) {
            Some(ErrorCode::Busy)
        } else {
            self.refusal(fields.destination_port, fields.mode)
        };
        if let Some(code) = refused {
            return self.refuse_open(index, channel, code);
        }
        let at = self.add_channel(index, channel, fields.mode, (fields.destination_port, fields.source_port));
        let peer_window = u64::from(self.associations[index as usize].peer_window);
        let channel = &mut self.channels[at as usize];
        channel.opening = Opening::Done;
        channel.incoming.delivered = Some(number);
        channel.outgoing.raise_credit(peer_window);
        channel.queued_in = Some(fields.destination_port);
        if let Some(listener) = self.listeners.get_mut(&fields.destination_port) {
            listener.add(ChannelId { index: at, generation: channel.generation });
            if !std::mem::replace(&mut listener.announced, true) {
                self.events.push_back(Event::Incoming(fields.destination_port));
            }
        }
        if !fields.early.is_empty() || flags.intersects(Flags::FIRST | Flags::LAST | Flags::RECORDS) {
            self.take_payload(at, flags, fields.early, &mut None);
        }
    }

    /// Nothing is kept of an OPEN but the answer: its number is free again when that has been acknowledged.
    fn refuse_open(&mut self, index: u32, channel: u16, code: ErrorCode) {
        self.counters.channels_refused += 1;
        self.associations[index as usize].refusals.push_back((channel, code));
        self.make_ready(index);
    }

    /// Why a channel to `port` cannot be taken.
    pub(super) fn refusal(&self, port: u16, mode: Mode) -> Option<ErrorCode> {
        match self.listeners.get(&port) {
            None => Some(ErrorCode::Refused),
            Some(listener) if listener.mode != mode => Some(ErrorCode::Refused),
            Some(listener) if listener.is_full() => Some(ErrorCode::Busy),
            Some(_) => None,
        }
    }

    fn bring_fin(&mut self, index: u32, number: u64, channel: u16, payload: &[u8]) {
        let Some(at) = self.recipient(index, number, channel) else { return };
        let fields = match FinFields::parse(payload) {
            Ok(fields) => fields,
            Err(malformed) => return self.refuse_payload(at, Refused::Malformed(malformed)),
        };
        let channel = &mut self.channels[at as usize];
        if channel.incoming.is_unfinished() && channel.failed.is_none() {
            // The end in the middle of a message.
            return self.refuse_payload(at, Refused::Violation);
        }
        if channel.failed.is_none() {
            // What this end has given up has not ended well, whatever comes behind it.
            channel.incoming.finish(fields.extent);
        }
        channel.incoming.revoke(&mut self.rx_pool);
        if fields.extent == Extent::Both && channel.failed.is_none() {
            self.end_unread(at);
        }
        self.announce_channel(at);
        self.settle_channel(at);
    }

    /// The peer reads no more: what is queued for it is pointless, and so is waiting for the user to say that it was all. The user still reads what has
    /// arrived ([0:3.4], the zombie).
    fn end_unread(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if channel.outgoing.is_finished() && channel.outgoing.is_queue_empty() {
            return;
        }
        channel.undelivered |= channel.outgoing.has_unsent();
        // An end that stands behind data without credit goes as well, and comes again: nobody will give that credit.
        channel.outgoing.drop_queue(&mut self.tx_pool);
        channel.outgoing.finish(FinFields { extent: Extent::Write }, &mut self.tx_pool);
        self.leave_round(at);
        self.schedule_channel(at);
    }

    /// The channel's next packet has changed its kind: it may stand in the wrong line.
    pub(super) fn leave_round(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if !channel.detached && std::mem::replace(&mut channel.outgoing.scheduled, false) {
            let association = &mut self.associations[channel.association as usize];
            association.round.retain(|&other| other != at);
            association.ending.retain(|&other| other != at);
        }
    }

    fn bring_abort(&mut self, index: u32, number: u64, channel: u16, payload: &[u8]) {
        let Some(at) = self.recipient(index, number, channel) else { return };
        let AbortFields { code } = match AbortFields::parse(payload) {
            Ok(fields) => fields,
            Err(malformed) => return self.refuse_payload(at, Refused::Malformed(malformed)),
        };
        let channel = &mut self.channels[at as usize];
        channel.failed.get_or_insert(code);
        channel.outgoing.drop_queue(&mut self.tx_pool);
        channel.incoming.drop_unfinished(&mut self.rx_pool);
        channel.incoming.revoke(&mut self.rx_pool);
        if channel.queued_in.is_some() {
            // Nobody has accepted it, and nobody will.
            channel.released = true;
            self.leave_listener(at);
        }
        self.schedule_channel(at);
        self.release_reservation(at);
        self.announce_channel(at);
        self.settle_channel(at);
    }

    /// Ends a channel from this side, at once: what is queued and unread is dropped.
    pub(super) fn abort_channel(&mut self, at: u32, code: ErrorCode) {
        let channel = &mut self.channels[at as usize];
        if channel.detached || channel.failed.is_some() {
            return;
        }
        channel.failed = Some(code);
        channel.incoming.clear(&mut self.rx_pool);
        channel.incoming.revoke(&mut self.rx_pool);
        channel.outgoing.abort(AbortFields { code }, &mut self.tx_pool);
        self.leave_round(at);
        self.release_reservation(at);
        self.schedule_channel(at);
        self.announce_channel(at);
    }
}
