//! What patterns there are: for help, for errors, and from the words of a user to a [`Pattern`] and back.

use std::collections::BTreeMap;

use super::background::Bulk;
use super::request::{Load, Pace};
use super::{Pattern, flow};
use crate::model;
use crate::record::Metric;
use crate::transport::Rank;

/// A pattern, as a user is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// As a user names it.
    pub name: &'static str,
    /// What the ranks do and what is measured, in one line.
    pub about: &'static str,
    /// The fewest ranks that it needs.
    pub ranks: usize,
    /// Bytes of a message unless the user says otherwise.
    pub size: usize,
    pub parameters: &'static [Parameter],
}

/// A number that a pattern can be told.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    pub usual: Usual,
    pub least: f64,
    pub most: f64,
}

/// What holds when the user says nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Usual {
    Is(f64),
    /// As many messages as make about 4 MiB, 4 to 1024; fewer of those above 64 MiB.
    BySize,
    /// The other parameters decide; see what they say.
    Open,
}

const MOST_MESSAGES: f64 = 1e6;
const MOST_BYTES: f64 = (1u64 << 30) as f64;

const MESSAGES: Parameter = Parameter {
    name: "messages",
    about: "messages of a step, after which the ranks agree on whether to go on",
    usual: Usual::BySize,
    least: 1.0,
    most: MOST_MESSAGES,
};

const fn number(name: &'static str, about: &'static str, usual: f64, least: f64, most: f64) -> Parameter {
    Parameter { name, about, usual: Usual::Is(usual), least, most }
}

const IN_A_ROW: Parameter = number("messages", "messages in a row", model::MESSAGES as f64, 2.0, MOST_MESSAGES);

/// Most messages that one side may be ahead of the other.
const MOST_AHEAD: f64 = 65_536.0;

