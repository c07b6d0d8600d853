//! One line of the table: what was measured, what was asked for, and whether it was reached.

use super::bed::{Carried, Rounds};
use serde::{Deserialize, Serialize};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Requests per second, bits per second.
    More,
    /// Latency, memory.
    Less,
}

/// What is asked of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// So many times better than TCP in the same round.
    Times { at_least: f64, aim: f64 },
    /// So many times the limit of the machine, which stands in the place of TCP; less is better.
    OfLimit { at_most: f64, aim: f64 },
    /// A figure of this size, whatever TCP does.
    Above { at_least: f64, aim: f64 },
    /// A figure of this size or less, whatever TCP does.
    Below { at_most: f64, aim: f64 },
    /// The peer's figure, as near as this part of it.
    Same { within: f64 },
}

/// What must have happened under Ropeway for the figure to mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Needs {
    /// Shared memory carried the bytes; else the row falls short whatever its figure.
    Shm,
    /// So many moves to shared memory were made: for connections that are used too little for their bytes to tell.
    Moves(u64),
    /// The preload was there: the case is about connections that stay on TCP, or may.
    Preload,
}

/// The part of the bytes from which on a row counts as carried by shared memory: what is sent before a connection moves goes over TCP.
const NEARLY_ALL: f64 = 0.9;

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub what: String,
    pub unit: String,
    pub better: Better,
    pub goal: Goal,
    /// Figures of the peer (TCP, or the limit of the machine), one per round.
    pub tcp: Vec<f64>,
    /// Figures of Ropeway, one per round.
    pub ropeway: Vec<f64>,
    /// What carried the bytes under Ropeway, in words.
    pub carried: String,
    /// Whether that is what the row needs.
    pub carried_as_needed: bool,
    /// Bytes that the measured processes under Ropeway sent and received over TCP.
    pub tcp_bytes: u64,
    /// The same over shared memory.
    pub shm_bytes: u64,
}

/// What became of the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Aim,
    Pass,
    Short,
}

impl Row {
    pub fn new(
        what: &str,
        (unit, better): (&str, Better),
        goal: Goal,
        rounds: Rounds,
        (needs, carried): (Needs, &Carried),
    ) -> Self {
        Self {
            what: what.to_owned(),
            unit: unit.to_owned(),
            better,
            goal,
            tcp: rounds.tcp,
            ropeway: rounds.ropeway,
            carried: carried.to_string(),
            carried_as_needed: match needs {
                Needs::Shm => carried.shm_part() >= NEARLY_ALL,
                Needs::Moves(least) => carried.promoted >= least,
                Needs::Preload => carried.processes > 0,
            },
            tcp_bytes: carried.tcp_bytes,
            shm_bytes: carried.shm_bytes,
        }
    }

    /// A row between hosts: nothing is preloaded, and the programs name their carrier themselves.
    pub fn between_hosts(what: &str, unit: (&str, Better), goal: Goal, rounds: Rounds) -> Self {
        Self::of_carrier("wire", what, unit, goal, rounds)
    }

    /// A row of which both figures are of kernel TCP.
    pub fn of_tcp(what: &str, unit: (&str, Better), goal: Goal, rounds: Rounds) -> Self {
        Self::of_carrier("TCP", what, unit, goal, rounds)
    }

    fn of_carrier(carrier: &str, what: &str, (unit, better): (&str, Better), goal: Goal, rounds: Rounds) -> Self {
        Self {
            carried: carrier.to_owned(),
            carried_as_needed: true,
            ..Self::new(what, (unit, better), goal, rounds, (Needs::Preload, &Carried::default()))
        }
    }

