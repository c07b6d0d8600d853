//! Links that take nothing for a while: who has its share then, and what waits (docs/protocol.md 3).

use crate::world::*;
use ropeway_proto::{Config, Endpoint, ErrorCode, Mode};

const DEAD: usize = 40;

/// One message after the other, each sent when the one before has come, at most ten in a second. Says when each came.
pub fn messages(
    world: &mut World,
    channels: (ropeway_proto::ChannelId, ropeway_proto::ChannelId),
    ns: u64,
) -> Vec<u64> {
    let (end, mut times) = (world.now + ns, Vec::new());
    while world.now < end {
        let mut flows = [Flow::messages((0, channels.0), (1, channels.1), 1000, 1)];
        let begin = world.now;
        let came = carry_until(world, &mut flows, 20 * S, |_, flows| flows[0].is_done());
        assert!(came, "lost after {times:?}: {:?}", world.hosts[0].readiness(channels.0));
        times.push(world.now - begin);
        pass(world, (100 * MS).saturating_sub(world.now - begin));
    }
    times
}

in_every_way!(attempts_to_hosts_that_are_off_leave_open_associations_their_share);
fn attempts_to_hosts_that_are_off_leave_open_associations_their_share() {
    let config = Config { connect_timeout_ns: 600 * S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let channels = pair(&mut world, Mode::Messages);
    world.sockets.insert(0, Socket::with_room(64, 0));
    for dead in 0..DEAD {
        try_connect(&mut world, 0, 2 + dead, 7).unwrap();
    }
    let times = messages(&mut world, channels, 60 * S);
    // As long as the kernel keeps all of it for SYNs, and no longer.
    let most = times.iter().max().unwrap();
    println!("{} messages, the slowest after {} ms", times.len(), most / MS);
    assert!(*most <= Socket::UNRESOLVED_NS + 300 * MS, "{times:?}");
}

/// What an endpoint sends to each host, in order, if the link takes all or nothing of it.
fn offered(endpoint: &mut Endpoint, now: ropeway_proto::Time, takes: bool) -> Vec<(u64, u8)> {
    let mut out = Vec::new();
    endpoint.transmit(now, &mut |path, _, packets| {
        let host = u64::from_be_bytes(path.0[..8].try_into().unwrap());
        out.extend(packets.iter().map(|packet| (host, packet[0])));
        if takes { packets.len() } else { 0 }
    });
    out
}

/// When attempts that the link had no room for are offered to it again at the latest.
fn after_a_rest(endpoint: &mut Endpoint, now: ropeway_proto::Time) -> ropeway_proto::Time {
    let now = now.after(16 * MS);
    endpoint.handle_timeout(now);
    now
}

in_every_way!(one_packet_of_an_attempt_waits_for_a_full_link_and_goes_behind_what_is_open);
fn one_packet_of_an_attempt_waits_for_a_full_link_and_goes_behind_what_is_open() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, _) = pair(&mut world, Mode::Stream);
    world.sockets.insert(0, Socket::with_room(0, 0));
    for dead in 0..DEAD {
        try_connect(&mut world, 0, 2 + dead, 7).unwrap();
    }
    pass(&mut world, 8 * S);
    let now = world.clock(0);
    world.hosts[0].send(now, client, b"first").unwrap();
    world.hosts[0].flush(client);
    // One attempt has waited for its turn all the time; the link does not take it even so.
    let now = after_a_rest(&mut world.hosts[0], now);
    let refused = offered(&mut world.hosts[0], now, false);
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert_eq!(refused.iter().filter(|(host, _)| *host == 1).count(), 1, "{refused:?}");
    let now = after_a_rest(&mut world.hosts[0], now);
    let taken = offered(&mut world.hosts[0], now, true);
    let syns = taken.iter().filter(|(host, _)| *host > 1).count();
    assert_eq!(syns, DEAD, "one each: {taken:?}");
    let behind = taken.iter().position(|(host, _)| *host == 1).unwrap();
    assert!(behind <= 1, "{taken:?}");
}

