//! A gateway whose neighbours send anything: the body is the fuzz target `gateway`.

#[path = "../../../../fuzz/src/gateway.rs"]
mod target;

use proptest::prelude::*;
use ropeway_proto::Shim;
use std::path::Path;

/// One step of a script: from whom, how many the links take then, and a packet behind a shim.
fn step(from: u8, taken: u8, shim: Shim, packet: &[u8]) -> Vec<u8> {
    let bytes = [&shim.to_bytes()[..], packet].concat();
    let length = bytes.len() as u16;
    [&[from, (length >> 8) as u8 | taken << 3, length as u8], &bytes[..]].concat()
}

fn steps() -> impl Strategy<Value = Vec<u8>> {
    let node = || prop_oneof![Just(1u32), Just(2), Just(3), Just(17), Just(4), Just(5 << 16), Just(5 << 16 | 7)];
    let shim = (any::<bool>(), 0u8..4, node(), node());
    let one = (any::<u8>(), 0u8..32, shim, prop::collection::vec(any::<u8>(), 0..600), 0u8..4);
    let one = one.prop_map(|(from, taken, (congested, hops, destination, source), payload, damage)| {
        let mut packet = vec![0; 24];
        (packet[0], packet[2], packet[3]) = (0x1B, (payload.len() >> 8) as u8, payload.len() as u8);
        packet.extend(payload);
        if damage == 0 {
            let at = usize::from(from) % packet.len();
            packet[at] ^= 0x11;
        }
        step(from, taken, Shim { congested, hops, destination, source }, &packet)
    });
    prop::collection::vec(one, 0..60).prop_map(|steps| steps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Replay with `PROPTEST_CASES=1 cargo test -p ropeway-proto --test it gateway` and the seed that the failure prints.
    #[test]
    fn any_packets_of_neighbours_and_strangers_pass(script in steps()) {
        target::gateway(&script);
    }

    #[test]
    fn any_bytes_pass(script in prop::collection::vec(any::<u8>(), 0..2000)) {
        target::gateway(&script);
    }
}

/// The seeds, one for each thing that can become of a packet. `ROPEWAY_WRITE_SEEDS=1` writes them anew.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let shim = Shim { congested: false, hops: 2, destination: 2, source: 1 };
    let mut pin = vec![0; 24];
    pin[0] = 0x1D;
    let with_payload = |bytes: u16| {
        let mut packet = vec![0; 24 + usize::from(bytes)];
        packet[0] = 0x1B;
        packet[2..4].copy_from_slice(&bytes.to_be_bytes());
        packet
    };
    let one = |from: u8, shim: Shim, packet: &[u8]| step(from, 0, shim, packet);
    vec![
        ("forwarded", step(0x81, 4, shim, &pin)),
        ("back", step(0x82, 4, Shim { destination: 1, source: 3, ..shim }, &pin)),
        ("marked-and-full", (0..8).flat_map(|_| one(1, shim, &with_payload(900))).collect()),
        ("too-long", one(1, shim, &with_payload(1000))),
        ("stranger", one(5, shim, &pin)),
        ("no-shim", [&[1, 0, 24], &pin[..]].concat()),
        ("malformed", one(1, shim, &pin[..23])),
        ("no-hops", one(1, Shim { hops: 0, ..shim }, &pin)),
        ("no-route", one(1, Shim { destination: 5, ..shim }, &pin)),
        ("returning", one(2, Shim { destination: 3, source: 2, ..shim }, &pin)),
        ("the-same-from-two-neighbours", [2, 1].into_iter().flat_map(|from| one(from, shim, &pin)).collect()),
    ]
}

#[test]
fn every_seed_of_gateway_passes_and_all_that_can_become_of_a_packet_is_among_them() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gateway");
    if std::env::var_os("ROPEWAY_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(&dir).unwrap();
        seeds().iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
    }
    let mut sums = [0; 10];
    for (name, bytes) in seeds() {
        let seed = std::fs::read(dir.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(seed, bytes, "{name}: write the seeds anew with ROPEWAY_WRITE_SEEDS=1");
        for at in 0..seed.len() {
            target::gateway(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] ^= 0x81;
            target::gateway(&changed);
        }
        let counted = target::gateway(&seed);
        let all = [
            counted.forwarded,
            counted.marked,
            counted.dropped_stranger,
            counted.dropped_shim,
            counted.dropped_malformed,
            counted.dropped_hops,
            counted.dropped_no_route,
            counted.dropped_returning,
            counted.dropped_full,
            counted.dropped_too_long,
        ];
        sums.iter_mut().zip(all).for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|&sum| sum > 0), "{sums:?}");
}
