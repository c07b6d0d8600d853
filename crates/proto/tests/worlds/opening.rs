//! Opening: with loss of any packet, crossing attempts, full backlogs, restarted peers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{AcceptError, ChannelId, Config, ErrorCode, Mode, RecvError, SendError, Time};
use ropeway_wire::{Id, Packet, Type};

const RTT: u64 = 40 * US;
const STATE: u8 = 0x1C;
const CONFIRM: u8 = 0x13;
const TYPES: [(u8, &str); 4] = [(0x11, "SYN"), (0x12, "COOKIE"), (0x13, "CONFIRM"), (0x14, "OPENED")];

fn listening(net: Net, seed: u64) -> World {
    let mut world = World::new(2, net, &Config::default(), seed);
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
    world
}

fn failed(world: &mut World, host: usize, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

fn is_open(world: &mut World, host: usize, channel: ChannelId) -> bool {
    let readiness = world.hosts[host].readiness(channel).unwrap();
    readiness.opened && readiness.failed.is_none()
}

/// The peer of a channel, whose user has shut it down while it was being opened, reads that, and nothing more can be sent.
fn assert_ended_by_client(world: &mut World, host: usize, client: ChannelId) {
    let server = world.hosts[1 - host].accept(7).unwrap();
    assert_eq!(world.hosts[1 - host].recv(server, &mut [0; 1]), Ok(None), "host {host}");
    let now = world.time();
    assert_eq!(world.hosts[host].send(now, client, b"x"), Err(SendError::Closed), "host {host}");
}

/// Loses the first packets of a type.
fn lose_first(world: &mut World, kind: u8, mut count: usize) {
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        let is_lost = bytes[0] == kind && count > 0;
        count -= usize::from(is_lost);
        !is_lost
    }));
}

in_every_way!(opening_takes_two_round_trips_and_the_second_channel_none);
fn opening_takes_two_round_trips_and_the_second_channel_none() {
    let mut world = listening(Net::default(), 1);
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    let taken = wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
    assert_eq!(taken, 2 * RTT);
    let second = try_connect(&mut world, 0, 1, 7).unwrap();
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, second, b"at once"), Ok(7));
    let begin = world.now;
    wait_for(&mut world, S, "the first bytes are there", |world| {
        while let Ok(id) = world.hosts[1].accept(7) {
            if world.hosts[1].recv(id, &mut [0; 10]) == Ok(Some(7)) {
                return true;
            }
        }
        false
    });
    assert_eq!(world.now - begin, RTT / 2, "no round trip before the data");
    assert_eq!(world.hosts[1].sizes(), (1, 2));
}

in_every_way!(any_packet_of_the_opening_may_be_lost);
fn any_packet_of_the_opening_may_be_lost() {
    for (kind, name) in TYPES {
        for count in 1..4 {
            let mut world = listening(Net::default(), count as u64);
            lose_first(&mut world, kind, count);
            let client = try_connect(&mut world, 0, 1, 7).unwrap();
            let taken = wait_for(&mut world, S, name, |world| is_open(world, 0, client));
            let least: u64 = (0..count).map(|turn| (10 * MS) << turn).sum();
            assert!((least..least * 5 / 4 + RTT * 3).contains(&taken), "{count} x {name}: {taken}");
            assert_eq!(world.hosts[1].sizes().0, 1, "{count} x {name}");
            let server = world.hosts[1].accept(7).unwrap();
            assert_eq!(world.hosts[1].accept(7), Err(AcceptError::WouldBlock), "{name}: one channel, not two");
            stream(&mut world, (0, client), (1, server), 10_000, S);
        }
    }
}

in_every_way!(an_end_that_was_stopped_while_it_connected_is_open_within_two_round_trips);
fn an_end_that_was_stopped_while_it_connected_is_open_within_two_round_trips() {
    // Up to three cookies wait for it meanwhile, none of which the server takes any more.
    for cookies in 0..=3 {
        for stopped_ns in [3 * S + 500 * MS, 7 * S + 500 * MS, 11 * S, 1000 * S] {
            let mut world = listening(Net::default(), 1);
            world.stopped.insert(1);
            let client = try_connect(&mut world, 0, 1, 7).unwrap();
            // SYN leaves at once, and after 10 and 20 ms more.
            pass(&mut world, [5, 5, 15, 40][cookies] * MS);
            if cookies == 0 {
                world.cut.insert((0, 1));
            }
            world.stopped = [0].into();
            pass(&mut world, stopped_ns);
            (world.stopped, world.cut) = Default::default();
            let taken = wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
            assert!(taken <= 2 * RTT, "{cookies} cookies, stopped for {stopped_ns}: {taken}");
        }
    }
}

