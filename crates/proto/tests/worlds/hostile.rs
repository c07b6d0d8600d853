//! Packets from a peer that sends anything: nothing panics, memory stays bounded, every refusal is counted. The body is the fuzz target `endpoint`.

#[path = "../../../../fuzz/src/endpoint.rs"]
mod endpoint;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use crate::world::*;
use proptest::prelude::*;
use ropeway_proto::{Config, Counters, ErrorCode, Mode};
use ropeway_wire::{Backlog, Header, Packet, Type};

/// The flag of repetitions.
const RTX: u8 = 0x20;

#[test]
fn every_seed_of_endpoint_passes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/endpoint");
    let (mut seeds, mut counted) = (0, Counted::default());
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        let seed = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        counted.add(&endpoint::endpoint(&seed));
        for at in (0..seed.len()).step_by(1 + seed.len() / 64) {
            for flip in [0x01, 0x80, 0xFF] {
                let mut changed = seed.clone();
                changed[at] ^= flip;
                counted.add(&endpoint::endpoint(&changed));
            }
            endpoint::endpoint(&seed[..at]);
        }
        seeds += 1;
    }
    assert!(seeds >= 8, "only {seeds} seeds in {}", dir.display());
    println!("{counted:?}");
    let Counted {
        malformed,
        window,
        channel,
        duplicate,
        violations,
        refused,
        resent,
        requests,
        accepted,
        ended,
        joined,
        bad_joins,
        in_runs,
        grants,
        exhausted,
        suspects,
        cuts,
        acks_held,
        timeouts,
        link_full,
    } = counted;
    for (what, count) in [
        ("malformed", malformed),
        ("window", window),
        ("channel", channel),
        ("duplicate", duplicate),
        ("violations", violations),
        ("refused", refused),
        ("resent", resent),
        ("requests", requests),
        ("accepted", accepted),
        ("reset", ended),
        ("a join", joined),
        ("a bad join", bad_joins),
        ("runs", in_runs),
        ("grants", grants),
        ("a budget that is exhausted", exhausted),
        ("suspects", suspects),
        ("cuts of the budget", cuts),
        ("acknowledgments held back", acks_held),
        ("the end of who is silent", timeouts),
        ("a link that takes nothing", link_full),
    ] {
        assert!(count > 0, "no script came to {what}: the seeds do not reach what they are for");
    }
}

/// What the scripts have made endpoints do.
#[derive(Debug, Default)]
struct Counted {
    malformed: u64,
    window: u64,
    channel: u64,
    duplicate: u64,
    violations: u64,
    refused: u64,
    resent: u64,
    requests: u64,
    accepted: u64,
    ended: u64,
    joined: u64,
    bad_joins: u64,
    in_runs: u64,
    grants: u64,
    exhausted: u64,
    suspects: u64,
    cuts: u64,
    acks_held: u64,
    timeouts: u64,
    link_full: u64,
}

impl Counted {
    fn add(&mut self, counters: &Counters) {
        self.malformed += counters.dropped_malformed.iter().sum::<u64>();
        self.window += counters.dropped_window;
        self.channel += counters.dropped_channel;
        self.duplicate += counters.dropped_duplicate;
        self.violations += counters.violations;
        self.refused += counters.channels_refused;
        self.resent += counters.resent;
        self.requests += counters.requests_sent;
        self.accepted += counters.channels_accepted;
        self.joined += counters.paths_joined;
        self.bad_joins += counters.dropped_join;
        self.in_runs += counters.packets_in_runs;
        self.grants += counters.gate.grants;
        self.exhausted += counters.gate.exhausted;
        self.suspects += counters.gate.suspects;
        self.cuts += counters.gate.cuts;
        self.acks_held += counters.gate.acks_held;
        self.timeouts += counters.timeouts;
        self.link_full += counters.associations_ended[usize::from(u16::from(ErrorCode::LinkFull))];
        // Code CLOSED is how each script ends.
        self.ended += counters.associations_ended[1..].iter().sum::<u64>();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Replay with `PROPTEST_CASES=1 cargo test -p ropeway-proto --test worlds hostile` and the seed that the failure prints.
    #[test]
    fn any_script_of_a_hostile_peer_passes(script in prop::collection::vec(any::<u8>(), 0..600)) {
        endpoint::endpoint(&script);
    }

    #[test]
    fn any_bytes_pass(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)) {
        endpoint::raw(packets.iter().map(Vec::as_slice));
    }
}

