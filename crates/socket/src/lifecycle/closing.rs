//! A descriptor between the hook that takes it out of the table and the end of the kernel's close or `dup2`.
//!
//! The number is open all that time, and no longer ours: what another thread sent on it would pass the ring. So it is marked,
//! and calls that meet the mark wait for the kernel's answer, which is what they would have met.

use super::{drop_reference, give_back, kept_fd, leave, point_to_kept};
use crate::fdtable::{self, Handle, Kind};
use crate::process::{self, local};
use crate::reason::Reason;
use crate::{epoll, promote};
use core::sync::atomic::Ordering;
use ropeway_shm::sys;

/// How long a call that meets a mark naps between two looks, and waits in all.
const NAP_NS: u64 = 20_000;
const MOST_NS: u64 = 20_000_000;
/// The same for a number that is being replaced, which the program never sees closed. A set's does not say.
const MOST_REPLACING_NS: u64 = 2_000_000_000;

/// A descriptor that is being closed. To be dropped when the kernel's call has come back.
#[must_use]
pub struct Closing {
    fd: i32,
    /// A socket's record keeps its name as long as the number stands for it.
    led_to: Option<Handle>,
}

/// Before a descriptor is closed in any way: takes it out of the table and settles what its end means. The kernel's own
/// close must follow. None for one of our own descriptors: it must not be closed.
pub fn closing(fd: i32) -> Option<Closing> {
    take_out(fd, Kind::Closing)
}

/// The same before `dup2` puts what is behind `by` behind the number.
pub fn replacing(fd: i32, by: i32) -> Option<Closing> {
    let replaced = fdtable::sock(fd);
    make_way(replaced, by);
    let closing = take_out(fd, Kind::Replacing);
    // Once more: a call may have begun before the number was marked.
    make_way(replaced, by);
    closing
}

/// A call that has looked at the number, and comes to the kernel when `dup2` is over, is one on what stands behind it then: that
/// must be on TCP. So must be what replaces that again, because it is not known when the call comes.
fn make_way(replaced: Option<Handle>, by: i32) {
    let (Some(replaced), Some(next)) = (replaced, fdtable::sock(by)) else { return };
    let s = replaced.sock();
    let under_way = s.tx.inflight.load(Ordering::Acquire) + s.rx.inflight.load(Ordering::Acquire) > 0;
    let is_exposed = under_way || local(replaced.index()).exposed.load(Ordering::Relaxed);
    if replaced != next && is_exposed && !local(next.index()).exposed.swap(true, Ordering::Relaxed) {
        leave(next, by, Reason::ReplacesAnother);
    }
}

fn take_out(fd: i32, mark: Kind) -> Option<Closing> {
    if fdtable::is_internal(fd) {
        return None;
    }
    if let Some(h) = fdtable::sock(fd) {
        epoll::leave_if_a_member_outlives(h, fd);
    }
    let led_to = fdtable::begin_closing(fd, mark);
    let closing = Closing { fd, led_to };
    match led_to {
        Some(h) if h.is_sock() => {
            // The number still counts as one that leads there: the record is not given back before this.
            local(h.index()).marks.fetch_add(1, Ordering::SeqCst);
            epoll::descriptor_closing(h, fd);
            drop_reference(h, fd);
        }
        Some(h) => epoll::set_closing(h, fd),
        None => {}
    }
    Some(closing)
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(h) = self.led_to else { return };
        fdtable::closed(self.fd, h);
        if !h.is_sock() {
            return;
        }
        // None in the child of a fork by a signal handler in between.
        let one_fewer = |marks: u32| marks.checked_sub(1);
        let _ = local(h.index()).marks.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_fewer);
        give_back(h.index());
    }
}

/// A descriptor that was closed before it could be looked at: its number stands for something else, or for nothing.
pub fn was_closed(fd: i32) {
    match fdtable::remove(fd) {
        Some(h) if h.is_sock() => drop_reference(h, -1),
        Some(h) if h.kind() == Kind::Set => epoll::set_closed(h, fd),
        _ => {}
    }
}