in_every_way!(attempts_that_are_over_leave_nothing_for_the_link);
fn attempts_that_are_over_leave_nothing_for_the_link() {
    let config = Config { connect_timeout_ns: S, ..Config::default() };
    let mut world = World::new(1, Net::default(), &config, 1);
    world.sockets.insert(0, Socket::with_room(0, 0));
    let mut last = None;
    for dead in 0..DEAD {
        last = Some(try_connect(&mut world, 0, 2 + dead, 7).unwrap());
    }
    pass(&mut world, 2 * S);
    let failed = world.hosts[0].readiness(last.unwrap()).unwrap().failed;
    assert_eq!(failed, Some(ErrorCode::Timeout));
    let now = world.clock(0);
    assert_eq!(offered(&mut world.hosts[0], now, true), []);
    assert!(!world.hosts[0].wants_to_transmit());
}

in_every_way!(a_link_that_is_always_full_opens_others_even_so);
fn a_link_that_is_always_full_opens_others_even_so() {
    let mut world = World::new(3, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    world.hosts[2].listen(7, Mode::Stream, 8).unwrap();
    // Slower than what comes back: the port's budget is never used up.
    world.sockets.insert(0, Socket::with_room(4, 400 * US));
    let mut flows = [Flow::stream((0, client), (1, server), 1 << 40)];
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    let other = try_connect(&mut world, 0, 2, 7).unwrap();
    let begin = world.now;
    while !world.hosts[0].readiness(other).unwrap().opened {
        assert!(world.now < begin + 2 * S, "never opened");
        carry_until(&mut world, &mut flows, MS, |_, _| false);
    }
    let took = world.now - begin;
    println!("opened after {} ms", took / MS);
    assert!(took < 500 * MS, "{took}");
}

in_every_way!(answers_and_open_associations_share_a_full_link);
fn answers_and_open_associations_share_a_full_link() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1000, S);
    world.hosts[0].listen(9, Mode::Stream, 8).unwrap();
    world.sockets.insert(0, Socket::with_room(1, 10 * US));
    // A SYN of somebody who is there, again and again under another nonce.
    let mut syn = None;
    let mut stranger = World::new(1, Net::default(), &Config::default(), 7);
    try_connect(&mut stranger, 0, 9, 9).unwrap();
    let now = stranger.clock(0);
    stranger.hosts[0].transmit(now, &mut |_, _, packets| {
        syn = Some(packets[0].to_vec());
        packets.len()
    });
    let mut syn = syn.unwrap();
    let mut flows = [Flow::stream((0, client), (1, server), 1 << 40)];
    let mut nonce = 0u64;
    let mut answers = 0;
    for _ in 0..100 {
        for _ in 0..200 {
            nonce += 1;
            syn[28..36].copy_from_slice(&nonce.to_be_bytes());
            let now = world.clock(0);
            world.hosts[0].handle_packet(now, &arrival(1, 5), false, &syn);
        }
        let before = world.sent_by[0];
        carry_until(&mut world, &mut flows, MS, |_, _| false);
        answers += world.sent_by[0] - before;
    }
    let full = flows[0].received / 1444;
    println!("{full} packets of data among {answers}");
    assert!(full * 5 > answers && full * 5 < answers * 4, "{full} of {answers}");
}

/// A kernel's buffers as the UDP link has them: for those that answer, which are short packets here, and for the full ones of attempts.
pub fn two_sockets(world: &mut World) {
    world.sockets.insert(0, Socket::with_room(128, 0));
    world.apart.insert(0, Socket::with_room(48, 0));
}

