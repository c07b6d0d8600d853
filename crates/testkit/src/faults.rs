//! Both ends of a connection as scripted programs, faults done to them from outside, and the memory they share.
//!
//! A scenario is written once and run on plain TCP and under Ropeway; what the surviving end prints is compared.

use crate::compat::{BARE_VAR, Traffic, is_bare};
use crate::env::CProgram;
use crate::proc::{Process, command};
use crate::{World, skip};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Far above what any step takes: only a hang reaches it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Sets the random choices of a run; a run without it prints the value that repeats it.
pub const SEED_VAR: &str = "ROPEWAY_TEST_SEED";

/// What carries the connections of a scenario.
#[derive(Clone, Copy, Debug)]
pub enum Over<'a> {
    /// The kernel's TCP alone.
    Tcp,
    /// Ropeway, with the rendezvous of this world.
    Ropeway(&'a World),
}

impl<'a> Over<'a> {
    /// Ropeway, or TCP when the tests themselves are checked without it.
    pub fn tested(world: &'a World) -> Self {
        if is_bare() { Over::Tcp } else { Over::Ropeway(world) }
    }

    /// The command as it runs here.
    pub fn command(self, cmd: Command) -> Command {
        match self {
            Over::Tcp => cmd,
            Over::Ropeway(world) => world.command(&cmd),
        }
    }
}

/// One of the C programs of the fault suite.
pub fn program(name: &str) -> CProgram {
    CProgram::new(format!("crates/testkit/programs/faults/{name}.c"))
}

/// The scripted end of a connection, `peer.c`.
pub fn peer_program() -> PathBuf {
    program("peer").flag("-ldl").build()
}

/// The same under AddressSanitizer, which ends it with exit code 1 when a byte lands beside a buffer.
pub fn sanitized_peer_program() -> PathBuf {
    program("peer").flag("-fsanitize=address").flag("-static-libasan").flag("-ldl").build()
}

/// What one step of a script printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The step: `recv`, `send`, ...
    pub name: String,
    /// Bytes (or rounds) it moved.
    pub count: u64,
    /// `ok`, `eof` or the name of an errno.
    pub end: String,
}

/// A running script, stopped and killed like any [`Process`].
#[derive(Debug)]
pub struct Peer {
    /// The process itself, for signals.
    pub process: Process,
    stdin: ChildStdin,
}

impl Peer {
    /// Starts a script of `peer.c`.
    #[track_caller]
    pub fn start<S: AsRef<str>>(over: Over, steps: impl IntoIterator<Item = S>) -> Self {
        let steps: Vec<S> = steps.into_iter().collect();
        Self::from_command(over.command(command(peer_program(), steps.iter().map(AsRef::as_ref))))
    }

    /// Starts a command that ends up as a script of `peer.c`.
    #[track_caller]
    pub fn from_command(cmd: Command) -> Self {
        let (process, stdin) = Process::spawn_with_stdin(cmd);
        Self { process, stdin }
    }

    /// Starts both ends of one connection: the first script listens and accepts, the second connects.
    #[track_caller]
    pub fn pair(over: Over, port: u16, accepting: &[&str], connecting: &[&str]) -> (Self, Self) {
        let listen = format!("listen={port}");
        let accepting = Self::start(over, [&[listen.as_str(), "accept"], accepting].concat());
        accepting.process.wait_for_output("listen ", LIMIT);
        let connect = format!("connect={port}");
        let connecting = Self::start(over, [&[connect.as_str()], connecting].concat());
        (accepting, connecting)
    }

    /// Waits until it has printed `text`.
    #[track_caller]
    pub fn reached(&self, text: &str) {
        self.process.wait_for_output(text, LIMIT);
    }

    /// Lets a script that stands at its `wait` step go on.
    pub fn go(&mut self) {
        // A script that has ended cannot go on; what it printed tells why.
        let _ = self.stdin.write_all(b"\n");
    }

    /// What it printed so far.
    pub fn steps(&self) -> Vec<Step> {
        self.process.stdout().lines().filter_map(step).collect()
    }

    /// Waits for its end, which must be orderly, and returns what it printed.
    #[track_caller]
    pub fn finish(&self) -> Vec<Step> {
        self.process.succeed(LIMIT);
        self.steps()
    }

    /// Like [`Peer::finish`], for a script whose every step must end with `ok` or, at the end of the stream, `eof`.
    #[track_caller]
    pub fn all_right(&self) -> Vec<Step> {
        let steps = self.finish();
        let wrong = steps.iter().find(|step| step.end != "ok" && step.end != "eof");
        assert_eq!(wrong, None, "`{}` printed {steps:#?}", self.process.command());
        steps
    }
}

/// A line of output: a name, a count and an end.
fn step(line: &str) -> Option<Step> {
    let mut words = line.split(' ');
    let (name, count, end) = (words.next()?, words.next()?, words.next()?);
    Some(Step { name: name.into(), count: count.parse().ok()?, end: end.into() })
}

/// The last step called `name`.
///
/// # Panics
/// When there is none.
#[track_caller]
pub fn last<'a>(steps: &'a [Step], name: &str) -> &'a Step {
    steps.iter().rfind(|step| step.name == name).unwrap_or_else(|| panic!("no step {name} in {steps:#?}"))
}

