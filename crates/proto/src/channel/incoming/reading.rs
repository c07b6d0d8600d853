//! How a reader takes what has arrived: bytes of a stream, messages, and long messages in parts.

use ropeway_wire::{Content, Flags, MESSAGE_LENGTH_BYTES};

use super::{Chunk, Incoming};
use crate::pool::Pool;

/// So much of a message is moved to its reader, or back, in one call: the links are left alone for no longer than copying that takes. None that shares its first packet with
/// others is longer.
pub const PIECE_BYTES: usize = 64 << 10;

/// A message read so far into the user's buffer must fit as a whole; this says what does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort {
    pub message_bytes: usize,
}

/// A message whose reader takes it as it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) message_bytes: u32,
    /// What the packets that the reader has got counted against the credit, and the buffers that putting them back takes: until the message is whole they count as unread.
    pub(super) credit_bytes: u64,
    pub(super) buffers: u32,
}

/// What a reader has of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Nobody else can read until it has all of it, or has put this back.
    pub is_begun: bool,
    pub bytes: usize,
    /// It begins with messages that are whole only.
    pub is_of_whole: bool,
    /// More of it is here: to be called again at once.
    pub has_more: bool,
}

impl Incoming {
    /// Reads bytes of a stream.
    pub fn read(&mut self, mut out: &mut [u8], pool: &mut Pool) -> usize {
        let wanted = out.len();
        while !out.is_empty()
            && let Some(chunk) = self.queue.front_mut()
        {
            let count = chunk.payload.len().min(out.len());
            let (head, tail) = out.split_at_mut(count);
            head.copy_from_slice(&chunk.payload.bytes()[..count]);
            chunk.payload.pull(count);
            out = tail;
            if chunk.payload.is_empty() {
                self.drop_front(pool);
            }
        }
        wanted - out.len()
    }

