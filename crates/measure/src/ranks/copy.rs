//! Brings this program to other hosts over ssh, for those on which it is not installed.
//!
//! It lies in `.cache/ropeway/` of the user's home there, in a directory for each build, and stays for the next time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::member::{Fault, last_line, wait};
use super::start::{scratch, ssh_to};

/// For a host that is reached through a slow line.
const LIMIT: Duration = Duration::from_secs(300);

/// What is brought: the program, and the library that `ropeway run` loads into others.
#[derive(Debug, Clone)]
pub struct Copies {
    files: [(&'static str, PathBuf); 2],
    /// Relative to the user's home.
    directory: String,
}

impl Copies {
    /// # Errors
    /// One of the files is not there.
    pub fn of(program: &Path, preload: &Path) -> io::Result<Copies> {
        let build = fs::metadata(program)?;
        let version = env!("CARGO_PKG_VERSION");
        // Another build has another size, or was made at another time.
        let directory = format!(".cache/ropeway/{version}-{:x}-{:x}", build.size(), build.mtime());
        let files = [("ropeway", program.to_owned()), ("libropeway_preload.so", preload.to_owned())];
        Ok(Copies { files, directory })
    }

    /// How the program is started where it was brought.
    pub fn command(&self) -> String {
        format!("{}/{}", self.directory, self.files[0].0)
    }

    /// Brings what is not there yet. Whole files only get their names: who is broken off leaves nothing that would be started.
    pub fn bring(&self, ssh: &OsStr, host: &str) -> Result<(), Fault> {
        let directory = &self.directory;
        for (name, path) in &self.files {
            if run(ssh, host, &format!("test -s {directory}/{name}"), None)?.is_ok() {
                continue;
            }
            let file = format!("{directory}/{name}");
            let line = format!("mkdir -p {directory} && cat > {file}.$$ && chmod 755 {file}.$$ && mv {file}.$$ {file}");
            run(ssh, host, &line, Some(path))?
                .map_err(|said| Fault::Start(format!("cannot copy {} to {host}{said}", path.display())))?;
        }
        Ok(())
    }
}

/// Runs a line on the host; what it said when it failed. `input`: what it reads.
fn run(ssh: &OsStr, host: &str, line: &str, input: Option<&Path>) -> Result<Result<(), String>, Fault> {
    let cannot = |what: &str, error: io::Error| Fault::Start(format!("cannot {what}: {error}"));
    let scratch = scratch()?;
    let errors = scratch.path().join("ssh");
    let mut command = ssh_to(ssh, host, line);
    command.stdin(match input {
        Some(path) => Stdio::from(File::open(path).map_err(|e| cannot(&format!("read {}", path.display()), e))?),
        None => Stdio::null(),
    });
    command.stdout(Stdio::null()).stderr(File::create(&errors).map_err(|e| cannot("make a temporary file", e))?);
    let mut child = command.spawn().map_err(|e| cannot(&format!("start {}", ssh.display()), e))?;
    let Some(status) = wait(&mut child, LIMIT) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(Fault::Start(format!("{host} gave no answer within {LIMIT:?}{}", last_line(&errors))));
    };
    Ok(if status.success() { Ok(()) } else { Err(last_line(&errors)) })
}
