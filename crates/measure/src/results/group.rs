//! Trials put together by case and metric.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::read::Results;
use crate::record::{Case, Metric, Site, Values};

/// All that was measured of one case in one metric.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    pub case: &'a Case,
    pub metric: Metric,
    pub parts: Vec<Part<'a>>,
}

/// One rank's series of one trial.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Which of the runs that were put together.
    pub run: usize,
    pub round: u32,
    pub rank: usize,
    pub at_ns: u64,
    pub batch: u32,
    pub values: &'a Values,
}

/// The groups of some runs, ordered by pattern, site, metric, parameters, ranks, size and transport.
pub fn groups(results: &[Results]) -> Vec<Group<'_>> {
    let mut found: BTreeMap<Key<'_>, Vec<Part<'_>>> = BTreeMap::new();
    for (run, results) in results.iter().enumerate() {
        for measured in &results.measured {
            for series in &measured.series {
                let key = Key { case: &measured.case, metric: series.metric };
                let (round, rank, at_ns) = (measured.round, measured.rank, measured.at_ns);
                let part = Part { run, round, rank, at_ns, batch: series.batch, values: &series.values };
                found.entry(key).or_default().push(part);
            }
        }
    }
    found.into_iter().map(|(Key { case, metric }, parts)| Group { case, metric, parts }).collect()
}

/// Whether two cases differ in their transport alone.
pub fn same_but_transport(a: &Case, b: &Case) -> bool {
    (&a.pattern, a.site, a.size, a.ranks) == (&b.pattern, b.site, b.size, b.ranks) && same_parameters(a, b)
}

fn same_parameters(a: &Case, b: &Case) -> bool {
    compare_parameters(a, b).is_eq()
}

/// What a case is besides transport and pattern, such as `64 B, 4 ranks, w 16, in a box`; two ranks on one host are not worth a word.
pub fn describe(case: &Case) -> String {
    let mut words = vec![super::units::bytes(case.size)];
    if case.ranks != 2 {
        words.push(format!("{} ranks", case.ranks));
    }
    words.extend(parameter_words(&case.parameters));
    if case.site != Site::Here {
        words.push(case.site.words().to_owned());
    }
    words.join(", ")
}

/// What a pattern was told, such as `w 16`.
pub fn parameter_words(parameters: &BTreeMap<String, f64>) -> impl Iterator<Item = String> {
    parameters.iter().map(|(name, value)| format!("{name} {}", super::units::number(*value)))
}

/// Cases have numbers among their parameters, which have no order of their own: here they have.
struct Key<'a> {
    case: &'a Case,
    metric: Metric,
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.case, other.case);
        (a.pattern.cmp(&b.pattern))
            .then(a.site.cmp(&b.site))
            .then(self.metric.cmp(&other.metric))
            .then_with(|| compare_parameters(a, b))
            .then_with(|| (a.ranks, a.size, &a.transport).cmp(&(b.ranks, b.size, &b.transport)))
    }
}

fn compare_parameters(a: &Case, b: &Case) -> Ordering {
    let numbers = |case: &Case| case.parameters.values().copied().collect::<Vec<f64>>();
    a.parameters.keys().cmp(b.parameters.keys()).then_with(|| {
        let pairs = numbers(a).into_iter().zip(numbers(b));
        pairs.map(|(a, b)| a.total_cmp(&b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    })
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key<'_> {}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::record::{Measured, Series};

    /// A trial of rank 0 with raw samples, for tests.
    pub fn measured(transport: &str, size: u64, round: u32, metric: Metric, samples: Vec<f64>) -> Measured {
        let case = Case {
            transport: transport.into(),
            pattern: "pingpong".into(),
            size,
            ranks: 2,
            site: Site::Here,
            parameters: BTreeMap::new(),
        };
        let series = vec![Series::samples(metric, 1, samples)];
        Measured { case, rank: 0, round, at_ns: 0, cpu: None, series }
    }

    #[test]
    fn trials_of_one_case_are_one_group() {
        let mut runs = vec![Results::default()];
        for round in 0..3 {
            runs[0].measured.push(measured("tcp", 64, round, Metric::OneWay, vec![f64::from(round)]));
            runs[0].measured.push(measured("tcp", 8, round, Metric::OneWay, vec![1.0]));
        }
        let mut other = measured("tcp", 64, 0, Metric::OneWay, vec![9.0]);
        other.case.parameters.insert("w".into(), 2.0);
        runs[0].measured.push(other);
        let groups = groups(&runs);
        let found: Vec<_> = groups.iter().map(|group| (describe(group.case), group.parts.len())).collect();
        assert_eq!(found, [("8 B".into(), 3), ("64 B".into(), 3), ("64 B, w 2".to_owned(), 1)]);
        let medians = crate::results::summary::Side::of(&groups[1]).expect("values").medians;
        assert_eq!(medians.into_values().collect::<Vec<_>>(), [0.0, 1.0, 2.0]);
    }
}
