//! Numbered packets reach their channels, each channel in its own order (docs/protocol.md 7).

use ropeway_wire::{AbortFields, ErrorCode, FinFields, Flags, Header, Mode, OpenFields, Packet, Type};

use super::{Endpoint, Event};
use crate::channel::{ChannelId, Opening, Refused};
use crate::pool::Buffer;
use crate::received::Held;

/// What a packet brings.
struct Brought<'a> {
    kind: Type,
    flags: Flags,
    number: u64,
    channel: u16,
    payload: &'a [u8],
}

impl Endpoint {
    /// Delivers a packet, and those that waited for it; or lets it wait for the one before it.
    pub(super) fn deliver(&mut self, index: u32, number: u64, packet: &Packet<'_>) {
        let header = &packet.header;
        if let Some(previous) = self.must_wait(index, number, header) {
            self.hold(index, number, previous, header, packet.payload);
            return;
        }
        let Header { kind, flags, channel, .. } = *header;
        self.bring(index, &Brought { kind, flags, number, channel, payload: packet.payload });
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
    fn must_wait(&self, index: u32, number: u64, header: &Header) -> Option<u64> {
        if header.back == 0 {
            return None;
        }
        let association = &self.associations[index as usize];
        let previous = number.wrapping_sub(u64::from(header.back));
        // Below the base everything has arrived, and so has been delivered.
        if (previous.wrapping_sub(association.received.base()) as i64) < 0 {
            return None;
        }
        let delivered =
            association.channel(header.channel).and_then(|channel| self.channels[channel as usize].incoming.delivered);
        (delivered != Some(previous)).then_some(previous)
    }

    fn hold(&mut self, index: u32, number: u64, previous: u64, header: &Header, payload: &[u8]) {
        let Some(mut buffer) = self.rx_pool.take() else {
            // The number counts as arrived, so this cannot be undone: the caller has looked that there is memory.
            self.counters.dropped_memory += 1;
            return;
        };
        buffer.append(payload, self.rx_pool.payload_bytes());
        let held = Held { kind: header.kind, flags: header.flags, channel: header.channel, payload: buffer };
        if let Err(held) = self.associations[index as usize].received.hold(number, previous, held) {
            self.rx_pool.give(held.payload);
            self.counters.violations += 1;
        }
    }

    fn bring_buffer(&mut self, index: u32, kind: Type, flags: Flags, number: u64, channel: u16, payload: Buffer) {
        if kind == Type::Data {
            self.bring_data(index, flags, number, channel, &[], Some(payload));
            return;
        }
        let bytes = payload.bytes().to_vec();
        self.rx_pool.give(payload);
        self.bring(index, &Brought { kind, flags, number, channel, payload: &bytes });
    }

    fn bring(&mut self, index: u32, brought: &Brought<'_>) {
        let Brought { kind, flags, number, channel, payload } = *brought;
        match kind {
            Type::Open => self.bring_open(index, flags, number, channel, payload),
            Type::Fin => self.bring_fin(index, number, channel, payload),
            Type::Abort => self.bring_abort(index, number, channel, payload),
            _ => self.bring_data(index, flags, number, channel, payload, None),
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

    fn bring_data(
        &mut self,
        index: u32,
        flags: Flags,
        number: u64,
        channel: u16,
        payload: &[u8],
        buffer: Option<Buffer>,
    ) {
        let Some(at) = self.recipient(index, number, channel) else {
            buffer.into_iter().for_each(|buffer| self.rx_pool.give(buffer));
            return;
        };
        self.take_payload(at, flags, payload, buffer);
    }

    fn take_payload(&mut self, at: u32, flags: Flags, payload: &[u8], buffer: Option<Buffer>) {
        let channel = &mut self.channels[at as usize];
        if channel.released || channel.failed.is_some() {
            buffer.into_iter().for_each(|buffer| self.rx_pool.give(buffer));
            self.counters.dropped_channel += 1;
            return;
        }
        let longest = u64::from(self.config.longest_message_bytes);
        let mode = channel.mode;
        let result = match buffer {
            // A buffer that waited is looked at in place and then kept.
            Some(buffer) => channel.incoming.take_buffer(mode, flags, buffer, longest, &mut self.rx_pool),
            None => channel.incoming.take(mode, flags, payload, longest, &mut self.rx_pool),
        };
        match result {
            Ok(()) => {
                self.after_arrival(at);
                self.announce_channel(at);
            }
            Err(refused) => self.refuse_payload(at, refused),
        }
    }

    /// Credit for the message at hand, where the window alone would not let it come.
    fn after_arrival(&mut self, at: u32) {
        let window = u64::from(self.config.receive_buffer_bytes);
        let channel = &mut self.channels[at as usize];
        let id = ChannelId { index: at, generation: channel.generation };
        if channel.incoming.shortage(window) > 0
            && channel.incoming.reserved_bytes == 0
            && !self.reservations.contains(&id)
        {
            self.reservations.push_back(id);
            self.grant_reservations();
        } else if channel.incoming.raise_limit(window) || channel.incoming.raise_for_message(window) {
            self.say_credit(at);
        }
    }

    pub(super) fn say_credit(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if channel.detached {
            return;
        }
        channel.credit_due = true;
        let index = channel.association;
        self.associations[index as usize].words.push(at);
        self.make_ready(index);
    }

    /// Lets messages longer than their channel's window come, one after the other as memory allows: the first in the queue always gets
    /// through, so two that do not fit together do not wait for each other.
    pub(super) fn grant_reservations(&mut self) {
        let window = u64::from(self.config.receive_buffer_bytes);
        while let Some(&id) = self.reservations.front() {
            let Some(at) = self.channel_index(id).filter(|&at| !self.channels[at as usize].detached) else {
                self.reservations.pop_front();
                continue;
            };
            let channel = &mut self.channels[at as usize];
            let shortage = channel.incoming.shortage(window);
            let fits =
                self.reserved_bytes == 0 || self.reserved_bytes + shortage <= self.config.receive_memory_bytes / 2;
            if shortage > 0 && !fits {
                return;
            }
            self.reservations.pop_front();
            channel.incoming.reserved_bytes = shortage;
            self.reserved_bytes += shortage;
            channel.incoming.allow_message();
            self.say_credit(at);
        }
    }

    fn refuse_payload(&mut self, at: u32, refused: Refused) {
        match refused {
            Refused::Violation => {
                self.counters.violations += 1;
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

    pub(super) fn bring_open(&mut self, index: u32, flags: Flags, number: u64, channel: u16, payload: &[u8]) {
        let Ok(fields) = OpenFields::parse(payload) else {
            self.counters.violations += 1;
            return;
        };
        let association = &self.associations[index as usize];
        let is_theirs = channel.is_multiple_of(2) != association.is_opener;
        let too_many =
            association.channel_count >= u32::from(self.config.max_channels) || channel / 2 >= self.config.max_channels;
        if !is_theirs || association.channel(channel).is_some() {
            self.counters.violations += 1;
            return;
        }
        let code = if too_many { Some(ErrorCode::Busy) } else { self.refusal(fields.destination_port, fields.mode) };
        let at = self.add_channel(index, channel, fields.mode, (fields.destination_port, fields.source_port));
        let peer_window = u64::from(self.associations[index as usize].peer_window);
        let channel = &mut self.channels[at as usize];
        channel.opening = Opening::Done;
        channel.incoming.delivered = Some(number);
        channel.outgoing.raise_credit(peer_window);
        if let Some(code) = code {
            channel.released = true;
            self.counters.channels_refused += 1;
            self.abort_channel(at, code);
            return;
        }
        channel.queued_in = Some(fields.destination_port);
        if let Some(listener) = self.listeners.get_mut(&fields.destination_port) {
            listener.queue.push_back(at);
            self.events.push_back(Event::Incoming(fields.destination_port));
        }
        if !fields.early.is_empty() || flags.intersects(Flags::FIRST) {
            self.take_payload(at, flags, fields.early, None);
        }
    }

    /// Why a channel to `port` cannot be taken.
    pub(super) fn refusal(&self, port: u16, mode: Mode) -> Option<ErrorCode> {
        match self.listeners.get(&port) {
            None => Some(ErrorCode::Refused),
            Some(listener) if listener.mode != mode => Some(ErrorCode::Refused),
            Some(listener) if listener.queue.len() >= listener.backlog => Some(ErrorCode::Busy),
            Some(_) => None,
        }
    }

    fn bring_fin(&mut self, index: u32, number: u64, channel: u16, payload: &[u8]) {
        let Ok(fields) = FinFields::parse(payload) else {
            self.counters.violations += 1;
            return;
        };
        let Some(at) = self.recipient(index, number, channel) else { return };
        self.channels[at as usize].incoming.finish(fields.extent);
        // The peer reads no more: what is queued for it would be dropped there.
        self.announce_channel(at);
        self.settle_channel(at);
    }

    fn bring_abort(&mut self, index: u32, number: u64, channel: u16, payload: &[u8]) {
        let Ok(AbortFields { code }) = AbortFields::parse(payload) else {
            self.counters.violations += 1;
            return;
        };
        let Some(at) = self.recipient(index, number, channel) else { return };
        let channel = &mut self.channels[at as usize];
        channel.failed.get_or_insert(code);
        channel.outgoing.drop_queue(&mut self.tx_pool);
        self.unschedule(at);
        if self.channels[at as usize].queued_in.is_some() {
            // Nobody has accepted it, and nobody will.
            self.channels[at as usize].released = true;
        }
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
        if !channel.outgoing.abort(AbortFields { code }, &mut self.tx_pool) {
            // No memory even for this: the peer learns it when it sends, or by silence.
            self.counters.dropped_memory += 1;
        }
        self.schedule_channel(at);
        self.announce_channel(at);
    }
}
