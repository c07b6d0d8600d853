//! Peers that claim to have sent what they have not, and what others have of the gate's budget beside them.

use crate::world::*;
use ropeway_proto::{ChannelId, Config};
use ropeway_wire::{Backlog, Header, Type};

#[test]
fn what_was_asked_for_in_vain_of_who_claims_to_have_sent_it_takes_nothing_from_others() {
    // The last one claims so many packets beyond what it has sent, or all do.
    for (claimers, claimed) in [(1, 16_000u32), (IDLERS, 16_000), (IDLERS, 60), (IDLERS, 1)] {
        let (mut world, mut flows, mut said) = idlers(IDLERS, 20 * US, 1_000_000_000);
        let missing = |world: &World, flow: &Flow| {
            let (host, channel): (usize, ChannelId) = flow.to;
            world.hosts[host].statistics(world.clock(host), channel).unwrap().association.unwrap().missing_packets
        };
        for header in &mut said[IDLERS - claimers..] {
            header.number = header.number.wrapping_add(claimed);
        }
        flows[IDLERS].total = 1 << 30;
        speak(&mut world, &mut flows, &said, true, Type::State, 400 * MS);
        let most = flows[IDLERS - claimers..IDLERS].iter().map(|flow| missing(&world, flow)).min().unwrap();
        assert!(most >= claimed, "{most} are missing");
        let (received, begin) = (flows[IDLERS].received, world.now);
        speak(&mut world, &mut flows, &said, true, Type::State, 500 * MS);
        let line = payload_bytes() / 1518.0 / 8.0;
        let share = (flows[IDLERS].received - received) as f64 / (world.now - begin) as f64 / line;
        println!("{claimers} claim {claimed} packets each: {share:.3} of the line for another one");
        assert!(share > 0.95, "{claimers} claim {claimed}: {share:.3} of the line");
    }
}

#[test]
fn who_claims_gaps_and_fills_one_now_and_then_leaves_most_of_the_line_to_others() {
    // So many say that so many packets beyond what they have sent are missing, and fill so many of these at a time, the first of them after so long; so many others want some, and use nothing.
    for (claimers, claimed, filled, after_ms, idle) in
        [(2, 16_000, 1, 70, 0), (8, 16_000, 1, 70, 0), (8, 16, 8, 76, 0), (8, 16, 16, 76, 0), (8, 16, 16, 76, 16)]
    {
        let what = format!("{claimers} claim {claimed} packets and fill {filled} in {after_ms} ms, {idle} use nothing");
        let (honest, members) = (4, claimers + idle);
        let (mut world, mut flows, mut said) = idlers(members + honest - 1, 20 * US, 1_000_000_000);
        flows.last_mut().unwrap().total = 1 << 30;
        said.truncate(members);
        world.stopped.retain(|&host| host <= members);
        let says = |world: &mut World, sender: usize, moment: &Header, bytes| {
            let backlog = Backlog::from_bytes(bytes);
            say(world, sender + 1, Header { kind: Type::State, length: 0, backlog, ..*moment }, &[]);
        };
        // Those who use nothing give back what they had, and what they are granted then, before others claim something, is taken back.
        for step in 0..5 * idle {
            for (sender, moment) in said.iter().enumerate() {
                says(&mut world, sender, moment, if sender < claimers || step == 0 { 0 } else { 1 << 20 });
            }
            carry_until(&mut world, &mut flows[members..], 10 * MS, |_, _| false);
        }
        let mut missing: Vec<_> = said[..claimers].iter().map(|header| header.number).collect();
        let claim = |said: &mut [Header], missing: &[u32]| {
            let claims = said.iter_mut().zip(missing);
            claims.for_each(|(header, missing)| header.number = missing.wrapping_add(claimed));
        };
        claim(&mut said, &missing);
        let (received, begin) = (flows.iter().map(|flow| flow.received).collect::<Vec<_>>(), world.now);
        let mut filled_at = begin;
        while world.now < begin + S {
            // Who is silent is not expected to send it.
            for (sender, moment) in said.iter().enumerate() {
                says(&mut world, sender, moment, if sender < claimers { 0 } else { 1 << 20 });
            }
            if world.now - filled_at >= after_ms * MS {
                filled_at = world.now;
                for (sender, moment) in said[..claimers].iter().enumerate() {
                    for _ in 0..filled {
                        let number = missing[sender];
                        let data = Header { kind: Type::Data, length: 1, number, back: 1, ..*moment };
                        say(&mut world, sender + 1, data, &[7]);
                        missing[sender] = number.wrapping_add(1);
                    }
                }
                claim(&mut said, &missing);
            }
            carry_until(&mut world, &mut flows[members..], 2 * MS, |_, _| false);
        }
        let line = payload_bytes() / 1518.0 / 8.0;
        let taken = (world.now - begin) as f64;
        let shares: Vec<_> =
            flows.iter().zip(received).map(|(flow, had)| (flow.received - had) as f64 / taken / line).collect();
        let (of_all, least) = (shares.iter().sum::<f64>(), shares[members..].iter().fold(1.0, |a: f64, &b| a.min(b)));
        println!("{what}: {of_all:.3} of the line for others, {least:.3} for the last of them");
        // Where others hold what they do not use, too, a turn at a time is left, of a budget that is cut for what the claimers call lost; it was 0.07 when none was.
        let enough = if idle > 0 { 0.1 } else { 0.9 };
        assert!(of_all > enough && least > enough / honest as f64, "{what}: {shares:.3?}");
    }
}

