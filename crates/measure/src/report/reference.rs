//! Values that are printed in the source documents (docs/sources.md), to be drawn beside today's. Only what the texts give as a number stands here; nothing is read off a curve.

use crate::record::Metric;

/// A printed value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reference {
    /// Document and section.
    pub source: &'static str,
    pub figure: &'static str,
    /// What was measured.
    pub system: &'static str,
    /// Patterns of today that measure the same.
    pub patterns: &'static [&'static str],
    pub metric: Metric,
    /// Bytes of a message, where the value is drawn; `None` where the text does not say, and the value is only listed.
    pub size: Option<u64>,
    /// In the metric's unit.
    pub value: f64,
    /// As it is printed.
    pub printed: &'static str,
}

/// The printed values for a pattern and metric.
pub fn of(pattern: &str, metric: Metric) -> impl Iterator<Item = &'static Reference> {
    REFERENCES.iter().filter(move |reference| reference.metric == metric && reference.patterns.contains(&pattern))
}

const fn mbit(value: u32) -> f64 {
    value as f64 * 1e6 / 8.0
}

const STREAM: &[&str] = &["stream"];
const PINGPONG: &[&str] = &["pingpong"];
const ONE_ONE: &[&str] = &["one-one", "stream"];
/// What document 2 calls one-many: clients send to one server ([2:2.4.4]).
const INCAST: &[&str] = &["many-one"];
/// Document 2 prints sizes of 65, 128 and 256 kB; they are drawn at the powers of two that are nearest.
const KB_65: Option<u64> = Some(65_536);
const KB_128: Option<u64> = Some(131_072);
const KB_256: Option<u64> = Some(262_144);

const fn goodput(
    source: &'static str,
    figure: &'static str,
    system: &'static str,
    patterns: &'static [&'static str],
    size: Option<u64>,
    (mbit_per_s, printed): (u32, &'static str),
) -> Reference {
    Reference { source, figure, system, patterns, metric: Metric::Goodput, size, value: mbit(mbit_per_s), printed }
}

const fn one_way(
    source: &'static str,
    figure: &'static str,
    system: &'static str,
    size: Option<u64>,
    (ns, printed): (u32, &'static str),
) -> Reference {
    let value = ns as f64;
    Reference { source, figure, system, patterns: PINGPONG, metric: Metric::OneWay, size, value, printed }
}

const fn bytes_per_s(figure: &'static str, system: &'static str, (value, printed): (f64, &'static str)) -> Reference {
    Reference { source: "[4:6]", figure, system, patterns: STREAM, metric: Metric::Goodput, size: None, value, printed }
}

/// All of them, by document.
pub const REFERENCES: &[Reference] = &[
    goodput("[0:5.2.2]", "figure 5.4", "CDP, Gigabit Ethernet", STREAM, Some(1472), (884, "884 Mbps at 1472 bytes")),
    goodput("[0:5.2.2]", "figure 5.4", "UDP, Gigabit Ethernet", STREAM, Some(1472), (920, "920 Mbps at 1472 bytes")),
    goodput("[0:5.2.2]", "figure 5.4", "TCP, Gigabit Ethernet", STREAM, Some(1472), (927, "927 Mbps at 1472 bytes")),
    goodput("[1:5.2]", "figure 8", "CDP, Gigabit Ethernet", STREAM, Some(1472), (615, "615 Mbps at 1472 bytes")),
    goodput("[1:5.2]", "figure 8", "UDP, Gigabit Ethernet", STREAM, Some(1472), (630, "630 Mbps at 1472 bytes")),
    goodput("[1:5.2]", "figure 8", "TCP, Gigabit Ethernet", STREAM, Some(1472), (666, "666 Mbps at 1472 bytes")),
    goodput("[2:6.5.1]", "figure 19", "ESP, one sender", ONE_ONE, KB_256, (838, "838 MBit/s at 256 kB")),
    goodput("[2:6.5.1]", "figure 19", "TCP with TSO, one sender", ONE_ONE, KB_128, (833, "833 MBit/s at 128 kB")),
    goodput("[2:6.5.1]", "figure 19", "TCP without TSO, one sender", ONE_ONE, KB_65, (756, "756 MBit/s at 65 kB")),
    goodput("[2:6.5.2]", "figure 20", "ESP, two senders", INCAST, KB_256, (887, "887 MBit/s at 256 kB")),
    goodput("[2:6.5.2]", "figure 20", "TCP, two senders", INCAST, KB_65, (787, "787 MBit/s at 65 kB")),
    goodput("[2:6.5.2]", "figure 20", "TCP, two senders, very large messages", INCAST, None, (500, "about 500 MBit/s")),
    one_way("[4:6]", "figure 9", "SCI SOCKET, Opteron", Some(1), (2310, "2.31 µs for 1 byte")),
    one_way("[4:6]", "figure 9", "SCI SOCKET, Opteron, least", Some(1), (2260, "2.26 µs for 1 byte")),
    one_way("[4:6]", "figure 9", "SCI SOCKET, Athlon", Some(1), (3190, "3.19 µs for 1 byte")),
    one_way("[4:6]", "figure 9", "SCI SOCKET, Athlon, least", Some(1), (2900, "2.90 µs for 1 byte")),
    one_way("[4:6]", "text", "Sockets Direct Protocol over InfiniBand", Some(2), (28_000, "28 µs for 2 bytes")),
    one_way("[4:6]", "figure 10", "SCI user sockets, Netperf", None, (2450, "203800 transactions/s, 2.45 µs")),
    one_way("[4:6]", "figure 10", "Gigabit Ethernet, Netperf", None, (23_200, "21400 transactions/s, 23.2 µs")),
    bytes_per_s("figure 11", "SCI sockets, Opteron", (186e6, "186 MB/s")),
    bytes_per_s("figure 11", "SCI user sockets, Athlon", (257e6, "257 MB/s")),
    bytes_per_s("figure 11", "SCI kernel sockets, Athlon", (256e6, "256 MB/s")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_is_printed() {
        for reference in REFERENCES {
            let value = match reference.metric {
                Metric::OneWay => reference.value / 1000.0,
                _ if reference.printed.contains("MB/s") => reference.value / 1e6,
                _ => reference.value * 8.0 / 1e6,
            };
            let text = crate::results::units::number(value);
            assert!(reference.printed.contains(&text), "{text}: {reference:?}");
            assert!(reference.source.starts_with('[') && !reference.patterns.is_empty());
        }
    }

    #[test]
    fn patterns_find_their_values() {
        assert_eq!(of("many-one", Metric::Goodput).count(), 3);
        assert_eq!(of("pingpong", Metric::OneWay).filter(|reference| reference.size.is_some()).count(), 5);
        assert_eq!(of("pingpong", Metric::Goodput).count(), 0);
    }
}
