//! Memory for all that a message lacks, where the window or the memory that there is does not let it come (docs/protocol.md 7, docs/decisions/0031): who gets it, and who has it for nothing.

use ropeway_wire::ErrorCode;

use super::Endpoint;
use crate::association::Association;
use crate::channel::UNUSED_SHARE;
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

/// A message claims what becomes free if its host keeps no more with it than so many eighths of the memory: the longest message is half of it, and who keeps much has to read first.
const MOST_CLAIMED: usize = 5;

/// How many of those in line are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    associations: usize,
    /// Of each.
    messages: usize,
}

impl Looks {
    /// When memory may have become free: a peer may have thousands in line.
    const FEW: Looks = Looks { associations: 8, messages: 4 };
    /// When those with memory are looked at.
    const ALL: Looks = Looks { associations: usize::MAX, messages: usize::MAX };
}

/// A message that memory is set aside for, by its channel.
#[derive(Debug)]
pub(super) struct Reserved {
    /// What has to come in the time that it may leave its memory unused.
    least_bytes: u64,
    /// When that time began, and what had come by then; none: nobody has looked.
    since: Option<Time>,
    received_bytes: u64,
    /// What had come when somebody looked last, and the next number of its association.
    looked_at: (u64, u64),
}

impl Reserved {
    pub fn new(missing_bytes: u64) -> Reserved {
        Reserved { least_bytes: missing_bytes.div_ceil(LEAST_SHARE), since: None, received_bytes: 0, looked_at: (0, 0) }
    }
}

impl Endpoint {
    /// Sets memory aside for all that the message at hand lacks; if there is none for it, it waits in line, unless nobody has accepted its channel. Says whether it has some.
    pub(super) fn reserve_or_wait(&mut self, at: u32) -> bool {
        let claims = self.claimant == Some(at);
        if claims {
            self.end_claim();
        }
        if self.reserve_if_free(at) {
            if claims {
                self.serve_line();
            }
            return true;
        }
        let channel = &mut self.channels[at as usize];
        if channel.queued_in.is_none() {
            if !std::mem::replace(&mut channel.incoming.reserving, true) {
                let index = channel.association;
                let waiting = &mut self.associations[index as usize].shortage.get_or_insert_default().waiting;
                waiting.push_back(at);
                if waiting.len() == 1 {
                    self.line.push_back(index);
                }
            }
            self.claim(at);
        }
        false
    }

    /// Sets memory aside for all that the message at hand lacks, if there is some: on a channel that nobody has accepted, of what is for all.
    fn reserve_if_free(&mut self, at: u32) -> bool {
        let account = self.account_of(self.channels[at as usize].association);
        self.channels[at as usize].incoming.charge_to(account);
        let channel = &self.channels[at as usize];
        let buffers = self.buffers_for(channel.incoming.missing_bytes());
        let bytes = buffers * self.rx_pool.buffer_bytes();
        // Some of what it lacks may be here, and wait for a lost packet.
        let held_bytes = self.associations[channel.association as usize].received.held_bytes();
        let is_free = match channel.queued_in {
            Some(_) => self.rx_pool.is_left_for_all(bytes),
            None => {
                self.rx_pool.may_have(account, bytes, held_bytes) || channel.is_hungry() && self.may_have_first(bytes)
            }
        };
        if !is_free {
            return false;
        }
        self.leave_line(at);
        let incoming = &mut self.channels[at as usize].incoming;
        let is_raised = incoming.reserve(buffers, &mut self.rx_pool);
        self.reserved.insert(at, Reserved::new(incoming.lacking_bytes()));
        if is_raised || self.is_paused(at) {
            self.say_credit(at);
        }
        true
    }

    /// Whether all of a message may come to a channel of which all was read: nobody waits for more than is free.
    pub(super) fn may_have_first(&self, bytes: usize) -> bool {
        self.claimant.is_none() && self.rx_pool.may_have_first(bytes)
    }

    /// What becomes free is kept for this message, if no other claims it: otherwise those who go on, and shorter ones, would take it piece by piece.
    fn claim(&mut self, at: u32) {
        let incoming = &self.channels[at as usize].incoming;
        let bytes = self.bytes_for(incoming.missing_bytes());
        let (_, kept_by_host) = self.rx_pool.ledger.kept_bytes(incoming.account());
        let deserves = kept_by_host + bytes <= self.rx_pool.limit_bytes() / 8 * MOST_CLAIMED;
        if deserves && self.claimant.is_none() {
            (self.claimant, self.rx_pool.claimed_bytes) = (Some(at), bytes);
        }
    }

