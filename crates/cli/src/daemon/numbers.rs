//! The daemon keeps some numbers of descriptors free for those that processes pass to it. Where there is none, the kernel closes what was passed inside the call that receives it, and such
//! a close may take as long as its sender likes.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::process::Resource;

/// Twice as many as can come beside one message (253), and some that are in use for a moment.
const RESERVE: u64 = 512;

/// True of numbers that nothing is kept under.
pub fn is_reserved(number: RawFd) -> bool {
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // With few of them something is to be served as well.
    u64::from(number.unsigned_abs()) >= limit - RESERVE.min(limit / 2)
}

/// Whether there is a number for one more descriptor that is kept; `any` is one that is open.
pub fn are_left(any: impl AsFd) -> bool {
    rustix::io::fcntl_dupfd_cloexec(any, 0).is_ok_and(|next| !is_reserved(next.as_raw_fd()))
}
