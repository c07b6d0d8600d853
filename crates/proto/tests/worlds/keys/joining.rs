//! Who gets in, and what those who do not are told.

use crate::world::*;
use ropeway_proto::{AcceptError, ChannelId, Config, ErrorCode, Mode};
use ropeway_wire::{FEATURE_KEYED, Packet, SynFields, Type};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const RTT: u64 = 40 * US;

/// Host 0 with some keys, host 1 with others; host 1 listens.
fn hosts(client: &[u8], server: &[u8]) -> World {
    let config = Config::default();
    let mut world =
        World::of(vec![endpoint_with(0, &config, 1, client), endpoint_with(1, &config, 1, server)], Net::default(), 1);
    world.counters.off = client.is_empty() || server.is_empty();
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
    world
}

fn failed(world: &mut World, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[0].readiness(channel).unwrap().failed
}

/// How the attempt ended, and after how long.
fn refusal(world: &mut World) -> (ErrorCode, u64) {
    let channel = try_connect(world, 0, 1, 7).unwrap();
    let taken = wait_for(world, 20 * S, "refused", |world| failed(world, channel).is_some());
    let code = failed(world, channel).unwrap();
    assert_eq!(world.hosts[1].sizes(), (0, 0), "nothing is kept of who did not get in");
    assert_eq!(world.hosts[1].accept(7), Err(AcceptError::WouldBlock));
    let now = world.time();
    world.hosts[0].close(now, channel);
    assert_eq!(world.hosts[0].sizes(), (0, 0));
    (code, taken)
}

with_a_key!(without_a_key_nobody_joins_and_the_reason_is_told_at_once);
fn without_a_key_nobody_joins_and_the_reason_is_told_at_once() {
    let mut world = hosts(&[], &[1]);
    assert_eq!(refusal(&mut world), (ErrorCode::Key, RTT));
    assert!(ErrorCode::Key.to_string().contains("key"));
}

with_a_key!(with_a_key_nobody_is_joined_who_has_none_and_the_reason_is_told_in_the_end);
fn with_a_key_nobody_is_joined_who_has_none_and_the_reason_is_told_in_the_end() {
    // That the other end has no key is the word of whoever saw the SYN: it is believed when the attempt has had its time.
    let mut world = hosts(&[1], &[]);
    let channel = try_connect(&mut world, 0, 1, 7).unwrap();
    pass(&mut world, S);
    assert_eq!((failed(&mut world, channel), world.hosts[0].hint(channel)), (None, Some(ErrorCode::Key)));
    let now = world.time();
    world.hosts[0].close(now, channel);
    assert_eq!(refusal(&mut world), (ErrorCode::Key, 10 * S));
}

with_a_key!(with_another_key_nobody_joins);
fn with_another_key_nobody_joins() {
    let mut world = hosts(&[2], &[1]);
    assert_eq!(refusal(&mut world), (ErrorCode::Key, 10 * S));
    let counters = world.hosts[1].counters();
    assert!(counters.dropped_handshake.iter().sum::<u64>() > 0);
    assert_eq!(counters.associations_opened, 0);
}

with_a_key!(nobody_opens_what_is_not_sealed_at_a_host_with_a_key);
fn nobody_opens_what_is_not_sealed_at_a_host_with_a_key() {
    // The same SYN with the feature bit taken out, and put in, by somebody on the way.
    for (client, server) in [(&[1][..], &[1][..]), (&[], &[])] {
        let mut world = hosts(client, server);
        world.attacker = Some(Box::new(|_, from, to, bytes| {
            let mut bytes = bytes.to_vec();
            if matches!(Packet::parse(&bytes).unwrap().header.kind, Type::Syn | Type::Confirm) {
                // Bytes 28 to 31 of the payload.
                bytes[24 + 31] ^= FEATURE_KEYED as u8;
            }
            vec![(from, to, bytes)]
        }));
        let channel = try_connect(&mut world, 0, 1, 7).unwrap();
        wait_for(&mut world, 20 * S, "refused", |world| failed(world, channel).is_some());
        assert_eq!((failed(&mut world, channel), world.hosts[1].sizes()), (Some(ErrorCode::Key), (0, 0)));
    }
}

