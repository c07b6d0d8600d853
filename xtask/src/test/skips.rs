//! Skips that are in order even where everything is installed.

use ropeway_testkit::skip::Skip;

/// A test that may skip in CI: its suite, the start of its name, and why. Everything else that skips there fails the run: the
/// machine was to have all it needs.
const ALLOWED_IN_CI: &[(&str, &str, &str)] = &[
    ("bench", "ranks_behind_a_real_ssh", "scripts/setup does not install sshd: it would open a port of the machine"),
    ("box", "delay::a_delay_line", "on a kernel with netem that is what delays frames, and there is no delay line"),
];

/// Whether this skip may stand in CI.
pub fn allowed_in_ci(skip: &Skip) -> bool {
    ALLOWED_IN_CI.iter().any(|(suite, test, _why)| skip.suite == *suite && skip.test.starts_with(test))
}

#[cfg(test)]
mod tests {
    use crate::tidy::Tree;
    use ropeway_testkit::env::workspace_root;
    use std::collections::BTreeSet;

    /// What `scripts/setup` sees to by other words, or runs in itself.
    const THERE_ANYWAY: [&str; 2] = ["cc", "bash"];

    /// The names in all `need_program!("a", "b")` of a text.
    fn needed(text: &str) -> impl Iterator<Item = &str> {
        let lists = text.split("need_program!(").skip(1).filter_map(|rest| rest.split(')').next());
        lists.flat_map(|list| list.split('"').skip(1).step_by(2))
    }

    #[test]
    fn whatever_programs_tests_need_setup_installs() {
        let root = workspace_root();
        let setup = std::fs::read_to_string(root.join("scripts/setup")).expect("scripts/setup");
        let installed: BTreeSet<&str> =
            setup.split([' ', '(', ')', '\n']).filter_map(|word| Some(word.split_once(':')?.0)).collect();
        let tree = Tree::read(&root.join("crates")).expect("the crates");
        let of_tests: BTreeSet<&str> = tree.files.iter().flat_map(|file| needed(&file.text)).collect();
        assert!(of_tests.contains("redis-server"), "{of_tests:?}");
        let missing: Vec<&&str> = of_tests
            .iter()
            .filter(|program| !installed.contains(**program) && !THERE_ANYWAY.contains(program))
            .collect();
        assert!(missing.is_empty(), "add them to test_needs of scripts/setup, with their packages: {missing:?}");
    }
}