const ENTRIES: &[Entry] = &[
    Entry {
        name: "pingpong",
        about: "latency: a message to and fro between ranks 0 and 1; half of the round trip",
        ranks: 2,
        size: 1,
        parameters: &[number("batch", "round trips that a sample is the mean of", 1.0, 1.0, MOST_MESSAGES)],
    },
    Entry {
        name: "stream",
        about: "throughput from rank 0 to rank 1, in writes of the message size",
        ranks: 2,
        size: 128 << 10,
        parameters: &[],
    },
    Entry {
        name: "rate",
        about: "small messages from rank 0 to rank 1, one call each, received in pieces of up to 64 KiB",
        ranks: 2,
        size: 8,
        parameters: &[],
    },
    Entry {
        name: "bidirectional",
        about: "throughput of both directions at once between ranks 0 and 1",
        ranks: 2,
        size: 128 << 10,
        parameters: &[
            MESSAGES,
            number("ahead", "messages that a rank may have sent more than it has received", 8.0, 1.0, MOST_AHEAD),
        ],
    },
    Entry {
        name: "one-one",
        about: "effective bisection bandwidth: random pairs, all at once, other ones in each step; each pair and the sum",
        ranks: 2,
        size: 128 << 10,
        parameters: &[MESSAGES],
    },
    Entry {
        name: "many-one",
        about: "incast: all others send messages to rank 0, which answers each with a byte; completion times, goodput, fairness",
        ranks: 2,
        size: 64 << 10,
        parameters: &[MESSAGES],
    },
    Entry {
        name: "one-many",
        about: "rank 0 sends messages to all others, which answer each with a byte; completion times, goodput, fairness",
        ranks: 2,
        size: 64 << 10,
        parameters: &[MESSAGES],
    },
    Entry {
        name: "all-to-all",
        about: "everybody sends to everybody; the time of an exchange, and what each rank receives",
        ranks: 2,
        size: 16 << 10,
        parameters: &[number("messages", "exchanges of all with all in a step", 8.0, 1.0, MOST_MESSAGES)],
    },
    Entry {
        name: "request-response",
        about: "all others ask rank 0: with so many requests outstanding (round trips), or at a rate (response from the due time)",
        ranks: 2,
        size: 64,
        parameters: &[
            Parameter {
                about: "requests of a step, for each client; 256, or a tenth of a second of them",
                usual: Usual::Open,
                ..MESSAGES
            },
            number("answer", "bytes of an answer", 64.0, 1.0, MOST_BYTES),
            number("outstanding", "requests of a client that are under way (closed loop)", 1.0, 1.0, MOST_AHEAD),
            number("rate", "requests of a client that are due in a second (open loop); 0: closed loop", 0.0, 0.0, 1e8),
        ],
    },
    Entry {
        name: "connections",
        about: "connections made, used once each way and closed in a second, between ranks 0 and 1",
        ranks: 2,
        size: 1,
        parameters: &[number("messages", "connections of a step", 32.0, 1.0, 10_000.0)],
    },
    Entry {
        name: "overlap",
        about: "part of a transfer's time that a computation beside it hides",
        ranks: 2,
        size: 1 << 20,
        parameters: &[number(
            "polling",
            "1: the computation looks for the answer every 5 us; 0: it does not",
            0.0,
            0.0,
            1.0,
        )],
    },
    Entry {
        name: "background",
        about: "latency between ranks 0 and 1, alone and while bulk flows run between others or towards rank 1",
        ranks: 2,
        size: 64,
        parameters: &[
            number(
                "messages",
                "short messages of a step, alone and as many beside the bulk",
                100.0,
                1.0,
                MOST_MESSAGES,
            ),
            number("bulk", "bytes of a bulk message", 65_536.0, 1.0, MOST_BYTES),
            number(
                "shared",
                "1: the bulk goes to rank 1 too; 0: between ranks 2 and 3, 4 and 5, ... (4 ranks at least)",
                1.0,
                0.0,
                1.0,
            ),
        ],
    },
    Entry {
        name: "search",
        about: "throughput from rank 0 to rank 1 over the plane of two tunables, such as burst_length=1..32 packets_to_ack=1..32",
        ranks: 2,
        size: 64 << 10,
        parameters: &[MESSAGES],
    },
    Entry {
        name: "overhead",
        about: "time inside the send call, and inside the receive call of a message that is there already",
        ranks: 2,
        size: 64,
        parameters: &[],
    },
    Entry {
        name: "loggp",
        about: "LogGP by parametrized round trips: latency, overhead and gaps, over sizes; the model is fitted at the end",
        ranks: 2,
        size: 1,
        parameters: &[IN_A_ROW],
    },
    Entry {
        name: "plogp",
        about: "P-LogP: gap and overheads as functions of the size, and the latency; fitted at the end",
        ranks: 2,
        size: 1,
        parameters: &[IN_A_ROW],
    },
    Entry {
        name: "noise",
        about: "what the host takes away: fixed work again and again in rank 0, without the network",
        ranks: 1,
        size: 1,
        parameters: &[number("quantum", "nanoseconds of a piece of work", 100_000.0, 1_000.0, 1e9)],
    },
    Entry {
        name: "tail-loss",
        about: "part of the windows of messages whose loss shows only by silence; for transports that lose messages",
        ranks: 2,
        size: 64,
        parameters: &[number("window", "messages of a window", 8.0, 1.0, 4096.0)],
    },
    Entry {
        name: "stages",
        about: "instructions of each stage of Ropeway's protocol for a message (needs valgrind, and no network)",
        ranks: 1,
        size: 1472,
        parameters: &[number("burst", "messages that are sent at a time", 8.0, 1.0, 64.0)],
    },
];

/// All patterns, in the order in which people are shown them.
pub fn catalogue() -> &'static [Entry] {
    ENTRIES
}

