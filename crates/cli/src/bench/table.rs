//! What a person reads at the end of a run: a row for each case, the models that were fitted, and what is to be known; and the same as JSON and CSV.
//!
//! Statistics are those of `ropeway_measure::stats`; [`text`] is the form for terminals.

mod text;

use std::collections::BTreeMap;

use ropeway_measure::carried::Carried;
use ropeway_measure::machine;
use ropeway_measure::pattern;
use ropeway_measure::record::{Case, Fit, Host, Line, Metric, Series};
use ropeway_measure::results::group::same_but_transport;
use ropeway_measure::run::{self, Plan};
use ropeway_measure::stats::{CONFIDENCE, Interval, NEGLIGIBLE, Ordered, Sides, compare_paired, quantile_interval};
use ropeway_measure::transport::kind::Spec;
use serde::Serialize;

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
    transports: Vec<Spec>,
}

/// One case.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    /// Of the figure.
    #[serde(skip)]
    metric: Metric,
    /// Of the rounds' figures, in the table's unit.
    figure: Option<Spread>,
    /// Median over the rounds of the 99th percentile; of times only.
    p99: Option<f64>,
    /// The same of 99.9 %; of the completion of what several ranks do together, of which the last one counts.
    p999: Option<f64>,
    /// Jain's index over the peers.
    fairness: Option<f64>,
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
    /// Of the median; needs six rounds.
    interval: Option<Interval>,
}

#[derive(Debug, Serialize)]
struct Round {
    /// Trials with the same number were made one after the other.
    round: u32,
    figure: f64,
    p99: Option<f64>,
    p999: Option<f64>,
    fairness: Option<f64>,
    loss: Option<f64>,
}

