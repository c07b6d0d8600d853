//! A time that depends on the size of a message.

use serde::{Deserialize, Serialize};

/// Nanoseconds for a message of so many bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// So much for every message, and so much for every byte.
    Line { ns: f64, ns_per_byte: f64 },
    /// (bytes, nanoseconds), bytes ascending: straight lines between the points, the first value before them, the last slope after them.
    Table(Vec<(u64, f64)>),
}

impl Cost {
    pub const ZERO: Cost = Cost::constant(0.0);

    pub const fn constant(ns: f64) -> Cost {
        Cost::Line { ns, ns_per_byte: 0.0 }
    }

    pub fn of(&self, bytes: usize) -> f64 {
        let bytes = bytes as f64;
        match self {
            Cost::Line { ns, ns_per_byte } => ns + ns_per_byte * bytes,
            Cost::Table(points) => {
                let after = points.partition_point(|(at, _)| (*at as f64) < bytes).min(points.len().saturating_sub(1));
                let (Some((to, to_ns)), Some((from, from_ns))) =
                    (points.get(after), points.get(after.saturating_sub(1)))
                else {
                    return 0.0;
                };
                if to == from {
                    return *to_ns;
                }
                let slope = (to_ns - from_ns) / (*to - *from) as f64;
                from_ns + slope * (bytes - *from as f64)
            }
        }
    }

    /// Whether it is a time for every size: finite, not negative, sizes ascending.
    pub fn is_valid(&self) -> bool {
        let time = |ns: f64| ns.is_finite() && ns >= 0.0;
        match self {
            Cost::Line { ns, ns_per_byte } => time(*ns) && time(*ns_per_byte),
            Cost::Table(points) => {
                let ascending = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
                let rising_at_the_end = points.windows(2).last().is_none_or(|pair| pair[0].1 <= pair[1].1);
                !points.is_empty() && ascending && rising_at_the_end && points.iter().all(|(_, ns)| time(*ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_straight_between_its_points() {
        let table = Cost::Table(vec![(10, 100.0), (20, 200.0), (40, 800.0)]);
        let found: Vec<f64> = [0, 10, 15, 20, 30, 40, 50].into_iter().map(|bytes| table.of(bytes)).collect();
        assert_eq!(found, [100.0, 100.0, 150.0, 200.0, 500.0, 800.0, 1_100.0]);
        assert_eq!(Cost::Table(vec![(8, 5.0)]).of(100), 5.0);
        assert!(table.is_valid() && !Cost::Table(vec![(2, 1.0), (1, 1.0)]).is_valid());
        assert!(!Cost::constant(f64::NAN).is_valid());
    }
}
