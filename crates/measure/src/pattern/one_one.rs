//! Random pairs, all at once: what a network has for everybody when nobody chooses whom to sit next to (effective bisection bandwidth; after the pattern of that name in [2:2.4.5]).
//!
//! Each step draws other pairs from the seed; the first of each pair sends to the second. With an odd number of ranks one has a rest.

use super::{Trial, flow, message, rounds};
use crate::Failure;
use crate::random::Random;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut of_pair, mut of_all, mut loss) = (Vec::new(), Vec::new(), Vec::new());
    rounds::each(transport, trial, 1, |transport, round| {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        let pairs = pairs(trial.seed, round.number, ranks);
        let first = round.number * u64::from(messages);
        let mut got = 0.0;
        for &(from, to) in &pairs {
            if rank == from {
                flow::send(transport, to, &mut bytes, first, messages)?;
            } else if rank == to {
                let arrived = flow::receive(transport, from, &mut bytes, first, messages)?;
                got = arrived.goodput(trial.size);
                if round.counted {
                    of_pair.push(got);
                    loss.push(arrived.loss(messages));
                }
            }
        }
        // The sum is made where one rank has all, of one step: a sum of medians would be of no step at all.
        if rank != 0 {
            return if pairs.iter().any(|pair| pair.1 == rank) {
                message::tell(transport, 0, round.number, got.to_bits())
            } else {
                Ok(())
            };
        }
        for to in pairs.iter().map(|pair| pair.1).filter(|to| *to != 0) {
            got += f64::from_bits(message::hear(transport, to, round.number)?);
        }
        if round.counted {
            of_all.push(got);
        }
        Ok(())
    })?;
    let loss = super::unless(transport.is_reliable(), loss);
    Ok(super::series([(Metric::Goodput, of_pair), (Metric::TotalGoodput, of_all), (Metric::Loss, loss)]))
}

/// Who sends to whom in this step.
fn pairs(seed: u64, step: u64, ranks: usize) -> Vec<(Rank, Rank)> {
    let mut order: Vec<Rank> = (0..ranks).collect();
    Random::for_user(seed, step).shuffle(&mut order);
    order.as_chunks().0.iter().map(|&[from, to]| (from, to)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use super::pairs;
    use crate::record::Metric;
    use std::collections::HashSet;

    const PATTERN: Pattern = Pattern::OneOne { messages: 20 };

    #[test]
    fn each_step_has_half_as_many_flows_as_ranks_and_their_sum() {
        for ranks in [2, 3, 6] {
            let measured = all(PATTERN, 64, Bound::Samples(5), ranks, RELIABLE);
            let flows: usize = measured.iter().map(|rank| rank.count(Metric::Goodput)).sum();
            assert_eq!(flows, 5 * (ranks / 2), "{ranks} ranks");
            assert_eq!(measured[0].count(Metric::TotalGoodput), 5);
            let sum: f64 = measured.iter().flat_map(|rank| rank.values(Metric::Goodput)).sum();
            let total: f64 = measured[0].values(Metric::TotalGoodput).iter().sum();
            assert!((sum / total - 1.0).abs() < 1e-9, "{sum} in all pairs, {total} in all steps");
        }
    }

    #[test]
    fn losses_end_no_step() {
        let measured = all(PATTERN, 64, Bound::Samples(3), 4, LOSSY);
        let losses: Vec<f64> = measured.iter().flat_map(|rank| rank.values(Metric::Loss)).collect();
        assert_eq!(losses.len(), 6);
        assert!(losses.iter().any(|part| *part > 0.0) && losses.iter().all(|part| *part < 1.0), "{losses:?}");
    }

    #[test]
    fn pairs_follow_from_the_seed_and_differ_from_step_to_step() {
        assert_eq!(pairs(7, 3, 9), pairs(7, 3, 9));
        let drawn: HashSet<_> = (0..100).map(|step| pairs(7, step, 6)).collect();
        assert!(drawn.len() > 50, "{} of 720 in 100 steps", drawn.len());
        let ranks: HashSet<_> = pairs(1, 1, 6).into_iter().flat_map(|(a, b)| [a, b]).collect();
        assert_eq!(ranks.len(), 6, "everybody takes part once");
    }
}
