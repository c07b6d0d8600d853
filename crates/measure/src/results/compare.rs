//! Two sides against each other: every case and metric that both have, what only one has, and why the two might not be comparable.

use std::collections::BTreeSet;

use super::group::{Group, describe, groups, same_but_transport};
use super::read::Results;
use super::select::Selected;
use super::summary::{self, Side, Verdict};
use crate::record::{Case, Metric};
use crate::stats::{self, Summary};

/// What comparing two sides found.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub a: String,
    pub b: String,
    pub rows: Vec<Row>,
    /// Cases that only one side has, in words.
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
    /// Cases that A has and that failed on B's side.
    pub failed_b: Vec<String>,
    /// Why a difference may come from something else than what was to be compared.
    pub warnings: Vec<String>,
}

/// One case in one metric.
#[derive(Debug, Clone)]
pub struct Row {
    pub pattern: String,
    /// What is the same on both sides: size, ranks, parameters, and the transport when it is.
    pub case: String,
    pub metric: Metric,
    pub a: Summary,
    pub b: Summary,
    pub verdict: Verdict,
}

impl Row {
    /// How much worse B is, as a part (0.05: 5 %), when that is shown; else 0.
    pub fn shown_loss(&self) -> f64 {
        match &self.verdict.comparison {
            Some(found) if found.verdict == stats::Verdict::Worse => 1.0 / found.times_better.value - 1.0,
            _ => 0.0,
        }
    }
}

/// Compares two sides.
pub fn compare(a: &Selected, b: &Selected) -> Comparison {
    let (of_a, of_b) = (own(groups(&a.results), a), own(groups(&b.results), b));
    let paired = same_runs(&a.results, &b.results);
    let mut comparison = Comparison {
        a: a.name.clone(),
        b: b.name.clone(),
        rows: Vec::new(),
        only_a: Vec::new(),
        only_b: Vec::new(),
        failed_b: Vec::new(),
        warnings: if paired { doubts_about(&a.results, &a.name) } else { differences(a, b) },
    };
    let across = a.transport.is_some();
    for group in &of_a {
        let name = name(group, across);
        if let Some(other) = of_b.iter().find(|other| same(group, other, across)) {
            comparison.rows.extend(row(group, other, across, paired));
        } else if failed(&b.results, b, group.case, across) {
            comparison.failed_b.push(name);
        } else {
            comparison.only_a.push(name);
        }
    }
    let alone = of_b.iter().filter(|group| !of_a.iter().any(|other| same(group, other, across)));
    comparison.only_b = alone.map(|group| name(group, across)).collect();
    comparison
}

fn own<'a>(groups: Vec<Group<'a>>, side: &Selected) -> Vec<Group<'a>> {
    let wanted = |group: &Group<'_>| side.transport.as_ref().is_none_or(|transport| *transport == group.case.transport);
    groups.into_iter().filter(wanted).collect()
}

fn same(a: &Group<'_>, b: &Group<'_>, across: bool) -> bool {
    a.metric == b.metric && same_but_transport(a.case, b.case) && (across || a.case.transport == b.case.transport)
}

fn failed(results: &[Results], side: &Selected, case: &Case, across: bool) -> bool {
    let transport = if across { side.transport.as_deref() } else { Some(case.transport.as_str()) };
    let mut failures = results.iter().flat_map(|results| &results.failed);
    failures.any(|failed| same_but_transport(&failed.case, case) && Some(failed.case.transport.as_str()) == transport)
}

fn name(group: &Group<'_>, across: bool) -> String {
    let transport = if across { String::new() } else { format!("{}, ", group.case.transport) };
    format!("{}: {transport}{} ({})", group.case.pattern, describe(group.case), super::units::metric_name(group.metric))
}

fn row(a: &Group<'_>, b: &Group<'_>, across: bool, paired: bool) -> Option<Row> {
    let (of_a, of_b) = (Side::of(a)?, Side::of(b)?);
    let verdict = summary::compare(&of_a, &of_b, a.metric, paired);
    let transport = if across { String::new() } else { format!("{}, ", a.case.transport) };
    Some(Row {
        pattern: a.case.pattern.clone(),
        case: transport + &describe(a.case),
        metric: a.metric,
        a: of_a.summary,
        b: of_b.summary,
        verdict,
    })
}

/// Whether both sides are the same runs, so that rounds with equal numbers ran next to each other.
fn same_runs(a: &[Results], b: &[Results]) -> bool {
    let id = |results: &Results| results.run.as_ref().map(|run| (run.started_unix_s, run.seed, run.command.clone()));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.run.is_some() && id(a) == id(b))
}

/// Something that a run says about where its figures come from.
type Fact = fn(&Results) -> Vec<String>;