in_every_way!(attempts_to_hosts_that_are_off_leave_others_alone_where_the_link_keeps_them_apart);
fn attempts_to_hosts_that_are_off_leave_others_alone_where_the_link_keeps_them_apart() {
    let config = Config { connect_timeout_ns: 600 * S, ..Config::default() };
    let mut world = World::new(3, Net::default(), &config, 1);
    let channels = pair(&mut world, Mode::Messages);
    world.hosts[2].listen(7, Mode::Stream, 8).unwrap();
    two_sockets(&mut world);
    for dead in 0..DEAD {
        try_connect(&mut world, 0, 3 + dead, 7).unwrap();
    }
    let mut times = messages(&mut world, channels, S);
    // Another one behind them opens as soon as there is room again.
    let late = try_connect(&mut world, 0, 2, 7).unwrap();
    times.extend(messages(&mut world, channels, Socket::UNRESOLVED_NS - S / 2));
    assert!(world.hosts[0].readiness(late).unwrap().opened);
    times.extend(messages(&mut world, channels, 10 * S));
    assert!(times.iter().all(|&time| time < MS), "{times:?}");
    assert!(times.len() > 100);
}

in_every_way!(peers_that_go_off_leave_others_alone_where_the_link_keeps_them_apart);
fn peers_that_go_off_leave_others_alone_where_the_link_keeps_them_apart() {
    const PEERS: usize = 12;
    let mut world = World::new(2 + PEERS, Net::default(), &Config::default(), 1);
    let channels = pair(&mut world, Mode::Messages);
    let lost: Vec<_> = (2..2 + PEERS).map(|to| open(&mut world, 0, to, 7, Mode::Messages)).collect();
    pass(&mut world, S);
    two_sockets(&mut world);
    world.cut.extend((2..2 + PEERS).map(|to| (0, to)));
    // What they are sent before anybody doubts that they are there; then nobody asks them any more but this end.
    for (place, (own, theirs)) in lost.iter().enumerate() {
        pass(&mut world, Socket::UNRESOLVED_NS / 20);
        let now = world.clock(0);
        world.hosts[0].send(now, *own, b"hello?").unwrap();
        world.hosts[0].flush(*own);
        // Half of them are in the middle of a message of theirs.
        if place % 2 == 0 {
            let now = world.clock(2 + place);
            world.hosts[2 + place].send(now, *theirs, &[0; 10_000]).unwrap();
        }
    }
    let times = messages(&mut world, channels, 20 * S);
    assert!(times.iter().all(|&time| time < MS), "{times:?}");
    let failed = |world: &mut World, channel| world.hosts[0].readiness(channel).unwrap().failed;
    assert!(lost.iter().all(|&(own, _)| failed(&mut world, own) == Some(ErrorCode::Timeout)));
    assert_eq!(failed(&mut world, channels.0), None);
}

in_every_way!(who_is_asked_and_does_not_answer_is_doubted_until_heard_again);
fn who_is_asked_and_does_not_answer_is_doubted_until_heard_again() {
    let (syn, cookie, state, pin) = (0x11, 0x12, 0x1C, 0x1D);
    let config = Config { idle_limit_ns: 600 * S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    world.doubted = Some(Vec::new());
    let (client, server) = pair(&mut world, Mode::Messages);
    let doubted = |world: &mut World| std::mem::take(world.doubted.as_mut().unwrap());
    let kinds = |doubted: &[(u64, usize, usize, u8)]| doubted.iter().map(|one| one.3).collect::<Vec<_>>();
    // An attempt, until its first answer; and that answer, as nothing proves who asks.
    assert_eq!(kinds(&doubted(&mut world)), [syn, cookie]);
    // Not for being idle.
    for pause in [MS, 50 * S] {
        pass(&mut world, pause);
        let mut flows = [Flow::messages((0, client), (1, server), 1000, 1)];
        assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].is_done()));
    }
    assert_eq!(doubted(&mut world), []);
    // The question after long silence is the first that asks anything.
    pass(&mut world, 70 * S);
    assert_eq!(kinds(&doubted(&mut world)), [pin]);
    // Six questions go unanswered before.
    let cut_at = world.now;
    world.cut.insert((0, 1));
    let now = world.clock(0);
    world.hosts[0].send(now, client, b"hello?").unwrap();
    world.hosts[0].flush(client);
    pass(&mut world, S);
    let asked = doubted(&mut world);
    assert!(asked.len() >= 8 && asked.iter().all(|one| one.3 == state && one.1 == 0), "{asked:?}");
    let (patience, states) = (Config::default().state_min_ns, world.hosts[0].counters().states_sent);
    assert!(asked[0].0 >= cut_at + 64 * patience && asked[0].0 <= cut_at + 127 * patience, "{asked:?}");
    assert_eq!(states - asked.len() as u64, 6, "{asked:?}");
    world.cut.clear();
    pass(&mut world, S);
    // The one that was answered.
    assert_eq!(kinds(&doubted(&mut world)), [state]);
    assert_eq!(world.hosts[1].recv(server, &mut [0; 6]), Ok(Some(6)));
    let mut flows = [Flow::messages((0, client), (1, server), 1000, 3)];
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].is_done()));
    assert_eq!(doubted(&mut world), []);
}

