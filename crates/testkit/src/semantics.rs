//! One program text on plain TCP and under Ropeway: the two transcripts must be equal to the byte.
//!
//! The programs are in `crates/testkit/programs/semantics`, one file per theme, each with many cases; `rw_test.h` there
//! says how they are written. What lives here: running a case bare and under Ropeway at several moments of a
//! connection's life, comparing what it wrote, and asking the statistics whether shared memory carried the bytes at all.

use crate::env::{CProgram, workspace_root};
use crate::proc::{Finished, Process};
use crate::stats::{ByDirection, Stats};
use crate::world::World;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Where the programs are, relative to the workspace root.
const PROGRAMS: &str = "crates/testkit/programs/semantics";

/// Linked with every program; a change of theirs compiles all programs anew.
const SUPPORT: [&str; 3] = ["rw_test.h", "rw_test.c", "rw_traffic.c"];

/// How many cases run at a time. Each is two or more processes in lockstep; more of them would measure the scheduler.
const CASES_AT_A_TIME: usize = 4;

/// After this long a program of the suite prints what it has and ends itself.
const CASE_LIMIT: Duration = Duration::from_secs(15);

/// When the harness stops waiting for a program that did not even manage that.
const HARNESS_LIMIT: Duration = Duration::from_secs(30);

/// Runs only these moments, by name and separated by commas: for a person at work on one failure.
const MOMENTS_VAR: &str = "ROPEWAY_TEST_MOMENTS";

/// Overrides the seed and period of the moment `chaos`.
const CHAOS_VAR: &str = "ROPEWAY_CHAOS";

/// How often chaos strikes: once in so many calls, on average.
const CHAOS_PERIOD: u32 = 6;

/// What the statistics of a case must say when its connection was warmed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Both processes moved bytes over shared memory, both ways, and hardly any over TCP: the interesting part ran there.
    Shm,
    /// Both moved bytes over shared memory, both ways, and the case itself gave the connection back to TCP or kept it there for a
    /// while.
    ShmAndTcp,
    /// Shared memory was used, by whichever process: a child served, or one end was killed and left no statistics.
    ShmSomewhere,
    /// Nothing may ever go over shared memory.
    TcpOnly,
    /// The case makes no connection that lives long enough to be worth it; whatever carrier it had is right.
    Either,
}

/// The pause between the messages of a second, slower warming-up.
const SLOW_WARMING_US: &str = "6000";

/// Whether a case also runs while its connection is moved to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chaos {
    /// Yes: nothing in its transcript depends on where the bytes are.
    Too,
    /// No: it speaks of a connection without room, which another carrier then has, or of an edge that comes once and not twice.
    Never,
}

/// What each end may have sent over TCP, for each warm connection before it was moved: half of the warming-up (64 messages of 32
/// bytes in `rw_traffic.c`), several times what it takes on a busy machine.
const TCP_BYTES_WHILE_WARMING: u64 = 1024;

/// The part of a connection's life in which the interesting part of a case happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    name: &'static str,
    /// Whether many messages go before.
    warm: bool,
    /// Values of Ropeway's own variables.
    settings: &'static [(&'static str, &'static str)],
    chaos: bool,
}

const MOMENTS: [Moment; 4] = [
    // Before promotion: the default threshold is reached in the middle of the case, if at all.
    Moment { name: "cold", warm: false, settings: &[], chaos: false },
    // Promotion in the middle of the case, as early as it can be.
    Moment { name: "early", warm: false, settings: &[("ROPEWAY_PROMOTE_AFTER", "1")], chaos: false },
    // Just after promotion.
    Moment { name: "warm", warm: true, settings: &[], chaos: false },
    // To shared memory and back again and again.
    Moment { name: "chaos", warm: true, settings: &[("ROPEWAY_PROMOTE_AFTER", "2")], chaos: true },
];

/// What is known to differ from TCP, at which moment, and why (README, "Limits"). Each row is a piece of work to do; a case
/// runs at its other moments, and says in its output what it left out.
const KNOWN_LIMITS: &[(&str, &str, &str, &str)] = &[
    ("programs", "fork_and_exec_of_a_program", "warm", SHARED_TAIL),
    ("programs", "fork_and_exec_of_a_program", "chaos", SHARED_TAIL),
    ("programs", "fork_and_exec_of_a_static_program", "warm", SHARED_TAIL),
    ("programs", "fork_and_exec_of_a_static_program", "chaos", SHARED_TAIL),
];

