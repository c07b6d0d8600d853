//! Packets from a peer that sends anything: nothing panics, memory stays bounded, every refusal is counted. The body is the fuzz target `endpoint`.

#[path = "../../../../fuzz/src/endpoint.rs"]
mod endpoint;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use crate::world::*;
use proptest::prelude::*;
use ropeway_proto::{Config, Counters, Mode};

/// DATA with the long and the short header as its first byte, and the flag of repetitions.
const DATA: [u8; 2] = [0x17, 0x10];
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
