//! A rank: an ordinary program that does what the coordinator says. It cannot outlive it.

use std::io;

use ropeway_measure::ranks::{job, serve};
use rustix::process::{Signal, set_parent_process_death_signal};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tell what the network devices of this host do in place of the processor
    #[arg(long)]
    devices: bool,
    /// Join the coordinator at this address, unix:PATH, instead of standard input and output
    #[arg(long, value_name = "ADDRESS")]
    control: Option<String>,
}

pub fn main(args: &Args) -> io::Result<()> {
    // On this host at once; elsewhere at the end of the input, which a trial in progress delays for as long as it lasts.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(address) = &args.control {
        return job::join(address, args.devices);
    }
    serve::serve(io::stdin().lock(), io::stdout().lock(), args.devices, None)
}
