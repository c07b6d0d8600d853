//! Models of communication, fitted to what their patterns measured ([2:6.3]): LogGP (L, o, g, G) and P-LogP (L, and g(s), o_s(s), o_r(s) as functions of the size).
//!
//! Who measures runs the patterns `loggp` or `plogp` at some sizes, in as many rounds as wanted, and gives everything that one transport's rank 0
//! measured to `fit`. What does not live here: the patterns (`pattern`), simulated networks to test against (`transport::sim`).

mod lines;
pub mod loggp;
pub mod plogp;
mod points;
#[cfg(test)]
mod tests;

pub use loggp::LogGp;
pub use plogp::PLogP;
pub use points::FitFailure;

use serde::{Deserialize, Serialize};

use crate::record::{self, Case, Fit, Fitted, Line, Measured};

/// Sizes that show both the constants and the slopes, with enough of them on either side of the usual switches for each to be found.
pub const SIZES: &[usize] = &[
    1,
    64,
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    96 << 10,
    128 << 10,
    192 << 10,
    256 << 10,
];

/// Messages in a row: enough that what the first and last do differently is small.
pub const MESSAGES: u32 = 16;

/// Between two sizes the network changes the way in which it carries messages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProtocolSwitch {
    /// The largest measured size of the old way, and the smallest of the new.
    pub after: u64,
    pub before: u64,
    /// Relative change of the one-way time at the new size: what the new way takes against what the old would have taken.
    pub one_way_change: f64,
    /// The same of the gap between messages.
    pub gap_change: f64,
}

/// Whether a model is fitted to what the pattern of this name measures.
pub fn is_fitted(pattern: &str) -> bool {
    [loggp::PATTERN, plogp::PATTERN].contains(&pattern)
}

/// What a coordinator writes at the end of a run: the models of all transports, with what there is to warn of, or why there are none.
pub fn lines(measured: &[Measured]) -> Vec<Line> {
    let warning = |text: String| Line::Warning { text };
    let mut lines = Vec::new();
    for (subject, fitted) in fit_all(measured) {
        match fitted {
            Ok(fit) => {
                let warnings = fit.model.warnings().iter().map(|text| warning(format!("{subject}: {text}")));
                lines.extend(warnings.collect::<Vec<_>>());
                lines.push(Line::Fit(fit));
            }
            Err(failure) => lines.push(warning(format!("{subject}: no model: {failure}"))),
        }
    }
    lines
}

/// Fits every model whose pattern was measured, for each transport and whatever else the pattern was told: what a coordinator writes at the end of a run, or its
/// reasons why not. With the [`record::subject`] of each.
pub fn fit_all(measured: &[Measured]) -> Vec<(String, Result<Fit, FitFailure>)> {
    let mut groups: Vec<&Case> = Vec::new();
    for one in measured.iter().filter(|one| one.rank == 0 && is_fitted(&one.case.pattern)) {
        if !groups.iter().any(|group| is_of_one_model(group, &one.case)) {
            groups.push(&one.case);
        }
    }
    groups.sort_by(|a, b| (&a.transport, &a.pattern).cmp(&(&b.transport, &b.pattern)));
    let fit = |group: &Case| {
        let own: Vec<Measured> = measured.iter().filter(|one| is_of_one_model(group, &one.case)).cloned().collect();
        let model = match group.pattern.as_str() {
            loggp::PATTERN => loggp::fit(&own).map(Fitted::LogGp),
            _ => plogp::fit(&own).map(Fitted::PLogP),
        };
        let Case { transport, ranks, site, parameters, .. } = group.clone();
        let subject = record::subject(&transport, &parameters);
        (subject, model.map(|model| Fit { transport, ranks, site, parameters, model }))
    };
    groups.into_iter().map(fit).collect()
}

/// Whether a model of these holds for both, which may differ in their size.
fn is_of_one_model(a: &Case, b: &Case) -> bool {
    (&a.transport, &a.pattern, &a.parameters) == (&b.transport, &b.pattern, &b.parameters)
}

/// How far measured values lie from the model's, relative to the model's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    pub size: u64,
    pub one_way: f64,
    pub gap: f64,
}

/// From which relative residual on a model is said to fit badly.
const BAD_FIT: f64 = 0.05;

fn warn_of_residuals(residuals: &[Residual], warnings: &mut Vec<String>) {
    let worst = |residual: &Residual| residual.one_way.abs().max(residual.gap.abs());
    if let Some(residual) = residuals.iter().max_by(|a, b| worst(a).total_cmp(&worst(b)))
        && worst(residual) > BAD_FIT
    {
        warnings.push(format!(
            "the model misses what was measured by up to {:.0} % (at {} bytes): predictions from it are no better than that",
            100.0 * worst(residual),
            residual.size
        ));
    }
}
