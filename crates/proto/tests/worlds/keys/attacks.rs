//! Somebody on the path, who sees, changes, repeats, delays and makes packets as he likes, and has no key.

use crate::world::*;
use ropeway_proto::crypto::{Initiator, OpenError};
use ropeway_proto::{AcceptError, ChannelId, Config, Endpoint, ErrorCode, Mode, Time};
use ropeway_wire::{
    BASE_HEADER_BYTES, BlockWriter, CHANNEL_HEADER_BYTES, COUNTER_BYTES, ConfirmFields, CookieFields, FEATURE_KEYED,
    Flags, Header, Id, Malformed, OpenFields, Packet, Parameters, RedirectFields, RefusedFields, RstFields, SynFields,
    TAG_BYTES, Type, VersionFields,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

type Log = Rc<RefCell<Vec<(usize, usize, Vec<u8>)>>>;

/// Writes down everything from now on.
fn listen_in(world: &mut World) -> Log {
    let log = Log::default();
    let written = log.clone();
    world.attacker = Some(Box::new(move |_, from, to, bytes| {
        written.borrow_mut().push((from, to, bytes.to_vec()));
        vec![(from, to, bytes.to_vec())]
    }));
    log
}

fn open_pair(config: &Config) -> (World, ChannelId, ChannelId) {
    let mut world = World::new(2, Net::default(), config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    stream(&mut world, (1, server), (0, client), 100_000, S);
    (world, client, server)
}

fn refused(world: &World, host: usize, error: OpenError) -> u64 {
    world.hosts[host].counters().dropped_sealed[error.index()]
}

/// All that an endpoint says about its associations, but what it counts of dropped packets.
fn state(endpoint: &Endpoint, now: Time) -> String {
    let all: Vec<_> = endpoint
        .association_statistics(now)
        .map(|mut association| {
            if let Some(sealing) = &mut association.sealing {
                sealing.refused = Default::default();
            }
            association
        })
        .collect();
    format!("{all:?} {:?} {:?}", endpoint.sizes(), endpoint.buffers_in_use())
}

fn nothing_ended(world: &World) {
    for host in &world.hosts {
        assert_eq!(host.counters().associations_ended.iter().sum::<u64>(), 0, "{:?}", host.counters());
    }
}

/// Seals nothing, but looks like it.
fn garbage(world: &mut World, header: Header, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; header.bytes() + length];
    header.write(&mut bytes).unwrap();
    for byte in &mut bytes[header.bytes()..] {
        *byte = world.random() as u8;
    }
    bytes
}

with_a_key!(no_changed_bit_and_no_missing_byte_is_taken_and_none_changes_anything);
fn no_changed_bit_and_no_missing_byte_is_taken_and_none_changes_anything() {
    let (mut world, client, server) = open_pair(&Config::default());
    // One packet each of a channel's data, of an acknowledgment, of a question.
    let held: Rc<RefCell<VecDeque<Vec<u8>>>> = Rc::default();
    let caught = held.clone();
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        if from == 0 {
            caught.borrow_mut().push_back(bytes.to_vec());
        }
        from != 0
    }));
    let now = world.time();
    world.hosts[0].send(now, client, b"genuine").unwrap();
    world.hosts[0].flush(client);
    pass(&mut world, 50 * MS);
    world.hosts[1].send(now, server, b"and back").unwrap();
    world.hosts[1].flush(server);
    pass(&mut world, 50 * MS);
    world.filter = None;
    let packets: Vec<Vec<u8>> = held.borrow_mut().drain(..).collect();
    let kinds: Vec<Type> = packets.iter().map(|bytes| Packet::parse(bytes).unwrap().header.kind).collect();
    for kind in [Type::Data, Type::State, Type::Control] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let now = world.time();
    let before = state(&world.hosts[1], now);
    let received = world.hosts[1].counters().packets_received;
    let mut forged = 0;
    for genuine in &packets {
        for bit in 0..genuine.len() * 8 {
            let mut changed = genuine.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            world.hosts[1].handle_packet(now, &path(0), false, &changed);
            forged += 1;
        }
        for length in 0..genuine.len() {
            world.hosts[1].handle_packet(now, &path(0), false, &genuine[..length]);
            forged += 1;
        }
    }
    world.hosts[1].finish_batch(now);
    assert_eq!(state(&world.hosts[1], now), before);
    let counters = world.hosts[1].counters();
    assert_eq!(counters.packets_received - received, forged);
    let dropped = counters.dropped_sealed.iter().sum::<u64>()
        + counters.dropped_malformed.iter().sum::<u64>()
        + counters.dropped_unknown_id
        + counters.dropped_cookie
        + counters.dropped_unasked
        + counters.dropped_reset;
    assert!(counters.dropped_sealed[OpenError::Forged.index()] > forged / 2);
    assert_eq!(dropped, forged, "each is counted once: {counters:?}");
    // The genuine ones open all the same, with bytes of a medium's padding behind them.
    for genuine in &packets {
        let padded = [&genuine[..], &[0; 20]].concat();
        world.hosts[1].handle_packet(now, &path(0), false, &padded);
    }
    world.hosts[1].finish_batch(now);
    assert_ne!(state(&world.hosts[1], now), before);
    assert_eq!(world.hosts[1].recv(server, &mut [0; 10]), Ok(Some(7)));
    nothing_ended(&world);
}

