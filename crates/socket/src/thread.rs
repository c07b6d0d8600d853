//! What a thread needs to know of itself: its number for locks, whether it is inside a critical section, and which
//! signals came in the meantime.
//!
//! A signal handler may call any hook, on the very socket that it interrupted, and may leave by `siglongjmp`. It must
//! therefore never run while its thread holds a lock. The preload's handler trampoline asks [`in_critical`] first and,
//! if so, puts the signal aside; leaving the outermost critical section runs what was put aside.

use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, Ordering, compiler_fence};
use ropeway_shm::lock::{Holder, holder};
use ropeway_shm::sys;
use ropeway_shm::table::Birth;

/// All-zero is the state of a new thread.
#[repr(C)]
struct State {
    holder: Cell<Holder>,
    depth: Cell<u32>,
    deferred: Cell<bool>,
    /// Handlers that ran: those that interrupt a blocking call, and those installed with SA_RESTART.
    interrupting: Cell<u32>,
    restarting: Cell<u32>,
    /// The fork that is under way (`lifecycle`), and its number.
    birth: Cell<Option<Birth>>,
    fork: Cell<u64>,
    /// The loan of the bell that it has borrowed last and not given back (`bells`), 0 for none.
    loan: Cell<u64>,
}

// Thread-local storage in the initial-exec model, which the preload may use because it is loaded at program start: two
// instructions instead of a call to `__tls_get_addr`, which could allocate. The compiler offers no stable way to ask for
// that model.
core::arch::global_asm!(
    ".pushsection .tbss.ropeway_thread,\"awT\",@nobits",
    ".p2align 3",
    ".hidden ropeway_thread",
    ".globl ropeway_thread",
    ".type ropeway_thread, @object",
    ".size ropeway_thread, {size}",
    "ropeway_thread:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<State>(),
);

/// The calling thread's state.
#[inline(always)]
fn state() -> &'static State {
    let p: *const State;
    // SAFETY: computes the address of this thread's copy of the block above, which lives as long as the thread; a
    // reference to it never reaches another thread, because `State` is not `Sync` and this function is private.
    unsafe {
        core::arch::asm!(
            "mov {p}, qword ptr fs:[0]",
            "add {p}, qword ptr [rip + ropeway_thread@GOTTPOFF]",
            p = out(reg) p,
            options(pure, readonly, nostack),
        );
        &*p
    }
}

/// Runs the signals put aside; given by the preload.
static RUN_DEFERRED: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Names the function that delivers what the trampoline has put aside for the calling thread.
pub fn set_deferred_runner(run: fn()) {
    RUN_DEFERRED.store(run as *mut (), Ordering::Release);
}

/// The number under which this thread takes process-shared locks.
#[inline]
pub fn me() -> Holder {
    let s = state();
    if s.holder.get() != 0 { s.holder.get() } else { learn(s) }
}

#[cold]
fn learn(s: &State) -> Holder {
    let me = holder(sys::getpid().unwrap_or(1) as u32, sys::gettid().unwrap_or(1) as u32);
    s.holder.set(me);
    me
}

/// In the child of fork: this thread has a new number.
pub fn after_fork_child() {
    state().holder.set(0);
    state().loan.set(0);
}

/// Calls `f` in a child of `vfork`, which runs in its parent's memory and thread: the locks that it takes there are its own, and those
/// of a dead process if it is killed.
pub fn in_vfork_child(f: impl FnOnce()) {
    let parents = state().holder.replace(0);
    f();
    state().holder.set(parents);
}

/// In the parent of such a child, the process `pid`: the child may have been killed in there.
pub fn after_vfork(pid: u32) {
    let s = state();
    if s.holder.get() >> 32 != pid as u64 {
        s.holder.set(0);
        s.depth.set(0);
    }
}

/// The loan of a bell under which this thread waits.
pub fn loan() -> u64 {
    state().loan.get()
}

pub fn set_loan(loan: u64) {
    state().loan.set(loan);
}

/// A fork that is under way.
#[derive(Clone, Copy)]
pub struct Fork {
    pub birth: Birth,
    /// Which of this process's forks, from 1 on.
    pub number: u64,
}

/// Keeps a fork of this thread until it is known what came of it, and returns what was kept before.
pub fn keep_fork(fork: Option<Fork>) -> Option<Fork> {
    let s = state();
    let number = s.fork.replace(fork.map_or(0, |fork| fork.number));
    s.birth.replace(fork.map(|fork| fork.birth)).map(|birth| Fork { birth, number })
}

/// True while the calling thread must not run a signal handler.
pub fn in_critical() -> bool {
    state().depth.get() != 0
}

/// The trampoline put a signal aside.
pub fn note_deferred() {
    state().deferred.set(true);
}

/// A handler ran to its end (or is about to): `restart` says that it was installed with SA_RESTART.
pub fn note_handler(restart: bool) {
    let s = state();
    let count = if restart { &s.restarting } else { &s.interrupting };
    count.set(count.get().wrapping_add(1));
}

/// How many handlers have run in this thread: take one before waiting, compare afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signals {
    interrupting: u32,
    restarting: u32,
    /// Every handler interrupts, whatever it was installed with.
    by_any: bool,
}

pub fn signals() -> Signals {
    let s = state();
    Signals { interrupting: s.interrupting.get(), restarting: s.restarting.get(), by_any: false }
}

impl Signals {
    /// For calls that the kernel never restarts: poll and its like, and sends and receives with a time-out.
    pub fn by_any_handler(self) -> Signals {
        Signals { by_any: true, ..self }
    }

    /// True when a handler that interrupts the call has run since.
    pub fn interrupted(self) -> bool {
        state().interrupting.get() != self.interrupting || self.by_any && self.any()
    }

    /// True when any handler that we know of has run since.
    pub fn any(self) -> bool {
        let s = state();
        s.interrupting.get() != self.interrupting || s.restarting.get() != self.restarting
    }
}

/// While it lives, signal handlers are put off.
pub struct Critical(());

impl Critical {
    #[inline]
    pub fn enter() -> Critical {
        let s = state();
        s.depth.set(s.depth.get() + 1);
        compiler_fence(Ordering::SeqCst);
        Critical(())
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let s = state();
        s.depth.set(s.depth.get() - 1);
        if s.deferred.get() && s.depth.get() == 0 {
            run_deferred(s);
        }
    }
}

#[cold]
fn run_deferred(s: &State) {
    s.deferred.set(false);
    let run = RUN_DEFERRED.load(Ordering::Acquire);
    if !run.is_null() {
        // SAFETY: `set_deferred_runner` stored a `fn()`.
        let run: fn() = unsafe { core::mem::transmute(run) };
        run();
    }
}
