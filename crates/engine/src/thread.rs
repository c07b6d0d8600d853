//! Threads that a program does not know of.
//!
//! They take none of its signals, and have their stack however much thread-local memory it has.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use ropeway_shm::stack::with_thread_locals;
use std::io;
use std::thread::{Builder, JoinHandle};

/// What a thread causes itself; blocked, it would end the process without asking its handlers.
const OWN: [Signal; 6] =
    [Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGSEGV, Signal::SIGSYS, Signal::SIGTRAP];

/// Of threads that every engine has: several times what a handshake needs, which is the most (32 KiB), and little in a program that keeps all of its memory from being swapped.
pub const ENGINE_STACK_BYTES: usize = 256 << 10;
/// Of others: what threads usually have.
pub const USUAL_STACK_BYTES: usize = 2 << 20;

/// Starts a thread that has so much stack for itself.
///
/// # Errors
/// There is none to be had.
pub fn spawn<T: Send + 'static>(
    name: &str,
    stack_bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let builder = Builder::new().name(name.into()).stack_size(with_thread_locals(stack_bytes));
    without_signals(|| builder.spawn(run))
}

/// Calls `spawn` with all signals blocked, which a thread that it starts inherits: a program that blocks one in all its threads, to read it from a `signalfd` or wait for it, would else
/// find it delivered to ours.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = SigSet::all();
    OWN.into_iter().for_each(|signal| all.remove(signal));
    let before = all.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let spawned = spawn();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    spawned
}
