//! When a trial ends: the warm-up, then so many samples or so long.

use super::{Bound, Trial};

/// What comes next in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing counts yet.
    Warm,
    /// What is measured now is a sample.
    Counted,
    Over,
}

/// The rank that leads a trial asks it before each step.
#[derive(Debug)]
pub struct Limit {
    bound: Bound,
    warm_until_ns: u64,
    /// Known when the warm-up is over; only a duration has an end.
    end_ns: Option<u64>,
    taken: u64,
}

impl Limit {
    pub fn new(trial: &Trial, now_ns: u64) -> Limit {
        Limit { bound: trial.bound, warm_until_ns: now_ns.saturating_add(trial.warm_up_ns), end_ns: None, taken: 0 }
    }

    /// A duration gives one sample at least: a trial without any would say nothing.
    pub fn phase(&mut self, now_ns: u64) -> Phase {
        if self.end_ns.is_none() && now_ns < self.warm_until_ns {
            return Phase::Warm;
        }
        let (most, duration_ns) = match self.bound {
            Bound::Samples(count) => (u64::from(count), u64::MAX),
            Bound::DurationNs(ns) => (u64::MAX, ns),
        };
        let end_ns = *self.end_ns.get_or_insert(now_ns.saturating_add(duration_ns));
        let is_over = self.taken >= most || now_ns >= end_ns && self.taken > 0;
        if is_over { Phase::Over } else { Phase::Counted }
    }

    /// So many samples were taken.
    pub fn count(&mut self, samples: usize) {
        self.taken += samples as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pattern;
    use super::*;

    fn limit(bound: Bound, warm_up_ns: u64) -> Limit {
        let pattern = Pattern::PingPong { batch: 1 };
        Limit::new(&Trial { pattern, size: 1, bound, warm_up_ns, seed: 0 }, 1000)
    }

    #[test]
    fn samples_are_counted_after_the_warm_up() {
        let mut limit = limit(Bound::Samples(2), 100);
        assert_eq!(limit.phase(1099), Phase::Warm);
        assert_eq!(limit.phase(1100), Phase::Counted);
        limit.count(1);
        assert_eq!(limit.phase(9999), Phase::Counted);
        limit.count(1);
        assert_eq!(limit.phase(9999), Phase::Over);
    }

    #[test]
    fn a_duration_begins_after_the_warm_up_and_gives_one_sample_at_least() {
        let mut limit = limit(Bound::DurationNs(50), 100);
        assert_eq!(limit.phase(1200), Phase::Counted, "the warm-up ended late, and the duration begins now");
        assert_eq!(limit.phase(1250), Phase::Counted, "no sample yet");
        limit.count(1);
        assert_eq!(limit.phase(1249), Phase::Counted);
        assert_eq!(limit.phase(1250), Phase::Over);
    }
}