/// Two hosts with two links each, of which the first host's first one takes nothing; a stream over each of them, as far as it comes within `ns`.
fn over_two_links(ns: u64) -> (World, [Flow; 2]) {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    // What is offered again is sealed again: the first that is seen need not have the first counter.
    world.counters.off = true;
    for host in &mut world.hosts {
        host.tell_links_apart(2, link_of);
        host.listen(7, Mode::Stream, 8).unwrap();
    }
    let flows = [0, 1].map(|name| {
        let now = world.time();
        let client = world.hosts[0].connect(now, &alias(1, name), 7, Mode::Stream).unwrap();
        pass(&mut world, MS);
        Flow::stream((0, client), (1, world.hosts[1].accept(7).unwrap()), 1_000_000)
    });
    world.full.insert((0, 0));
    let mut flows = flows;
    carry_until(&mut world, &mut flows, ns, |_, _| false);
    (world, flows)
}

in_every_way!(a_full_link_keeps_open_associations_from_no_other_and_loses_nothing);
fn a_full_link_keeps_open_associations_from_no_other_and_loses_nothing() {
    let (mut world, mut flows) = over_two_links(300 * MS);
    assert!(flows[1].is_done(), "{}", flows[1].received);
    assert_eq!(flows[0].received, 0);
    world.full.clear();
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].is_done()));
    let (sender, receiver) = (world.hosts[0].counters(), world.hosts[1].counters());
    assert_eq!((sender.resent, receiver.lost, receiver.requests_sent), (0, 0, 0));
}

in_every_way!(a_full_link_keeps_attempts_and_answers_from_no_other);
fn a_full_link_keeps_attempts_and_answers_from_no_other() {
    let (mut world, _) = over_two_links(10 * MS);
    let names = [2, 3].map(|name| {
        let now = world.time();
        // One attempt and one answer for each link.
        let asks = world.hosts[0].connect(now, &alias(1, name), 7, Mode::Stream).unwrap();
        let asked = world.hosts[1].connect(now, &alias(0, name + 2), 7, Mode::Stream).unwrap();
        (asks, asked)
    });
    pass(&mut world, 20 * MS);
    let opened = |world: &mut World| {
        names.map(|(asks, asked)| {
            [(0, asks), (1, asked)].map(|(host, channel)| world.hosts[host].readiness(channel).unwrap().opened)
        })
    };
    assert_eq!(opened(&mut world), [[false; 2], [true; 2]]);
    world.full.clear();
    wait_for(&mut world, 2 * S, "the others open", |world| opened(world) == [[true; 2]; 2]);
}

/// How a link takes nothing of an association.
#[derive(Clone, Copy, Debug)]
enum Stops {
    /// It refuses all.
    Refuses,
    /// It has no room apart for who is silent, and drops what is for such.
    Discards,
}

