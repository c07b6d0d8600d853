//! Packets with one mistake each, made out of golden vectors.

use super::vectors::bytes_of;
use ropeway_wire::*;

/// Bytes that are not a packet, and why.
pub struct Wrong {
    pub about: &'static str,
    pub bytes: Vec<u8>,
    pub reason: Malformed,
    pub read: Read,
}

/// Who notices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// A receiver without a key.
    Open,
    /// A receiver whose association has a key.
    Keyed,
    /// A gateway.
    Gateway,
}

const FLAGS: usize = 1;
const LENGTH: usize = 2;
const BASE: usize = BASE_HEADER_BYTES;
const CHANNEL: usize = CHANNEL_HEADER_BYTES;

fn wrong(about: &'static str, vector: &'static str, reason: Malformed, change: impl FnOnce(&mut Vec<u8>)) -> Wrong {
    let mut bytes = bytes_of(vector);
    change(&mut bytes);
    Wrong { about, bytes, reason, read: Read::Open }
}

/// The packet with another payload length, cut or filled up with zeros to it.
fn resize(bytes: &mut Vec<u8>, header: usize, length: usize) {
    bytes.resize(header + length, 0);
    bytes[LENGTH..LENGTH + 2].copy_from_slice(&(length as u16).to_be_bytes());
}

/// At least one for every reason.
pub fn all() -> Vec<Wrong> {
    [headers(), openings(), payloads(), keyed(), shims()].into_iter().flatten().collect()
}

fn headers() -> Vec<Wrong> {
    let unknown = |version, syn| Malformed::UnknownVersion { version, syn };
    vec![
        wrong("nothing at all", "PIN", Malformed::Truncated, Vec::clear),
        wrong("a header of 23 bytes", "PIN", Malformed::Truncated, |bytes| bytes.truncate(23)),
        wrong("version 0, not VERSION", "PIN", unknown(0, None), |bytes| bytes[0] = 0x0D),
        wrong("version 2, not a SYN", "PIN", unknown(2, None), |bytes| bytes[0] = 0x2D),
        wrong("a SYN of version 2 that is too short", "SYN of version 2", unknown(2, None), |bytes| {
            bytes.truncate(255)
        }),
        wrong("a shim with a SYN's type bits", "SYN of version 2", Malformed::UnexpectedShim, |bytes| bytes[0] = 0xF1),
        wrong("a short header of 15 bytes", "DATA with the short header", Malformed::Truncated, |bytes| {
            bytes.truncate(15)
        }),
        wrong(
            "a short header whose length lies",
            "DATA with the short header",
            Malformed::LengthBeyondPacket,
            |bytes| bytes[LENGTH] = 0xFF,
        ),
        wrong("no channel", "FIN", Malformed::ChannelHeaderMissing, |bytes| bytes.truncate(27)),
        wrong("a byte too few", "DATA of a stream", Malformed::LengthBeyondPacket, |bytes| {
            bytes.pop();
        }),
        wrong("a length that lies", "CONTROL", Malformed::LengthBeyondPacket, |bytes| bytes[LENGTH] = 0xFF),
    ]
}

fn openings() -> Vec<Wrong> {
    let (length, size, value) = (Malformed::PayloadLength, Malformed::PacketSize, Malformed::FieldValue);
    vec![
        wrong("a SYN of 31 bytes", "SYN", length, |bytes| resize(bytes, BASE, 31)),
        wrong("a SYN shorter than its packet size", "SYN", size, |bytes| resize(bytes, BASE, 231)),
        wrong("a SYN longer than its packet size", "SYN", size, |bytes| resize(bytes, BASE, 233)),
        wrong("a SYN that takes 255 bytes", "SYN", size, |bytes| {
            bytes[BASE + 24..BASE + 26].copy_from_slice(&[0, 255]);
            resize(bytes, BASE, 231);
        }),
        wrong("a SYN from steering 0xFFF", "SYN", value, |bytes| bytes[BASE..BASE + 2].fill(0xFF)),
        wrong("a SYN that speaks higher versions only", "SYN", value, |bytes| bytes[BASE + 26] = 2),
        wrong("a SYN that speaks lower versions only", "SYN", value, |bytes| bytes[BASE + 26..BASE + 28].fill(0)),
        wrong("a COOKIE shorter than its packet size", "COOKIE", size, |bytes| resize(bytes, BASE, 231)),
        wrong("a COOKIE of 31 bytes", "COOKIE", length, |bytes| resize(bytes, BASE, 31)),
        wrong("a CONFIRM without parameters", "CONFIRM", length, |bytes| resize(bytes, BASE, 32 + 20 + 35)),
        wrong("a CONFIRM without OPEN", "CONFIRM", length, |bytes| resize(bytes, BASE, 88 + 7)),
        wrong("a CONFIRM from steering 0xFFF", "CONFIRM", value, |bytes| bytes[BASE + 52..BASE + 54].fill(0xFF)),
        wrong("an OPENED without nonce", "OPENED", length, |bytes| resize(bytes, BASE, 7)),
        wrong("a REFUSED without code", "REFUSED", length, |bytes| resize(bytes, BASE, 8)),
        wrong("a REDIRECT that ends early", "REDIRECT", length, |bytes| resize(bytes, BASE, 27)),
        wrong("a REDIRECT of family 5", "REDIRECT", value, |bytes| bytes[BASE + 9] = 5),
        wrong("a VERSION of no versions", "VERSION", length, |bytes| resize(bytes, BASE, 8)),
    ]
}

