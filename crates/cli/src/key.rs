//! `ropeway key`: makes the cluster's key, and says whether a key file can be used.
//!
//! What a key is, and how a key file is read, is the protocol's and the engine's; here are the words around it. No key is ever shown but the one that is made.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::ops::DerefMut;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ropeway_engine::key_file::{self, Choice, KEY_FILE_VAR, KeyError, TRUSTED_VAR};
use ropeway_engine::{ClusterKey, ClusterKeys};
use ropeway_shm::sys;
use ropeway_socket::api::cluster;
use rustix::fs::{FileType, Mode, Stat, fchmod, fstat};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::config::{Config, ConfigError};
use crate::output::tell;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Make a new random key: `ropeway key new FILE`, or `ropeway key new > FILE`, or `>> FILE` for the successor of a key in use
    #[command(after_help = NEW_HELP)]
    New {
        /// The file to make, readable by you alone; it must not exist. Without it, the key goes to standard output
        file: Option<PathBuf>,
    },
    /// Say whether the key file can be used, and without FILE which one programs use here and what says so
    Check {
        /// The file; without it, the one that the environment names or else the cluster file, and for `ropeway cp` the configuration before that
        file: Option<PathBuf>,
    },
}

const NEW_HELP: &str = "\
Every node of a cluster needs the same file, readable by its owner alone: copy it by a way that nobody else can read, such as scp. To replace a key \
without a stop: append a new one to the file of every node and restart its programs one after the other; then move it to the first line everywhere and \
restart; then remove the old one.";

/// Of a file that is made: its owner reads and writes, nobody else anything.
const OWNER_ONLY: u32 = 0o600;
/// What it must not have.
const OTHERS: u32 = 0o077;
/// What `chmod` sets of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Why a command was not done.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot make {path}: {source}")]
    Make { path: PathBuf, source: io::Error },
    #[error("{path} exists. To add a second key to it: `ropeway key new >> {path}`")]
    Exists { path: PathBuf },
    #[error("cannot write the key: {0}")]
    Write(io::Error),
    #[error(
        "standard output is a file with mode {mode:04o} and something in it, which others can reach. `chmod 600` it first; if it holds a key, that one is \
         no secret any more"
    )]
    Open { mode: u32 },
    #[error(
        "standard output is a file that others could open when it was made, and {why}. Nothing was written; remove it, and `ropeway key new FILE` makes one \
         that is yours alone"
    )]
    Watched { why: &'static str },
    #[error("no random numbers: {0}")]
    Random(io::Error),
    #[error(transparent)]
    File(#[from] KeyError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster file.
    #[error("{0}")]
    Cluster(io::Error),
}

pub fn main(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::New { file: Some(path) } => make_file(path),
        Command::New { file: None } => print(),
        Command::Check { file } => check(file.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tell!("ropeway key: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn make_file(path: &Path) -> Result<(), Problem> {
    let made = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path);
    let mut file = made.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Problem::Exists { path: path.to_owned() },
        _ => Problem::Make { path: path.to_owned(), source },
    })?;
    write(&mut file, "", &random()?)?;
    file.sync_all().map_err(Problem::Write)
}

fn print() -> Result<(), Problem> {
    let mut out = io::stdout().lock();
    close_to_others(&out)?;
    let key = random()?;
    let mut before = "";
    if let Some((path, mut text)) = there(&out)? {
        if !text.ends_with('\n') {
            before = "\n";
        }
        text.push_str(before);
        text.push_str(&key.line());
        ClusterKeys::parse(&text).map_err(|source| KeyError::Content { path, source })?;
    }
    write(&mut out, before, &key)?;
    if out.is_terminal() {
        tell!("ropeway key: this is shown once; `ropeway key new FILE` keeps it");
    }
    Ok(())
}

/// The shell has made the file with the permissions of any other: they are taken away before there is anything to read, and who opened it before that keeps it
/// open.
fn close_to_others(out: impl AsFd) -> Result<(), Problem> {
    let Some(about) = about_file(&out)? else { return Ok(()) };
    let mode = about.st_mode & PERMISSIONS;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    if about.st_size > 0 {
        return Err(Problem::Open { mode });
    }
    let set_mode = |mode| fchmod(&out, Mode::from_raw_mode(mode)).map_err(|errno| Problem::Write(errno.into()));
    set_mode(OWNER_ONLY)?;
    let why = match sys::is_open_nowhere_else(out.as_fd().as_raw_fd()) {
        Ok(true) => return Ok(()),
        Ok(false) => "somebody has it open",
        Err(_) => "it is not to be found out here whether somebody has it open",
    };
    // Who tries again is to be told again.
    set_mode(mode)?;
    Err(Problem::Watched { why })
}

/// `None`: it is no file.
fn about_file(out: impl AsFd) -> Result<Option<Stat>, Problem> {
    let about = fstat(out).map_err(|errno| Problem::Write(errno.into()))?;
    Ok((FileType::from_raw_mode(about.st_mode) == FileType::RegularFile).then_some(about))
}

