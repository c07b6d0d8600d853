//! `ropeway run`: becomes the given program, with the preload in its environment.
//!
//! Exit codes are those of the program; 127 and 126 as shells give them for a program that is not there or cannot be
//! started, 125 when Ropeway itself cannot do what was asked.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::Access;

use crate::config::Config;
use crate::daemon;
use crate::output::tell;

pub const EXIT_ROPEWAY: u8 = 125;
pub const EXIT_CANNOT_EXECUTE: u8 = 126;
pub const EXIT_NOT_FOUND: u8 = 127;

const PRELOAD: &str = "libropeway_preload.so";

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Append one line of figures (JSON) per process to this file when the process ends
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Make the next call on a connection fail that should have been promoted and was not (for tests)
    #[arg(long)]
    strict: bool,
    /// Use this profile of the configuration (`default`, `latency`, `safe`, or one of your own)
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Do not start the rendezvous daemon; a running one is used
    #[arg(long)]
    no_daemon: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn main(args: Args) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(EXIT_ROPEWAY) };
    let mut command = Command::new(program);
    command.args(arguments);
    if let Err(problem) = accelerate(&mut command, &args) {
        tell!("ropeway run: {}", problem.text);
        if problem.fatal || args.strict {
            return ExitCode::from(EXIT_ROPEWAY);
        }
        tell!("ropeway run: {} runs on plain TCP", program.display());
    }
    let error = command.exec();
    tell!("ropeway run: {}: {error}", program.display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_CANNOT_EXECUTE })
}

/// Why a program cannot be accelerated. Unless `fatal`, it can still run as it always did.
struct Problem {
    text: String,
    fatal: bool,
}

impl Problem {
    fn fatal(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), fatal: true }
    }
}

/// Prepares the environment. Nothing is set before all is known to be in order.
fn accelerate(command: &mut Command, args: &Args) -> Result<(), Problem> {
    // Without its rules, a program that must not be promoted might be: so none is.
    let config = Config::load().map_err(|e| Problem { text: e.to_string(), fatal: false })?;
    if let Some(name) = &args.profile {
        config.profile(name).map_err(Problem::fatal)?;
    }
    let preload = preload_path().map_err(Problem::fatal)?;
    let stats = args.stats.as_ref().map(std::path::absolute).transpose();
    let stats = stats.map_err(|e| Problem::fatal(format!("--stats: {e}")))?;
    if let Some(file) = &stats {
        // Its processes will open it, and can tell nobody. They may be another user's by then, or see other files.
        if let Err(error) = look_at(file) {
            tell!("ropeway run: --stats {}: {error}; the figures may be lost", file.display());
        }
    }
    if !args.no_daemon
        && let Err(error) = daemon::ensure_running()
    {
        // The preload asks again by itself: a daemon that comes later is used.
        tell!("ropeway run: {error}");
        if args.strict {
            return Err(Problem::fatal("--strict needs the daemon"));
        }
    }
    command.env("LD_PRELOAD", preload_list(&preload, std::env::var_os("LD_PRELOAD").as_deref()));
    if let Some(file) = stats {
        command.env("ROPEWAY_STATS", file);
    }
    if args.strict {
        command.env("ROPEWAY_STRICT", "1");
    }
    if let Some(name) = &args.profile {
        command.env("ROPEWAY_PROFILE", name);
    }
    Ok(())
}

/// Whether this process could append to a file, which is neither made nor, if it is a pipe, opened: who reads it would see an end.
fn look_at(file: &Path) -> io::Result<()> {
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_file() => OpenOptions::new().append(true).open(file).map(drop),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = file.parent().unwrap_or(Path::new("/"));
            Ok(rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error),
    }
}

/// Where the preload library is: beside this program, or in `../lib/ropeway/`.
pub fn preload_path() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot find my own path: {e}"))?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let candidates = [dir.join(PRELOAD), dir.join("../lib/ropeway").join(PRELOAD)];
    let found = candidates.iter().find_map(|path| path.canonicalize().ok());
    let path = found.ok_or_else(|| {
        format!("{PRELOAD} is neither in {} nor in ../lib/ropeway from there; install it beside ropeway", dir.display())
    })?;
    // The dynamic linker splits LD_PRELOAD at both and knows no quoting.
    if path.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
        return Err(format!("{} has a space or a colon in its path; move it to a path without", path.display()));
    }
    Ok(path)
}

/// The preload first, then what was there.
fn preload_list(preload: &Path, existing: Option<&OsStr>) -> OsString {
    let mut list = preload.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|e| !e.is_empty()) {
        let entries = existing.as_bytes().split(|b| matches!(b, b' ' | b':'));
        for entry in entries.map(OsStr::from_bytes).filter(|e| !e.is_empty() && *e != preload.as_os_str()) {
            list.push(":");
            list.push(entry);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preload_goes_before_others_and_only_once() {
        let ours = Path::new("/lib/ropeway.so");
        let list = |existing: &str| preload_list(ours, Some(OsStr::new(existing)));
        assert_eq!(preload_list(ours, None), "/lib/ropeway.so");
        assert_eq!(list(""), "/lib/ropeway.so");
        assert_eq!(list("libjemalloc.so.2"), "/lib/ropeway.so:libjemalloc.so.2");
        assert_eq!(list("a.so /lib/ropeway.so:b.so"), "/lib/ropeway.so:a.so:b.so");
    }
}
