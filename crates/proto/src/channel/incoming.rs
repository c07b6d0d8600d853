//! The receiving half of a channel: payloads in order, made into bytes or messages for the user, and the credit that lets more come.

mod credit;
mod joining;
mod reading;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ropeway_wire::{Content, Extent, Flags, Malformed, Mode, RecordReader};

use super::{SHORT_MESSAGE_SHARE, message_flags, whole};
use crate::endpoint::LEAST_WINDOW_BYTES;
use crate::ledger::AccountId;
use crate::pool::{Buffer, Pool};
pub use joining::UNUSED_SHARE;
use reading::Taken;
pub use reading::{PIECE_BYTES, Part};

/// Why a payload was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No memory now: as if it had been lost.
    NoMemory,
    /// It breaks a rule: more than the credit, or parts of messages that do not follow each other.
    Violation,
    /// It holds no messages at all.
    Malformed(Malformed),
    /// It is, has in it or begins a message longer than this end takes.
    TooLong,
}

#[derive(Debug)]
struct Chunk {
    flags: Flags,
    /// How the next message of RECORDS is read.
    records: RecordReader,
    payload: Buffer,
    /// What the packets in it counted against the credit: given back when all of it has been read.
    credit_bytes: u64,
    /// Its memory was set aside for the message at hand.
    was_set_aside: bool,
}

impl Chunk {
    fn new(flags: Flags, payload: Buffer, credit_bytes: u64) -> Chunk {
        Chunk { flags, records: RecordReader::default(), payload, credit_bytes, was_set_aside: false }
    }

    /// A message of `message_bytes` has been read to its end, which this begins with: `end_bytes` that are about to be taken away.
    fn leave_end(&mut self, end_bytes: usize, message_bytes: usize) {
        let behind = self.payload.len() - end_bytes;
        let ends = self.flags.contains(Flags::LAST);
        self.flags.remove(Flags::LAST);
        if behind > 0 && !self.flags.contains(Flags::RECORDS) {
            // Messages as long as that one, without prefixes: checked when they came.
            self.records = RecordReader::of_run(message_bytes as u16, behind.div_ceil(message_bytes) as u16);
            self.flags.insert(Flags::RECORDS);
            self.flags.set(Flags::FIRST, !ends);
        }
    }
}

/// What a packet adds to what is here of messages that are not whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun {
    pub is_some: bool,
    /// What is missing of a message that it begins.
    pub missing_bytes: u64,
}

/// A channel's next packet, which begins a message: there was no memory for it, and it comes again.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    pub bytes: u64,
    pub begun: Begun,
}

/// What has arrived in order and was not read.
#[derive(Debug)]
pub struct Incoming {
    /// To which the memory for what came last is charged.
    account: AccountId,
    queue: VecDeque<Chunk>,
    /// Credit used up so far: payload bytes, frames included, and one for each packet without any.
    offset: u64,
    /// Of that, read by the user.
    consumed: u64,
    /// The limit that the peer was last told.
    limit: u64,
    /// The first one.
    initial: u64,
    /// What of the limit stands among the promises of the pool.
    promised: u64,
    /// Whole messages in `queue`.
    messages: u32,
    /// The length of the message that began last in one packet and ends in another.
    message_bytes: u64,
    /// Bytes of it that are still to come.
    unfinished_bytes: u64,
    /// The offset at which that message ends, and that of the packet which brings its end if others stand behind it there: credit up to there was asked for.
    message_end: u64,
    wanted: u64,
    /// What comes next, if that was given back and begins a message.
    pub awaited: Option<Box<Awaited>>,
    /// Where the message ends that memory was set aside for last: before it is read no other longer than the window gets any.
    reserved_until: u64,
    /// That memory was not taken back.
    has_reservation: bool,
    /// Buffers of it that nothing has come into yet.
    set_aside: u32,
    /// What stands in the pool's account for a message that has begun and has none.
    begun_buffers: u32,
    /// Stands in line for such memory.
    pub reserving: bool,
    /// The first message, of which a reader has the beginning: nobody else can read.
    taken: Option<Taken>,
    fin: Option<Extent>,
    /// The newest number delivered.
    pub delivered: Option<u64>,
}

