//! Packets in: to whom they belong, and what their headers say.

use ropeway_wire::{Backlog, Block, Blocks, Flags, Header, Malformed, Packet, Type, expand};

use super::{BATCH_PACKETS, Endpoint, Landing, Path};
use crate::association::{Association, Standing};
use crate::lease;
use crate::received::{Arrival, LEAST_SLOTS, MOST_SLOTS, WINDOW_PACKETS};
use crate::routes::MOST_PATHS;
use crate::time::Time;

/// The reorder window never grows beyond this many round-trip times: what is later than that may as well be lost.
const REORDER_ROUND_TRIPS: u64 = 4;
/// It shrinks by this part ...
const REORDER_DECAY: u64 = 8;
/// ... with every so many packets: rarely enough that a network which reorders one packet of a hundred keeps it where it is.
const REORDER_DECAY_PACKETS: u16 = 1024;
/// Below this there is no reordering.
const REORDER_LEAST_NS: u64 = 1_000;
/// What found no memory comes again at this part of what the line bears: thousands at once would overrun the port, and each of them may find none again ...
const AGAIN_SHARE: u64 = 4;
/// ... but on a line that is hardly used each packet so much after the one before.
const MOST_SPACING_NS: u64 = 100_000;
/// Who sends blindly cannot know the next number, and has no acknowledgment to guess where the header is short: no more new numbers than these are taken. As many as
/// batches over other paths, which are still to arrive, may have in between.
const SHORT_AHEAD_PACKETS: i64 = (BATCH_PACKETS * MOST_PATHS) as i64;

impl Endpoint {
    /// Takes one packet that arrived over `path`; `congested` if a router or gateway marked it. After the last of those that arrived
    /// together comes [`Endpoint::finish_batch`].
    pub fn handle_packet(&mut self, now: Time, path: &Path, congested: bool, bytes: &[u8]) {
        self.handle_packet_for(now, path, congested, bytes, &mut None);
    }

