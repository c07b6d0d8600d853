//! Ports at which channels are taken.

use std::collections::VecDeque;

use ropeway_wire::{ErrorCode, Mode};

use super::Endpoint;
use crate::channel::ChannelId;

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

/// Who takes channels at a port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) mode: Mode,
    pub(super) backlog: usize,
    pub(super) queue: VecDeque<u32>,
    /// An event about it waits to be fetched.
    pub(super) announced: bool,
}

impl Endpoint {
    /// Takes channels of `mode` at `port` (0: one that is free), up to `backlog` waiting. Gives the port.
    ///
    /// # Errors
    /// The port is taken, or there is none.
    pub fn listen(&mut self, port: u16, mode: Mode, backlog: usize) -> Result<u16, ListenError> {
        let port = match port {
            0 => (super::FIRST_FREE_PORT..=u16::MAX)
                .find(|port| !self.listeners.contains_key(port))
                .ok_or(ListenError::NoPort)?,
            port if self.listeners.contains_key(&port) => return Err(ListenError::InUse(port)),
            port => port,
        };
        let backlog = backlog.clamp(1, MOST_BACKLOG);
        self.listeners.insert(port, Listener { mode, backlog, queue: Default::default(), announced: false });
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
        for at in listener.queue {
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
        let index = listener.queue.pop_front().ok_or(AcceptError::WouldBlock)?;
        let channel = &mut self.channels[index as usize];
        channel.queued_in = None;
        let id = ChannelId { index, generation: channel.generation };
        let has_news =
            channel.failed.is_some() || channel.incoming.is_finished() || channel.incoming.is_readable(channel.mode);
        self.counters.channels_accepted += 1;
        if has_news {
            self.announce_channel(index);
        }
        Ok(id)
    }

    /// Whether [`Endpoint::accept`] would give a channel, or say that nobody listens.
    pub fn has_incoming(&self, port: u16) -> bool {
        self.listeners.get(&port).is_none_or(|listener| !listener.queue.is_empty())
    }

    pub(super) fn leave_listener(&mut self, port: Option<u16>, index: u32) {
        if let Some(listener) = port.and_then(|port| self.listeners.get_mut(&port)) {
            listener.queue.retain(|&queued| queued != index);
        }
    }
}
