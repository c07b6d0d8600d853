//! Latency: a message goes to and fro between ranks 0 and 1, and half of the round trip is reported. Nothing queues: only one message is ever under way.

use super::limit::{Limit, Phase};
use super::{Bound, Trial};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// What rank 0 writes into the first byte of the last message; other ranks leave then.
const LAST: u8 = 0xFF;

pub fn run(transport: &mut dyn Transport, trial: &Trial, batch: u32) -> Result<Vec<Series>, Failure> {
    match transport.rank() {
        0 => ask(transport, trial, batch),
        1 => answer(transport, trial).map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}

/// The asker on an unreliable transport says so often that it ends; the answerer may have missed it.
const FAREWELLS: u32 = 10;

/// An answerer on an unreliable transport ends after so many waits in a row in which nothing came.
const EMPTY_WAITS: u32 = 200;

fn ask(transport: &mut dyn Transport, trial: &Trial, batch: u32) -> Result<Vec<Series>, Failure> {
    let mut trips = Trips::new(trial.size);
    let mut samples = Samples::new(trial.bound, batch);
    let mut limit = Limit::new(trial, transport.now_ns());
    while limit.phase(transport.now_ns()) == Phase::Warm {
        trips.one(transport)?;
    }
    let (mut all, mut lost) = (0u64, 0u64);
    let mut then = transport.now_ns();
    while samples.has_room() && limit.phase(then) != Phase::Over {
        let mut missed = 0;
        for _ in 0..batch {
            missed += u64::from(!trips.one(transport)?);
        }
        let now = transport.now_ns();
        // A trip that was lost took as long as the wait for it, which says nothing about the others.
        if missed == 0 {
            samples.add((now - then) as f64 / f64::from(2 * batch));
        }
        (all, lost) = (all + u64::from(batch), lost + missed);
        // Also one whose trips were lost, so that a dead network ends a trial.
        limit.count(1);
        then = now;
    }
    trips.end(transport)?;
    let mut series = vec![samples.series()];
    if !transport.is_reliable() {
        series.push(Series::samples(Metric::Loss, 1, vec![lost as f64 / all.max(1) as f64]));
    }
    Ok(series)
}

/// The messages to and fro.
struct Trips {
    sent: Vec<u8>,
    back: Vec<u8>,
    mark: u8,
}

impl Trips {
    fn new(size: usize) -> Trips {
        let sent = vec![0u8; size.max(1)];
        Trips { back: sent.clone(), sent, mark: 0 }
    }

    /// One trip; false: it was lost.
    #[inline]
    fn one(&mut self, transport: &mut dyn Transport) -> Result<bool, Failure> {
        self.mark = if self.mark == LAST - 1 { 0 } else { self.mark + 1 };
        self.trip(transport, self.mark)
    }

    #[inline]
    fn trip(&mut self, transport: &mut dyn Transport, mark: u8) -> Result<bool, Failure> {
        // The last byte first: of a message of one byte, both are the same.
        let end = self.sent.len() - 1;
        self.sent[end] = mark;
        self.sent[0] = mark;
        transport.send(1, &self.sent)?;
        while transport.receive(1, &mut self.back)? {
            if self.back[0] == mark && self.back[end] == mark {
                return Ok(true);
            }
            if transport.is_reliable() {
                return Err(Failure::Damaged { peer: 1, expected: self.back.len(), what: "another echo" });
            }
            // The late echo of a trip that was given up.
        }
        Ok(false)
    }

    fn end(&mut self, transport: &mut dyn Transport) -> Result<(), Failure> {
        for _ in 0..FAREWELLS {
            if self.trip(transport, LAST)? {
                break;
            }
        }
        Ok(())
    }
}

/// Samples in memory that is there before the first is taken: its page faults would fall into the measured time.
struct Samples {
    values: Vec<f64>,
    taken: usize,
    batch: u32,
}

/// Most that a trial which ends by time keeps: 16 MiB of them.
const MOST_SAMPLES: usize = 2 << 20;

/// No round trip between two processors is shorter; says how many samples a trial can have that ends by time.
const SHORTEST_ROUND_TRIP_NS: u64 = 100;

impl Samples {
    fn new(bound: Bound, batch: u32) -> Samples {
        let most = match bound {
            Bound::Samples(count) => count as usize,
            Bound::DurationNs(ns) => {
                ((ns / (SHORTEST_ROUND_TRIP_NS * u64::from(batch.max(1)))) as usize + 1).min(MOST_SAMPLES)
            }
        };
        // Not zero: zeroed memory is untouched memory.
        Samples { values: vec![1.0; most], taken: 0, batch }
    }

    fn has_room(&self) -> bool {
        self.taken < self.values.len()
    }

    #[inline]
    fn add(&mut self, value: f64) {
        self.values[self.taken] = value;
        self.taken += 1;
    }

    fn series(mut self) -> Series {
        self.values.truncate(self.taken);
        Series::compact(Metric::OneWay, self.batch, self.values)
    }
}

fn answer(transport: &mut dyn Transport, trial: &Trial) -> Result<(), Failure> {
    const ASKER: Rank = 0;
    let mut message = vec![0u8; trial.size.max(1)];
    let mut empty = 0;
    while empty < EMPTY_WAITS {
        if !transport.receive(ASKER, &mut message)? {
            empty += 1;
            continue;
        }
        empty = 0;
        transport.send(ASKER, &message)?;
        if message[0] == LAST {
            return Ok(());
        }
    }
    Err(Failure::Unsupported("nothing came from rank 0 for a long time: is everything lost on the way?".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::{Pattern, run};
    use super::*;
    use crate::record::Values;
    use crate::transport::memory;

    #[test]
    fn rank_0_has_the_samples_that_were_asked_for() {
        let trial = Trial {
            pattern: Pattern::PingPong { batch: 4 },
            size: 8,
            bound: Bound::Samples(10),
            warm_up_ns: 0,
            seed: 1,
        };
        let measured: Vec<_> = std::thread::scope(|scope| {
            let ranks = memory::ranks(3).into_iter().map(|mut end| {
                let trial = &trial;
                scope.spawn(move || run(&mut end, trial))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("no failure")).collect()
        });
        let Values::Samples(samples) = &measured[0][0].values else { panic!("raw samples") };
        assert_eq!(samples.len(), 10);
        assert!(samples.iter().all(|ns| *ns > 0.0));
        assert!(measured[1].is_empty() && measured[2].is_empty());
    }
}
