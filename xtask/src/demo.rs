//! `cargo xtask demo`: some of the cases of `figures`, fewer rounds, in one table for a first look.
//!
//! Every program is run with the same arguments on both sides; the only difference is `ropeway run --` in front of the server
//! and of the client. The sides take turns (TCP, Ropeway, TCP, Ropeway, ...), so that whatever else the machine does meets both.

use crate::Result;
use crate::figures::row::{Goal, Row};
use crate::figures::stored::{self, Outcome, Stored};
use crate::figures::{cases, measure_into};
use crate::product::{self, Build};

/// What a first look should show; each takes a few seconds.
const CASES: [&str; 6] = ["redis-c1", "redis-c50", "redis-c50-p16", "iperf3", "iperf3-p8", "pingpong"];

/// Enough for a median; keeps the measurements at about a minute.
const ROUNDS: u32 = 3;

/// Runs the demo; `false` when something that could run failed, or Ropeway left the bytes on TCP.
pub fn run() -> Result<bool> {
    let chosen = CASES.iter().map(|name| cases::find(name)).collect::<Result<Vec<_>>>()?;
    let out = tempfile::tempdir().map_err(|e| format!("cannot create a temporary directory: {e}"))?;
    println!("The same programs over TCP and over Ropeway, in turn; about a minute once Ropeway is compiled.");
    if !product::is_built() {
        println!("Compiling first, which takes some minutes.");
    }
    measure_into(out.path(), &chosen, ROUNDS, &Build::Plain)?;
    let cases = CASES.iter().map(|name| Stored::read(&stored::path(out.path(), name))).collect::<Result<Vec<_>>>()?;
    let (text, good) = summary(cases);
    print!("\n{text}");
    Ok(good)
}

/// The table, what carried the bytes, and what is missing; beside it, whether all that could run ran on shared memory.
fn summary(cases: Vec<Stored>) -> (String, bool) {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let mut good = true;
    for Stored { case, outcome, .. } in cases {
        match outcome {
            // A row against the limit of the machine has no TCP to compare with.
            Outcome::Measured { rows: measured, .. } => {
                rows.extend(measured.into_iter().filter(|row| !matches!(row.goal, Goal::OfLimit { .. })));
            }
            Outcome::Skipped(reason) => notes.push(format!("{case} skipped: {reason}")),
            Outcome::Failed(reason) => {
                good = false;
                notes.push(format!("{case} failed: {}", reason.trim()));
            }
        }
    }
    for row in rows.iter().filter(|row| !row.carried_as_needed) {
        good = false;
        notes.push(format!(
            "{}: not enough of it moved to shared memory (carried by: {}), so its figures are not Ropeway's and the command ends with an error. \
             A busy machine does that: try again when it has less to do.",
            row.what, row.carried
        ));
    }
    let mut lines = vec![["", "TCP", "Ropeway", "ratio", "carried by"].map(String::from)];
    lines.extend(rows.iter().map(|row| {
        let [what, tcp, ropeway, times, .., carried] = row.cells();
        [what, tcp, ropeway, times, carried]
    }));
    let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
    (format!("{}\n{}\n{notes}", stored::aligned(&lines), proof(&rows)), good)
}

/// What the measured processes under Ropeway counted themselves.
fn proof(rows: &[Row]) -> String {
    let gigabytes = |bytes: fn(&Row) -> u64| rows.iter().map(bytes).sum::<u64>() as f64 / 1e9;
    format!(
        "Medians; a ratio above 1 means that Ropeway is better. By their own --stats, the programs under Ropeway moved \
         {:.2} GB over\nshared memory and {:.3} GB over TCP (where every connection begins).",
        gigabytes(|row| row.shm_bytes),
        gigabytes(|row| row.tcp_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::Better;
    use serde_json::Value;

    fn measured(goal: Goal, carried_as_needed: bool) -> Stored {
        let row = Row {
            what: "redis".into(),
            unit: "req/s".into(),
            better: Better::More,
            goal,
            tcp: vec![10.0, 30.0, 20.0],
            ropeway: vec![30.0, 90.0, 60.0],
            carried: "shm 99.5 %".into(),
            carried_as_needed,
            tcp_bytes: 5_000_000,
            shm_bytes: 995_000_000,
        };
        let outcome = Outcome::Measured { rows: vec![row], commands: Vec::new(), raw: Vec::new() };
        Stored { case: "redis-c1".into(), machine: Value::Null, rounds: 3, outcome }
    }

    const TIMES: Goal = Goal::Times { at_least: 1.0, aim: 2.0 };

    #[test]
    fn medians_ratios_and_what_carried_them_are_shown() {
        let (text, good) = summary(vec![measured(TIMES, true)]);
        assert!(good);
        for part in ["20.0 req/s", "60.0 req/s", "3.00 x", "shm 99.5 %", "0.005 GB over TCP"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_figure_on_the_wrong_carrier_and_a_failed_case_are_not_good_but_a_skipped_case_is() {
        let (text, good) = summary(vec![measured(TIMES, false)]);
        let says_why = |part| text.lines().any(|line| line.starts_with("redis: not enough") && line.contains(part));
        assert!(!good && ["shm 99.5 %", "ends with an error", "busy"].into_iter().all(says_why), "{text}");
        let without = |outcome| Stored::without_figures("iperf3", outcome);
        assert!(!summary(vec![without(Outcome::Failed("it hung".into()))]).1);
        let (text, good) = summary(vec![without(Outcome::Skipped("not installed: iperf3".into()))]);
        assert!(good && text.contains("iperf3 skipped: not installed: iperf3"), "{text}");
    }

    #[test]
    fn limits_of_the_machine_have_no_row() {
        let (text, _) = summary(vec![measured(Goal::OfLimit { at_most: 2.8, aim: 1.7 }, true)]);
        assert!(!text.contains("redis"), "{text}");
    }
}
