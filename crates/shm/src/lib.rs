//! Shared memory for Ropeway: segments, rings, bells, process-shared locks and the shared table of sockets.
//!
//! This is the only crate with lock-free code. It knows nothing of TCP, of descriptors of the program or of the
//! rendezvous; `docs/ring.md` states the layout and the rules.

pub mod atomic;
#[cfg(not(loom))]
pub mod bell;
#[cfg(not(loom))]
pub mod board;
pub mod cells;
pub mod claim;
pub mod fair;
#[cfg(not(loom))]
pub mod fork;
pub mod guarded;
pub mod lock;
#[cfg(not(loom))]
pub mod memfd;
#[cfg(not(loom))]
pub mod pipe;
pub mod present;
pub mod processors;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod stack;
pub mod sys;
#[cfg(not(loom))]
pub mod table;
