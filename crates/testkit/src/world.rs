//! One private world per test: a rendezvous daemon, a file of statistics and a temporary directory that nobody else uses.

use crate::env;
use crate::proc::{self, Finished, Process, command};
use crate::stats::{ByDirection, Stats, parse_stats};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Overrides the abstract address of the daemon; part of the contract between `ropeway run` and the preload.
pub const DAEMON_SOCKET_VAR: &str = "ROPEWAY_SOCKET";

/// How long the processes of a world may take to end by themselves once the daemon was told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Numbers the worlds of this process. Relaxed: only uniqueness matters, nothing is published by it.
static NEXT_WORLD: AtomicU32 = AtomicU32::new(0);

/// Wraps a command so that it runs under Ropeway: `ropeway run --stats <stats> -- <cmd>`, with the rendezvous at the abstract
/// address `daemon_socket`. Environment changes and the working directory of `cmd` are kept.
pub fn ropeway_run(stats: &Path, daemon_socket: &str, cmd: &Command) -> Command {
    wrapped(&env::ropeway(), &["--stats".as_ref(), stats.as_os_str()], daemon_socket, cmd)
}

fn wrapped(ropeway: &Path, options: &[&std::ffi::OsStr], daemon_socket: &str, cmd: &Command) -> Command {
    let mut run = command(ropeway, ["run"]);
    run.args(options).arg("--").arg(cmd.get_program()).args(cmd.get_args());
    for (name, value) in cmd.get_envs() {
        match value {
            Some(value) => run.env(name, value),
            None => run.env_remove(name),
        };
    }
    if let Some(dir) = cmd.get_current_dir() {
        run.current_dir(dir);
    }
    run.env(DAEMON_SOCKET_VAR, daemon_socket);
    run
}

/// A private rendezvous, a file of statistics and a directory for whatever the test writes.
///
/// Dropping it stops the daemon and kills every process that still carries the world's name in its environment, so nothing
/// outlives the test. Declare it before the processes that run in it: Rust drops in reverse order.
#[derive(Debug)]
pub struct World {
    socket: String,
    dir: tempfile::TempDir,
}

impl World {
    /// A new world. Its daemon starts with the first program that runs in it.
    #[allow(clippy::new_without_default, reason = "each world is a new one; a default value would hide that")]
    pub fn new() -> Self {
        let number = NEXT_WORLD.fetch_add(1, Ordering::Relaxed);
        let socket = format!("ropeway-test/{}/{number}", std::process::id());
        let dir = tempfile::Builder::new().prefix("ropeway-test-").tempdir().expect("a temporary directory");
        Self { socket, dir }
    }

