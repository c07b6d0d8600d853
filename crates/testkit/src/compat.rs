//! Cases of the compatibility table: one unmodified program (or a chain of them), run for its right result, with the proof of
//! which carrier moved its bytes.
//!
//! A test makes a [`Case`], starts programs on its [`Side`]s, checks what they computed, stops them, and closes the case with
//! [`Case::expect_shm`] or [`Case::expect_tcp`]. With [`WRITE_VAR`] set the outcome becomes a row of `docs/compatibility.md`.
//! With [`BARE_VAR`] set everything runs without Ropeway, which checks the test itself; the carrier is then not looked at, and
//! the run says so.

use crate::proc::Process;
use crate::{Stats, World, parse_stats, ropeway_run, skip};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

mod table;

/// Set to run every program without Ropeway.
pub const BARE_VAR: &str = "ROPEWAY_TEST_BARE";

/// Set to write the outcome of each case into `docs/compatibility.md`.
pub const WRITE_VAR: &str = "ROPEWAY_WRITE_COMPAT";

/// Set to move connections between the carriers at pseudo-random calls; part of the contract with the preload.
pub const CHAOS_VAR: &str = "ROPEWAY_CHAOS";

/// How a connection on shared memory ends when one end closes it: no reason why bytes went over TCP.
const ORDINARY_ENDS: [&str; 4] = ["half-closed", "peer-closed", "peer-demoted", "reset"];

/// Whether programs run without Ropeway, to check the tests themselves.
pub fn is_bare() -> bool {
    std::env::var_os(BARE_VAR).is_some()
}

/// The share to ask for where `share` would be right: under chaos connections are moved back all the time, and what counts is
/// the right result.
pub fn at_least(share: f64) -> f64 {
    if is_bare() || std::env::var_os(CHAOS_VAR).is_some() { 0.0 } else { share }
}

/// What the processes of one side moved, summed over those that exited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Processes that left a line of statistics.
    pub processes: u64,
    /// Connections they saw.
    pub connections: u64,
    /// Directions moved to shared memory.
    pub promoted: u64,
    /// Directions moved back to TCP.
    pub demoted: u64,
    /// Payload bytes over shared memory, both directions.
    pub shm_bytes: u64,
    /// Payload bytes over TCP, both directions.
    pub tcp_bytes: u64,
    /// Why connections stayed on, or returned to, TCP.
    pub reasons: BTreeMap<String, u64>,
}

impl Traffic {
    /// The sum of some processes.
    pub fn of<'a>(stats: impl IntoIterator<Item = &'a Stats>) -> Self {
        let mut sum = Self::default();
        for process in stats {
            sum.processes += 1;
            sum.connections += process.connections;
            sum.promoted += process.promoted;
            sum.demoted += process.demoted;
            sum.shm_bytes += process.bytes.shm.sent + process.bytes.shm.received;
            sum.tcp_bytes += process.bytes.tcp.sent + process.bytes.tcp.received;
            for (reason, count) in &process.reasons {
                *sum.reasons.entry(reason.clone()).or_default() += count;
            }
        }
        sum
    }

    /// The part of all payload bytes that went over shared memory: 0 to 1, 0 when there were none.
    pub fn shm_share(&self) -> f64 {
        let all = self.shm_bytes + self.tcp_bytes;
        if all == 0 { 0.0 } else { self.shm_bytes as f64 / all as f64 }
    }
}

/// One program of a case, with a statistics file of its own.
#[derive(Clone, Debug)]
pub struct Side {
    name: &'static str,
    under_ropeway: bool,
    stats: PathBuf,
    socket: String,
}

impl Side {
    /// The command as this side runs it: under Ropeway or as it is.
    pub fn command(&self, cmd: Command) -> Command {
        if self.under_ropeway && !is_bare() { ropeway_run(&self.stats, &self.socket, &cmd) } else { cmd }
    }

    /// Starts a command on this side.
    #[track_caller]
    pub fn spawn(&self, cmd: Command) -> Process {
        Process::spawn(self.command(cmd))
    }

    /// What its processes moved, as far as they have exited.
    pub fn traffic(&self) -> Traffic {
        Traffic::of(&parse_stats(&self.stats))
    }

    /// The lines of statistics of its processes, as far as they have exited.
    pub fn stats(&self) -> Vec<Stats> {
        parse_stats(&self.stats)
    }
}

/// What a case found, for the table.
#[derive(Clone, Debug)]
pub struct Found {
    /// The version of the program, as Debian (or its maker) numbers it.
    pub version: String,
    /// What was checked and came out right.
    pub result: String,
    /// What a user should know; may be empty.
    pub note: &'static str,
}

/// A program under test. Dropped during a panic it records that the program failed.
#[derive(Debug)]
pub struct Case {
    program: &'static str,
    world: World,
    sides: RefCell<Vec<Side>>,
    closed: Cell<bool>,
}

impl Case {
    /// A case with the name it has in the table.
    pub fn new(program: &'static str) -> Self {
        Self { program, world: World::new(), sides: RefCell::default(), closed: Cell::new(false) }
    }

    /// The rendezvous and the directory of this case.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// A directory for whatever the test writes, open to every user of the machine because servers change theirs.
    pub fn dir(&self) -> &Path {
        self.world.open_dir()
    }

    /// A program that runs under Ropeway.
    pub fn ropeway(&self, name: &'static str) -> Side {
        self.side(name, true)
    }

    /// A program that runs as it is.
    pub fn plain(&self, name: &'static str) -> Side {
        self.side(name, false)
    }

