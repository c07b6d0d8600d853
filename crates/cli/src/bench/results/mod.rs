//! `ropeway bench compare`, `report` and `plot`: everything that is made from result files. Nothing here measures.

mod compare;
mod plot;
mod report;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use ropeway_measure::results::read::{self, ReadError, Results};
use ropeway_measure::results::select;

use crate::output::tell;

/// What can be made from result files.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say of each common case which of two results is faster, by how much, and how sure that is
    Compare(compare::Args),
    /// Make one page of HTML with tables and figures that needs nothing else
    Report(report::Args),
    /// Draw one figure as SVG or PNG, or write a table for other programs
    Plot(plot::Args),
}

/// Runs the command. Exit code 1: it failed, or `--fail-if-slower` found something slower.
pub fn main(command: Command) -> ExitCode {
    let done = match command {
        Command::Compare(args) => compare::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Plot(args) => plot::main(&args),
    };
    done.unwrap_or_else(|error| {
        tell!("ropeway bench: {error}");
        ExitCode::FAILURE
    })
}

/// All runs of some files and directories.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Results>, ReadError> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(read::read(path)?);
    }
    Ok(all)
}

/// Writes a file, and says the path when that fails.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    std::fs::write(path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Whether the reader of a pipe that has gone is all that went wrong.
fn unless_closed(done: io::Result<()>) -> Result<(), String> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| format!("cannot write: {error}")),
    }
}

/// Refuses a baseline that was not measured.
fn known_transport(results: &[Results], name: Option<&str>) -> Result<(), String> {
    let known = select::transports(results);
    match name {
        Some(name) if !known.iter().any(|known| known == name) => {
            Err(format!("there is no transport {name} in these results; there are: {}", known.join(", ")))
        }
        _ => Ok(()),
    }
}
