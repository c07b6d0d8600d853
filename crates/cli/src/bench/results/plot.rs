//! `ropeway bench plot`.

use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use ropeway_measure::plot::{Figure, palette, raster};
use ropeway_measure::record::{Case, Measured, Metric};
use ropeway_measure::report::panels::Variable;
use ropeway_measure::report::{Order, figures, panels};
use ropeway_measure::results::group::{Group, groups};
use ropeway_measure::results::{Results, csv, units};

use crate::output::tell;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result files, or directories with some (names that end in .jsonl)
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// Only this pattern, such as pingpong
    #[arg(long)]
    pattern: Option<String>,
    /// Only this metric, such as one-way or goodput
    #[arg(long, value_parser = metric)]
    metric: Option<Metric>,
    /// Only cases in which this holds (repeat the option): transport=NAME, size=BYTES, ranks=N, site=here|box|hosts, or a parameter, such as w=16
    #[arg(long = "where", value_name = "NAME=VALUE", value_parser = condition)]
    conditions: Vec<(String, String)>,
    /// What is drawn
    #[arg(long, value_enum, default_value_t = Kind::Medians)]
    kind: Kind,
    /// Where the figure goes: a name that ends in .svg or .png; the table of --csv goes to standard output without it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Dark background
    #[arg(long)]
    dark: bool,
    /// Show the values that are printed in the source documents beside today's
    #[arg(long)]
    references: bool,
    /// Write a table instead of a figure: one line for each case, or for each sample
    #[arg(long, value_enum, value_name = "TABLE", num_args = 0..=1, default_missing_value = "cases", conflicts_with_all = ["dark", "references", "kind"])]
    csv: Option<Table>,
    /// The transport that comes first
    #[arg(long, value_name = "TRANSPORT")]
    baseline: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Medians with their intervals, or a plane of two parameters
    Medians,
    /// Which part of the samples took longer
    Distribution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    Cases,
    Samples,
}

fn metric(text: &str) -> Result<Metric, String> {
    units::metric_of(text)
        .ok_or_else(|| "no such metric; some are one-way, response, completion, goodput, message-rate".to_owned())
}

fn condition(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=VALUE, such as size=64")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn main(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let mut results = super::read_all(&args.paths)?;
    super::known_transport(&results, args.baseline.as_deref())?;
    for results in &mut results {
        results.measured.retain_mut(|measured| wanted(args, measured));
    }
    let found = groups(&results);
    if found.is_empty() {
        return Err("nothing that was measured is of this pattern and metric, and meets these conditions".into());
    }
    match args.csv {
        Some(table) => write_table(args, table, &results, &found)?,
        None => draw(args, &results)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a trial is asked for; leaves it those of its series that are.
fn wanted(args: &Args, measured: &mut Measured) -> bool {
    measured.series.retain(|series| args.metric.is_none_or(|metric| series.metric == metric));
    let pattern = args.pattern.as_ref().is_none_or(|pattern| *pattern == measured.case.pattern);
    pattern && args.conditions.iter().all(|(name, value)| holds(&measured.case, name, value))
}

fn holds(case: &Case, name: &str, value: &str) -> bool {
    let variable = match name {
        "transport" => return case.transport == value,
        "site" => return case.site.key() == value,
        "size" => Variable::Size,
        "ranks" => Variable::Ranks,
        name => Variable::Parameter(name.to_owned()),
    };
    value.parse::<f64>().is_ok_and(|value| variable.of(case) == value)
}

fn write_table(args: &Args, table: Table, results: &[Results], groups: &[Group<'_>]) -> Result<(), Box<dyn Error>> {
    let out: Box<dyn Write> = match &args.out {
        Some(path) => {
            let created = std::fs::File::create(path);
            Box::new(created.map_err(|error| format!("cannot write {}: {error}", path.display()))?)
        }
        None => Box::new(std::io::stdout().lock()),
    };
    let mut out = BufWriter::new(out);
    let written = match table {
        Table::Cases => csv::summaries(&mut out, groups),
        Table::Samples => csv::samples(&mut out, results, groups),
    };
    Ok(super::unless_closed(written.and_then(|()| out.flush()))?)
}

fn draw(args: &Args, results: &[Results]) -> Result<(), Box<dyn Error>> {
    let panels = panels(results, &Order::new(results, args.baseline.as_deref()));
    let drawn = panels.iter().flat_map(|panel| match args.kind {
        Kind::Medians => figures::medians(panel, args.references),
        Kind::Distribution => figures::tails(panel),
    });
    let drawn: Vec<Figure> = drawn.collect();
    let figure = match &drawn[..] {
        [figure] => figure,
        [] => return Err("there are too few samples for such a figure".into()),
        several => {
            let titles: Vec<String> = several.iter().map(|figure| format!("  {}", figure.title())).collect();
            let (count, titles) = (several.len(), titles.join("\n"));
            return Err(format!(
                "this makes {count} figures; choose one with --pattern, --metric and --where:\n{titles}"
            )
            .into());
        }
    };
    let path = args.out.clone().unwrap_or_else(|| "plot.svg".into());
    super::write(&path, &picture(figure, &path, args.dark)?)?;
    tell!("{}: {}", path.display(), figure.title());
    Ok(())
}

fn picture(figure: &Figure, path: &Path, dark: bool) -> Result<Vec<u8>, Box<dyn Error>> {
    let theme = if dark { &palette::DARK } else { &palette::LIGHT };
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(figure.alone(theme).into_bytes()),
        Some("png") => Ok(raster::png(figure, theme)?),
        _ => Err(format!("{}: give a name that ends in .svg or .png", path.display()).into()),
    }
}
