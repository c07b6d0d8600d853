//! The bulk of a transfer: packets that continue a run. Each has the short header, and the number, the association and the channel that follow from the one before it, so that a
//! comparison says of it what parsing and four tables would; and what it brings can go straight to a reader who waits for it.
//!
//! What such a packet does is the same as by [`Endpoint::handle_packet`], and what it cannot do is left to that: `tests/worlds/runs.rs` compares both.

use ropeway_wire::{Flags, Header, Mode, Packet, SHORT_HEADER_BYTES, Type};

use super::{Endpoint, Path};
use crate::channel::{Channel, ChannelId};
use crate::pool::SHORT_SAVES_BYTES;
use crate::time::Time;

/// What the next packet of a run looks like, and where it goes. It ends with the batch, and with every packet that is none of it.
#[derive(Debug)]
pub(super) struct Run {
    now: Time,
    path: Path,
    association: u32,
    /// Its place, and the generation that it had.
    channel: ChannelId,
    header: Header,
    number: u64,
    /// The header of the next packet, byte for byte.
    expected: [u8; SHORT_HEADER_BYTES],
}

impl Run {
    fn expect(&mut self, number: u64) {
        self.number = number;
        self.header.number = number as u32;
        self.expected.copy_from_slice(&self.header.to_bytes()[..SHORT_HEADER_BYTES]);
    }
}

/// Memory of a reader who waits: bytes of a stream that arrive go there at once, or one message that a packet brings whole.
#[derive(Debug)]
pub struct Landing<'a> {
    channel: ChannelId,
    out: &'a mut [u8],
    filled: Option<usize>,
}

impl<'a> Landing<'a> {
    #[must_use]
    pub fn new(channel: ChannelId, out: &'a mut [u8]) -> Landing<'a> {
        Landing { channel, out, filled: None }
    }

    /// Whether its reader waits for what comes on this channel.
    fn is_for(&self, at: u32, channel: &Channel) -> bool {
        let is_waited_for = self.channel == ChannelId { index: at, generation: channel.generation };
        // One message is all that its reader wants.
        let has_all = channel.mode == Mode::Messages && self.filled.is_some();
        is_waited_for && !has_all && !channel.reading_stopped
    }

    /// So many bytes have been read, from the beginning of the memory on. `None`: nothing has landed; a message may be empty.
    #[must_use]
    pub fn filled(&self) -> Option<usize> {
        self.filled
    }
}

impl Endpoint {
    /// [`Endpoint::handle_packet`] beside a reader who waits: bytes for it may land in its memory, and then count as read. What comes before them has landed, too.
    pub fn handle_packet_for(
        &mut self,
        now: Time,
        path: &Path,
        congested: bool,
        bytes: &[u8],
        landing: &mut Option<Landing<'_>>,
    ) {
        if congested || !self.continue_run(now, path, bytes, landing) {
            self.run = None;
            self.handle_other_packet(now, path, congested, bytes, landing);
        }
    }

    /// The next packet may continue a run that begins with this one, which was taken in its order.
    pub(super) fn begin_run(&mut self, now: Time, index: u32, number: u64, header: &Header) {
        let association = &self.associations[index as usize];
        let Some(at) = association.channel(header.channel) else { return };
        let channel = &self.channels[at as usize];
        if association.routes.is_some()
            || channel.incoming.delivered != Some(number)
            || !association.received.is_next(number.wrapping_add(1))
        {
            return;
        }
        let length = association.payload_bytes + SHORT_SAVES_BYTES;
        let mut next = Header::new(Type::Data, header.destination);
        (next.is_short, next.length, next.channel, next.back) = (true, length as u16, header.channel, 1);
        if association.sealing.is_keyed() {
            next.flags = header.flags.intersection(Flags::PHASE);
        }
        let channel = ChannelId { index: at, generation: channel.generation };
        let (path, expected) = (association.path, [0; SHORT_HEADER_BYTES]);
        let mut run = Run { now, path, association: index, channel, header: next, number, expected };
        run.expect(number.wrapping_add(1));
        self.run = Some(run);
    }

