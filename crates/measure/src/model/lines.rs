//! Straight lines through points of known errors: robust, with intervals; and several lines in a row where one does not do.

use crate::stats::{CONFIDENCE, Estimate, Interval, normal_quantile};

/// A value with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub error: f64,
}

/// y = at_0 + slope x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    pub at_0: f64,
    pub slope: f64,
    variance_at_0: f64,
    variance_slope: f64,
}

/// Residuals, in standard errors, from which on a point counts less (Huber); one disturbed size does not bend the line.
const HUBER: f64 = 1.345;

/// Rounds of weighing anew; the weights of so few points settle in fewer.
const WEIGHINGS: usize = 12;

/// Deviations from a line below this part of the value are no reason for another line: no real network is straight to the last nanosecond.
const TOLERANCE: f64 = 0.01;

/// Fewest points of a line where there are several lines.
const FEWEST: usize = 3;

impl Line {
    /// The line through some points, weighted by their errors. Points that lie further away than their errors allow count less, and widen the intervals.
    pub fn through(points: &[Point]) -> Line {
        let mut weights: Vec<f64> = points.iter().map(|point| point.error.powi(-2)).collect();
        let mut line = weighted(points, &weights);
        let mut spread = 1.0;
        for _ in 0..WEIGHINGS {
            let residuals: Vec<f64> = points.iter().map(|point| line.residual(point)).collect();
            let sizes: Vec<f64> = residuals.iter().map(|residual| residual.abs()).collect();
            // Two of the points' freedoms are the line's.
            let freedom = (points.len() as f64 - 2.0).max(1.0) / points.len() as f64;
            spread = (1.4826 * crate::stats::median(&sizes).unwrap_or(0.0) / freedom.sqrt()).max(1.0);
            for ((weight, point), residual) in weights.iter_mut().zip(points).zip(residuals) {
                *weight = point.error.powi(-2) * (HUBER * spread / residual.abs().max(1e-12)).min(1.0);
            }
            line = weighted(points, &weights);
        }
        line.variance_at_0 *= spread * spread;
        line.variance_slope *= spread * spread;
        line
    }

    pub fn at(&self, x: f64) -> f64 {
        self.at_0 + self.slope * x
    }

    pub fn at_0(&self) -> Estimate {
        estimate(self.at_0, self.variance_at_0)
    }

    pub fn slope(&self) -> Estimate {
        estimate(self.slope, self.variance_slope)
    }

    /// a times this line's value at 0 plus b times another's.
    pub fn combined_at_0(&self, a: f64, other: &Line, b: f64) -> Estimate {
        estimate(a * self.at_0 + b * other.at_0, a * a * self.variance_at_0 + b * b * other.variance_at_0)
    }

    fn residual(&self, point: &Point) -> f64 {
        (point.y - self.at(point.x)) / point.error
    }
}

/// A value with the interval that its variance gives.
pub fn estimate(value: f64, variance: f64) -> Estimate {
    let half = normal_quantile(0.5 + CONFIDENCE / 2.0) * variance.max(0.0).sqrt();
    Estimate { value, interval: Some(Interval { low: value - half, high: value + half, confidence: CONFIDENCE }) }
}

fn weighted(points: &[Point], weights: &[f64]) -> Line {
    let total: f64 = weights.iter().sum();
    let mean = |of: &dyn Fn(&Point) -> f64| points.iter().zip(weights).map(|(p, w)| w * of(p)).sum::<f64>() / total;
    let (x, y) = (mean(&|p| p.x), mean(&|p| p.y));
    let xx = total * mean(&|p| (p.x - x).powi(2));
    let xy = total * mean(&|p| (p.x - x) * (p.y - y));
    if xx <= 0.0 {
        return Line { at_0: y, slope: 0.0, variance_at_0: 1.0 / total, variance_slope: f64::INFINITY };
    }
    let slope = xy / xx;
    Line { at_0: y - slope * x, slope, variance_at_0: 1.0 / total + x * x / xx, variance_slope: 1.0 / xx }
}

