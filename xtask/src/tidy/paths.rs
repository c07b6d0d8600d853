//! Nothing in the repository names a place of one machine.

use super::{Finding, TextFile, Tree};
use std::path::Path;

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
    let home = std::env::var("HOME").unwrap_or_default();
    let places = places(&tree.root, Path::new(&home));
    tree.files.iter().filter(|file| file.path != "Cargo.lock").flat_map(|file| check_file(file, &places)).collect()
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
        let place = places.iter().find(|place| names(line, place))?;
        let what = format!(
            "a path of one machine (`{place}...`): write it relative to the repository, or find it at run time"
        );
        Some(Finding::error(&file.path, index + 1, what))
    });
    found.collect()
}

/// Whether an absolute path in the line starts with `place`; the middle of a longer path does not count.
fn names(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
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
        assert!(!names("crates/depot/src", "/depot/"));
        assert!(names("at `/depot/src`", "/depot/"));
    }
}
