//! What an endpoint without a key does not take: every mistake of the golden vectors, and packets that lie, each move the counter of their reason and nothing else
//! (docs/protocol.md 2, 8).

#[path = "../../../../wire/tests/wire/owned.rs"]
#[allow(dead_code, reason = "reads and writes more than these tests do")]
mod owned;
#[path = "../../../../wire/tests/wire/vectors.rs"]
#[allow(dead_code, reason = "the tests of the wire crate use all of it")]
mod vectors;
#[path = "../../../../wire/tests/wire/wrong.rs"]
mod wrong;

mod opening;
mod wide;

use std::sync::LazyLock;

use crate::world::{self, MS, S, path};
use ropeway_proto::{AssociationStatistics, Config, Counters, Endpoint, Malformed, Mode, Path, Time};
use ropeway_wire::{
    BASE_HEADER_BYTES, CHANNEL_HEADER_BYTES, ConfirmFields, ErrorCode, Flags, Header, Id, OpenFields, Packet, Type,
};
use vectors::bytes_of;
use wrong::{Read, Wrong};

const NOW: Time = Time::from_nanos(S);
/// Golden packets that are needed often: they are looked for in the whole page.
static SYN: LazyLock<Vec<u8>> = LazyLock::new(|| bytes_of("SYN"));
static CONFIRM: LazyLock<Vec<u8>> = LazyLock::new(|| bytes_of("CONFIRM"));
static RST: LazyLock<Vec<u8>> = LazyLock::new(|| bytes_of("RST"));

/// The golden packets acknowledge everything below this.
const FIRST_NUMBER: u64 = 0x42;
/// Of the golden client, the number after its OPEN.
const NEXT: u32 = 0xFFFF_FFFF;

/// A server with one association, which the golden client opened, and under which id it receives.
struct Server {
    endpoint: Endpoint,
    id: Id,
}

/// Everything that an endpoint can be asked about itself.
#[derive(Debug, PartialEq)]
struct State {
    associations: Vec<AssociationStatistics>,
    sizes: (usize, usize),
    buffers: (usize, usize),
    promised_bytes: u64,
    wants_to_transmit: bool,
    next_timeout: Option<Time>,
}

/// All that the endpoint sends now.
fn sent(endpoint: &mut Endpoint, now: Time) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    endpoint.transmit(now, &mut |_, _, packets| {
        out.extend(packets.iter().map(|packet| packet.to_vec()));
        packets.len()
    });
    out
}

impl Server {
    fn new() -> Server {
        let config = Config { first_number: Some(FIRST_NUMBER), ..Config::default() };
        let mut endpoint = Endpoint::new(config, 5, 1, [7; 32]);
        endpoint.listen(7000, Mode::Messages, 16).unwrap();
        let mut server = Server { endpoint, id: Id::default() };
        let cookie = server.takes(&SYN).pop().expect("a COOKIE");
        let opened = server.takes(&confirm(&cookie)).swap_remove(0);
        assert_eq!(opened[0], 0x14);
        server.id = Id(u32::from_be_bytes(opened[32..36].try_into().unwrap()));
        // Acknowledgments, and what was to be said of the opening.
        server.endpoint.handle_timeout(NOW.after(MS));
        sent(&mut server.endpoint, NOW.after(MS));
        server
    }

    /// What the packet makes it send at once.
    fn takes(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.takes_over(&path(0), bytes)
    }

    fn takes_over(&mut self, path: &Path, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.endpoint.handle_packet(NOW.after(MS), path, false, bytes);
        self.endpoint.finish_batch(NOW.after(MS));
        sent(&mut self.endpoint, NOW.after(MS))
    }

    fn state(&mut self) -> State {
        State {
            associations: self.endpoint.association_statistics(NOW.after(MS)).collect(),
            sizes: self.endpoint.sizes(),
            buffers: self.endpoint.buffers_in_use(),
            promised_bytes: self.endpoint.promised_bytes(),
            wants_to_transmit: self.endpoint.wants_to_transmit(),
            next_timeout: self.endpoint.next_timeout(NOW.after(MS)),
        }
    }

