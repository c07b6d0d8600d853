//! What has been sent and is not acknowledged, and what of it was asked for (docs/protocol.md 4).

mod withdrawn;

use std::collections::VecDeque;

use crate::crypto::{SealError, Session};
use crate::looks::Looks;
use crate::pool::Buffer;
use crate::time::Time;
use ropeway_wire::{CHANNEL_HEADER_BYTES, COUNTER_BYTES, Flags, SHORT_HEADER_BYTES, TAG_BYTES, Type};

/// A numbered packet, kept until it is acknowledged. Everything here is fixed at the first transmission but the last five.
#[derive(Debug)]
pub struct Packet {
    pub kind: Type,
    /// Its payload takes up the room that a whole header would have.
    pub is_short: bool,
    /// FIRST, LAST, RECORDS, TXS, TXF.
    pub flags: Flags,
    /// The channel's number on the wire.
    pub channel: u16,
    pub back: u16,
    /// The channel's index in the endpoint, to credit the acknowledgment.
    pub owner: u32,
    pub payload: Buffer,
    /// The payload lies encrypted, between a counter and a tag.
    pub is_sealed: bool,
    /// It was handed to the link at least once.
    pub transmitted: bool,
    /// When, the last time.
    pub sent_at: Time,
    /// It stands in the queue of packets to send again.
    pub requested: bool,
    /// Over which of the association's paths it went last.
    pub path: u8,
    /// What it was has been withdrawn: so many numbers in a row, from this on, bring nothing of its channel. 0: it brings something.
    pub void_run: u16,
}

/// The owner of packets that belong to no channel: refusals.
pub const NOBODY: u32 = u32::MAX;

impl Packet {
    pub fn new(kind: Type, owner: u32) -> Packet {
        Packet {
            kind,
            is_short: false,
            flags: Flags::NONE,
            channel: 0,
            back: 0,
            owner,
            payload: Buffer::default(),
            is_sealed: false,
            transmitted: false,
            sent_at: Time::ZERO,
            requested: false,
            path: 0,
            void_run: 0,
        }
    }

    pub fn header_bytes(&self) -> usize {
        if self.is_short { SHORT_HEADER_BYTES } else { CHANNEL_HEADER_BYTES }
    }

    /// Room for a header in front, with a counter behind it if it is to be sealed: nothing may lie sealed here.
    #[inline]
    pub fn header_mut(&mut self, will_be_sealed: bool) -> &mut [u8] {
        debug_assert!(!self.is_sealed);
        let header_bytes = self.header_bytes();
        &mut self.payload.packet_mut(around(header_bytes, will_be_sealed))[..header_bytes]
    }

    /// Seals it with the header that stands in front.
    pub fn seal(&mut self, now: Time, session: &mut Session) -> Result<(), SealError> {
        debug_assert!(!self.is_sealed, "sealed twice");
        let header_bytes = self.header_bytes();
        session.seal_in_place(now.as_nanos(), self.payload.packet_mut(around(header_bytes, true)), header_bytes)?;
        self.is_sealed = true;
        Ok(())
    }

    /// Makes the payload again what the user gave, if it is sealed.
    pub fn open(&mut self, session: &Session) -> Result<(), SealError> {
        if self.is_sealed {
            let header_bytes = self.header_bytes();
            session.reopen_in_place(self.payload.packet_mut(around(header_bytes, true)), header_bytes)?;
            self.is_sealed = false;
        }
        Ok(())
    }

    /// What is handed to the link: the header that was written last, and the payload, with counter and tag if it is sealed.
    pub fn bytes(&self) -> &[u8] {
        self.payload.packet(around(self.header_bytes(), self.is_sealed))
    }
}

/// Bytes in front of a payload and behind it.
fn around(header_bytes: usize, is_sealed: bool) -> (usize, usize) {
    if is_sealed { (header_bytes + COUNTER_BYTES, TAG_BYTES) } else { (header_bytes, 0) }
}

/// Packets for which room is kept when nothing flies: bursts beyond that give their memory back.
const QUIET_PACKETS: usize = 16;

/// Numbers sent in one direction of an association.
#[derive(Debug)]
pub struct Sent {
    /// The lowest number not acknowledged.
    una: u64,
    /// Packet i has number `una + i`.
    packets: VecDeque<Packet>,
    /// Payload of the packets that the link has not taken yet.
    unseen_bytes: u64,
    /// How often the one with the number `una` has been sent again.
    oldest_again: u32,
    /// Numbers to send again, in the order of the requests; acknowledged ones are skipped when their turn comes.
    requested: VecDeque<u64>,
    /// Numbers without anything in them of which the peer is to be told: each the first of a run.
    voids: Vec<u64>,
    /// Of what the peer asks for.
    looks: Looks,
}

impl Sent {
    pub fn starting_at(first: u64) -> Sent {
        Sent {
            una: first,
            packets: VecDeque::new(),
            unseen_bytes: 0,
            oldest_again: 0,
            requested: VecDeque::new(),
            voids: Vec::new(),
            looks: Looks::default(),
        }
    }