#[test]
fn who_lets_more_wait_for_a_gap_than_is_kept_loses_what_it_was_granted_like_others() {
    const MEMBERS: usize = 9;
    const BYTES: usize = 32;
    // With the room around it.
    const MEMORY_BYTES: u32 = BYTES as u32 + 51;
    let config = Config { receive_buffer_bytes: 32 << 10, ..Config::default() };
    let (mut world, mut flows, mut said) = idlers_with(&config, MEMBERS, 20 * US, 1_000_000_000);
    flows[MEMBERS].total = 1 << 30;
    let says = |world: &mut World, sender: usize, moment: &Header, kind, bytes: usize| {
        let backlog = Backlog::from_bytes(1 << 20);
        let header = Header { kind, length: bytes as u16, back: 1, backlog, ..*moment };
        say(world, sender + 1, header, &[7; BYTES][..bytes]);
    };
    // All but the first, as much as may wait for that.
    let waits = config.receive_buffer_bytes / MEMORY_BYTES;
    for place in 0..=waits {
        for (sender, moment) in said.iter_mut().enumerate() {
            moment.number = moment.number.wrapping_add(1);
            if place < waits {
                says(&mut world, sender, moment, Type::Data, BYTES);
            }
        }
        carry_until(&mut world, &mut flows[MEMBERS..], 20 * US, |_, _| false);
    }
    let dropped = world.hosts[0].counters().dropped_memory;
    let (received, begin) = (flows[MEMBERS].received, world.now);
    for ms in 0..1000 {
        for (sender, moment) in said.iter().enumerate() {
            says(&mut world, sender, moment, Type::Data, BYTES);
            if ms % 10 == 0 {
                says(&mut world, sender, moment, Type::Pin, 0);
            }
        }
        carry_until(&mut world, &mut flows[MEMBERS..], MS, |_, _| false);
    }
    let dropped = world.hosts[0].counters().dropped_memory - dropped;
    assert!(dropped >= 900 * MEMBERS as u64, "{dropped}");
    // A packet at a time is granted to who has used none of its last grant.
    let held: Vec<_> = flows[..MEMBERS].iter().map(|flow| granted(&world, flow)).collect();
    assert!(held.iter().all(|&packets| packets <= 1), "{held:?}");
    let line = payload_bytes() / 1518.0 / 8.0;
    let share = (flows[MEMBERS].received - received) as f64 / (world.now - begin) as f64 / line;
    println!("{share:.3} of the line for another one");
    assert!(share > 0.9, "{share:.3} of the line");
}
