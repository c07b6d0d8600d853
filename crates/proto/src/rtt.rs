//! Round-trip time: smoothed mean and variation (RFC 6298's weights), and the least seen.

/// An estimate that starts from an assumption.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    least_ns: u64,
    samples: u64,
}

impl Rtt {
    pub fn assumed(ns: u64) -> Rtt {
        Rtt { smoothed_ns: ns, variation_ns: ns / 2, least_ns: u64::MAX, samples: 0 }
    }

    pub fn sample(&mut self, ns: u64) {
        self.least_ns = self.least_ns.min(ns);
        self.samples += 1;
        if self.samples == 1 {
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

    /// How long an answer may reasonably take: smoothed + 4 x variation.
    pub fn patience_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.variation_ns
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }
}