/// The pattern that a user names, with what was said of its parameters; `search` takes any other names too: they are tunables to be set.
///
/// # Errors
/// A sentence: there is no such pattern (and which there are), no such parameter, or a value that is out of range.
pub fn named(name: &str, size: usize, given: &BTreeMap<String, f64>) -> Result<Pattern, String> {
    let Some(entry) = ENTRIES.iter().find(|entry| entry.name == name) else {
        let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        return Err(format!("there is no pattern `{name}`; there are {}", names.join(", ")));
    };
    for (key, value) in given {
        match entry.parameters.iter().find(|parameter| parameter.name == key) {
            Some(parameter) if !(parameter.least..=parameter.most).contains(value) => {
                let Parameter { least, most, .. } = parameter;
                return Err(format!("{key} of {name} is {least} to {most}, not {value}"));
            }
            None if name != "search" => return Err(unknown_parameter(entry, key)),
            _ => {}
        }
    }
    let told = |name: &str| given.get(name).copied();
    let value = |name: &str| {
        let parameter = entry.parameters.iter().find(|parameter| parameter.name == name);
        told(name).unwrap_or(match parameter.map(|parameter| parameter.usual) {
            Some(Usual::Is(value)) => value,
            _ => f64::from(flow::messages(size)),
        })
    };
    let messages = value("messages") as u32;
    Ok(match name {
        "pingpong" => Pattern::PingPong { batch: value("batch") as u32 },
        "stream" => Pattern::Stream,
        "rate" => Pattern::Flood,
        "bidirectional" => Pattern::Bidirectional { messages, ahead: value("ahead") as u32 },
        "one-one" => Pattern::OneOne { messages },
        "many-one" => Pattern::ManyOne { messages },
        "one-many" => Pattern::OneMany { messages },
        "all-to-all" => Pattern::AllToAll { messages },
        "request-response" => Pattern::RequestResponse(load(told("messages"), size, &value)),
        "connections" => Pattern::Connections { messages },
        "overlap" => Pattern::Overlap { polling: value("polling") > 0.5 },
        "background" => {
            Pattern::Background(Bulk { messages, bytes: value("bulk") as usize, shared: value("shared") > 0.5 })
        }
        "search" => {
            let mut settings = given.clone();
            settings.remove("messages");
            Pattern::Search(super::search::Point { messages, settings })
        }
        "overhead" => Pattern::Overhead,
        "tail-loss" => Pattern::TailLoss { window: value("window") as u32 },
        "loggp" => Pattern::LogGp { messages },
        "plogp" => Pattern::PLogP { messages },
        "noise" => Pattern::Noise { quantum_ns: value("quantum") as u64 },
        _ => Pattern::Stages { burst: value("burst") as u32, stage: None },
    })
}

fn load(messages: Option<f64>, size: usize, value: &dyn Fn(&str) -> f64) -> Load {
    /// Requests of a step of a closed loop.
    const USUAL: usize = 256;
    /// A step of an open loop: queues that build up must have time for it.
    const STEP_S: f64 = 0.1;
    let (rate, answer) = (value("rate"), value("answer") as usize);
    let (usual, pace) = match rate > 0.0 {
        true => ((rate * STEP_S).clamp(1.0, MOST_MESSAGES) as u32, Pace::Rate(rate)),
        false => (flow::few_if_huge(USUAL, size.max(answer)), Pace::Outstanding(value("outstanding") as u32)),
    };
    Load { messages: messages.map_or(usual, |messages| messages as u32), answer, pace }
}

fn unknown_parameter(entry: &Entry, key: &str) -> String {
    let names: Vec<&str> = entry.parameters.iter().map(|parameter| parameter.name).collect();
    match names.is_empty() {
        true => format!("{} has no parameters, so `{key}` cannot be set", entry.name),
        false => format!("{} has no parameter `{key}`; it has {}", entry.name, names.join(", ")),
    }
}

