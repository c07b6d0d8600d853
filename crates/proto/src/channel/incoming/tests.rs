use ropeway_wire::RecordPrefix;

use super::reading::TooShort;
use super::*;
use crate::channel::Outgoing;
use crate::pool::SHORT_SAVES_BYTES;

fn pools() -> (Pool, Pool) {
    let pool = || Pool::new(100 + SHORT_SAVES_BYTES, 1 << 20);
    (pool(), pool())
}

fn carry(outgoing: &mut Outgoing, incoming: &mut Incoming, mode: Mode, pool: &mut Pool) {
    while let Some(unsent) = outgoing.pop() {
        incoming.take(mode, unsent.flags, unsent.payload.bytes(), 1 << 20, pool).unwrap();
    }
}

#[test]
fn messages_of_all_sizes_come_out_as_they_went_in() {
    let (mut tx, mut rx) = pools();
    let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::new(1 << 20));
    let sizes = [0, 1, 50, 96, 97, 100, 101, 196, 197, 1000, 3, 3, 3];
    for &size in &sizes {
        assert!(outgoing.write_message(&vec![size as u8; size], false, 1 << 20, 100, &mut tx).is_some());
    }
    carry(&mut outgoing, &mut incoming, Mode::Messages, &mut rx);
    let mut out = [0; 1000];
    for &size in &sizes {
        if size > 10 {
            let short = incoming.read_message(&mut out[..10], &mut rx);
            assert_eq!(short, Some(Err(TooShort { message_bytes: size })), "it stays");
        }
        assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(size)));
        assert!(out[..size].iter().all(|&byte| byte == size as u8));
    }
    assert_eq!(incoming.read_message(&mut out, &mut rx), None);
    assert_eq!((rx.in_use(), incoming.unread_bytes()), (0, 0));
}

#[test]
fn a_first_packet_without_a_byte_of_its_message_can_be_taken_and_put_back() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1 << 20);
    incoming.take(Mode::Messages, Flags::FIRST, &[0, 0, 0, 3], 10, &mut rx).unwrap();
    let (mut out, mut part) = ([0; 10], Part::default());
    for _ in 0..2 {
        assert!(!incoming.take_part(&mut out, &mut part, &mut rx));
        assert_eq!((part.is_begun, part.bytes), (true, 0));
    }
    incoming.put_back(&[], &mut rx);
    part = Part::default();
    assert!(!incoming.take_part(&mut out, &mut part, &mut rx) && incoming.unread_bytes() == 4);
    incoming.take(Mode::Messages, Flags::LAST, b"abc", 10, &mut rx).unwrap();
    assert!(!incoming.is_readable(Mode::Messages), "it is somebody's");
    assert!(incoming.take_part(&mut out, &mut part, &mut rx));
    assert_eq!((part.bytes, &out[..3], rx.in_use(), rx.owed, incoming.unread_bytes()), (3, &b"abc"[..], 0, 0, 0));
}

#[test]
fn what_a_reader_has_of_a_message_still_takes_memory_and_credit() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1 << 20);
    let before = rx.available();
    incoming.take(Mode::Messages, Flags::FIRST, &[&[0, 0, 3, 232][..], &[1; 96]].concat(), 1000, &mut rx).unwrap();
    for _ in 0..8 {
        incoming.take(Mode::Messages, Flags::NONE, &[1; 100], 1000, &mut rx).unwrap();
    }
    let (mut out, mut part) = ([0; 1000], Part::default());
    assert!(!incoming.take_part(&mut out, &mut part, &mut rx));
    assert_eq!((part.bytes, rx.in_use(), rx.available(), incoming.unread_bytes()), (896, 0, before - 9, 900));
    incoming.put_back(&out[..896], &mut rx);
    assert_eq!((rx.in_use(), rx.available(), incoming.unread_bytes()), (9, before - 9, 900));
    part = Part::default();
    assert!(!incoming.take_part(&mut out, &mut part, &mut rx) && incoming.is_taken());
    incoming.clear(&mut rx);
    assert_eq!((rx.available(), rx.owed, incoming.unread_bytes(), incoming.is_taken()), (before, 0, 0, false));
}

