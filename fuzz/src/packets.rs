//! Packets from a peer that sends anything.

#[path = "../../crates/wire/tests/wire/owned.rs"]
pub mod owned;

use owned::{Entry, Payload};
use ropeway_wire::*;

/// Whatever is read is read again from what is written of it; and, but for freedoms that the specification names, that is the same bytes.
pub fn packets(data: &[u8]) {
    if let Ok((shim, packet)) = Shim::parse(data) {
        assert_eq!(Shim::parse(&shim.to_bytes()), Ok((shim, &[][..])));
        packets(packet);
    }
    let packet = match Packet::parse(data) {
        Ok(packet) => packet,
        Err(reason) => return refused(data, reason),
    };
    let header = packet.header;
    let at = header.bytes();
    assert_eq!(header.to_bytes()[..at], data[..at], "two encodings of one header");
    assert_eq!(packet.payload, &data[at..at + usize::from(header.length)]);
    assert_eq!(packet.bytes(), data);
    if let Ok(sealed) = packet.sealed() {
        assert!(header.kind.is_sealed() && sealed.header == header);
        assert_eq!(
            sealed.associated.len() + sealed.sealed.len(),
            at + COUNTER_BYTES + packet.payload.len() + TAG_BYTES
        );
    }
    match owned::read(data) {
        Ok((read, payload)) => accepted(read, &payload, packet.payload),
        Err(reason) => counted(reason),
    }
    anything_as_a_payload(packet.payload);
}

fn accepted(header: Header, payload: &Payload, bytes: &[u8]) {
    let written = owned::write(header, payload);
    let again = owned::read(&written).expect("what was written is read");
    assert!(again.1 == *payload, "{again:?} is not {payload:?}");
    let is_blocks = matches!(payload, Payload::Control(_) | Payload::State(_));
    let is_records = header.kind == Type::Data && header.flags.contains(Flags::RECORDS);
    if is_records {
        // Lengths may be longer than needed, and need not be repeated.
        assert!(written.len() - header.bytes() <= bytes.len());
    } else if !has_reserved(header.kind) && !is_blocks {
        assert_eq!(&written[header.bytes()..], bytes, "two encodings of one payload");
        assert_eq!(again.0, header);
    }
    if let Payload::Control(entries) | Payload::State(entries) = payload {
        // Blocks of one kind in a row are written as one: never more bytes, and the same entries.
        assert!(written.len() - header.bytes() <= bytes.len());
        assert!(entries.iter().all(|entry| !matches!(entry, Entry::Rrq(_, 0))));
    }
}

/// Types with bytes that receivers ignore.
fn has_reserved(kind: Type) -> bool {
    matches!(kind, Type::Syn | Type::Cookie | Type::Confirm | Type::Redirect | Type::Open | Type::Fin | Type::Join)
}

fn refused(data: &[u8], reason: Malformed) {
    counted(reason);
    if let Malformed::UnknownVersion { version, syn: Some(syn) } = reason {
        assert!(version != VERSION && data.len() >= MIN_PACKET_BYTES);
        let mut out = [0; MIN_PACKET_BYTES];
        let length = syn.answer(&[VERSION], &mut out).expect("an answer is short");
        let answer = Packet::parse(&out[..length]).expect("a packet");
        let Ok(Body::Version(fields)) = answer.body() else { panic!("not a VERSION: {answer:?}") };
        assert_eq!((answer.header.destination, fields.nonce, fields.versions), (syn.source, syn.nonce, &[VERSION][..]));
    }
}

fn counted(reason: Malformed) {
    assert!(reason.index() < Malformed::COUNT && !reason.name().is_empty() && !reason.to_string().is_empty());
}

/// RECORDS as they may be: of whole messages, and with the end of one in front, the beginning of one behind, or both.
fn record_flags() -> [Flags; 4] {
    [Flags::NONE, Flags::FIRST, Flags::LAST, Flags::FIRST | Flags::LAST].map(|flags| flags | Flags::RECORDS)
}

/// The parts that have a `parse` of their own: what they give out after it are pieces of what went in.
fn anything_as_a_payload(payload: &[u8]) {
    if let Ok(blocks) = Blocks::parse(payload) {
        let entries: usize = blocks.map(|block| if let Block::Rrq(ranges) = block { ranges.count() } else { 1 }).sum();
        assert!(entries <= payload.len() / 2);
    }
    for flags in record_flags() {
        if let Ok(records) = Records::parse(payload, flags) {
            let parts = records.end().into_iter().chain(records.beginning().map(|beginning| beginning.bytes));
            let bytes: usize = parts.chain(records).map(<[u8]>::len).sum();
            // A prefix in front of 63 messages at most.
            let messages = records.len() + usize::from(records.end().is_some() || records.beginning().is_some());
            assert!(bytes + messages.div_ceil(63) <= payload.len(), "{bytes} bytes in {messages} messages");
            assert_eq!(records.count(), records.len());
        }
    }
    if let Ok((parameters, rest)) = Parameters::parse(payload) {
        let mut out = [0; Parameters::BYTES];
        assert_eq!(parameters.write(&mut out), Ok(Parameters::BYTES));
        assert_eq!([&out, rest].concat(), payload);
    }
    for kind in Type::ALL {
        for flags in
            [Flags::NONE, Flags::FIRST, Flags::FIRST | Flags::LAST, Flags::LAST].into_iter().chain(record_flags())
        {
            if let Err(reason) = Body::parse(kind, flags, payload) {
                counted(reason);
            }
        }
    }
}
