//! Reads what Rust's test harness prints, line by line.

/// What the harness said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines `... ok`.
    pub passed: usize,
    /// Tests whose line says `... FAILED`.
    pub failed: Vec<String>,
    /// Tests marked `#[ignore]`, with their reasons.
    pub ignored: Vec<(String, String)>,
    /// The sums of all lines `test result:` (rustdoc prints one per crate); none when the program died before.
    pub result: Option<Sums>,
}

/// One line `test result:`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
}

impl Tally {
    /// Takes in one line of output.
    pub fn line(&mut self, line: &str) {
        if let Some(sums) = line.strip_prefix("test result: ") {
            let before = self.result.unwrap_or_default();
            let number = |word| number_before(sums, word);
            let (passed, failed, ignored) = (number("passed"), number("failed"), number("ignored"));
            self.result = Some(Sums {
                passed: before.passed + passed,
                failed: before.failed + failed,
                ignored: before.ignored + ignored,
            });
            return;
        }
        // With --nocapture a test's own output may stand between the name and the verdict; the sums still count it.
        let Some((name, verdict)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) else {
            return;
        };
        let name = name.trim_end_matches(" - should panic").to_owned();
        match verdict.split_once(", ").unwrap_or((verdict, "")) {
            ("ok", _) => self.passed += 1,
            ("FAILED", _) => self.failed.push(name),
            ("ignored", reason) => self.ignored.push((name, reason.into())),
            _ => {}
        }
    }
}

fn number_before(text: &str, word: &str) -> usize {
    let words: Vec<&str> = text.split([' ', ';']).filter(|part| !part.is_empty()).collect();
    let number = words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok());
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.line(line));
        tally
    }

    #[test]
    fn verdicts_and_sums_are_read() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest d ... FAILED\ntest e ... ignored, needs a moon\n\n\
                    test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s\n";
        let tally = tally(text);
        assert_eq!(tally.result, Some(Sums { passed: 2, failed: 1, ignored: 1 }));
        assert_eq!((tally.passed, tally.failed.as_slice()), (2, ["d".to_owned()].as_slice()));
        assert_eq!(tally.ignored, [("e".to_owned(), "needs a moon".to_owned())]);
    }

    #[test]
    fn several_results_add_up() {
        let text = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n";
        assert_eq!(tally(text).result, Some(Sums { passed: 5, failed: 0, ignored: 1 }));
    }

    #[test]
    fn a_program_that_died_has_no_result() {
        assert_eq!(tally("running 2 tests\ntest a ... ok\n").result, None);
    }
}
