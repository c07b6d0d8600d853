//! Values in order: quantiles and everything else that needs only ranks.

use crate::record::Values;

/// Values in ascending order, each with how many values are not above it; samples and histograms alike.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ordered {
    values: Vec<f64>,
    /// Number of values up to and with the one of the same index.
    up_to: Vec<u64>,
    not_numbers: u64,
}

impl Ordered {
    pub fn of(values: &[f64]) -> Ordered {
        Ordered::of_all([Source::Samples(values)])
    }

    pub fn of_counts(counts: &[(f64, u64)]) -> Ordered {
        Ordered::of_all([Source::Counts(counts)])
    }

    /// Everything that several series have, put together.
    pub fn of_values<'a>(series: impl IntoIterator<Item = &'a Values>) -> Ordered {
        Ordered::of_all(series.into_iter().map(|values| match values {
            Values::Samples(samples) => Source::Samples(samples),
            Values::Counts(counts) => Source::Counts(counts),
        }))
    }

    fn of_all<'a>(sources: impl IntoIterator<Item = Source<'a>>) -> Ordered {
        let mut all: Vec<(f64, u64)> = Vec::new();
        for source in sources {
            match source {
                Source::Samples(samples) => all.extend(samples.iter().map(|value| (*value, 1))),
                Source::Counts(counts) => all.extend(counts.iter().filter(|(_, count)| *count > 0)),
            }
        }
        let not_numbers = all.iter().filter(|(value, _)| !value.is_finite()).map(|(_, count)| count).sum();
        all.retain(|(value, _)| value.is_finite());
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut ordered = Ordered { values: Vec::new(), up_to: Vec::new(), not_numbers };
        let mut total = 0u64;
        for (value, count) in all {
            total = total.saturating_add(count);
            match (ordered.values.last(), ordered.up_to.last_mut()) {
                (Some(last), Some(up_to)) if *last == value => *up_to = total,
                _ => {
                    ordered.values.push(value);
                    ordered.up_to.push(total);
                }
            }
        }
        ordered
    }

    pub fn count(&self) -> u64 {
        self.up_to.last().copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Values that were left out because they are infinite or not numbers.
    pub fn not_numbers(&self) -> u64 {
        self.not_numbers
    }

    /// The value of this rank, 1 being the least; ranks outside are those of the ends. None without values.
    pub fn at(&self, rank: u64) -> Option<f64> {
        let index = self.up_to.partition_point(|up_to| *up_to < rank);
        self.values.get(index).or(self.values.last()).copied()
    }

    /// The value below which the part `q` (0 to 1) of the values lies. Where that falls exactly between two values it is their mean, so that the median
    /// is what everybody calls so; else it is one of the values. None without values.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let n = self.count();
        let position = q.clamp(0.0, 1.0) * n as f64;
        let whole = position.round();
        // A product such as 0.07 x 100 misses its whole number by the last bit.
        if (position - whole).abs() > 1e-9 * (1.0 + whole) {
            return self.at(position.ceil() as u64);
        }
        let rank = whole as u64;
        match rank {
            0 => self.at(1),
            rank if rank >= n => self.at(n),
            rank => {
                let (low, high) = (self.at(rank)?, self.at(rank + 1)?);
                Some(low + (high - low) / 2.0)
            }
        }
    }

    pub fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    pub fn min(&self) -> Option<f64> {
        self.values.first().copied()
    }

    pub fn max(&self) -> Option<f64> {
        self.values.last().copied()
    }

    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.pairs().map(|(value, count)| value * count as f64).sum();
        (!self.is_empty()).then(|| sum / self.count() as f64)
    }

    /// Number of values below this one, and of those that equal it.
    pub fn below_and_equal(&self, value: f64) -> (u64, u64) {
        let index = self.values.partition_point(|other| *other < value);
        let below = if index == 0 { 0 } else { self.up_to[index - 1] };
        match self.values.get(index) {
            Some(other) if *other == value => (below, self.up_to[index] - below),
            _ => (below, 0),
        }
    }

    /// (value, how often), ascending.
    pub fn pairs(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let before = std::iter::once(0).chain(self.up_to.iter().copied());
        self.values.iter().zip(&self.up_to).zip(before).map(|((value, up_to), before)| (*value, up_to - before))
    }
}

enum Source<'a> {
    Samples(&'a [f64]),
    Counts(&'a [(f64, u64)]),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, written down as simply as possible.
    fn naive(values: &[f64], q: f64) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let position = q * sorted.len() as f64;
        let near = (position - position.round()).abs() < 1e-9 * (1.0 + position);
        let last = sorted.len() - 1;
        if near && position.round() >= 1.0 && (position.round() as usize) <= last {
            let k = position.round() as usize;
            return sorted[k - 1] + (sorted[k] - sorted[k - 1]) / 2.0;
        }
        let rank = if near { position.round() } else { position.ceil() } as usize;
        sorted[rank.saturating_sub(1).min(last)]
    }

    #[test]
    fn medians_and_tails_of_small_samples() {
        assert_eq!(Ordered::of(&[]).median(), None);
        assert_eq!(Ordered::of(&[3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(Ordered::of(&[4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Ordered::of(&hundred).quantile(0.07), Some(7.5));
        assert_eq!(Ordered::of(&hundred).quantile(0.999), Some(100.0));
        assert_eq!(Ordered::of(&hundred).quantile(0.0), Some(1.0));
    }

    #[test]
    fn what_is_no_number_is_left_out_and_counted() {
        let ordered = Ordered::of(&[1.0, f64::NAN, 3.0, f64::INFINITY]);
        assert_eq!((ordered.count(), ordered.not_numbers(), ordered.max()), (2, 2, Some(3.0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn quantiles_are_those_of_the_definition(ticks in prop::collection::vec(-50i32..50, 1..200), q in 0.0f64..=1.0) {
            let values: Vec<f64> = ticks.iter().map(|tick| f64::from(*tick) * 0.25).collect();
            prop_assert_eq!(Ordered::of(&values).quantile(q), Some(naive(&values, q)));
            let percent = (q * 100.0).round() / 100.0;
            prop_assert_eq!(Ordered::of(&values).quantile(percent), Some(naive(&values, percent)));
        }

        #[test]
        fn counts_and_samples_of_the_same_values_are_equal(counts in prop::collection::vec((0u32..40, 1u64..9), 1..40)) {
            let counts: Vec<(f64, u64)> = counts.iter().map(|(value, count)| (f64::from(*value), *count)).collect();
            let samples: Vec<f64> = counts.iter().flat_map(|(value, count)| vec![*value; *count as usize]).collect();
            let (a, b) = (Ordered::of_counts(&counts), Ordered::of(&samples));
            prop_assert_eq!(&a, &b);
            let (below, equal) = a.below_and_equal(20.0);
            prop_assert_eq!(below as usize, samples.iter().filter(|value| **value < 20.0).count());
            prop_assert_eq!(equal as usize, samples.iter().filter(|value| **value == 20.0).count());
        }
    }
}
