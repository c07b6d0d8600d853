//! Whether there is memory for a numbered packet (docs/protocol.md 5): what cannot be kept has not arrived. Where it comes from is in `crate::pool`, and what is set aside of it in `reserving`.

use ropeway_wire::{Flags, Header, OpenFields, Type};

use super::Endpoint;
use crate::association::MOST_REFUSALS;
use crate::channel::{Channel, ChannelId};
use crate::time::Time;

/// The share of the free memory that packets waiting for a lost one may have, of one association.
const HELD_SHARE: usize = 4;
/// What an association keeps is looked up again after so long for each channel and each piece of memory, whose looking up takes a thirtieth of that; until then what was read does not count.
const KEPT_LOOK_NS: u64 = 300;

impl Endpoint {
    /// Whether a packet can be kept, or refused, if it is taken now.
    pub(super) fn has_memory(&self, index: u32, previous: Option<u64>, header: &Header) -> bool {
        let association = &self.associations[index as usize];
        let channel = association.channel(header.channel).map(|at| &*self.channels[at as usize]);
        if previous.is_none() && takes_none(header.kind, channel) {
            return true;
        }
        let has_place = header.kind != Type::Open || association.refusals.len() < MOST_REFUSALS;
        // What waits for a lost packet has used up no credit yet, so it has a bound of its own; a part of what is free, so that the lost packet always
        // finds memory when it comes.
        let share = (self.config.receive_buffer_bytes as usize).min(self.rx_pool.available_bytes() / HELD_SHARE);
        let may_wait =
            previous.is_none() || association.received.held_bytes() + self.most_taken(previous, header) <= share;
        has_place && may_wait && (comes_into_set_aside(channel, previous) || !self.rx_pool.is_exhausted())
    }

    /// When memory is short, whether what is left is for this packet: if its association keeps no more of it than its part, and somebody has accepted its channel. A message that memory was set
    /// aside for comes in any case, in its order, and so does what needs none.
    pub(super) fn may_have_of_the_last(
        &mut self,
        now: Time,
        index: u32,
        previous: Option<u64>,
        header: &Header,
    ) -> bool {
        if !self.rx_pool.is_short() {
            return true;
        }
        let association = &self.associations[index as usize];
        let channel = association.channel(header.channel).map(|at| &*self.channels[at as usize]);
        let needs_none = previous.is_none() && takes_none(header.kind, channel);
        if needs_none || comes_into_set_aside(channel, previous) {
            return true;
        }
        if channel.is_some_and(|channel| channel.queued_in.is_some()) {
            return false;
        }
        if association.kept.as_deref().is_none_or(|kept| kept.until <= now) {
            let over = self.still_unread(index);
            let association = &self.associations[index as usize];
            let channels = association.channels.indices().chain(over.iter().map(|id| id.index));
            let sum = |(sum, looks), (bytes, pieces)| (sum + bytes, looks + 1 + pieces);
            let held_bytes = association.received.held_bytes() as u64;
            let (bytes, looks) = channels.map(|at| self.kept_of_part(at)).fold((held_bytes, 1), sum);
            let kept = self.associations[index as usize].kept.get_or_insert_default();
            (kept.bytes, kept.until, kept.over) = (bytes, now.after(looks * KEPT_LOOK_NS), over);
        }
        let association = &self.associations[index as usize];
        let kept_bytes = association.kept.as_deref().map_or(0, |kept| kept.bytes);
        // What waits for a lost packet does not keep that one away.
        let waits_for_it = if previous.is_none() { association.received.held_bytes() as u64 } else { 0 };
        kept_bytes.saturating_sub(waits_for_it) + self.most_taken(previous, header) as u64 <= self.part_of_the_last()
    }

    /// So much memory a packet takes at most: in its order that of a whole one, in which others find room.
    fn most_taken(&self, previous: Option<u64>, header: &Header) -> usize {
        let length = usize::from(header.length);
        match header.kind {
            _ if previous.is_some() => self.rx_pool.copy_bytes(length),
            Type::Open if length == OpenFields::BYTES && !header.flags.intersects(Flags::FIRST | Flags::RECORDS) => 0,
            _ => self.rx_pool.buffer_bytes(),
        }
    }