impl Incoming {
    pub fn new(window: u32) -> Incoming {
        Incoming {
            account: AccountId::NOBODY,
            queue: VecDeque::new(),
            offset: 0,
            consumed: 0,
            limit: u64::from(window),
            initial: u64::from(window),
            promised: 0,
            messages: 0,
            message_bytes: 0,
            unfinished_bytes: 0,
            message_end: 0,
            wanted: 0,
            awaited: None,
            reserved_until: 0,
            has_reservation: false,
            set_aside: 0,
            begun_buffers: 0,
            reserving: false,
            taken: None,
            fin: None,
            delivered: None,
        }
    }

    /// Keeps no more memory than there is use for now.
    pub fn rest(&mut self) {
        self.queue.shrink_to_fit();
    }

    pub fn account(&self) -> AccountId {
        self.account
    }

    /// The memory for what comes next is charged to this account.
    pub fn charge_to(&mut self, account: AccountId) {
        self.account = account;
    }

    pub fn is_readable(&self, mode: Mode) -> bool {
        match mode {
            Mode::Stream => !self.queue.is_empty(),
            Mode::Messages => self.messages > 0 && self.taken.is_none(),
        }
    }

    /// A reader has a part of the first message.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The peer will send no more, and everything has been read.
    pub fn is_ended(&self) -> bool {
        self.fin.is_some() && self.queue.is_empty()
    }

    /// The peer will send no more.
    pub fn is_finished(&self) -> bool {
        self.fin.is_some()
    }

