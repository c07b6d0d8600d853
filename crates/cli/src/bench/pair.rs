//! Runs one round of one transport: starts the two workers, waits for them with a deadline, and collects what they report.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::carried::Carried;
use super::floor;
use super::plan::{Pattern, Plan, Text, Transport, WARM_UP};
use super::samples::Raw;
use super::worker::{self, Role};

/// What one round gave.
#[derive(Debug)]
pub struct Round {
    pub raw: Raw,
    /// Present for the Ropeway transports.
    pub carried: Option<Carried>,
}

/// Why a round gave nothing. Shown in the row instead of a figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("needs two cores, and this process may use only one")]
    OneCore,
    #[error("{0}")]
    Floor(String),
    #[error("cannot {what}: {cause}")]
    System { what: &'static str, cause: io::Error },
    #[error("the {role} worker did not finish within {limit:?}{said}")]
    Late { role: &'static str, limit: Duration, said: Said },
    #[error("the {role} worker ended with {status}{said}")]
    Died { role: &'static str, status: ExitStatus, said: Said },
    #[error("the {role} worker ended without a result{said}")]
    Silent { role: &'static str, said: Said },
    #[error("{sent} bytes were sent but {received} arrived")]
    Lost { sent: u64, received: u64 },
    #[error("{0}")]
    Statistics(String),
}

/// The last line that a worker wrote to its standard error.
#[derive(Debug)]
pub struct Said(String);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}

/// Time that a round may take beyond its plan, for starting and ending two processes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures one round.
pub fn measure(transport: Transport, plan: &Plan) -> Result<Round, Failure> {
    let floor = |raw: Result<Raw, String>| Ok(Round { raw: raw.map_err(Failure::Floor)?, carried: None });
    match transport {
        Transport::CacheLine => floor(floor::cache_line(plan, plan.cpus.ok_or(Failure::OneCore)?)),
        Transport::Memcpy => floor(floor::memcpy(plan, plan.cpus.map(|cpus| cpus.0))),
        Transport::TcpBlocking => two_processes(Text::TcpBlocking, plan, false),
        Transport::TcpSpinning => two_processes(Text::TcpSpinning, plan, false),
        Transport::Unix => two_processes(Text::Unix, plan, false),
        Transport::Ropeway => two_processes(Text::TcpBlocking, plan, true),
        Transport::RopewaySpinning => two_processes(Text::TcpSpinning, plan, true),
    }
}

fn two_processes(text: Text, plan: &Plan, preloaded: bool) -> Result<Round, Failure> {
    let room = Scratch::new()?;
    let limit = WARM_UP + plan.seconds + PATIENCE;
    let deadline = Instant::now() + limit;
    let start = |role: Role, address: &str| {
        let line = worker::command_line(role, address, text, plan);
        Worker::start(role, &room.path, preloaded, &line)
    };

    // Only AF_UNIX needs a name beforehand; the directory's name is unique already.
    let name = room.path.to_string_lossy().into_owned();
    let mut listener = start(Role::Listen, &name)?;
    let address = listener.line(deadline, limit)?;
    let Some(address) = address.strip_prefix(worker::LISTENING) else { return Err(listener.silent()) };
    let mut connector = start(Role::Connect, address)?;

    let sent = connector.finish(deadline, limit)?;
    let received = listener.finish(deadline, limit)?;
    if plan.pattern != Pattern::Pingpong && sent.bytes != received.bytes {
        return Err(Failure::Lost { sent: sent.bytes, received: received.bytes });
    }
    let raw = sent.raw.or(received.raw).ok_or_else(|| connector.silent())?;
    let carried = match preloaded {
        true => Some(Carried::from_stats(&room.path.join(STATS)).map_err(Failure::Statistics)?),
        false => None,
    };
    Ok(Round { raw, carried })
}

/// Name of the statistics file in the scratch directory.
const STATS: &str = "stats";

/// A private directory that goes when the round ends.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only uniqueness matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ropeway-bench-{}-{number}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|cause| Failure::System { what: "make a temporary directory", cause })?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running worker; killed when dropped.
struct Worker {
    role: &'static str,
    child: Child,
    output: ChildStdout,
    unread: Vec<u8>,
    errors: PathBuf,
}

impl Worker {
    fn start(role: Role, room: &Path, preloaded: bool, line: &[String]) -> Result<Worker, Failure> {
        let role = match role {
            Role::Listen => "listening",
            Role::Connect => "connecting",
        };
        let own = std::env::current_exe().map_err(|cause| Failure::System { what: "find this program", cause })?;
        let errors = room.join(role);
        let stderr = File::create(&errors).map_err(|cause| Failure::System { what: "make a temporary file", cause })?;
        let mut command = Command::new(&own);
        if preloaded {
            let stats = room.join(STATS).into_os_string();
            command.args([OsString::from("run"), "--stats".into(), stats, "--".into(), own.into_os_string()]);
        } else {
            // Asked for plain TCP: also when this program itself was started under `ropeway run`.
            command.env("ROPEWAY", "off");
        }
        command.args(line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(|cause| Failure::System { what: "start a worker", cause })?;
        let output = child.stdout.take().ok_or_else(|| Failure::System {
            what: "read a worker's output",
            cause: io::Error::from(io::ErrorKind::BrokenPipe),
        })?;
        Ok(Worker { role, child, output, unread: Vec::new(), errors })
    }

    /// The next line of output, without its end; empty at the end of the output.
    fn line(&mut self, deadline: Instant, limit: Duration) -> Result<String, Failure> {
        let reading = |cause: io::Error| Failure::System { what: "read a worker's output", cause };
        loop {
            if let Some(end) = self.unread.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return Err(self.late(limit)) };
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(self.late(limit)),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(reading(e.into())),
            }
            let mut piece = [0u8; 65536];
            match self.output.read(&mut piece).map_err(reading)? {
                0 => return Ok(String::new()),
                n => self.unread.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Reads the result and waits for the end.
    fn finish(&mut self, deadline: Instant, limit: Duration) -> Result<worker::Report, Failure> {
        let line = self.line(deadline, limit)?;
        let status = loop {
            match self.child.try_wait().map_err(|cause| Failure::System { what: "wait for a worker", cause })? {
                Some(status) => break status,
                None if Instant::now() >= deadline => return Err(self.late(limit)),
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        if !status.success() {
            return Err(Failure::Died { role: self.role, status, said: self.said() });
        }
        serde_json::from_str(&line).map_err(|_| self.silent())
    }

    fn late(&self, limit: Duration) -> Failure {
        Failure::Late { role: self.role, limit, said: self.said() }
    }

    fn silent(&self) -> Failure {
        Failure::Silent { role: self.role, said: self.said() }
    }

    fn said(&self) -> Said {
        let text = fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        Said(text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").trim().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An ended child is only reaped; `ropeway run` becomes the worker by exec, so the child is the worker itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
