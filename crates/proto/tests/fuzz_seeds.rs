//! The fuzz target of the keys, on every committed seed and on some changed copies of each.

#[path = "../../../fuzz/src/handshake.rs"]
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
