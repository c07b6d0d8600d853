//! Round-trip time: smoothed mean and variation (RFC 6298's weights), and the least seen.

/// An estimate that starts from an assumption.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    least_ns: u64,
    latest_ns: u64,
    /// Whether there has been a sample.
    known: bool,
}

impl Rtt {
    pub fn assumed(ns: u64) -> Rtt {
        Rtt { smoothed_ns: ns, variation_ns: ns / 2, least_ns: u64::MAX, latest_ns: ns, known: false }
    }

    /// One that may be more than it seems is no new least.
    pub fn sample(&mut self, ns: u64, may_be_more: bool) {
        if !may_be_more || !self.known {
            self.least_ns = self.least_ns.min(ns);
        }
        self.latest_ns = ns;
        if !std::mem::replace(&mut self.known, true) {
            (self.smoothed_ns, self.variation_ns) = (ns, ns / 2);
            return;
        }
        let error = self.smoothed_ns.abs_diff(ns);
        self.variation_ns = self.variation_ns - self.variation_ns / 4 + error / 4;
        self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + ns / 8;
    }

    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The least sample, or the assumption before the first.
    pub fn least_ns(&self) -> u64 {
        self.least_ns.min(self.smoothed_ns)
    }

    /// The least sample, if there has been one.
    pub fn known_least_ns(&self) -> Option<u64> {
        self.known.then_some(self.least_ns)
    }

    /// How long an answer may reasonably take: smoothed + 4 x variation.
    pub fn patience_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.variation_ns
    }

    /// How much of the latest sample was spent in queues, as far as can be told.
    pub fn queueing_ns(&self) -> u64 {
        self.latest_ns.saturating_sub(self.least_ns())
    }

    pub fn variation_ns(&self) -> u64 {
        self.variation_ns
    }
}
