//! Becomes a program inside a host.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use ropeway_engine::key_file::{Choice, TRUSTED_VAR};

use super::error::Result;
use super::names::{Found, Member};
use super::tools::{Tool, find_program};
use crate::output::tell;
use crate::run::{EXIT_CANNOT_EXECUTE, EXIT_NOT_FOUND, EXIT_ROPEWAY};

/// Replaces this process; returns only if that fails.
pub fn exec(found: &Found, member: Member, command: &[OsString]) -> Result<ExitCode> {
    let Some((program, _)) = command.split_first() else { return Ok(ExitCode::from(EXIT_ROPEWAY)) };
    // `ip` would say it with a code of its own.
    if let Err(error) = look_for(program) {
        let is_absent = error.kind() == io::ErrorKind::NotFound;
        let why = if is_absent { "no such program".into() } else { error.to_string() };
        tell!("ropeway box exec: {}: {why}", program.display());
        return Ok(ExitCode::from(if is_absent { EXIT_NOT_FOUND } else { EXIT_CANNOT_EXECUTE }));
    }
    let namespace = found.namespace(member);
    let mut ip = Command::new(Tool::Ip.path()?);
    // `ip netns exec` shows the program the namespace in /sys and the names of the hosts in /etc/hosts.
    ip.args(["netns", "exec", namespace.name()]).args(command);
    ip.env("ROPEWAY_BOX", found.name.to_string()).env("ROPEWAY_BOX_HOST", member.to_string());
    // All hosts of a box are this one: unless a key was chosen, none is needed.
    if matches!(Choice::from_environment(), Ok(None)) {
        ip.env(TRUSTED_VAR, "1");
    }
    let error = ip.exec();
    tell!("ropeway box exec: ip: {error}");
    Ok(ExitCode::from(EXIT_ROPEWAY))
}

/// Looks for a program as exec does: by its path, or in PATH.
fn look_for(program: &OsStr) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if !program.as_bytes().contains(&b'/') {
        let found = find_program(program, &[]).ok_or(io::ErrorKind::NotFound)?;
        return look_for_interpreter(&found);
    }
    let path = Path::new(program);
    let meta = path.metadata()?;
    if meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
        look_for_interpreter(path)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// What the kernel reads of a script's first line.
const INTERPRETER_BYTES: u64 = 256;

/// Of a script without its interpreter the kernel says that the script itself is not there.
fn look_for_interpreter(program: &Path) -> io::Result<()> {
    let mut begin = Vec::new();
    // One that can be executed and not read is no script.
    let read = File::open(program).and_then(|file| file.take(INTERPRETER_BYTES).read_to_end(&mut begin));
    let line = begin.strip_prefix(b"#!").filter(|_| read.is_ok());
    let mut words = line.into_iter().flat_map(|line| line.split(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0)));
    match words.find(|word| !word.is_empty()).map(|word| Path::new(OsStr::from_bytes(word))) {
        Some(interpreter) if !interpreter.exists() => {
            Err(io::Error::other(format!("its interpreter {} is not there", interpreter.display())))
        }
        _ => Ok(()),
    }
}
