//! What the ranks of a trial do. Each pattern is written once, generic over the transport, in a file of its own; every rank of a trial calls [`run`] with the same
//! [`Trial`] and gets the series that it measured itself (most ranks of most patterns: none).

mod loggp;
mod noise;
mod pingpong;
mod plogp;
mod prtt;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::record::Series;
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
    /// Parametrized round trips between ranks 0 and 1, with so many messages in a row.
    #[serde(rename = "loggp")]
    LogGp { messages: u32 },
    /// Round trips, gap and the time of calls, with so many messages in a row.
    #[serde(rename = "plogp")]
    PLogP { messages: u32 },
    /// Fixed work again and again, in rank 0 alone.
    Noise { quantum_ns: u64 },
}

/// Does this rank's part of the trial.
pub fn run<T: Transport>(transport: &mut T, trial: &Trial) -> Result<Vec<Series>, Failure> {
    let measured = transport.barrier().and_then(|()| match trial.pattern {
        Pattern::PingPong { batch } => pingpong::run(transport, trial, batch),
        Pattern::LogGp { messages } => loggp::run(transport, trial, messages),
        Pattern::PLogP { messages } => plogp::run(transport, trial, messages),
        Pattern::Noise { quantum_ns } => noise::run(transport, trial, quantum_ns),
    });
    transport.rest();
    measured
}
