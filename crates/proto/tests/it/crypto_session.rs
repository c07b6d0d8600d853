//! Sealed packets: what opens, what does not, and what happens around a change of keys.

use crate::support::*;
use proptest::prelude::*;
use ropeway_proto::crypto::session::{COUNTER_BYTES, OVERHEAD_BYTES};
use ropeway_proto::crypto::window::WIDTH;
use ropeway_proto::crypto::{Limits, OpenError, SealError, Session};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const PHASE: u8 = 0x40;

const HOUR_NS: u64 = 3600 * SECOND_NS;

/// What the network has on its way to one end.
type Wire = VecDeque<Flying>;

#[derive(Clone)]
struct Flying {
    packet: Vec<u8>,
    payload: Vec<u8>,
    sealed_ns: u64,
}

/// A client and a server of which the client has just changed its keys, once, at one hour.
fn changed() -> (Session, Session, Vec<u8>) {
    let (mut client, server) = sessions();
    let packet = seal(&mut client, HOUR_NS, b"under the next key");
    assert_eq!(packet[1] & PHASE, PHASE);
    (client, server, packet)
}

#[test]
fn a_sealed_packet_is_header_counter_ciphertext_and_tag() {
    let (mut client, _) = sessions();
    for counter in 0..3u32 {
        let packet = seal(&mut client, 0, b"payload");
        assert_eq!(packet.len(), HEADER_BYTES + 7 + OVERHEAD_BYTES);
        assert_eq!(packet[..HEADER_BYTES], header());
        assert_eq!(packet[HEADER_BYTES..][..COUNTER_BYTES], counter.to_be_bytes());
        assert!(!packet.windows(4).any(|bytes| bytes == b"payl"));
    }
}

#[test]
fn headers_of_either_length_and_all_payloads_come_through() {
    let (mut client, mut server) = sessions();
    for header_bytes in [24, 28] {
        for payload_bytes in [0, 1, 15, 16, 17, 64, 1472, 9000, 65535] {
            let payload: Vec<u8> = (0..payload_bytes).map(|i| i as u8).collect();
            let header: Vec<u8> = (0..header_bytes).map(|i| 0x80 | i as u8).collect();
            let packet = try_seal(&mut client, 0, &header, &payload).expect("sealed");
            assert_eq!(packet.len(), header_bytes + payload_bytes + OVERHEAD_BYTES);
            assert_eq!(open_behind(&mut server, 0, &packet, header_bytes), Ok(payload));
        }
    }
}

#[test]
fn an_end_opens_its_own_packets_until_the_key_they_are_under_is_forgotten() {
    let (mut client, mut server) = sessions();
    let mut packets: Vec<_> = (0..3).map(|_| seal(&mut client, 0, b"payload")).collect();
    let reopened = |client: &Session, packet: &[u8]| {
        let mut packet = packet.to_vec();
        client.reopen_in_place(&mut packet, HEADER_BYTES).map(|()| packet[HEADER_BYTES + COUNTER_BYTES..][..7].to_vec())
    };
    packets.push(seal(&mut client, HOUR_NS, b"payload"));
    assert!(client.has_former_sending_key());
    for packet in &packets {
        assert_eq!(reopened(&client, packet), Ok(b"payload".to_vec()));
        let mut changed = packet.clone();
        changed[2] ^= 1;
        assert_eq!(reopened(&client, &changed), Err(SealError::Changed));
    }
    client.forget_former_sending_key();
    let opened: Vec<_> = packets.iter().map(|packet| reopened(&client, packet).is_ok()).collect();
    assert_eq!(opened, [false, false, false, true]);
    assert_eq!(
        client.reopen_in_place(&mut packets[0][..HEADER_BYTES + OVERHEAD_BYTES - 1], HEADER_BYTES),
        Err(SealError::Shape)
    );
    // The server's key changes by what it opens.
    let answer = seal(&mut server, HOUR_NS, b"payload");
    assert!(open(&mut server, HOUR_NS, &packets[3]).is_ok() && server.has_former_sending_key());
    assert_eq!(reopened(&server, &answer), Ok(b"payload".to_vec()));
    // Neither what a peer has sealed, nor what looks as if it were from before the first packet.
    assert_eq!(reopened(&server, &packets[3]), Err(SealError::Changed));
    assert_eq!(reopened(&sessions().0, &answer), Err(SealError::Changed));
}

