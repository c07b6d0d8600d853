//! What all rounds of one case say together.

use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, ChangePoint, Interval, Ordered, Rounds, Trend, change_point, trend};

/// A value found from samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// None: too few samples, or too few rounds for how much they differ.
    pub interval: Option<Interval>,
}

/// The figures of one quantity of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: u64,
    pub rounds: usize,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    pub median: Estimate,
    pub p90: Estimate,
    pub p99: Estimate,
    pub p999: Estimate,
    /// Whether samples that are neighbours in time (or in the same round) are more alike than others; the intervals are wider then.
    pub dependent: bool,
    /// Values far from the bulk. They stay in every figure.
    pub outliers: Outliers,
    /// Values that were infinite or not numbers; they are in no figure.
    pub not_numbers: u64,
    pub trend: Option<Trend>,
    pub change_point: Option<ChangePoint>,
}

/// Values beyond the outer fences of Tukey: three interquartile ranges beyond the quartiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outliers {
    pub low_fence: f64,
    pub high_fence: f64,
    /// Values below the low fence.
    pub below: u64,
    /// Values above the high fence.
    pub above: u64,
}

/// Outer fences, in interquartile ranges.
const FENCE: f64 = 3.0;

/// The least interquartile range that the fences assume, relative to the median: where more than half of the values are equal (a coarse clock), not every other
/// value is far from the bulk.
const NARROWEST: f64 = 0.01;

/// Puts the rounds of one quantity of one case together. None without a value.
pub fn summarize(rounds: &Rounds<'_>) -> Option<Summary> {
    let ordered = rounds.ordered();
    let estimate = |q: f64| {
        let (interval, dependent) = rounds.interval(q, CONFIDENCE);
        Some((Estimate { value: ordered.quantile(q)?, interval }, dependent))
    };
    let (median, dependent) = estimate(0.5)?;
    let in_time = rounds.in_time().unwrap_or_default();
    let (trend, change_point) = likelier(&in_time, trend(&in_time), change_point(&in_time));
    Some(Summary {
        count: ordered.count(),
        rounds: rounds.count(),
        min: ordered.min()?,
        max: ordered.max()?,
        mean: ordered.mean()?,
        median,
        p90: estimate(0.9)?.0,
        p99: estimate(0.99)?.0,
        p999: estimate(0.999)?.0,
        dependent,
        outliers: outliers(ordered)?,
        not_numbers: ordered.not_numbers(),
        trend,
        change_point,
    })
}

impl Outliers {
    pub fn count(&self) -> u64 {
        self.below.saturating_add(self.above)
    }
}

impl Summary {
    /// What whoever believes the figures should know and can do. `unit`: of the values, such as `ns`.
    pub fn warnings(&self, unit: &str) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(trend) = &self.trend {
            all.push(format!(
                "values drift by {:+.1} % over the measurement (from {} to {}): the machine warms up, or other work grows; warm up for longer, or \
                 believe only ratios within rounds",
                100.0 * trend.change(),
                figure(trend.from, unit),
                figure(trend.to, unit),
            ));
        }
        if let Some(change) = &self.change_point {
            all.push(format!(
                "the level jumps by {:+.1} % after {:.0} % of the samples (from {} to {}): another program began or ended, or the processor's \
                 frequency or place changed; look at what ran then and measure again",
                100.0 * change.change(),
                100.0 * change.at,
                figure(change.before, unit),
                figure(change.after, unit),
            ));
        }
        if self.median.interval.is_none() {
            let what = if self.dependent { "the rounds differ too much" } else { "there are too few samples" };
            all.push(format!("the median has no interval: {what}; run more rounds"));
        }
        if self.not_numbers > 0 {
            all.push(format!("{} values are infinite or not numbers and were left out", self.not_numbers));
        }
        all
    }
}

