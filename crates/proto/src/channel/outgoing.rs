//! The sending half of a channel: what the user wrote, cut into payloads, small ones sharing a packet.

use std::collections::VecDeque;

use ropeway_wire::{AbortFields, Content, Extent, FinFields, Flags, OpenFields, Type};

use crate::pool::{Buffer, Pool, RECORD_PREFIX_BYTES, SHORT_SAVES_BYTES};
use crate::time::Time;

/// So many packets of small sends leave at once, however soon the next one follows.
const COMPANY_PACKETS: usize = 8;
/// A message at least this share of a packet long may begin in what is left of one: shorter ones would save less than the work costs.
const BEGINNING_SHARE: usize = 8;
/// Fewer bytes of a message than this are not worth beginning with.
const LEAST_BEGINNING_BYTES: usize = 32;
/// A long message is taken in parts of so many packets, as many as one segmented send has: the first are under way while the last are copied.
const PART_PACKETS: usize = 44;
/// So many packets in a row, at most, travel with the short header: the next says what they left out.
const SHORT_RUN: u8 = 7;
/// Length in front of a message of several packets.
pub const MESSAGE_PREFIX_BYTES: usize = ropeway_wire::MESSAGE_LENGTH_BYTES;

/// A payload that has no number yet.
#[derive(Debug)]
pub struct Unsent {
    pub kind: Type,
    pub flags: Flags,
    pub payload: Buffer,
    /// A message that is not under way by then is dropped.
    deadline: Option<Time>,
}

impl Unsent {
    /// Bytes of it that count against the channel's credit: the user's, with the lengths that frame them.
    pub fn credit_bytes(&self) -> u64 {
        match self.kind {
            // At least one: see `Incoming`.
            Type::Data => self.payload.len().max(1) as u64,
            Type::Open => (self.payload.len() - OpenFields::BYTES) as u64,
            _ => 0,
        }
    }

    /// Whether a message that has begun goes on behind this, if one did (`before`) in front of it.
    fn leaves_begun(&self, before: bool) -> bool {
        let (first, last) = (self.flags.contains(Flags::FIRST), self.flags.contains(Flags::LAST));
        match self.flags.contains(Flags::RECORDS) {
            true => first,
            false if first || last => !last,
            false => before,
        }
    }

    /// May go without a grant: closing must not wait behind other people's transfers.
    pub fn is_exempt(&self) -> bool {
        matches!(self.kind, Type::Fin | Type::Abort)
    }
}

/// What a channel has for its association's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sendable {
    Nothing,
    /// It waits for the peer to read, not for the network.
    Blocked,
    Bytes(u64),
}

/// What is queued, what flies, what may.
#[derive(Debug, Default)]
pub struct Outgoing {
    queue: VecDeque<Unsent>,
    /// Payload bytes in `queue`.
    queued_bytes: usize,
    /// Bytes to come of the last message, which is being taken in parts, and the packets that the pool keeps for them.
    owed_bytes: usize,
    owed_packets: usize,
    /// An end that comes behind that message.
    pub ends_then: Option<Extent>,
    /// Payload bytes numbered and not acknowledged.
    unacked_bytes: usize,
    unacked_packets: u32,
    /// The peer takes bytes up to this offset.
    credit: u64,
    /// Bytes numbered so far.
    offset: u64,
    /// The newest number, while it is not known to be acknowledged.
    pub last_number: Option<u64>,
    /// A FIN or ABORT is queued or sent: no data may follow.
    finished: bool,
    extent: Option<Extent>,
    /// What of `queued_bytes` stands in the association's backlog.
    pub counted_bytes: u64,
    /// Stands among the association's channels that wait for credit.
    pub counted_blocked: bool,
    /// Messages dropped because their deadline passed.
    pub expired_messages: u64,
    /// In the association's round of channels with something to send.
    pub scheduled: bool,
    /// Somebody waits to be told of room: of so much at least, the least that anybody wants.
    hunger: Option<usize>,
    /// What the last attempt to send lacked, until the user is told to try again or another one succeeds.
    refused: Option<Lack>,
    /// Small sends are never kept back to share a packet.
    pub no_delay: bool,
    /// The packet numbered last ended in the middle of a message.
    begun: bool,
    /// How many of the packets filled last have payloads for the short header.
    short_run: u8,
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// So many bytes wait for room, or for the rest of somebody else's message.
    Room(usize),
    Memory,
}

