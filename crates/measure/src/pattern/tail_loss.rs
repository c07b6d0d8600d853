//! How often a loss shows only by silence: rank 0 sends windows of w messages, and rank 1 counts those of which a run of messages at the end is missing and nothing else. A gap
//! that a later message shows can be asked for at once; these need a timer. [2:6.1.1] gives the probability as (p (1-p)^w - p^(w+1)) / (1 - 2p), where each message is lost with p.

use super::{Trial, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// Windows of a step: the part of them that needs the timer is one sample.
const WINDOWS: u64 = 100;

/// The formula of [2:6.1.1].
pub fn expected(p: f64, w: u32) -> f64 {
    let w = f64::from(w);
    match (1.0 - 2.0 * p).abs() < 1e-9 {
        // Its limit at one half: all w terms of the sum are the same.
        true => w * p.powf(w),
        false => (p * (1.0 - p).powf(w) - p.powf(w + 1.0)) / (1.0 - 2.0 * p),
    }
}

pub fn run(transport: &mut dyn Transport, trial: &Trial, window: u32) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let mut needed = Vec::new();
    rounds::each(transport, trial, 1, |transport, round| {
        let mut silent = 0;
        for place in 0..WINDOWS {
            let first = (round.number * WINDOWS + place) * u64::from(window);
            match transport.rank() {
                0 => super::flow::send(transport, 1, &mut bytes, first, window)?,
                1 => silent += u64::from(lacks_only_its_end(transport, &mut bytes, first, window)?),
                _ => {}
            }
            // The next window must not be taken for what is missing of this one.
            transport.barrier()?;
        }
        if transport.rank() == 1 && round.counted {
            needed.push(silent as f64 / WINDOWS as f64);
        }
        Ok(())
    })?;
    Ok(super::series([(Metric::TimerNeeded, needed)]))
}

/// Receives a window; whether something is missing of which no later message tells.
fn lacks_only_its_end(
    transport: &mut dyn Transport,
    bytes: &mut [u8],
    first: u64,
    window: u32,
) -> Result<bool, Failure> {
    let end = first + u64::from(window);
    let (mut next, mut gap) = (first, false);
    while next < end {
        let Some(number) = message::receive(transport, 0, bytes, next)? else { break };
        gap |= number != next;
        next = number + 1;
    }
    Ok(next < end && !gap)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, all};
    use super::super::{Bound, Pattern};
    use super::*;

    #[test]
    fn the_formula_is_the_sum_that_it_stands_for() {
        for (p, w) in [(0.01, 1), (0.1, 8), (0.3, 3), (0.5, 4), (0.9, 5)] {
            let sum: f64 = (0..w).map(|i| (1.0f64 - p).powi(i) * p.powi(w - i)).sum();
            assert!((expected(p, w as u32) - sum).abs() < 1e-12, "{p} {w}");
        }
    }

    #[test]
    fn what_is_counted_is_what_the_formula_says() {
        let measured = all(Pattern::TailLoss { window: 4 }, 8, Bound::Samples(40), 2, LOSSY);
        let samples = measured[1].values(Metric::TimerNeeded);
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let (truth, windows) = (expected(LOSSY, 4), (samples.len() as u64 * WINDOWS) as f64);
        // Four standard deviations of so many windows.
        let most = 4.0 * (truth * (1.0 - truth) / windows).sqrt();
        assert!((mean - truth).abs() < most, "{mean} {truth}");
    }
}
