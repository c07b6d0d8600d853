//! Clusters in a box: made, used and taken away; a switch that is honest about its buffers; cuts, losses and gateways.

mod delay;
mod faults;
mod honest;
mod life;
mod segments;
mod shaper;
mod wire;

use std::time::Duration;

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env::CProgram;
use ropeway_testkit::proc::{Finished, Process, command, until};
use rustix::process::Signal;

/// For everything that a program does in a box by itself.
const LIMIT: Duration = Duration::from_secs(60);

/// An EtherType for experiments, which no kernel knows.
const UNKNOWN_TYPE: &str = "88b5";

fn frames<'a>(args: impl IntoIterator<Item = &'a str>) -> std::process::Command {
    command(CProgram::new("crates/testkit/programs/box/frames.c").build(), args)
}

/// Sends frames of an unknown type from a host's interface to the address of a port.
#[track_caller]
fn send_frames(cluster: &TestBox, from: &str, to: &str, count: usize) -> Finished {
    let mac = cluster.port(to).mac;
    cluster.run(from, &frames(["send", "eth0", &mac, UNKNOWN_TYPE, &count.to_string()]), LIMIT).expect_success()
}

/// Takes frames in a host, up to so many; ready when this returns.
#[track_caller]
fn receive_frames(cluster: &TestBox, host: &str, ether_type: &str, count: usize) -> Process {
    let receiver = cluster.spawn(host, &frames(["receive", "eth0", ether_type, &count.to_string()]));
    receiver.wait_for_output("ready", LIMIT);
    receiver
}

/// What came once all that was expected is there: how many frames, how many of them after a later one, the longest's length.
#[track_caller]
fn received(receiver: &Process) -> [usize; 3] {
    match receiver.wait(Duration::from_secs(20)) {
        Ok(finished) => numbers(&finished.expect_success()),
        // Not all came: how many did says more than that time is up.
        Err(_) => received_by_now(receiver),
    }
}

/// The same when nothing more is expected.
#[track_caller]
fn received_by_now(receiver: &Process) -> [usize; 3] {
    receiver.signal(Signal::TERM);
    numbers(&receiver.succeed(LIMIT))
}

/// The three numbers that `frames` says at its end.
#[track_caller]
fn numbers(finished: &Finished) -> [usize; 3] {
    let said = &finished.stdout;
    let numbers: Vec<usize> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("not three numbers: {said}"))
}
