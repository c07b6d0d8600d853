//! What samples say: quantiles with intervals that assume no distribution, warnings, comparisons, and the rule that ends a measurement.
//!
//! Pure functions over values; how each is defined is in [measuring.md](../../../../docs/measuring.md#statistics). What does not live here: fits of models
//! ([`crate::model`]), files, tables and pictures.

mod change;
mod compare;
mod interval;
mod ordered;
mod rounds;
mod stopping;
mod summary;
mod trend;

pub use change::{ChangePoint, change_point};
pub use compare::{
    Comparison, NEGLIGIBLE, Sides, Verdict, cliffs_delta, compare_paired, compare_summaries, compare_unpaired,
    superiority,
};
pub use interval::{Interval, quantile_interval, quantile_ranks, samples_needed};
pub use ordered::Ordered;
pub use rounds::Rounds;
pub use stopping::{Decision, Precision, Stopping};
pub use summary::{Estimate, Outliers, Summary, summarize};
pub use trend::{Trend, theil_sen, trend};

/// The confidence of intervals unless somebody asks for another.
pub const CONFIDENCE: f64 = 0.95;

/// The quantile of the standard normal distribution.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    use statrs::distribution::ContinuousCDF;
    statrs::distribution::Normal::standard().inverse_cdf(p)
}

/// The part of the standard normal distribution below `z`.
pub(crate) fn normal_below(z: f64) -> f64 {
    use statrs::distribution::ContinuousCDF;
    statrs::distribution::Normal::standard().cdf(z)
}

/// The quantile of Student's distribution.
pub(crate) fn student_quantile(p: f64, freedom: f64) -> f64 {
    use statrs::distribution::{ContinuousCDF, StudentsT};
    match StudentsT::new(0.0, 1.0, freedom) {
        Ok(student) => student.inverse_cdf(p),
        Err(_) => f64::INFINITY,
    }
}

/// The middle of some values (the mean of the two middle ones if their number is even).
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    Ordered::of(values).median()
}