#[test]
fn a_message_that_is_not_whole_is_taken_and_put_back_in_pieces() {
    const PACKET_BYTES: usize = 1000;
    const HERE_BYTES: usize = 250 * PACKET_BYTES;
    let mut rx = Pool::new(1456, 1 << 20);
    let mut incoming = Incoming::new(1 << 20);
    let length = HERE_BYTES + 3;
    incoming.take(Mode::Messages, Flags::FIRST, &(length as u32).to_be_bytes(), 1 << 20, &mut rx).unwrap();
    for number in 0..250 {
        incoming.take(Mode::Messages, Flags::NONE, &[number; PACKET_BYTES], 1 << 20, &mut rx).unwrap();
    }
    let is_piece = |bytes: usize| bytes > 0 && bytes < PIECE_BYTES + 1456;
    let (unread, mut out) = (incoming.unread_bytes(), vec![0; length]);
    for round in 0..2 {
        let (mut part, mut has) = (Part::default(), 0);
        loop {
            assert!(!incoming.take_part(&mut out, &mut part, &mut rx));
            assert!(is_piece(part.bytes - has), "{round}: {} bytes after {has}", part.bytes);
            has = part.bytes;
            if !part.has_more {
                break;
            }
        }
        assert_eq!((has, incoming.unread_bytes()), (HERE_BYTES, unread));
        while has > 0 {
            let left = incoming.put_back(&out[..has], &mut rx);
            assert!(is_piece(has - left), "{round}: {left} of {has} bytes");
            assert!(incoming.is_taken() == (left > 0) && !incoming.is_readable(Mode::Messages));
            has = left;
        }
        assert_eq!((rx.owed, incoming.unread_bytes()), (0, unread));
        out.fill(0xEE);
    }
    incoming.take(Mode::Messages, Flags::LAST, b"end", 1 << 20, &mut rx).unwrap();
    assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(length)));
    assert!(out[..HERE_BYTES].chunks(PACKET_BYTES).zip(0u8..).all(|(packet, number)| packet == [number; PACKET_BYTES]));
    assert_eq!((&out[HERE_BYTES..], rx.in_use(), incoming.unread_bytes()), (&b"end"[..], 0, 0));
}

#[test]
fn short_parts_of_a_message_share_memory_whether_they_are_read_as_they_come_or_not() {
    const PARTS: usize = 1000;
    let mut rx = Pool::new(1456, 1 << 20);
    let length = PARTS + 1;
    let message: Vec<u8> = (0..length).map(|place| (place / 3) as u8).collect();
    let first = [&(length as u32).to_be_bytes()[..], &message[..1]].concat();
    let goes_on = |incoming: &mut Incoming, rx: &mut Pool, part: usize| {
        let flags = if part == PARTS { Flags::LAST } else { Flags::NONE };
        incoming.take(Mode::Messages, flags, &message[part..=part], 1 << 20, rx).unwrap();
    };
    let mut out = vec![0; length];

    let mut incoming = Incoming::new(1 << 20);
    incoming.take(Mode::Messages, Flags::FIRST, &first, 1 << 20, &mut rx).unwrap();
    (1..=PARTS).for_each(|part| goes_on(&mut incoming, &mut rx, part));
    assert!(rx.in_use() <= 2, "{}", rx.in_use());
    assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(length)));
    assert!(out == message);

    // As they come, put back once.
    out.fill(0);
    incoming.take(Mode::Messages, Flags::FIRST, &first, 1 << 20, &mut rx).unwrap();
    let mut part = Part::default();
    for number in 1..=PARTS {
        assert!(!incoming.take_part(&mut out, &mut part, &mut rx));
        assert_eq!((part.bytes, rx.in_use(), rx.owed), (number, 0, 1));
        if number == PARTS / 2 {
            incoming.put_back(&out[..number], &mut rx);
            assert_eq!((rx.in_use(), rx.owed), (1, 0));
            part = Part::default();
        }
        goes_on(&mut incoming, &mut rx, number);
    }
    assert!(incoming.take_part(&mut out, &mut part, &mut rx) && out == message);
    assert_eq!((rx.in_use(), rx.owed, incoming.unread_bytes()), (0, 0, 0));
}

