//! What was written is what is read, for every packet there can be; and bytes that nobody wrote as a packet never do harm.

use crate::packets;
use crate::packets::owned::{self, Carried, Entry, Open, Opening, Payload};
use proptest::collection::vec;
use proptest::prelude::*;
use ropeway_wire::*;
use std::net::{IpAddr, SocketAddr};

/// Longer than any fixed payload, short enough to be quick.
const SOME_BYTES: std::ops::Range<usize> = 0..200;

fn own_id() -> impl Strategy<Value = Id> {
    (0..=Id::MAX_STEERING, any::<u16>(), any::<u8>())
        .prop_map(|(steering, slot, generation)| Id::new(steering, slot, generation))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), SOME_BYTES)
}

fn code() -> impl Strategy<Value = ErrorCode> {
    prop_oneof![0..12u16, any::<u16>()].prop_map(ErrorCode::from)
}

fn header() -> impl Strategy<Value = Header> {
    let words = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>(), any::<u16>());
    let rest = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>(), any::<u16>(), any::<bool>());
    (words, rest).prop_map(|((destination, number, ack, grant, time, echo), rest)| {
        let (flags, first_flight, backlog, channel, back, is_short) = rest;
        Header {
            is_short,
            flags: Flags(flags),
            number,
            ack,
            grant,
            first_flight,
            backlog: Backlog(backlog),
            time,
            echo,
            channel,
            back,
            ..Header::new(Type::Data, Id(destination))
        }
    })
}

fn syn(features: impl Strategy<Value = u32>) -> impl Strategy<Value = SynFields> {
    let ends = (own_id(), any::<u64>(), any::<u64>(), any::<u16>(), any::<u16>());
    let terms = (MIN_PACKET_BYTES as u16..=u16::MAX, 0..=VERSION, VERSION..=u8::MAX, features);
    (ends, terms).prop_map(|((source, nonce, node, destination_port, source_port), terms)| {
        let (packet_size, lowest_version, highest_version, features) = terms;
        SynFields {
            source,
            nonce,
            node,
            destination_port,
            source_port,
            packet_size,
            lowest_version,
            highest_version,
            features,
        }
    })
}

fn cookie() -> impl Strategy<Value = Cookie> {
    any::<[u8; 20]>().prop_map(Cookie)
}

fn parameters() -> impl Strategy<Value = Parameters> {
    (own_id(), any::<u64>(), any::<u32>(), any::<u32>(), any::<[u8; 16]>()).prop_map(
        |(id, first_number, window, longest_message, reset_token)| Parameters {
            id,
            first_number,
            window,
            longest_message,
            reset_token,
        },
    )
}

/// Messages of which many in a row are of one length, more than a repetition counts.
fn messages(runs: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let run = prop_oneof![
        3 => bytes().prop_map(|bytes| vec![bytes]),
        1 => (0..5usize, 1..200usize, any::<u8>())
            .prop_map(|(length, count, from)| (0..count).map(|i| vec![from.wrapping_add(i as u8); length]).collect()),
    ];
    vec(run, runs).prop_map(|runs| runs.concat())
}

fn shared() -> impl Strategy<Value = Carried> {
    let part = || vec(any::<u8>(), 1..40);
    let beginning = (part(), 1..1000u16).prop_map(|(bytes, more)| (bytes.len() as u16 + more, bytes));
    (proptest::option::of(part()), messages(0..20), proptest::option::of(beginning))
        .prop_filter("what has neither is RECORDS", |(end, _, beginning)| end.is_some() || beginning.is_some())
        .prop_map(|(end, whole, beginning)| Carried::Shared { end, whole, beginning })
}

fn carried() -> impl Strategy<Value = Carried> {
    let first = (bytes(), 1..=u32::MAX / 2)
        .prop_map(|(bytes, more)| Carried::First { length: bytes.len() as u32 + more, bytes });
    prop_oneof![
        bytes().prop_map(Carried::Bytes),
        bytes().prop_map(Carried::Whole),
        first,
        bytes().prop_map(Carried::Last),
        messages(1..20).prop_map(Carried::Records),
        shared(),
    ]
}

