//! Busy periods (docs/protocol.md 4, decision 0008): the first number of each is marked, and the last, and what is left of the grant is given up with that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{AssociationStatistics, ChannelId, Config, Mode};
use ropeway_wire::{Flags, Packet};

/// The flags of each packet with a number that host 0 sends for the first time, in order.
fn marks(world: &mut World) -> Rc<RefCell<Vec<Flags>>> {
    let marks = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&marks);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if from == 0 && header.kind.consumes_number() && !header.flags.contains(Flags::RTX) {
            out.borrow_mut().push(header.flags.intersection(Flags::TXS | Flags::TXF));
        }
        true
    }));
    marks
}

fn association(world: &World, host: usize) -> AssociationStatistics {
    world.hosts[host].association_statistics(world.time()).next().expect("an association")
}

/// Nothing is granted any more, and the receiver expects nothing.
fn assert_over(world: &World, about: &str) {
    let (sender, receiver) = (association(world, 0), association(world, 1));
    assert_eq!((sender.in_flight_packets, sender.backlog_bytes), (0, 0), "{about}");
    assert_eq!((receiver.granted_packets, receiver.peer_backlog_bytes), (0, 0), "{about}");
    assert_eq!((receiver.counters.leases_expired, receiver.counters.requests_sent), (0, 0), "{about}");
}

#[test]
fn the_first_number_of_a_busy_period_is_marked_and_the_last_and_none_between() {
    let (first, last) = (Flags::TXS, Flags::TXF);
    for rate in [0, 1_000_000_000] {
        let mut world = World::new(2, Net { rate, ..Net::default() }, &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        // One packet, a first flight, and more than was granted at a time.
        for bytes in [1, 1_000, 1_444, 20_000, 60_000, 900_000] {
            let about = format!("{bytes} bytes at {rate}");
            pass(&mut world, 3 * MS);
            let marks = marks(&mut world);
            let now = world.time();
            assert_eq!(world.hosts[0].send(now, client, &vec![7; bytes]), Ok(bytes), "{about}");
            world.hosts[0].flush(client);
            let mut unread = bytes;
            wait_for(&mut world, S, "all of it", |world| {
                let mut out = [0; 65_536];
                while let Ok(Some(count)) = world.hosts[1].recv(server, &mut out) {
                    unread -= count;
                }
                unread == 0
            });
            // The grants are gone with the last packet, long before a lease is over.
            assert_eq!(association(&world, 1).granted_packets, 0, "{about}");
            pass(&mut world, MS);
            let marks = marks.borrow();
            let mut expected = vec![Flags::NONE; marks.len()];
            expected[0].insert(first);
            expected[marks.len() - 1].insert(last);
            assert_eq!(*marks, expected, "{about}");
            assert_over(&world, &about);
        }
        assert!(world.hosts[1].counters().gate.grants > 0, "the longest take grants");
    }
}

#[test]
fn what_is_handed_over_before_all_is_acknowledged_begins_no_new_period() {
    let mut world = World::new(2, Net { delay_ns: MS, ..Net::default() }, &Config::default(), 1);
    let (client, _) = pair(&mut world, Mode::Messages);
    world.hosts[0].set_no_delay(client, true);
    pass(&mut world, 10 * MS);
    let marks = marks(&mut world);
    for _ in 0..3 {
        let now = world.time();
        world.hosts[0].send(now, client, b"a message").unwrap();
        pass(&mut world, 100 * US);
    }
    pass(&mut world, 10 * MS);
    let now = world.time();
    world.hosts[0].send(now, client, b"another period").unwrap();
    pass(&mut world, 10 * MS);
    // Each empties the queue, so each may be the last.
    let (first, last) = (Flags::TXS, Flags::TXF);
    assert_eq!(*marks.borrow(), [first | last, last, last, first | last]);
    assert_over(&world, "four messages");
}

/// How what waits to be sent comes to nothing.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    /// The reader gives the channel up.
    Aborted,
    Cancelled,
    Late,
}

