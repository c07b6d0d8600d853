//! Runs one test program: streams its output, keeps its time limit, and says what happened.

use super::harness::Tally;
use super::options::Options;
use super::strays;
use super::suites::{Kind, Program, Suite, at_a_time};
use crate::Result;
use ropeway_testkit::env::{BIN_DIR_VAR, without_package};
use ropeway_testkit::skip::{SKIPS_VAR, Skip};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the end of the program is looked for while it prints nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// For the harness: how many tests run at a time.
const THREADS_VAR: &str = "RUST_TEST_THREADS";

/// What one program of a suite did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The crate, or the suite.
    pub program: String,
    pub passed: usize,
    /// Failed tests, and whatever else went wrong: each counts as one failure.
    pub failures: Vec<String>,
    pub skips: Vec<Skip>,
    pub elapsed: Duration,
}

impl Outcome {
    /// One that failed before any test could run.
    pub fn failed(program: &str, why: String) -> Self {
        Self { program: program.into(), failures: vec![why], ..Self::default() }
    }

    pub fn tests(&self) -> usize {
        self.passed + self.failures.len() + self.skips.len()
    }

    /// With what became of its failures when they ran once more.
    fn after_again(mut self, again: Outcome) -> Self {
        self.passed += again.passed;
        self.failures = again.failures;
        self.skips.extend(again.skips);
        self.elapsed += again.elapsed;
        self
    }
}

/// Runs test programs one after the other.
pub struct Runner<'a> {
    options: &'a Options,
    /// Where the product was built.
    bin_dir: PathBuf,
    /// Where tests write down their skips; emptied before each program.
    skips_path: PathBuf,
    skips: File,
}

impl<'a> Runner<'a> {
    pub fn new(options: &'a Options) -> Result<Self> {
        strays::become_subreaper()?;
        let bin_dir = ropeway_testkit::env::bin_dir();
        let skips_path = bin_dir.join("xtask-skips.jsonl");
        let skips = File::options().read(true).write(true).create(true).truncate(true).open(&skips_path);
        let skips = skips.map_err(|e| format!("cannot write {}: {e}", skips_path.display()))?;
        Ok(Self { options, bin_dir, skips_path, skips })
    }

    /// Runs one program to its end, or to its time limit.
    pub fn run(&mut self, suite: &Suite, program: &Program) -> Outcome {
        println!("\n--- {}: {}", suite.name, program.name);
        match self.try_run(suite, program) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::failed(&program.name, error.to_string()),
        }
    }

    fn try_run(&mut self, suite: &Suite, program: &Program) -> Result<Outcome> {
        let first = self.attempt(suite, program, &[])?;
        let names = &first.failures;
        if !matches!(suite.kind, Kind::Unit | Kind::Integration)
            || names.is_empty()
            || names.len() > MOST_AGAIN
            || names.iter().any(|name| is_no_test(name))
        {
            return Ok(first);
        }
        println!("\n--- {}: once more, alone: {}", program.name, names.join(" "));
        let second = self.attempt(suite, program, names)?;
        let unsteady: Vec<&String> = names.iter().filter(|name| !second.failures.contains(name)).collect();
        for name in &unsteady {
            println!("unsteady: {}: {name} failed, and passed when it ran alone", suite.name);
        }
        Ok(first.after_again(second))
    }

    /// Runs a program: all of its tests, or those named.
    fn attempt(&mut self, suite: &Suite, program: &Program, only: &[String]) -> Result<Outcome> {
        self.skips.set_len(0)?;
        let started = Instant::now();
        let mut command = self.command(suite, program);
        if !only.is_empty() {
            command.args(["--exact", "--test-threads=1"]).args(only);
        }
        let mut child = command.spawn().map_err(|e| format!("cannot run {}: {e}", program.path.display()))?;
        let lines = stream(child.stdout.take().ok_or("standard output is a pipe")?);
        let limit = self.options.limit.unwrap_or(suite.limit);
        let mut tally = Tally::default();
        let status = watch(&mut child, &lines, started + limit, &mut tally)?;
        let strays = strays::end();
        // Whoever held the pipe is gone: the rest of the output is complete.
        lines.iter().for_each(|line| take(&line, &mut tally));
        let skips = self.skips_of(suite, program, &tally)?;
        let mut failures = failures(&tally, status, limit);
        failures.extend(strays.into_iter().map(|command| format!("left running: {command}")));
        let passed = tally.result.map_or(tally.passed, |sums| sums.passed);
        let passed = passed.saturating_sub(skips.len().saturating_sub(tally.ignored.len()));
        Ok(Outcome { program: program.name.clone(), passed, failures, skips, elapsed: started.elapsed() })
    }

    fn command(&self, suite: &Suite, program: &Program) -> Command {
        let mut command = Command::new(&program.path);
        command.args(&program.args).args(&self.options.harness_args).current_dir(&program.dir);
        command.env(BIN_DIR_VAR, &self.bin_dir).env(SKIPS_VAR, &self.skips_path);
        match suite.kind {
            // A cargo, whose build scripts must not see what they did not see when they ran before.
            Kind::Doc => without_package(&mut command),
            _ => command.env("CARGO_MANIFEST_DIR", &program.dir),
        };
        if let Some(count) = at_a_time(&program.name).filter(|_| std::env::var_os(THREADS_VAR).is_none()) {
            command.env(THREADS_VAR, count.to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// The skips that tests wrote down, once each, and the ignored tests.
    fn skips_of(&mut self, suite: &Suite, program: &Program, tally: &Tally) -> Result<Vec<Skip>> {
        let mut text = String::new();
        self.skips.rewind()?;
        self.skips.read_to_string(&mut text)?;
        let mut skips: Vec<Skip> = text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
        skips.sort_by(|a, b| a.test.cmp(&b.test));
        skips.dedup_by(|a, b| a.test == b.test);
        let own_name = if suite.kind == Kind::Integration { &suite.name } else { &program.name };
        skips.iter_mut().for_each(|skip| skip.suite.clone_from(own_name));
        skips.extend(tally.ignored.iter().map(|(test, reason)| Skip {
            suite: own_name.clone(),
            test: test.clone(),
            reason: if reason.is_empty() { "ignored without a reason".into() } else { reason.clone() },
        }));
        Ok(skips)
    }
}

/// Tests that failed beside others run once more, alone, if they are no more than this: real programs on a shared machine can miss a deadline, and a child that one test
/// forks holds what its neighbours have open for a moment. Those that pass then are named as unsteady.
const MOST_AGAIN: usize = 12;

/// A failure that is not a test's: a stray process, a time limit, an end without a result.
fn is_no_test(failure: &str) -> bool {
    failure.contains(' ')
}

/// The lines of the output, read by a thread, so that a silent program cannot stop the clock.
fn stream(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

fn take(line: &str, tally: &mut Tally) {
    println!("{line}");
    tally.line(line);
}

/// Waits for the end, printing as it goes; `None` when the deadline came first and everything was killed.
fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    deadline: Instant,
    tally: &mut Tally,
) -> Result<Option<ExitStatus>> {
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => take(&line, tally),
            // The program may close its output and live on.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            strays::kill_all();
            child.wait()?;
            return Ok(None);
        }
    }
}

