//! Silence and what is not silence: keep-alive, patience, stopped hosts, clocks that jump, slow readers.

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{Config, ErrorCode, Limit, Mode, RecvError};

fn failure(world: &mut World, host: usize, channel: ropeway_proto::ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

/// Notes when packets of a type leave a host.
fn note(world: &mut World, host: usize, kind: u8) -> Rc<RefCell<Vec<u64>>> {
    let times = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&times);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == host && bytes[0] == kind {
            out.borrow_mut().push(now);
        }
        true
    }));
    times
}

in_every_way!(an_association_without_channels_ends_whatever_keeps_it_alive);
fn an_association_without_channels_ends_whatever_keeps_it_alive() {
    let config = Config { keep_alive_ns: 10 * S, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    pass(&mut world, 300 * S);
    assert_eq!(world.hosts[0].sizes(), (1, 1), "it has one");
    close_all_channels(&mut world, &[(0, client), (1, server)]);
    pass(&mut world, 59 * S);
    assert_eq!(world.hosts[0].sizes(), (1, 0));
    pass(&mut world, 2 * S);
    assert_eq!(world.hosts.iter().map(|host| host.sizes()).collect::<Vec<_>>(), [(0, 0), (0, 0)]);
}

in_every_way!(an_idle_client_sends_a_pin_every_60_seconds_and_stays_connected);
fn an_idle_client_sends_a_pin_every_60_seconds_and_stays_connected() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let pins = note(&mut world, 0, 0x1D);
    pass(&mut world, 3600 * S);
    let pins = pins.borrow();
    assert_eq!(pins.len(), 59);
    // From the answer of one to the next.
    assert!(pins.windows(2).all(|pair| pair[1] - pair[0] == 60 * S + 40 * US), "{pins:?}");
    assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None));
}

in_every_way!(a_lost_pin_is_followed_by_a_state_a_quarter_of_a_minute_later);
fn a_lost_pin_is_followed_by_a_state_a_quarter_of_a_minute_later() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    pass(&mut world, S);
    // What the client sends, and the first PIN is lost.
    let said = Rc::new(RefCell::new(Vec::new()));
    let (out, mut pins) = (Rc::clone(&said), 0);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == 0 {
            out.borrow_mut().push((now, bytes[0]));
            pins += u32::from(bytes[0] == 0x1D);
        }
        from != 0 || bytes[0] != 0x1D || pins > 1
    }));
    pass(&mut world, 200 * S);
    let said = said.borrow();
    let kinds: Vec<u8> = said.iter().map(|&(_, kind)| kind).collect();
    assert_eq!(kinds, [0x1D, 0x1C, 0x1D, 0x1D], "{said:?}");
    // The STATE is answered, and from then on it is as before.
    let apart: Vec<u64> = said.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(apart, [15 * S, 60 * S + 40 * US, 60 * S + 40 * US]);
    assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None));
}

in_every_way!(an_idle_hour_ends_nothing_on_a_network_that_loses_a_fifth);
fn an_idle_hour_ends_nothing_on_a_network_that_loses_a_fifth() {
    for seed in 0..20 {
        let mut world = World::new(2, Net::default(), &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        world.net.loss_ppm = 200_000;
        pass(&mut world, 3600 * S);
        assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None), "seed {seed}");
        stream(&mut world, (1, server), (0, client), 10_000, S);
    }
}

in_every_way!(a_transfer_that_is_given_up_ends_nothing_else);
fn a_transfer_that_is_given_up_ends_nothing_else() {
    for sender in [0, 1] {
        let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
        let idle = pair(&mut world, Mode::Stream);
        let (client, server) = pair(&mut world, Mode::Stream);
        let ends = [(0, client), (1, server)];
        let (from, to) = (ends[sender], ends[1 - sender]);
        carry_until(&mut world, &mut [Flow::stream(from, to, 100_000_000)], 50 * MS, |_, _| false);
        let now = world.time();
        world.hosts[to.0].abort(now, to.1);
        wait_for(&mut world, S, "told", |world| failure(world, from.0, from.1).is_some());
        world.hosts[from.0].close(now, from.1);
        pass(&mut world, 1000 * S);
        assert_eq!((failure(&mut world, 0, idle.0), failure(&mut world, 1, idle.1)), (None, None), "{sender} sent");
    }
}

