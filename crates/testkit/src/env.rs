//! Where things are: the workspace, the built artifacts, and C test programs compiled on demand.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names the directory that holds `ropeway` and `libropeway_preload.so`; `cargo xtask test` sets it.
pub const BIN_DIR_VAR: &str = "ROPEWAY_BIN_DIR";

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("crates/testkit lies two levels below the workspace").to_path_buf()
}

/// The directory of the built artifacts: `$ROPEWAY_BIN_DIR`, else `release` beside the directory this test was built into.
pub fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os(BIN_DIR_VAR) {
        return PathBuf::from(dir);
    }
    target_dir().join("release")
}

/// Cargo's target directory, found from the place of the running executable (`<target>/<profile>/deps/<test>`, or
/// `<target>/<profile>/<program>`).
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("the running program has a path");
    let profile = exe.ancestors().skip(1).find(|dir| dir.file_name() != Some(OsStr::new("deps")));
    match profile.and_then(Path::parent) {
        Some(dir) => dir.to_path_buf(),
        None => workspace_root().join("target"),
    }
}

/// The `ropeway` program.
///
/// # Panics
/// When it has not been built; the message says how to build it.
pub fn ropeway() -> PathBuf {
    artifact("ropeway")
}

/// The preload library.
///
/// # Panics
/// When it has not been built; the message says how to build it.
pub fn preload() -> PathBuf {
    artifact("libropeway_preload.so")
}

/// A command that runs cargo, or leads to it, without what the cargo that runs this test told it about its package: build scripts that look at that
/// would run again at every turn, and with them all that depends on them.
pub fn without_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

fn artifact(name: &str) -> PathBuf {
    let path = bin_dir().join(name);
    assert!(
        path.is_file(),
        "{} is not there: build it with `cargo build --release -p ropeway -p ropeway-preload` \
         (`cargo xtask test` does it by itself), or name its directory in {BIN_DIR_VAR}",
        path.display()
    );
    path
}

/// Cargo in the workspace, as whoever runs this program would start it by hand.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(&mut cargo).current_dir(workspace_root());
    cargo
}

/// An example of a crate as a program for tests: built once, if anything changed, as this test program was.
///
/// # Panics
/// When it does not build, with cargo's own words.
pub fn example(name: &str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(name.to_owned()).or_insert_with(|| build_example(name)).clone()
}

fn build_example(name: &str) -> PathBuf {
    let (profile, target) = (if cfg!(debug_assertions) { "debug" } else { "release" }, target_dir());
    let mut cargo = cargo();
    // The packages whose tests are built at once: another choice gives what they share other features, and builds it once more.
    cargo.args(["build", "--quiet", "--workspace", "--exclude", "ropeway-testkit", "--example", name]);
    cargo.arg("--target-dir").arg(&target);
    if profile == "release" {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap_or_else(|e| panic!("cannot run cargo: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the example {name} does not build:\n{said}");
    target.join(profile).join("examples").join(name)
}

/// The library for programs in C, built if anything changed: a directory with it under the names that it is installed with.
///
/// # Panics
/// When it does not build.
pub fn c_library() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let (target, mut cargo) = (target_dir(), cargo());
        // Beside the program with most of what there is: alone, it would have what it is made of built with fewer features, once more.
        cargo.args(["build", "--quiet", "--package", "ropeway-capi", "--package", "ropeway", "--lib"]);
        cargo.arg("--target-dir").arg(&target);
        assert!(cargo.status().expect("cargo runs").success(), "the library does not build");
        let dir = target.join("capi-tests");
        std::fs::create_dir_all(&dir).expect("created");
        let built = target.join("debug/libropeway_capi.so");
        for name in ["libropeway.so", "libropeway.so.0"] {
            // Another test program may be doing the same: whoever is last has the same link.
            let temporary = dir.join(format!("{name}.{}", std::process::id()));
            let _ = std::fs::remove_file(&temporary);
            std::os::unix::fs::symlink(&built, &temporary).expect("a link");
            std::fs::rename(&temporary, dir.join(name)).expect("renamed");
        }
        dir
    };
    DIR.get_or_init(build).clone()
}

/// A C program of a test, compiled with `cc` when its text, flags or compiler changed since the last time.
///
/// ```no_run
/// let echo = ropeway_testkit::env::CProgram::new("crates/testkit/programs/echo.c").build();
/// let fixed = ropeway_testkit::env::CProgram::new("crates/testkit/programs/echo.c").compiler("musl-gcc").flag("-static").build();
/// ```
#[derive(Clone, Debug)]
pub struct CProgram {
    source: PathBuf,
    compiler: String,
    flags: Vec<String>,
}

impl CProgram {
    /// A program from one source file, given relative to the workspace root.
    pub fn new(source: impl AsRef<Path>) -> Self {
        let flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-pthread"].map(String::from).to_vec();
        Self { source: workspace_root().join(source), compiler: "cc".into(), flags }
    }

    /// Another compiler than `cc`, for example `musl-gcc` or `c++`. Guard it with [`need_program!`](crate::need_program).
    pub fn compiler(mut self, compiler: &str) -> Self {
        self.compiler = compiler.into();
        if compiler.ends_with("++") {
            self.flags.retain(|flag| flag != "-std=gnu11");
        }
        self
    }

    /// One more flag, after the usual ones and after the source, so that libraries (`-ldl`) resolve.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Compiles the program and returns the path of the executable (or, with `-shared`, of the library).
    ///
    /// # Panics
    /// When the source cannot be read or does not compile, with the compiler's own words.
    pub fn build(&self) -> PathBuf {
        let text = std::fs::read(&self.source).unwrap_or_else(|e| panic!("cannot read {}: {e}", self.source.display()));
        let mut hasher = DefaultHasher::new();
        (&text, &self.compiler, &self.flags).hash(&mut hasher);
        let stem = self.source.file_stem().and_then(OsStr::to_str).expect("the source file has a name");
        let dir = target_dir().join("testkit-programs");
        let program = dir.join(format!("{stem}-{:016x}", hasher.finish()));
        if program.is_file() {
            return program;
        }
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
        // Tests run in parallel: each compiles to a name of its own and renames, so nobody runs a half-written file.
        let temporary =
            tempfile::Builder::new().prefix(stem).tempfile_in(&dir).expect("a temporary file").into_temp_path();
        let output = Command::new(&self.compiler)
            .arg("-o")
            .arg(&temporary)
            .arg(&self.source)
            .args(&self.flags)
            .output()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", self.compiler));
        assert!(
            output.status.success(),
            "{} does not compile with {}:\n{}",
            self.source.display(),
            self.compiler,
            String::from_utf8_lossy(&output.stderr)
        );
        temporary.persist(&program).expect("the compiled program can be renamed");
        program
    }
}

/// Copies a program that is going to be run. Another process writes it: a child of another test could hold a descriptor of ours for a moment, and what is open
/// for writing cannot be run ("Text file busy").
pub fn install(from: &Path, to: &Path) {
    let copied = Command::new("install").arg("-m755").arg(from).arg(to).status().expect("coreutils");
    assert!(copied.success(), "{} cannot be copied to {}", from.display(), to.display());
}

/// The path of a program in `PATH`, if it is installed.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Debian keeps servers in sbin, which is not in everybody's PATH.
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_root_holds_the_workspace() {
        assert!(workspace_root().join("crates/testkit/Cargo.toml").is_file());
    }

    #[test]
    fn a_program_in_path_is_found_and_an_absent_one_is_not() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }
}
