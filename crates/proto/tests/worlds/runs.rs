//! Packets that continue a run are taken by a shorter way, and what they bring may land in the memory of who waits: neither may make a difference.

use crate::world::{self, Net, US, World, arrival, in_every_way, open, pattern};
use proptest::prelude::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{ChannelId, Config, Counters, Endpoint, Event, Landing, Mode, Path, RecvError, Time};
use ropeway_wire::Packet;

/// A stream and messages from host 0 to host 1, opened; always the same. Numbers wrap around soon, and memory is short.
fn opened(seed: u64) -> (World, [(ChannelId, ChannelId); 2]) {
    let config = Config {
        first_number: Some(0u64.wrapping_sub(seed % 300)),
        receive_memory_bytes: 1 << (20 + seed % 3),
        gate_mode: if seed.is_multiple_of(5) { GateMode::Esp } else { GateMode::Grants },
        ..Config::default()
    };
    let mut world = World::new(2, Net::default(), &config, seed);
    let stream = open(&mut world, 0, 1, 7, Mode::Stream);
    let messages = open(&mut world, 0, 1, 8, Mode::Messages);
    world::pass(&mut world, 200 * US);
    (world, [stream, messages])
}

/// All that an endpoint has to say.
fn said_by(endpoint: &mut Endpoint, now: Time) -> Vec<Vec<u8>> {
    let mut said = Vec::new();
    while endpoint.wants_to_transmit() {
        let before = said.len();
        endpoint.transmit(now, &mut |_, _, packets| {
            said.extend(packets.iter().map(|packet| packet.to_vec()));
            packets.len()
        });
        if said.len() == before {
            break;
        }
    }
    said
}

/// `None`: the end.
fn read_some(endpoint: &mut Endpoint, channel: ChannelId, most: usize) -> Result<Option<Vec<u8>>, RecvError> {
    let mut out = vec![0; most];
    let count = endpoint.recv(channel, &mut out)?;
    out.truncate(count.unwrap_or(0));
    Ok(count.map(|_| out))
}

/// Handles nothing, and so ends a run: the next packet is taken by the long way.
fn end_run(endpoint: &mut Endpoint, now: Time, from: &Path) {
    endpoint.handle_packet(now, from, false, &[]);
}

/// Without the packets that only ended runs, and which of the others were of one.
fn comparable(mut counters: Counters, ended: u64) -> Counters {
    counters.packets_received -= ended;
    counters.packets_in_runs = 0;
    counters.dropped_malformed[Packet::parse(&[]).unwrap_err().index()] -= ended;
    counters
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    /// So many of a length.
    Messages(usize, usize),
    /// The other way.
    Answer(usize),
    Read(usize),
    /// So many of the packets under way arrive together; the pair says what happens to one of them, and to which.
    Arrive(usize, Fate, usize),
    Pass(u64),
    /// The receiver reads no more.
    Stop,
    /// The sender ends the stream, or the messages, in one way or another.
    Shutdown(usize),
    Abort(usize),
    /// The receiver does.
    Close(usize),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    None,
    Lost,
    Twice,
    Late,
    /// One byte of it, or of the header.
    Changed(usize),
    /// A byte more, or less.
    Resized(bool),
    Marked,
    /// Somebody else says the same.
    Elsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        6 => Just(Fate::None),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Late),
        2 => (0usize..40).prop_map(Fate::Changed),
        1 => any::<bool>().prop_map(Fate::Resized),
        1 => Just(Fate::Marked),
        1 => Just(Fate::Elsewhere),
    ];
    prop_oneof![
        6 => (1usize..400_000).prop_map(Step::Write),
        3 => (0usize..60_000).prop_map(|bytes| Step::Messages(bytes, 1)),
        3 => (0usize..2_000, 1usize..100).prop_map(|(bytes, count)| Step::Messages(bytes, count)),
        2 => (1usize..20_000).prop_map(Step::Answer),
        6 => (1usize..300_000).prop_map(Step::Read),
        24 => (1usize..64, fate, 0usize..64).prop_map(|(count, fate, which)| Step::Arrive(count, fate, which)),
        8 => (1u64..3_000).prop_map(Step::Pass),
        1 => prop_oneof![
            Just(Step::Stop),
            (0usize..2).prop_map(Step::Shutdown),
            (0usize..2).prop_map(Step::Abort),
            (0usize..2).prop_map(Step::Close),
        ],
    ]
}

