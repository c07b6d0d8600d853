//! The fuzz target of the rendezvous messages, on every committed seed and on some changed copies of each.

#[path = "../../../../fuzz/src/wire.rs"]
mod wire;

use std::path::Path;

#[test]
fn every_seed_of_rendezvous_wire_passes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/rendezvous_wire");
    let mut seeds = 0;
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display())) {
        let path = entry.expect("a readable directory").path();
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        println!("{}", path.display());
        wire::rendezvous_wire(&seed);
        // Each byte changed in turn, and each shorter length.
        for i in 0..seed.len() {
            let mut changed = seed.clone();
            changed[i] ^= 0x81;
            wire::rendezvous_wire(&changed);
            wire::rendezvous_wire(&seed[..i]);
        }
        seeds += 1;
    }
    assert!(seeds > 15, "only {seeds} seeds in {}", dir.display());
}
