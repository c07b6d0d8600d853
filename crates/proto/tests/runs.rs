//! Packets that continue a run are taken by a shorter way, and what they bring may land in the memory of who waits: neither may make a difference.

mod world;

use proptest::prelude::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{ChannelId, Config, Counters, Endpoint, Landing, Mode, Path, RecvError, Time};
use ropeway_wire::Packet;
use world::{Net, US, World, open, path, pattern};

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

/// Without the packets that only ended runs.
fn comparable(mut counters: Counters, ended: u64) -> Counters {
    counters.packets_received -= ended;
    counters.dropped_malformed[Packet::parse(&[]).unwrap_err().index()] -= ended;
    counters
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Message(usize),
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
        4 => (0usize..60_000).prop_map(Step::Message),
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// One receiver takes what arrives together as a run where it can, the other packet by packet: they say, count and read the same.
    /// Replay with `cargo test -p ropeway-proto --test runs`: a failure writes its seed to tests/runs.proptest-regressions, which is run first from then on.
    #[test]
    fn a_run_is_what_its_packets_are_one_by_one(steps in prop::collection::vec(step(), 1..80), seed: u64) {
        let (mut world, [stream, messages]) = opened(seed);
        let (mut twin, same) = opened(seed);
        prop_assert_eq!([stream, messages], same);
        let (mut now, mut ended, mut offset) = (world.time(), 0, 0);
        let from = path(0);
        let mut flying: Vec<Vec<u8>> = Vec::new();
        for step in steps {
            let [a, b] = &mut world.hosts[..] else { unreachable!() };
            let c = &mut twin.hosts[1];
            match step {
                Step::Write(bytes) => {
                    let data: Vec<u8> = (0..bytes as u64).map(|at| pattern(offset + at)).collect();
                    offset += a.send(now, stream.0, &data).unwrap_or(0) as u64;
                }
                Step::Message(bytes) => drop(a.send(now, messages.0, &vec![9; bytes])),
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
                        let from = if is_foreign { path(5) } else { from };
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
                a.handle_packet(now, &path(1), false, packet);
            }
            a.finish_batch(now);
            prop_assert_eq!(std::iter::from_fn(|| b.poll_event()).collect::<Vec<_>>(), std::iter::from_fn(|| c.poll_event()).collect::<Vec<_>>());
            prop_assert_eq!(b.next_timeout(now), c.next_timeout(now));
            prop_assert_eq!(b.counters(), comparable(c.counters(), ended));
            let (of_b, of_c): (Vec<_>, Vec<_>) = (b.association_statistics(now).collect(), c.association_statistics(now).collect());
            prop_assert_eq!(format!("{of_b:?}"), format!("{of_c:?}"));
        }
    }

    #[test]
    fn what_arrives_lands_with_who_waits(rooms in prop::collection::vec(5_000usize..400_000, 1..20), loss in 0u64..50, seed: u64) {
        carry_to_reader(&rooms, loss, seed);
    }
}

const TOTAL: u64 = 3_000_000;

/// A reader whose memory, of these sizes in turn, is there when packets arrive, and of a thousand packets so many are lost: it reads the same bytes as ever. Says how many of them landed.
fn carry_to_reader(rooms: &[usize], loss: u64, seed: u64) -> u64 {
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
                b.handle_packet_for(now, &path(0), false, packet, &mut landing);
            }
        }
        b.finish_batch(now);
        let count = landing.map_or(0, |landing| landing.filled());
        landed += count as u64;
        let count = if count > 0 { count } else { b.recv(stream.1, &mut out).ok().flatten().unwrap_or(0) };
        for (at, &byte) in out[..count].iter().enumerate() {
            assert_eq!(byte, pattern(read + at as u64));
        }
        read += count as u64;
        for packet in said_by(b, now) {
            a.handle_packet(now, &path(1), false, &packet);
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
    landed
}

/// Only what continues a run lands: so this also says that there are runs in what the other tests carry.
#[test]
fn most_of_a_transfer_lands() {
    let landed = carry_to_reader(&[400_000], 0, 1);
    println!("{landed} of {TOTAL} bytes");
    assert!(landed > TOTAL / 10 * 8, "{landed} of {TOTAL}");
}

#[test]
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
            b.handle_packet_for(now, &path(0), false, &packet, &mut landing);
        }
        b.finish_batch(now);
        let filled = landing.unwrap().filled();
        if is_own {
            assert!(filled > 4_000 && out[..filled] == data[..filled], "{filled}");
            continue;
        }
        assert_eq!(filled, 0);
        let read = read_some(b, stream.1, 100_000).unwrap().unwrap();
        assert!(read.len() > 4_000 && read == data[..read.len()]);
    }
}