    /// The packet is dropped without an answer, and moves nothing but one counter.
    fn drops(&mut self, path: &Path, bytes: &[u8], about: &str, moves: impl Fn(&mut Counters)) {
        let (mut expected, state) = (self.endpoint.counters(), self.state());
        let answers = self.takes_over(path, bytes);
        expected.packets_received += 1;
        moves(&mut expected);
        assert_eq!(self.endpoint.counters(), expected, "{about}");
        assert_eq!(answers, [] as [Vec<u8>; 0], "{about}");
        assert_eq!(self.state(), state, "{about}");
    }

    /// A packet of the golden client that this association takes: the id and the number are true, and the channel one that is open, or for OPEN one that is free.
    fn adapt(&self, bytes: &mut [u8]) {
        let Some(&first) = bytes.first().filter(|_| bytes.len() >= 12) else { return };
        let kind = Type::of_byte(first);
        if (Type::Data as u8..=Type::Pin as u8).contains(&(kind as u8)) || first == 0x10 {
            bytes[4..8].copy_from_slice(&self.id.0.to_be_bytes());
            bytes[8..12].copy_from_slice(&NEXT.to_be_bytes());
        }
        if matches!(kind, Type::Data | Type::Open | Type::Fin | Type::Abort) && bytes.len() >= CHANNEL_HEADER_BYTES {
            bytes[24..28].copy_from_slice(if kind == Type::Open { &[0, 2, 0, 0] } else { &[0; 4] });
        }
    }

    /// A golden packet that it takes.
    fn golden(&self, name: &'static str) -> Vec<u8> {
        let mut bytes = bytes_of(name);
        self.adapt(&mut bytes);
        bytes
    }
}

/// The golden CONFIRM with the cookie of this COOKIE.
fn confirm(cookie: &[u8]) -> Vec<u8> {
    let mut confirm = CONFIRM.clone();
    confirm[56..76].copy_from_slice(&cookie[36..56]);
    confirm
}

