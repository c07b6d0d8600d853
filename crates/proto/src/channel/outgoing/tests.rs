use super::filling::{PART_PACKETS, SHORT_RUN};
use super::*;
use crate::pool::SHORT_SAVES_BYTES;
use ropeway_wire::{Content, Mode};

const PAYLOAD: usize = 100;

fn pool() -> Pool {
    Pool::new(PAYLOAD + SHORT_SAVES_BYTES, 1 << 20)
}

fn packets(outgoing: &mut Outgoing) -> Vec<(Flags, Vec<u8>)> {
    std::iter::from_fn(|| outgoing.pop()).map(|unsent| (unsent.flags, unsent.payload.bytes().to_vec())).collect()
}

#[test]
fn a_stream_fills_packets() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    for _ in 0..25 {
        assert_eq!(outgoing.write(b"0123456789", 10_000, PAYLOAD, &mut pool), 10);
    }
    let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
    assert_eq!(lengths, [100, 100, 50]);
}

#[test]
fn most_packets_with_more_behind_them_have_the_short_header_s_payload() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    outgoing.write(&[0; 20 * PAYLOAD], 10_000, PAYLOAD, &mut pool);
    let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
    let run = [&[PAYLOAD][..], &[PAYLOAD + SHORT_SAVES_BYTES; SHORT_RUN as usize]].concat();
    assert_eq!(lengths, [&run[..], &run, &[PAYLOAD, PAYLOAD + SHORT_SAVES_BYTES, 20]].concat());
    // Nothing, or less than that saves, is behind these.
    for (more, expected) in [(0, &[PAYLOAD, PAYLOAD][..]), (SHORT_SAVES_BYTES, &[PAYLOAD, PAYLOAD, SHORT_SAVES_BYTES])]
    {
        outgoing.write(&vec![0; 2 * PAYLOAD + more], 10_000, PAYLOAD, &mut pool);
        let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
        assert_eq!(lengths, expected, "{more} more");
        outgoing.forget_sent();
    }
}

#[test]
fn short_messages_share_a_packet_and_keep_their_boundaries() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    let messages: [&[u8]; 5] = [b"one", b"", b"three", &[5; 87], &[7; 96]];
    for message in messages {
        assert!(outgoing.write_message(message, false, 10_000, PAYLOAD, &mut pool).is_some());
    }
    let packets = packets(&mut outgoing);
    assert_eq!(packets.len(), 2);
    let Ok(Content::Records(records)) = Content::parse(packets[0].0, &packets[0].1) else { panic!("{packets:?}") };
    assert_eq!(records.collect::<Vec<_>>(), &messages[..4]);
    assert_eq!(
        Content::parse(packets[1].0, &packets[1].1),
        Ok(Content::Whole(&[7; 96])),
        "nothing is left to begin it"
    );
}

#[test]
fn messages_as_long_as_a_packet_use_what_the_short_header_saves() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    for value in 0..100 {
        assert!(outgoing.write_message(&[value; PAYLOAD], false, 20_000, PAYLOAD, &mut pool).is_some());
    }
    let packets = packets(&mut outgoing);
    let short = packets.iter().filter(|packet| packet.1.len() == PAYLOAD + SHORT_SAVES_BYTES).count();
    assert!(short > packets.len() * 4 / 5, "{short} of {}", packets.len());
    assert!(packets.len() < 96, "one in twenty is saved: {}", packets.len());
}