/// After `dup` and its relatives: `new` leads where `old` leads.
pub fn duplicated(old: i32, new: i32) {
    match fdtable::lookup(old) {
        Some(h) if matches!(h.kind(), Kind::Sock | Kind::Set) => {
            if fdtable::sock(new).is_some_and(|other| other != h) && promote::cookie(new) != promote::cookie(old) {
                // `dup2` has lingered over the end of what was there, and the number was closed and given to another one meanwhile.
                return;
            }
            if h.is_sock() {
                local(h.index()).fds.fetch_add(1, Ordering::AcqRel);
            } else {
                epoll::duplicated(h);
            }
            let (before, _) = fdtable::enter(new, h);
            if h.is_sock() && before == Some(h) {
                // A call that met the mark of `dup2` has entered it already.
                drop_reference(h, -1);
            }
            process::note_fd(new);
        }
        _ => {}
    }
}

/// `dup2` onto one of our own numbers: we give way, and make ourselves a new descriptor at the next need. What a close kept for
/// those who still wait could not be made anew: that moves.
pub fn give_way(fd: i32) {
    if fdtable::is_internal(fd) {
        move_kept(fd);
        epoll::move_kept(fd);
        fdtable::remove(fd);
    }
}

fn move_kept(fd: i32) {
    if !process::started() {
        return;
    }
    let keeps = |index: &u32| local(*index).keep_fd.load(Ordering::SeqCst) == fd + 1;
    if let Some(index) = (0..process::table().used_socks()).find(keeps)
        && let Ok(kept) = sys::duplicate_high(fd)
    {
        fdtable::enter_internal(kept);
        let keep_fd = &local(index).keep_fd;
        if keep_fd.compare_exchange(fd + 1, kept + 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return fdtable::close_internal(kept);
        }
        point_to_kept(Handle::of_record(index));
    }
}

/// The descriptor that is kept for a call under way. A close takes the number out before it knows that there is one, and is waited
/// for where it is about to keep it.
#[cold]
pub(crate) fn kept_soon(fd: i32, h: Handle) -> Option<i32> {
    let until = sys::monotonic_ns() + MOST_NS;
    while kept_fd(h).is_none() && fdtable::is_closing(fd, h) && sys::monotonic_ns() < until {
        sys::nap(NAP_NS);
    }
    kept_fd(h)
}

/// What stands behind a number that a call has found not to lead to its socket any more.
pub(crate) enum Behind {
    /// Another socket that we follow.
    Socket(Handle),
    /// Whatever the kernel says.
    Kernel,
    /// Nothing, or nothing yet: a close is under way.
    Closing,
}

/// Looks a number up again that led to a socket when the call began.
#[cold]
pub(crate) fn behind_now(fd: i32) -> Behind {
    let found = match fdtable::lookup(fd) {
        Some(mark) if mark.kind() == Kind::Replacing => once_closed(fd, mark),
        Some(mark) if mark.kind() == Kind::Closing => return Behind::Closing,
        found => found.filter(|h| h.is_sock()),
    };
    match found {
        Some(found) if fdtable::leads_to(fd, found) => Behind::Socket(found),
        Some(_) => Behind::Closing,
        None => Behind::Kernel,
    }
}

/// What a number leads to when the close that has marked it is over. If that does not come to an end (a signal handler has
/// interrupted it, or it was left by a jump), the socket: calls then find that the number does not lead there any more.
#[cold]
pub fn once_closed(fd: i32, marked: Handle) -> Option<Handle> {
    let begun = sys::monotonic_ns();
    let mut marked = marked;
    loop {
        let h = marked.of_kind(Kind::Sock);
        let most = if marked.kind() == Kind::Replacing { MOST_REPLACING_NS } else { MOST_NS };
        if sys::monotonic_ns() - begun >= most {
            return Some(h).filter(|h| h.is_current());
        }
        match behind(fd, h) {
            // Closed, and perhaps given to others, while a close that lingers goes on.
            None => fdtable::closed(fd, h),
            Some(next) if next != h && marked.kind() == Kind::Replacing => lead_on(fd, marked, next),
            Some(_) => sys::nap(NAP_NS),
        }
        match fdtable::lookup(fd) {
            Some(again) if again.is_mark() => marked = again,
            found => return found.filter(|h| h.is_sock()),
        }
    }
}