#[test]
fn a_message_takes_hardly_more_memory_than_it_has_bytes_however_long_its_packets_are() {
    const LENGTH: usize = 100_000;
    let message: Vec<u8> = (0..LENGTH).map(|place| (place / 7) as u8).collect();
    // In order, or after a packet that they waited for.
    for (packet_bytes, waits) in [1444, 1456, 1300, 729, 400, 100, 1].into_iter().flat_map(|n| [(n, false), (n, true)])
    {
        let what = format!("{packet_bytes} bytes, waits: {waits}");
        let mut rx = Pool::new(1456, 1 << 24);
        let mut incoming = Incoming::new(1 << 20);
        let first = [&(LENGTH as u32).to_be_bytes()[..], &message[..1]].concat();
        incoming.take(Mode::Messages, Flags::FIRST, &first, 1 << 20, &mut rx).unwrap();
        for part in message[1..].chunks(packet_bytes) {
            let is_end = incoming.missing_bytes() == part.len() as u64;
            let flags = if is_end { Flags::LAST } else { Flags::NONE };
            let result = match waits {
                false => incoming.take(Mode::Messages, flags, part, 1 << 20, &mut rx),
                true => {
                    let buffer = rx.copy(part, AccountId::NOBODY);
                    incoming.take_buffer(Mode::Messages, flags, buffer, 1 << 20, &mut rx)
                }
            };
            assert_eq!(result, Ok(()), "{what}");
        }
        let most = LENGTH / (1456 - 1456 / UNUSED_SHARE) + 2;
        assert!(rx.in_use() <= most, "{what}: {} buffers of {most}", rx.in_use());
        let mut out = vec![0; LENGTH];
        assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(LENGTH)), "{what}");
        assert!(out == message, "{what}");
        assert_eq!((rx.in_use(), incoming.unread_bytes()), (0, 0), "{what}");
    }
}

#[test]
fn memory_set_aside_for_a_message_in_short_packets_lasts_for_who_reads_it_as_it_comes() {
    const LENGTH: usize = 200_000;
    const PACKET_BYTES: usize = 200;
    const SET_ASIDE: usize = LENGTH / 1400 + 2;
    let mut rx = Pool::new(1456, 1 << 20);
    let mut incoming = Incoming::new(1000);
    let first = [&(LENGTH as u32).to_be_bytes()[..], &[7; PACKET_BYTES]].concat();
    incoming.take(Mode::Messages, Flags::FIRST, &first, 1 << 20, &mut rx).unwrap();
    incoming.reserve(SET_ASIDE, &mut rx);
    let (mut out, mut part) = (vec![0; LENGTH], Part::default());
    for packet in 2..=LENGTH / PACKET_BYTES {
        assert!(!incoming.take_part(&mut out, &mut part, &mut rx));
        // What came before it was set aside is owed besides.
        let kept = rx.set_aside + rx.owed;
        assert!((SET_ASIDE..=SET_ASIDE + 1).contains(&kept), "{packet}: {kept} buffers of {SET_ASIDE}");
        let flags = if packet == LENGTH / PACKET_BYTES { Flags::LAST } else { Flags::NONE };
        incoming.take(Mode::Messages, flags, &[7; PACKET_BYTES], 1 << 20, &mut rx).unwrap();
    }
    assert_eq!(rx.set_aside, 0);
    assert!(incoming.take_part(&mut out, &mut part, &mut rx) && out.iter().all(|&byte| byte == 7));
    assert_eq!((rx.in_use(), rx.owed, rx.set_aside), (0, 0, 0));
}

