//! Cases measured by `ropeway bench`, which interleaves its own rounds and pins its own processes.

use super::bed::{Bed, Carried, Rounds};
use super::row::{Better, Goal, Needs, Row};
use crate::Result;
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::LOAD_LIMIT;
use serde_json::Value;

/// Length of a round of one transport. A round of all five takes 2 s, and a virtual machine stays on the same cores for most rounds.
const ROUND_SECONDS: &str = "0.25";

/// The description of the machine.
pub fn machine(bed: &Bed) -> Result<Value> {
    bench(bed, &["bench", "machine"])
}

/// 1-byte ping-pong against the limit of the machine and against a spinning TCP.
pub fn pingpong(bed: &Bed) -> Result<Vec<Row>> {
    let report = measure(bed, "pingpong")?;
    let ropeway = figures(&report, "ropeway")?;
    let carried = carried(&report);
    let against = |what: &str, goal: Goal, peer: &str| -> Result<Row> {
        let rounds = Rounds { tcp: figures(&report, peer)?, ropeway: ropeway.clone() };
        Ok(Row::new(what, ("us", Better::Less), goal, rounds, (Needs::Shm, &carried)))
    };
    let rows = vec![
        against("1-byte ping-pong against the cache line", Goal::OfLimit { at_most: 2.8, aim: 1.7 }, "cache-line")?,
        against("1-byte ping-pong against spinning TCP", Goal::Times { at_least: 8.0, aim: 16.0 }, "tcp-spin")?,
    ];
    bed.keep(report);
    Ok(rows)
}

/// 8-byte messages in one direction.
pub fn rate(bed: &Bed) -> Result<Vec<Row>> {
    let report = measure(bed, "rate")?;
    let rounds = Rounds { tcp: figures(&report, "tcp")?, ropeway: figures(&report, "ropeway")? };
    let goal = Goal::Above { at_least: 10.0, aim: 20.0 };
    let row = Row::new(
        "8-byte messages, one send() each",
        ("M/s", Better::More),
        goal,
        rounds,
        (Needs::Shm, &carried(&report)),
    );
    bed.keep(report);
    Ok(vec![row])
}

/// The figure of one round of kernel TCP.
pub fn of_tcp(bed: &Bed, args: &[&str]) -> Result<f64> {
    let options = ["--transport", "tcp", "--rounds", "1", "--seconds", "1", "--json"];
    let report = bench(bed, &[&["bench"], args, &options].concat())?;
    let figure = figures(&report, "tcp")?.first().copied();
    bed.keep(report);
    figure.ok_or_else(|| "ropeway bench has no figure".into())
}

fn measure(bed: &Bed, pattern: &str) -> Result<Value> {
    let rounds = bed.count().to_string();
    bench(bed, &["bench", pattern, "--json", "--seconds", ROUND_SECONDS, "--rounds", &rounds])
}

fn bench(bed: &Bed, args: &[&str]) -> Result<Value> {
    bed.note(&command("ropeway", args));
    // In the world of this case, so that a daemon that it needs ends with it.
    let finished = Process::spawn(bed.world().ropeway_command(args)).wait(LOAD_LIMIT)?;
    serde_json::from_str(&finished.stdout).map_err(|e| {
        format!("`{}` did not print its result ({e}): {}", finished.command, finished.stderr.trim()).into()
    })
}

fn row<'a>(report: &'a Value, transport: &str) -> Option<&'a Value> {
    report["rows"].as_array()?.iter().find(|row| row["transport"] == transport)
}

/// The figures of a transport, round by round.
fn figures(report: &Value, transport: &str) -> Result<Vec<f64>> {
    let row = row(report, transport).ok_or_else(|| format!("ropeway bench has no row {transport}"))?;
    let rounds = row["rounds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let figures: Vec<f64> = rounds.iter().filter_map(|round| round["figure"].as_f64()).collect();
    if row["failures"].as_array().is_some_and(Vec::is_empty) {
        Ok(figures)
    } else {
        Err(format!("ropeway bench could not measure {transport}: {}", row["failures"]).into())
    }
}

/// What carried the bytes of the Ropeway row.
fn carried(report: &Value) -> Carried {
    let Some(carried) = row(report, "ropeway").map(|row| &row["carried"]) else { return Carried::default() };
    let number = |name: &str| carried[name].as_u64().unwrap_or(0);
    Carried {
        processes: number("processes") as usize,
        promoted: number("promoted"),
        tcp_bytes: number("tcp_bytes"),
        shm_bytes: number("shm_bytes"),
        reasons: carried["reasons"].as_object().map(|reasons| reasons.keys().cloned().collect()).unwrap_or_default(),
    }
}
