//! Calls that wait: they poll the links themselves, or sleep beside the thread that does.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use ropeway_proto::{Landing, Time};

use crate::core::{Core, OVERDUE_NS, Poller, READS_OVERDUE_NS};
use crate::engine::Engine;
use crate::error::Error;
use crate::inner::Inner;
use crate::spin::Pace;
use crate::wait::{SOON_NS, Subject};

/// A thread that waits.
struct Wait {
    subject: Subject,
    since: Time,
    deadline: Option<Time>,
    /// What [`Waiters::told`](crate::wait::Waiters::told) said when it looked last.
    told: u64,
    /// It has the poll token.
    polling: bool,
    /// It leaves polling to others although nobody polls.
    aside: bool,
    /// What it may spin for, from the last arrival on: of a message in many packets each may be answered by the other end, and the next one comes soon.
    spin_ns: u64,
    spin_until: Time,
    pace: Pace,
}

/// What a call waits for.
pub(crate) trait Attempt<T> {
    /// Looks whether it is there.
    fn attempt(&mut self, core: &mut Core, now: Time) -> Option<Result<T, Error>>;

    /// How long the links may have been left alone when the call begins.
    fn overdue_ns(&self) -> u64 {
        READS_OVERDUE_NS
    }

    /// Memory that what arrives next may go to at once; the next attempt finds it there.
    fn land<R>(&mut self, turn: impl FnOnce(&mut Option<Landing<'_>>) -> R) -> R {
        turn(&mut None)
    }
}

/// Looks, and has no memory for what arrives: it sends, or waits for something else than data.
struct Look<F>(F);

impl<T, F: FnMut(&mut Core, Time) -> Option<Result<T, Error>>> Attempt<T> for Look<F> {
    fn attempt(&mut self, core: &mut Core, now: Time) -> Option<Result<T, Error>> {
        (self.0)(core, now)
    }

    fn overdue_ns(&self) -> u64 {
        OVERDUE_NS
    }
}

impl Engine {
    /// Calls `attempt` until it gives something, polling the links meanwhile or waiting for the thread that does.
    pub(crate) fn block<T>(
        &self,
        subject: Subject,
        deadline: Option<Instant>,
        attempt: impl FnMut(&mut Core, Time) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let inner = self.inner()?;
        block_locked(inner, inner.lock(), subject, deadline, attempt)
    }
}

/// The same for who has the lock already.
pub(crate) fn block_locked<'a, T>(
    inner: &'a Inner,
    core: MutexGuard<'a, Core>,
    subject: Subject,
    deadline: Option<Instant>,
    attempt: impl FnMut(&mut Core, Time) -> Option<Result<T, Error>>,
) -> Result<T, Error> {
    block_for(inner, core, subject, deadline, &mut Look(attempt))
}

/// The same for who may have memory for what arrives.
pub(crate) fn block_for<'a, T>(
    inner: &'a Inner,
    mut core: MutexGuard<'a, Core>,
    subject: Subject,
    deadline: Option<Instant>,
    attempt: &mut impl Attempt<T>,
) -> Result<T, Error> {
    let mut now = inner.now();
    core.renew_calls();
    inner.note_call(&mut core, now);
    if core.poller == Poller::Nobody && core.is_overdue(now, attempt.overdue_ns()) {
        // A program that always finds something to read would never look at the links, and nobody would get a grant.
        attempt.land(|landing| core.turn_into(now, landing));
    }
    let mut result = attempt.attempt(&mut core, now);
    // What takes long looks at the links, and at the clock, itself.
    now = now.max(core.turned_at());
    let waits = result.is_none();
    if waits {
        let deadline = deadline.map(|at| inner.time_of(Some(at)));
        let pace = core.spin.pace(now);
        let spin_ns = core.spin.budget_ns(now);
        let spin_until = now.after(spin_ns);
        let told = core.waiters.told();
        let wait =
            Wait { subject, since: now, deadline, told, polling: false, aside: false, spin_ns, spin_until, pace };
        let unwound = Unwound(inner);
        (core, now, result) = wait.run(inner, core, attempt);
        std::mem::forget(unwound);
    }
    inner.follow_up(&mut core, now);
    if !waits {
        // What the call before has left: an answer leaves before anything else is done about the question.
        core.finish(now);
    }
    core.refresh_watches(subject);
    result.unwrap_or(Err(Error::TimedOut))
}

/// A wait that ends by a panic: the thread may have polled for the others, and slept for so long that the helper left it to it. So nobody else would notice.
struct Unwound<'a>(&'a Inner);

impl Drop for Unwound<'_> {
    fn drop(&mut self) {
        // Who takes the lock after a panic puts things in order.
        drop(self.0.lock());
    }
}

