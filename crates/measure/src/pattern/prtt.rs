//! Parametrized round trips, PRTT(n, d, s): rank 0 sends n messages of s bytes with a pause d between them, rank 1 answers the last with one of the same size
//! ([2:6.3.2], after Hoefler, Lichei and Rehm 2007). All clocks read are rank 0's, so that no two clocks have to agree.

use super::Trial;
use super::limit::{Limit, Phase};
use crate::Failure;
use crate::record::Series;
use crate::transport::{Rank, Transport};

/// What the first byte of a round's first message says to rank 1.
const SINGLE: u8 = 1;
const BURST: u8 = 2;
const LAST: u8 = 3;

/// Readings that a time of its own is divided by, where it is too short for one.
const READINGS: u32 = 32;

/// Rounds before the pause is chosen, and whose median chooses it.
const FIRST_LOOKS: usize = 9;

/// Rank 0's side.
pub struct Prober<'a> {
    pub transport: &'a mut dyn Transport,
    pub message: Vec<u8>,
    pub back: Vec<u8>,
    /// n.
    messages: u32,
}

/// A rank's part of the trial `name`; rank 0 asks.
pub fn run(
    transport: &mut dyn Transport,
    trial: &Trial,
    messages: u32,
    name: &str,
    ask: impl FnOnce(Prober, &Trial, u32) -> Result<Vec<Series>, Failure>,
) -> Result<Vec<Series>, Failure> {
    check(transport, messages, name)?;
    match transport.rank() {
        0 => ask(Prober::new(transport, trial.size, messages), trial, messages),
        1 => answer(transport, trial.size, messages).map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}

/// Checks what the patterns made of PRTTs need.
fn check(transport: &dyn Transport, messages: u32, name: &str) -> Result<(), Failure> {
    if transport.ranks() < 2 {
        return Err(Failure::Unsupported(format!("{name} needs two ranks")));
    }
    if !transport.is_reliable() {
        let lossy = transport.name();
        return Err(Failure::Unsupported(format!("{name} counts on every message; {lossy} may lose some")));
    }
    if messages < 2 {
        return Err(Failure::Unsupported(format!("{name} needs at least 2 messages in a row")));
    }
    Ok(())
}

/// Rank 1's side: answers until rank 0 is done.
fn answer(transport: &mut dyn Transport, size: usize, messages: u32) -> Result<(), Failure> {
    const ASKER: Rank = 0;
    let mut message = vec![0u8; size.max(1)];
    loop {
        transport.receive(ASKER, &mut message)?;
        let mark = message[0];
        let more = if mark == BURST { messages - 1 } else { 0 };
        for _ in 0..more {
            transport.receive(ASKER, &mut message)?;
        }
        transport.send(ASKER, &message)?;
        if mark == LAST {
            return Ok(());
        }
    }
}

impl<'a> Prober<'a> {
    fn new(transport: &'a mut dyn Transport, size: usize, messages: u32) -> Prober<'a> {
        let message = vec![0u8; size.max(1)];
        Prober { transport, back: message.clone(), message, messages }
    }

    /// PRTT(1, 0, s) in nanoseconds.
    pub fn single(&mut self) -> Result<f64, Failure> {
        self.message[0] = SINGLE;
        let start = self.transport.now_ns();
        self.transport.send(1, &self.message)?;
        self.transport.receive(1, &mut self.back)?;
        Ok((self.transport.now_ns() - start) as f64)
    }

    /// PRTT(n, d, s) in nanoseconds.
    pub fn burst(&mut self, pause_ns: u64) -> Result<f64, Failure> {
        self.message[0] = BURST;
        let start = self.transport.now_ns();
        for _ in 1..self.messages {
            self.transport.send(1, &self.message)?;
            if pause_ns > 0 {
                self.transport.compute(pause_ns);
            }
        }
        self.transport.send(1, &self.message)?;
        self.transport.receive(1, &mut self.back)?;
        Ok((self.transport.now_ns() - start) as f64)
    }

    /// What each message after the first adds.
    pub fn each_further(&self, burst_ns: f64, single_ns: f64) -> f64 {
        (burst_ns - single_ns) / f64::from(self.messages - 1)
    }

    /// Warms up, and finds a pause in which the network surely becomes idle: a round trip, or twice the gap where that is longer.
    pub fn warm_up(&mut self, trial: &Trial) -> Result<u64, Failure> {
        let until = self.transport.now_ns() + trial.warm_up_ns;
        let (mut singles, mut gaps) = (Vec::new(), Vec::new());
        while singles.len() < FIRST_LOOKS || self.transport.now_ns() < until {
            let single = self.single()?;
            let burst = self.burst(0)?;
            singles.push(single);
            gaps.push(self.each_further(burst, single));
        }
        let middle = |values: &[f64]| crate::stats::median(&values[values.len() - FIRST_LOOKS..]).unwrap_or(0.0);
        Ok(middle(&singles).max(2.0 * middle(&gaps)).ceil() as u64)
    }

    /// What a pause really takes, and what a reading of the clock does.
    pub fn pause_and_clock_ns(&mut self, pause_ns: u64) -> (f64, f64) {
        let start = self.transport.now_ns();
        for _ in 0..READINGS {
            self.transport.compute(pause_ns);
        }
        let paused = self.transport.now_ns();
        for _ in 1..READINGS {
            std::hint::black_box(self.transport.now_ns());
        }
        let read = self.transport.now_ns();
        let each = |from: u64, to: u64| (to - from) as f64 / f64::from(READINGS);
        let clock = each(paused, read);
        (each(start, paused) - clock / f64::from(READINGS), clock)
    }

    /// Calls `sample` as often or as long as the trial says, then lets rank 1 go.
    pub fn repeat(
        mut self,
        trial: &Trial,
        mut sample: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // The warm-up, which chose the pause, is over.
        let mut limit = Limit::new(&Trial { warm_up_ns: 0, ..trial.clone() }, self.transport.now_ns());
        while limit.phase(self.transport.now_ns()) != Phase::Over {
            sample(&mut self)?;
            limit.count(1);
        }
        self.message[0] = LAST;
        self.transport.send(1, &self.message)?;
        self.transport.receive(1, &mut self.back).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::pattern::{self, Bound, Pattern, Trial};
    use crate::record::{Metric, Series, Values};
    use crate::transport::memory;

    fn measure(pattern: Pattern, ranks: usize, bound: Bound) -> Vec<Vec<Series>> {
        let trial = Trial { pattern, size: 64, bound, warm_up_ns: 10_000, seed: 1 };
        std::thread::scope(|scope| {
            let work = |mut end| {
                let trial = &trial;
                scope.spawn(move || pattern::run(&mut end, trial).expect("no failure"))
            };
            let threads: Vec<_> = memory::ranks(ranks).into_iter().map(work).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn rank_0_has_a_series_of_each_quantity() {
        use Metric::{Gap, ReceiveOverhead, RoundTrip, SendOverhead};
        let patterns = [
            (Pattern::LogGp { messages: 4 }, vec![RoundTrip, Gap, SendOverhead]),
            (Pattern::PLogP { messages: 4 }, vec![RoundTrip, Gap, SendOverhead, ReceiveOverhead]),
        ];
        for (pattern, metrics) in patterns {
            let measured = measure(pattern, 3, Bound::Samples(12));
            assert!(measured[1].is_empty() && measured[2].is_empty());
            assert_eq!(measured[0].iter().map(|series| series.metric).collect::<Vec<_>>(), metrics);
            for series in &measured[0] {
                let Values::Samples(samples) = &series.values else { panic!("samples") };
                assert!(samples.len() == 12 && samples.iter().all(|ns| ns.is_finite()), "{series:?}");
            }
            let Values::Samples(round_trips) = &measured[0][0].values else { panic!("samples") };
            assert!(round_trips.iter().all(|ns| *ns > 0.0));
        }
    }

    #[test]
    fn a_trial_of_a_duration_ends() {
        let measured = measure(Pattern::LogGp { messages: 2 }, 2, Bound::DurationNs(1_000_000));
        assert!(matches!(&measured[0][0].values, Values::Samples(samples) if !samples.is_empty()));
    }

    #[test]
    fn one_rank_alone_is_refused() {
        for pattern in [Pattern::LogGp { messages: 4 }, Pattern::PLogP { messages: 4 }] {
            let trial = Trial { pattern, size: 1, bound: Bound::Samples(1), warm_up_ns: 0, seed: 1 };
            let failure = pattern::run(&mut memory::ranks(1).remove(0), &trial).expect_err("refused");
            assert!(failure.to_string().contains("2 ranks"), "{failure}");
        }
    }
}