with_a_key!(a_key_is_replaced_without_a_stop);
fn a_key_is_replaced_without_a_stop() {
    let set = |world: &mut World, host: usize, keys: &[u8]| {
        assert!(world.hosts[host].replace_keys(Some(Arc::new(cluster_keys(keys)))));
    };
    let mut world = World::new(3, Net::default(), &Config::default(), 1);
    let (old, old_end) = open(&mut world, 0, 1, 7, Mode::Stream);
    // The new one is appended everywhere, put first everywhere, and the old one removed everywhere; at each step some nodes have done it and some have not.
    let steps: [[&[u8]; 2]; 7] = [
        [&[1, 2], &[1]],
        [&[1, 2], &[1, 2]],
        [&[2, 1], &[1, 2]],
        [&[2, 1], &[2, 1]],
        [&[2], &[2, 1]],
        [&[2, 1], &[2]],
        [&[2], &[2]],
    ];
    for (step, [client, server]) in steps.into_iter().enumerate() {
        set(&mut world, 0, client);
        set(&mut world, 1, server);
        for (from, to) in [(0, 1), (1, 0)] {
            // Another address, so another association.
            let port = 100 + step as u16;
            let _ = world.hosts[to].listen(port, Mode::Stream, 4);
            let now = world.time();
            let path = alias(to, 10 + step as u64 * 2 + from as u64);
            let client = world.hosts[from].connect(now, &path, port, Mode::Stream).unwrap();
            wait_for(&mut world, S, "open", |world| world.hosts[from].readiness(client).unwrap().opened);
            let server = world.hosts[to].accept(port).unwrap();
            stream(&mut world, (from, client), (to, server), 10_000, S);
        }
    }
    stream(&mut world, (0, old), (1, old_end), 10_000, S);
    // Who missed all of it is outside.
    let late = try_connect(&mut world, 2, 1, 7).unwrap();
    wait_for(&mut world, 20 * S, "refused", |world| world.hosts[2].readiness(late).unwrap().failed.is_some());
    assert_eq!(world.hosts[2].readiness(late).unwrap().failed, Some(ErrorCode::Key));
    assert!(!world.hosts[0].replace_keys(None), "a host with a key does not become one without");
}

with_a_key!(confirm_and_opened_are_repeated_byte_for_byte);
fn confirm_and_opened_are_repeated_byte_for_byte() {
    for lost in [Type::Confirm, Type::Opened] {
        let mut world = hosts(&[1], &[1]);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = seen.clone();
        world.filter = Some(Box::new(move |_, _, _, bytes| {
            let kind = Packet::parse(bytes).unwrap().header.kind;
            let mut log = log.borrow_mut();
            log.push((kind, bytes.to_vec()));
            kind != lost || log.iter().filter(|(kind, _)| *kind == lost).count() > 4
        }));
        let channel = try_connect(&mut world, 0, 1, 7).unwrap();
        wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(channel).unwrap().opened);
        let seen = seen.borrow();
        for kind in [Type::Confirm, Type::Opened] {
            let mut of_kind = seen.iter().filter(|(seen, _)| *seen == kind).map(|(_, bytes)| bytes);
            let first = of_kind.next().unwrap();
            assert!(of_kind.all(|bytes| bytes == first), "another {}", kind.name());
        }
        assert_eq!(seen.iter().filter(|(kind, _)| *kind == lost).count(), 5);
        assert_eq!(world.hosts[1].sizes(), (1, 1));
    }
}

with_a_key!(an_answer_that_was_lost_and_is_repeated_gives_nobody_a_false_round_trip_time);
fn an_answer_that_was_lost_and_is_repeated_gives_nobody_a_false_round_trip_time() {
    let mut world = hosts(&[1], &[1]);
    let mut answers = 0;
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        let is_answer = Packet::parse(bytes).unwrap().header.kind == Type::Opened;
        answers += u32::from(is_answer);
        !is_answer || answers > 4
    }));
    let begin = world.now;
    let (client, server) = pair(&mut world, Mode::Stream);
    assert!(world.now - begin > 100 * MS, "four answers were lost");
    stream(&mut world, (0, client), (1, server), 5_000, S);
    stream(&mut world, (1, server), (0, client), 5_000, S);
    for host in 0..2 {
        let now = world.time();
        let association = world.hosts[host].association_statistics(now).next().unwrap();
        let (mean, least) = (association.round_trip_ns, association.least_round_trip_ns);
        assert!(mean < MS && least <= mean, "host {host}: {mean} {least}");
    }
}

