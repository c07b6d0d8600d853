//! What the threads of one engine share: the lock, who polls, and how a thread sleeps on the links.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ropeway_proto::config::SetError;
use ropeway_proto::{Config, Time};
use ropeway_shm::fork::Birthmark;
use ropeway_shm::sys::Uncancelled;
use rustix::event::{PollFd, PollFlags};

use crate::bell::Bell;
use crate::core::{Clock, Core, Poller, RoomWait};
use crate::engine::Options;
use crate::helper;
use crate::restart;
use crate::sleep::until_told;
use crate::spin::Pace;
use crate::wait::SOON_NS;

/// A sleeper is not woken for a timer that is earlier than its own by less than this: a wake-up costs the more. And the helper sleeps for as long at least.
const TIMER_SLACK_NS: u64 = 200_000;
/// So many descriptors, the bell's among them, are slept on without a list that has to be allocated.
const FEW_DESCRIPTORS: usize = 4;

pub(crate) struct Inner {
    core: Mutex<Core>,
    /// Threads that wait for the lock.
    contenders: AtomicU32,
    /// Wakes the caller that sleeps on the links.
    doorbell: Bell,
    /// The helper's own: it may still sleep when a caller has taken the links over, and must not miss its bell because that caller heard it.
    helper_bell: Bell,
    /// Calls that have polled and left: the helper sees by it whether somebody takes care.
    left: AtomicU64,
    /// Those of them that looked at the links, or would have if it had been time to.
    looked: AtomicU64,
    /// When the helper was needed last, or might have been, in nanoseconds.
    needed_at: AtomicU64,
    /// Threads that sleep while another one polls.
    beside: AtomicU32,
    /// The last call left a timer behind that is due soon.
    hurry: AtomicBool,
    /// When the last call that had polled left, the machine had more to run than processors.
    crowded: AtomicBool,
    /// A caller polls.
    polled: AtomicBool,
    /// One has, since the helper asked last.
    was_polled: AtomicBool,
    /// The helper thread, once it runs.
    helper: OnceLock<Thread>,
    clock: Clock,
    pub(crate) birthmark: Birthmark,
    /// Its file stays locked while the engine lives.
    _secret: Option<Arc<restart::Secret>>,
}

impl Inner {
    pub(crate) fn new(
        options: &Options,
        core: Core,
        [doorbell, helper_bell]: [Bell; 2],
        birthmark: Birthmark,
    ) -> Inner {
        Inner {
            clock: core.clock,
            core: Mutex::new(core),
            contenders: AtomicU32::new(0),
            doorbell,
            helper_bell,
            left: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            needed_at: AtomicU64::new(0),
            beside: AtomicU32::new(0),
            hurry: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            was_polled: AtomicBool::new(false),
            helper: OnceLock::new(),
            birthmark,
            _secret: options.secret.clone(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.lock_if_free().unwrap_or_else(|| {
            self.contenders.fetch_add(1, Ordering::Relaxed);
            let core = self.core.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned));
            self.contenders.fetch_sub(1, Ordering::Relaxed);
            core
        })
    }

