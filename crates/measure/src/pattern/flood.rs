//! Message rate: rank 0 sends small messages to rank 1, one call each; rank 1 takes them in pieces as large as they come.

use super::{Trial, stream};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// What a receiver of many small messages gives the kernel to fill.
const RECEIVE_BYTES: usize = 64 << 10;

pub fn run(transport: &mut dyn Transport, trial: &Trial) -> Result<Vec<Series>, Failure> {
    stream::one_way(transport, trial, Metric::MessageRate, RECEIVE_BYTES)
}
