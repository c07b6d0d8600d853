//! Several paths between two hosts: one fails, or all do for a while, and no byte is lost; the others carry on within a bounded time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{AssociationStatistics, ChannelId, Config, ErrorCode, ListenError, Mode, Route};

/// A network between all hosts for each path.
pub fn planes(world: &mut World, count: u64) {
    world.planes.extend((0..count).map(|number| (number, Plane::default())));
}

pub fn plane(world: &mut World, number: u64) -> &mut Plane {
    world.planes.get_mut(&number).expect("one of these networks")
}

fn routes(world: &World, to: usize, count: u64) -> Vec<Route> {
    (0..count).map(|number| Route::new(alias(to, number), world.hosts[0].config())).collect()
}

/// Host 0 to host 1 over `count` paths. All are joined when this returns, but for those that do not work.
pub fn open_over(world: &mut World, count: u64, bonded: bool) -> (ChannelId, ChannelId) {
    let listening = world.hosts[1].listen(7, Mode::Stream, 16);
    assert!(listening.is_ok() || listening == Err(ListenError::InUse(7)), "{listening:?}");
    let (now, routes) = (world.clock(0), routes(world, 1, count));
    let client = world.hosts[0].connect_over(now, &routes, bonded, 7, Mode::Stream).unwrap();
    let mut server = None;
    wait_for(world, 20 * S, "the channel opens", |world| {
        server = server.or_else(|| world.hosts[1].accept(7).ok());
        server.is_some() && world.hosts[0].readiness(client).is_some_and(|readiness| readiness.opened)
    });
    pass(world, 10 * MS);
    (client, server.unwrap())
}

pub fn pair_over(count: u64, bonded: bool, net: Net) -> (World, ChannelId, ChannelId) {
    let mut world = World::new(2, net, &Config::default(), 1);
    planes(&mut world, count);
    let (client, server) = open_over(&mut world, count, bonded);
    for host in 0..2 {
        let statistics = association(&world, host);
        assert_eq!((statistics.paths, statistics.good_paths), (count as usize, count as usize), "host {host}");
    }
    (world, client, server)
}

pub fn association(world: &World, host: usize) -> AssociationStatistics {
    world.hosts[host].association_statistics(world.clock(host)).next().expect("an association")
}

/// When `flow` has received `more` bytes than now, in nanoseconds from now.
pub fn progress(world: &mut World, flow: &mut Flow, more: u64, limit_ns: u64) -> u64 {
    let (begin, until) = (world.now, (flow.received + more).min(flow.total));
    let mut flows = [flow.clone()];
    let done = carry_until(world, &mut flows, limit_ns, |_, flows| flows[0].received >= until);
    [*flow] = flows;
    assert!(done, "{} of {until}: {:#?} {:#?}", flow.received, association(world, 0), association(world, 1));
    world.now - begin
}

pub fn gigabit() -> Net {
    Net { rate: 1_000_000_000, ..Net::default() }
}

/// How long it may take until data flow again after the default path has died: the first STATE (2 ms), the second after twice that over another path, and some
/// round trips.
const FAILOVER_NS: u64 = 8 * MS;

in_every_way!(a_path_that_is_cut_in_the_middle_of_a_stream_costs_some_milliseconds_and_no_byte);
fn a_path_that_is_cut_in_the_middle_of_a_stream_costs_some_milliseconds_and_no_byte() {
    for bonded in [false, true] {
        for direction in [(0, 1), (1, 0)] {
            let (mut world, client, server) = pair_over(2, bonded, gigabit());
            let ends = [(0, client), (1, server)];
            let mut flow = Flow::stream(ends[direction.0], ends[direction.1], 20_000_000);
            progress(&mut world, &mut flow, 5_000_000, S);
            plane(&mut world, 0).is_cut = true;
            let ns = progress(&mut world, &mut flow, 1_000_000, S);
            println!("bonded {bonded}, {direction:?}: a megabyte more after {} us", ns / US);
            assert!(ns < FAILOVER_NS + 8 * MS, "8 ms is what it takes without a cut: {} us", ns / US);
            // The rest at full speed: whoever is cut off is asked no more, and carries nothing.
            let before = world.hosts[direction.0].counters().resent;
            let ns = progress(&mut world, &mut flow, 13_000_000, S);
            assert!(ns < 13 * 9 * MS, "{} us", ns / US);
            assert!(world.hosts[direction.0].counters().resent < before + 200, "after {before}");
            let statistics = association(&world, direction.0);
            assert_eq!((statistics.path.unbound(), statistics.good_paths), (alias(1 - direction.0, 1), 1));
            assert_eq!(world.hosts[1 - direction.0].counters().violations, 0);
        }
    }
}

