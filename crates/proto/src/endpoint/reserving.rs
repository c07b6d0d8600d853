//! Memory for messages longer than their channel's window, and for those that have begun and find none (docs/protocol.md 7): who gets it, and who has it for nothing.

use std::collections::BTreeSet;

use ropeway_wire::ErrorCode;

use super::Endpoint;
use crate::channel::{ChannelId, UNUSED_SHARE};
use crate::time::Time;

/// Stands in the list of timers for the looks at who has such memory; there are fewer associations.
pub(super) const RESERVED: u32 = u32::MAX - 2;
/// While somebody wants memory, who has some is looked at so often in the time that it may leave it unused.
const LOOKS: u64 = 8;
/// Who brings less than this part of what was missing in that time has it for nothing, too. So nobody waits for one message longer than so many times `give_up`; and of the longest one with the
/// usual settings it is a megabyte in ten seconds, which any network of a cluster brings.
pub(super) const LEAST_SHARE: u64 = 64;

/// So many more buffers are set aside than what is missing of a message fills: what brings its end is not divided.
const LEAST_SPARE: usize = 2;

/// Messages that have memory of what is left for those who keep little leave this share of it.
const LEFT_SHARE: usize = 2;

/// So many of those in line are looked at when somebody gives memory back: a peer may have thousands there. All are looked at when those with memory are.
const MOST_LOOKED_AT: usize = 64;

/// Channels that stand in line and are gone, at most, beside as many as there are: a peer opens and ends some as often as it likes.
const MOST_GONE: usize = 64;

/// A channel with memory for a message.
#[derive(Debug)]
pub(super) struct Reserved {
    pub channel: ChannelId,
    /// What has to come in the time that it may leave its memory unused.
    least_bytes: u64,
    /// When that time began, and what had come by then; none: nobody has looked.
    since: Option<Time>,
    received_bytes: u64,
}

impl Reserved {
    pub fn new(channel: ChannelId, missing_bytes: u64) -> Reserved {
        Reserved { channel, least_bytes: missing_bytes.div_ceil(LEAST_SHARE), since: None, received_bytes: 0 }
    }
}

impl Endpoint {
    /// A channel waits for memory, behind those that do already.
    pub(super) fn stand_in_line(&mut self, id: ChannelId) {
        if self.reservations.len() >= self.channels.len() + MOST_GONE {
            let mut line = std::mem::take(&mut self.reservations);
            line.retain(|&id| self.waits_in_line(id).is_some());
            self.reservations = line;
        }
        self.reservations.push_back(id);
        self.grant_reservations();
        let Some(at) = self.waits_in_line(id) else { return };
        if self.may_have_what_is_left(at, &self.holders_of_the_last()) {
            self.reservations.pop_back();
            self.reserve(id, at, true);
        } else {
            self.claim(at);
        }
    }

    /// A packet of a channel found no memory, and it was its turn. Whoever else has begun a message may need the same memory for its end, and none of it is free before one of them is read.
    pub(super) fn want_memory(&mut self, index: u32, number: u16) {
        let Some(at) = self.associations[index as usize].channel(number) else { return };
        let channel = &mut self.channels[at as usize];
        if channel.queued_in.is_none() && channel.incoming.stands_in_line() {
            let id = ChannelId { index: at, generation: channel.generation };
            self.stand_in_line(id);
        }
    }

    /// What becomes free is kept for who waits for most of it. Otherwise those who go on, and the beginnings of messages that wait, would take it piece by piece. Nothing for who has enough, and
    /// waits for its turn.
    fn claim(&mut self, at: u32) {
        let buffers = self.buffers_needed(at);
        if !self.rx_pool.can_set_aside(buffers) {
            self.rx_pool.claimed = self.rx_pool.claimed.max(self.rx_pool.claim_of(buffers));
        }
    }

    /// The index of a channel that waits for memory.
    fn waits_in_line(&self, id: ChannelId) -> Option<u32> {
        let waits = |at: &u32| {
            let channel = &self.channels[*at as usize];
            !channel.detached && channel.incoming.reserving
        };
        self.channel_index(id).filter(waits)
    }

