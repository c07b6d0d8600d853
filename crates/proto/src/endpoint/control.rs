//! Packets without a number: what CONTROL, STATE and PIN ask for and say (docs/protocol.md 2.8, 5, 8), and what of it is done with when a link has taken them.

use ropeway_wire::{BASE_HEADER_BYTES, BlockWriter, Header, RstFields, Type};

use super::numbered::is_behind_bulk;
use super::output::LinkFull;
use super::{Endpoint, Sink, Taken, Urgency};
use crate::association::{Asked, AskedBeyond, Association, Beyond};
use crate::channel::Channel;
use crate::received::{Look, WIDE_SLOTS};
use crate::time::Time;

/// Longest control packet: header and about eighty ranges. More goes into the next.
const CONTROL_BYTES: usize = 512;
/// What is missing is asked for again after this part of the time for which the peer has been silent, if that is later than it would be without.
const SILENCE_SHARE: u64 = 4;
/// So often one number beyond the newest is asked for while nothing comes, and then twice as many each time: requests and repetitions are lost, too.
const FIRST_ALONE: u16 = 8;
/// So often at most: as many as a range can say.
const MOST_FIRST_DOUBLINGS: u16 = 15;

/// For each slot of a wide window that was looked at no wide window is looked at for so long, as a look at one takes a nanosecond: a peer that leaves gaps all over its window, or claims to have sent what
/// it has not, makes no more work than this. So 16,384 are looked at each half millisecond, and no more than 30,000 packets a second ask for what is missing in wide windows.
const LOOK_NS: u64 = 32;

/// What a control packet asks for again.
#[derive(Debug)]
struct Requests {
    /// First number and count of each.
    ranges: Vec<(u64, u16)>,
    /// What looking for them came to; none: it is not time, or nothing is missing.
    look: Option<Look>,
    beyond: Option<AskedBeyond>,
}

impl Endpoint {
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
        // What is given back before the credit for it, if both are due.
        let association = &self.associations[index as usize];
        let returns = association.write_returns(&mut blocks);
        let voids = association.sent.write_voids(&mut blocks);
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
        association.told_returns(returns);
        association.sent.told_voids(voids);
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
        association.said(&self.config, now);
        Ok(())
    }

    /// RRQ blocks for what is missing and due, and for what may be.
    fn write_requests(&self, now: Time, index: u32, blocks: &mut BlockWriter<'_>) -> Requests {
        let association = &self.associations[index as usize];
        let mut ranges = Vec::new();
        let look = match association.received.missing() {
            // Mostly nothing is, and how long it would be waited for is not looked up.
            0 => None,
            _ if association.rests_from_looking(now) => None,
            _ => Some(self.write_gaps(now, association, blocks, &mut ranges)),
        };
        let beyond = association.ask_beyond.and_then(|what| {
            // What was granted; and the end of a busy period that flew without a grant. The sender repeats only what it has sent.
            let granted = association.outstanding_packets().min(u64::from(u16::MAX)) as u16;
            let all = granted.max(self.config.first_flight_packets.into());
            let (count, what) = match what {
                Beyond::First => {
                    let doublings = association.request_doublings.saturating_sub(FIRST_ALONE);
                    let count = all.min(1 << doublings.min(MOST_FIRST_DOUBLINGS));
                    (count, Asked::First { queueing_ns: association.queueing_ns() })
                }
                Beyond::All => (all, Asked::All { at: now }),
            };
            let first = association.received.next();
            let end = first.wrapping_add(count.into());
            blocks.rrq(first as u32, count).then_some(AskedBeyond { end, what })
        });
        Requests { ranges, look, beyond }
    }

    /// The gaps that are due, as far as they fit.
    fn write_gaps(
        &self,
        now: Time,
        association: &Association,
        blocks: &mut BlockWriter<'_>,
        ranges: &mut Vec<(u64, u16)>,
    ) -> Look {
        // Who does not answer is asked less and less often, and so is who answers and does not send it. Time in which this end did not run was no silence.
        let silence_ns = now.since(association.heard_at.max(self.awake_at));
        let silence_ns = silence_ns.max(association.in_vain_ns(now));
        let slower_ns = (silence_ns / SILENCE_SHARE).min(self.config.timer_max_ns);
        let again_ns = association.again_ns(&self.config, self.drain()).max(slower_ns);
        let late_ns = association.late_ns(&self.config).max(slower_ns);
        let slow = association.slow_from(now, &self.config).map(|number| (number, late_ns));
        association.received.ask(now, association.reorder_ns, again_ns, slow, |first, count| {
            let fits = blocks.rrq(first as u32, count);
            ranges.extend(fits.then_some((first, count)));
            fits
        })
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

    /// They have left, or were dropped for want of room.
    fn note_requests(&mut self, now: Time, index: u32, requests: &Requests, was_discarded: bool) {
        let drain = self.drain();
        let association = &mut self.associations[index as usize];
        let asked_before = association.received.asked();
        for &(first, count) in &requests.ranges {
            association.received.mark_asked(first, count, now);
        }
        match requests.look {
            None if association.received.missing() == 0 => association.ask_at = None,
            None => {}
            Some(look) => {
                association.ask_at = look.again_at;
                if association.received.is_wide() {
                    let costs_ns = look.slots.max(WIDE_SLOTS) as u64 * LOOK_NS;
                    self.looks_at = self.looks_at.max(now).after(costs_ns);
                    association.ask_at = look.again_at.map(|at| at.max(self.looks_at));
                }
            }
        }
        if requests.beyond.is_some() {
            // It may have waited for the link since its timer ran out.
            association.request_at = now;
        }
        // What had no room beside the others goes with the next packet.
        association.ask_beyond = association.ask_beyond.filter(|_| requests.beyond.is_none());
        if association.received.missing() == 0 {
            association.in_vain = None;
        }
        let base = association.received.base();
        if requests.ranges.first().is_some_and(|&(first, _)| first == base) && !was_discarded {
            association.note_asked(&self.config, drain, now);
        }
        // If all has been asked for, the repetition of the first may be that: it does not tell that the others were lost again.
        let tells =
            |asked: &AskedBeyond| matches!(asked.what, Asked::All { .. }) || association.asked_all_at().is_none();
        association.asked_beyond = requests.beyond.filter(tells).or(association.asked_beyond);
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

    /// Something is missing, and is to be asked for: now, or when a window as wide as this one may be looked at.
    pub(super) fn ask_soon(&mut self, now: Time, index: u32) {
        let association = &mut self.associations[index as usize];
        let at = if association.received.is_wide() { now.max(self.looks_at) } else { now };
        association.ask_at = Some(association.ask_at.map_or(at, |before| before.min(at)));
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
    /// And what was sent behind it, if that was the only one, has not come before it.
    pub(super) fn count_lost_at_end(&mut self, now: Time, index: u32, number: u64) {
        let association = &mut self.associations[index as usize];
        let Some(asked) = &mut association.asked_beyond else { return };
        if (asked.end.wrapping_sub(number) as i64) > 0 {
            let queueing_ns = match asked.what {
                Asked::First { queueing_ns } => {
                    asked.what = Asked::All { at: now };
                    association.ask_beyond = Some(Beyond::All);
                    Some(queueing_ns)
                }
                // The overflow of a queue was counted with the first one, and those behind it are the same.
                Asked::All { .. } => None,
            };
            self.count_lost(index, 1, queueing_ns);
        }
    }
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
