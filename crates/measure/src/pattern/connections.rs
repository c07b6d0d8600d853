//! Connections made, used once each way and closed, one after the other, between ranks 0 and 1.

use super::{Trial, flow, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// `messages`: connections of a step.
pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut rate = Vec::new();
    rounds::each(transport, trial, 1, |transport, round| {
        let rank = transport.rank();
        if rank > 1 {
            return Ok(());
        }
        let start_ns = transport.now_ns();
        (0..messages).try_for_each(|_| transport.reconnect(1 - rank))?;
        if round.counted && rank == 0 {
            rate.push(flow::rate(u64::from(messages), transport.now_ns() - start_ns));
        }
        Ok(())
    })?;
    Ok(super::series([(Metric::ConnectionRate, rate)]))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{RELIABLE, all, outcomes};
    use super::super::{Bound, Pattern};
    use crate::record::Metric;

    #[test]
    fn rank_0_has_the_rate() {
        let measured = all(Pattern::Connections { messages: 5 }, 1, Bound::Samples(3), 3, RELIABLE);
        assert_eq!(measured[0].count(Metric::ConnectionRate), 3);
        assert!(measured[1].is_empty() && measured[2].is_empty());
    }

    #[test]
    fn a_transport_without_connections_says_so() {
        let outcomes =
            outcomes(Pattern::Connections { messages: 1 }, 1, Bound::Samples(1), 2, super::super::testing::LOSSY);
        let error = outcomes.into_iter().find_map(Result::err).expect("a failure");
        assert!(error.to_string().contains("no connections"), "{error}");
    }
}