fn payloads() -> Vec<Wrong> {
    let (length, value, block) = (Malformed::PayloadLength, Malformed::FieldValue, Malformed::Block);
    let (message, record) = (Malformed::MessageLength, Malformed::Record);
    vec![
        wrong("records without a beginning", "DATA, records", record, |bytes| bytes[FLAGS] |= Flags::FIRST.0),
        wrong("records that end an empty part", "DATA, end and beginning", record, |bytes| bytes[CHANNEL] = 0),
        wrong("records that end early", "DATA, records", record, |bytes| resize(bytes, CHANNEL, 6)),
        wrong("a repetition that ends early", "DATA, records of one length", record, |bytes| {
            resize(bytes, CHANNEL, 10)
        }),
        wrong("a repetition of nothing", "DATA, records", record, |bytes| bytes[CHANNEL] = 0xC1),
        wrong("a repetition of an empty message", "DATA, records", record, |bytes| bytes[CHANNEL + 3] = 0xC3),
        wrong("a repetition of an end", "DATA, end and beginning", record, |bytes| bytes[CHANNEL + 5] = 0xC1),
        wrong(
            "a repetition that lacks a message and a half",
            "DATA, a beginning that repeats a length",
            record,
            |bytes| bytes[CHANNEL + 4] = 0xC3,
        ),
        wrong("a beginning without a byte", "DATA, a long beginning", record, |bytes| resize(bytes, CHANNEL, 3)),
        wrong("a length of which half is missing", "DATA, a long beginning", record, |bytes| resize(bytes, CHANNEL, 2)),
        wrong("records without a record", "DATA, records", record, |bytes| resize(bytes, CHANNEL, 0)),
        wrong("a message without length", "DATA, the first of a message", message, |bytes| resize(bytes, CHANNEL, 3)),
        wrong("a message that ends at once", "DATA, the first of a message", message, |bytes| {
            bytes[CHANNEL + 2..CHANNEL + 4].copy_from_slice(&[0, 4])
        }),
        wrong("an OPEN without mode", "OPEN", length, |bytes| resize(bytes, CHANNEL, 7)),
        wrong("an OPEN in mode 2", "OPEN", value, |bytes| bytes[CHANNEL + 4] = 2),
        wrong("early data in bad records", "OPEN", record, |bytes| resize(bytes, CHANNEL, 13)),
        wrong("an OPEN of records without a record", "OPEN", record, |bytes| resize(bytes, CHANNEL, 8)),
        wrong("a FIN without extent", "FIN", length, |bytes| resize(bytes, CHANNEL, 0)),
        wrong("a FIN of extent 2", "FIN", value, |bytes| bytes[CHANNEL] = 2),
        wrong("an ABORT of three bytes", "ABORT", length, |bytes| resize(bytes, CHANNEL, 3)),
        wrong("a block of kind 7", "CONTROL", block, |bytes| bytes[BASE] = 7),
        wrong("a block without entries", "STATE", block, |bytes| {
            resize(bytes, BASE, 2);
            bytes[BASE + 1] = 0;
        }),
        wrong("a request for nothing", "CONTROL", block, |bytes| bytes[BASE + 7] = 0),
        wrong("nothing withdrawn", "CONTROL, packets taken back", block, |bytes| bytes[BASE + 9] = 0),
        wrong("more withdrawn than what comes next lets be", "CONTROL, packets taken back", block, |bytes| {
            bytes[BASE + 19] = 8;
        }),
        wrong("a block that ends early", "STATE", block, |bytes| resize(bytes, BASE, 11)),
        wrong("a PIN with a payload", "PIN", length, |bytes| resize(bytes, BASE, 1)),
        wrong("an RST without token", "RST", length, |bytes| resize(bytes, BASE, 2)),
        wrong("a JOIN without proof", "JOIN, the cookie back", length, |bytes| resize(bytes, BASE, 32)),
        wrong("a JOIN of step 4", "JOIN, the cookie back", value, |bytes| bytes[BASE] = 4),
        wrong("a JOIN of use 2", "JOIN", value, |bytes| bytes[BASE + 1] = 2),
        wrong("a JOIN without padding", "JOIN", Malformed::PacketSize, |bytes| resize(bytes, BASE, 48)),
        wrong("a padded end of a JOIN", "JOIN, the cookie back", length, |bytes| resize(bytes, BASE, 49)),
    ]
}

fn keyed() -> Vec<Wrong> {
    let short = wrong("a tag of 15 bytes", "DATA with a key", Malformed::SealMissing, |bytes| {
        bytes.pop();
    });
    let never = wrong("a sealed RST", "RST", Malformed::NeverSealed, |bytes| bytes.extend([0; 20]));
    [short, never].into_iter().map(|wrong| Wrong { read: Read::Keyed, ..wrong }).collect()
}

fn shims() -> Vec<Wrong> {
    let bits =
        wrong("a shim with a bit that is not known", "PIN behind a shim", Malformed::Shim, |bytes| bytes[0] = 0xF2);
    let short = wrong("a shim of 11 bytes", "PIN behind a shim", Malformed::Truncated, |bytes| bytes.truncate(11));
    let none = wrong("no shim", "PIN", Malformed::Shim, |_| ());
    [bits, short, none].into_iter().map(|wrong| Wrong { read: Read::Gateway, ..wrong }).collect()
}
