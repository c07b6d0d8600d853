//! Ports at which channels are taken.

use std::collections::VecDeque;

use ropeway_wire::{ErrorCode, Mode};
use slab::Slab;

use super::Endpoint;
use crate::channel::{Channel, ChannelId};

/// Longest queue of channels to accept: more is memory for peers that nobody serves.
pub const MOST_BACKLOG: usize = 65_535;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    #[error("port {0} is in use by another listener of this engine; choose another or close that one")]
    InUse(u16),
    #[error("all ports of this engine have listeners")]
    NoPort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    #[error("nothing waits to be accepted")]
    WouldBlock,
    #[error("nobody listens at port {0}")]
    NotListening(u16),
}

/// Channels that have left a queue before they were accepted keep their places there until they are so many more than those that wait.
const MOST_GONE: usize = 64;

/// Who takes channels at a port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) mode: Mode,
    backlog: usize,
    /// Of these, `waiting` wait; the others have ended meanwhile. To look for one that ends would take a peer's thousands as long for each of them.
    queue: VecDeque<ChannelId>,
    waiting: usize,
    /// An event about it waits to be fetched.
    pub(super) announced: bool,
}

impl Listener {
    fn new(mode: Mode, backlog: usize) -> Listener {
        Listener { mode, backlog, queue: VecDeque::new(), waiting: 0, announced: false }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting >= self.backlog
    }

    pub(super) fn add(&mut self, id: ChannelId) {
        self.queue.push_back(id);
        self.waiting += 1;
    }

    /// The channel that has waited longest.
    fn take(&mut self, waits: impl Fn(ChannelId) -> bool) -> Option<ChannelId> {
        loop {
            let id = self.queue.pop_front()?;
            if waits(id) {
                self.waiting -= 1;
                return Some(id);
            }
        }
    }

    /// One of those that waited does not wait any more.
    fn leave(&mut self, waits: impl Fn(ChannelId) -> bool) {
        self.waiting -= 1;
        if self.queue.len() > 2 * self.waiting + MOST_GONE {
            self.queue.retain(|&id| waits(id));
        }
    }
}

/// Whether this channel waits to be accepted at that port.
fn waits_at(channels: &Slab<Box<Channel>>, port: u16, id: ChannelId) -> bool {
    let channel = channels.get(id.index as usize);
    channel.is_some_and(|channel| channel.generation == id.generation && channel.queued_in == Some(port))
}

impl Endpoint {
    /// Takes channels of `mode` at `port` (0: one that is free), up to `backlog` waiting. Gives the port.
    ///
    /// # Errors
    /// The port is taken, or there is none.
    pub fn listen(&mut self, port: u16, mode: Mode, backlog: usize) -> Result<u16, ListenError> {
        let port = match port {
            0 => (super::ports::FIRST_FREE_PORT..=u16::MAX)
                .find(|port| !self.listeners.contains_key(port))
                .ok_or(ListenError::NoPort)?,
            port if self.listeners.contains_key(&port) => return Err(ListenError::InUse(port)),
            port => port,
        };
        let backlog = backlog.clamp(1, MOST_BACKLOG);
        self.listeners.insert(port, Listener::new(mode, backlog));
        Ok(port)
    }

    /// Has up to `backlog` channels wait at `port` from now on. Those that wait there already stay.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn set_backlog(&mut self, port: u16, backlog: usize) -> Result<(), AcceptError> {
        let listener = self.listeners.get_mut(&port).ok_or(AcceptError::NotListening(port))?;
        listener.backlog = backlog.clamp(1, MOST_BACKLOG);
        Ok(())
    }

    /// Stops listening: channels that nobody accepted are reset.
    pub fn unlisten(&mut self, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        for id in listener.queue {
            if !waits_at(&self.channels, port, id) {
                continue;
            }
            let at = id.index;
            self.channels[at as usize].queued_in = None;
            self.channels[at as usize].released = true;
            self.abort_channel(at, ErrorCode::Reset);
            if self.channels[at as usize].detached {
                self.free_channel(at);
            }
        }
    }

    /// Takes the channel that has waited longest.
    ///
    /// # Errors
    /// There is none, or no listener.
    pub fn accept(&mut self, port: u16) -> Result<ChannelId, AcceptError> {
        let listener = self.listeners.get_mut(&port).ok_or(AcceptError::NotListening(port))?;
        let id = listener.take(|id| waits_at(&self.channels, port, id)).ok_or(AcceptError::WouldBlock)?;
        let index = id.index;
        let channel = &mut self.channels[index as usize];
        channel.queued_in = None;
        let has_news =
            channel.failed.is_some() || channel.incoming.is_finished() || channel.incoming.is_readable(channel.mode);
        let may_wait = !channel.detached && channel.failed.is_none() && channel.incoming.is_unfinished();
        self.let_go_if_it_may(index);
        self.counters.channels_accepted += 1;
        if has_news {
            self.announce_channel(index);
        }
        if may_wait {
            // Nobody stands in line for memory before.
            self.let_come(index);
        }
        Ok(id)
    }

    /// Whether [`Endpoint::accept`] would give a channel, or say that nobody listens.
    pub fn has_incoming(&self, port: u16) -> bool {
        self.listeners.get(&port).is_none_or(|listener| listener.waiting > 0)
    }

    /// This channel does not wait to be accepted any more.
    pub(super) fn leave_listener(&mut self, at: u32) {
        let Some(port) = self.channels[at as usize].queued_in.take() else { return };
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.leave(|id| waits_at(&self.channels, port, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const COUNT: usize = 20_000;

    fn id(at: usize) -> ChannelId {
        ChannelId { index: at as u32, generation: 7 }
    }

    #[test]
    fn thousands_of_channels_that_nobody_accepted_end_without_a_search_for_each() {
        for backwards in [false, true] {
            let mut listener = Listener::new(Mode::Stream, COUNT);
            (0..COUNT).for_each(|at| listener.add(id(at)));
            assert!(listener.is_full());
            let (mut is_gone, looks) = (vec![false; COUNT], Cell::new(0));
            for turn in 0..COUNT {
                is_gone[if backwards { COUNT - 1 - turn } else { turn }] = true;
                listener.leave(|id| {
                    looks.set(looks.get() + 1);
                    !is_gone[id.index as usize]
                });
                assert!(!listener.is_full() && listener.waiting == COUNT - 1 - turn);
                assert!(listener.queue.len() <= 2 * listener.waiting + MOST_GONE, "{} places", listener.queue.len());
            }
            assert!(looks.get() <= 3 * COUNT, "{} looks for {COUNT} ends", looks.get());
            assert_eq!(listener.take(|id| !is_gone[id.index as usize]), None);
        }
    }

    #[test]
    fn those_that_wait_are_taken_in_their_order_past_those_that_are_gone() {
        let mut listener = Listener::new(Mode::Stream, 8);
        (0..8).for_each(|at| listener.add(id(at)));
        let waits = |id: ChannelId| !id.index.is_multiple_of(3);
        (0..3).for_each(|_| listener.leave(waits));
        let taken: Vec<_> = std::iter::from_fn(|| listener.take(waits)).map(|id| id.index).collect();
        assert_eq!((taken, listener.waiting), (vec![1, 2, 4, 5, 7], 0));
    }
}
