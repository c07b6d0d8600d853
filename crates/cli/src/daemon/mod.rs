//! `ropeway daemon`: the rendezvous daemon, and the commands that start, ask and stop it.
//!
//! [`server`] is the event loop, [`registry`] who registered what, [`checks`] the rules, [`diag`] the kernel's knowledge of sockets, [`process`] and
//! [`memory`] what /proc and /sys say, [`closer`] closes what others sent, [`ending`] is the end, [`control`] is the tools' side. The protocol is in `ropeway_socket::rendezvous`.

mod checks;
mod closer;
mod connection;
pub mod control;
pub mod diag;
mod ending;
mod host;
pub mod memory;
mod numbers;
pub mod process;
mod registry;
mod server;

use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ropeway_socket::rendezvous::wire::Message;
use rustix::process::Resource;

use crate::config::{CONFIG_VAR, Config};
use crate::output::tell;
use crate::{output, rlimit};
use control::{Control, ControlError, Entry};

/// How long a daemon may take to start listening.
const START_LIMIT: Duration = Duration::from_secs(1);
/// Longest queue of processes that connected and were not accepted yet. A full one only delays them.
const BACKLOG: i32 = 1024;

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<DaemonCommand>,
    /// Stay in the foreground and report on standard error
    #[arg(long)]
    foreground: bool,
    /// Become the leader of a session of its own first (what the background start uses)
    #[arg(long, hide = true, requires = "foreground")]
    detach: bool,
}

#[derive(clap::Subcommand, Debug)]
enum DaemonCommand {
    /// Show whether the daemon runs, and its counters; exit code 1 if it does not. What is counted as live may have ended: the kernel is asked now and then only
    Status,
    /// Stop the daemon; connections that are already promoted go on
    Stop,
}

pub fn main(args: &Args) -> ExitCode {
    let done = match (&args.command, args.foreground) {
        (Some(DaemonCommand::Status), _) => status(),
        (Some(DaemonCommand::Stop), _) => stop(),
        (None, true) => serve(args.detach),
        (None, false) => start(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("ropeway daemon: {error}");
            ExitCode::FAILURE
        }
    }
}

fn status() -> Result<(), Box<dyn std::error::Error>> {
    let own = control::own_name();
    // Root's daemon serves who has none of his own.
    let root = control::names().into_iter().find(|name| *name != own && running(name).unwrap_or(false));
    let (name, daemon) = match (Control::connect(&own), root) {
        (Err(ControlError::NotRunning(_)), Some(root)) => (root.clone(), Control::connect(&root)?),
        (daemon, _) => (own, daemon?),
    };
    let Message::Status { pid, uid, config_error, counts } = daemon.ask(&Message::StatusQuery {})? else {
        return Err(ControlError::Strange(name).into());
    };
    let config = Config::path().map_or("none (built-in values)".to_owned(), |p| p.display().to_string());
    let mut text = format!("listening at @{name}, pid {pid}, user {uid}\nconfiguration: {config}\n");
    for (counter, value) in counts.each() {
        writeln!(text, "{counter:20} {value}")?;
    }
    daemon.list(|Entry { pid, uid, comm, .. }| {
        text.push_str(&format!("process {pid} of user {uid}: {}\n", output::printable(&comm)));
    })?;
    if config_error {
        let error = Config::load().err().map_or("it is right now".to_owned(), |e| e.to_string());
        writeln!(text, "the configuration file was changed and could not be used: {error}")?;
    }
    Ok(output::show(&text)?)
}

fn stop() -> Result<(), Box<dyn std::error::Error>> {
    let control = match Control::connect(&control::own_name()) {
        Err(ControlError::NotRunning(_)) => return Ok(()), // what was asked for is so
        other => other?,
    };
    match control.ask(&Message::Stop {})? {
        Message::Stopping {} => Ok(control.wait_for_end()?),
        _ => Err(ControlError::Refused.into()),
    }
}

