//! What patterns there are: for help, for errors, and from the words of a user to a [`Pattern`] and back.

use std::collections::BTreeMap;

use super::Pattern;

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
}

const ENTRIES: &[Entry] = &[
    Entry {
        name: "pingpong",
        about: "latency: a message to and fro between ranks 0 and 1; half of the round trip",
        ranks: 2,
        size: 1,
        parameters: &[Parameter {
            name: "batch",
            about: "round trips that a sample is the mean of",
            usual: Usual::Is(1.0),
            least: 1.0,
            most: 1e6,
        }],
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
];

/// All patterns, in the order in which people are shown them.
pub fn catalogue() -> &'static [Entry] {
    ENTRIES
}

/// The pattern that a user names, with what was said of its parameters.
///
/// # Errors
/// A sentence: there is no such pattern (and which there are), no such parameter, or a value that is out of range.
pub fn named(name: &str, _size: usize, given: &BTreeMap<String, f64>) -> Result<Pattern, String> {
    let Some(entry) = ENTRIES.iter().find(|entry| entry.name == name) else {
        let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        return Err(format!("there is no pattern `{name}`; there are {}", names.join(", ")));
    };
    for (key, value) in given {
        let Some(parameter) = entry.parameters.iter().find(|parameter| parameter.name == key) else {
            return Err(format!("{name} has no parameter `{key}`"));
        };
        let Parameter { least, most, .. } = parameter;
        if !(least..=most).contains(&value) {
            return Err(format!("{key} of {name} is {least} to {most}, not {value}"));
        }
    }
    Ok(match entry.name {
        "stream" => Pattern::Stream,
        "rate" => Pattern::Flood,
        _ => Pattern::PingPong { batch: given.get("batch").map_or(1, |batch| *batch as u32) },
    })
}

/// What tells cases of a pattern apart, for [`crate::record::Case`]. Not the batch of a ping-pong: it follows from the clock, and stands beside the samples.
pub fn parameters(_pattern: &Pattern) -> BTreeMap<String, f64> {
    BTreeMap::new()
}

/// The name by which a user knows it.
pub fn name(pattern: &Pattern) -> &'static str {
    match pattern {
        Pattern::PingPong { .. } => "pingpong",
        Pattern::Stream => "stream",
        Pattern::Flood => "rate",
        Pattern::LogGp { .. } => "loggp",
        Pattern::PLogP { .. } => "plogp",
        Pattern::Noise { .. } => "noise",
    }
}

/// Why a pattern cannot run among so many ranks; `None`: it can.
pub fn lacks_ranks(pattern: &Pattern, ranks: usize) -> Option<String> {
    let name = name(pattern);
    let least = ENTRIES.iter().find(|entry| entry.name == name).map_or(1, |entry| entry.ranks);
    (ranks < least)
        .then(|| format!("{name} needs {least} ranks at least, and there are {ranks}: give --ranks {least} or more"))
}
