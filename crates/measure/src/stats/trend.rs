//! Drift: whether values rise or fall over a measurement (Mann and Kendall's test), and by how much (Theil and Sen's slope). Both look only at the order of pairs, so
//! outliers do not matter.

use serde::{Deserialize, Serialize};

use super::{median, normal_below};

/// Values in time become this many medians at most, so that pairs stay few.
const MOST_BLOCKS: usize = 96;

/// The test is not made with fewer.
const FEWEST_BLOCKS: usize = 10;

/// Probability of a warning where there is nothing.
const FALSE_ALARM: f64 = 0.001;

/// Smaller changes over the whole measurement harm nobody.
const HARMLESS: f64 = 0.01;

/// Values that rise or fall.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// On the fitted line, at the start and at the end.
    pub from: f64,
    pub to: f64,
    /// Probability of so clear a trend in values without one.
    pub p: f64,
}

impl Trend {
    /// Relative change from start to end.
    pub fn change(&self) -> f64 {
        (self.to - self.from) / self.from.abs()
    }
}

/// The drift of values in the order of time, if there is one that matters.
pub fn trend(in_time: &[f64]) -> Option<Trend> {
    let blocks = independent_blocks(in_time, FEWEST_BLOCKS, |blocks| {
        let (slope, at_0) = theil_sen(blocks);
        blocks.iter().enumerate().map(|(i, value)| value - at_0 - slope * i as f64).collect()
    })?;
    let (slope, from) = theil_sen(&blocks);
    let p = mann_kendall(&blocks);
    let found = Trend { from, to: from + slope * (blocks.len() - 1) as f64, p };
    (p < FALSE_ALARM && found.change().abs() > HARMLESS).then_some(found)
}

/// Slope (the median of the slopes of all pairs) and value at the first position of values at equal distances.
pub fn theil_sen(values: &[f64]) -> (f64, f64) {
    let slopes: Vec<f64> = pairs(values).map(|((i, a), (j, b))| (b - a) / (j - i) as f64).collect();
    let slope = median(&slopes).unwrap_or(0.0);
    let rest: Vec<f64> = values.iter().enumerate().map(|(i, value)| value - slope * i as f64).collect();
    (slope, median(&rest).unwrap_or(0.0))
}

/// Medians of as many blocks as still do not resemble their neighbours once `residuals` has taken away what is looked for: tests of independent values may be made of
/// them. None: not even the fewest blocks are so, or there are too few values.
pub(super) fn independent_blocks(
    in_time: &[f64],
    fewest: usize,
    residuals: impl Fn(&[f64]) -> Vec<f64>,
) -> Option<Vec<f64>> {
    let mut count = in_time.len().min(MOST_BLOCKS);
    while count >= fewest {
        let block = |i: usize| &in_time[in_time.len() * i / count..in_time.len() * (i + 1) / count];
        let blocks: Vec<f64> = (0..count).filter_map(|i| median(block(i))).collect();
        if autocorrelation(&residuals(&blocks)) < 1.28 / (count as f64).sqrt() {
            return Some(blocks);
        }
        count = count * 3 / 4;
    }
    None
}

/// Correlation of values with their neighbours.
fn autocorrelation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let products: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// Two-sided probability of the number of rising pairs; ties are taken into account.
fn mann_kendall(values: &[f64]) -> f64 {
    let rising: f64 = pairs(values)
        .map(|((_, a), (_, b))| {
            if b > a {
                1.0
            } else if b < a {
                -1.0
            } else {
                0.0
            }
        })
        .sum();
    let weight = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let ordered = super::Ordered::of(values);
    let ties: f64 = ordered.pairs().map(|(_, count)| weight(count as f64)).sum();
    let variance = (weight(values.len() as f64) - ties) / 18.0;
    if variance <= 0.0 {
        return 1.0;
    }
    let z = (rising.abs() - 1.0).max(0.0) / variance.sqrt();
    2.0 * normal_below(-z)
}

fn pairs(values: &[f64]) -> impl Iterator<Item = ((usize, f64), (usize, f64))> + '_ {
    let each = move |i: usize| (i, values[i]);
    (0..values.len()).flat_map(move |i| (i + 1..values.len()).map(move |j| (each(i), each(j))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_slope_is_found_beside_outliers() {
        let mut values: Vec<f64> = (0..50).map(|i| 10.0 + 0.5 * f64::from(i)).collect();
        for i in [3, 17, 40, 44] {
            values[i] = 1e6;
        }
        let (slope, at_0) = theil_sen(&values);
        assert!((slope - 0.5).abs() < 0.02 && (at_0 - 10.0).abs() < 0.5, "{slope} {at_0}");
    }

    #[test]
    fn drift_is_found_where_it_is() {
        let mut random = Random::new(1);
        for n in [200, 5_000] {
            let values: Vec<f64> =
                (0..n).map(|i| 100.0 + 8.0 * i as f64 / n as f64 + 3.0 * random.exponential()).collect();
            let found = trend(&values).expect("a drift");
            assert!((found.change() - 0.08).abs() < 0.03, "{found:?}");
        }
    }

    #[test]
    fn no_drift_is_found_where_there_is_none() {
        let mut random = Random::new(2);
        let mut alarms = [0, 0];
        for _ in 0..500 {
            let values: Vec<f64> = (0..300).map(|_| 100.0 + 20.0 * random.exponential()).collect();
            alarms[0] += u32::from(trend(&values).is_some());
            // Neighbours that are alike look like a drift to tests that take them for independent.
            let mut value = 0.0;
            let mut step = || {
                value = 0.8 * value + random.normal();
                100.0 + 5.0 * value
            };
            let values: Vec<f64> = (0..1_000).map(|_| step()).collect();
            alarms[1] += u32::from(trend(&values).is_some());
        }
        assert!(alarms[0] <= 5 && alarms[1] <= 15, "{alarms:?} of 500");
    }

    #[test]
    fn too_few_or_equal_values_have_no_drift() {
        assert_eq!(trend(&[1.0, 2.0, 3.0]), None);
        assert_eq!(trend(&[5.0; 100]), None);
    }
}