#[test]
fn any_changed_byte_makes_a_packet_a_forgery_that_leaves_no_trace() {
    let (mut client, mut server) = sessions();
    let packet = seal(&mut client, 0, b"some payload");
    for i in 0..packet.len() {
        for bit in [0x01, 0x80] {
            let mut changed = packet.clone();
            changed[i] ^= bit;
            assert_eq!(open(&mut server, 0, &changed), Err(OpenError::Forged), "byte {i}");
        }
    }
    // No counter of these was taken for accepted.
    assert_eq!(open(&mut server, 0, &packet).unwrap(), b"some payload");
    assert_eq!(refused(&server, OpenError::Forged), 2 * packet.len() as u64);
    assert_eq!((server.counters().opened, client.counters().sealed), (1, 1));
}

#[test]
fn a_packet_opens_once_and_only_in_its_own_direction_and_association() {
    let (mut client, mut server) = sessions();
    let (_, mut stranger) = sessions_from(2);
    let packet = seal(&mut client, 0, b"once");
    assert_eq!(open(&mut client, 0, &packet), Err(OpenError::Forged));
    assert_eq!(open(&mut stranger, 0, &packet), Err(OpenError::Forged));
    assert!(open(&mut server, 0, &packet).is_ok());
    assert_eq!(open(&mut server, 0, &packet), Err(OpenError::Replayed));
    assert_eq!(refused(&server, OpenError::Replayed), 1);
}

#[test]
fn reordering_is_taken_within_the_window_and_refused_beyond_it() {
    let (mut client, mut server) = sessions();
    let packets: Vec<Vec<u8>> = (0..=WIDTH).map(|i| seal(&mut client, 0, &i.to_be_bytes())).collect();
    for (i, packet) in packets.iter().enumerate().rev() {
        let expected = if i == 0 { Err(OpenError::TooOld) } else { Ok(i.to_be_bytes().to_vec()) };
        assert_eq!(open(&mut server, 0, packet), expected, "packet {i}");
    }
    assert!(packets[1..].iter().all(|packet| open(&mut server, 0, packet) == Err(OpenError::Replayed)));
    assert_eq!(refused(&server, OpenError::TooOld), 1);
    assert_eq!(refused(&server, OpenError::Replayed), WIDTH);
}

#[test]
fn short_packets_and_small_buffers_are_errors() {
    let (mut client, mut server) = sessions();
    let mut room = [0; 100];
    assert_eq!(try_seal(&mut client, 0, &header()[..15], b"payload"), Err(SealError::Shape));
    assert_eq!(try_seal(&mut client, 0, &header(), &[0; 65536]), Err(SealError::Shape));
    assert_eq!(
        client.seal_in_place(0, &mut room[..HEADER_BYTES + OVERHEAD_BYTES - 1], HEADER_BYTES),
        Err(SealError::Shape)
    );
    assert_eq!(client.seal_in_place(0, &mut room, usize::MAX), Err(SealError::Shape));
    assert_eq!(client.counters().sealed, 0);

    let packet = seal(&mut client, 0, b"payload");
    let (aad, sealed) = packet.split_at(HEADER_BYTES + COUNTER_BYTES);
    assert_eq!(server.open(0, aad, sealed, &mut [0; 6]), Err(OpenError::Room));
    assert_eq!(server.open(0, aad, &sealed[..15], &mut [0; 16]), Err(OpenError::Short));
    for length in 0..aad.len() {
        // The shortest header there is, and the counter.
        let expected = if length < 20 { OpenError::Short } else { OpenError::Forged };
        assert_eq!(server.open(0, &aad[..length], sealed, &mut [0; 16]), Err(expected), "{length}");
    }
    for length in aad.len()..packet.len() {
        let expected = if length < HEADER_BYTES + OVERHEAD_BYTES { OpenError::Short } else { OpenError::Forged };
        assert_eq!(open(&mut server, 0, &packet[..length]), Err(expected), "{length}");
    }
    assert!(open(&mut server, 0, &packet).is_ok());
}