in_every_way!(a_server_that_hears_nothing_for_300_seconds_frees_the_association);
fn a_server_that_hears_nothing_for_300_seconds_frees_the_association() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (_, server) = pair(&mut world, Mode::Stream);
    pass(&mut world, S);
    let begin = world.now;
    world.stopped.insert(0);
    wait_for(&mut world, 400 * S, "freed", |world| world.hosts[1].sizes().0 == 0);
    assert!((298 * S..=300 * S).contains(&(world.now - begin)), "{}", world.now - begin);
    assert_eq!(failure(&mut world, 1, server), Some(ErrorCode::Timeout));
}

in_every_way!(an_association_without_channels_is_kept_for_a_minute_and_then_closed_at_both_ends);
fn an_association_without_channels_is_kept_for_a_minute_and_then_closed_at_both_ends() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    close_all_channels(&mut world, &[(0, client), (1, server)]);
    pass(&mut world, 50 * S);
    assert_eq!(world.hosts[0].sizes().0, 1);
    pass(&mut world, 15 * S);
    assert_eq!((world.hosts[0].sizes().0, world.hosts[1].sizes().0), (0, 0));
}

in_every_way!(silence_is_given_up_after_exactly_the_time_set);
fn silence_is_given_up_after_exactly_the_time_set() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, _) = pair(&mut world, Mode::Stream);
    pass(&mut world, 30 * S);
    world.cut.insert((0, 1));
    let now = world.time();
    world.hosts[0].send(now, client, b"hello?").unwrap();
    world.hosts[0].flush(client);
    let taken = wait_for(&mut world, 20 * S, "given up", |world| failure(world, 0, client).is_some());
    assert_eq!(failure(&mut world, 0, client), Some(ErrorCode::Timeout));
    // Looked at whenever the STATE timer runs out, which is at most `timer_max` apart.
    assert!((10 * S..10 * S + 100 * MS).contains(&taken), "{taken}");
}

in_every_way!(a_receiver_that_lives_but_does_not_read_is_never_given_up);
fn a_receiver_that_lives_but_does_not_read_is_never_given_up() {
    for mode in [Mode::Stream, Mode::Messages] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, mode);
        let size = if mode == Mode::Stream { 0 } else { 100_000 };
        let mut flows = [Flow { message_bytes: size, slow: true, ..Flow::stream((0, client), (1, server), 6_000_000) }];
        carry_until(&mut world, &mut flows, 600 * S, |_, _| false);
        let (before, now) = (world.packets, world.time());
        assert_eq!(failure(&mut world, 0, client), None);
        let association = world.hosts[0].statistics(now, client).unwrap().association.unwrap();
        assert_eq!(association.waits_for, Limit::Reader);
        assert!(association.waited.reader_ns > 590 * S, "{association:?}");
        pass(&mut world, 10 * S);
        assert!(world.packets - before < 250, "ten questions a second, and their answers");
        flows[0].slow = false;
        carry(&mut world, &mut flows, 5 * S);
    }
}

in_every_way!(a_lost_credit_is_asked_for_even_if_nothing_else_was_under_way);
fn a_lost_credit_is_asked_for_even_if_nothing_else_was_under_way() {
    const WINDOW: usize = 128 << 10;
    let config = Config { receive_buffer_bytes: WINDOW as u32, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, client, &[1; WINDOW]), Ok(WINDOW));
    world.hosts[0].flush(client);
    // All of it arrives and uses up the credit, of which the most came with the first of it; the timers of that time run out.
    pass(&mut world, S);
    world.cut.insert((1, 0));
    let mut out = vec![0; 2 * WINDOW];
    assert_eq!(world.hosts[1].recv(server, &mut out), Ok(Some(WINDOW)));
    pass(&mut world, MS);
    world.cut.clear();
    let now = world.time();
    // Nothing but the sending itself: a flush would look at the timers.
    assert_eq!(world.hosts[0].send(now, client, &[2; 1000]), Ok(1000));
    let taken = wait_for(&mut world, S, "the rest", |world| world.hosts[1].recv(server, &mut out) == Ok(Some(1000)));
    assert!(taken < 20 * MS, "{taken}");
}

