//! What is not a packet is refused, for the right reason.

use crate::wrong::{Read, Wrong};
use crate::{owned, vectors, wrong};
use ropeway_wire::*;

fn refusal(wrong: &Wrong) -> Option<Malformed> {
    match wrong.read {
        Read::Open => owned::read(&wrong.bytes).err(),
        Read::Keyed => Packet::parse(&wrong.bytes).and_then(|packet| packet.sealed()).err(),
        Read::Gateway => Shim::parse(&wrong.bytes).err(),
    }
}

#[test]
fn every_mistake_is_refused_for_its_own_reason() {
    for wrong in wrong::all() {
        assert_eq!(refusal(&wrong), Some(wrong.reason), "{}", wrong.about);
    }
}

#[test]
fn every_reason_has_a_mistake() {
    for (index, name) in Malformed::NAMES.iter().enumerate() {
        assert!(wrong::all().iter().any(|wrong| wrong.reason.index() == index), "nothing is wrong by `{name}`");
    }
}

/// Bytes that mean nothing yet are a later version's: this one ignores them, so that they can be used.
#[test]
fn reserved_bytes_are_ignored() {
    let reserved = [
        ("SYN", vec![56, 255]),
        ("COOKIE", vec![34, 35, 56, 255]),
        ("CONFIRM", vec![117, 118, 119]),
        ("REDIRECT", vec![40, 51]),
        ("OPEN", vec![33, 34, 35]),
        ("FIN", vec![29]),
    ];
    for (vector, places) in reserved {
        let bytes = vectors::bytes_of(vector);
        let expected = owned::read(&bytes).expect(vector);
        for at in places {
            let mut changed = bytes.clone();
            changed[at] ^= 0xFF;
            assert_eq!(owned::read(&changed).as_ref(), Ok(&expected), "{vector}, byte {at}");
        }
    }
}

#[test]
fn what_does_not_fit_is_not_written() {
    let header = Header::new(Type::Data, Id(1));
    assert_eq!(header.write(&mut [0; CHANNEL_HEADER_BYTES - 1]), Err(NoRoom));
    let short = Header { is_short: true, ..header };
    assert_eq!(short.write(&mut [0; SHORT_HEADER_BYTES - 1]), Err(NoRoom));
    assert_eq!(short.write(&mut [0; SHORT_HEADER_BYTES]), Ok(SHORT_HEADER_BYTES));
    assert_eq!(Header::new(Type::Pin, Id(1)).write(&mut [0; BASE_HEADER_BYTES - 1]), Err(NoRoom));
    for vector in vectors::all() {
        if let vectors::Means::Packet(_, payload) = vector.means {
            let needed = payload.to_bytes().len();
            let mut out = vec![0; needed];
            assert_eq!(payload.write(&mut out), Ok(needed), "{}", vector.name);
            for room in 0..needed {
                assert_eq!(payload.write(&mut out[..room]), Err(NoRoom), "{} in {room} bytes", vector.name);
            }
        }
    }
}
