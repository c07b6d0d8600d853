//! Who left unused what it was granted is granted little beside others for a while (docs/protocol.md 6): what it sends then costs it nothing, and what it held others lacked for as long.

use super::Association;
use super::grants::UNUSED_LEASES;
use super::patience::TAKE_BACK_LEASES;
use crate::arrivals::Drain;
use crate::time::Time;

/// That lasts so many times as long as it was unused ...
pub const TIMES: u64 = 16;
/// ... and twice as long as the last time if not as much time has passed since that, but no longer than this.
pub const MOST_NS: u64 = 60_000_000_000;
/// It begins with so many packets, and may hold twice as many each time when it has used all of its grant.
const FIRST_PACKETS: u64 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Probation {
    until: Time,
    lasts_ns: u64,
    most_packets: u64,
}

impl Association {
    /// What it was granted has been unused for so long: of more than it takes to take that back nobody knows whether it was the peer that did not run, or this end.
    pub fn note_unused(&mut self, unused_ns: u64, now: Time) {
        let lasts_ns = self.lease.lasts_ns();
        if unused_ns <= lasts_ns {
            return;
        }
        let counts_ns = unused_ns.min(self.lease.many_ns(UNUSED_LEASES) + TAKE_BACK_LEASES * lasts_ns);
        let before = self.probation.as_deref().filter(|probation| now.since(probation.until) < probation.lasts_ns);
        let again_ns = before.map_or(0, |probation| {
            // The same time, which goes on, is no other one.
            let has_begun = probation.until.since(self.left_since()) >= probation.lasts_ns;
            if has_begun { probation.lasts_ns } else { 2 * probation.lasts_ns }
        });
        let lasts_ns = (TIMES * counts_ns).max(again_ns).min(MOST_NS);
        let probation = Probation { until: now.after(lasts_ns), lasts_ns, most_packets: FIRST_PACKETS };
        self.probation = Some(Box::new(probation));
    }

    /// Since when it has left unused what it is granted: what it sent and there was no memory for was used, though that is taken back like any other.
    pub(super) fn left_since(&self) -> Time {
        self.unused_since().max(self.shortage.as_deref().map_or(Time::ZERO, |shortage| shortage.dropped_at))
    }

    /// Something has come: of what it is granted, or of what was missing before, which uses nothing of that.
    pub fn note_use(&mut self, is_granted: bool, moves_at: Time, drain: impl FnOnce() -> Drain, now: Time) {
        if is_granted {
            self.note_pause(moves_at, drain, now);
            self.left_unused = false;
        }
        self.arrived_at = now;
    }

    /// It has said something, and used nothing for that.
    pub fn note_word(&mut self, moves_at: Time, drain: impl FnOnce() -> Drain, now: Time) {
        if self.outstanding_packets() > 0 {
            self.note_pause(moves_at, drain, now);
        }
    }

    /// It has used nothing of its grant until now, and the port lets out what it may have used since `moves_at`.
    fn note_pause(&mut self, moves_at: Time, drain: impl FnOnce() -> Drain, now: Time) {
        let (unused_ns, lasts_ns) = (now.since(self.left_since().max(moves_at)), self.lease.lasts_ns());
        // By then it may stand behind all that is granted.
        if unused_ns > lasts_ns && unused_ns > lasts_ns + drain().ns {
            self.note_unused(unused_ns, now);
        }
    }

    /// It has used all of its grant.
    pub fn note_used_up(&mut self) {
        if let Some(probation) = &mut self.probation {
            probation.most_packets = probation.most_packets.saturating_mul(2);
        }
    }

    /// Packets that it may hold for that reason.
    pub fn most_on_probation(&self, now: Time) -> Option<u64> {
        self.probation.as_deref().filter(|probation| now < probation.until).map(|probation| probation.most_packets)
    }
}

#[cfg(test)]
mod tests {
    use ropeway_wire::Id;

    use super::super::Phase;
    use super::*;
    use crate::config::Config;
    use crate::endpoint::Path;

