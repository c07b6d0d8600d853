//! The tools' side of the daemon's socket: where it is, whether it answers, what it says.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ropeway_socket::rendezvous::os::{self, Credentials, ReceivedFd};
use ropeway_socket::rendezvous::wire::{self, DaemonName, MAX_MESSAGE_BYTES, Message, WireError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::process;

/// Overrides the daemon's abstract address (tests).
pub const SOCKET_VAR: &str = "ROPEWAY_SOCKET";

/// A daemon that does not answer within this time is stopped or broken.
const PATIENCE: Duration = Duration::from_secs(2);

/// A list of all processes that there can be takes less; one that goes on is none.
const LIST_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("no daemon listens at @{0}; `ropeway daemon` starts it, `ropeway run` too")]
    NotRunning(String),
    #[error("@{name} belongs to user {uid}, not to you or root; stop that process, it is not your daemon")]
    NotTrusted { name: String, uid: u32 },
    #[error("the daemon at @{0} does not answer; is it stopped? (`kill -CONT` its pid, or kill it and start again)")]
    Silent(String),
    #[error(
        "the daemon at @{name} was killed as process {pid} and cannot end: it closes a file that was passed to it, and whose FUSE server does not answer; end that server"
    )]
    Ending { name: String, pid: u32 },
    #[error("the daemon closed the connection: too many processes of this user, or it is just ending")]
    Refused,
    #[error("what listens at @{0} does not answer like a daemon; stop it")]
    Strange(String),
    #[error("what answers at @{0} lists processes without end; it is no daemon of ours, stop it")]
    Endless(String),
    #[error(transparent)]
    Wire(#[from] WireErrorText),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// [`WireError`] as a standard error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WireErrorText(WireError);

/// The abstract address of this user's daemon, without the leading zero byte.
pub fn own_name() -> String {
    match std::env::var(SOCKET_VAR) {
        Ok(name) if !name.is_empty() => name,
        _ => name_of(rustix::process::getuid().as_raw()),
    }
}

fn name_of(uid: u32) -> String {
    String::from_utf8_lossy(DaemonName::of(uid).bytes()).into_owned()
}

/// Every daemon that may serve this user's processes: his own, then root's.
pub fn names() -> Vec<String> {
    let mut names = vec![own_name()];
    if std::env::var_os(SOCKET_VAR).is_none_or(|v| v.is_empty()) {
        names.push(name_of(0));
    }
    names.dedup();
    names
}

/// Whether the daemon of `uid` may be the one that is meant by `name`: anybody can have any name. Root asks anyone's daemon at its own address.
fn is_trusted(name: &str, uid: u32) -> bool {
    let me = rustix::process::getuid().as_raw();
    uid == me || uid == 0 || (me == 0 && name == name_of(uid))
}

/// A packet socket and the address of `name`.
pub fn socket_at(name: &str) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((socket, SocketAddrUnix::new_abstract_name(name.as_bytes())?))
}

/// A process as the daemon lists it.
#[derive(Debug)]
pub struct Entry {
    pub pid: u32,
    pub uid: u32,
    pub comm: String,
    /// The socket table of its family, or why it could not be taken.
    pub table: Option<io::Result<OwnedFd>>,
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
    name: String,
}

