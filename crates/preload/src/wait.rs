//! Waiting on several descriptors.

use crate::hook::{answer_int, result};
use crate::lifecycle::following;
use crate::{next, vfork, whole_process};
use core::ffi::c_int;
use libc::{EFAULT, epoll_event, fd_set, iovec, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use ropeway_shm::{guarded, sys};
use ropeway_socket::fdtable::{self, Handle, Kind};
use ropeway_socket::{epoll, poll, process};

/// False when none of the descriptors that a program waits for can be ours.
#[inline(always)]
pub(crate) fn following_any() -> bool {
    process::started() && !vfork::in_child() && !whole_process::is_over()
}

/// False when the kernel shall refuse what the program waits for.
fn readable(fds: *const pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> bool {
    guarded::is_readable(fds as usize, (n as usize).saturating_mul(size_of::<pollfd>()))
        && (timeout.is_null() || guarded::is_readable(timeout as usize, size_of::<timespec>()))
        && (mask.is_null() || guarded::is_readable(mask as usize, sys::SIGSET_BYTES))
}

/// The first argument of select without what only descriptors of ours add to it. Looking for that takes system calls.
fn reach(n: c_int, sets: [*mut fd_set; 3]) -> c_int {
    if !following_any() || whole_process::is_closed() {
        n
    } else {
        poll::within_table(n, sets.map(|set| set.cast_const().cast()))
    }
}

/// As [`readable`], for the sets of select; `time` and `mask` by address and size.
fn readable_sets(n: c_int, sets: [*mut fd_set; 3], others: [(usize, usize); 2]) -> bool {
    let bytes = (n.max(0) as usize).div_ceil(64) * 8;
    n >= 0
        && sets.iter().all(|set| set.is_null() || guarded::is_readable(*set as usize, bytes))
        && others.iter().all(|(at, size)| *at == 0 || guarded::is_readable(*at, *size))
}

/// Writes a time where the program has its time-out, which may be memory that cannot be written: true unless the kernel, too,
/// would say EFAULT. It writes by a system call, because nobody may be there to catch a fault: the thread may have blocked it.
///
/// # Safety
/// `place` must be what the program gave as its time-out.
pub(crate) unsafe fn tell(place: *mut timespec, time: timespec) -> bool {
    let from = iovec { iov_base: (&raw const time).cast_mut().cast(), iov_len: size_of::<timespec>() };
    let to = iovec { iov_base: place.cast(), ..from };
    // SAFETY: a time of ours, and the program's place for one; the copy is so small that handlers may run meanwhile.
    unsafe {
        if whole_process::is_closed() {
            return guarded::copy(to.iov_base.cast(), from.iov_base.cast(), from.iov_len);
        }
        sys::process_vm_readv(process::pid() as c_int, &to, 1, &from, 1, 0) != Err(EFAULT)
    }
}

/// A number that leads to nothing of ours yet may be given to a set while the kernel is waited in.
#[inline(always)]
fn may_be_set(ep: c_int) -> bool {
    let is_set = |h: Handle| h.kind() == Kind::Set || is_closing(h);
    fdtable::lookup(ep).map_or_else(following, is_set) && !vfork::in_child()
}

/// True for a set that another thread closes, where that may be waited for.
fn is_closing(h: Handle) -> bool {
    h.kind() == Kind::SetClosing && following()
}

fn concerns_us(fd: c_int) -> bool {
    fdtable::lookup(fd).is_some_and(|h| h.kind() != Kind::SetClosing || is_closing(h))
}

fn note_set(ep: c_int) -> c_int {
    if ep >= 0 && following() {
        epoll::created(ep);
    }
    ep
}

hooks! {
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int as __poll {
        if !following_any() || !readable(fds, n, core::ptr::null(), core::ptr::null()) {
            return next::poll(fds, n, timeout);
        }
        answer_int(poll::poll(fds, n as usize, timeout, || result(next::poll(fds, n, timeout) as isize)))
    }

    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if room / size_of::<pollfd>() < n as usize { next::__poll_chk(fds, n, timeout, room) } else { poll(fds, n, timeout) }
    }

    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if !following_any() || !readable(fds, n, timeout, mask) {
            return next::ppoll(fds, n, timeout, mask);
        }
        answer_int(poll::ppoll(fds, n as usize, timeout, mask.cast(), || {
            result(next::ppoll(fds, n, timeout, mask) as isize)
        }))
    }

    fn __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int {
        if room / size_of::<pollfd>() < n as usize {
            return next::__ppoll_chk(fds, n, timeout, mask, room);
        }
        ppoll(fds, n, timeout, mask)
    }

    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int as __select {
        let n = reach(n, [r, w, e]);
        let time = (timeout as usize, size_of::<timeval>());
        if !following_any() || !readable_sets(n, [r, w, e], [time, (0, 0)]) {
            return next::select(n, r, w, e, timeout);
        }
        answer_int(poll::select(n, r.cast(), w.cast(), e.cast(), timeout, || {
            result(next::select(n, r, w, e, timeout) as isize)
        }))
    }

    fn pselect(
        n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        let n = reach(n, [r, w, e]);
        let others = [(timeout as usize, size_of::<timespec>()), (mask as usize, sys::SIGSET_BYTES)];
        if !following_any() || !readable_sets(n, [r, w, e], others) {
            return next::pselect(n, r, w, e, timeout, mask);
        }
        answer_int(poll::pselect(n, r.cast(), w.cast(), e.cast(), timeout, mask.cast(), || {
            result(next::pselect(n, r, w, e, timeout, mask) as isize)
        }))
    }

    fn epoll_create(size: c_int) -> c_int {
        note_set(next::epoll_create(size))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        note_set(next::epoll_create1(flags))
    }

    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let concerns_us = concerns_us(ep) || concerns_us(fd);
        let bad_event = concerns_us && !event.is_null() && !guarded::is_readable(event as usize, size_of::<epoll_event>());
        if !concerns_us || bad_event || vfork::in_child() {
            return next::epoll_ctl(ep, op, fd, event);
        }
        answer_int(epoll::ctl(ep, op, fd, event, || result(next::epoll_ctl(ep, op, fd, event) as isize)))
    }

    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        if !may_be_set(ep) {
            return next::epoll_wait(ep, events, max, timeout);
        }
        answer_int(epoll::wait(ep, events, max, timeout, core::ptr::null(), || {
            result(next::epoll_wait(ep, events, max, timeout) as isize)
        }))
    }

    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        if !may_be_set(ep) {
            return next::epoll_pwait(ep, events, max, timeout, mask);
        }
        answer_int(epoll::wait(ep, events, max, timeout, mask.cast(), || {
            result(next::epoll_pwait(ep, events, max, timeout, mask) as isize)
        }))
    }

    fn epoll_pwait2(
        ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        if !may_be_set(ep) {
            return next::epoll_pwait2(ep, events, max, timeout, mask);
        }
        answer_int(epoll::wait2(ep, events, max, timeout, mask.cast(), || {
            result(next::epoll_pwait2(ep, events, max, timeout, mask) as isize)
        }))
    }
}
