//! Everybody to everybody at once, as a transposition does: in turn t a rank sends to the t-th after it and receives from the t-th before it, so that in every turn each receives from one.

use super::{Trial, flow, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// `messages`: exchanges of all with all in a step.
pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut completion_ns, mut goodput, mut loss) = (Vec::new(), Vec::new(), Vec::new());
    let (rank, ranks) = (transport.rank(), transport.ranks());
    rounds::each(transport, trial, 1, |transport, round| {
        let first = round.number * u64::from(messages);
        let start_ns = transport.now_ns();
        let mut arrived = 0;
        let mut last_ns = start_ns;
        let mut next = vec![first; ranks];
        for number in first..first + u64::from(messages) {
            for turn in 1..ranks {
                message::send(transport, (rank + turn) % ranks, &mut bytes, number)?;
                let from = (rank + ranks - turn) % ranks;
                if next[from] > number {
                    // It is lost: a later one came in its place.
                    continue;
                }
                next[from] = number + 1;
                if let Some(number) = message::receive(transport, from, &mut bytes, number)? {
                    next[from] = number + 1;
                    arrived += 1;
                    last_ns = transport.now_ns();
                }
            }
        }
        if round.counted {
            let taken_ns = last_ns - start_ns;
            completion_ns.push(taken_ns as f64 / f64::from(messages));
            goodput.push(flow::rate(arrived * trial.size as u64, taken_ns));
            loss.push(1.0 - arrived as f64 / (f64::from(messages) * (ranks - 1) as f64));
        }
        Ok(())
    })?;
    let loss = super::unless(transport.is_reliable(), loss);
    let mut series = super::series([(Metric::Goodput, goodput), (Metric::Loss, loss)]);
    series.insert(0, Series::samples(Metric::Completion, messages, completion_ns));
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all, check_losses};
    use super::super::{Bound, Pattern};
    use crate::record::Metric;

    #[test]
    fn every_rank_has_a_sample_of_every_step() {
        for (ranks, size) in [(2, 1), (3, 16), (5, 50_000)] {
            let measured = all(Pattern::AllToAll { messages: 3 }, size, Bound::Samples(4), ranks, RELIABLE);
            for rank in &measured {
                assert_eq!((rank.count(Metric::Completion), rank.count(Metric::Goodput)), (4, 4));
            }
        }
    }

    #[test]
    fn what_is_lost_is_counted() {
        check_losses(&all(Pattern::AllToAll { messages: 10 }, 64, Bound::Samples(4), 3, LOSSY), &[0, 1, 2]);
    }
}