    /// Whether what a packet takes is to be [charged](Endpoint::charge) to its association: what that keeps is not looked up again for now, and this does not come into what was set aside.
    pub(super) fn is_charged(&self, now: Time, index: u32, previous: Option<u64>, header: &Header) -> bool {
        let association = &self.associations[index as usize];
        let is_known = association.kept.as_deref().is_some_and(|kept| kept.until > now);
        let channel = || association.channel(header.channel).map(|at| &*self.channels[at as usize]);
        is_known && !comes_into_set_aside(channel(), previous)
    }

    /// A packet of this association has come, before which so much memory was in use.
    pub(super) fn charge(&mut self, index: u32, used_bytes_before: usize) {
        let taken_bytes = self.rx_pool.used_bytes().saturating_sub(used_bytes_before);
        if let Some(kept) = self.associations[index as usize].kept.as_deref_mut() {
            kept.bytes += taken_bytes as u64;
        }
    }

    /// Memory that a channel has of its association's part, and in how many pieces: nothing of a message that came into what was set aside for it from what is for all.
    fn kept_of_part(&self, at: u32) -> (u64, u64) {
        let incoming = &self.channels[at as usize].incoming;
        if incoming.has_reservation() && !incoming.is_of_part() {
            return incoming.kept_behind();
        }
        let (bytes, pieces) = incoming.kept(&self.rx_pool);
        (bytes + (incoming.set_aside() * self.rx_pool.buffer_bytes()) as u64, pieces)
    }

    /// A channel has given its number back. What is unread of it is of its association's part as long as that lives: a peer may open as many as it likes one after the other.
    pub(super) fn note_over(&mut self, index: u32, id: ChannelId) {
        if self.channels[id.index as usize].incoming.unread_bytes() == 0 {
            return;
        }
        let kept = self.associations[index as usize].kept.get_or_insert_default();
        kept.over.push(id);
        if kept.over.len() == kept.over.capacity() {
            let mut over = self.still_unread(index);
            // Not again before as many have come.
            over.reserve(over.len() + 1);
            self.associations[index as usize].kept.get_or_insert_default().over = over;
        }
    }

    /// Those of an association's channels that are over of which something is unread still, taken out of its list.
    fn still_unread(&mut self, index: u32) -> Vec<ChannelId> {
        let kept = self.associations[index as usize].kept.as_deref_mut();
        let mut over = kept.map(|kept| std::mem::take(&mut kept.over)).unwrap_or_default();
        let is_unread = |at: u32| self.channels[at as usize].incoming.unread_bytes() > 0;
        over.retain(|&id| self.channel_index(id).is_some_and(is_unread));
        over
    }

    /// So much of the last memory is for each association: of what is left of it, so that there is some for who comes later. A piece of memory at least, while half of it is left.
    pub(super) fn part_of_the_last(&self) -> u64 {
        let (all, piece_bytes) = (self.rx_pool.last_bytes(), self.rx_pool.buffer_bytes());
        let left = all.min(self.rx_pool.available_bytes());
        let part = left / (self.associations.len() + 1);
        let least = if left >= all / 2 { piece_bytes } else { 0 };
        part.max(least) as u64
    }
}

/// Whether a packet has memory that was set aside for its message: not while it waits for a lost one.
fn comes_into_set_aside(channel: Option<&Channel>, previous: Option<u64>) -> bool {
    previous.is_none() && channel.is_some_and(|channel| channel.incoming.has_set_aside())
}

/// Whether a packet of this type takes no memory in its turn: it ends its channel, or nobody reads that any more.
fn takes_none(kind: Type, channel: Option<&Channel>) -> bool {
    let is_turned_away = match channel {
        Some(channel) => channel.released || channel.failed.is_some(),
        None => kind != Type::Open,
    };
    matches!(kind, Type::Fin | Type::Abort) || is_turned_away
}
