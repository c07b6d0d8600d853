//! Every part of the training run of guided builds runs: one that fails there is only not learnt from, and nobody would notice.

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::proc::Process;
use ropeway_testkit::{World, need_box, training};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Of each transport and size, after its warm-up.
const SECONDS: &str = "0.02";

fn all_run(world: &World, parts: Vec<Vec<String>>) {
    assert!(!parts.is_empty());
    for part in parts {
        let args: Vec<&str> = part.iter().map(String::as_str).collect();
        Process::spawn(world.ropeway_command(&args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
    }
}

#[test]
fn every_part_on_one_host_runs() {
    let world = World::new();
    let key = world.dir().join("key");
    world.ropeway(&["key", "new", key.to_str().expect("UTF-8")]).expect_success();
    all_run(&world, training::on_one_host(&key, SECONDS));
}

#[test]
fn every_part_between_hosts_runs() {
    need_box!();
    let hosts = TestBox::up(&["--hosts", &training::HOSTS.to_string(), "--wire-frames"]);
    all_run(&World::new(), training::between_hosts(hosts.name(), SECONDS));
}
