//! Raw samples and the little statistics made of them.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::plan::Plan;

/// What one round measured; kept as it is in the JSON result.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Raw {
    /// Durations of batches of round trips: (nanoseconds per batch, how often), ascending. Only the order in time is lost.
    RoundTrips { batch: u32, batch_ns: Vec<(u64, u64)> },
    /// Consecutive slices of the measured window: (bytes received, nanoseconds).
    Slices { message_bytes: u64, slices: Vec<(u64, u64)> },
}

impl Raw {
    pub fn from_batches(batch: u32, mut nanos: Vec<u32>) -> Raw {
        nanos.sort_unstable();
        let mut batch_ns: Vec<(u64, u64)> = Vec::new();
        for ns in nanos {
            match batch_ns.last_mut() {
                Some((value, count)) if *value == u64::from(ns) => *count += 1,
                _ => batch_ns.push((u64::from(ns), 1)),
            }
        }
        Raw::RoundTrips { batch, batch_ns }
    }

    /// One-way microseconds below which the fraction `q` of the batches lies. None for other kinds and without samples.
    pub fn one_way_us(&self, q: f64) -> Option<f64> {
        let Raw::RoundTrips { batch, batch_ns } = self else { return None };
        let total: u64 = batch_ns.iter().map(|(_, count)| count).sum();
        let rank = ((total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (ns, count) in batch_ns {
            seen += count;
            if seen >= rank {
                return Some(*ns as f64 / f64::from(2 * batch) / 1e3);
            }
        }
        None
    }

    /// Bytes per nanosecond over the whole window, which is GB/s.
    pub fn gigabytes_per_s(&self) -> Option<f64> {
        let Raw::Slices { slices, .. } = self else { return None };
        let (bytes, ns) = slices.iter().fold((0, 0), |(b, n), (bytes, ns)| (b + bytes, n + ns));
        (ns > 0).then(|| bytes as f64 / ns as f64)
    }

    /// Millions of messages per second over the whole window.
    pub fn million_messages_per_s(&self) -> Option<f64> {
        let Raw::Slices { message_bytes, .. } = self else { return None };
        Some(self.gigabytes_per_s()? * 1e3 / *message_bytes as f64)
    }
}

/// Most samples that one round keeps: 64 MiB of them.
const MOST_SAMPLES: u128 = 1 << 24;

/// Repeats `batch` (which makes `plan.batch` round trips) for the planned time and keeps how long each call took.
pub fn time_batches<E>(plan: &Plan, mut batch: impl FnMut() -> Result<(), E>) -> Result<Raw, E> {
    let most = plan.seconds.as_nanos() / (SHORTEST_ROUND_TRIP_NS as u128 * u128::from(plan.batch)) + 1;
    // Not zero: zeroed memory is untouched memory, and its page faults would fall into the measured time.
    let mut nanos = vec![1u32; most.min(MOST_SAMPLES) as usize];
    let mut taken = 0;
    let mut then = Instant::now();
    let end = then + plan.seconds;
    while then < end && taken < nanos.len() {
        batch()?;
        let now = Instant::now();
        nanos[taken] = u32::try_from((now - then).as_nanos()).unwrap_or(u32::MAX);
        taken += 1;
        then = now;
    }
    nanos.truncate(taken);
    Ok(Raw::from_batches(plan.batch, nanos))
}

/// The middle of some values (the mean of the two middle ones if their number is even). None without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Readings taken to learn what reading the clock costs.
const CLOCK_READINGS: u32 = 100_000;

/// Cost of reading the clock once, in nanoseconds.
pub fn clock_cost_ns() -> f64 {
    let start = Instant::now();
    for _ in 0..CLOCK_READINGS {
        std::hint::black_box(Instant::now());
    }
    start.elapsed().as_nanos() as f64 / f64::from(CLOCK_READINGS)
}

/// Fewest round trips per sample; all transports use the same number so that their p99 mean the same.
const SMALLEST_BATCH: u32 = 16;

/// A round trip shorter than this has not been seen on any x86-64 machine; it sets how large a batch must be.
const SHORTEST_ROUND_TRIP_NS: f64 = 100.0;

/// The part of the measured time that may go into reading the clock.
const CLOCK_SHARE: f64 = 0.02;

/// The number of round trips per sample with which reading the clock stays below [`CLOCK_SHARE`] even on the fastest transport.
pub fn batch_for_clock(clock_ns: f64) -> u32 {
    ((clock_ns / (CLOCK_SHARE * SHORTEST_ROUND_TRIP_NS)).ceil() as u32).max(SMALLEST_BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_taken_from_the_counts() {
        let raw = Raw::from_batches(1, vec![4_000, 2_000, 2_000, 100_000]);
        assert_eq!(raw.one_way_us(0.5), Some(1.0));
        assert_eq!(raw.one_way_us(0.75), Some(2.0));
        assert_eq!(raw.one_way_us(0.99), Some(50.0));
        assert_eq!(raw.gigabytes_per_s(), None);
    }

    #[test]
    fn rates_are_taken_over_the_whole_window_not_averaged_over_slices() {
        let raw = Raw::Slices { message_bytes: 8, slices: vec![(800, 100), (0, 100)] };
        assert_eq!(raw.gigabytes_per_s(), Some(4.0));
        assert_eq!(raw.million_messages_per_s(), Some(500.0));
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        assert_eq!(Raw::from_batches(16, Vec::new()).one_way_us(0.5), None);
        assert_eq!(Raw::Slices { message_bytes: 8, slices: Vec::new() }.gigabytes_per_s(), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn median_of_odd_and_even_numbers_of_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_slow_clock_makes_batches_larger() {
        assert_eq!(batch_for_clock(20.0), SMALLEST_BATCH);
        assert_eq!(batch_for_clock(1_000.0), 500);
    }
}