#[test]
fn every_kind_of_refusal_has_its_own_counter() {
    for (index, error) in OpenError::ALL.into_iter().enumerate() {
        assert_eq!(error.index(), index, "{error}");
    }
}

#[test]
fn after_an_hour_the_client_changes_its_key_and_the_server_follows_with_its_next_packet() {
    let (mut client, mut server) = sessions();
    let packet = seal(&mut client, HOUR_NS - 1, b"");
    assert_eq!((packet[1] & PHASE, client.generation()), (0, 0));
    // The server's clock does not matter.
    assert_eq!(seal(&mut server, 5 * HOUR_NS, b"")[1] & PHASE, 0);

    let packet = seal(&mut client, HOUR_NS, b"to");
    assert_eq!((packet[1] & PHASE, client.generation()), (PHASE, 1));
    assert_eq!(open(&mut server, HOUR_NS, &packet).unwrap(), b"to");
    let packet = seal(&mut server, HOUR_NS, b"fro");
    assert_eq!((packet[1] & PHASE, server.generation()), (PHASE, 1));
    assert_eq!(open(&mut client, HOUR_NS, &packet).unwrap(), b"fro");
    assert_eq!((client.counters().changes, server.counters().changes), (1, 1));

    let packet = seal(&mut client, 2 * HOUR_NS, b"to");
    assert_eq!((packet[1] & PHASE, client.generation()), (0, 2));
    assert_eq!(open(&mut server, 2 * HOUR_NS, &packet).unwrap(), b"to");
}

#[test]
fn the_client_waits_for_the_server_and_two_seconds_more_before_it_changes_again() {
    let (mut client, mut server, packet) = changed();
    assert_eq!(seal(&mut client, 10 * HOUR_NS, b"")[1] & PHASE, PHASE);
    assert_eq!(client.generation(), 1);
    open(&mut server, 10 * HOUR_NS, &packet).unwrap();
    let answer = seal(&mut server, 10 * HOUR_NS, b"");
    open(&mut client, 10 * HOUR_NS, &answer).unwrap();
    for (later_ns, generation) in [(0, 1), (2 * SECOND_NS - 1, 1), (2 * SECOND_NS, 2)] {
        let now_ns = 10 * HOUR_NS + later_ns;
        let packet = seal(&mut client, now_ns, b"");
        assert_eq!(client.generation(), generation, "after {later_ns} ns");
        open(&mut server, now_ns, &packet).unwrap();
    }
}

#[test]
fn packets_from_both_sides_of_a_change_may_overtake_each_other() {
    let (mut client, mut server) = sessions();
    let before: Vec<_> = (0..4).map(|_| seal(&mut client, HOUR_NS - 1, b"before")).collect();
    let after: Vec<_> = (0..4).map(|_| seal(&mut client, HOUR_NS, b"after")).collect();
    for packet in [&after[2], &before[1], &after[0], &before[3], &after[3], &before[0], &after[1], &before[2]] {
        assert!(open(&mut server, HOUR_NS, packet).is_ok());
    }
    assert_eq!(server.counters().opened, 8);
    assert_eq!(server.counters().changes, 1);
}

#[test]
fn the_former_key_is_kept_for_a_second() {
    let (mut client, mut server) = sessions();
    let before: Vec<_> = (0..2).map(|_| seal(&mut client, HOUR_NS - 1, b"before")).collect();
    let after = seal(&mut client, HOUR_NS, b"after");
    open(&mut server, HOUR_NS, &after).unwrap();
    assert!(open(&mut server, HOUR_NS + SECOND_NS - 1, &before[0]).is_ok());
    assert_eq!(open(&mut server, HOUR_NS + SECOND_NS, &before[1]), Err(OpenError::FormerKey));
}

