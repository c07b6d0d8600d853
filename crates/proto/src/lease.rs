//! What the peer has allowed this end to send, and until when (docs/protocol.md 4): a limit that it granted and a first flight, each good for a lease from when it was
//! heard, and for one and a half from when it was told: the peer takes it back after two. What is not here: what may be sent without either, and how much the peer's window takes.

use ropeway_wire::{Flags, Header};

use crate::time::{TICK_NS, Time};

/// A grant lasts so many round trips at least.
pub const LEASE_ROUND_TRIPS: u64 = 8;
/// What is a number of leases is no more of those that are longer for that than this: how long a round trip is the peer says, and may answer late to have longer ones.
pub const LONG_LEASES: u64 = 2;
/// In this time the 16-bit clock of the header turns over.
const ECHO_CYCLE_NS: u64 = (1 << 16) * TICK_NS;
/// So far ahead of ours a peer's clock gets while it holds an echo, by far.
const ECHO_AHEAD_NS: u64 = 1_000_000;

#[derive(Debug)]
pub struct Lease {
    /// Numbers below this may be sent.
    limit: u64,
    limit_since: Time,
    /// So many packets may fly without a grant.
    flight: u8,
    flight_since: Time,
    least_ns: u64,
    lasts_ns: u64,
}

impl Lease {
    /// One packet may begin, the one with this number. Lasts so long at least.
    pub fn new(first_number: u64, least_ns: u64, now: Time) -> Lease {
        Lease { limit: first_number, limit_since: now, flight: 1, flight_since: now, least_ns, lasts_ns: least_ns }
    }

    pub fn lasts_ns(&self) -> u64 {
        self.lasts_ns
    }

    /// So many of the shortest leases, or what is enough of longer ones.
    pub fn many_ns(&self, times: u64) -> u64 {
        (times * self.least_ns).max(LONG_LEASES * self.lasts_ns)
    }

    /// Follows the least round-trip time measured, which both ends come to agree on: a mean stays high at the end whose process was stopped while an answer waited for it,
    /// and one end would take back what the other still uses.
    pub fn follow(&mut self, least_round_trip_ns: u64) {
        self.lasts_ns = self.least_ns.max(LEASE_ROUND_TRIPS * least_round_trip_ns);
    }

    fn lasts(&self, since: Time, now: Time) -> bool {
        now.since(since) <= self.lasts_ns
    }

    /// New numbers from `next` on that may be given out now, where everything below `una` is acknowledged.
    pub fn allowance(&self, una: u64, next: u64, now: Time) -> u64 {
        let ahead = |since: Time, limit: u64| match self.lasts(since, now) {
            true => (limit.wrapping_sub(next) as i64).max(0) as u64,
            false => 0,
        };
        ahead(self.limit_since, self.limit).max(ahead(self.flight_since, una.wrapping_add(u64::from(self.flight))))
    }

    /// From when on the lease of something that was told then counts.
    fn since(&self, told_at: Time, now: Time) -> Time {
        told_at.after(self.lasts_ns / 2).min(now)
    }

    /// Numbers below `limit` may be sent, the peer said at `told_at`. Says whether that changes anything.
    pub fn take_limit(&mut self, limit: u64, told_at: Time, now: Time) -> bool {
        let since = self.since(told_at, now);
        if !self.lasts(since, now) {
            return false;
        }
        if limit == self.limit {
            self.limit_since = self.limit_since.max(since);
            return false;
        }
        let is_more = limit.wrapping_sub(self.limit) as i64 > 0;
        let takes = is_more || !self.lasts(self.limit_since, now);
        if takes {
            (self.limit, self.limit_since) = (limit, since);
        }
        takes
    }

    /// So many packets may fly without a grant, the peer said at `told_at`.
    pub fn take_flight(&mut self, packets: u8, told_at: Time, now: Time) {
        (self.flight, self.flight_since) = (packets, self.since(told_at, now));
    }

    /// Who waits for a grant looks at the links so often: else what came in while it slept would be as old as its echo, and that counts the time that the peer's
    /// process did not run, too.
    pub fn look_ns(&self) -> u64 {
        self.lasts_ns / 2
    }