    /// Lets messages that wait for memory come, one after the other as memory for all of each becomes free: two that do not fit together do not wait for each other.
    pub(super) fn grant_reservations(&mut self) {
        while let Some(&id) = self.reservations.front() {
            if let Some(at) = self.waits_in_line(id) {
                if !self.fits(at) {
                    return;
                }
                self.reserve(id, at, !self.is_for_all(at));
            }
            self.reservations.pop_front();
        }
        self.rx_pool.claimed = 0;
    }

    /// Where nobody has memory for a message, and there is none for the first in line, somebody behind it may be content with less: what there is of that message already will be free with the rest of it.
    /// Looks at `most` of those in line.
    fn let_pass(&mut self, most: usize) {
        let is_last_lent = self.rx_pool.of_part_bytes > 0 && self.left_bytes() <= self.kept_back_bytes();
        if is_last_lent && !self.reserved.is_empty() {
            return;
        }
        let mut holders = self.holders_of_the_last();
        let mut place = 0;
        for _ in 0..most {
            let Some(&id) = self.reservations.get(place) else { return };
            let passes = |at: u32| self.passes(at, &holders).map(|of_part| (at, of_part));
            let Some((at, of_part)) = self.waits_in_line(id).and_then(passes) else {
                place += 1;
                continue;
            };
            self.reservations.remove(place);
            self.reserve(id, at, of_part);
            let channel = &self.channels[at as usize];
            if channel.incoming.is_of_part() {
                holders.insert(channel.association);
            }
        }
    }

    /// Whether a message can come before those in front of it, and then whether it has memory of what is for those who keep little.
    fn passes(&self, at: u32, holders: &BTreeSet<u32>) -> Option<bool> {
        if self.reserved.is_empty() && self.fits(at) {
            return Some(!self.is_for_all(at));
        }
        self.may_have_what_is_left(at, holders).then_some(true)
    }

    /// What is left for those who keep little, but for what messages have of it.
    fn left_bytes(&self) -> usize {
        let last_bytes = self.rx_pool.last_bytes().saturating_sub(self.rx_pool.of_part_bytes);
        self.rx_pool.available_bytes().min(last_bytes)
    }

    /// What of that they leave to others.
    fn kept_back_bytes(&self) -> usize {
        self.rx_pool.last_bytes() / LEFT_SHARE
    }

    /// The associations of messages that have memory of what is for those who keep little.
    fn holders_of_the_last(&self) -> BTreeSet<u32> {
        let channels = self.reserved.iter().map(|reserved| &self.channels[reserved.channel.index as usize]);
        channels.filter(|channel| channel.incoming.is_of_part()).map(|channel| channel.association).collect()
    }

    /// Whether a message can have memory of what is left for those who keep little, whatever its association keeps, beside those `holders`: one message of an association at a time, as who does not read
    /// must not have all of it. When it is read all of its memory is free again, and so there is some for the next one. That is so much and no more also while there is more: the first in line
    /// waits for that.
    fn may_have_what_is_left(&self, at: u32, holders: &BTreeSet<u32>) -> bool {
        let channel = &self.channels[at as usize];
        if channel.queued_in.is_some() || holders.contains(&channel.association) {
            return false;
        }
        let needed_bytes = self.buffers_needed(at) * self.rx_pool.buffer_bytes();
        // Of beginnings that fit their windows, and of which none can end, one has to, and nothing else will be free before.
        let is_first = holders.is_empty() && channel.incoming.shortage(self.receive_window()) == 0;
        is_first && needed_bytes <= self.rx_pool.available_bytes()
            || needed_bytes + self.kept_back_bytes() <= self.left_bytes()
    }