    fn side(&self, name: &'static str, under_ropeway: bool) -> Side {
        let stats = self.dir().join(format!("{name}.stats"));
        // Made beforehand, so that a server that has changed its user can still append to it.
        std::fs::write(&stats, "").expect("one's own directory can be written");
        std::fs::set_permissions(&stats, std::fs::Permissions::from_mode(0o666)).expect("one's own file can be opened");
        let side = Side { name, under_ropeway, stats, socket: self.world.socket().into() };
        self.sides.borrow_mut().push(side.clone());
        side
    }

    /// Closes the case: on every side under Ropeway at least `min_share` of the bytes went over shared memory.
    ///
    /// # Panics
    /// With each side's figures, when they did not.
    #[track_caller]
    pub fn expect_shm(self, min_share: f64, found: Found) {
        self.close(found, |side, traffic| {
            let share = traffic.shm_share();
            (share < at_least(min_share)).then(|| {
                format!("{side}: {share:.3} of the bytes went over shm, {min_share} are expected: {traffic:#?}")
            })
        });
    }

    /// Closes the case: nothing went over shared memory, bytes went over TCP, and `reason` is among the reasons given.
    ///
    /// # Panics
    /// With each side's figures, when it was otherwise.
    #[track_caller]
    pub fn expect_tcp(self, reason: &str, found: Found) {
        self.close(found, |side, traffic| {
            let right = traffic.shm_bytes == 0 && traffic.tcp_bytes > 0 && traffic.reasons.contains_key(reason);
            (!right).then(|| format!("{side}: bytes over TCP alone and the reason {reason} are expected: {traffic:#?}"))
        });
    }

    #[track_caller]
    fn close(self, found: Found, complaint: impl Fn(&str, &Traffic) -> Option<String>) {
        if is_bare() {
            let here = format!("programs::{}::here", self.program);
            skip::record(&here, &format!("{BARE_VAR} is set: right on plain TCP, the carrier was not looked at"));
            self.closed.set(true);
            return;
        }
        let sides = self.sides.borrow().clone();
        let traffic: Vec<(&str, Traffic)> =
            sides.iter().filter(|side| side.under_ropeway).map(|side| (side.name, side.traffic())).collect();
        let complaints: Vec<String> = traffic.iter().filter_map(|(name, traffic)| complaint(name, traffic)).collect();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        self.closed.set(true);
        self.record(&found, &traffic);
    }

    /// Writes the row of this case, if rows are wanted.
    fn record(&self, found: &Found, traffic: &[(&str, Traffic)]) {
        if std::env::var_os(WRITE_VAR).is_none() || is_bare() {
            return;
        }
        let (shm, tcp) = traffic.iter().fold((0, 0), |(shm, tcp), (_, t)| (shm + t.shm_bytes, tcp + t.tcp_bytes));
        let carrier = match (shm, tcp) {
            (0, 0) => "none",
            (0, _) => "tcp",
            _ => "shm",
        };
        let mut share = String::new();
        let mut reasons = BTreeMap::<&str, u64>::new();
        for (name, traffic) in traffic {
            let comma = if share.is_empty() { "" } else { ", " };
            // Rounded down: 100.0 % means every byte.
            let percent = (traffic.shm_share() * 1000.0).floor() / 10.0;
            write!(share, "{comma}{name} {percent:.1} %").expect("a string takes everything");
            for (reason, count) in &traffic.reasons {
                if !ORDINARY_ENDS.contains(&reason.as_str()) {
                    *reasons.entry(reason).or_default() += count;
                }
            }
        }
        let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        table::put(&table::Row {
            program: self.program.into(),
            version: found.version.clone(),
            ends: ends_of(&self.sides.borrow()),
            result: found.result.clone(),
            carrier: carrier.into(),
            share,
            reasons: reasons.join(", "),
            note: found.note.into(),
        });
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !self.closed.get() && std::thread::panicking() {
            let found = Found { version: String::new(), result: "**fails**".into(), note: "" };
            let sides = self.sides.borrow().clone();
            // A panic inside a panic would end the whole test program, so nothing that can fail is read here.
            let traffic: Vec<(&str, Traffic)> = sides.iter().map(|side| (side.name, Traffic::default())).collect();
            self.record(&found, &traffic);
        }
    }
}

/// "all under Ropeway", or which programs are and which are not.
fn ends_of(sides: &[Side]) -> String {
    let names = |under: bool| -> Vec<&str> {
        sides.iter().filter(|side| side.under_ropeway == under).map(|side| side.name).collect()
    };
    match (names(true), names(false)) {
        (with, without) if without.is_empty() => format!("{} under Ropeway", with.join(", ")),
        (with, without) if with.is_empty() => format!("{} without", without.join(", ")),
        (with, without) => format!("{} under Ropeway, {} without", with.join(", "), without.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_counts_both_carriers_and_directions() {
        let mut stats = Stats::default();
        stats.bytes.shm.sent = 60;
        stats.bytes.shm.received = 30;
        stats.bytes.tcp.received = 10;
        let traffic = Traffic::of([&stats]);
        assert_eq!((traffic.processes, traffic.shm_bytes, traffic.tcp_bytes), (1, 90, 10));
        assert!((traffic.shm_share() - 0.9).abs() < 1e-9);
        assert!(Traffic::default().shm_share() == 0.0);
    }

    #[test]
    fn the_ends_say_who_is_under_ropeway() {
        let side = |name, under_ropeway| Side { name, under_ropeway, stats: PathBuf::new(), socket: String::new() };
        assert_eq!(ends_of(&[side("a", true), side("b", true)]), "a, b under Ropeway");
        assert_eq!(ends_of(&[side("a", true), side("b", false)]), "a under Ropeway, b without");
    }
}
