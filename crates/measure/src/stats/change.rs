//! Change points: whether the level of values jumps at some moment of a measurement (Pettitt's test, which looks at ranks only).

use serde::{Deserialize, Serialize};

use super::median;
use super::trend::independent_blocks;

/// The test is not made with fewer blocks of values.
const FEWEST_BLOCKS: usize = 16;

/// Probability of a warning where there is nothing.
const FALSE_ALARM: f64 = 0.001;

/// Smaller jumps harm nobody.
const HARMLESS: f64 = 0.01;

/// A level that jumps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChangePoint {
    /// The part of the values (0 to 1) that came before it.
    pub at: f64,
    /// Medians of the parts.
    pub before: f64,
    pub after: f64,
    /// Probability of so clear a jump in values without one.
    pub p: f64,
}

impl ChangePoint {
    /// Relative change of the level.
    pub fn change(&self) -> f64 {
        (self.after - self.before) / self.before.abs()
    }

    /// Sum of the distances of values from the two levels: what a drift that explains them better undercuts.
    pub(super) fn misfit(&self, values: &[f64]) -> f64 {
        let first = (self.at * values.len() as f64).round() as usize;
        let level = |i: usize| if i < first { self.before } else { self.after };
        values.iter().enumerate().map(|(i, value)| (value - level(i)).abs()).sum()
    }
}

/// The jump of the level of values in the order of time, if there is one that matters.
pub fn change_point(in_time: &[f64]) -> Option<ChangePoint> {
    let blocks = independent_blocks(in_time, FEWEST_BLOCKS, |blocks| {
        let (first, _) = split(blocks);
        let (a, b) = blocks.split_at(first);
        let around = |part: &[f64]| {
            let middle = median(part).unwrap_or(0.0);
            part.iter().map(|value| value - middle).collect::<Vec<_>>()
        };
        [around(a), around(b)].concat()
    })?;
    let (first, p) = split(&blocks);
    let at = first as f64 / blocks.len() as f64;
    let (before, after) = in_time.split_at((at * in_time.len() as f64).round() as usize);
    let found = ChangePoint { at, before: median(before)?, after: median(after)?, p };
    (p < FALSE_ALARM && found.change().abs() > HARMLESS).then_some(found)
}

/// The number of values before the likeliest jump, and the probability of one so clear by chance.
fn split(values: &[f64]) -> (usize, f64) {
    let n = values.len() as f64;
    let (mut largest, mut first, mut sum) = (0.0f64, values.len(), 0.0);
    for (i, value) in values.iter().enumerate() {
        sum += values.iter().map(|other| sign(other - value)).sum::<f64>();
        if sum.abs() > largest {
            (largest, first) = (sum.abs(), i + 1);
        }
    }
    (first, (2.0 * (-6.0 * largest * largest / (n * n * n + n * n)).exp()).min(1.0))
}

fn sign(difference: f64) -> f64 {
    if difference > 0.0 {
        1.0
    } else if difference < 0.0 {
        -1.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_jump_is_found_where_it_is() {
        let mut random = Random::new(1);
        for (n, at) in [(100, 0.5), (2_000, 0.3), (2_000, 0.8)] {
            let level = |i: usize| if (i as f64) < at * n as f64 { 100.0 } else { 112.0 };
            let values: Vec<f64> = (0..n).map(|i| level(i) + 4.0 * random.exponential()).collect();
            let found = change_point(&values).expect("a jump");
            assert!((found.at - at).abs() < 0.06 && (found.change() - 0.12).abs() < 0.03, "{found:?}");
        }
    }

    #[test]
    fn no_jump_is_found_where_there_is_none() {
        let mut random = Random::new(2);
        let mut alarms = [0, 0];
        for _ in 0..500 {
            let values: Vec<f64> = (0..300).map(|_| 100.0 + 20.0 * random.exponential()).collect();
            alarms[0] += u32::from(change_point(&values).is_some());
            let mut value = 0.0;
            let mut step = || {
                value = 0.8 * value + random.normal();
                100.0 + 5.0 * value
            };
            let values: Vec<f64> = (0..1_000).map(|_| step()).collect();
            alarms[1] += u32::from(change_point(&values).is_some());
        }
        assert!(alarms[0] <= 5 && alarms[1] <= 15, "{alarms:?} of 500");
    }
}