#[test]
fn a_message_that_ends_where_only_a_short_header_leaves_room_is_parted_if_none_follows() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    // Behind a packet with the long header: the rest of a message, one, and one that ends in what the short header saves.
    let messages: [Vec<u8>; 3] = [vec![1; PAYLOAD + 1], vec![2; 40], vec![3; 57]];
    for (others, lengths) in [(0, vec![100, 100, 5]), (1, vec![100, 112, 94])] {
        for message in messages.iter().chain(std::iter::repeat_n(&vec![4; PAYLOAD], others)) {
            assert!(outgoing.write_message(message, false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        assert_eq!(outgoing.queued_bytes(), lengths.iter().sum());
        let mut sent = Vec::new();
        outgoing.raise_credit(outgoing.sent_bytes() + 1000);
        while let Some(unsent) = outgoing.pop_sendable(PAYLOAD, &mut pool) {
            sent.push((unsent.flags, unsent.payload.bytes().to_vec()));
        }
        assert_eq!(sent.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), lengths);
        assert_eq!(outgoing.queued_bytes(), 0);
        let Ok(Content::Records(records)) = Content::parse(sent[1].0, &sent[1].1) else { panic!("{sent:?}") };
        assert_eq!(
            (records.end().map(<[u8]>::len), records.beginning().map(|begun| begun.length)),
            (Some(5), Some(if others == 0 { 57 } else { PAYLOAD as u16 }))
        );
    }
}

#[test]
fn messages_as_long_as_the_one_before_follow_its_end_without_a_length() {
    let (first, last, records) = (Flags::FIRST, Flags::LAST, Flags::RECORDS);
    // 61 and 37 bytes of the second are in the packet before, so that 23 of it are at the beginning.
    for (others, expected) in [
        // It alone, one more, the beginning of a third.
        (&[60; 0][..], &[(last, 23)][..]),
        (&[60], &[(last, 83)]),
        (&[60, 60], &[(Flags::NONE, 112), (last, 31)]),
        // Of another length: with its own, and that of the end; and those of all in front.
        (&[20], &[(records | last, 1 + 23 + 1 + 20)]),
        (&[60, 8], &[(records | last, 1 + 23 + 1 + 60 + 1 + 8)]),
        // It goes on in the next packet.
        (&[60, 30], &[(records | last | first, 112), (last, 4)]),
    ] {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        let messages = [&[61, 60][..], others].concat();
        for size in &messages {
            assert!(outgoing.write_message(&vec![*size as u8; *size], false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        let packets = packets(&mut outgoing);
        let kinds: Vec<_> = packets.iter().map(|packet| (packet.0, packet.1.len())).collect();
        assert_eq!(kinds[0], (records | first, 100), "{others:?}");
        assert_eq!(kinds[1..], *expected, "{others:?}");
    }
}

#[test]
fn a_run_given_up_leaves_the_end_that_it_begins_with() {
    for (count, dropped, left) in [(2, 0, 23), (3, 1, 23), (4, 2, 23), (6, 4, 23)] {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        for size in std::iter::once(61).chain(std::iter::repeat_n(60, count - 1)) {
            assert!(outgoing.write_message(&vec![7; size], false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        pool.give(outgoing.pop().unwrap().payload);
        assert_eq!((outgoing.cancel(&mut pool), outgoing.queued_bytes()), (dropped, left), "{count}");
        assert!(outgoing.write_message(&[7; 60], false, 10_000, PAYLOAD, &mut pool).is_some());
        let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| (packet.0, packet.1.len())).collect();
        assert_eq!(lengths, [(Flags::LAST, left + 60)], "{count}: others may still follow");
    }
}

#[test]
fn messages_fill_packets_whatever_their_size() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    for size in [101, 57, 60, 200, 13] {
        assert!(outgoing.write_message(&vec![size as u8; size], false, 10_000, PAYLOAD, &mut pool).is_some());
    }
    let packets = packets(&mut outgoing);
    let kinds: Vec<_> = packets.iter().map(|packet| (packet.0, packet.1.len())).collect();
    let (first, last, records) = (Flags::FIRST, Flags::LAST, Flags::RECORDS);
    // 101 as 96 + 5; 57; 60 as 47 + 13; 200 as 96 + 100 + 4; 13. More follows when the second and the third are filled: short headers will do.
    let both = records | first | last;
    assert_eq!(kinds, [(first, 100), (both, 112), (both, 112), (Flags::NONE, 100), (records | last, 19)]);
    let parts: Vec<_> = packets[1..].iter().map(|(flags, bytes)| Content::parse(*flags, bytes).unwrap()).collect();
    let shares: Vec<_> = parts
        .iter()
        .filter_map(|part| match part {
            Content::Records(records) => Some((
                records.end().map(<[u8]>::len),
                records.map(<[u8]>::len).collect::<Vec<_>>(),
                records.beginning().map(|beginning| (beginning.length, beginning.bytes.len())),
            )),
            _ => None,
        })
        .collect();
    let expected =
        [(Some(5), vec![57], Some((60, 47))), (Some(13), vec![], Some((200, 96))), (Some(4), vec![13], None)];
    assert_eq!(shares, expected);
}

#[test]
fn messages_given_up_leave_the_rest_of_one_that_is_under_way() {
    // Of the last the rest fills a packet, with a length in front and the beginning of another behind it one with the short header.
    for (under_way, rest) in [(101, 5), (196, PAYLOAD)] {
        let (mut outgoing, mut pool) = (Outgoing::default(), pool());
        for size in [under_way, 57, 60, 13] {
            assert!(outgoing.write_message(&vec![7; size], false, 10_000, PAYLOAD, &mut pool).is_some());
        }
        pool.give(outgoing.pop().unwrap().payload);
        assert_eq!(outgoing.cancel(&mut pool), 3, "all but the first, which has begun");
        let packets = packets(&mut outgoing);
        assert_eq!(outgoing.queued_bytes(), 0);
        assert_eq!(packets, [(Flags::LAST, vec![7; rest])]);
    }
}

#[test]
fn memory_for_the_rest_of_a_message_is_kept_until_it_is_taken_or_the_channel_ends() {
    for ends in [false, true] {
        let (mut outgoing, mut pool) =
            (Outgoing::default(), Pool::new(PAYLOAD + SHORT_SAVES_BYTES, 200 * PAYLOAD as u64));
        let (message, before) = (vec![7; 100 * PAYLOAD], pool.available());
        let mut taken = outgoing.write_message(&message, false, 1 << 20, PAYLOAD, &mut pool).unwrap();
        assert_eq!(pool.in_use(), PART_PACKETS);
        assert_eq!(pool.available(), before - PART_PACKETS - 52, "no other channel gets it");
        assert_eq!(outgoing.write_message(b"other", false, 1 << 20, PAYLOAD, &mut pool), None);
        if ends {
            outgoing.drop_queue(&mut pool);
            assert_eq!((pool.available(), outgoing.is_owed()), (before, false));
            continue;
        }
        while outgoing.is_owed() {
            taken += outgoing.write_rest(&message[taken..], PAYLOAD, &mut pool);
        }
        assert_eq!((taken, pool.in_use(), pool.owed), (message.len(), 91, 0));
        let flags: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.0).collect();
        assert_eq!(flags.iter().filter(|&&flags| flags != Flags::NONE).count(), 2);
        assert_eq!((flags[0], flags[90]), (Flags::FIRST, Flags::LAST));
    }
}

#[test]
fn a_long_message_is_cut_and_says_its_length() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    let message: Vec<u8> = (0..250).collect();
    assert!(outgoing.write_message(&message, false, 10_000, PAYLOAD, &mut pool).is_some());
    let packets = packets(&mut outgoing);
    let Ok(Content::First { length, bytes }) = Content::parse(packets[0].0, &packets[0].1) else { panic!() };
    let whole: Vec<u8> = [bytes, &packets[1].1, &packets[2].1].concat();
    assert_eq!((length, whole, packets[2].0), (250, message, Flags::LAST));
}

#[test]
fn messages_past_their_deadline_are_dropped_whole_unless_they_have_begun() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    let at = Time::from_nanos;
    for (size, deadline) in [(250, Some(10)), (50, None), (250, Some(20)), (40, Some(5)), (30, None)] {
        assert!(
            outgoing.write_message(&vec![size as u8; size], deadline.is_some(), 10_000, PAYLOAD, &mut pool).is_some()
        );
        deadline.into_iter().for_each(|deadline| outgoing.set_deadline(at(deadline)));
    }
    pool.give(outgoing.pop().unwrap().payload);
    assert_eq!(outgoing.next_deadline(), Some(at(5)));
    assert_eq!(outgoing.expire(at(15), &mut pool), 1, "the one of 40 bytes; the first has begun");
    assert_eq!(outgoing.expire(at(25), &mut pool), 1, "the second of 250");
    assert_eq!((outgoing.expired_messages, outgoing.queued_bytes()), (2, 154 + 50 + 30));
    assert_eq!(outgoing.cancel(&mut pool), 2);
    let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
    assert_eq!(lengths, [112, 42], "the rest of the first");
}

#[test]
fn a_full_buffer_takes_what_fits_and_an_oversized_message_goes_alone() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    assert_eq!(outgoing.write(&[1; 300], 250, PAYLOAD, &mut pool), 250);
    assert_eq!(outgoing.write(&[1; 1], 250, PAYLOAD, &mut pool), 0);
    let mut messages = Outgoing::default();
    assert!(messages.write_message(&[1; 300], false, 250, PAYLOAD, &mut pool).is_some());
    assert!(messages.write_message(&[1; 3], false, 250, PAYLOAD, &mut pool).is_none());
}

#[test]
fn messages_of_one_length_fill_a_packet_for_a_prefix_and_a_byte_for_each_63_more() {
    const OVER_UDP: usize = 1444;
    for (size, prefix, expected) in [(8, 1, 180), (1, 1, 1420), (200, 2, 7)] {
        let (mut outgoing, mut pool) = (Outgoing::default(), Pool::new(OVER_UDP + SHORT_SAVES_BYTES, 1 << 20));
        for i in 0..1500u32 {
            let message = vec![i as u8; size];
            assert!(outgoing.write_message(&message, false, 1 << 20, OVER_UDP, &mut pool).is_some());
        }
        let (flags, bytes) = &packets(&mut outgoing)[0];
        let Ok(Content::Records(records)) = Content::parse(*flags, bytes) else { panic!("{flags:?}") };
        let begun = records.beginning().map_or(0, |beginning| beginning.bytes.len());
        assert_eq!(records.len(), expected, "{size}");
        let beyond = bytes.len() - begun - expected * size;
        assert_eq!(beyond, prefix + (expected - 1 + usize::from(begun > 0)).div_ceil(63), "{size}");
        assert!(records.enumerate().all(|(i, message)| message == vec![i as u8; size]));
    }
}

#[test]
fn short_messages_of_many_lengths_fill_packets_but_for_a_prefix() {
    const OVER_UDP: usize = 1444;
    let (mut outgoing, mut pool) = (Outgoing::default(), Pool::new(OVER_UDP + SHORT_SAVES_BYTES, 1 << 20));
    for i in 0..2000usize {
        assert!(outgoing.write_message(&vec![7; i * 7 % 61], false, 1 << 20, OVER_UDP, &mut pool).is_some());
    }
    let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
    assert!(
        lengths.len() > 40 && lengths[..lengths.len() - 1].iter().all(|&length| length >= OVER_UDP - 1),
        "{lengths:?}"
    );
}

#[test]
fn packets_of_small_messages_wait_for_each_other_also_if_messages_begin_in_them() {
    const OVER_UDP: usize = 1444;
    for (size, waits) in [(64, true), (500, false)] {
        let (mut outgoing, mut pool) = (Outgoing::default(), Pool::new(OVER_UDP + SHORT_SAVES_BYTES, 1 << 20));
        // Two packets and a half.
        for _ in 0..3600 / size {
            assert!(outgoing.write_message(&vec![7; size], false, 1 << 20, OVER_UDP, &mut pool).is_some());
        }
        assert_eq!((outgoing.is_small_batch(OVER_UDP), outgoing.is_one_partial(OVER_UDP)), (waits, false), "{size}");
        let packets = packets(&mut outgoing);
        assert_eq!((packets.len(), packets[0].0), (3, Flags::RECORDS | Flags::FIRST), "{size}");
    }
}

#[test]
fn a_length_is_not_repeated_behind_what_is_left_of_messages_given_up() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    for size in [101, 13, 13] {
        assert!(outgoing.write_message(&vec![size as u8; size], false, 10_000, PAYLOAD, &mut pool).is_some());
    }
    pool.give(outgoing.pop().unwrap().payload);
    assert_eq!(outgoing.cancel(&mut pool), 2, "all but the first, which has begun");
    for _ in 0..2 {
        assert!(outgoing.write_message(&[7; 13], false, 10_000, PAYLOAD, &mut pool).is_some());
    }
    let packets = packets(&mut outgoing);
    let [(flags, bytes)] = &packets[..] else { panic!("{packets:?}") };
    let Ok(Content::Records(records)) = Content::parse(*flags, bytes) else { panic!("{packets:?}") };
    assert_eq!((records.end().map(<[u8]>::len), records.len()), (Some(5), 2));
    assert_eq!(bytes.len(), 1 + 5 + 1 + 13 + 1 + 13);
}

