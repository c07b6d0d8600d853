//! The rendezvous: how two processes of one host find out that their TCP connection can move to shared memory.
//!
//! [`wire`] is the protocol between a process and the daemon, [`client`] the side that runs inside hooks of the preload.
//! The daemon itself is in the `ropeway` program (`crates/cli/src/daemon`). docs/rendezvous.md states the protocol, who is
//! trusted with what, and the limits. What does not live here: when to promote, and what a segment holds.

pub mod client;
pub mod os;
pub mod wire;
