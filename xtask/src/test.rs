//! `cargo xtask test`: builds what a user would install, runs every suite against it and says exactly what ran.
//!
//! Nothing is hidden: a test that was skipped is counted as skipped and its reason printed, a suite in which no test ran
//! fails, and so does one that leaves processes behind or takes longer than it may.

mod harness;
mod options;
mod report;
mod run;
mod skips;
pub(crate) mod strays;
mod suites;

use crate::{Result, product};
use options::Options;
use report::Report;
use std::time::Instant;

/// Runs the suites that the arguments choose; `false` when anything failed.
pub fn run(args: &[String]) -> Result<bool> {
    let options = Options::parse(args)?;
    let suites = suites::chosen(&options.suites)?;
    if options.list {
        suites.iter().for_each(|suite| println!("{:<14} {}", suite.name, suite.about));
        return Ok(true);
    }
    product::build()?;
    suites::build_ahead(&suites)?;
    let mut runner = run::Runner::new(&options)?;
    let mut report = Report::default();
    // A filter for all suites at once leaves most of them empty, which is then no mistake.
    let must_have_tests = options.harness_args.is_empty() || !options.suites.is_empty();
    let end = Instant::now() + options.repeat.unwrap_or_default();
    loop {
        for suite in &suites {
            // What is not up to date then is built just before it runs: an error in one suite's source is that suite's failure, the others still run.
            let outcomes = match suites::build(suite) {
                Ok(programs) => programs.iter().map(|program| runner.run(suite, program)).collect(),
                Err(error) => vec![run::Outcome::failed(&suite.name, error.to_string())],
            };
            report.add(&suite.name, outcomes, must_have_tests);
        }
        if Instant::now() >= end || !report.is_good() {
            break;
        }
    }
    report.close(std::env::var("CI").is_ok_and(|ci| ci == "true"));
    print!("{report}");
    Ok(report.is_good())
}