/// The file that is written to and what stands there, if there is anything. A shell opens it for writing alone, so it is opened once more.
fn there(out: impl AsFd) -> Result<Option<(PathBuf, impl DerefMut<Target = String>)>, Problem> {
    if about_file(&out)?.is_none_or(|about| about.st_size == 0) {
        return Ok(None);
    }
    let open = format!("/proc/self/fd/{}", out.as_fd().as_raw_fd());
    let path = std::fs::read_link(&open).unwrap_or_else(|_| PathBuf::from(&open));
    let file = File::open(&open).map_err(|source| KeyError::Read { path: path.clone(), source })?;
    let text = key_file::text(&path, file)?;
    Ok(Some((path, text)))
}

fn random() -> Result<ClusterKey, Problem> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        // Waits for the first randomness of a machine that has just started: a key must not be guessed from its start-up.
        let more = getrandom(&mut bytes[filled..], GetRandomFlags::empty());
        filled += more.map_err(|errno| Problem::Random(errno.into()))?;
    }
    Ok(ClusterKey::new(bytes))
}

/// Writes a key on a line of its own, and `before` in front of that.
fn write(out: &mut impl Write, before: &str, key: &ClusterKey) -> Result<(), Problem> {
    let mut write = || {
        for text in [before, &key.line(), "\n"] {
            out.write_all(text.as_bytes())?;
        }
        out.flush()
    };
    write().map_err(Problem::Write)
}

fn check(file: Option<&Path>) -> Result<(), Problem> {
    let text = match file {
        Some(path) => format!("{}\n", usable(&Choice::File(path.to_owned()))?),
        None => used_here()?,
    };
    crate::output::show(&text).map_err(Problem::Write)
}

/// What a choice comes to, if it can be used.
fn usable(choice: &Choice) -> Result<String, KeyError> {
    Ok(match choice {
        Choice::Trusted => "no key: all hosts and the network between them are trusted".to_owned(),
        Choice::File(path) => {
            let count = key_file::read(path)?.iter().count();
            let what = if count == 1 {
                "one key".into()
            } else {
                format!("{count} keys; the first one opens, all are accepted")
            };
            format!("{}: {what}", path.display())
        }
    })
}

/// What programs use here, in the order of [`cluster::keys`], a line for each answer: what `ropeway cp` chooses holds for no other program.
fn used_here() -> Result<String, Problem> {
    if let Some(choice) = Choice::from_environment()? {
        let variable = match choice {
            Choice::File(_) => KEY_FILE_VAR,
            Choice::Trusted => TRUSTED_VAR,
        };
        return Ok(format!("{} ({variable})\n", usable(&choice)?));
    }
    let cluster = cluster::get().map_err(Problem::Cluster)?;
    let of_cluster = cluster.and_then(|cluster| Some((cluster.keys()?, cluster.path().display())));
    let Some(of_cp) = Config::load()?.keys() else {
        let (choice, path) = of_cluster.ok_or(KeyError::Undecided)?;
        return Ok(format!("{} ({path})\n", usable(&choice)?));
    };
    let path = Config::path().unwrap_or_default();
    let others = match of_cluster {
        Some((choice, path)) => format!("{} ({path}, for other programs)", usable(&choice)?),
        None => format!("nothing for other programs: set {KEY_FILE_VAR}, or name the key in the cluster file"),
    };
    Ok(format!("{} ({}, for `ropeway cp`)\n{others}\n", usable(&of_cp)?, path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(file: &File) -> u32 {
        file.metadata().unwrap().permissions().mode() & 0o777
    }

    /// A file as a shell makes it, with something in it or nothing.
    fn made_by_a_shell(name: &str, content: &[u8]) -> (PathBuf, File) {
        let path = std::env::temp_dir().join(format!("ropeway-key-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        // Opened once: a process that another test starts may have what is opened here for a moment longer.
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        file.write_all(content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        (path, file)
    }

    #[test]
    fn a_file_that_is_still_empty_is_closed_to_others() {
        let (path, file) = made_by_a_shell("empty", b"");
        close_to_others(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_somebody_else_has_open_is_refused_however_often() {
        let (path, file) = made_by_a_shell("watched", b"");
        let _watching = File::open(&path).unwrap();
        for _ in 0..2 {
            let problem = close_to_others(&file).unwrap_err().to_string();
            assert!(problem.contains("somebody has it open") && problem.contains("key new FILE"), "{problem}");
            assert_eq!(mode(&file), 0o644);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_others_may_have_read_is_left_and_named() {
        let (path, file) = made_by_a_shell("open", b"something\n");
        let problem = close_to_others(&file).unwrap_err().to_string();
        assert!(problem.contains("with mode 0644 ") && problem.contains("no secret any more"), "{problem}");
        assert_eq!(mode(&file), 0o644);
        std::fs::remove_file(path).unwrap();
    }
}
