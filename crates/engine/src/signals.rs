//! Threads that a program does not know of take none of its signals.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// What a thread causes itself; blocked, it would end the process without asking its handlers.
const OWN: [Signal; 6] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGSYS, Signal::SIGTRAP];

/// Calls `spawn` with all signals blocked, which a thread that it starts inherits: a program that blocks one in all its threads, to read it from a `signalfd` or wait for it, would else
/// find it delivered to ours.
pub fn without<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = SigSet::all();
    OWN.into_iter().for_each(|signal| all.remove(signal));
    let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let spawned = spawn();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    spawned
}
