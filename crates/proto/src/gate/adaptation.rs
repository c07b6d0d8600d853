//! What losses and congestion marks do to the budget, and how what was cut grows back (docs/protocol.md 6, Adaptation).

use super::PORT_LINE_BYTES_PER_MS;
use crate::time::Time;

/// Loss without a queue: a link that loses, or a port that has less of a buffer than is thought. Slowing down is of little use.
const RANDOM_LOSS: Answer = Answer {
    round_trips: 8,
    least_packets: 100,
    most_losses: u64::MAX,
    keeps_of_many: 7,
    growth_round_trips: 1,
    floor_bytes: 16 << 10,
};
/// Loss in a queue that others fill as well. A cut to 0.7 is as fair to TCP as TCP's to half if what is cut grows by 3 x (1 - 0.7) / (1 + 0.7) packets in a round trip (RFC 9438, 4.3),
/// so by one in two of them.
const QUEUE_LOSS: Answer = Answer {
    round_trips: 4,
    least_packets: 64,
    most_losses: 4,
    keeps_of_many: 5,
    growth_round_trips: 2,
    floor_bytes: 8 << 10,
};
/// The same where so much may fly that a packet in two round trips is little of it: beside one flow that loses packets in rows, and slows down once for each row, this end, which loses
/// them one by one, would have a third of a fair share.
const QUEUE_LOSS_OF_MANY: Answer = Answer { keeps_of_many: KEEPS, growth_round_trips: 1, ..QUEUE_LOSS };
/// So large a budget is that.
const MANY_BYTES: u64 = 32 << 10;
/// What is left of the budget after a mark, or losses that are not many: tenths.
const KEEPS: u64 = 7;
/// The queue at a loss is one if it takes as long as this share of a port's buffer.
const QUEUE_SHARE: u64 = 4;
/// So long after the last cut a larger port is thought possible again.
const CUT_MEMORY_NS: u64 = 10_000_000_000;
/// A larger estimate of the port's buffer loses this part with every loss in a shorter queue.
const ESTIMATE_FADES: u64 = 64;

/// How loss is judged, and answered.
#[derive(Debug)]
struct Answer {
    /// Over so many round trips, of at least so many packets: a single loss among fewer says nothing ...
    round_trips: u64,
    least_packets: u64,
    /// ... or until so many are lost.
    most_losses: u64,
    /// Tenths of the budget that are left by a cut for more than 2 %.
    keeps_of_many: u64,
    /// Round trips until what was cut grows by a packet.
    growth_round_trips: u64,
    /// No cut goes below this.
    floor_bytes: u64,
}

/// What becomes of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// So many tenths of it are left, but no less than the floor.
    Cut {
        keeps: u64,
        floor_bytes: u64,
    },
    /// A packet more, if it was cut.
    Growth,
}

/// What was seen since the last time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub arrived: u64,
    pub lost: u64,
    pub congested: bool,
}

/// Counts for the cuts and the growth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adaptation {
    /// The last loss was in a queue; or a queue was marked.
    in_queue: bool,
    since: Time,
    arrived: u64,
    lost: u64,
    cut_at: Option<Time>,
    changed_at: Time,
    port_estimate_bytes: Option<u64>,
}

impl Adaptation {
    /// Packets were found lost while the queues on their way delayed others by `queueing_ns`, and payload arrived at `bytes_per_ms`. The largest such queue is the
    /// port's buffer; it fades, as losses happen for other reasons too. A port of a line of 1 Gbit/s queues `port_bytes`.
    pub fn note_overflow(&mut self, queueing_ns: u64, bytes_per_ms: u64, port_bytes: u64) {
        let queued = |bytes_per_ms: u64| queueing_ns.saturating_mul(bytes_per_ms) / 1_000_000;
        let before = self.port_estimate_bytes.unwrap_or(0);
        self.port_estimate_bytes = Some(queued(bytes_per_ms).max(before - before / ESTIMATE_FADES));
        // By its time: what arrives here is only this host's share of what stands in it.
        self.in_queue = queued(PORT_LINE_BYTES_PER_MS) >= port_bytes / QUEUE_SHARE;
    }

