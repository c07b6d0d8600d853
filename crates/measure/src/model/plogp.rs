//! P-LogP: L, and g(s), o_s(s) and o_r(s) for each size ([2:6.3.4]). L begins with the call that sends, so that it can be found from outside ([2:6.3.5]): a round trip of
//! the smallest message is 2 (L + g).

use serde::{Deserialize, Serialize};

use super::lines::{Line, breaks, estimate};
use super::points::{BySize, FitFailure, Sized, points};
use super::{ProtocolSwitch, Residual, warn_of_residuals};
use crate::record::{Measured, Metric};
use crate::stats::Estimate;

/// The name of the pattern in cases.
pub const PATTERN: &str = "plogp";

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PLogP {
    /// L.
    pub latency_ns: Estimate,
    /// The functions of the size, ascending.
    pub sizes: Vec<AtSize>,
    pub switches: Vec<ProtocolSwitch>,
    pub residuals: Vec<Residual>,
    pub warnings: Vec<String>,
}

/// P-LogP's functions at one size, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AtSize {
    pub bytes: u64,
    /// g(s).
    pub gap_ns: Estimate,
    /// o_s(s).
    pub send_overhead_ns: Estimate,
    /// o_r(s).
    pub receive_overhead_ns: Estimate,
    /// Half of the round trip that was measured.
    pub one_way_ns: Estimate,
}

/// Fits what one transport's trials measured; other patterns and ranks are passed over.
pub fn fit(measured: &[Measured]) -> Result<PLogP, FitFailure> {
    let by_size = BySize::of(measured, PATTERN)?;
    let (round_trips, gaps) = (by_size.medians(Metric::RoundTrip)?, by_size.medians(Metric::Gap)?);
    let (sends, receives) = (by_size.medians(Metric::SendOverhead)?, by_size.medians(Metric::ReceiveOverhead)?);
    let (first, first_gap) = (&round_trips[0], &gaps[0]);
    let variance = (first.error / 2.0).powi(2) + first_gap.error.powi(2);
    let latency_ns = estimate(first.estimate.value / 2.0 - first_gap.estimate.value, variance);
    let at_size = |i: usize| AtSize {
        bytes: gaps[i].size,
        gap_ns: gaps[i].estimate,
        send_overhead_ns: sends[i].estimate,
        receive_overhead_ns: receives[i].estimate,
        one_way_ns: half(round_trips[i].estimate),
    };
    let residuals = residuals(latency_ns.value, &round_trips, &gaps);
    let mut warnings = Vec::new();
    if latency_ns.value < 0.0 {
        warnings.push(
            "L is negative: the gap of the smallest message is longer than its way; where a sender's processor is the bottleneck, P-LogP does not hold".to_owned(),
        );
    }
    warn_of_residuals(&residuals, &mut warnings);
    let switches = switches(&round_trips, &gaps);
    Ok(PLogP { latency_ns, sizes: (0..gaps.len()).map(at_size).collect(), switches, residuals, warnings })
}

fn half(mut estimate: Estimate) -> Estimate {
    estimate.value /= 2.0;
    if let Some(interval) = &mut estimate.interval {
        interval.low /= 2.0;
        interval.high /= 2.0;
    }
    estimate
}

/// What the model says of each round trip, against what it was; the gaps are the model's own.
fn residuals(latency_ns: f64, round_trips: &[Sized], gaps: &[Sized]) -> Vec<Residual> {
    let residual = |(round_trip, gap): (&Sized, &Sized)| Residual {
        size: gap.size,
        one_way: round_trip.estimate.value / 2.0 / (latency_ns + gap.estimate.value) - 1.0,
        gap: 0.0,
    };
    round_trips.iter().zip(gaps).map(residual).collect()
}

fn switches(round_trips: &[Sized], gaps: &[Sized]) -> Vec<ProtocolSwitch> {
    let curves = [points(round_trips, 0.5), points(gaps, 1.0)];
    let starts = breaks(&curves);
    let ends = starts.iter().copied().skip(1).chain([gaps.len()]);
    let befores = std::iter::once(0).chain(starts.iter().copied());
    let switch = |((before, start), end): ((usize, usize), usize)| {
        let x = gaps[start].size as f64 - 1.0;
        let change = |curve: &[super::lines::Point]| {
            Line::through(&curve[start..end]).at(x) / Line::through(&curve[before..start]).at(x) - 1.0
        };
        ProtocolSwitch {
            after: gaps[start - 1].size,
            before: gaps[start].size,
            one_way_change: change(&curves[0]),
            gap_change: change(&curves[1]),
        }
    };
    befores.zip(starts.iter().copied()).zip(ends).map(switch).collect()
}
