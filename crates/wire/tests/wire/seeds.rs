//! The fuzz target `wire` on every committed seed, on changed copies of each, and on every length of each.

use crate::{packets, vectors, wrong};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn seeds_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/wire")
}

#[test]
fn every_seed_of_wire_passes() {
    let dir = seeds_dir();
    let mut seeds = 0;
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("cannot read {}: {e}", dir.display())) {
        let path = entry.expect("a readable directory").path();
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        println!("{}", path.display());
        packets::packets(&seed);
        for i in 0..seed.len() {
            let mut changed = seed.clone();
            for flip in [0x01, 0x80, 0xFF] {
                changed[i] = seed[i] ^ flip;
                packets::packets(&changed);
            }
            packets::packets(&seed[..i]);
        }
        seeds += 1;
    }
    assert!(seeds > 100, "only {seeds} seeds in {}", dir.display());
}

/// Golden vectors and mistakes as file names and contents.
fn expected() -> Vec<(String, Vec<u8>)> {
    let named = |prefix: &str, name: &str, bytes: Vec<u8>| {
        let words: Vec<String> = name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_lowercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
        (format!("{prefix}-{}", words.join("-")), bytes)
    };
    let golden = vectors::all().into_iter().map(|vector| named("golden", vector.name, vector.bytes));
    golden.chain(wrong::all().into_iter().map(|wrong| named("wrong", wrong.about, wrong.bytes))).collect()
}

/// The fuzzer starts from every golden vector and from every mistake; `ROPEWAY_WRITE_SEEDS=1` writes them anew.
#[test]
fn the_seeds_hold_every_vector_and_every_mistake() {
    let (dir, expected) = (seeds_dir(), expected());
    let names: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), expected.len(), "two seeds of one name");
    for (name, bytes) in &expected {
        let path = dir.join(name);
        if std::env::var_os("ROPEWAY_WRITE_SEEDS").is_some() {
            std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        }
        let seed = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        assert_eq!(seed, *bytes, "{}: write the seeds anew with ROPEWAY_WRITE_SEEDS=1", path.display());
    }
}
