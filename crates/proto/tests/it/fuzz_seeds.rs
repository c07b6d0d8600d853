//! The fuzz target of the keys, on every committed seed and on some changed copies of each.

#[path = "../../../../fuzz/src/handshake.rs"]
mod handshake;

use handshake::Reached;
use ropeway_proto::crypto::OpenError;
use std::path::Path;

#[test]
fn every_seed_of_handshake_passes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/handshake");
    let (mut seeds, mut sum) = (0, Reached::default());
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display())) {
        let path = entry.expect("a readable directory").path();
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        println!("{}", path.display());
        let reached = handshake::handshake(&seed);
        sum.first_messages += reached.first_messages;
        sum.second_messages += reached.second_messages;
        sum.packets += reached.packets;
        sum.changes += reached.changes;
        sum.refused.iter_mut().zip(reached.refused).for_each(|(sum, count)| *sum += count);
        // Each byte changed in turn, and each shorter length.
        for i in 0..seed.len() {
            let mut changed = seed.clone();
            changed[i] ^= 0x81;
            handshake::handshake(&changed);
            handshake::handshake(&seed[..i]);
        }
        seeds += 1;
    }
    assert!(seeds > 20, "only {seeds} seeds in {}", dir.display());
    // The seeds get everywhere: what none of them reaches is not tested by them.
    assert!(sum.first_messages > 0 && sum.second_messages > 0 && sum.packets > 0 && sum.changes > 0, "{sum:?}");
    for error in OpenError::ALL {
        // In place there is always room; and to be too old takes more packets than a seed has.
        let reachable = !matches!(error, OpenError::Room | OpenError::TooOld);
        assert!(!reachable || sum.refused[error.index()] > 0, "no seed is refused because it is {error}: {sum:?}");
    }
}

#[path = "../../../../fuzz/src/keyed.rs"]
mod keyed;

/// What scripts have made of endpoints with a key.
#[derive(Debug, Default)]
struct Keyed {
    opened: u64,
    ended: u64,
    handshake: u64,
    cookie: u64,
    sealed: [u64; OpenError::ALL.len()],
}

impl Keyed {
    fn run(&mut self, script: &[u8]) {
        for counters in keyed::keyed(script) {
            self.opened += counters.associations_opened;
            self.ended += counters.timeouts;
            self.handshake += counters.dropped_handshake.iter().sum::<u64>();
            self.cookie += counters.dropped_cookie;
            self.sealed.iter_mut().zip(counters.dropped_sealed).for_each(|(sum, count)| *sum += count);
        }
    }
}

#[test]
fn every_seed_of_keyed_passes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/keyed");
    let (mut seeds, mut sum) = (0, Keyed::default());
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display())) {
        let path = entry.expect("a readable directory").path();
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        println!("{}", path.display());
        sum.run(&seed);
        for i in (0..seed.len()).step_by(1 + seed.len() / 16) {
            let mut changed = seed.clone();
            changed[i] ^= 0x81;
            sum.run(&changed);
            sum.run(&seed[..i]);
        }
        seeds += 1;
    }
    assert!(seeds >= 18, "only {seeds} seeds in {}", dir.display());
    println!("{sum:?}");
    let Keyed { opened, ended, handshake, cookie, sealed } = sum;
    for (what, count) in [("opening", opened), ("giving up", ended), ("the handshake", handshake), ("cookies", cookie)]
    {
        assert!(count > 0, "no script comes to {what}");
    }
    for error in [OpenError::Short, OpenError::Replayed, OpenError::Forged] {
        assert!(sealed[error.index()] > 0, "no script has a packet that is refused because it is {error}");
    }
}

/// Both ends have opened, and the server has accepted.
const OPENED: [u8; 17] = [0, 2, 0, 0x80, 2, 0, 0, 2, 0, 0x80, 2, 0, 0x8B, 9, 0x0B, 9, 0x8C];

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
    #[test]
    fn any_script_of_keyed_passes(
        is_open in proptest::prelude::any::<bool>(),
        script in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
    ) {
        let before = if is_open { &OPENED[..] } else { &[] };
        Keyed::default().run(&[before, &script].concat());
    }
}
