//! Measures interconnects: transports x patterns give raw samples, statistics say what they mean, reports show it ([how](../../../docs/measuring.md)).
//!
//! * [`transport`]: one small interface for everything that moves messages between ranks 0..n-1.
//! * [`pattern`]: what the ranks do, written once, for every transport.
//! * [`ranks`]: the processes or threads that the ranks are, on one host or several.
//! * [`run`]: the coordinator's work: which trials, in which order, for how long.
//! * [`floor`]: the limits of the machine, measured beside the transports.
//! * [`carried`]: what carried the bytes of a preloaded run.
//! * [`machine`]: what figures are measured on.
//! * [`record`]: the result file, JSON Lines with every raw sample.
//! * [`model`]: LogGP and P-LogP, fitted to what their patterns measured.
//! * [`stats`]: quantiles, intervals, warnings, comparisons; when to stop.
//! * [`random`]: numbers from a seed.
//! * [`results`]: what such files say: cases, comparisons, tables.
//! * [`plot`] and [`report`]: figures and the page that are made from them.
//!
//! What does not live here: arguments and help (`ropeway bench` in `cli`), the programs that are started on other hosts.
#![forbid(unsafe_code)]

pub mod carried;
pub mod failure;
pub mod floor;
pub mod machine;
pub mod model;
pub mod pattern;
pub mod random;
pub mod ranks;
pub mod record;
pub mod run;
pub mod stats;
pub mod transport;

pub mod plot;
pub mod report;
pub mod results;

pub use failure::Failure;