    /// A message has begun and is not whole.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished_bytes > 0
    }

    /// What the message at hand takes beyond what is here: one that has begun, or one that begins with what was given back.
    pub fn missing_bytes(&self) -> u64 {
        match self.awaited.as_deref() {
            Some(&Awaited { bytes, begun }) if !self.is_unfinished() => bytes + begun.missing_bytes,
            _ => self.unfinished_bytes,
        }
    }

    /// The peer has closed both ways: it reads nothing any more.
    pub fn peer_is_gone(&self) -> bool {
        self.fin == Some(Extent::Both)
    }

    pub fn finish(&mut self, extent: Extent) {
        self.fin = Some(self.fin.map_or(extent, |before| if before == Extent::Both { before } else { extent }));
    }

    pub fn unread_bytes(&self) -> u64 {
        self.offset - self.consumed
    }

    /// Bytes taken so far, with the lengths of messages.
    pub fn received_bytes(&self) -> u64 {
        self.offset
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes a payload that is next in the channel's order.
    pub fn take(
        &mut self,
        mode: Mode,
        flags: Flags,
        payload: &[u8],
        longest: u64,
        pool: &mut Pool,
    ) -> Result<(), Refused> {
        if payload.len() > pool.payload_bytes() {
            // No packet agreed on holds so much, and no memory: what is kept of it would be less than what is accounted for.
            return Err(Refused::Violation);
        }
        let step = self.check(mode, flags, payload, longest)?;
        if self.must_keep(mode, payload)
            && let Some(rest) = self.share(mode, flags, payload, pool)
        {
            let was_set_aside = self.use_set_aside(pool);
            let buffer = self.copy_of(rest, was_set_aside, pool).ok_or(Refused::NoMemory)?;
            self.queue.push_back(Chunk { was_set_aside, ..Chunk::new(flags, buffer, credit_bytes(rest)) });
        }
        self.note(step, pool.payload_bytes() as u64);
        self.keep_accounts(pool);
        Ok(())
    }

    /// A payload that nobody will read: its credit is used up and free again.
    pub fn discard(&mut self, payload: &[u8], pool: &mut Pool) {
        self.offset += credit_bytes(payload);
        self.consumed = self.offset;
        self.keep_accounts(pool);
    }

    /// Counts a payload against the credit. `false`: there is nothing in it to keep.
    fn must_keep(&mut self, mode: Mode, payload: &[u8]) -> bool {
        let is_nothing = payload.is_empty() && mode == Mode::Stream;
        self.offset += credit_bytes(payload);
        self.consumed += u64::from(is_nothing);
        !is_nothing
    }

    /// The same for a payload that has waited in a buffer, which is kept if nothing else would find room in it.
    pub fn take_buffer(
        &mut self,
        mode: Mode,
        flags: Flags,
        mut buffer: Buffer,
        longest: u64,
        pool: &mut Pool,
    ) -> Result<(), Refused> {
        let step = match self.check(mode, flags, buffer.bytes(), longest) {
            Ok(step) => step,
            Err(refused) => {
                pool.give(buffer);
                return Err(refused);
            }
        };
        pool.count_no_more(&mut buffer);
        if self.must_keep(mode, buffer.bytes())
            && let Some(rest) = self.share(mode, flags, buffer.bytes(), pool)
        {
            let (was_set_aside, credit_bytes) = (self.use_set_aside(pool), credit_bytes(rest));
            let has_room = rest.len() == buffer.len() && buffer.memory_bytes() == pool.buffer_bytes();
            // At the front of a whole piece others join it. While memory is short, what was looked up for it is for no more than that.
            let grows = !was_set_aside && buffer.memory_bytes() < pool.buffer_bytes();
            let stays = has_room || grows && pool.is_short();
            match if stays { None } else { self.copy_of(rest, was_set_aside, pool) } {
                Some(copy) => pool.give(std::mem::replace(&mut buffer, copy)),
                None => buffer.pull(buffer.len() - rest.len()),
            }
            self.queue.push_back(Chunk { was_set_aside, ..Chunk::new(flags, buffer, credit_bytes) });
        } else {
            pool.give(buffer);
        }
        self.note(step, pool.payload_bytes() as u64);
        self.keep_accounts(pool);
        Ok(())
    }

    /// In memory of a whole packet, if there is any.
    fn copy_of(&self, payload: &[u8], is_set_aside: bool, pool: &mut Pool) -> Option<Buffer> {
        let mut buffer = if is_set_aside { pool.take_anyway(self.account) } else { pool.take_for(self.account)? };
        buffer.append(payload, pool.payload_bytes());
        Some(buffer)
    }

    fn check(&self, mode: Mode, flags: Flags, payload: &[u8], longest: u64) -> Result<Step, Refused> {
        if self.fin.is_some() || credit_bytes(payload) > self.limit.saturating_sub(self.offset) {
            return Err(Refused::Violation);
        }
        match mode {
            Mode::Stream if flags.intersects(message_flags()) => Err(Refused::Violation),
            Mode::Stream => Ok(Step::default()),
            Mode::Messages => self.step(flags, payload, longest),
        }
    }

    fn note(&mut self, step: Step, company_bytes: u64) {
        self.awaited = None;
        self.messages += step.messages;
        if step.message_bytes > 0 {
            // The next packet brings all of a short one, and what is read before it the credit for that: asking for it each time, the peer would get credit by the packet.
            let is_short = step.message_bytes < company_bytes / SHORT_MESSAGE_SHARE as u64
                && company_bytes <= LEAST_WINDOW_BYTES / 2;
            self.message_bytes = step.message_bytes;
            self.message_end = self.offset + step.unfinished_bytes;
            self.wanted = if is_short { 0 } else { self.message_end + company_bytes };
        }
        self.unfinished_bytes = step.unfinished_bytes;
    }

    /// What a payload of a message channel does to the message at hand.
    fn step(&self, flags: Flags, payload: &[u8], longest: u64) -> Result<Step, Refused> {
        let content = Content::parse(flags, payload).map_err(Refused::Malformed)?;
        let between = self.unfinished_bytes == 0;
        match content {
            Content::Whole(bytes) if bytes.len() as u64 > longest => Err(Refused::TooLong),
            Content::Whole(_) if between => Ok(Step { messages: 1, ..Step::default() }),
            Content::Records(mut records) => {
                let end_bytes = records.end().map_or(0, <[u8]>::len) as u64;
                if end_bytes != self.unfinished_bytes {
                    return Err(Refused::Violation);
                }
                let ended = u32::from(end_bytes > 0);
                let (message_bytes, here) = records
                    .beginning()
                    .map_or((0, 0), |beginning| (u64::from(beginning.length), beginning.bytes.len() as u64));
                let messages = ended + records.len() as u32;
                // Mostly a packet is shorter than that.
                let has_too_long =
                    payload.len() as u64 > longest && records.any(|record| record.len() as u64 > longest);
                if message_bytes > longest || has_too_long {
                    return Err(Refused::TooLong);
                }
                Ok(Step { messages, unfinished_bytes: message_bytes - here, message_bytes })
            }
            Content::First { length, bytes } if between => {
                let length = u64::from(length);
                if length > longest {
                    return Err(Refused::TooLong);
                }
                Ok(Step { messages: 0, unfinished_bytes: length - bytes.len() as u64, message_bytes: length })
            }
            Content::Bytes(bytes) if !between => self.go_on(bytes.len() as u64, false, longest),
            Content::Last(bytes) if !between => self.go_on(bytes.len() as u64, true, longest),
            _ => Err(Refused::Violation),
        }
    }

    /// What so many bytes do that go on with the message at hand: behind its end others of its length follow, and the last of them ends where the bytes do if that is said.
    fn go_on(&self, bytes: u64, ends: bool, longest: u64) -> Result<Step, Refused> {
        if bytes == 0 {
            // It would count against the credit, and the message came no further.
            return Err(Refused::Violation);
        }
        let Some(behind) = bytes.checked_sub(self.unfinished_bytes) else {
            let rest = Step { unfinished_bytes: self.unfinished_bytes - bytes, ..Step::default() };
            return if ends { Err(Refused::Violation) } else { Ok(rest) };
        };
        let (others, begun) = (behind / self.message_bytes, behind % self.message_bytes);
        let fits_no_record = behind > 0 && self.message_bytes > u64::from(u16::MAX);
        if fits_no_record || ends != (begun == 0) {
            return Err(Refused::Violation);
        }
        if behind > 0 && self.message_bytes > longest {
            // This end takes shorter ones than when that message began.
            return Err(Refused::TooLong);
        }
        let messages = 1 + others as u32;
        Ok(match begun {
            0 => Step { messages, ..Step::default() },
            _ => Step { messages, unfinished_bytes: self.message_bytes - begun, message_bytes: self.message_bytes },
        })
    }

    /// Moves the bytes of a stream that have arrived, and `payload` behind them, to a reader who waits, or a message that `payload` is; says how many bytes that are. `None` if there is no
    /// room for all of them, other messages stand before this one, or the payload must not be taken: nothing has happened then.
    pub fn land(
        &mut self,
        mode: Mode,
        flags: Flags,
        payload: &[u8],
        longest: u64,
        out: &mut [u8],
        pool: &mut Pool,
    ) -> Option<usize> {
        if !self.lands(mode, flags, payload, out.len()) || self.check(mode, flags, payload, longest).is_err() {
            return None;
        }
        let before = if self.queue.is_empty() { 0 } else { self.read(out, pool) };
        let count = before + payload.len();
        out[before..count].copy_from_slice(payload);
        let credit_bytes = credit_bytes(payload);
        (self.offset, self.consumed) = (self.offset + credit_bytes, self.consumed + credit_bytes);
        self.keep_accounts(pool);
        Some(count)
    }

    /// Whether a payload has room behind what is here, in memory of a reader who waits, and so needs none of the pool's.
    pub fn lands(&self, mode: Mode, flags: Flags, payload: &[u8], room: usize) -> bool {
        let is_next = match mode {
            Mode::Stream => !payload.is_empty(),
            Mode::Messages => self.queue.is_empty() && self.taken.is_none() && is_whole(flags),
        };
        is_next && self.unread_bytes() + payload.len() as u64 <= room as u64
    }

    /// The message that has begun will not come to its end: nobody can read what is here of it.
    pub fn drop_unfinished(&mut self, pool: &mut Pool) {
        if !self.is_unfinished() {
            return;
        }
        if self.messages == 0 {
            return self.clear(pool);
        }
        let mut here_bytes = self.message_bytes - self.unfinished_bytes;
        self.forget_unfinished(pool);
        while let Some(chunk) = self.queue.pop_back_if(|chunk| chunk.payload.len() as u64 <= here_bytes) {
            here_bytes -= chunk.payload.len() as u64;
            self.offset -= chunk.credit_bytes;
            pool.give(chunk.payload);
        }
        // Its first packet, or one that brought the end of another message as well, stays.
    }

    /// The message at hand does not go on. Its memory goes back after that: its account may be gone with it.
    fn forget_unfinished(&mut self, pool: &mut Pool) {
        (self.unfinished_bytes, self.wanted) = (0, 0);
        self.keep_begun(pool);
    }

    /// Forgets everything unread.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.forget_unfinished(pool);
        self.queue.drain(..).for_each(|chunk| pool.give(chunk.payload));
        self.end_taking(pool);
        (self.consumed, self.messages) = (self.offset, 0);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    messages: u32,
    unfinished_bytes: u64,
    /// The length of a message that begins here.
    message_bytes: u64,
}

fn is_whole(flags: Flags) -> bool {
    flags.intersection(message_flags()) == whole()
}

/// What a payload counts against its channel's credit (docs/protocol.md 7): at least one, or nothing would bound empty messages.
fn credit_bytes(payload: &[u8]) -> u64 {
    payload.len().max(1) as u64
}
