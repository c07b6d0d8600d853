//! What spinning depends on: how many processors there are for the two ends, and how well spinning went lately.

use crate::fdtable;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use ropeway_shm::processors::Crowd;
use ropeway_shm::{processors, sys};

/// Time-stamp counter ticks per microsecond, learnt once; see [`ticks_per_us`].
static TICKS_PER_US: AtomicU64 = AtomicU64::new(0);
/// Processors that this process may run on at the same time, and those of the machine; 0 before they were looked at.
static PROCESSORS: AtomicU32 = AtomicU32::new(0);
static ONLINE: AtomicU32 = AtomicU32::new(0);
/// How well spinning went lately: above 0 it pays.
static SCORE: AtomicI32 = AtomicI32::new(0);

/// When the runnable threads of the machine were counted last, in ticks.
static COUNTED_AT: AtomicU64 = AtomicU64::new(0);
/// The level of the [`Crowd`] that the counts have found.
static CROWD: AtomicU32 = AtomicU32::new(0);

const SCORE_MAX: i32 = 16;
const SCORE_MIN: i32 = -24;

/// Ticks of the time-stamp counter in a microsecond. Measured against the monotonic clock over at least 20 us.
pub fn ticks_per_us() -> u64 {
    match TICKS_PER_US.load(Ordering::Relaxed) {
        0 => {
            let (t0, n0) = (sys::ticks(), sys::monotonic_ns());
            let n1 = loop {
                let n = sys::monotonic_ns();
                if n - n0 > 20_000 {
                    break n;
                }
            };
            let per = ((sys::ticks() - t0) * 1000 / (n1 - n0)).max(1);
            TICKS_PER_US.store(per, Ordering::Relaxed);
            per
        }
        per => per,
    }
}

/// Processors that the two ends of a connection have between them: those online, cut by the cgroup's cpu.max. The
/// affinity of this thread alone says nothing: an end pinned to one processor talks to an end on another. Two ends on the
/// same one are found out by spinning that never pays.
pub fn processors() -> u32 {
    match PROCESSORS.load(Ordering::Relaxed) {
        0 => {
            let online = processors::online();
            let n = processors::usable();
            ONLINE.store(online, Ordering::Relaxed);
            PROCESSORS.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// After fork: the quota may be another one.
pub fn forget() {
    PROCESSORS.store(0, Ordering::Relaxed);
}

/// True while more threads want to run than there are processors: then a thread that spins keeps another from its work, which
/// may be the very one it waits for. Counted now and then; a process that cannot see `/proc` never knows.
pub fn is_crowded(now: u64) -> bool {
    let last = COUNTED_AT.load(Ordering::Relaxed);
    let mut crowd = Crowd { level: CROWD.load(Ordering::Relaxed) };
    if now.wrapping_sub(last) > Crowd::COUNT_NS / 1000 * ticks_per_us()
        && COUNTED_AT.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        crowd = crowd.after(runnable(), ONLINE.load(Ordering::Relaxed));
        CROWD.store(crowd.level, Ordering::Relaxed);
    }
    crowd.is_there()
}

/// Threads of the whole machine that run or could run. 0 when that cannot be read.
fn runnable() -> u32 {
    let mut text = [0u8; 64];
    // SAFETY: the buffer is writable for its length.
    let n = unsafe { sys::pread(loadavg(), text.as_mut_ptr(), text.len(), 0) }.unwrap_or(0);
    processors::runnable_in(&text[..n])
}

/// The file that is read so often stays open, out of the program's way: a number that comes and goes could be taken by another
/// thread in between.
fn loadavg() -> i32 {
    static FILE: AtomicI32 = AtomicI32::new(-1);
    let kept = FILE.load(Ordering::Acquire);
    if kept >= 0 && fdtable::is_internal(kept) {
        return kept;
    }
    // SAFETY: a C string.
    let Ok(fd) = (unsafe { sys::open(c"/proc/loadavg".as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC, 0) }) else {
        return -1;
    };
    let fd = sys::move_high(fd as i32);
    fdtable::enter_internal(fd);
    if FILE.compare_exchange(kept, fd, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        fdtable::remove(fd);
        let _ = sys::close(fd);
    }
    FILE.load(Ordering::Acquire)
}

/// How long to spin now, in ticks, when `most_us` is the configured limit.
pub fn spin_ticks(most_ns: u32) -> u64 {
    if most_ns == 0 || processors() < 2 {
        return 0;
    }
    let most = most_ns as u64 * ticks_per_us() / 1000;
    let score = SCORE.load(Ordering::Relaxed);
    if score >= 0 { most } else { most >> ((-score / 2) as u32).min(20) }
}

/// Tells how long a wait took in the end: waits that a spin would have covered make the next ones spin.
pub fn note_wait(ticks: u64, most_ns: u32) {
    let covered = ticks < (2 * most_ns as u64 + 20_000) * ticks_per_us() / 1000;
    let score = SCORE.load(Ordering::Relaxed);
    let next = if covered { (score + 4).min(SCORE_MAX) } else { (score - 1).max(SCORE_MIN) };
    if next != score {
        SCORE.store(next, Ordering::Relaxed);
    }
}