in_every_way!(a_run_is_what_its_packets_are_one_by_one);
in_every_way!(what_arrives_lands_with_who_waits);
proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// One receiver takes what arrives together as a run where it can, the other packet by packet: they say, count and read the same.
    /// Replay with `cargo test -p ropeway-proto --test worlds runs`: a failure writes its seed to tests/proptest-regressions/runs.txt, which is run first from then on.
    fn a_run_is_what_its_packets_are_one_by_one(steps in prop::collection::vec(step(), 1..80), seed: u64) {
        let (mut world, [stream, messages]) = opened(seed);
        let (mut twin, same) = opened(seed);
        prop_assert_eq!([stream, messages], same);
        let (mut now, mut ended, mut offset) = (world.time(), 0, 0);
        let from = arrival(0, 0);
        let mut flying: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            let [a, b] = &mut world.hosts[..] else { unreachable!() };
            let c = &mut twin.hosts[1];
            match step {
                Step::Write(bytes) => {
                    let data: Vec<u8> = (0..bytes as u64).map(|at| pattern(offset + at)).collect();
                    offset += a.send(now, stream.0, &data).unwrap_or(0) as u64;
                }
                Step::Messages(bytes, count) => for of_them in 0..count {
                    let _ = a.send(now, messages.0, &vec![of_them as u8; bytes]);
                },
                Step::Answer(bytes) => {
                    let taken = [b.send(now, stream.1, &vec![5; bytes]), c.send(now, stream.1, &vec![5; bytes])];
                    prop_assert_eq!(taken[0], taken[1]);
                }
                Step::Read(most) => for channel in [stream.1, messages.1] {
                    prop_assert_eq!(read_some(b, channel, most), read_some(c, channel, most));
                },
                Step::Arrive(count, fate, which) => {
                    let mut batch: Vec<Vec<u8>> = flying.drain(..count.min(flying.len())).collect();
                    let which = which % batch.len().max(1);
                    if let (Some(packet), false) = (batch.get(which).cloned(), matches!(fate, Fate::None)) {
                        match fate {
                            Fate::Lost => drop(batch.remove(which)),
                            Fate::Twice => batch.insert(which, packet),
                            Fate::Late => {
                                batch.remove(which);
                                batch.push(packet);
                            }
                            Fate::Changed(at) => batch[which][at % packet.len()] ^= 1 << (at % 8),
                            Fate::Resized(true) => batch[which].push(0),
                            Fate::Resized(false) => drop(batch[which].pop()),
                            _ => {}
                        }
                    }
                    for (at, packet) in batch.iter().enumerate() {
                        let (is_marked, is_foreign) = match fate {
                            Fate::Marked => (at == which, false),
                            Fate::Elsewhere => (false, at == which),
                            _ => (false, false),
                        };
                        let from = if is_foreign { arrival(5, 0) } else { from };
                        b.handle_packet(now, &from, is_marked, packet);
                        end_run(c, now, &from);
                        ended += 1;
                        c.handle_packet(now, &from, is_marked, packet);
                    }
                    b.finish_batch(now);
                    c.finish_batch(now);
                }
                Step::Pass(us) => now = now.after(us * US),
                Step::Stop => [&mut *b, &mut *c].into_iter().for_each(|end| end.stop_reading(stream.1)),
                Step::Shutdown(which) => drop(a.shutdown(now, [stream, messages][which].0)),
                Step::Abort(which) => a.abort(now, [stream, messages][which].0),
                Step::Close(which) => [&mut *b, &mut *c].into_iter().for_each(|end| end.close(now, [stream, messages][which].1)),
            }
            for endpoint in [&mut *a, &mut *b, &mut *c] {
                if endpoint.next_timeout(now).is_some_and(|at| at <= now) {
                    endpoint.handle_timeout(now);
                }
            }
            flying.extend(said_by(a, now));
            let answers = said_by(b, now);
            prop_assert_eq!(&answers, &said_by(c, now));
            for packet in &answers {
                a.handle_packet(now, &arrival(1, 0), false, packet);
            }
            a.finish_batch(now);
            prop_assert_eq!(std::iter::from_fn(|| b.poll_event()).collect::<Vec<_>>(), std::iter::from_fn(|| c.poll_event()).collect::<Vec<_>>());
            prop_assert_eq!(b.next_timeout(now), c.next_timeout(now));
            prop_assert_eq!(c.counters().packets_in_runs, 0);
            prop_assert_eq!(comparable(b.counters(), 0), comparable(c.counters(), ended));
            let (of_b, of_c): (Vec<_>, Vec<_>) = (b.association_statistics(now).collect(), c.association_statistics(now).collect());
            prop_assert_eq!(format!("{of_b:?}"), format!("{of_c:?}"));
        }
    }

    fn what_arrives_lands_with_who_waits(rooms in prop::collection::vec(5_000usize..400_000, 1..20), loss in 0u64..50, seed: u64) {
        carry_to_reader(&rooms, loss, seed);
    }
}

