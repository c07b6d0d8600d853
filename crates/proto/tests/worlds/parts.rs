//! Long messages that are handed over, and taken, in parts.

use std::cell::Cell;
use std::rc::Rc;

use crate::world::{self, MS, Net, S, World, pair, wait_for};
use ropeway_proto::{ChannelId, Config, ErrorCode, Event, Mode, PIECE_BYTES, Part, RecvError, SendError};
use ropeway_wire::{Flags, Header, Packet, Type};

/// One of several users of a channel, who waits for a message and has a part of it, perhaps.
struct Reader {
    out: Vec<u8>,
    part: Part,
}

fn message(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (number + place / 7) as u8).collect()
}

/// Two hosts, and a message of 200,000 bytes of which the first part has been handed over.
struct Begun {
    world: World,
    client: ChannelId,
    server: ChannelId,
    long: Vec<u8>,
    sent: usize,
}

fn begun() -> Begun {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let (long, now) = (message(0, 200_000), world.time());
    let sent = world.hosts[0].send_part(now, client, &long, 0).unwrap();
    Begun { world, client, server, long, sent }
}

#[test]
fn messages_in_parts_arrive_whole_and_in_order_whoever_takes_them() {
    let sizes = [2_000_000, 1, 70_000, 1_500_000, 0, 200_000, 5, 64_000];
    let messages: Vec<_> = sizes.iter().enumerate().map(|(number, &bytes)| message(number, bytes)).collect();
    for seed in 0..6 {
        let net = Net { loss_ppm: seed * 15_000, reordering_ppm: 10_000, rate: 1_000_000_000, ..Net::default() };
        println!("seed {seed}: {net:?}");
        let mut world = World::new(2, net, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Messages);
        let mut readers = [0; 2].map(|_| Reader { out: vec![0; 2_000_000], part: Part::default() });
        let (mut number, mut sent, mut received, mut put_back) = (0, 0, 0, 0);
        let end = world.now + 20 * S;
        let done = world.run(end, |world| {
            let now = world.time();
            while let Some(message) = messages.get(number) {
                match world.hosts[0].send_part(now, client, message, sent) {
                    Ok(count) => sent += count,
                    Err(SendError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
                if sent == message.len() {
                    (number, sent) = (number + 1, 0);
                } else if world.random().is_multiple_of(2) {
                    break;
                }
            }
            world.hosts[0].flush(client);
            // The first reader that finds something keeps it, or gives it back now and then; the other one must not get in between.
            for reader in &mut readers {
                match world.hosts[1].recv_partly(server, &mut reader.out, &mut reader.part) {
                    Ok(Some(count)) => {
                        assert!(reader.out[..count] == messages[received][..], "message {received}");
                        (received, reader.part) = (received + 1, Part::default());
                    }
                    Err(RecvError::WouldBlock) => {}
                    other => panic!("{other:?}"),
                }
                if reader.part.is_begun && world.random().is_multiple_of(64) {
                    let taken = std::mem::take(&mut reader.part).bytes;
                    give_back(world, server, &reader.out[..taken]);
                    put_back += 1;
                    reader.out[..taken].fill(0xEE);
                }
            }
            assert!(readers.iter().filter(|reader| reader.part.is_begun).count() <= 1);
            received == messages.len()
        });
        assert!(done, "{number} sent, {received} received");
        assert!(put_back > 10, "{put_back}");
    }
}

/// Gives back all that a reader has.
fn give_back(world: &mut World, channel: ChannelId, mut taken: &[u8]) {
    loop {
        taken = &taken[..world.hosts[1].put_back(channel, taken)];
        if taken.is_empty() {
            return;
        }
    }
}

/// Reads piece by piece, with `between` after each, and says how long they were.
fn pieces(
    world: &mut World,
    channel: ChannelId,
    reader: &mut Reader,
    mut between: impl FnMut(&mut World),
) -> Vec<usize> {
    let mut pieces = Vec::new();
    loop {
        let before = reader.part.bytes;
        let received = world.hosts[1].recv_partly(channel, &mut reader.out, &mut reader.part);
        pieces.push(reader.part.bytes - before);
        match received {
            Ok(Some(count)) => {
                assert_eq!(count, reader.part.bytes);
                return pieces;
            }
            Err(RecvError::WouldBlock) if reader.part.bytes > before => between(world),
            other => panic!("{other:?} after {pieces:?}"),
        }
    }
}

#[test]
fn a_long_message_that_is_whole_is_read_in_pieces() {
    let Begun { mut world, client, server, long, sent } = begun();
    world::pass(&mut world, 20 * MS);
    let is_of_whole = Part { is_of_whole: true, ..Part::default() };
    let mut reader = Reader { out: vec![0; 300_000], part: is_of_whole };
    let received = world.hosts[1].recv_partly(server, &mut reader.out, &mut reader.part);
    assert_eq!((received, reader.part), (Err(RecvError::WouldBlock), is_of_whole), "it is not whole");
    let now = world.time();
    assert_eq!(world.hosts[0].send_rest(now, client, &long[sent..]), long.len() - sent);
    wait_for(&mut world, S, "all of it", |world| world.hosts[1].message_bytes(server) == Some(200_000));

    let mut short = vec![0; 199_999];
    let received = world.hosts[1].recv_partly(server, &mut short, &mut reader.part);
    assert_eq!(received, Err(RecvError::TooShort { message_bytes: 200_000 }));
    // It is given back once, in the middle.
    assert_eq!(world.hosts[1].recv_partly(server, &mut reader.out, &mut reader.part), Err(RecvError::WouldBlock));
    give_back(&mut world, server, &reader.out[..reader.part.bytes]);
    assert_eq!(world.hosts[1].message_bytes(server), Some(200_000));
    reader.part = is_of_whole;
    reader.out.fill(0xEE);

    // Nobody else gets anything of it; and what its sender ends with is behind it.
    let now = world.time();
    world.hosts[0].send(now, client, &long).unwrap();
    world.hosts[0].close(now, client);
    let pieces = pieces(&mut world, server, &mut reader, |world| {
        let mut other = [0; 10];
        let received = world.hosts[1].recv_partly(server, &mut other, &mut Part::default());
        assert_eq!((received, world.hosts[1].message_bytes(server)), (Err(RecvError::WouldBlock), None));
        assert!(!world.hosts[1].readiness(server).unwrap().readable);
        world::pass(world, 20 * MS);
    });
    assert!(reader.out[..200_000] == long);
    let is_usual = |&bytes: &usize| (PIECE_BYTES..PIECE_BYTES + 1_472).contains(&bytes);
    assert!(pieces.len() == 3 && pieces.iter().all(is_usual), "{pieces:?}");
    assert_eq!(world.hosts[1].recv(server, &mut reader.out), Ok(Some(200_000)));
    assert_eq!(world.hosts[1].recv(server, &mut reader.out), Ok(None));
}

#[test]
fn until_all_of_a_message_was_handed_over_nobody_else_can_write() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let (long, now) = (message(0, 200_000), world.time());
    let mut sent = world.hosts[0].send_part(now, client, &long, 0).unwrap();
    assert!(sent > 0 && sent < long.len() && world.hosts[0].is_owed(client));
    assert_eq!(world.hosts[0].send_part(now, client, b"other", 0), Err(SendError::WouldBlock));
    assert_eq!(world.hosts[0].send(now, client, b"other"), Err(SendError::WouldBlock));
    assert_eq!(world.hosts[0].cancel(client), 0);
    // What there is of it arrives meanwhile, and is no message.
    world::pass(&mut world, 20 * MS);
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv(server, &mut out), Err(RecvError::WouldBlock));
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    assert!(part.bytes > 0 && part.bytes <= sent, "{part:?} of {sent}");
    sent += world.hosts[0].send_rest(now, client, &long[sent..]);
    assert_eq!(sent, long.len());
    let now = world.time();
    world.hosts[0].send(now, client, b"other").unwrap();
    world.hosts[0].shutdown(now, client).unwrap();
    wait_for(&mut world, S, "the rest", |world| {
        world.hosts[1].recv_partly(server, &mut out, &mut part) == Ok(Some(200_000))
    });
    assert!(out == long);
    wait_for(&mut world, S, "the next message", |world| world.hosts[1].recv(server, &mut out) == Ok(Some(5)));
    wait_for(&mut world, S, "the end", |world| world.hosts[1].recv(server, &mut out) == Ok(None));
}

