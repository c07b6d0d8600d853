//! What arrives in short packets shares memory.

use ropeway_wire::{Flags, Mode, RecordPrefix};

use super::{Chunk, Incoming, credit_bytes, is_whole, message_flags};
use crate::pool::Pool;

/// Less than this share of a piece of memory stays unused when a message goes on behind what is in it, however long its packets are; all that is left would be filled with next to nothing of most
/// packets, each copied in two parts.
pub const UNUSED_SHARE: usize = 16;

impl Incoming {
    /// Short pieces share memory: a thousand single bytes, or empty messages, must not hold a thousand packets. Gives what of the payload has found no place in what there is, if not all has.
    pub(super) fn share<'a>(&mut self, mode: Mode, flags: Flags, payload: &'a [u8], pool: &Pool) -> Option<&'a [u8]> {
        let room = pool.payload_bytes();
        let Some(last) = self.queue.back_mut() else { return Some(payload) };
        let rest = match mode {
            Mode::Stream => {
                let fits = last.payload.len() + payload.len() <= last.payload.append_room(room);
                let joined = fits && last.payload.append(payload, room) == payload.len();
                (!joined).then_some(payload)
            }
            Mode::Messages if join_messages(last, flags, payload, room) => None,
            Mode::Messages => {
                let goes_on = (payload.len() as u64) < self.unfinished_bytes;
                join_parts(last, flags, payload, goes_on, room)
            }
        };
        last.credit_bytes += match rest {
            None => credit_bytes(payload),
            Some(rest) => (payload.len() - rest.len()) as u64,
        };
        rest
    }
}

/// Lets whole messages join those in `last`, which become records if they are not yet.
fn join_messages(last: &mut Chunk, flags: Flags, payload: &[u8], room: usize) -> bool {
    let is_records = |flags: Flags| flags.intersection(message_flags()) == Flags::RECORDS;
    let held = last.flags;
    if !(is_whole(held) || is_records(held)) || !(is_whole(flags) || is_records(flags)) {
        return false;
    }
    // Each has a length of its own in front: repetitions are worth it where they save bytes on the wire.
    let prefix = |flags: Flags, length: usize| match is_whole(flags) {
        true => RecordPrefix::of_length(length as u16),
        false => RecordPrefix::default(),
    };
    let (front, own) = (prefix(held, last.payload.len()), prefix(flags, payload.len()));
    let more = own.bytes().len() + payload.len();
    if front.bytes().len() + last.payload.len() + more > room
        || last.payload.len() + more > last.payload.append_room(room)
    {
        return false;
    }
    last.payload.push(front.bytes());
    last.flags = Flags::RECORDS;
    last.payload.append(own.bytes(), room);
    last.payload.append(payload, room);
    true
}

/// Lets what goes on with a message join the part of it in `last`, as a peer's packets may be much shorter than this end's buffers, and gives what has found no room there. `goes_on`: nor does it
/// end there, which a chunk that begins a message without being records may not have in it, and only then can it be divided.
fn join_parts<'a>(last: &mut Chunk, flags: Flags, payload: &'a [u8], goes_on: bool, room: usize) -> Option<&'a [u8]> {
    let (held, flags) = (last.flags.intersection(message_flags()), flags.intersection(message_flags()));
    let is_part = flags == Flags::NONE && (held == Flags::NONE || held == Flags::FIRST && goes_on);
    let is_end = flags == Flags::LAST && held == Flags::NONE;
    let free = last.payload.append_room(room).saturating_sub(last.payload.len());
    let is_divided = goes_on && free >= room / UNUSED_SHARE;
    if !(is_part || is_end) || payload.len() > free && !is_divided {
        return Some(payload);
    }
    let rest = &payload[last.payload.append(payload, room)..];
    last.flags.insert(flags);
    (payload.len() > free).then_some(rest)
}
