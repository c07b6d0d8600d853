//! How fast something goes, over windows of a millisecond.

use crate::time::Time;

/// A rate is measured over at least this long ...
const WINDOW_NS: u64 = 1_000_000;
/// ... and anew after so many times that without anything.
const IDLE_WINDOWS: u64 = 4;

/// A sum over time, bytes or packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    window_at: Time,
    count: u64,
    /// At least 1 once it is known.
    per_ms: u64,
}

impl Rate {
    /// `is_full`: what was counted could not have been faster, so the rate may fall.
    pub fn note(&mut self, count: u64, now: Time, is_full: bool) {
        if now.since(self.window_at) >= WINDOW_NS * IDLE_WINDOWS {
            // Nothing came for a while: that says nothing about how fast it can come.
            (self.count, self.window_at) = (0, now);
        }
        self.count += count;
        let elapsed = now.since(self.window_at);
        if elapsed >= WINDOW_NS {
            let rate = self.count * 1_000_000 / elapsed;
            if is_full || rate > self.per_ms && self.per_ms > 0 {
                self.per_ms = if self.per_ms == 0 { rate.max(1) } else { (self.per_ms * 3 + rate).div_ceil(4) };
            }
            (self.count, self.window_at) = (0, now);
        }
    }

    /// Lately; 0: not known.
    pub fn per_ms(&self) -> u64 {
        self.per_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_no_slow_rate() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_ms(), 0);
        let steady = |rate: &mut Rate, from_us: u64| {
            (0..10_000).for_each(|step| rate.note(1, Time::from_nanos((from_us + step * 10) * 1000), true));
        };
        steady(&mut rate, 0);
        assert!((95..=101).contains(&rate.per_ms()), "{rate:?}");
        steady(&mut rate, 5_000_000);
        assert!((95..=101).contains(&rate.per_ms()), "{rate:?}");
        (0..1000).for_each(|step| rate.note(1, Time::from_nanos(9_000_000_000 + step * 1_000_000), false));
        assert!((95..=101).contains(&rate.per_ms()), "who has nothing to send is not slow: {rate:?}");
    }
}
