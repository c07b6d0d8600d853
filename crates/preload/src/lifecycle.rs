//! Descriptors: made, connected, duplicated, closed.

use crate::hook::{answer_int, fail, result, tracked};
use crate::{next, signals, startup, vfork, whole_process};
use core::ffi::{c_int, c_uint};
use libc::{CLOSE_RANGE_UNSHARE, sockaddr, socklen_t};
use ropeway_shm::{guarded, sys};
use ropeway_socket::fdtable::{self, Handle, Kind};
use ropeway_socket::lifecycle::Closing;
use ropeway_socket::reason::Reason;
use ropeway_socket::rendezvous::client;
use ropeway_socket::{adopt, lifecycle, process};

/// True when this call may bring something new to be followed.
#[inline(always)]
pub fn following() -> bool {
    startup::active() && !vfork::in_child() && !whole_process::is_closed()
}

/// True when this call may change what we know of descriptors: as [`following`], and behind a seccomp filter, too, while
/// something from before is followed on. There it may make none but the program's own system calls.
#[inline(always)]
fn keeping() -> bool {
    startup::active() && !vfork::in_child() && !whole_process::is_over()
}

/// True for a descriptor that is Ropeway's own. The program sees it as closed.
#[inline]
pub fn is_internal(fd: c_int) -> bool {
    (fdtable::is_internal(fd) || client::owns_fd(fd)) && !vfork::in_child()
}

/// Our own descriptors are made from 16 Ki on, or from a lower limit of the program on; so they end below this, unless the
/// program has thousands there itself.
const HIGHEST_INTERNAL: u32 = 20 * 1024;
/// How far above the program's highest socket they can be then.
const ROOM_ABOVE: u32 = 1024;

/// The C library will close `fd` where no hook sees it.
pub fn will_be_closed(fd: c_int) {
    if fdtable::lookup(fd).is_some_and(|h| h.kind() != Kind::Internal) && !vfork::in_child() {
        drop(lifecycle::closing(fd));
    }
}

/// The C library has put other files behind descriptors 0 to 2 where no hook saw it.
pub fn standard_were_replaced() {
    (0..=2).for_each(will_be_closed);
}

/// After a new socket came to be: as strict as the process has become.
fn note_new(fd: c_int) {
    let Some(h) = tracked(fd) else { return };
    signals::catch_faults();
    if let Some(reason) = whole_process::stopped() {
        lifecycle::pin(h, fd, reason);
    }
}

/// At the start of an image: follows the connected sockets that it was given.
pub fn note_inherited() {
    adopt::each_inherited(|fd| {
        adopt::inherited(fd);
        note_new(fd);
    });
}

/// After `old` was duplicated to `new`. Standard descriptors are used by the C library's own streams.
fn note_duplicate(old: c_int, new: c_int) {
    if new < 0 || !keeping() {
        return;
    }
    lifecycle::duplicated(old, new);
    // Afterwards: this may wait for the peer, and a relay takes the place of the duplicate, too.
    if let Some(h) = fdtable::sock(old).filter(|_| new <= 2 && following()) {
        lifecycle::leave(h, old, Reason::StandardDescriptor);
    }
}

/// Before `dup2` puts something else behind `new`; the answer is kept until that is noted.
fn make_room(old: c_int, new: c_int) -> Option<Closing> {
    if !following() || old == new || (fdtable::lookup(new).is_none() && !client::owns_fd(new)) {
        return None;
    }
    sys::fcntl(old, libc::F_GETFD, 0).ok()?;
    let closing = lifecycle::replacing(new, old);
    if closing.is_none() {
        lifecycle::give_way(new);
    }
    closing
}

/// After `dup2` or `dup3` to `new` returned `r`: what [`make_room`] may not look at beforehand.
fn note_replaced(old: c_int, new: c_int, r: c_int) {
    if r >= 0 && old != new && keeping() && !following() {
        lifecycle::was_closed(new);
    }
}

/// A send that connects at the same time (MSG_FASTOPEN).
pub fn connecting(h: Handle, send: impl FnOnce() -> isize) -> isize {
    let mut sent = 0;
    lifecycle::connect(h, || {
        sent = send();
        sent.min(0)
    });
    sent
}

/// `fcntl` command of Linux that asks for another signal than SIGIO, and with it for its details.
const F_SETSIG: c_int = 10;