/// A slope looks like a jump to the one test, a jump like a slope to the other: what lies nearer to the values is kept.
fn likelier(
    in_time: &[f64],
    trend: Option<Trend>,
    change: Option<ChangePoint>,
) -> (Option<Trend>, Option<ChangePoint>) {
    let (Some(line), Some(jump)) = (&trend, &change) else { return (trend, change) };
    let step = (line.to - line.from) / (in_time.len().max(2) - 1) as f64;
    let on_line = |i: usize| line.from + step * i as f64;
    let misfit: f64 = in_time.iter().enumerate().map(|(i, value)| (value - on_line(i)).abs()).sum();
    if jump.misfit(in_time) < misfit { (None, change) } else { (trend, None) }
}

fn outliers(ordered: &Ordered) -> Option<Outliers> {
    let (low, middle, high) = (ordered.quantile(0.25)?, ordered.median()?, ordered.quantile(0.75)?);
    let range = FENCE * (high - low).max(NARROWEST * middle.abs());
    let (low_fence, high_fence) = (low - range, high + range);
    let (below, _) = ordered.below_and_equal(low_fence);
    let (up_to, equal) = ordered.below_and_equal(high_fence);
    Some(Outliers { low_fence, high_fence, below, above: ordered.count() - up_to - equal })
}

/// Three or four digits, in a unit of which a person reads few.
fn figure(value: f64, unit: &str) -> String {
    match unit {
        "ns" if value.abs() >= 1e6 => format!("{:.3} ms", value / 1e6),
        "ns" if value.abs() >= 1e3 => format!("{:.3} us", value / 1e3),
        "ns" => format!("{value:.1} ns"),
        _ => format!("{value:.4} {unit}").trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::record::Values;

    fn one(samples: Vec<f64>) -> Summary {
        summarize(&Rounds::of(&[Values::Samples(samples)])).expect("values")
    }

    #[test]
    fn outliers_are_counted_and_kept() {
        let mut samples: Vec<f64> = (0..100).map(|i| 100.0 + f64::from(i % 10)).collect();
        samples.extend([10_000.0, 20_000.0, 1.0]);
        let summary = one(samples);
        assert_eq!((summary.outliers.above, summary.outliers.below), (2, 1));
        assert_eq!((summary.count, summary.min, summary.max), (103, 1.0, 20_000.0));
    }

    #[test]
    fn of_equal_values_none_is_an_outlier() {
        let mut samples = vec![100.0; 90];
        samples.extend([101.0; 10]);
        assert_eq!(one(samples).outliers.above, 0);
    }

    #[test]
    fn a_drift_and_a_jump_are_told_apart() {
        let mut random = Random::new(4);
        let mut noise = || random.normal();
        let slope = one((0..2_000).map(|i| 1_000.0 + 0.1 * f64::from(i) + 10.0 * noise()).collect());
        assert!(slope.trend.is_some() && slope.change_point.is_none());
        let text = slope.warnings("ns").join("\n");
        assert!(text.contains("drift by +19.") && text.contains("us") && text.contains("warm up"), "{text}");
        let jump = one((0..2_000).map(|i| if i < 900 { 500.0 } else { 600.0 } + 10.0 * noise()).collect());
        assert!(jump.trend.is_none() && jump.change_point.is_some());
        let text = jump.warnings("ns").join("\n");
        assert!(text.contains("jumps by +19.") && text.contains("after 45 %"), "{text}");
    }

    #[test]
    fn a_million_independent_samples_raise_no_alarm() {
        let mut random = Random::new(9);
        let samples: Vec<f64> = (0..1_000_000).map(|_| 100.0 + random.exponential()).collect();
        let summary = one(samples);
        assert!(!summary.dependent && summary.trend.is_none() && summary.p999.interval.is_some());
    }

    #[test]
    fn too_few_samples_are_said() {
        let few = one(vec![1.0, 2.0, 3.0]);
        assert!(few.median.interval.is_none() && few.warnings("ns")[0].contains("too few samples"));
        assert_eq!(summarize(&Rounds::of(&[])), None);
    }

    #[test]
    fn samples_and_histograms_of_rounds_are_put_together() {
        let rounds = [Values::Samples(vec![1.0, 2.0]), Values::Counts(vec![(3.0, 2), (4.0, 1)])];
        let summary = summarize(&Rounds::of(&rounds)).expect("values");
        assert_eq!((summary.count, summary.rounds, summary.median.value), (5, 2, 3.0));
    }
}
