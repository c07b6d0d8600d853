//! What the threads of one engine share: the lock, who polls, and how a thread sleeps on the links.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use ropeway_proto::Time;
use ropeway_shm::fork::Birthmark;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::core::{Core, Poller};
use crate::restart;
use crate::spin::YIELD_EVERY_NS;

/// A sleeper is not woken for a timer that is earlier than its own by less than this: a wake-up costs the more.
const TIMER_SLACK_NS: u64 = 200_000;

pub(crate) struct Inner {
    pub(crate) core: Mutex<Core>,
    /// Threads that wait for the lock.
    pub(crate) contenders: AtomicU32,
    /// Wakes who sleeps on the links.
    pub(crate) doorbell: OwnedFd,
    /// Copies of the links' descriptors, to sleep on without the lock.
    pub(crate) descriptors: Mutex<Arc<Vec<OwnedFd>>>,
    pub(crate) helper_condition: std::sync::Condvar,
    /// The helper's bound, when it polls for an event loop.
    pub(crate) most_spin_ns: u64,
    pub(crate) origin: Instant,
    pub(crate) birthmark: Birthmark,
    /// Its file stays locked while the engine lives.
    pub(crate) _secret: Option<Arc<restart::Secret>>,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic inside the lock is a fault of ours; what it leaves behind is still consistent enough to say goodbye.
        match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.contenders.fetch_add(1, Ordering::Relaxed);
                let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
                self.contenders.fetch_sub(1, Ordering::Relaxed);
                core
            }
        }
    }

    /// Between two looks of a thread that spins and has last offered the processor to others at `offered`: lets those in that want the lock or the processor.
    /// Nobody else has a reason to touch the lock, and giving it back and taking it again at every look would cost as much as the look.
    pub(crate) fn give_way<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        now: Time,
        offered: &mut Time,
    ) -> MutexGuard<'a, Core> {
        if now.since(*offered) < YIELD_EVERY_NS && self.contenders.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
            return core;
        }
        *offered = now;
        drop(core);
        std::thread::yield_now();
        self.lock()
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }

    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Sleeps until a link has something, the doorbell rings, or `until`. The lock is not held meanwhile. One thread at a time: a ring wakes one.
    pub(crate) fn sleep_on_links<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        until: Option<Time>,
    ) -> MutexGuard<'a, Core> {
        let now = self.now();
        let until = [until, core.endpoint.next_timeout()].into_iter().flatten().min();
        let flags = if core.is_full() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        core.sleeps_until = Some(until.unwrap_or(Time::from_nanos(u64::MAX)));
        drop(core);
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut fds: Vec<PollFd<'_>> = descriptors.iter().map(|fd| PollFd::new(fd, flags)).collect();
        fds.push(PollFd::new(&self.doorbell, PollFlags::IN));
        let timeout = until.map(|until| {
            let ns = until.since(now);
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
        });
        // An interrupted sleep is looked at like any other wake-up.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds.last().is_some_and(|fd| !fd.revents().is_empty()) {
            let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
        }
        let mut core = self.lock();
        core.sleeps_until = None;
        core
    }

    /// A caller that has polled goes: somebody else that waits takes over, or the helper after a while.
    pub(crate) fn leave(&self, core: &mut Core, now: Time) {
        core.left = core.left.wrapping_add(1);
        core.poller = Poller::Nobody;
        core.waiters.wake_one(now);
        if core.helper_parked {
            core.helper_parked = false;
            self.helper_condition.notify_one();
        }
    }

    /// After a command: sends what it made, tells who waits, and wakes a sleeper whose timeout is too late now.
    pub(crate) fn follow_up(&self, core: &mut Core, now: Time) {
        core.transmit_wanted(now);
        core.dispatch();
        self.look_at_sleeper(core);
    }

    fn look_at_sleeper(&self, core: &mut Core) {
        match core.sleeps_until {
            Some(until)
                if core.is_full()
                    || core.endpoint.next_timeout().is_some_and(|at| at.after(TIMER_SLACK_NS) < until) =>
            {
                self.ring();
            }
            None if core.helper_parked && core.poller == Poller::Nobody => {
                core.helper_parked = false;
                self.helper_condition.notify_one();
            }
            _ => {}
        }
    }
}
