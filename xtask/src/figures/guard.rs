//! Cleans up after a case, however it ends.
//!
//! `figures` starts for each case a guard, and the guard starts the case. The guard adopts every process that loses its parent
//! (`PR_SET_CHILD_SUBREAPER`), so also daemons and servers that made sessions of their own stay its descendants; when the case ends, fails, takes too
//! long, or `figures` itself is interrupted (the guard sees its standard input end), it kills them all and removes their files.

use crate::test::strays;
use crate::{Result, product};
use ropeway_testkit::env;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Selects the role of the guard.
pub const GUARD_ARG: &str = "--as-guard";
/// Selects the role of the case.
pub const CASE_ARG: &str = "--as-case";

/// The commit under measurement and how it was compiled, for the description of the machine that `ropeway bench` gives.
const COMMIT_VAR: &str = "ROPEWAY_COMMIT";

/// Longest time for a case. Each is made to take less than 15 s on an idle machine.
const CASE_LIMIT: Duration = Duration::from_secs(300);

/// What is measured: the directory of its programs, and in words.
pub struct Product {
    pub dir: PathBuf,
    pub description: String,
}

/// Runs one case under a guard. The error is what the case said last.
pub fn run(case: &str, rounds: u32, out: &Path, product: &Product) -> std::result::Result<(), String> {
    let mut command = own_command(GUARD_ARG, case, rounds, out).map_err(|e| e.to_string())?;
    // A group of its own: a Ctrl-C at the terminal must not hit the guard before it has cleaned up.
    command
        .env(COMMIT_VAR, &product.description)
        .env(env::BIN_DIR_VAR, &product.dir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let guard = command.spawn().map_err(|e| format!("cannot start the guard: {e}"))?;
    // Dropping the pipe is the sign to clean up, so it must live until the guard ended: wait_with_output would close it first.
    let mut guard = guard;
    let alive = guard.stdin.take();
    let output = guard.wait_with_output().map_err(|e| format!("cannot wait for the guard: {e}"))?;
    drop(alive);
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn own_command(role: &str, case: &str, rounds: u32, out: &Path) -> Result<Command> {
    let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut command = Command::new(own);
    command.args(["figures", role, "--case", case, "--rounds", &rounds.to_string(), "--out"]).arg(out);
    Ok(command)
}

/// The guard: starts the case, waits for its end or the end of `figures`, and leaves nothing behind.
pub fn watch(case: &str, rounds: u32, out: &Path) -> Result<bool> {
    strays::become_subreaper()?;
    let scratch = Scratch::new(case)?;
    let mut command = own_command(CASE_ARG, case, rounds, out)?;
    command.env("TMPDIR", &scratch.path).env(env::BIN_DIR_VAR, scratch.stage_product()?).stdin(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("cannot start the case: {e}"))?;

    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(|e| format!("cannot watch the case: {e}"))?;
    let stdin = std::io::stdin();
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: CASE_LIMIT.as_secs() as i64, tv_nsec: 0 };
    let in_time = loop {
        match poll(&mut watched, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.is_ok_and(|ready| ready > 0),
        }
    };
    let ended = child.try_wait().map_err(|e| format!("cannot wait for the case: {e}"))?;
    strays::kill_all();
    // Nobody is left; this reaps them, so that no zombies go to a parent that may not care.
    strays::end();
    match ended {
        Some(status) => Ok(status.success()),
        None if in_time => Err("interrupted".into()),
        None => Err(format!("the case was still running after {CASE_LIMIT:?}").into()),
    }
}

/// The temporary directory of a case, removed with all that it holds.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(case: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ropeway-figures-{case}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
        let scratch = Self { path };
        // Servers that change their user must be able to pass.
        fs::set_permissions(&scratch.path, fs::Permissions::from_mode(0o755))?;
        Ok(scratch)
    }

    /// A copy of the program, the preload and what measures between hosts: they stay the same while somebody builds, and every user can read them.
    fn stage_product(&self) -> Result<PathBuf> {
        let bin = self.path.join("bin");
        fs::create_dir(&bin)?;
        let wire = env::bin_dir().join("examples").join(product::WIRE);
        for artifact in [env::ropeway(), env::preload()].into_iter().chain(wire.is_file().then_some(wire)) {
            let to = bin.join(artifact.file_name().ok_or("an artifact has a name")?);
            fs::copy(&artifact, &to).map_err(|e| format!("cannot copy {}: {e}", artifact.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
        Ok(bin)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
