//! Epoll sets that hold sockets on rings. `docs/readiness.md` is the specification.
//!
//! [`wait()`] and [`ctl()`] stand for the program's calls; the rest follows descriptors and carriers: [`carrier_changed`] is
//! called by the handover, [`created`] to [`after_fork_child`] by the life of descriptors.

mod ctl;
mod member;
mod memory;
mod owners;
mod rings;
mod scan;
mod sets;
mod settling;
mod wait;

pub use ctl::ctl;
pub use member::{
    carrier_changed, descriptor_closing, leave_if_a_member_outlives, leave_to_kernel, replaced, send_blocked, sock_gone,
};
pub use owners::{after_fork_child, duplicated, forget_children, fork_prepare, move_kept, set_closed, set_closing};
pub use sets::{can_follow, created, is_native, mapping_going, pair_going};

use crate::fdtable::Handle;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{c_int, epoll_event, sigset_t, timespec};
use wait::Timeout;

/// Type of the C library's `epoll_pwait`.
pub type EpollPwait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;

/// `epoll_pwait` of the C library: a cancellation point. The raw system call until the preload has named it.
static NATIVE_PWAIT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Names the C library's `epoll_pwait`, so that sleeping threads can be cancelled.
pub fn set_native_pwait(f: EpollPwait) {
    NATIVE_PWAIT.store(f as *mut (), Ordering::Release);
}

/// `epoll_wait` and `epoll_pwait`: `mask` (the kernel's signal set, one word) may be null. `native` makes the program's
/// own call on the kernel and returns its answer or -errno; it is called at most once.
///
/// # Safety
/// `events` must be what the program gave, with room for `max` entries; `mask` must be null or valid.
pub unsafe fn wait(
    ep: i32,
    events: *mut epoll_event,
    max: i32,
    timeout_ms: i32,
    mask: *const u64,
    native: impl FnOnce() -> isize,
) -> isize {
    let ns = (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000);
    // SAFETY: passed on to the caller.
    unsafe { wait::wait(ep, events, max, Timeout { ns, coarse: true }, mask, native) }
}

/// `epoll_pwait2`: as [`wait()`], with a time-out in nanoseconds; null waits for ever.
///
/// # Safety
/// As for [`wait()`]; `timeout` must be null or valid.
pub unsafe fn wait2(
    ep: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: *const timespec,
    mask: *const u64,
    native: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: passed on to the caller.
    match unsafe { crate::wait::time_of(timeout) } {
        // SAFETY: passed on to the caller.
        Some(ns) => unsafe { wait::wait(ep, events, max, Timeout { ns, coarse: false }, mask, native) },
        None => native(),
    }
}

/// Something other than a wait on the set itself (poll, select) looks at a set. True when that must [`settle`] it first.
pub fn watched(h: Handle) -> bool {
    let r = sets::Ref::of(h);
    sets::note_nested(r);
    wait::is_ours(r)
}

/// The kernel's side of a watched set, and of those inside it, shows what their rings hold. Some: it must be settled again after so many
/// nanoseconds, because nothing might ring.
pub fn settle(h: Handle) -> Option<u64> {
    let r = sets::Ref::of(h);
    let inner = settling::settle_inner(r);
    settling::settle(r).into_iter().chain(inner).min()
}
