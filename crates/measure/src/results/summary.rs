//! What the trials of a case say, and what two cases say about each other: the trials of result files, put to [`crate::stats`]. Nothing is estimated here.

use std::collections::BTreeMap;

use super::group::Group;
use crate::record::{Metric, Values};
use crate::stats::{
    CONFIDENCE, Comparison, NEGLIGIBLE, Ordered, Rounds, Sides, Summary, compare_paired, compare_unpaired, summarize,
    superiority,
};

/// All that is known about one case in one metric.
#[derive(Debug, Clone)]
pub struct Side {
    pub summary: Summary,
    /// All values, whichever trial and rank they are of.
    pub all: Ordered,
    /// The median of each round of each run, all ranks together.
    pub medians: BTreeMap<(usize, u32), f64>,
}

/// How B stands to A.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// How often a value of B is better than one of A, of all pairs; ties are half. 0.5: no difference.
    pub superiority: f64,
    /// None: a ratio needs values above 0.
    pub comparison: Option<Comparison>,
}

impl Side {
    /// None: there is not one value.
    pub fn of(group: &Group<'_>) -> Option<Side> {
        let mut by_round: BTreeMap<(usize, u32), Vec<&Values>> = BTreeMap::new();
        for part in &group.parts {
            by_round.entry((part.run, part.round)).or_default().push(part.values);
        }
        let median = |values: &Vec<&Values>| Ordered::of_values(values.iter().copied()).median();
        let medians = by_round.iter().filter_map(|(round, values)| Some((*round, median(values)?))).collect();
        let rounds = Rounds::of_ranks(by_round.into_values());
        let summary = summarize(&rounds)?;
        Some(Side { summary, all: rounds.into_ordered(), medians })
    }
}

/// Compares two sides; `paired` when rounds with the same number ran next to each other.
pub fn compare(a: &Side, b: &Side, metric: Metric, paired: bool) -> Verdict {
    let sides = Sides { a: "A", b: "B", metric, negligible: NEGLIGIBLE, confidence: CONFIDENCE };
    let comparison = match paired {
        true => {
            let both = |(round, a): (&(usize, u32), &f64)| Some((*a, *b.medians.get(round)?));
            compare_paired(&a.medians.iter().filter_map(both).collect::<Vec<_>>(), sides)
        }
        false => {
            let medians = |side: &Side| side.medians.values().copied().collect::<Vec<f64>>();
            compare_unpaired(&medians(a), &medians(b), sides)
        }
    };
    Verdict { superiority: superiority(&a.all, &b.all, metric.better()), comparison }
}

impl Verdict {
    /// The verdict in a sentence about A and B.
    pub fn words(&self) -> &str {
        self.comparison.as_ref().map_or("cannot be compared: a ratio needs values above 0", |found| &found.text)
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::group::{groups, tests::measured};
    use super::*;
    use crate::results::Results;
    use crate::stats;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// A side whose rounds have one sample each.
    fn side(values: &[f64]) -> Option<Side> {
        let round = |(round, value): (usize, &f64)| measured("t", 8, round as u32, Metric::OneWay, vec![*value]);
        let results = [Results { measured: values.iter().enumerate().map(round).collect(), ..Results::default() }];
        groups(&results).first().and_then(Side::of)
    }

    fn verdict(a: &[f64], b: &[f64], metric: Metric, paired: bool) -> Verdict {
        compare(&side(a).expect("values"), &side(b).expect("values"), metric, paired)
    }

    #[test]
    fn nothing_and_no_numbers_say_nothing() {
        assert!(side(&[]).is_none() && side(&[f64::NAN, f64::INFINITY]).is_none());
        assert_eq!(side(&[f64::NAN, -3.0]).map(|side| side.summary.median.value), Some(-3.0));
    }

    #[test]
    fn rounds_next_to_each_other_show_what_their_spread_hides() {
        // The machine gets slower by half from round to round; B is 10 % faster in each.
        let a: Vec<f64> = (0..8).map(|round| 100.0 * 1.5f64.powi(round)).collect();
        let b: Vec<f64> = a.iter().map(|value| value / 1.1).collect();
        let paired = verdict(&a, &b, Metric::OneWay, true);
        assert_eq!(paired.words(), "B is 10.0 to 10.0 % faster than A");
        let apart = verdict(&a, &b, Metric::OneWay, false).comparison.expect("rounds");
        assert!(matches!(apart.verdict, stats::Verdict::TooNoisy { .. }), "{apart:?}");
    }

    #[test]
    fn what_is_better_depends_on_the_metric() {
        let (a, b) = ([100.0, 101.0, 99.0, 100.0, 100.5], [200.0, 201.0, 199.0, 200.0, 202.0]);
        let (slower, faster) = (verdict(&a, &b, Metric::OneWay, false), verdict(&a, &b, Metric::Goodput, false));
        assert_eq!((slower.superiority, faster.superiority), (0.0, 1.0));
        assert!(slower.words().starts_with("A is ") && faster.words().starts_with("B has "), "{slower:?} {faster:?}");
    }

    #[test]
    fn zeros_have_no_ratio() {
        let found = verdict(&[0.0; 8], &[0.0; 8], Metric::Loss, true);
        assert_eq!((found.superiority, found.words()), (0.5, "cannot be compared: a ratio needs values above 0"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn any_sides_get_words(a in prop::collection::vec(any::<f64>(), 0..9), b in prop::collection::vec(any::<f64>(), 0..9), paired: bool) {
            if let Some((a, b)) = side(&a).zip(side(&b)) {
                prop_assert!(!compare(&a, &b, Metric::OneWay, paired).words().contains("NaN"));
            }
        }
    }
}