const SHARED_TAIL: &str =
    "a forked child that execs reads a socket that its parent keeps, with bytes unread in the ring";

/// A compiled theme.
#[derive(Debug)]
pub struct Theme {
    name: &'static str,
    program: PathBuf,
}

impl Theme {
    /// Compiles the program of a theme when that has not been done.
    pub fn new(name: &'static str) -> Self {
        static BUILT: LazyLock<Mutex<HashMap<&'static str, PathBuf>>> = LazyLock::new(Mutex::default);
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let program = built.entry(name).or_insert_with(|| build(&format!("{name}.c"), &[])).clone();
        Self { name, program }
    }

    /// The names of its cases.
    pub fn cases(&self) -> Vec<String> {
        let mut list = Command::new(&self.program);
        list.arg("--list");
        let listed = Process::spawn(list).succeed(HARNESS_LIMIT);
        listed.stdout.lines().map(String::from).collect()
    }

    fn is_known_limit(&self, case: &str, moment: &Moment) -> bool {
        let known =
            KNOWN_LIMITS.iter().find(|(theme, name, at, _)| (*theme, *name, *at) == (self.name, case, moment.name));
        if let Some((theme, name, at, why)) = known {
            println!("known limit: {theme}::{name} at the moment {at}: {why}");
        }
        known.is_some()
    }

    /// Runs a case on plain TCP and at every moment under Ropeway.
    ///
    /// # Panics
    /// When a transcript under Ropeway differs, or the statistics say that it did not run where it should have; with the
    /// differences and the command that runs one case again.
    pub fn compare(&self, case: &str, expect: Expect, chaos: Chaos) {
        let _slot = Slot::take();
        let world = World::new();
        let expected = self.reference(case, &world);
        let failures: Vec<String> = chosen_moments()
            .filter(|moment| chaos == Chaos::Too || !moment.chaos)
            .filter(|moment| !self.is_known_limit(case, moment))
            .filter_map(|moment| self.under_ropeway(case, expect, moment, &expected, &world).err())
            .collect();
        assert!(
            failures.is_empty(),
            "{}::{case} differs under Ropeway at {} moment(s):\n{}\nagain: cargo test -p ropeway-testkit --test semantics -- \
             --exact {}::{case}",
            self.name,
            failures.len(),
            failures.join("\n"),
            self.name,
        );
    }

    /// The transcript on plain TCP, which must not depend on what goes before.
    fn reference(&self, case: &str, world: &World) -> String {
        let run = |warm| finish(self.command(case, warm, &world.dir().join("pids")));
        let (cold, warm) = (run(false), run(true));
        assert!(!is_broken(&cold.stdout), "{}::{case} fails on plain TCP already:\n{}", self.name, cold.stdout);
        if let Some(difference) = difference(&cold.stdout, &warm.stdout) {
            panic!("{}::{case} is no test: its transcript on plain TCP is not stable\n{difference}", self.name);
        }
        warm.stdout
    }

    fn under_ropeway(
        &self,
        case: &str,
        expect: Expect,
        moment: Moment,
        expected: &str,
        world: &World,
    ) -> Result<(), String> {
        let pids = world.dir().join(format!("pids-{}", moment.name));
        let mut command = self.command(case, moment.warm, &pids);
        command.envs(moment.settings.iter().copied());
        let chaos = chaos_for(self.name, case);
        if moment.chaos {
            command.env(CHAOS_VAR, &chaos);
        } else {
            command.env_remove(CHAOS_VAR);
        }
        let run = |command: &Command| {
            let before = world.stats().len();
            let finished = finish(world.command(command));
            let stats = world.stats().split_off(before);
            let mut complaints: Vec<String> = difference(expected, &finished.stdout).into_iter().collect();
            if !finished.stderr.is_empty() {
                complaints.push(format!("  on standard error: {}", finished.stderr.trim_end()));
            }
            let looks = moment.warm && !moment.chaos;
            let carrier = looks.then(|| wrong_carrier(expect, &stats, &sides(&pids), expected)).flatten();
            (complaints, carrier, stats)
        };
        let (mut complaints, mut carrier, mut stats) = run(&command);
        if complaints.is_empty() && carrier.is_some() {
            // The two ends may have found each other too late because the machine was busy: that is nobody's mistake once.
            command.env("RW_WARM_PAUSE_US", SLOW_WARMING_US);
            (complaints, carrier, stats) = run(&command);
        }
        complaints.extend(carrier.map(|text| format!("  {text}")));
        if complaints.is_empty() {
            return Ok(());
        }
        let setting = if moment.chaos { format!(" ({CHAOS_VAR}={chaos})") } else { String::new() };
        let figures: Vec<String> = stats.iter().map(figures).collect();
        Err(format!("at the moment {}{setting}:\n{}\n{}", moment.name, complaints.join("\n"), figures.join("\n")))
    }