impl Outgoing {
    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.unacked_packets == 0 && !self.is_owed()
    }

    pub fn unacked_packets(&self) -> u32 {
        self.unacked_packets
    }

    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub fn owed_bytes(&self) -> u64 {
        self.owed_bytes as u64
    }

    /// The rest of a message is to come before anything else can be written.
    pub fn is_owed(&self) -> bool {
        self.owed_bytes > 0
    }

    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// Bytes numbered so far, with the lengths of messages.
    pub fn sent_bytes(&self) -> u64 {
        self.offset
    }

    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// What the peer takes beyond what was sent.
    pub fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.offset)
    }

    /// Raises the credit; `false` if that is no news.
    pub fn raise_credit(&mut self, limit: u64) -> bool {
        let news = limit > self.credit;
        self.credit = self.credit.max(limit);
        news
    }

    /// Room for the user's bytes below `limit` bytes queued and unacknowledged.
    pub fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.queued_bytes + self.unacked_bytes)
    }

    /// So many bytes, of a stream a single one, were not taken: the user waits to be told.
    pub fn refuse(&mut self, wanted: usize, limit: usize) -> Lack {
        let lack =
            if self.is_owed() || self.room(limit) < wanted.min(limit) { Lack::Room(wanted) } else { Lack::Memory };
        self.refused = Some(lack);
        self.starve(match lack {
            // Whose message is half handed over can use any room.
            _ if self.is_owed() => 0,
            Lack::Room(wanted) => wanted,
            // Whoever gives some back tells; what is acknowledged here may be little.
            Lack::Memory => limit,
        });
        lack
    }

    /// The user waits to be told of so much room, or as soon as it is worth while.
    pub fn starve(&mut self, wanted: usize) {
        self.hunger = Some(self.hunger.map_or(wanted, |least| least.min(wanted)));
    }

    /// Who has looked and seen no room waits to be told, if nobody does.
    pub fn starve_anyhow(&mut self) {
        if self.refused.is_none() || self.hunger.is_none() {
            self.starve(0);
        }
    }

    /// Bytes were taken: what was refused before is not waited for any more.
    pub fn note_taken(&mut self) {
        self.refused = None;
    }

    /// Whether the user may be told that there is room: as much as was refused last.
    pub fn is_writable(&self, limit: usize) -> bool {
        let is_enough = match self.refused {
            None => self.room(limit) > 0,
            Some(Lack::Room(wanted)) => self.room(limit) >= wanted.min(limit),
            Some(Lack::Memory) => false,
        };
        is_enough && !self.is_owed()
    }

    /// Whether somebody waits for room, and there is enough of it that telling him pays.
    pub fn takes_hunger(&mut self, limit: usize) -> bool {
        let is_stilled = self.hunger.is_some_and(|least| self.room(limit) >= least.min(limit).max(limit / 4));
        if is_stilled {
            self.tell();
        }
        is_stilled
    }

    /// All who wait are told to try again.
    pub fn tell(&mut self) {
        (self.hunger, self.refused) = (None, None);
    }

    /// What could be sent now if there were a grant: queued, and within the credit. At least a byte, so that an empty message counts.
    pub fn sendable(&self) -> Sendable {
        let Some(front) = self.queue.front() else { return Sendable::Nothing };
        let left = self.credit_left();
        if front.credit_bytes() > left {
            return Sendable::Blocked;
        }
        Sendable::Bytes(((self.queued_bytes + self.owed_bytes) as u64).min(left).max(1))
    }

    pub fn front(&self) -> Option<&Unsent> {
        self.queue.front()
    }

    /// Whether more than one packet is queued and the first may go at once: the credit reaches for it, it needs a grant as the one before it did, and it waits for no company.
    pub fn goes_on(&self) -> bool {
        let may_go = |front: &Unsent| !front.is_exempt() && front.credit_bytes() <= self.credit_left();
        self.queue.len() > 1 && self.queue.front().is_some_and(may_go)
    }

    /// Whether all that is queued is one packet with room for more.
    pub fn is_one_partial(&self, payload_bytes: usize) -> bool {
        self.queue.len() == 1 && self.ends_partial(payload_bytes)
    }

    /// Whether it is one packet with room for more, or a few of short messages of which the last has: what follows soon can leave in the same call.
    pub fn is_small_batch(&self, payload_bytes: usize) -> bool {
        let is_shared = |unsent: &Unsent| unsent.flags == Flags::RECORDS;
        (self.queue.len() == 1 || self.queue.len() < COMPANY_PACKETS && self.queue.front().is_some_and(is_shared))
            && self.ends_partial(payload_bytes)
    }

    fn ends_partial(&self, payload_bytes: usize) -> bool {
        self.queue
            .back()
            .is_some_and(|unsent| unsent.kind == Type::Data && unsent.payload.len() < payload_bytes - payload_bytes / 4)
    }

    /// Takes the first payload to give it a number, if the credit reaches.
    pub fn pop_sendable(&mut self) -> Option<Unsent> {
        let left = self.credit_left();
        self.queue.front().filter(|unsent| unsent.credit_bytes() <= left)?;
        self.pop()
    }

    /// Takes the first payload.
    pub fn pop(&mut self) -> Option<Unsent> {
        let unsent = self.queue.pop_front()?;
        self.queued_bytes -= unsent.payload.len();
        self.offset += unsent.credit_bytes();
        self.unacked_bytes += unsent.payload.len();
        self.unacked_packets += 1;
        self.begun = unsent.leaves_begun(self.begun);
        Some(unsent)
    }

    /// A packet of this channel was acknowledged.
    pub fn acknowledged(&mut self, payload_bytes: usize) {
        self.unacked_bytes -= payload_bytes;
        self.unacked_packets -= 1;
        if self.unacked_packets == 0 {
            self.last_number = None;
        }
    }

    /// The next packet has nothing in front of it that would say how much follows.
    fn begin_run(&mut self) {
        if self.queue.is_empty() {
            self.short_run = SHORT_RUN;
        }
    }

    fn push(&mut self, kind: Type, flags: Flags, payload: Buffer) {
        self.queued_bytes += payload.len();
        self.queue.push_back(Unsent { kind, flags, payload, deadline: None });
    }

    /// The earliest deadline of a message that is not under way.
    pub fn next_deadline(&self) -> Option<Time> {
        self.queue
            .iter()
            .filter(|unsent| unsent.flags.contains(Flags::FIRST))
            .filter_map(|unsent| unsent.deadline)
            .min()
    }

    /// The last message that was queued, which shares no packet, is worth sending only until then.
    pub fn set_deadline(&mut self, deadline: Time) {
        for unsent in self.queue.iter_mut().rev() {
            unsent.deadline = Some(deadline);
            if unsent.flags.contains(Flags::FIRST) {
                return;
            }
        }
    }

    /// Drops messages whose deadline has passed and that are not under way, and says how many.
    pub fn expire(&mut self, now: Time, pool: &mut Pool) -> u64 {
        let count = self.drop_messages(pool, |unsent| unsent.deadline.is_some_and(|deadline| deadline <= now));
        self.expired_messages += count;
        count
    }

    /// Drops all messages that are not under way, and says how many.
    pub fn cancel(&mut self, pool: &mut Pool) -> u64 {
        self.drop_messages(pool, |_| true)
    }

    fn drop_messages(&mut self, pool: &mut Pool, is_dropped: impl Fn(&Unsent) -> bool) -> u64 {
        let mut count = 0;
        // A message of which the rest is to come stays. If its first packet has been sent, all that is queued is of it.
        let is_first = |unsent: &Unsent| unsent.flags.contains(Flags::FIRST) && !unsent.flags.contains(Flags::RECORDS);
        let kept_from = match self.is_owed() {
            true => self.queue.iter().rposition(is_first).unwrap_or(0),
            false => self.queue.len(),
        };
        // The rest of a message that has begun stays.
        let (mut begun, mut dropping) = (self.begun, false);
        for (place, mut unsent) in std::mem::take(&mut self.queue).into_iter().enumerate() {
            if place >= kept_from {
                self.queue.push_back(unsent);
                continue;
            }
            if begun && unsent.kind == Type::Data {
                begun = !unsent.flags.contains(Flags::LAST);
                if unsent.flags.contains(Flags::RECORDS) && is_dropped(&unsent) {
                    dropping = true;
                    count += messages_in(&unsent);
                    self.queued_bytes -= unsent.keep_end();
                }
                self.queue.push_back(unsent);
                continue;
            }
            if unsent.kind == Type::Data && unsent.flags.intersects(Flags::FIRST | Flags::RECORDS) {
                dropping = is_dropped(&unsent);
                count += if dropping { messages_in(&unsent) } else { 0 };
            }
            if dropping && unsent.kind == Type::Data {
                self.queued_bytes -= unsent.payload.len();
                pool.give(unsent.payload);
            } else {
                self.queue.push_back(unsent);
            }
        }
        count
    }

    /// Queues the packet that opens the channel. `false` without memory.
    pub fn open(&mut self, fields: &OpenFields<'_>, pool: &mut Pool) -> bool {
        let Some(mut payload) = pool.take() else { return false };
        let mut bytes = [0; OpenFields::BYTES];
        if (OpenFields { early: &[], ..*fields }).write(&mut bytes).is_err() {
            pool.give(payload);
            return false;
        }
        payload.append(&bytes, OpenFields::BYTES);
        // A whole first message joins later, if it fits: see `Outgoing::write`.
        self.push(Type::Open, Flags::NONE, payload);
        true
    }

    /// Queues the end. Nothing may be written afterwards; a second end may follow that says more.
    pub fn finish(&mut self, fields: FinFields, pool: &mut Pool) {
        let mut bytes = [0; FinFields::BYTES];
        let written = fields.write(&mut bytes).unwrap_or(0);
        self.push(Type::Fin, Flags::NONE, pool.exactly(&bytes[..written]));
        self.finished = true;
        self.extent = Some(fields.extent);
    }

    /// How far the end that was queued or sent reaches.
    pub fn extent(&self) -> Option<Extent> {
        self.extent
    }

    /// Drops what has no number yet and queues an ABORT.
    pub fn abort(&mut self, fields: AbortFields, pool: &mut Pool) {
        self.drop_queue(pool);
        let mut bytes = [0; AbortFields::BYTES];
        let written = fields.write(&mut bytes).unwrap_or(0);
        self.push(Type::Abort, Flags::NONE, pool.exactly(&bytes[..written]));
    }

    /// Forgets what has no number yet.
    pub fn drop_queue(&mut self, pool: &mut Pool) {
        self.queue.drain(..).for_each(|unsent| pool.give(unsent.payload));
        (self.queued_bytes, self.owed_bytes) = (0, 0);
        self.keep_owed(0, pool);
        self.finished = true;
    }

    /// Begins anew on another association, before anything was written.
    pub fn restart(&mut self, pool: &mut Pool) {
        self.drop_queue(pool);
        *self = Outgoing { no_delay: self.no_delay, hunger: self.hunger, ..Outgoing::default() };
    }

    /// The association is gone, and with it everything that waited for an acknowledgment.
    pub fn forget_sent(&mut self) {
        (self.unacked_bytes, self.unacked_packets, self.last_number) = (0, 0, None);
    }

    /// Appends bytes of a stream, as many as `limit` and memory allow, and says how many.
    pub fn write(&mut self, bytes: &[u8], limit: usize, payload_bytes: usize, pool: &mut Pool) -> usize {
        let mut rest = &bytes[..bytes.len().min(self.room(limit))];
        let taken = rest.len();
        self.begin_run();
        if let Some(last) = self.queue.back_mut()
            && matches!(last.kind, Type::Data | Type::Open)
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
            self.push(Type::Data, Flags::NONE, payload);
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
        if begun > 0 {
            self.owed_bytes = bytes.len() - begun;
            self.append_parts(&bytes[begun..], Flags::NONE, usize::MAX, payload_bytes, pool);
            return Some(bytes.len());
        }
        if bytes.len() <= payload_bytes {
            let mut payload = pool.take()?;
            payload.append(bytes, payload_bytes);
            self.push(Type::Data, whole(), payload);
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

    fn keep_owed(&mut self, packets: usize, pool: &mut Pool) {
        pool.owed = pool.owed + packets - std::mem::replace(&mut self.owed_packets, packets);
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
            let mut payload = pool.take_anyway();
            if flags == Flags::FIRST {
                payload.append(&(self.owed_bytes as u32).to_be_bytes(), payload_bytes);
            }
            let limit = payload_limit(&mut self.short_run, payload.len(), rest.len(), payload_bytes);
            let count = payload.append(rest, limit);
            rest = &rest[count..];
            self.owed_bytes -= count;
            flags.set(Flags::LAST, self.owed_bytes == 0);
            self.push(Type::Data, flags, payload);
            flags = Flags::NONE;
        }
        given - rest.len()
    }

    /// Lets a short message share the last queued packet.
    pub fn join_records(&mut self, bytes: &[u8], payload_bytes: usize) -> bool {
        let Some(last) = self.queue.back_mut().filter(|last| last.may_be_shared()) else { return false };
        let more = last.prefix_to_share() + RECORD_PREFIX_BYTES + bytes.len();
        if last.payload.len() + more > payload_bytes {
            return false;
        }
        last.become_records();
        last.payload.append(&(bytes.len() as u16).to_be_bytes(), payload_bytes);
        last.payload.append(bytes, payload_bytes);
        self.queued_bytes += more;
        true
    }

    /// Lets a message begin in what is left of the last queued packet, if there is memory for the rest too; says how many of its bytes did.
    fn begin_in_rest(&mut self, bytes: &[u8], payload_bytes: usize, pool: &Pool) -> usize {
        let Ok(length) = u16::try_from(bytes.len()) else { return 0 };
        let Some(last) = self.queue.back_mut().filter(|last| last.may_be_shared()) else { return 0 };
        let used = last.prefix_to_share() + RECORD_PREFIX_BYTES + last.payload.len();
        let room = payload_bytes.saturating_sub(used);
        let rest = bytes.len().saturating_sub(room);
        if bytes.len() < payload_bytes / BEGINNING_SHARE
            || room < LEAST_BEGINNING_BYTES
            || pool.available() < rest.div_ceil(payload_bytes)
        {
            return 0;
        }
        let limit = payload_limit(&mut self.short_run, used, bytes.len(), payload_bytes);
        let before = last.payload.len();
        last.become_records();
        last.payload.append(&length.to_be_bytes(), limit);
        let begun = last.payload.append(bytes, limit);
        last.flags.insert(Flags::FIRST);
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

impl Unsent {
    /// Another message may stand behind what is in it: messages, or the end of one.
    fn may_be_shared(&self) -> bool {
        let (records, last) = (self.flags.contains(Flags::RECORDS), self.flags.contains(Flags::LAST));
        let ends_open = records && self.flags.contains(Flags::FIRST);
        self.kind == Type::Data && self.deadline.is_none() && (records || last) && !ends_open
    }

    /// Bytes that it grows by when it becomes a run of records.
    fn prefix_to_share(&self) -> usize {
        if self.flags.contains(Flags::RECORDS) { 0 } else { RECORD_PREFIX_BYTES }
    }

    /// Makes a whole message, or the end of one, the first of a run of records.
    fn become_records(&mut self) {
        if self.flags.contains(Flags::RECORDS) {
            return;
        }
        let length = self.payload.len() as u16;
        self.payload.push(&length.to_be_bytes());
        self.flags = match self.flags.contains(Flags::FIRST) {
            true => Flags::RECORDS,
            false => Flags::RECORDS | Flags::LAST,
        };
    }

    /// Cuts off what stands behind the end of a message, and says how many bytes that was.
    fn keep_end(&mut self) -> usize {
        let length = self.payload.bytes().first_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
        let cut = self.payload.len().saturating_sub(RECORD_PREFIX_BYTES + length);
        self.payload.cut(cut);
        self.flags = Flags::RECORDS | Flags::LAST;
        cut
    }
}

/// How many messages begin in a payload.
fn messages_in(unsent: &Unsent) -> u64 {
    match Content::parse(unsent.flags, unsent.payload.bytes()) {
        Ok(Content::Records(records)) => u64::from(records.beginning().is_some()) + records.count() as u64,
        _ => 1,
    }
}

/// The flags of a payload that is one message.
fn whole() -> Flags {
    Flags::FIRST | Flags::LAST
}

#[cfg(test)]
mod tests {
    use super::*;
    const PAYLOAD: usize = 100;

    fn pool() -> Pool {
        Pool::new(PAYLOAD + SHORT_SAVES_BYTES, 1 << 20)
    }

    fn packets(outgoing: &mut Outgoing) -> Vec<(Flags, Vec<u8>)> {
        std::iter::from_fn(|| outgoing.pop()).map(|unsent| (unsent.flags, unsent.payload.bytes().to_vec())).collect()
    }

    #[test]
    fn a_stream_fills_packets() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        for _ in 0..25 {
            assert_eq!(outgoing.write(b"0123456789", 10_000, PAYLOAD, &mut pool), 10);
        }
        let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
        assert_eq!(lengths, [100, 100, 50]);
    }

    #[test]
    fn most_packets_with_more_behind_them_have_the_short_header_s_payload() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        outgoing.write(&[0; 20 * PAYLOAD], 10_000, PAYLOAD, &mut pool);
        let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
        let run = [&[PAYLOAD][..], &[PAYLOAD + SHORT_SAVES_BYTES; SHORT_RUN as usize]].concat();
        assert_eq!(lengths, [&run[..], &run, &[PAYLOAD, PAYLOAD + SHORT_SAVES_BYTES, 20]].concat());
        // Nothing, or less than that saves, is behind these.
        for (more, expected) in
            [(0, &[PAYLOAD, PAYLOAD][..]), (SHORT_SAVES_BYTES, &[PAYLOAD, PAYLOAD, SHORT_SAVES_BYTES])]
        {
            outgoing.write(&vec![0; 2 * PAYLOAD + more], 10_000, PAYLOAD, &mut pool);
            let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
            assert_eq!(lengths, expected, "{more} more");
            outgoing.forget_sent();
        }
    }

    #[test]
    fn short_messages_share_a_packet_and_keep_their_boundaries() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        let messages: [&[u8]; 5] = [b"one", b"", b"three", &[5; 60], &[7; 96]];
        for message in messages {
            assert!(outgoing.write_message(message, false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        let packets = packets(&mut outgoing);
        assert_eq!(packets.len(), 2);
        let Ok(Content::Records(records)) = Content::parse(packets[0].0, &packets[0].1) else { panic!("{packets:?}") };
        assert_eq!(records.collect::<Vec<_>>(), &messages[..4]);
        assert_eq!(
            Content::parse(packets[1].0, &packets[1].1),
            Ok(Content::Whole(&[7; 96])),
            "too little is left to begin it"
        );
    }

    #[test]
    fn messages_fill_packets_whatever_their_size() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        for size in [101, 57, 60, 200, 13] {
            assert!(outgoing.write_message(&vec![size as u8; size], false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        let packets = packets(&mut outgoing);
        let kinds: Vec<_> = packets.iter().map(|packet| (packet.0, packet.1.len())).collect();
        let (first, last, records) = (Flags::FIRST, Flags::LAST, Flags::RECORDS);
        // 101 as 96 + 5; 57; 60 as 44 + 16; 200 as 92 + 100 + 8; 13. More follows when the second and the third are filled: short headers will do.
        let both = records | first | last;
        assert_eq!(kinds, [(first, 100), (both, 112), (both, 112), (Flags::NONE, 100), (records | last, 25)]);
        let parts: Vec<_> = packets[1..].iter().map(|(flags, bytes)| Content::parse(*flags, bytes).unwrap()).collect();
        let shares: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                Content::Records(records) => Some((
                    records.end().map(<[u8]>::len),
                    records.map(<[u8]>::len).collect::<Vec<_>>(),
                    records.beginning().map(|beginning| (beginning.length, beginning.bytes.len())),
                )),
                _ => None,
            })
            .collect();
        let expected =
            [(Some(5), vec![57], Some((60, 44))), (Some(16), vec![], Some((200, 92))), (Some(8), vec![13], None)];
        assert_eq!(shares, expected);
    }

    #[test]
    fn messages_given_up_leave_the_rest_of_one_that_is_under_way() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        for size in [101, 57, 60, 13] {
            assert!(outgoing.write_message(&vec![size as u8; size], false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        pool.give(outgoing.pop().unwrap().payload);
        assert_eq!(outgoing.cancel(&mut pool), 3, "all but the first, which has begun");
        let packets = packets(&mut outgoing);
        assert_eq!(outgoing.queued_bytes(), 0);
        let [(flags, bytes)] = &packets[..] else { panic!("{packets:?}") };
        let Ok(Content::Records(records)) = Content::parse(*flags, bytes) else { panic!("{packets:?}") };
        assert_eq!((records.end().map(<[u8]>::len), records.count(), records.beginning()), (Some(5), 0, None));
    }

    #[test]
    fn memory_for_the_rest_of_a_message_is_kept_until_it_is_taken_or_the_channel_ends() {
        for ends in [false, true] {
            let (mut outgoing, mut pool) =
                (Outgoing::default(), Pool::new(PAYLOAD + SHORT_SAVES_BYTES, 200 * PAYLOAD as u64));
            let (message, before) = (vec![7; 100 * PAYLOAD], pool.available());
            let mut taken = outgoing.write_message(&message, false, 1 << 20, PAYLOAD, &mut pool).unwrap();
            assert_eq!(pool.in_use(), PART_PACKETS);
            assert_eq!(pool.available(), before - PART_PACKETS - 52, "no other channel gets it");
            assert_eq!(outgoing.write_message(b"other", false, 1 << 20, PAYLOAD, &mut pool), None);
            if ends {
                outgoing.drop_queue(&mut pool);
                assert_eq!((pool.available(), outgoing.is_owed()), (before, false));
                continue;
            }
            while outgoing.is_owed() {
                taken += outgoing.write_rest(&message[taken..], PAYLOAD, &mut pool);
            }
            assert_eq!((taken, pool.in_use(), pool.owed), (message.len(), 91, 0));
            let flags: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.0).collect();
            assert_eq!(flags.iter().filter(|&&flags| flags != Flags::NONE).count(), 2);
            assert_eq!((flags[0], flags[90]), (Flags::FIRST, Flags::LAST));
        }
    }

    #[test]
    fn a_long_message_is_cut_and_says_its_length() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        let message: Vec<u8> = (0..250).collect();
        assert!(outgoing.write_message(&message, false, 10_000, PAYLOAD, &mut pool).is_some());
        let packets = packets(&mut outgoing);
        let Ok(Content::First { length, bytes }) = Content::parse(packets[0].0, &packets[0].1) else { panic!() };
        let whole: Vec<u8> = [bytes, &packets[1].1, &packets[2].1].concat();
        assert_eq!((length, whole, packets[2].0), (250, message, Flags::LAST));
    }

    #[test]
    fn messages_past_their_deadline_are_dropped_whole_unless_they_have_begun() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        let at = Time::from_nanos;
        for (size, deadline) in [(250, Some(10)), (50, None), (250, Some(20)), (40, Some(5)), (30, None)] {
            assert!(
                outgoing
                    .write_message(&vec![size as u8; size], deadline.is_some(), 10_000, PAYLOAD, &mut pool)
                    .is_some()
            );
            deadline.into_iter().for_each(|deadline| outgoing.set_deadline(at(deadline)));
        }
        pool.give(outgoing.pop().unwrap().payload);
        assert_eq!(outgoing.next_deadline(), Some(at(5)));
        assert_eq!(outgoing.expire(at(15), &mut pool), 1, "the one of 40 bytes; the first has begun");
        assert_eq!(outgoing.expire(at(25), &mut pool), 1, "the second of 250");
        assert_eq!((outgoing.expired_messages, outgoing.queued_bytes()), (2, 154 + 50 + 30));
        assert_eq!(outgoing.cancel(&mut pool), 2);
        let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
        assert_eq!(lengths, [112, 42], "the rest of the first");
    }

    #[test]
    fn a_full_buffer_takes_what_fits_and_an_oversized_message_goes_alone() {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        assert_eq!(outgoing.write(&[1; 300], 250, PAYLOAD, &mut pool), 250);
        assert_eq!(outgoing.write(&[1; 1], 250, PAYLOAD, &mut pool), 0);
        let mut messages = Outgoing::default();
        assert!(messages.write_message(&[1; 300], false, 250, PAYLOAD, &mut pool).is_some());
        assert!(messages.write_message(&[1; 3], false, 250, PAYLOAD, &mut pool).is_none());
    }
}
