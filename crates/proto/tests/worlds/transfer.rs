//! Data gets through, in order and once, whatever the network does.

use crate::world::{MS, Net, S, US, World, in_every_way, pair, pass, payload_bytes, stream, wait_for};
use ropeway_proto::{Config, Joined, Mode, SendError};

in_every_way!(a_stream_arrives_on_a_clean_network);
fn a_stream_arrives_on_a_clean_network() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 10_000_000, 10 * S);
    stream(&mut world, (1, server), (0, client), 1_000_000, 10 * S);
    assert_eq!(world.hosts[0].counters().resent + world.hosts[1].counters().resent, 0);
}

in_every_way!(one_stream_fills_a_gigabit_port_without_a_drop);
fn one_stream_fills_a_gigabit_port_without_a_drop() {
    let net = Net { rate: 1_000_000_000, ..Net::default() };
    let mut world = World::new(2, net, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let total = 20_000_000;
    let ns = stream(&mut world, (0, client), (1, server), total, 10 * S);
    let share = (total * 8) as f64 / ns as f64 / (payload_bytes() / (1472.0 + 46.0));
    println!(
        "share of the payload rate {share:.4}, most queued {}, {:?}",
        world.most_queued(1),
        world.hosts[1].counters().gate
    );
    assert_eq!(world.drops(1), 0);
    assert!(share > 0.98, "{share}");
}

in_every_way!(a_steady_transfer_does_not_ask_the_allocator);
fn a_steady_transfer_does_not_ask_the_allocator() {
    let net = Net { rate: 1_000_000_000, ..Net::default() };
    let mut world = World::new(2, net, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let counted = |world: &World| {
        let counters = world.hosts.iter().map(|host| host.counters());
        counters.fold((0, 0), |sum, it| (sum.0 + it.buffers_taken, sum.1 + it.buffers_allocated))
    };
    stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    let before = counted(&world);
    stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    let after = counted(&world);
    let (taken, allocated) = (after.0 - before.0, after.1 - before.1);
    assert!(taken > 13_000, "{taken}: at least one for each packet");
    assert!(allocated * 1000 < taken, "{allocated} of {taken}");
}

in_every_way!(streams_arrive_over_bad_networks);
fn streams_arrive_over_bad_networks() {
    for seed in 0..20 {
        let net = Net {
            loss_ppm: seed % 5 * 50_000,
            duplication_ppm: seed % 3 * 20_000,
            reordering_ppm: seed % 4 * 30_000,
            corruption_ppm: seed % 6 * 4_000,
            ..Net::default()
        };
        println!("seed {seed}: {net:?}");
        let mut world = World::new(2, net, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let ns = stream(&mut world, (0, client), (1, server), 2_000_000, 20 * S);
        println!(
            "   {} ms, resent {}, spurious {}",
            ns / MS,
            world.hosts[0].counters().resent,
            world.hosts[1].counters().spurious_requests
        );
        stream(&mut world, (1, server), (0, client), 200_000, 100 * S);
    }
}

in_every_way!(messages_keep_their_boundaries_over_bad_networks);
fn messages_keep_their_boundaries_over_bad_networks() {
    let sizes = [0usize, 1, 64, 1000, 1444, 1445, 1472, 5000, 100_000, 3, 2, 1, 2_000_000, 7];
    for seed in 0..8 {
        let net =
            Net { loss_ppm: seed * 20_000, reordering_ppm: 20_000, corruption_ppm: seed * 3_000, ..Net::default() };
        let mut world = World::new(2, net, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Messages);
        let (mut next_sent, mut next_received) = (0, 0);
        let mut out = vec![0; 2_000_000];
        let end = world.now + 20 * S;
        let done = world.run(end, |world| {
            let now = world.time();
            while next_sent < sizes.len() * 3 {
                let size = sizes[next_sent % sizes.len()];
                match world.hosts[0].send(now, client, &vec![next_sent as u8; size]) {
                    Ok(_) => next_sent += 1,
                    Err(SendError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            world.hosts[0].flush(client);
            while let Ok(Some(count)) = world.hosts[1].recv(server, &mut out) {
                assert_eq!(count, sizes[next_received % sizes.len()], "message {next_received}");
                assert!(out[..count].iter().all(|&byte| byte == next_received as u8));
                next_received += 1;
            }
            next_received == sizes.len() * 3
        });
        assert!(
            done,
            "seed {seed}: {next_received} messages: {:#?} {:#?}",
            world.hosts[0].counters(),
            world.hosts[1].counters()
        );
    }
}

in_every_way!(messages_that_join_others_arrive_like_those_that_do_not);
fn messages_that_join_others_arrive_like_those_that_do_not() {
    // Over a fast network they wait for company, over a slow one for grants; over a bad one for both, and for what was lost.
    let slow = Net { rate: 1_000_000_000, ..Net::default() };
    let bad = Net { loss_ppm: 20_000, reordering_ppm: 20_000, ..slow.clone() };
    for (net, waits) in [(Net::default(), 0), (slow, 0), (bad, 100 * US)] {
        let mut world = World::new(2, net, &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Messages);
        let (mut joined, mut due, mut received, mut buffer) = (0, 0, 0u64, [0; 200]);
        let mut receive = |world: &mut World| {
            while let Ok(Some(count)) = world.hosts[1].recv(server, &mut buffer) {
                assert_eq!(count as u64, received % 120 + 8);
                assert_eq!(u64::from_be_bytes(buffer[..8].try_into().unwrap()), received);
                received += 1;
            }
        };
        let mut message = [0; 200];
        for number in 0..50_000u64 {
            message[..8].copy_from_slice(&number.to_be_bytes());
            let message = &message[..(number % 120 + 8) as usize];
            match world.hosts[0].send_joining(client, message) {
                Joined::KeptBack => joined += 1,
                Joined::Due => due += 1,
                Joined::Refused => {
                    wait_for(&mut world, S, "room", |world| {
                        let now = world.time();
                        receive(world);
                        world.hosts[0].send(now, client, message).is_ok()
                    });
                }
            }
            if number % 64 == 0 {
                pass(&mut world, waits + US);
            }
        }
        wait_for(&mut world, 10 * S, "all to be delivered", |world| {
            receive(world);
            world.hosts[0].readiness(client).unwrap().drained
        });
        receive(&mut world);
        assert_eq!(received, 50_000);
        assert!(joined > 25_000 && due > 0, "{joined} joined, {due} were due with that");
        let now = world.time();
        world.hosts[0].abort(now, client);
        assert_eq!(world.hosts[0].send_joining(client, &message), Joined::Refused);
    }
}

in_every_way!(both_ends_see_the_end_and_nothing_is_left);
fn both_ends_see_the_end_and_nothing_is_left() {
    let mut world = World::new(2, Net { loss_ppm: 50_000, ..Net::default() }, &Config::default(), 3);
    for _ in 0..20 {
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 10_000, 10 * S);
        let now = world.time();
        world.hosts[0].shutdown(now, client).unwrap();
        let end = world.now + 10 * S;
        assert!(world.run(end, |world| world.hosts[1].readiness(server).unwrap().ended));
        stream(&mut world, (1, server), (0, client), 10_000, 10 * S);
        let now = world.time();
        world.hosts[1].close(now, server);
        let end = world.now + 10 * S;
        assert!(world.run(end, |world| world.hosts[0].readiness(client).unwrap().ended));
        world.hosts[0].close(now, client);
        let end = world.now + 10 * S;
        assert!(
            world.run(end, |world| world.hosts.iter().all(|host| host.sizes().1 == 0)),
            "{:?}",
            world.hosts[0].sizes()
        );
    }
    assert_eq!(world.hosts[0].buffers_in_use(), (0, 0));
    assert_eq!(world.hosts[1].buffers_in_use(), (0, 0));
}
