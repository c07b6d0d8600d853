//! Numbered packets: which ones an association sends in its turn, what was asked for and new ones as far as grants go (docs/protocol.md 4), and what a link took of them.

use std::io::IoSlice;

use ropeway_wire::{AbortFields, Backlog, Flags, Header, Type};

use super::output::{LinkFull, Turn};
use super::rounds::{enter_round, recount};
use super::{BATCH_PACKETS, Endpoint, Handling, Sink, Taken, Urgency};
use crate::answers;
use crate::association::Association;
use crate::config::Config;
use crate::sent::{NOBODY, Packet, Sent};
use crate::time::Time;

/// So many packets in a row, of many channels, leave with short headers before a control packet says what they leave out.
const MOST_UNSAID_PACKETS: u16 = 64;
/// Channels looked at in vain before an association's turn ends; those that wait for company have a timer.
const MOST_IDLE_CHANNELS: usize = 64;
/// Up to so many packets of a burst go before bulk data in the host's own queue.
const URGENT_PACKETS: usize = 2;

/// A few packets are urgent, but not behind bulk data of their own association: the receiver would take what they overtake for lost. What is sent again has been
/// overtaken already, unless it is asked for so late, `late_ns` after it was sent, that perhaps nothing behind it has come: if it stands in this host's own queue among bulk data, its repetition would overtake it,
/// and all of that would be asked for.
fn urgency(sent: &Sent, numbers: &[u64], late_ns: u64, now: Time) -> Urgency {
    let is_urgent = |&number: &u64| match sent.get(number).filter(|packet| packet.transmitted) {
        Some(packet) => now.since(packet.sent_at) < late_ns || sent.in_flight() <= URGENT_PACKETS as u64,
        None => !is_behind_bulk(sent, number),
    };
    if numbers.len() <= URGENT_PACKETS && numbers.iter().all(is_urgent) { Urgency::Urgent } else { Urgency::Bulk }
}

pub(super) fn is_behind_bulk(sent: &Sent, number: u64) -> bool {
    number.wrapping_sub(sent.una()) > URGENT_PACKETS as u64
}

impl Endpoint {
    /// Numbers to send now, a batch at most: what refuses channels first, then those asked for, then new ones.
    pub(super) fn collect(&mut self, now: Time, index: u32, numbers: &mut Vec<u64>) {
        let most = self.associations[index as usize].batch_packets();
        self.collect_refusals(now, index, numbers);
        while numbers.len() < most
            && let Some(number) = self.associations[index as usize].sent.take_requested()
        {
            numbers.push(number);
        }
        self.collect_endings(now, index, numbers);
        let mut allowance = self.associations[index as usize].allowance(now);
        // Channels looked at since the last one that had something: a whole round without any ends the search.
        let mut idle = 0;
        while numbers.len() < most && allowance > 0 {
            let association = &mut self.associations[index as usize];
            if idle > association.round.len().min(MOST_IDLE_CHANNELS) {
                break;
            }
            let Some(at) = association.round.pop_front() else { break };
            // Channels take turns; one alone has all of them.
            let in_turn = if association.round.is_empty() { allowance.min((most - numbers.len()) as u64) } else { 1 };
            match self.next_of_channel(now, index, at, in_turn, numbers) {
                0 => idle += 1,
                count => {
                    idle = 0;
                    allowance = self.associations[index as usize].allowance(now).min(allowance - count);
                }
            }
        }
        // The end behind the last data of a channel leaves with them.
        self.collect_endings(now, index, numbers);
        let association = &mut self.associations[index as usize];
        if association.round.is_empty() {
            association.flush = false;
        }
        association.note_limit(now);
    }

    /// What refuses a channel needs no grant, as what ends one.
    fn collect_refusals(&mut self, now: Time, index: u32, numbers: &mut Vec<u64>) {
        let association = &mut self.associations[index as usize];
        while numbers.len() < BATCH_PACKETS
            && association.window() > 0
            && let Some((channel, code)) = association.refusals.pop_front()
        {
            let mut bytes = [0; AbortFields::BYTES];
            let written = AbortFields { code }.write(&mut bytes).unwrap_or(0);
            let payload = self.tx_pool.exactly(&bytes[..written]);
            // Nothing was ever sent on that channel from here, so nothing has to come before it.
            let packet = Packet { channel, payload, ..Packet::new(Type::Abort, NOBODY) };
            numbers.push(number_packet(association, packet, now, &self.config));
        }
    }