in_every_way!(a_slow_reader_stalls_its_own_channel_only);
fn a_slow_reader_stalls_its_own_channel_only() {
    let mut world = World::new(3, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let (slow, slow_end) = open(&mut world, 0, 1, 7, Mode::Stream);
    let (same, same_end) = open(&mut world, 0, 1, 7, Mode::Stream);
    let (other, other_end) = open(&mut world, 2, 1, 7, Mode::Stream);
    let mut flows = [
        Flow { slow: true, ..Flow::stream((0, slow), (1, slow_end), 50_000_000) },
        Flow::stream((0, same), (1, same_end), 5_000_000),
        Flow::stream((2, other), (1, other_end), 5_000_000),
    ];
    let begin = world.now;
    let done = |_: &World, flows: &[Flow]| flows[1..].iter().all(Flow::is_done);
    assert!(carry_until(&mut world, &mut flows, S, done));
    let ideal_ns = 11_000_000 * 8 * 1518 / 1444;
    assert!(world.now - begin < ideal_ns * 105 / 100, "{} of {ideal_ns}", world.now - begin);
    assert_eq!(world.drops(1), 0);
}

in_every_way!(many_slow_readers_do_not_use_up_the_memory_for_the_others);
fn many_slow_readers_do_not_use_up_the_memory_for_the_others() {
    let config = Config { receive_memory_bytes: 8 << 20, ..Config::default() };
    let mut world = World::new(3, Net::default(), &config, 1);
    let mut flows: Vec<_> = (0..30)
        .map(|_| {
            let (slow, end) = open(&mut world, 0, 1, 7, Mode::Stream);
            Flow { slow: true, ..Flow::stream((0, slow), (1, end), 3_000_000) }
        })
        .collect();
    carry_until(&mut world, &mut flows, S, |_, _| false);
    let (client, server) = open(&mut world, 2, 1, 7, Mode::Stream);
    let taken = stream(&mut world, (2, client), (1, server), 2_000_000, 5 * S);
    println!("{} ms, {} dropped for memory", taken / MS, world.hosts[1].counters().dropped_memory);
    assert!(taken < S, "{taken}");
    flows.iter_mut().for_each(|flow| flow.slow = false);
    carry(&mut world, &mut flows, 20 * S);
}

in_every_way!(two_messages_that_do_not_fit_the_memory_together_come_one_after_the_other);
fn two_messages_that_do_not_fit_the_memory_together_come_one_after_the_other() {
    let config = Config { receive_memory_bytes: 8 << 20, longest_message_bytes: 4 << 20, ..Config::default() };
    let mut world = World::of(
        vec![endpoint(0, &Config::default(), 1), endpoint(1, &config, 1), endpoint(2, &Config::default(), 1)],
        Net { rate: 1_000_000_000, ..Net::default() },
        1,
    );
    let (a, a_end) = open(&mut world, 0, 1, 7, Mode::Messages);
    let (b, b_end) = open(&mut world, 2, 1, 7, Mode::Messages);
    let size = 3 << 20;
    let mut flows = [Flow::messages((0, a), (1, a_end), size, 3), Flow::messages((2, b), (1, b_end), size, 3)];
    carry(&mut world, &mut flows, 5 * S);
    assert_eq!(world.hosts[1].counters().dropped_memory, 0);
    close_all_channels(&mut world, &[(0, a), (1, a_end), (2, b), (1, b_end)]);
}

in_every_way!(messages_longer_than_the_window_come_though_each_begins_in_the_last_packet_of_the_one_before);
fn messages_longer_than_the_window_come_though_each_begins_in_the_last_packet_of_the_one_before() {
    // The reader takes a message only when nothing else can happen: then the next one stands begun behind it.
    let config = Config { receive_buffer_bytes: 16 << 10, longest_message_bytes: 4 << 20, ..Config::default() };
    for seed in 0..4 {
        let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &config, seed);
        let (client, server) = pair(&mut world, Mode::Messages);
        let sizes = [60_000usize, 17_000, 65_535, 20, 16_400, 3 << 20, 16_384, 40_000, 14_440, 50_001];
        let (mut sent, mut received) = (0, 0);
        let mut out = vec![0; 4 << 20];
        while received < sizes.len() * 3 {
            let now = world.clock(0);
            while sent < sizes.len() * 3
                && world.hosts[0].send(now, client, &vec![sent as u8; sizes[sent % sizes.len()]]).is_ok()
            {
                sent += 1;
            }
            world.hosts[0].flush(client);
            pass(&mut world, 100 * MS);
            let count = world.hosts[1].recv(server, &mut out).unwrap_or_else(|e| panic!("message {received}: {e}"));
            assert_eq!(count, Some(sizes[received % sizes.len()]), "message {received}");
            assert!(out[..sizes[received % sizes.len()]].iter().all(|&byte| byte == received as u8));
            received += 1;
        }
        close_all_channels(&mut world, &[(0, client), (1, server)]);
    }
}