in_every_way!(an_end_that_was_stopped_after_its_confirm_was_lost_begins_anew);
fn an_end_that_was_stopped_after_its_confirm_was_lost_begins_anew() {
    for stopped_ns in [2 * S, 4 * S, 11 * S] {
        let mut world = listening(Net::default(), 1);
        lose_first(&mut world, CONFIRM, 1);
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        pass(&mut world, 5 * MS);
        world.stopped.insert(0);
        pass(&mut world, stopped_ns);
        world.stopped.clear();
        let taken = wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
        assert!(taken <= 2 * RTT, "stopped for {stopped_ns}: {taken}");
    }
}

in_every_way!(an_end_that_was_stopped_when_its_time_to_connect_was_nearly_over_asks_once_more);
fn an_end_that_was_stopped_when_its_time_to_connect_was_nearly_over_asks_once_more() {
    for is_there in [true, false] {
        let mut world = listening(Net::default(), 1);
        world.cut.insert((0, 1));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        pass(&mut world, Config::default().connect_timeout_ns - MS);
        world.stopped.insert(0);
        pass(&mut world, 2 * S);
        world.stopped.clear();
        if is_there {
            world.cut.clear();
            let taken = wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
            assert!(taken <= 2 * RTT, "{taken}");
        } else {
            wait_for(&mut world, S, "given up", |world| failed(world, 0, client) == Some(ErrorCode::Timeout));
        }
    }
}

in_every_way!(what_opens_says_nothing_of_the_moment_and_is_repeated_byte_for_byte);
fn what_opens_says_nothing_of_the_moment_and_is_repeated_byte_for_byte() {
    let mut world = listening(Net::default(), 1);
    let (seen, mut opened) = (Rc::new(RefCell::new(Vec::new())), 0);
    let out = Rc::clone(&seen);
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        out.borrow_mut().push(bytes.to_vec());
        opened += u32::from(bytes[0] == 0x14);
        // Two OPENED are lost.
        bytes[0] != 0x14 || opened > 2
    }));
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
    let of = |kind: u8| seen.borrow().iter().filter(|bytes| bytes[0] == kind).cloned().collect::<Vec<_>>();
    let (syn, cookie, confirm) = (of(0x11), of(0x12), of(0x13));
    assert_eq!((syn.len(), cookie.len(), confirm.len()), (1, 1, 3));
    assert!(confirm.iter().all(|bytes| *bytes == confirm[0]));
    for bytes in [&syn[0], &cookie[0], &confirm[0]] {
        // Flags, and the fields from number to echo.
        assert_eq!((bytes[1], &bytes[8..24]), (0, &[0; 16][..]), "type {}", bytes[0] & 0x0F);
    }
    for bytes in [&syn[0], &cookie[0]] {
        assert_eq!(bytes.len(), 1472);
        assert!(bytes[60..].iter().all(|&byte| byte == 0), "padded with zeros");
    }
}

in_every_way!(a_second_cookie_is_dropped_and_counted);
fn a_second_cookie_is_dropped_and_counted() {
    let mut world = listening(Net::default(), 1);
    let cookie = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&cookie);
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        if bytes[0] == 0x12 {
            *out.borrow_mut() = bytes.to_vec();
        }
        // The attempt goes on.
        bytes[0] != 0x14
    }));
    try_connect(&mut world, 0, 1, 7).unwrap();
    pass(&mut world, 2 * RTT);
    world.inject(1, 0, &cookie.borrow());
    pass(&mut world, RTT);
    assert_eq!(world.hosts[0].counters().dropped_unasked, 1);
}

in_every_way!(a_lost_opened_is_made_good_whoever_speaks_first);
fn a_lost_opened_is_made_good_whoever_speaks_first() {
    // The server may send before the client knows that it is open; the client repeats its CONFIRM and is answered again.
    for server_first in [true, false] {
        let mut world = listening(Net::default(), 3);
        lose_first(&mut world, 0x14, 2);
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        let mut server = None;
        wait_for(&mut world, S, "accepted", |world| {
            server = server.or_else(|| world.hosts[1].accept(7).ok());
            server.is_some()
        });
        let server = server.unwrap();
        assert!(!is_open(&mut world, 0, client));
        let ends = ((0, client), (1, server));
        let (from, to) = if server_first { (ends.1, ends.0) } else { ends };
        stream(&mut world, from, to, 50_000, S);
        stream(&mut world, to, from, 50_000, S);
        close_all_channels(&mut world, &[(0, client), (1, server)]);
    }
}

in_every_way!(a_lost_opened_with_a_full_backlog_does_not_take_a_second_place);
fn a_lost_opened_with_a_full_backlog_does_not_take_a_second_place() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    world.hosts[1].listen(7, Mode::Stream, 1).unwrap();
    lose_first(&mut world, 0x14, 2);
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| is_open(world, 0, client));
    let late = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "refused", |world| failed(world, 0, late).is_some());
    assert_eq!(failed(&mut world, 0, late), Some(ErrorCode::Busy), "the backlog is full");
    let server = world.hosts[1].accept(7).unwrap();
    stream(&mut world, (0, client), (1, server), 1000, S);
    let third = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| world.hosts[1].has_incoming(7));
    assert_eq!(failed(&mut world, 0, third), None);
}

