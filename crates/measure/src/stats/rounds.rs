//! Samples as they were taken: round after round, each round's in order of time. Neighbours in time are alike (a busy spell, a processor's frequency), and a whole
//! round may differ from the next (the ranks met other cores). Intervals that take samples for independent are then far too narrow; these are not.
//!
//! The number of samples below the quantile is counted block by block. Its variance between blocks of independent samples is binomial; what it is beyond that
//! widens the ranks that enclose the quantile. No distribution is assumed, and histograms, which have lost the order within a round, still have their rounds.

use std::collections::BTreeMap;

use super::interval::{Interval, quantile_ranks};
use super::{Ordered, normal_quantile, student_quantile};
use crate::record::{Measured, Metric, Values};

/// Blocks of each round's samples: few enough that each is longer than what lets neighbours be alike, enough for a variance.
const BLOCKS: [usize; 2] = [24, 12];

/// A block shorter than this says nothing.
const SHORTEST_BLOCK: usize = 4;

/// Probability of taking independent samples for dependent ones, for each of the tests. The price is an interval that is a little too wide.
const FALSE_ALARM: f64 = 0.01;

/// One quantity of one case, in the order in which it was measured. A round has one series, or one of each rank that measured at the same time.
#[derive(Debug, Clone)]
pub struct Rounds<'a> {
    rounds: Vec<Vec<&'a Values>>,
    ordered: Ordered,
}

/// How far the number of samples below a quantile may be from the expected one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    /// Half of the interval's ranks.
    half: f64,
    /// Whether that is more than independent samples would have.
    dependent: bool,
}

