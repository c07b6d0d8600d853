//! The daemon's end: which signals ask for it, and how it comes for everybody at once.
//!
//! The process itself may not end: what is passed to it may be a file whose close waits for ever, and as long as a thread is in there, nothing that the process has is closed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::signals::asking_to_end;

/// How long the end waits for the listener's close. The address is free long before.
const LISTENER_CLOSES_WITHIN: Duration = Duration::from_millis(100);

/// Can be read once a signal has asked the process to end, which from now on ends no more by itself.
pub fn signals() -> io::Result<UnixStream> {
    let (asked, signals) = UnixStream::pair()?;
    for signal in asking_to_end() {
        signal_hook::low_level::pipe::register(signal, signals.try_clone()?)?;
    }
    Ok(asked)
}

/// Gives up the address, and ends the connections.
pub fn end<'a>(listener: OwnedFd, connections: impl Iterator<Item = &'a OwnedFd>) -> ! {
    let (sender, closed) = mpsc::channel();
    // The address, and then what is in connections that nobody has accepted.
    let close = move || {
        drop(listener);
        let _ = sender.send(());
    };
    // Without a thread it is closed here.
    let _ = thread::Builder::new().name("ropeway-ending".into()).spawn(close);
    let _ = closed.recv_timeout(LISTENER_CLOSES_WITHIN);
    for connection in connections {
        let _ = rustix::net::shutdown(connection, Shutdown::Both);
    }
    std::process::exit(0)
}
