//! The table as text for a terminal.

use std::fmt;

use ropeway_measure::record::{Case, Metric};
use ropeway_measure::results::fits;
use ropeway_measure::transport::kind::{Kind, Spec};

use super::super::sizes::short;
use super::{Row, Spread, Table};

/// Width of a column of figures.
const WIDTH: usize = 16;

/// Width of the column with the names of transports.
const NAME: usize = 17;

/// Width of a cell with a figure and how far its interval reaches.
const CELL: usize = 20;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        let points: Vec<&[Row]> = self.rows.chunks(self.transports.len().max(1)).collect();
        match &points[..] {
            [] => {}
            [rows] => self.write_transports(f, rows, None)?,
            // Columns of figures have no room for what some rows have beside theirs.
            points if self.rows.iter().any(|row| row.has_details()) => {
                points.iter().try_for_each(|rows| self.write_transports(f, rows, Some(&self.label(&rows[0].case))))?;
            }
            points => self.write_points(f, points)?,
        }
        self.fits.iter().try_for_each(|fit| write_fit(f, &fits::table(fit)))
    }
}

impl Row {
    fn has_details(&self) -> bool {
        self.p999.is_some() || self.fairness.is_some() || self.loss.is_some_and(|loss| loss > 0.0)
    }
}

impl Table {
    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.sizes[..] {
            [size] => format!("{size}-byte messages"),
            sizes => format!("{} sizes", sizes.len()),
        };
        let cpus = match &self.cpus {
            Some(cpus) => format!("on CPUs {}", cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
            None => "not pinned".to_owned(),
        };
        writeln!(f, "{}: {what}, {} ranks, {} rounds in turn, {cpus}", self.pattern, self.ranks, self.rounds)?;
        if let Some(machine) = &self.machine {
            writeln!(f, "{}, {} CPUs, {}", machine.cpu_model, machine.cpus.len(), machine.kernel)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }

    /// What a point has of its own: size and parameters, as far as they differ between points.
    fn label(&self, case: &Case) -> String {
        let differs =
            |name: &str| self.rows.iter().any(|row| row.case.parameters.get(name) != case.parameters.get(name));
        let parameters = case.parameters.iter().filter(|(name, _)| differs(name));
        let mut words: Vec<String> = parameters.map(|(name, value)| format!("{name} {value}")).collect();
        if self.sizes.len() > 1 || words.is_empty() {
            words.insert(0, short(case.size));
        }
        words.join(", ")
    }

    /// One row for each transport of a point, with ratios, and what the words mean.
    fn write_transports(&self, f: &mut fmt::Formatter<'_>, rows: &[Row], label: Option<&str>) -> fmt::Result {
        let what = match (rows.first().map(|row| row.metric), self.unit) {
            (Some(Metric::OneWay), unit) => format!("one way, {unit}"),
            (_, "M/s") => "M messages/s".to_owned(),
            (_, unit) => unit.to_owned(),
        };
        let mut figures = rows.iter().filter_map(|row| row.figure);
        let known = figures.clone().next().is_some() && figures.all(|figure| figure.interval.is_some());
        let range = if known { "95 % interval" } else { "min .. max" };
        let name = self.name_width(label);
        write!(f, "\n{:<name$}{what:>14}{range:>22}", label.unwrap_or_default())?;
        if self.unit == "us" {
            write!(f, "{:>10}", "p99")?;
        }
        for peer in self.peers() {
            let heading = column(peer, 1.0).0;
            let width = room(WIDTH, &heading);
            write!(f, "{heading:>width$}")?;
        }
        writeln!(f)?;
        rows.iter().try_for_each(|row| self.write_row(f, row, known, name))?;
        if label.is_some_and(|_| !std::ptr::eq(rows.as_ptr_range().end, self.rows.as_ptr_range().end)) {
            return Ok(());
        }
        writeln!(f, "\nFigures are medians over the rounds, ratios are medians of the ratios within each round.")?;
        if !known {
            writeln!(f, "An interval of a median needs 6 rounds.")?;
        }
        writeln!(f, "x PEER: how many times better than PEER; / cache-line: how many times the limit of the machine.")
    }

    /// Width of the column with the names of the transports, under that label.
    fn name_width(&self, label: Option<&str>) -> usize {
        let names = self.rows.iter().map(|row| row.case.transport.as_str());
        names.chain(label).map(|name| room(NAME, name)).max().unwrap_or(NAME)
    }

    fn write_row(&self, f: &mut fmt::Formatter<'_>, row: &Row, intervals: bool, name: usize) -> fmt::Result {
        write!(f, "{:<name$}", row.case.transport)?;
        match row.figure {
            Some(Spread { median, min, max, interval }) => {
                let (low, high) = interval.filter(|_| intervals).map_or((min, max), |i| (i.low, i.high));
                write!(f, "{:>14}{:>22}", digits(median), format!("{} .. {}", digits(low), digits(high)))?;
                if self.unit == "us" {
                    write!(f, "{:>10}", row.p99.map_or_else(String::new, digits))?;
                }
                for peer in self.peers() {
                    let times = row.times_better_than.get(&peer.to_string()).map(|&times| column(peer, times).1);
                    let width = room(WIDTH, &column(peer, 1.0).0);
                    write!(f, "{:>width$}", times.map_or_else(String::new, |times| format!("{times:.2}")))?;
                }
            }
            None => write!(f, "  not measured")?,
        }
        if let Some(p999) = row.p999 {
            write!(f, "  p99.9 {}", digits(p999))?;
        }
        if let Some(fairness) = row.fairness {
            write!(f, "  fairness {fairness:.3}")?;
        }
        if let Some(loss) = row.loss.filter(|loss| *loss > 0.0) {
            write!(f, "  {:.2} % lost", loss * 100.0)?;
        }
        if let Some(carried) = &row.carried {
            write!(f, "  {carried}")?;
        }
        if let Some(failure) = row.failures.last() {
            let trials = row.failures.len() + row.rounds.len();
            write!(f, "  ({} of {trials} trials failed: {failure})", row.failures.len())?;
        }
        writeln!(f)
    }

    /// One row for each point, a column for each transport.
    fn write_points(&self, f: &mut fmt::Formatter<'_>, points: &[&[Row]]) -> fmt::Result {
        let labels: Vec<String> = points.iter().map(|rows| self.label(&rows[0].case)).collect();
        let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max(8);
        write!(f, "\n{:>width$}", self.unit)?;
        let names: Vec<String> = self.transports.iter().map(Spec::to_string).collect();
        let cells: Vec<usize> = names.iter().map(|name| room(CELL, name)).collect();
        names.iter().zip(&cells).try_for_each(|(name, width)| write!(f, "{name:>width$}"))?;
        writeln!(f)?;
        for (rows, label) in points.iter().zip(labels) {
            write!(f, "{label:>width$}")?;
            for (row, width) in rows.iter().zip(&cells) {
                write!(f, "{:>width$}", row.figure.map_or_else(|| "failed".to_owned(), cell))?;
            }
            writeln!(f)?;
        }
        for row in points[0] {
            if let Some(carried) = &row.carried {
                writeln!(f, "{}: {carried}", row.case.transport)?;
            }
        }
        writeln!(
            f,
            "\nFigures are medians over the rounds; ± is the farther end of the median's 95 % interval, which needs 6 rounds.\n\
             --csv and --json have their spread, --out has every sample."
        )
    }
}

/// The width of a column for this text, with a gap to the next one.
fn room(usual: usize, text: &str) -> usize {
    usual.max(text.chars().count() + 2)
}

/// Three decimals; what would have fewer than two digits of its own among them, in powers of ten.
fn digits(value: f64) -> String {
    /// Smaller figures are what rounding left of nothing.
    const NOTHING: f64 = 1e-12;
    let has_digits = value.abs() < NOTHING || value.abs() >= 0.01;
    if has_digits { format!("{value:.3}") } else { format!("{value:.2e}") }
}

/// `1.500 ±2.1 %`.
fn cell(figure: Spread) -> String {
    let Some(interval) = figure.interval else { return digits(figure.median) };
    let farther = (interval.high - figure.median).max(figure.median - interval.low);
    let percent = if farther == 0.0 { 0.0 } else { 100.0 * farther / figure.median.abs() };
    let decimals = usize::from(percent < 10.0);
    format!("{} ±{percent:.decimals$} %", digits(figure.median))
}

/// Heading and value of a column: against the cache line how much *longer* a row takes, else how many times *better* it is.
fn column(peer: &Spec, times_better: f64) -> (String, f64) {
    match peer.kind {
        Kind::CacheLine => (format!("/ {peer}"), 1.0 / times_better),
        _ => (format!("x {peer}"), times_better),
    }
}

/// A fitted model.
fn write_fit(f: &mut fmt::Formatter<'_>, table: &fits::Table) -> fmt::Result {
    writeln!(f, "\n{} (in brackets: 95 % intervals)", table.title)?;
    let headings: Vec<String> = table.headings.iter().map(|heading| (*heading).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&headings).chain(&table.rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    for line in &lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(f, "  {}", cells.join("   ").trim_end())?;
    }
    table.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
}

#[cfg(test)]
mod tests {
    use super::digits;

    #[test]
    fn small_figures_have_digits() {
        let shown = [0.0, 1e-17, 0.01, 0.0099, -0.002, 1e-7, 12.3456].map(digits);
        assert_eq!(shown, ["0.000", "0.000", "0.010", "9.90e-3", "-2.00e-3", "1.00e-7", "12.346"]);
    }
}
