//! Packet memory: buffers of one size with room for headers in front and a tag behind, kept for the next use ([0:4.4]).
//!
//! A buffer is owned by whoever holds it and goes back with [`Pool::give`]. The pool keeps returned memory between a watermark and one and a half
//! times that, so that a steady flow never asks the allocator; how often it had to is counted. The watermark follows what was in use at a time lately: a flow that
//! hands over a megabyte at once has all of it in use, then nothing, then all of it. Short payloads that have to be kept get exactly the memory
//! they need: a peer that sends single bytes must not occupy a packet's memory with each.

/// Room in front of a payload: channel header, counter of a key, and the length that a first record gets when a second one joins it.
pub const HEADROOM_BYTES: usize = wire::CHANNEL_HEADER_BYTES + wire::COUNTER_BYTES + wire::RECORD_PREFIX_BYTES;
/// Room behind a payload: the tag of a key.
pub const TAILROOM_BYTES: usize = wire::TAG_BYTES;
/// What a buffer is longer by than its payload can be.
const ROOM_BYTES: usize = HEADROOM_BYTES + TAILROOM_BYTES;
/// What a payload can be longer by if it travels with the short header.
pub const SHORT_SAVES_BYTES: usize = wire::CHANNEL_HEADER_BYTES - wire::SHORT_HEADER_BYTES;

use ropeway_wire as wire;

use crate::ledger::{AccountId, Ledger};
use crate::time::Time;

/// Free buffers kept at least: a grant quantum for a few senders.
const WATERMARK: usize = 256;
/// Memory that nothing has needed for one to two such times goes back to the allocator ...
const FADES_NS: u64 = 1_000_000_000;
/// ... so many buffers at once: everything else waits meanwhile ...
const MOST_FADED: usize = 1024;
/// ... and more of them so soon after.
const FADES_ON_NS: u64 = 10_000_000;
/// A payload shorter than this share of a packet is kept in memory of its own size.
const SHORT_SHARE: usize = 4;

/// This share of the memory is for those who keep little of it: one peer whose channels nobody reads would keep all others from being heard.
const LAST_SHARE: usize = 8;
/// This share of that is for channels of which all was read: others of their associations may be full of what nobody reads.
const FIRST_SHARE: usize = 2;
/// Messages that have begun and have no memory set aside hold this share of the memory at most: they would keep each other from their ends.
const BEGUN_SHARE: usize = 8;

/// A piece of packet memory; the bytes from `start` to `end` are in use. The default has none.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Box<[u8]>,
    account: AccountId,
    /// It [counts](Pool::count_as_begun) as of a message that has begun.
    is_begun: bool,
    start: u32,
    end: u32,
}

impl Buffer {
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// What it takes up.
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Whether it [counts](Pool::count_as_begun) as of a message that has begun.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start as usize..self.end as usize]
    }

    /// Appends as many of the bytes as fit below `limit` bytes in use, and says how many.
    pub fn append(&mut self, bytes: &[u8], limit: usize) -> usize {
        let end = self.end as usize;
        let room = self.append_room(limit).saturating_sub(self.len());
        let count = bytes.len().min(room);
        self.memory[end..end + count].copy_from_slice(&bytes[..count]);
        self.end += count as u32;
        count
    }

    /// How many bytes can be in use altogether if more are appended: pulling at the front makes no room at the end.
    pub fn append_room(&self, limit: usize) -> usize {
        limit.min(self.memory.len().saturating_sub(self.start as usize + TAILROOM_BYTES))
    }

    /// Takes bytes away at the front.
    pub fn pull(&mut self, count: usize) {
        self.start += count.min(self.len()) as u32;
    }

    /// Takes bytes away at the end.
    pub fn cut(&mut self, count: usize) {
        self.end -= count.min(self.len()) as u32;
    }

    /// Puts `prefix` in front. The headroom is dimensioned for every header there is.
    pub fn push(&mut self, prefix: &[u8]) {
        let start = self.start as usize - prefix.len();
        self.memory[start..self.start as usize].copy_from_slice(prefix);
        self.start = start as u32;
    }

    /// The packet that this payload becomes with so many bytes in front of it and behind it, in place and without becoming part of the payload.
    pub fn packet(&self, (front, behind): (usize, usize)) -> &[u8] {
        &self.memory[self.start as usize - front..self.end as usize + behind]
    }

    /// The same to be written.
    pub fn packet_mut(&mut self, (front, behind): (usize, usize)) -> &mut [u8] {
        &mut self.memory[self.start as usize - front..self.end as usize + behind]
    }
}

