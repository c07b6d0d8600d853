//! Spinning before sleeping: for how long, and how without keeping the processor from those who would end the wait.
//!
//! Two ends that share a processor cannot help each other by spinning, and wake-ups tend to bring them together (the
//! scheduler puts a woken thread beside its waker). So after a spin that did not pay, later ones yield the processor
//! between looks: the other end runs at once, both stay runnable, and the scheduler moves one of them to an idle
//! processor. That can take long, so a thread whose yields keep bringing what it waits for steps aside by itself
//! (`step_aside`). A yield that is away for long met a thread with work of its own: then the wait sleeps, and for a while
//! waits sleep early.

use crate::machine::{self, ticks_per_us};
use crate::thread::{Critical, Signals};
use crate::{settings, stats};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ropeway_shm::sys;

/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// Plain spinning before the first yield, and on a machine whose processors have other work.
const PLAIN_US: u64 = 1;
/// A yield that is away for longer, and did not bring what is waited for, met a thread with work of its own.
const AWAY_US: u64 = 5;
/// For how long waits then sleep early.
const BUSY_US: u64 = 4_000;
/// A gap this long between two looks means that the processor was taken away.
const TAKEN_US: u64 = 20;

/// Waits in a row that a yield ended, before the thread leaves the processor to the other end.
const ASIDE_WAITS: u32 = 32;
/// Time from one step aside to the next: doubled when the next one is due soon again.
const ASIDE_US: u64 = 2_000;
const ASIDE_MOST_US: u64 = 32_000;

/// The last spin of this process did not pay: yield between looks.
static YIELD: AtomicBool = AtomicBool::new(false);
/// Until when, in ticks, the processors have other work.
static BUSY_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Waits in a row that a yield ended: the other end was on this processor.
static BY_YIELD: AtomicU32 = AtomicU32::new(0);
/// When a thread of this process stepped aside last, in ticks, and how long it then was to the next time at least.
static ASIDE_AT: AtomicU64 = AtomicU64::new(0);
static ASIDE_PAUSE_US: AtomicU64 = AtomicU64::new(ASIDE_US);

fn busy(now: u64) -> bool {
    (BUSY_UNTIL.load(Ordering::Relaxed).wrapping_sub(now) as i64) > 0
}

/// Others need the processors: spin little for a while.
fn note_busy(now: u64) {
    BUSY_UNTIL.store(now + BUSY_US * ticks_per_us(), Ordering::Relaxed);
}

/// How long a spin that begins now may last, in ticks; 0 for not at all.
pub fn spin_budget() -> u64 {
    let most = machine::spin_ticks(settings::spin_ns());
    if most == 0 {
        return 0;
    }
    let now = sys::ticks();
    if machine::is_crowded(now) {
        0
    } else if busy(now) {
        PLAIN_US * ticks_per_us()
    } else {
        most
    }
}

/// Spins until `ready`, for as long as that has paid lately. True when `ready` came true.
#[inline]
pub fn spin(mut ready: impl FnMut() -> bool, signals: Signals) -> bool {
    let budget = spin_budget();
    if budget == 0 {
        return ready();
    }
    let start = sys::ticks();
    let us = ticks_per_us();
    let mut last = start;
    let mut yields = 0u32;
    loop {
        for _ in 0..LOOKS {
            if ready() {
                won(start, yields);
                return true;
            }
            core::hint::spin_loop();
        }
        let now = sys::ticks();
        let taken = now.wrapping_sub(last) > TAKEN_US * us;
        if taken {
            note_busy(now);
        }
        if now.wrapping_sub(start) > budget || taken || signals.any() {
            break;
        }
        last = now;
        if YIELD.load(Ordering::Relaxed) && now.wrapping_sub(start) > PLAIN_US * us {
            yields += 1;
            let _ = sys::sched_yield();
            last = sys::ticks();
            if last.wrapping_sub(now) > AWAY_US * us {
                if ready() {
                    won(start, yields);
                    return true;
                }
                note_busy(last);
                break;
            }
        }
    }
    stats::TOTALS.spins_lost.fetch_add(1, Ordering::Relaxed);
    YIELD.store(true, Ordering::Relaxed);
    ready()
}

#[inline]
fn won(start: u64, yields: u32) {
    stats::TOTALS.spins_won.fetch_add(1, Ordering::Relaxed);
    machine::note_wait(sys::ticks().wrapping_sub(start), settings::spin_ns());
    if yields > 0 {
        if BY_YIELD.fetch_add(1, Ordering::Relaxed) + 1 >= ASIDE_WAITS {
            BY_YIELD.store(0, Ordering::Relaxed);
            step_aside();
        }
    } else if YIELD.load(Ordering::Relaxed) {
        YIELD.store(false, Ordering::Relaxed);
        BY_YIELD.store(0, Ordering::Relaxed);
    }
}

/// Has the scheduler move this thread to another of the processors that it may use: for a moment this one is not among them.
#[cold]
fn step_aside() {
    let (now, us) = (sys::ticks(), ticks_per_us());
    let (last, pause) = (ASIDE_AT.load(Ordering::Relaxed), ASIDE_PAUSE_US.load(Ordering::Relaxed));
    let since_us = now.wrapping_sub(last) / us;
    if since_us < pause {
        return;
    }
    let next = if since_us < 4 * pause { (2 * pause).min(ASIDE_MOST_US) } else { ASIDE_US };
    ASIDE_PAUSE_US.store(next, Ordering::Relaxed);
    ASIDE_AT.store(now, Ordering::Relaxed);
    // A handler in between would meet, and by siglongjmp keep, processors that are not the thread's for good.
    let _critical = Critical::enter();
    ropeway_shm::processors::leave_current();
}
