//! A network in memory whose parameters are known: the ground truth for estimators, and a place for patterns without a cluster.
//!
//! Time is virtual. Every rank is a thread with a clock of its own; only one runs at any moment, and whoever looks at the network does so when no other rank can
//! still act before that moment. The same parameters and seed therefore give the same times, to the picosecond, on every machine. How long messages take is in
//! `parameters.rs`; the order of events in `world.rs`.
//!
//! What does not live here: Ropeway's own protocol in a simulated network (`ropeway sim`, the link `sim`).

mod costs;
mod end;
mod parameters;
mod parse;
#[cfg(test)]
mod tests;
mod world;

pub use costs::Cost;
pub use end::{Sim, ranks};
pub use parameters::{Model, Outliers, SimParameters, Switch};
pub use parse::ParseError;
