//! Links of the documents lead somewhere: to a file of the workspace, and to a heading in it.

use super::{Finding, TextFile, Tree};
use std::collections::HashSet;
use std::path::{Component, Path};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|file| check_document(tree, file)).collect()
}

fn check_document(tree: &Tree, file: &TextFile) -> Vec<Finding> {
    let found = links(&file.text).into_iter().filter_map(|(line, link)| {
        let what = broken(tree, file, &link)?;
        Some(Finding::error(&file.path, line, what))
    });
    found.collect()
}

/// What is wrong with a link, if anything. Links to other sites are not looked at: tidy needs no network.
fn broken(tree: &Tree, from: &TextFile, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, heading)| (path, Some(heading)));
    let target = if path.is_empty() { Some(from.path.clone()) } else { resolve(&from.path, path) };
    let Some(target) = target else { return Some(format!("the link `{link}` leads out of the repository")) };
    let document = tree.files.iter().find(|file| file.path == target);
    let is_dir = || tree.files.iter().any(|file| file.path.starts_with(&format!("{target}/")));
    if document.is_none() && !is_dir() && !tree.root.join(&target).exists() {
        return Some(format!(
            "the link `{link}` leads to {target}, which does not exist: correct it, or write that file"
        ));
    }
    let (heading, document) = (heading?, document?);
    let known = document.path.ends_with(".md") && !headings(&document.text).contains(heading);
    known.then(|| format!("the link `{link}` names a heading that {target} does not have"))
}

/// The path of a link, relative to the workspace root; `None` when it leaves it.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<String> =
        Path::new(from).parent()?.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    for component in Path::new(link).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// The lines of a document outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The targets of `[text](target)` with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let targets = |line| {
        without_code_spans(line)
            .split("](")
            .skip(1)
            .filter_map(|rest| {
                let target = rest.split([')', ' ']).next()?;
                (!target.is_empty()).then(|| target.to_owned())
            })
            .collect::<Vec<_>>()
    };
    prose(text).flat_map(|(number, line)| targets(line).into_iter().map(move |target| (number, target))).collect()
}

fn without_code_spans(line: &str) -> String {
    line.split('`').enumerate().map(|(index, part)| if index % 2 == 0 { part } else { "" }).collect()
}

/// The headings of a document as the anchors that forges make of them.
fn headings(text: &str) -> HashSet<String> {
    let lines = prose(text).map(|(_, line)| line).filter(|line| line.starts_with('#'));
    lines.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(title: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    title.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    #[test]
    fn good_links_are_quiet() {
        let readme =
            "# A\nSee [ring](docs/ring.md#two-words), [here](#a), [docs](docs/), [far](https://example.org/x).\n";
        assert_eq!(
            shown(&check(&tree(&[("README.md", readme), ("docs/ring.md", "## Two, words!\n[up](../README.md)\n")]))),
            [""; 0]
        );
    }

    #[test]
    fn a_missing_file_and_a_missing_heading_are_found() {
        let found = shown(&check(&tree(&[("README.md", "text\n[a](docs/none.md) and [b](#none)\n")])));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("README.md:2: the link `docs/none.md` leads to docs/none.md"), "{found:?}");
        assert!(found[1].contains("names a heading"), "{found:?}");
    }

    #[test]
    fn links_must_stay_in_the_repository() {
        assert!(shown(&check(&tree(&[("README.md", "[a](../x.md)\n")])))[0].contains("leads out"));
    }

    #[test]
    fn code_is_not_read_as_links() {
        assert!(check(&tree(&[("README.md", "```\n[a](none.md)\n```\n`[b](none.md)`\n")])).is_empty());
    }
}