with_a_key!(what_is_longer_than_agreed_on_costs_no_trial);
fn what_is_longer_than_agreed_on_costs_no_trial() {
    let (mut world, client, server) = open_pair(&Config::default());
    let log = listen_in(&mut world);
    stream(&mut world, (0, client), (1, server), 10_000, S);
    world.attacker = None;
    let data = log.borrow().iter().rev().find(|(from, _, bytes)| *from == 0 && bytes[0] == 0x17).cloned().unwrap().2;
    let seen = Packet::parse(&data).unwrap().header;
    let now = world.time();
    let before = state(&world.hosts[1], now);
    let outcomes = |world: &World| {
        let malformed = world.hosts[1].counters().dropped_malformed[Malformed::PayloadLength.index()];
        [malformed, refused(world, 1, OpenError::Forged)]
    };
    let [malformed, forged] = outcomes(&world);
    let most = 1472 - CHANNEL_HEADER_BYTES - COUNTER_BYTES - TAG_BYTES;
    for (at, length) in [most + 1, 9_000, 65_000].into_iter().enumerate() {
        let header = Header { length: length as u16, ..seen };
        let bytes = garbage(&mut world, header, COUNTER_BYTES + length + TAG_BYTES);
        world.hosts[1].handle_packet(now, &path(0), false, &with_next_counter(bytes, &data));
        assert_eq!(outcomes(&world), [malformed + at as u64 + 1, forged], "{length} bytes");
    }
    let bytes = garbage(&mut world, Header { length: most as u16, ..seen }, COUNTER_BYTES + most + TAG_BYTES);
    world.hosts[1].handle_packet(now, &path(0), false, &with_next_counter(bytes, &data));
    assert_eq!(outcomes(&world), [malformed + 3, forged + 1], "as long as agreed on");
    assert_eq!(state(&world.hosts[1], now), before);
}

/// These bytes under a counter that has not been seen, if `seen` is one of the newest packets.
fn with_next_counter(mut bytes: Vec<u8>, seen: &[u8]) -> Vec<u8> {
    let at = CHANNEL_HEADER_BYTES..CHANNEL_HEADER_BYTES + COUNTER_BYTES;
    let counter = u32::from_be_bytes(seen[at.clone()].try_into().unwrap());
    bytes[at].copy_from_slice(&(counter + 100).to_be_bytes());
    bytes
}

