//! A payload that has no number yet, and how messages share it (docs/protocol.md 2.6).

use ropeway_wire::{Content, Flags, OpenFields, RecordPrefix, RecordReader, RecordWriter, Type};

use crate::channel::message_flags;
use crate::pool::Buffer;
use crate::time::Time;

#[derive(Debug)]
pub struct Unsent {
    pub kind: Type,
    pub flags: Flags,
    pub payload: Buffer,
    layout: Layout,
    /// It had a number before, and is as it was then: nothing joins it or is taken out.
    pub(super) is_withdrawn: bool,
    /// A message that is not under way by then is dropped.
    pub(super) deadline: Option<Time>,
}

/// How what is in a payload is told apart.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// There is one thing in it: bytes of a stream, a message or a part of one, or what is no data.
    One,
    /// RECORDS, and how another joins them.
    Records(RecordWriter),
    /// The end of a message, and behind it others as long as that message, without anything between them.
    Run { message_bytes: u16, end_bytes: u16 },
}

impl Unsent {
    pub(super) fn new(kind: Type, flags: Flags, payload: Buffer) -> Unsent {
        Unsent { kind, flags, payload, layout: Layout::One, is_withdrawn: false, deadline: None }
    }

    /// What had a number before, and gets another.
    pub(super) fn withdrawn(kind: Type, flags: Flags, payload: Buffer) -> Unsent {
        Unsent { is_withdrawn: true, ..Unsent::new(kind, flags.intersection(message_flags()), payload) }
    }

    /// The end of a message of so many bytes, behind which others can follow.
    pub(super) fn end_of(message_bytes: usize, payload: Buffer) -> Unsent {
        let end_bytes = payload.len() as u16;
        let layout = match u16::try_from(message_bytes) {
            Ok(message_bytes @ 1..) => Layout::Run { message_bytes, end_bytes },
            _ => Layout::One,
        };
        Unsent { layout, ..Unsent::new(Type::Data, Flags::LAST, payload) }
    }

    /// Bytes of it that count against the channel's credit: the user's, with the lengths that frame them.
    pub fn credit_bytes(&self) -> u64 {
        match self.kind {
            // At least one: see `Incoming`.
            Type::Data => self.payload.len().max(1) as u64,
            Type::Open => (self.payload.len() - OpenFields::BYTES) as u64,
            _ => 0,
        }
    }

    /// May go without a grant: closing must not wait behind other people's transfers.
    pub fn is_exempt(&self) -> bool {
        matches!(self.kind, Type::Fin | Type::Abort)
    }

    /// Whether a message that has begun goes on behind this, if one did (`before`) in front of it.
    pub(super) fn leaves_begun(&self, before: bool) -> bool {
        let (first, last) = (self.flags.contains(Flags::FIRST), self.flags.contains(Flags::LAST));
        match self.flags.contains(Flags::RECORDS) {
            true => first,
            false if first || last => !last,
            false => before,
        }
    }

    /// Whether a message that has begun goes on in this.
    pub(super) fn continues(&self) -> bool {
        match self.flags.contains(Flags::RECORDS) {
            true => self.flags.contains(Flags::LAST),
            false => !self.flags.contains(Flags::FIRST),
        }
    }

    /// It holds several messages, or parts of some.
    pub(super) fn is_shared(&self) -> bool {
        match self.layout {
            Layout::One => false,
            Layout::Records(_) => true,
            Layout::Run { end_bytes, .. } => self.payload.len() > end_bytes.into(),
        }
    }

    /// Another message may stand behind what is in it: messages, or the end of one.
    pub(super) fn may_be_shared(&self) -> bool {
        let ends_open = match self.layout {
            Layout::Records(_) => self.flags.contains(Flags::FIRST),
            Layout::One | Layout::Run { .. } => !self.flags.contains(Flags::LAST),
        };
        self.kind == Type::Data && self.deadline.is_none() && !ends_open && !self.is_withdrawn
    }

    /// The length of the last message in it.
    pub(super) fn last_length(&self) -> usize {
        match self.layout {
            Layout::One => self.payload.len(),
            Layout::Records(writer) => writer.last_length().into(),
            Layout::Run { message_bytes, .. } => message_bytes.into(),
        }
    }

