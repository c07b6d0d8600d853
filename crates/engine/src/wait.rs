//! Who waits for what. Threads that wait while another one polls sleep on a condition of their own and are woken one by one.

use crate::readiness::Watch;
use ropeway_proto::{ChannelId, Event, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Who has waited for longer is not expected to be served next. It leaves polling to those that are, and is not woken for it: the thread that polled will be
/// back before that pays, or the helper takes over.
pub const SOON_NS: u64 = 1_000_000;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Channel(ChannelId),
    Port(u16),
    /// Nothing that is announced.
    Everything,
    /// Any of the channels.
    AnyChannel,
}

/// One waiting thread.
#[derive(Debug)]
struct Waiter {
    key: u64,
    subject: Subject,
    since: Time,
    bed: Arc<Bed>,
}

/// Where a thread sleeps, without the engine's lock: who is woken takes that as everybody does, so that a thread that polls sees it come.
#[derive(Debug, Default)]
pub struct Bed {
    /// Set by whoever wakes it, so that a wake-up before it sleeps is not lost.
    woken: Mutex<bool>,
    condition: Condvar,
}

impl Bed {
    /// Sleeps until it is woken, or for so long.
    pub fn sleep(&self, limit: Option<Duration>) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asleep = |woken: &mut bool| !*woken;
        match limit {
            Some(limit) => drop(self.condition.wait_timeout_while(woken, limit, is_asleep)),
            None => drop(self.condition.wait_while(woken, is_asleep)),
        }
    }

    /// Wakes who sleeps there. Whether nobody had before.
    fn wake(&self) -> bool {
        let was_woken = std::mem::replace(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner), true);
        if !was_woken {
            self.condition.notify_one();
        }
        !was_woken
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Waiters {
    /// In the order in which they began. Few, and every arrival looks through them.
    waiting: Vec<Waiter>,
    next: u64,
    /// Threads woken because what they wait for changed, so far.
    served: u64,
    /// Times that somebody was told to look, so far.
    told: u64,
    watches: BTreeMap<Subject, Vec<Watch>>,
}

impl Waiters {
    /// Gives what [`Waiters::remove`] wants to know, and where to sleep.
    pub fn add(&mut self, subject: Subject, since: Time) -> (u64, Arc<Bed>) {
        let bed = Arc::new(Bed::default());
        self.next += 1;
        self.waiting.push(Waiter { key: self.next, subject, since, bed: bed.clone() });
        (self.next, bed)
    }

    pub fn remove(&mut self, key: u64) {
        self.waiting.retain(|waiter| waiter.key != key);
    }

    /// Wakes those that wait for this.
    pub fn wake(&mut self, subject: Subject) {
        self.told += 1;
        let any = if let Subject::Channel(_) = subject { Subject::AnyChannel } else { subject };
        for waiter in self.waiting.iter().filter(|waiter| waiter.subject == subject || waiter.subject == any) {
            self.served += 1;
            waiter.bed.wake();
        }
    }

    /// Threads woken so far because what they wait for changed.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Times so far that somebody was told to look: a thread that was not among those that wait has to look once more before it is.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Wakes one of those that may be served soon, so that it polls.
    pub fn wake_one(&mut self, now: Time) {
        let mut lively = self.waiting.iter().rev().filter(|waiter| now.since(waiter.since) < SOON_NS);
        lively.any(|waiter| waiter.bed.wake());
    }

    pub fn wake_all(&mut self) {
        self.told += 1;
        for waiter in &self.waiting {
            waiter.bed.wake();
        }
    }

    pub fn watch(&mut self, subject: Subject, watch: Watch) {
        self.watches.entry(subject).or_default().push(watch);
    }

    /// What event loops watch.
    pub fn watched(&self) -> Vec<Subject> {
        self.watches.keys().copied().collect()
    }

    /// Whether some event loop waits for a descriptor of ours.
    pub fn has_watches(&self) -> bool {
        !self.watches.is_empty()
    }

    pub fn watches(&self, subject: Subject) -> &[Watch] {
        self.watches.get(&subject).map_or(&[], Vec::as_slice)
    }

    pub fn unwatch(&mut self, watch: &Watch) {
        self.watches.retain(|_, watches| {
            watches.retain(|other| !other.is(watch));
            !watches.is_empty()
        });
    }

    pub fn forget(&mut self, subject: Subject) {
        self.watches.remove(&subject);
        self.wake(subject);
    }
}

impl From<Event> for Subject {
    fn from(event: Event) -> Subject {
        match event {
            Event::Changed(channel) => Subject::Channel(channel),
            Event::Incoming(port) => Subject::Port(port),
        }
    }
}