in_every_way!(a_stopped_host_that_holds_budget_stops_nobody_else);
fn a_stopped_host_that_holds_budget_stops_nobody_else() {
    let net = Net { rate: 1_000_000_000, ..Net::default() };
    let mut world = World::new(4, net, &Config::default(), 1);
    let mut flows: Vec<_> = [0, 2, 3]
        .map(|from| {
            let (client, server) = open(&mut world, from, 1, 7, Mode::Stream);
            Flow::stream((from, client), (1, server), 20_000_000)
        })
        .into();
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows.iter().all(|flow| flow.received > 500_000)));
    world.stopped.insert(0);
    let others = |flows: &[Flow]| flows[1].received + flows[2].received;
    let before = others(&flows);
    let begin = world.now;
    carry_until(&mut world, &mut flows, 50 * MS, |_, _| false);
    let share = (others(&flows) - before) as f64 * 8.0 / (world.now - begin) as f64 / (payload_bytes() / 1518.0);
    println!(
        "share of the line {share:.3} while one holder of grants is stopped, {} drops, {:?}",
        world.drops(1),
        world.hosts[1].counters().gate
    );
    assert!(share > 0.95, "{share}");
    // It comes back before anybody has lost patience, and nothing is missing.
    pass(&mut world, 3 * S);
    world.stopped.clear();
    carry(&mut world, &mut flows, 5 * S);
}

in_every_way!(a_host_that_was_stopped_for_longer_than_the_patience_does_not_blame_its_peers);
fn a_host_that_was_stopped_for_longer_than_the_patience_does_not_blame_its_peers() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flows = [Flow::stream((0, client), (1, server), 3_000_000)];
    assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 500_000));
    // Only its own packets are undelivered: the other end waits for nothing.
    world.stopped.insert(0);
    pass(&mut world, 60 * S);
    world.stopped.clear();
    carry(&mut world, &mut flows, S);
    assert_eq!(world.hosts[0].counters().overslept, 1);
}

