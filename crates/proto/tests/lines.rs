//! Lines that are not those of a rack with 1 Gbit/s: long ones and fast ones, filled without being told what they are.

mod world;

use ropeway_proto::{Config, Mode};
use world::*;

/// What may fly over a line of 1 Gbit/s that is not long: 3/4 of the usual port.
const SLOW_BUDGET: u64 = 96 << 10;

/// Room for what a long or fast line holds.
fn config() -> Config {
    Config { send_buffer_bytes: 8 << 20, receive_buffer_bytes: 8 << 20, ..Config::default() }
}

/// Goodput of `senders` after `warm_up`, of the payload rate, drops at the receiver's port, and the budget in the end.
fn goodput(net: Net, senders: usize, warm_up: u64, time: u64) -> (f64, u64, u64) {
    let line = net.rate as f64 * PAYLOAD_BYTES / 1518.0;
    let mut world = World::new(senders + 1, net, &config(), 1);
    let mut flows: Vec<_> = (1..=senders)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), 1 << 40)
        })
        .collect();
    carry_until(&mut world, &mut flows, warm_up, |_, _| false);
    let received = |flows: &[Flow]| flows.iter().map(|flow| flow.received).sum::<u64>();
    let (before, begin) = (received(&flows), world.now);
    carry_until(&mut world, &mut flows, time, |_, _| false);
    let rate = (received(&flows) - before) as f64 * 8.0 * 1e9 / (world.now - begin) as f64;
    let (drops, budget) = (world.drops(0), world.hosts[0].gate().budget_bytes());
    println!("{:.4} of the payload rate, {drops} drops, budget {budget}", rate / line);
    (rate / line, drops, budget)
}

#[test]
fn a_long_line_is_filled_although_its_port_has_little_buffer() {
    let net = || Net { rate: 1_000_000_000, delay_ns: 2 * MS, ..Net::default() };
    for senders in [1, 8] {
        let (share, drops, _) = goodput(net(), senders, 4 * S, S);
        assert!(share > 0.95, "{senders} senders: {share}");
        assert_eq!(drops, 0, "{senders} senders");
    }
}

#[test]
fn a_fast_line_is_filled_and_its_larger_port_not_overrun() {
    let net = || Net { rate: 10_000_000_000, port_buffer: 1 << 20, ..Net::default() };
    for senders in [1, 16] {
        let (share, drops, budget) = goodput(net(), senders, 200 * MS, 50 * MS);
        assert!(share > 0.95, "{senders} senders: {share}");
        assert_eq!(drops, 0, "{senders} senders");
        assert!(budget > 4 * SLOW_BUDGET, "{senders} senders: {budget}");
    }
}

#[test]
fn a_fast_line_with_the_port_of_a_slow_one_is_found_out() {
    let net = Net { rate: 10_000_000_000, ..Net::default() };
    let (share, drops, budget) = goodput(net, 8, 200 * MS, 50 * MS);
    assert!(share > 0.9, "{share}");
    assert!(drops > 0 && budget < 2 * SLOW_BUDGET, "{drops} drops, {budget}");
}

#[test]
fn stray_losses_and_late_packets_make_no_line_slow() {
    let net = Net { rate: 10_000_000_000, port_buffer: 1 << 20, loss_ppm: 50, reordering_ppm: 500, ..Net::default() };
    let (share, _, budget) = goodput(net, 4, 200 * MS, 50 * MS);
    assert!(share > 0.9, "{share}");
    assert!(budget > 4 * SLOW_BUDGET, "{budget}");
}

#[test]
fn a_long_line_is_known_after_a_pause() {
    let net = Net { rate: 1_000_000_000, delay_ns: 2 * MS, ..Net::default() };
    let mut world = World::new(2, net, &config(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let first = stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    pass(&mut world, S);
    let second = stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
    println!("{first}, and after a pause {second} ns, {} drops", world.drops(1));
    assert!(second < first, "{first} {second}");
    assert_eq!(world.drops(1), 0);
}