with_a_key!(packets_are_as_long_as_agreed_with_counter_and_tag);
fn packets_are_as_long_as_agreed_with_counter_and_tag() {
    let mut world = hosts(&[1], &[1]);
    let (client, _) = pair(&mut world, Mode::Stream);
    let now = world.time();
    world.hosts[0].send(now, client, &[5; 100_000]).unwrap();
    let mut most = 0;
    world.hosts[0].transmit(now, &mut |_, _, packets| {
        let full = packets.iter().filter(|packet| packet.len() == 1472).count();
        assert!(full + 1 >= packets.len(), "but the last, all are as long as agreed");
        most = most.max(packets.len());
        packets.len()
    });
    assert!(most >= 8, "a batch of {most}");
}

with_a_key!(the_ports_are_in_the_clear_in_syn_and_confirm_alone_and_nothing_of_the_data_ever_is);
fn the_ports_are_in_the_clear_in_syn_and_confirm_alone_and_nothing_of_the_data_ever_is() {
    // With one seed in some twenty two bytes of all that is sealed look like the port.
    let mut world = World::new(2, Net::default(), &Config::default(), 6);
    let (port, marker) = (54_321u16, *b"nobody shall read this");
    world.hosts[1].listen(port, Mode::Messages, 4).unwrap();
    let readable = Rc::new(RefCell::new((0, Vec::new())));
    let log = readable.clone();
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        let mut log = log.borrow_mut();
        log.0 += 1;
        assert!(!bytes.windows(8).any(|window| window == &marker[..8]), "data in the clear: {bytes:02x?}");
        let kind = Packet::parse(bytes).unwrap().header.kind;
        if bytes[24..].windows(2).any(|two| two == port.to_be_bytes()) {
            log.1.push(kind);
        }
        true
    }));
    let now = world.time();
    let client = world.hosts[0].connect(now, &path(1), port, Mode::Messages).unwrap();
    wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(client).unwrap().opened);
    let server = world.hosts[1].accept(port).unwrap();
    let now = world.time();
    for _ in 0..100 {
        world.hosts[0].send(now, client, &marker).unwrap();
        world.hosts[1].send(now, server, &marker).unwrap();
    }
    // A second channel, whose OPEN is a packet of its own.
    world.hosts[0].connect(now, &path(1), port, Mode::Messages).unwrap();
    pass(&mut world, S);
    let (packets, kinds) = &*readable.borrow();
    assert!(*packets > 8);
    assert!(kinds.iter().all(|kind| matches!(kind, Type::Syn | Type::Confirm)), "{kinds:?}");
    assert_eq!(world.hosts[1].message_bytes(server), Some(marker.len()));
}

with_a_key!(a_cookie_is_good_for_nothing_but_the_syn_that_it_answered);
fn a_cookie_is_good_for_nothing_but_the_syn_that_it_answered() {
    for keys in [&[1][..], &[]] {
        for at in 0..SynFields::BYTES {
            let mut world = hosts(keys, keys);
            world.attacker = Some(Box::new(move |_, from, to, bytes| {
                let mut bytes = bytes.to_vec();
                // One bit of the fields, in every CONFIRM of this attempt.
                if Packet::parse(&bytes).unwrap().header.kind == Type::Confirm {
                    bytes[24 + at] ^= 1;
                }
                vec![(from, to, bytes)]
            }));
            let channel = try_connect(&mut world, 0, 1, 7).unwrap();
            pass(&mut world, 2 * S);
            assert_eq!(failed(&mut world, channel), None);
            assert_eq!(world.hosts[1].sizes(), (0, 0), "byte {at}");
            let counters = world.hosts[1].counters();
            let dropped = counters.dropped_cookie + counters.dropped_malformed.iter().sum::<u64>();
            assert!(dropped > 0, "byte {at}: {counters:?}");
        }
    }
}

with_a_key!(a_host_may_talk_to_itself_where_it_knows_that_it_does);
fn a_host_may_talk_to_itself_where_it_knows_that_it_does() {
    for keys in [&[1][..], &[]] {
        let mut world = hosts(keys, keys);
        world.hosts[0].add_own_path(path(0));
        world.hosts[0].listen(9, Mode::Stream, 4).unwrap();
        for _ in 0..3 {
            let client = try_connect(&mut world, 0, 0, 9).unwrap();
            wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(client).unwrap().opened);
            assert_eq!(failed(&mut world, client), None);
            let server = world.hosts[0].accept(9).unwrap();
            stream(&mut world, (0, client), (0, server), 200_000, S);
            stream(&mut world, (0, server), (0, client), 200_000, S);
        }
        assert_eq!(world.hosts[0].sizes().0, 2, "both ends of one association");
    }
}