/// Where lines in a row end: indices of the first point of each piece but the first. All curves have points at the same places and break together.
///
/// More pieces always lie nearer; each has to pay for its parameters (the Bayesian information criterion).
pub fn breaks(curves: &[Vec<Point>]) -> Vec<usize> {
    let count = curves.first().map_or(0, Vec::len);
    let price = (2 * curves.len() + 1) as f64 * ((count * curves.len()) as f64).ln();
    // best[end]: the cheapest way to cover the points before `end`, with where its last piece begins.
    let mut best: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); count + 1];
    best[0] = (0.0, 0);
    for end in 1..=count {
        for start in 0..end {
            let whole = start == 0 && end == count;
            if best[start].0.is_infinite() || (end - start < FEWEST && !whole) {
                continue;
            }
            let piece: f64 = curves.iter().map(|curve| misfit(&curve[start..end])).sum();
            let cost = best[start].0 + piece + price;
            if cost < best[end].0 {
                best[end] = (cost, start);
            }
        }
    }
    let mut starts = Vec::new();
    let mut end = count;
    while end > 0 && best[end].1 > 0 {
        end = best[end].1;
        starts.push(end);
    }
    starts.reverse();
    starts
}

/// Huber's loss of the best line through some points, each allowed its error and the tolerance.
fn misfit(points: &[Point]) -> f64 {
    let tolerant = |point: &Point| Point { error: point.error.hypot(TOLERANCE * point.y), ..*point };
    let points: Vec<Point> = points.iter().map(tolerant).collect();
    let line = Line::through(&points);
    let loss = |residual: f64| match residual.abs() {
        near if near <= 2.0 * HUBER => near * near,
        far => 4.0 * HUBER * (far - HUBER),
    };
    points.iter().map(|point| loss(line.residual(point))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn noisy(random: &mut Random, x: f64, y: f64, relative: f64) -> Point {
        Point { x, y: y * (1.0 + relative * random.normal()), error: y * relative }
    }

    #[test]
    fn intervals_of_lines_cover_the_truth() {
        let mut random = Random::new(1);
        let (mut at_0, mut slope) = (0, 0);
        for _ in 0..400 {
            let points: Vec<Point> =
                (0..10).map(|i| f64::from(1 << i)).map(|x| noisy(&mut random, x, 100.0 + 3.0 * x, 0.02)).collect();
            let line = Line::through(&points);
            at_0 += u32::from(line.at_0().interval.expect("an interval").contains(100.0));
            slope += u32::from(line.slope().interval.expect("an interval").contains(3.0));
        }
        assert!(at_0 >= 372 && slope >= 372, "{at_0} and {slope} of 400");
    }

    #[test]
    fn one_disturbed_point_does_not_bend_the_line() {
        let mut points: Vec<Point> =
            (0..10).map(|i| Point { x: f64::from(i), y: 10.0 + f64::from(i), error: 0.1 }).collect();
        points[4].y = 100.0;
        let line = Line::through(&points);
        assert!((line.at_0 - 10.0).abs() < 0.2 && (line.slope - 1.0).abs() < 0.05, "{line:?}");
    }

    #[test]
    fn breaks_are_found_where_they_are() {
        let mut random = Random::new(2);
        let xs: Vec<f64> = (0..14).map(|i| f64::from(1 << i)).collect();
        let (mut jump, mut bend, mut alarms) = (0, 0, 0);
        for _ in 0..200 {
            let curve = |random: &mut Random, of: &dyn Fn(f64) -> f64| -> Vec<Point> {
                xs.iter().map(|x| noisy(random, *x, of(*x), 0.01)).collect()
            };
            let straight = curve(&mut random, &|x| 200.0 + x);
            alarms += u32::from(!breaks(std::slice::from_ref(&straight)).is_empty());
            let jumping = curve(&mut random, &|x| 200.0 + x + if x >= 512.0 { 300.0 } else { 0.0 });
            jump += u32::from(breaks(&[jumping, straight.clone()]) == [9]);
            let bending = curve(&mut random, &|x| if x < 512.0 { 200.0 + x } else { 600.0 + 0.5 * x });
            bend += u32::from(breaks(&[straight, bending]) == [9]);
        }
        assert!(jump >= 196 && bend >= 196 && alarms <= 4, "{jump} {bend} {alarms} of 200");
    }
}
