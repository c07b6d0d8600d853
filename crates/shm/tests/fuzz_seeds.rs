//! The fuzz targets of the ring, on every committed seed and on some changed copies of each.

#![cfg(not(loom))]

#[path = "../../../fuzz/src/ring.rs"]
mod ring;

use std::path::Path;

/// Changed copies of each seed, so that an ordinary run looks a little further than the last.
const COPIES: u64 = 20;

fn replay(target: &str, run: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display())) {
        let path = entry.expect("a readable directory").path();
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        println!("{}", path.display());
        run(&seed);
        let mut numbers = ring::support::Numbers::new(seed.len() as u64);
        for _ in 0..COPIES {
            let mut changed = seed.clone();
            for _ in 0..1 + numbers.below(4) {
                let at = numbers.below(changed.len().max(1) as u64) as usize;
                if let Some(byte) = changed.get_mut(at) {
                    *byte = numbers.any() as u8;
                }
            }
            run(&changed);
        }
        seeds += 1;
    }
    assert!(seeds > 20, "only {seeds} seeds in {}", dir.display());
}

#[test]
fn every_seed_of_ring_reader_passes() {
    replay("ring_reader", ring::ring_reader);
}

#[test]
fn every_seed_of_ring_writer_passes() {
    replay("ring_writer", ring::ring_writer);
}