    /// `None`: somebody has it.
    pub(crate) fn lock_if_free(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.after_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A panic inside the lock is a fault of ours, and where panics are caught the engine goes on: nobody may wait for the thread that polled.
    #[cold]
    fn after_panic<'a>(&'a self, poisoned: PoisonError<MutexGuard<'a, Core>>) -> MutexGuard<'a, Core> {
        let mut core = poisoned.into_inner();
        core.poller = Poller::Nobody;
        self.note_polled(false);
        self.wake_helper(&mut core);
        // Whoever sleeps has to look who polls: two that sleep by one bell would take each other's timer.
        self.ring(&core);
        self.core.clear_poison();
        core
    }

    /// Whether a thread that spins, and offers the processor to others at some `pace`, may go on without letting anybody in. Nobody else has a reason to touch the lock then, and giving it
    /// back and taking it again at every look would cost as much as the look.
    pub(crate) fn may_keep(&self, now: Time, pace: &mut Pace) -> bool {
        !pace.is_due(now) && !self.is_contended()
    }

    /// Between two looks of such a thread: lets those in that want the lock or the processor.
    pub(crate) fn give_way<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        now: Time,
        pace: &mut Pace,
    ) -> MutexGuard<'a, Core> {
        pace.yields(now);
        drop(core);
        std::thread::yield_now();
        self.lock()
    }

    /// After a look that brought something: what was brought may be for somebody who waits for the lock.
    pub(crate) fn let_in<'a>(&'a self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        if !self.is_contended() {
            return core;
        }
        drop(core);
        std::thread::yield_now();
        self.lock()
    }

    /// Whether another thread waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.contenders.load(Ordering::Relaxed) > 0
    }

    // Relaxed, all of these: counts that say whether it is worth to take the lock.

    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Under the lock, so that nobody else counts meanwhile.
    pub(crate) fn note_left(&self) {
        self.left.store(self.left().wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn looked(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }

    /// Under the lock, too.
    fn note_looked(&self) {
        self.looked.store(self.looked().wrapping_add(1), Ordering::Relaxed);
    }

    /// A call comes: if nobody has looked at the links for a tick the helper is needed in this program.
    pub(crate) fn note_call(&self, core: &mut Core, now: Time) {
        if now.since(core.turned_at()) >= helper::TICK.as_nanos() as u64 {
            self.note_needed(now);
        }
        self.note_left();
        self.note_looked();
        self.relieve_helper(core);
    }

    pub(crate) fn note_needed(&self, now: Time) {
        self.needed_at.store(now.since(Time::ZERO), Ordering::Relaxed);
    }

    /// For how long nothing has needed the helper.
    pub(crate) fn needless_for(&self) -> Duration {
        let needed_at = Time::from_nanos(self.needed_at.load(Ordering::Relaxed));
        Duration::from_nanos(self.now().since(needed_at))
    }

    /// A program that calls all the time takes care itself; one with a watch sleeps elsewhere, and the helper polls for it.
    fn relieve_helper(&self, core: &mut Core) {
        if core.poller == Poller::Helper && !core.waiters.has_watches() {
            core.poller = Poller::Nobody;
            self.note_needed(self.now());
            self.ring_helper(core);
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Whether a caller has polled since the last question.
    pub(crate) fn takes_was_polled(&self) -> bool {
        self.was_polled.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn note_polled(&self, polled: bool) {
        self.polled.store(polled, Ordering::Relaxed);
        if polled {
            self.was_polled.store(true, Ordering::Relaxed);
        }
    }

    /// A timer is due before the helper would look.
    pub(crate) fn is_in_a_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    pub(crate) fn is_waited_beside(&self) -> bool {
        self.beside.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn note_beside(&self, sleeps: bool) {
        self.note_needed(self.now());
        if sleeps {
            self.beside.fetch_add(1, Ordering::Relaxed)
        } else {
            self.beside.fetch_sub(1, Ordering::Relaxed)
        };
    }

    /// For the helper: sleeps for so long, or until it is woken.
    pub(crate) fn helper_rests(&self, time: Duration) {
        let _ = self.helper.set(std::thread::current());
        std::thread::park_timeout(time);
    }

    /// The same without an end, once `helper_parked` is set.
    pub(crate) fn helper_parks(&self) {
        let _ = self.helper.set(std::thread::current());
        loop {
            let core = self.lock();
            if !core.helper_parked || core.shut_down {
                return;
            }
            drop(core);
            std::thread::park();
        }
    }

    pub(crate) fn wake_helper(&self, core: &mut Core) {
        core.helper_parked = false;
        self.helper.get().into_iter().for_each(Thread::unpark);
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// A moment of the program's clock; `None`: never.
    pub(crate) fn time_of(&self, at: Option<Instant>) -> Time {
        self.clock.time_of(at)
    }

    /// Wakes whoever sleeps on the links. Under the lock, as all that is done with bells.
    pub(crate) fn ring(&self, core: &Core) {
        self.doorbell.ring();
        self.ring_helper(core);
    }

    /// What wakes who polls.
    fn bell(&self, core: &Core) -> &Bell {
        if core.poller == Poller::Helper { &self.helper_bell } else { &self.doorbell }
    }

    /// Wakes the helper alone: its place is taken.
    pub(crate) fn ring_helper(&self, _: &Core) {
        self.helper_bell.ring();
    }

    /// Sleeps until a link has something, somebody rings, or `until`. The lock is not held meanwhile. One thread at a time: a ring wakes one.
    pub(crate) fn sleep_on_links<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        mut now: Time,
        until: Option<Time>,
    ) -> MutexGuard<'a, Core> {
        let bell = self.bell(&core);
        core.sleeps += 1;
        let own = core.sleeps;
        let mut has_fired = None;
        loop {
            let due = [until, core.next_timeout_to_sleep(now, bell.fires_at())].into_iter().flatten().min();
            if let Some(has_fired) = has_fired {
                if due.is_some_and(|due| due <= now) {
                    break;
                }
                if has_fired {
                    bell.note_vain();
                }
            }
            let (wake_at, room) = self.plan_sleep(&core, now, due);
            // Who took the place of a helper that slept may sleep in it by now.
            if core.sleeps == own {
                core.sleeps_until = Some(wake_at);
            }
            core.descriptors_changed = false;
            let looks_only = bell.is_rung() || wake_at <= now;
            let limit = if looks_only { Some(now) } else { bell.limit(wake_at, now) };
            let patience = limit.map(|limit| limit.since(now));
            let descriptors = core.descriptors();
            drop(core);
            let woken = sleep(&descriptors, &room.places, bell, patience);
            if let Some(former) = Arc::into_inner(descriptors) {
                // Others have been put in their place meanwhile, and it may close some.
                let _uncancelled = Uncancelled::begin();
                drop(former);
            }
            core = self.lock();
            now = self.now();
            woken.writable.iter().for_each(|place| core.promise_room(*place));
            woken.erring.iter().for_each(|place| core.fetch_errors(*place));
            if bell.take(woken.fired) || woken.by_link || now >= wake_at {
                break;
            }
            has_fired = Some(woken.fired);
        }
        if core.sleeps == own {
            core.sleeps_until = None;
        }
        core.look_at_all_links();
        core
    }

    /// When a sleep ends at the latest if something is `due` then, and the links that may end it by having room.
    fn plan_sleep(&self, core: &Core, now: Time, due: Option<Time>) -> (Time, RoomWait) {
        let mut wake_at = due.unwrap_or(Bell::NEVER);
        if core.poller == Poller::Helper {
            // A flood of small sends sets a timer every 20 us, and makes it needless as often: the next call does what is due.
            wake_at = wake_at.max(now.after(TIMER_SLACK_NS));
        }
        let room = core.room_wait();
        wake_at = room.tries_at.map_or(wake_at, |at| wake_at.min(at));
        (wake_at, room)
    }

    /// A caller that has polled goes: somebody else that waits takes over, or the helper after a while.
    pub(crate) fn leave(&self, core: &mut Core, now: Time) {
        self.note_left();
        self.note_looked();
        self.note_polled(false);
        self.crowded.store(core.spin.was_crowded(), Ordering::Relaxed);
        core.poller = Poller::Nobody;
        core.waiters.wake_one(now);
        // Event loops have the helper poll for them; and who slept for so long that it was parked has proved nothing.
        if core.waiters.has_watches() || core.helper_parked {
            self.note_needed(now);
        }
        if core.helper_parked {
            self.wake_helper(core);
        }
    }

    /// Changes settings, and does what follows from that.
    pub(crate) fn configure(&self, core: &mut Core, config: Config) -> Result<(), SetError> {
        let now = self.now();
        core.configure(config, now)?;
        self.follow_up(core, now);
        // There may be room or memory for what the sleeper waits to send.
        self.wake_sleeper(core);
        Ok(())
    }

    /// After a command: sends what it made, tells who waits, and sees to it that a sleeper wakes in time for what follows.
    pub(crate) fn follow_up(&self, core: &mut Core, now: Time) {
        core.transmit_wanted(now);
        core.dispatch();
        self.look_at_sleeper(core, now);
    }

    /// Something has changed that who sleeps on the links cannot know: another thread has read them.
    pub(crate) fn wake_sleeper(&self, core: &Core) {
        if core.sleeps_until.is_some() {
            self.bell(core).ring();
        }
    }

    /// Tells who waits what this thread has found out, whoever sleeps on the links too.
    pub(crate) fn tell(&self, core: &mut Core) {
        core.dispatch();
        self.wake_sleeper(core);
    }

    fn look_at_sleeper(&self, core: &mut Core, now: Time) {
        if core.is_time_to_check_hurry(now) {
            core.finish(now);
            self.hurry.store(core.next_timeout(now).is_some_and(|at| at.since(now) < SOON_NS), Ordering::Relaxed);
        }
        match core.sleeps_until {
            Some(_) if core.is_full() || core.descriptors_changed => self.wake_sleeper(core),
            Some(until) => {
                if let Some(at) = core.next_timeout(now).filter(|at| at.after(TIMER_SLACK_NS) < until) {
                    core.sleeps_until = Some(at);
                    self.bell(core).wake_at(at, now);
                }
            }
            None if core.helper_parked && core.poller == Poller::Nobody => {
                self.wake_helper(core);
            }
            None => {}
        }
    }
}

/// How a sleep on the links ended.
#[derive(Default)]
struct Woken {
    /// A link has something, or room; or nobody knows, which is looked at like any other wake-up.
    by_link: bool,
    /// The bell's timer has fired.
    fired: bool,
    /// The places of links that have room.
    writable: Vec<u8>,
    /// The places of those that have an error to report.
    erring: Vec<u8>,
}

/// Sleeps until one of these has something, one in `full` has room, or the bell's timer fires, for `patience_ns` at most.
fn sleep(descriptors: &[(u8, Arc<OwnedFd>)], full: &[u8], bell: &Bell, patience_ns: Option<u64>) -> Woken {
    // The bell comes last. Most engines have a link or two, and no need for memory that is not at hand.
    let count = descriptors.len() + 1;
    let fd = |index: usize| match descriptors.get(index) {
        // A link that has room would say so all the time.
        Some((place, fd)) if full.contains(place) => PollFd::new(fd, PollFlags::IN | PollFlags::OUT),
        Some((_, fd)) => PollFd::new(fd, PollFlags::IN),
        None => bell.poll_fd(),
    };
    let (mut few, mut many): ([_; FEW_DESCRIPTORS], Vec<_>);
    let fds = if count <= FEW_DESCRIPTORS {
        few = std::array::from_fn(fd);
        &mut few[..count]
    } else {
        many = (0..count).map(fd).collect();
        &mut many[..]
    };
    if !until_told(fds, patience_ns.map(Duration::from_nanos)) {
        return Woken { by_link: true, ..Woken::default() };
    }
    let tells = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let (links, bell) = fds.split_at(descriptors.len());
    let places = |flag: PollFlags| {
        let tells = |fd: &PollFd<'_>| fd.revents().contains(flag);
        descriptors.iter().zip(links).filter(|(_, fd)| tells(fd)).map(|((place, _), _)| *place).collect()
    };
    Woken {
        by_link: links.iter().any(tells),
        fired: bell.iter().any(tells),
        writable: places(PollFlags::OUT),
        erring: places(PollFlags::ERR),
    }
}
