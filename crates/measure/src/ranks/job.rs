//! Ranks that a launcher starts: all of a job at once by `mpirun`, and each joins its coordinator at an AF_UNIX socket in a directory that only their user can enter.
//!
//! Both sides are here: the coordinator's [`start`], and [`join`], which a rank calls. What does not live here: MPI itself (`ropeway-mpi`), and what ranks do once they have joined ([`super::serve`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ropeway_mpi::shim::{self, Launcher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::group::BrokenOff;
use super::member::{Fault, Member, last_line, wait};
use super::serve;
use super::start::Scratch;

/// The launcher of a job, which runs as long as its ranks do. It is ended when this is dropped.
#[derive(Debug)]
pub struct Job {
    child: Child,
}

/// What is to be started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The launcher, with arguments of the user's.
    pub mpirun: &'a str,
    /// The `ropeway` program.
    pub program: &'a Path,
    pub ranks: usize,
}

/// Socket in the scratch directory at which the ranks join.
const SOCKET: &str = "control";

/// File in the scratch directory with what the launcher and its ranks write to standard error.
const ERRORS: &str = "mpirun";

/// In front of a socket's path in an address of the control.
const UNIX: &str = "unix:";

/// Starts a job and waits until all of its ranks have joined. They are in no order yet: their first words say who they are.
pub fn start(
    start: &Start,
    scratch: &Scratch,
    limit: Duration,
    broken_off: BrokenOff,
) -> Result<(Vec<Member>, Job), Fault> {
    let cannot = |what: &str, error: io::Error| Fault::Start(format!("cannot {what}: {error}"));
    let (socket, errors) = (scratch.path.join(SOCKET), scratch.path.join(ERRORS));
    let listener = UnixListener::bind(&socket)
        .map_err(|e| cannot(&format!("make the socket {} for the ranks", socket.display()), e))?;
    let stderr = File::create(&errors).map_err(|e| cannot("make a temporary file", e))?;
    let mut command = command(start, flavour(start.mpirun)?, &socket)?;
    // Nobody types for the ranks, and they print nothing; they measure the MPI as it is, without Ropeway.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).env("ROPEWAY", "off");
    let child = command.spawn().map_err(|e| no_launcher(start.mpirun, &e))?;
    let mut job = Job { child };
    let deadline = Instant::now() + limit;
    let mut members = Vec::new();
    while members.len() < start.ranks {
        if broken_off() {
            return Err(Fault::BrokenOff);
        }
        if let Some(status) = job.ended() {
            let said = last_line(&errors);
            return Err(Fault::Start(format!(
                "{} ended with {status} before its ranks had joined{said}",
                start.mpirun
            )));
        }
        if Instant::now() >= deadline {
            let (came, said) = (members.len(), last_line(&errors));
            let ranks = start.ranks;
            return Err(Fault::Start(format!(
                "only {came} of {ranks} ranks of {} came in {limit:?}{said}",
                start.mpirun
            )));
        }
        if is_ready(listener.as_fd(), PollFlags::IN, Some(LOOK_AGAIN)) {
            let (stream, _) = listener.accept().map_err(|e| cannot("take a rank in", e))?;
            let input = stream.try_clone().map_err(|e| cannot("take a rank in", e))?;
            let member = Member::new("a rank of mpirun".to_owned(), OwnedFd::from(input), OwnedFd::from(stream));
            members.push(member.with_errors(errors.clone()));
        }
    }
    Ok((members, job))
}

