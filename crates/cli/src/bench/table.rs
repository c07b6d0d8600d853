//! What a person reads at the end of a run: a row for each transport, or, of several sizes, a row for each size; and the same as JSON and CSV.

use std::collections::BTreeMap;
use std::fmt;

use ropeway_measure::carried::Carried;
use ropeway_measure::machine;
use ropeway_measure::record::{Better, Case, Fit, Host, Line, Metric, Series, Values};
use ropeway_measure::run::{self, Plan};
use ropeway_measure::transport::kind::Spec;
use serde::Serialize;

use super::sizes::short;

/// Everything that a run found, by rows.
#[derive(Debug, Serialize)]
pub struct Table {
    /// Version of this form.
    schema: u32,
    pattern: String,
    unit: &'static str,
    sizes: Vec<u64>,
    ranks: usize,
    rounds: u32,
    seed: u64,
    /// Processors of the ranks.
    cpus: Option<Vec<usize>>,
    machine: Option<Host>,
    ropeway_version: &'static str,
    commit: Option<String>,
    load_1min_after: Option<f64>,
    notes: Vec<String>,
    /// Models of the transports, where the pattern is one's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fits: Vec<Fit>,
    rows: Vec<Row>,
    #[serde(skip)]
    better: Better,
    #[serde(skip)]
    metric: Option<Metric>,
    #[serde(skip)]
    transports: Vec<Spec>,
}

/// One transport with one size.
#[derive(Debug, Serialize)]
struct Row {
    transport: String,
    size: u64,
    /// Median, least and greatest of the rounds' figures, in the table's unit.
    figure: Option<Spread>,
    /// Median over the rounds of the 99th percentile; of times only.
    p99: Option<f64>,
    /// Part of the messages that was lost; of unreliable transports.
    loss: Option<f64>,
    /// How many times better than the named peer (above 1: this row is better): the median of the ratios within each round, because a virtual machine may be moved to other cores between two
    /// rounds, which changes every row alike.
    times_better_than: BTreeMap<String, f64>,
    carried: Option<Carried>,
    /// Reasons of trials without a figure.
    failures: Vec<String>,
    rounds: Vec<Round>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct Round {
    /// Trials with the same number were made one after the other.
    round: u32,
    figure: f64,
    p99: Option<f64>,
    loss: Option<f64>,
}

impl Table {
    pub fn new(plan: &Plan) -> Table {
        let mut notes = Vec::new();
        if plan.cpus.is_none() && plan.launch.places.iter().all(|place| place.is_this_machine()) {
            notes.push("there are fewer processors than ranks: they share them, and nothing is pinned".to_owned());
        }
        let row = |transport: &Spec, size: u64| Row {
            transport: transport.to_string(),
            size,
            figure: None,
            p99: None,
            loss: None,
            times_better_than: BTreeMap::new(),
            carried: None,
            failures: Vec::new(),
            rounds: Vec::new(),
        };
        let sizes: Vec<u64> = plan.points.iter().map(|point| point.size as u64).collect();
        Table {
            schema: 2,
            pattern: plan.points.first().map_or_else(String::new, |point| point.name.clone()),
            unit: "",
            rows: sizes.iter().flat_map(|size| plan.transports.iter().map(|spec| row(spec, *size))).collect(),
            sizes,
            ranks: plan.ranks,
            rounds: 0,
            seed: plan.seed,
            cpus: plan.cpus.clone(),
            machine: None,
            ropeway_version: env!("CARGO_PKG_VERSION"),
            commit: run::commit(),
            load_1min_after: None,
            notes,
            fits: Vec::new(),
            better: Better::Less,
            metric: None,
            transports: plan.transports.clone(),
        }
    }

    /// Takes a line of the result.
    pub fn add(&mut self, line: &Line) {
        match line {
            Line::Run(run) => self.machine = run.hosts.first().cloned(),
            Line::Measured(measured) => self.add_series(&measured.case, measured.round, &measured.series),
            Line::Failed(failed) => {
                if let Some(row) = self.row(&failed.case) {
                    row.failures.push(failed.reason.clone());
                }
            }
            Line::Warning { text } => self.notes.push(text.clone()),
            Line::Carried { transport, carried } => {
                let carried = serde_json::from_value::<Carried>(carried.clone()).ok();
                for row in self.rows.iter_mut().filter(|row| row.transport == *transport) {
                    row.carried = carried.clone();
                }
            }
            Line::Fit(fit) => self.fits.push(fit.clone()),
            Line::End { .. } => {}
        }
    }

