//! What DATA carries, and OPEN as early data: bytes of a stream, parts of messages, or a run of short messages (2.6).

use crate::{Flags, Malformed, Records};

/// The length before the first part of a message of several packets.
pub const MESSAGE_LENGTH_BYTES: usize = 4;

/// What a payload is by the flags of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Neither FIRST nor LAST: bytes of a stream, or of the middle of a message. Which of them, the channel's mode says. And if they are more than are left of that message, it alone
    /// knows where others begin in them, which are as long; so with [`Content::Last`].
    Bytes(&'a [u8]),
    /// FIRST and LAST: one message.
    Whole(&'a [u8]),
    /// FIRST: the beginning of a message of `length` bytes, which is more than these.
    First { length: u32, bytes: &'a [u8] },
    /// LAST: they end a message.
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

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(Content::parse(both, b"\0"), Err(Malformed::Record), "nothing ends or begins");
        }
    }
}
