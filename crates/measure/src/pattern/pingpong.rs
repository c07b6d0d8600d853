//! Latency: a message goes to and fro between ranks 0 and 1, and half of the round trip is reported. Nothing queues: only one message is ever under way.

use super::{Bound, Trial};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// What rank 0 writes into the first byte of the last message; other ranks leave then.
const LAST: u8 = 0xFF;

pub fn run<T: Transport>(transport: &mut T, trial: &Trial, batch: u32) -> Result<Vec<Series>, Failure> {
    match transport.rank() {
        0 => ask(transport, trial, batch),
        1 => answer(transport, trial).map(|()| Vec::new()),
        _ => Ok(Vec::new()),
    }
}

fn ask<T: Transport>(transport: &mut T, trial: &Trial, batch: u32) -> Result<Vec<Series>, Failure> {
    let mut sent = vec![0u8; trial.size.max(1)];
    let mut back = sent.clone();
    let mut trip = |transport: &mut T, mark: u8| -> Result<bool, Failure> {
        sent[0] = mark;
        transport.send(1, &sent)?;
        if !transport.receive(1, &mut back)? {
            return Ok(false);
        }
        match back[0] == mark {
            true => Ok(true),
            false => Err(Failure::Damaged { peer: 1, expected: back.len(), what: "another echo" }),
        }
    };
    let mut mark = 0u8;
    let warm_until = transport.now_ns() + trial.warm_up_ns;
    while transport.now_ns() < warm_until {
        mark = (mark + 1) % LAST;
        trip(transport, mark)?;
    }
    let mut samples = Vec::new();
    let mut then = transport.now_ns();
    let end = match trial.bound {
        Bound::Samples(_) => u64::MAX,
        Bound::DurationNs(ns) => then + ns,
    };
    let most = match trial.bound {
        Bound::Samples(count) => count as usize,
        Bound::DurationNs(_) => usize::MAX,
    };
    while samples.len() < most && then < end {
        for _ in 0..batch {
            mark = (mark + 1) % LAST;
            trip(transport, mark)?;
        }
        let now = transport.now_ns();
        samples.push((now - then) as f64 / f64::from(2 * batch));
        then = now;
    }
    trip(transport, LAST)?;
    Ok(vec![Series::samples(Metric::OneWay, batch, samples)])
}

fn answer<T: Transport>(transport: &mut T, trial: &Trial) -> Result<(), Failure> {
    const ASKER: Rank = 0;
    let mut message = vec![0u8; trial.size.max(1)];
    loop {
        if transport.receive(ASKER, &mut message)? {
            transport.send(ASKER, &message)?;
            if message[0] == LAST {
                return Ok(());
            }
        }
    }
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