    fn row(&mut self, case: &Case) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.transport == case.transport && row.size == case.size)
    }

    /// The first series of a pattern is what it is about.
    fn add_series(&mut self, case: &Case, round: u32, series: &[Series]) {
        let Some(main) = series.first() else { return };
        let metric = *self.metric.get_or_insert(main.metric);
        let Some(main) = series.iter().find(|series| series.metric == metric) else { return };
        let scale = scale(metric);
        (self.unit, self.better) = (scale.1, metric.better());
        let loss = series.iter().find(|series| series.metric == Metric::Loss).and_then(|s| mean(&s.values));
        let is_time = scale.1 == "us";
        // Times by their median; of what flows in a time, the whole counts.
        let figure = if is_time { quantile(&main.values, 0.5) } else { mean(&main.values) };
        let p99 = if is_time { quantile(&main.values, 0.99) } else { None };
        let too_short = "the trial was too short: not one sample was taken";
        self.rounds = self.rounds.max(round + 1);
        let Some(row) = self.row(case) else { return };
        match figure {
            // What other ranks measured of the same trial stands in the result file.
            Some(_) if row.rounds.last().is_some_and(|last| last.round == round) => {}
            Some(figure) => {
                let p99 = p99.map(|p99| p99 * scale.0);
                row.rounds.push(Round { round, figure: figure * scale.0, p99, loss });
            }
            None => row.failures.push(too_short.to_owned()),
        }
    }

    pub fn finish(mut self) -> Table {
        for row in &mut self.rows {
            let figures: Vec<f64> = row.rounds.iter().map(|r| r.figure).collect();
            row.figure = median(&figures).map(|median| Spread {
                median,
                min: figures.iter().copied().fold(f64::INFINITY, f64::min),
                max: figures.iter().copied().fold(0.0, f64::max),
            });
            row.p99 = median(&row.rounds.iter().filter_map(|r| r.p99).collect::<Vec<_>>());
            row.loss = median(&row.rounds.iter().filter_map(|r| r.loss).collect::<Vec<_>>());
        }
        self.compare_rows();
        self.load_1min_after = machine::load_1min();
        self
    }

    /// Whether every row has a figure.
    pub fn complete(&self) -> bool {
        self.rows.iter().all(|row| row.figure.is_some())
    }

    fn compare_rows(&mut self) {
        let figures: Vec<(String, u64, BTreeMap<u32, f64>)> = self
            .rows
            .iter()
            .map(|row| (row.transport.clone(), row.size, row.rounds.iter().map(|r| (r.round, r.figure)).collect()))
            .collect();
        for row in &mut self.rows {
            for (peer, _, theirs) in
                figures.iter().filter(|(peer, size, _)| *peer != row.transport && *size == row.size)
            {
                let ratio = |own: &Round| {
                    let theirs = theirs.get(&own.round)?;
                    Some(if self.better == Better::Less { theirs / own.figure } else { own.figure / theirs })
                };
                if let Some(times) = median(&row.rounds.iter().filter_map(ratio).collect::<Vec<_>>()) {
                    row.times_better_than.insert(peer.clone(), times);
                }
            }
        }
    }

    /// The medians, a line for each row.
    pub fn csv(&self) -> String {
        let mut text = "pattern,transport,size_bytes,unit,median,min,max,p99,loss,rounds,failures\n".to_owned();
        for row in &self.rows {
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
            let [median, min, max] =
                [|f: Spread| f.median, |f: Spread| f.min, |f: Spread| f.max].map(|f| number(row.figure.map(f)));
            let (p99, loss) = (number(row.p99), number(row.loss));
            let (transport, rounds, failures) = (quoted(&row.transport), row.rounds.len(), row.failures.len());
            text.push_str(&format!(
                "{},{transport},{},{},{median},{min},{max},{p99},{loss},{rounds},{failures}\n",
                self.pattern, row.size, self.unit
            ));
        }
        text
    }

    /// The peers that get a column of ratios: measured, and not Ropeway itself.
    fn peers(&self) -> Vec<&Spec> {
        let measured = |spec: &Spec| {
            let name = spec.to_string();
            self.rows.iter().any(|row| row.transport == name && row.figure.is_some())
        };
        self.transports.iter().filter(|spec| !spec.kind.is_preloaded() && measured(spec)).collect()
    }
}

/// A field of CSV; options of a transport may have commas.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// What a value of a metric is multiplied by to be read well, and the unit that it then has.
fn scale(metric: Metric) -> (f64, &'static str) {
    match (metric, metric.unit()) {
        (Metric::MessageRate, _) => (1e-6, "M/s"),
        (_, "ns") => (1e-3, "us"),
        (_, "bytes/s") => (1e-9, "GB/s"),
        (_, unit) => (1.0, unit),
    }
}