    /// Buffers that what is missing of the message at hand will take, in packets of whatever size.
    fn buffers_needed(&self, at: u32) -> usize {
        let room = self.rx_pool.payload_bytes();
        let held_bytes = (room - room / UNUSED_SHARE) as u64;
        let buffers = self.channels[at as usize].incoming.unfinished_bytes().div_ceil(held_bytes) as usize;
        // More than that is never free for it.
        (buffers + LEAST_SPARE).min(self.rx_pool.limit_packets() * 3 / 4)
    }

    /// Whether there is enough for the message at hand of a channel beside what is for those who keep little.
    fn is_for_all(&self, at: u32) -> bool {
        self.rx_pool.can_set_aside(self.buffers_needed(at))
    }

    /// Whether the message at hand of a channel can have the memory that it needs now, if it needs any.
    fn fits(&self, at: u32) -> bool {
        let channel = &self.channels[at as usize];
        let wanted_bytes = channel.incoming.wants_set_aside(self.receive_window());
        if wanted_bytes == 0 {
            return true;
        }
        let buffers = self.buffers_needed(at);
        let is_within_half = self.rx_pool.reserved_bytes == 0
            || self.rx_pool.reserved_bytes + wanted_bytes <= self.rx_pool.limit_bytes() as u64 / 2;
        is_within_half && (self.rx_pool.can_set_aside(buffers) || self.is_of_its_part(channel.association, buffers))
    }

    /// Whether so much may come of what is for those who keep little.
    fn is_of_its_part(&self, index: u32, buffers: usize) -> bool {
        let bytes = buffers * self.rx_pool.buffer_bytes();
        let kept_bytes = self.associations[index as usize].kept.as_deref().map_or(0, |kept| kept.bytes);
        bytes <= self.rx_pool.available_bytes() && kept_bytes + bytes as u64 <= self.part_of_the_last()
    }

    /// Lets a message come, with memory set aside for it if it needs that, `of_part` of what is for those who keep little.
    fn reserve(&mut self, id: ChannelId, at: u32, of_part: bool) {
        let (window, buffers) = (self.receive_window(), self.buffers_needed(at));
        let channel = &mut self.channels[at as usize];
        let wanted_bytes = channel.incoming.wants_set_aside(window);
        channel.incoming.reserving = false;
        if wanted_bytes == 0 {
            channel.incoming.allow_message(0, 0, false, &mut self.rx_pool);
            return self.say_credit(at);
        }
        if of_part {
            let bytes = (buffers * self.rx_pool.buffer_bytes()) as u64;
            self.associations[channel.association as usize].kept.get_or_insert_default().bytes += bytes;
        }
        channel.incoming.allow_message(wanted_bytes, buffers, of_part, &mut self.rx_pool);
        self.reserved.push(Reserved::new(id, channel.incoming.lacking_bytes()));
        self.say_credit(at);
    }

    /// Memory set aside for a long message of this channel goes to the next in line.
    pub(super) fn release_reservation(&mut self, index: u32) {
        self.release_reservations(std::iter::once(index));
    }

    /// The same for several, as if they had all given it back at once.
    pub(super) fn release_reservations(&mut self, channels: impl Iterator<Item = u32>) {
        let (mut waited, mut had_some) = (false, false);
        for at in channels {
            let incoming = &mut self.channels[at as usize].incoming;
            waited |= std::mem::take(&mut incoming.reserving);
            had_some |= incoming.take_reservation(&mut self.rx_pool);
        }
        if had_some {
            let channels = &self.channels;
            self.reserved.retain(|reserved| channels[reserved.channel.index as usize].incoming.has_reservation());
        }
        if had_some || waited {
            self.grant_reservations();
        }
        if had_some {
            self.let_pass(MOST_LOOKED_AT);
        }
    }

    /// Whether others want memory that messages have: those in line, or, of what is for those who keep little, anybody.
    fn is_wanted(&self) -> bool {
        !self.reservations.is_empty() || self.is_last_wanted()
    }

    fn is_last_wanted(&self) -> bool {
        self.rx_pool.of_part_bytes > 0 && self.rx_pool.is_short()
    }

