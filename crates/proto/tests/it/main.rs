//! Keys, gateways and constants: whatever needs no world of hosts.

mod constants;
mod crypto_handshake;
mod crypto_session;
mod crypto_vectors;
mod fuzz_seeds;
mod gateway;
mod support;
