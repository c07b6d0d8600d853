//! What an engine finds around it, and does not.

use ropeway_engine::{Engine, Options};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{need_program, need_root};
use std::time::Duration;

/// As in a container that was made by hand.
#[test]
fn an_engine_is_made_where_there_are_no_devices() {
    const INSIDE_VAR: &str = "ROPEWAY_TEST_NO_DEVICES";
    need_root!();
    need_program!("unshare", "mount");
    if std::env::var_os(INSIDE_VAR).is_none() {
        let own = std::env::current_exe().unwrap();
        let script = "mount -t tmpfs none /dev && exec \"$0\" --exact surroundings::an_engine_is_made_where_there_are_no_devices";
        let mut inside = command("unshare", ["--mount", "sh", "-c", script]);
        inside.arg(own).env(INSIDE_VAR, "1");
        let finished = Process::spawn(inside).succeed(Duration::from_secs(60));
        assert!(finished.stdout.contains("1 passed"), "{finished:?}");
        return;
    }
    assert!(!std::path::Path::new("/dev/urandom").exists());
    Engine::new(&Options::default()).unwrap();
}
