//! The end of a run: one table, every skip and every failure by name, and the totals.

use super::run::Outcome;
use super::skips;
use std::fmt;
use std::time::Duration;

/// All suites that ran.
#[derive(Debug, Default)]
pub struct Report {
    suites: Vec<(String, Vec<Outcome>)>,
}

impl Report {
    /// Adds the outcomes of a suite's programs. When it must have tests, a suite in which none ran is a failure of its own (a
    /// single crate may have no tests).
    pub fn add(&mut self, suite: &str, mut outcomes: Vec<Outcome>, must_have_tests: bool) {
        if must_have_tests && outcomes.iter().all(|outcome| outcome.tests() == 0) {
            outcomes.push(Outcome::failed(
                suite,
                "no test ran: a wrong filter after `--`, or a suite without tests".into(),
            ));
        }
        match self.suites.iter_mut().find(|(name, _)| name == suite) {
            Some((_, known)) => outcomes.into_iter().for_each(|outcome| merge(known, outcome)),
            None => self.suites.push((suite.into(), outcomes)),
        }
    }

    /// Judges the run as a whole: something must have run, and in CI every skip that is not on the list counts as a failure.
    pub fn close(&mut self, ci: bool) {
        if self.sum(Outcome::tests) == 0 {
            self.add("all", Vec::new(), true);
        }
        if !ci {
            return;
        }
        for outcome in self.suites.iter_mut().flat_map(|(_, outcomes)| outcomes) {
            let (kept, unexpected): (Vec<_>, Vec<_>) = outcome.skips.drain(..).partition(skips::allowed_in_ci);
            outcome.skips = kept;
            outcome.failures.extend(unexpected.into_iter().map(|skip| {
                format!("{}: skipped, which is not on the list in xtask/src/test/skips.rs: {}", skip.test, skip.reason)
            }));
        }
    }

    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.outcomes().all(|(_, outcome)| outcome.failures.is_empty())
    }

    fn outcomes(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.suites.iter().flat_map(|(suite, outcomes)| outcomes.iter().map(move |outcome| (suite.as_str(), outcome)))
    }

    fn sum(&self, count: impl Fn(&Outcome) -> usize) -> usize {
        self.outcomes().map(|(_, outcome)| count(outcome)).sum()
    }
}

/// Adds the outcome of one more run of a program to those before.
fn merge(known: &mut Vec<Outcome>, outcome: Outcome) {
    let Some(before) = known.iter_mut().find(|before| before.program == outcome.program) else {
        return known.push(outcome);
    };
    before.passed += outcome.passed;
    before.failures.extend(outcome.failures);
    before.elapsed += outcome.elapsed;
    let new: Vec<_> = outcome.skips.into_iter().filter(|skip| !before.skips.contains(skip)).collect();
    before.skips.extend(new);
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:<26}{:>8}{:>8}{:>9}{:>9}", "suite", "passed", "failed", "skipped", "seconds")?;
        for (suite, outcome) in self.outcomes().filter(|(_, outcome)| outcome.tests() > 0) {
            let name = if suite == outcome.program { suite.into() } else { format!("{suite}: {}", outcome.program) };
            let (passed, failed, skipped) = (outcome.passed, outcome.failures.len(), outcome.skips.len());
            writeln!(f, "{name:<26}{passed:>8}{failed:>8}{skipped:>9}{:>9.1}", outcome.elapsed.as_secs_f64())?;
        }
        let elapsed: Duration = self.outcomes().map(|(_, outcome)| outcome.elapsed).sum();
        writeln!(f, "{:<52}{:>8.1}", "all", elapsed.as_secs_f64())?;

        let skips: Vec<_> = self.outcomes().flat_map(|(_, outcome)| &outcome.skips).collect();
        if !skips.is_empty() {
            writeln!(f, "\nskipped:")?;
        }
        for skip in skips {
            writeln!(f, "  {} {}: {}", skip.suite, skip.test, skip.reason)?;
        }
        if !self.is_good() {
            writeln!(f, "\nfailed (once more: cargo xtask test --suite SUITE -- TEST):")?;
        }
        for (suite, outcome) in self.outcomes() {
            for failure in &outcome.failures {
                writeln!(f, "  {suite} {failure}")?;
            }
        }
        let (passed, failed) = (self.sum(|outcome| outcome.passed), self.sum(|outcome| outcome.failures.len()));
        writeln!(f, "\n{passed} passed, {failed} failed, {} skipped", self.sum(|outcome| outcome.skips.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_testkit::skip::Skip;

    fn outcome(program: &str, passed: usize, failures: &[&str], skips: usize) -> Outcome {
        let skip = Skip { suite: program.into(), test: "t".into(), reason: "not installed: moon".into() };
        let failures = failures.iter().map(|name| (*name).into()).collect();
        Outcome {
            program: program.into(),
            passed,
            failures,
            skips: vec![skip; skips],
            elapsed: Duration::from_millis(1500),
        }
    }

    fn report() -> Report {
        let mut report = Report::default();
        report.add("unit", vec![outcome("shm", 5, &[], 0), outcome("cli", 0, &[], 0)], true);
        report.add("random", vec![outcome("random", 2, &["seed_7"], 1)], true);
        report
    }

    #[test]
    fn the_last_line_holds_the_totals_and_nothing_else() {
        let text = report().to_string();
        assert_eq!(text.lines().last(), Some("7 passed, 1 failed, 1 skipped"));
        assert!(text.contains("random t: not installed: moon") && text.contains("random seed_7"), "{text}");
        assert!(!text.contains("unit: cli"), "a crate without tests has no row: {text}");
    }

    #[test]
    fn runs_of_the_same_program_add_up() {
        let mut report = report();
        report.add("random", vec![outcome("random", 2, &[], 1)], true);
        assert_eq!(report.to_string().lines().last(), Some("9 passed, 1 failed, 1 skipped"));
    }

    #[test]
    fn an_empty_suite_fails() {
        let mut report = Report::default();
        report.add("unit", vec![outcome("cli", 0, &[], 0)], true);
        assert!(!report.is_good());
    }

    #[test]
    fn a_filter_may_leave_suites_empty_but_not_all_of_them() {
        let mut report = Report::default();
        report.add("unit", vec![outcome("shm", 1, &[], 0)], false);
        report.add("random", vec![outcome("random", 0, &[], 0)], false);
        report.close(false);
        assert!(report.is_good());
        let mut report = Report::default();
        report.add("random", vec![outcome("random", 0, &[], 0)], false);
        report.close(false);
        assert!(!report.is_good());
    }

    #[test]
    fn in_ci_an_unexpected_skip_is_a_failure() {
        let mut report = Report::default();
        report.add("random", vec![outcome("random", 2, &[], 1)], true);
        report.close(false);
        assert!(report.is_good());
        report.close(true);
        assert!(!report.is_good());
        assert_eq!(report.to_string().lines().last(), Some("2 passed, 1 failed, 0 skipped"));
    }
}