    /// How many times better than the peer: the median of the ratios within each round.
    pub fn times(&self) -> Option<f64> {
        let ratios = self.tcp.iter().zip(&self.ropeway).map(|(tcp, ropeway)| match self.better {
            Better::More => ropeway / tcp,
            Better::Less => tcp / ropeway,
        });
        median(&ratios.filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
    }

    pub fn verdict(&self) -> Verdict {
        let reached = |figure: Option<f64>, least: f64, aim: f64| match figure {
            Some(figure) if figure >= aim => Verdict::Aim,
            Some(figure) if figure >= least => Verdict::Pass,
            _ => Verdict::Short,
        };
        let negative = |figure: Option<f64>| figure.map(|figure| -figure);
        let verdict = match self.goal {
            Goal::Times { at_least, aim } => reached(self.times(), at_least, aim),
            Goal::Above { at_least, aim } => reached(median(&self.ropeway), at_least, aim),
            Goal::Below { at_most, aim } => reached(negative(median(&self.ropeway)), -at_most, -aim),
            Goal::OfLimit { at_most, aim } => reached(negative(self.times().map(|times| 1.0 / times)), -at_most, -aim),
            Goal::Same { within } => {
                reached(negative(self.times().map(|times| times.ln().abs())), -within.ln_1p(), 0.0)
            }
        };
        if self.carried_as_needed { verdict } else { Verdict::Short }
    }

    /// The cells of the table, in the order of [`HEADINGS`].
    pub fn cells(&self) -> [String; 8] {
        let shown = |values: &[f64]| match median(values) {
            Some(value) => format!("{} {}", number(value), self.unit),
            None => "-".to_owned(),
        };
        let (least, aim) = match self.goal {
            // One over 0.45 would not fit.
            Goal::Times { at_least, aim } => (format!("{} x", (at_least * 100.0).round() / 100.0), format!("{aim} x")),
            Goal::OfLimit { at_most, aim } => (format!("<= {at_most} x"), format!("{aim} x")),
            Goal::Above { at_least, aim } => (format!("{at_least} {}", self.unit), format!("{aim} {}", self.unit)),
            Goal::Below { at_most, aim } => (format!("<= {at_most} {}", self.unit), format!("{aim} {}", self.unit)),
            Goal::Same { within } => (format!("+- {} %", within * 100.0), "1 x".to_owned()),
        };
        let times = match (self.goal, self.times()) {
            (_, None) => "-".to_owned(),
            (Goal::OfLimit { .. }, Some(times)) => format!("{:.2} x", 1.0 / times),
            (_, Some(times)) => format!("{times:.2} x"),
        };
        let verdict = match self.verdict() {
            Verdict::Aim => "aim",
            Verdict::Pass => "pass",
            Verdict::Short => "SHORT",
        };
        let verdict = verdict.to_owned();
        [self.what.clone(), shown(&self.tcp), shown(&self.ropeway), times, least, aim, verdict, self.carried.clone()]
    }
}

pub const HEADINGS: [&str; 8] = ["case", "TCP", "Ropeway", "ratio", "at least", "aim", "verdict", "carried by"];

/// Three to four digits, whatever the size.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000_000.0 => format!("{:.2} M", value / 1e6),
        size if size >= 10_000.0 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle value; the mean of the two middle ones if their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let lower = sorted.get(middle.checked_sub(1 - sorted.len() % 2)?)?;
    Some((lower + sorted[middle]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better: Better, goal: Goal, tcp: &[f64], ropeway: &[f64], shm_bytes: u64) -> Row {
        let rounds = Rounds { tcp: tcp.to_vec(), ropeway: ropeway.to_vec() };
        let carried = Carried { processes: 1, tcp_bytes: 1, shm_bytes, ..Carried::default() };
        Row::new("x", ("req/s", better), goal, rounds, (Needs::Shm, &carried))
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[5.0]), Some(5.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[3.0, 1.0, 9.0]), Some(3.0));
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_point_the_right_way() {
        let goal = Goal::Times { at_least: 2.0, aim: 4.0 };
        assert_eq!(row(Better::More, goal, &[1.0, 10.0, 1.0], &[3.0, 30.0, 3.0], 99).verdict(), Verdict::Pass);
        assert_eq!(row(Better::Less, goal, &[8.0], &[2.0], 99).verdict(), Verdict::Aim);
        assert_eq!(row(Better::Less, goal, &[2.0], &[8.0], 99).verdict(), Verdict::Short);
        assert_eq!(row(Better::More, goal, &[], &[], 99).verdict(), Verdict::Short);
    }

    #[test]
    fn a_good_ratio_on_the_wrong_carrier_falls_short() {
        let goal = Goal::Times { at_least: 2.0, aim: 4.0 };
        let row = row(Better::More, goal, &[1.0], &[9.0], 0);
        assert_eq!(row.verdict(), Verdict::Short);
        assert_eq!(row.cells()[7], "TCP");
    }

    #[test]
    fn a_program_without_the_preload_proves_nothing() {
        let rounds = || Rounds { tcp: vec![1.0], ropeway: vec![1.0] };
        let goal = Goal::Times { at_least: 0.95, aim: 1.0 };
        let row = |carried: &Carried| Row::new("x", ("req/s", Better::More), goal, rounds(), (Needs::Preload, carried));
        assert_eq!(row(&Carried::default()).verdict(), Verdict::Short);
        assert_eq!(row(&Carried { processes: 1, ..Carried::default() }).verdict(), Verdict::Aim);
    }

    #[test]
    fn what_is_to_be_the_same_may_differ_either_way() {
        let verdict = |ours: f64| row(Better::More, Goal::Same { within: 0.1 }, &[100.0], &[ours], 99).verdict();
        assert_eq!([95.0, 105.0, 100.0].map(verdict), [Verdict::Pass, Verdict::Pass, Verdict::Aim]);
        assert_eq!([85.0, 115.0].map(verdict), [Verdict::Short; 2]);
    }

    #[test]
    fn limits_from_above_and_below() {
        let of_limit = Goal::OfLimit { at_most: 2.8, aim: 1.7 };
        assert_eq!(row(Better::Less, of_limit, &[0.1], &[0.2], 99).verdict(), Verdict::Pass);
        assert_eq!(row(Better::Less, of_limit, &[0.1], &[0.3], 99).verdict(), Verdict::Short);
        let below = Goal::Below { at_most: 160.0, aim: 64.0 };
        assert_eq!(row(Better::Less, below, &[0.0], &[64.0], 99).verdict(), Verdict::Aim);
        assert_eq!(row(Better::Less, below, &[0.0], &[161.0], 99).verdict(), Verdict::Short);
        let above = Goal::Above { at_least: 10.0, aim: 20.0 };
        assert_eq!(row(Better::More, above, &[1.0], &[10.0], 99).verdict(), Verdict::Pass);
    }
}