    fn end_claim(&mut self) {
        (self.claimant, self.rx_pool.claimed_bytes) = (None, 0);
    }

    /// Lets messages come that wait in line and for which there is memory: first the one that claims it, then one of each association after the other.
    #[inline]
    pub(super) fn serve_line(&mut self) {
        if !self.line.is_empty() {
            self.serve(Looks::FEW);
        }
        if !self.paused.is_empty() {
            self.let_some_go();
        }
    }

    fn serve(&mut self, looks: Looks) {
        if let Some(at) = self.claimant {
            self.end_claim();
            self.serve_channel(at);
        }
        let mut place = 0;
        for _ in 0..looks.associations {
            let Some(&index) = self.line.get(place) else { return };
            let is_served = self.serve_one_of(index, looks.messages);
            if self.line.get(place) != Some(&index) {
                continue;
            }
            match is_served {
                true => {
                    self.line.remove(place);
                    self.line.push_back(index);
                }
                false => place += 1,
            }
        }
    }

    /// Lets a message of this association come, if there is memory for one of the first so many. Says whether it did.
    fn serve_one_of(&mut self, index: u32, most: usize) -> bool {
        let mut place = 0;
        for _ in 0..most {
            let waiting = self.associations[index as usize].shortage.as_deref().map(|shortage| &shortage.waiting);
            let Some(&at) = waiting.and_then(|waiting| waiting.get(place)) else { return false };
            if self.serve_channel(at) {
                return true;
            }
            place += usize::from(self.channels[at as usize].incoming.reserving);
        }
        false
    }

    /// Lets the message come that waits on this channel, if there is memory for it, or lets it claim that.
    fn serve_channel(&mut self, at: u32) -> bool {
        if self.channels[at as usize].incoming.missing_bytes() == 0 {
            self.leave_line(at);
            return false;
        }
        let is_served = self.reserve_if_free(at);
        if !is_served {
            self.claim(at);
        }
        is_served
    }

    /// A channel does not wait for memory any more.
    fn leave_line(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        let (is_waiting, index) = (std::mem::take(&mut channel.incoming.reserving), channel.association);
        if !is_waiting {
            return;
        }
        let association = &mut self.associations[index as usize];
        association.shortage.get_or_insert_default().waiting.retain(|&waiting| waiting != at);
        if !association.waits_for_memory() {
            self.line.retain(|&waiting| waiting != index);
        }
        if self.claimant == Some(at) {
            self.end_claim();
        }
    }

    /// Buffers that so much of a message takes at most, in packets of whatever size.
    fn buffers_for(&self, bytes: u64) -> usize {
        let room = self.rx_pool.payload_bytes();
        let held_bytes = (room - room / UNUSED_SHARE) as u64;
        // More than that is never free for it.
        (bytes.div_ceil(held_bytes) as usize + LEAST_SPARE).min(self.rx_pool.limit_packets() * 3 / 4)
    }

    pub(super) fn bytes_for(&self, bytes: u64) -> usize {
        self.buffers_for(bytes) * self.rx_pool.buffer_bytes()
    }

    /// A channel wants no memory for a message any more: what it has of it goes to the next in line, and so does what it kept.
    pub(super) fn release_reservation(&mut self, at: u32) {
        self.leave_line(at);
        self.end_pause(at);
        if self.channels[at as usize].incoming.end_reservation(&mut self.rx_pool) {
            self.reserved.remove(&at);
        }
        self.serve_line();
    }

    /// The same for all channels of an association that has ended, as if they had given it back at once.
    pub(super) fn release_reservations(&mut self, index: u32, association: &Association) {
        if association.waits_for_memory() {
            self.line.retain(|&waiting| waiting != index);
        }
        self.end_pauses_of(index);
        for at in association.channels.indices() {
            if self.claimant == Some(at) {
                self.end_claim();
            }
            let incoming = &mut self.channels[at as usize].incoming;
            incoming.reserving = false;
            if incoming.end_reservation(&mut self.rx_pool) {
                self.reserved.remove(&at);
            }
        }
        self.serve_line();
    }

