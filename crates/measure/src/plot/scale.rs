//! Axes: where a value stands, and which values get a label.

use crate::results::units;

/// What the values of an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Message sizes: powers of two get the labels.
    Bytes,
    /// Values of a metric's unit, such as `ns`.
    Unit(&'static str),
    /// Whole numbers, such as ranks.
    Count,
}

/// An axis before its values are known.
#[derive(Debug, Clone)]
pub struct Axis {
    pub label: String,
    pub quantity: Quantity,
    pub spacing: Spacing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    Linear,
    /// Where all values are above 0; else linear.
    Log,
    /// Logarithmic where values differ so much that a linear axis would hide the small ones.
    Auto,
}

/// Values that differ by more than this get a logarithmic axis where the choice is free.
const LOG_FROM: f64 = 12.0;

/// Where a size of 0 stands on a logarithmic axis: one step below 1 byte.
const NO_BYTES: f64 = 0.5;

/// An axis with bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub log: bool,
    quantity: Quantity,
    low: f64,
    high: f64,
}

impl Scale {
    /// The scale that holds these values; such that are not finite do not count.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Scale {
        let quantity = axis.quantity;
        let values = values.filter(|value| value.is_finite()).map(|value| value.clamp(-1e300, 1e300));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        let positive = low > 0.0 || (quantity == Quantity::Bytes && low >= 0.0);
        let log = match axis.spacing {
            Spacing::Linear => false,
            Spacing::Log => positive,
            Spacing::Auto => positive && high > low * LOG_FROM,
        };
        let (low, high) = match (log, quantity) {
            (true, Quantity::Bytes) => padded_log(low.max(NO_BYTES), high.max(NO_BYTES)),
            (true, _) => padded_log(low, high),
            (false, _) => padded_linear(low, high),
        };
        Scale { log, quantity, low, high }
    }

    /// A scale with given bounds, such as parts from 1 down to one in a million.
    pub fn fixed(low: f64, high: f64, log: bool) -> Scale {
        Scale { log, quantity: Quantity::Unit(""), low, high }
    }

    /// Where the value stands: 0 at the low end, 1 at the high one.
    pub fn at(&self, value: f64) -> f64 {
        let value = if self.log && self.quantity == Quantity::Bytes { value.max(NO_BYTES) } else { value };
        let place = match self.log {
            true => (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
            false => (value - self.low) / (self.high - self.low),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Values for labels, at most so many, ascending.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        match (self.log, self.quantity) {
            (true, Quantity::Bytes) => self.powers(2.0, most),
            (true, _) => self.decades(most),
            (false, _) => self.even(most),
        }
    }

    pub fn label(&self, value: f64) -> String {
        match self.quantity {
            Quantity::Bytes if value < 1.0 => "0 B".into(),
            Quantity::Bytes => units::bytes(value as u64),
            Quantity::Unit(unit) => units::value(value, unit),
            Quantity::Count => units::number(value),
        }
    }

    fn powers(&self, base: f64, most: usize) -> Vec<f64> {
        let from = (self.low.log(base) - 1e-9).ceil() as i32;
        let to = (self.high.log(base) + 1e-9).floor() as i32;
        let count = (to - from + 1).max(0) as usize;
        let step = count.div_ceil(most).max(1);
        (from..=to).step_by(step).map(|power| base.powi(power)).collect()
    }

    fn decades(&self, most: usize) -> Vec<f64> {
        let decades = self.powers(10.0, most);
        if decades.len() >= 3 || most <= decades.len() {
            return decades;
        }
        for steps in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0][..]] {
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            let inside: Vec<f64> = all.filter(|value| (self.low..=self.high).contains(value)).collect();
            if (2..=most).contains(&inside.len()) {
                return inside;
            }
        }
        if decades.len() >= 2 { decades } else { self.even(most) }
    }

    fn even(&self, most: usize) -> Vec<f64> {
        let span = self.high - self.low;
        let rough = span / most as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|part| part * power).find(|step| span / step <= most as f64);
        let step = step.unwrap_or(span).max(if self.quantity == Quantity::Count { 1.0 } else { 0.0 });
        let first = (self.low / step).ceil();
        let ticks = (0..=most).map(|index| (first + index as f64) * step);
        ticks.filter(|value| *value <= self.high + step * 1e-6).collect()
    }
}

fn padded_log(low: f64, high: f64) -> (f64, f64) {
    let room = if high > low { (high / low).powf(0.04).max(1.05) } else { 2.0 };
    ((low / room).max(f64::MIN_POSITIVE), (high * room).min(f64::MAX))
}

/// Bars and lines that start at 0 do not exaggerate.
fn padded_linear(low: f64, high: f64) -> (f64, f64) {
    let room = (high - low.min(0.0)) * 0.05;
    match () {
        () if low >= 0.0 && high == 0.0 => (0.0, 1.0),
        () if low >= 0.0 => (0.0, high + room),
        () => (low - room.max(low.abs() * 0.05), high.max(0.0) + room),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn axis(quantity: Quantity, spacing: Spacing) -> Axis {
        Axis { label: String::new(), quantity, spacing }
    }

    #[test]
    fn sizes_have_powers_of_two() {
        let scale = Scale::new(&axis(Quantity::Bytes, Spacing::Log), [1.0, 1048576.0].into_iter());
        let labels: Vec<String> = scale.ticks(6).into_iter().map(|tick| scale.label(tick)).collect();
        assert_eq!(labels, ["1 B", "16 B", "256 B", "4 KiB", "64 KiB", "1 MiB"]);
        assert_eq!(Scale::new(&axis(Quantity::Bytes, Spacing::Log), [0.0, 8.0].into_iter()).label(0.5), "0 B");
    }

    #[test]
    fn the_axis_is_logarithmic_where_values_differ_much_and_only_above_zero() {
        let auto = axis(Quantity::Unit("ns"), Spacing::Auto);
        assert!(Scale::new(&auto, [10.0, 1000.0].into_iter()).log);
        assert!(!Scale::new(&auto, [10.0, 20.0].into_iter()).log);
        assert!(!Scale::new(&auto, [0.0, 1000.0].into_iter()).log);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn any_values_have_places_and_few_ticks(values in prop::collection::vec(any::<f64>(), 0..9), bytes: bool, most in 0usize..12) {
            let quantity = if bytes { Quantity::Bytes } else { Quantity::Unit("ns") };
            for spacing in [Spacing::Linear, Spacing::Log, Spacing::Auto] {
                let scale = Scale::new(&axis(quantity, spacing), values.iter().copied());
                prop_assert!(values.iter().all(|value| (0.0..=1.0).contains(&scale.at(*value))));
                let ticks = scale.ticks(most);
                prop_assert!(ticks.len() <= most.max(2) + 1, "{ticks:?}");
                prop_assert!(ticks.is_sorted() && ticks.iter().all(|tick| tick.is_finite()), "{ticks:?}");
            }
        }
    }
}