    /// What ends a channel needs no grant: closing must not wait behind other people's transfers. The receiver's window bounds it all the
    /// same.
    fn collect_endings(&mut self, now: Time, index: u32, numbers: &mut Vec<u64>) {
        while numbers.len() < BATCH_PACKETS {
            let association = &mut self.associations[index as usize];
            if association.window() == 0 {
                return;
            }
            let Some(at) = association.ending.pop_front() else { return };
            self.number_next(now, index, at, 1, numbers);
        }
    }

    /// Gives numbers to the next payloads of a channel that came up in the round, `most` of them, unless they wait for company. Says how many that were.
    fn next_of_channel(&mut self, now: Time, index: u32, at: u32, most: u64, numbers: &mut Vec<u64>) -> u64 {
        let association = &mut self.associations[index as usize];
        let channel = &mut self.channels[at as usize];
        // Full packets in front of a partial one wait with it: it decides when all of what was written is there. But not once the batch has begun.
        let payload_bytes = association.payload_bytes;
        let partial = !channel.outgoing.no_delay
            && match association.new_at >= self.turn_at {
                true => channel.outgoing.is_one_partial(payload_bytes),
                false => channel.outgoing.is_small_batch(payload_bytes),
            };
        let hold_until = association.new_at.after(self.config.coalesce_ns);
        if partial && !association.flush && association.sent.in_flight() > 0 && hold_until > now {
            association.flush_at = Some(hold_until);
            association.round.push_back(at);
            return 0;
        }
        self.number_next(now, index, at, most, numbers)
    }

    /// Gives numbers to the next payloads of a channel that has been taken out of its line, `most` of them as long as others follow, and puts it back if it has more. Says how many
    /// that were.
    fn number_next(&mut self, now: Time, index: u32, at: u32, most: u64, numbers: &mut Vec<u64>) -> u64 {
        let association = &mut self.associations[index as usize];
        let channel = &mut self.channels[at as usize];
        channel.outgoing.scheduled = false;
        let mut count = 0;
        while let Some(unsent) = channel.outgoing.pop_sendable(association.payload_bytes, &mut self.tx_pool) {
            count += 1;
            // The sums over what is queued are brought up to date for the last of them: before it there is more to come, and that is all that they are asked.
            let is_followed = count < most && channel.outgoing.goes_on();
            if !is_followed && recount(association, channel) {
                enter_round(association, channel, at);
            }
            // Everything below `una` is acknowledged: the channel's last number counts only if it is not. The window keeps the distance within 16 bits.
            let next = association.sent.next();
            let back = channel.outgoing.last_number.map_or(0, |last| next.wrapping_sub(last) as u16);
            channel.outgoing.last_number = Some(next);
            let packet = Packet {
                is_short: unsent.payload.len() > association.payload_bytes,
                flags: unsent.flags,
                channel: channel.number,
                back,
                payload: unsent.payload,
                ..Packet::new(unsent.kind, at)
            };
            numbers.push(number_packet(association, packet, now, &self.config));
            if !is_followed {
                break;
            }
        }
        count
    }