impl Control {
    pub fn connect(name: &str) -> Result<Control, ControlError> {
        let (socket, address) = socket_at(name)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Err(ControlError::NotRunning(name.into())),
            // Its queue of new connections is full: nobody takes them.
            Err(Errno::AGAIN) => return Err(ControlError::Silent(name.into())),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let daemon = os::peer(socket.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        if !is_trusted(name, daemon.uid) {
            return Err(ControlError::NotTrusted { name: name.into(), uid: daemon.uid });
        }
        Ok(Control { socket, name: name.into() })
    }

    /// Sends a request and returns the first answer.
    pub fn ask(&self, request: &Message) -> Result<Message, ControlError> {
        self.say(request)?;
        Ok(self.hear()?.0)
    }

    /// Gives `each` every process that the daemon lists, one by one: all their tables together may be more than one can have open.
    pub fn list(&self, each: impl FnMut(Entry)) -> Result<(), ControlError> {
        self.list_within(LIST_LIMIT, each)
    }

    fn list_within(&self, limit: Duration, mut each: impl FnMut(Entry)) -> Result<(), ControlError> {
        self.say(&Message::List {})?;
        let deadline = Instant::now() + limit;
        loop {
            if Instant::now() > deadline {
                return Err(ControlError::Endless(self.name.clone()));
            }
            match self.hear()? {
                (Message::Entry { pid, uid, comm }, table) => {
                    let comm = String::from_utf8_lossy(wire::unpadded(&comm)).into_owned();
                    each(Entry { pid, uid, comm, table });
                }
                (Message::EndOfList {}, _) => return Ok(()),
                _ => return Err(ControlError::Refused),
            }
        }
    }

    /// Waits until the daemon has closed the connection, that is, until it is gone.
    pub fn wait_for_end(&self) -> Result<(), ControlError> {
        loop {
            match self.hear() {
                Ok(_) => {}
                Err(ControlError::Refused) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Why there is no answer.
    fn silence(&self) -> ControlError {
        let name = self.name.clone();
        match os::peer(self.socket.as_raw_fd()) {
            Ok(Credentials { pid, .. }) if process::is_ending(pid) => ControlError::Ending { name, pid },
            _ => ControlError::Silent(name),
        }
    }

    fn say(&self, message: &Message) -> Result<(), ControlError> {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        match os::send(self.socket.as_raw_fd(), message.encode(&mut buf), None).map_err(Errno::from_raw_os_error) {
            Ok(()) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ControlError::Refused),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// The next message and what is attached to it, or was and found no free number here.
    fn hear(&self) -> Result<(Message, Option<io::Result<OwnedFd>>), ControlError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let ready = match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                other => other.map_err(io::Error::from)?,
            };
            if ready == 0 {
                return Err(self.silence());
            }
            let mut buf = [0; MAX_MESSAGE_BYTES];
            let received = match os::recv(self.socket.as_raw_fd(), &mut buf, ReceivedFd::close) {
                Ok(received) => received,
                Err(errno) if errno == Errno::CONNRESET.raw_os_error() => continue,
                Err(errno) => return Err(io::Error::from_raw_os_error(errno).into()),
            };
            if received.len == 0 {
                return Err(ControlError::Refused);
            }
            let bytes = buf.get(..received.len).unwrap_or(&[]);
            let message = Message::decode(bytes).map_err(WireErrorText)?;
            let lost = received.lost.then(|| Err(Errno::MFILE.into()));
            return Ok((message, received.fd.map(|fd| Ok(fd.into_owned())).or(lost)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EAGAIN: i32 = Errno::AGAIN.raw_os_error();

    #[test]
    fn a_list_without_end_is_an_error() {
        let name = format!("ropeway-test/endless/{}", std::process::id());
        let (listener, address) = socket_at(&name).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let daemon = Control::connect(&name).unwrap();
        let taken = rustix::net::accept(&listener).unwrap();
        let endless = std::thread::spawn(move || {
            let mut buf = [0; MAX_MESSAGE_BYTES];
            let entry = Message::Entry { pid: 1, uid: 1, comm: [b'x'; 16] };
            let entry = entry.encode(&mut buf);
            while matches!(os::send(taken.as_raw_fd(), entry, None), Ok(()) | Err(EAGAIN)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let begin = Instant::now();
        let error = daemon.list_within(LIST_LIMIT / 20, drop).unwrap_err();
        assert!(matches!(error, ControlError::Endless(_)), "{error}");
        assert!(begin.elapsed() < LIST_LIMIT);
        drop(daemon);
        endless.join().unwrap();
    }
}
