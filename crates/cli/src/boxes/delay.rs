//! The delay of a box on a kernel that has none of its own (netem): a process in the switch's namespace, the delay line.
//!
//! `up` starts it, `down` ends it like any other process in the box. It sees the frames for each port at a device of their own
//! ([`switch`](super::switch)) and sends them to the port when their time has come. The process answers on a socket in the namespace, so that whoever
//! asks sees what it has done, or that it is gone; nothing of it is in the file system.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropeway_engine::link::delay::{Counters, DelayLine, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::names::Namespace;
use super::netns;
use super::plan::Line;
use crate::output::tell;

/// The name of the socket: abstract, so known in its namespace alone and gone with its process.
const SOCKET: &[u8] = b"ropeway-delay-line";

/// How long an answer may take on a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The part of a wait that is spent awake, because a sleep ends late: on a virtual machine mostly by less than this.
const SPIN: Duration = Duration::from_micros(100);

/// Of all the time, the process spends at most this part (one in so many) awake for nothing.
const SPIN_SHARE: u32 = 4;

/// What may be spent of it at once.
const MOST_SPIN: Duration = Duration::from_millis(10);

/// Before all others that have no real-time priority. With one the kernel holds a busy process back, for 20 s as was seen.
const NICE: i32 = -20;

/// Arguments of the process, which only `up` gives.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(long)]
    first_port: u32,
    #[arg(long)]
    first_device: u32,
    #[arg(long)]
    mtu: usize,
    #[arg(long)]
    frames: usize,
    #[arg(long)]
    delay_ns: u64,
}

impl Args {
    fn of(line: &Line, delay: Duration) -> [OsString; 5] {
        let Line { first_port, first_device, mtu, frames } = line;
        let delay_ns = delay.as_nanos();
        [
            format!("--first-port={first_port}"),
            format!("--first-device={first_device}"),
            format!("--mtu={mtu}"),
            format!("--frames={frames}"),
            format!("--delay-ns={delay_ns}"),
        ]
        .map(OsString::from)
    }
}

/// What the process says of itself.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Report {
    pub pid: u32,
    /// How many can be under way.
    pub frames: u64,
    /// How many are.
    pub waiting: u64,
    pub passed: u64,
    /// Frames for which there was no room.
    pub dropped: u64,
    /// By how much frames left later than they should, on average and at most.
    pub late_mean_us: f64,
    pub late_most_us: f64,
}

/// Starts the process; returns when it holds frames. The caller's files that are inherited by programs are inherited by it too, for good.
pub fn start(switch: &Namespace, line: &Line, delay: Duration) -> Result<()> {
    let spawn = || -> io::Result<_> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(SOCKET)?)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["box", "delay-line"]).args(Args::of(line, delay)).current_dir("/");
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    // A child is born in the namespace of the thread that starts it: there is no moment in which `down` would not find it.
    let mut child = netns::inside(switch, || spawn().map_err(Error::system("start the delay line")))?;
    if ask(switch)?.is_some() {
        return Ok(());
    }
    // It may have ended by itself.
    let _ = child.kill();
    let output = child.wait_with_output().map_err(Error::system("end the delay line"))?;
    Err(Error::NoDelayLine { said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

/// Asks the process how it is. `None`: there is none, or it does not answer.
pub fn ask(switch: &Namespace) -> Result<Option<Report>> {
    let answer = || -> io::Result<String> {
        let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(SOCKET)?)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    let answer = netns::inside(switch, || Ok(answer()))?;
    Ok(answer.ok().and_then(|text| serde_json::from_str(&text).ok()))
}

/// The process.
pub fn run(args: &Args) -> ExitCode {
    match serve(args) {
        Ok(never) => match never {},
        Err(error) => {
            tell!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> io::Result<std::convert::Infallible> {
    // A Ctrl-C at the terminal of `up` is not meant for it.
    rustix::process::setsid()?;
    // Where that is not allowed it may still be in time; `status` shows whether it is.
    let _ = rustix::process::setpriority_process(None, NICE);
    // Sleeps are to end when they should, and not together with others'.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Started by hand it would have none, and never sleep.
    listener.local_addr()?;
    let Args { first_port, first_device, mtu, frames, delay_ns } = *args;
    let delay = Duration::from_nanos(delay_ns);
    let mut line = DelayLine::open(&Options { first_from: first_device, first_to: first_port, mtu, frames, delay })?;
    let (mut spin, mut looked) = (Spin::new(), Instant::now());
    loop {
        let left = line.pass(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let gone = looked.elapsed();
        looked += gone;
        let (arrivals, timeout) = match left {
            None => (Some(line.descriptor()), None),
            Some(left) => match spin.sleep(left, gone) {
                None => continue,
                timeout => (None, timeout),
            },
        };
        if is_asked(&listener, arrivals, timeout)? {
            answer(&listener, &mut line);
        }
    }
}

/// Sleeps until somebody asks, a frame arrives (if there is a descriptor for it) or time is up. Says whether somebody asks.
fn is_asked(listener: &UnixListener, arrivals: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> io::Result<bool> {
    let listener = PollFd::new(listener, PollFlags::IN);
    let mut all = [listener.clone(), listener];
    let mut count = 1;
    if let Some(arrivals) = &arrivals {
        (all[1], count) = (PollFd::new(arrivals, PollFlags::IN), 2);
    }
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut all[..count], timeout.as_ref()) {
        Ok(_) => Ok(!all[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Answers one who asks. Whoever does not listen any more does without.
fn answer(listener: &UnixListener, line: &mut DelayLine) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    let Counters { arrived, passed, dropped, late, latest } = line.counters();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let report = Report {
        pid: std::process::id(),
        frames: line.frames() as u64,
        waiting: arrived.saturating_sub(passed + dropped),
        passed,
        dropped,
        late_mean_us: us(late) / (passed.max(1) as f64),
        late_most_us: us(latest),
    };
    // Far less than a socket holds, so this does not wait.
    let _ = serde_json::to_string(&report).map(|text| stream.write_all(text.as_bytes()));
}

/// Keeps the ends of waits awake, within bounds.
struct Spin {
    allowance: Duration,
    is_spinning: bool,
}

impl Spin {
    fn new() -> Spin {
        Spin { allowance: MOST_SPIN, is_spinning: false }
    }

    /// How to wait for so long, when so much time has gone since it was asked before: `None` is to look again at once.
    fn sleep(&mut self, left: Duration, gone: Duration) -> Option<Duration> {
        self.allowance = match self.is_spinning {
            true => self.allowance.saturating_sub(gone),
            false => (self.allowance + gone / SPIN_SHARE).min(MOST_SPIN),
        };
        let may = !self.allowance.is_zero();
        self.is_spinning = may && !left.is_zero() && left <= SPIN;
        if self.is_spinning { None } else { Some(if may { left.saturating_sub(SPIN) } else { left }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_end_of_a_wait_is_spent_awake_while_there_is_allowance() {
        let mut spin = Spin::new();
        assert_eq!(spin.sleep(SPIN + 100 * US, Duration::ZERO), Some(100 * US));
        assert_eq!(spin.sleep(SPIN, Duration::ZERO), None);
        assert_eq!(spin.sleep(Duration::ZERO, Duration::ZERO), Some(Duration::ZERO), "there is work to do");
        assert_eq!(spin.sleep(SPIN, Duration::ZERO), None);
        assert_eq!(spin.sleep(SPIN, MOST_SPIN), Some(SPIN), "all of it is spent");
        assert_eq!(spin.sleep(SPIN, SPIN_SHARE * US), None);
        assert_eq!(spin.allowance, US, "time asleep gives back a part of itself");
    }
}
