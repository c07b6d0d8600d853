//! A server or a client in a host: its process, which may be killed and started again, and what it says.

use ropeway_testkit::proc::Process;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

pub struct Program {
    /// `h1 server`
    pub name: String,
    pub host: usize,
    pub role: Role,
    stem: PathBuf,
    /// None while it is dead.
    alive: Option<Alive>,
    starts: u32,
}

struct Alive {
    process: Process,
    orders: ChildStdin,
    log: File,
    /// The beginning of a line whose end is not there yet.
    rest: String,
}

impl Program {
    pub fn new(host: usize, role: Role, dir: &Path) -> Self {
        let word = if role == Role::Server { "server" } else { "client" };
        let stem = dir.join(format!("h{host}-{word}"));
        Self { name: format!("h{host} {word}"), host, role, stem, alive: None, starts: 0 }
    }

    pub fn start(&mut self, command: Command) {
        self.starts += 1;
        let stem = self.stem.with_added_extension(self.starts.to_string());
        let (process, orders) = Process::spawn_kept(command, &stem);
        let log = File::open(stem.with_added_extension("out")).expect("it was just made");
        self.alive = Some(Alive { process, orders, log, rest: String::new() });
    }

    pub fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    pub fn pid(&self) -> Option<u32> {
        self.alive.as_ref().map(|alive| alive.process.pid())
    }

    /// What it has said since the last look.
    pub fn said(&mut self) -> Vec<Value> {
        let Some(alive) = &mut self.alive else { return Vec::new() };
        // A file that only grows; what is not UTF-8 is no line of the program's.
        let mut bytes = Vec::new();
        let _ = alive.log.read_to_end(&mut bytes);
        alive.rest.push_str(&String::from_utf8_lossy(&bytes));
        let whole = alive.rest.rfind('\n').map_or(0, |at| at + 1);
        let lines: String = alive.rest.drain(..whole).collect();
        lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line))).collect()
    }

    /// Gives it an order; one that is dead gets none.
    pub fn order(&mut self, order: &str) {
        if let Some(alive) = &mut self.alive {
            // Its end is seen elsewhere.
            let _ = writeln!(alive.orders, "{order}");
        }
    }

    pub fn kill(&mut self) {
        if let Some(alive) = self.alive.take() {
            alive.process.kill();
        }
    }

    pub fn set_stopped(&mut self, stop: bool) {
        if let Some(alive) = &mut self.alive {
            alive.process.signal(if stop { Signal::STOP } else { Signal::CONT });
        }
    }

    /// Says what is wrong with it, if it has ended by itself or complains.
    pub fn complaint(&self) -> Option<String> {
        let process = &self.alive.as_ref()?.process;
        let (exit, stderr) = (process.exit(), process.stderr());
        match exit {
            Some(exit) => Some(format!("{} ended by itself with {exit:?}: {stderr}", self.name)),
            None if !stderr.is_empty() => Some(format!("{} writes to standard error: {stderr}", self.name)),
            None => None,
        }
    }

    /// Ends its orders, and with them the program.
    pub fn end(&mut self, limit: Duration) -> Result<(), String> {
        let Some(Alive { process, orders, .. }) = self.alive.take() else { return Ok(()) };
        let began = Instant::now();
        drop(orders);
        let finished = process.wait(limit).map_err(|error| format!("{} does not exit: {error}", self.name))?;
        if finished.success() && finished.stderr.is_empty() {
            return Ok(());
        }
        let (exit, took, stderr) = (finished.exit, began.elapsed(), finished.stderr);
        Err(format!("{} ended with {exit:?} after {took:?}: {stderr}", self.name))
    }
}
