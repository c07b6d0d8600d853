//! LogGP by parametrized round trips: of one message, of many at once, and of many with pauses, one after the other in each sample, so that what disturbs one
//! disturbs all and falls out of their differences.
//!
//! PRTT(n, 0, s) - PRTT(1, 0, s) is n-1 times the gap g + (s-1) G. PRTT(n, d, s) - PRTT(1, 0, s) with a pause d longer than the gap is n-1 times o + d.
//! What a socket hides of o stays hidden: `send` returns some time X after the message has left, and every scheme of times seen from outside gives
//! o (2i + j) + L i + X j, of which o and L cannot be told apart ([2:6.3.3]). What is called o here is o + X: what the caller's processor does for a message.

use super::Trial;
use super::prtt::{self, Prober};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    prtt::run(transport, trial, messages, "loggp", ask)
}

fn ask(mut prober: Prober, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let pause = prober.warm_up(trial)?;
    let (paused_ns, _) = prober.pause_and_clock_ns(pause);
    let (mut round_trips, mut gaps, mut overheads) = (Vec::new(), Vec::new(), Vec::new());
    prober.repeat(trial, |prober| {
        let single = prober.single()?;
        let burst = prober.burst(0)?;
        let spread = prober.burst(pause)?;
        round_trips.push(single);
        gaps.push(prober.each_further(burst, single));
        overheads.push(prober.each_further(spread, single) - paused_ns);
        Ok(())
    })?;
    Ok(vec![
        Series::samples(Metric::RoundTrip, 1, round_trips),
        Series::samples(Metric::Gap, messages - 1, gaps),
        Series::samples(Metric::SendOverhead, messages - 1, overheads),
    ])
}
