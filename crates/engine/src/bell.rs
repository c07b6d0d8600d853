//! What wakes a thread that sleeps on the links: another thread, or the time.
//!
//! A sleep with a limit of its own sets a timer of the kernel's and takes it back, each time: a tenth of what a short message costs where every one is slept for, and most of these timers never
//! fire. A bell's timer stays set from one sleep to the next, and is set anew only for what is earlier. If it fires before anything is due, the sleeper sets it for what is due and sleeps on: once in
//! the time that timers take, not once a message. The other threads move it, too: an earlier timer need not wake the sleeper. Where sleeps are as long as timers this is the worse way, as each time it
//! fires a thread is woken: there sleeps have limits of their own.

use crate::sleep::timespec;
use ropeway_proto::Time;
use rustix::event::{PollFd, PollFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A timer that fires in vain costs as much as limits for so many sleeps: if it does within them ...
const SLEEPS_PER_FIRE: u32 = 16;
/// ... so many sleeps have limits of their own before this is tried again.
const LIMITED_SLEEPS: u32 = 512;

/// All but the sleep itself happens under the engine's lock: the atomics are relaxed, and say only that the bell is shared.
pub struct Bell {
    timer: OwnedFd,
    /// Nanoseconds of the engine's clock at which the timer fires, or has fired.
    at: AtomicU64,
    /// Somebody has rung since the last sleep ended.
    rung: AtomicBool,
    /// Sleeps since the timer fired in vain, and those to come that have limits of their own.
    sleeps: AtomicU32,
    limited: AtomicU32,
}

impl Bell {
    /// Nobody is to be woken by the time.
    pub const NEVER: Time = Time::from_nanos(u64::MAX);

    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Bell> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Bell {
            timer,
            at: AtomicU64::new(Bell::NEVER.as_nanos()),
            rung: AtomicBool::new(false),
            sleeps: AtomicU32::new(SLEEPS_PER_FIRE),
            limited: AtomicU32::new(0),
        })
    }

    /// Wakes who sleeps by this bell, or will next.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::Relaxed) {
            self.fire_at(Time::ZERO, Time::ZERO);
        }
    }

    /// Wakes who sleeps by this bell, then or earlier.
    pub fn wake_at(&self, at: Time, now: Time) {
        if at < self.fires_at() {
            self.fire_at(at, now);
        }
    }

    /// The same for who goes to sleep; what it returns is the limit that this sleep has to have of its own.
    pub fn limit(&self, at: Time, now: Time) -> Option<Time> {
        self.sleeps.store(self.sleeps.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        let limited = self.limited.load(Ordering::Relaxed);
        if at >= self.fires_at() {
            return None;
        }
        if limited > 0 {
            self.limited.store(limited - 1, Ordering::Relaxed);
            return Some(at);
        }
        self.fire_at(at, now);
        None
    }

    /// The timer woke a sleeper for whom nothing was due.
    pub fn note_vain(&self) {
        if self.sleeps.swap(0, Ordering::Relaxed) < SLEEPS_PER_FIRE {
            self.limited.store(LIMITED_SLEEPS, Ordering::Relaxed);
        }
    }

    fn fire_at(&self, at: Time, now: Time) {
        self.at.store(at.as_nanos(), Ordering::Relaxed);
        // Zero would turn it off.
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: timespec(Duration::from_nanos(at.since(now).max(1))),
        };
        // It cannot fail: the descriptor is a timer, and the time is one.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// When the timer fires, whatever for; [`Bell::NEVER`] if nothing was asked since it did.
    pub fn fires_at(&self) -> Time {
        Time::from_nanos(self.at.load(Ordering::Relaxed))
    }

    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// What a sleep looks at.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.timer, PollFlags::IN)
    }

    /// A sleep has ended, and its look says whether the timer has fired. Whether somebody has rung.
    pub fn take(&self, has_fired: bool) -> bool {
        if has_fired {
            let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
            self.at.store(Bell::NEVER.as_nanos(), Ordering::Relaxed);
        }
        self.rung.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::poll;

    /// Whether it fires within so many milliseconds.
    fn fires_within(bell: &Bell, ms: u64) -> bool {
        poll(&mut [bell.poll_fd()], Some(&timespec(Duration::from_millis(ms)))).expect("poll") == 1
    }

    fn ms(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn who_rings_wakes_the_next_sleep_whatever_the_timer_was_set_to() {
        let bell = Bell::new().expect("a timer");
        assert!(!fires_within(&bell, 1) && !bell.is_rung());
        bell.wake_at(ms(1_000_000), ms(0));
        bell.ring();
        bell.ring();
        bell.wake_at(ms(500_000), ms(0));
        assert!(fires_within(&bell, 10_000) && bell.is_rung());
        assert!(bell.take(true));
        assert!(!bell.take(false) && !fires_within(&bell, 1), "both rings were one");
    }

    #[test]
    fn a_ring_that_a_sleep_did_not_see_costs_the_next_one_a_look() {
        let bell = Bell::new().expect("a timer");
        bell.ring();
        assert!(bell.take(false), "a link ended that sleep");
        bell.wake_at(ms(1_000_000), ms(0));
        assert!(fires_within(&bell, 10_000));
        assert!(!bell.take(true), "it was rung for the sleep before");
    }

    #[test]
    fn the_timer_moves_to_what_is_earlier_and_never_to_what_is_later() {
        let bell = Bell::new().expect("a timer");
        bell.wake_at(ms(1_000_000), ms(0));
        bell.wake_at(ms(20), ms(0));
        bell.wake_at(ms(2_000_000), ms(0));
        assert!(fires_within(&bell, 10_000));
        assert!(!bell.take(true));
        bell.wake_at(ms(3), ms(50));
        assert!(fires_within(&bell, 10_000), "what is over fires at once");
    }

    #[test]
    fn sleeps_that_a_timer_ends_in_vain_every_few_times_have_limits_of_their_own_for_a_while() {
        let bell = Bell::new().expect("a timer");
        let sleeps = |count: u32| (0..count).filter(|_| bell.limit(ms(1_000_000), ms(0)).is_some()).count() as u32;
        let fires_in_vain = || {
            bell.ring();
            bell.take(true);
            bell.note_vain();
        };
        assert_eq!(sleeps(SLEEPS_PER_FIRE), 0);
        fires_in_vain();
        assert_eq!(sleeps(SLEEPS_PER_FIRE), 0, "often enough in vain, and many sleeps since");
        fires_in_vain();
        assert_eq!(sleeps(SLEEPS_PER_FIRE - 1), 0);
        fires_in_vain();
        assert_eq!(sleeps(2 * LIMITED_SLEEPS), LIMITED_SLEEPS);
    }
}