#[test]
fn messages_without_lengths_share_memory_when_they_come_in_short_parts() {
    const MESSAGES: usize = 400;
    let mut rx = Pool::new(1456, 1 << 20);
    let mut incoming = Incoming::new(1 << 20);
    incoming.take(Mode::Messages, Flags::RECORDS | Flags::FIRST, b"\x03ab", 10, &mut rx).unwrap();
    // Each brings the end of one and the beginning of the next, but for the last.
    for _ in 1..MESSAGES {
        incoming.take(Mode::Messages, Flags::NONE, b"cab", 10, &mut rx).unwrap();
    }
    incoming.take(Mode::Messages, Flags::LAST, b"c", 10, &mut rx).unwrap();
    assert!(rx.in_use() <= 2, "{}", rx.in_use());
    let mut out = [0; 3];
    for _ in 0..MESSAGES {
        assert_eq!((incoming.read_message(&mut out, &mut rx), &out), (Some(Ok(3)), b"abc"));
    }
    assert_eq!((incoming.read_message(&mut out, &mut rx), rx.in_use(), incoming.unread_bytes()), (None, 0, 0));
}

#[test]
fn single_bytes_of_a_stream_share_memory() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1 << 20);
    (0..1000).for_each(|_| incoming.take(Mode::Stream, Flags::NONE, b"x", 0, &mut rx).unwrap());
    assert!(rx.in_use() <= 11, "{}", rx.in_use());
    let mut out = [0; 2000];
    assert_eq!((incoming.peek(&mut out[..300]), incoming.peek(&mut out)), (300, 1000));
    assert!(out[..1000].iter().all(|&byte| byte == b'x'));
    assert_eq!(incoming.read(&mut out, &mut rx), 1000);
    assert_eq!(rx.in_use(), 0);
}

#[test]
fn short_and_empty_messages_share_memory_and_use_up_credit() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1000);
    for _ in 0..400 {
        incoming.take(Mode::Messages, whole(), b"", 10, &mut rx).unwrap();
    }
    incoming.take(Mode::Messages, Flags::RECORDS, b"\x01a\0", 10, &mut rx).unwrap();
    incoming.take(Mode::Messages, whole(), b"b", 10, &mut rx).unwrap();
    assert!(rx.in_use() <= 10, "{}", rx.in_use());
    let left = 1000 - 400 - 3 - 1;
    for _ in 0..left {
        incoming.take(Mode::Messages, whole(), b"", 10, &mut rx).unwrap();
    }
    assert_eq!(incoming.take(Mode::Messages, whole(), b"", 10, &mut rx), Err(Refused::Violation));
    let mut out = [0; 10];
    (0..400).for_each(|_| assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(0))));
    assert_eq!((incoming.read_message(&mut out, &mut rx), out[0]), (Some(Ok(1)), b'a'));
    assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(0)));
    assert_eq!((incoming.read_message(&mut out, &mut rx), out[0]), (Some(Ok(1)), b'b'));
    (0..left).for_each(|_| assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(0))));
    assert_eq!((rx.in_use(), incoming.unread_bytes()), (0, 0));
}

#[test]
fn more_than_the_credit_and_wrong_frames_are_violations() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(10);
    let take =
        |incoming: &mut Incoming, rx: &mut Pool, mode, flags, bytes: &[u8]| incoming.take(mode, flags, bytes, 1000, rx);
    assert_eq!(take(&mut incoming, &mut rx, Mode::Stream, Flags::NONE, &[0; 11]), Err(Refused::Violation));
    assert_eq!(take(&mut incoming, &mut rx, Mode::Stream, Flags::FIRST, &[0; 5]), Err(Refused::Violation));
    assert_eq!(take(&mut incoming, &mut rx, Mode::Messages, Flags::LAST, &[0; 5]), Err(Refused::Violation));
    assert_eq!(take(&mut incoming, &mut rx, Mode::Messages, Flags::NONE, &[0; 5]), Err(Refused::Violation));
    assert_eq!(take(&mut incoming, &mut rx, Mode::Messages, Flags::FIRST, &[0, 0, 255, 0, 1]), Err(Refused::TooLong));
    assert_eq!(rx.in_use(), 0);
}

