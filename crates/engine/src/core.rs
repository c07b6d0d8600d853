//! What one turn of the event loop does, under the engine's lock: packets in, timers, packets out, events to who waits. What it
//! knows of its links is in `core/links.rs`.

mod links;

use self::links::Member;
pub use self::links::{LinkId, RoomWait};
use crate::error::Error;
use crate::path::{self, Place};
use crate::readiness::Shown;
use crate::share::Share;
use crate::shimmed::Shimmed;
use crate::spin::Spin;
use crate::wait::{Subject, Waiters};
use nix::time::{ClockId, clock_gettime};
use ropeway_link::{Batch, Ecn, Own, Presence, Urgency};
use ropeway_proto::config::SetError;
use ropeway_proto::{AcceptError, ChannelId, Config, Endpoint, Handling, Joined, Landing, PIECE_BYTES, Path, Time};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets taken from one link in one turn: enough for a merged arrival of 64 KiB, few enough that answers do not wait.
const ARRIVALS_PER_TURN: usize = 64;
/// Turns after each other in which timers wait because packets arrived: more may lie there, and it is no silence of a peer that nobody has looked at what it
/// said. So many turns empty the usual ring of 1024 frames; a link that was idle begins with one.
const MOST_TURNS_WITHOUT_TIMERS: u32 = 16;
/// Calls for what is there already that need not look at the clock: as many short messages as three packets hold.
const MOST_CALLS_AT_HAND: u32 = 64;
/// How often the helper is told whether a timer is due soon.
const HURRY_CHECK_NS: u64 = 50_000;
/// Calls that need not wait look at the links all the same when nobody has for so long, or a timer is due: what takes longer than a tenth of what the usual port queues would idle the line. A look takes
/// as long as a send, and the last of many requests waits for all of them.
pub const OVERDUE_NS: u64 = 100_000;
/// The same for calls that read: a few round trips of a fast network.
pub const READS_OVERDUE_NS: u64 = 20_000;
/// A link that brought nothing lately is looked at every so many turns while another one is busy.
const QUIET_LINK_EVERY: u32 = 8;

/// Who polls the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poller {
    Nobody,
    Caller,
    Helper,
}