    /// The abstract address of this world's daemon, without the leading zero byte.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// A directory that is removed with the world. Only its owner may enter it; see [`World::open_dir`] for servers that
    /// change their user.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A program of this test, a shell script in the world's directory.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let (source, path) = (self.dir().join(format!("{name}.text")), self.dir().join(name));
        std::fs::write(&source, format!("#!/bin/sh\n{text}")).expect("a file");
        env::install(&source, &path);
        path
    }

    /// The directory, opened to every user of the machine.
    pub fn open_dir(&self) -> &Path {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(self.dir(), open).expect("one's own directory can be opened to others");
        self.dir()
    }

    /// The file to which the processes of this world append their line of statistics.
    pub fn stats_path(&self) -> PathBuf {
        self.dir().join("stats.jsonl")
    }

    /// The command, wrapped to run under Ropeway in this world.
    pub fn command(&self, cmd: &Command) -> Command {
        ropeway_run(&self.stats_path(), &self.socket, cmd)
    }

    /// Like [`World::command`], with `--strict`: a connection that should be promoted and is not makes its next call fail.
    pub fn strict_command(&self, cmd: &Command) -> Command {
        wrapped(
            &env::ropeway(),
            &["--strict".as_ref(), "--stats".as_ref(), self.stats_path().as_os_str()],
            &self.socket,
            cmd,
        )
    }

    /// Starts a command under Ropeway in this world.
    #[track_caller]
    pub fn spawn(&self, cmd: Command) -> Process {
        Process::spawn(self.command(&cmd))
    }

    /// Runs the `ropeway` program itself (`ss`, `daemon status`, `doctor`, ...) in this world.
    #[track_caller]
    pub fn ropeway(&self, args: &[&str]) -> Finished {
        Process::spawn(self.ropeway_command(args)).wait(Duration::from_secs(20)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The command with which [`World::ropeway`] runs the `ropeway` program.
    pub fn ropeway_command(&self, args: &[&str]) -> Command {
        let mut ropeway = command(env::ropeway(), args);
        ropeway.env(DAEMON_SOCKET_VAR, &self.socket);
        ropeway
    }

    /// The statistics of all processes of this world that ended so far.
    pub fn stats(&self) -> Vec<Stats> {
        parse_stats(&self.stats_path())
    }

    /// The statistics of the processes whose short name is `comm`.
    pub fn stats_of(&self, comm: &str) -> Vec<Stats> {
        self.stats().into_iter().filter(|stats| stats.comm == comm).collect()
    }

    /// The bytes that went over shared memory, summed over all processes that ended so far.
    pub fn shm_bytes(&self) -> ByDirection {
        self.stats().iter().map(|stats| stats.bytes.shm).fold(ByDirection::default(), |sum, bytes| ByDirection {
            sent: sum.sent + bytes.sent,
            received: sum.received + bytes.received,
        })
    }

    /// Stops this world's daemon (`ropeway daemon stop`); the next program that runs here starts a new one.
    pub fn stop_daemon(&self) -> Finished {
        self.ropeway(&["daemon", "stop"])
    }

    /// The pid of this world's daemon, if it runs: the process that carries the world's name and runs `ropeway`.
    pub fn daemon_pid(&self) -> Option<u32> {
        let program = env::ropeway();
        // A `ropeway run` that has not become its program yet is no daemon.
        let is_daemon = |pid: &Pid| {
            let of = format!("/proc/{}", pid.as_raw_nonzero());
            let arguments = proc::command_line_of(pid.as_raw_nonzero().get().unsigned_abs());
            let is_ropeway = std::fs::read_link(format!("{of}/exe")).is_ok_and(|exe| exe == program);
            is_ropeway && arguments.split('\0').nth(1) == Some("daemon")
        };
        let pid = self.processes().into_iter().find(is_daemon)?;
        Some(pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// The processes of this world whose command line has this text; its words end with `\0`.
    pub fn processes_with(&self, text: &str) -> Vec<u32> {
        let pids = self.processes().into_iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        pids.filter(|pid| proc::command_line_of(*pid).contains(text)).collect()
    }

    /// All processes whose environment carries this world's name.
    fn processes(&self) -> Vec<Pid> {
        let mark = format!("{DAEMON_SOCKET_VAR}={}", self.socket);
        let proc = std::fs::read_dir("/proc").expect("/proc is mounted");
        let carries = |pid: &Pid| {
            let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        };
        let numbers = proc.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter_map(Pid::from_raw).filter(carries).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.processes().is_empty() {
            return;
        }
        // Whatever it answers: who does not obey is killed below.
        let _ = Process::spawn(self.ropeway_command(&["daemon", "stop"])).wait(STOP_LIMIT);
        let deadline = Instant::now() + STOP_LIMIT;
        while !self.processes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        for pid in self.processes() {
            eprintln!("killed pid {}: it was still running at the end of its test", pid.as_raw_nonzero());
            // It may just have ended.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn worlds_are_private() {
        let (a, b) = (World::new(), World::new());
        assert_ne!(a.socket(), b.socket());
        assert_ne!(a.dir(), b.dir());
        assert!(a.stats().is_empty());
    }

    #[test]
    fn only_processes_that_carry_the_name_belong_to_a_world() {
        let (world, other) = (World::new(), World::new());
        let mut sleep = command("sleep", ["60"]);
        sleep.env(DAEMON_SOCKET_VAR, world.socket());
        let process = Process::spawn(sleep);
        // A program that has just begun shows no environment yet.
        let shows = || !world.processes().is_empty();
        process
            .wait_until("it shows its environment", Duration::from_secs(10), shows)
            .unwrap_or_else(|e| panic!("{e}"));
        let pids: Vec<u32> = world.processes().iter().map(|p| p.as_raw_nonzero().get().unsigned_abs()).collect();
        assert_eq!(pids, [process.pid()]);
        assert!(other.processes().is_empty());
        process.kill();
        drop(process);
        assert!(world.processes().is_empty());
    }

    #[test]
    fn a_wrapped_command_keeps_what_the_caller_set() {
        let mut inner = command("env", ["a b"]);
        inner.env("COLOUR", "blue").env_remove("HOME").current_dir("/");
        let run = wrapped(Path::new("ropeway"), &["--strict".as_ref()], "ropeway-test/x", &inner);
        let args: Vec<&OsStr> = run.get_args().collect();
        assert_eq!(args, ["run", "--strict", "--", "env", "a b"]);
        let envs: Vec<_> = run.get_envs().collect();
        assert!(envs.contains(&(OsStr::new("COLOUR"), Some(OsStr::new("blue")))));
        assert!(envs.contains(&(OsStr::new("HOME"), None)));
        assert!(envs.contains(&(OsStr::new(DAEMON_SOCKET_VAR), Some(OsStr::new("ropeway-test/x")))));
        assert_eq!(run.get_current_dir(), Some(Path::new("/")));
    }
}