impl Table {
    pub fn new(plan: &Plan) -> Table {
        let mut notes = Vec::new();
        if plan.cpus.is_none() && plan.launch.places.iter().all(|place| place.is_this_machine()) {
            notes.push("there are fewer processors than ranks: they share them, and nothing is pinned".to_owned());
        }
        let row = |case: Case, metric: Metric| Row {
            case,
            metric,
            figure: None,
            p99: None,
            p999: None,
            fairness: None,
            loss: None,
            times_better_than: BTreeMap::new(),
            carried: None,
            failures: Vec::new(),
            rounds: Vec::new(),
        };
        let mut sizes: Vec<u64> = plan.points.iter().map(|point| point.size as u64).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let rows = plan.points.iter().flat_map(|point| {
            let metric = pattern::leading(&point.pattern);
            let case = move |spec| run::case(spec, point, plan.ranks, &plan.launch.places);
            plan.transports.iter().map(move |spec| row(case(spec), metric))
        });
        Table {
            schema: 2,
            pattern: plan.points.first().map_or_else(String::new, |point| point.name.clone()),
            unit: plan.points.first().map_or("", |point| scale(pattern::leading(&point.pattern)).1),
            rows: rows.collect(),
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
                for row in self.rows.iter_mut().filter(|row| row.case.transport == *transport) {
                    row.carried = carried.clone();
                }
            }
            Line::Fit(fit) => self.fits.push(fit.clone()),
            Line::End { .. } => {}
        }
    }

    fn row(&mut self, case: &Case) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.case == *case)
    }

    fn add_series(&mut self, case: &Case, round: u32, series: &[Series]) {
        let Some(metric) = self.row(case).map(|row| row.metric) else { return };
        let Some(main) = series.iter().find(|series| series.metric == metric) else { return };
        let scale = scale(metric);
        let mean_of = |metric: Metric| {
            let found = series.iter().find(|series| series.metric == metric)?;
            Ordered::of_values([&found.values]).mean()
        };
        let (fairness, loss) = (mean_of(Metric::Fairness), mean_of(Metric::Loss));
        let ordered = Ordered::of_values([&main.values]);
        let is_time = scale.1 == "us";
        // Times by their median; of what flows in a time, the whole counts.
        let figure = if is_time { ordered.median() } else { ordered.mean() };
        let tail = |q: f64, wanted: bool| ordered.quantile(q).filter(|_| wanted).map(|value| value * scale.0);
        let (p99, p999) = (tail(0.99, is_time), tail(0.999, metric == Metric::Completion));
        let too_short = "the trial was too short: not one sample was taken";
        self.rounds = self.rounds.max(round + 1);
        let Some(row) = self.row(case) else { return };
        match figure {
            // What other ranks measured of the same trial stands in the result file.
            Some(_) if row.rounds.last().is_some_and(|last| last.round == round) => {}
            Some(figure) => row.rounds.push(Round { round, figure: figure * scale.0, p99, p999, fairness, loss }),
            None => row.failures.push(too_short.to_owned()),
        }
    }

    pub fn finish(mut self) -> Table {
        for row in &mut self.rows {
            let figures: Vec<f64> = row.rounds.iter().map(|r| r.figure).collect();
            row.figure = spread(&Ordered::of(&figures));
            let median = |of: fn(&Round) -> Option<f64>| {
                Ordered::of(&row.rounds.iter().filter_map(of).collect::<Vec<f64>>()).median()
            };
            (row.p99, row.p999) = (median(|r| r.p99), median(|r| r.p999));
            (row.fairness, row.loss) = (median(|r| r.fairness), median(|r| r.loss));
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
        let mut found = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            for peer in self.rows.iter().filter(|peer| peer.is_peer_of(row)) {
                let times = row.times_better_than(peer);
                found.extend(times.map(|times| (number, peer.case.transport.clone(), times)));
            }
        }
        for (number, peer, times) in found {
            self.rows[number].times_better_than.insert(peer, times);
        }
    }

    /// The medians, a line for each row.
    pub fn csv(&self) -> String {
        let columns = "pattern,transport,size_bytes,parameters,unit,median,low,high,min,max,p99,p999,fairness,loss,rounds,failures";
        let mut text = format!("{columns}\n");
        for Row { case, figure, p99, p999, fairness, loss, rounds, failures, .. } in &self.rows {
            let interval = figure.and_then(|figure| figure.interval);
            let numbers = [
                figure.map(|figure| figure.median),
                interval.map(|interval| interval.low),
                interval.map(|interval| interval.high),
                figure.map(|figure| figure.min),
                figure.map(|figure| figure.max),
                *p99,
                *p999,
                *fairness,
                *loss,
            ];
            let numbers = numbers.map(|number| number.map_or_else(String::new, |number| number.to_string())).join(",");
            let parameters: Vec<String> =
                case.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let (pattern, transport, parameters) = (&case.pattern, quoted(&case.transport), parameters.join(";"));
            let (size, unit, rounds, failures) = (case.size, self.unit, rounds.len(), failures.len());
            text.push_str(&format!("{pattern},{transport},{size},{parameters},{unit},{numbers},{rounds},{failures}\n"));
        }
        text
    }

    /// The peers that get a column of ratios: measured, and not Ropeway itself.
    fn peers(&self) -> Vec<&Spec> {
        let measured = |spec: &Spec| {
            let name = spec.to_string();
            self.rows.iter().any(|row| row.case.transport == name && row.figure.is_some())
        };
        self.transports.iter().filter(|spec| !spec.kind.is_preloaded() && measured(spec)).collect()
    }
}

impl Row {
    /// Whether both are the same case of different transports.
    fn is_peer_of(&self, other: &Row) -> bool {
        self.case.transport != other.case.transport && same_but_transport(&self.case, &other.case)
    }

    fn times_better_than(&self, peer: &Row) -> Option<f64> {
        let theirs: BTreeMap<u32, f64> = peer.rounds.iter().map(|r| (r.round, r.figure)).collect();
        let both = |own: &Round| Some((*theirs.get(&own.round)?, own.figure));
        let pairs: Vec<(f64, f64)> = self.rounds.iter().filter_map(both).collect();
        let (a, b) = (peer.case.transport.as_str(), self.case.transport.as_str());
        let sides = Sides { a, b, metric: self.metric, negligible: NEGLIGIBLE, confidence: CONFIDENCE };
        compare_paired(&pairs, sides).map(|found| found.times_better.value)
    }
}

