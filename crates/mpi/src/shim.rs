//! The shim as a file: found among those that were compiled before, or compiled by the user's `mpicc`.
//!
//! It is kept in `$XDG_CACHE_HOME/ropeway` (else `~/.cache/ropeway`), under a name made of its source and of what the compiler says of itself, so that another MPI, or another version of it, has a file of its own.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

const SOURCE: &str = include_str!("shim.c");

/// Names the compiler.
const COMPILER_VAR: &str = "ROPEWAY_MPICC";

/// Hexadecimal digits of the hash in a file's name.
const DIGITS: usize = 32;

/// Whose launcher started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    OpenMpi,
    /// MPICH, and those that come from it: they share the variables.
    Mpich,
    /// Starts the ranks of whatever MPI was built with its support.
    Slurm,
    Unknown,
}

/// Says which launcher started this process; `None`: none did.
pub fn launcher() -> Option<Launcher> {
    /// The first that is set tells. `PMI_RANK` is set by Hydra, and by srun for all.
    const SIGNS: [(&str, Launcher); 4] = [
        ("OMPI_COMM_WORLD_RANK", Launcher::OpenMpi),
        ("PMI_RANK", Launcher::Mpich),
        ("PMIX_RANK", Launcher::Unknown),
        ("SLURM_PROCID", Launcher::Slurm),
    ];
    SIGNS.into_iter().find(|(name, _)| env::var_os(name).is_some()).map(|(_, launcher)| launcher)
}

/// The shim for this launcher's MPI, compiled if it was not before.
///
/// # Errors
/// There is no compiler, it fails, or its result cannot be kept.
pub fn build(launcher: Launcher) -> Result<PathBuf, Error> {
    let compiler = find_compiler(launcher, env::var_os(COMPILER_VAR))?;
    let directory = cache_directory(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))?;
    build_in(&directory, &compiler)
}

/// A compiler, and what it says of itself.
#[derive(Debug, Clone)]
struct Compiler {
    name: OsString,
    about: String,
}

/// The compiler that belongs to the launcher: Debian has both, under names of their own beside the usual one.
fn find_compiler(launcher: Launcher, named: Option<OsString>) -> Result<Compiler, Error> {
    let usual: &[&str] = match launcher {
        Launcher::OpenMpi => &["mpicc.openmpi", "mpicc"],
        Launcher::Mpich => &["mpicc.mpich", "mpicc"],
        Launcher::Slurm | Launcher::Unknown => &["mpicc"],
    };
    let names: Vec<OsString> = match named.filter(|name| !name.is_empty()) {
        Some(name) => vec![name],
        None => usual.iter().map(OsString::from).collect(),
    };
    let found = names.iter().find_map(|name| Some(Compiler { name: name.clone(), about: describe(name)? }));
    found.ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        Error::NoCompiler { tried: format!("looked for {}", names.join(", ")) }
    })
}

/// What it compiles with, and its version; `None`: it cannot be run.
fn describe(compiler: &OsString) -> Option<String> {
    let said = |argument: &str| {
        let output = Command::new(compiler).arg(argument).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    Some(format!("{}\n{}", said("-show")?, said("--version")?))
}

fn cache_directory(cache: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, Error> {
    // As the XDG specification says, relative paths count for nothing.
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = cache.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".cache")));
    Ok(base.ok_or(Error::NoCache)?.join("ropeway"))
}

fn build_in(directory: &Path, compiler: &Compiler) -> Result<PathBuf, Error> {
    let mut hasher = blake3::Hasher::new();
    for part in [SOURCE, &compiler.about, &compiler.name.to_string_lossy()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let shim = directory.join(format!("mpi-{}.so", &hash[..DIGITS]));
    if shim.is_file() {
        return Ok(shim);
    }
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |cause: io::Error| Error::File { what, path, cause }
    };
    fs::create_dir_all(directory).map_err(failed("make the directory", directory))?;
    // All ranks of a first run come here at once, of several hosts where they share a home: each compiles in a directory of its own, and the last to rename wins.
    let own = tempfile::Builder::new().prefix("mpi-").tempdir_in(directory);
    let own = own.map_err(failed("make a directory in", directory))?;
    let [source, object] = ["shim.c", "shim.so"].map(|name| own.path().join(name));
    fs::write(&source, SOURCE).map_err(failed("write", &source))?;
    compile(compiler, &source, &object)?;
    fs::rename(&object, &shim).map_err(failed("rename the compiled shim to", &shim))?;
    Ok(shim)
}

