//! Engines over links of all kinds, as programs and tools have them. Tests that count what is in their process or on its links, limit or use up what it has, fork, or look at
//! its processor time are programs of their own beside this one.

mod calls;
mod edges;
mod key_file;
mod readers;
mod strangers;
#[path = "../../../link/tests/support/mod.rs"]
mod support;
mod surroundings;
mod workers;