#[test]
fn messages_go_on_without_lengths_as_long_as_the_one_at_hand_is() {
    let none = Flags::NONE;
    // Of four bytes, two of which are here.
    for (flags, payload, taken, messages) in [
        (none, &b"c"[..], true, 0),
        (Flags::LAST, b"cd", true, 1),
        (Flags::LAST, b"cdABCD", true, 2),
        (Flags::LAST, b"cdABCDefgh", true, 3),
        (none, b"cdA", true, 1),
        (none, b"cdABCDefg", true, 2),
        (none, b"cd", false, 0),
        (none, b"cdABCD", false, 0),
        (Flags::LAST, b"c", false, 0),
        (Flags::LAST, b"cdA", false, 0),
    ] {
        let (_, mut rx) = pools();
        let (mut incoming, mut out) = (Incoming::new(1 << 20), [0; 4]);
        incoming.take(Mode::Messages, Flags::RECORDS | Flags::FIRST, b"\0\x04ab", 4, &mut rx).unwrap();
        let expected = if taken { Ok(()) } else { Err(Refused::Violation) };
        assert_eq!(incoming.take(Mode::Messages, flags, payload, 4, &mut rx), expected, "{payload:?}");
        assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(0)));
        let all = [&b"ab"[..], payload].concat();
        for message in all.chunks_exact(4).take(messages) {
            assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(4)));
            assert_eq!(out, message);
        }
        assert_eq!(incoming.read_message(&mut out, &mut rx), None, "{payload:?}");
        assert_eq!(incoming.is_unfinished(), !taken || all.len() % 4 > 0);
    }
}

#[test]
fn nothing_follows_a_message_without_a_length_that_no_length_says() {
    for (length, is_taken) in [(65_535u32, true), (65_536, false)] {
        let mut rx = Pool::new(70_000, 1 << 20);
        let mut incoming = Incoming::new(1 << 20);
        incoming
            .take(Mode::Messages, Flags::FIRST, &[&length.to_be_bytes()[..], b"a"].concat(), 1 << 20, &mut rx)
            .unwrap();
        let goes_on = incoming.take(Mode::Messages, Flags::NONE, &vec![0; length as usize], 1 << 20, &mut rx);
        assert_eq!(goes_on, if is_taken { Ok(()) } else { Err(Refused::Violation) });
        let rest = incoming.take(Mode::Messages, Flags::LAST, &vec![0; length as usize - 1], 1 << 20, &mut rx);
        assert_eq!(rest, Ok(()), "{length}");
    }
}

#[test]
fn a_message_longer_than_taken_is_refused_however_it_comes() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1 << 20);
    let records = Flags::RECORDS;
    for (flags, payload, is_taken) in [
        (whole(), &[7; 11][..], false),
        (records, b"\x02ab\x0bhello world", false),
        (records, b"\x0bhello world\x02ab", false),
        (Flags::FIRST, b"\0\0\0\x0bhello", false),
        (records | Flags::FIRST, b"\x01a\x0bhello", false),
        (records, b"\x05hello\x06 world", true),
        (whole(), &[7; 10], true),
    ] {
        let result = incoming.take(Mode::Messages, flags, payload, 10, &mut rx);
        assert_eq!(result, if is_taken { Ok(()) } else { Err(Refused::TooLong) }, "{flags:?} {payload:?}");
    }
    let mut out = [0; 20];
    for bytes in [5, 6, 10] {
        assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(bytes)));
    }
    // Behind the end of one that was not too long when it began.
    incoming.take(Mode::Messages, records | Flags::FIRST, b"\0\x04ab", 4, &mut rx).unwrap();
    for (payload, result) in [(&b"cdA"[..], Err(Refused::TooLong)), (b"c", Ok(())), (b"dA", Err(Refused::TooLong))] {
        assert_eq!(incoming.take(Mode::Messages, Flags::NONE, payload, 3, &mut rx), result, "{payload:?}");
    }
    incoming.take(Mode::Messages, Flags::LAST, b"d", 3, &mut rx).unwrap();
    for bytes in [0, 4] {
        assert_eq!(incoming.read_message(&mut out, &mut rx), Some(Ok(bytes)));
    }
    for (bytes, lands) in [(11, None), (10, Some(10))] {
        assert_eq!(incoming.land(Mode::Messages, whole(), &vec![7; bytes], 10, &mut out, &mut rx), lands);
    }
}

