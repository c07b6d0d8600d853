//! Tables for other programs: comma-separated, with a heading, numbers in the metric's unit without prefixes. `docs/measuring.md` describes the columns.

use std::io::{self, Write};

use super::group::{Group, Part};
use super::read::Results;
use super::summary::Side;
use crate::record::{Case, Values};

/// Writes one line for each sample, or for each pair of a value and its count.
pub fn samples(out: &mut impl Write, results: &[Results], groups: &[Group<'_>]) -> io::Result<()> {
    writeln!(
        out,
        "source,pattern,transport,size_bytes,ranks,site,parameters,metric,unit,rank,round,at_ns,batch,index,value,count"
    )?;
    for group in groups {
        let (case, metric) = (case_fields(group.case), metric_fields(group));
        for part in &group.parts {
            let source = results.get(part.run).map_or("", |results| &results.source);
            let start = format!("{},{case},{metric},{}", field(source), part_fields(part));
            match part.values {
                Values::Samples(samples) => {
                    for (index, value) in samples.iter().enumerate() {
                        writeln!(out, "{start},{index},{value},1")?;
                    }
                }
                Values::Counts(counts) => {
                    for (index, (value, count)) in counts.iter().enumerate() {
                        writeln!(out, "{start},{index},{value},{count}")?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Writes one line for each case and metric. `low` and `high` bound the median's 95 % interval; they are empty where it has none.
pub fn summaries(out: &mut impl Write, groups: &[Group<'_>]) -> io::Result<()> {
    writeln!(
        out,
        "pattern,transport,size_bytes,ranks,site,parameters,metric,unit,samples,rounds,median,low,high,p99,min,max,outliers"
    )?;
    for group in groups {
        let Some(Side { summary: s, .. }) = Side::of(group) else { continue };
        let (case, metric) = (case_fields(group.case), metric_fields(group));
        let (low, high) = s.median.interval.map(|interval| (interval.low, interval.high)).unzip();
        let figures = [Some(s.median.value), low, high, Some(s.p99.value), Some(s.min), Some(s.max)];
        let figures = figures.map(|value| value.map_or_else(String::new, |value| value.to_string())).join(",");
        writeln!(out, "{case},{metric},{},{},{figures},{}", s.count, s.rounds, s.outliers.count())?;
    }
    Ok(())
}

fn case_fields(case: &Case) -> String {
    let parameters: Vec<String> = case.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (pattern, transport) = (field(&case.pattern), field(&case.transport));
    format!("{pattern},{transport},{},{},{},{}", case.size, case.ranks, case.site.key(), field(&parameters.join(";")))
}

fn metric_fields(group: &Group<'_>) -> String {
    format!("{},{}", super::units::metric_key(group.metric), group.metric.unit())
}

fn part_fields(part: &Part<'_>) -> String {
    format!("{},{},{},{}", part.rank, part.round, part.at_ns, part.batch)
}

/// A text as one field: quoted where it must be, and with a mark before what a spreadsheet would take for a formula.
fn field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::group::{groups, tests::measured};
    use super::*;
    use crate::record::Metric;

    #[test]
    fn names_cannot_break_out_of_their_field() {
        assert_eq!(field("a,\"b\"\nc"), "\"a,\"\"b\"\"\nc\"");
        assert_eq!(field("=1+1"), "'=1+1");
        assert_eq!(field("tcp"), "tcp");
    }

    #[test]
    fn tables_have_as_many_fields_as_their_heading() {
        let runs = [Results {
            source: "a.jsonl".into(),
            measured: vec![measured("tcp", 64, 0, Metric::OneWay, vec![1.5, 2.5])],
            ..Results::default()
        }];
        let groups = groups(&runs);
        let (mut all, mut short) = (Vec::new(), Vec::new());
        samples(&mut all, &runs, &groups).expect("memory");
        summaries(&mut short, &groups).expect("memory");
        for (table, lines) in [(all, 3), (short, 2)] {
            let text = String::from_utf8(table).expect("text");
            let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
            assert_eq!(fields.len(), lines, "{text}");
            assert!(fields.iter().all(|count| *count == fields[0]), "{text}");
        }
    }
}