in_every_way!(engines_that_share_an_address_are_asked_each_at_its_port);
fn engines_that_share_an_address_are_asked_each_at_its_port() {
    for (steering, apart) in [(0, 1), (5, 2)] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        world.hosts[1] = endpoint_steered(1, &Config::default(), steering, 1);
        for port in [7, 8] {
            world.hosts[1].listen(port, Mode::Stream, 4).unwrap();
        }
        // One that is alone at its address answers for all its ports.
        for (port, associations, channels) in [(7, 1, 1), (8, apart, 2), (7, apart, 3), (8, apart, 4)] {
            let channel = try_connect(&mut world, 0, 1, port).unwrap();
            wait_for(&mut world, S, "open", |world| is_open(world, 0, channel));
            assert_eq!(world.hosts[0].sizes(), (associations, channels), "steering {steering}, port {port}");
        }
        // A port where nobody listens changes nothing for the others.
        let nobody = try_connect(&mut world, 0, 1, 9).unwrap();
        wait_for(&mut world, S, "refused", |world| failed(world, 0, nobody).is_some());
        let channel = try_connect(&mut world, 0, 1, 7).unwrap();
        wait_for(&mut world, S, "open", |world| is_open(world, 0, channel));
        assert_eq!(world.hosts[0].sizes().0, apart, "steering {steering}");
    }
}

in_every_way!(attempts_at_several_ports_of_an_address_do_not_take_each_other_along);
fn attempts_at_several_ports_of_an_address_do_not_take_each_other_along() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    for host in 0..2 {
        world.hosts[host] = endpoint_steered(host, &Config::default(), 5, 1);
    }
    for port in [7, 8] {
        world.hosts[1].listen(port, Mode::Stream, 4).unwrap();
    }
    let channels = [7, 8].map(|port| try_connect(&mut world, 0, 1, port).unwrap());
    wait_for(&mut world, S, "both are open", |world| channels.iter().all(|&channel| is_open(world, 0, channel)));
    assert_eq!(world.hosts[0].sizes(), (2, 2));
    // Each is known by its port from then on, whichever was last.
    for port in [7, 8] {
        let channel = try_connect(&mut world, 0, 1, port).unwrap();
        wait_for(&mut world, S, "open", |world| is_open(world, 0, channel));
    }
    assert_eq!(world.hosts[0].sizes(), (2, 4));
    // One ends, and nothing is left of it; the other one goes on.
    world.close_all(1);
    wait_for(&mut world, S, "all is over", |world| world.hosts[0].sizes().0 == 0);
}

in_every_way!(who_is_not_listened_for_is_told_so_at_once_and_takes_nobody_along);
fn who_is_not_listened_for_is_told_so_at_once_and_takes_nobody_along() {
    let mut world = listening(Net::default(), 1);
    // With a key, only who has proved that he has it learns about ports.
    let first = if is_keyed() { 2 * RTT } else { RTT };
    let nobody = try_connect(&mut world, 0, 1, 9).unwrap();
    let other = try_connect(&mut world, 0, 1, 7).unwrap();
    let taken = wait_for(&mut world, S, "refused", |world| failed(world, 0, nobody).is_some());
    assert_eq!((failed(&mut world, 0, nobody), taken), (Some(ErrorCode::Refused), first));
    wait_for(&mut world, S, "the other one is open", |world| is_open(world, 0, other));
    let nobody = try_connect(&mut world, 0, 1, 9).unwrap();
    let taken = wait_for(&mut world, S, "refused", |world| failed(world, 0, nobody).is_some());
    assert_eq!((failed(&mut world, 0, nobody), taken), (Some(ErrorCode::Refused), RTT));
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, nobody, b"x"), Err(SendError::Failed(ErrorCode::Refused)));
    assert_eq!(world.hosts[0].recv(nobody, &mut [0; 1]), Err(RecvError::Failed(ErrorCode::Refused)));
}

