//! The text form of a simulated network, for command lines: `L=5us,o=1us,g=2us,G=1ns`.

use std::str::FromStr;

use super::{Cost, Model, Outliers, SimParameters, Switch};

/// What is wrong with a text, and what is right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("`{0}` is no parameter of a simulated network: there are {NAMES}")]
    Unknown(String),
    #[error("`{0}` must be written NAME=VALUE, such as L=5us")]
    NoValue(String),
    #[error("`{name}` is given twice")]
    Twice { name: String },
    #[error("`{name}={value}`: {wanted}")]
    Value { name: String, value: String, wanted: &'static str },
    #[error("{0}")]
    Impossible(String),
}

const NAMES: &str = "model, L, o, os, or, g, G, queue, window, rate, buffer, loss, reliable, retransmit, timeout, noise, outliers, \
                     switch, switch-delay, switch-G, clock, poll, seed";

const TIME: &str = "a time is a number with ns, us, ms or s, such as 1.5us";
const COST: &str = "a cost is a time such as 1us, a time and a time per byte such as 1us+0.2ns/B, or points such as [1:1us 1Ki:2us 64Ki:60us]";
const SIZE: &str = "a size is a whole number of bytes, with Ki, Mi or Gi where wanted, such as 64Ki";
const PART: &str = "a part is a number such as 0.01, or 1%";
const RATE: &str = "a rate is a number with B/s, KB/s, MB/s or GB/s, such as 125MB/s";

impl FromStr for SimParameters {
    type Err = ParseError;

    /// Reads `NAME=VALUE,NAME=VALUE,...`; what is not named has its default.
    fn from_str(text: &str) -> Result<SimParameters, ParseError> {
        let mut parameters = SimParameters::default();
        let mut seen: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| ParseError::NoValue(item.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(ParseError::Twice { name: name.to_owned() });
            }
            seen.push(name);
            set(&mut parameters, name, value)?;
        }
        if !seen.contains(&"switch") && seen.iter().any(|name| name.starts_with("switch-")) {
            return Err(ParseError::Impossible("switch-delay and switch-G need switch=SIZE".to_owned()));
        }
        parameters.check().map_err(ParseError::Impossible)?;
        Ok(parameters)
    }
}

fn set(parameters: &mut SimParameters, name: &str, value: &str) -> Result<(), ParseError> {
    let wrong = |wanted: &'static str| ParseError::Value { name: name.to_owned(), value: value.to_owned(), wanted };
    let ns = || time(value).ok_or_else(|| wrong(TIME));
    let bytes = || size(value).ok_or_else(|| wrong(SIZE));
    let part = || part(value).ok_or_else(|| wrong(PART));
    let costs = || cost(value).ok_or_else(|| wrong(COST));
    // The size of a switch may be named after what it changes.
    fn switch(parameters: &mut SimParameters) -> &mut Switch {
        parameters.switch.get_or_insert(Switch { from: 0, delay_ns: None, gap_per_byte_ns: None })
    }
    match name {
        "model" => {
            parameters.model = match value {
                "loggp" => Model::LogGp,
                "plogp" => Model::PLogP,
                _ => return Err(wrong("the model is loggp or plogp")),
            }
        }
        "L" => parameters.latency_ns = ns()?,
        "o" => {
            parameters.send_overhead = costs()?;
            parameters.receive_overhead = costs()?;
        }
        "os" => parameters.send_overhead = costs()?,
        "or" => parameters.receive_overhead = costs()?,
        "g" => parameters.gap = costs()?,
        "G" => parameters.gap_per_byte_ns = ns()?,
        "queue" => parameters.queue = bytes()?,
        "window" => parameters.window = bytes()?,
        "rate" => parameters.rate = Some(rate(value).ok_or_else(|| wrong(RATE))?),
        "buffer" => parameters.buffer = Some(bytes()?),
        "loss" => parameters.loss = part()?,
        "reliable" => {
            parameters.reliable = match value {
                "yes" => true,
                "no" => false,
                _ => return Err(wrong("it is yes or no")),
            }
        }
        "retransmit" => parameters.retransmit_ns = ns()?,
        "timeout" => parameters.timeout_ns = ns()?,
        "noise" => parameters.noise = part()?,
        "outliers" => {
            parameters.outliers =
                Some(outliers(value).ok_or_else(|| wrong("outliers are written PART*FACTOR, such as 0.1%*50"))?)
        }
        "switch" => switch(parameters).from = bytes()?,
        "switch-delay" => switch(parameters).delay_ns = Some(ns()?),
        "switch-G" => switch(parameters).gap_per_byte_ns = Some(ns()?),
        "clock" => parameters.clock_ns = ns()?,
        "poll" => parameters.poll_ns = ns()?,
        "seed" => parameters.seed = value.parse().map_err(|_| wrong("a seed is a whole number"))?,
        _ => return Err(ParseError::Unknown(name.to_owned())),
    }
    Ok(())
}