/// Starts a daemon in the background unless one answers already; returns when it listens.
fn start() -> Result<(), Box<dyn std::error::Error>> {
    let name = control::own_name();
    if running(&name)? {
        return Ok(());
    }
    Config::load()?;
    // The daemon outlives this process and belongs to nobody's terminal, directory or preload.
    let mut daemon = Command::new(std::env::current_exe()?);
    daemon.args(["daemon", "--foreground", "--detach"]).current_dir("/");
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    for variable in ["LD_PRELOAD", "ROPEWAY_STATS", "ROPEWAY_STRICT", "ROPEWAY_PROFILE", "ROPEWAY_CHAOS"] {
        daemon.env_remove(variable);
    }
    if let Some(config) = std::env::var_os(CONFIG_VAR).filter(|v| !v.is_empty()) {
        daemon.env(CONFIG_VAR, std::path::absolute(config)?);
    }
    let mut child = daemon.spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    let mut pause = Duration::from_millis(1);
    while Instant::now() < deadline {
        if running(&name)? {
            return Ok(());
        }
        match child.try_wait()? {
            None => {}
            // It found the address taken, by a daemon that was just dying.
            Some(status) if status.success() => child = daemon.spawn()?,
            Some(status) => {
                return Err(format!("it could not start ({status}); `ropeway daemon --foreground` shows why").into());
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let limit = START_LIMIT.as_secs();
    Err(format!("it did not start within {limit} s; `ropeway daemon --foreground` shows why").into())
}

/// True if a daemon that we trust answers at `name`. Connecting is not enough: a daemon that was killed takes connections
/// until the kernel has closed its last descriptor.
fn running(name: &str) -> Result<bool, ControlError> {
    match Control::connect(name).and_then(|daemon| daemon.ask(&Message::StatusQuery {})) {
        Ok(Message::Status { .. }) => Ok(true),
        Ok(_) => Err(ControlError::Strange(name.into())),
        Err(ControlError::NotRunning(_) | ControlError::Refused) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Starts the daemon by a process in between, so that it is never a child of the program that `ropeway run` becomes: that
/// program might wait for all its children.
pub fn ensure_running() -> Result<(), String> {
    let own = control::own_name();
    let own_runs = running(&own);
    // Only through root's daemon can connections between different users be promoted: where it runs, it is enough.
    let root_serves = || control::names().iter().any(|name| *name != own && running(name).unwrap_or(false));
    if matches!(own_runs, Ok(true)) || root_serves() {
        return Ok(());
    }
    own_runs.map_err(|e| e.to_string())?;
    let launcher = || Command::new(std::env::current_exe()?).arg("daemon").stdin(Stdio::null()).output();
    let output = launcher().map_err(|e| format!("cannot start the daemon: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("ropeway daemon: ").to_owned())
}

/// The first descriptor behind the standard ones.
const FIRST_INHERITED: u32 = 3;

/// Is the daemon until told to stop.
fn serve(detach: bool) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load()?;
    if detach {
        // Fails only for a process that is a leader already, which is as good.
        let _ = rustix::process::setsid();
        // Nor may it hold open what its starter had: pipes, locks. Nothing of its own is open yet.
        let _ = ropeway_shm::sys::close_range(FIRST_INHERITED, u32::MAX, 0);
    }
    raise_limits();
    let name = control::own_name();
    let Some(listener) = listen(&name)? else {
        tell!("ropeway daemon: already running at @{name}");
        return Ok(());
    };
    let server = server::Server::new(listener, config)?;
    tell!("ropeway daemon: listening at @{name}, pid {}", std::process::id());
    match server.run()? {}
}

/// Each connected process costs two descriptors, each grant on its way one, and is as large as a file of its rings.
fn raise_limits() {
    // Not raised: fewer processes are served, the others stay on TCP.
    [Resource::Nofile, Resource::Fsize].into_iter().for_each(rlimit::raise);
}

/// Binds the address; `None` if a daemon that we trust has it.
fn listen(name: &str) -> Result<Option<OwnedFd>, ControlError> {
    let (socket, address) = control::socket_at(name)?;
    match rustix::net::bind(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::ADDRINUSE) => {
            return match Control::connect(name) {
                // Between its bind and its listen, a daemon refuses.
                Ok(_) | Err(ControlError::NotRunning(_)) => Ok(None),
                Err(error) => Err(error),
            };
        }
        Err(error) => return Err(io::Error::from(error).into()),
    }
    // Inherited by what is accepted: every message then carries the pid of its sender.
    rustix::net::sockopt::set_socket_passcred(&socket, true).map_err(io::Error::from)?;
    rustix::net::listen(&socket, BACKLOG).map_err(io::Error::from)?;
    Ok(Some(socket))
}