    /// A packet that continues no run.
    pub(super) fn handle_other_packet(
        &mut self,
        now: Time,
        path: &Path,
        congested: bool,
        bytes: &[u8],
        landing: &mut Option<Landing<'_>>,
    ) {
        self.counters.packets_received += 1;
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(malformed) => return self.drop_malformed(now, path, malformed),
        };
        let result = match packet.header.kind {
            Type::Version
            | Type::Syn
            | Type::Cookie
            | Type::Confirm
            | Type::Opened
            | Type::Refused
            | Type::Redirect => self.handle_opening(now, path, &packet),
            Type::Rst => self.handle_rst(now, path, &packet),
            Type::Join => self.handle_join(now, path, &packet),
            _ => self.handle_association_packet(now, path, congested, &packet, landing),
        };
        if let Err(malformed) = result {
            self.counters.dropped_malformed[malformed.index()] += 1;
        }
    }

    fn drop_malformed(&mut self, now: Time, path: &Path, malformed: Malformed) {
        self.counters.dropped_malformed[malformed.index()] += 1;
        if let Malformed::UnknownVersion { syn: Some(syn), .. } = malformed {
            self.reply_with(now, path, |out| syn.answer(&[ropeway_wire::VERSION], out).ok());
        }
    }

    fn handle_association_packet(
        &mut self,
        now: Time,
        path: &Path,
        congested: bool,
        packet: &Packet<'_>,
        landing: &mut Option<Landing<'_>>,
    ) -> Result<(), Malformed> {
        let header = &packet.header;
        let Some(index) = self.find(header.destination) else {
            self.counters.dropped_unknown_id += 1;
            self.reply_reset(now, path, packet);
            return Ok(());
        };
        if !self.associations[index as usize].is_open() {
            // The server speaks first, and its OPENED was lost or overtaken: it will be said again, and so will this.
            self.counters.dropped_unasked += 1;
            return Ok(());
        }
        let association = &mut self.associations[index as usize];
        let is_known = match association.routes {
            None => association.path.takes(path),
            Some(_) => {
                let path = self.known_path(header.destination, path);
                self.associations[index as usize].routes.as_mut().is_some_and(|routes| routes.arrives(&path))
            }
        };
        if !is_known {
            self.counters.dropped_foreign_path += 1;
            return Ok(());
        }
        // Memory is cut for the packet size agreed on, and so is the work that a packet can make, with a key the trial to open it.
        let association = &self.associations[index as usize];
        let most = association.packet_bytes - association.sealing.overhead_bytes() - header.bytes();
        let bytes = packet.payload.len();
        if bytes > most || (header.is_short && bytes < most) {
            return Err(Malformed::PayloadLength);
        }
        if !association.sealing.is_keyed() {
            return self.take_packet(now, index, path, congested, packet, landing);
        }
        // Lent, as what is opened there is handed on while everything else may change.
        let mut room = std::mem::take(&mut self.opened);
        let result = match self.unseal(now, index, packet, &mut room) {
            Some(opened) => self.take_packet(now, index, path, congested, &opened, landing),
            None => Ok(()),
        };
        self.opened = room;
        result
    }

    /// A packet of an open association, of a length that was agreed on; if that has a key, opened.
    fn take_packet(
        &mut self,
        now: Time,
        index: u32,
        path: &Path,
        congested: bool,
        packet: &Packet<'_>,
        landing: &mut Option<Landing<'_>>,
    ) -> Result<(), Malformed> {
        let header = &packet.header;
        // A payload is checked before anything in the packet counts; what numbered packets carry is judged by their channel (docs/protocol.md 2).
        let blocks = match header.kind {
            Type::Control | Type::State => Some(Blocks::parse(packet.payload)?),
            Type::Pin if !packet.payload.is_empty() => return Err(Malformed::PayloadLength),
            _ => None,
        };
        let Some(number) = self.take_header(now, index, header) else {
            self.counters.dropped_window += 1;
            return Ok(());
        };
        let association = &mut self.associations[index as usize];
        association.counters.packets_received += 1;
        if header.is_short && association.received.has(number) {
            // No sign of life, of the peer or of a path, nor for the gate: anybody could have made it up.
            self.note_repetition(index);
            self.make_ready(index);
            return Ok(());
        }
        association.spoken_to = path.own();
        self.arrivals.note_heard(now, self.config.lease_ns);
        if association.routes.is_some() {
            self.note_path(now, index, header, number);
        }
        if congested {
            let round_trip_ns = self.associations[index as usize].rtt.smoothed_ns();
            self.gate.observe(now, round_trip_ns, 0, 0, true);
        }
        self.touch(index);
        match header.kind {
            Type::State | Type::Pin => {
                let association = &mut self.associations[index as usize];
                association.note_question(now);
                if header.kind == Type::State {
                    association.answers.missed();
                }
                self.handle_blocks(now, index, header, blocks);
            }
            Type::Control => self.handle_blocks(now, index, header, blocks),
            _ => self.handle_numbered(now, index, number, packet, landing),
        }
        Ok(())
    }

    /// Takes over what a header says: acknowledgment, grant, times, backlog. Gives the full number; `None` if number or ack cannot be true.
    pub(super) fn take_header(&mut self, now: Time, index: u32, header: &Header) -> Option<u64> {
        let association = &mut self.associations[index as usize];
        let number = expand(association.received.next(), header.number);
        let ahead = number.wrapping_sub(association.received.base()) as i64;
        // Too far ahead. What lies behind is a repetition, and its acknowledgment may still be news; what lies further behind is nothing that its sender still
        // waits for.
        let most = WINDOW_PACKETS as i64;
        if ahead > most - i64::from(header.kind.consumes_number()) || ahead < -most {
            return None;
        }
        let has_slots = self.has_slots(index, number, header);
        if header.kind.consumes_number() && !has_slots {
            return None;
        }
        let association = &mut self.associations[index as usize];
        let beyond = number.wrapping_sub(association.received.next()) as i64;
        let is_newest = beyond >= 0;
        let (freed, may_send) = match header.is_short {
            true => {
                if beyond >= SHORT_AHEAD_PACKETS {
                    return None;
                }
                if association.received.has(number) {
                    return Some(number);
                }
                if is_newest {
                    association.estimate_backlog(header.flags, u64::from(header.length));
                }
                (0, false)
            }
            false => self.take_moment(now, index, header, is_newest)?,
        };
        let association = &mut self.associations[index as usize];
        association.heard_at = now;
        association.disowned = false;
        association.keep_usual_path();
        if association.sent.in_flight() == 0 && association.backlog_bytes == 0 {
            association.busy = false;
        }
        association.note_limit(now);
        let has_more = !association.round.is_empty() || !association.ending.is_empty();
        let wants = has_more && (freed > 0 || may_send || is_newest);
        let slots = association.received.kept_slots();
        if !header.kind.consumes_number() {
            // What was sent before would have come before.
            association.note_word(self.awake_at, || self.arrivals.drain(self.gate.flying_bytes()), now);
            let known = if has_slots { number } else { association.received.least_known(number) };
            let has_gap = association.received.learn_next(known, now);
            if is_newest && header.backlog == Backlog::default() {
                association.end_peer_period();
            }
            if has_gap {
                self.slots = self.slots - slots + association.received.kept_slots();
                self.ask_soon(now, index);
            }
        }
        if wants {
            self.make_ready(index);
        }
        Some(number)
    }

    /// Takes over what the sender of a header said of that moment. Gives how many packets that acknowledged, and whether it grants more; `None` if the
    /// acknowledgment cannot be true.
    fn take_moment(&mut self, now: Time, index: u32, header: &Header, is_newest: bool) -> Option<(u64, bool)> {
        let association = &mut self.associations[index as usize];
        let ack = expand(association.sent.una(), header.ack);
        let (channels, pool, events) = (&mut self.channels, &mut self.tx_pool, &mut self.events);
        let send_buffer = self.config.send_buffer_bytes as usize;
        let mut settled = Vec::new();
        let freed = association.sent.acknowledge(ack, |owner, payload| {
            if let Some(channel) = channels.get_mut(owner as usize) {
                channel.outgoing.acknowledged(payload.len());
                if channel.opening != crate::channel::Opening::Done {
                    channel.opening = crate::channel::Opening::Done;
                    Endpoint::announce(events, channel, owner);
                }
                if channel.outgoing.unacked_packets() == 0 && channel.is_done() {
                    settled.push(owner);
                }
                let drained = channel.outgoing.is_drained();
                let is_awaited = drained && channel.outgoing.waiting.takes_drained();
                if channel.outgoing.takes_hunger(send_buffer)
                    || is_awaited
                    || (drained && (channel.released || channel.outgoing.is_finished()))
                {
                    Endpoint::announce(events, channel, owner);
                }
            }
            pool.give(payload);
        })?;
        if freed > 0 {
            // Where the user has no more to send, the rate is the user's.
            association.acked.note(freed, now, association.backlog_bytes > 0);
        }
        association.take_time(header, self.empty_at, now);
        association.note_echo(header, &self.config, now);
        let told_at = lease::told_at(header, self.empty_at, now);
        let may_send = association.take_grant(header, ack, is_newest, told_at, now);
        if freed > 0 || may_send {
            association.state_doublings = 0;
        }
        if is_newest || header.kind == Type::State {
            association.peer_backlog = header.backlog.to_bytes();
        }
        settled.into_iter().for_each(|channel| self.settle_channel(channel));
        Some((freed, may_send))
    }

    fn handle_blocks(&mut self, now: Time, index: u32, header: &Header, blocks: Option<Blocks<'_>>) {
        // As many as can be missing: ranges that repeat each other make no more work than that.
        let mut left = WINDOW_PACKETS as u16;
        for block in blocks.into_iter().flatten() {
            match block {
                Block::Rrq(ranges) => {
                    let association = &mut self.associations[index as usize];
                    association.counters.requests_received += 1;
                    let reached_by = Association::reached_by(header, now);
                    let mut queued = 0;
                    for (low, count) in ranges {
                        let (first, count) = (expand(association.sent.una(), low), count.min(left));
                        left -= count;
                        // The peer expects what does not wait to be sent any more, and has not heard of that.
                        let is_beyond =
                            first.wrapping_add(count.into()).wrapping_sub(association.sent.next()) as i64 > 0;
                        association.ack_due |= is_beyond && association.backlog_bytes == 0;
                        if !association.sent.may_look_up(first, count, now) {
                            continue;
                        }
                        if association.routes.is_some() {
                            Endpoint::note_lost(association, &self.config, &mut self.counters, now, (first, count));
                        }
                        queued += association.sent.request(first, count, reached_by);
                    }
                    if queued > 0 {
                        association.recovers_to = association.sent.next();
                        self.make_ready(index);
                    }
                }
                Block::Credit(number, limit) => self.handle_credit(index, number, limit),
                Block::Hold(number) => self.handle_hold(index, number),
                Block::Want(number, limit) => self.handle_want(index, number, limit),
                Block::Return(number, low) => self.handle_return(now, index, number, low),
                Block::Void(void) => self.handle_void(now, index, &void),
            }
        }
    }

    fn handle_numbered(
        &mut self,
        now: Time,
        index: u32,
        number: u64,
        packet: &Packet<'_>,
        landing: &mut Option<Landing<'_>>,
    ) {
        let header = &packet.header;
        let standing = self.associations[index as usize].standing(header.channel, number);
        let is_void = standing == Standing::Void;
        // Memory first: a packet that cannot be kept has not arrived.
        let previous = if is_void { None } else { self.must_wait(index, number, header) };
        let may_come = match standing {
            Standing::Awaited => {
                self.has_room_for_refusal(index, header) && self.find_memory(index, previous, packet, landing.as_ref())
            }
            Standing::Returned => false,
            Standing::Void => true,
        };
        if !may_come {
            return match self.associations[index as usize].received.has(number) {
                true => self.note_repetition(index),
                false => self.refuse_packet(now, index, number, previous, header),
            };
        }
        let association = &mut self.associations[index as usize];
        let (highest_before, slots) = (association.received.next(), association.received.kept_slots());
        let outstanding_before = association.outstanding_packets();
        let arrival = association.received.arrive(number, now);
        let Arrival::New { late_by_ns, requested } = arrival else { return self.note_repetition(index) };
        if !is_void && !self.paused.is_empty() {
            self.let_go(index, header.channel);
        }
        let association = &mut self.associations[index as usize];
        association.arrived_unreported += 1;
        let is_repeated = header.flags.contains(Flags::RTX);
        let is_granted = number.wrapping_sub(highest_before) < outstanding_before;
        let moves_at = self.arrivals.resumed_at().max(self.awake_at);
        association.note_use(is_granted, moves_at, || self.arrivals.drain(self.gate.flying_bytes()), now);
        association.request_doublings = 0;
        self.counters.payload_received_bytes += u64::from(header.length);
        // It was not known to be missing.
        match late_by_ns {
            None if is_repeated => self.count_lost_at_end(now, index, number),
            None => association.note_original(number),
            Some(_) => {}
        }
        let association = &mut self.associations[index as usize];
        let is_slower_path = association.routes.as_ref().is_some_and(|routes| !routes.is_late(number));
        if let Some(late_ns) = late_by_ns
            && !is_repeated
            && !is_slower_path
        {
            // An original: it was late, not lost. Wait longer before asking, up to a few round trips.
            let most = REORDER_ROUND_TRIPS * association.rtt.smoothed_ns();
            association.reorder_ns = association.reorder_ns.max(late_ns + late_ns / 4).min(most);
            if requested {
                association.counters.spurious_requests += 1;
                self.counters.spurious_requests += 1;
            }
        }
        let gap = number.wrapping_sub(highest_before) as i64;
        // By what is known now: a repetition may be of the last packet there is. But if more waits to be sent by now, another busy period has begun behind it; and where a header without a
        // number was there before, that has said how much waits behind it.
        let has_begun_anew = is_repeated && association.peer_backlog > 0;
        Endpoint::note_arrival(association, header.flags, gap >= 0 && !has_begun_anew);
        if gap > 0 {
            self.ask_soon(now, index);
        }
        let association = &mut self.associations[index as usize];
        let (bytes, round_trip_ns) = (u64::from(header.length), association.rtt.known_least_ns());
        let is_clear = !is_repeated && self.gate.charged_bytes() > 0;
        self.arrivals.note_pace(bytes, is_clear, header.flags.contains(Flags::TXF), now);
        self.arrivals.note(bytes, &mut association.epoch, round_trip_ns, now, self.config.lease_ns);
        Endpoint::note_for_ack(association, header.kind, header.flags, now, &self.config);
        let is_full = header.kind == Type::Data && packet.payload.len() >= association.payload_bytes;
        match is_void {
            true => self.counters.dropped_memory += 1,
            false => self.deliver(index, number, previous, packet, landing),
        }
        let pool = &mut self.rx_pool;
        let received = &mut self.associations[index as usize].received;
        received.advance(|held| pool.give(held.payload));
        self.slots = self.slots - slots + received.kept_slots();
        if is_full {
            self.begin_run(now, index, number, header);
        }
    }

    /// There is no memory for a packet, or it was given back with one before it.
    fn refuse_packet(&mut self, now: Time, index: u32, number: u64, previous: Option<u64>, header: &Header) {
        self.counters.dropped_memory += 1;
        if previous.is_none() {
            self.note_refused(now, index, number);
        }
        let spacing_ns = self.arrivals.line().ns_for(AGAIN_SHARE * u64::from(header.length)).min(MOST_SPACING_NS);
        self.associations[index as usize].note_no_memory(number, self.rx_pool.is_short(), spacing_ns, now);
        match previous {
            // What waits for a lost one may find memory when that has come.
            Some(_) => self.pause(index, header),
            None if self.may_give_back(index, header) => self.give_back(index, header.channel, number),
            None => {}
        }
    }

    /// What is given back was not lost, nor is it asked for at once: its sender will say that it has withdrawn it.
    fn note_refused(&mut self, now: Time, index: u32, number: u64) {
        let received = &mut self.associations[index as usize].received;
        let slots = received.kept_slots();
        received.learn_next(number.wrapping_add(1), now);
        received.mark_asked(number, 1, now);
        self.slots = self.slots - slots + received.kept_slots();
        self.ask_soon(now, index);
    }

    /// A number has come again: it is acknowledged at once.
    fn note_repetition(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        association.ack_due = true;
        association.counters.duplicates += 1;
        self.counters.dropped_duplicate += 1;
    }

    /// Whether there is room to note what is missing below this number, and that it has arrived.
    fn has_slots(&self, index: u32, number: u64, header: &Header) -> bool {
        let received = &self.associations[index as usize].received;
        if header.kind.consumes_number() && received.is_next(number) {
            return true;
        }
        let slots = received.slots_below(number.wrapping_add(u64::from(header.kind.consumes_number())));
        let kept = received.kept_slots();
        slots <= LEAST_SLOTS || slots <= kept || self.slots - kept + slots <= MOST_SLOTS
    }

    /// What a numbered packet says about the busy period and about reordering by having arrived.
    pub(super) fn note_arrival(association: &mut Association, flags: Flags, is_newest: bool) {
        if is_newest {
            match flags.contains(Flags::TXF) {
                true => association.end_peer_period(),
                false => association.peer_busy = true,
            }
        }
        association.quiet_arrivals += 1;
        if association.quiet_arrivals >= REORDER_DECAY_PACKETS {
            association.quiet_arrivals = 0;
            association.reorder_ns -= association.reorder_ns / REORDER_DECAY;
            if association.reorder_ns < REORDER_LEAST_NS {
                association.reorder_ns = 0;
            }
        }
    }
}
