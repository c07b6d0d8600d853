//! What it gives that hosts tell their own addresses apart.

use crate::world::*;
use ropeway_proto::{Config, Mode, Path, RecvError, Route};

/// An own address that nothing came to before.
const OTHER: u8 = 9;

/// What a host says now, and over which paths.
fn said(world: &mut World, host: usize) -> Vec<(Path, Vec<u8>)> {
    let (now, mut said) = (world.clock(host), Vec::new());
    world.hosts[host].transmit(now, &mut |path, _, packets| {
        said.extend(packets.iter().map(|packet| (*path, packet.to_vec())));
        packets.len()
    });
    said
}

fn hear(world: &mut World, host: usize, path: &Path, bytes: &[u8]) {
    let now = world.clock(host);
    world.hosts[host].handle_packet(now, path, false, bytes);
    world.hosts[host].finish_batch(now);
}

with_own_addresses!(who_was_asked_at_one_address_takes_nothing_that_comes_to_another);
fn who_was_asked_at_one_address_takes_nothing_that_comes_to_another() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
    pass(&mut world, 10 * MS);
    let now = world.clock(0);
    assert_eq!(world.hosts[0].send(now, client, b"hello"), Ok(5));
    let [(over, bytes)] = &said(&mut world, 0)[..] else { panic!("one packet says it") };
    assert_eq!(over.own(), 0, "who connects leaves it to the host");
    let before = world.hosts[1].counters().dropped_foreign_path;
    hear(&mut world, 1, &path(0).bound(OTHER), bytes);
    hear(&mut world, 1, &path(0), bytes);
    assert_eq!(world.hosts[1].counters().dropped_foreign_path, before + 2);
    assert_eq!(world.hosts[1].recv(server, &mut [0; 9]), Err(RecvError::WouldBlock));
    hear(&mut world, 1, &arrival(0, 0), bytes);
    assert_eq!(world.hosts[1].recv(server, &mut [0; 9]), Ok(Some(5)));
    let now = world.clock(1);
    assert_eq!(world.hosts[1].send(now, server, b"there"), Ok(5));
    assert!(said(&mut world, 1).iter().all(|(over, _)| *over == arrival(0, 0)), "answers leave where they did");
}

with_own_addresses!(who_connects_is_answered_at_whichever_address_and_goes_on_as_before);
fn who_connects_is_answered_at_whichever_address_and_goes_on_as_before() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
    pass(&mut world, 10 * MS);
    let now = world.clock(1);
    assert_eq!(world.hosts[1].send(now, server, b"hello"), Ok(5));
    let answers = said(&mut world, 1);
    answers.iter().for_each(|(_, bytes)| hear(&mut world, 0, &path(1).bound(OTHER), bytes));
    assert_eq!(world.hosts[0].recv(client, &mut [0; 9]), Ok(Some(5)));
    let now = world.clock(0);
    assert_eq!(world.hosts[0].send(now, client, b"there"), Ok(5));
    assert!(said(&mut world, 0).iter().all(|(over, _)| *over == path(1)));
}

with_own_addresses!(one_address_of_a_peer_and_two_of_one_s_own_are_two_paths);
fn one_address_of_a_peer_and_two_of_one_s_own_are_two_paths() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    open(&mut world, 0, 1, 7, Mode::Stream);
    pass(&mut world, 10 * MS);
    // The other end has two addresses to reach this one at, which knows it by one.
    let routes = [0, 1].map(|name| Route::new(alias(0, name), &Config::default()));
    let now = world.clock(1);
    assert_eq!(world.hosts[0].listen(8, Mode::Stream, 8), Ok(8));
    world.hosts[1].connect_over(now, &routes, false, 8, Mode::Stream).unwrap();
    let mut to_other = 0;
    for _ in 0..10 {
        for host in 0..2 {
            let now = world.clock(host);
            world.hosts[host].handle_timeout(now);
        }
        for (over, bytes) in said(&mut world, 1) {
            let own = if over.unbound() == alias(0, 1) { OTHER } else { 1 };
            hear(&mut world, 0, &path(1).bound(own), &bytes);
        }
        for (over, bytes) in said(&mut world, 0) {
            to_other += u32::from(over.own() == OTHER);
            let asked = if over.own() == OTHER { alias(0, 1).bound(1) } else { arrival(0, 0) };
            hear(&mut world, 1, &asked, &bytes);
        }
        world.now += MS;
    }
    assert!(to_other >= 2, "COOKIE and DONE");
    for host in 0..2 {
        let statistics = world.hosts[host].association_statistics(world.clock(host)).next().unwrap();
        assert_eq!((world.hosts[host].sizes().0, statistics.paths, statistics.good_paths), (1, 2, 2), "host {host}");
    }
}

