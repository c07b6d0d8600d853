//! What DATA carries, and OPEN as early data: bytes of a stream, parts of messages, or a run of short messages (2.6).

use crate::{Flags, Malformed};

/// The length before each message of a RECORDS payload.
pub const RECORD_LENGTH_BYTES: usize = 2;

/// The length before the first part of a message of several packets.
pub const MESSAGE_LENGTH_BYTES: usize = 4;

/// What a payload is by the flags of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Neither FIRST nor LAST: bytes of a stream, or of the middle of a message. Which of them, the channel's mode says.
    Bytes(&'a [u8]),
    /// FIRST and LAST: one message.
    Whole(&'a [u8]),
    /// FIRST: the beginning of a message of `length` bytes, which is more than these.
    First { length: u32, bytes: &'a [u8] },
    /// LAST: the end of a message.
    Last(&'a [u8]),
    /// RECORDS: whole messages; with LAST, behind the end of one that began before; with FIRST, in front of one that ends later.
    Records(Records<'a>),
}

impl<'a> Content<'a> {
    /// # Errors
    /// A length of a message that is missing or no more than what is here, records that do not fill the payload or are not what the flags say.
    #[inline]
    pub fn parse(flags: Flags, payload: &'a [u8]) -> Result<Content<'a>, Malformed> {
        let first = flags.contains(Flags::FIRST);
        let last = flags.contains(Flags::LAST);
        if flags.contains(Flags::RECORDS) {
            return Records::parse(payload, flags).map(Content::Records);
        }
        match (first, last) {
            (false, false) => Ok(Content::Bytes(payload)),
            (true, true) => Ok(Content::Whole(payload)),
            (false, true) => Ok(Content::Last(payload)),
            (true, false) => {
                let (length, bytes) =
                    payload.split_first_chunk::<MESSAGE_LENGTH_BYTES>().ok_or(Malformed::MessageLength)?;
                let length = u32::from_be_bytes(*length);
                if u64::from(length) <= bytes.len() as u64 {
                    return Err(Malformed::MessageLength);
                }
                Ok(Content::First { length, bytes })
            }
        }
    }
}

/// What a RECORDS payload holds, in order: the end of a message, whole messages (the iterator), the beginning of one. Checked as a whole when made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    end: Option<&'a [u8]>,
    rest: &'a [u8],
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
    /// There is no record; the last one does not end where the payload ends, or, with FIRST, does; nothing of a message is here that ends or begins.
    #[inline]
    pub fn parse(payload: &'a [u8], flags: Flags) -> Result<Records<'a>, Malformed> {
        let mut rest = payload;
        let end = match flags.contains(Flags::LAST) {
            true => {
                let (end, after) = split_record(rest).filter(|(end, _)| !end.is_empty()).ok_or(Malformed::Record)?;
                rest = after;
                Some(end)
            }
            false => None,
        };
        let whole = rest;
        // The end of a message may be all there is; otherwise there is a record.
        let may_be_done = |rest: &[u8]| rest.is_empty() && !flags.contains(Flags::FIRST);
        if end.is_some() && may_be_done(rest) {
            return Ok(Records { end, rest, beginning: None });
        }
        while let Some((_, after)) = split_record(rest) {
            rest = after;
            if may_be_done(rest) {
                return Ok(Records { end, rest: whole, beginning: None });
            }
        }
        match rest.split_first_chunk::<RECORD_LENGTH_BYTES>() {
            // Longer than what is here: it did not split.
            Some((length, bytes)) if flags.contains(Flags::FIRST) && !bytes.is_empty() => Ok(Records {
                end,
                rest: &whole[..whole.len() - rest.len()],
                beginning: Some(Beginning { length: u16::from_be_bytes(*length), bytes }),
            }),
            _ => Err(Malformed::Record),
        }
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
        let (message, after) = split_record(self.rest)?;
        self.rest = after;
        Some(message)
    }
}

#[inline]
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<RECORD_LENGTH_BYTES>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Puts whole messages behind each other into a RECORDS payload.
#[derive(Debug)]
pub struct RecordWriter<'a> {
    out: &'a mut [u8],
    used: usize,
}

impl<'a> RecordWriter<'a> {
    /// Writes from the beginning of `out`.
    #[must_use]
    #[inline]
    pub fn new(out: &'a mut [u8]) -> RecordWriter<'a> {
        RecordWriter { out, used: 0 }
    }

    /// Goes on behind the records that already fill the first `used` bytes of `out`.
    #[must_use]
    #[inline]
    pub fn after(out: &'a mut [u8], used: usize) -> RecordWriter<'a> {
        let used = used.min(out.len());
        RecordWriter { out, used }
    }

    /// Appends a message; `false`, and nothing changes, if it does not fit into what is left or into a record at all.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> bool {
        let Ok(length) = u16::try_from(message.len()) else { return false };
        let Some((head, rest)) = self.out[self.used..].split_first_chunk_mut::<RECORD_LENGTH_BYTES>() else {
            return false;
        };
        let Some(room) = rest.get_mut(..message.len()) else { return false };
        *head = length.to_be_bytes();
        room.copy_from_slice(message);
        self.used += RECORD_LENGTH_BYTES + message.len();
        true
    }

    /// Appends the first part of a message of `length` bytes, which must be more than these, and these at least one; nothing fits behind it. `false`, and nothing
    /// changes, if it does not fit.
    #[inline]
    pub fn begin(&mut self, length: u16, part: &[u8]) -> bool {
        debug_assert!(!part.is_empty() && part.len() < usize::from(length), "a part of a message");
        let Some((head, rest)) = self.out[self.used..].split_first_chunk_mut::<RECORD_LENGTH_BYTES>() else {
            return false;
        };
        let Some(room) = rest.get_mut(..part.len()) else { return false };
        *head = length.to_be_bytes();
        room.copy_from_slice(part);
        self.used += RECORD_LENGTH_BYTES + part.len();
        true
    }

    /// Bytes written so far, those that were there before included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// Appends a message to a RECORDS payload that grows; `false`, and nothing changes, if it is too long for a record.
#[inline]
pub fn append_record(payload: &mut Vec<u8>, message: &[u8]) -> bool {
    let Ok(length) = u16::try_from(message.len()) else { return false };
    payload.extend_from_slice(&length.to_be_bytes());
    payload.extend_from_slice(message);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_comes_back_in_order() {
        let mut out = [0xAA; 12];
        let mut writer = RecordWriter::new(&mut out);
        assert!(writer.is_empty());
        assert!(writer.push(b"one") && writer.push(b"") && writer.push(b"abc"));
        assert!(!writer.push(b""), "two bytes do not fit any more");
        assert_eq!(writer.len(), 12);
        let records = Records::parse(&out, Flags::RECORDS).unwrap();
        assert_eq!(records.collect::<Vec<_>>(), [&b"one"[..], b"", b"abc"]);

        let mut grown = Vec::new();
        assert!(
            append_record(&mut grown, b"one") && append_record(&mut grown, b"") && append_record(&mut grown, b"abc")
        );
        assert_eq!(grown, out);
        assert!(!append_record(&mut grown, &[0; 65536]));
        assert_eq!(grown.len(), 12);
    }

    #[test]
    fn a_message_that_does_not_fit_changes_nothing() {
        let mut out = [0xAA; 4];
        assert!(!RecordWriter::new(&mut out).push(b"xyz"));
        assert!(!RecordWriter::after(&mut out, 9).push(b""));
        assert_eq!(out, [0xAA; 4]);
        assert!(!RecordWriter::new(&mut vec![0; 70_000]).push(&[0; 65_536]), "longer than a record's length can say");
    }

    #[test]
    fn records_fill_the_payload_exactly() {
        for bad in [&[][..], &[0], &[0, 1], &[0, 1, 7, 0], &[0, 1, 7, 0, 2, 8]] {
            assert_eq!(Records::parse(bad, Flags::RECORDS), Err(Malformed::Record), "{bad:?}");
        }
        assert_eq!(Records::parse(&[0, 0], Flags::RECORDS).unwrap().count(), 1, "an empty message is one");
    }

    #[test]
    fn messages_may_end_and_begin_around_whole_ones() {
        let (begins, ends) = (Flags::RECORDS | Flags::FIRST, Flags::RECORDS | Flags::LAST);
        let beginning = |length, bytes| Some(Beginning { length, bytes });
        let parts = |bytes, flags| {
            Records::parse(bytes, flags).map(|records| (records.end(), records.count(), records.beginning()))
        };
        assert_eq!(parts(b"\0\x02en", ends), Ok((Some(&b"en"[..]), 0, None)));
        assert_eq!(parts(b"\0\x02en\0\x01a", ends), Ok((Some(&b"en"[..]), 1, None)));
        assert_eq!(parts(b"\0\x01a\0\0\0\x05be", begins), Ok((None, 2, beginning(5, b"be"))));
        assert_eq!(parts(b"\0\x05be", begins), Ok((None, 0, beginning(5, b"be"))));
        assert_eq!(parts(b"\0\x01e\0\x05be", begins | ends), Ok((Some(&b"e"[..]), 0, beginning(5, b"be"))));
        for (bad, flags) in [
            (&b"\0\0"[..], ends),       // the end of a message without a byte of it
            (b"\0\x03en", ends),        // an end that goes on
            (b"\0\x02en\0\x02a", ends), // a record that goes on, without FIRST
            (b"\0\x01a", begins),       // nothing begins
            (b"\0\x01a\0\x05", begins), // a beginning without a byte of it
            (b"\0\x01a\0", begins),     // half a length
            (b"", begins),
            (b"\0\x01e", begins | ends),
        ] {
            assert_eq!(parts(bad, flags), Err(Malformed::Record), "{bad:?} {flags:?}");
        }
    }

    #[test]
    fn flags_say_what_a_payload_is() {
        let (first, last, records) = (Flags::FIRST, Flags::LAST, Flags::RECORDS);
        assert_eq!(Content::parse(Flags::NONE, b"x"), Ok(Content::Bytes(b"x")));
        assert_eq!(Content::parse(first | last, b""), Ok(Content::Whole(b"")));
        assert_eq!(Content::parse(last, b"x"), Ok(Content::Last(b"x")));
        assert_eq!(Content::parse(first, b"\0\0\0\x02x"), Ok(Content::First { length: 2, bytes: b"x" }));
        assert_eq!(Content::parse(first, b"\0\0\0"), Err(Malformed::MessageLength));
        assert_eq!(Content::parse(first, b"\0\0\0\x01x"), Err(Malformed::MessageLength), "it would have been LAST too");
        for both in [records | first, records | last, records | first | last] {
            assert_eq!(Content::parse(both, b"\0\0"), Err(Malformed::Record), "nothing ends or begins");
        }
    }
}