impl Stops {
    /// A stream that begins when host 0's link takes nothing any more. Its other end does not know of it.
    fn begin(self) -> (World, [Flow; 1]) {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        // As above.
        world.counters.off = true;
        let (client, server) = pair(&mut world, Mode::Stream);
        pass(&mut world, S);
        let mut flows = [Flow::stream((0, client), (1, server), 1_000_000)];
        match self {
            Stops::Refuses => drop(world.full.insert((0, 0))),
            Stops::Discards => {
                world.apart.insert(0, Socket::with_room(0, 0));
                // Until it is taken for silent.
                world.cut.insert((0, 1));
                carry_until(&mut world, &mut flows, 300 * MS, |_, _| false);
                world.cut.clear();
            }
        }
        (world, flows)
    }
}

in_every_way!(time_in_which_the_own_link_took_nothing_is_no_silence_of_the_peer);
fn time_in_which_the_own_link_took_nothing_is_no_silence_of_the_peer() {
    for stops in [Stops::Refuses, Stops::Discards] {
        for ns in [9 * S, 11 * S, 25 * S, 39 * S] {
            let (mut world, mut flows) = stops.begin();
            carry_until(&mut world, &mut flows, ns, |_, _| false);
            assert_eq!(flows[0].received, 0);
            world.full.clear();
            world.apart.clear();
            let taken = carry(&mut world, &mut flows, S);
            assert!(taken < 200 * MS, "{stops:?} for {ns}: {taken}");
        }
    }
}

in_every_way!(a_link_that_never_takes_anything_again_ends_what_waits_for_it_by_an_error_of_its_own_if_it_refuses_that);
fn a_link_that_never_takes_anything_again_ends_what_waits_for_it_by_an_error_of_its_own_if_it_refuses_that() {
    for (stops, code) in [(Stops::Refuses, ErrorCode::LinkFull), (Stops::Discards, ErrorCode::Timeout)] {
        let (mut world, mut flows) = stops.begin();
        let client = flows[0].from.1;
        let begin = world.now;
        carry_until(&mut world, &mut flows, 60 * S, |world, flows| {
            world.hosts[0].statistics(world.clock(0), flows[0].from.1).is_none_or(|told| told.association.is_none())
        });
        let failed = world.hosts[0].readiness(client).unwrap().failed;
        assert_eq!(failed, Some(code), "{stops:?}");
        assert!((39 * S..=41 * S).contains(&(world.now - begin)), "{stops:?}: {}", world.now - begin);
    }
}

in_every_way!(what_the_link_refuses_for_one_host_keeps_the_others_waiting_for_a_turn_at_most);
fn what_the_link_refuses_for_one_host_keeps_the_others_waiting_for_a_turn_at_most() {
    let mut world = World::new(4, Net::default(), &Config::default(), 1);
    world.counters.off = true;
    let ends = [1, 2, 3].map(|to| open(&mut world, 0, to, 7, Mode::Messages).0);
    pass(&mut world, 50 * MS);
    let now = world.time();
    let host = &mut world.hosts[0];
    for &channel in &ends {
        host.send(now, channel, &[0; 100]).unwrap();
        host.flush(channel);
    }
    // A queue on the way to the first host is full; the link says so of each packet for it.
    let refused = path(1).0;
    let mut taken = Vec::new();
    for _ in 0..3 {
        let is_all = host.transmit(now, &mut |to, _, packets| match to.0[..8] == refused[..8] {
            true => 0,
            false => {
                taken.push(to.0);
                packets.len()
            }
        });
        assert!(!is_all, "there is more for the first one");
    }
    assert_eq!(taken.len(), 2, "{taken:?}");
}

in_every_way!(who_stands_behind_another_one_in_a_full_links_queue_is_held_up_as_well);
fn who_stands_behind_another_one_in_a_full_links_queue_is_held_up_as_well() {
    let mut world = World::new(4, Net::default(), &Config::default(), 1);
    world.counters.off = true;
    let ends = [1, 2, 3].map(|to| open(&mut world, 0, to, 7, Mode::Stream));
    let mut flows: Vec<_> =
        ends.iter().zip(1..).map(|(&(own, theirs), to)| Flow::stream((0, own), (to, theirs), 100_000)).collect();
    world.full.insert((0, 0));
    carry_until(&mut world, &mut flows, 25 * S, |_, _| false);
    world.full.clear();
    carry(&mut world, &mut flows, S);
}

