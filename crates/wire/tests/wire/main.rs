//! The packet formats: golden vectors, properties, mistakes, the Wireshark dissector, and the fuzz target on its seeds.

mod capture;
mod dissector;
mod golden;
mod malformed;
#[path = "../../../../fuzz/src/packets.rs"]
mod packets;
mod properties;
mod seeds;
mod vectors;
mod wrong;

use packets::owned;
