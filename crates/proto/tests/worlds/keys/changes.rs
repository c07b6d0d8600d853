//! Keys change while data flows, and no key seals two packets with one counter.

use crate::world::*;
use ropeway_proto::crypto::OpenError;
use ropeway_proto::{Config, Mode, SealingStatistics};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A client that changes keys as often as the protocol lets it.
fn restless() -> Config {
    Config { key_age_ns: 2 * S, key_volume_bytes: 1 << 20, ..Config::default() }
}

fn sealing(world: &World, host: usize) -> SealingStatistics {
    let now = world.clock(host);
    let mut all = world.hosts[host].association_statistics(now);
    let first = all.next().expect("an association").sealing.expect("it is sealed");
    assert!(all.next().is_none());
    first
}

with_a_key!(keys_change_by_age_and_by_volume_and_nobody_notices);
fn keys_change_by_age_and_by_volume_and_nobody_notices() {
    let mut world = World::new(2, Net::default(), &restless(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    // Once every 2 seconds, as there is always more than a mebibyte.
    for _ in 0..20 {
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        stream(&mut world, (1, server), (0, client), 1_000_000, S);
        pass(&mut world, S);
    }
    let ends = [sealing(&world, 0), sealing(&world, 1)];
    assert!((9..=11).contains(&ends[0].generation), "{ends:?}");
    assert!(ends[0].generation - ends[1].generation <= 1, "{ends:?}");
    assert_eq!(ends.map(|end| end.refused.iter().sum::<u64>()), [0, 0]);
    let resent: u64 = world.hosts.iter().map(|host| host.counters().resent).sum();
    assert_eq!(resent, 0, "a change of keys costs no packet");
}

with_a_key!(an_idle_association_changes_its_keys_with_the_next_packet);
fn an_idle_association_changes_its_keys_with_the_next_packet() {
    let mut world = World::new(2, Net::default(), &restless(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    pass(&mut world, 30 * S);
    assert_eq!(sealing(&world, 0).generation, 0, "nothing was said");
    stream(&mut world, (1, server), (0, client), 1_000, S);
    stream(&mut world, (0, client), (1, server), 1_000, S);
    assert_eq!([sealing(&world, 0).generation, sealing(&world, 1).generation], [1, 1]);
}

with_a_key!(after_a_stop_that_was_longer_than_a_key_gets_nothing_is_refused);
fn after_a_stop_that_was_longer_than_a_key_gets_nothing_is_refused() {
    for stopped in 0..2 {
        let mut world = World::new(2, Net::default(), &restless(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1_000, S);
        // The other end stops when the client's change is on its way.
        pass(&mut world, 3 * S);
        let now = world.clock(0);
        world.hosts[0].send(now, client, b"?").unwrap();
        world.hosts[0].flush(client);
        pass(&mut world, 10 * US);
        assert_eq!([sealing(&world, 0).generation, sealing(&world, 1).generation], [1, 0]);
        world.stopped.insert(stopped);
        pass(&mut world, 4 * S);
        world.stopped.clear();
        wait_for(&mut world, S, "read", |world| world.hosts[1].recv(server, &mut [0; 10]) == Ok(Some(1)));
        for _ in 0..10 {
            stream(&mut world, (0, client), (1, server), 100_000, S);
            stream(&mut world, (1, server), (0, client), 100_000, S);
            pass(&mut world, 500 * MS);
        }
        let ends = [sealing(&world, 0), sealing(&world, 1)];
        assert!(ends[1].generation >= 3, "{stopped}: {ends:?}");
        assert_eq!(ends.map(|end| end.refused.iter().sum::<u64>()), [0, 0], "{stopped}");
    }
}

with_a_key!(keys_change_under_loss_reordering_and_repetition);
fn keys_change_under_loss_reordering_and_repetition() {
    for seed in 0..6 {
        let net = Net {
            loss_ppm: 50_000 + seed * 30_000,
            duplication_ppm: 50_000,
            reordering_ppm: seed * 60_000,
            delay_ns: if seed % 2 == 0 { 20 * US } else { 5 * MS },
            ..Net::default()
        };
        let mut world = World::new(2, net, &restless(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        for _ in 0..12 {
            let mut flows =
                [Flow::stream((0, client), (1, server), 300_000), Flow::stream((1, server), (0, client), 300_000)];
            carry(&mut world, &mut flows, 60 * S);
            pass(&mut world, S);
        }
        let ends = [sealing(&world, 0), sealing(&world, 1)];
        println!("seed {seed}: {ends:?}");
        assert!(ends.iter().all(|end| end.generation >= 5), "seed {seed}: {ends:?}");
        assert!(ends[0].generation - ends[1].generation <= 1);
        for end in ends {
            assert!(end.refused[OpenError::Replayed.index()] > 0, "repetitions were seen: {end:?}");
            assert_eq!(end.refused[OpenError::Forged.index()], 0, "nobody forged: {end:?}");
            assert_eq!(end.refused[OpenError::Short.index()], 0);
        }
        assert_eq!(world.hosts[0].counters().associations_ended.iter().sum::<u64>(), 0);
    }
}

/// What a key and a counter sealed: an observer who has the key would see the nonce, so (direction, counter), and all that was sent under it.
type Sealed = BTreeMap<(usize, u32), Vec<u8>>;

with_a_key!(no_counter_seals_two_packets_however_often_they_are_repeated);
fn no_counter_seals_two_packets_however_often_they_are_repeated() {
    let net = Net { loss_ppm: 150_000, reordering_ppm: 100_000, duplication_ppm: 50_000, ..Net::default() };
    let mut world = World::new(2, net, &restless(), 7);
    let sealed: Rc<RefCell<Sealed>> = Rc::default();
    let log = sealed.clone();
    // Before the network repeats anything: what the hosts themselves send.
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let packet = ropeway_wire::Packet::parse(bytes).unwrap();
        if let Ok(parts) = packet.sealed() {
            let before = log.borrow_mut().insert((from, parts.counter), bytes.to_vec());
            assert_eq!(before, None, "counter {} seals again", parts.counter);
        }
        true
    }));
    let (client, server) = pair(&mut world, Mode::Messages);
    for size in [0, 1, 1424, 5_000, 100_000] {
        let mut flows = [
            Flow::messages((0, client), (1, server), size.max(1), 200),
            Flow::messages((1, server), (0, client), size.max(1), 50),
        ];
        carry(&mut world, &mut flows, 600 * S);
        // Timers with nothing to send: STATE, acknowledgments, PIN.
        world.cut.insert((0, 1));
        let now = world.time();
        let _ = world.hosts[0].send(now, client, b"late");
        pass(&mut world, 3 * S);
        world.cut.clear();
        wait_for(&mut world, 10 * S, "read", |world| world.hosts[1].recv(server, &mut [0; 10]) == Ok(Some(4)));
    }
    let sent = sealed.borrow();
    let (resent, counters) = (world.hosts[0].counters().resent, world.counters.sealed);
    assert!(resent > 1000 && sent.len() > 20_000, "{resent} resent, {} sealed", sent.len());
    let at = |host: usize| sealing(&world, host);
    // The world's own oracle sees what is cut off as well.
    assert_eq!(at(0).sealed + at(1).sealed, counters, "every packet that was sealed was looked at");
    assert!(at(0).generation > 3);
}
