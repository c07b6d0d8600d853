//! LogGP: L, o, g and G ([2:6.3.1]), by parametrized round trips ([2:6.3.2]).
//!
//! Half of PRTT(1, 0, s) is L + 2 o + (s-1) G, and the gap is g + (s-1) G: lines over the size, whose values at one byte give L and g and whose slopes give G. o grows
//! with the size where a processor touches every byte ([2:6.3.2] found that of sockets): it is a line, too, of which LogGP's o is the value at one byte. That the
//! receiver's o equals the sender's is the model's assumption; what is different goes into L.

use serde::{Deserialize, Serialize};

use super::lines::{Line, breaks};
use super::points::{BySize, FitFailure, Sized, points};
use super::{ProtocolSwitch, Residual, warn_of_residuals};
use crate::record::{Measured, Metric};
use crate::stats::Estimate;

/// The name of the pattern in cases.
pub const PATTERN: &str = "loggp";

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogGp {
    /// The parameters, for ranges of sizes; the first is that of the smallest messages, and the only one where there is no protocol switch.
    pub pieces: Vec<Piece>,
    pub switches: Vec<ProtocolSwitch>,
    pub residuals: Vec<Residual>,
    pub warnings: Vec<String>,
}

/// LogGP's parameters for a range of sizes, in nanoseconds. Later pieces are their lines at one byte: constants that predict their sizes, not what a small message takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    pub from_bytes: u64,
    pub to_bytes: u64,
    /// L.
    pub latency_ns: Estimate,
    /// o: what `send` keeps its caller for.
    pub overhead_ns: Estimate,
    pub overhead_per_byte_ns: Estimate,
    /// g.
    pub gap_ns: Estimate,
    /// G.
    pub gap_per_byte_ns: Estimate,
}

/// Fits what one transport's trials measured; other patterns and ranks are passed over.
pub fn fit(measured: &[Measured]) -> Result<LogGp, FitFailure> {
    let by_size = BySize::of(measured, PATTERN)?;
    let medians = |metric| by_size.medians(metric);
    let (round_trips, gaps, overheads) =
        (medians(Metric::RoundTrip)?, medians(Metric::Gap)?, medians(Metric::SendOverhead)?);
    let one_way_points = points(&round_trips, 0.5);
    let (gap_points, overhead_points) = (points(&gaps, 1.0), points(&overheads, 1.0));
    let starts = breaks(&[one_way_points.clone(), gap_points.clone()]);
    let ends = starts.iter().copied().chain([gaps.len()]);
    let mut curves: Vec<Curves> = Vec::new();
    for (from, to) in std::iter::once(0).chain(starts.iter().copied()).zip(ends) {
        curves.push(Curves {
            sizes: (gaps[from].size, gaps[to - 1].size),
            one_way: Line::through(&one_way_points[from..to]),
            gap: Line::through(&gap_points[from..to]),
            overhead: Line::through(&overhead_points[from..to]),
        });
    }
    let residuals = residuals(&curves, &round_trips, &gaps);
    let mut warnings = bound_by_overhead(&gaps, &overheads);
    warn_of_residuals(&residuals, &mut warnings);
    let pieces: Vec<Piece> = curves.iter().map(Curves::piece).collect();
    if pieces[0].latency_ns.value < 0.0 {
        warnings.push(
            "L is negative: calls that send return after the message has left, so that two of them are longer than its whole way; believe the sum L + 2 o only, \
             or P-LogP"
                .to_owned(),
        );
    }
    let switches = curves.windows(2).map(|pair| pair[0].switch_to(&pair[1])).collect();
    Ok(LogGp { pieces, switches, residuals, warnings })
}

/// The lines of one piece.
struct Curves {
    sizes: (u64, u64),
    one_way: Line,
    gap: Line,
    overhead: Line,
}

impl Curves {
    fn piece(&self) -> Piece {
        Piece {
            from_bytes: self.sizes.0,
            to_bytes: self.sizes.1,
            latency_ns: self.one_way.combined_at_0(1.0, &self.overhead, -2.0),
            overhead_ns: self.overhead.at_0(),
            overhead_per_byte_ns: self.overhead.slope(),
            gap_ns: self.gap.at_0(),
            gap_per_byte_ns: self.gap.slope(),
        }
    }

    fn switch_to(&self, next: &Curves) -> ProtocolSwitch {
        let x = next.sizes.0 as f64 - 1.0;
        ProtocolSwitch {
            after: self.sizes.1,
            before: next.sizes.0,
            one_way_change: next.one_way.at(x) / self.one_way.at(x) - 1.0,
            gap_change: next.gap.at(x) / self.gap.at(x) - 1.0,
        }
    }
}

fn residuals(curves: &[Curves], round_trips: &[Sized], gaps: &[Sized]) -> Vec<Residual> {
    let residual = |(round_trip, gap): (&Sized, &Sized)| {
        let piece = curves.iter().find(|piece| round_trip.size <= piece.sizes.1)?;
        let x = round_trip.size as f64 - 1.0;
        let one_way = round_trip.estimate.value / 2.0 / piece.one_way.at(x) - 1.0;
        Some(Residual { size: round_trip.size, one_way, gap: gap.estimate.value / piece.gap.at(x) - 1.0 })
    };
    round_trips.iter().zip(gaps).filter_map(residual).collect()
}

/// LogGP has o <= g. Where messages follow each other as fast as the processor can send them, the network's own gap is not seen.
fn bound_by_overhead(gaps: &[Sized], overheads: &[Sized]) -> Vec<String> {
    let bound = gaps.iter().zip(overheads).filter(|(gap, overhead)| gap.estimate.value < 1.1 * overhead.estimate.value);
    let sizes: Vec<String> = bound.map(|(gap, _)| gap.size.to_string()).collect();
    if sizes.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "at {} bytes messages follow each other no slower than the processor sends them: g there is the processor's, and the network's own gap is at most that",
        sizes.join(", ")
    )]
}