in_every_way!(a_channel_that_is_refused_does_not_count_as_taken_before);
fn a_channel_that_is_refused_does_not_count_as_taken_before() {
    for link_is_full in [false, true] {
        // Packets that leave together arrive one after the other.
        let mut world = listening(Net { rate: 10_000_000_000, ..Net::default() }, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        let now = world.time();
        while world.hosts[0].send(now, client, &[0; 65_536]).is_ok() {}
        pass(&mut world, 10 * MS);
        let nobody = try_connect(&mut world, 0, 1, 9).unwrap();
        if link_is_full {
            world.full.insert((1, 0));
        } else {
            world.stopped.insert(1);
        }
        pass(&mut world, RTT);
        // Credit is to be said as well, in a packet that acknowledges what has come.
        while world.hosts[1].recv(server, &mut [0; 65_536]).is_ok() {}
        world.full.clear();
        world.stopped.clear();
        wait_for(&mut world, S, "refused", |world| {
            assert!(!is_open(world, 0, nobody), "with a full link: {link_is_full}");
            failed(world, 0, nobody).is_some()
        });
        assert_eq!(failed(&mut world, 0, nobody), Some(ErrorCode::Refused));
    }
}

in_every_way!(a_port_that_was_not_asked_for_first_is_refused_alone);
fn a_port_that_was_not_asked_for_first_is_refused_alone() {
    let mut world = listening(Net::default(), 1);
    let first = try_connect(&mut world, 0, 1, 7).unwrap();
    let nobody = try_connect(&mut world, 0, 1, 9).unwrap();
    let other = try_connect(&mut world, 0, 1, 7).unwrap();
    // SYN is under way, and CONFIRM will carry what is left first.
    pass(&mut world, RTT / 4);
    let now = world.time();
    world.hosts[0].close(now, first);
    wait_for(&mut world, S, "refused", |world| failed(world, 0, nobody).is_some());
    assert_eq!(failed(&mut world, 0, nobody), Some(ErrorCode::Refused));
    wait_for(&mut world, 4 * RTT, "the other one is open", |world| is_open(world, 0, other));
    assert_eq!(world.hosts[1].sizes(), (1, 1));
}

in_every_way!(the_other_mode_is_refused);
fn the_other_mode_is_refused() {
    let mut world = listening(Net::default(), 1);
    let now = world.time();
    let client = world.hosts[0].connect(now, &path(1), 7, Mode::Messages).unwrap();
    wait_for(&mut world, S, "refused", |world| failed(world, 0, client).is_some());
    assert_eq!(failed(&mut world, 0, client), Some(ErrorCode::Refused));
}

in_every_way!(nobody_there_is_a_timeout_after_exactly_the_time_set);
fn nobody_there_is_a_timeout_after_exactly_the_time_set() {
    let mut world = listening(Net::default(), 1);
    world.cut.insert((0, 1));
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    let taken = wait_for(&mut world, 20 * S, "failed", |world| failed(world, 0, client).is_some());
    assert_eq!((failed(&mut world, 0, client), taken), (Some(ErrorCode::Timeout), 10 * S));
    assert_eq!(world.hosts[0].sizes(), (0, 1));
}

in_every_way!(crossing_attempts_make_one_association);
fn crossing_attempts_make_one_association() {
    for seed in 0..40 {
        let net = Net {
            loss_ppm: seed % 4 * 50_000,
            reordering_ppm: seed % 3 * 200_000,
            duplication_ppm: seed % 2 * 100_000,
            ..Net::default()
        };
        let mut world = listening(net, seed);
        world.hosts[0].listen(7, Mode::Stream, 4).unwrap();
        let a = try_connect(&mut world, 0, 1, 7).unwrap();
        // At the same moment, or so much later that other packets cross.
        pass(&mut world, seed * 5 * US);
        let b = try_connect(&mut world, 1, 0, 7).unwrap();
        let mut accepted = [None, None];
        wait_for(&mut world, 5 * S, "both are open", |world| {
            for (host, accepted) in accepted.iter_mut().enumerate() {
                *accepted = accepted.or_else(|| world.hosts[host].accept(7).ok());
            }
            accepted.iter().all(Option::is_some) && is_open(world, 0, a) && is_open(world, 1, b)
        });
        let [from_b, from_a] = accepted.map(Option::unwrap);
        stream(&mut world, (0, a), (1, from_a), 20_000, 5 * S);
        stream(&mut world, (1, b), (0, from_b), 20_000, 5 * S);
        assert_eq!(world.hosts.iter().map(|host| host.sizes()).collect::<Vec<_>>(), [(1, 2), (1, 2)], "seed {seed}");
    }
}

in_every_way!(a_channel_closed_while_attempts_cross_is_opened_for_nobody);
fn a_channel_closed_while_attempts_cross_is_opened_for_nobody() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    for host in &mut world.hosts {
        for port in [7, 8] {
            host.listen(port, Mode::Stream, 4).unwrap();
        }
    }
    let [closed, kept] = [7, 8].map(|port| try_connect(&mut world, 1, 0, port).unwrap());
    // CONFIRM has left with the OPEN of the first, and crosses the COOKIE for the other end, which is the client in the end.
    pass(&mut world, RTT * 3 / 4);
    let crossing = try_connect(&mut world, 0, 1, 8).unwrap();
    pass(&mut world, RTT / 2);
    let now = world.time();
    world.hosts[1].close(now, closed);
    wait_for(&mut world, S, "open", |world| is_open(world, 1, kept) && is_open(world, 0, crossing));
    pass(&mut world, 10 * MS);
    assert_eq!(world.hosts[0].accept(7), Err(AcceptError::WouldBlock));
    assert_eq!([0, 1].map(|host: usize| world.hosts[host].sizes()), [(1, 2); 2]);
}