/// Closes every number in the range but our own.
fn close_all(first: c_uint, last: c_uint) -> c_int {
    fdtable::for_each_in(first, last, |fd, h| {
        if h.kind() != Kind::Internal {
            let _closing = lifecycle::closing(fd);
            // SAFETY: no pointers.
            unsafe { next::close_range(fd as c_uint, fd as c_uint, 0) };
        }
    });
    let mut from = first;
    let highest = (process::highest_fd().max(0) as u32).saturating_add(ROOM_ABOVE).max(HIGHEST_INTERNAL);
    for fd in first..=last.min(highest) {
        if is_internal(fd as c_int) {
            if fd > from {
                // SAFETY: no pointers.
                unsafe { next::close_range(from, fd - 1, 0) };
            }
            from = fd + 1;
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: no pointers.
    unsafe { next::close_range(from, last, 0) }
}

hooks! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = next::socket(domain, kind, protocol);
        if fd >= 0 && following() {
            lifecycle::socket_created(fd, domain, kind, protocol);
            note_new(fd);
        }
        fd
    }

    fn accept(listener: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let from = tracked(listener);
        let fd = next::accept(listener, addr, len);
        if fd >= 0 && following() {
            lifecycle::accepted(from, fd, 0);
            note_new(fd);
        }
        fd
    }

    fn accept4(listener: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        let from = tracked(listener);
        let fd = next::accept4(listener, addr, len, flags);
        if fd >= 0 && following() {
            lifecycle::accepted(from, fd, flags);
            note_new(fd);
        }
        fd
    }

    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int as __connect {
        let Some(h) = tracked(fd) else { return next::connect(fd, addr, len) };
        let family = size_of::<libc::sa_family_t>();
        let dissolves = len as usize >= family
            && guarded::is_readable(addr as usize, family)
            && (*addr).sa_family == libc::AF_UNSPEC as libc::sa_family_t;
        if dissolves {
            lifecycle::leave(h, fd, Reason::UnsupportedOption);
            return next::connect(fd, addr, len);
        }
        answer_int(lifecycle::connect(h, || result(next::connect(fd, addr, len) as isize)))
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let Some(h) = tracked(fd) else { return next::shutdown(fd, how) };
        answer_int(lifecycle::shutdown(h, fd, how, || result(next::shutdown(fd, how) as isize)))
    }

    fn close(fd: c_int) -> c_int as __close {
        if fdtable::lookup(fd).is_none() && !client::owns_fd(fd) || vfork::in_child() {
            return next::close(fd);
        }
        let closing = if is_internal(fd) { None } else { lifecycle::closing(fd) };
        let Some(_until_closed) = closing else { return fail(libc::EBADF) as c_int };
        next::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if !keeping() {
            return next::close_range(first, last, flags);
        }
        if flags == 0 && first <= last {
            return close_all(first, last);
        }
        if flags & CLOSE_RANGE_UNSHARE as c_int != 0 {
            whole_process::stop(Reason::Fork);
        }
        next::close_range(first, last, flags)
    }

    fn closefrom(first: c_int) {
        if keeping() {
            close_all(first.max(0) as c_uint, c_uint::MAX);
        } else {
            next::closefrom(first);
        }
    }

    fn dup(old: c_int) -> c_int {
        vfork::note_inherited(old);
        if is_internal(old) {
            return fail(libc::EBADF) as c_int;
        }
        let new = next::dup(old);
        note_duplicate(old, new);
        new
    }

    fn dup2(old: c_int, new: c_int) -> c_int as __dup2 {
        vfork::note_inherited(old);
        if is_internal(old) {
            return fail(libc::EBADF) as c_int;
        }
        let _closing = make_room(old, new);
        let r = next::dup2(old, new);
        note_replaced(old, new, r);
        if old != new {
            note_duplicate(old, r);
        }
        r
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        vfork::note_inherited(old);
        if is_internal(old) {
            return fail(libc::EBADF) as c_int;
        }
        let _closing = if flags & !libc::O_CLOEXEC == 0 { make_room(old, new) } else { None };
        let r = next::dup3(old, new, flags);
        note_replaced(old, new, r);
        note_duplicate(old, r);
        r
    }

    fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int as fcntl64 as __fcntl {
        let Some(ours) = fdtable::lookup(fd) else { return next::fcntl(fd, cmd, arg) };
        if ours.kind() == Kind::Internal && is_internal(fd) {
            return fail(libc::EBADF) as c_int;
        }
        let inherited = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&cmd)
            || cmd == libc::F_SETFD && arg as c_int & libc::FD_CLOEXEC == 0;
        if inherited {
            vfork::note_inherited(fd);
        }
        if cmd == F_SETSIG || cmd == libc::F_SETFL && arg as c_int & libc::O_ASYNC != 0 {
            crate::transfer::leave(fd, Reason::AsyncIo);
        }
        let r = next::fcntl(fd, cmd, arg);
        match (cmd, tracked(fd)) {
            (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => note_duplicate(fd, r),
            (libc::F_SETFL, Some(h)) if r >= 0 => {
                lifecycle::set_nonblocking(h, arg as c_int & libc::O_NONBLOCK != 0);
            }
            _ => {}
        }
        r
    }

    /// A second way to a socket of ours, made by one who watches this process: the socket is shared from now on.
    fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int {
        let fd = next::pidfd_getfd(pidfd, target, flags);
        if fd >= 0 && following() {
            whole_process::leave_same_socket(fd, Reason::FdPassed);
        }
        fd
    }
}
