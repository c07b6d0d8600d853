//! What other test programs show of hosts that trust each other holds between hosts with a key as well: the same tests once more, and `world` gives a key to
//! every host that they make.
#![allow(clippy::duplicate_mod, reason = "each of these files has the world that it has as a program of its own")]

#[path = "closing.rs"]
mod closing;
#[path = "disturbed.rs"]
mod disturbed;
#[path = "esp_bugs.rs"]
mod esp_bugs;
#[path = "full_link.rs"]
mod full_link;
#[path = "incast.rs"]
mod incast;
#[path = "leases.rs"]
mod leases;
#[path = "liveness.rs"]
mod liveness;
#[path = "loss.rs"]
mod loss;
#[path = "narrowed.rs"]
mod narrowed;
#[path = "opening.rs"]
mod opening;
#[path = "oracle.rs"]
mod oracle;
#[path = "overtaking.rs"]
mod overtaking;
#[path = "resets.rs"]
mod resets;
#[path = "runs.rs"]
mod runs;
#[path = "scale.rs"]
mod scale;
#[path = "transfer.rs"]
mod transfer;
