//! What the user hands over to be sent.

use ropeway_wire::{ErrorCode, Extent, Mode};

use super::Endpoint;
use super::rounds::recount;
use crate::association::Association;
use crate::channel::{Channel, ChannelId, Lack, MESSAGE_PREFIX_BYTES, Opening};
use crate::config::Config;
use crate::pool::Pool;
use crate::statistics::Limit;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("no room to send now")]
    WouldBlock,
    #[error("this end has closed the channel for sending")]
    Closed,
    #[error("the peer has closed the channel, and reads no more")]
    PeerClosed,
    #[error("the message is longer than the {limit} bytes that one to this peer may have")]
    TooLong { limit: u64 },
    #[error("{0}")]
    Failed(ErrorCode),
    /// Bytes of a stream cannot be left out.
    #[error("a stream has no messages")]
    NoMessages,
    #[error("no such channel")]
    Unknown,
}

/// What became of a message that was to share a packet with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// There is no such packet, or no room in it; [`Endpoint::send`] takes it, or says why not.
    Refused,
    /// The packet is kept back as it was before.
    KeptBack,
    /// The packet is kept back no longer: [`Endpoint::transmit`] sends it.
    Due,
}

impl Endpoint {
    /// Hands bytes over to be sent: of a stream as many as there is room for, of messages all or none.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, now: Time, id: ChannelId, bytes: &[u8]) -> Result<usize, SendError> {
        let sent = self.send_bytes(now, id, bytes, None)?;
        Ok(sent + self.send_rest(now, id, &bytes[sent..]))
    }

    /// Like [`Endpoint::send`] for bytes of which `sent` were taken before; but of a long message only a part may be taken: the caller transmits, and goes on until all of it
    /// was. `WouldBlock` then says that as much as this end keeps of a channel is under way; [`Endpoint::send_rest`] takes the rest all the same, and so does this once the channel
    /// is to end behind the message. Nobody else can write on the channel meanwhile.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_part(&mut self, now: Time, id: ChannelId, bytes: &[u8], sent: usize) -> Result<usize, SendError> {
        let rest = &bytes[sent..];
        let owed = if sent > 0 { self.owed_channel(id) } else { None };
        let Some((at, payload_bytes)) = owed else { return self.send_bytes(now, id, rest, None) };
        let outgoing = &mut self.channels[at as usize].outgoing;
        // Who ends the channel waits for nothing any more, and there is memory for the rest.
        let is_ending = outgoing.ends_then.is_some();
        if !is_ending && outgoing.must_rest_wait(self.config.send_buffer_bytes as usize, payload_bytes) {
            outgoing.waiting.starve(0);
            return Err(SendError::WouldBlock);
        }
        Ok(self.take_rest(now, id, rest).unwrap_or(0))
    }

    /// Takes all the rest of a message of which [`Endpoint::send_part`] has taken a part, and says how much that was.
    pub fn send_rest(&mut self, now: Time, id: ChannelId, rest: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(count) = self.take_rest(now, id, &rest[sent..]).filter(|&count| count > 0) {
            sent += count;
        }
        sent
    }

    /// Whether only a part of a message was taken.
    pub fn is_owed(&self, id: ChannelId) -> bool {
        self.channel_index(id).is_some_and(|at| self.channels[at as usize].outgoing.is_owed())
    }

    /// The channel's place, if the rest of a message is to come on it, and how much a packet of it holds.
    fn owed_channel(&self, id: ChannelId) -> Option<(u32, usize)> {
        let at = self.channel_index(id)?;
        let channel = Some(&self.channels[at as usize]).filter(|channel| channel.outgoing.is_owed())?;
        Some((at, self.associations[channel.association as usize].payload_bytes))
    }

    fn take_rest(&mut self, now: Time, id: ChannelId, rest: &[u8]) -> Option<usize> {
        let (at, payload_bytes) = self.owed_channel(id)?;
        let index = self.channels[at as usize].association;
        self.begin_waiting(now, index);
        let outgoing = &mut self.channels[at as usize].outgoing;
        let count = outgoing.write_rest(rest, payload_bytes, &mut self.tx_pool);
        let ends = if outgoing.is_owed() { None } else { outgoing.ends_then.take() };
        self.schedule_channel(at);
        match ends {
            // Nobody uses it any more, and who waits for what comes on it is told first: of what is closed nobody is.
            Some(Extent::Both) => {
                self.announce_channel(at);
                self.close(now, id);
            }
            Some(Extent::Write) => self.finish_channel(now, at, Extent::Write),
            None => {}
        }
        self.settle_timers(now, index);
        Some(count)
    }

    /// Whether the peer has taken the channel, or something was written on it, be it the end.
    pub fn has_begun(&self, id: ChannelId) -> bool {
        self.channel_index(id).is_some_and(|at| {
            let channel = &self.channels[at as usize];
            channel.opening == Opening::Done || !channel.outgoing.is_only_open()
        })
    }

    /// What was written on a channel and is not acknowledged, queued or under way.
    pub fn unacknowledged_bytes(&self, id: ChannelId) -> usize {
        let outgoing = |at: u32| &self.channels[at as usize].outgoing;
        self.channel_index(id).map_or(0, |at| outgoing(at).queued_bytes() + outgoing(at).unacked_bytes())
    }

    /// Sends what is kept back. If not everything that was written is acknowledged, the channel is announced as changed once it is.
    pub fn await_drained(&mut self, id: ChannelId) {
        self.flush(id);
        let Some(at) = self.channel_index(id) else { return };
        let outgoing = &mut self.channels[at as usize].outgoing;
        if !outgoing.is_drained() {
            outgoing.waiting.await_drained();
        }
    }

    /// Adds a short message to a packet that is kept back, if there is one with room for it. It takes no time, as nothing becomes due that was not before.
    pub fn send_joining(&mut self, id: ChannelId, message: &[u8]) -> Joined {
        let Some(at) = self.channel_index(id) else { return Joined::Refused };
        let channel = &mut self.channels[at as usize];
        if channel.detached || channel.outgoing.is_owed() {
            return Joined::Refused;
        }
        let association = &mut self.associations[channel.association as usize];
        let room = channel.outgoing.room(self.config.send_buffer_bytes as usize) as u64;
        let most = room.min(longest_message(association, &self.config, &self.tx_pool));
        // What has ended, or carries no messages, has no packet that others may join.
        if message.len().max(1) as u64 > most
            || !is_kept_back(association, channel)
            || !channel.outgoing.join_records(message, association.payload_bytes)
        {
            return Joined::Refused;
        }
        channel.outgoing.waiting.note_taken();
        if is_kept_back(association, channel) {
            recount(association, channel);
            return Joined::KeptBack;
        }
        self.schedule_channel(at);
        Joined::Due
    }

    /// Like [`Endpoint::send`] for a message that is worth sending only until `deadline`: if it is not under way by then it is dropped, the drop is counted in
    /// [`ChannelStatistics::expired_messages`](crate::ChannelStatistics), and the channel announced as changed. It shares no packet with others.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_until(&mut self, now: Time, id: ChannelId, message: &[u8], deadline: Time) -> Result<(), SendError> {
        let at = self.channel_index(id).ok_or(SendError::Unknown)?;
        if self.channels[at as usize].mode == Mode::Stream {
            return Err(SendError::NoMessages);
        }
        self.send_bytes(now, id, message, Some(deadline)).map(drop)
    }

    /// Drops the messages of a channel that are not under way, and says how many. Of a stream nothing is dropped.
    pub fn cancel(&mut self, id: ChannelId) -> u64 {
        let Some(at) = self.channel_index(id) else { return 0 };
        let channel = &mut self.channels[at as usize];
        if channel.mode == Mode::Stream || channel.detached {
            return 0;
        }
        let count = channel.outgoing.cancel(&mut self.tx_pool);
        self.say_dropped(at, count);
        count
    }

    /// Drops what is past its deadline on the channels of an association, and looks for the next deadline.
    pub(super) fn expire_messages(&mut self, now: Time, index: u32) {
        let channels: Vec<u32> = self.associations[index as usize].channels.indices().collect();
        let mut next: Option<Time> = None;
        for at in channels {
            let channel = &mut self.channels[at as usize];
            let count = channel.outgoing.expire(now, &mut self.tx_pool);
            self.say_dropped(at, count);
            next = [next, self.channels[at as usize].outgoing.next_deadline()].into_iter().flatten().min();
        }
        self.associations[index as usize].deadline_at = next;
    }

    /// So many messages were dropped from a channel's queue: there is room, and what stands first now may go where they could not.
    fn say_dropped(&mut self, at: u32, count: u64) {
        if count > 0 {
            self.channels[at as usize].outgoing.waiting.tell();
            self.leave_round(at);
            self.schedule_channel(at);
            self.announce_channel(at);
            self.announce_memory();
        }
    }

    /// There is no room on the channel for so much, or no memory: its user is told when there is, of memory by whoever gives some back.
    fn refuse_for_now(&mut self, at: u32, wanted: usize) -> Result<usize, SendError> {
        let channel = &mut self.channels[at as usize];
        if channel.outgoing.refuse(wanted, self.config.send_buffer_bytes as usize) == Lack::Memory {
            let payload_bytes = self.associations[channel.association as usize].payload_bytes.max(1);
            let prefix = if wanted > payload_bytes { MESSAGE_PREFIX_BYTES } else { 0 };
            let packets = (wanted + prefix).div_ceil(payload_bytes);
            // Of several who wait on a channel the one who needs least.
            match self.lacking_memory.iter_mut().find(|(other, _)| *other == at) {
                Some((_, least)) => *least = packets.min(*least),
                None => self.lacking_memory.push((at, packets)),
            }
        }
        Err(SendError::WouldBlock)
    }

    /// Tells those for whom a larger send buffer has room.
    pub(super) fn announce_room(&mut self) {
        let limit = self.config.send_buffer_bytes as usize;
        for (at, channel) in &mut self.channels {
            if channel.outgoing.takes_hunger(limit) {
                Endpoint::announce(&mut self.events, channel, at as u32);
            }
        }
    }

    /// Tells those who could not send for want of memory that there is as much as they need.
    pub(super) fn announce_memory(&mut self) {
        if self.lacking_memory.is_empty() {
            return;
        }
        // Who wants more than there can be since it became less is told as well, and hears why not.
        let most = self.tx_pool.limit_packets() / 2;
        let available = self.tx_pool.available();
        let mut lacking = std::mem::take(&mut self.lacking_memory);
        lacking.retain(|&(at, packets)| {
            let waits = packets.min(most) > available;
            if !waits && let Some(channel) = self.channels.get_mut(at as usize) {
                channel.outgoing.waiting.tell();
                self.announce_channel(at);
            }
            waits
        });
        self.lacking_memory = lacking;
    }

    fn send_bytes(
        &mut self,
        now: Time,
        id: ChannelId,
        bytes: &[u8],
        deadline: Option<Time>,
    ) -> Result<usize, SendError> {
        let at = self.channel_index(id).ok_or(SendError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        if let Some(code) = channel.failed {
            return Err(SendError::Failed(code));
        }
        if channel.incoming.peer_is_gone() {
            return Err(SendError::PeerClosed);
        }
        if channel.outgoing.is_finished() || channel.outgoing.ends_then.is_some() {
            return Err(SendError::Closed);
        }
        let association = &mut self.associations[channel.association as usize];
        if !association.is_open() {
            channel.outgoing.waiting.starve(0);
            return Err(SendError::WouldBlock);
        }
        let (limit, payload_bytes) = (self.config.send_buffer_bytes as usize, association.payload_bytes);
        let taken = match channel.mode {
            Mode::Stream => channel.outgoing.write(bytes, limit, payload_bytes, &mut self.tx_pool),
            Mode::Messages => {
                let most = longest_message(association, &self.config, &self.tx_pool);
                if bytes.len() as u64 > most {
                    return Err(SendError::TooLong { limit: most });
                }
                let alone = deadline.is_some();
                let taken = channel.outgoing.write_message(bytes, alone, limit, payload_bytes, &mut self.tx_pool);
                let Some(taken) = taken else {
                    return self.refuse_for_now(at, bytes.len().max(1));
                };
                if let Some(deadline) = deadline {
                    channel.outgoing.set_deadline(deadline);
                    let first = association.deadline_at.map_or(deadline, |at| at.min(deadline));
                    association.deadline_at = Some(first);
                }
                taken
            }
        };
        if taken == 0 && !bytes.is_empty() {
            return self.refuse_for_now(at, 1);
        }
        channel.outgoing.waiting.note_taken();
        if !association.has_undelivered() {
            association.waiting_since = now;
        }
        let index = channel.association;
        if taken < bytes.len() && channel.mode == Mode::Stream && channel.outgoing.room(limit) > 0 {
            // What there is no memory for is as good as refused: who waits for an edge would see none if there was always room.
            let _ = self.refuse_for_now(at, 1);
        }
        self.schedule_channel(at);
        // Without credit nothing is transmitted, and yet somebody has to ask for it.
        self.settle_timers(now, index);
        Ok(taken)
    }
}

/// The longest message that may be sent: one that does not fit into half the memory might wait for ever.
pub(super) fn longest_message(association: &Association, config: &Config, pool: &Pool) -> u64 {
    let packets = pool.limit_packets() / 2;
    let of_memory = (packets * association.payload_bytes).saturating_sub(MESSAGE_PREFIX_BYTES);
    let own = u64::from(config.longest_message_bytes).min(of_memory as u64);
    u64::from(association.peer_longest).min(own)
}

/// What is queued waits for a grant; or it is a packet that goes when it is full, flushed or late, or when something is acknowledged. Until then looking at it again is
/// in vain.
pub(super) fn is_kept_back(association: &Association, channel: &Channel) -> bool {
    let waits_for_company = || {
        association.flush_at.is_some()
            && !channel.outgoing.no_delay
            && channel.outgoing.is_small_batch(association.payload_bytes)
    };
    channel.outgoing.scheduled && (association.limit_kind == Limit::Grant || waits_for_company())
}