const TOTAL: u64 = 3_000_000;

/// A reader whose memory, of these sizes in turn, is there when packets arrive, and of a thousand packets so many are lost: it reads the same bytes as ever. Says how many of them landed,
/// and how many packets were of runs.
fn carry_to_reader(rooms: &[usize], loss: u64, seed: u64) -> (u64, u64) {
    let (mut world, [stream, _]) = opened(seed);
    let mut now = world.time();
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    let (mut sent, mut read, mut landed, mut turn, mut random) = (0, 0, 0, 0, seed);
    let data: Vec<u8> = (0..TOTAL).map(pattern).collect();
    while read < TOTAL {
        sent += a.send(now, stream.0, &data[sent..]).unwrap_or(0);
        turn += 1;
        assert!(turn < 100_000, "{read} of {TOTAL}");
        let mut out = vec![0; rooms[turn % rooms.len()]];
        let mut landing = Some(Landing::new(stream.1, &mut out));
        for packet in &said_by(a, now) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (random >> 33) % 1000 >= loss {
                b.handle_packet_for(now, &arrival(0, 0), false, packet, &mut landing);
            }
        }
        b.finish_batch(now);
        let count = landing.and_then(|landing| landing.filled()).unwrap_or(0);
        landed += count as u64;
        let count = if count > 0 { count } else { b.recv(stream.1, &mut out).ok().flatten().unwrap_or(0) };
        for (at, &byte) in out[..count].iter().enumerate() {
            assert_eq!(byte, pattern(read + at as u64));
        }
        read += count as u64;
        for packet in said_by(b, now) {
            a.handle_packet(now, &arrival(1, 0), false, &packet);
        }
        a.finish_batch(now);
        now = now.after(20 * US);
        for endpoint in [&mut *a, &mut *b] {
            if endpoint.next_timeout(now).is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now);
            }
        }
    }
    assert_eq!(b.recv(stream.1, &mut [0]), Err(RecvError::WouldBlock));
    assert_eq!(b.buffers_in_use().1, 0);
    (landed, b.counters().packets_in_runs)
}

in_every_way!(messages_of_one_length_are_runs_like_a_stream);
fn messages_of_one_length_are_runs_like_a_stream() {
    let (mut world, [_, messages]) = opened(1);
    let (mut now, mut read, mut sent) = (world.time(), 0, 0);
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    while read < 2000 {
        while sent < 2000 && a.send(now, messages.0, &[sent as u8; 1000]).is_ok() {
            sent += 1;
        }
        said_by(a, now).iter().for_each(|packet| b.handle_packet(now, &arrival(0, 0), false, packet));
        b.finish_batch(now);
        while let Ok(Some(message)) = read_some(b, messages.1, 1000) {
            assert_eq!(message, [read as u8; 1000]);
            read += 1;
        }
        said_by(b, now).iter().for_each(|packet| a.handle_packet(now, &arrival(1, 0), false, packet));
        a.finish_batch(now);
        now = now.after(20 * US);
        for endpoint in [&mut *a, &mut *b] {
            if endpoint.next_timeout(now).is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now);
            }
        }
    }
    let (packets, in_runs) = (b.counters().packets_received, b.counters().packets_in_runs);
    assert!(in_runs * 10 > packets * 7, "{in_runs} of {packets}");
}

