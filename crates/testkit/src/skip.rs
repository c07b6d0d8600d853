//! Skips that are seen: a test that cannot run here says why, and the run counts it as skipped, not as passed.
//!
//! Rust's own harness knows no skip at run time: the skipping test returns early, and one JSON line with its name and reason
//! goes to the file named by [`SKIPS_VAR`], from which `cargo xtask test` takes the count. Without that variable (a plain
//! `cargo test`) the reason goes to standard error alone.

use crate::env;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file that gathers the skips of one run.
pub const SKIPS_VAR: &str = "ROPEWAY_SKIPS";

/// One skipped test, as written to the file of skips.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The suite: the name of the file in `crates/testkit/tests`, or of the crate whose unit test it is.
    pub suite: String,
    /// The test, with its module path inside the suite.
    pub test: String,
    /// Why it cannot run here, and what would make it run.
    pub reason: String,
}

/// Skips the calling test with a reason: records it and returns from the function. The arguments are those of `format!`.
///
/// Use it for what this machine lacks, never for what the product lacks; and in the test function itself, as it returns `()`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        $crate::skip::record(std::any::type_name_of_val(&here), &format!($($reason)+));
        return;
    }};
}

/// Skips the calling test unless every named program is installed.
#[macro_export]
macro_rules! need_program {
    ($($program:expr),+ $(,)?) => {
        if let Some(reason) = $crate::skip::missing_program(&[$($program),+]) {
            $crate::skip!("{reason}");
        }
    };
}

/// Skips the calling test unless it runs as root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::skip::is_root() {
            $crate::skip!("needs root: run the tests as root");
        }
    };
}

/// Skips the calling test unless the kernel is as new as this.
#[macro_export]
macro_rules! need_kernel {
    ($major:literal, $minor:literal) => {
        if let Some(reason) = $crate::skip::older_kernel($major, $minor) {
            $crate::skip!("{reason}");
        }
    };
}

/// The reason to skip when the kernel is older.
pub fn older_kernel(major: u32, minor: u32) -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    (version(&release) < (major, minor)).then(|| format!("needs Linux {major}.{minor}, and this is {}", release.trim()))
}

/// The first two numbers of a release such as `6.18.44-fc`.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The reason to skip when one of the programs is not installed.
pub fn missing_program(programs: &[&str]) -> Option<String> {
    let missing: Vec<&str> = programs.iter().copied().filter(|name| env::find_program(name).is_none()).collect();
    (!missing.is_empty()).then(|| format!("not installed: {} (scripts/setup test installs it)", missing.join(", ")))
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Records a skip; called by [`skip!`](macro@crate::skip). `here` is the type name of a function nested in the test.
pub fn record(here: &str, reason: &str) {
    let skip = Skip { suite: suite_name(), test: test_name(here), reason: reason.into() };
    eprintln!("skipped {}: {}", skip.test, skip.reason);
    let Some(file) = std::env::var_os(SKIPS_VAR) else { return };
    let line = serde_json::to_string(&skip).expect("three strings are always JSON") + "\n";
    // One write in append mode: lines of tests that run in parallel never mix.
    let written =
        OpenOptions::new().create(true).append(true).open(&file).and_then(|mut f| f.write_all(line.as_bytes()));
    written.unwrap_or_else(|e| panic!("cannot record a skip in {}: {e}", file.display()));
}

/// `suite::module::test::here` to `module::test`.
fn test_name(here: &str) -> String {
    let path = here.strip_suffix("::here").unwrap_or(here).replace("::{{closure}}", "");
    path.split_once("::").map_or(path.clone(), |(_, test)| test.into())
}

/// The name of the running test executable without the hash that cargo appends.
fn suite_name() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let stem = exe.file_stem().and_then(OsStr::to_str).unwrap_or("unknown");
    stem.rsplit_once('-').map_or(stem, |(name, _hash)| name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_function_names_its_test() {
        assert_eq!(test_name("programs::redis::get_and_set::here"), "redis::get_and_set");
        assert_eq!(test_name("programs::get_and_set::{{closure}}::here"), "get_and_set");
    }

    #[test]
    fn kernels_are_told_apart_by_their_first_two_numbers() {
        assert_eq!([version("6.18.44-fc-v595\n"), version("6.1.0-28-amd64"), version("")], [(6, 18), (6, 1), (0, 0)]);
        assert_eq!(older_kernel(2, 6), None);
        assert!(older_kernel(u32::MAX, 0).is_some_and(|reason| reason.contains("needs Linux")));
    }

    #[test]
    fn only_missing_programs_give_a_reason() {
        assert_eq!(missing_program(&["sh", "cat"]), None);
        let reason = missing_program(&["sh", "no-such-program-anywhere"]).expect("a reason");
        assert!(reason.contains("no-such-program-anywhere") && !reason.contains("sh,"), "{reason}");
    }
}
