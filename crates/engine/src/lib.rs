//! The engine: joins the protocol, links and the threads of a program ([design](../../../docs/engine.md)).
//!
//! An engine lives inside a process. The thread that waits polls the links itself; when nobody waits, a helper thread keeps time and acknowledgments. This is
//! where time and randomness enter. What does not live here: the protocol (`ropeway-proto`), how packets move (`ropeway-link`), and
//! the calls that programs see (`ropeway-socket`, `libropeway`).
#![forbid(unsafe_code)]

mod bell;
mod blocking;
pub mod cluster;
pub mod control;
mod core;
mod ending;
mod engine;
mod error;
pub mod gateway;
mod helper;
mod inner;
pub mod key_file;
mod keyed;
mod path;
mod readiness;
pub mod restart;
mod room;
mod routes;
mod share;
mod shimmed;
mod sleep;
mod spin;
pub mod thread;
mod transfer;
mod trusted_file;
mod wait;
mod workers;

pub use crate::core::LinkId;
pub use crate::engine::{Engine, LEAST_PACKET_BYTES, Options, Target, usual_packet_bytes};
pub use crate::error::Error;
pub use crate::readiness::{Interest, Watch};
pub use crate::routes::{Routes, Way};
pub use crate::workers::{MOST_WORKERS, Port, Workers, packet_links, udp_links};
/// The links that an engine can be given.
pub use ropeway_link as link;
pub use ropeway_proto::crypto::{ClusterKey, ClusterKeys};
pub use ropeway_proto::{ChannelId, Config, Counters, ErrorCode, Mode, Readiness, config};
