//! The table in `docs/compatibility.md`: rows between two marks, one per program and ends, sorted. A run replaces the rows of
//! the cases it ran and leaves the others, so a part of the suite can be run again by itself.

use crate::env::workspace_root;
use std::sync::Mutex;

const BEGIN: &str = "<!-- table: written by the programs suite -->";
const END: &str = "<!-- end of table -->";
const HEAD: &str = "| program | version | ends | result | carrier | over shm | reasons for TCP | note |\n|---|---|---|---|---|---|---|---|";

/// Tests run in parallel, the file is one.
static FILE: Mutex<()> = Mutex::new(());

/// One case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub program: String,
    pub version: String,
    pub ends: String,
    pub result: String,
    pub carrier: String,
    pub share: String,
    pub reasons: String,
    pub note: String,
}

impl Row {
    fn line(&self) -> String {
        let Self { program, version, ends, result, carrier, share, reasons, note } = self;
        let cells = [program, version, ends, result, carrier, share, reasons, note].map(|cell| cell.replace('|', "/"));
        format!("| {} |", cells.join(" | "))
    }

    /// What makes a row the same case: program and ends.
    fn key(line: &str) -> Option<(String, String)> {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.into(), cells.nth(1)?.into()))
    }
}

/// Puts a row into the table, in the place of the same case's earlier row.
///
/// # Panics
/// When the document is not there or has lost its marks.
pub(super) fn put(row: &Row) {
    let _one_at_a_time = FILE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let path = workspace_root().join("docs/compatibility.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    std::fs::write(&path, with_row(&text, row)).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
}

fn with_row(text: &str, row: &Row) -> String {
    let (before, rest) = text.split_once(BEGIN).expect("docs/compatibility.md has the mark at which its table begins");
    let (table, after) = rest.split_once(END).expect("docs/compatibility.md has the mark at which its table ends");
    let line = row.line();
    let is_other = |old: &&str| Row::key(old).is_some_and(|key| Some(key) != Row::key(&line)) && !HEAD.contains(*old);
    let mut lines: Vec<&str> = table.lines().filter(is_other).chain([line.as_str()]).collect();
    lines.sort_by_key(|line| line.to_lowercase());
    format!("{before}{BEGIN}\n{HEAD}\n{}\n{END}{after}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(program: &str, result: &str) -> Row {
        let cell = String::new;
        let (program, result, ends) = (program.into(), result.into(), "both".into());
        Row { program, version: cell(), ends, result, carrier: cell(), share: cell(), reasons: cell(), note: cell() }
    }

    #[test]
    fn a_row_replaces_the_same_case_and_keeps_the_others_sorted() {
        let empty = format!("top\n{BEGIN}\n{END}\nbottom\n");
        let once = with_row(&with_row(&empty, &row("redis", "old")), &row("nginx", "right"));
        let twice = with_row(&once, &row("redis", "new"));
        assert!(twice.starts_with("top\n") && twice.ends_with("\nbottom\n"), "{twice}");
        assert!(!twice.contains("old") && twice.matches(HEAD).count() == 1, "{twice}");
        assert!(twice.find("| nginx") < twice.find("| redis"), "{twice}");
    }
}
