//! Several messages in one payload: what stands in front of each (2.6). Nothing else knows how their lengths are written.

use crate::{Flags, Malformed};

/// The longest prefix of a message.
pub const RECORD_PREFIX_BYTES: usize = 3;

/// The first length that one byte does not say, and the first that two do not.
const BEYOND_ONE: u16 = 0x80;
const BEYOND_TWO: u16 = 0x4000;
/// First byte of a length in two bytes, whose upper six bits are in it; of one in three; and of a repetition, whose count is in it.
const TWO: u8 = 0x80;
const THREE: u8 = 0xC0;
const REPETITION: u8 = 0xC0;
/// The bits of a first byte behind those that tell what it is.
const LOW_BITS: u8 = 0x3F;
/// So many messages are in one repetition at most.
const MOST_REPEATED: u8 = LOW_BITS;

/// What stands in front of a message: its length, or nothing where a repetition counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordPrefix {
    bytes: [u8; RECORD_PREFIX_BYTES],
    used: u8,
}

impl RecordPrefix {
    /// The shortest form of a length.
    #[must_use]
    #[inline]
    pub fn of_length(length: u16) -> RecordPrefix {
        let [high, low] = length.to_be_bytes();
        match length {
            ..BEYOND_ONE => RecordPrefix { bytes: [low, 0, 0], used: 1 },
            BEYOND_ONE..BEYOND_TWO => RecordPrefix { bytes: [TWO | high, low, 0], used: 2 },
            _ => RecordPrefix { bytes: [THREE, high, low], used: 3 },
        }
    }

    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

/// Reads one prefix after the other. The default stands where no length may be repeated: in front of the first message, and behind the end of an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordReader {
    /// Of the message before. 0: none that may be repeated.
    length: u16,
    /// So many messages of that length follow without a prefix.
    more: u16,
}

impl RecordReader {
    /// Stands in front of so many messages of that length without a prefix.
    #[must_use]
    #[inline]
    pub fn of_run(length: u16, messages: u16) -> RecordReader {
        RecordReader { length, more: messages }
    }

    /// The next message of the records that begin with `bytes`: what stands in front of it, and how long it is. `None` if that is cut off, or repeats nothing.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Option<(usize, usize)> {
        let prefix = match self.more {
            0 => self.read_prefix(bytes)?,
            _ => 0,
        };
        self.more -= 1;
        Some((prefix, usize::from(self.length)))
    }

    /// Reads the prefix that stands here, and says how long it is: `more` messages of `length` are behind it, one at least.
    #[inline]
    fn read_prefix(&mut self, bytes: &[u8]) -> Option<usize> {
        let (&first, rest) = bytes.split_first()?;
        let low_bits = first & LOW_BITS;
        let (prefix, length, more) = match first {
            ..TWO => (1, u16::from(first), 1),
            TWO..THREE => (2, u16::from_be_bytes([low_bits, *rest.first()?]), 1),
            THREE => (3, u16::from_be_bytes(*rest.first_chunk()?), 1),
            _ if self.length > 0 => (1, self.length, u16::from(low_bits)),
            _ => return None,
        };
        (self.length, self.more) = (length, more);
        Some(prefix)
    }
}

/// Appends one message after the other, in as few bytes as there can be. The default stands where [`RecordReader`]'s does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordWriter {
    /// Where the last prefix begins: a payload has no more than 65,535 bytes.
    prefix_at: u16,
    /// Of the message behind it. 0: none that may be repeated.
    length: u16,
    /// How many messages that prefix repeats. 0: it is a length.
    repeated: u8,
}

impl RecordWriter {
    /// Goes on behind a message of that length and its prefix, which are all that is there.
    #[must_use]
    #[inline]
    pub fn behind_one(length: u16) -> RecordWriter {
        RecordWriter { prefix_at: 0, length, repeated: 0 }
    }

