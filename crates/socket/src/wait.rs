//! Waiting on a ring: spin a little, then sleep on a bell and on the shadow at once.
//!
//! No lock is held while waiting. What protects a waiting thread from `close` in another one is its entry in the list of
//! waiters: close then leaves the mapping and a duplicate of the shadow to the last waiter (`lifecycle`). Entries name
//! thread and stack position, so that one left behind by `siglongjmp` or by thread cancellation is recognised.

use crate::fdtable::Handle;
use crate::thread::{self, Signals};
use crate::{bells, lifecycle, machine, process, promote, settings, stats};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use libc::{c_int, timespec};
use ropeway_shm::bell::TAG_ANY;
use ropeway_shm::ring::{End, Ring};
use ropeway_shm::sys;

/// Threads of one process that can wait on rings and still hold off `close`. More than these only lose that protection.
const MAX_WAITERS: usize = 1024;
/// How long a thread naps when it could not enter a bell: all slots of the ring or all bells of the process are taken.
const NAP_NS: u64 = 2_000_000;

struct Waiter {
    /// Record index + 1; 0 for a free entry.
    who: AtomicU32,
    /// 0 while the entry is being made.
    tid: AtomicU32,
    stack: AtomicU64,
}

static WAITERS: [Waiter; MAX_WAITERS] =
    [const { Waiter { who: AtomicU32::new(0), tid: AtomicU32::new(0), stack: AtomicU64::new(0) } }; MAX_WAITERS];

/// `ppoll` of the C library: a cancellation point. The raw system call until the preload has named it.
static NATIVE_PPOLL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Type of the C library's `ppoll`.
pub type Ppoll = unsafe extern "C" fn(*mut libc::pollfd, libc::nfds_t, *const timespec, *const libc::sigset_t) -> c_int;

/// Names the C library's `ppoll`, so that sleeping threads can be cancelled.
pub fn set_native_ppoll(f: Ppoll) {
    NATIVE_PPOLL.store(f as *mut (), Ordering::Release);
}

fn my_tid() -> u32 {
    thread::me() as u32
}

#[inline(always)]
fn stack_position() -> u64 {
    let here = 0u8;
    &raw const here as u64
}

/// A thread's entry in the list of waiters.
pub struct Waiting {
    h: Handle,
    entry: Option<usize>,
}

/// Enters the calling thread as waiting on `h`. A full barrier: the caller asks next whether the socket is still open
/// (`ready::is_open`), as closing says first that it is not, and then looks for waiters.
pub fn begin(h: Handle) -> Waiting {
    process::local(h.index()).users.fetch_add(1, Ordering::SeqCst);
    let tid = my_tid();
    let start = tid as usize % MAX_WAITERS;
    let entry = (0..MAX_WAITERS).map(|i| (start + i) % MAX_WAITERS).find(|&i| {
        let w = &WAITERS[i];
        w.who.load(Ordering::Relaxed) == 0
            && w.who.compare_exchange(0, h.index() + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    });
    if let Some(i) = entry {
        WAITERS[i].stack.store(stack_position(), Ordering::Relaxed);
        WAITERS[i].tid.store(tid, Ordering::Release);
    }
    Waiting { h, entry }
}

/// The same for a call of the program that receives or sends several times: the socket is its own until it returns. First comes
/// what is due at the call's boundary, which may need that nobody waits.
pub fn begin_steps(h: Handle, fd: i32) -> Waiting {
    promote::at_boundary(h.sock(), h, fd);
    begin(h)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(i) = self.entry {
            WAITERS[i].tid.store(0, Ordering::Relaxed);
            WAITERS[i].who.store(0, Ordering::Release);
        }
        let local = process::local(self.h.index());
        local.users.fetch_sub(1, Ordering::SeqCst);
        if local.keep_fd.load(Ordering::SeqCst) != 0 {
            lifecycle::waiter_left(self.h.index());
        }
    }
}

/// True while some thread really waits on record `index`; entries of threads that left in another way are removed.
pub fn anybody_waits(index: u32) -> bool {
    let users = &process::local(index).users;
    if users.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let mut found = false;
    for w in WAITERS.iter().filter(|w| w.who.load(Ordering::SeqCst) == index + 1) {
        let tid = w.tid.load(Ordering::Acquire);
        // Our own entry below our stack position was left by a jump; above it, we are in a handler that interrupted it.
        let alive = if tid == my_tid() {
            w.stack.load(Ordering::Relaxed) > stack_position()
        } else {
            tid == 0 || sys::thread_exists(process::pid(), tid)
        };
        if alive {
            found = true;
        } else if w.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            w.who.store(0, Ordering::Release);
            users.fetch_sub(1, Ordering::SeqCst);
        }
    }
    found
}

