//! Sockets between hosts, for programs that are written for Ropeway: [`Listener`] and [`Stream`] as the standard library has them for TCP,
//! [`MessageListener`] and [`MessageSocket`] for messages ([how to use them](../../../../docs/api.md)).
//!
//! Nothing of the preload uses this: here are threads, memory and locks. What does not live here: the protocol and who polls the links while a call
//! waits (`ropeway-engine`); the C interface (`ropeway-capi`).

mod address;
mod claim;
pub mod cluster;
mod common;
mod connection;
mod environment;
mod errors;
mod exit;
mod frames;
mod home;
mod listener;
mod local;
mod message;
mod neighbor;
mod per_process;
mod stream;

pub use address::{Address, PacketAddress, ParseAddressError, ToAddresses};
pub use claim::Claim;
pub use environment::{engine_options, udp_options};
pub use errors::details;
pub use listener::{Incoming, IncomingMessages, Listener, MessageListener, USUAL_BACKLOG};
pub use local::Local;
pub use message::MessageSocket;
pub use per_process::{Found, PerProcess};
pub use ropeway_engine::key_file::Choice;
pub use ropeway_engine::{
    ClusterKeys, Config, Engine, Error, ErrorCode, LinkId, MOST_WORKERS, Options, Routes, Target, Watch, Way, Workers,
    link,
};
pub use ropeway_shm::sys::Uncancelled;
pub use stream::Stream;

/// Has the tests of the documentation run what stands on that page.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/api.md")]
pub struct Page;