#[test]
fn a_message_begins_in_the_rest_of_a_packet_only_if_there_is_memory_for_all_of_it() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    assert_eq!(outgoing.write_message(&[1; 50], false, 10_000, PAYLOAD, &mut pool), Some(50));
    let others: Vec<_> = (2..pool.available()).map(|_| pool.take().unwrap()).collect();
    assert_eq!(outgoing.write_message(&[2; 4 * PAYLOAD], false, 10_000, PAYLOAD, &mut pool), None);
    assert_eq!(outgoing.queued_bytes(), 50, "nothing of it");
    others.into_iter().for_each(|buffer| pool.give(buffer));
    assert_eq!(outgoing.write_message(&[2; 4 * PAYLOAD], false, 10_000, PAYLOAD, &mut pool), Some(4 * PAYLOAD));
}

#[test]
fn what_is_owed_of_a_message_is_said_to_wait_as_well() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    let bytes = 3 * PART_PACKETS * PAYLOAD;
    let taken = outgoing.write_message(&vec![1; bytes], false, 1 << 20, PAYLOAD, &mut pool).unwrap();
    assert!(taken < bytes, "{taken}");
    outgoing.raise_credit(1 << 20);
    let all = (bytes + MESSAGE_PREFIX_BYTES) as u64;
    assert_eq!(outgoing.sendable(), Sendable::Bytes(all));
    outgoing.write_rest(&vec![1; bytes - taken], PAYLOAD, &mut pool);
    assert_eq!(outgoing.sendable(), Sendable::Bytes(all));
}

