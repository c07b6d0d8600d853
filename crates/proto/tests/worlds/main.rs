//! Endpoints in simulated networks, in virtual time. Many tests run once between hosts that trust each other, once between hosts with a key, and once between hosts that tell their own addresses
//! apart: `world::hosts`.

mod world;

mod accounts;
mod answers;
mod asking;
mod claims;
mod closing;
mod coalesce;
mod crowded;
mod disturbed;
mod esp_bugs;
mod full_link;
mod hostile;
mod incast;
mod keys;
mod leases;
mod lines;
mod links;
mod liveness;
mod loss;
mod memory;
mod narrowed;
mod opening;
mod oracle;
mod overtaking;
mod parts;
mod periods;
mod refused;
mod resets;
mod returned;
mod routes;
mod runs;
mod scale;
mod short;
mod strangers;
mod transfer;
mod tunables;
mod tuning;
mod unkept;
mod wildcards;