    /// Sends the packets with these numbers, `MOST` at most.
    pub(super) fn transmit_data<const MOST: usize>(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        numbers: &[u64],
        sink: &mut Sink<'_, Taken>,
    ) -> Result<Turn, LinkFull> {
        let association = &mut self.associations[index as usize];
        let template = association.header(Type::Data, 0, first_flight, &self.config, now);
        // What follows in the same batch has not left when this packet does: the receiver takes what is announced for what is still to come.
        let mut to_come = association.backlog_bytes + association.sent.unseen_bytes();
        if !association.open_sealed(numbers) {
            return Ok(Turn::Finished);
        }
        let is_keyed = association.sealing.is_keyed();
        for &number in numbers {
            let Some(packet) = association.sent.get_mut(number) else { continue };
            to_come -= if packet.transmitted { 0 } else { packet.payload.len() as u64 };
            let backlog = Backlog::from_bytes(to_come);
            let mut flags = packet.flags;
            flags.set(Flags::ECHO, template.flags.contains(Flags::ECHO) && !packet.is_short);
            flags.set(Flags::RTX, packet.transmitted);
            let length = packet.payload.len() as u16;
            let Packet { kind, is_short, channel, back, .. } = *packet;
            let number = number as u32;
            let header = Header { kind, is_short, flags, length, number, channel, back, backlog, ..template };
            debug_assert_eq!(header.bytes(), packet.header_bytes());
            // The headroom was made for it.
            let _ = header.write(packet.header_mut(is_keyed));
        }
        let ready = association.seal_packets(now, numbers);
        let mut slices = [IoSlice::new(&[]); MOST];
        for (slice, &number) in slices.iter_mut().zip(&numbers[..ready]) {
            if let Some(packet) = association.sent.get(number) {
                *slice = IoSlice::new(packet.bytes());
            }
        }
        let urgency = urgency(&association.sent, numbers, association.late_ns(&self.config), now);
        let handling =
            Handling { urgency, presence: association.presence(&association.path, &self.config, self.awake_at, now) };
        let taken = if ready > 0 { sink(&association.path, handling, &slices[..ready]) } else { Taken::default() };
        let accepted = taken.packets.min(ready);
        let (mut resent, mut bytes) = (0, 0);
        for (length, again) in numbers[..accepted].iter().filter_map(|&number| association.sent.took(number, now)) {
            resent += u64::from(again);
            bytes += length as u64;
        }
        association.counters.resent += resent;
        self.counters.resent += resent;
        self.counters.payload_sent_bytes += bytes;
        association.sent.put_back(&numbers[accepted..]);
        if ready > 0 {
            association.note_link_did(taken, self.awake_at, now, &self.config);
            self.queues.of_mut(&association.path).note_link_did(taken, now);
        }
        association.counters.packets_sent += accepted as u64;
        self.counters.packets_sent += accepted as u64;
        let says = |number: &u64| association.sent.get(*number).is_some_and(|packet| !packet.is_short);
        if numbers[..accepted].iter().any(says) {
            association.said(&self.config, now);
        }
        if accepted < ready {
            Err(LinkFull { place: self.queues.place(&association.path) })
        } else if numbers.len() >= association.batch_packets() {
            Ok(Turn::More)
        } else {
            Ok(Turn::Finished)
        }
    }
}

/// Appends a packet to what has been sent, with the marks of the busy period. Fixed from here on.
fn number_packet(association: &mut Association, mut packet: Packet, now: Time, config: &Config) -> u64 {
    association.answers.answered(now, || answers::delay_ns(config, &association.rtt));
    if association.sent.in_flight() == 0 {
        association.waiting_since = now;
    }
    let begins = !std::mem::replace(&mut association.busy, true);
    if begins {
        packet.flags.insert(Flags::TXS);
    }
    if packet.is_short {
        association.unsaid_packets = association.unsaid_packets.saturating_add(1);
        // A control packet says how much waits, and when it was: a channel that had no credit goes on in the middle of its packets, and those of many channels can
        // follow each other.
        association.ack_due |= begins || association.unsaid_packets >= MOST_UNSAID_PACKETS;
    }
    let is_last = association.backlog_bytes == 0;
    if is_last {
        packet.flags.insert(Flags::TXF);
    }
    association.new_at = now;
    let number = association.sent.push(packet);
    if is_last {
        // What is left of the grant goes back: the receiver sees the mark and charges it no longer.
        association.lease.give_back(number.wrapping_add(1));
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_stand_in_the_hosts_own_queue_is_not_overtaken_by_its_repetition() {
        let (late_ns, sent_at) = (500_000, Time::from_nanos(1_000_000_000));
        let again = |in_flight: u64, after_ns| {
            let mut sent = Sent::starting_at(7);
            for _ in 0..in_flight {
                let number = sent.push(Packet::new(Type::Data, NOBODY));
                sent.took(number, sent_at);
            }
            urgency(&sent, &[7], late_ns, sent_at.after(after_ns))
        };
        assert_eq!(again(20, 100_000), Urgency::Urgent, "something behind it has come");
        assert_eq!(again(20, 500_000), Urgency::Bulk, "it was asked for as nothing comes");
        assert_eq!(again(2, 500_000), Urgency::Urgent, "it was no bulk");
    }
}