in_every_way!(most_of_a_transfer_lands);
/// It also says that there are runs in what the other tests carry.
fn most_of_a_transfer_lands() {
    let (landed, in_runs) = carry_to_reader(&[400_000], 0, 1);
    println!("{landed} of {TOTAL} bytes, {in_runs} packets in runs");
    assert!(landed > TOTAL / 10 * 9, "{landed} of {TOTAL}");
    assert!(in_runs > TOTAL / 1460 / 10 * 8, "{in_runs}");
}

/// What a reader gets who calls again and again with `room`, as an engine does: memory that is there when packets arrive, or is filled from what came before.
fn messages_read(
    b: &mut Endpoint,
    now: Time,
    channel: ChannelId,
    packets: &[Vec<u8>],
    room: usize,
) -> (Vec<Vec<u8>>, usize) {
    let (mut read, mut landed) = (Vec::new(), 0);
    let mut out = vec![0; room];
    let mut landing = Some(Landing::new(channel, &mut out));
    packets.iter().for_each(|packet| b.handle_packet_for(now, &arrival(0, 0), false, packet, &mut landing));
    b.finish_batch(now);
    if let Some(count) = landing.and_then(|landing| landing.filled()) {
        landed += 1;
        read.push(out[..count].to_vec());
    }
    while let Ok(Some(message)) = read_some(b, channel, room) {
        read.push(message);
    }
    (read, landed)
}

/// The same ends, which send at once what they are given and have told all their news.
fn prompt(seed: u64) -> (World, [(ChannelId, ChannelId); 2]) {
    let (mut world, channels) = opened(seed);
    channels.iter().for_each(|channel| world.hosts[0].set_no_delay(channel.0, true));
    while world.hosts[1].poll_event().is_some() {}
    (world, channels)
}

/// Hands over a message, takes all that is to be sent, and has it acknowledged later.
fn sent(a: &mut Endpoint, now: Time, channel: ChannelId, message: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(a.send(now, channel, message), Ok(message.len()));
    said_by(a, now)
}

fn acknowledge(b: &mut Endpoint, a: &mut Endpoint, now: Time) {
    let late = now.after(1000 * US);
    b.handle_timeout(late);
    said_by(b, late).iter().for_each(|packet| a.handle_packet(late, &arrival(1, 0), false, packet));
    a.finish_batch(late);
}

in_every_way!(the_first_message_lands_and_those_behind_it_are_kept);
fn the_first_message_lands_and_those_behind_it_are_kept() {
    let (mut world, [_, messages]) = prompt(1);
    let now = world.time();
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    let packets: Vec<_> = [0, 1, 7].iter().flat_map(|&bytes| sent(a, now, messages.0, &[7; 7][..bytes])).collect();
    let (read, landed) = messages_read(b, now, messages.1, &packets, 700);
    assert_eq!((read, landed), (vec![vec![], vec![7], vec![7; 7]], 1));
    assert_eq!(b.poll_event(), Some(Event::Changed(messages.1)), "of those behind it");
    assert_eq!((b.poll_event(), b.buffers_in_use().1), (None, 0));
}

