//! Busy periods (docs/protocol.md 4, decision 0008): the first number of each is marked, and the last, and what is left of the grant is given up with that.

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{AssociationStatistics, Config, Mode};
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