#[test]
fn a_message_that_its_sender_does_not_finish_is_a_reset_for_who_has_a_part_of_it() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let now = world.time();
    world.hosts[0].send_part(now, client, &message(0, 200_000), 0).unwrap();
    world::pass(&mut world, 20 * MS);
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    assert!(part.bytes > 0);
    let now = world.time();
    world.hosts[0].close(now, client);
    world::pass(&mut world, 20 * MS);
    let failed = Err(RecvError::Failed(ErrorCode::Reset));
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), failed);
    give_back(&mut world, server, &out[..part.bytes]);
    assert_eq!(world.hosts[1].recv(server, &mut out), failed);
}

#[test]
fn who_has_a_part_of_a_message_whose_sender_breaks_a_rule_is_told_so_though_more_was_here() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let newest = Rc::new(Cell::new(None));
    let note = Rc::clone(&newest);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from == 0 && header.kind == Type::Data {
            note.set(Some(header));
        }
        true
    }));
    let now = world.time();
    world.hosts[0].send(now, client, &message(0, 200_000)).unwrap();
    wait_for(&mut world, S, "all of it", |world| world.hosts[1].message_bytes(server) == Some(200_000));
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    assert!(part.has_more);
    // The end of a message where none has begun.
    let last: Header = newest.get().unwrap();
    let number = last.number.wrapping_add(1);
    let flags = Flags::LAST;
    let forged = Header { kind: Type::Data, is_short: false, flags, number, back: 1, length: 1, ..last };
    let mut bytes = forged.to_bytes()[..forged.bytes()].to_vec();
    bytes.push(7);
    world.inject(0, 1, &bytes);
    world::pass(&mut world, 20 * MS);
    assert_eq!(world.hosts[1].counters().violations, 1);
    let failed = Err(RecvError::Failed(ErrorCode::Protocol));
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), failed);
    assert!(!part.has_more);
}