fn open() -> impl Strategy<Value = Open> {
    let mode = prop_oneof![Just(Mode::Stream), Just(Mode::Messages)];
    (any::<u16>(), any::<u16>(), mode, carried()).prop_map(|(destination_port, source_port, mode, early)| Open {
        destination_port,
        source_port,
        mode,
        early,
    })
}

fn confirm() -> impl Strategy<Value = Payload> {
    let plain = (syn(any::<u32>().prop_map(|bits| bits & !FEATURE_KEYED)), open().prop_map(Opening::Plain));
    let keyed = (syn(any::<u32>().prop_map(|bits| bits | FEATURE_KEYED)), bytes().prop_map(Opening::Noise));
    (prop_oneof![plain, keyed], cookie(), parameters()).prop_map(|((syn, open), cookie, parameters)| Payload::Confirm {
        syn,
        cookie,
        parameters,
        open,
    })
}

fn void() -> impl Strategy<Value = Void> {
    (any::<u16>(), any::<u32>(), 1..=u16::MAX)
        .prop_flat_map(|(channel, low, count)| (Just(channel), Just(low), Just(count), count..=u16::MAX))
        .prop_map(|(channel, low, count, until)| Void { channel, low, count, until })
}

/// Up to more entries than one block holds.
fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = prop_oneof![
        (any::<u32>(), 1..=u16::MAX).prop_map(|(low, count)| Entry::Rrq(low, count)),
        (any::<u16>(), any::<u64>()).prop_map(|(channel, limit)| Entry::Credit(channel, limit)),
        any::<u16>().prop_map(Entry::Hold),
        (any::<u16>(), any::<u64>()).prop_map(|(channel, limit)| Entry::Want(channel, limit)),
        (any::<u16>(), any::<u32>()).prop_map(|(channel, low)| Entry::Return(channel, low)),
        void().prop_map(Entry::Void),
    ];
    let many_of_one = (any::<u16>(), 0..600u16)
        .prop_map(|(from, count)| (0..count).map(|i| Entry::Hold(from.wrapping_add(i))).collect());
    prop_oneof![4 => vec(entry, 0..60), 1 => many_of_one]
}

