//! `ropeway bench`: measures transports under communication patterns, side by side in one run ([how](../../../../docs/measuring.md)).
//!
//! [`options`] makes a plan of the arguments, [`interrupt`] hears of Ctrl-C, [`watch`] shows and keeps what the coordinator of `ropeway-measure` finds, [`table`] is what a person reads at the end, [`rank`] the process
//! that is started for each rank. What does not live here: transports, patterns, statistics.

mod interrupt;
mod options;
mod rank;
mod results;
mod sizes;
mod suite;
mod table;
mod watch;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use ropeway_measure::ranks::job;
use ropeway_measure::{machine, run};
use serde_json::json;

use interrupt::{Interrupt, Second};
use options::Options;

use crate::output;
use crate::output::tell;

/// Measures transports side by side: Ropeway, TCP, UDP, AF_UNIX and the limits of this machine.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = options::catalogues())]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    measure: Option<Options>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Results(results::Command),
    /// Measure many things one after the other, and make one page of them
    Suite(suite::Args),
    /// Describe the machine as results do, and measure nothing
    Machine,
    /// Compile ahead what transport mpi needs of this machine's MPI, and print where it is
    MpiShim {
        /// The program that starts its ranks
        #[arg(long, value_name = "COMMAND", default_value = options::MPIRUN)]
        mpirun: String,
    },
    /// One of the measured processes (started by the coordinator)
    #[command(hide = true)]
    Rank(rank::Args),
}

/// Runs the command. Exit code 1: something that was asked for could not be measured, or the result could not be written.
pub fn main(args: Args) -> ExitCode {
    let done = match (args.command, args.measure) {
        (Some(Command::Results(command)), _) => return results::main(command),
        (Some(Command::Suite(args)), _) => suite::main(&args),
        (Some(Command::Machine), _) => print_json(&describe()).map(|()| ExitCode::SUCCESS),
        (Some(Command::MpiShim { mpirun }), _) => {
            job::build_shim(&mpirun).and_then(|shim| show(&format!("{}\n", shim.display()))).map(|()| ExitCode::SUCCESS)
        }
        (Some(Command::Rank(args)), _) => rank::main(&args).map(|()| ExitCode::SUCCESS).map_err(|e| e.to_string()),
        (None, Some(options)) => measure(&options),
        (None, None) => Err("name a pattern; `ropeway bench --help` lists them".to_owned()),
    };
    done.unwrap_or_else(|message| {
        tell!("ropeway bench: {message}");
        ExitCode::FAILURE
    })
}

/// Measures what was asked for and shows it.
fn measure(options: &Options) -> Result<ExitCode, String> {
    match job::launched() {
        Some((0, size)) => return Err(under_a_launcher(size)),
        // One sentence is enough.
        Some(_) => return Ok(ExitCode::FAILURE),
        None => {}
    }
    let mut plan = options.plan()?;
    options.bring_program(&mut plan)?;
    let interrupt = Interrupt::heed(Second::Ends)?;
    let mut watch = watch::Watch::new(&plan, options)?;
    let broken_off = || interrupt.is_asked();
    let outcome = run::run(&plan, &mut watch, &broken_off)?;
    let table = watch.finish();
    if options.json {
        print_json(&table)?;
    } else if options.csv {
        show(&table.csv())?;
    } else {
        show(&table.to_string())?;
    }
    Ok(match (interrupt.exit_code(), outcome.failed) {
        (Some(code), _) if outcome.broken_off => ExitCode::from(code),
        (_, 0) if table.complete() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn under_a_launcher(size: usize) -> String {
    format!(
        "a launcher (mpirun, srun) has started this {size} times, but it is to start the ranks, and this program once: instead of `mpirun ARGUMENTS \
         ropeway bench ...` say `ropeway bench ... --launcher \"mpirun ARGUMENTS\"`, with --ranks, and --meet if some are on other hosts"
    )
}

/// The machine, with what else belongs to a figure.
fn describe() -> serde_json::Value {
    let mut machine = json!(machine::describe(true));
    machine["measured_at_unix_s"] = json!(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()));
    machine["ropeway_version"] = json!(env!("CARGO_PKG_VERSION"));
    machine["commit"] = json!(run::commit());
    machine
}

fn print_json(value: &impl serde::Serialize) -> Result<(), String> {
    show(&format!("{}\n", serde_json::to_string(value).map_err(|e| e.to_string())?))
}

fn show(text: &str) -> Result<(), String> {
    output::show(text).map_err(|error| error.to_string())
}