#[test]
fn a_lost_change_is_made_by_any_later_packet() {
    let (mut client, mut server, lost) = changed();
    let packet = seal(&mut client, HOUR_NS + 1, b"later");
    assert_eq!(open(&mut server, HOUR_NS + 1, &packet).unwrap(), b"later");
    assert_eq!(open(&mut server, HOUR_NS + 2, &lost).unwrap(), b"under the next key");
    assert_eq!(server.counters().changes, 1);
}

#[test]
fn a_flood_of_the_other_phase_changes_nothing_and_is_not_even_tried_by_a_client() {
    let (mut client, mut server) = sessions();
    let (to_server, to_client) = (seal(&mut client, 0, b"genuine"), seal(&mut server, 0, b"genuine"));
    for i in 0..10_000u32 {
        let mut forged = to_server.clone();
        forged[1] ^= PHASE;
        forged[HEADER_BYTES..][..COUNTER_BYTES].copy_from_slice(&i.to_be_bytes());
        assert_eq!(open(&mut server, 5 * SECOND_NS, &forged), Err(OpenError::Forged));
        assert_eq!(open(&mut client, 5 * SECOND_NS, &forged), Err(OpenError::Change));
    }
    assert_eq!(open(&mut server, 5 * SECOND_NS, &to_server).unwrap(), b"genuine");
    assert_eq!(open(&mut client, 5 * SECOND_NS, &to_client).unwrap(), b"genuine");
    assert_eq!((server.generation(), server.counters().changes), (0, 0));
    assert_eq!(refused(&client, OpenError::Change), 10_000);
}

#[test]
fn a_peer_that_changes_keys_too_fast_is_refused_until_it_is_time() {
    let (mut client, mut server) = sessions();
    // The client's clock runs: what it takes for hours is half a second.
    let mut refusals = 0;
    for change in 1..=10 {
        let now_ns = change * SECOND_NS / 2;
        let packet = seal(&mut client, change * HOUR_NS, b"change");
        match open(&mut server, now_ns, &packet) {
            Ok(_) => {
                let answer = seal(&mut server, now_ns, b"");
                open(&mut client, change * HOUR_NS, &answer).unwrap();
            }
            Err(error) => {
                assert_eq!(error, OpenError::Change);
                refusals += 1;
            }
        }
    }
    assert_eq!((refusals, server.counters().changes), (5, 5));
}

#[test]
fn a_key_is_changed_by_volume_in_either_direction_but_not_more_often_than_every_two_seconds() {
    for sender_is_client in [true, false] {
        let (mut client, mut server) = sessions();
        // A packet of 1600 bytes is 101 blocks.
        client.tighten(Limits { change_after_blocks: 1000, ..Limits::default() });
        let mut changes = Vec::new();
        for packets in 0..100 {
            let now_ns = packets * SECOND_NS / 10;
            let (from, to) = if sender_is_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let packet = seal(from, now_ns, &[7; 1600]);
            open(to, now_ns, &packet).unwrap();
            let generation = client.generation();
            let (packet, answer) = (seal(&mut client, now_ns, b""), seal(&mut server, now_ns, b""));
            open(&mut server, now_ns, &packet).unwrap();
            open(&mut client, now_ns, &answer).unwrap();
            if client.generation() > generation || sender_is_client && changes.len() < generation as usize {
                changes.push(packets);
            }
        }
        // Where the server sends it has answered before it follows, and the client sees that a tenth of a second later.
        let expected = if sender_is_client { [20, 40, 60, 80] } else { [20, 41, 62, 83] };
        assert_eq!(changes, expected, "client sends: {sender_is_client}");
    }
}