    const MS: u64 = 1_000_000;
    const IDLE: Drain = Drain { ns: 0, slow_ns: 0 };

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000_000 + ms * MS)
    }

    fn open() -> Association {
        let (id, path) = (Id::default(), Path([0; Path::BYTES]));
        Association::new(id, path, Phase::Open, (0, 0), 0, &Config::default(), at(0))
    }

    #[test]
    fn who_leaves_a_grant_unused_may_hold_little_for_many_times_as_long_and_longer_each_time() {
        let mut association = open();
        // Unused for 20 ms, as is seen so many times.
        let leave = |association: &mut Association, from_ms: u64, times: u64| {
            association.lend(10, at(from_ms));
            (0..times).for_each(|_| association.note_unused(20 * MS, at(from_ms + 1)));
        };
        let ends = |association: &Association, end_ms: u64| {
            [end_ms - 1, end_ms].map(|ms| association.most_on_probation(at(ms))) == [Some(1), None]
        };
        let once = 20 * TIMES;
        leave(&mut association, 0, 3);
        assert!(ends(&association, 1 + once));
        leave(&mut association, 10, 3);
        assert!(ends(&association, 11 + 2 * once));
        // It is twice as much each time that it uses all of it, and as little as before when it does not.
        association.note_used_up();
        association.note_used_up();
        assert_eq!(association.most_on_probation(at(11)), Some(4));
        // As much time has not passed, or has.
        let ended = 11 + 2 * once;
        leave(&mut association, ended + 2 * once - 2, 1);
        let ended = ended + 2 * once - 1 + 4 * once;
        assert!(ends(&association, ended));
        leave(&mut association, ended + 4 * once - 1, 1);
        assert!(ends(&association, ended + 5 * once));
        // However long it was.
        association.lend(10, at(1_000_000));
        association.note_unused(u64::MAX, at(1_000_001));
        assert!(ends(&association, 1_000_001 + TIMES * 100));
        for again in 1..10 {
            leave(&mut association, 1_000_000 + 2 * again, 1);
        }
        assert!(ends(&association, 1_000_019 + MOST_NS / MS));
    }

    #[test]
    fn who_pauses_for_longer_than_a_lease_and_all_that_is_granted_takes_is_on_probation_unless_the_port_stood_still() {
        let lease_ms = Config::default().lease_ns / MS;
        let is_after = |pause_ms, moves_ms, drain_ns| {
            let mut association = open();
            association.lend(10, at(0));
            association.note_pause(at(moves_ms), || Drain { ns: drain_ns, ..IDLE }, at(pause_ms));
            association.most_on_probation(at(pause_ms)).is_some()
        };
        assert_eq!([lease_ms, lease_ms + 1].map(|pause| is_after(pause, 0, 0)), [false, true]);
        assert_eq!([5, 6].map(|drain_ms| is_after(lease_ms + 6, 0, drain_ms * MS)), [true, false]);
        assert!(!is_after(100, 100 - lease_ms, 0));
    }

    #[test]
    fn who_sends_what_it_was_granted_has_used_it_though_there_is_no_memory_for_that() {
        // For so long its packets come and are dropped, each so far beyond the newest one that was taken; ten are granted.
        let is_after = |(beyond, is_short): (i64, bool)| {
            let mut association = open();
            association.lend(10, at(0));
            let number = association.received.next().wrapping_add_signed(beyond);
            (0..100).for_each(|ms| association.note_no_memory(number, is_short, 0, at(ms)));
            // It is taken back all the same.
            assert_eq!(association.unused_since(), at(0));
            association.note_use(true, Time::ZERO, || IDLE, at(100));
            association.most_on_probation(at(100)).is_some()
        };
        assert_eq!([(0, true), (9, true)].map(is_after), [false, false]);
        // What was asked for again, or was not granted, is none of it, nor what there is no place for while there is memory.
        assert_eq!([(-1, true), (10, true), (0, false)].map(is_after), [true, true, true]);
    }
}
