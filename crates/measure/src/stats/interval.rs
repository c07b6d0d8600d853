//! Intervals of quantiles from order statistics: of n independent values, the number below the true q-quantile is binomial whatever the distribution, so two of the
//! sorted values enclose it with a known probability.

use serde::{Deserialize, Serialize};

use super::{Ordered, normal_quantile};

/// Where a true value lies with the given probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// At least this part of such intervals contains the truth.
    pub confidence: f64,
}

impl Interval {
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Half of the width, relative to the value that it belongs to.
    pub fn relative(&self, value: f64) -> f64 {
        match (self.high - self.low) / 2.0 {
            0.0 => 0.0,
            half => half / value.abs(),
        }
    }
}

/// Above this variance of the number of values below the quantile, the normal distribution (with half a rank of correction) is as good as the binomial one
/// and does not take time that grows with the samples.
const NORMAL_FROM_VARIANCE: f64 = 1e4;

/// The ranks (1 being the least) whose values enclose the true q-quantile of independent values with at least this confidence. None: there are too few
/// values (see [`samples_needed`]).
pub fn quantile_ranks(n: u64, q: f64, confidence: f64) -> Option<(u64, u64)> {
    let tail = (1.0 - confidence) / 2.0;
    let (low, high) = match n as f64 * q * (1.0 - q) > NORMAL_FROM_VARIANCE {
        true => by_normal(n, q, tail),
        false => by_binomial(n, q, tail),
    };
    (low >= 1 && high <= n).then_some((low, high))
}

/// The interval of the q-quantile of independent values.
pub fn quantile_interval(ordered: &Ordered, q: f64, confidence: f64) -> Option<Interval> {
    let (low, high) = quantile_ranks(ordered.count(), q, confidence)?;
    Some(Interval { low: ordered.at(low)?, high: ordered.at(high)?, confidence })
}

/// The least number of independent values with which the q-quantile has an interval at all.
pub fn samples_needed(q: f64, confidence: f64) -> u64 {
    // All values below it, or all above it, must be improbable enough.
    let tail = (1.0 - confidence) / 2.0;
    (tail.ln() / q.max(1.0 - q).ln()).ceil() as u64
}

fn by_normal(n: u64, q: f64, tail: f64) -> (u64, u64) {
    let n = n as f64;
    let half = normal_quantile(1.0 - tail) * (n * q * (1.0 - q)).sqrt();
    ((n * q - half - 0.5).floor().max(0.0) as u64, (n * q + half + 1.5).ceil() as u64)
}

/// The ranks between which the quantile lies but for the probability `tail` on each side.
fn by_binomial(n: u64, q: f64, tail: f64) -> (u64, u64) {
    // Terms more than 12 standard deviations away are below any tail that somebody asks for.
    let (mean, far) = (n as f64 * q, 12.0 * (n as f64 * q * (1.0 - q)).sqrt() + 12.0);
    let mut low = (mean - far).max(0.0) as u64;
    let mut sum = 0.0;
    while low < n {
        sum += probability(n, q, low);
        if sum > tail {
            break;
        }
        low += 1;
    }
    let mut high = ((mean + far) as u64).min(n) + 1;
    sum = 0.0;
    while high > 0 {
        sum += probability(n, q, high - 1);
        if sum > tail {
            break;
        }
        high -= 1;
    }
    (low, high)
}

/// That exactly `below` of n values lie below the q-quantile.
fn probability(n: u64, q: f64, below: u64) -> f64 {
    let ways = statrs::function::factorial::ln_binomial(n, below);
    (ways + below as f64 * q.ln() + (n - below) as f64 * (-q).ln_1p()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Published ranks for the median at 95 %.
        for (n, ranks) in [(6, (1, 6)), (10, (2, 9)), (15, (4, 12)), (25, (8, 18)), (50, (18, 33)), (100, (40, 61))] {
            assert_eq!(quantile_ranks(n, 0.5, 0.95), Some(ranks), "{n} values");
        }
        assert_eq!(quantile_ranks(5, 0.5, 0.95), None);
    }

    #[test]
    fn the_fewest_samples_are_the_first_that_have_an_interval() {
        for (q, confidence) in [(0.5, 0.95), (0.99, 0.95), (0.9, 0.99), (0.25, 0.9)] {
            let n = samples_needed(q, confidence);
            assert!(quantile_ranks(n, q, confidence).is_some(), "{n} for {q}");
            assert!(quantile_ranks(n - 1, q, confidence).is_none(), "{n} for {q}");
        }
        assert_eq!(samples_needed(0.99, 0.95), 368);
    }

    #[test]
    fn many_values_have_the_same_ranks_by_both_ways() {
        let n = 300_000;
        let (exact, near) = (by_binomial(n, 0.5, 0.025), by_normal(n, 0.5, 0.025));
        assert!(exact.0.abs_diff(near.0) <= 2 && exact.1.abs_diff(near.1) <= 2, "{exact:?} {near:?}");
    }

    /// The part of 1,000 samples whose interval contains the true quantile.
    fn coverage(n: usize, q: f64, truth: f64, draw: impl Fn(&mut Random) -> f64) -> f64 {
        let mut random = Random::new(n as u64);
        let hits = (0..1_000).filter(|_| {
            let values: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
            quantile_interval(&Ordered::of(&values), q, 0.95).is_some_and(|interval| interval.contains(truth))
        });
        hits.count() as f64 / 1_000.0
    }

    #[test]
    fn intervals_of_skewed_and_heavy_tailed_values_cover_the_truth() {
        let exponential = |random: &mut Random| random.exponential();
        // Pareto with an infinite variance.
        let pareto = |random: &mut Random| (1.0 - random.unit()).powf(-1.0 / 1.2);
        for n in [20, 100, 1_000] {
            let found = coverage(n, 0.5, 2f64.ln(), exponential);
            assert!((0.935..=0.99).contains(&found), "exponential, {n} values: {found}");
            let found = coverage(n, 0.5, 2f64.powf(1.0 / 1.2), pareto);
            assert!((0.935..=0.99).contains(&found), "Pareto, {n} values: {found}");
        }
        let found = coverage(1_000, 0.99, 100f64.ln(), exponential);
        assert!((0.935..=0.99).contains(&found), "p99: {found}");
    }
}
