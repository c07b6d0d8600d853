//! Builds what a user installs.

use crate::Result;
use std::process::Command;

/// The cargo that runs this program, in the workspace.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(ropeway_testkit::env::workspace_root());
    cargo
}

/// Builds the `ropeway` program and its preload as a user gets them.
pub fn build() -> Result<()> {
    let mut cargo = cargo();
    cargo.args(["build", "--release", "-p", "ropeway", "-p", "ropeway-preload"]);
    let status = cargo.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("ropeway and its preload do not build: see above".into()) }
}
