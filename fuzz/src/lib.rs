//! The bodies of the fuzz targets. `cargo test` of the main workspace runs them too, on the committed seeds
//! (`tests/fuzz_seeds.rs` of the crate in question), so they need neither nightly nor libFuzzer.

pub mod handshake;
pub mod ring;
pub mod wire;
