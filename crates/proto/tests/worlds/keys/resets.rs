//! RST has no key to seal it: its token is the proof, and everybody on the path has seen it once it was used.

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Endpoint, ErrorCode, Mode};
use ropeway_wire::{Header, Id, Packet, RstFields, Type};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

fn failed(world: &mut World, host: usize, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

/// All resets that hosts send from now on.
fn collect(world: &mut World) -> Rc<RefCell<BTreeSet<Vec<u8>>>> {
    let resets: Rc<RefCell<BTreeSet<Vec<u8>>>> = Rc::default();
    let seen = resets.clone();
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        if Packet::parse(bytes).unwrap().header.kind == Type::Rst {
            seen.borrow_mut().insert(bytes.to_vec());
        }
        true
    }));
    resets
}

/// Something long enough to be answered, for an id.
fn question(id: Id) -> Vec<u8> {
    let header = Header { length: 40, ..Header::new(Type::Control, id) };
    let mut bytes = vec![0; header.bytes() + 40 + 20];
    header.write(&mut bytes).unwrap();
    bytes
}

/// One association after the other between hosts 0 and 1. The attacker knows all tokens that were ever used or can be had by asking, and tries each on each.
fn tokens_are_of_no_use(restarts: bool) {
    let config = Config::default();
    let start = |host: usize, seed: u64| -> Endpoint {
        let mut endpoint = endpoint(host, &config, seed);
        endpoint.set_secret([host as u8; 32], seed as u32);
        endpoint
    };
    let mut world = World::of(vec![start(0, 0), start(1, 0)], Net::default(), 1);
    let resets = collect(&mut world);
    let mut tried = 0;
    for round in 0..40u64 {
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 5_000, S);
        // Ask both, in the name of the other, for every id of the first slots.
        for host in 0..2 {
            for (slot, generation) in (0..3).flat_map(|slot| (0..16).map(move |generation| (slot, generation))) {
                world.inject(1 - host, host, &question(Id::new(0, slot, generation)));
            }
        }
        pass(&mut world, 10 * MS);
        let known: Vec<Vec<u8>> = resets.borrow().iter().cloned().collect();
        for reset in &known {
            let fields = RstFields::parse(Packet::parse(reset).unwrap().payload).unwrap();
            for (slot, generation) in (0..2).flat_map(|slot| (0..16).map(move |generation| (slot, generation))) {
                let mut forged = reset.clone();
                forged[4..8].copy_from_slice(&Id::new(0, slot, generation).0.to_be_bytes());
                for host in 0..2 {
                    let now = world.time();
                    world.hosts[host].handle_packet(now, &path(1 - host), false, &forged);
                    tried += 1;
                }
            }
            assert_ne!(fields.token, [0; 16]);
        }
        stream(&mut world, (0, client), (1, server), 5_000, S);
        stream(&mut world, (1, server), (0, client), 5_000, S);
        assert_eq!((failed(&mut world, 0, client), failed(&mut world, 1, server)), (None, None), "round {round}");
        // The association ends with a reset for everybody to see; and its end lives on, or begins anew.
        world.close_all(1);
        pass(&mut world, MS);
        assert_eq!(failed(&mut world, 0, client), Some(ErrorCode::Closed));
        let now = world.time();
        world.hosts[0].close(now, client);
        world.hosts[1].close(now, server);
        if restarts {
            let host = (round % 2) as usize;
            world.replace(host, start(host, round + 1));
        }
    }
    let known = resets.borrow().len();
    println!("{known} tokens, {tried} tries");
    assert!(known > 40 && tried > 100_000, "{known} tokens, {tried} tries");
}

with_a_key!(no_token_that_was_ever_seen_ends_an_association);
fn no_token_that_was_ever_seen_ends_an_association() {
    tokens_are_of_no_use(false);
}

with_a_key!(nor_does_one_of_an_earlier_life_of_the_engine);
fn nor_does_one_of_an_earlier_life_of_the_engine() {
    tokens_are_of_no_use(true);
}

with_a_key!(who_has_forgotten_an_association_can_still_end_it);
fn who_has_forgotten_an_association_can_still_end_it() {
    // Its own client ended it without a word: the peer asks, and is told.
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 5_000, S);
    world.cut.insert((0, 1));
    world.close_all(0);
    pass(&mut world, MS);
    world.cut.clear();
    let now = world.time();
    world.hosts[1].send(now, server, b"are you there? it has been so quiet").unwrap();
    world.hosts[1].flush(server);
    wait_for(&mut world, S, "reset", |world| failed(world, 1, server).is_some());
    assert_eq!(failed(&mut world, 1, server), Some(ErrorCode::Unknown));
}

with_a_key!(a_successor_that_kept_the_secret_ends_what_its_predecessors_had_however_often_they_used_the_slot);
fn a_successor_that_kept_the_secret_ends_what_its_predecessors_had_however_often_they_used_the_slot() {
    for used_before in [0u64, 1, 15, 16, 40] {
        for lives in 1..3 {
            let config = Config::default();
            let start = |life: u32| {
                let mut endpoint = endpoint(1, &config, u64::from(life));
                endpoint.set_secret([9; 32], life);
                endpoint
            };
            let mut world = World::of(vec![endpoint(0, &config, 1), start(5)], Net::default(), 1);
            for _ in 0..used_before {
                let (client, _) = pair(&mut world, Mode::Stream);
                world.close_all(1);
                pass(&mut world, MS);
                assert!(failed(&mut world, 0, client).is_some());
            }
            let (client, server) = pair(&mut world, Mode::Stream);
            stream(&mut world, (0, client), (1, server), 5_000, S);
            world.replace(1, start(5 + lives));
            let now = world.time();
            world.hosts[0].send(now, client, &[1; 100]).unwrap();
            world.hosts[0].flush(client);
            let is_unlikely = lives == 2 && used_before > 31;
            let limit = if is_unlikely { 20 * S } else { S };
            let taken = wait_for(&mut world, limit, "ended", |world| failed(world, 0, client).is_some());
            println!("{used_before} owners before, {lives} lives ago: {} us", taken / US);
            let code = failed(&mut world, 0, client);
            assert_eq!(code, Some(if is_unlikely { ErrorCode::Timeout } else { ErrorCode::Unknown }));
        }
    }
}

with_a_key!(two_peers_that_gave_out_the_same_id_are_told_apart);
fn two_peers_that_gave_out_the_same_id_are_told_apart() {
    // Hosts 1 and 2 both begin with slot 0; host 0 has an association with each. Host 2 forgets its own.
    let config = Config::default();
    let mut world = World::new(3, Net::default(), &config, 1);
    let same = |seed: u64| {
        let mut endpoint = endpoint(seed as usize, &config, seed);
        endpoint.set_secret([seed as u8; 32], 3);
        endpoint
    };
    world.replace(0, same(0));
    world.replace(1, same(1));
    world.replace(2, same(2));
    let (a, a_end) = open(&mut world, 0, 1, 7, Mode::Stream);
    let (b, b_end) = open(&mut world, 0, 2, 7, Mode::Stream);
    stream(&mut world, (0, a), (1, a_end), 5_000, S);
    stream(&mut world, (0, b), (2, b_end), 5_000, S);
    world.cut.insert((0, 2));
    world.close_all(2);
    pass(&mut world, MS);
    world.cut.clear();
    let now = world.time();
    world.hosts[0].send(now, b, &[1; 100]).unwrap();
    world.hosts[0].flush(b);
    wait_for(&mut world, S, "reset", |world| failed(world, 0, b).is_some());
    stream(&mut world, (0, a), (1, a_end), 5_000, S);
}
