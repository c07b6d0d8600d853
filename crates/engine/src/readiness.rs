//! Descriptors that become readable when a connection does something: for epoll, poll, mio.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;

/// What a descriptor should tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// A descriptor that is readable while the interest is fulfilled. What it says may be out of date in one direction: after it was readable, an operation may
/// still find that it would have to wait.
#[derive(Clone, Debug)]
pub struct Watch {
    fd: Arc<OwnedFd>,
    pub(crate) interest: Interest,
}

impl Watch {
    pub(crate) fn new(interest: Interest) -> io::Result<Watch> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Watch { fd: Arc::new(fd), interest })
    }

    pub(crate) fn is(&self, other: &Watch) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }

    /// Sets or clears it.
    pub(crate) fn set(&self, ready: bool) {
        if ready {
            // Full cannot be: it is read before it is written again.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
