//! Fitted models as tables for people; terminal and page show the same.

use super::units;
use crate::model::{LogGp, PLogP, ProtocolSwitch};
use crate::record::{Fit, Fitted};
use crate::stats::Estimate;

/// A model as a table with headings, and what is to be said below it.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub title: String,
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Protocol switches, and what whoever uses the model should know.
    pub notes: Vec<String>,
}

/// The table of a model. Ranges in brackets are 95 % intervals.
pub fn table(fit: &Fit) -> Table {
    match &fit.model {
        Fitted::LogGp(model) => loggp(&fit.subject(), model),
        Fitted::PLogP(model) => plogp(&fit.subject(), model),
    }
}

fn loggp(subject: &str, model: &LogGp) -> Table {
    let row = |piece: &crate::model::loggp::Piece| {
        vec![
            format!("{} to {}", units::bytes(piece.from_bytes), units::bytes(piece.to_bytes)),
            estimate(&piece.latency_ns, ""),
            estimate(&piece.overhead_ns, ""),
            estimate(&piece.overhead_per_byte_ns, "/B"),
            estimate(&piece.gap_ns, ""),
            estimate(&piece.gap_per_byte_ns, "/B"),
        ]
    };
    Table {
        title: format!("LogGP of {subject}"),
        headings: vec!["sizes", "L", "o", "o for each byte", "g", "G"],
        rows: model.pieces.iter().map(row).collect(),
        notes: notes(&model.switches, &model.warnings),
    }
}

fn plogp(subject: &str, model: &PLogP) -> Table {
    let row = |at: &crate::model::plogp::AtSize| {
        let times = [&at.gap_ns, &at.send_overhead_ns, &at.receive_overhead_ns, &at.one_way_ns];
        std::iter::once(units::bytes(at.bytes)).chain(times.map(|time| estimate(time, ""))).collect()
    };
    Table {
        title: format!("P-LogP of {subject}: L = {}", estimate(&model.latency_ns, "")),
        headings: vec!["size", "g(s)", "o_s(s)", "o_r(s)", "one way"],
        rows: model.sizes.iter().map(row).collect(),
        notes: notes(&model.switches, &model.warnings),
    }
}

fn notes(switches: &[ProtocolSwitch], warnings: &[String]) -> Vec<String> {
    let switch = |switch: &ProtocolSwitch| {
        format!(
            "protocol switch between {} and {}: one-way time {:+.0} %, gap {:+.0} %",
            units::bytes(switch.after),
            units::bytes(switch.before),
            100.0 * switch.one_way_change,
            100.0 * switch.gap_change
        )
    };
    switches.iter().map(switch).chain(warnings.iter().cloned()).collect()
}

/// `3.61 µs (3.5 to 3.7)`: a time with its interval in the same unit.
fn estimate(estimate: &Estimate, per: &str) -> String {
    let scale = units::scale(estimate.value, "ns");
    let number = |value: f64| units::number(value / scale.divide_by);
    let value = format!("{}{}{per}", number(estimate.value), scale.suffix());
    match estimate.interval {
        Some(interval) => format!("{value} ({} to {})", number(interval.low), number(interval.high)),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::loggp::Piece;
    use crate::record::Site;
    use crate::stats::Interval;

    #[test]
    fn a_model_is_a_row_for_each_piece_and_a_note_for_each_switch() {
        let known = |value: f64| Estimate {
            value,
            interval: Some(Interval { low: value * 0.9, high: value * 1.1, confidence: 0.95 }),
        };
        let piece = Piece {
            from_bytes: 1,
            to_bytes: 4096,
            latency_ns: known(5_000.0),
            overhead_ns: known(900.0),
            overhead_per_byte_ns: Estimate { value: 0.0, interval: None },
            gap_ns: known(1_500.0),
            gap_per_byte_ns: known(0.8),
        };
        let next = Piece { from_bytes: 8192, to_bytes: 65536, ..piece.clone() };
        let switch = ProtocolSwitch { after: 4096, before: 8192, one_way_change: 0.1, gap_change: -0.2 };
        let model =
            LogGp { pieces: vec![piece, next], switches: vec![switch], residuals: vec![], warnings: vec!["w".into()] };
        let shown = table(&Fit {
            transport: "tcp".into(),
            ranks: 2,
            site: Site::Here,
            parameters: [("messages".into(), 16.0)].into(),
            model: Fitted::LogGp(model),
        });
        assert_eq!(shown.title, "LogGP of tcp, messages 16");
        assert_eq!(shown.rows.len(), 2);
        assert_eq!(shown.rows[0][..2], ["1 B to 4 KiB", "5 µs (4.5 to 5.5)"]);
        assert_eq!(shown.rows[0][3..], ["0 ns/B", "1.5 µs (1.35 to 1.65)", "0.8 ns/B (0.72 to 0.88)"]);
        let switch = "protocol switch between 4 KiB and 8 KiB: one-way time +10 %, gap -20 %";
        assert_eq!(shown.notes, [switch, "w"]);
    }
}
