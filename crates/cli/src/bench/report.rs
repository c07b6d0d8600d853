//! From rounds to rows, the table and the JSON object.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};

use serde::Serialize;

use super::carried::Carried;
use super::machine::{self, Machine};
use super::pair::{Failure, Round};
use super::plan::{Pattern, Plan, Transport};
use super::samples::{Raw, median};

/// Everything that a run of `ropeway bench` found: the JSON object, and by its `Display` the table.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    schema: u32,
    pattern: Pattern,
    unit: &'static str,
    size_bytes: usize,
    seconds_per_round: f64,
    rounds: u32,
    /// Round trips per latency sample.
    batch: u32,
    /// What reading the clock costs; one reading per batch.
    clock_ns: f64,
    /// CPUs of the connecting and of the listening process.
    cpus: Option<(usize, usize)>,
    machine: Machine,
    load_1min_after: Option<f64>,
    notes: Vec<String>,
    rows: Vec<Row>,
}

/// One transport.
#[derive(Debug, Serialize)]
struct Row {
    transport: Transport,
    /// Median, least and greatest of the rounds' figures, in the report's unit.
    figure: Option<Spread>,
    /// Median over the rounds of the 99th percentile; latency only.
    p99: Option<f64>,
    /// How many times better than the named peer (above 1: this row is better): the median of the ratios within each round, because a virtual
    /// machine may be moved to other cores between two rounds, which changes every row alike.
    times_better_than: BTreeMap<&'static str, f64>,
    carried: Option<Carried>,
    /// Reasons of rounds without a figure.
    failures: Vec<String>,
    rounds: Vec<RoundRecord>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct RoundRecord {
    /// Rounds with the same number were measured one after the other.
    round: u32,
    figure: f64,
    p99: Option<f64>,
    raw: Raw,
    carried: Option<Carried>,
}

/// Rounds as they come in.
pub struct Comparison {
    report: Report,
}

impl Comparison {
    pub fn new(plan: &Plan, rounds: u32, clock_ns: f64, transports: &[Transport]) -> Comparison {
        let mut notes = Vec::new();
        if plan.cpus.is_none() {
            notes.push(
                "this process may use only one CPU: both ends share it, nothing is pinned and there is no cache-line floor".to_owned(),
            );
        }
        let row = |&transport: &Transport| Row {
            transport,
            figure: None,
            p99: None,
            times_better_than: BTreeMap::new(),
            carried: None,
            failures: Vec::new(),
            rounds: Vec::new(),
        };
        Comparison {
            report: Report {
                schema: 1,
                pattern: plan.pattern,
                unit: plan.pattern.unit(),
                size_bytes: plan.size,
                seconds_per_round: plan.seconds.as_secs_f64(),
                rounds,
                batch: plan.batch,
                clock_ns,
                cpus: plan.cpus,
                machine: Machine::describe(),
                load_1min_after: None,
                notes,
                rows: transports.iter().map(row).collect(),
            },
        }
    }

    /// Adds what the row with index `row` gave in this round.
    pub fn add(&mut self, round: u32, row: usize, measured: Result<Round, Failure>) {
        let pattern = self.report.pattern;
        let row = &mut self.report.rows[row];
        let Round { raw, carried } = match measured {
            Ok(measured) => measured,
            Err(failure) => return row.failures.push(failure.to_string()),
        };
        let figure = match pattern {
            Pattern::Pingpong => raw.one_way_us(0.5),
            Pattern::Stream => raw.gigabytes_per_s(),
            Pattern::Rate => raw.million_messages_per_s(),
        };
        match figure {
            Some(figure) => row.rounds.push(RoundRecord { round, figure, p99: raw.one_way_us(0.99), raw, carried }),
            None => row.failures.push("the round was too short: not one sample was taken".to_owned()),
        }
    }

    pub fn finish(mut self) -> Report {
        let report = &mut self.report;
        for row in &mut report.rows {
            let figures: Vec<f64> = row.rounds.iter().map(|r| r.figure).collect();
            row.figure = median(&figures).map(|median| Spread {
                median,
                min: figures.iter().copied().fold(f64::INFINITY, f64::min),
                max: figures.iter().copied().fold(0.0, f64::max),
            });
            row.p99 = median(&row.rounds.iter().filter_map(|r| r.p99).collect::<Vec<_>>());
            for carried in row.rounds.iter().filter_map(|r| r.carried.as_ref()) {
                row.carried.get_or_insert_default().add(carried);
            }
        }
        report.compare_rows();
        report.load_1min_after = machine::load_1min();
        self.report
    }
}

impl Report {
    /// Whether every row has a figure.
    pub fn complete(&self) -> bool {
        self.rows.iter().all(|row| row.figure.is_some())
    }

