//! The header that every packet has, and the part that packets of a channel have behind it (2.1, 2.2).

use crate::{
    BASE_HEADER_BYTES, Backlog, CHANNEL_HEADER_BYTES, Id, Malformed, NoRoom, Packet, SHORT_HEADER_BYTES, VERSION,
};
use core::fmt;
use core::ops::{BitOr, BitOrAssign};
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a packet is: the low four bits of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// Which versions are spoken here. Its version bits are 0.
    Version = 0,
    Syn = 1,
    Cookie = 2,
    Confirm = 3,
    Opened = 4,
    Refused = 5,
    Redirect = 6,
    Data = 7,
    Open = 8,
    Fin = 9,
    Abort = 10,
    Control = 11,
    State = 12,
    Pin = 13,
    Rst = 14,
    /// One more path for an association.
    Join = 15,
}

impl Type {
    /// All types; each stands at its number.
    pub const ALL: [Type; 16] = [
        Type::Version,
        Type::Syn,
        Type::Cookie,
        Type::Confirm,
        Type::Opened,
        Type::Refused,
        Type::Redirect,
        Type::Data,
        Type::Open,
        Type::Fin,
        Type::Abort,
        Type::Control,
        Type::State,
        Type::Pin,
        Type::Rst,
        Type::Join,
    ];

    /// The type that the low four bits of a first byte name: all sixteen exist.
    #[must_use]
    #[inline]
    pub const fn of_byte(byte: u8) -> Type {
        Type::ALL[(byte & 0x0F) as usize]
    }

    /// Whether such a packet consumes a number, so that it is acknowledged and, when lost, asked for.
    #[must_use]
    #[inline]
    pub const fn consumes_number(self) -> bool {
        self.has_channel()
    }

    /// Whether the header names a channel.
    #[must_use]
    #[inline]
    pub const fn has_channel(self) -> bool {
        matches!(self, Type::Data | Type::Open | Type::Fin | Type::Abort)
    }

    /// Whether such a packet is sealed if its association has a key. RST is not: an engine sends it when it no longer has a key. Nor is JOIN,
    /// which carries a proof of its own.
    #[must_use]
    #[inline]
    pub const fn is_sealed(self) -> bool {
        self as u8 >= Type::Data as u8 && self as u8 <= Type::Pin as u8
    }

    /// The name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Type::Version => "VERSION",
            Type::Syn => "SYN",
            Type::Cookie => "COOKIE",
            Type::Confirm => "CONFIRM",
            Type::Opened => "OPENED",
            Type::Refused => "REFUSED",
            Type::Redirect => "REDIRECT",
            Type::Data => "DATA",
            Type::Open => "OPEN",
            Type::Fin => "FIN",
            Type::Abort => "ABORT",
            Type::Control => "CONTROL",
            Type::State => "STATE",
            Type::Pin => "PIN",
            Type::Rst => "RST",
            Type::Join => "JOIN",
        }
    }
}

