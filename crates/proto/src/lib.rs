//! The protocol of [docs/protocol.md](../../../docs/protocol.md) without I/O.
#![forbid(unsafe_code)]

pub mod crypto;
