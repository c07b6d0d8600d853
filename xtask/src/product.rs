//! Builds what a user installs.

mod guided;

use crate::Result;
use ropeway_testkit::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cargo that runs this program, in the workspace.
pub use ropeway_testkit::env::cargo;

/// For cargo: what is installed.
const PRODUCT: [&str; 4] = ["-p", "ropeway", "-p", "ropeway-preload"];
/// The example that measures between hosts, and its package.
pub const WIRE: &str = "wire";
pub const WIRE_PACKAGE: &str = "ropeway-engine";
/// What `make install` takes.
const INSTALLED: [&str; 2] = ["ropeway", "libropeway_preload.so"];
/// Where it takes it from, below the target directory.
const PRODUCT_DIR: &str = "product";
/// `no` in it: without a training run.
const GUIDED_VAR: &str = "GUIDED";

/// How programs are compiled.
pub enum Build {
    /// As `cargo build --release` does.
    Plain,
    /// With this record of what a training run called, and how often.
    Guided(PathBuf),
}

impl Build {
    /// For the description of what was measured.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain build",
            Self::Guided(_) => "guided build",
        }
    }

    /// As they are installed: guided if this machine can, and plain, with a word that says why, if not.
    pub fn installed() -> Self {
        if std::env::var_os(GUIDED_VAR).is_some_and(|guided| guided == "no") {
            return Self::Plain;
        }
        guided::profile().map(Self::Guided).unwrap_or_else(|reason| {
            eprintln!("compiled without a training run, some parts a tenth slower than they could be: {reason}");
            Self::Plain
        })
    }

    /// Compiles `ropeway` and its preload, and says where they are. A guided build has the example `wire` as well.
    pub fn make(&self) -> Result<PathBuf> {
        let Self::Guided(profile) = self else { return build() };
        let (mut cargo, target) = guided::cargo_with(profile);
        succeed(&mut cargo, "ropeway does not build with what a training run has shown of it")?;
        Ok(target.join("release"))
    }
}

/// Whether there is a plain build, new or old: cargo has little left to compile then.
pub fn is_built() -> bool {
    INSTALLED.iter().all(|name| env::bin_dir().join(name).exists())
}

/// Builds the `ropeway` program and its preload quickly, for tests and a first look, and says where they are.
pub fn build() -> Result<PathBuf> {
    succeed(cargo().args(["build", "--release"]).args(PRODUCT), "ropeway and its preload do not build")?;
    Ok(env::bin_dir())
}

/// Builds an example as a plain build has it.
pub fn plain_example(package: &str, example: &str) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "-p", package, "--example", example]);
    succeed(&mut cargo, &format!("the example {example} does not build"))?;
    Ok(env::target_dir().join("release/examples").join(example))
}

/// Builds what is installed, into one directory whatever way it is compiled.
pub fn install_ready() -> Result<bool> {
    let (made, ready) = (Build::installed().make()?, env::target_dir().join(PRODUCT_DIR));
    directory(&ready)?;
    for name in INSTALLED {
        env::install(&made.join(name), &ready.join(name));
    }
    Ok(true)
}

/// Runs a command that must succeed; what it says goes to the terminal.
fn succeed(command: &mut Command, complaint: &str) -> Result<()> {
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("{complaint}: see above").into()) }
}

/// A directory, made if need be.
fn directory(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| format!("cannot create {}: {e}", path.display()).into())
}
