//! The result file: JSON Lines, one [`Line`] each, written as they come, so that what was measured before a failure stays.
//!
//! The first line is a [`Line::Run`], the last a [`Line::End`]; a file without the last is one of a run that died, and is read as far as it goes.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::model::{LogGp, PLogP, loggp, plogp};
use crate::results::group::parameter_words;

/// Goes up when a reader of the old form would misread the new one.
pub const FORMAT: u32 = 1;

/// One line of a result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
pub enum Line {
    /// Whose figures these are.
    Run(Run),
    /// What one rank measured in one trial.
    Measured(Measured),
    /// A trial that gave nothing, and why.
    Failed(Failed),
    /// Something that whoever believes the figures should know: a drift, a busy machine, an odd clock.
    Warning { text: String },
    /// Everything that was asked for has been tried.
    End { trials: u64, failed: u64, seconds: f64 },
    /// What carried the bytes of a preloaded transport, over all its trials: said when its programs have ended.
    Carried { transport: String, carried: serde_json::Value },
    /// Parameters of a model, fitted to the trials of one transport.
    Fit(Fit),
}

/// What is needed to judge the figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub format: u32,
    pub command: Vec<String>,
    pub seed: u64,
    pub started_unix_s: u64,
    pub ropeway_version: String,
    pub commit: Option<String>,
    /// The machine of each rank, in the order of ranks; one entry where all are on one host.
    pub hosts: Vec<Host>,
    /// Offsets of the ranks' clocks against rank 0, where one-way times are taken: (lowest possible, highest possible) in nanoseconds. Empty on one host.
    #[serde(default)]
    pub clock_offsets_ns: Vec<(f64, f64)>,
}

/// A machine that took part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub kernel: String,
    pub architecture: String,
    pub cpu_model: String,
    /// Processors that the rank may use.
    pub cpus: Vec<usize>,
    pub memory_mib: Option<u64>,
    pub hypervisor: bool,
    pub clock_source: String,
    /// What reading the clock costs.
    pub clock_cost_ns: f64,
    /// Load of the last minute before the run: other work makes figures worse.
    pub load_1min: Option<f64>,
    /// Network devices that take part, with what they do in place of the processor (such as `tso on`).
    #[serde(default)]
    pub offloads: BTreeMap<String, Vec<String>>,
}

/// What is measured and how; equal cases are compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// As the user names it: `tcp`, `ropeway-udp`.
    pub transport: String,
    /// As the user names it: `pingpong`.
    pub pattern: String,
    /// Bytes of a message.
    pub size: u64,
    pub ranks: usize,
    #[serde(default, skip_serializing_if = "Site::is_here")]
    pub site: Site,
    /// What else the pattern was told, such as `outstanding` or `w`.
    #[serde(default)]
    pub parameters: BTreeMap<String, f64>,
}

/// Between what ranks a case was measured: the same transport is something else on one host and between two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Site {
    /// Processes of one host, or threads.
    #[default]
    Here,
    /// Hosts of a box: network namespaces of one machine.
    Box,
    /// Hosts.
    Hosts,
}

impl Site {
    fn is_here(&self) -> bool {
        *self == Site::Here
    }

    /// For programs, and on command lines.
    pub fn key(self) -> &'static str {
        match self {
            Site::Here => "here",
            Site::Box => "box",
            Site::Hosts => "hosts",
        }
    }

    /// For people, behind a name; nothing of one host.
    pub fn words(self) -> &'static str {
        match self {
            Site::Here => "",
            Site::Box => "in a box",
            Site::Hosts => "between hosts",
        }
    }
}

/// What one rank measured in one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    #[serde(flatten)]
    pub case: Case,
    pub rank: usize,
    /// Trials of a case are numbered; those with the same number ran next to each other, and only they make ratios.
    pub round: u32,
    /// Nanoseconds from the start of the run to the start of the trial.
    pub at_ns: u64,
    /// CPU that the rank was bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    pub series: Vec<Series>,
}

/// A trial that gave nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    #[serde(flatten)]
    pub case: Case,
    pub round: u32,
    pub reason: String,
}

/// What a model says about a transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub transport: String,
    pub ranks: usize,
    #[serde(default, skip_serializing_if = "Site::is_here")]
    pub site: Site,
    /// What else the pattern was told.
    #[serde(default)]
    pub parameters: BTreeMap<String, f64>,
    pub model: Fitted,
}

impl Fit {
    /// The transport and what else the pattern was told: `tcp, messages 16`.
    pub fn subject(&self) -> String {
        subject(&self.transport, &self.parameters)
    }
}

/// As [`Fit::subject`].
pub fn subject(transport: &str, parameters: &BTreeMap<String, f64>) -> String {
    let words: Vec<String> = [transport.to_owned()].into_iter().chain(parameter_words(parameters)).collect();
    words.join(", ")
}

/// The models that can be fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fitted {
    LogGp(LogGp),
    PLogP(PLogP),
}

impl Fitted {
    /// The pattern that measures what the model is fitted to.
    pub fn pattern(&self) -> &'static str {
        match self {
            Fitted::LogGp(_) => loggp::PATTERN,
            Fitted::PLogP(_) => plogp::PATTERN,
        }
    }

    /// What whoever uses the model should know.
    pub fn warnings(&self) -> &[String] {
        match self {
            Fitted::LogGp(model) => &model.warnings,
            Fitted::PLogP(model) => &model.warnings,
        }
    }
}

/// Samples of one quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub metric: Metric,
    /// Operations that a sample is the mean of (1: each was timed alone).
    pub batch: u32,
    pub values: Values,
}

