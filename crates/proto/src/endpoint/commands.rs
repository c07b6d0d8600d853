//! What else the user of an endpoint asks for: the end of channels, and how one is.

use std::cmp::Reverse;

use ropeway_wire::{ErrorCode, Extent, FinFields};

use super::sending::{SendError, longest_message};
use super::{Endpoint, Path};
use crate::channel::{ChannelId, Readiness};
use crate::time::Time;

impl Endpoint {
    /// No more will be sent: the peer reads the end after everything before it.
    ///
    /// # Errors
    /// The channel failed; it is unknown.
    pub fn shutdown(&mut self, now: Time, id: ChannelId) -> Result<(), SendError> {
        let at = self.channel_index(id).ok_or(SendError::Unknown)?;
        if let Some(code) = self.channels[at as usize].failed {
            return Err(SendError::Failed(code));
        }
        self.finish_channel(now, at, Extent::Write);
        Ok(())
    }

    pub(super) fn finish_channel(&mut self, now: Time, at: u32, extent: Extent) {
        let channel = &mut self.channels[at as usize];
        if channel.outgoing.is_owed() {
            // Behind the message that is being handed over.
            channel.outgoing.ends_then = Some(extent);
            return;
        }
        // An end that was sent before this end stopped reading as well is followed by one that says so, unless nothing can come any more.
        let says_more = channel.outgoing.extent() == Some(Extent::Write)
            && extent == Extent::Both
            && !channel.incoming.is_finished();
        if channel.outgoing.is_finished() && !says_more {
            return;
        }
        channel.outgoing.finish(FinFields { extent }, &mut self.tx_pool);
        let association = channel.association;
        self.begin_waiting(now, association);
        self.associations[association as usize].flush = true;
        self.schedule_channel(at);
    }

    /// Gives the channel up: what was sent is still delivered, unread data is dropped (and then the peer's end is reset, as TCP does, unless the channel
    /// [forgets](Endpoint::set_forgets_unread) that). The id is invalid afterwards.
    pub fn close(&mut self, now: Time, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let channel = &mut self.channels[at as usize];
        channel.released = true;
        if channel.detached {
            return self.free_channel(at);
        }
        if channel.forgets_unread {
            channel.incoming.clear(&mut self.rx_pool);
        }
        let association = channel.association;
        if !self.associations[association as usize].is_open() {
            return self.withdraw(at);
        }
        if channel.failed.is_some() {
            channel.incoming.clear(&mut self.rx_pool);
        } else if channel.incoming.peer_is_gone() {
            // It reads nothing any more, not even why.
            channel.incoming.clear(&mut self.rx_pool);
            self.finish_channel(now, at, Extent::Both);
        } else if channel.incoming.unread_bytes() > 0 || channel.outgoing.is_owed() {
            self.begin_waiting(now, association);
            self.abort_channel(at, ErrorCode::Reset);
        } else {
            self.finish_channel(now, at, Extent::Both);
        }
        self.release_reservation(at);
        self.settle_channel(at);
    }

    /// Whether what is unread is no matter when the channel is closed: it is forgotten, also a message of which only a part is here, and what still arrives is turned away. So the peer
    /// gets all that was sent to it, and then the end.
    pub fn set_forgets_unread(&mut self, id: ChannelId, on: bool) {
        if let Some(at) = self.channel_index(id) {
            self.channels[at as usize].forgets_unread = on;
        }
    }

    /// Ends the channel at once: what is queued is dropped, and the peer sees a reset.
    pub fn abort(&mut self, now: Time, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let association = self.channels[at as usize].association;
        self.channels[at as usize].released = true;
        if self.channels[at as usize].detached {
            return self.free_channel(at);
        }
        if !self.associations[association as usize].is_open() {
            return self.withdraw(at);
        }
        self.begin_waiting(now, association);
        self.abort_channel(at, ErrorCode::Reset);
        self.settle_channel(at);
    }

