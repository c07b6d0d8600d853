//! `ropeway box`: a cluster in a box, network namespaces joined by a switch with real rates and buffers.
//!
//! [`plan`] works out what a box consists of, [`switch`] writes the commands that make a switch of a namespace, [`up`] and [`down`]
//! make it and take it away, [`status`] reads what is there, [`exec`] runs programs inside. A box has no daemon (but on a kernel without
//! netem the process of [`delay`]) and no file that says what it is: all of it is in the kernel, where [`names`] finds it again. docs/box.md says what is honest about it and what is not.

mod delay;
mod down;
mod error;
mod exec;
mod hysteresis;
mod label;
mod lock;
mod names;
mod netns;
mod offloads;
mod plan;
mod status;
mod switch;
mod tools;
mod units;
mod up;

use std::ffi::OsString;
use std::fs::File;
use std::process::ExitCode;

use serde::Serialize;

use crate::config::Size;
use crate::output;
use crate::output::{EXIT_USAGE, tell};
use crate::run::EXIT_ROPEWAY;
use error::{Error, Result};
use names::{BoxName, Found, Member};
use plan::{MAX_GATEWAYS, MAX_HOSTS, MAX_MTU_BYTES, MIN_MTU_BYTES, Options, Plan, Shaper};
use switch::{Direction, Fault};
use tools::{Tool, batch};
use units::{Delay, Rate, Share};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The name of the box; several can live at the same time
    #[arg(long, value_name = "NAME", default_value = "box", global = true)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a box: hosts h1, h2, ... at the ports of a switch
    Up(Up),
    /// Run a program in a host (or in `switch`), and exit as it does
    Exec {
        /// The host: h1, h2, ..., g1, ..., or switch
        host: String,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Let nothing pass to or from a host any more; its link stays up, as when something further away breaks
    Cut {
        /// The host, or one port of it, as `status` names them
        host: String,
    },
    /// End a cut
    Heal {
        /// The host, or one port of it
        host: String,
    },
    /// Lose a share of the frames of a host, at random, on the way to it and on the way from it
    Loss(Loss),
    /// Show the ports: queue, drops, frames sent and received, cuts and losses
    Status {
        /// Print one object of JSON
        #[arg(long)]
        json: bool,
    },
    /// List the boxes on this machine
    List {
        /// Print one array of JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a box away, with the processes that run in it
    Down {
        /// All boxes on this machine
        #[arg(long)]
        all: bool,
    },
    /// The process that delays frames, which `up` starts
    #[command(hide = true)]
    DelayLine(delay::Args),
}

#[derive(clap::Args, Debug)]
struct Up {
    /// How many hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_HOSTS)))]
    hosts: u8,
    /// The rate of each port of the switch, like 1gbit or 100mbit; without it nothing is held back
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// What a port can hold of frames that wait for its line
    #[arg(long, value_name = "SIZE", default_value = "128KiB", requires = "rate")]
    port_buffer: Size,
    /// The rate of each host's own interface; without it hosts send to the switch as fast as the processors can
    #[arg(long, value_name = "RATE", requires = "rate")]
    host_rate: Option<Rate>,
    /// What holds ports to their rate: htb, which costs the processors least and needs the kernel's switch htb_hysteresis, for the whole machine, while the
    /// box is there; or tbf [default: htb where the kernel has it and lets that switch be set, and there is no netem in front of it]
    #[arg(long, value_name = "SHAPER", requires = "rate")]
    shaper: Option<Shaper>,
    /// How long each frame is under way between two hosts, besides its time on the line, like 50us; by the kernel's netem, or by a process
    /// of the box where the kernel has none, which is less exact and takes fewer frames (`status` says which)
    #[arg(long, value_name = "TIME")]
    delay: Option<Delay>,
    /// The largest payload of a frame, in bytes
    #[arg(long, value_name = "BYTES", default_value = "1500",
          value_parser = clap::value_parser!(u32).range(i64::from(MIN_MTU_BYTES)..=i64::from(MAX_MTU_BYTES)))]
    mtu: u32,
    /// Gateways g1, g2, ... between two segments, `compute` and `io`
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_GATEWAYS)))]
    gateways: u8,
    /// How many of the hosts, the last ones, are on `io` behind the gateways [default: half of them]
    #[arg(long, value_name = "N")]
    io_hosts: Option<u8>,
    /// Have frames of at most the MTU, and in order, without a rate too
    #[arg(long)]
    wire_frames: bool,
}

#[derive(clap::Args, Debug)]
struct Loss {
    /// The host, or one port of it
    host: String,
    /// The share, like 1% or 0.05%; 0% ends it
    share: Share,
    /// Only on the way to the host
    #[arg(long)]
    to: bool,
    /// Only on the way from the host
    #[arg(long, conflicts_with = "to")]
    from: bool,
}

