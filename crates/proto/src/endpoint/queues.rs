//! What waits for each of the caller's links: one that is full keeps nothing from the others.

use std::collections::VecDeque;

use ropeway_wire::Id;

use super::output::LEAST_REST_NS;
use super::{Endpoint, Path, Presence, Taken};
use crate::time::Time;

/// An answer that belongs to no association.
#[derive(Debug)]
pub(super) struct Reply {
    pub path: Path,
    pub presence: Presence,
    pub bytes: Vec<u8>,
}

/// Answers waiting for a link, at most; more are not made (whoever asked asks again).
pub(super) const MOST_REPLIES: usize = 1024;

/// An association notes in a byte in which one it stands. Further links share the last one.
const MOST_QUEUES: usize = 256;

/// What waits for one link.
#[derive(Debug)]
pub(super) struct Queue {
    /// Associations with something to transmit.
    pub ready: VecDeque<u32>,
    /// Since when the link has taken nothing of what waits for it; [`Time::MAX`]: it took the last that it was offered, or nothing waits.
    full_since: Time,
    pub replies: VecDeque<Reply>,
    /// The link refused the last of these that it was offered: open associations go first, once.
    pub replies_stand_back: bool,
    /// Attempts that have a packet for the link, one each; among them may be some that have ended, begun anew or gone to another link since.
    pub asking: VecDeque<Id>,
    /// Since when none of these has gone because the link was full.
    pub asking_since: Option<Time>,
    /// The link took nothing for those that nobody has answered: they are not offered until a timer says so.
    pub asking_rests: bool,
    /// How long it will be the next time.
    pub asking_rest_ns: u64,
}

impl Queue {
    fn new() -> Queue {
        Queue {
            ready: VecDeque::new(),
            full_since: Time::MAX,
            replies: VecDeque::new(),
            replies_stand_back: false,
            asking: VecDeque::new(),
            asking_since: None,
            asking_rests: false,
            asking_rest_ns: LEAST_REST_NS,
        }
    }

    pub fn takes_replies(&self) -> bool {
        self.replies.len() < MOST_REPLIES
    }

    /// What the link did with what it was offered.
    pub fn note_link_did(&mut self, taken: Taken, now: Time) {
        if taken.packets == 0 {
            self.full_since = self.full_since.min(now);
        } else if taken.packets > taken.discarded {
            self.full_since = Time::MAX;
        }
    }

    /// For how long the link has taken nothing of what waits for it.
    pub fn full_ns(&self, now: Time) -> u64 {
        now.since(self.full_since)
    }

    /// Whoever was refused last may be gone: who comes next finds a link that nobody knows anything of.
    pub fn forget_if_empty(&mut self) {
        if self.ready.is_empty() && self.replies.is_empty() {
            self.full_since = Time::MAX;
        }
    }
}

/// One for each link that paths are told apart by.
#[derive(Debug)]
pub(super) struct Queues {
    all: Vec<Queue>,
    link_of: fn(&Path) -> usize,
}

impl Queues {
    pub fn new() -> Queues {
        Queues { all: vec![Queue::new()], link_of: |_| 0 }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The place of the queue for packets over this path.
    pub fn place(&self, path: &Path) -> usize {
        match self.all.len() - 1 {
            0 => 0,
            last => (self.link_of)(path).min(last),
        }
    }

    pub fn at(&self, place: usize) -> &Queue {
        &self.all[place]
    }

    pub fn at_mut(&mut self, place: usize) -> &mut Queue {
        &mut self.all[place]
    }

    pub fn of_mut(&mut self, path: &Path) -> &mut Queue {
        let place = self.place(path);
        &mut self.all[place]
    }

    /// An association waits for the link of this path, unless it stands in a queue.
    pub fn add(&mut self, queued_in: &mut Option<u8>, path: &Path, index: u32) {
        if queued_in.is_none() {
            self.put_last(queued_in, self.place(path), index);
        }
    }

    /// One that stands in no queue comes last in the one with this place.
    pub fn put_last(&mut self, queued_in: &mut Option<u8>, place: usize, index: u32) {
        self.all[place].ready.push_back(index);
        *queued_in = Some(place as u8);
    }

    /// One that stands in no queue comes first in the one with this place.
    pub fn put_first(&mut self, queued_in: &mut Option<u8>, place: usize, index: u32) {
        self.all[place].ready.push_front(index);
        *queued_in = Some(place as u8);
    }

    /// One that waits goes on waiting for the link of this path, if it is not that one already.
    pub fn move_to(&mut self, queued_in: &mut Option<u8>, path: &Path, index: u32) {
        if queued_in.is_some_and(|place| usize::from(place) != self.place(path)) {
            self.remove(queued_in, index);
            self.add(queued_in, path, index);
        }
    }

    /// One waits no longer.
    pub fn remove(&mut self, queued_in: &mut Option<u8>, index: u32) {
        let Some(place) = queued_in.take() else { return };
        let queue = &mut self.all[usize::from(place)];
        if let Some(at) = queue.ready.iter().position(|&waiting| waiting == index) {
            queue.ready.remove(at);
        }
        queue.forget_if_empty();
    }

    pub fn all(&self) -> &[Queue] {
        &self.all
    }

    pub fn all_mut(&mut self) -> &mut [Queue] {
        &mut self.all
    }
}

impl Endpoint {
    /// There are so many links, and a path belongs to the one that `link_of` says: what one has no room for then keeps nothing from the others. To an endpoint that is told nothing there is one.
    pub fn tell_links_apart(&mut self, links: usize, link_of: fn(&Path) -> usize) {
        while self.queues.all.len() < links.min(MOST_QUEUES) {
            self.queues.all.push(Queue::new());
        }
        self.queues.link_of = link_of;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(link: u8) -> Path {
        let mut bytes = [0; Path::BYTES];
        bytes[0] = link;
        Path(bytes)
    }

    #[test]
    fn who_waits_stands_in_one_queue_and_knows_in_which() {
        let link_of: fn(&Path) -> usize = |path| path.0[0].into();
        let mut queues = Queues { all: (0..3).map(|_| Queue::new()).collect(), link_of };
        let mut queued_in = None;
        queues.move_to(&mut queued_in, &path(1), 7);
        assert_eq!(queued_in, None, "who does not wait goes nowhere");
        for (link, place) in [(1, 1), (2, 2), (0, 0), (9, 2)] {
            queues.add(&mut queued_in, &path(link), 7);
            queues.add(&mut queued_in, &path(1), 7);
            queues.move_to(&mut queued_in, &path(link), 7);
            let lengths: Vec<_> = queues.all().iter().map(|queue| queue.ready.len()).collect();
            assert_eq!((queued_in, lengths.iter().sum::<usize>(), lengths[usize::from(place)]), (Some(place), 1, 1));
        }
        queues.remove(&mut queued_in, 7);
        assert!(queued_in.is_none() && queues.all().iter().all(|queue| queue.ready.is_empty()));
    }
}
