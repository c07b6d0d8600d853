//! Memory for messages longer than their channel's window (docs/protocol.md 7): who gets it, and who has it for nothing.

use ropeway_wire::ErrorCode;

use super::Endpoint;
use crate::channel::ChannelId;
use crate::time::Time;

/// Stands in the list of timers for the looks at who has such memory; there are fewer associations.
pub(super) const RESERVED: u32 = u32::MAX - 2;
/// While somebody waits for memory, who has some is looked at so often in the time that it may leave it unused.
const LOOKS: u64 = 8;
/// Who brings less than this part of what was missing in that time has it for nothing, too. So nobody waits for one message longer than so many times `give_up`; and of the longest one with the
/// usual settings it is a megabyte in ten seconds, which any network of a cluster brings.
pub(super) const LEAST_SHARE: u64 = 64;

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
    }

    /// The index of a channel that waits for memory.
    fn waits_in_line(&self, id: ChannelId) -> Option<u32> {
        let waits = |at: &u32| {
            let channel = &self.channels[*at as usize];
            !channel.detached && channel.incoming.reserving
        };
        self.channel_index(id).filter(waits)
    }

    /// Lets messages longer than their channel's window come, one after the other as memory allows: the first in the queue always gets
    /// through, so two that do not fit together do not wait for each other.
    pub(super) fn grant_reservations(&mut self) {
        let window = self.receive_window();
        while let Some(&id) = self.reservations.front() {
            let Some(at) = self.waits_in_line(id) else {
                self.reservations.pop_front();
                continue;
            };
            let channel = &mut self.channels[at as usize];
            let shortage = channel.incoming.shortage(window);
            let fits =
                self.reserved_bytes == 0 || self.reserved_bytes + shortage <= self.rx_pool.limit_bytes() as u64 / 2;
            if shortage > 0 && !fits {
                return;
            }
            self.reservations.pop_front();
            channel.incoming.reserving = false;
            self.reserved_bytes += shortage;
            channel.incoming.allow_message(shortage, &mut self.rx_pool);
            if shortage > 0 {
                self.reserved.push(Reserved::new(id, channel.incoming.lacking_bytes()));
            }
            self.say_credit(at);
        }
    }

    /// Memory set aside for a long message of this channel goes to the next in line.
    pub(super) fn release_reservation(&mut self, index: u32) {
        let incoming = &mut self.channels[index as usize].incoming;
        let waited = std::mem::take(&mut incoming.reserving);
        let bytes = incoming.take_reservation();
        self.reserved_bytes -= bytes;
        if bytes > 0 {
            self.reserved.retain(|reserved| reserved.channel.index != index);
        }
        if bytes > 0 || waited {
            self.grant_reservations();
        }
    }

    /// Sees to it that those with memory are looked at while others wait for it.
    pub(super) fn watch_reserved(&mut self, now: Time) {
        if self.reservations.is_empty() || std::mem::replace(&mut self.reserved_stand_in_timers, true) {
            return;
        }
        self.timers.insert((now.after(self.config.give_up_ns / LOOKS), RESERVED));
        // What was before that nobody has watched.
        self.reserved.iter_mut().for_each(|reserved| reserved.since = None);
    }

    /// Ends channels whose messages do not come, or hardly, though nothing here keeps them, until nobody waits for their memory.
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
            if self.reservations.is_empty() {
                break;
            }
            self.counters.timeouts += 1;
            self.abort_channel(at, ErrorCode::Timeout);
        }
        self.reserved_stand_in_timers = !self.reservations.is_empty();
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
        let is_kept = channel.incoming.lacking_bytes() == 0
            || self.gate.withholds(channel.association)
            || self.rx_pool.is_exhausted();
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
    use ropeway_wire::Mode;

    use super::*;
    use crate::config::Config;
    use crate::endpoint::Path;

    const PATHS: [Path; 2] = [Path([1; Path::BYTES]), Path([2; Path::BYTES])];
    static LONG: [u8; 500_000] = [7; 500_000];

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

    #[test]
    fn channels_that_are_opened_and_ended_all_the_time_do_not_fill_the_line() {
        let config = Config { receive_memory_bytes: 1 << 20, ..Config::default() };
        let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
        let now = Time::from_nanos(1_000_000_000);
        ends[1].listen(7, Mode::Messages, 8).unwrap();
        let begin = |ends: &mut [Endpoint; 2]| {
            let channel = ends[0].connect(now, &PATHS[1], 7, Mode::Messages).unwrap();
            talk(ends, now);
            let _ = ends[0].send(now, channel, &LONG);
            talk(ends, now);
            channel
        };
        // The first has all there is for long messages, and nobody reads it.
        begin(&mut ends);
        assert!(ends[1].reserved_bytes > 0);
        let waiting = begin(&mut ends);
        for _ in 0..3 * MOST_GONE {
            let channel = begin(&mut ends);
            ends[0].abort(now, channel);
            talk(&mut ends, now);
        }
        let (_, channels) = ends[1].sizes();
        assert_eq!(channels, 2);
        assert!((2..=channels + MOST_GONE + 1).contains(&ends[1].reservations.len()), "{}", ends[1].reservations.len());
        assert_eq!(ends[1].reservations.front().and_then(|&id| ends[1].waits_in_line(id)), Some(1), "{waiting:?}");
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
            let _ = ends[0].send(now, channel, &LONG);
            talk(&mut ends, now);
        }
        assert_eq!((ends[1].reserved.len(), ends[1].reservations.len()), (1, 1));
        let (index, _) = ends[1].associations.iter().next().unwrap();
        ends[1].end_association(index as u32, ErrorCode::Timeout);
        assert_eq!((ends[1].reserved_bytes, ends[1].reservations.len(), ends[1].sizes().0), (0, 0, 0));
    }
}
