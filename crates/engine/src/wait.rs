//! Who waits for what. Threads that wait while another one polls sleep on a condition of their own and are woken one by one.

use crate::readiness::Watch;
use ropeway_proto::{ChannelId, Event};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar};

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Channel(ChannelId),
    Port(u16),
    /// Nothing that is announced.
    Everything,
}

/// One waiting thread.
#[derive(Debug)]
pub struct Waiter {
    pub subject: Subject,
    pub condition: Arc<Condvar>,
    /// Set by whoever wakes it, so that a wake-up before it sleeps is not lost.
    pub woken: bool,
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Waiters {
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
    watches: BTreeMap<Subject, Vec<Watch>>,
}

impl Waiters {
    pub fn add(&mut self, subject: Subject) -> (u64, Arc<Condvar>) {
        let condition = Arc::new(Condvar::new());
        self.next += 1;
        self.waiting.insert(self.next, Waiter { subject, condition: condition.clone(), woken: false });
        (self.next, condition)
    }

    pub fn remove(&mut self, key: u64) {
        self.waiting.remove(&key);
    }

    pub fn is_woken(&self, key: u64) -> bool {
        self.waiting.get(&key).is_none_or(|waiter| waiter.woken)
    }

    /// Wakes those that wait for this.
    pub fn wake(&mut self, subject: Subject) {
        for waiter in self.waiting.values_mut().filter(|waiter| waiter.subject == subject) {
            waiter.woken = true;
            waiter.condition.notify_one();
        }
    }

    /// Wakes one, whatever it waits for: somebody has to poll.
    pub fn wake_one(&mut self) {
        if let Some(waiter) = self.waiting.values_mut().find(|waiter| !waiter.woken) {
            waiter.woken = true;
            waiter.condition.notify_one();
        }
    }

    pub fn wake_all(&mut self) {
        for waiter in self.waiting.values_mut() {
            waiter.woken = true;
            waiter.condition.notify_one();
        }
    }

    pub fn watch(&mut self, subject: Subject, watch: Watch) {
        self.watches.entry(subject).or_default().push(watch);
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