/// What the process `pid` moved, from its line of statistics; it must have ended in an orderly way. `None`, recorded as a
/// skip of `test`, when the tests run without Ropeway.
#[track_caller]
pub fn traffic(world: &World, test: &str, pid: u32) -> Option<Traffic> {
    if is_bare() {
        let here = format!("faults::{test}::here");
        skip::record(&here, &format!("{BARE_VAR} is set: right on plain TCP, the carrier was not looked at"));
        return None;
    }
    let stats = world.stats();
    let own: Vec<_> = stats.iter().filter(|stats| stats.pid == pid).collect();
    assert!(!own.is_empty(), "process {pid} left no statistics; those that did: {stats:#?}");
    Some(Traffic::of(own))
}

/// Requires that the process `pid` moved at least `bytes` over shared memory.
///
/// # Panics
/// With its figures, when it did not.
#[track_caller]
pub fn assert_over_shm(world: &World, test: &str, pid: u32, bytes: u64) {
    if let Some(traffic) = traffic(world, test, pid) {
        assert!(traffic.shm_bytes >= bytes, "at least {bytes} bytes over shm are expected: {traffic:#?}");
    }
}

/// Requires that the process `pid` moved everything over TCP and gave one of `reasons`.
///
/// # Panics
/// With its figures, when it did not.
#[track_caller]
pub fn assert_over_tcp(world: &World, test: &str, pid: u32, reasons: &[&str]) {
    if let Some(traffic) = traffic(world, test, pid) {
        let given = reasons.iter().any(|reason| traffic.reasons.contains_key(*reason));
        assert!(traffic.shm_bytes == 0 && given, "TCP alone and one of {reasons:?} are expected: {traffic:#?}");
    }
}

/// The world's daemon, once it is there.
///
/// # Panics
/// When none appears.
#[track_caller]
pub fn daemon_pid(world: &World) -> rustix::process::Pid {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(pid) = world.daemon_pid() {
            return rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid is positive");
        }
        assert!(Instant::now() < deadline, "no daemon runs at {}", world.socket());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Random choices (xorshift64*), from the seed in [`SEED_VAR`] or from the clock.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The choices that follow from a seed.
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that xorshift never leaves.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Prints the command that repeats the choices of this test of the suite `faults`; the harness shows it when the test fails.
    pub fn of_test(test: &str) -> Self {
        Self::of_suite("faults", test)
    }

    /// The same for a test of another suite.
    pub fn of_suite(suite: &str, test: &str) -> Self {
        let from_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.subsec_nanos().into());
        let seed: u64 = std::env::var(SEED_VAR).ok().and_then(|text| text.parse().ok()).unwrap_or_else(from_clock);
        println!("replay: {SEED_VAR}={seed} cargo xtask test --suite {suite} -- {test}");
        Self::new(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Sleeps for less than `limit`.
    pub fn pause(&mut self, limit: Duration) {
        let micros = u64::try_from(limit.as_micros()).expect("a pause of a test is short");
        std::thread::sleep(Duration::from_micros(self.below(micros)));
    }
}

/// A mapping of a process that another process maps too: what a hostile peer may write at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMapping {
    /// Where the process maps it.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    inode: u64,
}

/// The memory that `pid` can write and `other` maps as well, and nothing that either maps alone.
pub fn shared_mappings(pid: u32, other: u32) -> Vec<SharedMapping> {
    let theirs = writable_shared(other);
    writable_shared(pid).into_iter().filter(|own| theirs.iter().any(|their| their.inode == own.inode)).collect()
}

fn writable_shared(pid: u32) -> Vec<SharedMapping> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().filter_map(shared_mapping).collect()
}

/// One line of `/proc/<pid>/maps`, when it is a writable shared mapping of a memfd.
fn shared_mapping(line: &str) -> Option<SharedMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let writable_and_shared = fields.next()? == "rw-s";
    let inode = fields.nth(2)?.parse().ok()?;
    let is_memfd = fields.next()?.starts_with("/memfd:");
    (writable_and_shared && is_memfd).then_some(SharedMapping { start, bytes: end - start, inode })
}

/// The memory of a process, written from outside as a hostile program inside it would.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens the memory of a process; needs root or the same user.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self(File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?))
    }

    /// The eight bytes at an address.
    ///
    /// # Errors
    /// When nothing is mapped there any more.
    pub fn word(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Overwrites what is at an address.
    ///
    /// # Errors
    /// When nothing is mapped there any more.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_shared_memfds_count() {
        let line = "7f0000000000-7f0000002000 rw-s 00000000 00:01 1234    /memfd:pair (deleted)";
        assert_eq!(shared_mapping(line), Some(SharedMapping { start: 0x7f00_0000_0000, bytes: 0x2000, inode: 1234 }));
        assert_eq!(shared_mapping(&line.replace("rw-s", "r--s")), None);
        assert_eq!(shared_mapping(&line.replace("/memfd:pair", "/usr/lib/x")), None);
        assert_eq!(shared_mapping("7f0000000000-7f0000002000 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn a_line_of_output_is_a_step() {
        let expected = Step { name: "recv".into(), count: 12, end: "ECONNRESET".into() };
        assert_eq!(step("recv 12 ECONNRESET"), Some(expected));
        assert_eq!(step("BAD@7"), None);
    }
}
