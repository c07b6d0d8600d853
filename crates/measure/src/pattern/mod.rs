//! What the ranks of a trial do. Each pattern is written once, for every transport, in a file of its own; every rank of a trial calls [`run`] with the same
//! [`Trial`] and gets the series that it measured itself (most ranks of most patterns: none).

mod all_to_all;
pub mod background;
mod bidirectional;
mod catalogue;
mod connections;
mod flood;
mod flow;
mod incast;
mod limit;
mod loggp;
mod message;
mod noise;
mod one_one;
mod overhead;
mod overlap;
mod pingpong;
mod plogp;
mod prtt;
pub mod request;
mod rounds;
pub mod search;
pub mod stages;
mod stream;
pub mod tail_loss;
#[cfg(test)]
mod testing;

pub use catalogue::{Entry, Parameter, Usual, catalogue, lacks_ranks, leading, name, named, parameters};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// One measurement, as every rank is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub pattern: Pattern,
    /// Bytes of a message.
    pub size: usize,
    pub bound: Bound,
    /// Before samples count.
    pub warm_up_ns: u64,
    /// For patterns that choose (pairs, order, contents).
    pub seed: u64,
}

/// When a trial ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// After so many samples.
    Samples(u32),
    /// After so long.
    DurationNs(u64),
}

/// What the ranks do, with what is fixed for the trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A message goes from rank 0 to rank 1 and back, `batch` times a sample.
    PingPong { batch: u32 },
    /// Rank 0 sends to rank 1 without a pause.
    Stream,
    /// The same, of small messages that are counted.
    Flood,
    /// Parametrized round trips between ranks 0 and 1, with so many messages in a row.
    #[serde(rename = "loggp")]
    LogGp { messages: u32 },
    /// Round trips, gap and the time of calls, with so many messages in a row.
    #[serde(rename = "plogp")]
    PLogP { messages: u32 },
    /// Fixed work again and again, in rank 0 alone.
    Noise { quantum_ns: u64 },
    /// Ranks 0 and 1 send to each other at once, never more than `ahead` messages before they have received.
    Bidirectional { messages: u32, ahead: u32 },
    /// Random pairs, all at once, other ones in each step.
    OneOne { messages: u32 },
    /// All others send to rank 0, which answers each message with a byte.
    ManyOne { messages: u32 },
    /// Rank 0 sends to all others, which answer each message with a byte.
    OneMany { messages: u32 },
    /// Everybody sends to everybody.
    AllToAll { messages: u32 },
    /// All others ask rank 0.
    RequestResponse(request::Load),
    /// Ranks 0 and 1 make connections and close them.
    Connections { messages: u32 },
    /// Rank 0 computes while a message is on its way to rank 1.
    Overlap { polling: bool },
    /// Short messages between ranks 0 and 1, alone and beside bulk.
    Background(background::Bulk),
    /// Rank 0 sends to rank 1 with some tunables set.
    Search(search::Point),
    /// The time inside the calls of ranks 0 and 1.
    Overhead,
    /// Instructions of the stages of Ropeway's protocol, or of one of them.
    Stages { burst: u32, stage: Option<stages::Stage> },
    /// Rank 0 sends windows of messages to rank 1, some of which get lost.
    TailLoss { window: u32 },
}

/// Does this rank's part of the trial.
pub fn run(transport: &mut dyn Transport, trial: &Trial) -> Result<Vec<Series>, Failure> {
    // A message of nothing is none on most transports.
    let trial = &Trial { size: trial.size.max(1), ..trial.clone() };
    let measured =
        check(transport, trial).and_then(|()| transport.barrier()).and_then(|()| take_part(transport, trial));
    transport.rest();
    measured
}

