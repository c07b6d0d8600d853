//! From series to one point for each size.

use std::collections::BTreeMap;

use super::lines::Point;
use crate::record::{Measured, Metric};
use crate::stats::{CONFIDENCE, Estimate, Rounds, normal_quantile};

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitFailure {
    #[error("nothing was measured by the pattern {pattern}")]
    Nothing { pattern: &'static str },
    #[error("the trials are of several transports ({a} and {b}): fit each alone")]
    SeveralTransports { a: String, b: String },
    #[error("{sizes} sizes are too few for a fit: measure at least {FEWEST_SIZES}")]
    FewSizes { sizes: usize },
    #[error("there are too few samples of {size} bytes, or their rounds differ too much: run more rounds")]
    FewSamples { size: u64 },
}

/// A line and something to see whether it is one.
pub const FEWEST_SIZES: usize = 3;

/// One quantity at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sized {
    pub size: u64,
    pub estimate: Estimate,
    /// Standard error of the estimate.
    pub error: f64,
}

/// Values of one pattern by size, round by round.
pub struct BySize<'a> {
    sizes: BTreeMap<u64, Vec<&'a Measured>>,
}

/// A standard error below this part of a clock's nanosecond, or of the value, is not believed: clocks have steps.
const LEAST_ERROR_NS: f64 = 0.1;
const LEAST_RELATIVE_ERROR: f64 = 1e-4;

impl<'a> BySize<'a> {
    /// Picks what rank 0 measured with this pattern.
    pub fn of(measured: &'a [Measured], pattern: &'static str) -> Result<BySize<'a>, FitFailure> {
        let mut sizes: BTreeMap<u64, Vec<&Measured>> = BTreeMap::new();
        let mut first: Option<&Measured> = None;
        for one in measured.iter().filter(|one| one.case.pattern == pattern && one.rank == 0) {
            let first = *first.get_or_insert(one);
            if first.case.transport != one.case.transport {
                let (a, b) = (first.case.transport.clone(), one.case.transport.clone());
                return Err(FitFailure::SeveralTransports { a, b });
            }
            sizes.entry(one.case.size).or_default().push(one);
        }
        if first.is_none() {
            return Err(FitFailure::Nothing { pattern });
        }
        if sizes.len() < FEWEST_SIZES {
            return Err(FitFailure::FewSizes { sizes: sizes.len() });
        }
        Ok(BySize { sizes })
    }

    /// The median of a metric at each size.
    pub fn medians(&self, metric: Metric) -> Result<Vec<Sized>, FitFailure> {
        let median = |(size, rounds): (&u64, &Vec<&Measured>)| {
            let rounds = Rounds::of_measured(rounds.iter().copied(), metric);
            let few = || FitFailure::FewSamples { size: *size };
            let value = rounds.ordered().median().ok_or_else(few)?;
            let interval = rounds.interval(0.5, CONFIDENCE).0.ok_or_else(few)?;
            let error = (interval.high - interval.low) / 2.0 / normal_quantile(0.5 + CONFIDENCE / 2.0);
            let error = error.max(LEAST_ERROR_NS).max(LEAST_RELATIVE_ERROR * value.abs());
            Ok(Sized { size: *size, estimate: Estimate { value, interval: Some(interval) }, error })
        };
        self.sizes.iter().map(median).collect()
    }
}

impl Sized {
    /// As a point of a line over the bytes after the first, times `part`.
    pub fn point(&self, part: f64) -> Point {
        Point { x: self.size as f64 - 1.0, y: part * self.estimate.value, error: part * self.error }
    }
}

pub fn points(medians: &[Sized], part: f64) -> Vec<Point> {
    medians.iter().map(|median| median.point(part)).collect()
}
