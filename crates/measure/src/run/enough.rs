//! What the rounds of each case gave: when enough is known of it, and what its figures should be warned of.

use std::collections::BTreeMap;

use crate::record::{Metric, Series, Values};
use crate::stats::{Decision, Precision, Rounds, Stopping, summarize};

/// What the cases of a run gave, by point and arm.
pub struct Enough {
    precision: Option<Precision>,
    cases: BTreeMap<(usize, usize), Known>,
}

/// The rounds of one case.
struct Known {
    metric: Metric,
    /// By number; in each the values of all ranks that measured in it.
    rounds: BTreeMap<u32, Vec<Values>>,
    stopping: Option<Stopping>,
    is_enough: bool,
}

/// Warnings of one case, for whoever knows its name.
pub struct Warnings {
    pub point: usize,
    pub arm: usize,
    pub metric: Metric,
    pub texts: Vec<String>,
}

impl Enough {
    /// Without a precision nothing is ever enough.
    pub fn new(precision: Option<Precision>) -> Enough {
        Enough { precision, cases: BTreeMap::new() }
    }

    /// Takes what a rank measured in a trial of this round; the metric is what the case is about.
    pub fn note(&mut self, point: usize, arm: usize, round: u32, metric: Metric, series: &[Series]) {
        let Some(leading) = series.iter().find(|series| series.metric == metric) else { return };
        let stopping = self.precision.map(Stopping::new);
        let known = self.cases.entry((point, arm)).or_insert_with(|| Known {
            metric,
            rounds: BTreeMap::new(),
            stopping,
            is_enough: false,
        });
        known.rounds.entry(round).or_default().push(leading.values.clone());
    }

    /// To be asked once after each round: whether every arm that is `measured` at this point still is known well enough. They are measured together or not at all, because only rounds in which
    /// all were measured make ratios. What is measured no more is known as well as it ever will be.
    pub fn of(&mut self, point: usize, measured: &[usize]) -> bool {
        let mut all = measured.is_empty();
        for arm in measured {
            let Some(known) = self.cases.get_mut(&(point, *arm)) else { continue };
            let Some(stopping) = &mut known.stopping else { return false };
            if !known.is_enough {
                known.is_enough = stopping.decide(&together(&known.rounds)) == Decision::Enough;
            }
            if !known.is_enough {
                return false;
            }
            all = true;
        }
        all
    }

    /// What whoever believes the figures should know: drifts and jumps.
    pub fn warnings(&self) -> Vec<Warnings> {
        let of_case = |((point, arm), known): (&(usize, usize), &Known)| {
            let summary = summarize(&together(&known.rounds))?;
            // Too few rounds for an interval were asked for: the table shows it.
            let is_unsteady = summary.trend.is_some() || summary.change_point.is_some();
            let texts = if is_unsteady { summary.warnings(known.metric.unit()) } else { Vec::new() };
            (!texts.is_empty()).then_some(Warnings { point: *point, arm: *arm, metric: known.metric, texts })
        };
        self.cases.iter().filter_map(of_case).collect()
    }
}

fn together(rounds: &BTreeMap<u32, Vec<Values>>) -> Rounds<'_> {
    Rounds::of_ranks(rounds.values().map(|ranks| ranks.iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRIC: Metric = Metric::OneWay;

    fn series(value: f64) -> [Series; 1] {
        [Series::samples(METRIC, 1, vec![value])]
    }

    #[test]
    fn all_arms_must_be_known() {
        let mut enough = Enough::new(Some(Precision::of_median(0.1)));
        let mut known = Vec::new();
        for round in 0..20 {
            enough.note(0, 0, round, METRIC, &series(100.0 + f64::from(round % 3)));
            known.push(enough.of(0, &[0]));
        }
        assert!(!known[4], "fewer than six rounds");
        assert!(known[19]);
        enough.note(0, 1, 19, METRIC, &series(50.0));
        assert!(!enough.of(0, &[0, 1]));
        assert!(enough.of(0, &[0, 2]), "of the third nothing came");
        assert!(!enough.of(1, &[0, 1]), "nothing was measured");
    }

    #[test]
    fn an_arm_that_is_measured_no_more_keeps_no_other_waiting() {
        let mut enough = Enough::new(Some(Precision::of_median(0.1)));
        enough.note(0, 0, 0, METRIC, &series(50.0));
        let known = (0..20).any(|round| {
            enough.note(0, 1, round, METRIC, &series(100.0));
            enough.of(0, &[1])
        });
        assert!(known);
        assert!(!enough.of(0, &[0, 1]));
        assert!(enough.of(0, &[]), "nobody makes it known better");
    }

    #[test]
    fn ranks_that_measure_together_are_one_round() {
        let mut enough = Enough::new(Some(Precision::of_median(0.1)));
        let mut known = Vec::new();
        for round in 0..6 {
            (0..8).for_each(|_| enough.note(0, 0, round, METRIC, &series(100.0)));
            known.push(enough.of(0, &[0]));
        }
        assert_eq!(known, [false, false, false, false, false, true]);
    }

    #[test]
    fn nothing_is_enough_where_no_precision_was_asked_for() {
        let mut enough = Enough::new(None);
        (0..50).for_each(|round| enough.note(0, 0, round, METRIC, &series(1.0)));
        assert!(!enough.of(0, &[0]));
    }
}