with_a_key!(what_is_not_sealed_is_nothing_to_an_association_with_a_key);
fn what_is_not_sealed_is_nothing_to_an_association_with_a_key() {
    let (mut world, ..) = open_pair(&Config::default());
    let log = listen_in(&mut world);
    let (client, server) = open(&mut world, 0, 1, 8, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 10_000, S);
    world.attacker = None;
    let data = log.borrow().iter().rev().find(|(from, _, bytes)| *from == 0 && bytes[0] == 0x17).cloned().unwrap().2;
    let seen = Packet::parse(&data).unwrap().header;
    let now = world.time();
    let before = state(&world.hosts[1], now);
    let dropped = world.hosts[1].counters().dropped_sealed.iter().sum::<u64>();
    let mut blocks = [0; 100];
    let mut writer = BlockWriter::new(&mut blocks);
    assert!(writer.rrq(seen.ack, 100) && writer.credit(0, u64::MAX));
    let length = writer.len();
    let mut sent = 0;
    for kind in [Type::Data, Type::Open, Type::Fin, Type::Abort, Type::Control, Type::State, Type::Pin] {
        for padding in [0, 1, 4, 19, 20, 21, 1000] {
            let payload: Vec<u8> = match kind {
                Type::Control | Type::State => blocks[..length].to_vec(),
                Type::Fin | Type::Abort => vec![0, 0],
                Type::Open => vec![0, 7, 0, 9, 0, 0, 0, 0],
                Type::Pin => vec![],
                _ => vec![1; 10],
            };
            // Everything in the header as it would be, the next number included.
            let header = Header { kind, number: seen.number + 1, length: payload.len() as u16, ..seen };
            let mut bytes = vec![0; header.bytes()];
            header.write(&mut bytes).unwrap();
            bytes.extend(payload);
            bytes.resize(bytes.len() + padding, 0);
            world.hosts[1].handle_packet(now, &path(0), false, &bytes);
            sent += 1;
        }
    }
    assert_eq!(state(&world.hosts[1], now), before);
    assert_eq!(world.hosts[1].counters().dropped_sealed.iter().sum::<u64>() - dropped, sent);
    assert!(refused(&world, 1, OpenError::Short) > 0);
    stream(&mut world, (0, client), (1, server), 10_000, S);
}

with_a_key!(repeated_packets_are_taken_once_however_often_and_late);
fn repeated_packets_are_taken_once_however_often_and_late() {
    let mut world = World::new(2, Net { loss_ppm: 10_000, ..Net::default() }, &Config::default(), 3);
    let mut old: Vec<(usize, usize, Vec<u8>)> = Vec::new();
    let mut turn = 0;
    world.attacker = Some(Box::new(move |_, from, to, bytes| {
        turn += 7;
        old.push((from, to, bytes.to_vec()));
        // Every packet at once a second time, and an old one besides.
        let again = old[turn % old.len()].clone();
        vec![(from, to, bytes.to_vec()), (from, to, bytes.to_vec()), again]
    }));
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows =
        [Flow::stream((0, client), (1, server), 2_000_000), Flow::stream((1, server), (0, client), 2_000_000)];
    carry(&mut world, &mut flows, 60 * S);
    for host in 0..2 {
        let seen = refused(&world, host, OpenError::Replayed);
        assert!(seen > 1000, "{seen}");
        let duplicates = world.hosts[host].counters().dropped_duplicate;
        let resent = world.hosts[1 - host].counters().resent;
        assert!(duplicates <= resent, "{duplicates} of {resent} repetitions got through to the numbers");
    }
    nothing_ended(&world);
    assert_eq!(world.hosts[1].sizes(), (1, 1));
}

with_a_key!(packets_thrown_back_at_their_senders_do_nothing);
fn packets_thrown_back_at_their_senders_do_nothing() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    // Who asks for port 7 has one himself: he could be made to talk to himself.
    world.hosts[0].listen(7, Mode::Stream, 4).unwrap();
    world.attacker = Some(Box::new(|_, from, to, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        let mut back = bytes.to_vec();
        // Both ends may have given out the same id; otherwise it is put there.
        let mut thrown = vec![(from, to, bytes.to_vec()), (to, from, bytes.to_vec())];
        if header.kind.is_sealed() {
            for generation in 0..16 {
                let id = Id::new(header.destination.steering(), header.destination.slot(), generation);
                back[4..8].copy_from_slice(&id.0.to_be_bytes());
                thrown.push((to, from, back.clone()));
            }
        }
        thrown
    }));
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 300_000, 60 * S);
    stream(&mut world, (1, server), (0, client), 300_000, 60 * S);
    for host in 0..2 {
        // By their counters they were seen before; if not, the tag is wrong.
        assert!(world.hosts[host].counters().dropped_sealed.iter().sum::<u64>() > 100);
        assert_eq!(world.hosts[host].sizes(), (1, 1));
    }
    nothing_ended(&world);
}