#[test]
fn a_repetition_that_nobody_asked_for_is_no_loss() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1_000_000, S);
    // A peer that says so of all it sends.
    let marked = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&marked);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        if from == 0 && DATA.contains(&bytes[0]) && bytes[1] & RTX == 0 {
            let mut bytes = bytes.to_vec();
            bytes[1] |= RTX;
            out.borrow_mut().push(bytes);
            return false;
        }
        true
    }));
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, client, &[7; 100_000]), Ok(100_000));
    for _ in 0..200 {
        let end = world.now + 10 * US;
        world.run(end, |_| false);
        marked.take().iter().for_each(|bytes| world.inject(0, 1, bytes));
    }
    let counters = world.hosts[1].counters();
    assert!(counters.payload_received_bytes >= 1_100_000, "{counters:?}");
    assert_eq!((counters.lost, counters.gate.cuts), (0, 0));
}

#[test]
fn who_speaks_and_uses_nothing_of_its_grant_does_not_keep_it() {
    for (delay_ns, rate_mbit, kind, in_turn) in [
        (20 * US, 1000, Type::State, false),
        (20 * US, 1000, Type::State, true),
        (20 * US, 1000, Type::Pin, false),
        (20 * US, 1000, Type::Control, true),
        (20 * US, 40, Type::State, false),
        (2 * MS, 1000, Type::State, true),
    ] {
        let what = format!("{kind:?}, {} us away, {rate_mbit} Mbit/s, in turn: {in_turn}", delay_ns / US);
        let (mut world, mut flows, said) = idlers(IDLERS, delay_ns, rate_mbit * 1_000_000);
        let held = |world: &World, flows: &[Flow]| flows[..IDLERS].iter().map(|flow| granted(world, flow)).sum::<u64>();
        let before = held(&world, &flows);
        assert!(before > 30, "{what}: {before} packets");
        // They go back after ten leases, or 250 ms where all are silent at times, as it may be the port that stands still.
        flows[IDLERS].total = 1 << 30;
        let begin = world.now;
        while flows[..IDLERS].iter().any(|flow| granted(&world, flow) > 1) {
            // A line over which next to nothing comes looks like a slow one, on which all that is granted takes 5 s at most.
            assert!(world.now < begin + if rate_mbit < 1000 { 6 * S } else { S }, "{what}: {}", held(&world, &flows));
            speak(&mut world, &mut flows, &said, in_turn, kind, SPEAKS_NS);
        }
        println!("{what}: after {} ms", (world.now - begin) / MS);
        // Who wants some is tried again, with a packet.
        for _ in 0..20 {
            assert!(flows[..IDLERS].iter().all(|flow| granted(&world, flow) <= 1), "{what}: {}", held(&world, &flows));
            speak(&mut world, &mut flows, &said, in_turn, kind, SPEAKS_NS);
        }
        let (received, begin) = (flows[IDLERS].received, world.now);
        speak(&mut world, &mut flows, &said, in_turn, kind, 500 * MS);
        let line = payload_bytes() / 1518.0 * rate_mbit as f64 / 8000.0;
        let share = (flows[IDLERS].received - received) as f64 / (world.now - begin) as f64 / line;
        println!("{what}: {before} packets held, {share:.3} of the line for another one after that");
        // A long line is found out anew.
        assert!(share > if delay_ns > MS { 0.7 } else { 0.95 }, "{what}: {share:.3} of the line");
        // Who uses its packet is granted more, and more each time.
        world.stopped.clear();
        let had: Vec<_> = flows.iter().map(|flow| flow.received).collect();
        carry_until(&mut world, &mut flows, S, |_, _| false);
        let least = flows.iter().zip(had).map(|(flow, had)| flow.received - had).min().unwrap();
        assert!(least > rate_mbit * if delay_ns > MS { 3_000 } else { 5_000 }, "{what}: {least} bytes in a second");
    }
}

#[test]
fn many_who_speak_and_use_nothing_of_their_grants_keep_little_of_the_budget_together() {
    let count = 64;
    let (mut world, mut flows, said) = idlers(count, 20 * US, 1_000_000_000);
    flows[count].total = 1 << 30;
    // Each holds a quantum for ten leases at first, eight of them at a time.
    speak(&mut world, &mut flows, &said, false, Type::State, 120 * MS * count as u64 / 8);
    let held = flows[..count].iter().map(|flow| granted(&world, flow)).sum::<u64>();
    let (received, begin) = (flows[count].received, world.now);
    speak(&mut world, &mut flows, &said, false, Type::State, 200 * MS);
    let line = payload_bytes() / 1518.0 / 8.0;
    let share = (flows[count].received - received) as f64 / (world.now - begin) as f64 / line;
    println!("they hold {held} packets, {share:.3} of the line for another one");
    assert!(share > 0.95, "{share:.3} of the line, they hold {held} packets");
    let most = world.hosts[0].gate().budget_bytes() / 1518 / 4;
    assert!((1..=most).contains(&held), "{held} packets of {most}: they are tried again");
    // Who comes back is a sender as others, though the others do not.
    let had = flows[0].received;
    world.stopped.remove(&1);
    let comes_back = carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > had + 1_000_000);
    assert!(comes_back, "{} bytes of who came back", flows[0].received - had);
}

