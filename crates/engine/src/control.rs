//! How tools ask an engine and set its tunables: a stream socket at an abstract address, one line of JSON there, one back.
//!
//! The address is `ropeway-engine/UID/PID.N`; the tool finds engines in `/proc/net/unix`. A thread of its own answers, so that nothing of this is in the way of packets;
//! it sleeps until somebody asks. Only the same user and root are answered. What there is to tell is in `control/shown.rs`. What is not here: what a tool prints.

mod asking;
mod shown;

use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ropeway_proto::Config;
use ropeway_proto::config::{SetError, TUNABLES, Tunable};
use ropeway_shm::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

pub use self::shown::{ConnectionShown, LinkShown, Shown};
use crate::inner::Inner;
use crate::thread::{self, ENGINE_STACK_BYTES};

/// The beginning of every engine's address, before the user's number.
pub const PREFIX: &str = "ropeway-engine/";
/// A question is short.
const MOST_QUESTION_BYTES: u64 = 4096;
/// Who connects and says nothing is let go.
const PATIENCE: Duration = Duration::from_secs(2);
/// A long answer of a busy process may take longer than its beginning.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// So many names in a row that others have are passed over.
const MOST_TAKEN: u32 = 1024;
/// Who asks is taken so long after that has failed.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// What a tool asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// Everything that is known.
    Show,
    /// The tunables and their values.
    Tunables,
    /// Change one, given in its unit.
    Set { name: String, value: String },
}

/// What an engine answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Shown(Box<Shown>),
    Tunables(Vec<Value>),
    Set { before: String },
    Error(String),
}

/// One tunable of a running engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    pub name: String,
    pub unit: String,
    /// What the values 0, 1, ... are called, if they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    pub value: u64,
    pub usual: u64,
    pub least: u64,
    pub most: u64,
    pub about: String,
    /// What more and less of it cost.
    #[serde(default)]
    pub cost: String,
}

/// Where an engine or a gateway is asked. Gone with it.
pub(crate) struct Listener {
    pub name: String,
    listener: UnixListener,
}

impl Listener {
    /// At the address `PREFIX UID/PID.N`, with the next `N` that is free: processes of other process namespaces, containers for example, may have the same number as this one.
    pub fn bind(prefix: &str, numbers: &AtomicU32) -> io::Result<Listener> {
        let user = rustix::process::geteuid().as_raw();
        let mut tries = 0..MOST_TAKEN;
        let listener = loop {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let name = format!("{prefix}{user}/{}.{number}", std::process::id());
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries.next().is_some() => {}
                listener => break Listener { name, listener: listener? },
            }
        };
        // Nobody needs to pass any, and who does decides how long their close takes. Kernels before 6.16 cannot forbid it.
        let _ = sys::set_passes_descriptors(listener.listener.as_raw_fd(), false);
        Ok(listener)
    }

    /// Who waits in `accept` wakes, and nobody can connect any more.
    pub fn shut_down(&self) {
        // It needs no descriptor, of which there may be none left.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    /// Waits for who asks, and gives him to `answer`, which says whether to go on, and holds nothing when he is let go: that may take its time.
    pub fn serve(&self, mut answer: impl FnMut(Option<&UnixStream>) -> ControlFlow<()>) {
        loop {
            let stream = self.listener.accept().map(|(stream, _)| stream).ok();
            if answer(stream.as_ref()).is_break() {
                return;
            }
            if stream.is_none() {
                // Mostly the process has no descriptor left, and who asks still waits.
                std::thread::sleep(RETRY_AFTER);
            }
        }
    }
}

/// Starts to answer. Without an abstract address (a sandbox) the engine is not to be seen, and works all the same.
pub(crate) fn start(inner: Weak<Inner>) -> io::Result<Arc<Listener>> {
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
    let listener = Arc::new(Listener::bind(PREFIX, &NUMBERS)?);
    let served = listener.clone();
    thread::spawn("ropeway-control", ENGINE_STACK_BYTES, move || serve(&served, &inner))?;
    Ok(listener)
}

fn serve(listener: &Listener, inner: &Weak<Inner>) {
    listener.serve(|stream| {
        let Some(inner) = inner.upgrade() else { return ControlFlow::Break(()) };
        if inner.lock().shut_down {
            return ControlFlow::Break(());
        }
        // Whoever goes away in the middle only harms itself.
        let _ = stream.map(|stream| answer(stream, &inner));
        ControlFlow::Continue(())
    });
}

fn answer(stream: &UnixStream, inner: &Inner) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !is_answered(stream)? {
        return Ok(());
    }
    let mut line = String::new();
    BufReader::new(io::Read::take(stream, MOST_QUESTION_BYTES)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::Show) => Answer::Shown(Box::new(shown::show(inner))),
        Ok(Question::Tunables) => Answer::Tunables(tunables(inner.lock().endpoint.config())),
        // A process that was stopped meanwhile: whoever asked was told that it did not answer.
        Ok(Question::Set { .. }) if has_left(stream)? => return Ok(()),
        Ok(Question::Set { name, value }) => set(inner, &name, &value)
            .map_or_else(|error| Answer::Error(error.to_string()), |before| Answer::Set { before }),
        Err(error) => Answer::Error(format!("not a question that this engine knows: {error}")),
    };
    let mut text = serde_json::to_string(&answer).map_err(io::Error::other)?;
    text.push('\n');
    let mut stream = stream;
    stream.write_all(text.as_bytes())
}

