//! `ropeway bench`: a small A/B of the ways two processes of one host can exchange bytes.
//!
//! Every transport is measured in the same run, round by round in turn (A B C, A B C, ...), with the same worker program and on the same two
//! cores, so that a ratio between two rows compares like with like. The Ropeway row runs the *TCP worker* under `ropeway run`: nothing in the
//! worker knows about Ropeway, and the row says from the statistics file what really carried the bytes.
//!
//! What lives where: [`worker`] is the measured process, [`patterns`] what it does on its stream, [`floor`] the limits of the machine,
//! [`pair`] starts two workers and never waits without a deadline, [`report`] turns rounds into rows, [`machine`] describes the host.

mod carried;
mod floor;
mod machine;
mod pair;
mod patterns;
mod plan;
mod report;
mod results;
mod samples;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use plan::{Pattern, Plan, Transport};

/// Compares Ropeway with TCP, AF_UNIX and the limits of this machine, side by side in one run.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One-way latency: a message goes back and forth between two processes (half of the round trip is reported)
    Pingpong(Options),
    /// Throughput of a stream in one direction, in writes of --size bytes
    Stream(Options),
    /// Small messages in one direction: one send() each, received in pieces of up to 64 KiB
    Rate(Options),
    #[command(flatten)]
    Results(results::Command),
    /// Describe the machine as --json does, and measure nothing
    Machine,
    /// One of the two measured processes (started by the commands above)
    #[command(hide = true)]
    Worker(worker::Args),
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Bytes of one message or write [default: pingpong 1, stream 131072, rate 8]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    size: Option<u32>,
    /// Length of one round of one transport, in seconds, after a warm-up of 0.15 s
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// Rounds of each transport
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure only these transports (repeat the option, or separate by commas)
    #[arg(long = "transport", value_enum, value_delimiter = ',')]
    transports: Vec<Transport>,
    /// The two CPUs for the sending and the receiving process [default: the first two cores that this process may use]
    #[arg(long, value_name = "A,B", value_parser = cpu_pair)]
    pin: Option<(usize, usize)>,
    /// Print one JSON object with the raw samples of every round instead of the table
    #[arg(long)]
    json: bool,
    /// Write the JSON object to this file as well
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Longest round that can be asked for; bounds the memory for samples.
const LONGEST_ROUND_S: f64 = 60.0;

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= LONGEST_ROUND_S => Ok(value),
        _ => Err(format!("give a number of seconds above 0 and up to {LONGEST_ROUND_S}")),
    }
}

fn cpu_pair(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once(',').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    match parsed {
        Some((a, b)) if a != b => Ok((a, b)),
        _ => Err("give two different CPU numbers, such as 0,1".to_owned()),
    }
}

/// Runs the command. Exit code 1: a row that was asked for could not be measured, or the result could not be written.
pub fn main(args: Args) -> ExitCode {
    let done = match args.command {
        Command::Results(command) => return results::main(command),
        Command::Pingpong(options) => compare(Pattern::Pingpong, options),
        Command::Stream(options) => compare(Pattern::Stream, options),
        Command::Rate(options) => compare(Pattern::Rate, options),
        Command::Machine => print_json(&machine::Machine::describe()).map(|()| true),
        Command::Worker(args) => worker::main(&args).map(|()| true).map_err(|e| e.to_string()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("ropeway bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all rounds; true if every row has a figure.
fn compare(pattern: Pattern, options: Options) -> Result<bool, String> {
    let cpus = machine::choose_cpus(options.pin)?;
    let clock_ns = samples::clock_cost_ns();
    let plan = Plan {
        pattern,
        size: options.size.map_or(pattern.default_size(), |size| size as usize),
        seconds: Duration::from_secs_f64(options.seconds),
        batch: samples::batch_for_clock(clock_ns),
        cpus,
    };
    let mut transports = options.transports;
    if transports.is_empty() {
        transports = pattern.default_transports().to_vec();
        // The report notes that there is only one CPU; the row could only say so again.
        transports.retain(|transport| cpus.is_some() || *transport != Transport::CacheLine);
    }
    if let Some(wrong) = transports.iter().find(|t| !t.measures(pattern)) {
        let name = wrong.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        return Err(format!("the transport {name} has no {} measurement", pattern.name()));
    }

    let mut comparison = report::Comparison::new(&plan, options.rounds, clock_ns, &transports);
    for round in 0..options.rounds {
        for (row, &transport) in transports.iter().enumerate() {
            if !options.json {
                report::progress(round, options.rounds, transport);
            }
            comparison.add(round, row, pair::measure(transport, &plan));
        }
    }
    if !options.json {
        report::progress_done();
    }
    let report = comparison.finish();
    if let Some(path) = &options.out {
        let text = serde_json::to_string(&report).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    if options.json {
        print_json(&report)?;
    } else {
        print!("{report}");
    }
    Ok(report.complete())
}

fn print_json(value: &impl serde::Serialize) -> Result<(), String> {
    println!("{}", serde_json::to_string(value).map_err(|e| e.to_string())?);
    Ok(())
}