in_every_way!(a_channel_closed_before_the_attempt_begins_anew_is_opened_for_nobody);
fn a_channel_closed_before_the_attempt_begins_anew_is_opened_for_nobody() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    for port in [7, 8] {
        world.hosts[1].listen(port, Mode::Stream, 4).unwrap();
    }
    let arrives_from = world.now + 4 * S;
    world.filter = Some(Box::new(move |now, _, _, bytes| bytes[0] != CONFIRM || now > arrives_from));
    let [closed, kept] = [7, 8].map(|port| try_connect(&mut world, 0, 1, port).unwrap());
    pass(&mut world, S);
    let now = world.time();
    world.hosts[0].close(now, closed);
    wait_for(&mut world, 9 * S, "open", |world| {
        assert_eq!(world.hosts[1].accept(7), Err(AcceptError::WouldBlock));
        is_open(world, 0, kept)
    });
    assert!(world.hosts[1].accept(8).is_ok());
    assert_eq!([0, 1].map(|host: usize| world.hosts[host].sizes()), [(1, 1); 2]);
}

in_every_way!(the_end_of_a_channel_comes_though_attempts_cross);
fn the_end_of_a_channel_comes_though_attempts_cross() {
    let mut world = listening(Net::default(), 1);
    world.hosts[0].listen(7, Mode::Stream, 4).unwrap();
    let clients = [(0, 1), (1, 0)].map(|(from, to)| try_connect(&mut world, from, to, 7).unwrap());
    let now = world.time();
    for (host, client) in clients.into_iter().enumerate() {
        world.hosts[host].shutdown(now, client).unwrap();
    }
    wait_for(&mut world, S, "open", |world| (0..2).all(|host| is_open(world, host, clients[host])));
    pass(&mut world, 10 * MS);
    for (host, client) in clients.into_iter().enumerate() {
        assert_ended_by_client(&mut world, host, client);
    }
}

in_every_way!(the_end_of_a_channel_comes_though_the_attempt_begins_anew);
fn the_end_of_a_channel_comes_though_the_attempt_begins_anew() {
    let mut world = listening(Net::default(), 1);
    let arrives_from = world.now + 4 * S;
    world.filter = Some(Box::new(move |now, _, _, bytes| bytes[0] != CONFIRM || now > arrives_from));
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    let now = world.time();
    world.hosts[0].shutdown(now, client).unwrap();
    wait_for(&mut world, 9 * S, "open", |world| is_open(world, 0, client));
    pass(&mut world, 10 * MS);
    assert_ended_by_client(&mut world, 0, client);
}

in_every_way!(who_shares_an_address_does_not_get_what_was_for_another_engine_there);
fn who_shares_an_address_does_not_get_what_was_for_another_engine_there() {
    // Each end the one with the lower number once.
    for (asking, asked) in [(0, 1), (1, 0)] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        for host in 0..2 {
            world.hosts[host] = endpoint_steered(host, &Config::default(), 5, 1);
        }
        world.hosts[asking].listen(7, Mode::Stream, 4).unwrap();
        // Port 8 is that of another engine, which does not answer yet.
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let header = Packet::parse(bytes).unwrap().header;
            from != asking || header.kind != Type::Syn || header.destination != Id::any(8)
        }));
        let waiting = try_connect(&mut world, asking, asked, 8).unwrap();
        let crossing = try_connect(&mut world, asked, asking, 7).unwrap();
        wait_for(&mut world, S, "open", |world| is_open(world, asked, crossing));
        pass(&mut world, S);
        assert!(!is_open(&mut world, asking, waiting) && failed(&mut world, asking, waiting).is_none());
        world.filter = None;
        world.hosts[asked].listen(8, Mode::Stream, 4).unwrap();
        wait_for(&mut world, 2 * S, "open", |world| is_open(world, asking, waiting));
        assert_eq!(world.hosts.iter().map(|host| host.sizes()).collect::<Vec<_>>(), [(2, 2), (2, 2)]);
    }
}

in_every_way!(attempts_of_one_that_shares_an_address_and_one_that_does_not_both_succeed);
fn attempts_of_one_that_shares_an_address_and_one_that_does_not_both_succeed() {
    for steered in [0, 1] {
        for later in [0, 5, 10, 20, 30] {
            let mut world = World::new(2, Net::default(), &Config::default(), 1);
            world.hosts[steered] = endpoint_steered(steered, &Config::default(), 5, 1);
            for host in &mut world.hosts {
                host.listen(7, Mode::Stream, 4).unwrap();
            }
            let first = try_connect(&mut world, 0, 1, 7).unwrap();
            pass(&mut world, later * US);
            let second = try_connect(&mut world, 1, 0, 7).unwrap();
            wait_for(&mut world, S, "open", |world| is_open(world, 0, first) && is_open(world, 1, second));
            pass(&mut world, S);
            let accepted = [1, 0].map(|host| world.hosts[host].accept(7).unwrap());
            stream(&mut world, (0, first), (1, accepted[0]), 20_000, S);
            stream(&mut world, (1, second), (0, accepted[1]), 20_000, S);
            assert!(world.hosts.iter_mut().all(|host| host.accept(7).is_err()), "each once");
        }
    }
}