pub fn main(args: &Args) -> ExitCode {
    let (verb, failure) = match &args.command {
        Command::Up(_) => ("up", 1),
        Command::Exec { .. } => ("exec", EXIT_ROPEWAY),
        Command::Cut { .. } => ("cut", 1),
        Command::Heal { .. } => ("heal", 1),
        Command::Loss(_) => ("loss", 1),
        Command::Status { .. } => ("status", 1),
        Command::List { .. } => ("list", 1),
        Command::Down { .. } => ("down", 1),
        Command::DelayLine(args) => return delay::run(args),
    };
    run(args).unwrap_or_else(|error| {
        tell!("ropeway box {verb}: {error}");
        let is_usage = matches!(error, Error::BadName(_) | Error::BadOptions(_));
        ExitCode::from(if is_usage && failure != EXIT_ROPEWAY { EXIT_USAGE } else { failure })
    })
}

fn run(args: &Args) -> Result<ExitCode> {
    let name: BoxName = args.name.parse()?;
    if let Command::List { json } = args.command {
        return list(json);
    }
    if let Command::Up(up) = &args.command {
        let plan = Plan::new(&name, &up.options())?;
        need_root_and_tools("makes network namespaces and their devices")?;
        return up::up(&plan).map(|()| ExitCode::SUCCESS);
    }
    need_root_and_tools("enters network namespaces")?;
    if let Command::Down { all } = args.command {
        return if all { down::all() } else { down::down(&name) }.map(|()| ExitCode::SUCCESS);
    }
    let found = names::find(&name)?;
    match &args.command {
        Command::Exec { host, command } => return exec::exec(&found, found.find(host)?, command),
        Command::Cut { host } => set_fault(&found, host, Fault::Cut, &Direction::BOTH)?,
        Command::Heal { host } => clear_fault(&found, host, Fault::Cut, &Direction::BOTH)?,
        Command::Loss(loss) if loss.share == Share::NONE => {
            clear_fault(&found, &loss.host, Fault::Loss(loss.share), &loss.directions())?;
        }
        Command::Loss(loss) => set_fault(&found, &loss.host, Fault::Loss(loss.share), &loss.directions())?,
        Command::Status { json } => {
            let status = status::status(&found)?;
            show(&if *json { to_json(&status)? } else { status::table(&status) })?;
        }
        Command::Up(_) | Command::List { .. } | Command::Down { .. } | Command::DelayLine(_) => {}
    }
    Ok(ExitCode::SUCCESS)
}

impl Up {
    fn options(&self) -> Options {
        Options {
            hosts: self.hosts,
            gateways: self.gateways,
            io_hosts: self.io_hosts,
            rate: self.rate,
            port_buffer_bytes: self.port_buffer.0,
            host_rate: self.host_rate,
            shaper: self.shaper,
            delay: self.delay,
            mtu: self.mtu,
            wire_frames: self.wire_frames,
        }
    }
}

impl Loss {
    fn directions(&self) -> Vec<Direction> {
        match (self.from, self.to) {
            (true, _) => vec![Direction::FromHost],
            (_, true) => vec![Direction::ToHost],
            _ => Direction::BOTH.to_vec(),
        }
    }
}

fn need_root_and_tools(what: &'static str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot { what });
    }
    Tool::ALL.into_iter().try_for_each(|tool| tool.path().map(drop))
}

/// Others that change the box wait: what one has seen there another could take away before it does.
fn lock(found: &Found) -> Result<File> {
    found.namespace(Member::Switch).lock()
}

fn set_fault(found: &Found, host: &str, fault: Fault, directions: &[Direction]) -> Result<()> {
    let ports = status::ports_of(found, host)?;
    let _lock = lock(found)?;
    let set = ports.iter().flat_map(|leg| directions.iter().map(|direction| fault.set(&leg.port(), *direction)));
    batch(Tool::Tc, Some(&found.namespace(Member::Switch)), &set.collect::<Vec<_>>())
}

/// Takes away faults of this kind where there are any.
fn clear_fault(found: &Found, host: &str, fault: Fault, directions: &[Direction]) -> Result<()> {
    let ports = status::ports_of(found, host)?;
    let _lock = lock(found)?;
    let present = status::faults(found, &ports)?;
    let is_meant = |(direction, other): &&(Direction, Fault)| {
        directions.contains(direction) && std::mem::discriminant(other) == std::mem::discriminant(&fault)
    };
    let unset = ports.iter().zip(&present).flat_map(|(leg, faults)| {
        faults
            .iter()
            .filter(is_meant)
            .map(|(direction, fault)| fault.unset(&leg.port(), *direction))
            .collect::<Vec<_>>()
    });
    batch(Tool::Tc, Some(&found.namespace(Member::Switch)), &unset.collect::<Vec<_>>())
}

/// A box in the output of `list`.
#[derive(Serialize)]
struct Listed {
    name: String,
    hosts: Vec<String>,
}

fn list(json: bool) -> Result<ExitCode> {
    let listed = names::boxes()?.into_iter().map(|found| Listed {
        name: found.name.to_string(),
        hosts: found.hosts().map(|member| member.to_string()).collect(),
    });
    let listed: Vec<Listed> = listed.collect();
    let line = |listed: &Listed| format!("{}: {}\n", listed.name, listed.hosts.join(" "));
    show(&if json { to_json(&listed)? } else { listed.iter().map(line).collect() })?;
    Ok(ExitCode::SUCCESS)
}

fn to_json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|e| Error::system("write JSON")(std::io::Error::other(e)))?;
    Ok(text + "\n")
}

fn show(text: &str) -> Result<()> {
    output::show(text).map_err(Error::system("write to standard output"))
}