/// Where buffers come from.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Box<[u8]>>,
    buffer_bytes: usize,
    in_use: usize,
    /// The most that were in use at a time in the [`FADES_NS`] at hand, and in those before.
    most_in_use: [usize; 2],
    fades_at: Time,
    used_bytes: usize,
    limit_bytes: usize,
    /// What peers have been told that they may send, beyond the first window of each channel, and have not sent.
    pub promised_bytes: u64,
    /// Buffers that are kept for messages of which a part was handed over, or of which a reader has a part that it may put back.
    pub owed: usize,
    /// Buffers set aside for messages that are on their way: for nothing else.
    pub set_aside: usize,
    /// Who has how much.
    pub ledger: Ledger,
    /// What the first message in line for memory lacks: what becomes free is not for who keeps much already.
    pub claimed_bytes: usize,
    /// Buffers handed out since the start.
    pub taken: u64,
    /// Of those, how many had to be allocated.
    pub allocated: u64,
}

impl Pool {
    /// Buffers for payloads up to `payload_bytes`, `limit_bytes` of memory altogether.
    pub fn new(payload_bytes: usize, limit_bytes: u64) -> Pool {
        let mut pool = Pool {
            free: Vec::new(),
            buffer_bytes: ROOM_BYTES + payload_bytes,
            in_use: 0,
            most_in_use: [0; 2],
            fades_at: Time::ZERO,
            used_bytes: 0,
            limit_bytes: 0,
            promised_bytes: 0,
            owed: 0,
            set_aside: 0,
            ledger: Ledger::default(),
            claimed_bytes: 0,
            taken: 0,
            allocated: 0,
        };
        pool.set_limit(limit_bytes);
        pool
    }

