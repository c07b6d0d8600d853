//! What finds no memory is given back, so that nothing else waits for it; and what was given back is withdrawn, and goes again later (docs/protocol.md 5.11).

use ropeway_wire::{Header, Void, expand};

use super::Endpoint;
use crate::received::WINDOW_PACKETS;
use crate::sent::NOBODY;
use crate::time::Time;

impl Endpoint {
    /// Whether what finds no memory is to be given back: not a packet that opens a channel for whose refusal there is no room, nor more of those than there may be channels.
    pub(super) fn may_give_back(&self, index: u32, header: &Header) -> bool {
        let association = &self.associations[index as usize];
        association.channel(header.channel).is_some()
            || self.has_room_for_refusal(index, header)
                && association.returned_channels() < usize::from(self.config.max_channels)
    }

    /// A channel's next packet finds no memory: it and all behind it are given back, and nothing of these is taken any more.
    pub(super) fn give_back(&mut self, index: u32, channel: u16, number: u64) {
        let association = &mut self.associations[index as usize];
        association.give_back(channel, number);
        let at = association.channel(channel);
        if let Some(at) = at.filter(|&at| self.may_pause(at)) {
            self.begin_pause(at);
        }
        self.make_ready(index);
    }

    /// The peer has no memory for what a channel sent under this number, and behind it.
    pub(super) fn handle_return(&mut self, now: Time, index: u32, channel: u16, low: u32) {
        let association = &mut self.associations[index as usize];
        let number = expand(association.sent.una(), low);
        // It may have been acknowledged, or have never been sent.
        let is_sent = association.sent.get(number).filter(|packet| packet.channel == channel && packet.transmitted);
        let Some(packet) = is_sent else { return };
        if packet.is_void() {
            // What was said about that has been lost.
            association.sent.request(number, 1, None);
            return self.make_ready(index);
        }
        let owner = packet.owner;
        // For a refusal there is always memory.
        if owner != NOBODY && association.sent.may_look_up(number, u16::MAX, now) {
            self.withdraw_from(index, owner, number);
        }
    }

    /// Withdraws what a channel has sent from this number on.
    fn withdraw_from(&mut self, index: u32, at: u32, number: u64) {
        let association = &mut self.associations[index as usize];
        let numbers = association.sent.numbers_of(at, number);
        if !association.open_sealed(&numbers) {
            return;
        }
        let back = association.sent.get(number).map_or(0, |packet| packet.back);
        let before = number.wrapping_sub(back.into());
        let is_unacknowledged = back > 0 && association.sent.get(before).is_some();
        let packets = association.sent.withdraw(&numbers);
        self.counters.withdrawn += packets.len() as u64;
        association.counters.withdrawn += packets.len() as u64;
        let channel = &mut self.channels[at as usize];
        let is_over = channel.failed.is_some();
        channel.outgoing.withdraw(packets, is_unacknowledged.then_some(before), is_over, &mut self.tx_pool);
        self.schedule_channel(at);
        self.settle_channel(at);
        self.make_ready(index);
    }

    /// The peer has withdrawn what this end gave back: these numbers bring nothing, and nothing of their channel does that has not arrived and is below its next one.
    pub(super) fn handle_void(&mut self, now: Time, index: u32, void: &Void) {
        let association = &mut self.associations[index as usize];
        let received = &association.received;
        let first = expand(received.next(), void.low);
        let next = first.wrapping_add(void.until.into());
        // Its header has said that all this was sent, though there may have been no room to note it.
        let may_be = next.wrapping_sub(received.base()) as i64 <= WINDOW_PACKETS as i64;
        let (behind, known) = (received.base().wrapping_sub(first) as i64, received.next().wrapping_sub(first) as i64);
        let count = i64::from(void.count).min(known) - behind.max(0);
        if !may_be || count <= 0 {
            return;
        }
        if !association.note_void(void.channel, next) {
            return;
        }
        let looks = association.shortage.get_or_insert_default().looks.may_look_at(count as u64, now);
        if !looks {
            return;
        }
        let slots = association.received.kept_slots();
        let pool = &mut self.rx_pool;
        let first = first.wrapping_add(behind.max(0) as u64);
        association.received.void(first, count as u16, |held| pool.give(held.payload));
        association.received.advance(|held| pool.give(held.payload));
        association.forget_voids();
        association.request_doublings = 0;
        association.ack_due = true;
        self.slots = self.slots - slots + association.received.kept_slots();
        self.make_ready(index);
    }
}
