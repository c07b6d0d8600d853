//! Cases on nginx: keep-alive, and a connection for each request.

use super::bed::{Arm, Bed};
use super::row::{Better, Goal, Needs, Row};
use super::tools::{Pair, number_after};
use crate::Result;
use ropeway_testkit::proc::command;
use ropeway_testkit::servers;

/// The file that is asked for.
const FILE_BYTES: usize = 1024;

fn start(bed: &Bed) -> Result<Pair> {
    Pair::start(bed, |port| {
        let (dir, root) = (bed.dir("nginx")?, bed.dir("www")?);
        servers::make_file(&root.join("1k"), FILE_BYTES);
        Ok(servers::nginx(&dir, &root, port))
    })
}

fn wrk(bed: &Bed, arm: Arm, port: u16, options: &[&str]) -> Result<f64> {
    let mut client = command("wrk", ["-t", "1", "-d", "1s"]);
    client.args(options).arg(format!("http://127.0.0.1:{port}/1k"));
    let output = bed.client(arm, &client)?.stdout;
    if output.contains("Non-2xx") || output.contains("Socket errors") {
        return Err(format!("wrk saw errors:\n{output}").into());
    }
    number_after(&output, "Requests/sec:")
}

/// Keep-alive; `servers::nginx` has two workers, as many as the reference machine has cores.
pub fn keep_alive(bed: &Bed) -> Result<Vec<Row>> {
    let pair = start(bed)?;
    let rounds = bed.in_turn(|arm| wrk(bed, arm, pair.port(arm), &["-c", "64"]))?;
    pair.stop(bed);
    let goal = Goal::Times { at_least: 1.3, aim: 2.0 };
    Ok(vec![Row::new(
        "wrk -c 64 on nginx, 1 KiB, keep-alive",
        ("req/s", Better::More),
        goal,
        rounds,
        (Needs::Shm, &bed.carried()),
    )])
}

/// Connect, one request, close: too short to move to shared memory, so all that is asked is that Ropeway costs nothing.
pub fn short(bed: &Bed) -> Result<Vec<Row>> {
    let goal = Goal::Times { at_least: 0.95, aim: 1.0 };
    let pair = start(bed)?;
    let wrk = bed.in_turn(|arm| wrk(bed, arm, pair.port(arm), &["-c", "16", "-H", "Connection: close"]))?;
    let wrk_carried = bed.carried();
    let ab = bed.in_turn(|arm| {
        let url = format!("http://127.0.0.1:{}/1k", pair.port(arm));
        let output = bed.client(arm, &command("ab", ["-q", "-c", "16", "-n", "10000", &url]))?.stdout;
        match number_after(&output, "Failed requests:")? {
            0.0 => number_after(&output, "Requests per second:"),
            failed => Err(format!("ab saw {failed} failed requests").into()),
        }
    })?;
    let ab_carried = bed.carried();
    pair.stop(bed);
    let unit = ("req/s", Better::More);
    Ok(vec![
        Row::new("wrk, Connection: close", unit, goal, wrk, (Needs::Preload, &wrk_carried)),
        Row::new("ab, a connection each", unit, goal, ab, (Needs::Preload, &ab_carried)),
    ])
}
