//! `ropeway bench` against the tools that people know, on kernel TCP and in turn: whether its figures are theirs.

use super::bed::{Arm, Bed};
use super::builtin;
use super::row::{Better, Goal, Row, median};
use super::tools::{iperf3_report, iperf3_server, number_after, sockperf_client, sockperf_server};
use crate::Result;
use ropeway_testkit::proc::command;
use serde_json::Value;
use std::process::Command;

/// The processors of client and server, as `ropeway bench` chooses them on two.
const PROCESSORS: [&str; 2] = ["0", "1"];

/// Half of a round trip of as many bytes as sockperf sends, every trip timed alone: the medians of both.
pub fn sockperf(bed: &Bed) -> Result<Vec<Row>> {
    const OURS: &[&str] = &["pingpong", "--size", "14", "--set", "batch=1"];
    let port = bed.port();
    let server = bed.server(Arm::Tcp, &on(PROCESSORS[1], sockperf_server(port)), port)?;
    let rounds = bed.in_turn(|arm| match arm {
        Arm::Tcp => {
            number_after(&bed.client(arm, &on(PROCESSORS[0], sockperf_client(port)))?.stdout, "percentile 50.000 =")
        }
        Arm::Ropeway => builtin::of_tcp(bed, OURS),
    })?;
    server.stop();
    Ok(vec![Row::of_tcp(
        "ping-pong: sockperf and ropeway bench",
        ("us", Better::Less),
        Goal::Same { within: 0.1 },
        rounds,
    )])
}

/// One stream, written in pieces of 128 KiB: the median over slices of time after a warm-up, as `ropeway bench` says it.
pub fn iperf3(bed: &Bed) -> Result<Vec<Row>> {
    const OURS: &[&str] = &["stream", "--size", "128Ki"];
    let port = bed.port();
    let server = bed.server(Arm::Tcp, &iperf3_server(port)?, port)?;
    let options = ["-l", "128K", "-A", &PROCESSORS.join(","), "-O", "1", "-i", "0.1"];
    let rounds = bed.in_turn(|arm| match arm {
        Arm::Tcp => median_of_intervals(&iperf3_report(bed, arm, port, &options)?),
        // In GB/s.
        Arm::Ropeway => Ok(8.0 * builtin::of_tcp(bed, OURS)?),
    })?;
    server.stop();
    Ok(vec![Row::of_tcp(
        "stream: iperf3 and ropeway bench",
        ("Gbit/s", Better::More),
        Goal::Same { within: 0.1 },
        rounds,
    )])
}

/// In Gbit/s, without those of the warm-up.
fn median_of_intervals(report: &Value) -> Result<f64> {
    let intervals = report["intervals"].as_array().map(Vec::as_slice).unwrap_or_default();
    let counted = intervals.iter().map(|interval| &interval["sum"]).filter(|sum| sum["omitted"] == false);
    let rates: Vec<f64> = counted.filter_map(|sum| sum["bits_per_second"].as_f64()).collect();
    Ok(median(&rates).ok_or("iperf3's report has no intervals")? / 1e9)
}

/// On one processor.
fn on(processor: &str, program: Command) -> Command {
    let mut bound = command("taskset", ["-c", processor]);
    bound.arg(program.get_program()).args(program.get_args());
    bound
}