/// Host 0 has far more to send to host 1 than it was granted.
fn amid_a_transfer(config: &Config) -> (World, ChannelId, ChannelId) {
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, config, 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let now = world.time();
    while world.hosts[0].send_until(now, client, &[7; 1000], now.after(3 * MS)).is_ok() {}
    pass(&mut world, 2 * MS);
    assert!(association(&world, 0).backlog_bytes > 100_000, "{:?}", association(&world, 0));
    (world, client, server)
}

/// All of that is dropped.
fn drop_queue(world: &mut World, how: Dropped, (client, server): (ChannelId, ChannelId)) {
    let now = world.time();
    match how {
        Dropped::Aborted => world.hosts[1].abort(now, server),
        Dropped::Cancelled => assert!(world.hosts[0].cancel(client) > 100),
        Dropped::Late => {}
    }
    wait_for(world, 2 * MS, "nothing waits", |world| association(world, 0).backlog_bytes == 0);
}

/// Nothing is said in 50 s.
fn assert_silent(world: &mut World, about: &str) {
    pass(world, S);
    let before = world.packets;
    pass(world, 50 * S);
    assert_eq!(world.packets, before, "{about}");
}

in_every_way!(a_period_whose_rest_is_dropped_is_over_for_both_ends);
fn a_period_whose_rest_is_dropped_is_over_for_both_ends() {
    for how in [Dropped::Aborted, Dropped::Cancelled, Dropped::Late] {
        let about = format!("{how:?}");
        let (mut world, client, server) = amid_a_transfer(&Config::default());
        drop_queue(&mut world, how, (client, server));
        pass(&mut world, MS);
        assert_over(&world, &about);
        assert_silent(&mut world, &about);
        let (client, server) = pair(&mut world, Mode::Messages);
        carry(&mut world, &mut [Flow::messages((0, client), (1, server), 1000, 1000)], S);
    }
}

in_every_way!(with_a_constant_window_a_period_whose_rest_is_dropped_is_over_too);
fn with_a_constant_window_a_period_whose_rest_is_dropped_is_over_too() {
    for how in [Dropped::Aborted, Dropped::Cancelled, Dropped::Late] {
        let config = Config { gate_mode: GateMode::Esp, window_packets: 4, ..Config::default() };
        let (mut world, client, server) = amid_a_transfer(&config);
        drop_queue(&mut world, how, (client, server));
        assert_silent(&mut world, &format!("{how:?}"));
    }
}

in_every_way!(a_period_whose_rest_is_dropped_is_over_though_the_word_of_it_is_lost);
fn a_period_whose_rest_is_dropped_is_over_though_the_word_of_it_is_lost() {
    for how in [Dropped::Aborted, Dropped::Cancelled, Dropped::Late] {
        let (mut world, client, server) = amid_a_transfer(&Config::default());
        drop_queue(&mut world, how, (client, server));
        world.cut.insert((0, 1));
        pass(&mut world, MS);
        world.cut.clear();
        assert_silent(&mut world, &format!("{how:?}"));
    }
}

in_every_way!(a_period_whose_rest_is_dropped_is_over_though_its_last_packets_are_repeated);
fn a_period_whose_rest_is_dropped_is_over_though_its_last_packets_are_repeated() {
    for how in [Dropped::Aborted, Dropped::Cancelled] {
        let (mut world, client, server) = amid_a_transfer(&Config::default());
        let lost = Rc::new(Cell::new(0));
        let out = Rc::clone(&lost);
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            let is_lost = from == 0 && Packet::parse(bytes).unwrap().header.kind.consumes_number();
            out.set(out.get() + u32::from(is_lost));
            !is_lost
        }));
        wait_for(&mut world, MS, "some are lost", |_| lost.get() > 0);
        drop_queue(&mut world, how, (client, server));
        world.filter = None;
        pass(&mut world, 20 * MS);
        assert!(association(&world, 0).counters.resent > 0);
        assert_silent(&mut world, &format!("{how:?}"));
    }
}
