//! One of the two measured processes. An ordinary socket program: standard library calls on a TCP or AF_UNIX stream.
//!
//! It prints one line `listening ADDRESS` if it listens, and at the end one line of JSON with what it measured. It cannot outlive its parent,
//! and a bound on its CPU time ends it even if it spins for a peer that never speaks.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use serde::{Deserialize, Serialize};

use super::machine;
use super::patterns::{self, Spinning};
use super::plan::{Pattern, Plan, Text, WARM_UP};
use super::samples::Raw;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_enum)]
    role: Role,
    /// Where to connect; for a listening AF_UNIX worker the name to listen at
    #[arg(long, default_value = "")]
    address: String,
    #[arg(long, value_enum)]
    text: Text,
    #[arg(long, value_enum)]
    pattern: Pattern,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    nanoseconds: u64,
    #[arg(long)]
    batch: u32,
    #[arg(long)]
    cpu: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    Listen,
    Connect,
}

/// The last line of a worker's output.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The samples, from the worker that measures: the connecting one of a ping-pong, else the listening one.
    pub raw: Option<Raw>,
    /// Bytes sent or received in all, in the one-way patterns.
    pub bytes: u64,
}

/// The command line of a worker, the inverse of [`Args`].
pub fn command_line(role: Role, address: &str, text: Text, plan: &Plan) -> Vec<String> {
    let (word, cpu) = match role {
        Role::Listen => ("listen", plan.cpus.map(|c| c.1)),
        Role::Connect => ("connect", plan.cpus.map(|c| c.0)),
    };
    let mut line: Vec<String> = ["bench", "worker", word].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| line.push(format!("--{name}={value}"));
    option("address", address.to_owned());
    option("text", text.name().to_owned());
    option("pattern", plan.pattern.name().to_owned());
    option("size", plan.size.to_string());
    option("nanoseconds", plan.seconds.as_nanos().to_string());
    option("batch", plan.batch.to_string());
    if let Some(cpu) = cpu {
        option("cpu", cpu.to_string());
    }
    line
}

/// Start of the line by which a listening worker tells its address.
pub const LISTENING: &str = "listening ";

pub fn main(args: &Args) -> io::Result<()> {
    let plan = Plan {
        pattern: args.pattern,
        size: args.size,
        seconds: Duration::from_nanos(args.nanoseconds),
        batch: args.batch,
        cpus: None,
    };
    bound_lifetime(&plan)?;
    if let Some(cpu) = args.cpu {
        machine::pin(cpu).map_err(io::Error::other)?;
    }
    let report = match args.text {
        Text::TcpBlocking => work(args.role, &plan, &mut tcp(args)?),
        Text::TcpSpinning => {
            let stream = tcp(args)?;
            stream.set_nonblocking(true)?;
            work(args.role, &plan, &mut Spinning(stream))
        }
        Text::Unix => work(args.role, &plan, &mut unix(args)?),
    }?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// CPU seconds that a worker may use beyond the planned time before the kernel ends it.
const CPU_OVERTIME_S: u64 = 20;

fn bound_lifetime(plan: &Plan) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let most = (WARM_UP + plan.seconds).as_secs() + CPU_OVERTIME_S;
    let hard = getrlimit(Resource::Cpu).maximum;
    setrlimit(Resource::Cpu, Rlimit { current: Some(hard.map_or(most, |hard| hard.min(most))), maximum: hard })?;
    Ok(())
}

fn work<S: Read + Write>(role: Role, plan: &Plan, stream: &mut S) -> io::Result<Report> {
    Ok(match (plan.pattern, role) {
        (Pattern::Pingpong, Role::Connect) => Report { raw: Some(patterns::ping(stream, plan)?), bytes: 0 },
        (Pattern::Pingpong, Role::Listen) => {
            patterns::echo(stream, plan)?;
            Report { raw: None, bytes: 0 }
        }
        (Pattern::Stream | Pattern::Rate, Role::Connect) => Report { raw: None, bytes: patterns::send(stream, plan)? },
        (Pattern::Stream | Pattern::Rate, Role::Listen) => {
            let (raw, bytes) = patterns::receive(stream, plan)?;
            Report { raw: Some(raw), bytes }
        }
    })
}

fn tcp(args: &Args) -> io::Result<TcpStream> {
    let stream = match args.role {
        Role::Connect => TcpStream::connect(&args.address)?,
        Role::Listen => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            println!("{LISTENING}{}", listener.local_addr()?);
            listener.accept()?.0
        }
    };
    if args.pattern == Pattern::Pingpong {
        // What a program that cares about latency does. The one-way patterns keep the default: joining small sends helps TCP there.
        stream.set_nodelay(true)?;
    }
    Ok(stream)
}

fn unix(args: &Args) -> io::Result<UnixStream> {
    // An abstract name: no file is left behind if a worker is killed.
    let name = SocketAddr::from_abstract_name(&args.address)?;
    match args.role {
        Role::Connect => UnixStream::connect_addr(&name),
        Role::Listen => {
            let listener = UnixListener::bind_addr(&name)?;
            println!("{LISTENING}{}", args.address);
            Ok(listener.accept()?.0)
        }
    }
}