in_every_way!(a_forged_crossing_does_not_stop_an_attempt);
fn a_forged_crossing_does_not_stop_an_attempt() {
    // Host 2 says in host 1's name that it begins: host 0 stands back, and tries again when nothing comes of it.
    let mut world = listening(Net::default(), 1);
    let mut syn = None;
    let mut other = World::new(2, Net::default(), &Config::default(), 2);
    try_connect(&mut other, 1, 0, 9).unwrap();
    let now = other.time();
    other.hosts[1].transmit(now, &mut |_, _, packets| {
        syn = Some(packets[0].to_vec());
        1
    });
    world.hosts[0].listen(9, Mode::Stream, 4).unwrap();
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    let mut forged = syn.unwrap();
    // The lower node wins: host 0 has node 1, so this one says node 0.
    forged[36..44].fill(0);
    let now = world.time();
    world.hosts[0].handle_packet(now, &arrival(1, 0), false, &forged);
    let taken = wait_for(&mut world, S, "open all the same", |world| is_open(world, 0, client));
    assert!(taken < 200 * MS, "{taken}");
}

in_every_way!(closing_while_opening_leaves_nothing_at_either_end);
fn closing_while_opening_leaves_nothing_at_either_end() {
    for after in [0, RTT / 2, RTT, RTT + RTT / 2, 2 * RTT - 1, 2 * RTT] {
        for (others, shuts_down) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = listening(Net::default(), after);
            let client = try_connect(&mut world, 0, 1, 7).unwrap();
            let other = others.then(|| try_connect(&mut world, 0, 1, 7).unwrap());
            pass(&mut world, after);
            let now = world.time();
            if shuts_down {
                world.hosts[0].shutdown(now, client).unwrap();
            }
            world.hosts[0].close(now, client);
            pass(&mut world, 100 * MS);
            let mut ends = Vec::new();
            while let Ok(id) = world.hosts[1].accept(7) {
                ends.push((1, id));
            }
            if let Some(other) = other {
                assert!(is_open(&mut world, 0, other), "closed after {after}");
                ends.push((0, other));
            }
            let now = world.time();
            let waits = |host: usize| world.hosts[host].association_statistics(now).any(|it| it.backlog_bytes > 0);
            assert!(!(0..2).any(waits), "closed after {after}");
            let _ = ends.iter().map(|&(host, id)| world.hosts[host].send(now, id, b"hello")).collect::<Vec<_>>();
            close_all_channels(&mut world, &ends);
        }
    }
}

/// The server's process ends without a word, and another one begins in its place, with nothing of it.
fn start_server_anew(world: &mut World) {
    world.replace(1, endpoint(1, &Config::default(), 99));
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
}

in_every_way!(a_peer_that_was_started_anew_without_a_secret_says_that_it_knows_nothing_where_there_is_no_key);
fn a_peer_that_was_started_anew_without_a_secret_says_that_it_knows_nothing_where_there_is_no_key() {
    let mut world = listening(Net::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 200_000, S);
    start_server_anew(&mut world);
    let now = world.time();
    world.hosts[0].send(now, client, &[1; 100]).unwrap();
    world.hosts[0].flush(client);
    let taken = wait_for(&mut world, 20 * S, "the end", |world| failed(world, 0, client).is_some());
    match is_keyed() {
        // It cannot prove anything: only silence ends the old association.
        true => assert!((9 * S..11 * S).contains(&taken), "{taken}"),
        // The first STATE is answered.
        false => assert!(taken < 20 * MS, "{taken}"),
    }
    let code = failed(&mut world, 0, client).unwrap();
    assert_eq!(code, if is_keyed() { ErrorCode::Timeout } else { ErrorCode::Unknown });
    let again = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, 20 * MS, "open", |world| is_open(world, 0, again));
}