fn compile(compiler: &Compiler, source: &Path, object: &Path) -> Result<(), Error> {
    let name = || compiler.name.to_string_lossy().into_owned();
    let mut command = Command::new(&compiler.name);
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(object).arg(source);
    let output = command.output().map_err(|error| Error::Compile { compiler: name(), said: error.to_string() })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Compile { compiler: name(), said });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compiler that does what the script says.
    fn compiler(directory: &Path, script: &str) -> Compiler {
        let (text, path) = (directory.join("script"), directory.join("mpicc-of-a-test"));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).expect("a script");
        // Another process writes it: a child of another test could hold a descriptor of ours, open for writing, and a file that is open for writing cannot be run.
        let copied = Command::new("install").arg("-m755").arg(&text).arg(&path).status().expect("coreutils");
        assert!(copied.success());
        Compiler { name: path.into_os_string(), about: "version 1".to_owned() }
    }

    #[test]
    fn a_shim_is_compiled_once_for_each_compiler() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = format!("echo x >> {}/runs; shift 4; : > \"$1\"", directory.path().display());
        let mut compiler = compiler(directory.path(), &script);
        let cache = directory.path().join("cache");
        let shim = build_in(&cache, &compiler).expect("compiled");
        assert!(shim.is_file());
        assert_eq!(build_in(&cache, &compiler).expect("there"), shim);
        compiler.about = "version 2".to_owned();
        assert_ne!(build_in(&cache, &compiler).expect("compiled"), shim);
        let runs = fs::read_to_string(directory.path().join("runs")).expect("it ran");
        assert_eq!(runs.lines().count(), 2);
        let left = fs::read_dir(&cache).expect("a directory").count();
        assert_eq!(left, 2, "the two shims, and nothing that was only needed to make them");
    }

    #[test]
    fn those_who_compile_at_once_write_to_different_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let both = format!(
            "echo >> {0}/runs; for try in $(seq 1000); do [ $(wc -l < {0}/runs) -ge 2 ] && break; sleep 0.01; done\n",
            directory.path().display()
        );
        // As a compiler may, it takes a file that is there for its own.
        let script = both + "while [ $# -gt 1 ]; do [ $1 = -o ] && out=$2; shift; done\necho >> $out";
        let compiler = compiler(directory.path(), &script);
        let cache = directory.path().join("cache");
        let shims = std::thread::scope(|scope| {
            let build = || build_in(&cache, &compiler).expect("compiled");
            [(); 2].map(|()| scope.spawn(build)).map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(fs::read(&shims[0]).expect("a shim").len(), 1, "one of them has written it");
        assert_eq!(fs::read_dir(&cache).expect("a directory").count(), 1);
    }

    #[test]
    fn what_the_compiler_says_is_in_the_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let compiler = compiler(directory.path(), "echo 'mpi.h: no such file' >&2; exit 1");
        let error = build_in(directory.path(), &compiler).expect_err("it fails");
        assert!(error.to_string().contains("mpi.h: no such file"), "{error}");
    }

    #[test]
    fn without_a_compiler_the_error_says_what_to_install() {
        let error = find_compiler(Launcher::OpenMpi, Some("mpicc-that-is-not".into())).expect_err("no such program");
        let text = error.to_string();
        assert!(text.contains("mpicc-that-is-not") && text.contains("apt-get install libopenmpi-dev"), "{text}");
    }

    #[test]
    fn the_cache_is_where_the_specification_says() {
        let path = |text: &str| Some(OsString::from(text));
        assert_eq!(cache_directory(path("/c"), path("/h")).expect("one"), Path::new("/c/ropeway"));
        assert_eq!(cache_directory(path("c"), path("/h")).expect("one"), Path::new("/h/.cache/ropeway"));
        assert!(matches!(cache_directory(None, None), Err(Error::NoCache)));
    }
}
