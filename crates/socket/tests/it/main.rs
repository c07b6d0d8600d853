//! Waiting, and what happens to connections whose ends are moved or die; the examples. Tests that fork, set what holds for their whole process or use up what it has are programs of
//! their own beside this one.

mod ends;
mod examples;
mod fuzz_seeds;
mod options;
mod polling;
mod prefixes;
mod readiness;
mod recalls;
mod recovery;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
