//! Several paths over links of which some take nothing (docs/protocol.md 12.3).

use super::routes::{association, gigabit, open_over, pair_over, plane, planes, progress};
use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode};

/// Two hosts with two paths, and a link for each of these.
fn pair_over_links(bonded: bool) -> (World, ChannelId, ChannelId) {
    let (mut world, client, server) = pair_over(2, bonded, gigabit());
    // What is offered again is sealed again.
    world.counters.off = true;
    world.hosts.iter_mut().for_each(|host| host.tell_links_apart(2, link_of));
    pass(&mut world, S);
    (world, client, server)
}

/// For so long a link may take nothing until the paths over it are left, and the next STATE may take to look.
const STUCK_NS: u64 = 50 * MS;

in_every_way!(a_path_whose_link_takes_nothing_is_left_though_nothing_is_unacknowledged);
fn a_path_whose_link_takes_nothing_is_left_though_nothing_is_unacknowledged() {
    for bonded in [false, true] {
        for stuck in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (mut world, client, server) = pair_over_links(bonded);
            world.full.insert(stuck);
            let mut flow = Flow::stream((0, client), (1, server), 20_000_000);
            let ns = progress(&mut world, &mut flow, 1_000_000, S);
            println!("bonded {bonded}, {stuck:?}: a megabyte after {} us", ns / US);
            assert!(ns < STUCK_NS + 9 * MS, "bonded {bonded}, {stuck:?}: {} us", ns / US);
            progress(&mut world, &mut flow, 9_000_000, S);
            world.full.clear();
            progress(&mut world, &mut flow, 10_000_000, S);
            pass(&mut world, 15 * S);
            assert_eq!([0, 1].map(|host| association(&world, host).good_paths), [2, 2]);
        }
    }
}

in_every_way!(a_path_is_left_by_who_stands_behind_others_in_its_links_queue);
fn a_path_is_left_by_who_stands_behind_others_in_its_links_queue() {
    let mut world = World::new(3, gigabit(), &Config::default(), 1);
    world.counters.off = true;
    planes(&mut world, 2);
    let (client, server) = open_over(&mut world, 2, false);
    let others = [(), ()].map(|()| open(&mut world, 0, 2, 7, Mode::Stream).0);
    world.hosts[0].tell_links_apart(2, link_of);
    pass(&mut world, S);
    world.full.insert((0, 0));
    for other in others {
        let now = world.clock(0);
        world.hosts[0].send(now, other, &[0; 100]).unwrap();
        world.hosts[0].flush(other);
    }
    pass(&mut world, MS);
    let mut flow = Flow::stream((0, client), (1, server), 1_000_000);
    let ns = progress(&mut world, &mut flow, 1_000_000, S);
    assert!(ns < STUCK_NS + 9 * MS, "{} us", ns / US);
}

in_every_way!(of_two_links_that_take_nothing_the_first_that_does_again_is_used);
fn of_two_links_that_take_nothing_the_first_that_does_again_is_used() {
    for bonded in [false, true] {
        for first in [0, 1] {
            let (mut world, client, server) = pair_over_links(bonded);
            world.full.extend([(0, 0), (0, 1)]);
            let mut flow = Flow::stream((0, client), (1, server), 30_000_000);
            let mut flows = [flow.clone()];
            carry_until(&mut world, &mut flows, 3 * S, |_, _| false);
            [flow] = flows;
            world.full.remove(&(0, first));
            // Suspected paths are asked each ten seconds at the latest.
            let ns = progress(&mut world, &mut flow, 5_000_000, 11 * S);
            println!("bonded {bonded}, {first} first: {} ms", ns / MS);
            world.full.insert((0, first));
            world.full.remove(&(0, 1 - first));
            progress(&mut world, &mut flow, 5_000_000, 11 * S);
        }
    }
}

