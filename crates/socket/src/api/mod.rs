//! Sockets between hosts, for programs that are written for Ropeway: [`Listener`] and [`Stream`] as the standard library has them for TCP,
//! [`MessageListener`] and [`MessageSocket`] for messages ([how to use them](../../../../docs/api.md)).
//!
//! Nothing of the preload uses this: here are threads, memory and locks. What does not live here: the protocol and who polls the links while a call
//! waits (`ropeway-engine`); the C interface (`ropeway-capi`).

mod address;
mod claim;
mod common;
mod connection;
mod environment;
mod errors;
mod exit;
mod home;
mod leaked;
mod listener;
mod message;
mod neighbor;
mod stream;

pub use address::{Address, PacketAddress, ParseAddressError, ToAddresses};
pub use errors::details;
pub use listener::{Incoming, IncomingMessages, Listener, MessageListener, USUAL_BACKLOG};
pub use message::MessageSocket;
pub use ropeway_engine::{Config, Engine, Error, ErrorCode, LinkId, Options, Routes, Target, Watch, Way, link};
pub use stream::Stream;