/// In the child of fork: only the forking thread is here, and it does not wait.
pub fn after_fork_child() {
    WAITERS.iter().for_each(|w| w.who.store(0, Ordering::Relaxed));
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Look at the ring and at the shadow again.
    Look,
    TimedOut,
    /// A signal handler ran: the call must return EINTR.
    Interrupted,
}

impl Woken {
    /// What a sleep that was cut short means for a wait that goes on until `deadline`.
    pub fn or_look_until(self, deadline: Deadline) -> Woken {
        match self {
            Woken::TimedOut if deadline.is_none_or(|d| sys::monotonic_ns() < d) => Woken::Look,
            other => other,
        }
    }
}

/// A point in time after which a wait gives up; None waits for ever.
pub type Deadline = Option<u64>;

/// The deadline that a time-out of `us` microseconds (0 for none) gives from now on.
pub fn deadline_after_us(us: u64) -> Deadline {
    (us != 0).then(|| sys::monotonic_ns().saturating_add(us.saturating_mul(1000)))
}

pub use crate::spin::{spin, spin_budget};

/// What a thread sleeps on besides its bell: the shadow, and which of its events matter.
#[derive(Clone, Copy)]
pub struct Shadow {
    pub h: Handle,
    pub fd: i32,
    pub events: i16,
}

/// Sleeps until `end` of `ring` is rung, the shadow has an event, the deadline passes or a handler interrupts.
/// `ready` is looked at once more after the bell was armed, and so is whether the shadow is still there: who closes it rings
/// afterwards. The caller holds a [`Waiting`].
pub fn sleep(
    ring: &Ring,
    end: End,
    shadow: Shadow,
    deadline: Deadline,
    signals: Signals,
    ready: impl Fn() -> bool,
) -> Woken {
    let lent = bells::borrow();
    let slot = lent.and_then(|l| bells::claim(ring, end, l.bell.id, TAG_ANY));
    if let Some(slot) = slot {
        ring.arm(end, slot);
    }
    let woken = if ready() || !lifecycle::is_shadow(shadow.fd, shadow.h) {
        Woken::Look
    } else {
        let bell = lent.filter(|_| slot.is_some()).map_or(-1, |l| l.bell.fd);
        let mut fds = [
            libc::pollfd { fd: shadow.fd, events: shadow.events, revents: 0 },
            libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 },
        ];
        let nap = if bell < 0 { Some(sys::monotonic_ns() + NAP_NS) } else { None };
        let until = match (deadline, nap) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        stats::TOTALS.slept.fetch_add(1, Ordering::Relaxed);
        let start = sys::ticks();
        let stop = || signals.interrupted() || lent.is_some_and(|lent| !lent.is_valid());
        let mut woken = poll_unless(&mut fds, until, signals, stop);
        if woken == Woken::Look && fds[0].revents == libc::POLLERR && fds[1].revents == 0 {
            // The kernel shows this for as long as there is something in the error queue, which is no cause to wake.
            let soon = sys::monotonic_ns() + NAP_NS;
            woken = poll_unless(&mut fds[1..], until.into_iter().chain([soon]).min(), signals, stop);
        }
        machine::note_wait(sys::ticks().wrapping_sub(start), settings::spin_ns());
        if let Some(lent) = &lent {
            bells::note_events(&lent.bell, fds[1].revents);
        }
        woken.or_look_until(deadline)
    };
    if let Some(lent) = lent {
        bells::put_back(lent, || slot.into_iter().for_each(|slot| ring.release_bell(end, slot)));
    }
    woken
}

/// Sleeps for a millisecond, for a wait that goes on until `deadline`: where nothing can ring.
pub fn nap(deadline: Deadline, signals: Signals) -> Woken {
    poll_with_signals(&mut [], Some(sys::monotonic_ns() + 1_000_000), signals).or_look_until(deadline)
}

/// Polls, letting signals in only while the kernel sleeps: a handler that ran before is noticed, not slept over.
pub fn poll_with_signals(fds: &mut [libc::pollfd], until: Deadline, signals: Signals) -> Woken {
    poll_unless(fds, until, signals, || signals.interrupted())
}

