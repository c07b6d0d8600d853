//! `ropeway bench compare`.

use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;

use ropeway_measure::results::compare::{Comparison, Row, compare};
use ropeway_measure::results::{select, units};

use crate::output;
use crate::output::tell;

/// Cases that are named when only one side has them; of more, the number is said.
const MOST_NAMED: usize = 10;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Two result files or directories (A B); FILE:TRANSPORT takes one transport of a file; or one file and two of its transports
    #[arg(required = true, num_args = 2..=3, value_name = "A B")]
    sides: Vec<String>,
    /// Exit with code 1 when B is shown to be worse than A by more than this in any case, when a case of A failed in B, or when nothing could be compared
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_if_slower: Option<f64>,
}

/// `5%` or `5` as 0.05.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value / 100.0),
        _ => Err("give a percentage from 0 up, such as 5%".to_owned()),
    }
}

pub fn main(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let (a, b) = select::sides(&args.sides)?;
    let comparison = compare(&a, &b);
    output::show(&text(&comparison))?;
    if comparison.rows.is_empty() {
        return Err("the two sides have no case in common: nothing was compared".into());
    }
    let Some(limit) = args.fail_if_slower else { return Ok(ExitCode::SUCCESS) };
    let slower: Vec<&Row> = comparison.rows.iter().filter(|row| row.shown_loss() > limit).collect();
    for row in &slower {
        tell!("worse than allowed: {}, {}, {}", row.pattern, row.case, units::metric_name(row.metric));
    }
    for name in &comparison.failed_b {
        tell!("failed on the side of B: {name}");
    }
    let good = slower.is_empty() && comparison.failed_b.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The comparison for a terminal: a table for each pattern and metric, then what else is to be known.
fn text(comparison: &Comparison) -> String {
    let mut text = format!("A: {}\nB: {}\n", plain(&comparison.a), plain(&comparison.b));
    for warning in &comparison.warnings {
        let _ = writeln!(text, "warning: {}", plain(warning));
    }
    let same = |a: &Row, b: &Row| (&a.pattern, a.metric) == (&b.pattern, b.metric);
    for rows in comparison.rows.chunk_by(same) {
        let _ = writeln!(text, "\n{}, {}", plain(&rows[0].pattern), units::metric_name(rows[0].metric));
        table(&mut text, rows);
    }
    if !comparison.rows.is_empty() {
        text += "\nMedians, the interval of the ratio with 95 %; P: how often a sample of B is better than one of A.\n";
    }
    for (what, names) in
        [("only A has", &comparison.only_a), ("only B has", &comparison.only_b), ("failed in B", &comparison.failed_b)]
    {
        for name in names.iter().take(MOST_NAMED) {
            let _ = writeln!(text, "{what} {}", plain(name));
        }
        if names.len() > MOST_NAMED {
            let _ = writeln!(text, "{what} {} more cases", names.len() - MOST_NAMED);
        }
    }
    text
}

fn table(text: &mut String, rows: &[Row]) {
    let mut lines = vec![["", "A", "B", "P", "verdict"].map(str::to_owned)];
    for row in rows {
        let value = |value: f64| units::value(value, row.metric.unit());
        let superiority = format!("{:.0} %", 100.0 * row.verdict.superiority);
        lines.push([
            plain(&row.case),
            value(row.a.median.value),
            value(row.b.median.value),
            superiority,
            row.verdict.words().to_owned(),
        ]);
    }
    let widths: Vec<usize> =
        (0..4).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
    for [case, a, b, superiority, words] in lines {
        let (w, x, y, z) = (widths[0], widths[1], widths[2], widths[3]);
        let _ = writeln!(text, "  {case:<w$}  {a:>x$}  {b:>y$}  {superiority:>z$}  {words}");
    }
}

/// Text of a file for a terminal: without characters that would command it.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_may_have_their_sign() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("0"), Ok(0.0));
        assert!(percent("-1%").is_err() && percent("x").is_err() && percent("inf").is_err());
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\n"), "a\u{FFFD}[31mb\u{FFFD}");
    }
}
