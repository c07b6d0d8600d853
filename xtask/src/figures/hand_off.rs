//! How near two processors are to each other now.
//!
//! A virtual machine's processors run on those of a host, which may move them at any time: under one cache, or far apart. All that goes from one to the other takes several times as long
//! then, for every arm alike, but not alike much.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The processors on which the two ends of a measurement are put.
const ENDS: [usize; 2] = [0, 1];

/// How long is measured at least; and at most, if other programs want the processors and the two threads have not run at once in this time.
const TIME: Duration = Duration::from_millis(20);
const MOST_TIME: Duration = Duration::from_millis(400);

/// So long no line takes between two threads that run.
const WAITED_NS: f64 = 5_000.0;

/// Round trips that are timed together: reading the clock costs less than 2 % of them.
const BATCH: u64 = 64;

/// While a machine stays as it is, the figure differs by a third at most; where its processors were moved, by a factor of three and more.
const MOVED: f64 = 2.0;

const STOP: u64 = u64::MAX;

/// A word that shares no cache line with another, nor the pair of lines that some processors fetch together.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// The least time in nanoseconds in which one processor sees what the other wrote; `None` where there are no two of them, or others have them.
pub fn measure_ns() -> Option<f64> {
    let [there, back] = [Line::default(), Line::default()];
    thread::scope(|scope| {
        scope.spawn(|| match pin(ENDS[1]) {
            Some(()) => answer(&there.0, &back.0),
            None => back.0.store(STOP, Ordering::Release),
        });
        let asking = scope.spawn(|| {
            let least_ns = pin(ENDS[0]).and_then(|()| ask(&there.0, &back.0));
            there.0.store(STOP, Ordering::Release);
            least_ns
        });
        asking.join().ok().flatten()
    })
}

fn answer(there: &AtomicU64, back: &AtomicU64) {
    loop {
        match there.load(Ordering::Acquire) {
            STOP => return,
            value => back.store(value, Ordering::Release),
        }
    }
}

/// Whether these are figures of two machines.
pub fn differ(before: Option<f64>, after: Option<f64>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    before.max(after) / before.min(after) > MOVED
}

/// `None`: nobody answers.
fn ask(there: &AtomicU64, back: &AtomicU64) -> Option<f64> {
    let (begin, mut least_ns, mut value) = (Instant::now(), f64::INFINITY, 0);
    let goes_on = |least_ns: f64| begin.elapsed() < if least_ns < WAITED_NS { TIME } else { MOST_TIME };
    while goes_on(least_ns) {
        let start = Instant::now();
        for _ in 0..BATCH {
            value += 1;
            there.store(value, Ordering::Release);
            loop {
                match back.load(Ordering::Acquire) {
                    STOP => return None,
                    seen if seen == value => break,
                    _ => {}
                }
            }
        }
        least_ns = least_ns.min(start.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
    }
    Some(least_ns).filter(|least_ns| *least_ns < WAITED_NS)
}

fn pin(cpu: usize) -> Option<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_testkit::skip;

    #[test]
    fn two_processors_are_some_nanoseconds_apart() {
        let Some(ns) = measure_ns() else { skip!("processors 0 and 1 are not to be had at once") };
        assert!((1.0..WAITED_NS).contains(&ns), "{ns}");
    }

    #[test]
    fn a_machine_is_another_one_where_the_hand_off_doubles_and_nothing_is_said_where_it_is_not_known() {
        assert!(differ(Some(35.0), Some(165.0)) && differ(Some(165.0), Some(35.0)));
        assert!(!differ(Some(30.0), Some(40.0)) && !differ(None, Some(165.0)) && !differ(Some(35.0), None));
    }
}