#[test]
fn who_waits_for_room_is_told_though_the_channel_has_begun_anew_meanwhile() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    outgoing.write(&[0; 1000], 1000, PAYLOAD, &mut pool);
    outgoing.refuse(1, 1000);
    assert!(!outgoing.takes_hunger(1000));
    let fields = OpenFields { destination_port: 7, source_port: 8, mode: Mode::Stream, early: &[] };
    assert!(outgoing.restart(&fields, &mut pool));
    assert!(outgoing.is_writable(1000), "nothing is refused any more");
    assert!(outgoing.takes_hunger(1000) && !outgoing.takes_hunger(1000), "and that once");
}

#[test]
fn the_last_number_counts_until_everything_is_acknowledged() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    outgoing.write(&[0; 150], 1000, PAYLOAD, &mut pool);
    let lengths: Vec<_> = packets(&mut outgoing).iter().map(|packet| packet.1.len()).collect();
    outgoing.last_number = Some(7);
    let after = lengths.into_iter().map(|bytes| {
        outgoing.acknowledged(bytes);
        outgoing.last_number
    });
    // Later it may be further back than a packet can say.
    assert_eq!(after.collect::<Vec<_>>(), [Some(7), None]);
}

#[test]
fn the_rest_of_a_message_goes_on_when_a_quarter_of_a_short_buffer_is_free() {
    const LIMIT: usize = 1000;
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    let taken = outgoing.write_message(&[0; 20_000], false, LIMIT, PAYLOAD, &mut pool).unwrap();
    assert!((LIMIT..20_000).contains(&taken), "a part of it, as nothing else is queued");
    for (_, payload) in packets(&mut outgoing) {
        let free = outgoing.room(LIMIT) + MESSAGE_PREFIX_BYTES;
        assert_eq!(outgoing.must_rest_wait(LIMIT, PAYLOAD), free < LIMIT / 4, "{free} bytes are free");
        outgoing.acknowledged(payload.len());
    }
    assert!(!outgoing.must_rest_wait(LIMIT, PAYLOAD));
}

#[test]
fn a_full_queue_takes_no_empty_message() {
    let (mut outgoing, mut pool) = (Outgoing::default(), pool());
    assert_eq!(outgoing.write_message(&[0; 100], false, 100, PAYLOAD, &mut pool), Some(100));
    assert_eq!(outgoing.write_message(b"", false, 100, PAYLOAD, &mut pool), None);
    assert_eq!(outgoing.write_message(b"", false, 101, PAYLOAD, &mut pool), Some(0));
}
