//! Filling packets: bytes of a stream one behind the other, short messages several in one, long ones in parts.

use ropeway_wire::{Flags, Type};

use super::{Outgoing, Unsent};
use crate::channel::whole;
use crate::ledger::AccountId;
use crate::pool::{Pool, SHORT_SAVES_BYTES};

/// A long message is taken in parts of so many packets, as many as one segmented send has: the first are under way while the last are copied.
pub(super) const PART_PACKETS: usize = 44;
/// So many packets in a row, at most, travel with the short header: the next says what they left out.
pub(super) const SHORT_RUN: u8 = 7;
/// A message may begin in so much of a packet, however long it is.
const BEGINNING_BYTES: usize = 4;
/// Length in front of a message of several packets.
pub const MESSAGE_PREFIX_BYTES: usize = ropeway_wire::MESSAGE_LENGTH_BYTES;

impl Outgoing {
    /// The next packet has nothing in front of it that would say how much follows.
    fn begin_run(&mut self) {
        if self.queue.is_empty() {
            self.short_run = SHORT_RUN;
        }
    }

    /// Appends bytes of a stream, as many as `limit` and memory allow, and says how many.
    pub fn write(&mut self, bytes: &[u8], limit: usize, payload_bytes: usize, pool: &mut Pool) -> usize {
        let mut rest = &bytes[..bytes.len().min(self.room(limit))];
        let taken = rest.len();
        self.begin_run();
        if let Some(last) = self.queue.back_mut()
            && matches!(last.kind, Type::Data | Type::Open)
            && !last.is_withdrawn
        {
            let limit = match last.kind {
                Type::Data => payload_limit(&mut self.short_run, last.payload.len(), rest.len(), payload_bytes),
                _ => payload_bytes,
            };
            let joined = last.payload.append(rest, limit);
            self.queued_bytes += joined;
            rest = &rest[joined..];
        }
        while !rest.is_empty() {
            let Some(mut payload) = pool.take() else { break };
            let limit = payload_limit(&mut self.short_run, 0, rest.len(), payload_bytes);
            let count = payload.append(rest, limit);
            rest = &rest[count..];
            self.push(Unsent::new(Type::Data, Flags::NONE, payload));
        }
        taken - rest.len()
    }

    /// Queues one message, which shares packets with others unless it goes `alone`, and says how much of it: of a long one a part, and
    /// [`Outgoing::write_rest`] takes what is owed. `None` when there is no room for all of it now. A message longer than `limit` is taken when nothing else is queued.
    pub fn write_message(
        &mut self,
        bytes: &[u8],
        alone: bool,
        limit: usize,
        payload_bytes: usize,
        pool: &mut Pool,
    ) -> Option<usize> {
        let has_room = self.room(limit) >= bytes.len().max(1)
            || self.queued_bytes + self.unacked_bytes == 0 && bytes.len() >= limit;
        if self.is_owed() || !has_room {
            return None;
        }
        self.begin_run();
        if !alone && self.join_records(bytes, payload_bytes) {
            return Some(bytes.len());
        }
        let begun = if alone { 0 } else { self.begin_in_rest(bytes, payload_bytes, pool) };
        self.owed_of = bytes.len();
        if begun > 0 {
            self.owed_bytes = bytes.len() - begun;
            self.append_parts(&bytes[begun..], Flags::NONE, usize::MAX, payload_bytes, pool);
            return Some(bytes.len());
        }
        if bytes.len() <= payload_bytes {
            let mut payload = pool.take()?;
            payload.append(bytes, payload_bytes);
            self.push(Unsent::new(Type::Data, whole(), payload));
            return Some(bytes.len());
        }
        let packets = (bytes.len() + MESSAGE_PREFIX_BYTES).div_ceil(payload_bytes);
        if pool.available() < packets {
            return None;
        }
        self.owed_bytes = bytes.len();
        let most_packets = if alone { usize::MAX } else { PART_PACKETS };
        let taken = self.append_parts(bytes, Flags::FIRST, most_packets, payload_bytes, pool);
        self.keep_owed(self.owed_bytes.div_ceil(payload_bytes), pool);
        Some(taken)
    }

    /// Queues the next part of a message of which some is owed, and says how much that was.
    pub fn write_rest(&mut self, rest: &[u8], payload_bytes: usize, pool: &mut Pool) -> usize {
        let taken = self.append_parts(rest, Flags::NONE, PART_PACKETS, payload_bytes, pool);
        self.keep_owed(self.owed_bytes.div_ceil(payload_bytes), pool);
        taken
    }

    /// Whether the next part of a message would go beyond what this end keeps of a channel.
    pub fn must_rest_wait(&self, limit: usize, payload_bytes: usize) -> bool {
        // The length in front of it was let in with it. A short buffer has room for less than a part.
        let part_bytes = (PART_PACKETS * payload_bytes).min(limit / 4);
        self.room(limit) + MESSAGE_PREFIX_BYTES < self.owed_bytes.min(part_bytes)
    }