/// What tells cases of a pattern apart, for [`crate::record::Case`]. Not the batch of a ping-pong, which stands beside the samples: mostly it follows from the clock, and who sets it adds it.
pub fn parameters(pattern: &Pattern) -> BTreeMap<String, f64> {
    let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let messages = |count: &u32| ("messages", f64::from(*count));
    match pattern {
        Pattern::PingPong { .. } | Pattern::Stream | Pattern::Flood | Pattern::Overhead => BTreeMap::new(),
        Pattern::Bidirectional { messages: count, ahead } => of(&[messages(count), ("ahead", f64::from(*ahead))]),
        Pattern::OneOne { messages: count }
        | Pattern::ManyOne { messages: count }
        | Pattern::OneMany { messages: count }
        | Pattern::AllToAll { messages: count }
        | Pattern::Connections { messages: count }
        | Pattern::LogGp { messages: count }
        | Pattern::PLogP { messages: count } => of(&[messages(count)]),
        Pattern::TailLoss { window } => of(&[("window", f64::from(*window))]),
        Pattern::Noise { quantum_ns } => of(&[("quantum", *quantum_ns as f64)]),
        Pattern::RequestResponse(load) => {
            let pace = match load.pace {
                Pace::Outstanding(count) => ("outstanding", f64::from(count)),
                Pace::Rate(rate) => ("rate", rate),
            };
            of(&[messages(&load.messages), ("answer", load.answer as f64), pace])
        }
        Pattern::Overlap { polling } => of(&[("polling", f64::from(u8::from(*polling)))]),
        Pattern::Background(bulk) => {
            let shared = f64::from(u8::from(bulk.shared));
            of(&[messages(&bulk.messages), ("bulk", bulk.bytes as f64), ("shared", shared)])
        }
        Pattern::Search(point) => {
            let mut parameters = point.settings.clone();
            parameters.insert("messages".to_owned(), f64::from(point.messages));
            parameters
        }
        Pattern::Stages { burst, stage } => {
            let mut parameters: BTreeMap<String, f64> = of(&[("burst", f64::from(*burst))]);
            parameters.extend(stage.map(|stage| ("stage".to_owned(), stage as u8 as f64)));
            parameters
        }
    }
}

/// The name by which a user knows it.
pub fn name(pattern: &Pattern) -> &'static str {
    match pattern {
        Pattern::PingPong { .. } => "pingpong",
        Pattern::Stream => "stream",
        Pattern::Flood => "rate",
        Pattern::Bidirectional { .. } => "bidirectional",
        Pattern::OneOne { .. } => "one-one",
        Pattern::ManyOne { .. } => "many-one",
        Pattern::OneMany { .. } => "one-many",
        Pattern::AllToAll { .. } => "all-to-all",
        Pattern::RequestResponse(_) => "request-response",
        Pattern::Connections { .. } => "connections",
        Pattern::Overlap { .. } => "overlap",
        Pattern::Background(_) => "background",
        Pattern::Search(_) => "search",
        Pattern::Overhead => "overhead",
        Pattern::TailLoss { .. } => "tail-loss",
        Pattern::LogGp { .. } => "loggp",
        Pattern::PLogP { .. } => "plogp",
        Pattern::Noise { .. } => "noise",
        Pattern::Stages { .. } => "stages",
    }
}

/// What of all that it measures a pattern is about: the figure of tables, which must be known well enough. Ranks that did not measure it say nothing of it.
pub fn leading(pattern: &Pattern) -> Metric {
    match pattern {
        Pattern::PingPong { .. } | Pattern::Background(_) => Metric::OneWay,
        Pattern::Stream | Pattern::Bidirectional { .. } | Pattern::ManyOne { .. } | Pattern::Search(_) => {
            Metric::Goodput
        }
        // Of all pairs: which ranks receive, and so have one of their own, the seed decides.
        Pattern::OneOne { .. } => Metric::TotalGoodput,
        Pattern::Flood => Metric::MessageRate,
        Pattern::OneMany { .. } | Pattern::AllToAll { .. } => Metric::Completion,
        Pattern::RequestResponse(load) => load.pace.metric(),
        Pattern::LogGp { .. } | Pattern::PLogP { .. } => Metric::RoundTrip,
        Pattern::Connections { .. } => Metric::ConnectionRate,
        Pattern::Overlap { .. } => Metric::Overlap,
        Pattern::Overhead => Metric::SendOverhead,
        Pattern::TailLoss { .. } => Metric::TimerNeeded,
        Pattern::Noise { .. } => Metric::Noise,
        Pattern::Stages { .. } => Metric::Instructions,
    }
}

