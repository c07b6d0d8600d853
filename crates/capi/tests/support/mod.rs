//! Builds the library and programs in C that use it.

use ropeway_testkit::env;
use ropeway_testkit::proc::command;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The crate's directory.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library where it was built, under the names that it is installed with.
pub struct Library {
    dir: PathBuf,
}

impl Library {
    pub fn build() -> &'static Library {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| Library { dir: env::c_library() })
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join("libropeway.so.0")
    }

    /// A program that finds the library.
    pub fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = command(program, args);
        command
            .env("LD_LIBRARY_PATH", &self.dir)
            .env_remove("ROPEWAY_NODES")
            .env_remove("ROPEWAY_CDP_LIMIT")
            .env_remove("ROPEWAY_CLUSTER")
            .env_remove("ROPEWAY_NODE")
            .env_remove("ROPEWAY_KEY_FILE")
            .env_remove("ROPEWAY_TRUSTED");
        command
    }
}

/// A test program.
pub fn program(name: &str) -> PathBuf {
    compile(&root().join(format!("tests/programs/{name}.c")), "cc", "-std=gnu11")
}

/// An example, as strict as can be: people copy it.
pub fn example(name: &str) -> PathBuf {
    compile(&root().join(format!("examples/{name}.c")), "cc", "-std=c99")
}

pub fn compile(source: &Path, compiler: &str, standard: &str) -> PathBuf {
    let library = Library::build();
    let name = source.file_name().and_then(|name| name.to_str()).expect("a name");
    // What was written by a test goes with its directory; of the others, an example and a test may have the same name.
    let (dir, name) = match source.strip_prefix(root()).ok().and_then(Path::parent).and_then(Path::to_str) {
        Some(within) => (library.dir.as_path(), format!("{}-{name}", within.replace('/', "-"))),
        None => (source.parent().expect("a directory"), name.to_owned()),
    };
    // Compiled beside its place and renamed: nobody runs a half-written program.
    let out = dir.join(format!("{name}.{compiler}"));
    let temporary = dir.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let mut command =
        command(compiler, ["-Wall", "-Wextra", "-Werror", "-pedantic", standard, "-O1", "-g", "-pthread", "-o"]);
    command
        .arg(&temporary)
        .arg(source)
        .arg("-I")
        .arg(root().join("include"))
        .arg("-L")
        .arg(&library.dir)
        .arg("-lropeway");
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(output.status.success(), "{name} does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&temporary, &out).expect("renamed");
    out
}
