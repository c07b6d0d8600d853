//! Both directions at once between ranks 0 and 1: what each receives while it sends as much. On a network with full duplex it is what one direction has alone.

use super::{Trial, flow, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// `ahead`: messages that a rank may have sent more than it has received.
pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32, ahead: u32) -> Result<Vec<Series>, Failure> {
    let (mut out, mut into) = (vec![0; trial.size], vec![0; trial.size]);
    let (mut goodput, mut loss) = (Vec::new(), Vec::new());
    rounds::each(transport, trial, 1, |transport, round| {
        let rank = transport.rank();
        if rank > 1 {
            return Ok(());
        }
        let first = round.number * u64::from(messages);
        let arrived = flow::exchange(transport, 1 - rank, [&mut out, &mut into], first, messages, ahead)?;
        if round.counted {
            goodput.push(arrived.goodput(trial.size));
            loss.push(arrived.loss(messages));
        }
        Ok(())
    })?;
    let is_reliable = transport.is_reliable();
    Ok(super::series([(Metric::Goodput, goodput), (Metric::Loss, super::unless(is_reliable, loss))]))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all, check_losses};
    use super::super::{Bound, Pattern};
    use crate::record::Metric;

    const PATTERN: Pattern = Pattern::Bidirectional { messages: 40, ahead: 8 };

    #[test]
    fn both_ranks_receive_at_once() {
        for size in [1, 9, 4096] {
            let measured = all(PATTERN, size, Bound::Samples(3), 3, RELIABLE);
            for rank in [0, 1] {
                assert_eq!(measured[rank].count(Metric::Goodput), 3);
                assert!(measured[rank].values(Metric::Goodput).iter().all(|rate| *rate > 0.0));
                assert_eq!(measured[rank].count(Metric::Loss), 0, "nothing can be lost here");
            }
            assert!(measured[2].is_empty());
        }
    }

    #[test]
    fn what_is_lost_is_counted() {
        for size in [1, 64] {
            check_losses(&all(PATTERN, size, Bound::Samples(4), 2, LOSSY), &[0, 1]);
        }
    }
}
