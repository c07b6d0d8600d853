//! How long a waiting thread polls before it sleeps: no longer than a bound, and no longer than polling has paid off lately.

/// Without a setting: about the cost of a sleep and a wake-up.
pub const USUAL_SPIN_NS: u64 = 50_000;
/// Failures in a row after which a thread stops spinning ...
const MOST_FAILURES: u32 = 4;
/// ... except every so many waits, to notice when it would pay again.
const PROBE_EVERY: u32 = 32;
/// A thread that spins offers the processor to others this often: rarer than the answers of a fast network come, as an offer may be taken.
pub const YIELD_EVERY_NS: u64 = 10_000;

/// What polling has brought lately.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    most_ns: u64,
    failures: u32,
    waits: u32,
}

impl Spin {
    /// On one processor polling only keeps the peer from running.
    pub fn new(most_ns: u64) -> Spin {
        let alone = ropeway_shm::processors::usable() < 2;
        Spin { most_ns: if alone { 0 } else { most_ns }, failures: 0, waits: 0 }
    }

    pub fn most_ns(&self) -> u64 {
        self.most_ns
    }

    pub fn budget_ns(&mut self) -> u64 {
        self.waits = self.waits.wrapping_add(1);
        if self.failures < MOST_FAILURES || self.waits.is_multiple_of(PROBE_EVERY) { self.most_ns } else { 0 }
    }

    /// Polling brought what was waited for.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The budget ran out.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_that_never_pays_becomes_rare() {
        let mut spin = Spin { most_ns: 1, failures: 0, waits: 0 };
        let spent: u64 = (0..320)
            .map(|_| {
                let budget = spin.budget_ns();
                if budget > 0 {
                    spin.failed();
                }
                budget
            })
            .sum();
        assert!(spent <= 4 + 10, "{spent}");
        spin.succeeded();
        assert_eq!(spin.budget_ns(), 1);
    }
}
