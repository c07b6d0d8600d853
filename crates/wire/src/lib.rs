//! The packet formats of Ropeway's wire protocol, version 1: section 2 of `docs/protocol.md`, which is the specification.
//!
//! Two levels, each both ways:
//!
//! * **Views** over bytes that somebody else wrote: [`Packet`], [`Blocks`], [`Records`], [`Content`] and the `parse` of every `..Fields`. A view is
//!   checked once, when it is made; nothing that it gives out afterwards can fail or panic. What is not a packet is a [`Malformed`], whose
//!   [`index`](Malformed::index) is that of the counter to move.
//! * **Representations**, which can only be valid: [`Header`], the `..Fields`, [`BlockWriter`]. Their `write` puts them into the caller's buffer and
//!   says how many bytes that took. [`RecordWriter`] says what stands in front of each of several messages, and its caller puts it there.
//!
//! All fields are in the host's order once they are out of the bytes. Nothing here allocates, does I/O, or knows what a packet means: numbers that
//! lie outside a window, channels that do not exist and cookies that are forged are `proto`'s to judge.
//!
//! ```
//! use ropeway_wire::{Flags, Header, Id, Packet, Type};
//!
//! let header = Header { flags: Flags::FIRST | Flags::LAST, length: 4, number: 7, ..Header::new(Type::Data, Id(0x0012_3450)) };
//! let mut bytes = [0; 64];
//! let at = header.write(&mut bytes)?;
//! bytes[at..at + 4].copy_from_slice(b"ping");
//!
//! let packet = Packet::parse(&bytes)?; // what lies behind the payload is padding
//! assert_eq!((packet.header, packet.payload), (header, &b"ping"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod backlog;
mod blocks;
mod body;
mod channel;
mod code;
mod content;
mod header;
mod id;
mod join;
mod malformed;
mod number;
mod opening;
mod packet;
mod records;
mod shim;

pub use backlog::Backlog;
pub use blocks::{Block, BlockWriter, Blocks, Ranges, Void};
pub use body::Body;
pub use channel::{AbortFields, Extent, FinFields, Mode, OpenFields, RstFields};
pub use code::ErrorCode;
pub use content::{Content, MESSAGE_LENGTH_BYTES};
pub use header::{Flags, Header, Type};
pub use id::Id;
pub use join::{JoinFields, JoinStep};
pub use malformed::{Malformed, NoRoom, UnknownSyn};
pub use number::expand;
pub use opening::{
    ConfirmFields, Cookie, CookieFields, FEATURE_KEYED, OpenedFields, Parameters, RedirectFields, RefusedFields,
    SynFields, VersionFields,
};
pub use packet::{Packet, Sealed};
pub use records::{Beginning, RECORD_PREFIX_BYTES, RecordPrefix, RecordReader, RecordWriter, Records};
pub use shim::Shim;

/// The version of the protocol that this crate speaks: the high four bits of a packet's first byte.
pub const VERSION: u8 = 1;

/// The header that every packet has.
pub const BASE_HEADER_BYTES: usize = 24;

/// The header of packets that belong to a channel. 1500 bytes of Ethernet payload less this leave 1472, as document 0's packet did.
pub const CHANNEL_HEADER_BYTES: usize = 28;

/// The header of DATA that leaves out what its sender has to say of the moment: acknowledgment, grant, backlog and times.
pub const SHORT_HEADER_BYTES: usize = 16;

/// The low bits of the transmission counter, behind the header of packets that are sealed with a key.
pub const COUNTER_BYTES: usize = 4;

/// The authentication tag behind a sealed payload.
pub const TAG_BYTES: usize = 16;

/// What every link must carry, without its own headers: the longest packet that opens (CONFIRM with a Noise message) fits, and a SYN padded to it
/// is longer than any answer to it, so that nobody is flooded through us.
pub const MIN_PACKET_BYTES: usize = 256;

/// What gateways put before a packet.
pub const SHIM_BYTES: usize = 12;
