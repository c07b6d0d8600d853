//! What the samples of a case say, and what two cases say about each other. Everything that reads result files takes its statistics through this file.

use std::collections::BTreeMap;

use crate::record::{Better, Metric, Values};

/// Standard deviations on either side that hold 95 % of a normal distribution.
const Z_95: f64 = 1.959_964;

/// Rounds that are needed before the spread of rounds says how sure a ratio is: with fewer, no order statistics enclose the median with 90 %.
const FEWEST_ROUNDS: usize = 5;

/// Ratios this near to 1 are called the same when their whole interval is.
const SAME: f64 = 0.02;

/// Medians of each side that are set against each other one by one; of more, as many in even steps.
const MOST_MEDIANS: usize = 1000;

/// The figures of one case in one metric, in the metric's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Samples.
    pub n: u64,
    pub median: f64,
    /// 95 % interval of the median, by order statistics.
    pub low: f64,
    pub high: f64,
    pub p99: f64,
    pub min: f64,
    pub max: f64,
    /// Samples further from the quartiles than three times their distance. They are counted, not taken out.
    pub outliers: u64,
}

/// Sorted samples with how often each occurs. Values that are no finite numbers are left out.
#[derive(Debug, Clone, Default)]
pub struct Distribution {
    values: Vec<(f64, u64)>,
    total: u64,
}

impl Distribution {
    pub fn of<'a>(parts: impl Iterator<Item = &'a Values>) -> Distribution {
        let mut values: Vec<(f64, u64)> = Vec::new();
        for part in parts {
            match part {
                Values::Samples(samples) => values.extend(samples.iter().map(|value| (*value, 1))),
                Values::Counts(counts) => values.extend(counts.iter().copied()),
            }
        }
        values.retain(|(value, count)| value.is_finite() && *count > 0);
        values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        values.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        let total = values.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        Distribution { values, total }
    }

    /// Number of samples.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The different values, ascending, with how often each occurs.
    pub fn values(&self) -> &[(f64, u64)] {
        &self.values
    }

    /// The value at so large a part of the samples; `None` without samples.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        self.quantiles(&[part]).first().copied()
    }

    /// The values at so large parts of the samples, in one pass; empty without samples.
    pub fn quantiles(&self, parts: &[f64]) -> Vec<f64> {
        let ranks: Vec<u64> = parts.iter().map(|part| (part * self.total as f64).ceil() as u64).collect();
        self.at_ranks(&ranks)
    }

    pub fn summary(&self) -> Option<Summary> {
        let n = self.total;
        let (min, max) = (self.values.first()?.0, self.values.last()?.0);
        let half = n as f64 / 2.0;
        let reach = Z_95 * (n as f64).sqrt() / 2.0;
        let ranks = [half - reach, half, half + reach + 1.0, 0.25 * n as f64, 0.75 * n as f64, 0.99 * n as f64];
        let ranks: Vec<u64> = ranks.into_iter().map(|rank| rank.ceil().max(0.0) as u64).collect();
        let [low, median, high, lower, upper, p99] = self.at_ranks(&ranks)[..] else { return None };
        let fence = 3.0 * (upper - lower);
        let outside = self.values.iter().filter(|(value, _)| *value < lower - fence || *value > upper + fence);
        let outliers = outside.fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        Some(Summary { n, median, low, high, p99, min, max, outliers })
    }

    /// The values at these ranks, from 1; ranks outside are the nearest that exist.
    fn at_ranks(&self, ranks: &[u64]) -> Vec<f64> {
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|index| ranks[*index]);
        let mut found = vec![f64::NAN; if self.values.is_empty() { 0 } else { ranks.len() }];
        let (mut position, mut passed) = (0, 0u64);
        for index in order {
            let rank = ranks[index].clamp(1, self.total.max(1));
            while position < self.values.len() && passed.saturating_add(self.values[position].1) < rank {
                passed = passed.saturating_add(self.values[position].1);
                position += 1;
            }
            if let Some((value, _)) = self.values.get(position).or(self.values.last()) {
                found[index] = *value;
            }
        }
        found
    }
}

