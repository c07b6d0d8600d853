//! The bodies of the fuzz targets. `cargo test` of the main workspace runs them too, on the committed seeds
//! (`crates/shm/tests/fuzz_seeds.rs`, `crates/socket/tests/fuzz_seeds.rs`, `crates/wire/tests/wire/seeds.rs`, `crates/proto/tests/hostile.rs`), so they need neither nightly nor libFuzzer.

pub mod endpoint;
pub mod packets;
pub mod ring;
pub mod wire;