    pub fn port_estimate_bytes(&self) -> Option<u64> {
        self.port_estimate_bytes
    }

    /// After a cut: the largest queue that was seen to overflow.
    pub fn seen_port_bytes(&self) -> Option<u64> {
        self.cut_at.map(|_| self.port_estimate_bytes.unwrap_or(0))
    }

    /// Whether the last cut has been forgotten now.
    pub fn forgets(&mut self, now: Time) -> bool {
        let forgets = self.cut_at.is_some_and(|at| now.since(at) >= CUT_MEMORY_NS);
        if forgets {
            (self.cut_at, self.in_queue) = (None, false);
        }
        forgets
    }

    /// Takes what was seen, and says what becomes of the budget, which is so large now.
    pub fn judge(&mut self, now: Time, round_trip_ns: u64, budget_bytes: u64, seen: Seen) -> Change {
        // Who marks has a queue.
        self.in_queue |= seen.congested;
        let answer = match self.in_queue {
            true if budget_bytes >= MANY_BYTES => QUEUE_LOSS_OF_MANY,
            true => QUEUE_LOSS,
            false => RANDOM_LOSS,
        };
        self.arrived += seen.arrived;
        self.lost += seen.lost;
        let (packets, lost) = (self.arrived + self.lost, self.lost);
        let is_over = now.since(self.since) >= answer.round_trips * round_trip_ns && packets >= answer.least_packets
            || lost >= answer.most_losses;
        if is_over {
            (self.since, self.arrived, self.lost) = (now, 0, 0);
        }
        let is_above = |per_cent: u64| is_over && lost * 100 > per_cent * packets;
        if (seen.congested || is_above(1)) && self.cut_at.is_none_or(|at| now.since(at) >= round_trip_ns) {
            (self.cut_at, self.changed_at) = (Some(now), now);
            let keeps = if is_above(2) { answer.keeps_of_many } else { KEEPS };
            Change::Cut { keeps, floor_bytes: answer.floor_bytes }
        } else if now.since(self.changed_at) >= answer.growth_round_trips * round_trip_ns {
            self.changed_at = now;
            Change::Growth
        } else {
            Change::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP_NS: u64 = 100_000;
    const FEW_BYTES: u64 = MANY_BYTES - 1;
    const LINE: u64 = PORT_LINE_BYTES_PER_MS;
    /// A port of 128 KiB at 1 Gbit/s, full and hardly used.
    const FULL_NS: u64 = 1_000_000;
    const SHORT_NS: u64 = 100_000;

    fn after_loss(queueing_ns: u64) -> Adaptation {
        let mut adaptation = Adaptation::default();
        adaptation.note_overflow(queueing_ns, LINE, 128 << 10);
        adaptation
    }

    fn judged(adaptation: &mut Adaptation, round_trips: u64, arrived: u64, lost: u64) -> Change {
        let seen = Seen { arrived, lost, congested: false };
        adaptation.judge(Time::from_nanos(round_trips * ROUND_TRIP_NS), ROUND_TRIP_NS, FEW_BYTES, seen)
    }

    #[test]
    fn of_much_that_flies_less_is_cut_and_it_grows_sooner() {
        let mut adaptation = after_loss(FULL_NS);
        let mut judged = |round_trips, lost| {
            let seen = Seen { lost, ..Seen::default() };
            adaptation.judge(Time::from_nanos(round_trips * ROUND_TRIP_NS), ROUND_TRIP_NS, MANY_BYTES, seen)
        };
        assert_eq!(judged(10, 4), Change::Cut { keeps: 7, floor_bytes: QUEUE_LOSS.floor_bytes });
        assert_eq!([11, 12, 13].map(|at| judged(at, 0)), [Change::Growth; 3]);
    }

    #[test]
    fn loss_in_a_long_queue_is_answered_sooner_and_by_more() {
        let keeps = |queueing_ns, arrived, lost| match judged(&mut after_loss(queueing_ns), 5, arrived, lost) {
            Change::Cut { keeps, .. } => Some(keeps),
            _ => None,
        };
        assert_eq!(keeps(FULL_NS, 64, 1), Some(7), "more than 1 % of 64 in four round trips");
        assert_eq!(keeps(FULL_NS, 64, 2), Some(5), "more than 2 %");
        assert_eq!(keeps(FULL_NS, 0, 4), Some(5), "four, however few arrived");
        assert_eq!(keeps(FULL_NS, 63, 0), None);
        assert_eq!(keeps(SHORT_NS, 64, 2), None, "not eight round trips yet");
        assert_eq!(keeps(SHORT_NS, 0, 40), None);
    }

    #[test]
    fn four_losses_are_judged_by_all_that_arrived() {
        let mut adaptation = after_loss(FULL_NS);
        assert_eq!(judged(&mut adaptation, 1, 500, 3), Change::Nothing, "not over");
        assert_eq!(judged(&mut adaptation, 3, 0, 1), Change::Growth, "less than 1 %");
    }

    #[test]
    fn a_second_cut_and_growth_wait_for_their_round_trips() {
        for (queueing_ns, growth) in [(FULL_NS, 2), (SHORT_NS, 1)] {
            let mut adaptation = after_loss(queueing_ns);
            assert!(matches!(judged(&mut adaptation, 10, 0, 100), Change::Cut { .. }));
            let again = Seen { lost: 100, ..Seen::default() };
            let soon = Time::from_nanos(11 * ROUND_TRIP_NS - 1);
            assert_eq!(adaptation.judge(soon, ROUND_TRIP_NS, FEW_BYTES, again), Change::Nothing);
            let changes: Vec<_> = (11..=14).map(|at| judged(&mut adaptation, at, 0, 0)).collect();
            assert_eq!(changes.iter().filter(|&&change| change == Change::Growth).count(), 4 / growth);
        }
    }

    #[test]
    fn who_marks_has_a_queue_until_the_cut_is_forgotten() {
        let mut adaptation = Adaptation::default();
        let marked = Seen { congested: true, ..Seen::default() };
        let change = adaptation.judge(Time::from_nanos(ROUND_TRIP_NS), ROUND_TRIP_NS, FEW_BYTES, marked);
        assert_eq!(change, Change::Cut { keeps: 7, floor_bytes: QUEUE_LOSS.floor_bytes });
        assert_eq!(judged(&mut adaptation, 2, 0, 0), Change::Nothing);
        assert_eq!(judged(&mut adaptation, 3, 0, 0), Change::Growth);
        assert!(adaptation.forgets(Time::from_nanos(ROUND_TRIP_NS + CUT_MEMORY_NS)));
        let later = CUT_MEMORY_NS / ROUND_TRIP_NS + 2;
        assert_eq!(judged(&mut adaptation, later, 0, 0), Change::Growth);
        assert_eq!(judged(&mut adaptation, later + 1, 0, 0), Change::Growth);
    }

    #[test]
    fn the_largest_queue_that_overflowed_fades_and_counts_after_a_cut() {
        let mut adaptation = after_loss(FULL_NS);
        assert_eq!(adaptation.port_estimate_bytes(), Some(LINE));
        assert_eq!(adaptation.seen_port_bytes(), None, "nothing was cut");
        judged(&mut adaptation, 10, 0, 100);
        adaptation.note_overflow(0, LINE, 128 << 10);
        assert_eq!(adaptation.seen_port_bytes(), Some(LINE - LINE / 64));
        assert!(!adaptation.forgets(Time::from_nanos(CUT_MEMORY_NS)));
        assert!(adaptation.forgets(Time::from_nanos(CUT_MEMORY_NS + 10 * ROUND_TRIP_NS)));
        assert_eq!(adaptation.seen_port_bytes(), None);
    }
}