#[test]
fn many_who_use_a_little_of_their_grants_now_and_then_leave_most_of_the_line_to_others() {
    // Of what each has it uses so much, in packets of one byte, as soon as it has that much and no more, or after so long.
    for (count, uses, only_least, every_ms) in
        [(64, 1, true, 1), (64, 1, true, 19), (64, 2, false, 76), (9, 2, false, 76)]
    {
        let what = format!("{count} use {uses} each {every_ms} ms, only if they have no more: {only_least}");
        let (mut world, mut flows, mut said) = idlers(count, 20 * US, 1_000_000_000);
        flows[count].total = 1 << 30;
        let backlog = Backlog::from_bytes(1 << 20);
        let mut run = |world: &mut World, lasts_ms: u64| {
            for ms in 0..lasts_ms {
                for _ in 0..if ms % every_ms == 0 { uses } else { 0 } {
                    for (sender, moment) in said.iter_mut().enumerate() {
                        let has = granted(world, &flows[sender]);
                        if has == 1 || has > 0 && !only_least {
                            say(
                                world,
                                sender + 1,
                                Header { kind: Type::Data, length: 1, back: 1, backlog, ..*moment },
                                &[7],
                            );
                            moment.number = moment.number.wrapping_add(1);
                        }
                    }
                    carry_until(world, &mut flows[count..], 20 * US, |_, _| false);
                }
                for (sender, moment) in said.iter().enumerate().filter(|_| ms % 19 == 0) {
                    say(world, sender + 1, Header { kind: Type::State, length: 0, backlog, ..*moment }, &[]);
                }
                carry_until(world, &mut flows[count..], MS - uses * 20 * US, |_, _| false);
            }
            flows[count].received
        };
        // Each has a quantum for ten leases at first.
        let begin = run(&mut world, 400 + 1600 * count as u64 / 64);
        let bytes = run(&mut world, 500) - begin;
        let share = bytes as f64 * 16.0 / 1e9 / (payload_bytes() / 1518.0);
        println!("{what}: {share:.3} of the line for another one");
        assert!(share > 0.7, "{what}: {share:.3} of the line");
    }
}

#[test]
fn who_claims_to_have_sent_windows_full_keeps_nobody_else_from_being_heard() {
    const CLAIMERS: usize = 64;
    let mut world = World::new(CLAIMERS + 2, Net::default(), &Config::default(), 1);
    // What each of them says last without a key, with its identity.
    let said: Rc<RefCell<[Option<Header>; CLAIMERS + 1]>> = Rc::new(RefCell::new([None; CLAIMERS + 1]));
    let out = Rc::clone(&said);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let header = Packet::parse(bytes).unwrap().header;
        if (1..=CLAIMERS).contains(&from) && matches!(header.kind, Type::Data | Type::Control) {
            out.borrow_mut()[from] = Some(header);
        }
        true
    }));
    let claimers: Vec<_> = (1..=CLAIMERS).map(|from| open(&mut world, from, 0, 7, Mode::Stream)).collect();
    for (from, (client, _)) in claimers.iter().enumerate().map(|(at, ends)| (at + 1, ends)) {
        let now = world.clock(from);
        world.hosts[from].send(now, *client, b"here").unwrap();
        world.hosts[from].flush(*client);
    }
    let honest = CLAIMERS + 1;
    let ends: Vec<_> = (0..100).map(|_| open(&mut world, honest, 0, 7, Mode::Stream)).collect();
    pass(&mut world, 50 * MS);
    world.filter = None;
    world.stopped.extend(1..=CLAIMERS);
    for from in 1..=CLAIMERS {
        let header = said.borrow()[from].unwrap();
        let number = header.number.wrapping_add(1 + 16_300);
        say(&mut world, from, Header { kind: Type::Control, number, length: 0, ..header }, &[]);
    }
    pass(&mut world, MS);
    // All of its channels end while nothing of it arrives.
    world.cut.insert((honest, 0));
    let now = world.clock(honest);
    for &(client, _) in &ends {
        world.hosts[honest].close(now, client);
    }
    pass(&mut world, 10 * MS);
    world.cut.clear();
    wait_for(&mut world, S, "the ends", |world| {
        ends.iter().all(|&(_, server)| world.hosts[0].recv(server, &mut [0; 8]) == Ok(None))
    });
    assert!(world.hosts[0].counters().dropped_window < 100, "{:?}", world.hosts[0].counters());
}
