//! Errors of the engine as the standard library's sockets would give them.

use ropeway_engine::{Error, ErrorCode};
use std::io::{self, ErrorKind};

/// The engine's account of an error of this crate's sockets, where there is one.
pub fn details(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
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
pub fn of_send(error: Error, has_failed: bool) -> io::Error {
    match error {
        Error::Closed | Error::Failed(ErrorCode::Closed) => io::Error::new(ErrorKind::BrokenPipe, error),
        Error::Failed(ErrorCode::Reset) if !has_failed => io::Error::new(ErrorKind::BrokenPipe, error),
        error => of_wait(error),
    }
}