    /// Another limit: one packet at least.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX).max(self.buffer_bytes);
    }

    /// An empty buffer; `None` when all memory is in use.
    pub fn take(&mut self) -> Option<Buffer> {
        self.take_for(AccountId::NOBODY)
    }

    /// The same, charged to an account.
    pub fn take_for(&mut self, account: AccountId) -> Option<Buffer> {
        (!self.is_exhausted()).then(|| self.take_anyway(account))
    }

    /// An empty buffer for what has memory already: a message of which a part was taken, or that some was set aside for, or what a reader puts back.
    pub fn take_anyway(&mut self, account: AccountId) -> Buffer {
        let memory = self.free.pop().unwrap_or_else(|| {
            self.allocated += 1;
            vec![0; self.buffer_bytes].into_boxed_slice()
        });
        self.hand_out(memory, account)
    }

    /// A copy of a payload that has to be kept, in no more memory than it needs. The caller has looked that there is some.
    pub fn copy(&mut self, payload: &[u8], account: AccountId) -> Buffer {
        if self.copy_bytes(payload.len()) < self.buffer_bytes {
            return self.copy_exactly(payload, account);
        }
        let mut buffer = self.take_anyway(account);
        buffer.append(payload, self.payload_bytes());
        buffer
    }

    /// What [`Pool::copy`] of a payload takes up.
    pub fn copy_bytes(&self, payload_bytes: usize) -> usize {
        let is_short = payload_bytes < self.payload_bytes() / SHORT_SHARE;
        if is_short { ROOM_BYTES + payload_bytes } else { self.buffer_bytes }
    }

    /// A copy of a few bytes that must not fail for want of memory: what ends a channel. There are no more than two for each channel.
    pub fn exactly(&mut self, payload: &[u8]) -> Buffer {
        self.copy_exactly(payload, AccountId::NOBODY)
    }

    fn copy_exactly(&mut self, payload: &[u8], account: AccountId) -> Buffer {
        self.allocated += 1;
        if self.used_bytes + self.free.len() * self.buffer_bytes >= self.limit_bytes {
            // What is kept for later use is within the limit, too.
            self.free.pop();
        }
        let mut buffer = self.hand_out(vec![0; ROOM_BYTES + payload.len()].into_boxed_slice(), account);
        buffer.append(payload, payload.len());
        buffer
    }

    fn hand_out(&mut self, memory: Box<[u8]>, account: AccountId) -> Buffer {
        self.in_use += 1;
        self.most_in_use[0] = self.most_in_use[0].max(self.in_use);
        self.taken += 1;
        self.used_bytes += memory.len();
        self.ledger.charge(account, memory.len());
        Buffer { memory, account, is_begun: false, start: HEADROOM_BYTES as u32, end: HEADROOM_BYTES as u32 }
    }

    pub fn give(&mut self, mut buffer: Buffer) {
        self.count_no_more(&mut buffer);
        self.in_use -= 1;
        self.used_bytes -= buffer.memory.len();
        self.ledger.discharge(buffer.account, buffer.memory.len());
        if buffer.memory.len() != self.buffer_bytes {
            return;
        }
        let watermark = self.watermark();
        if self.free.len() >= watermark + watermark / 2 {
            self.free.truncate(watermark);
        }
        self.free.push(buffer.memory);
    }

    fn watermark(&self) -> usize {
        let [lately, before] = self.most_in_use;
        WATERMARK.max(lately).max(before)
    }

    /// Whether more is kept than what is in use now would justify: [`Pool::fade`] will have something to do.
    pub fn must_fade(&self) -> bool {
        self.free.len() > WATERMARK.max(self.in_use)
    }

    /// Gives back to the allocator what was not needed lately, if it is time. Says when to call it again, if ever.
    pub fn fade(&mut self, now: Time) -> Option<Time> {
        if self.must_fade() && self.fades_at <= now {
            self.most_in_use = [self.in_use, self.most_in_use[0]];
            let watermark = self.watermark();
            self.free.truncate(watermark.max(self.free.len().saturating_sub(MOST_FADED)));
            let has_more = self.free.len() > watermark;
            self.fades_at = now.after(if has_more { FADES_ON_NS } else { FADES_NS });
            if self.free.len() == WATERMARK {
                // Nobody comes back for that.
                self.free.shrink_to_fit();
            }
        }
        self.must_fade().then_some(self.fades_at)
    }

    /// Buffers handed out and not returned.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Not one more buffer could be handed out.
    pub fn is_exhausted(&self) -> bool {
        self.available_bytes() < self.buffer_bytes
    }

    /// So little is left that only those get some who keep little.
    pub fn is_short(&self) -> bool {
        !self.is_left_for_all(0)
    }

    /// Less is left than what is for those who keep little, whatever is claimed.
    pub fn has_only_the_last(&self) -> bool {
        self.available_bytes() < self.last_bytes()
    }

    /// Whether whoever wants another buffer may have it, whatever it keeps: then nothing else need be looked at. `may_begin` a message, it does not matter whose while half of what may have begun is left.
    pub fn is_for_all(&self, may_begin: bool) -> bool {
        self.is_left_for_all(self.buffer_bytes)
            && (!may_begin || self.ledger.begun_bytes() + self.buffer_bytes <= self.begun_limit() / 2)
    }

    /// Whether an account may have so much more, of which, and of what it keeps, `apart_bytes` do not count: while an eighth of the memory is free beside what is claimed, everybody; of that who keeps little.
    pub fn may_have(&self, account: AccountId, bytes: usize, apart_bytes: usize) -> bool {
        self.is_left_for_all(bytes) || bytes <= self.available_bytes() && self.is_of_part(account, bytes, apart_bytes)
    }

    /// Whether so much is left of what is for everybody.
    pub fn is_left_for_all(&self, bytes: usize) -> bool {
        self.available_bytes() >= self.last_bytes() + self.claimed_bytes + bytes
    }

    /// Whether so much is of the account's part of what is for those who keep little. Hosts that do get equal parts of all that is left of it; of what is above half of it associations do, whatever their
    /// hosts keep. A piece of memory at least, while there is more than that and, of the lower half, half of that.
    fn is_of_part(&self, account: AccountId, bytes: usize, apart_bytes: usize) -> bool {
        let all = self.last_bytes();
        let left = all.min(self.available_bytes());
        let part = |left: usize, kept_back: usize, sharers: usize| {
            let least = if left >= kept_back + self.buffer_bytes { self.buffer_bytes } else { 0 };
            (left / (sharers + 1)).max(least)
        };
        let (kept, kept_by_host) = self.ledger.kept_bytes(account);
        let [associations, hosts] = self.ledger.keeping();
        (kept + bytes).saturating_sub(apart_bytes) <= part(left.saturating_sub(all / 2), 0, associations)
            || (kept_by_host + bytes).saturating_sub(apart_bytes) <= part(left, all / 4, hosts)
    }

    /// Whether so much may come to a channel of which all was read, whatever else is kept: its reader waits for nothing else.
    pub fn may_have_first(&self, bytes: usize) -> bool {
        self.available_bytes() >= self.last_bytes() - self.last_bytes() / FIRST_SHARE + bytes
    }

    /// Whether so much more may be here of a message of this account that has begun and has no memory set aside: of a host no more than what is left for others. `apart_bytes` of what is here do not count.
    pub fn may_begin(&self, account: AccountId, bytes: usize, apart_bytes: usize) -> bool {
        let begun = self.ledger.begun_bytes().saturating_sub(apart_bytes) + bytes;
        let begun_by_host = self.ledger.begun_bytes_of_host(account).saturating_sub(apart_bytes) + bytes;
        begun + begun_by_host <= self.begun_limit()
    }

    /// What waits for a lost packet may be of a message that is not whole, like what is here of those that have begun in their order: it will take a whole piece like that.
    pub fn count_as_begun(&mut self, buffer: &mut Buffer) {
        buffer.is_begun = true;
        self.ledger.note_begun(buffer.account, 0, self.buffer_bytes);
    }

    /// It does not wait any more.
    pub fn count_no_more(&mut self, buffer: &mut Buffer) {
        if std::mem::take(&mut buffer.is_begun) {
            self.ledger.note_begun(buffer.account, self.buffer_bytes, 0);
        }
    }

    /// So many buffers are here of a message that has begun and has no memory set aside, where `before` were.
    pub fn keep_begun(&mut self, account: AccountId, before: usize, buffers: usize) {
        self.ledger.note_begun(account, before * self.buffer_bytes, buffers * self.buffer_bytes);
    }

    fn begun_limit(&self) -> usize {
        self.limit_bytes / BEGUN_SHARE
    }

    /// So many buffers are kept for an account that has `before` now: for a message of which a reader has a part.
    pub fn keep_owed(&mut self, account: AccountId, before: usize, buffers: usize) {
        self.owed = self.owed + buffers - before;
        self.charge(account, before, buffers);
    }

    /// So many buffers are set aside for an account that has `before` now: for a message that is on its way.
    pub fn keep_set_aside(&mut self, account: AccountId, before: usize, buffers: usize) {
        self.set_aside = self.set_aside + buffers - before;
        self.charge(account, before, buffers);
    }

    fn charge(&mut self, account: AccountId, before: usize, buffers: usize) {
        self.ledger.charge(account, buffers.saturating_sub(before) * self.buffer_bytes);
        self.ledger.discharge(account, before.saturating_sub(buffers) * self.buffer_bytes);
    }

    /// What is for those who keep little: as long as more is free everybody gets some.
    pub fn last_bytes(&self) -> usize {
        (self.limit_bytes / LAST_SHARE).max(self.buffer_bytes)
    }

    /// How many more buffers could be handed out.
    pub fn available(&self) -> usize {
        self.available_bytes() / self.buffer_bytes
    }

    pub fn available_bytes(&self) -> usize {
        self.free_bytes().saturating_sub(self.set_aside * self.buffer_bytes)
    }

    /// With what is set aside, for those that it is for.
    fn free_bytes(&self) -> usize {
        self.limit_bytes.saturating_sub(self.used_bytes + self.owed * self.buffer_bytes)
    }

    /// What is neither in use nor promised. What is set aside has been promised.
    pub fn unpromised_bytes(&self) -> u64 {
        (self.free_bytes() as u64).saturating_sub(self.promised_bytes)
    }

    /// All the memory there is.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// The same in buffers.
    pub fn limit_packets(&self) -> usize {
        self.limit_bytes / self.buffer_bytes
    }

    /// A buffer's payload size.
    pub fn payload_bytes(&self) -> usize {
        self.buffer_bytes - ROOM_BYTES
    }

    /// What a buffer takes up.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_flow_allocates_nothing() {
        let mut pool = Pool::new(1472, 1 << 24);
        for _ in 0..10_000 {
            let burst: Vec<_> = (0..40).map(|_| pool.take().unwrap()).collect();
            burst.into_iter().for_each(|buffer| pool.give(buffer));
        }
        assert_eq!(pool.in_use(), 0);
        // [0:4.4]: more than 99.9 % of the allocations are avoided.
        assert!(pool.allocated * 1000 <= pool.taken, "{} of {}", pool.allocated, pool.taken);
    }

    #[test]
    fn bursts_allocate_nothing_and_their_memory_goes_back_when_they_are_over() {
        let mut pool = Pool::new(1472, 1 << 24);
        let burst = |pool: &mut Pool| {
            let all: Vec<_> = (0..3000).map(|_| pool.take().unwrap()).collect();
            all.into_iter().for_each(|buffer| pool.give(buffer));
        };
        let mut now = Time::ZERO;
        for _ in 0..100 {
            burst(&mut pool);
            now = now.after(FADES_NS);
            assert!(pool.fade(now).is_some());
        }
        assert_eq!((pool.allocated, pool.free.len()), (3000, 3000));
        let (last, mut most) = (now, 0);
        while let Some(at) = pool.fade(now) {
            assert!(at > now);
            now = at;
            let before = pool.free.len();
            pool.fade(now);
            most = most.max(before - pool.free.len());
        }
        assert_eq!((pool.free.len(), most), (WATERMARK, MOST_FADED));
        assert!(now.since(last) <= 2 * FADES_NS + 2 * FADES_ON_NS, "{}", now.since(last));
    }

    #[test]
    fn what_is_kept_beyond_the_watermark_takes_no_longer_to_go_back() {
        let mut pool = Pool::new(1472, 1 << 24);
        // Back piece by piece, so that half as many again as were in use at a time are kept.
        let all: Vec<_> = (0..800).map(|_| pool.take().unwrap()).collect();
        pool.free.extend((0..300).map(|_| vec![0; pool.buffer_bytes].into_boxed_slice()));
        all.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.free.len(), 1100);
        for fades in 1..=2 {
            pool.fade(Time::from_nanos(fades * FADES_NS));
        }
        assert_eq!(pool.free.len(), WATERMARK);
    }

    #[test]
    fn nobody_looks_again_while_as_much_is_in_use_as_is_kept() {
        let mut pool = Pool::new(1472, 1 << 24);
        let mut all: Vec<_> = (0..1400).map(|_| pool.take().unwrap()).collect();
        all.drain(700..).for_each(|buffer| pool.give(buffer));
        assert_eq!((pool.free.len(), pool.fade(Time::from_nanos(9 * FADES_NS))), (700, None));
        all.drain(600..).for_each(|buffer| pool.give(buffer));
        assert!(pool.fade(Time::from_nanos(9 * FADES_NS)).is_some());
    }

    #[test]
    fn what_is_kept_for_later_counts_against_the_limit() {
        let (bytes, count) = (1472 + ROOM_BYTES, 1000);
        let mut pool = Pool::new(1472, (bytes * count) as u64);
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), count);
        all.into_iter().for_each(|buffer| pool.give(buffer));
        let short: Vec<_> = (0..5000).map(|_| pool.copy(&[1; 100], AccountId::NOBODY)).collect();
        assert!(pool.used_bytes + pool.free.len() * bytes <= bytes * (count + 1));
        short.into_iter().for_each(|buffer| pool.give(buffer));
    }

    #[test]
    fn memory_has_an_end_and_comes_back() {
        let mut pool = Pool::new(100, 10 * (100 + ROOM_BYTES as u64));
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), 10);
        assert_eq!(pool.available(), 0);
        all.into_iter().for_each(|buffer| pool.give(buffer));
        assert!(pool.take().is_some());
    }

    #[test]
    fn short_payloads_that_are_kept_take_little_memory() {
        let mut pool = Pool::new(1000, 100 * (1000 + ROOM_BYTES as u64));
        let all: Vec<_> = (0..1000).map(|_| pool.copy(&[1; 10], AccountId::NOBODY)).collect();
        assert!(!pool.is_exhausted(), "ten times as many as whole buffers");
        assert_eq!(pool.copy(&[1; 900], AccountId::NOBODY).len(), 900);
        all.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.in_use(), 1);
    }

    #[test]
    fn headers_are_pushed_and_pulled_without_moving_the_payload() {
        let mut pool = Pool::new(100, 1 << 20);
        let mut buffer = pool.take().unwrap();
        assert_eq!(buffer.append(b"payload", 100), 7);
        buffer.push(&[0, 7]);
        assert_eq!(buffer.bytes(), b"\0\x07payload");
        buffer.packet_mut((HEADROOM_BYTES - 2, TAILROOM_BYTES)).fill(9);
        assert_eq!(buffer.packet((32, 16)).len(), 32 + 9 + 16);
        assert_eq!(buffer.len(), 9);
        let mut buffer = pool.exactly(b"payload");
        buffer.packet_mut((28, 16))[..28].fill(9);
        assert_eq!(buffer.bytes(), b"payload");
        assert_eq!(buffer.append_room(100), 7);
        assert_eq!(buffer.append(&[1; 200], 100), 0, "the room behind is for a tag");
        let mut buffer = pool.take().unwrap();
        buffer.append(b"..payload", 100);
        buffer.pull(2);
        assert_eq!(buffer.bytes(), b"payload");
        assert_eq!(buffer.append(&[1; 200], 100), 91);
    }
}
