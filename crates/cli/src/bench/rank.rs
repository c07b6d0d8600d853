//! A rank: an ordinary program that does what the coordinator says. It cannot outlive it.

use std::io;
use std::os::fd::AsFd;

use ropeway_measure::ranks::{job, serve};
use rustix::process::{Signal, set_parent_process_death_signal};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tell what the network devices of this host do in place of the processor
    #[arg(long)]
    devices: bool,
    /// Join the coordinator at this address, instead of standard input and output
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
}

pub fn main(args: &Args) -> io::Result<()> {
    // Of what started it here; between that and the coordinator may be others, such as ssh.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(address) = &args.control {
        return job::join(address, args.devices);
    }
    job::end_with(io::stdin().as_fd().try_clone_to_owned()?)?;
    serve::serve(io::stdin().lock(), io::stdout().lock(), args.devices, None)
}