fn payload() -> impl Strategy<Value = Payload> {
    let nonce = any::<u64>;
    let address = (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
    let cookie_fields = (nonce(), MIN_PACKET_BYTES as u16..=u16::MAX, cookie())
        .prop_map(|(nonce, packet_size, cookie)| CookieFields { nonce, packet_size, cookie });
    prop_oneof![
        (nonce(), vec(any::<u8>(), 1..20)).prop_map(|(nonce, versions)| Payload::Version { nonce, versions }),
        syn(any::<u32>()).prop_map(Payload::Syn),
        cookie_fields.prop_map(Payload::Cookie),
        confirm(),
        (nonce(), bytes()).prop_map(|(nonce, rest)| Payload::Opened { nonce, rest }),
        (nonce(), code()).prop_map(|(nonce, code)| Payload::Refused { nonce, code }),
        (nonce(), address).prop_map(|(nonce, address)| Payload::Redirect { nonce, address }),
        carried().prop_map(Payload::Data),
        open().prop_map(Payload::Open),
        prop_oneof![Just(Extent::Write), Just(Extent::Both)].prop_map(Payload::Fin),
        code().prop_map(Payload::Abort),
        entries().prop_map(Payload::Control),
        entries().prop_map(Payload::State),
        Just(Payload::Pin),
        (any::<[u8; 16]>(), code()).prop_map(|(token, code)| Payload::Rst { token, code }),
        join().prop_map(Payload::Join),
    ]
}

fn join() -> impl Strategy<Value = JoinFields> {
    let step = prop_oneof![Just(JoinStep::Ask), Just(JoinStep::Cookie), Just(JoinStep::Prove), Just(JoinStep::Done)];
    let rest = (any::<bool>(), MIN_PACKET_BYTES as u16..=u16::MAX, any::<u64>(), cookie(), any::<[u8; 16]>());
    (step, rest).prop_map(|(step, (bonded, packet_size, nonce, cookie, proof))| JoinFields {
        step,
        bonded,
        packet_size,
        nonce,
        cookie,
        proof,
    })
}

/// The header as it must come back: what belongs to the payload is the payload's, and without a channel there is none.
fn completed(header: Header, payload: &Payload) -> Header {
    let written = owned::write(header, payload);
    let kind = payload.kind();
    let (channel, back) = if kind.has_channel() { (header.channel, header.back) } else { (0, 0) };
    let flags = payload.flags(header.flags);
    if header.is_short && kind == Type::Data {
        let length = (written.len() - SHORT_HEADER_BYTES) as u16;
        let Header { number, destination, .. } = header;
        return Header { is_short: true, flags, length, number, channel, back, ..Header::new(kind, destination) };
    }
    let without = if kind.has_channel() { CHANNEL_HEADER_BYTES } else { BASE_HEADER_BYTES };
    let length = (written.len() - without) as u16;
    Header { kind, is_short: false, length, channel, back, flags, ..header }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(header in header(), payload in payload(), padding in 0..80usize) {
        let mut written = owned::write(header, &payload);
        let expected = completed(header, &payload);
        written.resize(written.len() + padding, 0xEE);
        prop_assert_eq!(owned::read(&written), Ok((expected, payload)));
    }

    /// Every packet that is cut short of its payload is refused, whatever it holds.
    #[test]
    fn what_was_cut_off_is_noticed(header in header(), payload in payload(), at in any::<prop::sample::Index>()) {
        let written = owned::write(header, &payload);
        let cut = &written[..at.index(written.len())];
        prop_assert!(Packet::parse(cut).is_err());
        packets::packets(cut);
    }

    #[test]
    fn what_was_sealed_is_found(header in header(), payload in payload(), counter: u32, padding in 0..80usize) {
        let open = owned::write(header, &payload);
        let Packet { header, payload, .. } = Packet::parse(&open).expect("as written");
        let ciphertext: Vec<u8> = payload.iter().map(|byte| !byte).collect();
        let (head, tag) = ([&open[..header.bytes()], &counter.to_be_bytes()].concat(), [0x77; TAG_BYTES]);
        let whole = [&head[..], &ciphertext, &tag, &vec![0; padding]].concat();
        let sealed = |bytes| Packet::parse(bytes).and_then(|packet| packet.sealed());
        let read = sealed(&whole);
        if header.kind.is_sealed() {
            let read = read.expect("a sealed packet");
            prop_assert_eq!((read.header, read.counter), (header, counter));
            prop_assert_eq!((read.associated, read.sealed), (&head[..], &[&ciphertext[..], &tag].concat()[..]));
            let cut = &whole[..head.len() + ciphertext.len() + TAG_BYTES - 1];
            prop_assert_eq!(sealed(cut), Err(Malformed::SealMissing));
        } else {
            prop_assert_eq!(read, Err(Malformed::NeverSealed));
        }
    }

    #[test]
    fn numbers_come_back_from_their_low_half(number: u64, distance in -(1i64 << 31) + 1..1i64 << 31) {
        prop_assert_eq!(expand(number.wrapping_add_signed(distance), number as u32), number);
    }

    #[test]
    fn the_backlog_is_never_understated_and_hardly_overstated(bytes in prop_oneof![0..5000u64, 0..40_000_000u64]) {
        let said = Backlog::from_bytes(bytes).to_bytes();
        if bytes <= Backlog::MAX.to_bytes() {
            prop_assert!(bytes <= said && said <= bytes + 63 + bytes / 16);
        } else {
            prop_assert_eq!(Backlog::from_bytes(bytes), Backlog::MAX);
        }
    }

    #[test]
    fn a_shim_comes_back(congested: bool, hops: u8, destination: u32, source: u32, packet in bytes()) {
        let shim = Shim { congested, hops, destination, source };
        let bytes = [&shim.to_bytes()[..], &packet].concat();
        prop_assert_eq!(Shim::parse(&bytes), Ok((shim, &packet[..])));
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400)) {
        packets::packets(&bytes);
    }

    /// A packet that was right, with some bytes changed: most of it still is.
    #[test]
    fn changed_packets_do_no_harm(
        header in header(),
        payload in payload(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = owned::write(header, &payload);
        for (at, value) in changes {
            let at = at.index(bytes.len().min(300));
            bytes[at] = value;
        }
        packets::packets(&bytes);
    }
}