/// Between two looks for whether the launcher has ended while ranks are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Job {
    /// Waits until the launcher has ended by itself, which it does when its ranks have; it is ended after the limit.
    pub fn leave(mut self, limit: Duration) {
        wait(&mut self.child, limit);
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        /// For ranks whose coordinator is gone to end, and their launcher after them.
        const BY_THEMSELVES: Duration = Duration::from_secs(2);
        /// For the launcher to end the ranks that did not: those that were stopped, for example.
        const BY_THE_LAUNCHER: Duration = Duration::from_secs(5);
        if wait(&mut self.child, BY_THEMSELVES).is_some() {
            return;
        }
        if let Ok(Some(pid)) = i32::try_from(self.child.id()).map(Pid::from_raw) {
            // One that has ended meanwhile is our child still: the number is no one else's.
            let _ = kill_process(pid, Signal::TERM);
        }
        if wait(&mut self.child, BY_THE_LAUNCHER).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Serves as a rank that a launcher has started, for the coordinator at this address.
///
/// # Errors
/// The address is none, or nobody is there.
pub fn join(address: &str, devices: bool) -> io::Result<()> {
    let Some(path) = address.strip_prefix(UNIX) else {
        return Err(io::Error::other(format!("{address:?} is no address of a coordinator: give unix:PATH")));
    };
    let stream = UnixStream::connect(path)
        .map_err(|e| io::Error::other(format!("cannot reach the coordinator at {address}: {e}")))?;
    end_with(stream.try_clone()?)?;
    serve::serve(BufReader::new(stream.try_clone()?), stream, devices, own_rank())
}

/// Ends this process as soon as the coordinator is gone, in the middle of a trial as well. The coordinator stays until the ranks that it said goodbye to have ended.
fn end_with(stream: UnixStream) -> io::Result<()> {
    let watch = move || {
        while !is_ready(stream.as_fd(), PollFlags::RDHUP, None) {}
        // Not `exit`: that would run what MPI does at the end, in a thread that MPI does not know.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    // It sleeps in the kernel, and takes nothing from what is measured.
    std::thread::Builder::new().name("coordinator".to_owned()).spawn(watch).map(drop)
}

/// The number that the launcher has given this process.
fn own_rank() -> Option<usize> {
    number_of(&["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"])
}

/// How many processes the launcher has started of which this is one, and its number among them; `None`: no launcher did, or only one.
pub fn launched() -> Option<(usize, usize)> {
    // What SLURM sets for a batch script names the job's size otherwise: that script is one process.
    let size = number_of(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])?;
    Some((own_rank()?, size)).filter(|_| size > 1)
}

fn number_of(names: &[&str]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// Compiles the shim for the MPI of this launcher, if it was not before; where it is.
///
/// # Errors
/// There is no such launcher, or its MPI has no compiler that works.
pub fn build_shim(mpirun: &str) -> Result<PathBuf, String> {
    let launcher = flavour(mpirun).map_err(|fault| fault.to_string())?;
    shim::build(launcher).map_err(|error| error.to_string())
}

/// Whose launcher this is, by what it says of its version.
fn flavour(mpirun: &str) -> Result<Launcher, Fault> {
    let (program, _) = words(mpirun)?;
    let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    let said = said.map_err(|e| no_launcher(mpirun, &e))?;
    Ok(flavour_of(&String::from_utf8_lossy(&said.stdout)))
}

fn flavour_of(version: &str) -> Launcher {
    if ["Open MPI", "OpenRTE", "open-mpi.org"].iter().any(|sign| version.contains(sign)) {
        Launcher::OpenMpi
    } else if version.contains("HYDRA") {
        Launcher::Mpich
    } else {
        Launcher::Unknown
    }
}

fn command(start: &Start, launcher: Launcher, socket: &Path) -> Result<Command, Fault> {
    let (program, arguments) = words(start.mpirun)?;
    let mut command = Command::new(program);
    command.args(arguments).arg("-n").arg(start.ranks.to_string());
    if launcher == Launcher::OpenMpi {
        // Ranks bind themselves, to the processors that those of other transports have too; and there may be more of them than cores.
        command.args(["--bind-to", "none", "--oversubscribe"]);
        if rustix::process::geteuid().is_root() {
            command.arg("--allow-run-as-root");
        }
    }
    let mut address = OsString::from(UNIX);
    address.push(socket);
    command.arg(start.program).args(["bench", "rank", "--control"]).arg(address);
    Ok(command)
}

/// A launcher and its own arguments.
fn words(mpirun: &str) -> Result<(String, Vec<String>), Fault> {
    let mut words = mpirun.split_ascii_whitespace().map(str::to_owned);
    match words.next() {
        Some(program) => Ok((program, words.collect())),
        None => Err(Fault::Start("--mpirun names no program: give one, such as mpirun.mpich".to_owned())),
    }
}

fn no_launcher(mpirun: &str, error: &io::Error) -> Fault {
    Fault::Start(format!(
        "cannot start {mpirun}: {error}. The transport mpi needs an MPI: install one (Debian: apt-get install openmpi-bin libopenmpi-dev, \
         or mpich libmpich-dev), or name its launcher with --mpirun"
    ))
}

/// Whether one of these happened within the limit.
fn is_ready(fd: BorrowedFd, what: PollFlags, limit: Option<Duration>) -> bool {
    let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    matches!(poll(&mut [PollFd::from_borrowed_fd(fd, what)], limit.as_ref()), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_by_their_version() {
        assert_eq!(flavour_of("mpirun (Open MPI) 4.1.4\n"), Launcher::OpenMpi);
        assert_eq!(flavour_of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Launcher::OpenMpi);
        assert_eq!(flavour_of("HYDRA build details:\n    Version: 4.0.2\n"), Launcher::Mpich);
        assert_eq!(flavour_of("slurm 22.05.8\n"), Launcher::Unknown);
    }

    #[test]
    fn the_launcher_keeps_its_own_arguments() {
        let start = Start { mpirun: "mpirun -x A=b", program: Path::new("/bin/ropeway"), ranks: 3 };
        let line = |launcher| {
            let command = command(&start, launcher, Path::new("/tmp/x/control")).expect("a command");
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let rank = "/bin/ropeway bench rank --control unix:/tmp/x/control";
        assert_eq!(line(Launcher::Mpich), format!("mpirun -x A=b -n 3 {rank}"));
        assert!(line(Launcher::OpenMpi).starts_with("mpirun -x A=b -n 3 --bind-to none --oversubscribe"));
        assert!(words(" ").is_err());
    }

    #[test]
    fn a_launcher_that_ends_early_gives_its_last_sentence() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let mpirun = directory.path().join("mpirun");
        let script = "#!/bin/sh\nprintf '%s\\n' warned ----- 'no' 'slots' ----- >&2\nexit 3\n";
        std::fs::write(&mpirun, script).expect("a script");
        std::fs::set_permissions(&mpirun, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let mpirun = mpirun.to_str().expect("a path");
        let scratch = Scratch::new().expect("a directory");
        let asked = Start { mpirun, program: Path::new("/bin/true"), ranks: 2 };
        let error = start(&asked, &scratch, Duration::from_secs(20), &|| false).expect_err("it ends");
        let text = error.to_string();
        assert!(text.contains("exit status: 3 before") && text.contains("(no slots)"), "{text}");
    }
}