    /// Keeps no more memory than there is use for now.
    pub fn rest(&mut self) {
        self.packets.shrink_to_fit();
        self.requested.shrink_to_fit();
        self.voids.shrink_to_fit();
    }

    /// Packets of one channel are another's from now on.
    pub fn hand_over(&mut self, from: u32, to: u32) {
        self.packets.iter_mut().filter(|packet| packet.owner == from).for_each(|packet| packet.owner = to);
    }

    pub fn una(&self) -> u64 {
        self.una
    }

    /// The number that the next new packet gets.
    pub fn next(&self) -> u64 {
        self.una.wrapping_add(self.packets.len() as u64)
    }

    pub fn in_flight(&self) -> u64 {
        self.packets.len() as u64
    }

    /// Numbers a packet.
    pub fn push(&mut self, packet: Packet) -> u64 {
        self.unseen_bytes += if packet.transmitted { 0 } else { packet.payload.len() as u64 };
        self.packets.push_back(packet);
        self.next().wrapping_sub(1)
    }

    /// Payload that has a number and was never handed to the link.
    pub fn unseen_bytes(&self) -> u64 {
        self.unseen_bytes
    }

    /// The link has taken this packet. Gives its payload's length, and whether it had been sent before.
    pub fn took(&mut self, number: u64, now: Time) -> Option<(usize, bool)> {
        let packet = self.get_mut(number)?;
        packet.sent_at = now;
        let (bytes, again) = (packet.payload.len(), std::mem::replace(&mut packet.transmitted, true));
        self.unseen_bytes -= if again { 0 } else { bytes as u64 };
        if again && number == self.una {
            self.oldest_again = self.oldest_again.saturating_add(1);
        }
        Some((bytes, again))
    }

    /// How often the oldest packet that is not acknowledged has been sent again.
    pub fn oldest_again(&self) -> u32 {
        self.oldest_again
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Packet> {
        self.packets.get_mut(number.wrapping_sub(self.una) as usize)
    }

    pub fn get(&self, number: u64) -> Option<&Packet> {
        self.packets.get(number.wrapping_sub(self.una) as usize)
    }

    /// Everything that is not acknowledged.
    pub fn packets_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets.iter_mut()
    }

    /// Takes an acknowledgment of everything below `ack`, gives owners and payloads to `free`, and says how many packets that was. `None`: it acknowledges what was
    /// never sent, or is so old that it cannot be told from that.
    pub fn acknowledge(&mut self, ack: u64, mut free: impl FnMut(u32, Buffer)) -> Option<u64> {
        let count = ack.wrapping_sub(self.una);
        if count > self.packets.len() as u64 {
            // An old acknowledgment is below `una` by no more than a window.
            let behind = self.una.wrapping_sub(ack);
            return (behind <= crate::received::WINDOW_PACKETS).then_some(0);
        }
        if count == 0 {
            return Some(0);
        }
        // Looked at where they lie: moved out as a whole, what was just written in pieces would be read in others, and wait for the store buffer.
        for packet in self.packets.iter_mut().take(count as usize) {
            self.unseen_bytes -= if packet.transmitted { 0 } else { packet.payload.len() as u64 };
            if !packet.is_void() {
                free(packet.owner, std::mem::take(&mut packet.payload));
            }
        }
        for _ in 0..count {
            self.packets.pop_front();
        }
        (self.una, self.oldest_again) = (ack, 0);
        if self.packets.is_empty() {
            self.requested.clear();
            self.voids.clear();
            if self.packets.capacity() > QUIET_PACKETS {
                self.packets.shrink_to(QUIET_PACKETS);
                self.requested.shrink_to(QUIET_PACKETS);
            }
        }
        Some(count)
    }

    /// Whether so many numbers may be looked up now for who asks for them: a peer that names all of them in each packet makes no more work than one that needs them.
    pub fn may_look_up(&mut self, first: u64, count: u16, now: Time) -> bool {
        let begin = first.wrapping_sub(self.una) as i64;
        let end = begin.saturating_add(count.into()).min(self.in_flight() as i64);
        self.looks.may_look_at(end.saturating_sub(begin.max(0)).max(0) as u64, now)
    }

    /// The peer misses these numbers. What was never sent, is acknowledged or is already queued is passed over, and so is what was sent after `reached_by`: the
    /// request crossed it. Says how many were queued.
    pub fn request(&mut self, first: u64, count: u16, reached_by: Option<Time>) -> u64 {
        let mut queued = 0;
        let begin = first.wrapping_sub(self.una);
        // A range that begins below `una` has been overtaken by the acknowledgment.
        let mut offset = if begin > u64::MAX / 2 { 0u64.wrapping_sub(begin) } else { 0 };
        while offset < u64::from(count) {
            let number = first.wrapping_add(offset);
            let Some(packet) = self.get_mut(number) else { break };
            // One word says the same of a whole run.
            offset += u64::from(packet.void_run).max(1);
            let has_crossed = reached_by.is_some_and(|reached_by| packet.sent_at > reached_by);
            if packet.transmitted && !packet.requested && !has_crossed {
                packet.requested = true;
                match packet.is_void() {
                    true => self.voids.push(number),
                    false => self.requested.push_back(number),
                }
                queued += 1;
            }
        }
        queued
    }

