//! What other tests show of hosts that trust each other holds between hosts with a key as well: the same tests once more, and `world` gives a key to
//! every host that they make. And what a key gives.

mod keys;

#[path = "worlds"]
mod again {
    pub mod world;

    mod closing;
    mod disturbed;
    mod esp_bugs;
    mod full_link;
    mod incast;
    mod leases;
    mod links;
    mod liveness;
    mod loss;
    mod narrowed;
    mod opening;
    mod oracle;
    mod overtaking;
    mod resets;
    mod routes;
    mod runs;
    mod scale;
    mod strangers;
    mod transfer;
}

use again::world;
