//! Builds what a user installs.

use crate::Result;

/// The cargo that runs this program, in the workspace.
pub use ropeway_testkit::env::cargo;

/// Builds the `ropeway` program and its preload as a user gets them.
pub fn build() -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "-p", "ropeway", "-p", "ropeway-preload"]);
    let status = cargo.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("ropeway and its preload do not build: see above".into()) }
}