fn failures(tally: &Tally, status: Option<ExitStatus>, limit: Duration) -> Vec<String> {
    let mut failures = tally.failed.clone();
    let counted = tally.result.map_or(0, |sums| sums.failed);
    // Verdicts torn apart by a test's own output are missing by name, not by number.
    failures.extend((failures.len()..counted).map(|_| "a failed test whose line could not be read".into()));
    match status {
        None => failures.push(format!("not finished after {} s: killed", limit.as_secs())),
        Some(status) if tally.result.is_none() => failures.push(format!("ended without a result: {status}")),
        Some(status) if !status.success() && failures.is_empty() => {
            failures.push(format!("no test failed, but: {status}"))
        }
        Some(_) => {}
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::harness::Sums;
    use std::os::unix::process::ExitStatusExt;

    const LIMIT: Duration = Duration::from_secs(9);

    fn tally(failed: &[&str], result: Option<Sums>) -> Tally {
        Tally { failed: failed.iter().map(|name| (*name).into()).collect(), result, ..Tally::default() }
    }

    #[test]
    fn a_good_end_has_no_failures() {
        let good = tally(&[], Some(Sums { passed: 3, ..Sums::default() }));
        assert!(failures(&good, Some(ExitStatus::from_raw(0)), LIMIT).is_empty());
    }

    #[test]
    fn every_test_counts_once_when_failures_ran_once_more() {
        let skip = |test: &str| Skip { suite: "s".into(), test: test.into(), reason: "no moon".into() };
        let failures = ["b", "c", "d"].map(str::to_owned).to_vec();
        let first = Outcome { passed: 5, failures, skips: vec![skip("a")], ..Outcome::default() };
        let again = Outcome { passed: 1, failures: vec!["c".into()], skips: vec![skip("d")], ..Outcome::default() };
        let both = first.clone().after_again(again);
        assert_eq!((both.passed, both.failures.as_slice()), (6, ["c".to_owned()].as_slice()));
        assert_eq!(both.skips, [skip("a"), skip("d")]);
        assert_eq!(both.tests(), first.tests());
    }

    #[test]
    fn a_crash_and_a_hang_are_failures() {
        assert_eq!(failures(&tally(&[], None), Some(ExitStatus::from_raw(11)), LIMIT).len(), 1);
        assert_eq!(failures(&tally(&["a"], None), None, LIMIT), ["a", "not finished after 9 s: killed"]);
    }

    #[test]
    fn a_bad_exit_code_is_a_failure_even_when_all_tests_passed() {
        let good = tally(&[], Some(Sums { passed: 3, ..Sums::default() }));
        assert_eq!(failures(&good, Some(ExitStatus::from_raw(1 << 8)), LIMIT).len(), 1);
    }

    #[test]
    fn failures_are_never_fewer_than_the_sum_says() {
        let torn = tally(&["a"], Some(Sums { passed: 0, failed: 2, ignored: 0 }));
        assert_eq!(failures(&torn, Some(ExitStatus::from_raw(101 << 8)), LIMIT).len(), 2);
    }
}
