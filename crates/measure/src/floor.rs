//! The limits of the machine, measured in the same run as the transports. They have no ranks: two threads of the coordinator, or one.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::machine;
use crate::pattern::{Bound, Pattern, Trial};
use crate::record::{Metric, Series};
use crate::transport::kind::Kind;
use crate::transport::monotonic_ns;

/// Whether there is such a limit for the pattern.
pub fn measures(kind: Kind, pattern: &Pattern) -> bool {
    match kind {
        Kind::CacheLine => matches!(pattern, Pattern::PingPong { .. }),
        Kind::Memcpy => matches!(pattern, Pattern::Stream),
        _ => true,
    }
}

/// Measures one of them.
pub fn measure(kind: Kind, trial: &Trial, cpus: Option<&[usize]>) -> Result<Vec<Series>, String> {
    match (kind, &trial.pattern, cpus) {
        (Kind::CacheLine, Pattern::PingPong { batch }, Some(&[first, second, ..])) => {
            cache_line(trial, *batch, (first, second)).map(|series| vec![series])
        }
        (Kind::CacheLine, Pattern::PingPong { .. }, _) => {
            Err("needs two processors, and this process may use only one".to_owned())
        }
        (Kind::Memcpy, Pattern::Stream, cpus) => {
            memcpy(trial, cpus.and_then(|cpus| cpus.first().copied())).map(|series| vec![series])
        }
        _ => Err(format!("{} is no limit of this pattern", kind.about().name)),
    }
}

/// Words that do not share a cache line, nor the pair of lines that some processors fetch together.
#[repr(align(128))]
struct Line(AtomicU64);

/// Tells the other thread to end.
const STOP: u64 = u64::MAX;

/// Two threads on two processors hand a number to and fro, each writing its own line and reading the other's: no message between them can be faster.
fn cache_line(trial: &Trial, batch: u32, cpus: (usize, usize)) -> Result<Series, String> {
    let there = Line(AtomicU64::new(0));
    let back = Line(AtomicU64::new(0));
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let done = machine::pin(cpus.1).map(|()| answer(&there.0, &back.0));
            back.0.store(STOP, Ordering::Release);
            done
        });
        let asking = scope.spawn(|| {
            let measured = machine::pin(cpus.0).and_then(|()| ask(trial, batch, &there.0, &back.0));
            there.0.store(STOP, Ordering::Release);
            measured
        });
        let failed = |_| "a thread of the cache-line measurement failed".to_owned();
        let measured = asking.join().map_err(failed)?;
        answering.join().map_err(failed)??;
        measured
    })
}

/// Returns every new number until told to stop.
fn answer(there: &AtomicU64, back: &AtomicU64) {
    let mut next = 1;
    loop {
        // Acquire here and Release in `ask`: the pair that a real ring needs too, so that the floor pays for it as well.
        match there.load(Ordering::Acquire) {
            STOP => return,
            value if value == next => {
                back.store(value, Ordering::Release);
                next += 1;
            }
            _ => {}
        }
    }
}

/// Sends numbers and times their return; an error if the other thread stopped.
fn ask(trial: &Trial, batch: u32, there: &AtomicU64, back: &AtomicU64) -> Result<Series, String> {
    let mut value = 0;
    let mut trip = || {
        value += 1;
        there.store(value, Ordering::Release);
        loop {
            // Pairs with the Release stores of the answering thread.
            match back.load(Ordering::Acquire) {
                STOP => return false,
                seen if seen == value => return true,
                _ => {}
            }
        }
    };
    let warm_until = monotonic_ns() + trial.warm_up_ns;
    while monotonic_ns() < warm_until {
        trip();
    }
    let mut samples = Vec::new();
    let mut then = monotonic_ns();
    let mut ends = End::of(trial.bound, then);
    while ends.goes_on(then) {
        if !(0..batch).all(|_| trip()) {
            return Err("the second thread gave up".to_owned());
        }
        let now = monotonic_ns();
        samples.push((now - then) as f64 / f64::from(2 * batch));
        then = now;
    }
    Ok(Series::compact(Metric::OneWay, batch, samples))
}

/// When a trial ends.
struct End {
    samples_left: u32,
    at_ns: u64,
}

impl End {
    fn of(bound: Bound, now_ns: u64) -> End {
        match bound {
            Bound::Samples(count) => End { samples_left: count, at_ns: u64::MAX },
            Bound::DurationNs(ns) => End { samples_left: u32::MAX, at_ns: now_ns.saturating_add(ns) },
        }
    }

    /// Counts one more sample, if there is to be one.
    fn goes_on(&mut self, now_ns: u64) -> bool {
        self.samples_left = self.samples_left.saturating_sub(1);
        self.samples_left > 0 && now_ns < self.at_ns
    }
}

/// Copies per look at the clock.
const COPIES_PER_LOOK: usize = 64;

/// Each sample is of so much time.
const SLICE_NS: u64 = 10_000_000;

/// One processor copies a block of the message size into another block, both small enough to stay in its cache: a stream that copies in on one processor and out on the other at the same
/// time cannot be faster than this.
fn memcpy(trial: &Trial, cpu: Option<usize>) -> Result<Series, String> {
    let trial = trial.clone();
    let copying = thread::spawn(move || {
        if let Some(cpu) = cpu {
            machine::pin(cpu)?;
        }
        let from = vec![1u8; trial.size];
        let mut to = vec![2u8; trial.size];
        let mut copy = || {
            for _ in 0..COPIES_PER_LOOK {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
        };
        let warm_until = monotonic_ns() + trial.warm_up_ns;
        while monotonic_ns() < warm_until {
            copy();
        }
        let bytes = (trial.size * COPIES_PER_LOOK) as f64;
        let mut rates = Vec::new();
        let mut begin = monotonic_ns();
        let mut ends = End::of(trial.bound, begin);
        while ends.goes_on(begin) {
            let (mut copied, mut now) = (0.0, begin);
            while now < begin + SLICE_NS {
                copy();
                copied += bytes;
                now = monotonic_ns();
            }
            rates.push(copied * 1e9 / (now - begin) as f64);
            begin = now;
        }
        Ok(Series::samples(Metric::Goodput, 1, rates))
    });
    copying.join().map_err(|_| "the thread of the copy measurement failed".to_owned())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Values;

    #[test]
    fn the_limits_are_measured() {
        let trial = |pattern| Trial { pattern, size: 64, bound: Bound::Samples(3), warm_up_ns: 0, seed: 0 };
        let cpus = machine::allowed_cpus();
        let pattern = Pattern::PingPong { batch: 2 };
        if cpus.len() > 1 {
            let measured = measure(Kind::CacheLine, &trial(pattern.clone()), Some(&cpus)).expect("measured");
            let Values::Samples(samples) = &measured[0].values else { panic!("samples") };
            assert!(samples.iter().all(|ns| *ns > 0.0) && !samples.is_empty(), "{samples:?}");
        }
        let alone = measure(Kind::CacheLine, &trial(pattern), Some(&cpus[..1]));
        assert!(alone.expect_err("one processor").contains("two processors"));
        assert!(measure(Kind::Memcpy, &trial(Pattern::Stream), None).is_ok());
        assert!(measure(Kind::Memcpy, &trial(Pattern::Flood), None).is_err());
    }
}