#[test]
fn a_key_seals_no_more_than_its_limit_and_goes_on_after_a_change() {
    let (mut client, mut server) = sessions();
    let limits = Limits { change_after_blocks: 10, most_blocks: 80, ..Limits::default() };
    client.tighten(limits);
    let mut packets = Vec::new();
    // Two blocks each; a change is not yet allowed.
    for _ in 0..40 {
        packets.push(seal(&mut client, SECOND_NS, b"payload"));
    }
    assert_eq!(try_seal(&mut client, SECOND_NS, &header(), b"payload"), Err(SealError::Exhausted));
    assert_eq!(client.generation(), 0);
    for _ in 0..40 {
        packets.push(seal(&mut client, 2 * SECOND_NS, b"payload"));
    }
    // The server has not followed, so there is no third key.
    assert_eq!(try_seal(&mut client, 9 * SECOND_NS, &header(), b"payload"), Err(SealError::Exhausted));
    assert!(packets.iter().all(|packet| open(&mut server, 9 * SECOND_NS, packet).is_ok()));
    let answer = seal(&mut server, 9 * SECOND_NS, b"");
    open(&mut client, 9 * SECOND_NS, &answer).unwrap();
    let packet = seal(&mut client, 11 * SECOND_NS, b"payload");
    assert_eq!(client.generation(), 2);
    assert!(open(&mut server, 11 * SECOND_NS, &packet).is_ok());
}

#[test]
fn limits_can_only_be_tightened() {
    let (mut client, _) = sessions();
    let never = Limits {
        change_after_ns: u64::MAX,
        change_after_blocks: u64::MAX,
        most_blocks: u64::MAX,
        between_changes_ns: 0,
    };
    client.tighten(never);
    seal(&mut client, HOUR_NS, b"");
    assert_eq!(client.generation(), 1);
}

#[test]
fn a_clock_that_goes_back_changes_no_key_and_loses_no_packet() {
    let (mut client, mut server, packet) = changed();
    open(&mut server, HOUR_NS, &packet).unwrap();
    let packet = seal(&mut client, 0, b"earlier");
    assert_eq!(open(&mut server, 0, &packet).unwrap(), b"earlier");
    assert_eq!(client.generation(), 1);
}

/// The trace oracle: a million packets over many keys, all with one payload, none of them with a key and a nonce that
/// were used before. Seen from outside: equal keys and nonces would give equal bytes under the same header and payload,
/// and two packets of one generation never have the same counter.
#[test]
fn no_key_and_nonce_are_ever_used_twice() {
    const PACKETS: u64 = 1_000_000;
    let (mut client, mut server) = sessions();
    client.tighten(Limits { change_after_blocks: 40_000, between_changes_ns: 2 * SECOND_NS, ..Limits::default() });
    // One header and payload for all, so that the rest of a packet is a function of key and nonce alone.
    let payload = [0x5a; 16];
    let mut seen: [BTreeSet<[u8; 16]>; 2] = Default::default();
    let mut counters: [BTreeMap<u64, u64>; 2] = Default::default();
    for i in 0..PACKETS / 2 {
        let now_ns = i * 100_000;
        for direction in 0..2 {
            let (from, to) = if direction == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let packet = seal(from, now_ns, &payload);
            let low = u32::from_be_bytes(packet[HEADER_BYTES..][..COUNTER_BYTES].try_into().unwrap());
            // Counters go up by one without end, so generation and counter are a pair once.
            let next = counters[direction].values().sum::<u64>();
            assert_eq!(u64::from(low), next);
            *counters[direction].entry(from.generation()).or_default() += 1;
            let ciphertext: [u8; 16] = packet[HEADER_BYTES + COUNTER_BYTES..][..16].try_into().unwrap();
            assert!(seen[direction].insert(ciphertext), "packet {i} of direction {direction} repeats a key stream");
            // One in three is lost, which changes nothing for the counters.
            if i % 3 != 0 {
                open(to, now_ns, &packet).unwrap();
            }
        }
    }
    assert!(seen[0].is_disjoint(&seen[1]), "both directions used one key stream");
    for counters in &counters {
        assert!(counters.len() > 10, "{} keys", counters.len());
    }
    assert_eq!(client.counters().sealed + server.counters().sealed, PACKETS);
}

