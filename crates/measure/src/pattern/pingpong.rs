//! Latency: a message goes to and fro between ranks 0 and 1, and half of the round trip is reported. Nothing queues: only one message is ever under way.

use super::limit::{Limit, Phase};
use super::{Trial, message};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// What rank 0 writes into the first byte of the last message; other ranks leave then.
const LAST: u8 = 0xFF;

/// How often the last message is tried where it may be lost; who waits for it in vain leaves too, but later.
const LAST_TRIPS: u32 = 2;

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
        while transport.receive(1, &mut back)? {
            if back[0] == mark {
                return Ok(true);
            }
            if transport.is_reliable() {
                return Err(Failure::Damaged { peer: 1, expected: back.len(), what: "another echo" });
            }
        }
        Ok(false)
    };
    let mut losses = Vec::new();
    let mut mark = 0u8;
    let mut samples = Vec::new();
    let mut then = transport.now_ns();
    let mut limit = Limit::new(trial, then);
    loop {
        let phase = limit.phase(then);
        if phase == Phase::Over {
            break;
        }
        let mut lost = false;
        for _ in 0..batch {
            mark = (mark + 1) % LAST;
            lost |= !trip(transport, mark)?;
        }
        let now = transport.now_ns();
        if phase == Phase::Counted {
            // A trip that was lost has no time, but the trial must end.
            if !lost {
                samples.push((now - then) as f64 / f64::from(2 * batch));
            }
            if !transport.is_reliable() {
                losses.push(f64::from(u8::from(lost)));
            }
            limit.count(1);
        }
        then = now;
    }
    for _ in 0..LAST_TRIPS {
        if trip(transport, LAST)? {
            break;
        }
    }
    let mut series = vec![Series::samples(Metric::OneWay, batch, samples)];
    series.extend((!transport.is_reliable()).then(|| Series::samples(Metric::Loss, 1, losses)));
    Ok(series)
}

fn answer<T: Transport>(transport: &mut T, trial: &Trial) -> Result<(), Failure> {
    const ASKER: Rank = 0;
    let mut bytes = vec![0u8; trial.size.max(1)];
    let mut quiets = 0;
    while quiets < message::QUIETS {
        if !transport.receive(ASKER, &mut bytes)? {
            quiets += 1;
            continue;
        }
        transport.send(ASKER, &bytes)?;
        quiets = 0;
        if bytes[0] == LAST {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use super::*;

    #[test]
    fn rank_0_has_the_samples_that_were_asked_for() {
        let measured = all(Pattern::PingPong { batch: 4 }, 8, Bound::Samples(10), 3, RELIABLE);
        assert_eq!(measured[0].count(Metric::OneWay), 10);
        assert!(measured[0].values(Metric::OneWay).iter().all(|ns| *ns > 0.0));
        assert!(measured[1].is_empty() && measured[2].is_empty());
    }

    #[test]
    fn it_ends_although_messages_are_lost() {
        let measured = all(Pattern::PingPong { batch: 1 }, 8, Bound::Samples(40), 2, LOSSY);
        let lost: f64 = measured[0].values(Metric::Loss).iter().sum();
        assert_eq!(measured[0].count(Metric::OneWay) + lost as usize, 40);
        assert!(lost > 0.0);
    }
}
