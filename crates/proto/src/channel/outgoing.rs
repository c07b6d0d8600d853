//! The sending half of a channel: what the user wrote, cut into payloads, small ones sharing a packet.

mod filling;
mod unsent;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ropeway_wire::{AbortFields, Extent, FinFields, Flags, OpenFields, Type};

use super::waiting::{Lack, Waiting};
use super::{SHORT_MESSAGE_SHARE, message_flags};
use crate::pool::Pool;
use crate::sent::Packet;
use crate::time::Time;
pub use filling::MESSAGE_PREFIX_BYTES;
pub use unsent::Unsent;

/// So many packets of small sends leave at once, however soon the next one follows.
const COMPANY_PACKETS: usize = 8;

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
    /// How long that message is.
    owed_of: usize,
    /// An end that comes behind that message.
    pub ends_then: Option<Extent>,
    /// Payload bytes numbered and not acknowledged.
    unacked_bytes: usize,
    unacked_packets: u32,
    /// The peer takes bytes up to this offset.
    credit: u64,
    /// It takes none for now, until it says that again.
    is_paused: bool,
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
    /// Who waits for room.
    pub waiting: Waiting,
    /// Small sends are never kept back to share a packet.
    pub no_delay: bool,
    /// The packet numbered last ended in the middle of a message.
    begun: bool,
    /// How many of the packets filled last have payloads for the short header.
    short_run: u8,
}