    /// Takes the packet if it is the next one of the run at hand.
    fn continue_run(&mut self, now: Time, path: &Path, bytes: &[u8], landing: &mut Option<Landing<'_>>) -> bool {
        let Some(run) = &self.run else { return false };
        let Some((header, rest)) = bytes.split_first_chunk() else { return false };
        if *header != run.expected || run.now != now || !run.path.takes(path) {
            return false;
        }
        let channel = &self.channels[run.channel.index as usize];
        if !self.rx_pool.is_for_all(channel.mode == Mode::Messages) && !channel.incoming.has_set_aside() {
            return false;
        }
        let (index, length) = (run.association, usize::from(run.header.length));
        let association = &self.associations[index as usize];
        if !association.received.is_next(run.number) {
            return false;
        }
        if !association.sealing.is_keyed() {
            let is_whole = rest.len() == length;
            if is_whole {
                self.take_next(now, rest, landing);
            }
            return is_whole;
        }
        let Ok(packet) = Packet::parse(bytes) else { return false };
        let mut room = std::mem::take(&mut self.opened);
        match self.unseal(now, index, &packet, &mut room) {
            Some(opened) => self.take_next(now, opened.payload, landing),
            // Counted there; who cannot seal does not end the run either.
            None => self.counters.packets_received += 1,
        }
        self.opened = room;
        true
    }

    /// Takes the payload of the next packet of the run at hand.
    fn take_next(&mut self, now: Time, payload: &[u8], landing: &mut Option<Landing<'_>>) {
        let Some(run) = &mut self.run else { return };
        let association = &mut self.associations[run.association as usize];
        let is_next = association.received.arrive_next(run.number);
        debug_assert!(is_next, "looked at before");
        let at = run.channel.index;
        self.channels[at as usize].incoming.delivered = Some(run.number);
        run.expect(run.number.wrapping_add(1));
        let bytes = u64::from(run.header.length);
        self.counters.packets_received += 1;
        self.counters.packets_in_runs += 1;
        self.counters.payload_received_bytes += bytes;
        association.counters.packets_received += 1;
        association.arrived_unreported += 1;
        association.estimate_backlog(Flags::NONE, bytes);
        Endpoint::note_arrival(association, Flags::NONE, true);
        let round_trip_ns = association.rtt.known_least_ns();
        self.arrivals.note_pace(bytes, self.gate.charged_bytes() > 0, false, now);
        self.arrivals.note(bytes, &mut association.epoch, round_trip_ns, now, self.config.lease_ns);
        Endpoint::note_for_ack(association, Type::Data, Flags::NONE, now, &self.config);
        self.take_payload(at, Flags::NONE, payload, landing);
    }

    /// Whether a packet in its order goes straight to the reader who waits for it.
    pub(super) fn lands(&self, at: u32, packet: &Packet<'_>, landing: &Landing<'_>) -> bool {
        let channel = &self.channels[at as usize];
        let room = landing.out.len() - landing.filled.unwrap_or(0);
        let has_room = channel.incoming.lands(channel.mode, packet.header.flags, packet.payload, room);
        packet.header.kind == Type::Data && has_room && landing.is_for(at, channel)
    }

    /// Gives a payload to the reader who waits for it, behind what has arrived before. `false`: not this one.
    pub(super) fn land(&mut self, at: u32, flags: Flags, payload: &[u8], landing: &mut Landing<'_>) -> bool {
        let longest = self.longest_to(at);
        let channel = &mut self.channels[at as usize];
        if !landing.is_for(at, channel) {
            return false;
        }
        let filled = landing.filled.unwrap_or(0);
        let out = &mut landing.out[filled..];
        let Some(count) = channel.incoming.land(channel.mode, flags, payload, longest, out, &mut self.rx_pool) else {
            return false;
        };
        landing.filled = Some(filled + count);
        true
    }
}