/// The CONFIRM of attempt 1, with these early data.
fn another_confirm(cookie: &[u8], flags: Flags, early: &[u8]) -> Vec<u8> {
    let mut bytes = confirm(cookie);
    bytes[28..36].copy_from_slice(&1u64.to_be_bytes());
    bytes.truncate(BASE_HEADER_BYTES + ConfirmFields::BYTES + OpenFields::BYTES);
    bytes.extend_from_slice(early);
    bytes[1] = flags.0;
    let length = (bytes.len() - BASE_HEADER_BYTES) as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// CONTROL or STATE with one request for these ranges.
fn control(server: &Server, kind: Type, ranges: &[(u32, u16)]) -> Vec<u8> {
    let mut bytes = server.golden(if kind == Type::State { "STATE" } else { "CONTROL" });
    bytes.truncate(BASE_HEADER_BYTES);
    bytes.extend([1, ranges.len() as u8]);
    for (first, count) in ranges {
        bytes.extend(first.to_be_bytes());
        bytes.extend(count.to_be_bytes());
    }
    let length = (bytes.len() - BASE_HEADER_BYTES) as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Whether the channel judges it, when the header has been believed.
fn is_judged_by_its_channel(wrong: &Wrong) -> bool {
    let kind = wrong.bytes.first().map(|&first| Type::of_byte(first));
    match wrong.reason {
        Malformed::Record | Malformed::MessageLength => true,
        Malformed::PayloadLength | Malformed::FieldValue => {
            matches!(kind, Some(Type::Open | Type::Fin | Type::Abort))
        }
        _ => false,
    }
}

/// What the ABORTs among these packets say.
fn aborts(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let packets = packets.iter().map(|bytes| Packet::parse(bytes).unwrap());
    packets.filter(|packet| packet.header.kind == Type::Abort).map(|packet| packet.payload.to_vec()).collect()
}

#[test]
fn the_golden_packets_are_taken_once_they_are_this_association_s() {
    for name in ["DATA, a whole message", "DATA, records", "OPEN", "FIN", "ABORT", "CONTROL without blocks", "PIN"] {
        let mut server = Server::new();
        let before = server.endpoint.counters();
        let bytes = server.golden(name);
        server.takes(&bytes);
        let after = server.endpoint.counters();
        assert_eq!(after.dropped_malformed, [0; Malformed::COUNT], "{name}");
        assert_eq!(after.packets_received, before.packets_received + 1, "{name}");
        let taken: u64 = server.state().associations.iter().map(|one| one.counters.packets_received).sum();
        assert_eq!(taken, 1, "{name}");
    }
}

#[test]
fn every_mistake_moves_the_counter_of_its_reason_and_nothing_else() {
    let mut by_header = 0;
    for wrong in wrong::all().into_iter().filter(|wrong| wrong.read == Read::Open && !is_judged_by_its_channel(wrong)) {
        let mut server = Server::new();
        let mut bytes = wrong.bytes.clone();
        server.adapt(&mut bytes);
        if bytes.first() == Some(&0x13) && bytes.len() >= 76 {
            // One that nobody has spent.
            let mut syn = SYN.clone();
            syn[28] ^= 1;
            bytes[28] ^= 1;
            let cookie = server.takes(&syn).pop().expect("a COOKIE");
            bytes[56..76].copy_from_slice(&cookie[36..56]);
        }
        server.drops(&path(0), &bytes, wrong.about, |counters| counters.dropped_malformed[wrong.reason.index()] += 1);
        by_header += 1;
    }
    assert!(by_header > 35, "only {by_header}");
}

#[test]
fn malformed_payloads_are_counted_by_their_reason_and_end_their_channel() {
    let mut by_channel = 0;
    for wrong in wrong::all().into_iter().filter(is_judged_by_its_channel) {
        let mut server = Server::new();
        let (mut bytes, mut expected) = (wrong.bytes.clone(), server.endpoint.counters());
        server.adapt(&mut bytes);
        let answers = server.takes(&bytes);
        let counters = server.endpoint.counters();
        expected.dropped_malformed[wrong.reason.index()] += 1;
        expected.violations += 1;
        assert_eq!(
            (counters.dropped_malformed, counters.violations),
            (expected.dropped_malformed, expected.violations),
            "{}",
            wrong.about
        );
        assert_eq!(aborts(&answers), [u16::from(ErrorCode::Protocol).to_be_bytes()], "{}", wrong.about);
        let association = &server.state().associations[0];
        assert_eq!((association.counters.packets_received, association.missing_packets), (1, 0), "{}", wrong.about);
        by_channel += 1;
    }
    assert!(by_channel >= 19, "only {by_channel}");
}

#[test]
fn flags_of_messages_are_judged_where_no_early_data_are() {
    let (first, last, records) = (Flags::FIRST, Flags::LAST, Flags::RECORDS);
    for (flags, is_right) in [
        (Flags::NONE, true),
        (first | last, true),
        (first, false),
        (last, false),
        (records, false),
        (records | first, false),
        (records | last, false),
    ] {
        // In CONFIRM, and in an association that is open.
        let mut server = Server::new();
        let cookie = server.takes_over(&path(1), &attempt(1)).pop().expect("a COOKIE");
        let mut open = server.golden("OPEN");
        open.truncate(CHANNEL_HEADER_BYTES + OpenFields::BYTES);
        (open[1], open[3]) = (flags.0, OpenFields::BYTES as u8);
        for (count, (path, bytes)) in
            [(path(1), another_confirm(&cookie, flags, b"")), (path(0), open)].into_iter().enumerate()
        {
            let answers = server.takes_over(&path, &bytes);
            assert_eq!(aborts(&answers).len(), usize::from(!is_right), "{flags:?} over {path:?}");
            let violations = if is_right { 0 } else { count as u64 + 1 };
            assert_eq!(server.endpoint.counters().violations, violations, "{flags:?} over {path:?}");
        }
    }
}

#[test]
fn packets_that_lie_about_an_open_association_are_counted_and_change_nothing() {
    // The association's packets have 256 bytes, header included.
    let most = 256 - CHANNEL_HEADER_BYTES;
    let mut server = Server::new();
    for name in ["DATA, a whole message", "OPEN"] {
        let mut bytes = server.golden(name);
        bytes.resize(CHANNEL_HEADER_BYTES + most + 1, 0);
        bytes[2..4].copy_from_slice(&(most as u16 + 1).to_be_bytes());
        let malformed = Malformed::PayloadLength.index();
        server.drops(&path(0), &bytes, name, |counters| counters.dropped_malformed[malformed] += 1);
    }
    // As many ranges as do not fit any more, of what was never sent.
    for kind in [Type::Control, Type::State] {
        let bytes = control(&server, kind, &[(FIRST_NUMBER as u32, 1); 39]);
        let malformed = Malformed::PayloadLength.index();
        server.drops(&path(0), &bytes, "too many ranges", |counters| counters.dropped_malformed[malformed] += 1);
    }
    let data = server.golden("DATA, a whole message");
    server.drops(&path(9), &data, "another path", |counters| counters.dropped_foreign_path += 1);

    let mut reset = RST.clone();
    reset[4..8].copy_from_slice(&server.id.0.to_be_bytes());
    reset[24] ^= 1;
    server.drops(&path(0), &reset, "another token", |counters| counters.dropped_reset += 1);

    let with = |at: usize, word: u32| {
        let mut bytes = data.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        bytes
    };
    let first = FIRST_NUMBER as u32;
    for (about, bytes) in [
        ("an acknowledgment of what was not sent", with(12, first + 1)),
        ("half a circle ahead", with(12, first + (1 << 31) - 1)),
        ("a number beyond the window", with(8, NEXT.wrapping_add(16_384))),
        ("a number that nobody waits for any more", with(8, NEXT.wrapping_sub(16_385))),
        ("the lowest number there is", with(8, NEXT.wrapping_sub(1 << 31))),
        ("the highest number that is no repetition", with(8, NEXT.wrapping_add((1 << 31) - 1))),
    ] {
        server.drops(&path(0), &bytes, about, |counters| counters.dropped_window += 1);
    }

    for kind in [Type::Control, Type::State] {
        for place in [16_385, 16_385u32.wrapping_neg(), 1 << 31] {
            let mut bytes = control(&server, kind, &[(first, 1)]);
            bytes[8..12].copy_from_slice(&NEXT.wrapping_add(place).to_be_bytes());
            server.drops(&path(0), &bytes, "a next number out of the window", |counters| counters.dropped_window += 1);
        }
    }

    // The same without the lie: a late copy, and as long as it may be.
    let counters = server.endpoint.counters();
    assert_eq!(server.takes(&with(8, NEXT.wrapping_sub(16_384))).len(), 1, "an acknowledgment");
    assert_eq!(server.endpoint.counters().dropped_duplicate, counters.dropped_duplicate + 1);
    let mut longest =
        Header { length: most as u16, flags: Flags::FIRST | Flags::LAST, ..Packet::parse(&data).unwrap().header };
    longest.number = NEXT.wrapping_add(16_383);
    longest.back = 0;
    let mut bytes = vec![0; 256];
    longest.write(&mut bytes).unwrap();
    let taken = server.endpoint.counters().payload_received_bytes;
    server.takes(&bytes);
    assert_eq!(server.endpoint.counters().payload_received_bytes, taken + most as u64);
    assert_eq!(server.state().associations[0].missing_packets, 16_383);
}

#[test]
fn no_more_numbers_are_asked_for_by_one_packet_than_can_be_missing() {
    const MOST: u16 = 16_384;
    let mut server = Server::new();
    let channel = server.endpoint.accept(7000).unwrap();
    assert_eq!(server.endpoint.send(NOW.after(MS), channel, b"answer"), Ok(6));
    let first = FIRST_NUMBER as u32;
    assert!(sent(&mut server.endpoint, NOW.after(MS)).iter().any(|bytes| bytes[0] == 0x17));
    // Nothing has the numbers behind that one.
    for (ranges, again) in [
        (&[(first + 1, MOST), (first, 1)][..], 0),
        (&[(first + 1, MOST - 1), (first + 1, 1), (first, 1)], 0),
        (&[(first + 1, MOST - 1), (first, 1)], 1),
        (&[(first, u16::MAX)], 1),
    ] {
        let bytes = control(&server, Type::Control, ranges);
        let answers = server.takes(&bytes);
        assert_eq!(answers.iter().filter(|bytes| bytes[0] == 0x17).count(), again, "{ranges:?}");
    }
}

/// The golden SYN of another attempt.
fn attempt(nonce: u64) -> Vec<u8> {
    let mut syn = SYN.clone();
    syn[28..36].copy_from_slice(&nonce.to_be_bytes());
    syn
}

#[test]
fn an_open_that_is_refused_when_too_many_refusals_wait_has_not_arrived() {
    const MOST: u16 = 64;
    let mut server = Server::new();
    let mut open = server.golden("OPEN without early data");
    // Nobody listens there.
    open[28..30].copy_from_slice(&9u16.to_be_bytes());
    let numbered = |place: u16| {
        let mut bytes = open.clone();
        bytes[8..12].copy_from_slice(&NEXT.wrapping_add(place.into()).to_be_bytes());
        bytes[24..26].copy_from_slice(&(2 + 2 * place).to_be_bytes());
        bytes
    };
    let now = NOW.after(MS);
    for place in 0..2 * MOST {
        server.endpoint.handle_packet(now, &path(0), false, &numbered(place));
    }
    let counters = server.endpoint.counters();
    assert_eq!((counters.channels_refused, counters.dropped_memory), (MOST.into(), MOST.into()));
    server.endpoint.finish_batch(now);
    assert_eq!(aborts(&sent(&mut server.endpoint, now)).len(), usize::from(MOST));
    let answers: Vec<_> = (MOST..2 * MOST).flat_map(|place| server.takes(&numbered(place))).collect();
    assert_eq!((aborts(&answers).len(), server.endpoint.counters().dropped_memory), (MOST.into(), MOST.into()));
    assert_eq!(server.endpoint.sizes(), (1, 1));
}

#[test]
fn an_end_whose_link_is_full_takes_any_number_of_packets() {
    const COUNT: u32 = 70_000;
    let mut server = Server::new();
    let mut data = server.golden("DATA, a whole message");
    for place in 0..COUNT {
        data[8..12].copy_from_slice(&NEXT.wrapping_add(place).to_be_bytes());
        server.endpoint.handle_packet(NOW.after(MS), &path(0), false, &data);
    }
    server.endpoint.finish_batch(NOW.after(MS));
    let association = &server.state().associations[0];
    assert_eq!((association.counters.packets_received, association.counters.duplicates), (COUNT.into(), 0));
}

#[test]
fn gaps_have_room_for_a_million_numbers_together_and_each_for_a_few() {
    const FULL: u64 = 64;
    let mut server = Server::new();
    let ids: Vec<Id> = (1..=FULL + 1)
        .map(|nonce| {
            let path = path(nonce as usize);
            let cookie = server.takes_over(&path, &attempt(nonce)).pop().expect("a COOKIE");
            let mut bytes = confirm(&cookie);
            bytes[28..36].copy_from_slice(&nonce.to_be_bytes());
            let opened = server.takes_over(&path, &bytes).swap_remove(0);
            server.endpoint.accept(7000).unwrap();
            Id(u32::from_be_bytes(opened[32..36].try_into().unwrap()))
        })
        .collect();
    // After a gap of so many.
    let state = |place: u64, missing: u32| {
        let mut bytes = bytes_of("STATE");
        bytes[4..8].copy_from_slice(&ids[place as usize - 1].0.to_be_bytes());
        bytes[8..12].copy_from_slice(&NEXT.wrapping_add(missing).to_be_bytes());
        bytes
    };
    let missing = |server: &mut Server| {
        server.state().associations.iter().map(|association| association.missing_packets).sum::<u32>()
    };
    for place in 1..=FULL {
        server.takes_over(&path(place as usize), &state(place, 16_384));
    }
    assert_eq!(missing(&mut server), 1 << 20);
    // Who comes later has room for a few, whatever it says.
    let place = FULL + 1;
    for more in [65, 64, 16_384] {
        server.takes_over(&path(place as usize), &state(place, more));
        assert_eq!((missing(&mut server), server.endpoint.counters().dropped_window), ((1 << 20) + 64, 0));
    }
    // And for more when one of the others has gone.
    let mut reset = RST.clone();
    reset[4..8].copy_from_slice(&ids[0].0.to_be_bytes());
    server.takes_over(&path(1), &reset);
    server.takes_over(&path(place as usize), &state(place, 16_000));
    assert_eq!(missing(&mut server), (1 << 20) - 16_384 + 16_000);
}
