//! What every case stands on: two arms in turn, servers and clients with limits, and the proof of what carried the bytes.

use super::hand_off;
use crate::Result;
use ropeway_testkit::proc::{Finished, Process};
use ropeway_testkit::servers::{LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{Stats, World, net, parse_stats, ropeway_run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::time::Duration;

/// The two things that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The programs as they are.
    Tcp,
    /// The same programs under `ropeway run`.
    Ropeway,
}

impl Arm {
    pub const BOTH: [Self; 2] = [Self::Tcp, Self::Ropeway];
}

/// The figures of the two arms, round by round.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    pub tcp: Vec<f64>,
    pub ropeway: Vec<f64>,
}

impl Rounds {
    /// Those of the peer and ours in what was measured, round by round.
    pub fn of<T>(rounds: &[T], figures: impl FnMut(&T) -> (f64, f64)) -> Self {
        let (tcp, ropeway) = rounds.iter().map(figures).unzip();
        Self { tcp, ropeway }
    }
}

/// Rounds that are measured again at most, of all that are asked for at once; then those count as well in which the machine changes.
const MOST_SPARE_ROUNDS: u32 = 10;

/// How long a server may take to end when asked; then it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The state of one case.
pub struct Bed {
    world: World,
    rounds: u32,
    next: Cell<u32>,
    ports: RefCell<Vec<u16>>,
    commands: RefCell<Vec<String>>,
    raw: RefCell<Vec<Value>>,
    carried: RefCell<Vec<Stats>>,
}

impl Bed {
    pub fn new(rounds: u32) -> Result<Self> {
        let world = World::new();
        world.open_dir();
        Ok(Self {
            world,
            rounds,
            next: Cell::new(0),
            ports: RefCell::default(),
            commands: RefCell::default(),
            raw: RefCell::default(),
            carried: RefCell::default(),
        })
    }

    /// The private rendezvous of this case.
    pub fn world(&self) -> &World {
        &self.world
    }

    pub fn count(&self) -> u32 {
        self.rounds
    }