impl Outgoing {
    /// Keeps no more memory than there is use for now.
    pub fn rest(&mut self) {
        self.queue.shrink_to_fit();
    }

    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.unacked_packets == 0 && !self.is_owed()
    }

    /// Whether everything but the end has been acknowledged, which is the last packet.
    pub fn is_delivered(&self) -> bool {
        let left = self.queue.len() + self.unacked_packets as usize;
        !self.is_owed() && left <= usize::from(self.finished)
    }

    /// Whether something that was written, other than the end, has not left, or is to come.
    pub fn has_unsent(&self) -> bool {
        self.is_owed() || self.queue.front().is_some_and(|first| first.kind != Type::Fin)
    }

    /// Whether nothing was written, and no end: all that there is of it is the packet that opens it.
    pub fn is_only_open(&self) -> bool {
        let bytes = self.queued_bytes + self.unacked_bytes;
        bytes <= OpenFields::BYTES && !self.is_owed() && !self.finished
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
        if self.is_paused { 0 } else { self.credit.saturating_sub(self.offset) }
    }

    /// Raises the credit, or ends a pause by giving it again; `false` if that is no news.
    pub fn raise_credit(&mut self, limit: u64) -> bool {
        if limit < self.credit {
            return false;
        }
        let news = limit > self.credit || self.is_paused;
        (self.credit, self.is_paused) = (limit, false);
        news
    }

    /// The peer takes nothing more until it gives credit again.
    pub fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Room for the user's bytes below `limit` bytes queued and unacknowledged.
    pub fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.queued_bytes + self.unacked_bytes)
    }

    /// So many bytes, of a stream a single one, were not taken: the user waits to be told.
    pub fn refuse(&mut self, wanted: usize, limit: usize) -> Lack {
        let lack =
            if self.is_owed() || self.room(limit) < wanted.min(limit) { Lack::Room(wanted) } else { Lack::Memory };
        let room_wanted = match lack {
            // Whose message is half handed over can use any room.
            _ if self.is_owed() => 0,
            Lack::Room(wanted) => wanted,
            // Whoever gives some back tells; what is acknowledged here may be little.
            Lack::Memory => limit,
        };
        self.waiting.refuse(lack, room_wanted);
        lack
    }

    /// Whether the user may be told that there is room: as much as was refused last.
    pub fn is_writable(&self, limit: usize) -> bool {
        self.waiting.is_enough(self.room(limit), limit) && !self.is_owed()
    }

    /// Whether somebody waits for room, and there is enough of it that telling him pays: then all who wait are told.
    pub fn takes_hunger(&mut self, limit: usize) -> bool {
        self.waiting.takes(self.room(limit), limit)
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
        let holds_short =
            |unsent: &Unsent| unsent.is_shared() && unsent.last_length() < payload_bytes / SHORT_MESSAGE_SHARE;
        (self.queue.len() == 1 || self.queue.len() < COMPANY_PACKETS && self.queue.front().is_some_and(holds_short))
            && self.ends_partial(payload_bytes)
    }

    fn ends_partial(&self, payload_bytes: usize) -> bool {
        self.queue
            .back()
            .is_some_and(|unsent| unsent.kind == Type::Data && unsent.payload.len() < payload_bytes - payload_bytes / 4)
    }

    /// Takes the first payload to give it a number, if the credit reaches.
    pub fn pop_sendable(&mut self, payload_bytes: usize, pool: &mut Pool) -> Option<Unsent> {
        let left = self.credit_left();
        self.queue.front().filter(|unsent| unsent.credit_bytes() <= left)?;
        self.part_end(payload_bytes, pool);
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

    /// Takes back what the peer had no memory for: the newest packets that have a number, in their order, behind the one with the number `before`. They go again, under others, when it gives credit again;
    /// of a channel that `is_over` for this end only an ABORT goes.
    pub fn withdraw(&mut self, packets: Vec<Packet>, before: Option<u64>, is_over: bool, pool: &mut Pool) {
        // The peer has memory for an OPEN alone, and says of what follows whether it has some.
        self.is_paused = packets.iter().all(|packet| packet.kind != Type::Open);
        for packet in packets.into_iter().rev() {
            self.unacked_bytes -= packet.payload.len();
            self.unacked_packets -= 1;
            let unsent = Unsent::withdrawn(packet.kind, packet.flags, packet.payload);
            self.offset -= unsent.credit_bytes();
            // Of a stream no packet says whether something goes on in it, and nothing ever has begun.
            let is_part = unsent.kind == Type::Data && (self.begun || unsent.flags.intersects(message_flags()));
            self.begun = is_part && unsent.continues();
            match unsent.kind {
                kind if is_over && kind != Type::Abort => pool.give(unsent.payload),
                Type::Open => self.put_back_open(unsent, pool),
                _ => self.put_back(unsent),
            }
        }
        self.last_number = before;
    }

    fn put_back(&mut self, unsent: Unsent) {
        self.queued_bytes += unsent.payload.len();
        self.queue.push_front(unsent);
    }

    /// The packet that opens the channel goes without the early data: for that alone there is always memory.
    fn put_back_open(&mut self, open: Unsent, pool: &mut Pool) {
        let mut early = open.payload;
        let fields = pool.exactly(&early.bytes()[..OpenFields::BYTES]);
        early.pull(OpenFields::BYTES);
        match early.is_empty() {
            true => pool.give(early),
            false => self.put_back(Unsent::withdrawn(Type::Data, open.flags, early)),
        }
        self.put_back(Unsent::withdrawn(Type::Open, Flags::NONE, fields));
    }

    /// A packet of this channel was acknowledged.
    pub fn acknowledged(&mut self, payload_bytes: usize) {
        self.unacked_bytes -= payload_bytes;
        self.unacked_packets -= 1;
        if self.unacked_packets == 0 {
            self.last_number = None;
        }
    }

    fn push(&mut self, unsent: Unsent) {
        self.queued_bytes += unsent.payload.len();
        self.queue.push_back(unsent);
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
            if unsent.is_withdrawn {
                // It was under way.
                begun = unsent.leaves_begun(begun);
                self.queue.push_back(unsent);
                continue;
            }
            if begun && unsent.kind == Type::Data {
                if unsent.is_shared() && is_dropped(&unsent) {
                    dropping = true;
                    count += unsent.messages();
                    self.queued_bytes -= unsent.keep_end();
                }
                begun = !unsent.flags.contains(Flags::LAST);
                self.queue.push_back(unsent);
                continue;
            }
            if unsent.kind == Type::Data && (unsent.flags.contains(Flags::FIRST) || unsent.is_shared()) {
                dropping = is_dropped(&unsent);
                count += if dropping { unsent.messages() } else { 0 };
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
        self.push(Unsent::new(Type::Open, Flags::NONE, payload));
        true
    }

    /// Queues the end. Nothing may be written afterwards; a second end may follow that says more.
    pub fn finish(&mut self, fields: FinFields, pool: &mut Pool) {
        let mut bytes = [0; FinFields::BYTES];
        let written = fields.write(&mut bytes).unwrap_or(0);
        self.push(Unsent::new(Type::Fin, Flags::NONE, pool.exactly(&bytes[..written])));
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
        self.push(Unsent::new(Type::Abort, Flags::NONE, pool.exactly(&bytes[..written])));
    }

    /// Forgets what has no number yet.
    pub fn drop_queue(&mut self, pool: &mut Pool) {
        self.queue.drain(..).for_each(|unsent| pool.give(unsent.payload));
        (self.queued_bytes, self.owed_bytes) = (0, 0);
        self.keep_owed(0, pool);
        self.finished = true;
    }

    /// Begins anew on another association, before anything was written: with the packet that opens the channel, and the end if there was one. `false` without memory.
    pub fn restart(&mut self, fields: &OpenFields<'_>, pool: &mut Pool) -> bool {
        let extent = self.extent;
        self.drop_queue(pool);
        *self = Outgoing { no_delay: self.no_delay, waiting: self.waiting.begun_anew(), ..Outgoing::default() };
        let is_open = self.open(fields, pool);
        if let Some(extent) = extent.filter(|_| is_open) {
            self.finish(FinFields { extent }, pool);
        }
        is_open
    }

    /// The association is gone, and with it everything that waited for an acknowledgment.
    pub fn forget_sent(&mut self) {
        (self.unacked_bytes, self.unacked_packets, self.last_number) = (0, 0, None);
    }
}