with_a_key!(nobody_is_made_to_talk_to_himself_in_place_of_another);
fn nobody_is_made_to_talk_to_himself_in_place_of_another() {
    // Everything comes back, nothing reaches host 1; at once, or in the name of yet another host, so that the cookie is good for that one.
    for by in [1, 2] {
        let mut world = World::new(3, Net::default(), &Config::default(), 3);
        world.hosts[0].listen(7, Mode::Stream, 4).unwrap();
        world.attacker = Some(Box::new(move |_, _, to, bytes| match Packet::parse(bytes).unwrap().header.kind {
            Type::Syn | Type::Confirm => vec![(by, 0, bytes.to_vec())],
            _ => vec![(if to == by { 1 } else { to }, 0, bytes.to_vec())],
        }));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        pass(&mut world, 20 * S);
        assert_eq!(world.hosts[0].readiness(client).unwrap().failed, Some(ErrorCode::Timeout));
        assert_eq!(world.hosts[0].accept(7), Err(AcceptError::WouldBlock));
        assert_eq!(world.hosts[0].counters().associations_opened, 0);
    }
}

with_a_key!(nothing_can_be_carried_from_one_association_into_another);
fn nothing_can_be_carried_from_one_association_into_another() {
    // Hosts 0 and 2 talk to host 1. What one sends is sent again as the other's, with the other's id; and payloads and tags change places.
    let mut world = World::new(3, Net::default(), &Config::default(), 3);
    let (a, a_end) = open(&mut world, 0, 1, 7, Mode::Stream);
    let (b, b_end) = open(&mut world, 2, 1, 7, Mode::Stream);
    let mut newest: [Option<Vec<u8>>; 3] = Default::default();
    world.attacker = Some(Box::new(move |_, from, to, bytes| {
        let mut out = vec![(from, to, bytes.to_vec())];
        let other = 2 - from;
        if to != 1 || !Packet::parse(bytes).unwrap().header.kind.is_sealed() {
            return out;
        }
        if let Some(theirs) = newest.get(other).cloned().flatten() {
            // Our packet, to their association.
            let mut moved = bytes.to_vec();
            moved[4..8].copy_from_slice(&theirs[4..8]);
            out.push((other, to, moved.clone()));
            // With their counter, the next one they will use.
            let at = Packet::parse(bytes).unwrap().header.bytes();
            let theirs_at = Packet::parse(&theirs).unwrap().header.bytes();
            if let Some(counter) = theirs.get(theirs_at..theirs_at + 4) {
                let next = u32::from_be_bytes(counter.try_into().unwrap()) + 1000;
                moved[at..at + 4].copy_from_slice(&next.to_be_bytes());
                out.push((other, to, moved));
            }
            // Their header and counter before our payload and tag.
            let spliced = [&theirs[..theirs_at + 4], &bytes[at + 4..]].concat();
            out.push((other, to, spliced));
        }
        newest[from] = Some(bytes.to_vec());
        out
    }));
    let mut flows = [
        Flow::stream((0, a), (1, a_end), 500_000),
        Flow::stream((2, b), (1, b_end), 500_000),
        Flow::stream((1, a_end), (0, a), 200_000),
        Flow::stream((1, b_end), (2, b), 200_000),
    ];
    carry(&mut world, &mut flows, 60 * S);
    assert!(refused(&world, 1, OpenError::Forged) > 300);
    nothing_ended(&world);
}

