//! `epoll_ctl`: what a program asks of its sets.

use super::member::{self, EDGE, EXCLUSIVE, ONESHOT};
use super::sets::{self, Locked, Ref};
use super::{memory, settling};
use crate::fdtable::{Handle, Kind};
use crate::lifecycle;
use crate::ready::{self, READ, WRITE};
use crate::reason::Reason;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use ropeway_shm::table::{
    FLAG_WAITED, MEMBER_DISABLED, MEMBER_FRESH, MEMBER_GHOST, MODE_NATIVE, MODE_SHADOW, MODE_TOKEN, Member,
};

/// What may stand beside EPOLLEXCLUSIVE.
const EXCLUSIVE_MAY: u32 = READ | WRITE | ready::ALWAYS | libc::EPOLLWAKEUP as u32 | EDGE | EXCLUSIVE;

/// `epoll_ctl`. `native` makes the program's own call on the kernel and returns its answer or -errno.
///
/// # Safety
/// `event` must be what the program gave.
pub unsafe fn ctl(ep: i32, op: i32, fd: i32, event: *mut epoll_event, native: impl FnOnce() -> isize) -> isize {
    let set = match sets::lookup(ep) {
        Ok(set) => set.map(Ref::of),
        Err(e) => return -(e as isize),
    };
    match (set, lifecycle::lookup(fd)) {
        // SAFETY: passed on to the caller.
        (Some(r), Some(h)) if h.is_sock() => unsafe { of_sock(r, op, h, fd, event, native) },
        (Some(r), Some(h)) if h.kind() == Kind::Set && ep != fd => {
            let answer = native();
            if answer == 0 && op == EPOLL_CTL_ADD {
                r.set.contains.store(1, Ordering::SeqCst);
                sets::note_nested(Ref::of(h));
                if settling::settle(Ref::of(h)).is_some() {
                    // Who sleeps in the outer set already is to look again in time, and does not know yet.
                    Ref::of(h).ring();
                }
            }
            answer
        }
        (None, Some(h)) if h.is_sock() && op == EPOLL_CTL_ADD => {
            let answer = native();
            if answer == 0 {
                // A set that we do not follow (made by somebody else, or one too many) can only tell what the kernel knows.
                lifecycle::leave(h, fd, Reason::TooManySets);
            }
            answer
        }
        _ => native(),
    }
}

/// # Safety
/// As for [`ctl()`].
unsafe fn of_sock(
    r: Ref,
    op: i32,
    h: Handle,
    fd: i32,
    event: *mut epoll_event,
    native: impl FnOnce() -> isize,
) -> isize {
    let s = h.sock();
    let wanted = match op {
        EPOLL_CTL_DEL => epoll_event { events: 0, u64: 0 },
        // SAFETY: passed on to the caller.
        EPOLL_CTL_ADD | EPOLL_CTL_MOD => match unsafe { memory::read(event) } {
            Some(event) => event,
            None => return native(),
        },
        _ => return native(),
    };
    if op == EPOLL_CTL_ADD && !s.has(FLAG_WAITED) {
        s.set(FLAG_WAITED);
    }
    let locked = r.lock();
    let answer = match (op, member::find(s, r.name, fd)) {
        (EPOLL_CTL_ADD, None) => match member::allocate(&locked, s, fd) {
            Some(e) => add(&locked, h, e, wanted, native),
            None => {
                drop(locked);
                lifecycle::leave(h, fd, Reason::TooManySets);
                return native();
            }
        },
        (_, None) => native(),
        (_, Some(e)) => change(&locked, op, h, e, wanted, native),
    };
    drop(locked);
    if answer == 0 && op != EPOLL_CTL_DEL {
        r.wake();
    }
    answer
}

fn set_wanted(m: &Member, wanted: epoll_event) {
    m.events.store(wanted.events, Ordering::Relaxed);
    m.data.store(wanted.u64, Ordering::Relaxed);
}

fn answer(result: ropeway_shm::sys::Result<()>) -> isize {
    result.map_or_else(|e| -(e as isize), |()| 0)
}

fn add(locked: &Locked, h: Handle, e: usize, wanted: epoll_event, native: impl FnOnce() -> isize) -> isize {
    let (s, m) = (h.sock(), &h.sock().members[e]);
    set_wanted(m, wanted);
    let mode = member::mode_for(s, m);
    let result = if mode == MODE_NATIVE {
        let result = native();
        m.mode.store(MODE_NATIVE, Ordering::Relaxed);
        result
    } else if { wanted.events } & EXCLUSIVE != 0 && { wanted.events } & !EXCLUSIVE_MAY != 0 {
        -(libc::EINVAL as isize)
    } else if mode == MODE_SHADOW && !locked.ensure_bell() {
        -(libc::ENOMEM as isize)
    } else {
        answer(member::register(locked, h, e))
    };
    if result == 0 {
        make_hot(locked, h, m);
    } else {
        member::release(locked, h, e);
    }
    result
}

/// `ADD` of a ghost, `MOD` and `DEL` of a member.
fn change(locked: &Locked, op: i32, h: Handle, e: usize, wanted: epoll_event, native: impl FnOnce() -> isize) -> isize {
    let m = &h.sock().members[e];
    let mode = m.mode.load(Ordering::Relaxed);
    let (ghost, events) = (m.has(MEMBER_GHOST), { wanted.events });
    match op {
        EPOLL_CTL_ADD if !ghost => native(),
        EPOLL_CTL_ADD => {
            if events & EXCLUSIVE != 0 && events & !EXCLUSIVE_MAY != 0 {
                return -(libc::EINVAL as isize);
            }
            set_wanted(m, wanted);
            m.flags.fetch_and(!(MEMBER_GHOST | MEMBER_DISABLED), Ordering::AcqRel);
            renew(locked, h, e)
        }
        _ if ghost => -(libc::ENOENT as isize),
        EPOLL_CTL_MOD => {
            if mode == MODE_NATIVE && events & ONESHOT == 0 {
                let result = native();
                if result == 0 {
                    set_wanted(m, wanted);
                }
                return result;
            }
            if (events | m.events.load(Ordering::Relaxed)) & EXCLUSIVE != 0 {
                return -(libc::EINVAL as isize);
            }
            set_wanted(m, wanted);
            m.flags.fetch_and(!MEMBER_DISABLED, Ordering::AcqRel);
            renew(locked, h, e)
        }
        _ if mode == MODE_SHADOW => {
            m.flags.fetch_or(MEMBER_GHOST, Ordering::AcqRel);
            0
        }
        _ => {
            let result = native();
            if result == 0 {
                member::release(locked, h, e);
            }
            result
        }
    }
}

/// What the program wants of a member has changed.
fn renew(locked: &Locked, h: Handle, e: usize) -> isize {
    let m = &h.sock().members[e];
    m.flags.fetch_or(MEMBER_FRESH, Ordering::AcqRel);
    if m.mode.load(Ordering::Relaxed) == MODE_TOKEN {
        // The kernel, too, must be told each time: it has disarmed its entry.
        m.mode.store(MODE_NATIVE, Ordering::Relaxed);
    }
    let result = answer(member::sync(locked, h, e));
    make_hot(locked, h, m);
    result
}

fn make_hot(locked: &Locked, h: Handle, m: &Member) {
    if m.mode.load(Ordering::Relaxed) == MODE_SHADOW {
        m.idle.store(0, Ordering::Relaxed);
        locked.r.lists().hot.insert(h.index());
    }
}
