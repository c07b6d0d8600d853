//! Is an empty ring the end of the stream? What the shadow says, and what follows from it (handover, clause 5).

use crate::fdtable::Handle;
use crate::handover::{self, lock_rx};
use crate::reason::Reason;
use crate::{lifecycle, shadow};
use core::sync::atomic::Ordering;
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_PEER_FIN, FLAG_RESET, FLAG_SHUT_RD, RX_RING, Sock};

pub enum Ended {
    /// Something changed: look at the carriers again.
    Again,
    /// The stream ended with this answer.
    With(isize),
}

/// The ring was empty: is that the end? Looks at the shadow when there is cause (clause 5.3: end of file on TCP is end
/// of file only if the ring, looked at afterwards, is empty).
pub fn look_at_end(s: &Sock, h: Handle, fd: i32, slept: bool) -> Option<Ended> {
    /// A reader that never sleeps still learns of the end within this many ticks (about a tenth of a millisecond).
    const LOOK_TICKS: u64 = 1 << 18;
    if s.has(FLAG_RESET) {
        return Some(Ended::With(-(s.error.swap(0, Ordering::AcqRel) as isize)));
    }
    if s.has(FLAG_SHUT_RD) {
        return Some(Ended::With(0));
    }
    let now = sys::ticks();
    if !s.has(FLAG_PEER_FIN)
        && !slept
        && s.rx.shadow_event.load(Ordering::Acquire) == 0
        && now.wrapping_sub(s.rx.looked.load(Ordering::Relaxed)) < LOOK_TICKS
    {
        return None;
    }
    s.rx.looked.store(now, Ordering::Relaxed);
    s.rx.shadow_event.store(0, Ordering::Release);
    let events = shadow::poll(fd, libc::POLLIN | libc::POLLRDHUP);
    if events == 0 {
        return None;
    }
    // Everything the peer did before the event is visible now: look at the queue, and then at the ring once more. Under the
    // lock, so that no other reader takes anything in between.
    let (queued, more) = {
        let mut rx = lock_rx(s);
        // Else the events may be another socket's.
        if !lifecycle::is_shadow(fd, h) {
            return Some(Ended::Again);
        }
        let queued = shadow::queued(fd).unwrap_or(0);
        let more = match rx.ring() {
            None => true,
            Some((ring, c)) => ring.pending(c) || s.rx.phase.load(Ordering::Relaxed) != RX_RING,
        };
        (queued, more)
    };
    let ending = events & shadow::END_EVENTS != 0;
    if more {
        // Before the switch, TCP is read by the pass itself; a FIN there is found by its PEEK.
        return (events & libc::POLLIN != 0 || ending).then_some(Ended::Again);
    }
    if events & libc::POLLERR == 0 && queued > 0 {
        handover::break_connection(s, h, fd, Reason::ForeignBytes);
        return Some(Ended::With(-(s.error.swap(0, Ordering::AcqRel) as isize)));
    }
    if ending {
        handover::peer_fin(s, h, fd);
    } else if events & libc::POLLERR == 0 {
        return None;
    }
    if s.has(FLAG_RESET) {
        return Some(Ended::With(-(s.error.swap(0, Ordering::AcqRel) as isize)));
    }
    match shadow::peek_one(fd) {
        Ok(0) => Some(Ended::With(0)),
        Ok(_) | Err(libc::EAGAIN | libc::EINTR) => None,
        Err(e) => Some(Ended::With(-(e as isize))),
    }
}
