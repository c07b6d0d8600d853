//! The rendezvous daemon as processes see it: who is paired, who is refused and why, and what happens when it dies.

mod abuse;
mod adoption;
mod client;
mod endings;
mod fuse;
mod life;
mod listing;
mod pairing;

use std::time::Duration;

use ropeway_testkit::World;
use ropeway_testkit::proc::Process;

/// A world whose daemon runs.
fn world() -> World {
    let world = World::new();
    world.ropeway(&["daemon"]).expect_success();
    world
}

/// A world whose daemon runs with this configuration, which is `config.toml` in the world's directory.
fn world_with(config: &str) -> World {
    let world = World::new();
    let file = world.dir().join("config.toml");
    std::fs::write(&file, config).expect("one's own directory");
    let mut daemon = world.ropeway_command(&["daemon"]);
    daemon.env("ROPEWAY_CONFIG", file);
    Process::spawn(daemon).succeed(Duration::from_secs(10));
    world
}