    fn compare_rows(&mut self) {
        let figures: Vec<(&'static str, BTreeMap<u32, f64>)> = self
            .rows
            .iter()
            .map(|row| (row.transport.name(), row.rounds.iter().map(|r| (r.round, r.figure)).collect()))
            .collect();
        for row in &mut self.rows {
            for (peer, theirs) in figures.iter().filter(|(peer, _)| *peer != row.transport.name()) {
                let ratios: Vec<f64> = row
                    .rounds
                    .iter()
                    .filter_map(|own| {
                        let theirs = theirs.get(&own.round)?;
                        Some(if self.pattern.lower_is_better() { theirs / own.figure } else { own.figure / theirs })
                    })
                    .collect();
                if let Some(times) = median(&ratios) {
                    row.times_better_than.insert(peer, times);
                }
            }
        }
    }

    /// The peers that get a column of ratios: present, measured, and not Ropeway itself.
    fn peers(&self) -> Vec<Transport> {
        let own = [Transport::Ropeway, Transport::RopewaySpinning];
        let measured = self.rows.iter().filter(|row| row.figure.is_some() && !own.contains(&row.transport));
        measured.map(|row| row.transport).collect()
    }

    /// Heading and value of a column: against the cache line how much *longer* a row takes, else how many times *better* it is.
    fn column(&self, peer: Transport, times_better: f64) -> (String, f64) {
        match peer {
            Transport::CacheLine => (format!("/ {}", peer.name()), 1.0 / times_better),
            _ => (format!("x {}", peer.name()), times_better),
        }
    }
}

/// The table: one row per transport, then what the words mean.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {}-byte messages, {} rounds of {} s each in turn, {}",
            self.pattern.name(),
            self.size_bytes,
            self.rounds,
            self.seconds_per_round,
            match self.cpus {
                Some((a, b)) => format!("one end on CPU {a}, the other on CPU {b}"),
                None => "not pinned".to_owned(),
            }
        )?;
        let machine = &self.machine;
        writeln!(f, "{}, {} CPUs, {}", machine.cpu_model, machine.cpus.len(), machine.kernel)?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let what = match self.pattern {
            Pattern::Pingpong => "one way, us",
            Pattern::Stream => "GB/s",
            Pattern::Rate => "M messages/s",
        };
        write!(f, "\n{:<17}{what:>14}{:>22}", "", "min .. max")?;
        if self.pattern.lower_is_better() {
            write!(f, "{:>10}", "p99")?;
        }
        for peer in self.peers() {
            write!(f, "{:>16}", self.column(peer, 1.0).0)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            self.write_row(f, row)?;
        }
        writeln!(f, "\nFigures are medians over the rounds, ratios are medians of the ratios within each round.")?;
        writeln!(f, "x PEER: how many times better than PEER; / cache-line: how many times the limit of the machine.")
    }
}

impl Report {
    fn write_row(&self, f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
        write!(f, "{:<17}", row.transport.name())?;
        match row.figure {
            Some(figure) => {
                write!(f, "{:>14.3}{:>22}", figure.median, format!("{:.3} .. {:.3}", figure.min, figure.max))?;
                if self.pattern.lower_is_better() {
                    write!(f, "{:>10}", row.p99.map_or_else(String::new, |p99| format!("{p99:.3}")))?;
                }
                for peer in self.peers() {
                    let times = row.times_better_than.get(peer.name()).map(|&times| self.column(peer, times).1);
                    write!(f, "{:>16}", times.map_or_else(String::new, |times| format!("{times:.2}")))?;
                }
            }
            None => write!(f, "  not measured")?,
        }
        if let Some(carried) = &row.carried {
            write!(f, "  {carried}")?;
        }
        if let Some(failure) = row.failures.last() {
            let rounds = row.failures.len();
            write!(f, "  ({rounds} of {} rounds failed: {failure})", self.rounds)?;
        }
        writeln!(f)
    }
}

/// Says on a terminal which measurement is running.
pub fn progress(round: u32, rounds: u32, transport: Transport) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[Kround {} of {rounds}: {}", round + 1, transport.name());
        let _ = out.flush();
    }
}

pub fn progress_done() {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(pattern: Pattern, rounds: [&[Raw]; 2]) -> Report {
        let plan = Plan { pattern, size: 8, seconds: Duration::from_millis(1), batch: 1, cpus: None };
        let mut comparison = Comparison::new(&plan, 3, 20.0, &[Transport::TcpBlocking, Transport::Ropeway]);
        for (row, raws) in rounds.iter().enumerate() {
            for (round, raw) in raws.iter().enumerate() {
                comparison.add(round as u32, row, Ok(Round { raw: raw.clone(), carried: None }));
            }
        }
        comparison.finish()
    }

    #[test]
    fn ratios_say_better_for_latency_and_for_throughput() {
        let trips = |ns| Raw::from_batches(1, vec![ns]);
        let latency = report(
            Pattern::Pingpong,
            [&[trips(20_000), trips(20_000), trips(20_000)], &[trips(1_000), trips(500), trips(2_000)]],
        );
        assert_eq!(latency.rows[1].times_better_than["tcp-blocking"], 20.0);
        let slices = |bytes| Raw::Slices { message_bytes: 8, slices: vec![(bytes, 100)] };
        let stream = report(Pattern::Stream, [&[slices(100)], &[slices(400)]]);
        assert_eq!(stream.rows[1].times_better_than["tcp-blocking"], 4.0);
        assert_eq!(stream.rows[0].times_better_than["ropeway"], 0.25);
    }

    #[test]
    fn ratios_are_made_within_a_round() {
        let trips = |ns| Raw::from_batches(1, vec![ns]);
        let moved =
            report(Pattern::Pingpong, [&[trips(10), trips(1_000), trips(1_000)], &[trips(5), trips(500), trips(500)]]);
        assert_eq!(moved.rows[1].times_better_than["tcp-blocking"], 2.0);
    }

    #[test]
    fn a_row_without_rounds_is_not_complete_and_says_why() {
        let plan = Plan { pattern: Pattern::Rate, size: 8, seconds: Duration::from_millis(1), batch: 1, cpus: None };
        let mut comparison = Comparison::new(&plan, 1, 20.0, &[Transport::Ropeway]);
        comparison.add(0, 0, Err(Failure::OneCore));
        let report = comparison.finish();
        assert!(!report.complete());
        assert!(report.to_string().contains("not measured"));
        assert!(report.to_string().contains("needs two cores"));
    }
}