/// What hosts 0 and 1 say at this moment, from each to the other. What 0 leaves to its host comes from the address that has this name; says how many packets it did not.
fn exchange(world: &mut World, name: u64) -> usize {
    for host in 0..2 {
        let now = world.clock(host);
        world.hosts[host].next_timeout(now);
        world.hosts[host].handle_timeout(now);
    }
    let mut bound = 0;
    for (over, bytes) in said(world, 0) {
        let from = if over.own() == 0 { alias(0, name) } else { alias(0, 0) };
        bound += usize::from(over.own() != 0);
        hear(world, 1, &from.bound(1), &bytes);
    }
    for (over, bytes) in said(world, 1) {
        assert_eq!(over, arrival(0, 0));
        hear(world, 0, &arrival(1, 0), &bytes);
    }
    world.now += MS;
    bound
}

with_own_addresses!(who_connects_goes_on_under_the_address_that_the_peer_knows_when_its_host_chooses_another);
fn who_connects_goes_on_under_the_address_that_the_peer_knows_when_its_host_chooses_another() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
    pass(&mut world, 10 * MS);
    let now = world.clock(0);
    assert_eq!(world.hosts[0].send(now, client, b"hello"), Ok(5));
    let (mut received, mut waited_ms) = (0, 0);
    while received < 10 {
        exchange(&mut world, 1);
        if let Ok(Some(bytes)) = world.hosts[1].recv(server, &mut [0; 9]) {
            received += bytes;
            let now = world.clock(0);
            assert_eq!(world.hosts[0].send(now, client, b"there"), Ok(5));
        }
        waited_ms += 1;
        assert!(waited_ms < 200, "{received} bytes");
    }
}

with_own_addresses!(who_connects_goes_on_under_that_address_when_the_peer_is_heard_all_the_time);
fn who_connects_goes_on_under_that_address_when_the_peer_is_heard_all_the_time() {
    let config = Config::default();
    for keys in [&[][..], &[1]] {
        for (is_sent_up, is_sent_down) in [(false, true), (true, true), (true, false)] {
            let hosts = [0, 1].map(|host| endpoint_with(host, &config, 1, keys));
            let mut world = World::of(hosts.into(), Net::default(), 1);
            let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
            let (up, down) = ((0, client), (1, server));
            let bytes = |is_sent: bool| if is_sent { 8 << 20 } else { 0 };
            let mut flows = [Flow::stream(up, down, bytes(is_sent_up)), Flow::stream(down, up, bytes(is_sent_down))];
            let mut sum_after = |world: &mut World, ms: u64, name: u64| {
                for _ in 0..ms {
                    flows.iter_mut().for_each(|flow| flow.send(world));
                    exchange(world, name);
                    flows.iter_mut().for_each(|flow| flow.receive(world));
                }
                flows.iter().map(|flow| flow.received).sum::<u64>()
            };
            let before = sum_after(&mut world, 20, 0);
            let after = sum_after(&mut world, 1000, 1);
            let all = bytes(is_sent_up) + bytes(is_sent_down);
            let what = format!("up {is_sent_up}, down {is_sent_down}, keys {keys:?}");
            assert!(0 < before && before < all, "{what}: {before} before");
            assert_eq!(after, all, "{what}: {before} before");
        }
    }
}

with_own_addresses!(whoever_is_spoken_to_now_and_then_and_heard_leaves_its_address_to_its_host);
fn whoever_is_spoken_to_now_and_then_and_heard_leaves_its_address_to_its_host() {
    // About as rarely as a peer that has heard something may echo it no more.
    for pause_ms in [3, 50, 99, 100, 101, 102, 110, 200] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = open(&mut world, 0, 1, 7, Mode::Stream);
        for _ in 0..10 {
            let now = world.clock(1);
            assert_eq!(world.hosts[1].send(now, server, b"hello"), Ok(5));
            let bound: usize = (0..pause_ms).map(|_| exchange(&mut world, 0)).sum();
            assert_eq!(bound, 0, "each {pause_ms} ms");
            assert_eq!(world.hosts[0].recv(client, &mut [0; 9]), Ok(Some(5)));
        }
    }
}