    /// Whether others want memory that messages have.
    fn is_wanted(&self) -> bool {
        !self.line.is_empty() || !self.reserved.is_empty() && self.rx_pool.is_short()
    }

    /// Sees to it that those with memory are looked at while others want it.
    pub(super) fn watch_reserved(&mut self, now: Time) {
        if !self.is_wanted() || std::mem::replace(&mut self.reserved_stand_in_timers, true) {
            return;
        }
        self.timers.insert((now.after(self.config.give_up_ns / LOOKS), RESERVED));
        // What was before that nobody has watched.
        self.reserved.values_mut().for_each(|reserved| reserved.since = None);
    }

    /// Ends channels whose messages do not come, or hardly, though nothing here keeps them, until nobody wants their memory.
    pub(super) fn end_unused_reservations(&mut self, now: Time) {
        let mut unused = Vec::new();
        for (&at, reserved) in &mut self.reserved {
            let channel = &self.channels[at as usize];
            let association = &self.associations[channel.association as usize];
            let is_withheld = self.gate.withholds(channel.association);
            let since = reserved.look(channel.incoming.received_bytes(), association, is_withheld, now);
            if now.since(since.max(self.awake_at)) >= self.config.give_up_ns {
                unused.push((since, at));
            }
        }
        unused.sort_unstable();
        for (_, at) in unused {
            if self.is_wanted() {
                self.counters.timeouts += 1;
                self.abort_channel(at, ErrorCode::Timeout);
            }
        }
        // Memory may have become free without a word.
        self.serve(Looks::ALL);
        self.reserved_stand_in_timers = self.is_wanted();
        if self.reserved_stand_in_timers {
            self.timers.insert((now.after(self.config.give_up_ns / LOOKS), RESERVED));
        }
    }
}