with_a_key!(whatever_is_said_in_answer_to_a_syn_stops_no_attempt_while_the_server_answers_too);
fn whatever_is_said_in_answer_to_a_syn_stops_no_attempt_while_the_server_answers_too() {
    let answers: [fn(&Header, &SynFields) -> Vec<u8>; 6] = [
        |_, syn| short(Type::Refused, syn, &refusal(syn.nonce, ErrorCode::Refused)),
        |_, syn| short(Type::Refused, syn, &refusal(syn.nonce, ErrorCode::Key)),
        |_, syn| short(Type::Refused, syn, &refusal(syn.nonce, ErrorCode::Crossed)),
        |_, syn| {
            let mut payload = [0; 100];
            let written = VersionFields { nonce: syn.nonce, versions: &[9] }.write(&mut payload).unwrap();
            short(Type::Version, syn, &payload[..written])
        },
        |_, syn| {
            let mut payload = [0; RedirectFields::BYTES];
            RedirectFields { nonce: syn.nonce, address: "192.0.2.1:9".parse().unwrap() }.write(&mut payload).unwrap();
            short(Type::Redirect, syn, &payload)
        },
        // An OPENED without a key, with parameters of the attacker's.
        |_, syn| {
            let parameters = Parameters { id: Id::new(1, 2, 3), window: 1 << 20, ..Parameters::default() };
            let mut payload = syn.nonce.to_be_bytes().to_vec();
            payload.resize(8 + Parameters::BYTES, 0);
            parameters.write(&mut payload[8..]).unwrap();
            short(Type::Opened, syn, &payload)
        },
    ];
    for (which, answer) in answers.into_iter().enumerate() {
        let mut world = World::new(2, Net::default(), &Config::default(), 3);
        world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
        world.attacker = Some(Box::new(move |_, from, to, bytes| {
            let packet = Packet::parse(bytes).unwrap();
            let mut out = vec![(from, to, bytes.to_vec())];
            let syn = match packet.header.kind {
                Type::Syn => SynFields::parse(packet.payload).unwrap(),
                Type::Confirm => ConfirmFields::parse(packet.payload).unwrap().syn,
                _ => return out,
            };
            // It is there before the server's answer.
            out.insert(0, (to, from, answer(&packet.header, &syn)));
            out
        }));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        let taken = wait_for(&mut world, 20 * S, "open", |world| world.hosts[0].readiness(client).unwrap().opened);
        assert_eq!(world.hosts[0].readiness(client).unwrap().failed, None, "answer {which}");
        assert!(taken < 2 * S, "answer {which}: {taken}");
        let server = world.hosts[1].accept(7).unwrap();
        stream(&mut world, (0, client), (1, server), 10_000, S);
    }
}

fn refusal(nonce: u64, code: ErrorCode) -> Vec<u8> {
    let mut payload = vec![0; RefusedFields::BYTES];
    RefusedFields { nonce, code }.write(&mut payload).unwrap();
    payload
}

