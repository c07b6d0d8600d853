//! Many senders, one receiver, one port of 128 KiB at 1 Gbit/s: the reason why the receiver drives ([2:3.2.6]).

use crate::world::*;
use ropeway_proto::config::{GateMode, Order};
use ropeway_proto::{Config, Mode};

const LINE: u64 = 1_000_000_000;
/// Of the line, what is payload: 1454.5 of 1472 + 46 bytes, or a little less with a key.
fn payload_share() -> f64 {
    payload_bytes() / FRAME_BYTES as f64
}
/// A packet of usual size on the medium.
const FRAME_BYTES: u64 = 1518;

fn net() -> Net {
    Net { rate: LINE, ..Net::default() }
}

fn share(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 8.0 * 1e9 / ns as f64 / LINE as f64 / payload_share()
}

/// `senders` hosts with a channel each to host 0.
fn fan_in(senders: usize, config: &Config, mode: Mode, seed: u64) -> (World, Vec<Flow>) {
    let mut world = World::new(senders + 1, net(), config, seed);
    let flows = (1..=senders)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, mode);
            Flow::stream((from, client), (0, server), 0)
        })
        .collect();
    (world, flows)
}

with_and_without_a_key!(a_hundred_and_twenty_eight_senders_fill_the_line_fairly_without_a_drop);
fn a_hundred_and_twenty_eight_senders_fill_the_line_fairly_without_a_drop() {
    for order in [Order::Fifo, Order::Fair] {
        let config = Config { order, ..Config::default() };
        let (mut world, mut flows) = fan_in(128, &config, Mode::Stream, 1);
        flows.iter_mut().for_each(|flow| flow.total = 1 << 30);
        // All have been silent for long, so the first flights are one packet each. Who is heard first is granted what is not kept free for the others, half of what the port
        // queues (two thirds of three quarters), before any of them is heard. What is too much of that is lost, and nothing else.
        pass(&mut world, 50 * MS);
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        let (drops, before) = (world.drops(0), flows.iter().map(|flow| flow.received).collect::<Vec<_>>());
        let begin = world.now;
        carry_until(&mut world, &mut flows, 60 * MS, |_, _| false);
        let shares: Vec<_> = flows.iter().zip(&before).map(|(flow, before)| flow.received - before).collect();
        let goodput = share(shares.iter().sum(), world.now - begin);
        println!(
            "{order:?}: {:.4} of the payload rate, Jain {:.4}, {} + {} drops, {:?}",
            goodput,
            jain(&shares),
            drops,
            world.drops(0) - drops,
            world.hosts[0].counters().gate
        );
        let most = 128 - world.net.port_buffer / 2 / FRAME_BYTES;
        assert!(drops > 0 && drops <= most, "{drops} of the first flight, at most {most}");
        assert_eq!(world.drops(0), drops, "none after the first flight");
        assert!(goodput > 0.97, "{goodput}");
        assert!(jain(&shares) >= 0.95, "{shares:?}");
    }
}

with_and_without_a_key!(thirty_two_idle_peers_that_start_at_once_lose_nothing);
fn thirty_two_idle_peers_that_start_at_once_lose_nothing() {
    let (mut world, mut flows) = fan_in(32, &Config::default(), Mode::Stream, 1);
    pass(&mut world, 100 * MS);
    flows.iter_mut().for_each(|flow| flow.total = 100_000);
    let taken = carry(&mut world, &mut flows, S);
    println!("{} drops, {:.4} of the payload rate", world.drops(0), share(3_200_000, taken));
    assert_eq!(world.drops(0), 0);
    assert!(share(3_200_000, taken) > 0.95);
}

/// Rounds of document 2's one-many pattern: all send a message at once, and when all have come, again.
fn rounds(senders: usize, message_bytes: usize, rounds: u64, config: &Config) -> (f64, u64, f64, World) {
    let (mut world, mut flows) = fan_in(senders, config, Mode::Messages, 3);
    let mut times = Vec::new();
    let mut drops = 0;
    for round in 0..rounds {
        for flow in &mut flows {
            flow.message_bytes = message_bytes;
            flow.total += message_bytes as u64;
        }
        times.push(carry(&mut world, &mut flows, 5 * S));
        if round == 0 {
            drops = world.drops(0);
        }
    }
    let sum: u64 = times[1..].iter().sum();
    let goodput = share((senders * message_bytes) as u64 * (rounds - 1), sum);
    times.sort_unstable();
    let ideal = (senders * message_bytes) as f64 * 8.0 / payload_share();
    let worst = *times.last().unwrap() as f64 / ideal;
    let later = world.drops(0) - drops;
    (goodput, later, worst, world)
}

