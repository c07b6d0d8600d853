//! Starts ranks: processes of this host, of the hosts of a box, or of others over ssh; or threads, whose transport is there already.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::member::{Fault, Member};
use super::serve;
use crate::transport::Transport;

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A process of this host.
    Here,
    /// A process of this host, beside ranks of others that reach it at this address.
    Near { address: String },
    /// A host of a `ropeway box`.
    Box { name: String, host: String },
    /// A host that ssh reaches under that name; `address`: where the other ranks reach it.
    Ssh { host: String, address: String },
    /// A host of the launcher's choice, perhaps another one; it is known when the rank has joined.
    Chosen,
}

impl Place {
    /// The name or address at which other ranks reach it.
    pub fn address(&self) -> &str {
        match self {
            Place::Here => "127.0.0.1",
            Place::Box { host, .. } => host,
            Place::Near { address } | Place::Ssh { address, .. } => address,
            Place::Chosen => "",
        }
    }

    /// Whether ranks there share memory and loopback with this process.
    pub fn is_one_host(&self) -> bool {
        *self == Place::Here
    }

    fn name(&self, rank: usize) -> String {
        match self {
            Place::Here | Place::Near { .. } | Place::Chosen => format!("rank {rank}"),
            Place::Box { host, .. } | Place::Ssh { host, .. } => format!("rank {rank} on {host}"),
        }
    }

    /// Whether its clock and its processors are those of this host.
    pub fn is_this_machine(&self) -> bool {
        !matches!(self, Place::Ssh { .. } | Place::Chosen)
    }
}

/// How ranks are started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The `ropeway` program of this host, and of the hosts of a box.
    pub program: PathBuf,
    /// What is started on other hosts in its place; may have arguments.
    pub remote_command: String,
    /// The program that reaches other hosts, `ssh`.
    pub ssh: OsString,
    /// The program that starts the ranks of transport mpi, `mpirun`, unless a launcher starts all; may have arguments.
    pub mpirun: String,
    /// Starts the ranks of every transport in our place.
    pub launcher: Option<Launcher>,
    /// One for each rank.
    pub places: Vec<Place>,
}

/// A program that starts all ranks at once, such as `mpirun` or `srun`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// May have arguments.
    pub command: String,
    /// Name or address of this host for ranks that it starts on others; `None`: it starts none there.
    pub meet: Option<String>,
}

/// Name of the statistics file of preloaded ranks in the scratch directory.
pub const STATS: &str = "stats";

impl Launch {
    /// Starts one rank. `preloaded`: under `ropeway run`.
    pub fn start(&self, rank: usize, preloaded: bool, scratch: &Path) -> Result<Member, Fault> {
        let Some(place) = self.places.get(rank) else {
            return Err(Fault::Start(format!("there is no place for rank {rank}")));
        };
        let mut command = self.command(place, preloaded, scratch);
        let errors = scratch.join(format!("rank-{rank}"));
        let cannot =
            |what: &str, error: io::Error| Fault::Start(format!("cannot {what} for {}: {error}", place.name(rank)));
        let stderr = File::create(&errors).map_err(|e| cannot("make a temporary file", e))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let started = command.spawn();
        let mut child = started.map_err(|e| cannot(&format!("start {}", command.get_program().display()), e))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot("make pipes", io::ErrorKind::BrokenPipe.into()));
        };
        Ok(Member::new(place.name(rank), OwnedFd::from(input), OwnedFd::from(output)).with_child(child, errors))
    }

    fn command(&self, place: &Place, preloaded: bool, scratch: &Path) -> Command {
        let own = self.program.as_os_str();
        let mut command = match place {
            Place::Ssh { host, .. } => self.over_ssh(host, preloaded),
            Place::Box { name, host } => {
                let mut command = Command::new(own);
                command.args(["box", "--name", name, "exec", host]);
                command.args(rank_line(&[own], preloaded, Some(scratch)));
                command
            }
            Place::Here | Place::Near { .. } | Place::Chosen => {
                let line = rank_line(&[own], preloaded, Some(scratch));
                let mut command = Command::new(&line[0]);
                command.args(&line[1..]);
                command
            }
        };
        if !preloaded {
            // Asked for plain TCP: also when this program itself was started under `ropeway run`.
            command.env("ROPEWAY", "off");
        }
        command
    }

    /// No questions: nobody could answer them.
    fn over_ssh(&self, host: &str, preloaded: bool) -> Command {
        let line = rank_line(&[OsStr::new(&self.remote_command)], preloaded, None).join(OsStr::new(" "));
        let without = if preloaded { "" } else { "env ROPEWAY=off " };
        ssh_to(&self.ssh, host, &format!("exec {without}{}", line.display()))
    }
}

