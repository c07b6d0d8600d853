//! The protocol between the hosts of a box: incast, stops and deaths, cuts and losses, versions, reordering, captures, crowds, a hostile host. Every byte is verified.

mod capture;
mod crowd;
mod forger;
mod incast;
mod network;
mod order;
mod past_the_stack;
mod priority;
mod processes;
mod programs_in_c;
mod shares;
mod stops;
mod versions;

use ropeway_testkit::boxes::{Port, TestBox};
use ropeway_testkit::env;
use ropeway_testkit::proc::{Finished, Process, command, until};
use serde_json::Value;
use std::io::Write;
use std::process::{ChildStdin, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For everything that a program does in a box by itself, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Where the receivers of these tests listen.
const PORT: u16 = 7470;

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Udp4,
    Udp6,
    Packet,
}

impl Carrier {
    /// Where a receiver listens.
    fn at(self, port: u16) -> String {
        match self {
            Carrier::Udp4 => format!("0.0.0.0:{port}"),
            Carrier::Udp6 => format!("[::]:{port}"),
            Carrier::Packet => format!("eth0/*:{port}"),
        }
    }

    /// What a sender calls it.
    fn to(self, host: &Port, port: u16) -> String {
        match self {
            Carrier::Udp4 => format!("{}:{port}", host.addresses.0),
            Carrier::Udp6 => format!("[{}]:{port}", host.addresses.1),
            Carrier::Packet => format!("eth0/{}:{port}", host.mac),
        }
    }
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stream,
    Messages,
}

/// `crates/socket/examples/peer`, which says what its arguments and variables are.
fn peer(arguments: &[&str], mode: Mode, variables: &[(&str, &str)]) -> Command {
    let mut peer = command(env::example("peer"), arguments);
    // What is tested is the library's defaults, whatever the tests run under.
    for name in ["ROPEWAY_LINK", "ROPEWAY_TUNE", "ROPEWAY_SPIN_US", "ROPEWAY_PACKET_BYTES", "ROPEWAY_URGENT_PRIORITY"] {
        peer.env_remove(name);
    }
    peer.envs(variables.iter().copied());
    if mode == Mode::Messages {
        peer.env("PEER_MESSAGES", "1");
    }
    peer
}

/// Boxes with a rate, one at a time: two on the same processors would measure each other.
fn shaped() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A receiver in a host, ready when this returns.
#[track_caller]
fn receiver(cluster: &TestBox, host: &str, at: &str, mode: Mode, variables: &[(&str, &str)]) -> Waiting {
    let waiting = Waiting::start(cluster, host, &peer(&["receive", at], mode, variables));
    waiting.process.wait_for_output("ready", LIMIT);
    waiting
}

/// A program with something to be told by a line on its standard input, or by its end.
struct Waiting {
    process: Process,
    stdin: Option<ChildStdin>,
}

impl Waiting {
    #[track_caller]
    fn start(cluster: &TestBox, host: &str, cmd: &Command) -> Waiting {
        let (process, stdin) = Process::spawn_with_stdin(cluster.command(host, cmd));
        Waiting { process, stdin: Some(stdin) }
    }

    /// A sender of so many bytes; 0: until [`Waiting::end`].
    #[track_caller]
    fn sender(cluster: &TestBox, host: &str, to: &str, bytes: u64, mode: Mode, variables: &[(&str, &str)]) -> Waiting {
        Waiting::start(cluster, host, &peer(&["send", to, &bytes.to_string()], mode, variables))
    }

    #[track_caller]
    fn is_connected(&self) {
        self.process.wait_for_output("connected", LIMIT);
    }

    #[track_caller]
    fn go(&mut self) {
        let stdin = self.stdin.as_mut().expect("it was not told to end");
        stdin.write_all(b"\n").expect("it reads its standard input");
    }

    fn end(&mut self) {
        self.stdin = None;
    }

    /// What it says at its end, which must be a good one.
    #[track_caller]
    fn result(&self) -> Value {
        last_line(&self.process.succeed(LIMIT))
    }

    /// What it says at its end, which must be a bad one.
    #[track_caller]
    fn failure(&self) -> Value {
        let finished = self.process.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
        assert!(!finished.success(), "it should have failed: {}", finished.stdout);
        last_line(&finished)
    }
}

#[track_caller]
fn last_line(finished: &Finished) -> Value {
    let line = finished.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in: {}\n{}", finished.stdout, finished.stderr))
}

/// What the engines in a host tell, of those that answer.
#[track_caller]
fn engines(cluster: &TestBox, host: &str) -> Vec<Value> {
    let shown = cluster.run(host, &peer(&["show"], Mode::Stream, &[]), LIMIT).expect_success();
    serde_json::from_str(&shown.stdout).unwrap_or_else(|e| panic!("{e} in: {}", shown.stdout))
}

/// The only engine of a process.
#[track_caller]
fn engine_of(cluster: &TestBox, host: &str, process: &Process) -> Value {
    let all = engines(cluster, host);
    let found = all.iter().find(|engine| engine["pid"] == process.pid());
    found.unwrap_or_else(|| panic!("{} has no engine: {all:?}", process.command())).clone()
}

/// One of an engine's counters.
#[track_caller]
fn counter(engine: &Value, name: &str) -> u64 {
    engine["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}: {engine}"))
}

/// The bytes of the budget that are granted and have not arrived.
#[track_caller]
fn charged(engine: &Value) -> u64 {
    engine["gate_charged_bytes"].as_u64().unwrap_or_else(|| panic!("no charge: {engine}"))
}

/// The part of the host's budget that a receiver may grant.
#[track_caller]
fn budget_of(cluster: &TestBox, receiver: &Waiting) -> u64 {
    let engine = engine_of(cluster, "h1", &receiver.process);
    engine["gate_budget_bytes"].as_u64().unwrap_or_else(|| panic!("no budget: {engine}"))
}