in_every_way!(an_association_that_has_gone_on_over_another_path_gives_back_the_place_that_it_took);
fn an_association_that_has_gone_on_over_another_path_gives_back_the_place_that_it_took() {
    let (mut world, client, server) = pair_over(2, false, gigabit());
    let mut flow = Flow::stream((1, server), (0, client), 10_000_000);
    progress(&mut world, &mut flow, 1_000_000, S);
    plane(&mut world, 0).is_cut = true;
    progress(&mut world, &mut flow, 9_000_000, S);
    assert_eq!(association(&world, 1).path.unbound(), alias(0, 1));
    for (host, channel) in [(0, client), (1, server)] {
        let now = world.clock(host);
        world.hosts[host].close(now, channel);
    }
    // One without channels ends after a minute.
    pass(&mut world, 70 * S);
    assert_eq!((0..2).map(|host| world.hosts[host].sizes().0).collect::<Vec<_>>(), [0, 0]);
}

in_every_way!(of_three_paths_two_may_die_one_after_the_other);
fn of_three_paths_two_may_die_one_after_the_other() {
    let (mut world, client, server) = pair_over(3, false, gigabit());
    let mut flow = Flow::stream((0, client), (1, server), 30_000_000);
    for dead in [0, 1] {
        progress(&mut world, &mut flow, 5_000_000, S);
        plane(&mut world, dead).is_cut = true;
        let ns = progress(&mut world, &mut flow, 1_000_000, S);
        assert!(ns < 2 * FAILOVER_NS + 8 * MS, "{} us", ns / US);
    }
    assert_eq!(association(&world, 0).path, alias(1, 2));
    assert_eq!(world.hosts[0].counters().defaults_changed, 2);
}

in_every_way!(all_paths_cut_and_healed_the_stream_goes_on);
fn all_paths_cut_and_healed_the_stream_goes_on() {
    for bonded in [false, true] {
        for healed in [0, 1] {
            let (mut world, client, server) = pair_over(2, bonded, gigabit());
            let mut flow = Flow::stream((0, client), (1, server), 15_000_000);
            progress(&mut world, &mut flow, 3_000_000, S);
            (0..2).for_each(|number| plane(&mut world, number).is_cut = true);
            pass(&mut world, 3 * S);
            plane(&mut world, healed).is_cut = false;
            // Each STATE goes over another path, and they are `timer_max` apart at most.
            let ns = progress(&mut world, &mut flow, 3_000_000, S);
            println!("bonded {bonded}, healed {healed}: three megabytes more after {} us", ns / US);
            assert!(ns <= 2 * 100 * MS + FAILOVER_NS + 3 * 9 * MS, "{} us", ns / US);
            progress(&mut world, &mut flow, 3_000_000, S);
            // And the other one is found again too, by the questions that it is asked.
            plane(&mut world, 1 - healed).is_cut = false;
            progress(&mut world, &mut flow, 3_000_000, S);
            pass(&mut world, 15 * S);
            assert_eq!(association(&world, 0).good_paths, 2);
        }
    }
}

