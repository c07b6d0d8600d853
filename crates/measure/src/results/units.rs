//! Values as people read them: three digits that count, the unit that fits, and names of metrics.

use crate::record::Metric;

/// A size with the binary prefix that leaves no long number: `64 B`, `4 KiB`, `1472 B`.
pub fn bytes(size: u64) -> String {
    const PREFIXES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut power = 0;
    while power + 1 < PREFIXES.len() && size >= 1 << (10 * (power + 1)) && size.is_multiple_of(1 << (10 * (power + 1)))
    {
        power += 1;
    }
    let exact = size >> (10 * power);
    if exact < 10_000 {
        return format!("{exact} {}", PREFIXES[power]);
    }
    let power = (size.ilog2() / 10) as usize;
    format!("{} {}", number(size as f64 / (1u64 << (10 * power)) as f64), PREFIXES[power])
}

/// A value of a metric's unit with the prefix that fits: `2.31 µs`, `1.25 GB/s`, `3.4 M/s`.
pub fn value(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return "no number".into();
    }
    let scale = scale(value, unit);
    format!("{}{}", number(value / scale.divide_by), scale.suffix())
}

/// What values of one axis or table are divided by, and their unit then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub divide_by: f64,
    pub unit: &'static str,
}

impl Scale {
    /// What stands behind a number: a space and the unit, where there is one.
    pub fn suffix(self) -> String {
        if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) }
    }
}

/// The scale for values about as large as this.
pub fn scale(about: f64, unit: &str) -> Scale {
    let steps: &[(f64, &'static str)] = match unit {
        "ns" => &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")],
        "bytes/s" => &[(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")],
        "1/s" => &[(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s"), (1e9, "G/s")],
        "instructions" => &[(1.0, "instructions")],
        _ => &[(1.0, "")],
    };
    // A value that would be shown as 1000 takes the next prefix.
    let size = about.abs() * 1.0005;
    let (divide_by, unit) = steps.iter().rev().find(|(step, _)| size >= *step).copied().unwrap_or(steps[0]);
    Scale { divide_by, unit }
}

/// Three digits that count; without zeros that only fill, and in powers of ten where the number would be long.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "no number".into();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e7).contains(&size) {
        return format!("{value:.2e}");
    }
    let before = if size < 1.0 { 0 } else { size.log10().floor() as i32 + 1 };
    let decimals = match size {
        0.0 => 0,
        _ if size < 1.0 => (2 - size.log10().floor() as i32).clamp(2, 6) as usize,
        _ => (3 - before).max(0) as usize,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// What a metric is called in tables and figures.
pub fn metric_name(metric: Metric) -> &'static str {
    use Metric::*;
    match metric {
        OneWay => "one-way time",
        RoundTrip => "round-trip time",
        Response => "response time",
        Completion => "completion time",
        Goodput => "goodput",
        MessageRate => "message rate",
        ConnectionRate => "connection rate",
        Loss => "loss",
        Fairness => "fairness",
        Overlap => "overlap",
        SendOverhead => "send overhead",
        ReceiveOverhead => "receive overhead",
        Gap => "gap",
        Noise => "noise",
        Instructions => "instructions",
        TotalGoodput => "goodput of all",
        LoadedOneWay => "one-way time beside bulk",
        TimerNeeded => "part that needs a timer",
    }
}

/// A metric as result files and command lines spell it.
pub fn metric_key(metric: Metric) -> String {
    let spelled = serde_json::to_value(metric).ok();
    spelled.and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

/// The metric that is spelled so.
pub fn metric_of(key: &str) -> Option<Metric> {
    serde_json::from_value(serde_json::Value::String(key.to_owned())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_exact_where_they_can_be() {
        let cases = [(0, "0 B"), (1, "1 B"), (1472, "1472 B"), (4096, "4 KiB"), (65536, "64 KiB"), (1 << 20, "1 MiB")];
        for (size, text) in cases {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(bytes(1_000_001), "977 KiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
    }

    #[test]
    fn values_have_three_digits_and_a_fitting_unit() {
        let cases = [(2314.0, "ns", "2.31 µs"), (999.9, "ns", "1 µs"), (0.0, "ns", "0 ns"), (-2500.0, "ns", "-2.5 µs")];
        for (number, unit, text) in cases {
            assert_eq!(value(number, unit), text);
        }
        assert_eq!(value(1.25e9, "bytes/s"), "1.25 GB/s");
        assert_eq!(value(0.0123, ""), "0.0123");
        assert_eq!(value(f64::NAN, "ns"), "no number");
        assert_eq!(number(123_456.0), "123456");
        assert_eq!(number(1e300), "1.00e300");
    }
}