    /// What is left of the grant goes back: nothing is to be sent beyond `next`.
    pub fn give_back(&mut self, next: u64) {
        self.limit = next;
    }
}

/// How long ago the moment is that this header echoes, if it echoes one: up to 262 ms, where the header's clock turns over.
pub fn since_echo_ns(header: &Header, now: Time) -> u64 {
    u64::from(now.ticks().wrapping_sub(header.echo)) * TICK_NS
}

/// When the peer made this header, by our clock, or earlier, by a way and the time that our packet, whose time it echoes, lay at the peer: it may have lain here while this
/// process was stopped, but not since before `empty_at`. Ages count to 262 ms, where the header's clock turns over.
pub fn told_at(header: &Header, empty_at: Time, now: Time) -> Time {
    let ns = since_echo_ns(header, now);
    // An echo from the near future is that of a peer whose clock runs faster.
    let is_known = ns <= ECHO_CYCLE_NS - ECHO_AHEAD_NS;
    match (header.flags.contains(Flags::ECHO), is_known) {
        (true, true) => Time::from_nanos(now.as_nanos().saturating_sub(ns)).max(empty_at).min(now),
        (true, false) => now,
        // The peer has heard nothing from here for long.
        (false, _) => empty_at.min(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_wire::{Id, Type};

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000 * MS + ms * MS)
    }

    #[test]
    fn a_lease_ends_by_when_it_was_told_and_by_when_it_was_heard() {
        let mut lease = Lease::new(100, 10 * MS, at(0));
        assert!(lease.take_limit(120, at(5), at(14)));
        assert_eq!([lease.allowance(100, 100, at(20)), lease.allowance(100, 100, at(21))], [20, 0]);
        assert!(!lease.take_limit(120, at(8), at(21)), "the same again");
        assert_eq!(lease.allowance(100, 110, at(23)), 10);
        assert!(!lease.take_limit(120, at(6), at(21)), "which was overtaken");
        assert_eq!(lease.allowance(100, 110, at(23)), 10);
        assert!(!lease.take_limit(115, at(23), at(23)), "the earlier one is higher, and lasts");
        assert!(!lease.take_limit(130, at(7), at(23)), "too old");
        assert!(lease.take_limit(115, at(24), at(24)));
        assert_eq!(
            [lease.allowance(100, 110, at(34)), lease.allowance(100, 110, at(35))],
            [5, 0],
            "what comes at once is good for a lease"
        );
        lease.take_flight(12, at(24), at(24));
        assert_eq!([lease.allowance(105, 116, at(25)), lease.allowance(105, 116, at(35))], [1, 0]);
        lease.give_back(110);
        assert_eq!(lease.allowance(90, 110, at(20)), 0);
    }

    #[test]
    fn a_header_is_as_old_as_its_echo_but_not_older_than_the_last_look_that_found_nothing() {
        let now = at(500);
        let echoing = |ago_ns: u64, flags| {
            let mut header = Header::new(Type::Control, Id::default());
            header.flags = flags;
            header.echo = Time::from_nanos(now.as_nanos() - ago_ns).ticks();
            header
        };
        let told = |ago_ns, empty_at| now.since(told_at(&echoing(ago_ns, Flags::ECHO), empty_at, now)) / MS;
        assert_eq!([told(0, Time::ZERO), told(60 * MS, Time::ZERO), told(260 * MS, Time::ZERO)], [0, 60, 260]);
        assert_eq!([told(60 * MS, at(480)), told(60 * MS, at(400)), told(60 * MS, at(501))], [20, 60, 0]);
        // A clock that runs a little faster than ours.
        let mut ahead = echoing(0, Flags::ECHO);
        ahead.echo = ahead.echo.wrapping_add(3);
        assert_eq!(told_at(&ahead, Time::ZERO, now), now);
        assert_eq!(told_at(&echoing(60 * MS, Flags::default()), at(450), now), at(450), "it tells nothing");
    }
}