    /// The length of the message appended last; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn last_length(&self) -> u16 {
        self.length
    }

    /// How many bytes a message of that length takes beyond its own.
    #[must_use]
    #[inline]
    pub fn prefix_bytes(&self, length: u16) -> usize {
        match self.repeats(length) {
            true => usize::from(!self.is_counting()),
            false => usize::from(RecordPrefix::of_length(length).used),
        }
    }

    /// How many bytes so many messages of one length take beyond their own, with no others in front.
    #[must_use]
    pub fn bytes_beyond(length: u16, messages: usize) -> usize {
        match (messages, length) {
            (0, _) => 0,
            (_, 0) => messages,
            _ => RecordWriter::default().prefix_bytes(length) + (messages - 1).div_ceil(MOST_REPEATED.into()),
        }
    }

    /// Goes on to a message of that length behind what is `written`, and gives what is to be appended in front of it.
    #[inline]
    pub fn next(&mut self, written: &mut [u8], length: u16) -> RecordPrefix {
        if !self.repeats(length) {
            *self = RecordWriter { prefix_at: written.len() as u16, length, repeated: 0 };
            return RecordPrefix::of_length(length);
        }
        if self.is_counting()
            && let Some(prefix) = written.get_mut(usize::from(self.prefix_at))
        {
            self.repeated += 1;
            *prefix = REPETITION | self.repeated;
            return RecordPrefix::default();
        }
        (self.prefix_at, self.repeated) = (written.len() as u16, 1);
        RecordPrefix { bytes: [REPETITION | 1, 0, 0], used: 1 }
    }

    #[inline]
    fn repeats(&self, length: u16) -> bool {
        length == self.length && length > 0
    }

    /// The last prefix is a repetition that can count one more.
    #[inline]
    fn is_counting(&self) -> bool {
        (1..MOST_REPEATED).contains(&self.repeated)
    }
}

/// What a RECORDS payload holds, in order: the end of a message, whole messages (the iterator), the beginning of one. Checked as a whole when made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    end: Option<&'a [u8]>,
    reader: RecordReader,
    /// The whole messages with their prefixes, and what is behind them.
    rest: &'a [u8],
    /// How many they are.
    whole: usize,
    beginning: Option<Beginning<'a>>,
}

/// The first part of a message behind whole ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning<'a> {
    /// Of the whole message: more than is here.
    pub length: u16,
    pub bytes: &'a [u8],
}

impl<'a> Records<'a> {
    /// # Errors
    /// There is no record, or one that repeats nothing; the last one does not end where the payload ends, or, with FIRST, does; nothing of a message is here that ends or begins.
    // Not inline: who has a payload that is one message must not pay for the others.
    pub fn parse(payload: &'a [u8], flags: Flags) -> Result<Records<'a>, Malformed> {
        let begins = flags.contains(Flags::FIRST);
        let mut records =
            Records { end: None, reader: RecordReader::default(), rest: payload, whole: 0, beginning: None };
        if flags.contains(Flags::LAST) {
            let end = split_record(&mut records.rest, &mut RecordReader::default());
            records.end = Some(end.filter(|end| !end.is_empty()).ok_or(Malformed::Record)?);
        }
        let (mut rest, mut reader) = (records.rest, records.reader);
        while !rest.is_empty() {
            let prefix = reader.read_prefix(rest).ok_or(Malformed::Record)?;
            let (length, count) = (usize::from(reader.length), usize::from(reader.more));
            let here = rest.get(prefix..).unwrap_or_default();
            let Some((_, after)) = here.split_at_checked(length * count) else {
                // Only the last message of all can be cut off: something of it is here.
                let bytes = here.get(length * (count - 1)..).filter(|bytes| !bytes.is_empty() && begins);
                let bytes = bytes.ok_or(Malformed::Record)?;
                records.whole += count - 1;
                records.beginning = Some(Beginning { length: reader.length, bytes });
                return Ok(records);
            };
            records.whole += count;
            rest = after;
        }
        // The end of a message may be all there is; otherwise there is a record.
        let is_something = records.end.is_some() || records.whole > 0;
        if is_something && !begins { Ok(records) } else { Err(Malformed::Record) }
    }

    /// The last part of a message that began in an earlier packet.
    #[must_use]
    #[inline]
    pub fn end(&self) -> Option<&'a [u8]> {
        self.end
    }

