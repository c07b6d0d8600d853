//! Measures interconnects: transports x patterns give raw samples, statistics say what they mean, reports show it ([how](../../../docs/measuring.md)).
//!
//! * [`transport`]: one small interface for everything that moves messages between ranks 0..n-1.
//! * [`pattern`]: what the ranks do, written once, generic over the transport.
//! * [`record`]: the result file, JSON Lines with every raw sample.
//! * [`results`]: what such files say: cases, comparisons, tables.
//! * [`plot`] and [`report`]: figures and the page that are made from them.
//!
//! What does not live here: arguments and help (`ropeway bench` in `cli`), the programs that are started on other hosts.
#![forbid(unsafe_code)]

pub mod failure;
pub mod pattern;
pub mod record;
pub mod transport;

pub mod plot;
pub mod report;
pub mod results;

pub use failure::Failure;