fn spread(figures: &Ordered) -> Option<Spread> {
    let interval = quantile_interval(figures, 0.5, CONFIDENCE);
    Some(Spread { median: figures.median()?, min: figures.min()?, max: figures.max()?, interval })
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

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_measure::pattern::Pattern;
    use ropeway_measure::record::{Failed, Measured, Site};

    const PINGPONG: Pattern = Pattern::PingPong { batch: 1 };

    fn case(transport: &str, size: u64) -> Case {
        Case {
            transport: transport.into(),
            pattern: "p".into(),
            size,
            ranks: 2,
            site: Site::Here,
            parameters: BTreeMap::new(),
        }
    }

    fn table(pattern: &Pattern, transports: &str, sizes: &[u64]) -> Table {
        Table::new(&plan(pattern, transports, sizes))
    }

    fn plan(pattern: &Pattern, transports: &str, sizes: &[u64]) -> Plan {
        Plan {
            transports: Spec::list(transports).expect("transports"),
            points: sizes
                .iter()
                .map(|size| run::Point {
                    name: "p".into(),
                    pattern: pattern.clone(),
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
                launcher: None,
                ssh: "ssh".into(),
                places: Vec::new(),
            },
            patience: std::time::Duration::ZERO,
            joins_small_sends: false,
            command: Vec::new(),
        }
    }

    fn measured(transport: &str, size: u64, round: u32, metric: Metric, value: f64) -> Line {
        let series = vec![Series::samples(metric, 1, vec![value])];
        let case = case(transport, size);
        Line::Measured(Measured { case, rank: 0, round, at_ns: 0, cpu: None, series })
    }

    fn two_rows(pattern: &Pattern, rounds: [&[f64]; 2]) -> Table {
        let mut table = table(pattern, "tcp,ropeway", &[8]);
        let metric = pattern::leading(pattern);
        for (transport, values) in ["tcp", "ropeway"].into_iter().zip(rounds) {
            for (round, value) in values.iter().enumerate() {
                table.add(&measured(transport, 8, round as u32, metric, *value));
            }
        }
        table.finish()
    }

    #[test]
    fn ratios_say_better_for_latency_and_for_throughput() {
        let latency = two_rows(&PINGPONG, [&[20_000.0; 3], &[1_000.0, 500.0, 2_000.0]]);
        assert!((latency.rows[1].times_better_than["tcp"] - 20.0).abs() < 1e-9);
        let stream = two_rows(&Pattern::Stream, [&[100.0], &[400.0]]);
        assert!((stream.rows[1].times_better_than["tcp"] - 4.0).abs() < 1e-9);
        assert!((stream.rows[0].times_better_than["ropeway"] - 0.25).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let moved = two_rows(&PINGPONG, [&[10.0, 1_000.0, 1_000.0], &[5.0, 500.0, 500.0]]);
        assert!((moved.rows[1].times_better_than["tcp"] - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_row_without_rounds_is_not_complete_and_says_why() {
        let mut table = table(&PINGPONG, "ropeway", &[8]);
        table.add(&Line::Failed(Failed { case: case("ropeway", 8), round: 0, reason: "needs two processors".into() }));
        let table = table.finish();
        assert!(!table.complete());
        let text = table.to_string();
        assert!(text.contains("not measured") && text.contains("needs two processors"), "{text}");
    }

    #[test]
    fn several_sizes_are_rows_and_transports_columns() {
        let mut table = table(&PINGPONG, "tcp,unix", &[8, 1024]);
        table.add(&measured("tcp", 8, 0, Metric::OneWay, 1500.0));
        table.add(&measured("unix", 1024, 0, Metric::OneWay, 2500.0));
        let table = table.finish();
        let text = table.to_string();
        let row = |size: &str| text.lines().find(|line| line.trim_start().starts_with(size)).expect("a row").to_owned();
        assert!(row("8").contains("1.500") && row("8").contains("failed"), "{text}");
        assert!(row("1Ki").contains("2.500"), "{text}");
        assert_eq!(table.csv().lines().nth(1), Some("p,tcp,8,,us,1.5,,,1.5,1.5,1.5,,,,1,0"));
    }

    #[test]
    fn cases_that_differ_in_a_parameter_are_different_rows() {
        let mut plan = plan(&PINGPONG, "tcp", &[8, 8]);
        for (outstanding, point) in [1.0, 4.0].into_iter().zip(&mut plan.points) {
            point.parameters.insert("outstanding".into(), outstanding);
        }
        let mut table = Table::new(&plan);
        for (outstanding, value) in [(1.0, 1500.0), (4.0, 2500.0)] {
            let mut line = measured("tcp", 8, 0, Metric::OneWay, value);
            let Line::Measured(one) = &mut line else { panic!("measured") };
            one.case.parameters.insert("outstanding".into(), outstanding);
            table.add(&line);
        }
        let table = table.finish();
        let figures: Vec<f64> = table.rows.iter().filter_map(|row| Some(row.figure?.median)).collect();
        assert_eq!(figures, [1.5, 2.5]);
        let text = table.to_string();
        assert!(text.contains("outstanding 1") && text.contains("outstanding 4"), "{text}");
        assert!(table.csv().contains("p,tcp,8,outstanding=4,us,2.5"), "{}", table.csv());
    }

    #[test]
    fn six_rounds_give_the_median_an_interval() {
        let few = two_rows(&PINGPONG, [&[1_000.0; 5], &[1_000.0; 5]]);
        assert!(few.rows[0].figure.is_some_and(|figure| figure.interval.is_none()));
        assert!(few.to_string().contains("min .. max"), "{few}");
        let values = [1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0, 6_000.0];
        let enough = two_rows(&PINGPONG, [&values, &values]);
        let interval = enough.rows[0].figure.and_then(|figure| figure.interval).expect("an interval");
        assert_eq!((interval.low, interval.high), (1.0, 6.0));
        assert!(enough.to_string().contains("95 % interval"), "{enough}");
    }

    #[test]
    fn what_comes_beside_the_figure_stands_in_its_row() {
        let mut table = table(&Pattern::AllToAll { messages: 8 }, "tcp", &[8]);
        let series =
            [(Metric::Completion, vec![1_000.0, 9_000.0]), (Metric::Fairness, vec![0.9]), (Metric::Loss, vec![0.25])];
        let series = series.map(|(metric, values)| Series::samples(metric, 1, values)).to_vec();
        let case = case("tcp", 8);
        table.add(&Line::Measured(Measured { case, rank: 0, round: 0, at_ns: 0, cpu: None, series }));
        let text = table.finish().to_string();
        for part in ["p99.9 9.000", "fairness 0.900", "25.00 % lost"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_figure_is_what_the_pattern_is_about_whichever_rank_measures_more() {
        let mut table = table(&Pattern::OneOne { messages: 4 }, "tcp", &[8]);
        for round in 0..2 {
            // In the first round rank 0 receives as well.
            let of_pair = (round == 0).then_some((Metric::Goodput, 1e9));
            let series = of_pair.into_iter().chain([(Metric::TotalGoodput, 4e9)]);
            let series = series.map(|(metric, value)| Series::samples(metric, 1, vec![value])).collect();
            let case = case("tcp", 8);
            table.add(&Line::Measured(Measured { case, rank: 0, round, at_ns: 0, cpu: None, series }));
            table.add(&measured("tcp", 8, round, Metric::Goodput, 3e9));
        }
        let table = table.finish();
        let figures: Vec<f64> = table.rows[0].rounds.iter().map(|round| round.figure).collect();
        assert_eq!((figures, table.unit), (vec![4.0, 4.0], "GB/s"));
    }
}