in_every_way!(silence_of_all_paths_ends_it_as_with_one);
fn silence_of_all_paths_ends_it_as_with_one() {
    let (mut world, client, server) = pair_over(2, false, gigabit());
    let mut flow = Flow::stream((0, client), (1, server), 10_000_000);
    progress(&mut world, &mut flow, 1_000_000, S);
    (0..2).for_each(|number| plane(&mut world, number).is_cut = true);
    let begin = world.now;
    wait_for(&mut world, 30 * S, "the end", |world| world.hosts[0].readiness(client).unwrap().failed.is_some());
    assert_eq!(world.hosts[0].readiness(client).unwrap().failed, Some(ErrorCode::Timeout));
    assert!((10 * S..11 * S).contains(&(world.now - begin)));
    let now = world.clock(0);
    world.hosts[0].close(now, client);
    assert_eq!(world.hosts[0].sizes(), (0, 0));
}

in_every_way!(what_is_lost_on_one_path_is_repeated_over_the_other);
fn what_is_lost_on_one_path_is_repeated_over_the_other() {
    let (mut world, client, server) = pair_over(2, false, gigabit());
    plane(&mut world, 0).loss_ppm = 20_000;
    let before = plane(&mut world, 1).packets;
    let mut flow = Flow::stream((0, client), (1, server), 10_000_000);
    progress(&mut world, &mut flow, 10_000_000, 2 * S);
    let (over_other, counters) = (plane(&mut world, 1).packets - before, world.hosts[0].counters());
    assert!(counters.resent > 50, "{counters:?}");
    assert!(over_other >= counters.resent, "{over_other} packets over the other path: {counters:?}");
    assert_eq!(counters.defaults_changed, 0, "two percent are no reason to leave it");
    // A quarter is.
    plane(&mut world, 0).loss_ppm = 250_000;
    let mut flow = Flow::stream((0, client), (1, server), 10_000_000);
    flow.sent = 0;
    progress(&mut world, &mut flow, 10_000_000, 2 * S);
    assert_eq!(association(&world, 0).path, alias(1, 1));
}

in_every_way!(an_answer_over_another_path_asks_for_what_is_missing_and_nothing_follows_it);
fn an_answer_over_another_path_asks_for_what_is_missing_and_nothing_follows_it() {
    let (mut world, client, server) = pair_over(2, false, Net::default());
    // How it may begin is news to the client.
    stream(&mut world, (0, client), (1, server), 100, S);
    pass(&mut world, MS);
    let (sent, said) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let (from_client, from_server) = (Rc::clone(&sent), Rc::clone(&said));
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        match from {
            0 => from_client.borrow_mut().push(bytes.to_vec()),
            _ => from_server.set(from_server.get() + 1),
        }
        false
    }));
    let send = |world: &mut World, wait_ns: u64| {
        let now = world.clock(0);
        world.hosts[0].send(now, client, b"hello").unwrap();
        world.hosts[0].flush(client);
        pass(world, wait_ns);
    };
    // Two packets, and the question for them; another packet.
    [0, Config::default().state_min_ns, 0].into_iter().for_each(|wait_ns| send(&mut world, wait_ns));
    let sent = sent.take();
    let [_, _, question, other] = &sent[..] else { panic!("{sent:?}") };
    // The first two are lost, and the question comes over another path than the packets.
    let (now, asked) = (world.clock(1), world.hosts[1].counters().requests_sent);
    world.hosts[1].handle_packet(now, &arrival(0, 0), false, other);
    world.hosts[1].handle_packet(now, &arrival(0, 1), false, question);
    world.hosts[1].finish_batch(now);
    world.flush(1);
    assert_eq!((world.hosts[1].counters().requests_sent - asked, said.get()), (1, 1));
}