    /// A new directory that every user may write in.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.world.dir().join(format!("{name}-{}", self.number()));
        std::fs::create_dir(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// A port on which nobody listens.
    pub fn port(&self) -> u16 {
        let port = net::free_port();
        self.ports.borrow_mut().push(port);
        port
    }

    fn number(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }

    /// Measures round by round, the arms in turn: A B A B, so that what disturbs the machine for a while disturbs both.
    pub fn in_turn(&self, measure: impl FnMut(Arm) -> Result<f64>) -> Result<Rounds> {
        self.some_in_turn(self.rounds, measure)
    }

    /// The same with at most so many rounds, for a tool that is slow to start or to end.
    pub fn some_in_turn(&self, most: u32, mut measure: impl FnMut(Arm) -> Result<f64>) -> Result<Rounds> {
        let rounds = self.some_rounds(most, || Ok((measure(Arm::Tcp)?, measure(Arm::Ropeway)?)))?;
        Ok(Rounds::of(&rounds, |round| *round))
    }

    /// What `measure` measures in each round, in which it measures every arm once.
    pub fn rounds<T>(&self, measure: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        self.some_rounds(self.rounds, measure)
    }

    /// The same with at most so many rounds. One within which the machine became another one ([`hand_off`]) compares nothing and is measured again.
    pub fn some_rounds<T>(&self, most: u32, mut measure: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        let (count, mut spare) = (self.rounds.min(most) as usize, MOST_SPARE_ROUNDS);
        let mut rounds = Vec::new();
        while rounds.len() < count {
            let before = hand_off::measure_ns();
            let round = measure()?;
            let after = hand_off::measure_ns();
            let counts = !hand_off::differ(before, after) || spare == 0;
            self.keep(json!({ "hand_off_ns": [before, after], "counts": counts }));
            match counts {
                true => rounds.push(round),
                false => spare -= 1,
            }
        }
        Ok(rounds)
    }

    /// Starts a server and waits until it listens.
    pub fn server(&self, arm: Arm, command: &Command, port: u16) -> Result<Server> {
        let stats = self.stats_file()?;
        let process = Process::spawn(self.in_arm(arm, command, &stats));
        process.wait_until("it listens", START_LIMIT, || net::is_listening(process.pid(), port))?;
        Ok(Server { process, stats })
    }

    /// Starts a program without waiting for anything.
    pub fn spawn(&self, arm: Arm, command: &Command) -> Result<Server> {
        let stats = self.stats_file()?;
        let process = Process::spawn(self.in_arm(arm, command, &stats));
        Ok(Server { process, stats })
    }

    /// Starts a program that takes orders on its standard input.
    pub fn spawn_with_orders(&self, arm: Arm, command: &Command) -> Result<(Server, ChildStdin)> {
        let stats = self.stats_file()?;
        let (process, orders) = Process::spawn_with_stdin(self.in_arm(arm, command, &stats));
        Ok((Server { process, stats }, orders))
    }

    /// Runs a client to its end; its statistics join the proof of what carried the bytes.
    pub fn client(&self, arm: Arm, command: &Command) -> Result<Finished> {
        self.finish(arm, &self.spawn(arm, command)?)
    }

    /// Waits for the end of a client and adds its statistics to the proof.
    pub fn finish(&self, arm: Arm, client: &Server) -> Result<Finished> {
        let finished = client.process.wait(LOAD_LIMIT)?;
        if !finished.success() {
            return Err(
                format!("`{}` ended with {:?}: {}", finished.command, finished.exit, last_line(&finished)).into()
            );
        }
        if arm == Arm::Ropeway {
            self.carried.borrow_mut().extend(client.stats());
        }
        Ok(finished)
    }

    /// The command as the arm runs it.
    fn in_arm(&self, arm: Arm, command: &Command, stats: &Path) -> Command {
        self.note(command);
        match arm {
            Arm::Tcp => {
                let mut plain = Command::new(command.get_program());
                plain.args(command.get_args());
                plain
            }
            Arm::Ropeway => ropeway_run(stats, self.world.socket(), command),
        }
    }

    /// An empty file that a process of any user can append to.
    fn stats_file(&self) -> Result<PathBuf> {
        let path = self.world.dir().join(format!("stats-{}", self.number()));
        std::fs::write(&path, "")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(path)
    }

    /// Remembers a command for the record, once for all ports and files.
    pub fn note(&self, command: &Command) {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let mut line = String::new();
        for word in words {
            let word = word.to_string_lossy();
            let _ = write!(line, "{}{}", if line.is_empty() { "" } else { " " }, self.general(&word));
        }
        let mut commands = self.commands.borrow_mut();
        if !commands.contains(&line) {
            commands.push(line);
        }
    }

    /// A word of a command line without what differs from run to run: the directory of this case and the ports it was given.
    fn general(&self, word: &str) -> String {
        let word = word.replace(&self.world.dir().display().to_string(), "DIR");
        self.ports.borrow().iter().fold(word, |word, port| word.replace(&port.to_string(), "PORT"))
    }

    /// The command lines of this case.
    pub fn commands(&self) -> Vec<String> {
        self.commands.borrow().clone()
    }

    /// Keeps something as it was measured.
    pub fn keep(&self, raw: Value) {
        self.raw.borrow_mut().push(raw);
    }

    pub fn raw(&self) -> Vec<Value> {
        self.raw.borrow().clone()
    }

    /// What carried the bytes of the clients under Ropeway since the last question.
    pub fn carried(&self) -> Carried {
        Carried::sum(&self.carried.take())
    }
}

/// A running program of a case and the place of its statistics.
pub struct Server {
    pub process: Process,
    stats: PathBuf,
}

impl Server {
    /// Asks it to end, so that it leaves its statistics, and reads them. One that stays is killed when dropped.
    pub fn stop(self) -> Carried {
        self.process.signal(Signal::TERM);
        let _ = self.process.wait(STOP_LIMIT);
        Carried::sum(&self.stats())
    }

    fn stats(&self) -> Vec<Stats> {
        parse_stats(&self.stats)
    }
}

/// What carried the bytes of some processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub processes: usize,
    pub promoted: u64,
    pub tcp_bytes: u64,
    pub shm_bytes: u64,
    pub reasons: Vec<String>,
}

impl Carried {
    fn sum(stats: &[Stats]) -> Self {
        let mut sum = Self { processes: stats.len(), ..Self::default() };
        for one in stats {
            sum.promoted += one.promoted;
            sum.tcp_bytes += one.bytes.tcp.sent + one.bytes.tcp.received;
            sum.shm_bytes += one.bytes.shm.sent + one.bytes.shm.received;
            sum.reasons.extend(one.reasons.keys().cloned());
        }
        sum.reasons.sort();
        sum.reasons.dedup();
        sum
    }

    /// The part of all bytes that shared memory carried.
    pub fn shm_part(&self) -> f64 {
        self.shm_bytes as f64 / (self.shm_bytes + self.tcp_bytes).max(1) as f64
    }
}

impl std::fmt::Display for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.processes == 0 {
            return write!(f, "no statistics: the preload was not loaded");
        }
        if self.shm_bytes == 0 {
            write!(f, "TCP")?;
        } else {
            write!(f, "shm {:.1} %", self.shm_part() * 100.0)?;
        }
        if self.reasons.is_empty() { Ok(()) } else { write!(f, " ({})", self.reasons.join(", ")) }
    }
}

fn last_line(finished: &Finished) -> &str {
    let lines = finished.stderr.lines().rev().chain(finished.stdout.lines().rev());
    lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing")
}