/// A packet to whoever sent that SYN.
fn short(kind: Type, syn: &SynFields, payload: &[u8]) -> Vec<u8> {
    let header = Header { length: payload.len() as u16, ..Header::new(kind, syn.source) };
    let mut bytes = vec![0; BASE_HEADER_BYTES];
    header.write(&mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

with_a_key!(what_a_stranger_says_without_proof_is_told_when_the_time_is_over);
fn what_a_stranger_says_without_proof_is_told_when_the_time_is_over() {
    for code in [ErrorCode::Key, ErrorCode::Version, ErrorCode::Refused] {
        let mut world = World::new(2, Net::default(), &Config::default(), 3);
        world.attacker = Some(Box::new(move |_, from, to, bytes| {
            let packet = Packet::parse(bytes).unwrap();
            let Ok(syn) = SynFields::parse(packet.payload) else { return vec![] };
            // The genuine SYN is lost.
            vec![(to, from, short(Type::Refused, &syn, &refusal(syn.nonce, code)))]
        }));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        let failed = |world: &mut World| world.hosts[0].readiness(client).unwrap().failed;
        let taken = wait_for(&mut world, 20 * S, "over", |world| failed(world).is_some());
        assert_eq!((failed(&mut world), taken), (Some(code), 10 * S));
    }
}

with_a_key!(a_second_cookie_and_answers_with_a_changed_header_do_not_spoil_an_attempt);
fn a_second_cookie_and_answers_with_a_changed_header_do_not_spoil_an_attempt() {
    for part in 0..3 {
        let mut world = World::new(2, Net::default(), &Config::default(), 3);
        world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
        world.attacker = Some(Box::new(move |_, from, to, bytes| {
            let packet = Packet::parse(bytes).unwrap();
            let mut out = vec![(from, to, bytes.to_vec())];
            let mut changed = bytes.to_vec();
            match (packet.header.kind, part) {
                (Type::Cookie, 0) => {
                    let fields = CookieFields::parse(packet.payload).unwrap();
                    changed[36 + fields.cookie.0.len() - 1] ^= 1;
                    out.push((from, to, changed));
                }
                // Before the genuine one: the grant, the acknowledgment, the first number; then the message itself.
                (Type::Opened, 1) => {
                    for at in 8..BASE_HEADER_BYTES {
                        let mut changed = changed.clone();
                        changed[at] ^= 0x40;
                        out.insert(0, (from, to, changed));
                    }
                }
                (Type::Opened, 2) => {
                    for at in (BASE_HEADER_BYTES + 8..changed.len()).step_by(7) {
                        let mut changed = changed.clone();
                        changed[at] ^= 0x40;
                        out.insert(0, (from, to, changed));
                    }
                }
                _ => {}
            }
            out
        }));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        let opened = |world: &mut World| world.hosts[0].readiness(client).unwrap().opened;
        let taken = wait_for(&mut world, 20 * S, "open", opened);
        assert_eq!(taken, 80 * US, "attack {part}");
        let dropped = world.hosts[0].counters().dropped_handshake.iter().sum::<u64>();
        assert_eq!(dropped > 10, part > 0, "{dropped}");
        let server = world.hosts[1].accept(7).unwrap();
        stream(&mut world, (0, client), (1, server), 10_000, S);
    }
}

/// A member of the cluster whose packets are made by hand, so that it can have early data.
struct Member {
    initiator: Initiator,
    confirm: Vec<u8>,
}

const EARLY: &[u8] = b"pay 100 to Bob";

impl Member {
    /// Asks host 1 in the name of host 0, and makes the CONFIRM with early data.
    fn ask(world: &mut World, nonce: u64, early: &[u8]) -> Member {
        let now = world.time();
        let syn = SynFields {
            source: Id::new(1, 77, 0),
            nonce,
            node: 1,
            destination_port: 7,
            source_port: 9,
            packet_size: 1472,
            lowest_version: 1,
            highest_version: 1,
            features: FEATURE_KEYED,
        };
        let mut bytes = vec![0; 1472];
        let header = Header { length: 1472 - 24, ..Header::new(Type::Syn, Id::any(7)) };
        let at = header.write(&mut bytes).unwrap();
        syn.write(&mut bytes[at..]).unwrap();
        world.hosts[1].handle_packet(now, &path(0), false, &bytes);
        let answer = said(&mut world.hosts[1], now).pop().expect("a cookie");
        let fields = CookieFields::parse(Packet::parse(&answer).unwrap().payload).unwrap();
        let parameters = Parameters { id: syn.source, first_number: 5, window: 1 << 20, ..Parameters::default() };
        let mut inside = vec![0; Parameters::BYTES + OpenFields::BYTES];
        parameters.write(&mut inside).unwrap();
        let open = OpenFields { destination_port: 7, source_port: 9, mode: Mode::Messages, early: &[] };
        open.write(&mut inside[Parameters::BYTES..]).unwrap();
        inside.extend_from_slice(early);
        let rest = 48 + inside.len();
        let mut confirm = vec![0; BASE_HEADER_BYTES + ConfirmFields::BYTES];
        let flags = Flags::FIRST | Flags::LAST;
        let length = (ConfirmFields::BYTES + rest) as u16;
        let at = Header { flags, length, number: 5, ..Header::new(Type::Confirm, Id::any(7)) }.write(&mut confirm);
        let confirmed = ConfirmFields { syn, cookie: fields.cookie, parameters: Parameters::default(), rest: &[] };
        confirmed.write(&mut confirm[at.unwrap()..]).unwrap();
        let key = cluster_keys(&[1]);
        let mut initiator = Initiator::new(key.first(), &confirm, [nonce as u8; 32]);
        let mut message = vec![0; rest];
        initiator.write(&inside, &mut message).unwrap();
        confirm.extend(message);
        Member { initiator, confirm }
    }
}

/// What an endpoint has to say now.
fn said(endpoint: &mut Endpoint, now: Time) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    endpoint.transmit(now, &mut |_, _, packets| {
        out.extend(packets.iter().map(|packet| packet.to_vec()));
        packets.len()
    });
    out
}

with_a_key!(early_data_of_a_repeated_confirm_are_delivered_once);
fn early_data_of_a_repeated_confirm_are_delivered_once() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    world.hosts[1].listen(7, Mode::Messages, 100).unwrap();
    let mut member = Member::ask(&mut world, 42, EARLY);
    let now = world.time();
    world.hosts[1].handle_packet(now, &path(0), false, &member.confirm);
    let opened = said(&mut world.hosts[1], now).remove(0);
    let channel = world.hosts[1].accept(7).unwrap();
    let mut out = [0; 100];
    assert_eq!(world.hosts[1].recv(channel, &mut out), Ok(Some(EARLY.len())));
    assert_eq!(&out[..EARLY.len()], EARLY);
    // For as long as the cookie is good the same answer; afterwards none.
    for ms in [0, 1, 10, 1000, 2990, 2999, 3000, 3001, 3002, 3003, 10_000, 100_000] {
        let later = now.after(ms * MS);
        world.hosts[1].handle_packet(later, &path(0), false, &member.confirm);
        world.hosts[1].finish_batch(later);
        let answers = said(&mut world.hosts[1], later);
        let repeated = answers.iter().filter(|answer| answer[0] & 15 == Type::Opened as u8).collect::<Vec<_>>();
        assert!(repeated.iter().all(|answer| **answer == opened));
        assert_eq!(repeated.len(), usize::from(ms <= 3000), "after {ms} ms");
        assert_eq!(world.hosts[1].accept(7), Err(AcceptError::WouldBlock), "after {ms} ms");
    }
    assert_eq!(world.hosts[1].counters().associations_opened, 1);
    // The answer is the member's.
    let packet = Packet::parse(&opened).unwrap();
    let read = member.initiator.read(0, &opened[..BASE_HEADER_BYTES], &packet.payload[8..], &mut out);
    assert!(read.is_ok());
}