    /// Keeps memory for so many packets of a message that is to come.
    pub(super) fn keep_owed(&mut self, packets: usize, pool: &mut Pool) {
        pool.keep_owed(AccountId::NOBODY, std::mem::replace(&mut self.owed_packets, packets), packets);
    }

    /// Queues what is owed of a message in packets of its own, FIRST if that is all of it, and says how many bytes these hold. Memory was looked for when it began.
    fn append_parts(
        &mut self,
        bytes: &[u8],
        mut flags: Flags,
        most_packets: usize,
        payload_bytes: usize,
        pool: &mut Pool,
    ) -> usize {
        let mut rest = &bytes[..bytes.len().min(self.owed_bytes)];
        let given = rest.len();
        self.begin_run();
        for _ in 0..most_packets {
            if rest.is_empty() {
                break;
            }
            let mut payload = pool.take_anyway(AccountId::NOBODY);
            if flags == Flags::FIRST {
                payload.append(&(self.owed_bytes as u32).to_be_bytes(), payload_bytes);
            }
            let limit = payload_limit(&mut self.short_run, payload.len(), rest.len(), payload_bytes);
            let count = payload.append(rest, limit);
            rest = &rest[count..];
            self.owed_bytes -= count;
            flags.set(Flags::LAST, self.owed_bytes == 0);
            self.push(match flags {
                Flags::LAST => Unsent::end_of(self.owed_of, payload),
                _ => Unsent::new(Type::Data, flags, payload),
            });
            flags = Flags::NONE;
        }
        given - rest.len()
    }

    /// Lets a short message share the last queued packet.
    pub fn join_records(&mut self, bytes: &[u8], payload_bytes: usize) -> bool {
        let Some(last) = self.queue.back_mut().filter(|last| last.may_be_shared()) else { return false };
        let before = last.payload.len();
        // It may end in what the short header saves, if another can begin behind it, or goes on where this ends. None does: see `part_end`.
        let may_be_short = self.short_run < SHORT_RUN && bytes.len() > SHORT_SAVES_BYTES;
        let beginning = if last.goes_on_with(bytes.len()) { 0 } else { BEGINNING_BYTES };
        let limit = payload_bytes + if may_be_short { SHORT_SAVES_BYTES - beginning } else { 0 };
        if bytes.len() > payload_bytes || last.used_with_prefix(bytes.len() as u16) + bytes.len() > limit {
            return false;
        }
        last.append_message(bytes, limit);
        self.queued_bytes += last.payload.len() - before;
        true
    }

    /// What ends in the bytes that a short header saves fills no packet with one. If nothing has begun behind it by the time that it is sent, its end goes into the next packet.
    pub(super) fn part_end(&mut self, payload_bytes: usize, pool: &mut Pool) {
        let is_followed = self.queue.len() > 1;
        let Some(front) = self.queue.front_mut() else { return };
        let over = front.payload.len().saturating_sub(payload_bytes);
        let is_full = over >= SHORT_SAVES_BYTES && (is_followed || front.leaves_begun(true));
        if over == 0 || is_full || front.kind != Type::Data || front.is_withdrawn {
            return;
        }
        let mut payload = pool.take_anyway(AccountId::NOBODY);
        payload.append(&front.payload.bytes()[front.payload.len() - over..], payload_bytes);
        front.payload.cut(over);
        front.leave_open();
        let end = Unsent::end_of(front.last_length(), payload);
        self.queue.insert(1, end);
    }

    /// Lets a message begin in what is left of the last queued packet, if there is memory for the rest too; says how many of its bytes did. A byte is worth it, too: packets that are
    /// all full leave segmented, in one call.
    fn begin_in_rest(&mut self, bytes: &[u8], payload_bytes: usize, pool: &Pool) -> usize {
        let Ok(length) = u16::try_from(bytes.len()) else { return 0 };
        let Some(last) = self.queue.back_mut().filter(|last| last.may_be_shared()) else { return 0 };
        let used = last.used_with_prefix(length);
        let limit = payload_limit(&mut self.short_run, used, bytes.len(), payload_bytes);
        let room = limit.saturating_sub(used);
        let rest = bytes.len().saturating_sub(room);
        if room == 0 || pool.available() < rest.div_ceil(payload_bytes) {
            return 0;
        }
        let before = last.payload.len();
        let begun = last.append_message(bytes, limit);
        last.leave_open();
        self.queued_bytes += last.payload.len() - before;
        begun
    }
}

/// How long a payload may become that has `used` bytes and gets more of `more`. With yet more behind it, it need not say what the packets behind it say.
fn payload_limit(short_run: &mut u8, used: usize, more: usize, payload_bytes: usize) -> usize {
    let longest = payload_bytes + SHORT_SAVES_BYTES;
    if used + more <= payload_bytes {
        return payload_bytes;
    }
    let is_short = used + more > longest && *short_run < SHORT_RUN;
    *short_run = if is_short { *short_run + 1 } else { 0 };
    if is_short { longest } else { payload_bytes }
}
