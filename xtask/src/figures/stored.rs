//! The files in `results/<date>-<commit>/`: one per case, and the table made of them.

use super::cases;
use super::row::{HEADINGS, Row, Verdict, median};
use crate::Result;
use crate::tidy;
use ropeway_testkit::env;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// What is kept of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    pub case: String,
    /// What `ropeway bench machine` says.
    pub machine: Value,
    pub rounds: u32,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Measured {
        rows: Vec<Row>,
        /// Command lines, ports and directories made general; those of the second arm ran under `ropeway run`.
        commands: Vec<String>,
        /// What the tools themselves reported.
        raw: Vec<Value>,
    },
    /// A program is missing.
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// Without the paths of this machine in what the case said last: results are kept in the repository.
    pub fn failed(said: &str) -> Self {
        Self::Failed(tidy::without_places(said, &env::workspace_root()))
    }
}

/// Where a case is kept.
pub fn path(dir: &Path, case: &str) -> PathBuf {
    dir.join(format!("{case}.json"))
}

impl Stored {
    pub fn without_figures(case: &str, outcome: Outcome) -> Self {
        Self { case: case.to_owned(), machine: Value::Null, rounds: 0, outcome }
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        let file = path(dir, &self.case);
        let text = serde_json::to_string(self)? + "\n";
        Ok(fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?)
    }

    pub fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        Ok(serde_json::from_str(&text).map_err(|e| format!("{} is malformed: {e}", file.display()))?)
    }
}

pub struct Table {
    /// Markdown that also reads well on a terminal.
    pub text: String,
    pub all_reached: bool,
}

/// The table of all cases that `dir` holds.
pub fn table(dir: &Path) -> Result<Table> {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    let mut notes = Vec::new();
    let mut all_reached = true;
    let (mut machine, mut hand_offs_ns) = (None, Vec::new());
    for case in cases::ALL {
        let file = path(dir, case.name);
        if !file.is_file() {
            continue;
        }
        let stored = Stored::read(&file)?;
        match stored.outcome {
            Outcome::Measured { rows, raw, .. } => {
                let rounds = raw.iter().filter_map(|kept| kept["hand_off_ns"].as_array());
                hand_offs_ns.extend(rounds.flatten().filter_map(Value::as_f64));
                machine = machine.or(Some(stored.machine));
                all_reached &= rows.iter().all(|row| row.verdict() != Verdict::Short);
                lines.extend(rows.iter().map(Row::cells));
            }
            Outcome::Skipped(reason) => notes.push(format!("{} was not measured: {reason}", case.name)),
            Outcome::Failed(reason) => {
                all_reached = false;
                notes.push(format!("{} failed: {}", case.name, reason.trim().replace('\n', "\n  ")));
            }
        }
    }
    let mut text = String::new();
    if let Some(machine) = machine {
        text += &format!(
            "{}, {} CPUs, {}, commit {}. Medians of the rounds; ratios are medians of the ratios within each round.\n\n",
            machine["cpu_model"].as_str().unwrap_or("unknown CPU"),
            machine["cpus"].as_array().map_or(0, Vec::len),
            machine["kernel"].as_str().unwrap_or("unknown kernel"),
            machine["commit"].as_str().unwrap_or("unknown"),
        );
        hand_offs_ns.sort_by(f64::total_cmp);
        if let (Some(least), Some(most), Some(median)) =
            (hand_offs_ns.first(), hand_offs_ns.last(), median(&hand_offs_ns))
        {
            text += &format!(
                "In these rounds a cache line took {least:.0} to {most:.0} ns from one processor to the other, {median:.0} at the median.\n\n"
            );
        }
    }
    text += &aligned(&lines);
    for note in notes {
        text += &format!("\n* {note}\n");
    }
    Ok(Table { text, all_reached })
}

/// A Markdown table with columns of equal width.
pub fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += &format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
        if number == 0 {
            let rule = widths.iter().map(|width| "-".repeat(*width));
            text += &format!("| {} |\n", rule.collect::<Vec<_>>().join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [["a", "bb"], ["ccc", "d"]].map(|line| line.map(str::to_owned));
        assert_eq!(aligned(&lines), "| a   | bb |\n| --- | -- |\n| ccc | d  |\n");
    }

    #[test]
    fn a_case_without_figures_is_named_with_its_reason() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let case = cases::ALL[0].name;
        Stored::without_figures(case, Outcome::Failed("it broke".into())).write(dir.path()).expect("it can be written");
        let table = table(dir.path()).expect("a table");
        assert!(!table.all_reached);
        assert!(table.text.contains(&format!("{case} failed: it broke")), "{}", table.text);
    }

    #[test]
    fn what_a_failed_case_said_is_kept_with_paths_within_the_repository() {
        let said = format!("Compiling ropeway-proto ({}/crates/proto)", env::workspace_root().display());
        let Outcome::Failed(kept) = Outcome::failed(&said) else { panic!("it failed") };
        assert_eq!(kept, "Compiling ropeway-proto (crates/proto)");
    }
}