impl Reserved {
    /// Notes whether enough of a message has come, or could not as this end withholds what it needs: then its time begins anew. Says when it began.
    fn look(&mut self, received_bytes: u64, association: &Association, is_withheld: bool, now: Time) -> Time {
        let comes = received_bytes >= self.received_bytes + self.least_bytes;
        let next = association.received.next();
        let (had_bytes, before) = std::mem::replace(&mut self.looked_at, (received_bytes, next));
        // Its sender may wait for a grant at most moments and use each for something else: half at least of what it sent since the last look has to be of this.
        let sent_bytes = next.wrapping_sub(before).saturating_mul(association.payload_bytes as u64);
        let could_not = is_withheld && received_bytes.saturating_sub(had_bytes) >= sent_bytes / 2;
        match self.since.filter(|_| !could_not && !comes) {
            Some(since) => since,
            None => {
                (self.received_bytes, self.since) = (received_bytes, Some(now));
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
    use crate::channel::ChannelId;
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

    /// Two ends of which the second listens for messages on port 7 and for streams on port 8, with a megabyte of memory.
    struct Two {
        ends: [Endpoint; 2],
        now: Cell<Time>,
    }

    impl Two {
        fn new() -> Two {
            let config = Config { receive_memory_bytes: 1 << 20, receive_buffer_bytes: 32 << 10, ..Config::default() };
            let mut ends = [0, 1].map(|end: u8| Endpoint::new(config.clone(), end.into(), 0, [end; 32]));
            ends[1].listen(7, Mode::Messages, 8).unwrap();
            ends[1].listen(8, Mode::Stream, 8).unwrap();
            Two { ends, now: Cell::new(Time::from_nanos(1_000_000_000)) }
        }

        fn settle(&mut self) {
            pass(&mut self.ends, &self.now, 20, 1_000_000);
        }

        /// A channel over which so much was sent: both ends of it.
        fn begin(&mut self, port: u16, bytes: usize) -> (ChannelId, ChannelId) {
            let mode = if port == 7 { Mode::Messages } else { Mode::Stream };
            let channel = self.ends[0].connect(self.now.get(), &PATHS[1], port, mode).unwrap();
            self.settle();
            let _ = self.ends[0].send(self.now.get(), channel, &LONG[..bytes]);
            self.settle();
            (channel, self.ends[1].accept(port).unwrap())
        }

        fn read(&mut self, channel: ChannelId) -> usize {
            let read = self.ends[1].recv(channel, &mut vec![0; LONG.len()]);
            self.settle();
            read.unwrap().unwrap()
        }

        /// The channels with memory for a message, and those that wait for some.
        fn reserved(&self) -> (Vec<u32>, Vec<u32>) {
            let waiting = self.ends[1].line.iter().flat_map(|&index| {
                self.ends[1].associations[index as usize].shortage.iter().flat_map(|shortage| shortage.waiting.iter())
            });
            (self.ends[1].reserved.keys().copied().collect(), waiting.copied().collect())
        }
    }

    #[test]
    fn channels_that_are_opened_and_ended_all_the_time_do_not_fill_the_line() {
        let mut two = Two::new();
        // Nobody reads the first, and a second one does not find room beside it.
        let (_, first) = two.begin(7, 500_000);
        let (_, waiting) = two.begin(7, 450_000);
        for _ in 0..100 {
            let (channel, _) = two.begin(7, 450_000);
            two.ends[0].abort(two.now.get(), channel);
            two.settle();
        }
        assert_eq!(two.reserved(), (vec![], vec![waiting.index]));
        two.read(first);
        assert_eq!(two.read(waiting), 450_000);
        assert_eq!((two.reserved(), two.ends[1].rx_pool.set_aside), ((vec![], vec![]), 0));
    }

    #[test]
    fn who_needs_less_goes_first_where_the_one_before_it_has_to_read_first() {
        let mut two = Two::new();
        let streams = [0; 18].map(|_| two.begin(8, 30_000).1);
        let (_, long) = two.begin(7, 450_000);
        // All is of one association, which would keep more than five eighths with that.
        assert_eq!((two.reserved(), two.ends[1].rx_pool.claimed_bytes), ((vec![], vec![long.index]), 0));
        let (_, short) = two.begin(7, 200_000);
        assert_eq!(two.read(short), 200_000);
        assert_eq!(two.reserved(), (vec![], vec![long.index]));
        for stream in streams {
            two.read(stream);
        }
        assert_eq!(two.read(long), 450_000);
        assert_eq!((two.reserved(), two.ends[1].rx_pool.set_aside), ((vec![], vec![]), 0));
    }

    #[test]
    fn what_the_first_in_line_lacks_is_kept_for_it_while_it_has_not_more_than_it_deserves() {
        let mut two = Two::new();
        let streams = [0; 3].map(|_| two.begin(8, 30_000).1);
        let (_, unread) = two.begin(7, 400_000);
        let (_, long) = two.begin(7, 500_000);
        assert_eq!((two.reserved(), two.ends[1].rx_pool.claimed_bytes), ((vec![], vec![long.index]), 0));
        two.read(unread);
        for stream in streams {
            two.read(stream);
        }
        assert_eq!((two.read(long), two.reserved()), (500_000, (vec![], vec![])));
    }

    #[test]
    fn who_stands_behind_many_in_line_is_looked_at_when_its_peer_asks() {
        let mut two = Two::new();
        // All of one association, which keeps too much for the first ones.
        let (_, unread) = two.begin(7, 500_000);
        let (_, other) = two.begin(7, 250_000);
        let waiting: Vec<_> = (0..Looks::FEW.messages).map(|_| two.begin(7, 450_000).1.index).collect();
        let (_, short) = two.begin(7, 200_000);
        assert_eq!(two.reserved().1, [waiting.clone(), vec![short.index]].concat());
        assert_eq!(two.ends[1].recv(other, &mut vec![0; LONG.len()]), Ok(Some(250_000)));
        assert_eq!(two.reserved().1.last(), Some(&short.index));
        pass(&mut two.ends, &two.now, 200, 1_000_000);
        assert_eq!((two.read(short), two.reserved().1), (200_000, waiting));
        assert_eq!(two.read(unread), 500_000);
    }

    #[test]
    fn an_association_ends_while_some_of_its_channels_wait_for_the_memory_of_others() {
        let mut two = Two::new();
        two.begin(7, 500_000);
        two.begin(7, 450_000);
        assert_eq!(two.reserved().1.len(), 1);
        let (index, _) = two.ends[1].associations.iter().next().unwrap();
        two.ends[1].end_association(index as u32, ErrorCode::Timeout);
        let pool = &two.ends[1].rx_pool;
        assert_eq!((two.reserved(), two.ends[1].sizes().0, pool.set_aside), ((vec![], vec![]), 0, 0));
        // What is unread is its host's still.
        assert_eq!((pool.ledger.keeping(), pool.claimed_bytes), ([1, 1], 0));
    }
}