    /// How many messages begin in it.
    pub(super) fn messages(&self) -> u64 {
        if let Layout::Run { message_bytes, end_bytes } = self.layout {
            return (self.payload.len() - usize::from(end_bytes)).div_ceil(message_bytes.into()) as u64;
        }
        match Content::parse(self.flags, self.payload.bytes()) {
            Ok(Content::Records(records)) => u64::from(records.beginning().is_some()) + records.len() as u64,
            _ => 1,
        }
    }

    /// Leaves nothing but the end of a message that it begins with, and says how many bytes fewer that is.
    pub(super) fn keep_end(&mut self) -> usize {
        let before = self.payload.len();
        let end_bytes = match self.layout {
            Layout::One => before,
            Layout::Records(_) => {
                let (prefix, length) = RecordReader::default().next(self.payload.bytes()).unwrap_or_default();
                self.payload.pull(prefix);
                self.layout = Layout::One;
                length
            }
            Layout::Run { end_bytes, .. } => end_bytes.into(),
        };
        self.payload.cut(self.payload.len().saturating_sub(end_bytes));
        self.flags = Flags::LAST;
        before - self.payload.len()
    }

    /// The last message in it goes on in the next packet.
    pub(super) fn leave_open(&mut self) {
        match self.layout {
            Layout::Run { .. } => self.flags.remove(Flags::LAST),
            Layout::One | Layout::Records(_) => self.flags.insert(Flags::FIRST),
        }
    }

    /// A message of so many bytes needs nothing in front of it.
    pub(super) fn goes_on_with(&self, bytes: usize) -> bool {
        matches!(self.layout, Layout::Run { message_bytes, .. } if usize::from(message_bytes) == bytes)
    }

    /// The payload's length once everything is there that a message of `length` bytes needs in front of its own.
    pub(super) fn used_with_prefix(&self, length: u16) -> usize {
        let front = match self.layout {
            Layout::One => {
                let (prefix, writer) = self.as_record();
                prefix.bytes().len() + writer.prefix_bytes(length)
            }
            Layout::Records(writer) => writer.prefix_bytes(length),
            Layout::Run { message_bytes, .. } if message_bytes == length => 0,
            Layout::Run { message_bytes, end_bytes } => {
                let others = (self.payload.len() - usize::from(end_bytes)) / usize::from(message_bytes);
                let length_of = |bytes| RecordPrefix::of_length(bytes).bytes().len();
                length_of(end_bytes) + RecordWriter::bytes_beyond(message_bytes, others) + length_of(length)
            }
        };
        self.payload.len() + front
    }

    /// Appends a message, or as much of it as fits below `limit`, and says how much that is.
    pub(super) fn append_message(&mut self, bytes: &[u8], limit: usize) -> usize {
        if !self.goes_on_with(bytes.len()) {
            let mut writer = self.make_records();
            let prefix = writer.next(self.payload.packet_mut((0, 0)), bytes.len() as u16);
            self.layout = Layout::Records(writer);
            // Most often a repetition counts the message.
            if !prefix.bytes().is_empty() {
                self.payload.append(prefix.bytes(), limit);
            }
        }
        self.payload.append(bytes, limit)
    }

    /// Puts lengths in front of what is in it, and says how others go on behind it.
    fn make_records(&mut self) -> RecordWriter {
        match self.layout {
            Layout::Records(writer) => writer,
            Layout::One => {
                let (prefix, writer) = self.as_record();
                self.payload.push(prefix.bytes());
                // What was no beginning of a message ends one.
                let kept = if self.flags.contains(Flags::FIRST) { Flags::NONE } else { Flags::LAST };
                self.flags = Flags::RECORDS | kept;
                writer
            }
            Layout::Run { message_bytes, end_bytes } => {
                let others = self.payload.bytes()[end_bytes.into()..].to_vec();
                self.payload.cut(others.len());
                self.layout = Layout::One;
                for message in others.chunks(message_bytes.into()) {
                    self.append_message(message, usize::MAX);
                }
                self.make_records()
            }
        }
    }

    /// What gets in front when a whole message, or the end of one, becomes the first of records, and how others go on behind it.
    fn as_record(&self) -> (RecordPrefix, RecordWriter) {
        let length = self.payload.len() as u16;
        let is_whole = self.flags.contains(Flags::FIRST);
        let writer = if is_whole { RecordWriter::behind_one(length) } else { RecordWriter::default() };
        (RecordPrefix::of_length(length), writer)
    }
}
