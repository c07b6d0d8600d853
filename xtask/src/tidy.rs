//! `cargo xtask tidy`: the rules of the house that neither rustc nor clippy checks.
//!
//! Each check looks at the [`Tree`] and returns [`Finding`]s: a place, and what to do there. Nothing here mends anything.

mod arrows;
mod links;
mod marks;
mod paths;
mod size;
mod source;
mod unsafe_code;

use crate::Result;
pub use paths::without_places;
use std::fmt;
use std::path::{Path, PathBuf};

/// Something to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// The file, relative to the workspace root.
    file: String,
    /// The line, from 1.
    line: usize,
    /// What is wrong and what to do.
    what: String,
    /// Whether the check fails by it.
    severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

impl Finding {
    fn error(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into(), severity: Severity::Error }
    }

    fn warning(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.into(), line, what: what.into(), severity: Severity::Warning }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.severity == Severity::Warning { "warning: " } else { "" };
        write!(f, "{}:{}: {kind}{}", self.file, self.line, self.what)
    }
}

/// All text files of the workspace, read once.
pub(crate) struct Tree {
    root: PathBuf,
    pub(crate) files: Vec<TextFile>,
}

pub(crate) struct TextFile {
    /// Relative to the workspace root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root: root.to_path_buf(), files })
    }

    fn rust_files(&self) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

/// What nobody writes by hand: directories, and `.git`, which is a file in a worktree.
const SKIPPED: [&str; 5] = [".git", "target", "corpus", "artifacts", "node_modules"];

fn collect(root: &Path, dir: &Path, files: &mut Vec<TextFile>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type()?;
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_file()
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
            files.push(TextFile { path, text });
        }
    }
    Ok(())
}

/// Runs all checks on the workspace; `false` when one found an error.
pub fn run() -> Result<bool> {
    let tree = Tree::read(&ropeway_testkit::env::workspace_root())?;
    let checks = [arrows::check, size::check, unsafe_code::check, links::check, marks::check, paths::check];
    let findings: Vec<Finding> = checks.iter().flat_map(|check| check(&tree)).collect();
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!("tidy: {} files, {errors} errors, {} warnings", tree.files.len(), findings.len() - errors);
    Ok(errors == 0)
}

#[cfg(test)]
pub(crate) mod fixture {
    use super::*;

    /// A tree made of (path, text) pairs.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| TextFile { path: (*path).into(), text: (*text).into() }).collect();
        Tree { root: PathBuf::from("/nonexistent"), files }
    }

    /// The findings as text.
    pub(super) fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_keeps_is_no_file_of_the_tree_in_a_worktree_either() {
        let root = tempfile::tempdir().unwrap();
        for name in [".git", "README.md"] {
            std::fs::write(root.path().join(name), "gitdir: elsewhere\n").unwrap();
        }
        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["README.md"]);
    }
}
