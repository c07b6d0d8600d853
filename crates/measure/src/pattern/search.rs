//! Throughput from rank 0 to rank 1 at one point of the plane of two tunables, such as the window w and the acknowledgment delay r_ACK [2:6.2]. Each point is a case of its own, with the settings as parameters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Trial, flow, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// Document 2's names for w and r_ACK.
const WINDOW: &str = "burst_length";
const ACK_DELAY: &str = "packets_to_ack";

/// A point: the messages of a step, and what is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub messages: u32,
    pub settings: BTreeMap<String, f64>,
}

/// Points with w < r_ACK: the sender would stop before any acknowledgment is due, and only timers would go on ([2:6.2] leaves them out too).
pub fn stalls(settings: &BTreeMap<String, f64>) -> bool {
    match (settings.get(WINDOW), settings.get(ACK_DELAY)) {
        // A window of 0 is none.
        (Some(window), Some(delay)) => *window > 0.0 && window < delay,
        _ => false,
    }
}

pub fn run(transport: &mut dyn Transport, trial: &Trial, point: &Point) -> Result<Vec<Series>, Failure> {
    let before: Vec<(&String, Option<f64>)> = point.settings.keys().map(|name| (name, transport.tuned(name))).collect();
    point.settings.iter().try_for_each(|(name, value)| transport.tune(name, *value))?;
    let measured = one_way(transport, trial, point.messages);
    // The next trial of another pattern on this transport must not be one with these settings.
    for (name, value) in before {
        value.map_or(Ok(()), |value| transport.tune(name, value))?;
    }
    measured
}

fn one_way(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut goodput, mut loss) = (Vec::new(), Vec::new());
    rounds::each(transport, trial, 1, |transport, round| {
        let first = round.number * u64::from(messages);
        match transport.rank() {
            0 => flow::send(transport, 1, &mut bytes, first, messages),
            1 => {
                let arrived = flow::receive(transport, 0, &mut bytes, first, messages)?;
                if round.counted {
                    goodput.push(arrived.goodput(trial.size));
                    loss.push(arrived.loss(messages));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    let loss = super::unless(transport.is_reliable(), loss);
    Ok(super::series([(Metric::Goodput, goodput), (Metric::Loss, loss)]))
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::super::Pattern;
    use super::super::testing::{LOSSY, RELIABLE, all, check_losses, outcomes};
    use super::*;

    #[test]
    fn points_at_which_only_timers_go_on_are_told() {
        let point = |window, delay| BTreeMap::from([(WINDOW.to_owned(), window), (ACK_DELAY.to_owned(), delay)]);
        assert!(stalls(&point(7.0, 8.0)));
        assert!(!stalls(&point(8.0, 8.0)) && !stalls(&point(0.0, 8.0)) && !stalls(&BTreeMap::new()));
    }

    #[test]
    fn a_point_gives_the_throughput_at_it() {
        let point = Point { messages: 20, settings: BTreeMap::from([("patience_ms".to_owned(), 3000.0)]) };
        let measured = all(Pattern::Search(point.clone()), 64, Bound::Samples(3), 2, RELIABLE);
        assert_eq!(measured[1].count(Metric::Goodput), 3);
        check_losses(&all(Pattern::Search(point), 64, Bound::Samples(3), 2, LOSSY), &[1]);
    }

    #[test]
    fn a_tunable_that_the_transport_does_not_have_is_an_error_in_every_rank() {
        let point = Point { messages: 1, settings: BTreeMap::from([("unknown".to_owned(), 3.0)]) };
        for outcome in outcomes(Pattern::Search(point), 64, Bound::Samples(1), 2, RELIABLE) {
            assert!(outcome.expect_err("a failure").to_string().contains("no tunable"));
        }
    }
}