in_every_way!(a_message_that_lands_is_no_news_for_others_and_takes_no_memory);
fn a_message_that_lands_is_no_news_for_others_and_takes_no_memory() {
    let (mut world, [_, messages]) = prompt(1);
    let mut now = world.time();
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    let before = b.counters().buffers_taken;
    // More than the first window: what lands is credited as what is read.
    for round in 0..5000u32 {
        let message = [round as u8; 900];
        let packets = sent(a, now, messages.0, &message);
        let (read, landed) = messages_read(b, now, messages.1, &packets, 1000);
        assert!(read == [message] && landed == 1, "round {round}: {landed} of {}", read.len());
        acknowledge(b, a, now);
        now = now.after(2000 * US);
    }
    assert_eq!((b.poll_event(), b.counters().buffers_taken), (None, before));
    assert_eq!(b.recv(messages.1, &mut [0; 10]), Err(RecvError::WouldBlock));
}

in_every_way!(what_does_not_fit_or_is_not_next_or_not_wanted_does_not_land);
fn what_does_not_fit_or_is_not_next_or_not_wanted_does_not_land() {
    let (mut world, [_, messages]) = prompt(1);
    let now = world.time();
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    let packets = sent(a, now, messages.0, &[1; 5]);
    assert_eq!(messages_read(b, now, messages.1, &packets, 4), (vec![], 0));
    assert_eq!(b.recv(messages.1, &mut [0; 4]), Err(RecvError::TooShort { message_bytes: 5 }));
    acknowledge(b, a, now);
    // Behind one that nobody has read.
    let packets = sent(a, now, messages.0, &[2; 5]);
    assert_eq!(messages_read(b, now, messages.1, &packets, 5), (vec![vec![1; 5], vec![2; 5]], 0));
    acknowledge(b, a, now);
    // Of several packets.
    let packets = sent(a, now, messages.0, &[3; 3000]);
    let (read, landed) = messages_read(b, now, messages.1, &packets, 3000);
    assert!(read == [[3; 3000]] && landed == 0, "{landed} of {}", read.len());
    acknowledge(b, a, now);
    b.stop_reading(messages.1);
    let packets = sent(a, now, messages.0, &[4; 5]);
    assert_eq!(messages_read(b, now, messages.1, &packets, 5).1, 0);
}

in_every_way!(short_messages_of_a_stream_land_without_a_run);
fn short_messages_of_a_stream_land_without_a_run() {
    let (mut world, [stream, _]) = prompt(1);
    let now = world.time();
    let [a, b] = &mut world.hosts[..] else { unreachable!() };
    for bytes in [1, 64, 900] {
        let packets = sent(a, now, stream.0, &vec![7; bytes]);
        let mut out = vec![0; 1000];
        let mut landing = Some(Landing::new(stream.1, &mut out));
        packets.iter().for_each(|packet| b.handle_packet_for(now, &arrival(0, 0), false, packet, &mut landing));
        b.finish_batch(now);
        assert_eq!(landing.and_then(|landing| landing.filled()), Some(bytes));
        assert_eq!(out[..bytes], vec![7; bytes]);
    }
    assert_eq!((b.counters().packets_in_runs, b.poll_event()), (0, None));
}

in_every_way!(nothing_lands_with_who_waits_for_another_channel);
fn nothing_lands_with_who_waits_for_another_channel() {
    for is_own in [true, false] {
        let (mut world, [stream, messages]) = opened(1);
        let now = world.time();
        let [a, b] = &mut world.hosts[..] else { unreachable!() };
        let data: Vec<u8> = (0..30_000).map(pattern).collect();
        assert_eq!(a.send(now, stream.0, &data), Ok(data.len()));
        let mut out = vec![0; 100_000];
        let mut landing = Some(Landing::new(if is_own { stream.1 } else { messages.1 }, &mut out));
        // What may be sent without a grant.
        for packet in said_by(a, now) {
            b.handle_packet_for(now, &arrival(0, 0), false, &packet, &mut landing);
        }
        b.finish_batch(now);
        let filled = landing.unwrap().filled().unwrap_or(0);
        if is_own {
            assert!(filled > 4_000 && out[..filled] == data[..filled], "{filled}");
            continue;
        }
        assert_eq!(filled, 0);
        let read = read_some(b, stream.1, 100_000).unwrap().unwrap();
        assert!(read.len() > 4_000 && read == data[..read.len()]);
    }
}
