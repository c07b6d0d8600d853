//! How the daemon ends: at once and for everybody, whatever was passed to it.

use std::time::Duration;

use ropeway_testkit::proc::{Process, behind};
use ropeway_testkit::{World, need_root, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, status_query};
use crate::fuse::{self, FLUSH};
use crate::world;

/// The signals that ask a daemon to end.
const ASKING: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

/// A world whose daemon was started with this signal as the option of `env` has it.
fn world_behind(option: &str, signal: Signal) -> World {
    let world = World::new();
    let option = format!("{option}={}", signal.as_raw());
    let daemon = behind(&["env", &option], &world.ropeway_command(&["daemon"]));
    Process::spawn(daemon).succeed(Duration::from_secs(10));
    world
}

fn daemon(world: &World) -> Pid {
    Pid::from_raw(world.daemon_pid().expect("a daemon runs").cast_signed()).expect("a pid")
}

/// The server of a file that is passed to the daemon, whose last close there waits for ever. The error is why there is none.
fn file_that_hangs(world: &World) -> Result<fuse::Server, String> {
    let message: String = status_query().iter().map(|b| format!("{b:02x}")).collect();
    let server = fuse::Server::start(world.dir(), "file", &[FLUSH], Some((world.socket(), &message)))?;
    server.wait_until_asked(FLUSH);
    Ok(server)
}

/// What is in the daemon's hands does not keep its address, or its end from whoever is connected.
fn assert_ends_at_once(world: &World, end: impl FnOnce(Pid)) {
    let client = Client::start(world);
    let former = daemon(world);
    end(former);
    assert!(matches!(client.next(Duration::from_secs(5)), Some(None)), "the end is seen");
    world.ropeway(&["daemon"]).expect_success();
    assert_ne!(daemon(world), former);
    Client::start(world);
}

#[test]
fn a_daemon_that_is_told_to_stop_while_a_close_hangs_ends_at_once() {
    need_root!();
    let world = world();
    match file_that_hangs(&world) {
        Err(why) => skip!("{why}"),
        Ok(_server) => assert_ends_at_once(&world, |_| drop(world.stop_daemon().expect_success())),
    }
}

#[test]
fn a_daemon_that_is_asked_to_end_by_a_signal_while_a_close_hangs_ends_at_once() {
    need_root!();
    for signal in ASKING {
        // What whoever runs the tests ignores, as `nohup` does hangups, the daemon would ignore, too.
        let world = world_behind("--default-signal", signal);
        match file_that_hangs(&world) {
            Err(why) => skip!("{why}"),
            Ok(_server) => assert_ends_at_once(&world, |daemon| kill_process(daemon, signal).expect("our daemon")),
        }
    }
}

#[test]
fn a_daemon_outlives_a_signal_that_it_was_started_to_ignore() {
    for signal in ASKING {
        let world = world_behind("--ignore-signal", signal);
        let former = daemon(&world);
        let status = std::fs::read_to_string(format!("/proc/{}/status", former.as_raw_nonzero())).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is said");
        let ignored = u64::from_str_radix(mask.trim(), 16).expect("hexadecimal digits");
        assert!(ignored & 1 << (signal.as_raw() - 1) != 0, "{signal:?}: {mask}");
        kill_process(former, signal).expect("our daemon");
        world.ropeway(&["daemon", "status"]).expect_success();
        assert_eq!(daemon(&world), former);
    }
}

/// Nobody can help that; whoever asks is told what to do.
#[test]
fn of_a_daemon_that_was_killed_while_a_close_hangs_it_is_said_what_keeps_it() {
    need_root!();
    let world = world();
    let server = match file_that_hangs(&world) {
        Err(why) => skip!("{why}"),
        Ok(server) => server,
    };
    let former = daemon(&world);
    kill_process(former, Signal::KILL).expect("our daemon");
    let asked = world.ropeway(&["daemon", "status"]);
    let said = format!("was killed as process {}", former.as_raw_nonzero());
    assert!(!asked.success() && asked.stderr.contains(&said), "{asked:?}");
    // The file system ends with its server.
    drop(server);
    world.ropeway(&["daemon"]).expect_success();
}
