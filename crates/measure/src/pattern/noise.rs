//! The host's own noise: fixed work quanta. The same work is done again and again; what it takes beyond its shortest time was taken by somebody else (interrupts,
//! other programs, a hypervisor). One rank; nothing is sent.

use super::{Bound, Trial};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// Steps of work whose time the clock must have moved for.
const MOST_STEPS: u64 = 1 << 36;

pub fn run(transport: &mut dyn Transport, trial: &Trial, quantum_ns: u64) -> Result<Vec<Series>, Failure> {
    if transport.name() == "sim" {
        return Err(Failure::Unsupported(
            "noise is the host's own; the clock of sim does not run while it works".to_owned(),
        ));
    }
    if quantum_ns == 0 {
        return Err(Failure::Unsupported("a quantum of work must be at least 1 ns long".to_owned()));
    }
    if transport.rank() != 0 {
        return Ok(Vec::new());
    }
    let steps = steps_of(transport, quantum_ns)?;
    let warm_until = transport.now_ns() + trial.warm_up_ns;
    while transport.now_ns() < warm_until {
        work(steps);
    }
    let mut taken = Vec::new();
    let start = transport.now_ns();
    let mut then = start;
    loop {
        let go_on = match trial.bound {
            Bound::Samples(count) => taken.len() < count as usize,
            Bound::DurationNs(ns) => then - start < ns,
        };
        if !go_on {
            break;
        }
        work(steps);
        let now = transport.now_ns();
        taken.push((now - then) as f64);
        then = now;
    }
    let shortest = taken.iter().copied().fold(f64::INFINITY, f64::min);
    let beyond = taken.iter().map(|ns| ns - shortest).collect();
    Ok(vec![Series::samples(Metric::Noise, 1, beyond)])
}

/// How many steps take about one quantum, at the speed of the least disturbed of some tries.
fn steps_of(transport: &mut dyn Transport, quantum_ns: u64) -> Result<u64, Failure> {
    let mut steps = 64;
    while steps < MOST_STEPS {
        let tries = (0..5).map(|_| {
            let start = transport.now_ns();
            work(steps);
            transport.now_ns() - start
        });
        let shortest = tries.min().unwrap_or(0);
        // Long enough to be told from the clock's own steps.
        if shortest >= quantum_ns.min(10_000) {
            return Ok((steps as f64 * quantum_ns as f64 / shortest as f64).ceil().max(1.0) as u64);
        }
        steps *= 2;
    }
    Err(Failure::Unsupported("the clock does not move while the processor works".to_owned()))
}

/// Steps of which each needs the one before: nothing that a compiler or a processor could do at once.
fn work(steps: u64) {
    let mut state = std::hint::black_box(1u64);
    for _ in 0..steps {
        state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }
    std::hint::black_box(state);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{self, Pattern};
    use crate::record::Values;
    use crate::transport::{memory, sim};

    fn trial(quantum_ns: u64) -> Trial {
        Trial {
            pattern: Pattern::Noise { quantum_ns },
            size: 1,
            bound: Bound::Samples(200),
            warm_up_ns: 1_000,
            seed: 1,
        }
    }

    #[test]
    fn the_shortest_quantum_is_without_noise() {
        let mut alone = memory::ranks(1).remove(0);
        let series = pattern::run(&mut alone, &trial(5_000)).expect("no failure").remove(0);
        let Values::Samples(samples) = series.values else { panic!("samples") };
        assert_eq!((samples.len(), samples.iter().copied().fold(f64::MAX, f64::min)), (200, 0.0));
    }

    #[test]
    fn a_clock_that_does_not_run_is_refused() {
        let mut alone = sim::ranks(1, &sim::SimParameters::default()).expect("a network").remove(0);
        let failure = pattern::run(&mut alone, &trial(5_000)).expect_err("refused");
        assert!(failure.to_string().contains("the clock of sim"));
        let mut alone = memory::ranks(1).remove(0);
        assert!(pattern::run(&mut alone, &trial(0)).is_err());
    }
}