/// The engine's clock; its time begins when the engine does.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Of the system's clock, which is read several times for each message: an `Instant` and its differences take three times as long.
    begin_ns: u64,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { begin_ns: monotonic_ns() }
    }

    pub fn now(self) -> Time {
        Time::from_nanos(monotonic_ns().saturating_sub(self.begin_ns))
    }

    /// A moment of the program's clock, now if it is over; `None`: never.
    pub fn time_of(self, at: Option<Instant>) -> Time {
        let left = at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        self.now().after(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Nanoseconds of the clock that `Instant` shows.
fn monotonic_ns() -> u64 {
    // It cannot fail: Linux always has this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Everything under the engine's lock.
pub struct Core {
    pub clock: Clock,
    pub endpoint: Endpoint,
    members: Vec<Member>,
    /// Copies of the links' descriptors, to sleep on without the lock, and the links' places. A link that failed is not among them: what its descriptor tells does not end.
    descriptors: Arc<Vec<(u8, Arc<OwnedFd>)>>,
    /// A link has failed since somebody began to sleep on the descriptors.
    pub descriptors_changed: bool,
    pub waiters: Waiters,
    pub poller: Poller,
    /// Somebody sleeps on the links until then at the latest.
    pub sleeps_until: Option<Time>,
    /// Sleeps on the links begun so far: the last of them is the one that `sleeps_until` is about.
    pub sleeps: u64,
    /// The helper sleeps until it is told that somebody left.
    pub helper_parked: bool,
    pub shut_down: bool,
    /// How long calls that wait poll before they sleep.
    pub spin: Spin,
    /// When the links brought something last.
    pub arrived_at: Time,
    turns: u32,
    turns_without_timers: u32,
    turned_at: Time,
    /// So many calls may do with what is here already before the clock and the links are looked at again.
    calls_at_hand: u32,
    hurry_checked_at: Time,
    share: Share,
    /// For packets to and from nodes behind gateways.
    shimmed: Shimmed,
    /// What the network said of hosts, by address, as an `errno`: the attempt to connect there fails early.
    unreachable: BTreeMap<Path, i32>,
    /// The same of connections that could not be opened for that reason, until their users let go of them.
    pub unreached: BTreeMap<ChannelId, i32>,
}

impl Core {
    /// `node`: the number under which gateways know this engine, if they do.
    pub fn new(mut endpoint: Endpoint, spin: Spin, node: Option<u32>) -> Core {
        Core {
            clock: Clock::new(),
            share: Share::new(&mut endpoint),
            shimmed: Shimmed::new(node),
            endpoint,
            members: Vec::new(),
            descriptors: Arc::default(),
            descriptors_changed: false,
            waiters: Waiters::default(),
            poller: Poller::Nobody,
            sleeps_until: None,
            sleeps: 0,
            helper_parked: false,
            shut_down: false,
            spin,
            arrived_at: Time::ZERO,
            turns: 0,
            turns_without_timers: 0,
            turned_at: Time::ZERO,
            calls_at_hand: 0,
            hurry_checked_at: Time::ZERO,
            unreachable: BTreeMap::new(),
            unreached: BTreeMap::new(),
        }
    }

    /// Whether the host's other processes do not see what this one grants.
    pub fn is_unshared(&self) -> bool {
        self.share.is_unshared()
    }

    /// Whether gateways know this engine.
    pub fn has_node(&self) -> bool {
        self.shimmed.has_node()
    }

    /// Takes a waiting connection, if the caller still listens. Where none can come any more, that is said.
    pub fn accept_while(&mut self, port: u16, listens: &impl Fn() -> bool) -> Result<ChannelId, Error> {
        if !listens() {
            return Err(Error::Closed);
        }
        match self.endpoint.accept(port) {
            Err(AcceptError::WouldBlock) if self.is_cut_off() => Err(Error::cut_off()),
            taken => Ok(taken?),
        }
    }

    /// When [`Core::turn`] has something to do even if nothing arrives.
    pub fn next_timeout(&mut self, now: Time) -> Option<Time> {
        [self.endpoint.next_timeout(now), self.share.look_at()].into_iter().flatten().min()
    }

    /// The same for who will sleep until then, or until `woken_at` if that is earlier.
    pub fn next_timeout_to_sleep(&mut self, now: Time, woken_at: Time) -> Option<Time> {
        [self.endpoint.next_timeout_to_sleep(now, woken_at), self.share.look_at()].into_iter().flatten().min()
    }

    /// Reads what has arrived already, if nothing else is to be done; afterwards there may be credit to tell. For short messages the clock would cost as much as all the rest.
    pub fn read_at_hand(&mut self, channel: ChannelId, out: &mut [u8]) -> Option<Option<usize>> {
        self.calls_at_hand = self.calls_at_hand.checked_sub(1)?;
        let is_long = || self.endpoint.message_bytes(channel).is_some_and(|message_bytes| message_bytes > PIECE_BYTES);
        if self.waiters.has_watches() || self.endpoint.wants_to_transmit() || out.len() > PIECE_BYTES && is_long() {
            return None;
        }
        self.endpoint.recv(channel, out).ok()
    }

    /// Adds a short message to those that are kept back, if nothing else is to be done: the clock would cost as much as all the rest.
    pub fn send_at_hand(&mut self, channel: ChannelId, message: &[u8]) -> Joined {
        if self.calls_at_hand == 0 || self.waiters.has_watches() || self.endpoint.wants_to_transmit() {
            return Joined::Refused;
        }
        self.calls_at_hand -= 1;
        self.endpoint.send_joining(channel, message)
    }

    /// Whether to look again how soon the next timer is due: no more often than the helper could make use of.
    pub fn is_time_to_check_hurry(&mut self, now: Time) -> bool {
        let is_time = now.since(self.hurry_checked_at) >= HURRY_CHECK_NS;
        if is_time {
            self.hurry_checked_at = now;
        }
        is_time
    }

    /// The clock and, if it is time, the links are being looked at.
    pub fn renew_calls(&mut self) {
        self.calls_at_hand = MOST_CALLS_AT_HAND;
    }

    /// Whether the links have not been looked at for so long, or for a shorter time and a timer is due.
    pub fn is_overdue(&self, now: Time, after_ns: u64) -> bool {
        let since_ns = now.since(self.turned_at);
        since_ns >= after_ns || since_ns >= READS_OVERDUE_NS && self.endpoint.is_timer_due(now)
    }

    /// Whether the links were looked at since then, and the last look brought nothing.
    pub fn has_looked_in_vain(&self, since: Time) -> bool {
        self.turned_at >= since && self.arrived_at < self.turned_at
    }

    /// When the links were looked at last.
    pub fn turned_at(&self) -> Time {
        self.turned_at
    }

    /// One turn. Says whether anything arrived or became due.
    pub fn turn(&mut self, now: Time) -> bool {
        self.turn_into(now, &mut None)
    }

    /// The same for who may have memory for what arrives.
    pub fn turn_into(&mut self, now: Time, landing: &mut Option<Landing<'_>>) -> bool {
        let arrived = self.receive(now, landing);
        self.end_turn(now, arrived)
    }

    /// A turn for who waits for a message, or for bytes that may land at once: if nothing else has come, whatever else is to be done is left to [`Core::finish`].
    pub fn turn_for(&mut self, now: Time, landing: &mut Option<Landing<'_>>) -> bool {
        let arrived = self.receive(now, landing);
        if arrived && self.endpoint.may_finish_later() {
            (self.turned_at, self.arrived_at) = (now, now);
            return true;
        }
        self.end_turn(now, arrived)
    }

    /// Does what [`Core::turn_for`] has left.
    pub fn finish(&mut self, now: Time) {
        if self.endpoint.has_open_batch() {
            self.end_turn(now, true);
        }
    }

    fn end_turn(&mut self, now: Time, arrived: bool) -> bool {
        // First, so that what arrived is granted out of it.
        let may_grant = self.share.refresh(&mut self.endpoint, now);
        self.turned_at = now;
        if arrived {
            self.arrived_at = now;
        }
        // Who waits has waited for this process's turn to grant, whatever arrived or not.
        let may_grant = may_grant || self.endpoint.has_open_batch();
        if arrived || may_grant {
            self.endpoint.finish_batch(now);
        }
        // What arrivals did to the timers is looked up now and then while there are many, and else when there are none.
        let is_busy = arrived && !self.turns.is_multiple_of(MOST_TURNS_WITHOUT_TIMERS);
        let due = match is_busy {
            true => self.endpoint.is_timer_due(now),
            false => self.endpoint.next_timeout(now).is_some_and(|at| at <= now),
        };
        let puts_off = due && arrived && self.turns_without_timers < MOST_TURNS_WITHOUT_TIMERS;
        self.turns_without_timers = if puts_off { self.turns_without_timers + 1 } else { 0 };
        if due && !puts_off {
            self.endpoint.handle_timeout(now);
        }
        // What waited for a full link may be gone, and nobody would find that it is full no longer.
        let sends = self.endpoint.wants_to_transmit() || self.is_full();
        if arrived || due || may_grant || sends {
            self.share_out(now);
            self.transmit_wanted(now);
            self.dispatch();
        }
        arrived || due || may_grant
    }

    /// Takes this process's part of the budget, and grants what has come to it.
    fn share_out(&mut self, now: Time) {
        if self.share.update(&mut self.endpoint, now) {
            self.endpoint.finish_batch(now);
        }
    }

    /// Takes over changed settings.
    pub fn configure(&mut self, config: Config, now: Time) -> Result<(), SetError> {
        self.endpoint.configure(config)?;
        self.endpoint.finish_batch(now);
        self.share_out(now);
        Ok(())
    }

    fn receive(&mut self, now: Time, landing: &mut Option<Landing<'_>>) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let (endpoint, turns, shimmed) = (&mut self.endpoint, self.turns, &self.shimmed);
        let (mut total, mut is_empty, mut fails) = (0, true, false);
        let several = self.members.len() > 1;
        for (place, member) in self.members.iter_mut().enumerate() {
            let rests = several && member.quiet > QUIET_LINK_EVERY && !turns.is_multiple_of(QUIET_LINK_EVERY);
            if member.failed || rests {
                is_empty &= member.failed;
                continue;
            }
            let mut newest_own = member.known_own;
            let count = member.link.receive(ARRIVALS_PER_TURN, &mut |received| {
                newest_own = newest_own.max(received.to);
                let congested = received.ecn == Ecn::Congested;
                if shimmed.may_precede(received.bytes)
                    && let Some((path, marked, packet)) = shimmed.take(place as u8, &received)
                {
                    return endpoint.handle_packet_for(now, &path, congested || marked, packet, landing);
                }
                let path = path::encode(place as u8, received.from).bound(received.to.0);
                endpoint.handle_packet_for(now, &path, congested, received.bytes, landing);
            });
            // What an attempt has sent there before that is repeated.
            for before in member.known_own.0..newest_own.0 {
                if let Some(own) = member.link.own_address(Own(before + 1)) {
                    endpoint.add_own_path(path::encode(place as u8, own));
                }
            }
            member.known_own = newest_own;
            match count {
                Ok(0) => member.quiet = member.quiet.saturating_add(1),
                Ok(count) => {
                    member.quiet = 0;
                    total += count;
                }
                // The device is gone: what goes over this link times out.
                Err(_) => (member.failed, fails) = (true, true),
            }
        }
        if fails {
            self.bury_failed();
        }
        if is_empty && total == 0 {
            self.endpoint.note_empty(now);
        }
        let refused = self.take_reports();
        total > 0 || refused
    }

    /// Sends what may be sent, if there is anything; or finds that nothing waits any more for a link that was full.
    pub fn transmit_wanted(&mut self, now: Time) {
        if self.endpoint.wants_to_transmit() || self.is_full() {
            self.transmit(now);
        }
    }

    /// Sends what may be sent.
    pub fn transmit(&mut self, now: Time) {
        let (clock, members, shimmed) = (self.clock, &mut self.members, &mut self.shimmed);
        members.iter_mut().for_each(|member| member.room.begin(now));
        let mut fails = false;
        self.endpoint.transmit_by(now, &mut || clock.now(), &mut |path, handling, packets| {
            let Place { link, address: to, own: from, node } = path::decode(path);
            let Some(member) = members.get_mut(link).filter(|member| !member.failed) else {
                return packets.len().into();
            };
            let (urgency, presence) = for_links(handling);
            let sent = member.send(&Batch { to, from, packets, urgency, presence }, node, shimmed);
            sent.unwrap_or_else(|_| {
                (member.failed, fails) = (true, true);
                packets.len().into()
            })
        });
        self.members.iter_mut().for_each(|member| member.room.end(now));
        if fails {
            self.bury_failed();
        }
    }

    /// Tells who waits what has changed.
    pub fn dispatch(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let subject = Subject::from(event);
            self.waiters.wake(subject);
            self.refresh_watches(subject);
        }
    }

    /// Brings the descriptors that tell of `subject` up to date.
    pub fn refresh_watches(&mut self, subject: Subject) {
        if !self.waiters.has_watches() || self.waiters.watches(subject).is_empty() {
            return;
        }
        let shown = match subject {
            Subject::Port(port) => {
                Shown { reads: self.endpoint.has_incoming(port) || self.is_cut_off(), ..Shown::default() }
            }
            Subject::Everything | Subject::AnyChannel => Shown::default(),
            Subject::Channel(channel) => match self.endpoint.readiness(channel) {
                Some(readiness) => Shown {
                    reads: readiness.readable,
                    at_end: readiness.at_end,
                    // To a peer that is known one may write before it has taken the connection; but who polls wants to be told when it has.
                    writes: readiness.writable && (readiness.opened || readiness.failed.is_some()),
                },
                None => Shown { reads: true, at_end: true, writes: true },
            },
        };
        for watch in self.waiters.watches(subject) {
            watch.update(shown);
        }
    }
}

/// What the protocol says of packets in the words of links, which do not know it.
fn for_links(handling: Handling) -> (Urgency, Presence) {
    let urgency = match handling.urgency {
        ropeway_proto::Urgency::Urgent => Urgency::Urgent,
        ropeway_proto::Urgency::Bulk => Urgency::Bulk,
    };
    let presence = match handling.presence {
        ropeway_proto::Presence::Heard => Presence::Heard,
        ropeway_proto::Presence::Silent => Presence::Silent,
        ropeway_proto::Presence::Unheard => Presence::Unheard,
    };
    (urgency, presence)
}
