//! Processes that cannot outlive their test.
//!
//! A [`Process`] runs in a process group of its own and is killed, with the whole group, when it is dropped: also when the test
//! panics. Its output goes to unlinked temporary files, so that a full pipe never stops it and a background process that
//! inherited the output never blocks the reader.

use crate::net;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How often something that cannot be waited for (a line of output, a listener) is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How much of a process's output a failing test shows.
const SHOWN_OUTPUT_BYTES: usize = 8 * 1024;

/// How long that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that is seen only by looking.
///
/// # Panics
/// It is not seen within a minute.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not seen: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A command with its arguments, in one line.
pub fn command<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// A command that another program starts: `env` with signals as they are to be for it, `nohup`.
pub fn behind(program: &[&str], command: &Command) -> Command {
    let mut starts = self::command(program[0], &program[1..]);
    starts.arg(command.get_program()).args(command.get_args());
    starts.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    starts
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// A process that ended, with all that it wrote.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// How it ended.
    pub exit: Exit,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error; bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// The time from start to end.
    pub elapsed: Duration,
}

impl Finished {
    /// Whether it exited with code 0.
    pub fn success(&self) -> bool {
        self.exit == Exit::Code(0)
    }

    /// Itself, when it exited with code 0.
    ///
    /// # Panics
    /// With its output, when it did not.
    pub fn expect_success(self) -> Self {
        assert!(self.success(), "`{}` ended with {:?}\n{}", self.command, self.exit, shown(&self.stdout, &self.stderr));
        self
    }
}

/// Why waiting for a process gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// It still runs. It is left running; dropping it kills it.
    #[error("`{command}` still runs after {limit:?}\n{output}")]
    TimedOut {
        /// The command line.
        command: String,
        /// How long was waited.
        limit: Duration,
        /// The end of what it wrote so far.
        output: String,
    },
    /// It ended before what was waited for happened.
    #[error("`{command}` ended with {exit:?} before {what}\n{output}")]
    Ended {
        /// The command line.
        command: String,
        /// How it ended.
        exit: Exit,
        /// What was waited for.
        what: String,
        /// The end of what it wrote.
        output: String,
    },
}

/// A running process, alone in its process group; dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    command: String,
    stdout: File,
    stderr: File,
    started: Instant,
}

impl Process {
    /// Starts a command with empty standard input.
    ///
    /// # Panics
    /// When it cannot be started; the message names the program.
    pub fn spawn(command: Command) -> Self {
        Self::start(command, Stdio::null())
    }

    /// Starts a command whose standard input is a pipe, and returns the writing end.
    ///
    /// # Panics
    /// When it cannot be started; the message names the program.
    pub fn spawn_with_stdin(command: Command) -> (Self, ChildStdin) {
        let mut process = Self::start(command, Stdio::piped());
        let stdin = process.child.stdin.take().expect("standard input is a pipe");
        (process, stdin)
    }

    /// The same, with its output in the files `stem.out` and `stem.err`, which stay.
    ///
    /// # Panics
    /// When it cannot be started, or the files not be made; the message names them.
    pub fn spawn_kept(command: Command, stem: &Path) -> (Self, ChildStdin) {
        let files = ["out", "err"].map(|extension| kept_file(&stem.with_added_extension(extension)));
        let mut process = Self::start_into(command, Stdio::piped(), files);
        let stdin = process.child.stdin.take().expect("standard input is a pipe");
        (process, stdin)
    }

    fn start(command: Command, stdin: Stdio) -> Self {
        Self::start_into(command, stdin, [capture_file(), capture_file()])
    }

    fn start_into(mut command: Command, stdin: Stdio, files: [(File, File); 2]) -> Self {
        let [(stdout, stdout_end), (stderr, stderr_end)] = files;
        command.stdin(stdin).stdout(stdout_end).stderr(stderr_end).process_group(0);
        let line = command_line(&command);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start `{line}`: {e}"));
        let pid = Pid::from_child(&child);
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd of a child that is not reaped yet");
        Self { child, pidfd, command: line, stdout, stderr, started: Instant::now() }
    }