/// Why a pattern cannot run among so many ranks; `None`: it can.
pub fn lacks_ranks(pattern: &Pattern, ranks: Rank) -> Option<String> {
    let name = name(pattern);
    let bare = ENTRIES.iter().find(|entry| entry.name == name).map_or(1, |entry| entry.ranks);
    let least = match pattern {
        Pattern::Background(bulk) if !bulk.shared => 4,
        _ => bare,
    };
    (ranks < least)
        .then(|| format!("{name} needs {least} ranks at least, and there are {ranks}: give --ranks {least} or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_makes_a_pattern_of_its_name_that_says_its_parameters() {
        for entry in catalogue() {
            let pattern = named(entry.name, entry.size, &BTreeMap::new()).expect(entry.name);
            assert_eq!(name(&pattern), entry.name);
            assert_eq!(lacks_ranks(&pattern, entry.ranks), None);
            for key in parameters(&pattern).keys() {
                assert!(entry.parameters.iter().any(|parameter| parameter.name == key), "{}: {key}", entry.name);
            }
            for parameter in entry.parameters {
                let given = BTreeMap::from([(parameter.name.to_owned(), parameter.most + 1.0)]);
                let error = named(entry.name, entry.size, &given).expect_err(parameter.name);
                assert!(error.contains(parameter.name), "{error}");
                let Usual::Is(usual) = parameter.usual else { continue };
                assert!((parameter.least..=parameter.most).contains(&usual), "{}", parameter.name);
            }
        }
    }

    #[test]
    fn what_the_user_says_is_what_the_pattern_is_told() {
        let given = BTreeMap::from([("outstanding".to_owned(), 8.0), ("answer".to_owned(), 1.0)]);
        let pattern = named("request-response", 64, &given).expect("a pattern");
        let load = Load { messages: 256, answer: 1, pace: Pace::Outstanding(8) };
        assert_eq!(pattern, Pattern::RequestResponse(load));
    }

    #[test]
    fn a_step_of_an_open_loop_is_a_tenth_of_a_second_or_one_request() {
        for (rate, messages) in [(50_000.0, 5_000.0), (100.0, 10.0), (10.0, 1.0), (0.5, 1.0)] {
            let open = named("request-response", 64, &BTreeMap::from([("rate".to_owned(), rate)])).expect("a pattern");
            assert_eq!(parameters(&open)["messages"], messages, "{rate} in a second");
        }
    }

    #[test]
    fn a_step_has_few_of_huge_messages() {
        let messages = |name: &str, size| parameters(&named(name, size, &BTreeMap::new()).expect(name))["messages"];
        for (size, stream, requests) in [(64, 1024.0, 256.0), (16 << 20, 4.0, 16.0), (1 << 30, 1.0, 1.0)] {
            assert_eq!((messages("many-one", size), messages("request-response", size)), (stream, requests), "{size}");
        }
    }

    #[test]
    fn unknown_names_are_answered_with_those_there_are() {
        let none = BTreeMap::new();
        assert!(named("ring", 1, &none).expect_err("no such").contains("many-one, one-many"));
        let given = BTreeMap::from([("window".to_owned(), 1.0)]);
        assert!(named("bidirectional", 1, &given).expect_err("no such").contains("it has messages, ahead"));
        assert!(named("overhead", 1, &given).expect_err("no such").contains("no parameters"));
        let background = named("background", 1, &BTreeMap::from([("shared".to_owned(), 0.0)])).expect("a pattern");
        assert!(lacks_ranks(&background, 3).expect("too few").contains("4 ranks at least"));
    }
}