    /// Over which paths those of these numbers that are not acknowledged went last.
    pub fn paths_of(&self, first: u64, count: u16) -> impl Iterator<Item = u8> + '_ {
        let begin = first.wrapping_sub(self.una);
        let (begin, skip) = if begin > u64::MAX / 2 { (0, 0u64.wrapping_sub(begin)) } else { (begin, 0) };
        let count = u64::from(count).saturating_sub(skip).min(self.in_flight());
        let packets = self.packets.iter().skip(begin as usize).take(count as usize);
        packets.filter(|packet| packet.transmitted && !packet.is_void()).map(|packet| packet.path)
    }

    /// Takes the next number to send again out of the queue.
    pub fn take_requested(&mut self) -> Option<u64> {
        while let Some(number) = self.requested.pop_front() {
            if let Some(packet) = self.get_mut(number).filter(|packet| !packet.is_void())
                && std::mem::replace(&mut packet.requested, false)
            {
                return Some(number);
            }
        }
        None
    }

    /// Whether what goes first is a refusal that no link has taken.
    pub fn begins_with_refusal(&self) -> bool {
        let first = self.requested.front().and_then(|&number| self.get(number));
        first.is_some_and(|packet| packet.owner == NOBODY && !packet.transmitted)
    }

    /// The link did not take these: they go first next time.
    pub fn put_back(&mut self, numbers: &[u64]) {
        for &number in numbers.iter().rev() {
            if let Some(packet) = self.get_mut(number)
                && !std::mem::replace(&mut packet.requested, true)
            {
                self.requested.push_front(number);
            }
        }
    }

    /// Gives everything to `free`: the association ends.
    pub fn clear(&mut self, free: impl FnMut(Packet)) {
        (self.una, self.unseen_bytes, self.oldest_again) = (self.next(), 0, 0);
        self.packets.drain(..).filter(|packet| !packet.is_void()).for_each(free);
        self.requested.clear();
        self.voids.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    fn sent(first: u64, count: usize) -> Sent {
        let mut pool = Pool::new(16, 1 << 20);
        let mut sent = Sent::starting_at(first);
        for _ in 0..count {
            let payload = pool.take().unwrap();
            sent.push(Packet { payload, transmitted: true, ..Packet::new(Type::Data, 0) });
        }
        sent
    }

    #[test]
    fn acknowledgments_free_in_order_across_the_wrap() {
        let mut sent = sent(u64::MAX - 1, 5);
        assert_eq!(sent.acknowledge(1, |_, _| ()), Some(3));
        assert_eq!(sent.acknowledge(u64::MAX, |_, _| ()), Some(0), "an old one");
        assert_eq!(sent.acknowledge(4, |_, _| ()), None, "never sent");
        assert_eq!((sent.una(), sent.next(), sent.in_flight()), (1, 3, 2));
    }

    #[test]
    fn a_request_resends_only_what_was_sent_and_is_not_acknowledged() {
        let mut sent = sent(10, 10);
        sent.acknowledge(12, |_, _| ());
        assert_eq!(sent.request(8, 6, None), 2, "12 and 13");
        assert_eq!(sent.request(13, 1, None), 0, "already queued");
        assert_eq!(sent.request(18, 600, None), 2, "18 and 19");
        let mut order: Vec<_> = std::iter::from_fn(|| sent.take_requested()).collect();
        sent.put_back(&order[1..]);
        order.truncate(1);
        order.extend(std::iter::from_fn(|| sent.take_requested()));
        assert_eq!(order, [12, 13, 18, 19]);
        assert_eq!(sent.request(13, 1, None), 1, "asked for again");
        sent.acknowledge(20, |_, _| ());
        assert_eq!(sent.take_requested(), None);
    }

    #[test]
    fn who_asks_for_everything_all_the_time_is_heard_now_and_then() {
        let mut sent = sent(10, 1000);
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let mut heard = |ms, first, count| (0..1000).filter(|_| sent.may_look_up(first, count, at(ms))).count();
        assert_eq!(heard(1000, 10, 1000), 65, "all there is at first");
        assert_eq!(heard(1000, 0, 10), 1000, "what was never sent costs nothing");
        assert_eq!(heard(1000, 1010, u16::MAX), 1000);
        assert_eq!(heard(1001, 0, 1010), 5, "5000 in a millisecond");
        assert_eq!(heard(2000, 1009, u16::MAX), 1000, "a single one each time");
    }

    #[test]
    fn what_was_sent_after_the_peer_asked_is_not_sent_again() {
        let mut sent = sent(10, 10);
        (15..20).for_each(|number| sent.get_mut(number).unwrap().sent_at = Time::from_nanos(2000));
        let asked_at = |ns| Some(Time::from_nanos(ns));
        assert_eq!(sent.request(12, 600, asked_at(1999)), 3, "12 to 14");
        assert_eq!(sent.request(12, 600, asked_at(2000)), 5, "15 to 19");
    }
}