#[test]
fn what_was_put_back_counts_as_unread_when_the_reader_closes() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let now = world.time();
    world.hosts[0].send_part(now, client, &message(0, 200_000), 0).unwrap();
    world::pass(&mut world, 20 * MS);
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    give_back(&mut world, server, &out[..part.bytes]);
    let now = world.time();
    world.hosts[1].close(now, server);
    world::pass(&mut world, 20 * MS);
    assert_eq!(world.hosts[0].readiness(client).and_then(|readiness| readiness.failed), Some(ErrorCode::Reset));
}

#[test]
fn once_the_channel_is_to_end_the_rest_of_a_message_does_not_wait_for_room() {
    let config = Config { send_buffer_bytes: 65_536, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let (long, now) = (message(0, 500_000), world.time());
    let mut sent = 0;
    let refused = loop {
        match world.hosts[0].send_part(now, client, &long, sent) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
    };
    assert!(refused == SendError::WouldBlock && sent > 0 && sent < long.len(), "{refused} after {sent}");
    world.hosts[0].shutdown(now, client).unwrap();
    while sent < long.len() {
        sent += world.hosts[0].send_part(now, client, &long, sent).unwrap();
    }
    assert_eq!(world.hosts[0].send_part(now, client, b"other", 0), Err(SendError::Closed));
    let mut out = vec![0; long.len()];
    wait_for(&mut world, S, "the message", |world| world.hosts[1].recv(server, &mut out) == Ok(Some(500_000)));
    assert!(out == long);
    wait_for(&mut world, S, "the end", |world| world.hosts[1].recv(server, &mut out) == Ok(None));
}

#[test]
fn an_end_comes_behind_the_message_that_is_being_handed_over() {
    let Begun { mut world, client, server, long, sent } = begun();
    let now = world.time();
    world.hosts[0].shutdown(now, client).unwrap();
    assert_eq!(world.hosts[0].send(now, client, b"other"), Err(SendError::Closed));
    world::pass(&mut world, 20 * MS);
    let mut out = vec![0; 200_000];
    assert_eq!(world.hosts[1].recv(server, &mut out), Err(RecvError::WouldBlock));
    let now = world.time();
    assert_eq!(world.hosts[0].send_rest(now, client, &long[sent..]), long.len() - sent);
    wait_for(&mut world, S, "the message", |world| world.hosts[1].recv(server, &mut out) == Ok(Some(200_000)));
    wait_for(&mut world, S, "the end", |world| world.hosts[1].recv(server, &mut out) == Ok(None));
}

#[test]
fn while_one_reader_has_a_part_another_one_finds_neither_messages_nor_the_end() {
    let Begun { mut world, client, server, long, sent } = begun();
    world::pass(&mut world, 20 * MS);
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    let now = world.time();
    world.hosts[0].send_rest(now, client, &long[sent..]);
    world.hosts[0].send(now, client, b"next").unwrap();
    world.hosts[0].shutdown(now, client).unwrap();
    world::pass(&mut world, 50 * MS);
    let mut other = vec![0; 200_000];
    assert_eq!(world.hosts[1].recv(server, &mut other), Err(RecvError::WouldBlock));
    assert_eq!(world.hosts[1].recv_partly(server, &mut other, &mut Part::default()), Err(RecvError::WouldBlock));
    give_back(&mut world, server, &out[..part.bytes]);
    assert_eq!(world.hosts[1].recv(server, &mut other), Ok(Some(200_000)));
    assert!(other == long);
    assert_eq!(world.hosts[1].recv(server, &mut other), Ok(Some(4)));
    assert_eq!(world.hosts[1].recv(server, &mut other), Ok(None));
}

#[test]
fn what_a_channel_can_do_is_said_rightly_while_parts_are_on_their_way() {
    let Begun { mut world, client, server, long, sent } = begun();
    world::pass(&mut world, 50 * MS);
    let readiness = world.hosts[0].readiness(client).unwrap();
    assert!(!readiness.drained && !readiness.writable, "{readiness:?}");
    let (mut out, mut part) = (vec![0; 200_000], Part::default());
    assert_eq!(world.hosts[1].recv_partly(server, &mut out, &mut part), Err(RecvError::WouldBlock));
    let now = world.time();
    world.hosts[0].send_rest(now, client, &long[sent..]);
    world.hosts[0].shutdown(now, client).unwrap();
    world::pass(&mut world, 50 * MS);
    assert!(world.hosts[0].readiness(client).unwrap().drained);
    let readiness = world.hosts[1].readiness(server).unwrap();
    assert!(!readiness.readable && !readiness.ended, "it is another's: {readiness:?}");
    pieces(&mut world, server, &mut Reader { out, part }, |_| ());
    assert!(world.hosts[1].readiness(server).unwrap().ended);
}

#[test]
fn who_lacks_memory_is_told_when_another_channel_gives_some_back() {
    let config = Config { send_memory_bytes: 1 << 20, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (one, _) = pair(&mut world, Mode::Messages);
    let (other, _) = world::open(&mut world, 0, 1, 8, Mode::Messages);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    world.hosts[0].send(now, one, &message(0, 500_000)).unwrap();
    world.hosts[0].send(now, one, &message(0, 400_000)).unwrap();
    assert_eq!(world.hosts[0].send(now, other, &message(0, 400_000)), Err(SendError::WouldBlock));
    assert!(!world.hosts[0].readiness(other).unwrap().writable, "room alone is not enough");
    while world.hosts[0].poll_event().is_some() {}
    wait_for(&mut world, S, "word of memory", |world| is_told(world, other));
    assert!(world.hosts[0].readiness(other).unwrap().writable);
}

#[test]
fn who_writes_more_of_a_stream_than_there_is_memory_for_is_told_when_there_is_some() {
    let config = Config { send_memory_bytes: 1 << 20, send_buffer_bytes: 4 << 20, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, _) = pair(&mut world, Mode::Stream);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    let sent = world.hosts[0].send(now, client, &message(0, 2 << 20)).expect("some of it");
    assert!((1..2 << 20).contains(&sent), "{sent}");
    assert!(!world.hosts[0].readiness(client).unwrap().writable, "as good as refused: only so there is an edge");
    while world.hosts[0].poll_event().is_some() {}
    wait_for(&mut world, S, "word of memory", |world| is_told(world, client));
    assert!(world.hosts[0].readiness(client).unwrap().writable);
}

#[test]
fn who_waits_until_everything_is_acknowledged_is_told_then_and_nobody_else_is() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, _) = pair(&mut world, Mode::Stream);
    world::pass(&mut world, 50 * MS);
    for waits in [false, true] {
        while world.hosts[0].poll_event().is_some() {}
        let now = world.time();
        world.hosts[0].send(now, client, b"a question").expect("there is room");
        if waits {
            world.hosts[0].await_drained(client);
        }
        world::pass(&mut world, 50 * MS);
        assert_eq!(is_told(&mut world, client), waits);
        assert!(world.hosts[0].readiness(client).unwrap().drained);
    }
}