/// What is known about one side of a comparison.
#[derive(Debug, Clone)]
pub struct Side {
    pub all: Distribution,
    /// The median of each round of each run.
    pub rounds: BTreeMap<(usize, u32), f64>,
}

/// How B stands to A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// B's value over A's, with its 95 % interval.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    /// How often a value of B is better than one of A, of all pairs; ties are half. 0.5: no difference.
    pub superiority: f64,
    pub judgement: Judgement,
    pub basis: Basis,
}

/// The verdict in one word, seen from B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    Better,
    Worse,
    /// The interval lies within 2 % around 1.
    Same,
    /// The interval holds 1 and more than 2 % beside it.
    Open,
}

/// What the interval was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Ratios of trials that ran next to each other.
    PairedRounds(usize),
    /// Medians of rounds of two runs, each with each.
    Rounds(usize, usize),
    /// The intervals of two medians; how much rounds differ is not known.
    Samples,
}

/// Compares two sides; `paired` when rounds with the same number ran next to each other. `None` when a side has no sample.
pub fn compare(a: &Side, b: &Side, metric: Metric, paired: bool) -> Option<Verdict> {
    let (of_a, of_b) = (a.all.summary()?, b.all.summary()?);
    let by_rounds = if paired { paired_rounds(a, b) } else { all_rounds(a, b) };
    let (ratio, low, high, basis) = by_rounds.unwrap_or_else(|| {
        let (low, high) = (ratio(of_b.low, of_a.high), ratio(of_b.high, of_a.low));
        (ratio(of_b.median, of_a.median), low, high, Basis::Samples)
    });
    let judgement = judge(low, high, metric.better());
    Some(Verdict { ratio, low, high, superiority: superiority(&a.all, &b.all, metric.better()), judgement, basis })
}

fn paired_rounds(a: &Side, b: &Side) -> Option<(f64, f64, f64, Basis)> {
    let pairs = a.rounds.iter().filter_map(|(round, a)| Some(ratio(*b.rounds.get(round)?, *a)));
    let mut ratios: Vec<f64> = pairs.filter(|ratio| !ratio.is_nan()).collect();
    if ratios.len() < FEWEST_ROUNDS {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let n = ratios.len();
    let outer = (n as f64 / 2.0 - Z_95 * (n as f64).sqrt() / 2.0).floor().max(0.0) as usize;
    Some((middle(&ratios), ratios[outer], ratios[n - 1 - outer], Basis::PairedRounds(n)))
}

/// The Hodges-Lehmann estimate of the ratio, with the interval that belongs to the rank sum test.
fn all_rounds(a: &Side, b: &Side) -> Option<(f64, f64, f64, Basis)> {
    let (from_a, from_b) = (thinned(a.rounds.values()), thinned(b.rounds.values()));
    let (n, m) = (from_a.len(), from_b.len());
    if n.min(m) < FEWEST_ROUNDS {
        return None;
    }
    let mut ratios: Vec<f64> = from_b.iter().flat_map(|b| from_a.iter().map(|a| ratio(*b, *a))).collect();
    ratios.retain(|ratio| !ratio.is_nan());
    if ratios.is_empty() {
        return None;
    }
    ratios.sort_by(f64::total_cmp);
    let product = (n * m) as f64;
    let outer = (product / 2.0 - Z_95 * (product * (n + m + 1) as f64 / 12.0).sqrt()).floor() as usize;
    let outer = outer.saturating_sub(1).min((ratios.len() - 1) / 2);
    let (low, high) = (ratios[outer], ratios[ratios.len() - 1 - outer]);
    Some((middle(&ratios), low, high, Basis::Rounds(a.rounds.len(), b.rounds.len())))
}

fn thinned<'a>(values: impl Iterator<Item = &'a f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.copied().collect();
    values.sort_by(f64::total_cmp);
    if values.len() <= MOST_MEDIANS {
        return values;
    }
    (0..MOST_MEDIANS).map(|step| values[step * (values.len() - 1) / (MOST_MEDIANS - 1)]).collect()
}

fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// Two nothings are equal; values of different sign have no ratio.
fn ratio(b: f64, a: f64) -> f64 {
    match () {
        () if a == b => 1.0,
        () if a < 0.0 || b < 0.0 => f64::NAN,
        () => b / a,
    }
}

fn judge(low: f64, high: f64, better: Better) -> Judgement {
    if low.is_nan() || high.is_nan() {
        return Judgement::Open;
    }
    let same = low >= 1.0 - SAME && high <= 1.0 + SAME;
    match better {
        _ if same && low <= 1.0 && high >= 1.0 => Judgement::Same,
        Better::Less if high < 1.0 => Judgement::Better,
        Better::More if low > 1.0 => Judgement::Better,
        Better::Less if low > 1.0 => Judgement::Worse,
        Better::More if high < 1.0 => Judgement::Worse,
        _ => Judgement::Open,
    }
}

/// In which part of all pairs B is better.
fn superiority(a: &Distribution, b: &Distribution, better: Better) -> f64 {
    let (mut below, mut position, mut greater) = (0u64, 0, 0.0);
    for (value, count) in &b.values {
        while position < a.values.len() && a.values[position].0 < *value {
            below = below.saturating_add(a.values[position].1);
            position += 1;
        }
        let equal = a.values.get(position).filter(|(other, _)| other == value).map_or(0, |(_, count)| *count);
        greater += *count as f64 * (below as f64 + equal as f64 / 2.0);
    }
    let part = greater / (a.total as f64 * b.total as f64);
    if better == Better::More { part } else { 1.0 - part }
}

impl Verdict {
    /// How many times better B is; below 1: worse.
    pub fn times_better(&self, better: Better) -> f64 {
        if better == Better::More { self.ratio } else { 1.0 / self.ratio }
    }

    /// The verdict in a sentence about B.
    pub fn words(&self, metric: Metric) -> String {
        let (more, less) = words_for(metric);
        let times = |ratio: f64| if metric.better() == Better::More { ratio } else { 1.0 / ratio };
        let mut ends = [times(self.low), times(self.high)];
        ends.sort_by(f64::total_cmp);
        let [low, high] = ends;
        let mut words = match self.judgement {
            Judgement::Better => format!("{} {more} ({} to {})", amount(times(self.ratio)), amount(low), amount(high)),
            Judgement::Worse => {
                let (now, low, high) = (1.0 / times(self.ratio), 1.0 / high, 1.0 / low);
                format!("{} {less} ({} to {})", amount(now), amount(low), amount(high))
            }
            Judgement::Same => format!("the same within {} %", (SAME * 100.0) as u32),
            Judgement::Open if low.is_finite() && high.is_finite() && low > 0.0 => {
                format!("no difference shown: from {} {less} to {} {more}", amount(1.0 / low), amount(high))
            }
            Judgement::Open => "cannot be compared: a ratio needs values above 0".to_owned(),
        };
        if self.basis == Basis::Samples && self.judgement != Judgement::Open {
            words += ", in these few rounds";
        }
        words
    }
}

/// What better and worse are called in a metric.
fn words_for(metric: Metric) -> (&'static str, &'static str) {
    use Metric::*;
    match metric {
        OneWay | RoundTrip | Response | Completion | Gap | Goodput | MessageRate | ConnectionRate => {
            ("faster", "slower")
        }
        SendOverhead | ReceiveOverhead | Instructions => ("cheaper", "dearer"),
        _ => ("better", "worse"),
    }
}