/// What happens next in a world of two ends and a network that loses, repeats and reorders.
#[derive(Clone, Copy, Debug)]
enum Event {
    Send {
        by_client: bool,
        bytes: usize,
    },
    /// The packet at this place of the queue arrives; again, if `keep`.
    Arrive {
        at_server: bool,
        place: usize,
        keep: bool,
    },
    Lose {
        at_server: bool,
        place: usize,
    },
    Forge {
        at_server: bool,
        place: usize,
        byte: usize,
    },
    Wait {
        ms: u64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (any::<bool>(), 0..200usize).prop_map(|(by_client, bytes)| Event::Send { by_client, bytes }),
        5 => (any::<bool>(), 0..40usize, prop::bool::weighted(0.2))
            .prop_map(|(at_server, place, keep)| Event::Arrive { at_server, place, keep }),
        1 => (any::<bool>(), 0..40usize).prop_map(|(at_server, place)| Event::Lose { at_server, place }),
        1 => (any::<bool>(), 0..40usize, 0..60usize)
            .prop_map(|(at_server, place, byte)| Event::Forge { at_server, place, byte }),
        2 => (0..700u64).prop_map(|ms| Event::Wait { ms }),
    ]
}

/// Two ends, the network, and what has arrived.
struct World {
    ends: [Session; 2],
    /// On their way to the client, and to the server.
    wires: [Wire; 2],
    now_ns: u64,
    sent: u64,
    delivered: BTreeSet<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let (mut client, server) = sessions();
        client.tighten(Limits { change_after_ns: 3 * SECOND_NS, change_after_blocks: 100, ..Limits::default() });
        Self { ends: [client, server], wires: Default::default(), now_ns: 0, sent: 0, delivered: BTreeSet::new() }
    }

    fn send(&mut self, by_client: bool, bytes: usize) {
        let mut payload = self.sent.to_be_bytes().to_vec();
        payload.resize(8 + bytes, 0xee);
        self.sent += 1;
        let packet = seal(&mut self.ends[usize::from(!by_client)], self.now_ns, &payload);
        self.wires[usize::from(by_client)].push_back(Flying { packet, payload, sealed_ns: self.now_ns });
    }

    /// Lets the packet at `place` arrive. What opens must be what was sent, once.
    fn arrive(&mut self, end: usize, place: usize, keep: bool) {
        let Some(Flying { packet, payload, sealed_ns }) = self.wires[end].get(place).cloned() else { return };
        if !keep {
            self.wires[end].remove(place);
        }
        match open(&mut self.ends[end], self.now_ns, &packet) {
            Ok(opened) => {
                assert_eq!(opened, payload);
                assert!(self.delivered.insert(payload), "delivered twice");
            }
            Err(OpenError::Replayed) => assert!(self.delivered.contains(&payload), "refused as a replay, but new"),
            // The server does not want a change so soon after the last one.
            Err(OpenError::Change) => assert_eq!(end, 1),
            Err(error) => {
                assert!(matches!(error, OpenError::FormerKey | OpenError::Forged), "{error}");
                assert!(self.now_ns - sealed_ns >= SECOND_NS, "{error}, and not late");
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Send { by_client, bytes } => self.send(by_client, bytes),
            Event::Arrive { at_server, place, keep } => self.arrive(usize::from(at_server), place, keep),
            Event::Lose { at_server, place } => drop(self.wires[usize::from(at_server)].remove(place)),
            Event::Forge { at_server, place, byte } => {
                let end = usize::from(at_server);
                let Some(Flying { packet, .. }) = self.wires[end].get(place) else { return };
                let mut forged = packet.clone();
                let at = byte % forged.len();
                forged[at] ^= 0x40;
                assert!(open(&mut self.ends[end], self.now_ns, &forged).is_err(), "a forged packet opened");
            }
            Event::Wait { ms } => self.now_ns += ms * 1_000_000,
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_network_does_packets_open_once_and_the_two_ends_never_lose_each_other(
        events in prop::collection::vec(event(), 1..300)
    ) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            let (client, server) = (world.ends[0].generation(), world.ends[1].generation());
            prop_assert!(client == server || client == server + 1, "{client} and {server}");
        }
        // After any history, two fresh packets each way and a second for the server's patience: all is well again.
        world.wires = Default::default();
        for _ in 0..2 {
            world.now_ns += SECOND_NS;
            for by_client in [true, false] {
                let before = world.delivered.len();
                world.send(by_client, 0);
                world.arrive(usize::from(by_client), 0, false);
                prop_assert_eq!(world.delivered.len(), before + 1, "a fresh packet did not open");
            }
        }
    }
}