fn is_told(world: &mut World, channel: ChannelId) -> bool {
    std::iter::from_fn(|| world.hosts[0].poll_event()).any(|event| event == Event::Changed(channel))
}

#[test]
fn who_was_refused_is_told_of_as_much_room_as_that_needed() {
    let config = Config { send_buffer_bytes: 1 << 20, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    let long = message(0, 600_000);
    world.hosts[0].send(now, client, &long).unwrap();
    assert!(world.hosts[0].readiness(client).unwrap().writable);
    assert_eq!(world.hosts[0].send(now, client, &long), Err(SendError::WouldBlock));
    assert!(!world.hosts[0].readiness(client).unwrap().writable, "for that there is no room");
    world.hosts[0].send(now, client, b"short").unwrap();
    assert!(world.hosts[0].readiness(client).unwrap().writable, "and for this there was");
    assert_eq!(world.hosts[0].send(now, client, &long), Err(SendError::WouldBlock));
    while world.hosts[0].poll_event().is_some() {}
    wait_for(&mut world, S, "word of room", |world| is_told(world, client));
    assert!(world.hosts[0].readiness(client).unwrap().writable);
    let now = world.time();
    world.hosts[0].send(now, client, &long).unwrap();
    // Longer than all there is: told when nothing else is under way. A smaller buffer is no reason to wait for ever.
    let longest = message(0, 3 << 20);
    assert_eq!(world.hosts[0].send(now, client, &longest), Err(SendError::WouldBlock));
    world.hosts[0].configure(Config { send_buffer_bytes: 256 << 10, ..config }).unwrap();
    wait_for(&mut world, S, "word of all the room", |world| {
        let mut out = vec![0; 600_000];
        while world.hosts[1].recv(server, &mut out).is_ok() {}
        is_told(world, client)
    });
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, client, &longest), Ok(longest.len()));
}

