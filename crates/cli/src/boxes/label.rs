//! What a box says of itself: words on the loopback device of its switch, where `ip link` shows them too.

use std::fmt;

use serde::Deserialize;

use super::error::Result;
use super::names::Namespace;
use super::tools::{Tool, ask, batch};

/// The words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// `up` has done its work: the last thing that it says.
    pub is_complete: bool,
    /// The box needs the kernel's switch that [`hysteresis`](super::hysteresis) is about, and Ropeway has switched it on.
    pub has_hysteresis: bool,
    /// What the kernel does not say of every kind of queue in a form for programs.
    pub rate_bits_per_s: Option<u64>,
    pub burst_bytes: Option<u64>,
    pub host_rate_bits_per_s: Option<u64>,
}

const COMPLETE: &str = "complete";
const HYSTERESIS: &str = "htb_hysteresis";
const RATE: &str = "rate";
const BURST: &str = "burst";
const HOST_RATE: &str = "host-rate";

impl Label {
    /// Unknown words are another version's.
    pub fn parse(text: &str) -> Label {
        let mut label = Label::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                COMPLETE => label.is_complete = true,
                HYSTERESIS => label.has_hysteresis = true,
                RATE => label.rate_bits_per_s = value.parse().ok(),
                BURST => label.burst_bytes = value.parse().ok(),
                HOST_RATE => label.host_rate_bits_per_s = value.parse().ok(),
                _ => {}
            }
        }
        label
    }

    /// Of the box that has this switch.
    pub fn of(switch: &Namespace) -> Result<Label> {
        #[derive(Deserialize)]
        struct Loopback {
            #[serde(default)]
            ifalias: String,
        }
        let devices: Vec<Loopback> = ask(Tool::Ip, switch, &["link", "show", "dev", "lo"])?;
        Ok(devices.first().map_or_else(Label::default, |lo| Label::parse(&lo.ifalias)))
    }

    /// Replaces what the switch had.
    pub fn put(&self, switch: &Namespace) -> Result<()> {
        batch(Tool::Ip, Some(switch), &[format!("link set dev lo alias '{self}'")])
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Label { is_complete, has_hysteresis, rate_bits_per_s, burst_bytes, host_rate_bits_per_s } = *self;
        let word = |yes: bool, name: &str| yes.then(|| name.to_owned());
        let number = |value: Option<u64>, name: &str| value.map(|value| format!("{name}={value}"));
        let words = [
            word(is_complete, COMPLETE),
            word(has_hysteresis, HYSTERESIS),
            number(rate_bits_per_s, RATE),
            number(burst_bytes, BURST),
            number(host_rate_bits_per_s, HOST_RATE),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let all = Label {
            is_complete: true,
            has_hysteresis: true,
            rate_bits_per_s: Some(1_000_000_000),
            burst_bytes: Some(24_576),
            host_rate_bits_per_s: Some(5),
        };
        assert_eq!(all.to_string(), "complete htb_hysteresis rate=1000000000 burst=24576 host-rate=5");
        for label in [all, Label::default(), Label { rate_bits_per_s: None, ..all }] {
            assert_eq!(Label::parse(&label.to_string()), label);
        }
        assert_eq!(Label::parse("incomplete rate=x burst another=1"), Label::default());
    }
}
