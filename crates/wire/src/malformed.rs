//! Why bytes are not a packet, and what can be said about it.

use crate::{BASE_HEADER_BYTES, CHANNEL_HEADER_BYTES, Header, Id, MIN_PACKET_BYTES, Type, VersionFields};

/// Why bytes are not a packet of this version. The packet is dropped and the counter with this [`index`](Malformed::index) moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("shorter than a header")]
    Truncated,
    /// Not necessarily wrong: a SYN of another version is answered ([`UnknownSyn::answer`]).
    #[error("version {version} of the protocol, which is not spoken here")]
    UnknownVersion { version: u8, syn: Option<UnknownSyn> },
    #[error("preceded by a gateway's shim, where only gateways are expected to see one")]
    UnexpectedShim,
    #[error("the length in the header is more than what arrived")]
    LengthBeyondPacket,
    #[error("of a type with a channel, but too short to name one")]
    ChannelHeaderMissing,
    #[error("too short for the counter, the payload and the tag of a sealed packet")]
    SealMissing,
    #[error("of a type that is never sealed, where only sealed packets are expected")]
    NeverSealed,
    #[error("the payload is shorter or longer than what its type holds")]
    PayloadLength,
    #[error("padded to another size than the one it names, or names one that is too small")]
    PacketSize,
    #[error("a field has a value that does not exist")]
    FieldValue,
    #[error("a block of an unknown kind, without entries, or with entries that do not fit or cannot be")]
    Block,
    #[error("records that do not fill the payload exactly, repeat no length, or are not what the flags say")]
    Record,
    #[error("the length of a message is missing, or no more than what its first packet carries")]
    MessageLength,
    #[error("a gateway's shim with unknown bits")]
    Shim,
}

impl Malformed {
    /// How many reasons there are: the size of an array with one counter for each.
    pub const COUNT: usize = Malformed::NAMES.len();

    /// The names of the reasons for lists of counters, each at its [`index`](Malformed::index).
    pub const NAMES: [&'static str; 14] = [
        "truncated",
        "unknown-version",
        "unexpected-shim",
        "length-beyond-packet",
        "channel-header-missing",
        "seal-missing",
        "never-sealed",
        "payload-length",
        "packet-size",
        "field-value",
        "block",
        "record",
        "message-length",
        "shim",
    ];

    /// The place of this reason among all of them, below [`Malformed::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Malformed::Truncated => 0,
            Malformed::UnknownVersion { .. } => 1,
            Malformed::UnexpectedShim => 2,
            Malformed::LengthBeyondPacket => 3,
            Malformed::ChannelHeaderMissing => 4,
            Malformed::SealMissing => 5,
            Malformed::NeverSealed => 6,
            Malformed::PayloadLength => 7,
            Malformed::PacketSize => 8,
            Malformed::FieldValue => 9,
            Malformed::Block => 10,
            Malformed::Record => 11,
            Malformed::MessageLength => 12,
            Malformed::Shim => 13,
        }
    }

    /// The name of this reason for lists of counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Malformed::NAMES[self.index()]
    }
}

/// What every version has in its SYN, of one in a version that is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSyn {
    /// Where the answer goes.
    pub source: Id,
    /// By which the sender knows its attempt again.
    pub nonce: u64,
}

impl UnknownSyn {
    /// `None` if this is no SYN, or one too short to deserve an answer: an answer longer than the question could be turned against others.
    pub(crate) fn of(bytes: &[u8]) -> Option<UnknownSyn> {
        let is_syn = bytes.first()? & 0x0F == Type::Syn as u8;
        if !is_syn || bytes.len() < MIN_PACKET_BYTES {
            return None;
        }
        let source = bytes.get(BASE_HEADER_BYTES..CHANNEL_HEADER_BYTES)?.try_into().ok()?;
        let nonce = bytes.get(CHANNEL_HEADER_BYTES..CHANNEL_HEADER_BYTES + 8)?.try_into().ok()?;
        Some(UnknownSyn { source: Id(u32::from_be_bytes(source)), nonce: u64::from_be_bytes(nonce) })
    }

    /// Writes the VERSION packet that answers this SYN and says how long it is.
    ///
    /// # Errors
    /// `out` is too short; [`MIN_PACKET_BYTES`] are always enough.
    pub fn answer(&self, versions: &[u8], out: &mut [u8]) -> Result<usize, NoRoom> {
        let fields = VersionFields { nonce: self.nonce, versions };
        let payload = out.get_mut(BASE_HEADER_BYTES..).ok_or(NoRoom)?;
        let length = fields.write(payload)?;
        let header =
            Header { length: u16::try_from(length).map_err(|_| NoRoom)?, ..Header::new(Type::Version, self.source) };
        Ok(header.write(out)? + length)
    }
}

/// The buffer is too short for what was to be written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer is too short for what is to be written into it")]
pub struct NoRoom;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_index_and_a_name_of_its_own() {
        let all = [
            Malformed::Truncated,
            Malformed::UnknownVersion { version: 2, syn: None },
            Malformed::UnexpectedShim,
            Malformed::LengthBeyondPacket,
            Malformed::ChannelHeaderMissing,
            Malformed::SealMissing,
            Malformed::NeverSealed,
            Malformed::PayloadLength,
            Malformed::PacketSize,
            Malformed::FieldValue,
            Malformed::Block,
            Malformed::Record,
            Malformed::MessageLength,
            Malformed::Shim,
        ];
        assert_eq!(all.map(Malformed::index), core::array::from_fn::<_, { Malformed::COUNT }, _>(|i| i));
        let mut names = Malformed::NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Malformed::COUNT);
    }

    #[test]
    fn a_reason_makes_the_result_of_parsing_no_larger() {
        assert_eq!(size_of::<Result<crate::Packet<'_>, Malformed>>(), size_of::<crate::Packet<'_>>());
    }
}