/// What starts a rank, and its arguments. `program`: how `ropeway` is started there; `preloaded`: under `ropeway run`; `scratch`: of ranks on this host, which leave their statistics there.
pub(super) fn rank_line(program: &[&OsStr], preloaded: bool, scratch: Option<&Path>) -> Vec<OsString> {
    let mut line: Vec<OsString> = program.iter().map(OsString::from).collect();
    if preloaded {
        line.push("run".into());
        if let Some(scratch) = scratch {
            line.extend(["--stats".into(), scratch.join(STATS).into()]);
        }
        line.push("--".into());
        line.extend(program.iter().map(OsString::from));
    }
    line.extend(["bench", "rank"].map(OsString::from));
    if scratch.is_none() {
        // Only of other hosts it is not known which network devices they have.
        line.push("--devices".into());
    }
    line
}

/// What runs a line on that host.
pub(super) fn ssh_to(ssh: &OsStr, host: &str, line: &str) -> Command {
    let mut command = Command::new(ssh);
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T", "--", host, line]);
    command
}

/// Runs ranks as threads of this process: one for each of these ends.
pub fn threads<T: Transport + Send + 'static>(ends: Vec<T>) -> Result<Vec<Member>, Fault> {
    let cannot = |error: io::Error| Fault::Start(format!("cannot start a rank as a thread: {error}"));
    let mut members = Vec::new();
    for (rank, end) in ends.into_iter().enumerate() {
        let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
        let (input, output) = (theirs.try_clone().map_err(cannot)?, theirs);
        let work = move || {
            // What it could say about an error, nobody would hear: the coordinator has gone.
            let _ = serve::serve_open(Box::new(end), BufReader::new(input), output);
        };
        std::thread::Builder::new().name(format!("rank {rank}")).spawn(work).map_err(cannot)?;
        let input = ours.try_clone().map_err(cannot)?;
        members.push(Member::new(format!("rank {rank}"), input.into(), ours.into()));
    }
    Ok(members)
}

/// A private directory that goes when the ranks have ended.
pub fn scratch() -> Result<TempDir, Fault> {
    let made = tempfile::Builder::new().prefix("ropeway-bench-").tempdir();
    made.map_err(|e| Fault::Start(format!("cannot make a directory in {}: {e}", std::env::temp_dir().display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(place: Place, preloaded: bool) -> String {
        let launch = Launch {
            program: "/bin/ropeway".into(),
            remote_command: "/opt/ropeway".into(),
            ssh: "ssh".into(),
            mpirun: "mpirun".into(),
            launcher: None,
            places: Vec::new(),
        };
        let command = launch.command(&place, preloaded, Path::new("/tmp/x"));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_rank_is_started_where_it_belongs() {
        assert_eq!(line(Place::Here, false), "/bin/ropeway bench rank");
        assert_eq!(line(Place::Here, true), "/bin/ropeway run --stats /tmp/x/stats -- /bin/ropeway bench rank");
        let in_a_box = Place::Box { name: "b".into(), host: "h2".into() };
        assert_eq!(line(in_a_box, false), "/bin/ropeway box --name b exec h2 /bin/ropeway bench rank");
        let far = Place::Ssh { host: "me@far".into(), address: "far".into() };
        assert!(line(far.clone(), true).ends_with("exec /opt/ropeway run -- /opt/ropeway bench rank --devices"));
        assert!(line(far, false).ends_with("-T -- me@far exec env ROPEWAY=off /opt/ropeway bench rank --devices"));
    }
}