    /// The first part of a message that goes on in the next packet.
    #[must_use]
    #[inline]
    pub fn beginning(&self) -> Option<Beginning<'a>> {
        self.beginning
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.whole = self.whole.checked_sub(1)?;
        split_record(&mut self.rest, &mut self.reader)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.whole, Some(self.whole))
    }
}

impl ExactSizeIterator for Records<'_> {}

/// Takes the next message off, and what stands in front of it.
#[inline]
fn split_record<'a>(rest: &mut &'a [u8], reader: &mut RecordReader) -> Option<&'a [u8]> {
    let (prefix, length) = reader.next(rest)?;
    let (message, after) = rest.get(prefix..)?.split_at_checked(length)?;
    *rest = after;
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS: Flags = Flags(Flags::RECORDS.0 | Flags::FIRST.0);
    const ENDS: Flags = Flags(Flags::RECORDS.0 | Flags::LAST.0);

    /// Messages of these lengths behind each other, each of the byte that its length ends with.
    fn written(lengths: &[usize]) -> Vec<u8> {
        let (mut out, mut writer) = (Vec::new(), RecordWriter::default());
        for &length in lengths {
            let expected = out.len() + writer.prefix_bytes(length as u16) + length;
            let prefix = writer.next(&mut out, length as u16);
            out.extend_from_slice(prefix.bytes());
            out.resize(out.len() + length, length as u8);
            assert_eq!(out.len(), expected);
        }
        out
    }

    fn lengths(payload: &[u8]) -> Result<Vec<usize>, Malformed> {
        Records::parse(payload, Flags::RECORDS).map(|records| records.map(<[u8]>::len).collect())
    }

    type Parts<'a> = (Option<&'a [u8]>, Vec<&'a [u8]>, Option<(u16, &'a [u8])>);

    fn parts(payload: &[u8], flags: Flags) -> Result<Parts<'_>, Malformed> {
        Records::parse(payload, flags).map(|records| {
            let beginning = records.beginning().map(|beginning| (beginning.length, beginning.bytes));
            (records.end(), records.collect(), beginning)
        })
    }

    #[test]
    fn what_was_appended_comes_back_in_order() {
        for some in [
            &[3, 0, 3][..],
            &[0, 0, 0],
            &[1; 64],
            &[1; 65],
            &[8; 300],
            &[127, 128, 128, 127],
            &[0x3FFF, 0x4000, 0x4000, 0xFFFF],
            &[5, 5, 5, 0, 5, 5, 6, 6, 5],
        ] {
            let payload = written(some);
            assert_eq!(lengths(&payload), Ok(some.to_vec()));
            let records = Records::parse(&payload, Flags::RECORDS).unwrap();
            assert_eq!(records.len(), some.len());
            assert!(records.zip(some).all(|(bytes, &length)| bytes.iter().all(|&byte| byte == length as u8)));
        }
    }

    #[test]
    fn every_length_has_its_shortest_prefix() {
        for (length, prefix) in [
            (0, &[0][..]),
            (0x7F, &[0x7F]),
            (0x80, &[0x80, 0x80]),
            (0x1234, &[0x92, 0x34]),
            (0x3FFF, &[0xBF, 0xFF]),
            (0x4000, &[0xC0, 0x40, 0]),
            (0xFFFF, &[0xC0, 0xFF, 0xFF]),
        ] {
            assert_eq!(RecordPrefix::of_length(length).bytes(), prefix);
            assert_eq!(RecordReader::default().next(prefix), Some((prefix.len(), usize::from(length))));
        }
    }

    #[test]
    fn messages_of_one_length_cost_a_byte_for_63() {
        assert_eq!(written(&[2; 4]), [2, 2, 2, 0xC3, 2, 2, 2, 2, 2, 2]);
        for count in 1..400 {
            let repetitions = (count - 1usize).div_ceil(63);
            assert_eq!(written(&vec![8; count]).len(), 8 * count + 1 + repetitions, "{count}");
            assert_eq!(written(&vec![200; count]).len(), 200 * count + 2 + repetitions, "{count}");
            assert_eq!(written(&vec![0; count]).len(), count, "a byte for each that is empty");
            for length in [0, 8, 200] {
                let beyond = RecordWriter::bytes_beyond(length, count);
                assert_eq!(written(&vec![length.into(); count]).len(), usize::from(length) * count + beyond, "{count}");
            }
        }
    }

    #[test]
    fn lengths_may_be_longer_than_needed_and_repetitions_follow_each_other() {
        assert_eq!(lengths(b"\x80\x01a\xC0\0\x01b\xC1c"), Ok(vec![1, 1, 1]));
        assert_eq!(lengths(b"\x01a\xC1b\xC2cd"), Ok(vec![1; 4]));
        assert_eq!(lengths(b"\x80\0\xC0\0\0"), Ok(vec![0, 0]));
    }

    #[test]
    fn records_fill_the_payload_exactly() {
        for bad in [
            &b""[..],
            b"\x01",
            b"\x01a\x02b",
            b"\x80",
            b"\x80\x01",
            b"\xC0\0",
            b"\xC0\0\x01",
            b"\x01a\xC2b",    // a message of a repetition is missing
            b"\x02ab\xC2cde", // and half of one
            b"\xC1",          // nothing to repeat
            b"\xC1a",
            b"\0\xC1", // nothing of any length
            b"\x01a\0\xC1b",
        ] {
            assert_eq!(lengths(bad), Err(Malformed::Record), "{bad:?}");
        }
        assert_eq!(lengths(b"\0"), Ok(vec![0]), "an empty message is one");
    }

    #[test]
    fn messages_may_end_and_begin_around_whole_ones() {
        assert_eq!(parts(b"\x02en", ENDS), Ok((Some(&b"en"[..]), vec![], None)));
        assert_eq!(parts(b"\x80\x02en\x01a", ENDS), Ok((Some(&b"en"[..]), vec![&b"a"[..]], None)));
        assert_eq!(parts(b"\x01a\0\x05be", BEGINS), Ok((None, vec![&b"a"[..], b""], Some((5, &b"be"[..])))));
        assert_eq!(parts(b"\x05be", BEGINS), Ok((None, vec![], Some((5, &b"be"[..])))));
        assert_eq!(
            parts(b"\x01e\xC0\x4E\x20be", BEGINS | ENDS),
            Ok((Some(&b"e"[..]), vec![], Some((20_000, &b"be"[..]))))
        );
        let repeated = |bytes| parts(bytes, BEGINS);
        assert_eq!(repeated(b"\x02ab\xC1c"), Ok((None, vec![&b"ab"[..]], Some((2, &b"c"[..])))));
        assert_eq!(repeated(b"\x02ab\xC2cde"), Ok((None, vec![&b"ab"[..], b"cd"], Some((2, &b"e"[..])))));
        for (bad, flags) in [
            (&b"\0"[..], ENDS),      // the end of a message without a byte of it
            (b"\x03en", ENDS),       // an end that goes on
            (b"\x02en\x02a", ENDS),  // a record that goes on, without FIRST
            (b"\x02en\xC1ab", ENDS), // an end is no message whose length is repeated
            (b"\xC1e", ENDS),        // nor a repetition itself
            (b"\x01e\xC1\x05be", BEGINS | ENDS),
            (b"\x01a", BEGINS), // nothing begins
            (b"\x01a\xC1b", BEGINS),
            (b"\x01a\x05", BEGINS), // a beginning without a byte of it
            (b"\x02ab\xC1", BEGINS),
            (b"\x02ab\xC3cdef", BEGINS),
            (b"\x02ab\xC3cd", BEGINS),  // two messages of a repetition are missing
            (b"\x02ab\xC3cde", BEGINS), // one, and the rest of another
            (b"\x01a\x80", BEGINS),     // half a length
            (b"\0\xC1", BEGINS),
            (b"", BEGINS),
            (b"\x01e", BEGINS | ENDS),
        ] {
            assert_eq!(parts(bad, flags), Err(Malformed::Record), "{bad:?} {flags:?}");
        }
    }
}
