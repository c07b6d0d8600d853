//! `select` and `pselect`, worked out as a poll.

use super::slots::{self, FEW};
use super::{Found, Kernel, Watch, fill, survey};
use crate::wait;
use core::mem::MaybeUninit;
use libc::{pollfd, timespec, timeval};
use ropeway_shm::sys;

/// What select's three questions are in terms of poll, in the order of its arguments (as the kernel has it).
const ASKED: [i16; 3] = [libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM, libc::POLLPRI];
const MEANT: [i16; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR | libc::POLLNVAL,
    libc::POLLPRI | libc::POLLNVAL,
];
const WORD: usize = u64::BITS as usize;

/// `select`. The sets are `fd_set`s as arrays of words, null for none; `timeout` is updated as Linux does it.
///
/// # Safety
/// The sets must be null or hold `nfds` bits, rounded up to words of 64; `timeout` must be null or valid.
pub unsafe fn select(
    nfds: i32,
    read: *mut u64,
    write: *mut u64,
    except: *mut u64,
    timeout: *mut timeval,
    native: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: passed on to the caller.
    let ns = match unsafe { timeout.as_ref() } {
        None => None,
        Some(t) if t.tv_sec < 0 || t.tv_usec < 0 => return native(),
        Some(t) => Some((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_usec as u64 * 1000)),
    };
    let start = ns.filter(|ns| *ns != 0).map(|_| sys::monotonic_ns());
    let sets = [read, write, except];
    // SAFETY: passed on to the caller.
    let (answer, ours) = unsafe { watch(nfds, sets, ns, None, native) };
    if let (true, Some(start), Some(ns)) = (ours, start, ns) {
        let left = ns.saturating_sub(sys::monotonic_ns() - start);
        // SAFETY: not null, or there would be no time; valid by contract.
        unsafe {
            *timeout = timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1000) as i64 };
        }
    }
    answer
}

/// `pselect`: `timeout` and `mask` (the kernel's signal set, one word) may be null.
///
/// # Safety
/// As for [`select`].
pub unsafe fn pselect(
    nfds: i32,
    read: *mut u64,
    write: *mut u64,
    except: *mut u64,
    timeout: *const timespec,
    mask: *const u64,
    native: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: passed on to the caller.
    unsafe {
        match wait::time_of(timeout) {
            Some(ns) => watch(nfds, [read, write, except], ns, mask.as_ref().copied(), native).0,
            None => native(),
        }
    }
}

/// The answer, and whether it is ours rather than the kernel's.
///
/// # Safety
/// As for [`select`].
unsafe fn watch(
    nfds: i32,
    sets: [*mut u64; 3],
    ns: Option<u64>,
    mask: Option<u64>,
    native: impl FnOnce() -> isize,
) -> (isize, bool) {
    if nfds <= 0 {
        return (native(), false);
    }
    let mut count = 0;
    // SAFETY: passed on to the caller.
    unsafe { each(nfds as usize, sets, |_, _| count += 1) };
    let mut native = Some(native);
    let mut ours = false;
    let entries = |fds: &mut [pollfd]| {
        let mut n = 0;
        // SAFETY: passed on to the caller.
        unsafe {
            each(nfds as usize, sets, |fd, events| {
                fds[n] = pollfd { fd, events, revents: 0 };
                n += 1;
            })
        };
        let found = survey(fds);
        let sleeps_natively = match found {
            Found::Nothing => true,
            Found::Tcp => ns == Some(0),
            Found::Rings => false,
        };
        if sleeps_natively && let Some(native) = native.take() {
            return Some(native());
        }
        slots::with(n, |slots, kernel| {
            fill(fds, slots);
            if matches!(found, Found::Tcp)
                && slots::count_in(slots)
                && let Some(native) = native.take()
            {
                return native();
            }
            ours = true;
            let mut watch = Watch::new(fds, slots, kernel);
            // The first look asks, because numbers that lead nowhere are an error; one that is closed during the wait is ready
            // for whatever was asked.
            let answer = watch.run(ns, mask, Kernel::Ask);
            let is_bad = |p: &pollfd| p.revents & libc::POLLNVAL != 0;
            match answer {
                0.. if !watch.has_looked && watch.fds.iter().any(is_bad) => -(libc::EBADF as isize),
                // SAFETY: passed on to the caller.
                0.. => unsafe { show(nfds as usize, sets, watch.fds) },
                _ => answer,
            }
        })
    };
    let answer = with_entries(count, entries).flatten();
    (answer.unwrap_or(-(libc::ENOMEM as isize)), ours)
}

/// Calls `f` with every descriptor that is in one of the sets, and what is asked of it.
///
/// # Safety
/// As for [`select`].
unsafe fn each(nfds: usize, sets: [*mut u64; 3], mut f: impl FnMut(i32, i16)) {
    for at in 0..nfds.div_ceil(WORD) {
        let last = if (at + 1) * WORD > nfds { u64::MAX >> ((at + 1) * WORD - nfds) } else { u64::MAX };
        // SAFETY: inside the set (contract).
        let words = sets.map(|set| if set.is_null() { 0 } else { unsafe { *set.add(at) & last } });
        let mut any = words[0] | words[1] | words[2];
        while any != 0 {
            let bit = any.trailing_zeros();
            any &= any - 1;
            let asked = (0..3).filter(|k| words[*k] >> bit & 1 != 0).fold(0, |events, k| events | ASKED[k]);
            f((at * WORD) as i32 + bit as i32, asked);
        }
    }
}

/// Puts the answers into the sets and counts them.
///
/// # Safety
/// As for [`select`].
unsafe fn show(nfds: usize, sets: [*mut u64; 3], fds: &[pollfd]) -> isize {
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        // SAFETY: inside the set (contract).
        (0..nfds.div_ceil(WORD)).for_each(|at| unsafe { *set.add(at) = 0 });
    }
    let mut count = 0;
    for p in fds {
        for (k, set) in sets.iter().enumerate().filter(|(_, set)| !set.is_null()) {
            if p.events & ASKED[k] != 0 && p.revents & MEANT[k] != 0 {
                // SAFETY: inside the set (contract).
                unsafe { *set.add(p.fd as usize / WORD) |= 1 << (p.fd as usize % WORD) };
                count += 1;
            }
        }
    }
    count
}

/// Calls `f` with `n` entries, from the stack if they are few. None when there is no memory for so many.
fn with_entries<R>(n: usize, f: impl FnOnce(&mut [pollfd]) -> R) -> Option<R> {
    if n <= FEW {
        let mut few = [MaybeUninit::<pollfd>::zeroed(); FEW];
        // SAFETY: all-zero is a valid entry.
        return Some(f(unsafe { core::slice::from_raw_parts_mut(few.as_mut_ptr().cast(), n) }));
    }
    let len = n * size_of::<pollfd>();
    // SAFETY: a new mapping of zeroes disturbs nothing; it is removed when nothing uses it any more. Zeroes are valid entries.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = sys::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).ok()?;
        let result = f(core::slice::from_raw_parts_mut(at as *mut pollfd, n));
        let _ = sys::munmap(at as *mut _, len);
        Some(result)
    }
}