in_every_way!(who_connects_to_a_peer_that_was_started_anew_gets_in);
fn who_connects_to_a_peer_that_was_started_anew_gets_in() {
    for with_data in [false, true] {
        let mut world = listening(Net::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1000, S);
        pass(&mut world, S);
        start_server_anew(&mut world);
        // Over the association with the process that is gone.
        let ids = [0; 3].map(|_| try_connect(&mut world, 0, 1, 7).unwrap());
        let nobody = try_connect(&mut world, 0, 1, 8).unwrap();
        if with_data {
            let now = world.time();
            world.hosts[0].send(now, ids[1], b"early").unwrap();
        }
        wait_for(&mut world, 50 * MS, "open", |world| is_open(world, 0, ids[0]));
        for (place, id) in ids.into_iter().enumerate() {
            if with_data && place == 1 {
                continue;
            }
            wait_for(&mut world, 50 * MS, "open", |world| is_open(world, 0, id));
            let accepted = world.hosts[1].accept(7).unwrap();
            stream(&mut world, (0, id), (1, accepted), 5000, S);
            stream(&mut world, (1, accepted), (0, id), 5000, S);
        }
        wait_for(&mut world, 50 * MS, "refused", |world| failed(world, 0, nobody).is_some());
        assert_eq!(failed(&mut world, 0, nobody), Some(ErrorCode::Refused));
        // What the former process may have read is not said again.
        let lost = [client, ids[1]];
        for id in &lost[..1 + usize::from(with_data)] {
            // With a key only silence proves it, and nobody asks where nothing is undelivered.
            if is_keyed() && !with_data {
                continue;
            }
            wait_for(&mut world, 11 * S, "the end", |world| failed(world, 0, *id).is_some());
            let expected = if is_keyed() { ErrorCode::Timeout } else { ErrorCode::Unknown };
            assert_eq!(failed(&mut world, 0, *id), Some(expected));
        }
        assert_eq!(world.hosts[1].accept(7), Err(AcceptError::WouldBlock));
        wait_for(&mut world, 12 * S, "the former association is gone", |world| world.hosts[0].sizes().0 == 1);
    }
}

in_every_way!(who_is_told_falsely_that_the_peer_knows_nothing_loses_nothing_with_a_key);
fn who_is_told_falsely_that_the_peer_knows_nothing_loses_nothing_with_a_key() {
    if !is_keyed() {
        return;
    }
    let mut world = listening(Net::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1000, S);
    let states: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let (seen, mute) = (Rc::clone(&states), Rc::new(Cell::new(true)));
    let is_mute = Rc::clone(&mute);
    world.filter = Some(Box::new(move |_, host, _, bytes| {
        if host == 0 && bytes[0] == STATE {
            seen.borrow_mut().push(bytes.to_vec());
        }
        host == 0 || !is_mute.get()
    }));
    let ids = [0; 2].map(|_| try_connect(&mut world, 0, 1, 7).unwrap());
    wait_for(&mut world, S, "it asks", |_| !states.borrow().is_empty());
    let now = world.clock(0);
    let answer = answer_of_a_stranger(now, &states.borrow()[0]);
    world.hosts[0].handle_packet(now, &path(1), false, &answer);
    mute.set(false);
    for id in ids {
        wait_for(&mut world, S, "open", |world| is_open(world, 0, id));
    }
    // Of each there were two; the former ones were ended.
    let mut accepted = Vec::new();
    wait_for(&mut world, S, "accepted", |world| {
        accepted.extend(std::iter::from_fn(|| world.hosts[1].accept(7).ok()));
        let open = accepted.iter().filter(|&&id| world.hosts[1].readiness(id).is_some_and(|now| now.failed.is_none()));
        open.count() == 2
    });
    let open: Vec<_> =
        accepted.into_iter().filter(|&id| world.hosts[1].readiness(id).unwrap().failed.is_none()).collect();
    for (id, other) in ids.into_iter().zip(open) {
        stream(&mut world, (0, id), (1, other), 5000, S);
    }
    stream(&mut world, (0, client), (1, server), 5000, S);
    stream(&mut world, (1, server), (0, client), 5000, S);
    assert_eq!([0, 1].map(|host: usize| world.hosts[host].counters().violations), [0; 2]);
}

/// What an engine that knows nothing of anybody says to a packet of host 0's.
fn answer_of_a_stranger(now: Time, state: &[u8]) -> Vec<u8> {
    let mut stranger = endpoint(2, &Config::default(), 5);
    stranger.handle_packet(now, &path(0), false, state);
    let mut answers = Vec::new();
    stranger.transmit(now, &mut |_, _, packets| {
        answers.extend(packets.iter().map(|packet| packet.to_vec()));
        packets.len()
    });
    answers.pop().expect("an answer")
}