with_and_without_a_key!(incast_of_all_sizes_keeps_the_line_full);
fn incast_of_all_sizes_keeps_the_line_full() {
    println!("senders  message  of the payload rate  drops after the first  slowest / ideal");
    for senders in [2, 8, 32] {
        for message_bytes in [1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let total = senders * message_bytes;
            if total > 8 << 20 {
                continue;
            }
            let (goodput, drops, worst, _) = rounds(senders, message_bytes, 4, &Config::default());
            println!("{senders:7}  {message_bytes:7}  {goodput:19.4}  {drops:21}  {worst:15.3}");
            assert_eq!(drops, 0, "{senders} x {message_bytes}");
            // A round trip and the wait for its answer cost what they cost: below 256 KiB altogether that is more than 3 %.
            if total >= 256 << 10 {
                assert!(goodput > 0.97, "{senders} x {message_bytes}: {goodput}");
            }
        }
    }
}

/// Document 2's figure 20: each host sends the next message when the one before has come and it has been woken for that. What the messages of each took, shortest first, as
/// times of one that shares the line equally with all others.
fn in_turn(message_bytes: &[usize], count: usize) -> Vec<Vec<f64>> {
    let (mut world, mut flows) = fan_in(message_bytes.len(), &Config::default(), Mode::Messages, 1);
    let mut began_at = vec![0; flows.len()];
    let mut begins_at: Vec<_> = flows.iter().map(|_| Some(world.now + world.random() % (200 * US))).collect();
    let mut took = vec![Vec::new(); flows.len()];
    while took.iter().any(|took| took.len() < count) {
        for (index, flow) in flows.iter_mut().enumerate() {
            flow.message_bytes = message_bytes[index];
            if begins_at[index].take_if(|at| *at <= world.now).is_some() {
                began_at[index] = world.now;
                flow.total += flow.message_bytes as u64;
            }
            if flow.done_at.len() > took[index].len() {
                let ideal = (message_bytes[index] * message_bytes.len()) as f64 * 8.0 / payload_share();
                took[index].push((world.now - began_at[index]) as f64 / ideal);
                begins_at[index] = Some(world.now + 10 * US + world.random() % (40 * US));
            }
        }
        let next = begins_at.iter().flatten().min().map_or(S, |at| at.saturating_sub(world.now));
        carry_until(&mut world, &mut flows, next, |_, flows| {
            flows.iter().zip(&took).any(|(flow, took)| flow.done_at.len() > took.len())
        });
    }
    assert_eq!(world.drops(0), 0);
    took.iter_mut().for_each(|took| took.sort_by(f64::total_cmp));
    took
}

with_and_without_a_key!(messages_of_few_that_share_a_line_take_as_long_as_each_other);
fn messages_of_few_that_share_a_line_take_as_long_as_each_other() {
    for (senders, message_bytes) in [(2, 64 << 10), (3, 64 << 10), (2, 256 << 10)] {
        let took = in_turn(&vec![message_bytes; senders], 100);
        let slow: Vec<_> = took.iter().map(|took| took[took.len() * 98 / 100]).collect();
        println!("{senders} x {message_bytes}: {slow:.3?}");
        assert!(slow.iter().all(|slow| *slow <= 1.08), "{senders} x {message_bytes}: {slow:?}");
    }
}

with_and_without_a_key!(messages_beside_a_long_one_have_nearly_their_share);
fn messages_beside_a_long_one_have_nearly_their_share() {
    let took = in_turn(&[64 << 10, 4 << 20], 10);
    let medians: Vec<_> = took.iter().map(|took| took[took.len() / 2]).collect();
    println!("{medians:.3?}");
    assert!(medians[0] < 1.4 && medians[1] < 1.05, "{medians:?}");
}