/// The same with another reason not to sleep at all.
fn poll_unless(fds: &mut [libc::pollfd], until: Deadline, signals: Signals, stop: impl FnOnce() -> bool) -> Woken {
    match masked(None, stop, |mask| ppoll_or_nap(fds, 0, until, mask)) {
        Ok(0) => Woken::TimedOut,
        // A handler that is not ours (installed by a raw system call) may have run: the kernel would say EINTR.
        Err(libc::EINTR) if signals.interrupted() || !signals.any() => Woken::Interrupted,
        _ => Woken::Look,
    }
}

/// Runs `sleep`, which enters the kernel with the signal mask that it is given: `mask`, or the thread's own. Until then all
/// signals are blocked, so that none comes between `stop`, which says whether one has come already, and the sleep.
pub fn masked(
    mask: Option<u64>,
    stop: impl FnOnce() -> bool,
    sleep: impl FnOnce(&u64) -> sys::Result<usize>,
) -> sys::Result<usize> {
    with_signals_blocked(|own| if stop() { Err(libc::EINTR) } else { sleep(mask.as_ref().unwrap_or(own)) })
}

/// Runs `call`, which is given the thread's own mask, with all signals blocked.
pub fn with_signals_blocked<R>(call: impl FnOnce(&u64) -> R) -> R {
    let all = u64::MAX;
    let mut own = 0u64;
    // SAFETY: both sets are valid for the kernel's size of a signal set.
    unsafe {
        let _ = sys::sigprocmask(libc::SIG_SETMASK, &all, &mut own, sys::SIGSET_BYTES);
    }
    let result = call(&own);
    // SAFETY: `own` is valid.
    unsafe {
        let _ = sys::sigprocmask(libc::SIG_SETMASK, &own, core::ptr::null_mut(), sys::SIGSET_BYTES);
    }
    result
}

/// The time from now until a point in time, zero if that has passed.
pub fn time_until(until: u64) -> timespec {
    sys::timespec_of(until.saturating_sub(sys::monotonic_ns()))
}

/// A program's time-out in nanoseconds, inside None for one that never passes (a null pointer). None for one that the
/// kernel refuses.
///
/// # Safety
/// `timeout` must be null or valid.
pub unsafe fn time_of(timeout: *const timespec) -> Option<Option<u64>> {
    if timeout.is_null() {
        return Some(None);
    }
    // SAFETY: valid by contract.
    let t = unsafe { *timeout };
    let valid = t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec);
    valid.then(|| Some((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)))
}

/// The C library's signal set is larger than the kernel's; only its first word is used.
pub fn wide(mask: &u64) -> [u64; 16] {
    let mut set = [0u64; 16];
    set[0] = *mask;
    set
}

/// Polls until then. The kernel refuses more entries than the process may have descriptors now, which a program may have lowered
/// to next to none: then it naps with those that the program itself asks for, the first `few`.
pub fn ppoll_or_nap(fds: &mut [libc::pollfd], few: usize, until: Deadline, mask: &u64) -> sys::Result<usize> {
    match ppoll(fds, until.map(time_until).as_mut(), mask) {
        Err(libc::EINVAL) => {
            let soon = sys::monotonic_ns() + NAP_NS;
            let mut left = time_until(until.map_or(soon, |until| until.min(soon)));
            ppoll(&mut fds[..few], Some(&mut left), mask)
        }
        slept => slept,
    }
}

/// The C library's `ppoll`, which is a cancellation point.
pub fn ppoll(fds: &mut [libc::pollfd], timeout: Option<&mut timespec>, mask: &u64) -> sys::Result<usize> {
    let native = NATIVE_PPOLL.load(Ordering::Acquire);
    let timeout = timeout.map_or(core::ptr::null_mut(), |t| t as *mut timespec);
    if native.is_null() {
        // SAFETY: all pointers are valid for the call.
        return unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), timeout, mask, sys::SIGSET_BYTES) };
    }
    let set = wide(mask);
    // SAFETY: `set_native_ppoll` stored a function of this type; pointers are valid for the call.
    unsafe {
        let f: Ppoll = core::mem::transmute(native);
        let n = f(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, (&raw const set).cast());
        if n < 0 { Err(*libc::__errno_location()) } else { Ok(n as usize) }
    }
}
