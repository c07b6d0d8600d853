//! What a command would run, and whether a library can be preloaded into that.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::output::printable;

use super::Finding;
use super::Verdict::{Bad, Good, Note};
use super::elf::{self, Elf, Kind};

/// Scripts that name scripts as interpreters: the kernel follows about this many.
const MAX_SCRIPTS: usize = 5;

pub fn examine(command: &OsStr) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(mut path) = in_path(command) else {
        let text = format!("{} is not in PATH or may not be executed", command.display());
        return vec![Finding::new(Bad, "program", text)];
    };
    for _ in 0..MAX_SCRIPTS {
        findings.push(Finding::new(Good, "program", path.display().to_string()));
        match elf::examine(&path) {
            Err(error) => {
                findings.push(Finding::new(
                    Note,
                    "file",
                    format!("cannot be read ({error}), so nothing can be said of it"),
                ));
                return findings;
            }
            Ok(Kind::Other) => {
                let text = "neither an ELF program nor a script with #!; a shell would run it, so look at that shell";
                findings.push(Finding::new(Note, "file", text));
                return findings;
            }
            Ok(Kind::Elf(elf)) => {
                findings.extend(privileges(&path));
                findings.push(judge(&elf));
                return findings;
            }
            Ok(Kind::Script { interpreter, argument }) => {
                let next = interpreter_of(&interpreter, argument.as_deref());
                let Some(next_path) = in_path(OsStr::new(&next)) else {
                    findings.push(Finding::new(
                        Bad,
                        "script",
                        format!("its interpreter {} is not there", printable(&next)),
                    ));
                    return findings;
                };
                findings.push(Finding::new(Good, "script", format!("run by {}", next_path.display())));
                path = next_path;
            }
        }
    }
    findings.push(Finding::new(Bad, "script", "its interpreters are scripts without end"));
    findings
}

/// `#!/usr/bin/env python3` runs python3.
fn interpreter_of(interpreter: &str, argument: Option<&str>) -> String {
    let is_env = Path::new(interpreter).file_name() == Some(OsStr::new("env"));
    let words = argument.unwrap_or("").split_whitespace();
    let program = words.into_iter().find(|word| !word.starts_with('-') && !word.contains('='));
    match program {
        Some(program) if is_env => program.to_owned(),
        _ => interpreter.to_owned(),
    }
}

/// The file that a shell would start.
fn in_path(command: &OsStr) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if command.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(command)).filter(executable);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(command)).find(executable)
}

/// Programs that gain privileges by being started: the dynamic linker ignores preloaded libraries in them.
fn privileges(path: &Path) -> Option<Finding> {
    let me = rustix::process::getuid();
    let file = std::fs::metadata(path).ok()?;
    let changes_user = file.mode() & 0o4000 != 0 && file.uid() != me.as_raw();
    let changes_group = file.mode() & 0o2000 != 0 && file.gid() != rustix::process::getgid().as_raw();
    let mut capability = [0u8; 64];
    let with_capabilities =
        !me.is_root() && rustix::fs::getxattr(path, "security.capability", &mut capability).is_ok_and(|n| n > 0);
    let how = match (changes_user, changes_group, with_capabilities) {
        (true, _, _) => "it is set-user-id",
        (_, true, _) => "it is set-group-id",
        (_, _, true) => "it has file capabilities",
        _ => return None,
    };
    let text = format!("{how}: the system ignores LD_PRELOAD for it; start it from the privileged user instead");
    Some(Finding::new(Bad, "privileges", text))
}

fn judge(elf: &Elf) -> Finding {
    let (verdict, text) = match elf {
        Elf { x86_64: false, .. } => (Bad, "not a 64-bit x86 program, and the preload library is one".to_owned()),
        Elf { go: true, .. } => {
            (Bad, "a Go program: it makes system calls without the C library, where nothing can step in".into())
        }
        Elf { interpreter: None, .. } => {
            (Bad, "statically linked: nothing can be preloaded into it; use a dynamically linked build".into())
        }
        Elf { interpreter: Some(linker), .. } if linker.contains("ld-musl") => {
            (Bad, format!("linked with musl ({linker}), and the preload library with glibc; use a glibc build"))
        }
        Elf { interpreter: Some(linker), .. } if linker.contains("ld-linux-x86-64") => {
            (Good, format!("a dynamically linked glibc program ({linker})"))
        }
        Elf { interpreter: Some(linker), .. } => {
            (Note, format!("its dynamic linker {linker} is not the usual one of glibc; it may not know LD_PRELOAD"))
        }
    };
    Finding::new(verdict, "linking", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(interpreter: Option<&str>) -> Elf {
        Elf { x86_64: true, interpreter: interpreter.map(str::to_owned), go: false }
    }

    #[test]
    fn linking_decides() {
        assert_eq!(judge(&elf(Some("/lib64/ld-linux-x86-64.so.2"))).verdict, Good);
        assert_eq!(judge(&elf(Some("/lib/ld-musl-x86_64.so.1"))).verdict, Bad);
        assert_eq!(judge(&elf(Some("/opt/ld.so"))).verdict, Note);
        assert_eq!(judge(&elf(None)).verdict, Bad);
        assert_eq!(judge(&Elf { go: true, ..elf(Some("/lib64/ld-linux-x86-64.so.2")) }).verdict, Bad);
        assert_eq!(judge(&Elf { x86_64: false, ..elf(None) }).verdict, Bad);
    }

    #[test]
    fn env_in_a_script_is_seen_through() {
        assert_eq!(interpreter_of("/usr/bin/env", Some("python3")), "python3");
        assert_eq!(interpreter_of("/usr/bin/env", Some("-S LANG=C node --flag")), "node");
        assert_eq!(interpreter_of("/bin/sh", Some("-e")), "/bin/sh");
    }

    #[test]
    fn a_script_leads_to_its_interpreter() {
        let dir = std::env::temp_dir().join(format!("ropeway-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = dir.join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(examine(script.as_os_str())[0].verdict, Bad, "not executable");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let findings = examine(script.as_os_str());
        assert!(findings.iter().all(|f| f.verdict == Good), "{findings:?}");
        assert_eq!(findings.last().unwrap().what, "linking");
        // The kernel ignores the set-user-id bit of scripts, not that of programs. Only root can give a file away.
        let program = dir.join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let given_away = std::os::unix::fs::chown(&program, Some(12345), None).is_ok();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(examine(program.as_os_str()).iter().any(|f| f.what == "privileges"), given_away);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
