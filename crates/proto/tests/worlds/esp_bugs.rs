//! The bugs that document 2's implementation had to fix, each by its name: none of them is here ([2:5.3], facts about ESP).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{Config, ErrorCode, Mode, SendError};
use ropeway_wire::{Header, Packet, Type};

#[derive(Clone, Debug)]
struct Seen {
    at: u64,
    from: usize,
    kind: Type,
    number: u32,
    /// Short headers have none.
    ack: Option<u32>,
}

fn watch(world: &mut World) -> Rc<RefCell<Vec<Seen>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&seen);
    world.filter = Some(Box::new(move |at, from, _, bytes| {
        let Header { kind, is_short, number, ack, .. } = Packet::parse(bytes).unwrap().header;
        out.borrow_mut().push(Seen { at, from, kind, number, ack: (!is_short).then_some(ack) });
        true
    }));
    seen
}

fn close(world: &mut World, host: usize, channel: ropeway_proto::ChannelId) {
    let now = world.clock(host);
    world.hosts[host].close(now, channel);
}

with_and_without_a_key!(sequence_number_eaten_by_empty_packets);
fn sequence_number_eaten_by_empty_packets() {
    // Acknowledgments, questions and PINs go out between data; the numbers of what carries something still have no hole.
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let seen = watch(&mut world);
    for _ in 0..20 {
        stream(&mut world, (0, client), (1, server), 20_000, S);
        stream(&mut world, (1, server), (0, client), 20_000, S);
        pass(&mut world, 70 * S);
    }
    let seen = seen.borrow();
    assert!(
        seen.iter().any(|packet| packet.kind == Type::Pin) && seen.iter().any(|packet| packet.kind == Type::Control)
    );
    for host in 0..2 {
        let numbers: Vec<u32> = seen
            .iter()
            .filter(|packet| packet.from == host && packet.kind.consumes_number())
            .map(|packet| packet.number)
            .collect();
        assert!(numbers.len() > 20 * 13);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "host {host}");
    }
}

with_and_without_a_key!(simultaneous_close);
fn simultaneous_close() {
    for loss_ppm in [0, 200_000] {
        let mut world = World::new(2, Net { loss_ppm, ..Net::default() }, &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        close(&mut world, 0, client);
        close(&mut world, 1, server);
        let taken =
            wait_for(&mut world, S, "both are through", |world| world.hosts.iter().all(|host| host.sizes().1 == 0));
        if loss_ppm == 0 {
            assert!(taken <= Config::default().ack_delay_ns + 40 * US, "{taken}: a round trip, and the delayed answer");
        }
    }
}

with_and_without_a_key!(fin_resent_for_ever);
fn fin_resent_for_ever() {
    // A FIN that was acknowledged is never sent again, and one that nobody answers only until the silence is given up.
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, _server) = pair(&mut world, Mode::Stream);
    let seen = watch(&mut world);
    close(&mut world, 0, client);
    pass(&mut world, 200 * S);
    let fins = |seen: &Rc<RefCell<Vec<Seen>>>, host| {
        seen.borrow().iter().filter(|packet| packet.kind == Type::Fin && packet.from == host).count()
    };
    assert_eq!(fins(&seen, 0), 1);
    let (client, _server) = pair(&mut world, Mode::Stream);
    world.stopped.insert(1);
    let seen = watch(&mut world);
    close(&mut world, 0, client);
    pass(&mut world, 30 * S);
    assert_eq!((fins(&seen, 0), world.hosts[0].sizes()), (1, (0, 0)), "timers ask, they do not resend");
    let last = seen.borrow().last().unwrap().at;
    pass(&mut world, 300 * S);
    assert_eq!(seen.borrow().last().unwrap().at, last, "and then there is silence");
}

with_and_without_a_key!(rtx_timer_left_running_at_close);
fn rtx_timer_left_running_at_close() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    close_all_channels(&mut world, &[(0, client), (1, server)]);
    pass(&mut world, S);
    let seen = watch(&mut world);
    // Until the unused association is closed a minute later not one packet goes.
    pass(&mut world, 55 * S);
    assert_eq!(seen.borrow().len(), 0);
    pass(&mut world, 10 * S);
    assert!((0..2).all(|host| world.hosts[host].sizes() == (0, 0) && world.wakes_at(host).is_none()));
}

with_and_without_a_key!(leak_on_fin_wait_timeout);
fn leak_on_fin_wait_timeout() {
    // The peer dies in every phase of a close: everything is freed when the silence has lasted long enough.
    for die_after in [0, 10 * US, 20 * US, 30 * US, 50 * US, 200 * US] {
        let mut world = World::new(2, Net::default(), &Config::default(), die_after);
        let (client, _) = pair(&mut world, Mode::Stream);
        let now = world.time();
        world.hosts[0].send(now, client, &[1; 5000]).unwrap();
        close(&mut world, 0, client);
        pass(&mut world, die_after);
        world.stopped.insert(1);
        wait_for(&mut world, 400 * S, "freed", |world| {
            world.hosts[0].sizes() == (0, 0) && world.hosts[0].buffers_in_use() == (0, 0)
        });
        assert_eq!(world.wakes_at(0), None);
    }
}