    /// The process id, which is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command line, for messages.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Sends a signal to the process alone, not to its group.
    ///
    /// # Panics
    /// When the kernel refuses; a process that already ended is no error.
    pub fn signal(&self, signal: Signal) {
        // Not reaped before it is dropped, so the number cannot belong to somebody else.
        rustix::process::kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|e| panic!("cannot send {signal:?} to `{}`: {e}", self.command));
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        self.exit().is_none()
    }

    /// Whether all its threads sleep.
    pub fn is_asleep(&self) -> bool {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return false };
        tasks.flatten().all(|task| {
            // The name, which stands before the state, may hold anything.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        })
    }

    /// How it ended, if it did. It stays unreaped until it is dropped, so its pid keeps meaning this process.
    pub fn exit(&self) -> Option<Exit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        let status = status.expect("a child that is not reaped yet can be waited for")?;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Exit::Code(code)),
            (None, Some(signal)) => Some(Exit::Signal(signal)),
            (None, None) => None,
        }
    }

    /// Waits until it ends, however it ends.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Finished, WaitError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(exit) = self.exit() {
                let (stdout, stderr) = (self.stdout(), self.stderr());
                return Ok(Finished {
                    command: self.command.clone(),
                    exit,
                    stdout,
                    stderr,
                    elapsed: self.started.elapsed(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::TimedOut { command: self.command.clone(), limit, output: self.shown_output() });
            }
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => panic!("cannot wait for `{}`: {e}", self.command),
            }
        }
    }

    /// Waits until it ends and requires exit code 0.
    ///
    /// # Panics
    /// With its output, when it fails or takes longer than `limit`.
    #[track_caller]
    pub fn succeed(&self, limit: Duration) -> Finished {
        self.wait(limit).unwrap_or_else(|e| panic!("{e}")).expect_success()
    }

    /// Asks it to end (SIGTERM) and waits, so that it leaves its [`Stats`](crate::Stats) behind.
    ///
    /// # Panics
    /// With its output, when it still runs after `limit`.
    #[track_caller]
    pub fn terminate(&self, limit: Duration) -> Finished {
        self.signal(Signal::TERM);
        self.wait(limit).unwrap_or_else(|e| panic!("after SIGTERM: {e}"))
    }

    /// Kills the whole process group with SIGKILL and waits for the process itself.
    pub fn kill(&self) -> Finished {
        self.kill_group();
        self.wait(Duration::from_secs(10)).unwrap_or_else(|e| panic!("after SIGKILL: {e}"))
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        contents(&self.stdout)
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        contents(&self.stderr)
    }

    /// Waits until standard output or standard error contains `text`.
    ///
    /// # Panics
    /// With its output, when it ends first or `limit` passes.
    #[track_caller]
    pub fn wait_for_output(&self, text: &str, limit: Duration) {
        let seen = || self.stdout().contains(text) || self.stderr().contains(text);
        self.wait_until(&format!("writing {text:?}"), limit, seen).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until somebody listens on a TCP port in this process's network namespace, without connecting to it (a server
    /// that takes one connection only would take that one).
    ///
    /// # Panics
    /// With its output, when it ends first or `limit` passes.
    #[track_caller]
    pub fn wait_for_port(&self, port: u16, limit: Duration) {
        let what = format!("somebody listens on port {port}");
        self.wait_until(&what, limit, || net::is_listening(self.pid(), port)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// When the process ends first or `limit` passes.
    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let deadline = Instant::now() + limit;
        loop {
            // The order matters: what a process did last may be the very thing that is waited for.
            let exit = self.exit();
            if condition() {
                return Ok(());
            }
            if let Some(exit) = exit {
                let (command, what) = (self.command.clone(), what.into());
                return Err(WaitError::Ended { command, exit, what, output: self.shown_output() });
            }
            if Instant::now() >= deadline {
                return Err(WaitError::TimedOut { command: self.command.clone(), limit, output: self.shown_output() });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn shown_output(&self) -> String {
        shown(&self.stdout(), &self.stderr())
    }

    fn kill_group(&self) {
        // An error means that nobody is left in the group, which is what is wanted.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let uneventful = || self.exit() == Some(Exit::Code(0)) && self.stderr().is_empty();
        if std::thread::panicking() && !uneventful() {
            eprintln!("--- `{}` (pid {}, {:?})\n{}", self.command, self.pid(), self.exit(), self.shown_output());
        }
        self.kill_group();
        // The only place that reaps: until here the number of the group could not be given to a stranger.
        let _ = self.child.wait();
    }
}

/// An unlinked file twice: to read what was written, and, in append mode, for a process to write.
fn capture_file() -> (File, File) {
    let open = || -> io::Result<(File, File)> {
        let named = tempfile::NamedTempFile::new()?;
        let writer = File::options().append(true).open(named.path())?;
        Ok((named.into_file(), writer))
    };
    open().unwrap_or_else(|e| panic!("cannot create a temporary file for the output of a process: {e}"))
}

/// A file with a name, likewise twice.
fn kept_file(path: &Path) -> (File, File) {
    let open = || -> io::Result<(File, File)> {
        let writer = File::options().append(true).create(true).open(path)?;
        Ok((File::open(path)?, writer))
    };
    open().unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()))
}

fn contents(file: &File) -> String {
    let length = file.metadata().map_or(0, |meta| meta.len());
    let mut bytes = vec![0; usize::try_from(length).expect("the output of a test fits in memory")];
    file.read_exact_at(&mut bytes, 0).expect("a file that only grows can be read up to its length");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn shown(stdout: &str, stderr: &str) -> String {
    [("standard output", stdout), ("standard error", stderr)]
        .map(|(name, text)| {
            let start = text.ceil_char_boundary(text.len().saturating_sub(SHOWN_OUTPUT_BYTES));
            let cut = if start > 0 { " (its end)" } else { "" };
            format!("-- {name}{cut}:\n{}\n", text[start..].trim_end())
        })
        .concat()
}

/// The command line of a process, each word of it ending with `\0`; empty when there is no such process.
pub fn command_line_of(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// All processes whose command line has this text.
pub fn with_command_line(text: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    all.filter(|pid| command_line_of(*pid).contains(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn sh(script: &str) -> Process {
        Process::spawn(command("sh", ["-c", script]))
    }

    #[test]
    fn output_and_exit_code_are_captured() {
        let finished = sh("echo out; echo err >&2; exit 3").wait(LIMIT).expect("it ends");
        assert_eq!(
            (finished.exit, finished.stdout.as_str(), finished.stderr.as_str()),
            (Exit::Code(3), "out\n", "err\n")
        );
    }

    #[test]
    fn a_deadly_signal_is_reported() {
        let process = sh("sleep 60");
        process.signal(Signal::KILL);
        assert_eq!(process.wait(LIMIT).expect("it ends").exit, Exit::Signal(9));
    }

    #[test]
    fn waiting_too_long_is_an_error_that_shows_the_output() {
        let error = sh("echo so far; sleep 60").wait(Duration::from_millis(300)).expect_err("it still runs");
        assert!(error.to_string().contains("so far"), "{error}");
    }

    #[test]
    fn dropping_kills_the_grandchildren_too() {
        let process = sh("sleep 60 & echo $!; wait");
        process.wait_for_output("\n", LIMIT);
        let grandchild = Pid::from_raw(process.stdout().trim().parse().expect("a pid")).expect("not zero");
        drop(process);
        let gone = || rustix::process::test_kill_process(grandchild).is_err() || is_zombie(grandchild);
        assert!(
            (0..1000).any(|_| gone() || {
                std::thread::sleep(POLL_INTERVAL);
                false
            }),
            "{grandchild:?} survived"
        );
    }

    fn is_zombie(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }

    #[test]
    fn ending_before_the_awaited_output_is_an_error() {
        let process = sh("echo nothing of that kind");
        let error = process.wait_until("the moon", LIMIT, || false).expect_err("it ends first");
        assert!(matches!(error, WaitError::Ended { exit: Exit::Code(0), .. }), "{error}");
    }
}