in_every_way!(a_peer_that_is_gone_is_given_up_where_the_link_takes_something_now_and_then);
fn a_peer_that_is_gone_is_given_up_where_the_link_takes_something_now_and_then() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, _) = pair(&mut world, Mode::Messages);
    pass(&mut world, S);
    world.cut.insert((0, 1));
    let (now, begin) = (world.clock(0), world.now);
    world.hosts[0].send(now, client, b"hello?").unwrap();
    world.hosts[0].flush(client);
    while world.hosts[0].readiness(client).unwrap().failed.is_none() {
        pass(&mut world, 100 * MS);
        world.full.insert((0, 0));
        pass(&mut world, Socket::UNRESOLVED_NS - 100 * MS);
        world.full.clear();
    }
    assert_eq!(world.hosts[0].readiness(client).unwrap().failed, Some(ErrorCode::Timeout));
    assert!(world.now - begin <= 15 * S, "{}", world.now - begin);
}

in_every_way!(what_the_own_link_refuses_was_not_asked_for_in_vain);
fn what_the_own_link_refuses_was_not_asked_for_in_vain() {
    let impatient = Config { give_up_ns: 2 * S, ..Config::default() };
    let patient = Config { give_up_ns: 600 * S, ..Config::default() };
    let mut world = World::of(vec![endpoint(0, &patient, 1), endpoint(1, &impatient, 1)], Net::default(), 1);
    world.counters.off = true;
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows = [Flow::stream((0, client), (1, server), 1_000_000)];
    carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 100_000);
    let mut passes = 0..;
    world.filter = Some(Box::new(move |_, from, _, bytes| from > 0 || bytes.len() < 1000 || passes.next() > Some(0)));
    world.full.insert((1, 0));
    // The sender asks ten times a second meanwhile.
    carry_until(&mut world, &mut flows, 20 * S, |_, _| false);
    assert!(world.hosts[0].counters().states_sent > 150);
    world.full.clear();
    carry(&mut world, &mut flows, S);
}

in_every_way!(a_credit_that_the_link_refused_is_said_as_soon_as_it_takes_something);
fn a_credit_that_the_link_refused_is_said_as_soon_as_it_takes_something() {
    // The sender's own question would bring it, too.
    let config = Config { state_min_ns: S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    world.counters.off = true;
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows = [Flow { slow: true, ..Flow::stream((0, client), (1, server), 4_000_000) }];
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    world.full.insert((1, 0));
    flows[0].slow = false;
    carry_until(&mut world, &mut flows, MS, |_, _| false);
    assert!(flows[0].received > 500_000 && !flows[0].is_done(), "{}", flows[0].received);
    world.full.clear();
    let taken = carry(&mut world, &mut flows, 5 * S);
    assert!(taken < 50 * MS, "{taken}");
}

in_every_way!(a_request_that_the_link_refused_is_made_as_soon_as_it_takes_something);
fn a_request_that_the_link_refused_is_made_as_soon_as_it_takes_something() {
    // What is asked for is asked for again no sooner, and the sender asks no sooner.
    let config = Config { state_min_ns: S, request_min_ns: S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    world.counters.off = true;
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows = [Flow::stream((0, client), (1, server), 1_000_000)];
    carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 100_000);
    let mut packets = 0..;
    world.filter = Some(Box::new(move |_, from, _, bytes| from > 0 || bytes.len() < 1000 || packets.next() != Some(3)));
    world.full.insert((1, 0));
    let requests = |world: &World| world.hosts[1].counters().requests_sent;
    let before = requests(&world);
    carry_until(&mut world, &mut flows, 5 * MS, |_, _| false);
    assert!(!flows[0].is_done() && requests(&world) == before);
    world.full.clear();
    let taken = carry(&mut world, &mut flows, 5 * S);
    assert!(taken < 50 * MS && requests(&world) > before, "{taken}");
}