in_every_way!(hosts_that_stood_still_together_do_not_blame_each_other_however_short_the_patience);
fn hosts_that_stood_still_together_do_not_blame_each_other_however_short_the_patience() {
    for give_up_ns in [100 * MS, 400 * MS, 2 * S] {
        let config = Config { give_up_ns, ..Config::default() };
        // What is under way when they stop arrives before they go on, or after.
        for delay_ns in [20 * US, 3 * MS] {
            let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &config, 1);
            let (client, server) = pair(&mut world, Mode::Stream);
            let mut flows =
                [Flow::stream((0, client), (1, server), 3_000_000), Flow::stream((1, server), (0, client), 3_000_000)];
            assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 300_000));
            // What the first said last is lost, and only a question finds that out.
            world.cut.insert((0, 1));
            carry_until(&mut world, &mut flows, MS, |_, _| false);
            world.stopped.extend([0, 1]);
            pass(&mut world, give_up_ns * 11 / 10);
            world.stopped.clear();
            world.cut.clear();
            carry(&mut world, &mut flows, 5 * S);
            assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None));
        }
    }
}

in_every_way!(clocks_may_jump_forward_and_step_back);
fn clocks_may_jump_forward_and_step_back() {
    for (seed, step) in [10 * MS as i64, 400 * MS as i64, 20 * S as i64, 1000 * S as i64, -(MS as i64), -5 * MS as i64]
        .into_iter()
        .enumerate()
    {
        for host in 0..2 {
            let mut world = World::new(2, Net::default(), &Config::default(), seed as u64);
            let (client, server) = pair(&mut world, Mode::Stream);
            let mut flows =
                [Flow::stream((0, client), (1, server), 2_000_000), Flow::stream((1, server), (0, client), 2_000_000)];
            assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 300_000));
            world.step_clock(host, step);
            let taken = carry(&mut world, &mut flows, S);
            assert!(taken < 300 * MS, "{taken} after a step of {step} at host {host}");
            pass(&mut world, 100 * S);
            assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None));
            close_all_channels(&mut world, &[(0, client), (1, server)]);
        }
    }
}

in_every_way!(messages_with_a_deadline_are_dropped_when_it_passes_and_their_user_is_told);
fn messages_with_a_deadline_are_dropped_when_it_passes_and_their_user_is_told() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    world.cut.insert((0, 1));
    let now = world.time();
    let size = 100_000;
    assert_eq!(world.hosts[0].send_until(now, client, &vec![1; size], now.after(10 * MS)), Ok(()));
    assert_eq!(world.hosts[0].send_until(now, client, &vec![2; size], now.after(20 * MS)), Ok(()));
    assert_eq!(world.hosts[0].send(now, client, &vec![3; size]), Ok(size));
    assert_eq!(world.hosts[0].send_until(now, client, &vec![4; size], now.after(S)), Ok(()));
    pass(&mut world, 5 * MS);
    while world.hosts[0].poll_event().is_some() {}
    world.hosts[0].readiness(client);
    let taken = wait_for(&mut world, S, "told", |world| world.hosts[0].poll_event().is_some());
    assert_eq!(taken, 15 * MS, "the second; the first was under way when the network was cut");
    let now = world.time();
    assert_eq!(world.hosts[0].statistics(now, client).unwrap().expired_messages, 1);
    world.cut.clear();
    let (mut got, mut out) = (Vec::new(), vec![0; size]);
    wait_for(&mut world, S, "three messages", |world| {
        while let Ok(Some(count)) = world.hosts[1].recv(server, &mut out) {
            assert_eq!(count, size);
            got.push(out[0]);
        }
        got.len() == 3
    });
    assert_eq!(got, [1, 3, 4]);
    assert_eq!(world.hosts[0].cancel(client), 0);
    assert_eq!(world.hosts[1].recv(server, &mut out), Err(RecvError::WouldBlock));
    close_all_channels(&mut world, &[(0, client), (1, server)]);
}

