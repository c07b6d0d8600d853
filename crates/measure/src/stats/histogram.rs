//! Histograms of durations, for measurements too long to keep every sample.

use hdrhistogram::Histogram;

use crate::record::Values;

/// Significant decimal digits that a duration keeps.
const DIGITS: u8 = 3;

/// Counts of durations in nanoseconds; memory grows with their range only.
#[derive(Debug, Clone)]
pub struct Durations {
    histogram: Histogram<u64>,
}

impl Default for Durations {
    fn default() -> Durations {
        let histogram = Histogram::new(DIGITS).expect("three digits are in the library's range");
        Durations { histogram }
    }
}

impl Durations {
    pub fn record(&mut self, ns: u64) {
        // Grows with the range; what is too long even for that counts as the longest.
        if self.histogram.record(ns).is_err() {
            self.histogram.saturating_record(ns);
        }
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// What the result file keeps: the middle of each class, with how many durations were in it. `batch`: operations that each duration was taken over; the
    /// values are those of one.
    pub fn into_values(self, batch: u32) -> Values {
        let recorded = self.histogram.iter_recorded();
        let middle = |value: u64| {
            (self.histogram.lowest_equivalent(value) + self.histogram.highest_equivalent(value)) as f64 / 2.0
        };
        Values::Counts(
            recorded
                .map(|class| (middle(class.value_iterated_to()) / f64::from(batch), class.count_at_value()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Ordered;

    #[test]
    fn quantiles_of_a_histogram_are_those_of_its_samples_to_three_digits() {
        let samples: Vec<u64> = (0..20_000u64).map(|i| 50 + i * i / 100).collect();
        let mut durations = Durations::default();
        samples.iter().for_each(|ns| durations.record(*ns));
        assert_eq!(durations.count(), 20_000);
        let Values::Counts(counts) = durations.into_values(2) else { panic!("counts") };
        let (rough, exact) =
            (Ordered::of_counts(&counts), Ordered::of(&samples.iter().map(|ns| *ns as f64 / 2.0).collect::<Vec<_>>()));
        for q in [0.01, 0.5, 0.9, 0.999, 1.0] {
            let (rough, exact) = (rough.quantile(q).expect("values"), exact.quantile(q).expect("values"));
            assert!((rough / exact - 1.0).abs() < 1e-3, "{q}: {rough} for {exact}");
        }
    }
}