with_a_key!(a_cookie_is_not_good_again_when_the_time_in_it_comes_round);
fn a_cookie_is_not_good_again_when_the_time_in_it_comes_round() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    world.hosts[1].listen(7, Mode::Messages, 100).unwrap();
    let open = |world: &mut World, member: &Member| {
        let now = world.time();
        world.hosts[1].handle_packet(now, &path(0), false, &member.confirm);
        world.hosts[1].finish_batch(now);
        said(&mut world.hosts[1], now);
        world.hosts[1].accept(7).is_ok()
    };
    let old = Member::ask(&mut world, 42, EARLY);
    assert!(open(&mut world, &old));
    // Four bytes of milliseconds. Somebody else connects, so that what is long spent is forgotten.
    world.now += (1 << 32) * MS;
    let other = Member::ask(&mut world, 43, EARLY);
    assert!(open(&mut world, &other));
    assert!(!open(&mut world, &old), "fifty days later");
    assert_eq!(world.hosts[1].counters().dropped_cookie, 1);
}

with_a_key!(a_confirm_of_a_member_is_no_longer_than_the_packet_size_accepted);
fn a_confirm_of_a_member_is_no_longer_than_the_packet_size_accepted() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    world.hosts[1].listen(7, Mode::Messages, 100).unwrap();
    let most = 1472 - BASE_HEADER_BYTES - ConfirmFields::BYTES - 48 - Parameters::BYTES - OpenFields::BYTES;
    let now = world.time();
    for early in [most + 1, 60_000] {
        let member = Member::ask(&mut world, early as u64, &vec![1; early]);
        world.hosts[1].handle_packet(now, &path(0), false, &member.confirm);
        assert_eq!((world.hosts[1].sizes(), said(&mut world.hosts[1], now).len()), ((0, 0), 0), "{early}");
    }
    let counters = world.hosts[1].counters();
    assert_eq!(counters.dropped_malformed[Malformed::PayloadLength.index()], 2);
    assert_eq!(counters.dropped_handshake.iter().sum::<u64>(), 0);
    let member = Member::ask(&mut world, 42, &vec![1; most]);
    world.hosts[1].handle_packet(now, &path(0), false, &member.confirm);
    let channel = world.hosts[1].accept(7).unwrap();
    assert_eq!(world.hosts[1].recv(channel, &mut [0; 1472]), Ok(Some(most)));
}