    pub(crate) fn command(&self, case: &str, warm: bool, pids: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(case).env("RW_MOMENT", if warm { "warm" } else { "cold" }).env("RW_PIDS", pids);
        command.env("RW_TIMEOUT", CASE_LIMIT.as_secs().to_string());
        for (kind, path) in HELPERS.iter() {
            command.env(format!("RW_HELPER_{kind}"), path);
        }
        command
    }
}

/// The program that cases put in their place by exec, linked in both ways.
static HELPERS: LazyLock<[(&'static str, PathBuf); 2]> =
    LazyLock::new(|| [("DYNAMIC", build("helper.c", &[])), ("STATIC", build("helper.c", &["-static"]))]);

/// Compiles a program of the suite together with its support.
fn build(source: &str, flags: &[&str]) -> PathBuf {
    let dir = workspace_root().join(PROGRAMS);
    let mut hasher = DefaultHasher::new();
    for file in SUPPORT {
        let path = dir.join(file);
        std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display())).hash(&mut hasher);
    }
    let mut program = CProgram::new(Path::new(PROGRAMS).join(source)).flag("-Wextra").flag("-Werror");
    for file in SUPPORT.iter().filter(|file| file.ends_with(".c")) {
        program = program.flag(&dir.join(file).to_string_lossy());
    }
    // The name of the executable is made from the flags, so this one makes it change with the support files.
    program = program.flag(&format!("-DRW_SUPPORT=0x{:x}", hasher.finish()));
    flags.iter().fold(program, |program, flag| program.flag(flag)).build()
}

pub(crate) fn finish(command: Command) -> Finished {
    Process::spawn(command).wait(HARNESS_LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

fn chosen_moments() -> impl Iterator<Item = Moment> {
    let chosen = std::env::var(MOMENTS_VAR).ok();
    MOMENTS
        .into_iter()
        .filter(move |moment| chosen.as_deref().is_none_or(|names| names.split(',').any(|name| name == moment.name)))
}

/// Seed and period: each case has its own seed, the same in every run, unless the caller says otherwise.
fn chaos_for(theme: &str, case: &str) -> String {
    std::env::var(CHAOS_VAR).unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        (theme, case).hash(&mut hasher);
        format!("{}:{CHAOS_PERIOD}", hasher.finish() as u32)
    })
}

/// Whether a transcript says that its own program failed.
fn is_broken(transcript: &str) -> bool {
    transcript.is_empty() || transcript.lines().any(|line| line.starts_with("FATAL") || line.starts_with("TIMEOUT"))
}

