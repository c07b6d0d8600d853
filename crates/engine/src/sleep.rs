//! Sleeping until a descriptor tells something.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::nanosleep;

use crate::room::PAUSE;

/// Sleeps until one of these tells something, for `most` at most. Says whether the kernel has looked at them: else the sleep was interrupted, or was a short one without a look, and whoever sleeps looks for himself.
pub fn until_told(fds: &mut [PollFd<'_>], most: Option<Duration>) -> bool {
    let refusal = match poll(fds, most.map(timespec).as_ref()) {
        Ok(_) => return true,
        Err(refusal) => refusal,
    };
    if refusal != Errno::INTR {
        // There are more of them than the process may have descriptors by now (`RLIMIT_NOFILE`), or the kernel has no memory.
        let _ = nanosleep(&timespec(most.map_or(PAUSE, |most| most.min(PAUSE))));
    }
    false
}

/// Ages if it is longer than one can say.
pub fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}
