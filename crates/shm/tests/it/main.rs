//! Rings and the pairs that they lie in. Tests that fork, or change what their process may have, are programs of their own beside this one.
#![cfg(not(loom))]

mod hostile;
mod ring_oracle;
mod segment;
#[path = "../support/mod.rs"]
mod support;
