//! Marks of unfinished work, and exceptions without a reason.

use super::source::code_only;
use super::{Finding, TextFile, Tree};

/// Marks in code and comments alike. Put together from halves, so that this file is not its own first finding.
const MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

/// Macros that stand for code to come.
const UNFINISHED: [&str; 3] = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];

pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust_files().flat_map(check_file).collect()
}

fn check_file(file: &TextFile) -> Vec<Finding> {
    let code = code_only(&file.text);
    let lines = file.text.lines().zip(code.lines()).enumerate();
    let found = lines.filter_map(|(index, (text, code))| {
        let what =
            unfinished(text, code).or_else(|| exception_without_reason(text, code, file.text.lines().skip(index)))?;
        Some(Finding::error(&file.path, index + 1, what))
    });
    found.collect()
}

fn unfinished(text: &str, code: &str) -> Option<String> {
    let marks = MARKS.iter().filter(|mark| text.contains(**mark));
    let mark = marks.chain(UNFINISHED.iter().filter(|mark| code.contains(**mark))).next()?;
    Some(format!("`{mark}`: finish it, or take it out and write down what is missing where its readers look"))
}

/// An exception from a rule says why in the same attribute; the attribute may span lines.
fn exception_without_reason<'a>(text: &str, code: &str, rest: impl Iterator<Item = &'a str>) -> Option<String> {
    if code.trim_start().starts_with("#[ignore]") {
        return Some("`#[ignore]` without a reason: write #[ignore = \"why, and how to run it\"]".into());
    }
    let is_exception = ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|start| code.contains(start));
    if !is_exception {
        return None;
    }
    let attribute: String = rest
        .take(8)
        .scan(false, |closed, line| {
            let before = std::mem::replace(closed, *closed || line.contains(")]"));
            (!before).then_some(line)
        })
        .collect();
    let has_reason = attribute.contains("reason =") || text.contains("// ");
    (!has_reason).then(|| "a lint is switched off without a reason: add `reason = \"...\"` to the attribute".into())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        shown(&check(&tree(&[("crates/shm/src/a.rs", text)])))
    }

    #[test]
    fn marks_are_found_in_comments_and_macros_in_code_only() {
        let found = findings(&format!(
            "fn a() {{}}\n// {} later\nfn b() {{ {}() }}\n// {}() in words\n",
            MARKS[0], UNFINISHED[0], UNFINISHED[0]
        ));
        assert_eq!(found.len(), 2);
        assert!(
            found[0].starts_with("crates/shm/src/a.rs:2:") && found[1].starts_with("crates/shm/src/a.rs:3:"),
            "{found:?}"
        );
    }

    #[test]
    fn exceptions_need_a_reason() {
        assert_eq!(findings("#[ignore]\nfn a() {}\n").len(), 1);
        assert!(findings("#[ignore = \"takes an hour\"]\nfn a() {}\n").is_empty());
        assert_eq!(findings("#[allow(dead_code)]\nfn a() {}\n").len(), 1);
        assert!(findings("#[allow(dead_code, reason = \"the C side calls it\")]\nfn a() {}\n").is_empty());
        assert!(findings("#[allow(\n    dead_code,\n    reason = \"the C side calls it\"\n)]\nfn a() {}\n").is_empty());
    }
}
