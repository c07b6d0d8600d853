//! The protocol of docs/protocol.md without I/O: associations and channels, the gate, loss, opening and closing, keys.
//!
//! An [`Endpoint`] is one engine's end of it. It sees no clock, no randomness but a seed, no thread and no socket: the caller passes the time and what
//! arrived, and fetches what is to be sent. What does not live here: packet formats (`ropeway-wire`), moving packets (`ropeway-link`), waiting and
//! threads (`ropeway-engine`).
#![forbid(unsafe_code)]

mod answers;
mod arrivals;
mod association;
mod channel;
pub mod config;
pub mod crypto;
mod endpoint;
mod gate;
pub mod gateway;
mod keyed;
mod lease;
mod ledger;
mod looks;
mod pace;
mod pool;
mod random;
mod rate;
mod received;
mod routes;
mod rtt;
mod sent;
mod statistics;
mod time;

pub use channel::{ChannelId, PIECE_BYTES, Part, Readiness};
pub use config::Config;
pub use endpoint::{
    AcceptError, BATCH_PACKETS, ConnectError, Counters, Endpoint, Event, Handling, Joined, Landing, ListenError,
    MOST_STARTS, Path, Presence, RecvError, Route, SendError, Taken, Urgency,
};
pub use gate::{Demand, Gate, GateCounters};
pub use ropeway_wire::{ErrorCode, Malformed, Mode, SHIM_BYTES, Shim};
pub use routes::MOST_PATHS;
pub use statistics::{
    AssociationCounters, AssociationStatistics, ChannelStatistics, Limit, LimitTimes, SealingStatistics,
};
pub use time::Time;