/// The value below which the fraction `q` of the samples lies.
fn quantile(values: &Values, q: f64) -> Option<f64> {
    let rank = |count: u64| ((count as f64 * q).ceil() as u64).max(1);
    match values {
        Values::Samples(samples) => {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            sorted.get(rank(sorted.len() as u64) as usize - 1).copied()
        }
        Values::Counts(counts) => {
            let rank = rank(counts.iter().map(|(_, count)| count).sum());
            let mut seen = 0;
            let found = counts.iter().find(|(_, count)| {
                seen += count;
                seen >= rank
            });
            found.map(|(value, _)| *value)
        }
    }
}

fn mean(values: &Values) -> Option<f64> {
    let (sum, count) = match values {
        Values::Samples(samples) => (samples.iter().sum::<f64>(), samples.len() as f64),
        Values::Counts(counts) => counts
            .iter()
            .fold((0.0, 0.0), |(sum, all), (value, count)| (sum + value * *count as f64, all + *count as f64)),
    };
    (count > 0.0).then(|| sum / count)
}

/// The middle of some values (the mean of the two middle ones if their number is even). None without values.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        match self.sizes.len() {
            0 | 1 => self.write_transports(f),
            _ => self.write_sizes(f),
        }
    }
}

/// Width of a column of figures.
const WIDTH: usize = 16;

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

    /// One row for each transport, with ratios, and what the words mean.
    fn write_transports(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.metric, self.unit) {
            (Some(Metric::OneWay), unit) => format!("one way, {unit}"),
            (_, "M/s") => "M messages/s".to_owned(),
            (_, unit) => unit.to_owned(),
        };
        write!(f, "\n{:<17}{what:>14}{:>22}", "", "min .. max")?;
        if self.unit == "us" {
            write!(f, "{:>10}", "p99")?;
        }
        for peer in self.peers() {
            write!(f, "{:>WIDTH$}", column(peer, 1.0).0)?;
        }
        writeln!(f)?;
        self.rows.iter().try_for_each(|row| self.write_row(f, row))?;
        writeln!(f, "\nFigures are medians over the rounds, ratios are medians of the ratios within each round.")?;
        writeln!(f, "x PEER: how many times better than PEER; / cache-line: how many times the limit of the machine.")
    }

    fn write_row(&self, f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
        write!(f, "{:<17}", row.transport)?;
        match row.figure {
            Some(figure) => {
                write!(f, "{:>14.3}{:>22}", figure.median, format!("{:.3} .. {:.3}", figure.min, figure.max))?;
                if self.unit == "us" {
                    write!(f, "{:>10}", row.p99.map_or_else(String::new, |p99| format!("{p99:.3}")))?;
                }
                for peer in self.peers() {
                    let times = row.times_better_than.get(&peer.to_string()).map(|&times| column(peer, times).1);
                    write!(f, "{:>WIDTH$}", times.map_or_else(String::new, |times| format!("{times:.2}")))?;
                }
            }
            None => write!(f, "  not measured")?,
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

    /// One row for each size, a column for each transport.
    fn write_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{:>8}", self.unit)?;
        self.transports.iter().try_for_each(|spec| write!(f, "{:>WIDTH$}", spec.to_string()))?;
        writeln!(f)?;
        for size in &self.sizes {
            write!(f, "{:>8}", short(*size))?;
            for row in self.rows.iter().filter(|row| row.size == *size) {
                let figure = row.figure.map_or_else(|| "failed".to_owned(), |figure| format!("{:.3}", figure.median));
                write!(f, "{figure:>WIDTH$}")?;
            }
            writeln!(f)?;
        }
        for row in self.rows.iter().filter(|row| row.size == self.sizes[0]) {
            if let Some(carried) = &row.carried {
                writeln!(f, "{}: {carried}", row.transport)?;
            }
        }
        writeln!(
            f,
            "\nFigures are medians over the rounds; --csv and --json have their spread, --out has every sample."
        )
    }
}

