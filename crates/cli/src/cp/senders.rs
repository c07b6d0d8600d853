//! How many senders a receiver serves, how long it waits for a word of theirs, and who of them writes what.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::connect::{Connection, Other};
use super::frame::{BUSY, Frame, MOST_MESSAGE_BYTES};
use crate::output::tell;

/// Senders that are told at the same time that there is no place. Who comes beyond these finds its connection closed, which it takes for a lost one.
const MOST_TOLD: usize = 16;

/// What one sender may not do to others.
#[derive(Clone, Debug)]
pub struct Limits {
    /// At once: each has a thread, and a buffer of [`MOST_MESSAGE_BYTES`].
    pub senders: usize,
    /// How long a sender may take to say what it has to say at once.
    pub answer: Duration,
    /// How long one that has begun a file may say nothing: what it reads from may be slow.
    pub silence: Duration,
    /// How long it waits for a file that another connection has; longer than a lost one is taken for a living one.
    pub lock: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            senders: 256,
            answer: Duration::from_secs(30),
            silence: Duration::from_secs(300),
            lock: Duration::from_secs(12),
        }
    }
}

/// The threads of a receiver.
pub struct Senders {
    served: Places,
    told: Places,
    /// It was said that all are taken.
    is_full: bool,
}

impl Senders {
    pub fn new(limits: &Limits) -> Senders {
        Senders { served: Places::new(limits.senders), told: Places::new(MOST_TOLD), is_full: false }
    }

    /// Has one more served if there is a place.
    pub fn admit(&mut self, connection: Connection, serve: impl FnOnce(Connection) + Send + 'static) {
        let started = if let Some(place) = self.served.take() {
            self.is_full = false;
            start(place, move || serve(connection))
        } else {
            if !self.is_full {
                self.is_full = true;
                tell!("ropeway cp: {} senders are served, and more are told to try again", self.served.most);
            }
            self.told.take().map_or(Ok(()), |place| start(place, move || turn_away(connection)))
        };
        if let Err(error) = started {
            // The sender tries again.
            tell!("ropeway cp: no thread for one more sender: {error}");
        }
    }
}

fn start(place: Arc<()>, act: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = thread::Builder::new().spawn(move || {
        act();
        drop(place);
    });
    thread.map(drop)
}

fn turn_away(connection: Connection) {
    if connection.send(&Frame::Refused(BUSY.into()).to_message()).is_ok() {
        connection.hear_out(&mut vec![0; MOST_MESSAGE_BYTES]);
    }
    let _ = connection.finish();
}

/// As many as there may be, each free again when what was given for it is dropped.
struct Places {
    taken: Arc<()>,
    most: usize,
}

impl Places {
    fn new(most: usize) -> Places {
        Places { taken: Arc::new(()), most }
    }

    fn take(&self) -> Option<Arc<()>> {
        (Arc::strong_count(&self.taken) <= self.most).then(|| self.taken.clone())
    }
}

/// Which connection brings which part. That of another receiver in the same directory is not among them.
#[derive(Clone, Default)]
pub struct Writers(Arc<Mutex<HashMap<PathBuf, Arc<Other>>>>);

impl Writers {
    /// Who holds the part's lock says so, until what this returns is dropped, which has to be before the lock is free.
    pub fn enter<'a>(&'a self, part: &'a Path, connection: &Connection) -> Writer<'a> {
        let other = Arc::new(connection.other());
        self.parts().insert(part.into(), other.clone());
        Writer { writers: self, part, other }
    }

    /// Has the sender that brings a part show that it is there, or lose its connection.
    pub fn ask(&self, part: &Path) {
        let writer = self.parts().get(part).cloned();
        if let Some(writer) = writer {
            writer.ask();
        }
    }

    /// Whether the sender that brings a part is there, as far as is known.
    pub fn are_there(&self, part: &Path) -> bool {
        self.parts().get(part).is_some_and(|writer| writer.is_there())
    }

    fn parts(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<Other>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Writer<'a> {
    writers: &'a Writers,
    part: &'a Path,
    other: Arc<Other>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let mut parts = self.writers.parts();
        // Who gave up the lock before this may have been followed already.
        if parts.get(self.part).is_some_and(|other| Arc::ptr_eq(other, &self.other)) {
            parts.remove(self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::*;

    #[test]
    fn who_goes_takes_no_other_with_it_that_has_the_part_by_now() {
        let (writers, part) = (Writers::default(), Path::new("part"));
        let [[_one, first], [_two, second]] = [connect::pair(), connect::pair()];
        let former = writers.enter(part, &first);
        let latter = writers.enter(part, &second);
        drop(former);
        assert!(writers.are_there(part));
        drop(latter);
        assert!(!writers.are_there(part));
    }
}