in_every_way!(bonded_paths_share_a_stream_and_their_delays_cause_no_needless_requests);
fn bonded_paths_share_a_stream_and_their_delays_cause_no_needless_requests() {
    let (mut world, client, server) = pair_over(2, true, Net { rate: 0, ..gigabit() });
    plane(&mut world, 1).delay_ns = 300 * US;
    let before = [0, 1].map(|number| plane(&mut world, number).packets);
    let mut flow = Flow::stream((0, client), (1, server), 20_000_000);
    progress(&mut world, &mut flow, 20_000_000, 10 * S);
    let packets: Vec<u64> = (0..2).map(|number| plane(&mut world, number).packets - before[number as usize]).collect();
    println!("packets over each path {packets:?}");
    assert!(packets.iter().all(|&count| count > 6_000), "{packets:?}");
    let (sender, receiver) = (world.hosts[0].counters(), world.hosts[1].counters());
    assert_eq!((sender.resent, receiver.spurious_requests, receiver.dropped_duplicate), (0, 0, 0), "{receiver:?}");
    // Nor after pauses, in which nobody has heard of the slow one for long.
    for pause in [2 * MS, 30 * MS, S] {
        pass(&mut world, pause);
        let mut flow = Flow::stream((0, client), (1, server), 1_000_000);
        progress(&mut world, &mut flow, 1_000_000, S);
        assert_eq!(world.hosts[0].counters().resent, 0, "after {pause} ns");
    }
}

in_every_way!(a_real_loss_on_bonded_paths_is_repaired_without_waiting_for_a_timer);
fn a_real_loss_on_bonded_paths_is_repaired_without_waiting_for_a_timer() {
    let (mut world, client, server) = pair_over(2, true, Net { rate: 0, ..gigabit() });
    plane(&mut world, 1).delay_ns = 100 * US;
    world.net.loss_ppm = 5_000;
    let mut flow = Flow::stream((0, client), (1, server), 20_000_000);
    let ns = progress(&mut world, &mut flow, 20_000_000, 10 * S);
    let (sender, receiver) = (world.hosts[0].counters(), world.hosts[1].counters());
    println!("{} ms, resent {}, spurious {}", ns / MS, sender.resent, receiver.spurious_requests);
    assert!(sender.resent > 50);
    assert!(receiver.spurious_requests * 20 <= sender.resent, "{receiver:?}");
}

in_every_way!(a_connection_opens_when_the_first_path_is_dead);
fn a_connection_opens_when_the_first_path_is_dead() {
    for cut in [vec![0], vec![0, 1]] {
        let mut world = World::new(2, gigabit(), &Config::default(), 3);
        planes(&mut world, 3);
        cut.iter().for_each(|&number| plane(&mut world, number).is_cut = true);
        let begin = world.now;
        let (client, server) = open_over(&mut world, 3, false);
        assert!(world.now - begin < 100 * MS, "{} ms", (world.now - begin) / MS);
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        assert_eq!(association(&world, 0).good_paths, 3 - cut.len());
        // When they are there they join.
        cut.iter().for_each(|&number| plane(&mut world, number).is_cut = false);
        pass(&mut world, 2 * S);
        assert_eq!([0, 1].map(|host| association(&world, host).good_paths), [3, 3]);
    }
}

in_every_way!(a_path_that_dies_between_cookie_and_answer_delays_the_opening_and_leaves_nothing_behind);
fn a_path_that_dies_between_cookie_and_answer_delays_the_opening_and_leaves_nothing_behind() {
    for lost in ["CONFIRM", "OPENED"] {
        let mut world = World::new(2, gigabit(), &Config::default(), 4);
        planes(&mut world, 2);
        world.hosts[1].listen(7, Mode::Stream, 16).unwrap();
        let (now, routes) = (world.clock(0), routes(&world, 1, 2));
        let client = world.hosts[0].connect_over(now, &routes, false, 7, Mode::Stream).unwrap();
        // SYN and COOKIE take 32 us each; then CONFIRM leaves, and is there some 20 us later.
        pass(&mut world, if lost == "CONFIRM" { 50 * US } else { 75 * US });
        plane(&mut world, 0).is_cut = true;
        let ns = wait_for(&mut world, 2 * S, "it opens", |world| world.hosts[0].readiness(client).unwrap().opened);
        assert!(ns < 400 * MS, "{lost}: {} ms", ns / MS);
        let mut accepted = Vec::new();
        while let Ok(channel) = world.hosts[1].accept(7) {
            accepted.push(channel);
        }
        println!("{lost}: {} ms, accepted {}", ns / MS, accepted.len());
        assert_eq!(accepted.len(), if lost == "CONFIRM" { 1 } else { 2 });
        let server = *accepted.last().expect("the last attempt is the one that opened");
        stream(&mut world, (0, client), (1, server), 100_000, S);
        stream(&mut world, (1, server), (0, client), 100_000, S);
        plane(&mut world, 0).is_cut = false;
        for &former in &accepted[..accepted.len() - 1] {
            // Nobody has it at the other end, who says so when it is spoken to.
            let now = world.clock(1);
            world.hosts[1].send(now, former, &[0; 100]).unwrap();
            wait_for(&mut world, S, "a reset", |world| world.hosts[1].readiness(former).unwrap().failed.is_some());
            assert_eq!(world.hosts[1].readiness(former).unwrap().failed, Some(ErrorCode::Unknown));
        }
    }
}

