//! What the formula of [2:6.1.1] gives, as a result file beside that of the simulation.

use std::collections::BTreeMap;
use std::path::Path;

use ropeway_measure::pattern::tail_loss;
use ropeway_measure::record::{Case, FORMAT, Line, Measured, Metric, Run, Series, Site};

use super::parts::{TIMER_LOSSES_PERCENT, TIMER_WINDOWS};

/// Message size and ranks of the simulation, so that both are one figure.
const SIZE: u64 = 64;
const RANKS: usize = 2;

pub fn write(path: &Path) -> Result<(), String> {
    let head = Line::Run(Run {
        format: FORMAT,
        command: vec!["(p (1-p)^w - p^(w+1)) / (1 - 2p), [2:6.1.1]".to_owned()],
        seed: 0,
        started_unix_s: 0,
        ropeway_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: None,
        hosts: Vec::new(),
        clock_offsets_ns: Vec::new(),
    });
    let values = TIMER_LOSSES_PERCENT
        .iter()
        .flat_map(|percent| TIMER_WINDOWS.iter().map(move |window| value(*percent, *window)));
    let end = Line::End { trials: 0, failed: 0, seconds: 0.0 };
    let mut text = String::new();
    for line in std::iter::once(head).chain(values).chain([end]) {
        text.push_str(&serde_json::to_string(&line).map_err(|e| e.to_string())?);
        text.push('\n');
    }
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn value(percent: u32, window: u32) -> Line {
    let case = Case {
        transport: format!("formula:p={percent}%"),
        pattern: "tail-loss".to_owned(),
        size: SIZE,
        ranks: RANKS,
        site: Site::Here,
        parameters: BTreeMap::from([("window".to_owned(), f64::from(window))]),
    };
    let probability = tail_loss::expected(f64::from(percent) / 100.0, window);
    let series = vec![Series::samples(Metric::TimerNeeded, 1, vec![probability])];
    Line::Measured(Measured { case, rank: 1, round: 0, at_ns: 0, cpu: None, series })
}
