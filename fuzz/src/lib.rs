//! The bodies of the fuzz targets. `cargo test` of the main workspace runs them too, on the committed seeds
//! (`tests/fuzz_seeds.rs` in `crates/shm`, `crates/socket` and `crates/proto`, `crates/proto/tests/worlds/hostile.rs`, `crates/wire/tests/wire/seeds.rs`), so they
//! need neither nightly nor libFuzzer.

pub mod endpoint;
pub mod gateway;
pub mod handshake;
pub mod keyed;
pub mod packets;
pub mod ring;
pub mod wire;
