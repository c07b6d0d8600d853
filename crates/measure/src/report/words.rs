//! Sentences about cases and figures.

use super::panels::{Cell, Panel, Variable};
use crate::plot::heat::Heat;
use crate::record::{Better, Metric, Site};
use crate::results::{group, units};
use crate::stats::{Summary, Verdict};

/// Patterns as they are shown: in this order, with a title and what is measured.
const PATTERNS: &[(&str, &str, &str)] = &[
    (
        "pingpong",
        "Ping-pong",
        "A message goes to and fro between two ranks; half of the round trip is shown. Nothing queues.",
    ),
    ("rate", "Message rate", "Small messages follow each other as fast as they can be sent, one call each."),
    ("stream", "Stream", "One rank sends without a pause, the other receives."),
    ("bidirectional", "Bidirectional", "Two ranks send to each other at the same time."),
    ("one-one", "One to one", "Ranks are paired at random and all pairs send at once: the effective bisection."),
    ("one-many", "One to many", "One rank sends to all others."),
    ("many-one", "Many to one (incast)", "All ranks send to one at the same time, and wait for its answer."),
    ("all-to-all", "All to all", "Every rank sends to every other."),
    (
        "request-response",
        "Request and response",
        "Requests are answered, several of them under way; times count from the moment at which a request was due.",
    ),
    ("connections", "Connections", "Connections are made, used once and closed."),
    ("overlap", "Overlap", "How much computation hides behind a transfer."),
    ("background", "Background load", "Short messages while bulk data flows."),
    ("search", "Parameter search", "One transfer for each pair of two tunables."),
    ("overhead", "Overhead", "The time inside the calls that send and receive."),
    (
        "tail-loss",
        "Losses that need a timer",
        "Windows of messages of which some get lost: the part in which no later message tells of it.",
    ),
    ("stages", "Stages", "Instructions of each stage of Ropeway's protocol."),
    ("noise", "Noise", "Fixed work, again and again: what the machine itself adds."),
    ("loggp", "LogGP", "Messages with delays between them, from which the parameters of the LogGP model are taken."),
    ("plogp", "P-LogP", "What a message of a size costs the sender, the receiver, and those behind it."),
];

/// The title of a pattern and what it measures. A pattern that is not in the list is shown by its name alone.
pub fn pattern(name: &str) -> (String, &'static str) {
    match PATTERNS.iter().find(|(known, ..)| *known == name) {
        Some((_, title, what)) => ((*title).to_owned(), what),
        None => (name.to_owned(), ""),
    }
}

/// The title of a panel's section: the pattern, and where it was measured if that was not on one host.
pub fn section(panel: &Panel) -> String {
    let title = pattern(&panel.pattern).0;
    match panel.site {
        Site::Here => title,
        site => format!("{title} {}", site.words()),
    }
}

/// Where a pattern stands on the page; those that are not in the list come last.
pub fn place(name: &str) -> usize {
    PATTERNS.iter().position(|(known, ..)| *known == name).unwrap_or(PATTERNS.len())
}

/// All that is known about a case, in a line.
pub fn cell_note(metric: Metric, cell: &Cell) -> String {
    let s = &cell.side.summary;
    let value = |value: f64| units::value(value, metric.unit());
    let outliers = if s.outliers.count() == 0 { String::new() } else { format!(", {} outliers", s.outliers.count()) };
    format!(
        "{}, {}: median {} ({}), p99 {}, least {}, greatest {}; {} samples{outliers}",
        cell.case.transport,
        group::describe(&cell.case),
        value(s.median.value),
        interval(metric, s),
        value(s.p99.value),
        value(s.min),
        value(s.max),
        s.count
    )
}

/// The interval of a median.
pub fn interval(metric: Metric, summary: &Summary) -> String {
    let value = |value: f64| units::value(value, metric.unit());
    let found = summary.median.interval;
    found.map_or_else(|| "no interval".to_owned(), |found| format!("{} to {}", value(found.low), value(found.high)))
}

/// What a figure with lines shows, with the ends of each line.
pub fn line_description(panel: &Panel, variable: &Variable) -> String {
    let name = units::metric_name(panel.metric);
    let ends = panel.rows.iter().filter_map(|row| {
        let (first, last) = (row.cells.first()?, row.cells.last()?);
        let value = |cell: &Cell| {
            format!(
                "{} at {}",
                units::value(cell.side.summary.median.value, panel.metric.unit()),
                variable.text(cell.x)
            )
        };
        Some(format!("{}: {}, {}.", row.transport, value(first), value(last)))
    });
    format!("Median {name} over {}. {}", variable.name(), ends.collect::<Vec<_>>().join(" "))
}

/// What a plane shows, with its best cell.
pub fn plane_description(heat: &Heat) -> String {
    let best = heat.best().map(|(x, y, value)| {
        let value = units::value(value, heat.unit);
        let (x, y) = (units::number(heat.x.values[x]), units::number(heat.y.values[y]));
        format!(" Best: {value} at {} {x} and {} {y}.", heat.x.name, heat.y.name)
    });
    format!("{} over {} and {}.{}", heat.label, heat.x.name, heat.y.name, best.unwrap_or_default())
}

/// How a value stands to that of the first transport, with the class that colours it.
pub fn against_first(cell: &Cell) -> Option<(String, &'static str)> {
    let Some(found) = &cell.verdict.as_ref()?.comparison else { return Some(("no ratio".to_owned(), "open")) };
    let shown = |times: f64| format!("{}×", if times < 10.0 { format!("{times:.2}") } else { units::number(times) });
    let times = found.times_better.value;
    Some(match found.verdict {
        Verdict::Better => (format!("{} better", shown(times)), "better"),
        Verdict::Worse => (format!("{} worse", shown(1.0 / times)), "worse"),
        Verdict::NoDifference { within } => (format!("within {} %", units::number(100.0 * within)), "same"),
        Verdict::TooNoisy { .. } => (format!("{}, not sure", shown(times)), "open"),
    })
}

/// In which direction better lies.
pub fn direction(metric: Metric) -> &'static str {
    match metric.better() {
        Better::Less => "less is better",
        Better::More => "more is better",
    }
}

/// A moment as date and time (UTC).
pub fn moment(unix_s: u64) -> String {
    let (days, rest) = (unix_s / 86_400, unix_s % 86_400);
    // Days to a date by eras of 400 years, which all have the same number of days; years start in March here.
    let shifted = days as u128 + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u128::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_words() {
        for entry in crate::pattern::catalogue() {
            assert!(PATTERNS.iter().any(|(known, ..)| *known == entry.name), "{}", entry.name);
        }
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_400 + 3_660), "2000-02-29 01:01 UTC");
        assert_eq!(moment(1_795_305_600), "2026-11-22 00:00 UTC");
        assert!(moment(u64::MAX).ends_with("UTC"));
    }
}
