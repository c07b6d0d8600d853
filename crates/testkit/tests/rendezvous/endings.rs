//! How the daemon ends: at once and for everybody, whatever was passed to it.

use std::time::Duration;

use ropeway_testkit::{World, need_root, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, status_query};
use crate::fuse::{self, FLUSH};
use crate::world;

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
    // Under `nohup` the daemon ignores SIGHUP, too.
    let signals = [Signal::TERM, Signal::INT, Signal::HUP];
    for signal in signals.into_iter().filter(|signal| !is_ignored(*signal)) {
        let world = world();
        match file_that_hangs(&world) {
            Err(why) => skip!("{why}"),
            Ok(_server) => assert_ends_at_once(&world, |daemon| kill_process(daemon, signal).expect("our daemon")),
        }
    }
}

/// Whether this process ignores a signal, as those that it starts do.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is said");
    u64::from_str_radix(mask.trim(), 16).expect("hexadecimal digits") & 1 << (signal.as_raw() - 1) != 0
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
