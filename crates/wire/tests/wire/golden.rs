//! The golden vectors: every one is read as what it says, written as it stands, and quoted by the specification.

use crate::owned;
use crate::vectors;
use crate::vectors::{Means, Vector};
use ropeway_wire::*;
use std::fmt::Write as _;

/// The bytes that what a vector means is written as.
fn written(means: &Means) -> Vec<u8> {
    match means {
        Means::Packet(header, payload) => owned::write(*header, payload),
        Means::Shimmed(shim, header, payload) => [&shim.to_bytes()[..], &owned::write(*header, payload)].concat(),
        Means::Sealed(header, counter, sealed) => {
            let mut out = [0; CHANNEL_HEADER_BYTES];
            let header_bytes = header.write(&mut out).expect("room for a header");
            [&out[..header_bytes], &counter.to_be_bytes(), sealed].concat()
        }
        // No later version's packet can be written here: its first bytes are all that is known of it.
        Means::Foreign(version, syn) => {
            let mut bytes = vec![0; MIN_PACKET_BYTES];
            bytes[0] = version << 4 | Type::Syn as u8;
            bytes[24..28].copy_from_slice(&syn.source.0.to_be_bytes());
            bytes[28..36].copy_from_slice(&syn.nonce.to_be_bytes());
            bytes
        }
    }
}

#[test]
fn every_vector_is_written_as_it_stands() {
    for vector in vectors::all() {
        let written = written(&vector.means);
        assert_eq!(rows(&written), rows(&vector.bytes), "{}", vector.name);
        assert_eq!(written, vector.bytes);
    }
}

#[test]
fn every_vector_is_read_as_what_it_says() {
    for Vector { name, bytes, means } in &vectors::all() {
        // Ethernet pads short frames: what follows the payload changes nothing.
        let padded = [&bytes[..], &[0; 60]].concat();
        match means {
            Means::Packet(header, payload) => {
                assert_eq!(owned::read(bytes).as_ref(), Ok(&(*header, payload.clone())), "{name}");
                assert_eq!(owned::read(&padded).as_ref(), Ok(&(*header, payload.clone())), "{name}, padded");
            }
            Means::Shimmed(shim, header, payload) => {
                assert_eq!(Packet::parse(bytes), Err(Malformed::UnexpectedShim), "{name}");
                let (read, packet) = Shim::parse(&padded).expect(name);
                assert_eq!((read, owned::read(packet)), (*shim, Ok((*header, payload.clone()))), "{name}");
            }
            Means::Sealed(header, counter, sealed) => {
                let packet = Packet::parse(&padded).and_then(|packet| packet.sealed()).expect(name);
                assert_eq!((packet.header, packet.counter, packet.sealed), (*header, *counter, *sealed), "{name}");
                assert_eq!(packet.associated, &bytes[..header.bytes() + COUNTER_BYTES], "{name}");
            }
            Means::Foreign(version, syn) => {
                let unknown = Malformed::UnknownVersion { version: *version, syn: Some(*syn) };
                assert_eq!(Packet::parse(bytes), Err(unknown), "{name}");
            }
        }
    }
}

#[test]
fn the_version_packet_answers_the_syn_of_another_version() {
    let (asked, answer) = (vectors::bytes_of("SYN of version 2"), vectors::bytes_of("VERSION"));
    let Err(Malformed::UnknownVersion { syn: Some(syn), .. }) = Packet::parse(&asked) else { panic!("not recognised") };
    let mut out = [0xEE; MIN_PACKET_BYTES];
    let length = syn.answer(&[1, 3], &mut out).expect("room");
    assert_eq!(out[..length], answer[..]);
    assert_eq!(syn.answer(&[1, 3], &mut out[..length - 1]), Err(NoRoom));
}

#[test]
fn every_type_has_a_vector() {
    for kind in Type::ALL {
        let has = |vector: &Vector| matches!(&vector.means, Means::Packet(header, _) if header.kind == kind);
        assert!(vectors::all().iter().any(has), "{kind:?} has none");
    }
}

/// Bytes in the form of the appendix: header, then payload, 32 bytes to a line; zeros up to the end in one word.
fn rows(bytes: &[u8]) -> String {
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let kept = if zeros >= 32 { bytes.len() - zeros } else { bytes.len() };
    let header = match bytes[0] >> 4 {
        0xF => SHIM_BYTES,
        0 => BASE_HEADER_BYTES,
        _ if bytes[0] == 0x10 => SHORT_HEADER_BYTES,
        _ if Type::of_byte(bytes[0]).has_channel() => CHANNEL_HEADER_BYTES,
        _ => BASE_HEADER_BYTES,
    };
    let (header, payload) = bytes[..kept].split_at(header);
    let mut text = String::new();
    for row in std::iter::once(header).chain(payload.chunks(32)) {
        let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", row.join(" ")).expect("memory");
    }
    if kept < bytes.len() {
        writeln!(text, "00*{zeros}").expect("memory");
    }
    text
}

#[test]
fn the_specification_quotes_these_vectors_and_no_others() {
    let quoted: Vec<_> = vectors::quoted().into_iter().map(|(name, _)| name).collect();
    let known: Vec<_> = vectors::all().into_iter().map(|vector| vector.name).collect();
    assert_eq!(quoted, known);
}