in_every_way!(who_closes_behind_messages_that_were_dropped_for_want_of_credit_says_so);
fn who_closes_behind_messages_that_were_dropped_for_want_of_credit_says_so() {
    for cancels in [false, true] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Messages);
        let life = 3 * S;
        // Nobody reads: what there is credit for is under way, and then there is no room for more.
        let mut is_full = false;
        while !is_full {
            pass(&mut world, 100 * MS);
            is_full = true;
            let now = world.time();
            while world.hosts[0].send_until(now, client, &[1; 1400], now.after(life)).is_ok() {
                is_full = false;
            }
            world.flush(0);
        }
        let now = world.time();
        if cancels {
            assert!(world.hosts[0].cancel(client) > 0);
        }
        world.hosts[0].close(now, client);
        world.flush(0);
        pass(&mut world, 2 * life);
        assert_eq!(world.hosts[0].buffers_in_use().0, 0, "the end needs no credit, and has arrived");
        // The reader comes late, and finds what was under way, and the end of it.
        let mut out = vec![0; 1400];
        let end = wait_for(&mut world, S, "the end", |world| {
            loop {
                match world.hosts[1].recv(server, &mut out) {
                    Ok(None) => break true,
                    Ok(Some(_)) => {}
                    Err(RecvError::WouldBlock) => break false,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        assert!(end < 10 * MS, "{end}: the end was there");
    }
}

in_every_way!(why_it_is_slow_is_told);
fn why_it_is_slow_is_told() {
    let waits = |world: &World, id| world.hosts[0].statistics(world.time(), id).unwrap().association.unwrap();
    // The port is the bottleneck: the sender waits for grants.
    let mut world = World::new(2, Net { rate: 100_000_000, ..Net::default() }, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let taken = stream(&mut world, (0, client), (1, server), 3_000_000, 5 * S);
    let told = waits(&world, client);
    assert!(told.waited.grant_ns > taken * 7 / 10, "{told:?} of {taken}");
    // Nobody answers.
    world.cut.insert((0, 1));
    let now = world.time();
    world.hosts[0].send(now, client, &[1; 1000]).unwrap();
    pass(&mut world, 5 * S);
    let told = waits(&world, client);
    assert_eq!(told.waits_for, Limit::Silence);
    assert!(told.waited.silence_ns > 4 * S, "{told:?}");
    world.cut.clear();
    pass(&mut world, S);
    assert_eq!(waits(&world, client).waits_for, Limit::Program);
    let received = world.hosts[1].statistics(world.time(), server).unwrap();
    assert_eq!((received.received_bytes, received.unread_bytes), (3_001_000, 1000));
    let least = received.association.unwrap().least_round_trip_ns;
    assert!((40 * US..=200 * US).contains(&least), "{least}");
}

in_every_way!(time_in_which_what_was_lost_is_sent_again_is_told);
fn time_in_which_what_was_lost_is_sent_again_is_told() {
    const LOSES_FOR: u64 = 40 * MS;
    let waits = |world: &World, id| world.hosts[0].statistics(world.time(), id).unwrap().association.unwrap();
    for loses in [false, true] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Messages);
        carry(&mut world, &mut [Flow::messages((0, client), (1, server), 1000, 100)], S);
        pass(&mut world, MS);
        // Of thirty packets the first does not come through, however often it is sent.
        let (begin, mut first) = (world.now, None);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            let is_data = from == 0 && [0x17, 0x10].contains(&bytes[0]);
            let number = &bytes[8..12];
            let is_first = is_data && *first.get_or_insert_with(|| number.to_vec()) == number;
            !(loses && is_first && now < begin + LOSES_FOR)
        }));
        let mut flows = [Flow::messages((0, client), (1, server), 1000, 30)];
        carry_until(&mut world, &mut flows, LOSES_FOR / 2, |_, _| false);
        let told = waits(&world, client);
        assert_eq!(told.waits_for, if loses { Limit::Loss } else { Limit::Program });
        carry(&mut world, &mut flows, S);
        wait_for(&mut world, S, "acknowledged", |world| world.hosts[0].readiness(client).unwrap().drained);
        let (taken, told) = (world.now - begin, waits(&world, client));
        assert_eq!(told.waits_for, Limit::Program);
        // From the first request, a round trip after the loss, until it is repaired.
        let loss_ns = if loses { taken - 40 * US } else { 0 };
        assert_eq!(told.waited.loss_ns, loss_ns, "{told:?} of {taken}");
    }
}
