//! Errors of the engine as the standard library's sockets would give them.

use ropeway_engine::{Error, ErrorCode};
use std::fmt;
use std::io::{self, ErrorKind};

/// The engine's account of an error of this crate's sockets, where there is one.
pub fn details(error: &io::Error) -> Option<&Error> {
    let inner = error.get_ref()?;
    inner.downcast_ref().or_else(|| Some(&inner.downcast_ref::<Keyless>()?.error))
}

/// An end without a key was not let in, or not heard, and why it had none.
#[derive(Debug)]
struct Keyless {
    error: Error,
    why: String,
}

impl fmt::Display for Keyless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. This end has no key: {}", self.error, self.why)
    }
}

impl std::error::Error for Keyless {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Of an attempt to connect by an end that did without a key, for the reason that is given.
pub fn of_opening_without_key(error: Error, why: &str) -> io::Error {
    let may_be_why = matches!(error, Error::TimedOut | Error::Failed(ErrorCode::Key | ErrorCode::Timeout));
    let plain = of_opening(error);
    if !may_be_why {
        return plain;
    }
    let kind = plain.kind();
    match plain.downcast::<Error>() {
        Ok(error) => io::Error::new(kind, Keyless { error, why: why.into() }),
        Err(plain) => plain,
    }
}

/// Of a call that could have waited: when its time is over, it says what TCP's do on Linux.
pub fn of_wait(error: Error) -> io::Error {
    match error {
        // Event loops meet it all the time: no memory for it.
        Error::WouldBlock => ErrorKind::WouldBlock.into(),
        Error::TimedOut => io::Error::new(ErrorKind::WouldBlock, error),
        error => error.into(),
    }
}

/// Of an attempt to connect. A peer that left while it was asked has not taken the connection; somebody else may be there next time.
pub fn of_opening(error: Error) -> io::Error {
    match error {
        Error::Failed(ErrorCode::Closed) => io::Error::new(ErrorKind::ConnectionRefused, error),
        error => error.into(),
    }
}

/// Of a call that sends. The peer closed in order, or this end did: nobody will read it.
pub fn of_send(error: Error) -> io::Error {
    match error {
        Error::Closed | Error::Failed(ErrorCode::Closed) => io::Error::new(ErrorKind::BrokenPipe, error),
        error => of_wait(error),
    }
}