with_and_without_a_key!(the_scheme_of_document_2_works_beside_it);
fn the_scheme_of_document_2_works_beside_it() {
    let esp = Config {
        gate_mode: GateMode::Esp,
        window_packets: 21,
        packets_to_ack: 10,
        first_flight_packets: 10,
        ..Config::default()
    };
    println!("senders  grants: share, drops, slowest   esp: share, drops, slowest");
    for senders in [2, 8, 32] {
        let message_bytes = 256 << 10;
        let (grants, grants_drops, grants_worst, _) = rounds(senders, message_bytes, 3, &Config::default());
        let (share, drops, worst, world) = rounds(senders, message_bytes, 3, &esp);
        println!("{senders:7}  {grants:.4} {grants_drops:4} {grants_worst:7.3}   {share:.4} {drops:4} {worst:7.3}");
        assert!(world.hosts[0].counters().gate.acks_held > 0, "acknowledgments were held back");
        assert_eq!(world.hosts[0].counters().gate.grants, 0);
        assert!(share > 0.5, "{senders}: {share}");
        assert!(grants >= share * 0.99, "{senders}: {grants} with grants, {share} with held acknowledgments");
    }
}

with_and_without_a_key!(under_the_scheme_of_document_2_who_has_stopped_holds_up_nobody);
fn under_the_scheme_of_document_2_who_has_stopped_holds_up_nobody() {
    let esp = Config { gate_mode: GateMode::Esp, ..Config::default() };
    let (mut world, mut flows) = fan_in(3, &esp, Mode::Stream, 1);
    flows.iter_mut().for_each(|flow| flow.total = 1 << 30);
    carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
    world.stopped.insert(1);
    flows[1..].iter_mut().for_each(|flow| flow.total = flow.received + (4 << 20));
    let taken = carry(&mut world, &mut flows[1..], S);
    println!("{:.4} of the payload rate", share(8 << 20, taken));
    assert!(share(8 << 20, taken) > 0.5);
}

with_and_without_a_key!(one_sender_under_the_scheme_of_document_2_saturates_the_line);
fn one_sender_under_the_scheme_of_document_2_saturates_the_line() {
    let esp = Config { gate_mode: GateMode::Esp, window_packets: 21, packets_to_ack: 10, ..Config::default() };
    let mut world = World::new(2, net(), &esp, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let taken = stream(&mut world, (0, client), (1, server), 10_000_000, 5 * S);
    println!("{:.4} of the payload rate", share(10_000_000, taken));
    assert_eq!(world.drops(1), 0);
    assert!(share(10_000_000, taken) > 0.95);
}

with_and_without_a_key!(the_scheme_of_document_2_has_its_window_without_being_told);
fn the_scheme_of_document_2_has_its_window_without_being_told() {
    let esp = Config { gate_mode: GateMode::Esp, ..Config::default() };
    let mut world = World::new(2, net(), &esp, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let taken = stream(&mut world, (0, client), (1, server), 10_000_000, 5 * S);
    assert!(share(10_000_000, taken) > 0.9, "{}", share(10_000_000, taken));
}

with_and_without_a_key!(a_port_smaller_than_configured_is_found_out);
fn a_port_smaller_than_configured_is_found_out() {
    // Half of what the receiver believes: it loses, learns, and goes on near the line's rate.
    let mut world = World::new(9, Net { port_buffer: 48 << 10, ..net() }, &Config::default(), 1);
    let mut flows: Vec<_> = (1..=8)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), 1 << 30)
        })
        .collect();
    carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
    let before: u64 = flows.iter().map(|flow| flow.received).sum();
    let begin = world.now;
    carry_until(&mut world, &mut flows, 200 * MS, |_, _| false);
    let received = flows.iter().map(|flow| flow.received).sum::<u64>() - before;
    let estimate = world.hosts[0].port_buffer_estimate_bytes();
    println!("{:.4}, {} drops, estimate {estimate:?}", share(received, world.now - begin), world.drops(0));
    assert!(share(received, world.now - begin) > 0.97);
    // Also what nothing came behind was lost, and must count: else every grant ends in the full port.
    let sent: u64 = world.hosts[1..].iter().map(|host| host.counters().packets_sent).sum();
    assert!(world.drops(0) < sent / 50, "{} drops of {sent}", world.drops(0));
    assert!(world.hosts[0].counters().gate.cuts > 0);
    assert!(estimate.is_some_and(|bytes| (24 << 10..72 << 10).contains(&bytes)), "{estimate:?}");
}

