//! What a cluster key gives (docs/protocol.md 9 and 11): without it nobody joins, reads, injects or resets, whatever he sees and changes on the way.

mod attacks;
mod changes;
mod joining;
mod resets;