/// The same for the number of a set: the set that it leads to then. An error if that does not come to an end.
#[cold]
pub fn once_set_closed(ep: i32, marked: Handle) -> sys::Result<Option<Handle>> {
    let h = marked.of_kind(Kind::Set);
    let until = sys::monotonic_ns() + MOST_REPLACING_NS;
    while fdtable::is_closing(ep, h) {
        if sys::monotonic_ns() >= until {
            return Err(libc::EBADF);
        }
        sys::nap(NAP_NS);
    }
    Ok(fdtable::lookup(ep).filter(|h| h.kind() == Kind::Set))
}

/// `dup2` has put `next` behind a number, and may take long to end the connection that was there (SO_LINGER): from now on the
/// number leads to `next`.
fn lead_on(fd: i32, marked: Handle, next: Handle) {
    let one_more = |fds: u32| (fds > 0).then_some(fds + 1);
    let fds = &local(next.index()).fds;
    if fds.fetch_update(Ordering::SeqCst, Ordering::Relaxed, one_more).is_err() {
        // Its own number is closed: we follow it no more.
        fdtable::closed(fd, marked);
    } else if !fdtable::lead_on(fd, marked, next) {
        drop_reference(next, -1);
    }
}

/// What a number leads to, though `dup2`, which has put that there, may not be over. Nothing is waited for.
#[inline]
pub(crate) fn lookup(fd: i32) -> Option<Handle> {
    let h = fdtable::lookup(fd)?;
    if h.kind() == Kind::Replacing { behind_dup2(fd, h) } else { Some(h) }
}

#[cold]
fn behind_dup2(fd: i32, marked: Handle) -> Option<Handle> {
    let h = marked.of_kind(Kind::Sock);
    if let Some(next) = behind(fd, h).filter(|next| *next != h) {
        lead_on(fd, marked, next);
    }
    fdtable::lookup(fd)
}

/// The socket behind a number that is marked for `h`: that one, or another one that we follow.
fn behind(fd: i32, h: Handle) -> Option<Handle> {
    let cookie = promote::cookie(fd)?;
    let mut found = Some(h).filter(|h| has_cookie(*h, cookie));
    fdtable::for_each_in(0, u32::MAX, |_, other| {
        if found.is_none() && other.is_sock() && has_cookie(other, cookie) {
            found = Some(other);
        }
    });
    found
}

fn has_cookie(h: Handle, cookie: u64) -> bool {
    h.is_current() && h.sock().cookie.load(Ordering::Relaxed) == cookie
}

/// In the child of fork: what other threads of the parent had marked. None of them is here to go on.
pub(super) fn settle_marks_in_child() {
    fdtable::for_each_in(0, u32::MAX, |fd, marked| {
        if marked.is_mark() {
            settle_in_child(fd, marked);
        } else if marked.kind() == Kind::SetClosing {
            fdtable::closed(fd, marked.of_kind(Kind::Set));
        }
    });
}

fn settle_in_child(fd: i32, marked: Handle) {
    let h = marked.of_kind(Kind::Sock);
    let found = behind(fd, h);
    fdtable::closed(fd, h);
    if marked.kind() == Kind::Closing {
        if found == Some(h) {
            let _ = sys::close(fd);
        }
    // Without any descriptor of it the parent has ended the socket already.
    } else if let Some(found) = found.filter(|found| local(found.index()).fds.load(Ordering::Relaxed) > 0) {
        fdtable::enter(fd, found);
        count_descriptors(found.index());
    }
    count_descriptors(h.index());
}

/// Whether the parent had come to count one that it took out, or put in, cannot be told.
fn count_descriptors(index: u32) {
    let mut fds = 0;
    fdtable::for_each_in(0, u32::MAX, |_, h| fds += u32::from(h.is_sock() && h.index() == index));
    local(index).fds.store(fds, Ordering::Release);
}