with_and_without_a_key!(a_port_that_stands_still_for_a_while_is_not_sent_everything_twice);
fn a_port_that_stands_still_for_a_while_is_not_sent_everything_twice() {
    for senders in [1, 2, 8, 32] {
        let (mut world, mut flows) = fan_in(senders, &Config::default(), Mode::Stream, 1);
        flows.iter_mut().for_each(|flow| flow.total = 1 << 30);
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        for pause_ms in 1..=16 {
            let resent = |world: &World| world.hosts[1..].iter().map(|host| host.counters().resent).sum::<u64>();
            let before = (world.drops(0), resent(&world));
            world.pause_port(0, pause_ms * MS);
            carry_until(&mut world, &mut flows, (pause_ms + 4) * MS, |_, _| false);
            let (drops, again) = (world.drops(0) - before.0, resent(&world) - before.1);
            println!("{senders} senders, {pause_ms} ms: {again} packets sent again, {drops} dropped");
            // Of each that holds a grant the first packet, whenever its timer runs out: it doubles. The port has room for 22 beside the budget, of which those who wait may be
            // granted 16 against suspects.
            let held = senders.min(8) as u64;
            assert!(
                again <= held * u64::from(pause_ms.ilog2() + 1) + drops,
                "{senders} senders, {pause_ms} ms: {again}"
            );
            assert!(drops == 0 || senders > 8 && drops <= held, "{senders} senders, {pause_ms} ms: {drops}");
        }
    }
}

with_and_without_a_key!(what_stands_in_a_port_for_longer_than_a_lease_is_not_granted_to_others_meanwhile);
fn what_stands_in_a_port_for_longer_than_a_lease_is_not_granted_to_others_meanwhile() {
    for senders in [2, 4, 8, 32] {
        let (mut world, mut flows) = fan_in(senders, &Config::default(), Mode::Stream, 1);
        flows.iter_mut().for_each(|flow| flow.total = 1 << 30);
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        for pause_ms in [22, 30, 40, 55, 70, 85, 100, 125, 150, 175, 200] {
            let resent = |world: &World| world.hosts[1..].iter().map(|host| host.counters().resent).sum::<u64>();
            let counts = |world: &World| (world.drops(0), world.drops_of_new(0), resent(world));
            let before = counts(&world);
            world.pause_port(0, pause_ms * MS);
            carry_until(&mut world, &mut flows, (pause_ms + 10) * MS, |_, _| false);
            let received: u64 = flows.iter().map(|flow| flow.received).sum();
            let begin = world.now;
            carry_until(&mut world, &mut flows, 10 * MS, |_, _| false);
            let goodput = share(flows.iter().map(|flow| flow.received).sum::<u64>() - received, world.now - begin);
            let after = counts(&world);
            let (drops, of_new, again) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
            println!(
                "{senders} senders, {pause_ms} ms: {again} packets sent again, {drops} dropped, {of_new} of them new, then {goodput:.3} of the line"
            );
            // What those who wait ask meanwhile, and copies, have no room beside what was granted against suspects.
            assert!(drops == 0 || senders > 8, "{senders} senders, {pause_ms} ms: {drops}");
            assert_eq!(of_new, 0, "{senders} senders, {pause_ms} ms");
            assert!(goodput > 0.97, "{senders} senders, {pause_ms} ms: {goodput}");
        }
    }
}