in_every_way!(a_stranger_s_word_about_anything_but_the_state_of_now_is_not_believed);
/// Only who has seen a STATE can answer for a process that does not know it.
fn a_stranger_s_word_about_anything_but_the_state_of_now_is_not_believed() {
    if is_keyed() {
        return;
    }
    let mut world = listening(Net::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1000, S);
    let states: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let seen = Rc::clone(&states);
    world.filter = Some(Box::new(move |_, host, _, bytes| {
        if host == 0 && bytes[0] == STATE {
            seen.borrow_mut().push(bytes.to_vec());
        }
        // Nothing is answered.
        host == 0
    }));
    let now = world.time();
    world.hosts[0].send(now, client, &[1; 100]).unwrap();
    world.hosts[0].flush(client);
    wait_for(&mut world, S, "it asks", |_| !states.borrow().is_empty());
    let state = states.borrow()[0].clone();
    // A third engine, which knows nothing of either, answers what was asked, and what was not.
    for at in 8..16 {
        let mut other = state.clone();
        other[at] ^= 1;
        let now = world.clock(0);
        world.hosts[0].handle_packet(now, &path(1), false, &answer_of_a_stranger(now, &other));
        assert_eq!(failed(&mut world, 0, client), None, "byte {at}");
    }
    assert_eq!(world.hosts[0].counters().dropped_reset, 8);
    let now = world.clock(0);
    world.hosts[0].handle_packet(now, &path(2), false, &answer_of_a_stranger(now, &state));
    assert_eq!(failed(&mut world, 0, client), None, "from elsewhere");
    world.hosts[0].handle_packet(now, &path(1), false, &answer_of_a_stranger(now, &state));
    assert_eq!(failed(&mut world, 0, client), Some(ErrorCode::Unknown));
}

in_every_way!(a_peer_started_anew_with_its_secret_resets_its_old_associations_at_once);
fn a_peer_started_anew_with_its_secret_resets_its_old_associations_at_once() {
    let start = |world: &mut World, seed: u64| {
        let mut endpoint = endpoint(1, &Config::default(), seed);
        endpoint.set_secret([7; 32], seed as u32);
        endpoint.listen(7, Mode::Stream, 4).unwrap();
        world.replace(1, endpoint);
    };
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    start(&mut world, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 200_000, S);
    pass(&mut world, MS);
    start(&mut world, 2);
    let now = world.time();
    world.hosts[0].send(now, client, &[1; 100]).unwrap();
    world.hosts[0].flush(client);
    let taken = wait_for(&mut world, S, "reset", |world| failed(world, 0, client).is_some());
    assert_eq!(failed(&mut world, 0, client), Some(ErrorCode::Unknown));
    assert_eq!(taken, RTT);
    let again = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| is_open(world, 0, again));
}

in_every_way!(a_client_started_anew_gets_in_and_its_old_association_is_doubted);
fn a_client_started_anew_gets_in_and_its_old_association_is_doubted() {
    let secret = |host: usize, seed: u64| {
        let mut endpoint = endpoint(host, &Config::default(), seed);
        endpoint.set_secret([host as u8; 32], seed as u32);
        endpoint
    };
    let mut world = World::of(vec![secret(0, 1), secret(1, 1)], Net::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1000, S);
    world.replace(0, secret(0, 2));
    let again = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| is_open(world, 0, again));
    // The server only reads on the old one; without the doubt it would learn nothing for five minutes.
    wait_for(&mut world, 10 * MS, "the old one has failed", |world| failed(world, 1, server).is_some());
    assert_eq!(world.hosts[1].sizes().0, 1);
    let now_server = world.hosts[1].accept(7).unwrap();
    stream(&mut world, (0, again), (1, now_server), 1000, S);
}

in_every_way!(the_limits_of_associations_and_channels_are_kept);
fn the_limits_of_associations_and_channels_are_kept() {
    let config = Config { max_associations: 3, max_channels: 5, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    world.hosts[1].listen(7, Mode::Stream, 100).unwrap();
    let now = world.time();
    let open: Vec<_> =
        (0..3).map(|name| world.hosts[0].connect(now, &alias(1, name), 7, Mode::Stream).unwrap()).collect();
    assert!(world.hosts[0].connect(now, &alias(1, 3), 7, Mode::Stream).is_err());
    wait_for(&mut world, S, "open", |world| open.iter().all(|&id| is_open(world, 0, id)));
    (0..4).for_each(|_| assert!(world.hosts[0].connect(now, &alias(1, 0), 7, Mode::Stream).is_ok()));
    assert!(world.hosts[0].connect(now, &alias(1, 0), 7, Mode::Stream).is_err());
}

in_every_way!(no_two_open_channels_have_the_same_ports);
fn no_two_open_channels_have_the_same_ports() {
    const AT_ONCE: usize = 1000;
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.counters.off = true;
    let (kept, _server) = pair(&mut world, Mode::Stream);
    let port_of = |world: &World, channel| world.hosts[0].addresses(channel).unwrap().1;
    // More than there are ports, some after others; nobody takes them.
    for _ in 0..20 {
        let some: Vec<ChannelId> = (0..AT_ONCE).map(|_| try_connect(&mut world, 0, 1, 9).unwrap()).collect();
        let mut ports: Vec<u16> = some.iter().chain([&kept]).map(|&channel| port_of(&world, channel)).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), AT_ONCE + 1);
        wait_for(&mut world, 10 * S, "refused", |world| {
            some.iter().all(|&channel| world.hosts[0].readiness(channel).unwrap().failed.is_some())
        });
        let now = world.clock(0);
        some.into_iter().for_each(|channel| world.hosts[0].close(now, channel));
    }
}
