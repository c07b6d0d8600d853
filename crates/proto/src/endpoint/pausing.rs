//! Channels whose peer is to send nothing more for now, as a packet found no memory, and the credit with which they go on (docs/protocol.md 5.11, 7.2).

use std::ops::Bound;

use ropeway_wire::{Flags, Header};

use super::Endpoint;

/// So many are told at once that they may go on.
const LET_GO: usize = 4;

impl Endpoint {
    /// A packet of this channel, which waits for a lost one, found no memory.
    pub(super) fn pause(&mut self, index: u32, header: &Header) {
        let at = self.associations[index as usize].channel(header.channel);
        let is_new = !header.flags.contains(Flags::RTX);
        if let Some(at) = at.filter(|&at| self.may_pause(at) && (is_new || !self.is_paused(at))) {
            self.pause_channel(at);
        }
    }

    /// Whether anybody may read what comes on a channel.
    pub(super) fn may_pause(&self, at: u32) -> bool {
        let channel = &self.channels[at as usize];
        !channel.released && channel.failed.is_none() && !channel.incoming.is_finished()
    }

    /// A channel's peer is told to send nothing more.
    pub(super) fn pause_channel(&mut self, at: u32) {
        self.begin_pause(at);
        self.channels[at as usize].hold_due = true;
        self.say_words(at);
    }

    /// A channel's peer will send nothing more before it gets credit again. Who waits for more without reading what is there is told as well.
    pub(super) fn begin_pause(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        channel.credit_due = false;
        self.paused.insert((channel.association, at));
        if channel.incoming.unread_bytes() > 0 {
            self.announce_channel(at);
        }
    }

    /// Whether a whole packet that comes next on this channel would find memory.
    pub(super) fn may_go_on(&self, at: u32) -> bool {
        let channel = &self.channels[at as usize];
        channel.released || channel.incoming.has_set_aside() || self.has_memory_for_next(channel)
    }

    /// The same; the rest of a message that may not go on piece by piece has memory set aside, or waits in line for that.
    pub(super) fn may_go_on_now(&mut self, at: u32) -> bool {
        self.may_go_on(at) || self.channels[at as usize].queued_in.is_none() && self.reserve_what_it_lacks(at)
    }

    /// A packet of this channel has come and found memory: so may what follows.
    pub(super) fn let_go(&mut self, index: u32, number: u16) {
        let at = self.associations[index as usize].channel(number);
        if let Some(at) = at.filter(|&at| self.is_paused(at)) {
            self.say_credit(at);
        }
    }

    pub(super) fn is_paused(&self, at: u32) -> bool {
        self.paused.contains(&(self.channels[at as usize].association, at))
    }

    /// The channel goes on, or ends: it is not paused any more.
    pub(super) fn end_pause(&mut self, at: u32) {
        if !self.paused.is_empty() {
            self.paused.remove(&(self.channels[at as usize].association, at));
        }
    }

    /// No channel of an association is paused any more.
    pub(super) fn end_pauses_of(&mut self, index: u32) {
        while let Some(&(other, at)) = self.paused.range((index, 0)..).next().filter(|(other, _)| *other == index) {
            self.paused.remove(&(other, at));
        }
    }

    /// Lets a channel go on for which there is memory by now.
    pub(super) fn let_go_if_it_may(&mut self, at: u32) {
        if self.is_paused(at) && self.may_go_on_now(at) {
            self.say_credit(at);
        }
    }

    /// Lets a few go on if memory has become free: the others ask, too.
    pub(super) fn let_some_go(&mut self) {
        for _ in 0..LET_GO {
            if self.paused.is_empty() || !self.rx_pool.is_for_all(false) {
                return;
            }
            let behind = (Bound::Excluded(self.let_go_last), Bound::Unbounded);
            let Some(&next) = self.paused.range(behind).next().or_else(|| self.paused.first()) else { return };
            self.let_go_last = next;
            self.let_go_if_it_may(next.1);
        }
    }

    pub(super) fn handle_credit(&mut self, index: u32, number: u16, limit: u64) {
        let Some(channel) = self.associations[index as usize].channel(number) else { return };
        if self.channels[channel as usize].outgoing.raise_credit(limit) {
            self.associations[index as usize].state_doublings = 0;
            self.schedule_channel(channel);
        }
    }

    /// The peer has no memory for more, whatever credit it gave: not before it gives that again.
    pub(super) fn handle_hold(&mut self, index: u32, number: u16) {
        let Some(at) = self.associations[index as usize].channel(number) else { return };
        self.channels[at as usize].outgoing.pause();
        self.schedule_channel(at);
    }

    /// The peer waits for credit and knows only `limit`, or that it is paused: say it again, or that there is none.
    pub(super) fn handle_want(&mut self, index: u32, number: u16, limit: u64) {
        let Some(at) = self.associations[index as usize].channel(number) else { return };
        let channel = &self.channels[at as usize];
        if channel.incoming.limit() <= limit && !channel.released && channel.failed.is_none() {
            // There may be more memory than when something came the last time.
            self.after_arrival(at);
        }
        let incoming = &self.channels[at as usize].incoming;
        // It may be that it was told to send nothing more, and has credit.
        let is_held = incoming.limit() <= limit && incoming.has_credit_for(self.rx_pool.payload_bytes());
        if incoming.limit() > limit || is_held && self.may_go_on_now(at) {
            self.say_credit(at);
        } else if is_held && self.may_pause(at) {
            self.pause_channel(at);
        } else {
            self.channels[at as usize].hold_due = true;
            self.say_words(at);
        }
    }
}
