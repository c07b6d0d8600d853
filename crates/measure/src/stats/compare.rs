//! Whether B is better than A, by how much, and how sure that is.
//!
//! Rounds are compared, not samples: samples of one round share its luck. Where both were measured in the same rounds, their ratio within each round is free of
//! everything that changed both alike.

use serde::{Deserialize, Serialize};

use super::{Estimate, Interval, Ordered, Summary, normal_quantile, quantile_ranks, samples_needed};
use crate::record::{Better, Metric};

/// Differences up to this are called none, unless somebody sets another limit.
pub const NEGLIGIBLE: f64 = 0.03;

/// Most pairs whose ratios are sorted; beyond it an even choice of values stands for all.
const MOST_PAIRS: usize = 1 << 20;

/// What is compared, for the words of a verdict.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    pub a: &'a str,
    pub b: &'a str,
    /// Says which of two values is better, and what that is called.
    pub metric: Metric,
    /// Relative difference up to which nobody cares.
    pub negligible: f64,
    pub confidence: f64,
}

/// How B stands to A.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// How many times better B is: above 1, B is better.
    pub times_better: Estimate,
    /// Rounds that the ratio comes from.
    pub rounds: usize,
    /// Part of the rounds in which B was better minus that in which A was; of rounds of different runs, of all pairs (Cliff's delta). 1 where B always is.
    pub effect: f64,
    pub verdict: Verdict,
    /// The verdict in words.
    pub text: String,
}

/// What can be said.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B is better: the interval of the ratio lies above 1.
    Better,
    /// B is worse: the interval of the ratio lies below 1.
    Worse,
    /// The interval has 1 in it and is narrow.
    NoDifference { within: f64 },
    /// The interval has 1 in it and is wide, or there is none.
    TooNoisy { more_rounds: u64 },
}

/// Compares rounds that ran next to each other: (A, B) of each round, such as their medians. None without a pair of positive numbers.
pub fn compare_paired(rounds: &[(f64, f64)], sides: Sides<'_>) -> Option<Comparison> {
    let usable: Vec<(f64, f64)> = rounds.iter().copied().filter(|(a, b)| is_ratio(*a) && is_ratio(*b)).collect();
    let logs: Vec<f64> = usable.iter().map(|(a, b)| log_better(*a, *b, sides.metric.better())).collect();
    let ordered = Ordered::of(&logs);
    let interval = sign_interval(&ordered, sides.confidence);
    let effect = logs.iter().filter(|log| **log != 0.0).map(|log| log.signum()).sum::<f64>() / logs.len().max(1) as f64;
    let fewest = samples_needed(0.5, sides.confidence) as usize;
    conclude(ordered.median()?, interval, logs.len(), fewest, effect, sides)
}

/// Compares rounds of different runs: each A with each B (Hodges and Lehmann's estimate, with the interval of Mann and Whitney's test).
pub fn compare_unpaired(a: &[f64], b: &[f64], sides: Sides<'_>) -> Option<Comparison> {
    let (a, b) = (usable(a), usable(b));
    let pairs = a.iter().flat_map(|a| b.iter().map(|b| log_better(*a, *b, sides.metric.better())));
    let ordered = Ordered::of(&pairs.collect::<Vec<f64>>());
    let interval = mann_whitney_interval(&ordered, a.len() as f64, b.len() as f64, sides.confidence);
    let effect = match sides.metric.better() {
        Better::Less => cliffs_delta(&b, &a),
        Better::More => cliffs_delta(&a, &b),
    };
    conclude(ordered.median()?, interval, a.len().min(b.len()), FEWEST_UNPAIRED, effect, sides)
}

/// Compares two summaries of which nothing else is left, by the intervals of their medians. That both contain the truth is less sure than that one does, so the
/// result's confidence is lower.
pub fn compare_summaries(a: &Summary, b: &Summary, sides: Sides<'_>) -> Option<Comparison> {
    if !is_ratio(a.median.value) || !is_ratio(b.median.value) {
        return None;
    }
    let log = |a: f64, b: f64| log_better(a, b, sides.metric.better());
    let ends = |a: Interval, b: Interval| {
        let all = [log(a.low, b.high), log(a.high, b.low), log(a.low, b.low), log(a.high, b.high)];
        let (low, high) =
            all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(*x), high.max(*x)));
        let confidence = 1.0 - (1.0 - a.confidence) - (1.0 - b.confidence);
        (low.is_finite() && high.is_finite()).then_some(Interval { low, high, confidence })
    };
    let interval = a.median.interval.zip(b.median.interval).and_then(|(a, b)| ends(a, b));
    let ratio = log(a.median.value, b.median.value);
    let effect = ratio.signum() * f64::from(interval.is_some_and(|interval| !interval.contains(0.0)));
    conclude(ratio, interval, a.rounds.min(b.rounds), FEWEST_UNPAIRED, effect, sides)
}