    /// The bytes of a stream that [`Incoming::read`] would give; they stay.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        for chunk in &self.queue {
            let count = chunk.payload.len().min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&chunk.payload.bytes()[..count]);
            filled += count;
        }
        filled
    }

    fn drop_front(&mut self, pool: &mut Pool) {
        let Some(chunk) = self.queue.pop_front() else { return };
        pool.give(chunk.payload);
        match &mut self.taken {
            None => self.consumed += chunk.credit_bytes,
            Some(taken) => {
                taken.credit_bytes += chunk.credit_bytes;
                let buffers = taken.credit_bytes.div_ceil(pool.payload_bytes() as u64) as u32;
                let before = std::mem::replace(&mut taken.buffers, buffers);
                pool.keep_owed(self.account, before as usize, buffers as usize);
                if buffers == before && chunk.was_set_aside {
                    // A short packet, and so are those to come, perhaps.
                    self.set_aside_again(pool);
                }
            }
        }
    }

    /// The length of the message that would be read next.
    pub fn message_bytes(&self) -> Option<usize> {
        if self.messages == 0 || self.taken.is_some() {
            return None;
        }
        let chunk = self.queue.front()?;
        if chunk.flags.contains(Flags::RECORDS) {
            // The records were checked when they came; to check them all again for each would cost more than reading them.
            let mut records = chunk.records;
            return records.next(chunk.payload.bytes()).map(|(_, length)| length);
        }
        match Content::parse(chunk.flags, chunk.payload.bytes()).ok()? {
            Content::First { length, .. } => Some(length as usize),
            _ => Some(chunk.payload.len()),
        }
    }

    /// Whether a message is to be read next that is whole, and so long that it is read in pieces.
    pub fn is_long(&self) -> bool {
        self.message_bytes().is_some_and(|bytes| bytes > PIECE_BYTES)
    }

    /// Reads one message. It stays if `out` is too short for it.
    pub fn read_message(&mut self, out: &mut [u8], pool: &mut Pool) -> Option<Result<usize, TooShort>> {
        let message_bytes = self.message_bytes()?;
        let Some(out) = out.get_mut(..message_bytes) else { return Some(Err(TooShort { message_bytes })) };
        self.messages -= 1;
        let chunk = self.queue.front_mut()?;
        if chunk.flags.contains(Flags::RECORDS) {
            let mut records = chunk.records;
            let (prefix, _) = records.next(chunk.payload.bytes())?;
            if let Some(bytes) = chunk.payload.bytes().get(prefix..prefix + message_bytes) {
                out.copy_from_slice(bytes);
                chunk.records = records;
                self.pull_record(prefix + message_bytes, pool);
                return Some(Ok(message_bytes));
            }
        }
        self.read_parts(out, 0, usize::MAX, pool);
        Some(Ok(message_bytes))
    }

    /// Takes a record away from the first chunk, and the chunk if that was all of it.
    fn pull_record(&mut self, bytes: usize, pool: &mut Pool) {
        let Some(chunk) = self.queue.front_mut() else { return };
        chunk.payload.pull(bytes);
        // Not only with the whole chunk: what stands behind may be the beginning of a message that needs this credit to come.
        let read_bytes = (bytes as u64).min(chunk.credit_bytes);
        chunk.credit_bytes -= read_bytes;
        self.consumed += read_bytes;
        if chunk.payload.is_empty() {
            self.drop_front(pool);
        }
    }

    /// Moves a piece of the first message into `out`, behind the part of it that this reader has; `true` once that is all of it. Nothing of a
    /// message that shares its first packet with others, or does not fit.
    pub fn take_part(&mut self, out: &mut [u8], part: &mut Part, pool: &mut Pool) -> bool {
        // Between two pieces the channel may have failed, and what was here is gone.
        part.has_more = false;
        if !part.is_begun {
            self.begin_taking(out.len());
            part.is_begun = self.taken.is_some();
        }
        let Some(Taken { message_bytes, .. }) = self.taken.filter(|_| part.is_begun) else { return false };
        let message_bytes = message_bytes as usize;
        let Some(out) = out.get_mut(..message_bytes).filter(|_| part.bytes <= message_bytes) else { return false };
        part.bytes = self.read_parts(out, part.bytes, part.bytes + PIECE_BYTES, pool);
        let takes_all = part.bytes == message_bytes;
        if takes_all {
            self.messages -= 1;
            self.end_taking(pool);
        }
        part.has_more = !takes_all && !self.queue.is_empty();
        takes_all
    }

    /// Looks whether the first message is one that can be taken as it comes. Nobody may be taking it.
    fn begin_taking(&mut self, room: usize) {
        let Some(first) = self.queue.front() else { return };
        if !first.flags.contains(Flags::RECORDS)
            && let Ok(Content::First { length, .. }) = Content::parse(first.flags, first.payload.bytes())
            && length as usize <= room
        {
            self.taken = Some(Taken { message_bytes: length, credit_bytes: 0, buffers: 0 });
        }
    }

    pub(super) fn end_taking(&mut self, pool: &mut Pool) -> Option<Taken> {
        let taken = self.taken.take()?;
        pool.keep_owed(self.account, taken.buffers as usize, 0);
        self.consumed += taken.credit_bytes;
        Some(taken)
    }

    /// Takes back the last piece of what a reader has of a message, and says how much that leaves it with: to be called again for the rest.
    pub fn put_back(&mut self, bytes: &[u8], pool: &mut Pool) -> usize {
        let left = bytes.len().saturating_sub(PIECE_BYTES);
        let Some(Taken { message_bytes, credit_bytes, .. }) = self.taken else { return 0 };
        let room = pool.payload_bytes();
        let mut chunks = Vec::new();
        let mut rest = &bytes[left..];
        // The first packet may have brought the length alone.
        while !rest.is_empty() || chunks.is_empty() {
            let mut chunk = Chunk::new(Flags::NONE, pool.take_anyway(self.account), 0);
            if chunks.is_empty() && left == 0 {
                chunk.flags = Flags::FIRST;
                chunk.credit_bytes = credit_bytes;
                chunk.payload.append(&message_bytes.to_be_bytes(), room);
            }
            let count = chunk.payload.append(rest, room);
            rest = &rest[count..];
            chunks.push(chunk);
        }
        match &mut self.taken {
            // What it counts is with the first chunk again.
            Some(taken) if left == 0 => {
                pool.keep_owed(self.account, taken.buffers as usize, 0);
                self.taken = None;
            }
            Some(taken) => {
                let before = taken.buffers;
                taken.buffers -= before.min(chunks.len() as u32);
                pool.keep_owed(self.account, before as usize, taken.buffers as usize);
            }
            None => {}
        }
        chunks.into_iter().rev().for_each(|chunk| self.queue.push_front(chunk));
        left
    }

    /// Moves what is here of a message into `out`, which has room for just that message, behind the bytes that already fill it, and says how many do then: no further than with the
    /// piece of memory that makes them `most`.
    fn read_parts(&mut self, out: &mut [u8], mut filled: usize, most: usize, pool: &mut Pool) -> usize {
        while filled < most
            && let Some(chunk) = self.queue.front_mut()
        {
            let (first, last) = (chunk.flags.contains(Flags::FIRST), chunk.flags.contains(Flags::LAST));
            let mut records = chunk.records;
            let prefix = match chunk.flags.contains(Flags::RECORDS) {
                true => records.next(chunk.payload.bytes()).map_or(0, |(prefix, _)| prefix),
                false if first && !last => MESSAGE_LENGTH_BYTES,
                false => 0,
            };
            let bytes = &chunk.payload.bytes()[prefix..];
            // All of the payload, but for the end of a message in front of others.
            let count = bytes.len().min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&bytes[..count]);
            filled += count;
            if filled == out.len() {
                chunk.leave_end(prefix + count, filled);
                self.pull_record(prefix + count, pool);
                break;
            }
            self.drop_front(pool);
        }
        filled
    }
}
