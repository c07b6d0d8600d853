//! Keys of the wire protocol (docs/protocol.md, sections 9 and 11).
//!
//! * [`key`]: the cluster's keys and the file that holds them;
//! * [`handshake`]: two Noise messages inside CONFIRM and OPENED make a [`Session`];
//! * [`session`]: seals and opens the packets of one association, both directions, and changes their keys;
//! * [`window`]: which packets have been opened already;
//! * [`token`]: cookies and reset tokens, which need no association.
//!
//! Not here: where these bytes lie in a packet (`wire`), and when an association opens, closes or is given up. As
//! everywhere in this crate, time and randomness are arguments. Whoever owns a [`Session`] must never use it, nor a
//! copy of its memory, on two sides of a `fork`: both would seal with the same numbers. That is the engine's duty
//! (section 11).

mod cipher;
pub mod handshake;
mod kdf;
pub mod key;
pub mod session;
pub mod token;
pub mod window;

pub use handshake::{Initiator, KeyError, Responder};
pub use key::{ClusterKey, ClusterKeys, KeyFileError};
pub use session::{Counters, Limits, OpenError, SealError, Session};
pub use token::Secret;