with_a_key!(a_confirm_is_good_at_one_engine_over_one_path_in_one_life);
fn a_confirm_is_good_at_one_engine_over_one_path_in_one_life() {
    let mut world = World::new(3, Net::default(), &Config::default(), 3);
    for host in 1..3 {
        world.hosts[host].listen(7, Mode::Messages, 100).unwrap();
    }
    let member = Member::ask(&mut world, 42, EARLY);
    let now = world.time();
    // Another engine with the same key; another path; the same engine, started anew, with a secret that it kept.
    world.hosts[2].handle_packet(now, &path(0), false, &member.confirm);
    world.hosts[1].handle_packet(now, &path(2), false, &member.confirm);
    world.hosts[1].handle_packet(now, &alias(0, 1), false, &member.confirm);
    let mut anew = endpoint(1, &Config::default(), 99);
    anew.set_secret([1; 32], 1);
    anew.listen(7, Mode::Messages, 100).unwrap();
    anew.handle_packet(now, &path(0), false, &member.confirm);
    assert_eq!(anew.counters().dropped_cookie, 1);
    assert_eq!([1, 2].map(|host: usize| world.hosts[host].counters().dropped_cookie), [2, 1]);
    for mut endpoint in [anew, world.hosts.pop().unwrap(), world.hosts.pop().unwrap()] {
        assert_eq!((endpoint.sizes(), endpoint.accept(7)), ((0, 0), Err(AcceptError::WouldBlock)));
        assert!(said(&mut endpoint, now).is_empty());
    }
}

with_a_key!(an_answer_is_forgotten_when_the_client_has_been_heard);
fn an_answer_is_forgotten_when_the_client_has_been_heard() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    let log = listen_in(&mut world);
    let (client, server) = pair(&mut world, Mode::Stream);
    let confirm = log.borrow().iter().find(|packet| packet.2[0] & 15 == Type::Confirm as u8).cloned().unwrap().2;
    let answers = |world: &mut World| {
        let now = world.time();
        world.hosts[1].handle_packet(now, &path(0), false, &confirm);
        world.hosts[1].finish_batch(now);
        said(&mut world.hosts[1], now).iter().filter(|answer| answer[0] & 15 == Type::Opened as u8).count()
    };
    assert_eq!(answers(&mut world), 1, "the client has said nothing yet");
    stream(&mut world, (0, client), (1, server), 1000, S);
    let dropped = world.hosts[1].counters().dropped_duplicate;
    assert_eq!(answers(&mut world), 0);
    assert_eq!(world.hosts[1].counters().dropped_duplicate - dropped, 1);
    assert_eq!(world.hosts[1].sizes(), (1, 1));
}

with_a_key!(an_attempt_cannot_be_held_up_by_syns_in_the_peers_name);
fn an_attempt_cannot_be_held_up_by_syns_in_the_peers_name() {
    // Off the path: he sees nothing, but can send with host 1's address and a lower node number.
    let mut other = World::new(2, Net::default(), &Config::default(), 9);
    other.hosts[1].listen(1, Mode::Stream, 1).unwrap();
    try_connect(&mut other, 1, 0, 9).unwrap();
    let now = other.time();
    let mut forged = said(&mut other.hosts[1], now).remove(0);
    forged[36..44].fill(0);
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    world.hosts[0].listen(9, Mode::Stream, 4).unwrap();
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    let begin = world.now;
    while !world.hosts[0].readiness(client).unwrap().opened {
        assert!(world.now - begin < MS, "held up");
        let now = world.time();
        world.hosts[0].handle_packet(now, &path(1), false, &forged);
        pass(&mut world, US);
    }
}

with_a_key!(made_up_packets_of_every_kind_reach_nobody);
fn made_up_packets_of_every_kind_reach_nobody() {
    let (mut world, client, server) = open_pair(&Config::default());
    let log = listen_in(&mut world);
    stream(&mut world, (0, client), (1, server), 10_000, S);
    world.attacker = None;
    let seen: Vec<Header> = log.borrow().iter().map(|(_, _, bytes)| Packet::parse(bytes).unwrap().header).collect();
    for round in 0..20_000usize {
        let like = seen[round % seen.len()];
        let kind = Type::ALL[round % Type::ALL.len()];
        let length = [0, 2, 18, 44, 100, 232, 1424][round % 7];
        let header = Header { kind, length: length as u16, ..like };
        let mut bytes = garbage(&mut world, header, length + 20);
        if kind == Type::Rst {
            bytes.truncate(BASE_HEADER_BYTES + RstFields::BYTES);
            bytes[2..4].copy_from_slice(&(RstFields::BYTES as u16).to_be_bytes());
        }
        world.inject(round % 2, 1 - round % 2, &bytes);
        if round % 100 == 0 {
            pass(&mut world, MS);
        }
    }
    pass(&mut world, S);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    stream(&mut world, (1, server), (0, client), 100_000, S);
    nothing_ended(&world);
    assert!(refused(&world, 1, OpenError::Forged) > 1000);
}
