//! P-LogP ([2:6.3.4, 6.3.5], after Kielmann, Bal and Verstoep 2000): round trips, the gap g(s) between many messages, and the overheads o_s(s) and o_r(s) as the time
//! of the calls themselves: a send while the network is idle, a receive of what has already come.
//!
//! As LogGP's o, these are what the caller sees: work that the kernel does for the message in an interrupt or on another processor is in none of them.

use super::Trial;
use super::prtt::{self, Prober};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

pub fn run(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    prtt::run(transport, trial, messages, "plogp", ask)
}

fn ask(mut prober: Prober, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    // Twice, so that the answer has come even when it is late.
    let pause = 2 * prober.warm_up(trial)?;
    let (_, clock_ns) = prober.pause_and_clock_ns(pause);
    let (mut round_trips, mut gaps) = (Vec::new(), Vec::new());
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    prober.repeat(trial, |prober| {
        let single = prober.single()?;
        let burst = prober.burst(0)?;
        let (send, receive) = calls(prober, pause)?;
        round_trips.push(single);
        gaps.push(prober.each_further(burst, single));
        sends.push((send - clock_ns).max(0.0));
        receives.push((receive - clock_ns).max(0.0));
        Ok(())
    })?;
    Ok(vec![
        Series::samples(Metric::RoundTrip, 1, round_trips),
        Series::samples(Metric::Gap, messages - 1, gaps),
        Series::samples(Metric::SendOverhead, 1, sends),
        Series::samples(Metric::ReceiveOverhead, 1, receives),
    ])
}

/// How long a send and a receive keep their caller when neither has to wait.
fn calls(prober: &mut Prober, pause_ns: u64) -> Result<(f64, f64), Failure> {
    let Prober { transport, message, back, .. } = prober;
    // Any mark of a round that is one message.
    message[0] = 0;
    let start = transport.now_ns();
    transport.send(1, message)?;
    let sent = transport.now_ns();
    transport.compute(pause_ns);
    let before = transport.now_ns();
    transport.receive(1, back)?;
    let after = transport.now_ns();
    Ok(((sent - start) as f64, (after - before) as f64))
}