impl Series {
    pub fn samples(metric: Metric, batch: u32, values: Vec<f64>) -> Series {
        Series { metric, batch, values: Values::Samples(values) }
    }

    /// All samples in their order if a file can hold them, else how often each came.
    pub fn compact(metric: Metric, batch: u32, values: Vec<f64>) -> Series {
        let values = if values.len() <= MOST_SAMPLES { Values::Samples(values) } else { Values::count(&values) };
        Series { metric, batch, values }
    }
}

/// The raw values of a series, in the metric's unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// In the order in which they were taken.
    Samples(Vec<f64>),
    /// (value, how often), ascending, of a trial that ran for a duration: values keep three significant digits, the order in time is lost.
    Counts(Vec<(f64, u64)>),
}

/// A series of more samples than this is kept as counts: as text, this many are a third of a megabyte.
const MOST_SAMPLES: usize = 16384;

/// Significant decimal digits that a value keeps where only counts are.
const DIGITS: u8 = 3;

/// A histogram counts whole numbers; values are in nanoseconds or more, so that of smaller ones three digits are kept as well.
const FRACTIONS: f64 = 1000.0;

impl Values {
    /// The middles of an HDR histogram's classes, and how many values are in each.
    fn count(samples: &[f64]) -> Values {
        let mut histogram = Histogram::<u64>::new(DIGITS).expect("the library has histograms of three digits");
        for value in samples {
            // A negative value, which no duration is, counts as 0. The histogram grows with the range; what is too long even for that counts as the longest.
            let value = (value * FRACTIONS).round() as u64;
            if histogram.record(value).is_err() {
                histogram.saturating_record(value);
            }
        }
        let middle =
            |value| (histogram.lowest_equivalent(value) as f64 + histogram.highest_equivalent(value) as f64) / 2.0;
        let classes =
            histogram.iter_recorded().map(|class| (middle(class.value_iterated_to()), class.count_at_value()));
        Values::Counts(classes.map(|(value, count)| (value / FRACTIONS, count)).collect())
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Half of a round trip.
    OneWay,
    RoundTrip,
    /// From the moment at which a request was due, whether or not it could be sent then, to its answer.
    Response,
    /// From the start of a round to the arrival of its last byte.
    Completion,
    /// Payload that arrived.
    Goodput,
    /// Messages that arrived.
    MessageRate,
    /// Connections made and closed.
    ConnectionRate,
    /// Part of the messages sent that did not arrive.
    Loss,
    /// Jain's index over the peers: 1 when all got the same.
    Fairness,
    /// Part of a transfer's time that a computation beside it hides.
    Overlap,
    /// What the caller's processor does for one message.
    SendOverhead,
    ReceiveOverhead,
    /// Time between messages that follow each other.
    Gap,
    /// What fixed work took beyond its shortest time.
    Noise,
    /// Instructions of a stage.
    Instructions,
    /// Payload that arrived at all ranks together, in one step.
    TotalGoodput,
    /// Half of a round trip while bulk flows run.
    LoadedOneWay,
    /// Part of the windows of messages whose loss shows only by silence.
    TimerNeeded,
}

/// Which of two values is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
}

impl Metric {
    /// The unit of values in files.
    pub fn unit(self) -> &'static str {
        use Metric::*;
        match self {
            OneWay | RoundTrip | Response | Completion | SendOverhead | ReceiveOverhead | Gap | Noise
            | LoadedOneWay => "ns",
            Goodput | TotalGoodput => "bytes/s",
            MessageRate | ConnectionRate => "1/s",
            Loss | Fairness | Overlap | TimerNeeded => "",
            Instructions => "instructions",
        }
    }

    pub fn better(self) -> Better {
        use Metric::*;
        match self {
            OneWay | RoundTrip | Response | Completion | Loss | SendOverhead | ReceiveOverhead | Gap | Noise
            | Instructions | LoadedOneWay | TimerNeeded => Better::Less,
            Goodput | TotalGoodput | MessageRate | ConnectionRate | Fairness | Overlap => Better::More,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_samples_become_counts_of_three_digits() {
        let values: Vec<f64> = (0..MOST_SAMPLES + 1).map(|i| 1234.5 + (i % 2) as f64 * 1000.0).collect();
        let Values::Counts(counts) = Series::compact(Metric::OneWay, 1, values).values else { panic!("counts") };
        let [(low, 8193), (high, 8192)] = counts[..] else { panic!("{counts:?}") };
        assert!((low / 1234.5 - 1.0).abs() < 1e-3 && (high / 2234.5 - 1.0).abs() < 1e-3, "{low} {high}");
        assert_eq!(Values::count(&[0.0, 0.123]), Values::Counts(vec![(0.0, 1), (0.123, 1)]));
    }

    #[test]
    fn a_line_is_what_the_manual_shows() {
        let case = Case {
            transport: "tcp".into(),
            pattern: "pingpong".into(),
            size: 64,
            ranks: 2,
            site: Site::Here,
            parameters: BTreeMap::new(),
        };
        let series = vec![Series::samples(Metric::OneWay, 16, vec![3500.0, 3612.5])];
        let line = Line::Measured(Measured { case, rank: 0, round: 0, at_ns: 1, cpu: Some(1), series });
        let text = r#"{"line":"measured","transport":"tcp","pattern":"pingpong","size":64,"ranks":2,"parameters":{},"rank":0,"round":0,"at_ns":1,"cpu":1,"series":[{"metric":"one-way","batch":16,"values":{"samples":[3500.0,3612.5]}}]}"#;
        assert_eq!(serde_json::to_string(&line).expect("a line"), text);
        assert_eq!(serde_json::from_str::<Line>(text).expect("a line"), line);
    }
}