in_every_way!(who_has_a_good_path_does_not_hang_behind_another_one_in_the_queue_of_a_stuck_link);
fn who_has_a_good_path_does_not_hang_behind_another_one_in_the_queue_of_a_stuck_link() {
    for bonded in [false, true] {
        let mut world = World::new(3, gigabit(), &Config::default(), 1);
        world.counters.off = true;
        planes(&mut world, 2);
        let (client, server) = open_over(&mut world, 2, bonded);
        world.hosts[0].tell_links_apart(2, link_of);
        world.hosts[2].listen(7, Mode::Stream, 16).unwrap();
        let now = world.clock(0);
        let other = world.hosts[0].connect(now, &alias(2, 1), 7, Mode::Stream).unwrap();
        pass(&mut world, S);
        world.full.insert((0, 1));
        let now = world.clock(0);
        world.hosts[0].send(now, other, &[0; 100]).unwrap();
        world.hosts[0].flush(other);
        pass(&mut world, MS);
        // What is lost is sent again over the other path.
        let mut packets = 0..;
        world.filter =
            Some(Box::new(move |_, from, _, bytes| from > 0 || bytes.len() < 1000 || packets.next() != Some(3)));
        let mut flow = Flow::stream((0, client), (1, server), 30_000_000);
        let ns = progress(&mut world, &mut flow, 1_000_000, S);
        assert!(ns < STUCK_NS + 9 * MS, "bonded {bonded}: {} us", ns / US);
        let ns = progress(&mut world, &mut flow, 25_000_000, S);
        assert!(ns < 300 * MS, "bonded {bonded}: {} us", ns / US);
    }
}

in_every_way!(what_a_suspected_paths_link_refuses_or_drops_goes_over_another_path_at_once);
fn what_a_suspected_paths_link_refuses_or_drops_goes_over_another_path_at_once() {
    suspected_path(|world| _ = world.full.insert((1, 1)));
    suspected_path(|world| _ = world.apart.insert(1, Socket::with_room(0, 0)));
}

/// Credit is due when STATE is, of which each second goes over a suspected path that takes nothing.
fn suspected_path(stop: fn(&mut World)) {
    let (mut world, client, server) = pair_over_links(true);
    stop(&mut world);
    plane(&mut world, 1).is_cut = true;
    progress(&mut world, &mut Flow::stream((1, server), (0, client), 1_000_000), 1_000_000, S);
    assert_eq!(association(&world, 1).good_paths, 1);
    let mut flow = Flow { slow: true, ..Flow::stream((0, client), (1, server), 10_000_000) };
    let mut flows = [flow.clone()];
    carry_until(&mut world, &mut flows, S, |_, _| false);
    [flow] = flows;
    world.filter = Some(Box::new(|_, from, _, _| from > 0));
    let now = world.clock(1);
    world.hosts[1].send(now, server, b"hello").unwrap();
    world.flush(1);
    let states_sent = |world: &World| world.hosts[1].counters().states_sent;
    let before = states_sent(&world);
    // The second one is that path's.
    while states_sent(&world) < before + 2 {
        world.now = world.wakes_at(1).unwrap();
        let now = world.clock(1);
        world.hosts[1].handle_timeout(now);
        let mut out = vec![0; 300_000];
        let count = world.hosts[1].recv(server, &mut out).unwrap().unwrap();
        flow.received += count as u64;
        let packets = world.sent_by[1];
        world.flush(1);
        assert!(world.sent_by[1] > packets, "nothing says that {} were read", flow.received);
    }
}

in_every_way!(a_link_that_took_nothing_of_somebody_who_is_gone_is_not_taken_for_stuck);
fn a_link_that_took_nothing_of_somebody_who_is_gone_is_not_taken_for_stuck() {
    let mut world = World::new(3, gigabit(), &Config::default(), 1);
    world.counters.off = true;
    planes(&mut world, 2);
    let (client, server) = open_over(&mut world, 2, false);
    let other = open(&mut world, 0, 2, 7, Mode::Stream).0;
    world.hosts[0].tell_links_apart(2, link_of);
    pass(&mut world, S);
    world.full.insert((0, 0));
    let now = world.clock(0);
    world.hosts[0].send(now, other, &[0; 100]).unwrap();
    world.hosts[0].flush(other);
    wait_for(&mut world, 45 * S, "it is given up", |world| world.hosts[0].readiness(other).unwrap().failed.is_some());
    world.full.clear();
    pass(&mut world, S);
    let now = world.clock(0);
    world.hosts[0].send(now, client, b"hello").unwrap();
    world.hosts[0].flush(client);
    // As in a turn that comes late: timers run before anything leaves.
    world.now += 5 * MS;
    let now = world.clock(0);
    world.hosts[0].handle_timeout(now);
    pass(&mut world, MS);
    assert_eq!(world.hosts[1].recv(server, &mut [0; 9]), Ok(Some(5)));
    assert_eq!(world.hosts[0].counters().paths_suspected, 0);
}
