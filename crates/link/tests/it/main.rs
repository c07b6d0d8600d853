//! What each link does, and what some do beyond that. The tests of XDP are a program of their own: one takes from its process what it may lock of memory.

mod conformance;
mod mtu;
mod packet;
#[path = "../support/mod.rs"]
mod support;
mod udp;