/// The flags of a header; every combination of bits can travel.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The send queue was empty before this packet: a busy period begins.
    pub const TXS: Flags = Flags(0x01);
    /// The send queue is empty after this packet: the busy period may end.
    pub const TXF: Flags = Flags(0x02);
    /// The payload begins a message.
    pub const FIRST: Flags = Flags(0x04);
    /// The payload ends a message.
    pub const LAST: Flags = Flags(0x08);
    /// The payload is a run of messages, each behind its length or counted behind one of its length.
    pub const RECORDS: Flags = Flags(0x10);
    /// This number has been sent before.
    pub const RTX: Flags = Flags(0x20);
    /// The key phase.
    pub const PHASE: Flags = Flags(0x40);
    /// The echo field is valid.
    pub const ECHO: Flags = Flags(0x80);

    /// No flag.
    pub const NONE: Flags = Flags(0);

    const NAMES: [&'static str; 8] = ["TXS", "TXF", "FIRST", "LAST", "RECORDS", "RTX", "PHASE", "ECHO"];

    /// Whether all of `other` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is set.
    #[must_use]
    #[inline]
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub const fn insert(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    #[inline]
    pub const fn remove(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// Sets or clears `other`.
    #[inline]
    pub const fn set(&mut self, other: Flags, on: bool) {
        if on { self.insert(other) } else { self.remove(other) }
    }

    /// Those that are in both.
    #[must_use]
    #[inline]
    pub const fn intersection(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Flags) {
        self.insert(other);
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = (0..8).filter(|bit| self.0 & 1 << bit != 0).map(|bit| Flags::NAMES[bit]);
        f.write_str("Flags(")?;
        for (i, name) in set.enumerate() {
            if i > 0 {
                f.write_str("|")?;
            }
            f.write_str(name)?;
        }
        f.write_str(")")
    }
}

/// The fields of a header, in the host's byte order.
///
/// Of a type without a channel, `channel` and `back` do not travel, and with a short header nothing from `ack` to `echo`: parsing gives 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Type,
    /// DATA in the form that says nothing of the moment. Of other types it means nothing, and parsing gives `false`.
    pub is_short: bool,
    pub flags: Flags,
    /// Bytes of payload, without header, counter and tag.
    pub length: u16,
    /// The receiver's id.
    pub destination: Id,
    /// Low 32 bits of this packet's number or, if the type consumes none, of the next to be sent.
    pub number: u32,
    /// Low 32 bits of the lowest number that has not been received.
    pub ack: u32,
    /// How many numbers from `ack` on may be sent.
    pub grant: u16,
    /// How many packets the receiver of this packet may send to begin a busy period without a grant.
    pub first_flight: u8,
    /// What has not been sent for the first time.
    pub backlog: Backlog,
    /// The sender's clock in units of 4 µs.
    pub time: u16,
    /// The newest `time` received plus the time since then, in the same unit; valid with [`Flags::ECHO`].
    pub echo: u16,
    pub channel: u16,
    /// Distance back to the channel's previous number; 0: everything that the channel sent before has been acknowledged.
    pub back: u16,
}

impl Header {
    /// A header of which all other fields are 0.
    #[must_use]
    #[inline]
    pub const fn new(kind: Type, destination: Id) -> Header {
        Header {
            kind,
            is_short: false,
            flags: Flags::NONE,
            length: 0,
            destination,
            number: 0,
            ack: 0,
            grant: 0,
            first_flight: 0,
            backlog: Backlog::NONE,
            time: 0,
            echo: 0,
            channel: 0,
            back: 0,
        }
    }

    /// How long the header is: 24 or, with a channel, 28 bytes, or 16 if it is short.
    #[must_use]
    #[inline]
    pub const fn bytes(&self) -> usize {
        if self.travels_short() {
            SHORT_HEADER_BYTES
        } else if self.kind.has_channel() {
            CHANNEL_HEADER_BYTES
        } else {
            BASE_HEADER_BYTES
        }
    }

    #[inline]
    const fn travels_short(&self) -> bool {
        self.is_short && matches!(self.kind, Type::Data)
    }

    /// The header as it travels. Only the first [`Header::bytes`] count, and the rest is 0.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; CHANNEL_HEADER_BYTES] {
        let mut bytes = [0; CHANNEL_HEADER_BYTES];
        // Every header fits.
        let _ = self.write(&mut bytes);
        bytes
    }

    /// Writes the first [`Header::bytes`] of `out` and says how many these are.
    ///
    /// # Errors
    /// `out` is shorter; nothing was written.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        // Straight into the caller's bytes: a copy of an array just made of small fields would wait for all of them to leave the store buffer.
        if self.travels_short() {
            let (raw, _) = RawShort::mut_from_prefix(out).map_err(|_| NoRoom)?;
            *raw = RawShort {
                version_and_type: SHORT_DATA,
                flags: self.flags.0,
                length: self.length.into(),
                destination: self.destination.0.into(),
                number: self.number.into(),
                channel: self.raw_channel(),
            };
            Ok(SHORT_HEADER_BYTES)
        } else if self.kind.has_channel() {
            let (raw, _) = Raw::mut_from_prefix(out).map_err(|_| NoRoom)?;
            raw.base = self.raw_base();
            raw.channel = self.raw_channel();
            Ok(CHANNEL_HEADER_BYTES)
        } else {
            let (raw, _) = RawBase::mut_from_prefix(out).map_err(|_| NoRoom)?;
            *raw = self.raw_base();
            Ok(BASE_HEADER_BYTES)
        }
    }

    #[inline(always)]
    fn raw_base(&self) -> RawBase {
        let version = if matches!(self.kind, Type::Version) { 0 } else { VERSION };
        RawBase {
            version_and_type: version << 4 | self.kind as u8,
            flags: self.flags.0,
            length: self.length.into(),
            destination: self.destination.0.into(),
            number: self.number.into(),
            ack: self.ack.into(),
            grant: self.grant.into(),
            first_flight: self.first_flight,
            backlog: self.backlog.0,
            time: self.time.into(),
            echo: self.echo.into(),
        }
    }

    #[inline(always)]
    fn raw_channel(&self) -> RawChannel {
        RawChannel { channel: self.channel.into(), back: self.back.into() }
    }
}

