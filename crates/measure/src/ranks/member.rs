//! The coordinator's end of one rank: a process that we have started, or a connection of one that something else has. Nothing here waits without a deadline.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::{LONGEST_LINE_BYTES, Order, Reply, say};

/// One rank, as the coordinator sees it. Its process is killed when it is dropped.
#[derive(Debug)]
pub struct Member {
    /// For messages: `rank 1`, `rank 1 on h2`.
    pub name: String,
    input: Option<Sink>,
    output: OwnedFd,
    unread: Vec<u8>,
    child: Option<Child>,
    /// Where other ranks reach its host, if that is known of it.
    address: Option<String>,
    /// Where its standard error goes.
    errors: Option<PathBuf>,
}

#[derive(Debug)]
struct Sink(OwnedFd);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Why a rank cannot take part any more, or a trial gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{name} ended with {status}{said}")]
    Died { name: String, status: String, said: String },
    #[error("{name} is gone{said}")]
    Gone { name: String, said: String },
    #[error("{name} gave no answer within {limit:?}{said}")]
    Late { name: String, limit: Duration, said: String },
    #[error("{name} said something that is no answer: {text:?}{said}")]
    Nonsense { name: String, text: String, said: String },
    #[error("{name}: {reason}")]
    Failed { name: String, reason: String },
    /// All ranks refused the trial before they began it: they are as good as before.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Start(String),
    #[error("broken off")]
    BrokenOff,
}

impl Fault {
    /// What stands behind the others when several ranks fail: a rank that died makes its peers fail, and not the other way round.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Fault::BrokenOff => 5,
            Fault::Died { .. } => 4,
            Fault::Gone { .. } | Fault::Nonsense { .. } | Fault::Start(_) => 3,
            Fault::Failed { .. } | Fault::Refused(_) => 2,
            Fault::Late { .. } => 1,
        }
    }
}

impl Member {
    /// `output` is what the rank writes to us, `input` what it reads.
    pub fn new(name: String, input: OwnedFd, output: OwnedFd) -> Member {
        Member { name, input: Some(Sink(input)), output, unread: Vec::new(), child: None, address: None, errors: None }
    }

    /// The process behind it, and the file that has its standard error.
    pub fn with_child(mut self, child: Child, errors: PathBuf) -> Member {
        self.child = Some(child);
        self.errors = Some(errors);
        self
    }

    /// The same for a rank that is not our child: the file that has what its launcher wrote.
    pub fn with_errors(mut self, errors: PathBuf) -> Member {
        self.errors = Some(errors);
        self
    }

    /// Its host is the one at that address.
    pub fn with_address(mut self, address: String) -> Member {
        self.address = Some(address);
        self
    }

    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    pub fn tell(&mut self, order: &Order) -> Result<(), Fault> {
        let told = match &mut self.input {
            Some(input) => say(input, order),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        told.map_err(|_| self.gone())
    }

    /// Descriptor that becomes readable when there may be something to [`Member::heard`].
    pub fn fd(&self) -> &OwnedFd {
        &self.output
    }

    /// Reads what is there, which [`Member::fd`] said; the next answer if it is whole.
    pub fn heard(&mut self) -> Result<Option<Reply>, Fault> {
        let mut piece = [0u8; 65536];
        match rustix::io::read(&self.output, &mut piece) {
            Ok(0) => return Err(self.gone()),
            Ok(n) => self.unread.extend_from_slice(&piece[..n]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(self.gone()),
        }
        self.waiting()
    }

    /// The next answer of those that have been read.
    pub fn waiting(&mut self) -> Result<Option<Reply>, Fault> {
        loop {
            let Some(end) = self.unread.iter().position(|&b| b == b'\n') else {
                return match self.unread.len() {
                    0..=LONGEST_LINE_BYTES => Ok(None),
                    _ => Err(self.nonsense("a line without an end")),
                };
            };
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(reply) => return Ok(Some(reply)),
                // A login shell's greeting, for example.
                Err(_) if line.first() != Some(&b'{') => {}
                Err(_) => return Err(self.nonsense(&String::from_utf8_lossy(&line))),
            }
        }
    }

    fn nonsense(&self, text: &str) -> Fault {
        let text: String = text.trim().chars().take(120).collect();
        Fault::Nonsense { name: self.name.clone(), text, said: self.said() }
    }

    pub fn late(&self, limit: Duration) -> Fault {
        Fault::Late { name: self.name.clone(), limit, said: self.said() }
    }

    /// Its output has ended: how did it?
    fn gone(&mut self) -> Fault {
        /// Between the end of a process's output and its own.
        const ENDING: Duration = Duration::from_millis(200);
        let status = self.child.as_mut().and_then(|child| wait(child, ENDING));
        if self.child.is_none() && self.errors.is_some() {
            // Its launcher says what became of it.
            std::thread::sleep(ENDING);
        }
        let (name, said) = (self.name.clone(), self.said());
        match status {
            Some(status) => Fault::Died { name, status: status.to_string(), said },
            None => Fault::Gone { name, said },
        }
    }

    /// The last line that it wrote to its standard error, in brackets.
    fn said(&self) -> String {
        self.errors.as_deref().map(last_line).unwrap_or_default()
    }

    /// Tells it to end and waits a while for it; true if it ended well.
    pub fn leave(mut self, limit: Duration) -> bool {
        let told = self.tell(&Order::Bye).is_ok();
        // Its input stays open until then: a rank whose coordinator is gone ends at once, and not as it should.
        told && self.child.as_mut().is_none_or(|child| wait(child, limit).is_some_and(|status| status.success()))
    }
}

/// The last line of a file, in brackets; or the last sentence, where it stands on several lines between dashes, as Open MPI's do.
pub(super) fn last_line(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let is_frame = |line: &&str| line.chars().all(|letter| letter == '-');
    let mut lines = text.lines().rev().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let mut said: Vec<&str> = match lines.peek().is_some_and(is_frame) {
        true => lines.skip_while(is_frame).take_while(|line| !is_frame(line)).collect(),
        false => lines.take(1).collect(),
    };
    said.reverse();
    match said.is_empty() {
        true => String::new(),
        false => format!(" ({})", said.join(" ")),
    }
}

pub(super) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.input = None;
        if let Some(child) = &mut self.child {
            // An ended child is only reaped; `ropeway run` and `ropeway box exec` become the rank by exec, so that the child is the rank itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until one of these has something to say, or has ended; false when the time is over or a signal came.
pub(super) fn wait_for_any<'a>(members: impl Iterator<Item = &'a Member>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).ok();
    let mut fds: Vec<PollFd> =
        members.map(|member| PollFd::from_borrowed_fd(member.output.as_fd(), PollFlags::IN)).collect();
    matches!(poll(&mut fds, timeout.as_ref()), Ok(n) if n > 0)
}

/// Whether this one has something to say, or has ended.
pub(super) fn can_be_heard(member: &Member) -> bool {
    let now = Timespec::default();
    matches!(poll(&mut [PollFd::new(&member.output, PollFlags::IN)], Some(&now)), Ok(1))
}
