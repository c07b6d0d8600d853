//! Which crate may depend on which. Arrows point only downward; a new crate needs a row here, and so a decision.

use super::{Finding, TextFile, Tree};
use toml::Table;

/// A crate, by its directory, and the crates that it may name as dependencies.
const ARROWS: &[(&str, &[&str])] = &[
    ("shm", &[]),
    ("socket", &["shm", "engine"]),
    ("preload", &["socket", "shm"]),
    ("cli", &["socket", "shm", "engine", "measure"]),
    ("wire", &[]),
    ("proto", &["wire"]),
    ("link", &[]),
    ("engine", &["proto", "link", "shm"]),
    ("capi", &["socket"]),
    ("measure", &["engine", "shm", "mpi"]),
    ("mpi", &[]),
    ("testkit", &[]),
    // Chores drive the built artifacts with testkit's tools; they link nothing of the product.
    ("xtask", &["testkit"]),
];

/// Every crate may use testkit for its tests; as an ordinary dependency it would end up in the product.
const TEST_SUPPORT: &str = "testkit";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter_map(|file| Some((file, crate_of_manifest(&file.path)?)));
    manifests.flat_map(|(file, name)| check_manifest(file, name)).collect()
}

/// `crates/shm/Cargo.toml` is `shm`; `xtask/Cargo.toml` is `xtask`; other manifests (the workspace's, the fuzzer's) have no row.
fn crate_of_manifest(path: &str) -> Option<&str> {
    let dir = path.strip_suffix("/Cargo.toml")?;
    let name = dir.strip_prefix("crates/").unwrap_or(dir);
    (name == "xtask" || dir != name).then_some(name)
}

fn check_manifest(file: &TextFile, name: &str) -> Vec<Finding> {
    let Some((_, allowed)) = ARROWS.iter().find(|(row, _)| *row == name) else {
        let what =
            format!("crate `{name}` has no row in xtask/src/tidy/arrows.rs: add one that says what it may depend on");
        return vec![Finding::error(&file.path, 1, what)];
    };
    let manifest: Table = match file.text.parse() {
        Ok(table) => table,
        Err(error) => return vec![Finding::error(&file.path, 1, format!("not TOML: {error}"))],
    };
    let forbidden = dependencies(&manifest).into_iter().filter(|dependency| !dependency.allowed(name, allowed));
    forbidden.map(|dependency| dependency.finding(file, name, allowed)).collect()
}

/// A dependency on a crate of this workspace.
struct Dependency {
    /// The name as the manifest spells it.
    key: String,
    /// The crate's directory.
    name: String,
    /// Whether it is for tests only.
    dev: bool,
}

impl Dependency {
    fn allowed(&self, from: &str, allowed: &[&str]) -> bool {
        allowed.contains(&self.name.as_str()) || (self.dev && self.name == TEST_SUPPORT && from != TEST_SUPPORT)
    }

    fn finding(&self, file: &TextFile, from: &str, allowed: &[&str]) -> Finding {
        let line =
            file.text.lines().position(|line| line.trim_start().starts_with(&self.key)).map_or(1, |index| index + 1);
        let may = if allowed.is_empty() { "no crate of this workspace".into() } else { allowed.join(", ") };
        let what = format!(
            "`{from}` must not depend on `{}`; it may depend on {may}: move the code to the crate that owns it (ARCHITECTURE.md)",
            self.name
        );
        Finding::error(&file.path, line, what)
    }
}

fn dependencies(manifest: &Table) -> Vec<Dependency> {
    let mut found = Vec::new();
    for (kind, dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
        let targets = manifest.get("target").and_then(toml::Value::as_table);
        let scopes =
            std::iter::once(manifest).chain(targets.into_iter().flatten().filter_map(|(_, value)| value.as_table()));
        for entries in scopes.filter_map(|scope| scope.get(kind)?.as_table()) {
            found.extend(entries.iter().filter_map(|(key, value)| {
                let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                let name = workspace_crate(package)?.to_owned();
                Some(Dependency { key: key.clone(), name, dev })
            }));
        }
    }
    found
}

/// `ropeway-shm` is the crate `shm`, `ropeway` itself is `cli`; every other name is a stranger's.
fn workspace_crate(package: &str) -> Option<&str> {
    match package {
        "ropeway" => Some("cli"),
        "xtask" => Some("xtask"),
        other => other.strip_prefix("ropeway-"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        shown(&check(&tree(&[(path, text)])))
    }

    #[test]
    fn an_arrow_in_the_table_is_allowed() {
        assert!(
            findings("crates/socket/Cargo.toml", "[dependencies]\nropeway-shm.workspace = true\nlibc = \"0.2\"\n")
                .is_empty()
        );
    }

    #[test]
    fn an_upward_arrow_is_found_at_its_line() {
        let found =
            findings("crates/shm/Cargo.toml", "[dependencies]\nlibc = \"0.2\"\nropeway-socket.workspace = true\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/shm/Cargo.toml:3: `shm` must not depend on `socket`"), "{found:?}");
    }

    #[test]
    fn an_arrow_under_another_name_or_target_is_found() {
        let renamed = "[dependencies]\ncarriers = { package = \"ropeway-socket\", path = \"../socket\" }\n";
        assert_eq!(findings("crates/shm/Cargo.toml", renamed).len(), 1);
        let target = "[target.'cfg(loom)'.build-dependencies]\nropeway-socket.workspace = true\n";
        assert_eq!(findings("crates/shm/Cargo.toml", target).len(), 1);
    }

    #[test]
    fn testkit_serves_tests_only() {
        assert!(findings("crates/shm/Cargo.toml", "[dev-dependencies]\nropeway-testkit.workspace = true\n").is_empty());
        assert_eq!(findings("crates/shm/Cargo.toml", "[dependencies]\nropeway-testkit.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert!(findings("crates/warp/Cargo.toml", "[package]\n")[0].contains("`warp` has no row"));
    }

    #[test]
    fn arrows_have_no_circle() {
        // Repeatedly take away crates whose arrows all lead to crates already taken; a circle is never taken.
        let mut left: Vec<_> = ARROWS.to_vec();
        loop {
            let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, arrows)| arrows.iter().any(|to| names.contains(to)));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "a circle among {left:?}");
    }
}
