//! The limits of the machine, measured in the same run as the transports.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::machine;
use super::plan::{Plan, WARM_UP};
use super::samples::{self, Raw};

/// Two words that do not share a cache line, nor the pair of lines that some processors fetch together.
#[repr(align(128))]
struct Line(AtomicU64);

/// Tells the other thread to end.
const STOP: u64 = u64::MAX;

/// Two threads on the two cores hand a number to and fro, each writing its own line and reading the other's: no message between two cores can
/// be faster. Needs two cores.
pub fn cache_line(plan: &Plan, cpus: (usize, usize)) -> Result<Raw, String> {
    let there = Line(AtomicU64::new(0));
    let back = Line(AtomicU64::new(0));
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let done = machine::pin(cpus.1).map(|()| answer(&there.0, &back.0));
            back.0.store(STOP, Ordering::Release);
            done
        });
        let asking = scope.spawn(|| {
            let measured = machine::pin(cpus.0).and_then(|()| ask(plan, &there.0, &back.0));
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
fn ask(plan: &Plan, there: &AtomicU64, back: &AtomicU64) -> Result<Raw, String> {
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
    let warm_until = Instant::now() + WARM_UP;
    while Instant::now() < warm_until {
        trip();
    }
    samples::time_batches(plan, || {
        if (0..plan.batch).all(|_| trip()) { Ok(()) } else { Err("the second thread gave up".to_owned()) }
    })
}

/// Copies per look at the clock.
const COPIES_PER_LOOK: usize = 64;

/// One core copies a block of the message size into another block, both small enough to stay in its cache: a stream that copies in on one
/// core and out on the other at the same time cannot be faster than this.
pub fn memcpy(plan: &Plan, cpu: Option<usize>) -> Result<Raw, String> {
    let plan = plan.clone();
    let copying = thread::spawn(move || {
        if let Some(cpu) = cpu {
            machine::pin(cpu)?;
        }
        let from = vec![1u8; plan.size];
        let mut to = vec![2u8; plan.size];
        let mut copy = || {
            for _ in 0..COPIES_PER_LOOK {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
        };
        let warm_until = Instant::now() + WARM_UP;
        while Instant::now() < warm_until {
            copy();
        }
        let bytes = (plan.size * COPIES_PER_LOOK) as u64;
        let mut slices = Vec::new();
        let mut measured = Duration::ZERO;
        while measured < plan.seconds {
            let (begin, mut copied) = (Instant::now(), 0);
            while begin.elapsed() < Duration::from_millis(10) {
                copy();
                copied += bytes;
            }
            let length = begin.elapsed();
            slices.push((copied, length.as_nanos() as u64));
            measured += length;
        }
        Ok(Raw::Slices { message_bytes: plan.size as u64, slices })
    });
    copying.join().map_err(|_| "the thread of the copy measurement failed".to_owned())?
}