/// Probability that a value of `b` is above one of `a`, minus that of the opposite.
pub fn cliffs_delta(a: &[f64], b: &[f64]) -> f64 {
    delta(&Ordered::of(a), &Ordered::of(b))
}

/// How often a value of B is better than one of A, of all pairs; ties are half. 0.5: no difference.
pub fn superiority(a: &Ordered, b: &Ordered, better: Better) -> f64 {
    let above = (1.0 + delta(a, b)) / 2.0;
    if better == Better::More { above } else { 1.0 - above }
}

fn delta(a: &Ordered, b: &Ordered) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let score = |value: f64, count: u64| {
        let (below, equal) = a.below_and_equal(value);
        let above = a.count() - below - equal;
        count as f64 * (below as f64 - above as f64)
    };
    let sum: f64 = b.pairs().map(|(value, count)| score(value, count)).sum();
    sum / (a.count() as f64 * b.count() as f64)
}

/// Four rounds each: the least for which the ranks of all pairs say anything at 95 %.
const FEWEST_UNPAIRED: usize = 4;

fn is_ratio(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn usable(values: &[f64]) -> Vec<f64> {
    let all: Vec<f64> = values.iter().copied().filter(|value| is_ratio(*value)).collect();
    let step = (all.len() * all.len() / MOST_PAIRS).max(1);
    all.into_iter().step_by(step).collect()
}

/// Logarithm of how many times better b is. Logarithms, so that twice as good and half as good are equally far from equal.
fn log_better(a: f64, b: f64, better: Better) -> f64 {
    match better {
        Better::Less => (a / b).ln(),
        Better::More => (b / a).ln(),
    }
}

/// The interval of the median of independent rounds. With fewer rounds than the asked confidence needs, the whole range, with the confidence that it has.
fn sign_interval(ordered: &Ordered, confidence: f64) -> Option<Interval> {
    let n = ordered.count();
    match quantile_ranks(n, 0.5, confidence) {
        Some((low, high)) => Some(Interval { low: ordered.at(low)?, high: ordered.at(high)?, confidence }),
        None if n >= 2 => {
            let confidence = 1.0 - 0.5f64.powi(n as i32 - 1);
            Some(Interval { low: ordered.min()?, high: ordered.max()?, confidence })
        }
        None => None,
    }
}

fn mann_whitney_interval(ordered: &Ordered, a: f64, b: f64, confidence: f64) -> Option<Interval> {
    let z = normal_quantile(0.5 + confidence / 2.0);
    let half = z * (a * b * (a + b + 1.0) / 12.0).sqrt();
    let low = (a * b / 2.0 - half).floor();
    (low >= 1.0).then_some(())?;
    Some(Interval { low: ordered.at(low as u64)?, high: ordered.at((a * b + 1.0 - low) as u64)?, confidence })
}

fn conclude(
    log: f64,
    interval: Option<Interval>,
    rounds: usize,
    fewest: usize,
    effect: f64,
    sides: Sides<'_>,
) -> Option<Comparison> {
    let verdict = verdict(log, interval, rounds, fewest, sides);
    let ratio = |interval: Interval| Interval { low: interval.low.exp(), high: interval.high.exp(), ..interval };
    let times_better = Estimate { value: log.exp(), interval: interval.map(ratio) };
    let text = words(verdict, times_better, rounds, sides);
    Some(Comparison { times_better, rounds, effect, verdict, text })
}

fn verdict(log: f64, interval: Option<Interval>, rounds: usize, fewest: usize, sides: Sides<'_>) -> Verdict {
    let missing = fewest.saturating_sub(rounds) as u64;
    let Some(interval) = interval.filter(|_| missing == 0) else {
        return Verdict::TooNoisy { more_rounds: missing.max(1) };
    };
    let farthest = interval.low.abs().max(interval.high.abs());
    if interval.low > 0.0 {
        Verdict::Better
    } else if interval.high < 0.0 {
        Verdict::Worse
    } else if farthest <= sides.negligible.ln_1p() {
        Verdict::NoDifference { within: farthest.exp_m1() }
    } else {
        // The width shrinks with the root of the number of rounds; it must get below the difference that is there, or below the one that matters.
        let wanted = log.abs().max(sides.negligible.ln_1p());
        let times = ((interval.high - interval.low) / 2.0 / wanted).powi(2).max(1.25);
        Verdict::TooNoisy { more_rounds: (rounds as f64 * (times - 1.0)).ceil().clamp(1.0, 1e6) as u64 }
    }
}

fn words(verdict: Verdict, times: Estimate, rounds: usize, sides: Sides<'_>) -> String {
    let Sides { a, b, .. } = sides;
    let range = |interval: Interval| format!("{} to {}", digits(interval.low), digits(interval.high));
    match (verdict, times.interval) {
        (Verdict::Better, Some(interval)) => by_how_much(b, a, interval, sides.metric),
        (Verdict::Worse, Some(Interval { low, high, confidence })) => {
            by_how_much(a, b, Interval { low: 1.0 / high, high: 1.0 / low, confidence }, sides.metric)
        }
        (Verdict::NoDifference { within }, _) => {
            format!("no difference between {a} and {b} larger than {} %", digits(100.0 * within))
        }
        (Verdict::TooNoisy { more_rounds }, Some(interval)) => {
            format!(
                "too noisy to tell {a} from {b} (ratio {}, {rounds} rounds): needs about {more_rounds} more rounds",
                range(interval)
            )
        }
        (Verdict::TooNoisy { more_rounds }, None) => {
            format!("too few rounds to compare {a} and {b} ({rounds}): needs about {more_rounds} more")
        }
        (Verdict::Better | Verdict::Worse, None) => format!("{a} and {b} differ"),
    }
}

/// `x` is the better one; the interval says how many times.
fn by_how_much(x: &str, y: &str, times: Interval, metric: Metric) -> String {
    let word = word(metric);
    let percent = |ratio: f64| digits(100.0 * (ratio - 1.0));
    match (metric.better(), times.high < 1.5) {
        (Better::Less, true) => format!("{x} is {} to {} % {word} than {y}", percent(times.low), percent(times.high)),
        (Better::Less, false) => {
            format!("{x} is {} to {} times {word} than {y}", digits(times.low), digits(times.high))
        }
        (Better::More, true) => format!("{x} has {} to {} % more than {y}", percent(times.low), percent(times.high)),
        (Better::More, false) => {
            format!("{x} has {} to {} times as much as {y}", digits(times.low), digits(times.high))
        }
    }
}

/// What less is called where less is better.
fn word(metric: Metric) -> &'static str {
    match metric {
        Metric::SendOverhead | Metric::ReceiveOverhead | Metric::Instructions => "cheaper",
        Metric::Loss | Metric::Noise => "better",
        _ => "faster",
    }
}