/// `3.1 %` for small amounts, `1.52 times` for large ones.
fn amount(times: f64) -> String {
    match times {
        t if !t.is_finite() => "endlessly".into(),
        t if t < 1.25 => format!("{} %", super::units::number(((t - 1.0) * 1000.0).round() / 10.0)),
        t => format!("{} times", super::units::number(t)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn distribution(samples: &[f64]) -> Distribution {
        Distribution::of(std::iter::once(&Values::Samples(samples.to_vec())))
    }

    fn side(medians: &[f64]) -> Side {
        let rounds = medians.iter().enumerate().map(|(round, median)| ((0, round as u32), *median)).collect();
        Side { all: distribution(medians), rounds }
    }

    #[test]
    fn a_summary_is_that_of_the_sorted_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = distribution(&samples).summary().expect("samples");
        assert_eq!((summary.n, summary.median, summary.p99, summary.min, summary.max), (100, 50.0, 99.0, 1.0, 100.0));
        // By the binomial distribution, the 40th and the 61st of 100 enclose the median with 95 %, the 41st and 60th do not.
        assert!((40.0..=41.0).contains(&summary.low) && (60.0..=61.0).contains(&summary.high), "{summary:?}");
        assert_eq!(summary.outliers, 0);
    }

    #[test]
    fn counts_say_what_samples_say() {
        let counted = Values::Counts(vec![(2.0, 3), (5.0, 1), (7.0, 2)]);
        let counts = Distribution::of(std::iter::once(&counted));
        assert_eq!(counts.summary(), distribution(&[7.0, 2.0, 5.0, 2.0, 7.0, 2.0]).summary());
    }

    #[test]
    fn nothing_and_no_numbers_have_no_summary() {
        assert_eq!(distribution(&[]).summary(), None);
        assert_eq!(distribution(&[f64::NAN, f64::INFINITY]).summary(), None);
        assert_eq!(distribution(&[f64::NAN, -3.0]).summary().map(|summary| summary.median), Some(-3.0));
    }

    #[test]
    fn rounds_next_to_each_other_show_what_their_spread_hides() {
        // The machine gets slower by half from round to round; B is 10 % faster in each.
        let a: Vec<f64> = (0..8).map(|round| 100.0 * 1.5f64.powi(round)).collect();
        let b: Vec<f64> = a.iter().map(|value| value / 1.1).collect();
        let paired = compare(&side(&a), &side(&b), Metric::OneWay, true).expect("samples");
        assert_eq!((paired.judgement, paired.basis), (Judgement::Better, Basis::PairedRounds(8)));
        assert_eq!(paired.words(Metric::OneWay), "10 % faster (10 % to 10 %)");
        let apart = compare(&side(&a), &side(&b), Metric::OneWay, false).expect("samples");
        assert_eq!(apart.judgement, Judgement::Open);
    }

    #[test]
    fn what_is_better_depends_on_the_metric() {
        let (a, b) = (side(&[100.0, 101.0, 99.0, 100.0, 100.5]), side(&[200.0, 201.0, 199.0, 200.0, 202.0]));
        let slower = compare(&a, &b, Metric::OneWay, false).expect("samples");
        let faster = compare(&a, &b, Metric::Goodput, false).expect("samples");
        assert_eq!((slower.judgement, slower.superiority), (Judgement::Worse, 0.0));
        assert_eq!((faster.judgement, faster.superiority), (Judgement::Better, 1.0));
        assert!(slower.words(Metric::OneWay).starts_with("2 times slower"), "{}", slower.words(Metric::OneWay));
    }

    #[test]
    fn equal_sides_are_the_same() {
        let values = [100.0, 101.0, 99.0, 100.0, 100.5, 100.2];
        let verdict = compare(&side(&values), &side(&values), Metric::OneWay, true).expect("samples");
        assert_eq!((verdict.judgement, verdict.superiority), (Judgement::Same, 0.5));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn any_values_give_an_ordered_summary(samples in prop::collection::vec(any::<f64>(), 0..80)) {
            if let Some(summary) = distribution(&samples).summary() {
                let order = [summary.min, summary.low, summary.median, summary.high, summary.max];
                prop_assert!(order.is_sorted(), "{order:?}");
                prop_assert!(summary.p99 >= summary.median);
            }
        }

        #[test]
        fn any_sides_get_words(a in prop::collection::vec(any::<f64>(), 0..9), b in prop::collection::vec(any::<f64>(), 0..9), paired: bool) {
            if let Some(verdict) = compare(&side(&a), &side(&b), Metric::OneWay, paired) {
                prop_assert!(!verdict.words(Metric::OneWay).contains("NaN"));
            }
        }
    }
}