in_every_way!(the_packet_size_is_the_least_of_the_routes_and_a_path_that_does_not_bear_it_is_not_used);
fn the_packet_size_is_the_least_of_the_routes_and_a_path_that_does_not_bear_it_is_not_used() {
    // Known beforehand: all packets are as short as the shortest route needs them.
    let mut world = World::new(2, gigabit(), &Config::default(), 5);
    planes(&mut world, 2);
    plane(&mut world, 1).most_bytes = 1000;
    world.hosts[1].listen(7, Mode::Stream, 16).unwrap();
    let (now, mut known) = (world.clock(0), routes(&world, 1, 2));
    known[1].packet_bytes = 1000;
    let client = world.hosts[0].connect_over(now, &known, true, 7, Mode::Stream).unwrap();
    let mut server = None;
    wait_for(&mut world, S, "it opens", |world| {
        server = server.or_else(|| world.hosts[1].accept(7).ok());
        server.is_some()
    });
    pass(&mut world, 10 * MS);
    assert_eq!((association(&world, 0).packet_bytes, association(&world, 0).good_paths), (1000, 2));
    stream(&mut world, (0, client), (1, server.unwrap()), 1_000_000, S);

    // Not known: the join does not get through, and the stream does.
    let mut world = World::new(2, gigabit(), &Config::default(), 5);
    planes(&mut world, 2);
    plane(&mut world, 1).most_bytes = 1000;
    let (client, server) = open_over(&mut world, 2, true);
    stream(&mut world, (0, client), (1, server), 1_000_000, S);
    assert_eq!((association(&world, 0).packet_bytes, association(&world, 0).good_paths), (1472, 1));
}

in_every_way!(marks_of_a_congested_gateway_reduce_the_budget_of_the_receiver);
fn marks_of_a_congested_gateway_reduce_the_budget_of_the_receiver() {
    let (mut world, client, server) = pair_over(2, false, gigabit());
    let mut flow = Flow::stream((0, client), (1, server), 10_000_000);
    progress(&mut world, &mut flow, 2_000_000, S);
    let before = world.hosts[1].gate().budget_bytes();
    assert_eq!(world.hosts[1].counters().gate.cuts, 0);
    plane(&mut world, 0).marks = true;
    progress(&mut world, &mut flow, 1_000_000, S);
    let marked = world.hosts[1].gate().budget_bytes();
    assert!(marked < before / 2, "{marked} of {before}");
    plane(&mut world, 0).marks = false;
    progress(&mut world, &mut flow, 7_000_000, S);
    assert!(world.hosts[1].gate().budget_bytes() > marked);
}

in_every_way!(both_ends_connect_over_all_paths_at_once_and_meet_in_one_association);
fn both_ends_connect_over_all_paths_at_once_and_meet_in_one_association() {
    for bonded in [false, true] {
        let mut world = World::new(2, gigabit(), &Config::default(), 6);
        planes(&mut world, 2);
        (0..2).for_each(|host| assert_eq!(world.hosts[host].listen(7, Mode::Stream, 16), Ok(7)));
        let channels: Vec<ChannelId> = (0..2)
            .map(|host| {
                let (now, routes) = (world.clock(host), routes(&world, 1 - host, 2));
                world.hosts[host].connect_over(now, &routes, bonded, 7, Mode::Stream).unwrap()
            })
            .collect();
        wait_for(&mut world, S, "both open", |world| {
            (0..2).all(|host| world.hosts[host].readiness(channels[host]).unwrap().opened)
        });
        pass(&mut world, 200 * MS);
        for host in 0..2 {
            assert_eq!((world.hosts[host].sizes(), association(&world, host).good_paths), ((1, 2), 2));
        }
    }
}