    /// Sees to it that those with memory are looked at while others want it.
    pub(super) fn watch_reserved(&mut self, now: Time) {
        if !self.is_wanted() || std::mem::replace(&mut self.reserved_stand_in_timers, true) {
            return;
        }
        self.timers.insert((now.after(self.config.give_up_ns / LOOKS), RESERVED));
        // What was before that nobody has watched.
        self.reserved.iter_mut().for_each(|reserved| reserved.since = None);
    }

    /// Ends channels whose messages do not come, or hardly, though nothing here keeps them, until nobody wants their memory.
    pub(super) fn end_unused_reservations(&mut self, now: Time) {
        let mut unused = Vec::new();
        for at in 0..self.reserved.len() {
            let since = self.look_at_reserved(at, now);
            if now.since(since.max(self.awake_at)) >= self.config.give_up_ns {
                unused.push((since, self.reserved[at].channel.index));
            }
        }
        unused.sort_unstable();
        for (_, at) in unused {
            let is_of_part = self.channels[at as usize].incoming.is_of_part();
            if self.reservations.is_empty() && !(is_of_part && self.is_last_wanted()) {
                continue;
            }
            self.counters.timeouts += 1;
            self.abort_channel(at, ErrorCode::Timeout);
        }
        // Memory may have become free without a word, and who wanted most of it may be gone.
        self.rx_pool.claimed = 0;
        self.grant_reservations();
        self.let_pass(usize::MAX);
        let waiting: Vec<_> = self.reservations.iter().filter_map(|&id| self.waits_in_line(id)).collect();
        waiting.into_iter().for_each(|at| self.claim(at));
        self.reserved_stand_in_timers = self.is_wanted();
        if self.reserved_stand_in_timers {
            self.timers.insert((now.after(self.config.give_up_ns / LOOKS), RESERVED));
        }
    }

