//! Nothing in the repository names a place of one machine.

use super::{Finding, TextFile, Tree};
use std::path::{Path, PathBuf};

/// Directories that every machine has: a workspace directly below one of them does not make it somebody's own.
const COMMON: [&str; 12] = [
    "/",
    "/usr",
    "/usr/src",
    "/usr/local",
    "/usr/local/src",
    "/opt",
    "/srv",
    "/tmp",
    "/var",
    "/var/lib",
    "/mnt",
    "/media",
];

/// Where home directories are, whoever runs this. In halves, so that this file is not its own first finding.
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/Us", "ers/")];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let places = places(&tree.root, &home());
    tree.files.iter().filter(|file| file.path != "Cargo.lock").flat_map(|file| check_file(file, &places)).collect()
}

/// What a program said, fit for the repository: paths within it are relative to it, and of others the part that betrays a machine is left out.
pub fn without_places(text: &str, root: &Path) -> String {
    replaced(text, root, &home())
}

fn replaced(text: &str, root: &Path, home: &Path) -> String {
    let mut text = text.to_owned();
    for place in places(root, home) {
        let with = if Path::new(&place) == root { "" } else { "DIR/" };
        let found: Vec<usize> = starts(&text, &place).collect();
        found.into_iter().rev().for_each(|at| text.replace_range(at..at + place.len(), with));
    }
    text
}

fn home() -> PathBuf {
    std::env::var_os("HOME").unwrap_or_default().into()
}

/// The prefixes that betray a machine: this workspace, the directory around it, and home directories.
fn places(root: &Path, home: &Path) -> Vec<String> {
    let own = [Some(root), root.parent(), Some(home)].into_iter().flatten();
    let own = own
        .map(|path| path.to_string_lossy().into_owned())
        .filter(|path| path.starts_with('/') && !COMMON.contains(&path.as_str()));
    own.map(|path| path + "/").chain(HOMES.map(String::from)).collect()
}

fn check_file(file: &TextFile, places: &[String]) -> Vec<Finding> {
    let found = file.text.lines().enumerate().filter_map(|(index, line)| {
        let place = places.iter().find(|place| starts(line, place).next().is_some())?;
        let what = format!(
            "a path of one machine (`{place}...`): write it relative to the repository, or find it at run time"
        );
        Some(Finding::error(&file.path, index + 1, what))
    });
    found.collect()
}

/// Where absolute paths in the text start with `place`; the middle of a longer path does not count.
fn starts(text: &str, place: &str) -> impl Iterator<Item = usize> {
    text.match_indices(place).map(|(at, _)| at).filter(|&at| {
        let before = text[..at].chars().next_back();
        !before
            .is_some_and(|before| before.is_alphanumeric() || matches!(before, '_' | '-' | '.' | '}' | ')' | '*' | '/'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    #[test]
    fn home_directories_are_found() {
        let text = format!("fine\nsee {}someone/notes\n", HOMES[0]);
        let found = shown(&check(&tree(&[("docs/a.md", &text)])));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("docs/a.md:2: a path of one machine"), "{found:?}");
    }

    #[test]
    fn the_workspace_and_the_directory_around_it_are_places() {
        let places = places(Path::new("/build/ropeway"), Path::new("/people/ann"));
        assert!(
            ["/build/ropeway/", "/build/", "/people/ann/"].iter().all(|place| places.contains(&(*place).to_owned()))
        );
    }

    #[test]
    fn common_directories_are_nobodys_own() {
        assert!(
            !places(Path::new("/usr/src/ropeway"), Path::new("/"))
                .iter()
                .any(|place| place == "/usr/src/" || place == "//")
        );
    }

    #[test]
    fn the_middle_of_a_path_is_not_its_start() {
        assert_eq!(starts("crates/depot/src", "/depot/").next(), None);
        assert_eq!(starts("at `/depot/src`", "/depot/").next(), Some(4));
    }

    #[test]
    fn what_a_program_said_names_no_place_when_it_is_made_fit() {
        let (root, home) = (Path::new("/build/ropeway"), Path::new("/people/ann"));
        let said = format!(
            "Compiling proto (/build/ropeway/crates/proto)\nin /build/ropeway, /build/other/a and {}bob: crates/build/x\n/people/ann/y",
            HOMES[0]
        );
        let fit = replaced(&said, root, home);
        assert_eq!(
            fit,
            "Compiling proto (crates/proto)\nin DIR/ropeway, DIR/other/a and DIR/bob: crates/build/x\nDIR/y"
        );
        let file = TextFile { path: "results/a.json".into(), text: fit };
        assert_eq!(shown(&check_file(&file, &places(root, home))), Vec::<String>::new());
    }
}