    /// A channel whose association has not opened yet.
    fn withdraw(&mut self, at: u32) {
        let (index, number) = (self.channels[at as usize].association, self.channels[at as usize].number);
        let association = &self.associations[index as usize];
        let is_wanted = |at: u32| !self.channels[at as usize].released;
        if !association.channels.indices().any(is_wanted) {
            // Should the server have opened it meanwhile, its OPENED is answered by a reset.
            return self.end_association(index, ErrorCode::Closed);
        }
        if number == 0 && association.attempt().is_some_and(|attempt| attempt.confirmed) {
            // The server may know it: it is reset when the association opens.
            return;
        }
        self.associations[index as usize].detach(number);
        self.free_channel(at);
    }

    /// What can be done with a channel now. `None`: there is no such channel.
    pub fn readiness(&mut self, id: ChannelId) -> Option<Readiness> {
        let at = self.channel_index(id)?;
        let channel = &mut self.channels[at as usize];
        let is_open = channel.detached || self.associations[channel.association as usize].is_open();
        let mut readiness = channel.readiness(self.config.send_buffer_bytes as usize);
        readiness.writable &= is_open || channel.failed.is_some();
        if !readiness.writable {
            channel.outgoing.waiting.starve_anyhow();
        }
        Some(readiness)
    }

    /// Nothing of this channel waits for company any more: its user is about to wait for an answer.
    pub fn flush(&mut self, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let channel = &self.channels[at as usize];
        if !channel.outgoing.is_queue_empty() && !channel.detached {
            let association = channel.association;
            self.associations[association as usize].flush = true;
            self.make_ready(association);
        }
    }

    /// Whether small sends leave at once instead of sharing packets.
    pub fn set_no_delay(&mut self, id: ChannelId, on: bool) {
        if let Some(at) = self.channel_index(id) {
            self.channels[at as usize].outgoing.no_delay = on;
        }
    }

    /// The peer's path and the ports, local first.
    pub fn addresses(&self, id: ChannelId) -> Option<(Path, u16, u16)> {
        let channel = &self.channels[self.channel_index(id)? as usize];
        Some((channel.path, channel.local_port, channel.remote_port))
    }

    /// The longest message that can be sent on a channel: what the peer takes, and this end; 0 while it is being opened.
    pub fn longest_message(&self, id: ChannelId) -> Option<u64> {
        let channel = &self.channels[self.channel_index(id)? as usize];
        let association = self.associations.get(channel.association as usize).filter(|_| !channel.detached);
        Some(association.map_or(0, |association| longest_message(association, &self.config, &self.tx_pool)))
    }

    /// Closes every channel as [`Endpoint::close`] does, those that nobody accepted too: their users are gone. One of which a message is being handed over is closed behind that: whoever does that goes on with
    /// [`Endpoint::send_part`].
    pub fn close_channels(&mut self, now: Time) {
        let ports: Vec<u16> = self.listeners.keys().copied().collect();
        ports.into_iter().for_each(|port| self.unlisten(port));
        let all: Vec<ChannelId> = self
            .channels
            .iter()
            .map(|(index, channel)| ChannelId { index: index as u32, generation: channel.generation })
            .collect();
        all.into_iter().for_each(|id| self.close_behind_message(now, id));
    }

    /// Closes a channel when the message that is being handed over is whole, if there is one, and it would be delivered.
    fn close_behind_message(&mut self, now: Time, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let channel = &mut self.channels[at as usize];
        if !channel.outgoing.is_owed() || channel.incoming.unread_bytes() > 0 && !channel.forgets_unread {
            return self.close(now, id);
        }
        // Nobody reads what comes meanwhile, and it resets nothing.
        channel.forgets_unread = true;
        self.finish_channel(now, at, Extent::Both);
    }

    /// Ends everything in order: peers are told, those heard last before others, and all channels fail with `CLOSED`. Call [`Endpoint::transmit`] afterwards. `false`: there are more peers than answers may
    /// wait for the link; call both again.
    pub fn close_all(&mut self, now: Time) -> bool {
        let mut all: Vec<u32> = self.associations.iter().map(|(index, _)| index as u32).collect();
        // What is for peers that are gone shall not stand before what is for the others.
        all.sort_unstable_by_key(|&index| Reverse(self.associations[index as usize].heard_at));
        let mut is_done = true;
        for index in all {
            if !self.queues.of_mut(&self.associations[index as usize].path).takes_replies() {
                is_done = false;
                continue;
            }
            self.say_goodbye(now, index, ErrorCode::Closed);
            self.end_association(index, ErrorCode::Closed);
        }
        is_done
    }
}