/// Two or three digits, as a person says a ratio.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 99.5 => format!("{value:.0}"),
        large if large >= 9.95 => format!("{value:.1}"),
        large if large >= 0.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::record::Values;
    use crate::stats::{Rounds, summarize};

    const SIDES: Sides<'static> =
        Sides { a: "tcp", b: "ropeway", metric: Metric::OneWay, negligible: NEGLIGIBLE, confidence: 0.95 };

    /// Rounds of A and B whose luck they share: it moves both by tens of percent, and their ratio little.
    fn rounds(seed: u64, count: usize, times: f64, noise: f64) -> Vec<(f64, f64)> {
        let mut random = Random::new(seed);
        let mut round = || {
            let luck = (0.3 * random.normal()).exp();
            (luck * times * (noise * random.normal()).exp(), luck * (noise * random.normal()).exp())
        };
        (0..count).map(|_| round()).collect()
    }

    #[test]
    fn twice_as_fast_is_said_so() {
        let found = compare_paired(&rounds(1, 12, 2.0, 0.03), SIDES).expect("rounds");
        assert_eq!(found.verdict, Verdict::Better);
        assert!(
            found.text.starts_with("ropeway is 1.9") && found.text.ends_with("times faster than tcp"),
            "{}",
            found.text
        );
        assert!(found.effect == 1.0 && found.times_better.interval.expect("an interval").contains(2.0));
        let swapped = compare_paired(&rounds(1, 12, 0.5, 0.03), SIDES).expect("rounds");
        assert_eq!(swapped.verdict, Verdict::Worse);
        assert!(swapped.text.starts_with("tcp is ") && swapped.effect == -1.0, "{}", swapped.text);
    }

    #[test]
    fn a_rate_is_better_when_it_is_more() {
        let sides = Sides { metric: Metric::Goodput, ..SIDES };
        let found = compare_paired(&rounds(1, 12, 1.0 / 1.2, 0.01), sides).expect("rounds");
        assert_eq!(found.verdict, Verdict::Better);
        assert!(found.text.starts_with("ropeway has ") && found.text.contains(" % more than tcp"), "{}", found.text);
    }

    #[test]
    fn nothing_is_claimed_where_nothing_is() {
        let found = compare_paired(&rounds(8, 60, 1.0, 0.02), SIDES).expect("rounds");
        assert!(matches!(found.verdict, Verdict::NoDifference { within } if within < 0.03), "{found:?}");
        let claims = (0..400).filter(|seed| {
            let found = compare_paired(&rounds(*seed, 10, 1.0, 0.1), SIDES).expect("rounds");
            matches!(found.verdict, Verdict::Better | Verdict::Worse)
        });
        assert!(claims.count() <= 20);
    }

    #[test]
    fn what_cannot_be_told_says_what_it_needs() {
        let few = compare_paired(&rounds(1, 3, 2.0, 0.03), SIDES).expect("rounds");
        assert_eq!(few.verdict, Verdict::TooNoisy { more_rounds: 3 });
        let confidence = few.times_better.interval.expect("an interval").confidence;
        assert_eq!(confidence, 0.75);
        let noisy = compare_paired(&rounds(3, 10, 1.02, 0.3), SIDES).expect("rounds");
        assert!(matches!(noisy.verdict, Verdict::TooNoisy { more_rounds } if more_rounds > 10), "{noisy:?}");
        assert!(noisy.text.contains("more rounds"), "{}", noisy.text);
        assert_eq!(compare_paired(&[(0.0, 1.0), (f64::NAN, 2.0)], SIDES), None);
    }

    #[test]
    fn rounds_of_different_runs_are_compared_all_with_all() {
        let (a, b): (Vec<f64>, Vec<f64>) = rounds(5, 30, 3.0, 0.02).into_iter().unzip();
        let found = compare_unpaired(&a, &b, SIDES).expect("rounds");
        assert_eq!(found.verdict, Verdict::Better);
        assert!(found.times_better.interval.expect("an interval").contains(3.0), "{found:?}");
        assert!(matches!(compare_unpaired(&a[..2], &b[..2], SIDES).expect("rounds").verdict, Verdict::TooNoisy { .. }));
    }

    #[test]
    fn intervals_of_ratios_cover_the_truth() {
        let (mut paired, mut unpaired) = (0, 0);
        for seed in 0..400 {
            let mut random = Random::new(seed);
            // Skewed, as times are.
            let mut value = |middle: f64| middle * (1.0 + 0.1 * random.exponential());
            let rounds: Vec<(f64, f64)> = (0..9).map(|_| (value(2.0), value(1.0))).collect();
            let (a, b): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
            let contains = |found: Option<Comparison>| {
                i32::from(found.expect("rounds").times_better.interval.expect("an interval").contains(2.0))
            };
            paired += contains(compare_paired(&rounds, SIDES));
            unpaired += contains(compare_unpaired(&a, &b, SIDES));
        }
        assert!(paired >= 372 && unpaired >= 372, "{paired} and {unpaired} of 400");
    }

    #[test]
    fn two_summaries_are_compared_by_their_intervals() {
        let mut random = Random::new(6);
        let mut summary = |middle: f64| {
            let values = (0..8).map(|_| (0..50).map(|_| middle + random.exponential()).collect());
            let rounds: Vec<Values> = values.map(Values::Samples).collect();
            summarize(&Rounds::of(&rounds)).expect("values")
        };
        let (slow, fast, same) = (summary(200.0), summary(100.0), summary(100.0));
        let found = compare_summaries(&slow, &fast, SIDES).expect("medians");
        assert_eq!((found.verdict, found.effect), (Verdict::Better, 1.0));
        let interval = found.times_better.interval.expect("an interval");
        assert!(interval.contains(200.7 / 100.7) && interval.confidence < 0.95, "{interval:?}");
        let found = compare_summaries(&same, &fast, SIDES).expect("medians");
        assert!(matches!(found.verdict, Verdict::NoDifference { within } if within < 0.01), "{found:?}");
    }

    #[test]
    fn cliffs_delta_counts_pairs() {
        assert_eq!(cliffs_delta(&[1.0, 2.0], &[3.0, 4.0]), 1.0);
        assert_eq!(cliffs_delta(&[1.0, 3.0], &[2.0, 2.0]), 0.0);
        assert_eq!(cliffs_delta(&[1.0, 2.0], &[1.0, 1.0]), -0.5);
    }
}