    /// Notes whether enough of a message has come, or could not for reasons that are this end's: then its time begins anew. Says when it began.
    fn look_at_reserved(&mut self, at: usize, now: Time) -> Time {
        let reserved = &mut self.reserved[at];
        let channel = &self.channels[reserved.channel.index as usize];
        let received_bytes = channel.incoming.received_bytes();
        // What is whole waits for a reader, and its association may be gone.
        let is_kept = channel.incoming.lacking_bytes() == 0 || self.gate.withholds(channel.association);
        let comes = received_bytes >= reserved.received_bytes + reserved.least_bytes;
        match reserved.since.filter(|_| !is_kept && !comes) {
            Some(since) => since,
            None => {
                (reserved.received_bytes, reserved.since) = (received_bytes, Some(now));
                now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ropeway_wire::Mode;

    use super::*;
    use crate::config::Config;
    use crate::endpoint::Path;

    const PATHS: [Path; 2] = [Path([1; Path::BYTES]), Path([2; Path::BYTES])];
    static LONG: [u8; 2_000_000] = [7; 2_000_000];

    /// Until nobody has anything to say at this moment.
    fn talk(ends: &mut [Endpoint; 2], now: Time) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for from in 0..2 {
                let mut packets = Vec::new();
                ends[from].transmit(now, &mut |_, _, batch| {
                    packets.extend(batch.iter().map(|packet| packet.to_vec()));
                    batch.len()
                });
                for packet in &packets {
                    ends[1 - from].handle_packet(now, &PATHS[from], false, packet);
                }
                ends[1 - from].finish_batch(now);
                is_quiet &= packets.is_empty();
            }
        }
    }

    /// The same for so many steps of time.
    fn pass(ends: &mut [Endpoint; 2], now: &Cell<Time>, steps: u64, step_ns: u64) {
        for _ in 0..steps {
            now.set(now.get().after(step_ns));
            ends.iter_mut().for_each(|end| end.handle_timeout(now.get()));
            talk(ends, now.get());
        }
    }

    #[test]
    fn channels_that_are_opened_and_ended_all_the_time_do_not_fill_the_line() {
        let config = Config { receive_memory_bytes: 4 << 20, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Time::from_nanos(1_000_000_000);
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        let begin = |ends: &mut [Endpoint; 2], bytes: usize| {
            let channel = ends[0].connect(now, &PATHS[1], 7, Mode::Messages).unwrap();
            talk(ends, now);
            let _ = ends[0].send(now, channel, &LONG[..bytes]);
            talk(ends, now);
            channel
        };
        // The first has all there is for long messages, and nobody reads it.
        begin(&mut ends, LONG.len());
        assert!(ends[1].rx_pool.reserved_bytes > 0);
        let waiting = begin(&mut ends, 500_000);
        for _ in 0..3 * MOST_GONE {
            let channel = begin(&mut ends, 500_000);
            ends[0].abort(now, channel);
            talk(&mut ends, now);
        }
        let (_, channels) = ends[1].sizes();
        assert_eq!(channels, 2);
        assert!((2..=channels + MOST_GONE + 1).contains(&ends[1].reservations.len()), "{}", ends[1].reservations.len());
        assert_eq!(ends[1].reservations.front().and_then(|&id| ends[1].waits_in_line(id)), Some(1), "{waiting:?}");
    }

    #[test]
    fn who_needs_less_goes_first_where_there_is_not_enough_for_the_first_in_line() {
        let config = Config { receive_memory_bytes: 1 << 20, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Cell::new(Time::from_nanos(1_000_000_000));
        let pass = |ends: &mut [Endpoint; 2]| pass(ends, &now, 20, 1_000_000);
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        ends[1].listen(8, Mode::Stream, 8).unwrap();
        let mut out = vec![0; LONG.len()];
        let begin = |ends: &mut [Endpoint; 2], bytes: usize| {
            let channel = ends[0].connect(now.get(), &PATHS[1], 7, Mode::Messages).unwrap();
            pass(ends);
            let _ = ends[0].send(now.get(), channel, &LONG[..bytes]);
            pass(ends);
            ends[1].accept(7).unwrap()
        };
        // What nobody reads leaves no room for a message of half the memory.
        let streams = [0; 12].map(|_| {
            let channel = ends[0].connect(now.get(), &PATHS[1], 8, Mode::Stream).unwrap();
            pass(&mut ends);
            let _ = ends[0].send(now.get(), channel, &LONG[..30_000]);
            pass(&mut ends);
            ends[1].accept(8).unwrap()
        });
        let reader = begin(&mut ends, 300_000);
        let long = begin(&mut ends, 500_000);
        // As for who keeps little: here all is of one association.
        ends[1].rx_pool.claimed = 0;
        let short = begin(&mut ends, 200_000);
        let has_memory =
            |ends: &[Endpoint; 2]| ends[1].reserved.iter().map(|reserved| reserved.channel).collect::<Vec<_>>();
        assert_eq!((has_memory(&ends), ends[1].reservations.len()), (vec![reader], 2));
        let read = |ends: &mut [Endpoint; 2], channel, out: &mut [u8]| {
            let received = ends[1].recv(channel, out);
            pass(ends);
            received
        };
        assert_eq!(read(&mut ends, reader, &mut out), Ok(Some(300_000)));
        assert_eq!((has_memory(&ends), ends[1].reservations.len()), (vec![short], 1));
        assert_eq!(read(&mut ends, short, &mut out), Ok(Some(200_000)));
        assert_eq!((has_memory(&ends), ends[1].reservations.len()), (vec![], 1));
        for stream in streams {
            read(&mut ends, stream, &mut out).unwrap();
        }
        assert_eq!((has_memory(&ends), ends[1].reservations.len(), ends[1].rx_pool.claimed), (vec![long], 0, 0));
        assert_eq!(read(&mut ends, long, &mut out), Ok(Some(500_000)));
        assert_eq!((ends[1].rx_pool.reserved_bytes, ends[1].rx_pool.set_aside), (0, 0));
    }

    #[test]
    fn who_stands_behind_many_in_line_is_come_to_when_those_with_memory_are_looked_at() {
        // Of each message that waits so much comes that there is no room for one of half the memory.
        let config = Config { receive_memory_bytes: 1 << 20, receive_buffer_bytes: 32 << 10, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Cell::new(Time::from_nanos(1_000_000_000));
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        let settle = |ends: &mut [Endpoint; 2]| {
            for _ in 0..10 {
                // As for who keeps little: here all is of one association.
                ends[1].rx_pool.claimed = 0;
                pass(ends, &now, 1, 1_000_000);
            }
        };
        let begin = |ends: &mut [Endpoint; 2], bytes: usize| {
            let channel = ends[0].connect(now.get(), &PATHS[1], 7, Mode::Messages).unwrap();
            settle(ends);
            let _ = ends[0].send(now.get(), channel, &LONG[..bytes]);
            settle(ends);
            ends[1].accept(7).unwrap()
        };
        let reader = begin(&mut ends, 250_000);
        (0..MOST_LOOKED_AT).for_each(|_| _ = begin(&mut ends, 500_000));
        let short = begin(&mut ends, 150_000);
        assert_eq!((ends[1].reserved.len(), ends[1].reservations.len()), (1, MOST_LOOKED_AT + 1));
        assert_eq!(ends[1].recv(reader, &mut vec![0; 250_000]), Ok(Some(250_000)));
        assert_eq!((ends[1].reserved.len(), ends[1].reservations.len()), (0, MOST_LOOKED_AT + 1));
        pass(&mut ends, &now, LOOKS, config.give_up_ns / LOOKS / LOOKS);
        assert_eq!(ends[1].reserved.iter().map(|reserved| reserved.channel).collect::<Vec<_>>(), [short]);
    }

    #[test]
    fn nothing_is_kept_for_who_waits_for_its_turn_alone_until_others_use_what_it_needs() {
        let config = Config { receive_memory_bytes: 1 << 20, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Cell::new(Time::from_nanos(1_000_000_000));
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        ends[1].listen(8, Mode::Stream, 8).unwrap();
        let begin = |ends: &mut [Endpoint; 2], port: u16, mode: Mode, bytes: usize| {
            let channel = ends[0].connect(now.get(), &PATHS[1], port, mode).unwrap();
            pass(ends, &now, 20, 1_000_000);
            let _ = ends[0].send(now.get(), channel, &LONG[..bytes]);
            pass(ends, &now, 20, 1_000_000);
            ends[1].accept(port).unwrap()
        };
        // Together they are more than half of the memory, and there is enough for both.
        begin(&mut ends, 7, Mode::Messages, 300_000);
        let waiting = begin(&mut ends, 7, Mode::Messages, 360_000);
        assert_eq!((ends[1].reserved.len(), ends[1].reservations.front()), (1, Some(&waiting)));
        assert_eq!(ends[1].rx_pool.claimed, 0);
        for _ in 0..8 {
            begin(&mut ends, 8, Mode::Stream, 30_000);
        }
        pass(&mut ends, &now, LOOKS, config.give_up_ns / LOOKS);
        assert!(ends[1].rx_pool.claimed > 0);
    }

    #[test]
    fn an_association_ends_while_some_of_its_channels_wait_for_the_memory_of_others() {
        let config = Config { receive_memory_bytes: 1 << 20, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Time::from_nanos(1_000_000_000);
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        for _ in 0..2 {
            let channel = ends[0].connect(now, &PATHS[1], 7, Mode::Messages).unwrap();
            talk(&mut ends, now);
            let _ = ends[0].send(now, channel, &LONG[..500_000]);
            talk(&mut ends, now);
        }
        assert_eq!((ends[1].reserved.len(), ends[1].reservations.len()), (1, 1));
        let (index, _) = ends[1].associations.iter().next().unwrap();
        ends[1].end_association(index as u32, ErrorCode::Timeout);
        assert_eq!((ends[1].rx_pool.reserved_bytes, ends[1].reservations.len(), ends[1].sizes().0), (0, 0, 0));
    }
}
