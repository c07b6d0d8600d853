//! Numbers as people write them on the command line of `ropeway box`: a rate, a share of frames, a time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bits per second on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    pub bits_per_s: u64,
}

impl Rate {
    /// A slower line would take more than a minute for one jumbo frame.
    const LEAST: Rate = Rate { bits_per_s: 1_000 };
    /// The fastest Ethernet there is.
    const MOST: Rate = Rate { bits_per_s: 1_600_000_000_000 };
    const UNITS: [(&'static str, u64); 4] = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("bit", 1)];

    /// Bytes that pass in this time.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bits = u128::from(self.bits_per_s) * time.as_nanos() / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let wrong = || format!("`{text}` is not a rate; write it like 1gbit, 2.5gbit, 100mbit or 64kbit");
        let bits = with_unit(text, &Self::UNITS).ok_or_else(wrong)?;
        let rate = Rate { bits_per_s: bits };
        if rate.bits_per_s == 0 {
            return Err("a line with a rate of 0 carries nothing; cut a host with `ropeway box cut`".into());
        }
        if !(Self::LEAST..=Self::MOST).contains(&rate) {
            return Err(format!("{rate} is out of range; a rate is between {} and {}", Self::LEAST, Self::MOST));
        }
        Ok(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_s;
        let scales = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];
        // The largest unit that needs at most one digit behind the point.
        match scales.into_iter().find(|(_, scale)| bits >= *scale && bits.is_multiple_of(scale / 10)) {
            Some((unit, scale)) if bits.is_multiple_of(scale) => f.pad(&format!("{}{unit}", bits / scale)),
            Some((unit, scale)) => f.pad(&format!("{}.{}{unit}", bits / scale, bits % scale * 10 / scale)),
            None => f.pad(&format!("{bits}bit")),
        }
    }
}

/// A share of frames, held as the kernel's random numbers are compared with it: a frame is lost when a number drawn evenly
/// from 0..2^32 is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// At most 2^32 - 1: a share of all frames is a cut.
    pub threshold: u32,
}

/// 2^32, the number of the values that a random number takes.
const ALL: f64 = 4_294_967_296.0;

impl Share {
    pub const NONE: Share = Share { threshold: 0 };

    pub fn percent(self) -> f64 {
        // Six digits behind the point are below the step of 2^-32 and give back what was written.
        (f64::from(self.threshold) / ALL * 1e8).round() / 1e6
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let wrong = || format!("`{text}` is not a share of frames; write it in per cent, like 1% or 0.05%");
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let percent: f64 = number.parse().map_err(|_| wrong())?;
        if percent >= 100.0 {
            return Err(format!("{text} of the frames is all of them; `ropeway box cut` does that"));
        }
        if !percent.is_finite() || percent < 0.0 {
            return Err(wrong());
        }
        // Below 100 %, so below 2^32 as well; the conversion cannot go past the largest value.
        let share = Share { threshold: (percent / 100.0 * ALL).round() as u32 };
        if share == Share::NONE && percent > 0.0 {
            return Err(format!("{text} is less than one frame of 2^32; 0% ends a loss"));
        }
        Ok(share)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent())
    }
}

/// A time between microseconds and seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub Duration);

impl Delay {
    /// Further than to the moon: nobody means it.
    const MOST: Duration = Duration::from_secs(10);
    const UNITS: [(&'static str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Delay, String> {
        let wrong = || format!("`{text}` is not a time; write it like 50us, 1.5ms or 1s");
        let time = Duration::from_nanos(with_unit(text, &Self::UNITS).ok_or_else(wrong)?);
        if time.is_zero() || time > Self::MOST {
            return Err(format!("a delay of {text} is out of range; it is above 0 and at most {:?}", Self::MOST));
        }
        Ok(Delay(time))
    }
}

/// `2.5gbit` in units of the smallest: digits, at most three of them behind a point, and a unit.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(rest) || rest.len() > 3 {
        return None;
    }
    let parts = format!("{rest:0<3}").parse::<u64>().ok()?;
    let thousandths = whole.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(parts)?;
    let scaled = u128::from(thousandths) * u128::from(*factor);
    (scaled % 1_000 == 0).then_some(scaled / 1_000)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits) in [("1gbit", 1_000_000_000), ("2.5Gbit", 2_500_000_000), ("100mbit", 100_000_000)] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.bits_per_s, bits);
            assert_eq!(rate.to_string(), text.to_lowercase());
        }
        assert_eq!(Rate { bits_per_s: 1_234_567_890 }.to_string(), "1234567890bit");
        for bad in ["", "1", "gbit", "1 gbit", "-1gbit", "1.5.0gbit", "1.gbit", "1.2345gbit", "1gbps", "0.5bit", "1bit"]
        {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        assert!("0gbit".parse::<Rate>().unwrap_err().contains("carries nothing"));
        for long in ["9999999999999gbit", "18446744073709551.999bit", "99999999999999999999gbit"] {
            assert!(long.parse::<Rate>().is_err(), "{long}");
        }
        assert_eq!(Rate { bits_per_s: 1_000_000_000 }.bytes_in(Duration::from_micros(131)), 16_375);
    }

    #[test]
    fn shares_are_read_and_given_back() {
        for text in ["0%", "1%", "0.05%", "12.5%", "99.999%"] {
            assert_eq!(text.parse::<Share>().unwrap().to_string(), text);
        }
        assert_eq!("50%".parse::<Share>().unwrap().threshold, 1 << 31);
        for bad in ["1", "%", "-1%", "nan%", "inf%", "100%", "101%", "x%"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
        assert!("100%".parse::<Share>().unwrap_err().contains("box cut"));
        assert!("0.00000001%".parse::<Share>().unwrap_err().contains("0% ends"));
    }

    #[test]
    fn times_are_read() {
        assert_eq!("50us".parse(), Ok(Delay(Duration::from_micros(50))));
        assert_eq!("1.5ms".parse(), Ok(Delay(Duration::from_micros(1500))));
        for bad in ["50", "us", "0us", "11s", "-1ms", "1h"] {
            assert!(bad.parse::<Delay>().is_err(), "{bad}");
        }
    }
}