/// The first byte of DATA with the short header: this version, and the type that VERSION has in no version.
const SHORT_DATA: u8 = VERSION << 4;

/// A short header as it travels.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawShort {
    version_and_type: u8,
    flags: u8,
    length: U16,
    destination: U32,
    number: U32,
    channel: RawChannel,
}

/// A header's first 24 bytes as they travel.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBase {
    version_and_type: u8,
    flags: u8,
    length: U16,
    destination: U32,
    number: U32,
    ack: U32,
    grant: U16,
    first_flight: u8,
    backlog: u8,
    time: U16,
    echo: U16,
}

/// The four bytes behind them in packets of a channel.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChannel {
    channel: U16,
    back: U16,
}

/// All of a header with a channel.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    base: RawBase,
    channel: RawChannel,
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` hold a header and as much payload as it says. What the payload holds is checked by the views over it ([`crate::Body`]).
    ///
    /// Whether a payload is sealed cannot be seen in the packet; if the association with the id `destination` has a key,
    /// go on with [`Packet::sealed`].
    ///
    /// # Errors
    /// Why these bytes are not a packet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        if bytes.first() == Some(&SHORT_DATA) {
            return Packet::parse_short(bytes);
        }
        let Ok((base, rest)) = RawBase::ref_from_prefix(bytes) else { return Err(Malformed::Truncated) };
        let kind =
            if base.version_and_type >> 4 == VERSION { Type::of_byte(base.version_and_type) } else { foreign(bytes)? };
        let (channel, rest) = if kind.has_channel() {
            let Ok((channel, rest)) = RawChannel::read_from_prefix(rest) else {
                return Err(Malformed::ChannelHeaderMissing);
            };
            (channel, rest)
        } else {
            (RawChannel::default(), rest)
        };
        let length = base.length.get();
        let Some(payload) = rest.get(..usize::from(length)) else { return Err(Malformed::LengthBeyondPacket) };
        let header = Header {
            kind,
            is_short: false,
            flags: Flags(base.flags),
            length,
            destination: Id(base.destination.get()),
            number: base.number.get(),
            ack: base.ack.get(),
            grant: base.grant.get(),
            first_flight: base.first_flight,
            backlog: Backlog(base.backlog),
            time: base.time.get(),
            echo: base.echo.get(),
            channel: channel.channel.get(),
            back: channel.back.get(),
        };
        Ok(Packet { header, payload, bytes })
    }

    #[inline]
    fn parse_short(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let Ok((raw, rest)) = RawShort::ref_from_prefix(bytes) else { return Err(Malformed::Truncated) };
        let length = raw.length.get();
        let Some(payload) = rest.get(..usize::from(length)) else { return Err(Malformed::LengthBeyondPacket) };
        let header = Header {
            is_short: true,
            flags: Flags(raw.flags),
            length,
            number: raw.number.get(),
            channel: raw.channel.channel.get(),
            back: raw.channel.back.get(),
            ..Header::new(Type::Data, Id(raw.destination.get()))
        };
        Ok(Packet { header, payload, bytes })
    }
}

/// Packets whose version is not ours: VERSION, which has none, a gateway's shim, or another version.
#[cold]
fn foreign(bytes: &[u8]) -> Result<Type, Malformed> {
    match bytes.first().copied().unwrap_or_default() {
        0 => Ok(Type::Version),
        first if crate::Shim::precedes(first) => Err(Malformed::UnexpectedShim),
        first => Err(Malformed::UnknownVersion { version: first >> 4, syn: crate::UnknownSyn::of(bytes) }),
    }
}
