//! Files stay readable in one sitting.

use super::source::lines_without_tests;
use super::{Finding, Tree};

/// About one sitting of a reader: beyond it, think of a border to split at.
const COMFORTABLE_LINES: usize = 500;

/// Beyond it, split before adding more.
const MOST_LINES: usize = 800;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let product = tree.rust_files().filter(|file| !is_test_file(&file.path));
    product.filter_map(|file| judge(&file.path, lines_without_tests(&file.text))).collect()
}

fn judge(path: &str, lines: usize) -> Option<Finding> {
    if lines > MOST_LINES {
        let what =
            format!("{lines} lines without tests, at most {MOST_LINES}: split the file where its subject divides");
        Some(Finding::error(path, 1, what))
    } else if lines > COMFORTABLE_LINES {
        let what = format!(
            "{lines} lines without tests: more than one sitting ({COMFORTABLE_LINES}); look for a border to split at"
        );
        Some(Finding::warning(path, 1, what))
    } else {
        None
    }
}

/// Files that hold nothing but tests.
pub fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/benches/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    #[test]
    fn long_files_warn_and_very_long_ones_fail() {
        let (medium, long) = ("fn a() {}\n".repeat(501), "fn a() {}\n".repeat(801));
        let found = check(&tree(&[
            ("crates/shm/src/a.rs", "fn a() {}\n"),
            ("crates/shm/src/b.rs", &medium),
            ("crates/shm/src/c.rs", &long),
        ]));
        assert_eq!(found.len(), 2);
        assert!(shown(&found)[0].starts_with("crates/shm/src/b.rs:1: warning: 501 lines"));
        assert!(shown(&found)[1].starts_with("crates/shm/src/c.rs:1: 801 lines"));
    }

    #[test]
    fn tests_may_be_long() {
        let long = "fn a() {}\n".repeat(900);
        assert!(check(&tree(&[("crates/testkit/tests/random.rs", &long)])).is_empty());
        assert!(
            check(&tree(&[("crates/shm/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{long}}}\n"))])).is_empty()
        );
    }
}