fn take_part(transport: &mut dyn Transport, trial: &Trial) -> Result<Vec<Series>, Failure> {
    match &trial.pattern {
        Pattern::PingPong { batch } => pingpong::run(transport, trial, *batch),
        Pattern::Bidirectional { messages, ahead } => bidirectional::run(transport, trial, *messages, *ahead),
        Pattern::OneOne { messages } => one_one::run(transport, trial, *messages),
        Pattern::ManyOne { messages } => incast::many_one(transport, trial, *messages),
        Pattern::OneMany { messages } => incast::one_many(transport, trial, *messages),
        Pattern::AllToAll { messages } => all_to_all::run(transport, trial, *messages),
        Pattern::RequestResponse(load) => request::run(transport, trial, *load),
        Pattern::Connections { messages } => connections::run(transport, trial, *messages),
        Pattern::Overlap { polling } => overlap::run(transport, trial, *polling),
        Pattern::Background(bulk) => background::run(transport, trial, *bulk),
        Pattern::Search(point) => search::run(transport, trial, point),
        Pattern::Overhead => overhead::run(transport, trial),
        Pattern::Stages { burst, stage } => match transport.rank() {
            0 => stages::run(trial, *burst, *stage),
            _ => Ok(Vec::new()),
        },
        Pattern::TailLoss { window } => tail_loss::run(transport, trial, *window),
        Pattern::Stream => stream::run(transport, trial),
        Pattern::Flood => flood::run(transport, trial),
        Pattern::LogGp { messages } => loggp::run(transport, trial, *messages),
        Pattern::PLogP { messages } => plogp::run(transport, trial, *messages),
        Pattern::Noise { quantum_ns } => noise::run(transport, trial, *quantum_ns),
    }
}

/// Whether the transport can carry the trial at all; every rank finds the same.
fn check(transport: &dyn Transport, trial: &Trial) -> Result<(), Failure> {
    if let Some(why) = catalogue::lacks_ranks(&trial.pattern, transport.ranks()) {
        return Err(Failure::Unsupported(why));
    }
    let largest = match &trial.pattern {
        Pattern::RequestResponse(load) => trial.size.max(load.answer),
        Pattern::Background(bulk) => trial.size.max(bulk.bytes),
        Pattern::Stages { .. } => 0,
        _ => trial.size,
    };
    let most = transport.largest_message();
    if largest > most {
        let name = transport.name();
        let why = format!("a message over {name} has {most} bytes at most, not {largest}: give a smaller size");
        return Err(Failure::Unsupported(why));
    }
    Ok(())
}

/// Those of these that have any samples.
fn series<const N: usize>(of: [(Metric, Vec<f64>); N]) -> Vec<Series> {
    let measured = of.into_iter().filter(|(_, values)| !values.is_empty());
    measured.map(|(metric, values)| Series::samples(metric, 1, values)).collect()
}

/// What only unreliable transports have: a thousand times that nothing was lost is no news of others.
fn unless(is_reliable: bool, losses: Vec<f64>) -> Vec<f64> {
    if is_reliable { Vec::new() } else { losses }
}

#[cfg(test)]
mod tests {
    use super::testing::{RELIABLE, outcomes};
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn too_few_ranks_are_refused_by_every_rank_and_none_hangs() {
        let bulk = background::Bulk { messages: 1, bytes: 1, shared: false };
        let outcomes = outcomes(Pattern::Background(bulk), 1, Bound::Samples(1), 3, RELIABLE);
        assert!(outcomes.into_iter().all(|outcome| outcome.is_err_and(|why| why.to_string().contains("4 ranks"))));
    }

    #[test]
    fn every_pattern_keeps_to_a_duration() {
        for entry in catalogue().iter().filter(|entry| entry.ranks > 1 && entry.name != "search") {
            let pattern = named(entry.name, entry.size, &BTreeMap::new()).expect(entry.name);
            let metric = leading(&pattern);
            let measured = testing::all(pattern, entry.size, Bound::DurationNs(5_000_000), 4, RELIABLE);
            assert!(measured.iter().any(|rank| rank.count(metric) > 0), "{} has no sample", entry.name);
        }
    }

    #[test]
    fn a_trial_survives_the_way_to_the_ranks() {
        for entry in catalogue() {
            let pattern = named(entry.name, entry.size, &BTreeMap::new()).expect(entry.name);
            let trial = Trial { pattern, size: 1, bound: Bound::Samples(1), warm_up_ns: 0, seed: 1 };
            let text = serde_json::to_string(&trial).expect("text");
            assert_eq!(serde_json::from_str::<Trial>(&text).expect("a trial"), trial);
        }
    }
}
