//! `ropeway bench` against the tools that people know, on kernel TCP and in turn: whether its figures are theirs.

use super::bed::{Arm, Bed};
use super::builtin;
use super::row::{Better, Goal, Row};
use super::tools::{iperf3_client, iperf3_server, number_after, sockperf_client, sockperf_server};
use crate::Result;
use ropeway_testkit::proc::command;
use std::process::Command;

/// The processors of client and server.
const PROCESSORS: [&str; 2] = ["0", "1"];

/// The same for `ropeway bench`.
const PIN: [&str; 2] = ["--pin", "0,1"];

/// Half of a round trip of as many bytes as sockperf sends, every trip timed alone: the medians of both.
pub fn sockperf(bed: &Bed) -> Result<Vec<Row>> {
    const OURS: &[&str] = &["pingpong", "--size", "14", "--set", "batch=1"];
    let port = bed.port();
    let server = bed.server(Arm::Tcp, &on(PROCESSORS[1], sockperf_server(port)), port)?;
    let rounds = bed.in_turn(|arm| match arm {
        Arm::Tcp => {
            number_after(&bed.client(arm, &on(PROCESSORS[0], sockperf_client(port)))?.stdout, "percentile 50.000 =")
        }
        Arm::Ropeway => builtin::of_tcp(bed, &[OURS, &PIN].concat()),
    })?;
    server.stop();
    Ok(vec![Row::of_tcp(
        "ping-pong: sockperf and ropeway bench",
        ("us", Better::Less),
        Goal::Same { within: 0.1 },
        rounds,
    )])
}

/// One stream, written in pieces of 128 KiB: the mean after a warm-up, of both.
pub fn iperf3(bed: &Bed) -> Result<Vec<Row>> {
    const OURS: &[&str] = &["stream", "--size", "128Ki"];
    let port = bed.port();
    let server = bed.server(Arm::Tcp, &iperf3_server(port)?, port)?;
    let options = ["-l", "128K", "-A", &PROCESSORS.join(","), "-O", "1"];
    let rounds = bed.in_turn(|arm| match arm {
        Arm::Tcp => iperf3_client(bed, arm, port, &options),
        // In GB/s.
        Arm::Ropeway => Ok(8.0 * builtin::of_tcp(bed, &[OURS, &PIN].concat())?),
    })?;
    server.stop();
    Ok(vec![Row::of_tcp(
        "stream: iperf3 and ropeway bench",
        ("Gbit/s", Better::More),
        Goal::Same { within: 0.1 },
        rounds,
    )])
}

/// On one processor.
fn on(processor: &str, program: Command) -> Command {
    let mut bound = command("taskset", ["-c", processor]);
    bound.arg(program.get_program()).args(program.get_args());
    bound
}
