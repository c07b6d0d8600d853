//! Ropeway's sockets: those between hosts, for programs written for them ([`api`]: [`Listener`], [`Stream`], [`MessageSocket`]), and those of
//! unmodified programs: which carrier moves the bytes of a connection, and how they change carriers at an exact byte.
//!
//! All but [`api`] is used by the preload, inside hooks of unmodified programs: nothing there allocates, blocks on another process, or calls
//! a C library function that the preload interposes. The data path is [`send`] and [`recv`]; [`handover`] holds the
//! state machine that `docs/handover.md` specifies; [`wait`] spins and sleeps; [`lifecycle`] follows descriptors;
//! [`rendezvous`] talks to the daemon.

pub mod adopt;
pub mod api;
pub mod bells;
pub mod epoll;
pub mod fdtable;
pub mod handover;
pub mod iov;
pub mod lifecycle;
pub mod machine;
pub mod options;
pub mod poll;

pub mod process;
pub mod promote;
pub mod ready;
pub mod reason;
pub mod recv;
pub mod relay;
pub mod rendezvous;
mod secret;
pub mod send;
pub mod settings;
pub mod shadow;
pub mod spin;
pub mod stats;
pub mod thread;
pub mod wait;

pub use api::{
    Address, Incoming, IncomingMessages, Listener, Local, MessageListener, MessageSocket, PacketAddress, Stream,
    ToAddresses,
};