in_every_way!(a_stranger_cannot_add_a_path);
fn a_stranger_cannot_add_a_path() {
    let (mut world, client, server) = pair_over(2, false, gigabit());
    let mut joins = Vec::new();
    // What was said when a path was added, as somebody on that path has seen it.
    let recorded = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let out = recorded.clone();
    world.filter = Some(Box::new(move |_, from, _, bytes: &[u8]| {
        if bytes[0] == 0x1F && from == 0 {
            out.borrow_mut().push(bytes.to_vec());
        }
        true
    }));
    let (now, three) = (world.clock(0), routes(&world, 1, 3));
    world.planes.insert(2, Plane::default());
    world.hosts[0].connect_over(now, &three, false, 7, Mode::Stream).unwrap();
    pass(&mut world, 10 * MS);
    joins.append(&mut recorded.borrow_mut());
    assert_eq!((joins.len(), association(&world, 1).paths), (2, 3), "ASK and PROVE");
    let dropped = world.hosts[1].counters().dropped_join;
    for bytes in &joins {
        let now = world.clock(1);
        // From another address, and changed from the right one.
        world.hosts[1].handle_packet(now, &arrival(0, 9), false, bytes);
        for at in 24..72 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            world.hosts[1].handle_packet(now, &arrival(0, 9), false, &changed);
        }
    }
    assert_eq!(association(&world, 1).paths, 3);
    assert!(world.hosts[1].counters().dropped_join > dropped);
    let mut flow = Flow::stream((0, client), (1, server), 1_000_000);
    progress(&mut world, &mut flow, 1_000_000, S);
}

in_every_way!(streams_arrive_over_bad_networks_that_come_and_go);
fn streams_arrive_over_bad_networks_that_come_and_go() {
    for seed in 0..12 {
        let net = Net {
            loss_ppm: seed % 4 * 10_000,
            reordering_ppm: seed % 3 * 20_000,
            duplication_ppm: 10_000,
            corruption_ppm: seed % 5 * 4_000,
            ..gigabit()
        };
        let mut world = World::new(2, net, &Config::default(), seed);
        planes(&mut world, 3);
        let (client, server) = open_over(&mut world, 3, seed % 2 == 0);
        let mut there = Flow::stream((0, client), (1, server), 4_000_000);
        let mut back = Flow::stream((1, server), (0, client), 2_000_000);
        let mut rounds = 0;
        while !(there.is_done() && back.is_done()) {
            rounds += 1;
            assert!(rounds < 500, "seed {seed}: {} and {}", there.received, back.received);
            let random = world.random();
            let number = random % 3;
            let others_cut = (0..3).filter(|&other| other != number && world.planes[&other].is_cut).count();
            // One at least always works.
            plane(&mut world, number).is_cut = random & 0x100 != 0 && others_cut < 2;
            let mut flows = [there.clone(), back.clone()];
            let limit = 5 * MS + random % (30 * MS);
            carry_until(&mut world, &mut flows, limit, |_, flows| flows.iter().all(Flow::is_done));
            [there, back] = flows;
        }
        println!("seed {seed}: {rounds} rounds, {:?}", world.hosts[0].counters().paths_suspected);
        for host in 0..2 {
            assert_eq!(world.hosts[host].counters().violations, 0, "seed {seed}");
        }
        (0..3).for_each(|number| plane(&mut world, number).is_cut = false);
        world.net.loss_ppm = 0;
        close_all_channels(&mut world, &[(0, client), (1, server)]);
    }
}