/// A sender of messages with a send buffer of 1 MiB, of which so many bytes were queued just now.
fn with_queued(queued: usize) -> (World, ChannelId) {
    let config = Config { send_buffer_bytes: 1 << 20, ..Config::default() };
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let (client, _) = pair(&mut world, Mode::Messages);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    world.hosts[0].send(now, client, &message(0, queued)).unwrap();
    while world.hosts[0].poll_event().is_some() {}
    (world, client)
}

#[test]
fn who_wants_little_is_told_whatever_others_were_refused_meanwhile() {
    let (mut world, client) = with_queued(700_000);
    let now = world.time();
    let (short, long) = (message(0, 400_000), message(0, 900_000));
    assert_eq!(world.hosts[0].send(now, client, &short), Err(SendError::WouldBlock));
    assert_eq!(world.hosts[0].send(now, client, &long), Err(SendError::WouldBlock));
    let mut room = 0;
    wait_for(&mut world, S, "word of room", |world| {
        room = (1 << 20) - world.hosts[0].unacknowledged_bytes(client);
        is_told(world, client)
    });
    assert!((400_000..900_000).contains(&room), "{room}");
}

#[test]
fn a_larger_send_buffer_is_told_of_at_once() {
    let (mut world, client) = with_queued(700_000);
    let (now, long) = (world.time(), message(0, 900_000));
    assert_eq!(world.hosts[0].send(now, client, &long), Err(SendError::WouldBlock));
    assert!(!is_told(&mut world, client));
    let larger = Config { send_buffer_bytes: 4 << 20, ..world.hosts[0].config().clone() };
    world.hosts[0].configure(larger).unwrap();
    assert!(is_told(&mut world, client));
    assert_eq!(world.hosts[0].send(now, client, &long), Ok(900_000));
}

