//! When enough is known: the figure of each round is one draw, and the interval of their median is taken from their order.

use std::collections::BTreeMap;

use crate::record::{Series, Values};

/// What the rounds of each case gave.
pub struct Enough {
    precision: Option<f64>,
    /// By point and arm.
    figures: BTreeMap<(usize, usize), Vec<f64>>,
}

impl Enough {
    /// Without a precision nothing is ever enough.
    pub fn new(precision: Option<f64>) -> Enough {
        Enough { precision, figures: BTreeMap::new() }
    }

    /// Takes what a trial gave; the first series is what the case is about.
    pub fn note(&mut self, point: usize, arm: usize, series: &[Series]) {
        let median = series.first().and_then(|series| median_of(&series.values));
        self.figures.entry((point, arm)).or_default().extend(median);
    }

    /// Whether every arm is known well enough at this point: they are measured together or not at all, because only rounds in which all were measured make ratios.
    pub fn of(&self, point: usize) -> bool {
        let Some(precision) = self.precision else { return false };
        let mut arms = self.figures.range((point, 0)..=(point, usize::MAX)).map(|(_, figures)| figures).peekable();
        arms.peek().is_some() && arms.all(|figures| is_narrow(figures, precision))
    }
}

/// Whether the interval of the median is no wider than this part of it.
fn is_narrow(figures: &[f64], precision: f64) -> bool {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(from_each_end) = left_out(sorted.len()) else { return false };
    let (low, high) = (sorted[from_each_end], sorted[sorted.len() - 1 - from_each_end]);
    high - low <= precision * sorted[sorted.len() / 2].abs()
}

/// How many values may be left out at each end so that the rest covers the median in 95 of 100 cases; none for too few values.
fn left_out(count: usize) -> Option<usize> {
    /// At each end.
    const MISSED: f64 = 0.025;
    // The probability that at most k of `count` draws fall below the median.
    let mut term = 0.5f64.powi(count as i32);
    let mut sum = term;
    let mut k = 0;
    while sum <= MISSED {
        k += 1;
        term *= (count - k + 1) as f64 / k as f64;
        sum += term;
    }
    k.checked_sub(1)
}

/// The middle value.
pub fn median_of(values: &Values) -> Option<f64> {
    match values {
        Values::Samples(samples) => {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        }
        Values::Counts(counts) => {
            let total: u64 = counts.iter().map(|(_, count)| count).sum();
            let mut before = 0;
            let middle = counts.iter().find(|(_, count)| {
                before += count;
                before > total / 2
            });
            middle.map(|(value, _)| *value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Metric;

    #[test]
    fn the_interval_is_that_of_the_tables() {
        // 95 % of the median: from 6 draws on, all of them; of 10 the second to the ninth; of 20 the sixth to the fifteenth.
        assert_eq!([5, 6, 9, 10, 20].map(left_out), [None, Some(0), Some(1), Some(1), Some(5)]);
    }

    #[test]
    fn all_arms_must_be_known() {
        let mut enough = Enough::new(Some(0.1));
        let series = |value| [Series::samples(Metric::OneWay, 1, vec![value])];
        for round in 0..6 {
            enough.note(0, 0, &series(100.0 + f64::from(round)));
            assert_eq!(enough.of(0), round == 5);
        }
        enough.note(0, 1, &series(50.0));
        assert!(!enough.of(0));
        assert!(!enough.of(1), "nothing was measured");
    }

    #[test]
    fn the_median_of_counts_is_that_of_their_samples() {
        assert_eq!(median_of(&Values::Counts(vec![(1.0, 2), (5.0, 3)])), Some(5.0));
        assert_eq!(median_of(&Values::Samples(vec![5.0, 1.0, 3.0])), Some(3.0));
        assert_eq!(median_of(&Values::Samples(vec![])), None);
    }
}
