//! The arguments of `cargo xtask test`.

use crate::{Result, USAGE};
use std::time::Duration;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The suites to run; empty means all.
    pub suites: Vec<Choice>,
    /// Runs them again and again for so long, or until something fails.
    pub repeat: Option<Duration>,
    /// Only name the suites.
    pub list: bool,
    /// Replaces the time limit of every suite.
    pub limit: Option<Duration>,
    /// Handed to the test programs.
    pub harness_args: Vec<String>,
}

/// A suite, or the tests of a suite whose names contain `part`: `faults`, `faults=hostile`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub suite: String,
    pub part: Option<String>,
}

impl Choice {
    fn parse(text: &str) -> Self {
        let (suite, part) = text.split_once('=').map_or((text, None), |(suite, part)| (suite, Some(part.to_owned())));
        Self { suite: suite.to_owned(), part }
    }
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter().cloned();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                "--suite" => options.suites.push(Choice::parse(&value()?)),
                "--limit" => options.limit = Some(seconds(&arg, &value()?)?),
                "--for" => options.repeat = Some(seconds(&arg, &value()?)?),
                "--list" => options.list = true,
                "--" => options.harness_args = args.by_ref().collect(),
                _ => return Err(format!("cargo xtask test does not know `{arg}`\n{USAGE}").into()),
            }
        }
        Ok(options)
    }
}

fn seconds(option: &str, value: &str) -> Result<Duration> {
    let seconds = value.parse().map_err(|_| format!("{option} takes whole seconds\n{USAGE}"))?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_ascii_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn all_options_are_understood() {
        let options =
            parse("--suite random --suite faults=hostile --limit 7 --for 60 -- a::b --nocapture").expect("valid");
        let choice = |suite: &str, part: Option<&str>| Choice { suite: suite.into(), part: part.map(String::from) };
        assert_eq!(options.suites, [choice("random", None), choice("faults", Some("hostile"))]);
        assert_eq!(options.repeat, Some(Duration::from_secs(60)));
        assert_eq!((options.limit, options.list), (Some(Duration::from_secs(7)), false));
        assert_eq!(options.harness_args, ["a::b", "--nocapture"]);
    }

    #[test]
    fn a_typing_error_is_said() {
        assert!(parse("--siute x").is_err());
        assert!(parse("--suite").is_err());
        assert!(parse("--limit soon").is_err());
    }
}