#[test]
fn a_payload_that_no_buffer_holds_is_a_violation() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1 << 20);
    let most = rx.payload_bytes();
    for (mode, flags) in [(Mode::Stream, Flags::NONE), (Mode::Messages, whole())] {
        let refused = incoming.take(mode, flags, &vec![1; most + 1], 1000, &mut rx);
        assert_eq!((refused, incoming.received_bytes(), rx.in_use()), (Err(Refused::Violation), 0, 0));
    }
    incoming.take(Mode::Messages, whole(), &vec![1; most], 1000, &mut rx).unwrap();
    assert_eq!(incoming.read_message(&mut [0; 1000], &mut rx), Some(Ok(most)));
}

#[test]
fn credit_is_renewed_in_quarters() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(400);
    incoming.take(Mode::Stream, Flags::NONE, &[1; 100], 0, &mut rx).unwrap();
    assert!(!incoming.raise_limit(400, &mut rx));
    assert_eq!(incoming.read(&mut [0; 99], &mut rx), 99);
    assert!(!incoming.raise_limit(400, &mut rx));
    assert_eq!(incoming.read(&mut [0; 99], &mut rx), 1);
    assert!(incoming.raise_limit(400, &mut rx));
    assert_eq!(incoming.limit(), 500);
}

#[test]
fn a_short_message_that_has_begun_asks_for_no_credit_and_a_longer_one_does() {
    const WINDOW: u32 = 32 << 10;
    for (length, asks) in [(100u16, false), (1000, true)] {
        let (mut incoming, mut rx) = (Incoming::new(WINDOW), Pool::new(1456, 1 << 20));
        for _ in 0..23 {
            incoming.take(Mode::Messages, whole(), &[7; 1400], 2000, &mut rx).unwrap();
        }
        let begun = [RecordPrefix::of_length(length).bytes(), &[7; 50]].concat();
        incoming.take(Mode::Messages, Flags::RECORDS | Flags::FIRST, &begun, 2000, &mut rx).unwrap();
        // Not a quarter of the window.
        for _ in 0..2 {
            incoming.read_message(&mut [0; 1400], &mut rx).unwrap().unwrap();
        }
        assert!(!incoming.raise_limit(u64::from(WINDOW), &mut rx));
        assert_eq!(incoming.raise_for_message(u64::from(WINDOW), &mut rx), asks, "{length}");
    }
}

#[test]
fn a_message_that_fits_the_window_is_short_of_nothing() {
    let (_, mut rx) = pools();
    let mut incoming = Incoming::new(1000);
    incoming.take(Mode::Messages, Flags::FIRST, &1400u32.to_be_bytes(), 10_000, &mut rx).unwrap();
    // With its length, and company.
    let wanted = 1404 + rx.payload_bytes() as u64;
    assert_eq!([wanted, wanted - 1].map(|window| incoming.is_longer_than(window)), [false, true]);
    assert!(!incoming.raise_for_message(wanted - 1, &mut rx) && incoming.raise_for_message(wanted, &mut rx));
    assert_eq!((incoming.limit(), incoming.is_longer_than(0)), (wanted, false));
}

#[test]
fn memory_for_a_message_however_short_comes_with_credit_for_its_end_and_company() {
    const WINDOW: u32 = 2000;
    let (mut incoming, mut rx) = (Incoming::new(WINDOW), Pool::new(1456, 1 << 20));
    // Whole ones, and the beginning of another.
    let record = [RecordPrefix::of_length(100).bytes(), &[7; 100]].concat();
    let records = &record.repeat(15)[..1456];
    incoming.take(Mode::Messages, Flags::RECORDS | Flags::FIRST, records, 2000, &mut rx).unwrap();
    let end = 1456 + incoming.missing_bytes();
    assert!(incoming.missing_bytes() > 0 && incoming.reserve(3, &mut rx));
    assert_eq!(incoming.limit(), end + rx.payload_bytes() as u64);
}

#[test]
fn an_end_of_both_ways_stays_one() {
    let mut incoming = Incoming::new(1000);
    for (extent, is_gone) in [(Extent::Write, false), (Extent::Both, true), (Extent::Write, true)] {
        incoming.finish(extent);
        assert_eq!((incoming.is_finished(), incoming.peer_is_gone()), (true, is_gone));
    }
}
