//! A lock in memory that several processes share, which survives the death of its holder.
//!
//! The word holds who has the lock: process and thread number. A waiter that finds the holder gone takes the lock over
//! and is told so, because what the lock protects may be half changed; everything protected by these locks can be
//! recomputed (`Ring::recover_producer`, `Ring::recover_consumer`). Locks live only in memory that the owners of a socket map, never in memory a
//! peer can write. They are not held while sleeping, but for a reader that leaves Ropeway (`docs/handover.md`, 7.1), and the preload defers signal
//! handlers while one is held.

use crate::atomic::{AtomicU64, Ordering, yield_now};
use crate::sys;

/// Who asks: `pid << 32 | tid`. Never 0.
pub type Holder = u64;

/// Builds the number under which a thread takes locks.
pub fn holder(pid: u32, tid: u32) -> Holder {
    (pid as u64) << 32 | tid as u64
}

/// Set beside the holder while a thread of another process waits. No thread's number is so high.
const WANTED: u64 = 1 << 31;

#[repr(transparent)]
pub struct Lock(AtomicU64);

/// How a lock was obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Clean,
    /// The previous holder died: recompute what the lock protects.
    FromTheDead,
}

/// Rounds of plain spinning before the processor is yielded. Locks are held for less than a microsecond.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };
/// Yields between two looks at whether the holder still lives.
const YIELDS_PER_LOOK: u32 = if cfg!(loom) { 1 } else { 64 };
/// How long a waiter sleeps after each look: a yield does not help a holder of lower real-time priority.
const NAP_NS: u64 = 50_000;

impl Lock {
    #[cfg(not(loom))]
    pub const fn new() -> Lock {
        Lock(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub fn new() -> Lock {
        Lock(AtomicU64::new(0))
    }

    #[inline]
    pub fn try_lock(&self, me: Holder) -> bool {
        self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub fn lock(&self, me: Holder) -> Taken {
        if self.try_lock(me) { Taken::Clean } else { self.lock_slow(me, lives) }
    }

    /// [`Lock::lock`] with another way to learn whether a holder lives, for model checks.
    pub fn lock_unless(&self, me: Holder, lives: impl Fn(Holder) -> bool) -> Taken {
        if self.try_lock(me) { Taken::Clean } else { self.lock_slow(me, lives) }
    }

    #[cold]
    fn lock_slow(&self, me: Holder, lives: impl Fn(Holder) -> bool) -> Taken {
        let mut round = 0u32;
        loop {
            let now = self.0.load(Ordering::Relaxed);
            if now == 0 {
                if self.try_lock(me) {
                    return Taken::Clean;
                }
                continue;
            }
            round = round.wrapping_add(1);
            if round < SPINS {
                core::hint::spin_loop();
                continue;
            }
            yield_now();
            if !round.is_multiple_of(YIELDS_PER_LOOK) {
                continue;
            }
            // Of several waiters one wins; the others find a living holder.
            if lives(now & !WANTED) {
                if now >> 32 != me >> 32 {
                    let _ = self.0.compare_exchange(now, now | WANTED, Ordering::Relaxed, Ordering::Relaxed);
                }
                nap();
            } else if self.0.compare_exchange(now, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Taken::FromTheDead;
            }
        }
    }

    #[inline]
    pub fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Who holds it now, 0 for nobody.
    pub fn owner(&self) -> Holder {
        self.0.load(Ordering::Relaxed) & !WANTED
    }

    /// For a holder that takes its time: whether a thread of another process waits. It may have given up since.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }

    /// After fork, in the child: the parent's threads do not exist here; a lock that the forking thread's siblings held
    /// in the parent is still theirs (the memory is shared), so nothing is done to it. Only a lock private to a process
    /// may be reset.
    pub fn reset_private(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// True while the thread behind `who` can still unlock.
fn lives(who: Holder) -> bool {
    sys::thread_exists((who >> 32) as u32, who as u32)
}

fn nap() {
    if cfg!(not(loom)) {
        sys::nap(NAP_NS);
    }
}

impl Default for Lock {
    fn default() -> Lock {
        Lock::new()
    }
}