/// Whether who asks is this user, or root: nobody else is answered.
pub(crate) fn is_answered(stream: &UnixStream) -> io::Result<bool> {
    let asker = rustix::net::sockopt::socket_peercred(stream)?.uid;
    Ok(asker.is_root() || asker == rustix::process::geteuid())
}

/// Whether nobody waits for an answer any more.
fn has_left(stream: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

fn tunables(config: &Config) -> Vec<Value> {
    let usual = Config::default();
    let value = |tunable: &Tunable| Value {
        name: tunable.name.into(),
        unit: tunable.unit.into(),
        words: tunable.words.iter().map(|&word| word.into()).collect(),
        value: config.get(tunable.name).unwrap_or_default(),
        usual: usual.get(tunable.name).unwrap_or_default(),
        least: tunable.least,
        most: tunable.most,
        about: tunable.about.into(),
        cost: tunable.cost.into(),
    };
    TUNABLES.iter().map(value).collect()
}

/// All tunables with their defaults, without asking anybody.
pub fn usual_tunables() -> Vec<Value> {
    tunables(&Config::default())
}

fn set(inner: &Inner, name: &str, value: &str) -> Result<String, SetError> {
    let mut core = inner.lock();
    let mut config = core.endpoint.config().clone();
    let before = config.get_text(name)?;
    config.set_text(name, value)?;
    inner.configure(&mut core, config)?;
    Ok(before)
}

/// Asks the engine at the abstract address `name`.
///
/// # Errors
/// It is gone, does not answer, or is somebody else's.
pub fn ask(name: &str, question: &Question) -> io::Result<Answer> {
    Round::default().ask(name, question)
}

/// Asks engines one after another, and keeps to bounds with all of a user's together: who has an address of an engine may say nothing, or much.
#[derive(Debug, Default)]
pub struct Round(asking::Round);

impl Round {
    /// As [`ask`].
    ///
    /// # Errors
    /// As [`ask`]; `TimedOut` where others of its user have used up what there is for them.
    pub fn ask(&mut self, name: &str, question: &Question) -> io::Result<Answer> {
        let mut text = serde_json::to_string(question).map_err(io::Error::other)?;
        text.push('\n');
        let line = self.asked(name, text.as_bytes())?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the engine belongs to another user"));
        }
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    /// What is said at the abstract address `name`.
    pub(crate) fn asked(&mut self, name: &str, question: &[u8]) -> io::Result<String> {
        self.0.ask(name, question)
    }
}

/// What [`Round::ask`]'s `TimedOut` means for the user of `name`: the same for all of his that are left.
pub fn unasked(name: &str, error: &io::Error) -> String {
    format!("engines and gateways of user {}: {error}", user(name).unwrap_or_default())
}

/// Whether asking failed because the engine or gateway has ended since it was found, or is another user's: nobody's fault.
pub fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, PermissionDenied};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe | PermissionDenied)
}

/// The abstract addresses of all engines of this network namespace.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn names() -> io::Result<Vec<String>> {
    names_with(PREFIX)
}

/// The same of those that answer this user: its own, or for root all.
///
/// # Errors
/// As [`names`].
pub fn names_that_answer() -> io::Result<Vec<String>> {
    names().map(that_answer)
}

/// Those of `names` that answer this user.
pub(crate) fn that_answer(names: Vec<String>) -> Vec<String> {
    let own = rustix::process::geteuid();
    let answers = |name: &String| own.is_root() || user(name) == Some(own.as_raw());
    names.into_iter().filter(answers).collect()
}

/// The user of an engine or a gateway, out of its address.
pub fn user(name: &str) -> Option<u32> {
    name.split('/').nth(1)?.parse().ok()
}

/// The abstract addresses that begin with `prefix`, and go on as [`Listener`] makes them.
pub(crate) fn names_with(prefix: &str) -> io::Result<Vec<String>> {
    // Others have any bytes in the names of their sockets.
    let text = std::fs::read("/proc/net/unix")?;
    let text = String::from_utf8_lossy(&text);
    let is_ours = |name: &&str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'/' | b'.')))
    };
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_once('@'))
        .map(|(_, name)| name)
        .filter(is_ours)
        .map(str::to_owned)
        .collect();
    names.sort();
    // Connections to an engine stand there under its name too.
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_passed_over() {
        let prefix = "ropeway-test/";
        let first = Listener::bind(prefix, &AtomicU32::new(0)).unwrap();
        let second = Listener::bind(prefix, &AtomicU32::new(0)).unwrap();
        assert!(first.name.ends_with(".0") && second.name.ends_with(".1"), "{} {}", first.name, second.name);
    }

    #[test]
    fn nobody_can_pass_descriptors_to_who_is_asked() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        use std::mem::MaybeUninit;
        use std::os::fd::AsFd;
        let listener = Listener::bind("ropeway-test-passing/", &AtomicU32::new(0)).unwrap();
        let (other, _) = UnixStream::pair().unwrap();
        if sys::set_passes_descriptors(other.as_raw_fd(), false).is_err() {
            ropeway_testkit::skip!("this kernel cannot forbid to pass descriptors (Linux 6.16 can)");
        }
        let asking = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&listener.name).unwrap()).unwrap();
        let passed = [asking.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        let sent = sendmsg(&asking, &[io::IoSlice::new(b"?")], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
    }
}
