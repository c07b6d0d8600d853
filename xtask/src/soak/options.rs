//! The arguments of `cargo xtask soak`.

use super::{Carrier, Run};
use crate::{Result, USAGE};
use std::time::{SystemTime, UNIX_EPOCH};

const USUAL_SECONDS: u64 = 120;
const USUAL_HOSTS: usize = 4;
/// One to ask and one to answer; and as many as two processors serve.
const HOSTS: std::ops::RangeInclusive<usize> = 2..=16;

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    seconds: u64,
    seed: Option<u64>,
    hosts: usize,
    carriers: Vec<Carrier>,
    /// Whether what is sent is encrypted; by the seed if not given.
    keys: Option<bool>,
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Self> {
        let both = vec![Carrier::Udp, Carrier::Packet];
        let mut options =
            Self { seconds: USUAL_SECONDS, seed: None, hosts: USUAL_HOSTS, carriers: both.clone(), keys: None };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"))?;
            let bad = || format!("{arg} does not take `{value}`\n{USAGE}");
            match (arg.as_str(), value.as_str()) {
                ("--seconds", text) => options.seconds = text.parse().map_err(|_| bad())?,
                ("--seed", text) => options.seed = Some(text.parse().map_err(|_| bad())?),
                ("--hosts", text) => {
                    options.hosts = text.parse().ok().filter(|count| HOSTS.contains(count)).ok_or_else(bad)?;
                }
                ("--carrier", "udp") => options.carriers = vec![Carrier::Udp],
                ("--carrier", "packet") => options.carriers = vec![Carrier::Packet],
                ("--carrier", "both") => options.carriers = both.clone(),
                ("--keys", "on") => options.keys = Some(true),
                ("--keys", "off") => options.keys = Some(false),
                _ => return Err(bad().into()),
            }
        }
        Ok(options)
    }

    /// One run for each carrier.
    pub fn runs(&self) -> Vec<Run> {
        let seed = self.seed.unwrap_or_else(of_clock);
        let keys = self.keys.unwrap_or(seed % 2 == 1);
        let run = |&carrier: &Carrier| Run { seed, seconds: self.seconds, hosts: self.hosts, carrier, keys };
        self.carriers.iter().map(run).collect()
    }
}

/// Short enough to be typed.
fn of_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| u64::from(now.subsec_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_ascii_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_run_says_how_it_is_repeated() {
        let options = parse("--seconds 60 --seed 7 --hosts 3 --carrier packet").expect("valid");
        let runs = options.runs();
        let line = runs[0].replay();
        let again = parse(line.strip_prefix("cargo xtask soak ").expect("a command")).expect("valid");
        assert_eq!((runs.len(), line), (1, again.runs()[0].replay()));
        assert!(runs[0].keys, "odd seeds have keys");
    }

    #[test]
    fn without_a_carrier_both_are_run() {
        assert_eq!(parse("").expect("valid").runs().len(), 2);
        assert!(
            ["--hosts 1", "--carrier tcp", "--seed", "--sede 1", "--keys maybe"]
                .iter()
                .all(|line| parse(line).is_err())
        );
    }
}