/// The process numbers of A and B.
fn sides(file: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// What is wrong with the carrier that the bytes took, in words.
fn wrong_carrier(expect: Expect, stats: &[Stats], sides: &[u32], transcript: &str) -> Option<String> {
    let total = stats.iter().fold(ByDirection::default(), |sum, process| ByDirection {
        sent: sum.sent + process.bytes.shm.sent,
        received: sum.received + process.bytes.shm.received,
    });
    match expect {
        Expect::Either => None,
        Expect::TcpOnly if total == ByDirection::default() => None,
        Expect::TcpOnly => Some(format!("{} bytes went over shared memory, where none may", total.sent)),
        Expect::ShmSomewhere if total.sent > 0 && total.received > 0 => None,
        Expect::ShmSomewhere => Some("no byte went over shared memory".into()),
        Expect::Shm | Expect::ShmAndTcp => ["A", "B"].iter().zip(sides).find_map(|(side, pid)| {
            let was_killed = transcript.contains(&format!("[{side} ended by signal"));
            match stats.iter().find(|process| process.pid == *pid) {
                None if was_killed => None,
                None => Some(format!("{side} left no statistics")),
                Some(process) if process.bytes.shm.sent == 0 || process.bytes.shm.received == 0 => {
                    Some(format!("{side} did not use shared memory both ways"))
                }
                Some(process)
                    if expect == Expect::Shm
                        && process.bytes.tcp.sent > TCP_BYTES_WHILE_WARMING * process.connections.max(1) =>
                {
                    Some(format!("{side} sent {} bytes over TCP", process.bytes.tcp.sent))
                }
                Some(_) => None,
            }
        }),
    }
}

fn figures(process: &Stats) -> String {
    let (tcp, shm) = (process.bytes.tcp, process.bytes.shm);
    let reasons: Vec<String> = process.reasons.iter().map(|(name, count)| format!("{name} {count}")).collect();
    format!(
        "  {} {}: {} connections, {} promoted, {} demoted, tcp {}/{}, shm {}/{} sent/received; {}",
        process.comm,
        process.pid,
        process.connections,
        process.promoted,
        process.demoted,
        tcp.sent,
        tcp.received,
        shm.sent,
        shm.received,
        reasons.join(", ")
    )
}

/// The first place where two transcripts part, with a few lines before, and all that follows there.
fn difference(expected: &str, got: &str) -> Option<String> {
    const CONTEXT_LINES: usize = 3;
    const SHOWN_LINES: usize = 14;
    if expected == got {
        return None;
    }
    let (expected, got): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    let common = expected.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let ending = expected[common..].iter().rev().zip(got[common..].iter().rev()).take_while(|(a, b)| a == b).count();
    let part = |lines: &[&str], mark: &str| {
        let own = &lines[common..lines.len() - ending];
        let mut text: Vec<String> = own.iter().take(SHOWN_LINES).map(|line| format!("  {mark} {line}")).collect();
        if own.len() > SHOWN_LINES {
            text.push(format!("  {mark} ... and {} lines more", own.len() - SHOWN_LINES));
        }
        text
    };
    let before = expected[common.saturating_sub(CONTEXT_LINES)..common].iter().map(|line| format!("    {line}"));
    let lines: Vec<String> = before.chain(part(&expected, "-")).chain(part(&got, "+")).collect();
    Some(lines.join("\n"))
}

/// The right to run a case, of which there are few.
struct Slot;

static FREE_SLOTS: (Mutex<usize>, Condvar) = (Mutex::new(CASES_AT_A_TIME), Condvar::new());

impl Slot {
    fn take() -> Self {
        let mut free = FREE_SLOTS.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = FREE_SLOTS.1.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *FREE_SLOTS.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREE_SLOTS.1.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_where_transcripts_part() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        let text = difference("a\nb\nc\n", "a\nx\nc\n").expect("they differ");
        assert_eq!(text, "    a\n  - b\n  + x");
        assert_eq!(difference("a\n", "a\nb\n").as_deref(), Some("    a\n  + b"));
    }

    #[test]
    fn the_carrier_is_asked_for() {
        let moved = |pid, bytes| {
            let mut stats = Stats { pid, ..Stats::default() };
            stats.bytes.shm = ByDirection { sent: bytes, received: bytes };
            stats
        };
        let sides = [1, 2];
        assert_eq!(wrong_carrier(Expect::Shm, &[moved(1, 5), moved(2, 5)], &sides, ""), None);
        assert!(wrong_carrier(Expect::Shm, &[moved(1, 5), moved(2, 0)], &sides, "").is_some());
        assert!(wrong_carrier(Expect::Shm, &[moved(1, 5)], &sides, "").is_some());
        assert_eq!(wrong_carrier(Expect::Shm, &[moved(1, 5)], &sides, "[B ended by signal 9]"), None);
        let mut back_on_tcp = moved(1, 5);
        back_on_tcp.bytes.tcp.sent = 5000;
        assert!(wrong_carrier(Expect::Shm, &[back_on_tcp.clone(), moved(2, 5)], &sides, "").is_some());
        assert_eq!(wrong_carrier(Expect::ShmAndTcp, &[back_on_tcp, moved(2, 5)], &sides, ""), None);
        assert!(wrong_carrier(Expect::TcpOnly, &[moved(1, 5)], &sides, "").is_some());
        assert_eq!(wrong_carrier(Expect::ShmSomewhere, &[moved(7, 5)], &sides, ""), None);
    }

    #[test]
    fn a_program_that_failed_is_noticed() {
        assert!(is_broken("[A]\nFATAL a.c:1: x\n") && is_broken("") && !is_broken("[A]\nrecv = 1\n"));
    }
}
