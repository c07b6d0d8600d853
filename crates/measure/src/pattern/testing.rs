//! Patterns in tests: ranks are threads, over queues that lose nothing, or one message in ten.

use super::{Bound, Pattern, Trial, run};
use crate::Failure;
use crate::record::{Metric, Series, Values};
use crate::transport::memory;

/// Part of the messages that get lost.
pub const RELIABLE: f64 = 0.0;
pub const LOSSY: f64 = 0.1;

/// What one rank measured.
pub struct OfRank(Vec<Series>);

impl OfRank {
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        let series = self.0.iter().filter(|series| series.metric == metric);
        series
            .flat_map(
                |series| {
                    if let Values::Samples(values) = &series.values { values.clone() } else { panic!("raw samples") }
                },
            )
            .collect()
    }

    pub fn count(&self, metric: Metric) -> usize {
        self.values(metric).len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub fn outcomes(
    pattern: Pattern,
    size: usize,
    bound: Bound,
    ranks: usize,
    loss: f64,
) -> Vec<Result<Vec<Series>, Failure>> {
    let trial = Trial { pattern, size, bound, warm_up_ns: 0, seed: 1 };
    std::thread::scope(|scope| {
        let ends = if loss > 0.0 { memory::lossy_ranks(ranks, loss, 7) } else { memory::ranks(ranks) };
        let threads: Vec<_> = ends
            .into_iter()
            .map(|mut end| {
                let trial = &trial;
                scope.spawn(move || run(&mut end, trial))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// What all ranks measured.
pub fn all(pattern: Pattern, size: usize, bound: Bound, ranks: usize, loss: f64) -> Vec<OfRank> {
    outcomes(pattern, size, bound, ranks, loss).into_iter().map(|series| OfRank(series.expect("no failure"))).collect()
}

/// Some of the samples of these ranks together had a loss, and none lost everything.
pub fn check_losses(measured: &[OfRank], ranks: &[usize]) {
    let losses: Vec<f64> = ranks.iter().flat_map(|rank| measured[*rank].values(Metric::Loss)).collect();
    assert!(losses.iter().any(|part| *part > 0.0), "{losses:?}");
    assert!(losses.iter().all(|part| (0.0..1.0).contains(part)), "{losses:?}");
}