/// Heading and value of a column: against the cache line how much *longer* a row takes, else how many times *better* it is.
fn column(peer: &Spec, times_better: f64) -> (String, f64) {
    match peer.kind {
        ropeway_measure::transport::kind::Kind::CacheLine => (format!("/ {peer}"), 1.0 / times_better),
        _ => (format!("x {peer}"), times_better),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_measure::record::{Failed, Measured};

    fn case(transport: &str, size: u64) -> Case {
        Case { transport: transport.into(), pattern: "p".into(), size, ranks: 2, parameters: BTreeMap::new() }
    }

    fn table(transports: &str, sizes: &[u64]) -> Table {
        let plan = Plan {
            transports: Spec::list(transports).expect("transports"),
            points: sizes
                .iter()
                .map(|size| run::Point {
                    name: "p".into(),
                    pattern: ropeway_measure::pattern::Pattern::Stream,
                    size: *size as usize,
                    parameters: BTreeMap::new(),
                })
                .collect(),
            ranks: 2,
            bound: ropeway_measure::pattern::Bound::Samples(1),
            warm_up: std::time::Duration::ZERO,
            stop: run::Stop { rounds: 3, budget: None, precision: None },
            seed: 0,
            cpus: Some(vec![0, 1]),
            launch: ropeway_measure::ranks::start::Launch {
                program: "x".into(),
                remote_command: String::new(),
                mpirun: String::new(),
                ssh: "ssh".into(),
                places: Vec::new(),
            },
            patience: std::time::Duration::ZERO,
            joins_small_sends: false,
            command: Vec::new(),
        };
        Table::new(&plan)
    }

    fn measured(transport: &str, size: u64, round: u32, metric: Metric, value: f64) -> Line {
        let series = vec![Series::samples(metric, 1, vec![value])];
        let case = case(transport, size);
        Line::Measured(Measured { case, rank: 0, round, at_ns: 0, cpu: None, carried: None, series })
    }

    fn two_rows(metric: Metric, rounds: [&[f64]; 2]) -> Table {
        let mut table = table("tcp,ropeway", &[8]);
        for (transport, values) in ["tcp", "ropeway"].into_iter().zip(rounds) {
            for (round, value) in values.iter().enumerate() {
                table.add(&measured(transport, 8, round as u32, metric, *value));
            }
        }
        table.finish()
    }

    #[test]
    fn ratios_say_better_for_latency_and_for_throughput() {
        let latency = two_rows(Metric::OneWay, [&[20_000.0; 3], &[1_000.0, 500.0, 2_000.0]]);
        assert_eq!(latency.rows[1].times_better_than["tcp"], 20.0);
        let stream = two_rows(Metric::Goodput, [&[100.0], &[400.0]]);
        assert_eq!(stream.rows[1].times_better_than["tcp"], 4.0);
        assert_eq!(stream.rows[0].times_better_than["ropeway"], 0.25);
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let moved = two_rows(Metric::OneWay, [&[10.0, 1_000.0, 1_000.0], &[5.0, 500.0, 500.0]]);
        assert_eq!(moved.rows[1].times_better_than["tcp"], 2.0);
    }

    #[test]
    fn a_row_without_rounds_is_not_complete_and_says_why() {
        let mut table = table("ropeway", &[8]);
        table.add(&Line::Failed(Failed { case: case("ropeway", 8), round: 0, reason: "needs two processors".into() }));
        let table = table.finish();
        assert!(!table.complete());
        let text = table.to_string();
        assert!(text.contains("not measured") && text.contains("needs two processors"), "{text}");
    }

    #[test]
    fn several_sizes_are_rows_and_transports_columns() {
        let mut table = table("tcp,unix", &[8, 1024]);
        table.add(&measured("tcp", 8, 0, Metric::OneWay, 1500.0));
        table.add(&measured("unix", 1024, 0, Metric::OneWay, 2500.0));
        let table = table.finish();
        let text = table.to_string();
        let row = |size: &str| text.lines().find(|line| line.trim_start().starts_with(size)).expect("a row").to_owned();
        assert!(row("8").contains("1.500") && row("8").contains("failed"), "{text}");
        assert!(row("1Ki").contains("2.500"), "{text}");
        assert_eq!(table.csv().lines().nth(1), Some("p,tcp,8,us,1.5,1.5,1.5,1.5,,1,0"));
    }

    #[test]
    fn quantiles_are_those_of_samples_and_of_counts() {
        let samples = Values::Samples(vec![4.0, 2.0, 2.0, 100.0]);
        let counts = Values::Counts(vec![(2.0, 2), (4.0, 1), (100.0, 1)]);
        for values in [samples, counts] {
            assert_eq!([0.5, 0.75, 0.99].map(|q| quantile(&values, q)), [Some(2.0), Some(4.0), Some(100.0)]);
            assert_eq!(mean(&values), Some(27.0));
        }
        assert_eq!((quantile(&Values::Samples(vec![]), 0.5), mean(&Values::Counts(vec![]))), (None, None));
    }
}