with_and_without_a_key!(socket_left_in_a_hash_table);
fn socket_left_in_a_hash_table() {
    // After it was closed nothing finds it: not its id, not its number, not its peer; and its number serves again.
    let config = Config { max_channels: 4, max_associations: 2, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    for round in 0..50 {
        let ends: Vec<_> = (0..4).map(|_| pair(&mut world, Mode::Stream)).collect();
        for &(client, server) in &ends {
            stream(&mut world, (0, client), (1, server), 1000, S);
        }
        let all: Vec<_> = ends.iter().flat_map(|&(client, server)| [(0, client), (1, server)]).collect();
        close_all_channels(&mut world, &all);
        for (host, id) in all {
            let now = world.time();
            assert_eq!(world.hosts[host].readiness(id), None);
            assert_eq!(world.hosts[host].send(now, id, b"x"), Err(SendError::Unknown));
        }
        if round % 10 == 9 {
            world.close_all(round / 10 % 2);
            pass(&mut world, MS);
            assert!((0..2).all(|host| world.hosts[host].sizes() == (0, 0) && world.wakes_at(host).is_none()));
        }
    }
}

with_and_without_a_key!(sendmsg_hanging_on_a_closing_socket);
fn sendmsg_hanging_on_a_closing_socket() {
    // A program that waits for room is woken when the channel ends in any way, and told.
    for ending in 0..4 {
        let mut world = World::new(2, Net::default(), &Config::default(), ending);
        let (client, server) = pair(&mut world, Mode::Stream);
        let mut flow = [Flow { slow: true, ..Flow::stream((0, client), (1, server), 1 << 30) }];
        carry_until(&mut world, &mut flow, 100 * MS, |_, _| false);
        let now = world.time();
        while world.hosts[0].send(now, client, &[0; 1000]).is_ok() {}
        assert_eq!(world.hosts[0].send(now, client, b"x"), Err(SendError::WouldBlock));
        while world.hosts[0].poll_event().is_some() {}
        let expected = match ending {
            0 => {
                close(&mut world, 1, server);
                SendError::Failed(ErrorCode::Reset)
            }
            1 => {
                world.hosts[1].abort(now, server);
                SendError::Failed(ErrorCode::Reset)
            }
            2 => {
                world.close_all(1);
                SendError::Failed(ErrorCode::Closed)
            }
            _ => {
                world.stopped.insert(1);
                SendError::Failed(ErrorCode::Timeout)
            }
        };
        wait_for(&mut world, 20 * S, "woken", |world| world.hosts[0].poll_event().is_some());
        let now = world.time();
        assert_eq!(world.hosts[0].send(now, client, b"x"), Err(expected), "ending {ending}");
    }
}

with_and_without_a_key!(duplicate_acks);
fn duplicate_acks() {
    // No acknowledgment is said twice without a reason: a bare one carries news.
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    pass(&mut world, S);
    let seen = watch(&mut world);
    stream(&mut world, (0, client), (1, server), 2_000_000, S);
    pass(&mut world, S);
    let seen = seen.borrow();
    let mut times: BTreeMap<u32, usize> = BTreeMap::new();
    let bare: Vec<_> = seen.iter().filter(|packet| packet.from == 1 && packet.kind == Type::Control).collect();
    bare.iter().filter_map(|packet| packet.ack).for_each(|ack| *times.entry(ack).or_default() += 1);
    let data = seen.iter().filter(|packet| packet.from == 0 && packet.kind == Type::Data).count();
    println!("{} acknowledgments of {data} packets", bare.len());
    // A grant may repeat the acknowledgment of a moment before.
    assert!(times.values().all(|&count| count <= 2), "{times:?}");
    assert!(bare.len() <= data / 4, "{} of {data}", bare.len());
}

with_and_without_a_key!(ack_seq_not_advanced);
fn ack_seq_not_advanced() {
    // What has arrived is acknowledged, in every packet that goes back, and at the end all of it.
    for seed in 0..5 {
        let mut world = World::new(2, Net { loss_ppm: 50_000, ..Net::default() }, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let seen = watch(&mut world);
        let mut flows =
            [Flow::stream((0, client), (1, server), 300_000), Flow::stream((1, server), (0, client), 300_000)];
        carry(&mut world, &mut flows, 10 * S);
        for (host, id) in [(0, client), (1, server)] {
            wait_for(&mut world, S, "drained", |world| world.hosts[host].readiness(id).unwrap().drained);
        }
        let seen = seen.borrow();
        for host in 0..2 {
            let acks: Vec<_> =
                seen.iter().filter(|packet| packet.from == host).filter_map(|packet| packet.ack).collect();
            assert!(acks.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) as i32 >= 0), "it never goes back");
            let newest = seen.iter().filter(|packet| packet.from != host).map(|packet| packet.number);
            let newest = newest.reduce(|a, b| if b.wrapping_sub(a) as i32 > 0 { b } else { a }).unwrap();
            let last = *acks.last().unwrap();
            assert!([0, 1].contains(&last.wrapping_sub(newest)), "{last:x} after {newest:x}");
        }
    }
}