/// What differs between the machines and programs of the two sides.
fn differences(a: &Selected, b: &Selected) -> Vec<String> {
    let mut found = Vec::new();
    let facts: [(&str, Fact); 7] = [
        ("the machines differ", |r| hosts(r, |host| format!("{} ({})", host.name, host.cpu_model))),
        ("the kernels differ", |r| hosts(r, |host| host.kernel.clone())),
        ("the clock sources differ", |r| hosts(r, |host| host.clock_source.clone())),
        ("the offloads differ", |r| hosts(r, |host| format!("{:?}", host.offloads))),
        ("the versions differ", |r| r.run.iter().map(|run| run.ropeway_version.clone()).collect()),
        ("the commits differ", |r| {
            r.run.iter().map(|run| run.commit.clone().unwrap_or_else(|| "not known".into())).collect()
        }),
        ("the pins differ", pins),
    ];
    for (what, fact) in facts {
        let of = |side: &Selected| side.results.iter().flat_map(fact).collect::<BTreeSet<String>>();
        let (of_a, of_b) = (of(a), of(b));
        if of_a != of_b {
            let list = |set: BTreeSet<String>| match set.len() {
                0 => "nothing".to_owned(),
                _ => set.into_iter().collect::<Vec<_>>().join("; "),
            };
            found.push(format!("{what}: {} against {}", list(of_a), list(of_b)));
        }
    }
    for side in [a, b] {
        found.extend(doubts_about(&side.results, &side.name));
    }
    found
}

fn hosts(results: &Results, fact: fn(&crate::record::Host) -> String) -> Vec<String> {
    results.run.iter().flat_map(|run| &run.hosts).map(fact).collect()
}

fn pins(results: &Results) -> Vec<String> {
    let pin = |cpu: Option<usize>| cpu.map_or_else(|| "none".into(), |cpu| format!("CPU {cpu}"));
    results.measured.iter().map(|measured| format!("rank {} on {}", measured.rank, pin(measured.cpu))).collect()
}

/// What the run or its reading warned of.
fn doubts_about(results: &[Results], name: &str) -> Vec<String> {
    let all = results.iter().flat_map(|results| results.notes.iter().chain(&results.warnings));
    all.map(|text| format!("{name}: {text}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::measured;
    use super::*;
    use crate::record::{Failed, Host, Run};

    fn run(kernel: &str, seed: u64) -> Run {
        let host = Host {
            name: "a".into(),
            kernel: kernel.into(),
            architecture: "x86_64".into(),
            cpu_model: "model".into(),
            cpus: vec![0, 1],
            memory_mib: None,
            hypervisor: true,
            clock_source: "tsc".into(),
            clock_cost_ns: 25.0,
            load_1min: None,
            offloads: Default::default(),
        };
        Run {
            format: 1,
            command: vec!["ropeway".into()],
            seed,
            started_unix_s: 1,
            ropeway_version: "0".into(),
            commit: None,
            hosts: vec![host],
            clock_offsets_ns: Vec::new(),
        }
    }

    fn selected(run: Run, transport: Option<&str>, figures: &[(&str, u64, f64)]) -> Selected {
        let rounds = (0..6).flat_map(|round| {
            figures.iter().map(move |(name, size, value)| {
                let value = value * (1.0 + f64::from(round) / 1000.0);
                measured(name, *size, round, Metric::OneWay, vec![value; 9])
            })
        });
        let results = Results { run: Some(run), measured: rounds.collect(), ..Results::default() };
        Selected { name: "side".into(), results: vec![results], transport: transport.map(Into::into) }
    }

    #[test]
    fn transports_of_one_run_are_compared_round_by_round() {
        let figures = [("tcp", 64, 200.0), ("ropeway", 64, 100.0), ("tcp", 8, 50.0)];
        let (a, b) = (selected(run("6", 1), Some("tcp"), &figures), selected(run("6", 1), Some("ropeway"), &figures));
        let comparison = compare(&a, &b);
        assert_eq!(comparison.rows.len(), 1);
        let found = comparison.rows[0].verdict.comparison.as_ref().expect("rounds");
        assert_eq!((found.rounds, found.verdict), (6, stats::Verdict::Better));
        assert_eq!(comparison.only_a, ["pingpong: 8 B (one-way time)"]);
        assert_eq!(comparison.warnings, [""; 0]);
    }

    #[test]
    fn machines_that_differ_are_warned_of() {
        let figures = [("tcp", 64, 200.0)];
        let comparison = compare(&selected(run("5", 1), None, &figures), &selected(run("6", 2), None, &figures));
        assert_eq!(comparison.warnings, ["the kernels differ: 5 against 6"]);
        assert_eq!(comparison.rows[0].shown_loss(), 0.0);
    }

    #[test]
    fn a_case_that_fails_now_is_not_just_missing() {
        let a = selected(run("6", 1), None, &[("tcp", 64, 200.0), ("tcp", 8, 200.0)]);
        let mut b = selected(run("6", 2), None, &[("tcp", 64, 300.0)]);
        let case = Case { size: 8, ..a.results[0].measured[0].case.clone() };
        b.results[0].failed.push(Failed { case, round: 0, reason: "died".into() });
        let comparison = compare(&a, &b);
        assert_eq!(comparison.failed_b, ["pingpong: tcp, 8 B (one-way time)"]);
        assert!((comparison.rows[0].shown_loss() - 0.5).abs() < 0.01);
    }
}