impl Wait {
    /// Waits, and gives back the lock, the time and what came of it: nothing if the deadline passed.
    fn run<'a, T>(
        mut self,
        inner: &'a Inner,
        mut core: MutexGuard<'a, Core>,
        attempt: &mut impl Attempt<T>,
    ) -> (MutexGuard<'a, Core>, Time, Option<Result<T, Error>>) {
        // What the first attempt made leaves before anybody sleeps, and who sleeps on the links must know of its timers.
        core.finish(self.since);
        inner.follow_up(&mut core, self.since);
        loop {
            let served = core.waiters.served();
            let now;
            if self.aside || core.poller == Poller::Caller && !self.polling {
                if self.may_sleep(&core) {
                    self.aside = false;
                    core = self.sleep_beside(inner, core, inner.now());
                }
                now = inner.now();
            } else {
                (core, now) = self.poll(inner, core, attempt);
            }
            let result = attempt.attempt(&mut core, now);
            self.told = core.waiters.told();
            let now = now.max(core.turned_at());
            if result.is_some() || self.is_over(now) || core.shut_down {
                // Who was woken to take over and found its own matter settled passes that on.
                if self.polling || core.poller == Poller::Nobody {
                    inner.leave(&mut core, now);
                }
                return (core, now, result);
            }
            core.finish(now);
            inner.follow_up(&mut core, now);
            if self.polling && core.waiters.served() != served && now.since(self.since) >= SOON_NS {
                // Others get something and this one does not: they poll better for themselves than being woken each time.
                (self.polling, self.aside) = (false, true);
                inner.leave(&mut core, now);
            }
        }
    }

    /// Looks at the links until they bring something or others may have changed something, and sleeps if they bring nothing for long.
    fn poll<'a, T>(
        &mut self,
        inner: &'a Inner,
        mut core: MutexGuard<'a, Core>,
        attempt: &mut impl Attempt<T>,
    ) -> (MutexGuard<'a, Core>, Time) {
        if core.poller == Poller::Helper {
            inner.ring_helper(&core);
        }
        (core.poller, self.polling) = (Poller::Caller, true);
        inner.note_polled(true);
        let mut now = inner.now();
        // Who does not spin and has just looked sleeps at once.
        let looks = self.spin_ns > 0 || !core.has_looked_in_vain(self.since);
        let mut finds = looks && attempt.land(|landing| core.turn_for(now, landing));
        while !finds && now < self.spin_until && !self.is_over(now) && inner.may_keep(now, &mut self.pace) {
            std::hint::spin_loop();
            now = inner.now();
            finds = attempt.land(|landing| core.turn_for(now, landing));
        }
        if finds {
            core.spin.found(&self.pace, now);
            if core.arrived_at == now && self.spin_ns > 0 {
                core.spin.callers.succeeded();
                if core.spin.is_crowded(now) {
                    self.spin_ns = 0;
                }
                self.spin_until = now.after(self.spin_ns);
            }
            core = inner.let_in(core);
        } else if self.is_over(now) {
            // Who calls again and again without time to wait leaves others their turn, too.
            core.look_at_all_links();
            core = inner.let_in(core);
        } else if now < self.spin_until {
            core = inner.give_way(core, now, &mut self.pace);
        } else if self.may_sleep(&core) {
            if self.spin_ns > 0 {
                core.spin.callers.failed();
            }
            core = inner.sleep_on_links(core, now, self.deadline);
            now = inner.now();
            attempt.land(|landing| core.turn_into(now, landing));
            self.spin_ns = core.spin.budget_ns(now);
            self.spin_until = now.after(self.spin_ns);
        }
        (core, now)
    }

    /// Whether nobody was told to look since this thread did: what it waits for may have changed in its own hands, and it is told of nothing before it sleeps.
    fn may_sleep(&self, core: &Core) -> bool {
        core.waiters.told() == self.told
    }

    fn is_over(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Sleeps until the thread that polls says that the subject changed, or that somebody has to take over.
    fn sleep_beside<'a>(&self, inner: &'a Inner, mut core: MutexGuard<'a, Core>, now: Time) -> MutexGuard<'a, Core> {
        let (key, bed) = core.waiters.add(self.subject, self.since);
        inner.note_beside(true);
        drop(core);
        bed.sleep(self.deadline.map(|deadline| Duration::from_nanos(deadline.since(now))));
        let mut core = inner.lock();
        inner.note_beside(false);
        core.waiters.remove(key);
        core
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, Target};
    use ropeway_link::{Address, memory};
    use ropeway_proto::Mode;

    const PORT: u16 = 7;

    #[test]
    fn what_changes_between_a_look_and_the_sleep_is_seen_all_the_same() {
        const LIMIT: Duration = Duration::from_secs(3);
        let (one, other) = memory::pair(memory::Config::default()).unwrap();
        let engine = |link| {
            let engine = Engine::new(&Options::default()).unwrap();
            let link = engine.add_link(Box::new(link)).unwrap();
            engine.listen(PORT, Mode::Stream, 8).unwrap();
            (engine, link)
        };
        let ((near, link), _far) = (engine(one), engine(other));
        let look = || {
            let channel = near.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, None).unwrap();
            // Until there is no timer left that would wake anybody.
            std::thread::sleep(Duration::from_millis(100));
            let (inner, mut looks) = (near.inner().unwrap(), 0);
            let begun = Instant::now();
            let subject = Subject::Channel(channel);
            let found = block_locked(inner, inner.lock(), subject, Some(begun + LIMIT), |core, _| {
                looks += 1;
                if looks == 1 {
                    // Announced as what a timer does that is due by then.
                    core.endpoint.stop_reading(channel);
                    return None;
                }
                core.endpoint.readiness(channel).is_some_and(|readiness| readiness.ended).then_some(Ok(()))
            });
            assert!(found.is_ok() && begun.elapsed() < LIMIT / 2, "{found:?} after {:?}", begun.elapsed());
        };
        look();
        // And the same beside a thread that polls.
        std::thread::scope(|scope| {
            let polls = scope.spawn(|| near.accept(PORT, Some(Instant::now() + 10 * LIMIT)));
            while !near.inner().unwrap().is_polled() {
                std::thread::yield_now();
            }
            let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
            near.unlisten(PORT).unwrap();
            assert!(polls.join().unwrap().is_err());
            looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}
