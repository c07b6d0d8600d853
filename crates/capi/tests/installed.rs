//! What `make install-library` puts where, as a program finds it that knows nothing but pkg-config.

use ropeway_testkit::env::{target_dir, without_package, workspace_root};
use ropeway_testkit::need_program;
use ropeway_testkit::proc::{Process, command};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Building included, where nothing is built yet.
const LIMIT: Duration = Duration::from_secs(220);

fn run(command: Command) -> String {
    Process::spawn(command).wait(LIMIT).unwrap_or_else(|error| panic!("{error}")).expect_success().stdout
}

fn make(target: &str, prefix: &Path) {
    let mut make = command("make", ["--silent", target, "PROFILE=dev"]);
    make.arg(format!("PREFIX={}", prefix.display()))
        .arg(format!("CARGO_TARGET_DIR={}", target_dir().display()))
        // Staged: nobody's ldconfig is run.
        .arg("DESTDIR=/")
        .current_dir(workspace_root())
        .env_remove("MAKEFLAGS");
    // The one that the other tests built.
    without_package(&mut make);
    run(make);
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.expect("readable").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_program_is_built_with_what_pkg_config_says_and_runs() {
    need_program!("make", "pkg-config");
    let dir = tempfile::tempdir().expect("a directory");
    let prefix = dir.path().join("prefix");
    make("install-library", &prefix);
    let pkg_config = |args: &[&str]| {
        let mut command = command("pkg-config", args);
        command.arg("ropeway").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run(command)
    };
    assert_eq!(pkg_config(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    let program = dir.path().join("cdp");
    let mut cc = command("cc", ["-std=c99", "-Wall", "-Wextra", "-Werror", "-o"]);
    cc.arg(&program)
        .arg(workspace_root().join("crates/capi/examples/cdp.c"))
        .args(pkg_config(&["--cflags", "--libs"]).split_whitespace());
    run(cc);
    let mut node = command(&program, ["1", "no-such-interface"]);
    node.env("ROPEWAY_NODES", "1=127.0.0.1").env("LD_LIBRARY_PATH", prefix.join("lib"));
    // It finds the library under the name that was linked into it.
    let finished = Process::spawn(node).wait(LIMIT).expect("it ends");
    assert!(finished.stderr.contains("there is no network interface"), "{finished:?}");

    let page = |name: &str| prefix.join("share/man/man3").join(name).is_file();
    assert!(page("ropeway.3") && page("cdp.3"));
    make("uninstall", &prefix);
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
}
