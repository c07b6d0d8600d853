//! Endpoints in simulated networks, in virtual time. Two other programs run many of these tests once more, between other hosts: `keyed` and `wildcards`.

mod world;

mod answers;
mod asking;
mod closing;
mod coalesce;
mod disturbed;
mod esp_bugs;
mod full_link;
mod hostile;
mod incast;
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
mod resets;
mod routes;
mod runs;
mod scale;
mod short;
mod strangers;
mod transfer;
mod tunables;
mod tuning;
