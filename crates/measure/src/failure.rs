//! Why a trial gave nothing.

use std::io;
use std::time::Duration;

use crate::transport::Rank;

/// Why a rank could not do its part of a trial. The text says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("rank {peer} did not answer within {limit:?}")]
    Silent { peer: Rank, limit: Duration },
    #[error("rank {peer} closed its channel")]
    Closed { peer: Rank },
    #[error("a message of {expected} bytes from rank {peer} arrived damaged: {what}")]
    Damaged { peer: Rank, expected: usize, what: &'static str },
    #[error("cannot reach rank {peer} at {address}: {cause}")]
    Unreachable { peer: Rank, address: String, cause: io::Error },
    #[error("cannot {what}: {cause}")]
    System { what: &'static str, cause: io::Error },
    #[error("{0}")]
    Unsupported(String),
    #[error(
        "rank {rank} waits for {waits_for}, and all other ranks wait or have finished: the pattern would never end"
    )]
    Deadlock { rank: Rank, waits_for: String },
}

impl Failure {
    /// For `map_err`: what was tried, with the system's error.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |cause| Failure::System { what, cause }
    }
}