/// A number with one of these units; a number without any is refused, but for 0.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    match units.iter().find(|(name, _)| *name == unit.trim_start()) {
        Some((_, times)) => Some(number * times),
        None => (unit.is_empty() && number == 0.0).then_some(0.0),
    }
}

fn time(text: &str) -> Option<f64> {
    with_unit(text, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)])
}

fn rate(text: &str) -> Option<f64> {
    with_unit(text, &[("B/s", 1.0), ("KB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)])
}

fn part(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok().map(|percent| percent / 100.0),
        None => text.parse().ok(),
    }
}

fn size(text: &str) -> Option<usize> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = units.iter().find_map(|(unit, bits)| text.strip_suffix(unit).map(|number| (number, *bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    number.parse::<usize>().ok()?.checked_mul(1 << bits)
}

fn outliers(text: &str) -> Option<Outliers> {
    let (probability, factor) = text.split_once('*')?;
    Some(Outliers { probability: part(probability)?, factor: factor.parse().ok()? })
}

fn cost(text: &str) -> Option<Cost> {
    if let Some(points) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let point = |point: &str| {
            let (bytes, ns) = point.split_once(':')?;
            Some((size(bytes)? as u64, time(ns)?))
        };
        return points.split_whitespace().map(point).collect::<Option<Vec<_>>>().map(Cost::Table);
    }
    match text.split_once('+') {
        Some((fixed, per_byte)) => {
            let ns_per_byte = time(per_byte.strip_suffix("/B")?)?;
            Some(Cost::Line { ns: time(fixed)?, ns_per_byte })
        }
        None => match text.strip_suffix("/B") {
            Some(per_byte) => Some(Cost::Line { ns: 0.0, ns_per_byte: time(per_byte)? }),
            None => time(text).map(Cost::constant),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        text.parse::<SimParameters>().expect_err(text).to_string()
    }

    #[test]
    fn a_text_is_read_as_the_manual_says() {
        let text = "model=plogp, L=5us,os=1us+0.2ns/B,or=500ns,g=[1:1us 1Ki:2us],noise=20%,outliers=0.1%*50,rate=125MB/s,buffer=128Ki,\
                    loss=1%,reliable=no,switch-G=0.5ns,switch=64Ki,seed=9";
        let read: SimParameters = text.parse().expect("parameters");
        assert_eq!((read.model, read.latency_ns, read.seed), (Model::PLogP, 5_000.0, 9));
        assert_eq!(read.send_overhead, Cost::Line { ns: 1_000.0, ns_per_byte: 0.2 });
        assert_eq!(read.gap, Cost::Table(vec![(1, 1_000.0), (1_024, 2_000.0)]));
        assert_eq!((read.rate, read.buffer, read.loss, read.reliable), (Some(125e6), Some(131_072), 0.01, false));
        assert_eq!(read.switch, Some(Switch { from: 65_536, delay_ns: None, gap_per_byte_ns: Some(0.5) }));
        assert_eq!(read.outliers, Some(Outliers { probability: 0.001, factor: 50.0 }));
        assert_eq!("".parse(), Ok(SimParameters::default()));
    }

    #[test]
    fn errors_say_what_is_right() {
        assert!(error("l=5us").contains("there are model, L, o"));
        assert!(error("L").contains("NAME=VALUE"));
        assert!(error("L=5").contains("such as 1.5us"));
        assert!(error("L=5us,L=6us").contains("twice"));
        assert!(error("g=1us+2").contains("1us+0.2ns/B"));
        assert!(error("loss=2").contains("below 1"));
        assert!(error("noise=90%").contains("33 %"));
        assert!(error("L=0").contains("never end"));
        assert!(error("buffer=1Ki").contains("without rate"));
        assert!(error("switch-G=1ns").contains("need switch=SIZE"));
        assert!(error("g=[2:1us 1:1us]").contains("g must be"));
    }

    #[test]
    fn a_result_file_keeps_the_parameters() {
        let read: SimParameters = "L=3us,o=1us,switch=1Ki".parse().expect("parameters");
        let text = serde_json::to_string(&read).expect("JSON");
        assert_eq!(serde_json::from_str::<SimParameters>(&text).expect("parameters"), read);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn no_text_panics(text in "[LogG,=a-z0-9.%*\\[\\]: +/Kµ-]{0,40}") {
            let _ = text.parse::<SimParameters>();
        }
    }
}