with_and_without_a_key!(a_port_that_stands_still_while_it_is_sent_what_was_lost_is_not_sent_that_twice);
fn a_port_that_stands_still_while_it_is_sent_what_was_lost_is_not_sent_that_twice() {
    for pause_ms in [0, 2, 8] {
        let (mut world, mut flows) = fan_in(1, &Config::default(), Mode::Stream, 1);
        flows[0].total = 1 << 30;
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        let (drops, resent) = (world.drops(0), world.hosts[1].counters().resent);
        // All that is granted is lost, and when it has been asked for and sent again, the port stands still.
        world.filter =
            Some(Box::new(|_, from, _, bytes| from != 1 || bytes[1] & 0x20 != 0 || !super::loss::is_data(bytes)));
        carry_until(&mut world, &mut flows, 20 * MS, |world, _| world.hosts[1].counters().resent > resent + 2);
        world.filter = None;
        world.pause_port(0, pause_ms * MS);
        carry_until(&mut world, &mut flows, 50 * MS, |_, _| false);
        let again = world.hosts[1].counters().resent - resent;
        println!("{pause_ms} ms: {again} packets sent again, {} dropped", world.drops(0) - drops);
        assert!((60..=70).contains(&again), "{pause_ms} ms: {again}");
        assert_eq!(world.drops(0), drops, "{pause_ms} ms");
    }
}

/// A long transfer that is under way, and others that begin at once: when each of them was through after that, the long one first.
fn beside_a_long_one(order: Order, shorter: &[u64]) -> Vec<u64> {
    let (mut world, mut flows) = fan_in(shorter.len() + 1, &Config { order, ..Config::default() }, Mode::Stream, 1);
    flows[0].total = 6_000_000;
    carry_until(&mut world, &mut flows, 5 * MS, |_, _| false);
    flows[1..].iter_mut().zip(shorter).for_each(|(flow, &bytes)| flow.total = bytes);
    let begin = world.now;
    carry(&mut world, &mut flows, S);
    flows.iter().map(|flow| flow.done_at.last().unwrap() - begin).collect()
}

with_and_without_a_key!(under_srpt_the_shorter_transfer_ends_first);
fn under_srpt_the_shorter_transfer_ends_first() {
    // Handed over in an order that is not theirs.
    let shorter = [800_000, 100_000, 400_000, 200_000];
    let (srpt, fifo) = (beside_a_long_one(Order::Srpt, &shorter), beside_a_long_one(Order::Fifo, &shorter));
    let mut before = 0;
    for at in [2, 4, 3, 1] {
        before += shorter[at - 1];
        let alone = before as f64 * 8.0 / payload_share();
        // Every eighth quantum goes to who has waited longest; and what was granted before all of them began is in front of them.
        assert!((srpt[at] as f64) < alone * 8.0 / 7.0 + 2.5e6, "{at}: {srpt:?}");
        // In the order of asking a transfer saves its last turn.
        assert!(srpt[at] * 6 / 5 <= fifo[at], "{at}: {srpt:?}, in the order of asking {fifo:?}");
    }
    assert!(srpt[0] <= fifo[0] * 101 / 100, "the long one is through when it would be anyway: {srpt:?}, {fifo:?}");
}

with_and_without_a_key!(under_srpt_a_long_transfer_is_not_starved_by_short_ones_that_never_end);
fn under_srpt_a_long_transfer_is_not_starved_by_short_ones_that_never_end() {
    let config = Config { order: Order::Srpt, ..Config::default() };
    let (mut world, mut flows) = fan_in(9, &config, Mode::Stream, 1);
    flows[0].total = 1 << 30;
    carry_until(&mut world, &mut flows, 5 * MS, |_, _| false);
    let before = flows[0].received;
    let begin = world.now;
    while world.now < begin + 100 * MS {
        let idle = flows.iter_mut().skip(1).filter(|flow| flow.is_done());
        idle.for_each(|flow| flow.total += 50_000);
        carry_until(&mut world, &mut flows, 100 * MS, |_, flows| flows[1..].iter().any(Flow::is_done));
    }
    // An eighth of the quanta, which it shares with those of the others that have waited longest.
    let (of_long, taken) = (flows[0].received - before, world.now - begin);
    assert!(share(of_long, taken) > 0.06, "{}", share(of_long, taken));
    let of_short: u64 = flows[1..].iter().map(|flow| flow.received).sum();
    assert!(share(of_long + of_short, taken) > 0.95, "and the line is full: {}", share(of_long + of_short, taken));
}
