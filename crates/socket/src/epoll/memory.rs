//! Memory of the program that a wait touches itself where the kernel would have: a bad address must give `EFAULT`, not a
//! crash. Each check costs a system call, so what is certainly good is not checked.

use crate::process;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::epoll_event;
use ropeway_shm::sys;

/// How far above our own frame memory is certainly the calling thread's stack.
const STACK_BYTES: usize = 4096;

fn is_on_stack(p: *const epoll_event) -> bool {
    let here = 0u8;
    (p as usize).wrapping_sub(&raw const here as usize) < STACK_BYTES
}

/// Reads what the program gave to `epoll_ctl`; None for a bad address.
///
/// # Safety
/// `p` must be what the program gave.
pub unsafe fn read(p: *const epoll_event) -> Option<epoll_event> {
    if !is_on_stack(p) {
        if p.is_null() {
            return None;
        }
        for part in [p.cast::<u64>(), p.cast::<u8>().wrapping_add(size_of::<epoll_event>() - 8).cast()] {
            /// No such operation: the kernel reads the set and refuses.
            const NONE: i32 = 99;
            // SAFETY: the kernel reads eight bytes, or says that it cannot.
            if unsafe { sys::sigprocmask(NONE, part, core::ptr::null_mut(), sys::SIGSET_BYTES) } == Err(libc::EFAULT) {
                return None;
            }
        }
    }
    // SAFETY: readable, as just checked; packed, so of any alignment.
    Some(unsafe { p.read_unaligned() })
}

/// Most events that one wait of ours reports: nothing is lost by reporting the rest next time.
const MOST_EVENTS: usize = 4096;

/// Arrays that were found to be writable: address in the lower 48 bits, number of entries above.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// How many events of an array for `max` of them can be written; 0 for a bad address.
pub fn room(p: *mut epoll_event, max: usize) -> usize {
    let max = max.min(MOST_EVENTS);
    if is_on_stack(p) {
        return max;
    }
    let entry = &KNOWN[(p as usize >> 4) % KNOWN.len()];
    let known = entry.load(Ordering::Relaxed);
    if known & ADDRESS == p as u64 && (known >> 48) as usize >= max { max } else { check(entry, p, max) }
}

const ADDRESS: u64 = (1 << 48) - 1;

#[cold]
fn check(entry: &AtomicU64, p: *mut epoll_event, max: usize) -> usize {
    let array = libc::iovec { iov_base: p.cast(), iov_len: max * size_of::<epoll_event>() };
    // SAFETY: copies the array onto itself, or as much of it as there is.
    let there = match unsafe { sys::process_vm_readv(process::pid() as i32, &array, 1, &array, 1, 0) } {
        Ok(n) => n / size_of::<epoll_event>(),
        Err(libc::EFAULT) => 0,
        // A filter forbids the call: the program knows what it gives.
        Err(_) => max,
    };
    if p as u64 <= ADDRESS {
        entry.store((there as u64) << 48 | p as u64, Ordering::Relaxed);
    }
    there
}