impl<'a> Rounds<'a> {
    /// Rounds of which each has one series.
    pub fn of(rounds: impl IntoIterator<Item = &'a Values>) -> Rounds<'a> {
        Rounds::of_ranks(rounds.into_iter().map(|values| vec![values]))
    }

    /// Rounds with the series of all ranks that measured in them.
    pub fn of_ranks(rounds: impl IntoIterator<Item = Vec<&'a Values>>) -> Rounds<'a> {
        let mut all = Vec::new();
        for mut round in rounds {
            round.retain(|values| !is_empty(values));
            if !round.is_empty() {
                all.push(round);
            }
        }
        let ordered = Ordered::of_values(all.iter().flatten().copied());
        Rounds { rounds: all, ordered }
    }

    /// What a case's ranks measured of this metric, put together by the number of the round.
    pub fn of_measured(measured: impl IntoIterator<Item = &'a Measured>, metric: Metric) -> Rounds<'a> {
        let mut rounds: BTreeMap<u32, Vec<&Values>> = BTreeMap::new();
        for one in measured {
            let series = one.series.iter().filter(|series| series.metric == metric);
            rounds.entry(one.round).or_default().extend(series.map(|series| &series.values));
        }
        Rounds::of_ranks(rounds.into_values())
    }

    pub fn count(&self) -> usize {
        self.rounds.len()
    }

    /// All values together.
    pub fn ordered(&self) -> &Ordered {
        &self.ordered
    }

    /// The same, where the rounds are not needed any more.
    pub fn into_ordered(self) -> Ordered {
        self.ordered
    }

    /// The median of each round, for comparisons.
    pub fn medians(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| Ordered::of_values(round.iter().copied()).median()).collect()
    }

    /// All samples in the order of time, where there is one. Ranks of a round measured side by side: their samples are taken in turn.
    pub fn in_time(&self) -> Option<Vec<f64>> {
        let mut all = Vec::new();
        for round in &self.rounds {
            let ranks: Vec<&[f64]> = round.iter().map(|values| samples(values)).collect::<Option<_>>()?;
            let longest = ranks.iter().map(|rank| rank.len()).max().unwrap_or(0);
            for i in 0..longest {
                for rank in &ranks {
                    all.extend(piece(rank, i, longest).iter().filter(|value| value.is_finite()));
                }
            }
        }
        Some(all)
    }

    /// The interval of the q-quantile, and whether samples near each other in time were found alike. No interval: there are too few samples, or too few
    /// rounds for how much they differ.
    pub fn interval(&self, q: f64, confidence: f64) -> (Option<Interval>, bool) {
        let n = self.ordered.count();
        let Some(spread) = self.spread(q, confidence) else { return (None, false) };
        let interval = || {
            let (mut low, mut high) = quantile_ranks(n, q, confidence)?;
            if spread.dependent {
                let (below, above) = (n as f64 * q - spread.half, n as f64 * q + spread.half + 1.0);
                if below < 1.0 || above > n as f64 {
                    return None;
                }
                low = low.min(below.floor() as u64);
                high = high.max(above.ceil() as u64);
            }
            Some(Interval { low: self.ordered.at(low)?, high: self.ordered.at(high)?, confidence })
        };
        (interval(), spread.dependent)
    }

    fn spread(&self, q: f64, confidence: f64) -> Option<Spread> {
        let split = Split::at(&self.ordered, q)?;
        let mut dependent = self.neighbours_are_alike(&split);
        let mut half = normal_quantile(0.5 + confidence / 2.0) * split.variance(self.ordered.count() as f64).sqrt();
        for blocks in self.blockings(&split) {
            let Some(variance) = variance_of_sum(&blocks, q) else { continue };
            let freedom = (blocks.len() - 1) as f64;
            let independent = split.variance(self.ordered.count() as f64);
            dependent |= variance * freedom > independent * chi_square_quantile(1.0 - FALSE_ALARM, freedom);
            half = half.max(student_quantile(0.5 + confidence / 2.0, freedom) * variance.sqrt());
        }
        Some(Spread { half, dependent })
    }

    /// The ways of cutting the samples into blocks of (samples, of them below).
    fn blockings(&self, split: &Split) -> Vec<Vec<(f64, f64)>> {
        let sum = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        let mut all = Vec::new();
        for blocks in BLOCKS {
            let each = blocks.div_ceil(self.rounds.len());
            let long = |values: &&Values| samples(values).is_some_and(|samples| samples.len() >= each * SHORTEST_BLOCK);
            if each < 2 || !self.rounds.iter().flatten().all(long) {
                continue;
            }
            // Ranks of a round share its luck at any moment: their pieces of the same time are one block.
            let block = |round: &Vec<&Values>, i: usize| {
                let ranks = round.iter().filter_map(|values| samples(values));
                ranks.map(|rank| split.count_samples(piece(rank, i, each))).fold((0.0, 0.0), sum)
            };
            all.push(self.rounds.iter().flat_map(|round| (0..each).map(move |i| block(round, i))).collect());
        }
        if self.rounds.len() > 1 {
            let round = |round: &Vec<&Values>| round.iter().map(|values| split.count(values)).fold((0.0, 0.0), sum);
            all.push(self.rounds.iter().map(round).collect());
        }
        all
    }

    /// Whether a sample below the quantile is followed by another such more often than chance makes it.
    fn neighbours_are_alike(&self, split: &Split) -> bool {
        let (mut products, mut squares, mut pairs) = (0.0, 0.0, 0u64);
        for series in self.rounds.iter().flatten().filter_map(|values| samples(values)) {
            let mut before = None;
            for value in series.iter().filter(|value| value.is_finite()) {
                let deviation = split.below(*value) - split.q;
                squares += deviation * deviation;
                if let Some(before) = before {
                    products += before * deviation;
                    pairs += 1;
                }
                before = Some(deviation);
            }
        }
        squares > 0.0 && products / squares > normal_quantile(1.0 - FALSE_ALARM) / (pairs.max(1) as f64).sqrt()
    }
}

/// What of a sample counts as below the quantile: 1, 0, or for samples that equal it (a coarse clock makes many) the part that makes the sum fit.
struct Split {
    q: f64,
    value: f64,
    of_equal: f64,
    /// Of one sample.
    variance: f64,
}

impl Split {
    fn at(ordered: &Ordered, q: f64) -> Option<Split> {
        let n = ordered.count() as f64;
        let value = ordered.at((n * q).ceil() as u64)?;
        let (below, equal) = ordered.below_and_equal(value);
        let of_equal = ((n * q - below as f64) / equal as f64).clamp(0.0, 1.0);
        let variance = below as f64 / n + equal as f64 / n * of_equal * of_equal - q * q;
        Some(Split { q, value, of_equal, variance: variance.max(0.0) })
    }

    fn below(&self, value: f64) -> f64 {
        match value.partial_cmp(&self.value) {
            Some(std::cmp::Ordering::Less) => 1.0,
            Some(std::cmp::Ordering::Equal) => self.of_equal,
            _ => 0.0,
        }
    }

    fn variance(&self, samples: f64) -> f64 {
        samples * self.variance
    }

    fn count_samples(&self, samples: &[f64]) -> (f64, f64) {
        let numbers = samples.iter().filter(|value| value.is_finite());
        numbers.fold((0.0, 0.0), |(n, below), value| (n + 1.0, below + self.below(*value)))
    }

    fn count(&self, values: &Values) -> (f64, f64) {
        match values {
            Values::Samples(samples) => self.count_samples(samples),
            Values::Counts(counts) => {
                let numbers = counts.iter().filter(|(value, _)| value.is_finite());
                numbers.fold((0.0, 0.0), |(n, below), (value, count)| {
                    (n + *count as f64, below + *count as f64 * self.below(*value))
                })
            }
        }
    }
}

/// Variance of the number below over all blocks, found from how the blocks differ.
fn variance_of_sum(blocks: &[(f64, f64)], q: f64) -> Option<f64> {
    let count = blocks.len() as f64;
    let squares: f64 = blocks.iter().map(|(n, below)| (below - q * n).powi(2)).sum();
    (blocks.len() > 1).then(|| squares * count / (count - 1.0))
}

/// Wilson and Hilferty's approximation; close enough for a threshold.
fn chi_square_quantile(p: f64, freedom: f64) -> f64 {
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + normal_quantile(p) * part.sqrt()).powi(3)
}

fn piece(round: &[f64], index: usize, pieces: usize) -> &[f64] {
    &round[round.len() * index / pieces..round.len() * (index + 1) / pieces]
}

fn samples(values: &Values) -> Option<&[f64]> {
    match values {
        Values::Samples(samples) => Some(samples),
        Values::Counts(_) => None,
    }
}

fn is_empty(values: &Values) -> bool {
    match values {
        Values::Samples(samples) => !samples.iter().any(|value| value.is_finite()),
        Values::Counts(counts) => !counts.iter().any(|(value, count)| value.is_finite() && *count > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Samples of which each keeps the part `memory` of the one before; median 0.
    fn autocorrelated(random: &mut Random, n: usize, memory: f64) -> Vec<f64> {
        let mut value = random.normal() / (1.0 - memory * memory).sqrt();
        let step = |random: &mut Random, value: &mut f64| {
            *value = memory * *value + random.normal();
            *value
        };
        (0..n).map(|_| step(random, &mut value)).collect()
    }

    /// (part of 400 intervals of the median that contain 0, part found dependent).
    fn coverage(rounds: usize, draw: impl Fn(&mut Random) -> Vec<f64>) -> (f64, f64) {
        let mut random = Random::new(11);
        let (mut hits, mut alike) = (0, 0);
        for _ in 0..400 {
            let values: Vec<Values> = (0..rounds).map(|_| Values::Samples(draw(&mut random))).collect();
            let (interval, dependent) = Rounds::of(&values).interval(0.5, 0.95);
            hits += u32::from(interval.is_none_or(|interval| interval.contains(0.0)));
            alike += u32::from(dependent);
        }
        (f64::from(hits) / 400.0, f64::from(alike) / 400.0)
    }

    #[test]
    fn intervals_of_autocorrelated_samples_cover_the_truth() {
        for (n, memory) in [(500, 0.5), (1_000, 0.9), (3_000, 0.95)] {
            let (covered, alike) = coverage(1, |random| autocorrelated(random, n, memory));
            assert!(covered >= 0.90 && alike > 0.99, "{n} samples, memory {memory}: {covered}, alike {alike}");
        }
    }

    #[test]
    fn rounds_that_differ_widen_the_interval() {
        for rounds in [6, 12, 40] {
            let (covered, alike) = coverage(rounds, |random| {
                let level = random.normal();
                (0..200).map(|_| level + random.normal()).collect()
            });
            assert!(covered >= 0.91 && alike > 0.99, "{rounds} rounds: {covered}, alike {alike}");
        }
    }

    #[test]
    fn independent_samples_are_rarely_taken_for_dependent() {
        for (rounds, n) in [(1, 1_000), (10, 100)] {
            let (covered, alike) = coverage(rounds, |random| (0..n).map(|_| random.normal()).collect());
            assert!(covered >= 0.935 && alike < 0.06, "{covered}, alike {alike}");
        }
    }

    #[test]
    fn a_coarse_clock_is_not_taken_for_dependence() {
        let (_, alike) = coverage(5, |random| (0..200).map(|_| (random.normal() * 0.7).round()).collect());
        assert!(alike < 0.06, "alike {alike}");
    }

    #[test]
    fn histograms_of_rounds_that_differ_are_not_taken_for_one_large_sample() {
        let round = |level: f64| Values::Counts((0..10).map(|i| (level + f64::from(i), 1_000)).collect());
        let values: Vec<Values> = [0.0, 3.0, 1.0, 2.0, 6.0, 4.0, 2.0].into_iter().map(round).collect();
        let (interval, dependent) = Rounds::of(&values).interval(0.5, 0.95);
        assert!(dependent && interval.is_some_and(|interval| interval.high - interval.low > 2.0), "{interval:?}");
    }

    #[test]
    fn ranks_that_measure_together_are_one_round() {
        let (covered, alike) = {
            let mut random = Random::new(5);
            let (mut hits, mut alike) = (0, 0);
            for _ in 0..200 {
                // Eight ranks that see the same luck: eight times the samples, and no more is known.
                let round = |random: &mut Random| -> Vec<Values> {
                    let level = random.normal();
                    let rank = |random: &mut Random| (0..30).map(|_| level + 0.1 * random.normal()).collect();
                    (0..8).map(|_| Values::Samples(rank(random))).collect()
                };
                let rounds: Vec<Vec<Values>> = (0..15).map(|_| round(&mut random)).collect();
                let rounds = Rounds::of_ranks(rounds.iter().map(|ranks| ranks.iter().collect()));
                let (interval, dependent) = rounds.interval(0.5, 0.95);
                hits += i32::from(interval.is_none_or(|interval| interval.contains(0.0)));
                alike += i32::from(dependent);
            }
            (hits, alike)
        };
        assert!(covered >= 180 && alike == 200, "{covered}, alike {alike}");
        let ranks = [Values::Samples(vec![1.0, 3.0]), Values::Samples(vec![2.0, 2.0, 4.0, 4.0])];
        let rounds = Rounds::of_ranks([ranks.iter().collect()]);
        assert_eq!(rounds.in_time(), Some(vec![2.0, 1.0, 2.0, 4.0, 3.0, 4.0]));
        assert_eq!((rounds.count(), rounds.medians()), (1, vec![2.5]));
    }

    #[test]
    fn nothing_measured_has_no_interval() {
        let none = [Values::Samples(vec![f64::NAN]), Values::Counts(vec![])];
        assert_eq!(Rounds::of(&none).interval(0.5, 0.95), (None, false));
    }
}
