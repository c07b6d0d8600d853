//! What a message costs in each user-level stage of Ropeway's protocol, in instructions: the stages of document 1, counted by valgrind's callgrind. No network and no other rank takes part.
//!
//! The program that is counted is the example `stages` of `ropeway-proto`, which moves messages between two endpoints in one thread. `ROPEWAY_STAGES` names it; otherwise it is looked for beside the running program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::Trial;
use crate::Failure;
use crate::record::{Metric, Series};

/// Names the program.
const PROGRAM_VAR: &str = "ROPEWAY_STAGES";

const BUILD: &str = "build it with `cargo build --release -p ropeway-proto --example stages`";

/// Messages that are counted: beyond some hundred the mean does not change any more.
const MESSAGES: u32 = 2_000;

/// A stage of document 1: from the message to packets, from packets to the channel's queue, from there to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    Send,
    Receive,
    Copy,
}

impl Stage {
    pub const ALL: [Stage; 3] = [Stage::Send, Stage::Receive, Stage::Copy];

    /// The function that callgrind counts in, with what it calls.
    fn function(self) -> &'static str {
        match self {
            Stage::Send => "stages::send*",
            Stage::Receive => "stages::receive*",
            Stage::Copy => "stages::copy*",
        }
    }
}

/// One stage's instructions, for a message of the trial's size; a sample of each run, which hardly differ. Without a stage: a series of each, in their order.
pub fn run(trial: &Trial, burst: u32, stage: Option<Stage>) -> Result<Vec<Series>, Failure> {
    let program = find_program()?;
    let stages = stage.map_or(Stage::ALL.to_vec(), |stage| vec![stage]);
    let count = |stage| count(OsStr::new("valgrind"), &program, stage, trial.size, burst);
    stages.into_iter().map(|stage| Ok(Series::samples(Metric::Instructions, 1, vec![count(stage)?]))).collect()
}

/// Instructions of a message in a stage.
fn count(valgrind: &OsStr, program: &Path, stage: Stage, size: usize, burst: u32) -> Result<f64, Failure> {
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={}", stage.function()));
    command.arg(program).args([size.to_string(), MESSAGES.to_string(), burst.to_string()]);
    let output = command.output().map_err(|error| {
        Failure::Unsupported(format!(
            "cannot run valgrind ({error}); it counts the instructions: install it (Debian: apt-get install valgrind)"
        ))
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().rev().find_map(|line| line.split_once("Collected :")?.1.trim().parse::<f64>().ok());
    match collected.filter(|_| output.status.success()) {
        Some(instructions) if instructions > 0.0 => Ok(instructions / f64::from(MESSAGES / burst * burst)),
        Some(_) => Err(Failure::Unsupported(format!(
            "valgrind found no function {} in {}: {BUILD}",
            stage.function(),
            program.display()
        ))),
        None => {
            let last = said.lines().last().unwrap_or("it said nothing").to_owned();
            Err(Failure::Unsupported(format!(
                "valgrind could not count {} ({}): {last}",
                program.display(),
                output.status
            )))
        }
    }
}

/// The program that [`PROGRAM_VAR`] names, or the example as cargo builds it beside this program or its tests.
fn find_program() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(PROGRAM_VAR).map(PathBuf::from) {
        let missing = || Failure::Unsupported(format!("{PROGRAM_VAR} is {}, which is no file", named.display()));
        return if named.is_file() { Ok(named.clone()) } else { Err(missing()) };
    }
    let own = std::env::current_exe().map_err(Failure::system("find out where this program is"))?;
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join("examples/stages")).find(|path| path.is_file());
    found.ok_or_else(|| {
        Failure::Unsupported(format!(
            "the program `stages` is not beside this one: {BUILD}, or name it with {PROGRAM_VAR}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_valgrind_is_named_with_what_to_do() {
        let missing = OsStr::new("/nonexistent/valgrind");
        let error = count(missing, Path::new("/bin/true"), Stage::Send, 1472, 8).expect_err("no such program");
        assert!(error.to_string().contains("apt-get install valgrind"), "{error}");
    }

    #[test]
    fn a_program_without_the_stages_is_an_error_and_not_a_zero() {
        ropeway_testkit::need_program!("valgrind");
        let error = count(OsStr::new("valgrind"), Path::new("/bin/true"), Stage::Send, 1472, 8).expect_err("no stages");
        assert!(error.to_string().contains("cargo build --release -p ropeway-proto"), "{error}");
    }
}