#[test]
fn the_longest_message_fits_into_memory_however_short_packets_are() {
    for packet_bytes in [256, 1000, 1472] {
        let config =
            Config { send_memory_bytes: 2 << 20, send_buffer_bytes: 4 << 20, packet_bytes, ..Config::default() };
        let mut world = World::new(2, Net::default(), &config, 1);
        // Memory is in packets of this end's own size; the peer's may be shorter.
        world.hosts[1] = world::endpoint(1, &Config { packet_bytes: 256, ..config.clone() }, 1);
        let (client, _) = pair(&mut world, Mode::Messages);
        world::pass(&mut world, 50 * MS);
        let most = world.hosts[0].longest_message(client).unwrap() as usize;
        let now = world.time();
        let too_long = message(0, most + 1);
        assert_eq!(world.hosts[0].send(now, client, &too_long), Err(SendError::TooLong { limit: most as u64 }));
        for _ in 0..2 {
            assert_eq!(world.hosts[0].send(now, client, &too_long[..most]), Ok(most), "{packet_bytes}: two of {most}");
        }
    }
}

#[test]
fn of_several_who_lack_memory_the_one_who_needs_least_is_told_first() {
    let config = Config { send_memory_bytes: 3_800_000, ..Config::default() };
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let (wanting, _) = pair(&mut world, Mode::Messages);
    let others = [8, 9, 10, 11].map(|port| world::open(&mut world, 0, 1, port, Mode::Messages).0);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    for bytes in [1_000_000, 100_000, 1000] {
        others.iter().for_each(|&other| while world.hosts[0].send(now, other, &message(0, bytes)).is_ok() {});
    }
    for bytes in [100_000, 1_000_000] {
        assert_eq!(world.hosts[0].send(now, wanting, &message(0, bytes)), Err(SendError::WouldBlock));
    }
    while world.hosts[0].poll_event().is_some() {}
    wait_for(&mut world, S, "memory", |world| is_told(world, wanting));
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, wanting, &message(0, 1_000_000)), Err(SendError::WouldBlock));
    assert_eq!(world.hosts[0].send(now, wanting, &message(0, 100_000)), Ok(100_000));
}

#[test]
fn memory_is_told_of_when_there_is_enough_of_it() {
    let config = Config { send_memory_bytes: 3_800_000, ..Config::default() };
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, 1);
    let (wanting, _) = pair(&mut world, Mode::Messages);
    let others = [8, 9, 10].map(|port| world::open(&mut world, 0, 1, port, Mode::Messages).0);
    world::pass(&mut world, 50 * MS);
    let now = world.time();
    others.iter().for_each(|&other| assert!(world.hosts[0].send(now, other, &message(0, 1_000_000)).is_ok()));
    assert!(world.hosts[0].send(now, others[0], &message(0, 900_000)).is_err(), "its buffer is full");
    world.hosts[0].send(now, wanting, &message(0, 10_000)).unwrap();
    let long = message(0, 1_000_000);
    assert_eq!(world.hosts[0].send(now, wanting, &long), Err(SendError::WouldBlock), "there is room, and no memory");
    while world.hosts[0].poll_event().is_some() {}
    let mut told = 0;
    wait_for(&mut world, S, "memory", |world| {
        if is_told(world, wanting) {
            told += 1;
            let now = world.time();
            return world.hosts[0].send(now, wanting, &long).is_ok();
        }
        false
    });
    // Its own acknowledgments are a reason to try again, and then as much memory as it needs.
    assert!(told <= 2, "{told} times");
}
