//! Ranks that a launcher starts, all of a job at once: `mpirun`, `srun`. Each joins its coordinator over TCP, and shows that it is of this job.
//!
//! Both sides are here: the coordinator's [`start`], and [`join`], which a rank calls. What does not live here: MPI itself (`ropeway-mpi`), and what ranks do once they have joined ([`super::serve`]).
//!
//! A rank's first words on its connection are the job's token, which it has from its environment: other users of the hosts see the command line, with the coordinator's address, but not that.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ropeway_mpi::shim::{self, Launcher};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, Signal, getpid, kill_process};
use rustix::rand::{GetRandomFlags, getrandom};

use super::group::BrokenOff;
use super::member::{Fault, Member, last_line, wait};
use super::serve;
use super::start::rank_line;

/// The launcher of a job, which runs as long as its ranks do. It is ended when this is dropped.
#[derive(Debug)]
pub struct Job {
    child: Child,
}

/// What is to be started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The launcher, with arguments of the user's.
    pub launcher: &'a str,
    /// How `ropeway` is started where the ranks run; may have arguments.
    pub program: &'a OsStr,
    pub ranks: usize,
    /// Under `ropeway run`.
    pub preloaded: bool,
    /// Name or address of this host for ranks of others; `None`: all run here.
    pub meet: Option<&'a str>,
}

/// File in the scratch directory with what the launcher and its ranks write to standard error.
const ERRORS: &str = "launcher";

/// Where ranks find the token.
const TOKEN_VAR: &str = "ROPEWAY_BENCH_TOKEN";

/// As hexadecimal digits, 128 bits.
const TOKEN_BYTES: usize = 32;

/// Connections that have not said the token yet, besides those that the ranks may be: of more, the oldest is closed.
const MOST_STRANGERS: usize = 16;

/// Starts a job and waits until all of its ranks have joined. They are in no order yet: their first words say who they are.
pub fn start(
    start: &Start,
    scratch: &Path,
    limit: Duration,
    broken_off: BrokenOff,
) -> Result<(Vec<Member>, Job), Fault> {
    let Start { launcher, ranks, .. } = *start;
    let cannot = |what: &str, error: io::Error| Fault::Start(format!("cannot {what}: {error}"));
    let errors = scratch.join(ERRORS);
    let door = Door::open(start.meet, ranks)?;
    let address = door.address().map_err(|e| cannot("make a socket for the ranks", e))?;
    let stderr = File::create(&errors).map_err(|e| cannot("make a temporary file", e))?;
    let flavour = flavour(launcher)?;
    let mut command = command(start, flavour, &address, scratch)?;
    // Nobody types for the ranks, and they print nothing; the launcher itself is carried by nothing but the kernel.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    command.env("ROPEWAY", "off").env(TOKEN_VAR, &door.token);
    let child = command.spawn().map_err(|e| no_launcher(launcher, &e))?;
    let mut job = Job { child };
    let members = job.joined(start, door, &errors, limit, broken_off)?;
    Ok((members, job))
}

/// Between two looks for whether the launcher has ended while ranks are waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Where ranks knock.
struct Door {
    listener: TcpListener,
    token: String,
    /// Those that have not said the whole token yet, the oldest first.
    strangers: Vec<Stranger>,
    /// Of more, the oldest is sent away.
    most_strangers: usize,
}

struct Stranger {
    stream: TcpStream,
    from: SocketAddr,
    said: Vec<u8>,
}

impl Door {
    /// For so many ranks, at that name or address of this host; `None`: for ranks of this host alone.
    fn open(meet: Option<&str>, ranks: usize) -> Result<Door, Fault> {
        let host = meet.unwrap_or("127.0.0.1");
        let cannot = |error: io::Error| Fault::Start(format!("cannot wait for ranks at {host}: {error}"));
        let mut secret = [0; TOKEN_BYTES / 2];
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(|error| cannot(error.into()))?;
        let token = format!("{:032x}", u128::from_ne_bytes(secret));
        let listener = TcpListener::bind((host, 0)).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let is_name = host.parse::<IpAddr>().is_err() && host != "localhost";
        if is_name && listener.local_addr().map_err(cannot)?.ip().is_loopback() {
            return Err(Fault::Start(format!(
                "this host knows its own name {host} as an address that no other host reaches: give an address after --meet"
            )));
        }
        Ok(Door { listener, token, strangers: Vec::new(), most_strangers: MOST_STRANGERS + ranks })
    }

    fn address(&self) -> io::Result<String> {
        self.listener.local_addr().map(|address| address.to_string())
    }

    /// Those who have said the token since the last time; waits so long for somebody to say something.
    fn admit(&mut self, limit: Duration) -> io::Result<Vec<(TcpStream, SocketAddr)>> {
        let fds = self.strangers.iter().map(|stranger| stranger.stream.as_fd()).chain([self.listener.as_fd()]);
        wait_for(fds, PollFlags::IN, Some(limit));
        let mut admitted = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.listen(self.token.as_bytes()) {
                Some(true) => admitted.push((stranger.stream, stranger.from)),
                Some(false) => {}
                None => self.strangers.push(stranger),
            }
        }
        match self.listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                if self.strangers.len() >= self.most_strangers {
                    self.strangers.remove(0);
                }
                self.strangers.push(Stranger { stream, from, said: Vec::new() });
            }
            // None is there, or it has left again.
            Err(e) if is_passing(e.kind()) => {}
            Err(e) => return Err(e),
        }
        admitted
            .iter()
            .try_for_each(|(stream, _)| stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)))?;
        Ok(admitted)
    }
}

fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

impl Stranger {
    /// Whether it is of this job; `None`: it has not said enough yet.
    fn listen(&mut self, token: &[u8]) -> Option<bool> {
        let mut word = [0; TOKEN_BYTES];
        match self.stream.read(&mut word[self.said.len()..]) {
            Ok(0) => return Some(false),
            Ok(n) => {
                let from = self.said.len();
                self.said.extend_from_slice(&word[from..from + n]);
            }
            Err(e) if is_passing(e.kind()) => {}
            Err(_) => return Some(false),
        }
        // A guess is worth one connection: how long the comparison takes tells nothing of use.
        (self.said.len() == TOKEN_BYTES).then(|| self.said == token)
    }
}

impl Job {
    /// Waits until all ranks have come in. The door is closed before a job that failed is ended: who stands there learns it.
    fn joined(
        &mut self,
        start: &Start,
        mut door: Door,
        errors: &Path,
        limit: Duration,
        broken_off: BrokenOff,
    ) -> Result<Vec<Member>, Fault> {
        let Start { launcher, ranks, .. } = *start;
        let cannot = |error: io::Error| Fault::Start(format!("cannot take a rank in: {error}"));
        let deadline = Instant::now() + limit;
        let mut members = Vec::new();
        while members.len() < ranks {
            if broken_off() {
                return Err(Fault::BrokenOff);
            }
            if let Some(status) = self.ended() {
                let said = last_line(errors);
                return Err(Fault::Start(format!("{launcher} ended with {status} before its ranks had joined{said}")));
            }
            if Instant::now() >= deadline {
                let (came, said) = (members.len(), last_line(errors));
                return Err(Fault::Start(format!(
                    "only {came} of {ranks} ranks of {launcher} came in {limit:?}{said}"
                )));
            }
            for (stream, from) in door.admit(LOOK_AGAIN).map_err(cannot)? {
                let input = stream.try_clone().map_err(cannot)?;
                let member = Member::new(format!("a rank of {launcher}"), OwnedFd::from(input), OwnedFd::from(stream));
                members.push(member.with_errors(errors.to_owned()).with_address(from.ip().to_string()));
            }
        }
        Ok(members)
    }

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
/// The address is none, nobody is there, or no token was given.
pub fn join(address: &str, devices: bool) -> io::Result<()> {
    let token = std::env::var(TOKEN_VAR).map_err(|_| {
        io::Error::other(format!("{TOKEN_VAR} is not set: the launcher does not hand its environment on to the ranks"))
    })?;
    let mut stream = connect(address).map_err(|e| {
        io::Error::other(format!(
            "cannot reach the coordinator at {address}: {e}; ranks on other hosts need --meet with the address of the host where the program was started"
        ))
    })?;
    stream.write_all(token.as_bytes())?;
    end_with(stream.try_clone()?)?;
    serve::serve(BufReader::new(stream.try_clone()?), stream, devices, own_rank())
}

/// With system calls that no preloaded library sees: the control is no part of what is measured.
fn connect(address: &str) -> io::Result<TcpStream> {
    /// Before the kernel asks whether a silent coordinator's host is still there, and between further questions.
    const KEEP_ALIVE: Duration = Duration::from_secs(10);
    let mut failure = io::ErrorKind::AddrNotAvailable.into();
    for address in std::net::ToSocketAddrs::to_socket_addrs(address)? {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        match socket.and_then(|socket| rustix::net::connect(&socket, &address).map(|()| socket)) {
            Ok(socket) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
                sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE)?;
                return Ok(socket.into());
            }
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// Ends this process as soon as nobody is left at the other end of a socket or pipe, in the middle of a trial as well. The coordinator stays until the ranks that it said goodbye to have ended.
pub fn end_with(coordinator: impl AsFd + Send + 'static) -> io::Result<()> {
    let watch = move || {
        // The end of a pipe is told unasked.
        while !wait_for([coordinator.as_fd()].into_iter(), PollFlags::RDHUP, None) {}
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
    // What Slurm sets for a batch script names the job's size otherwise: that script is one process.
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
pub fn build_shim(launcher: &str) -> Result<PathBuf, String> {
    let launcher = flavour(launcher).map_err(|fault| fault.to_string())?;
    shim::build(launcher).map_err(|error| error.to_string())
}

/// Whether this launcher starts several jobs, one for each transport, on the same hosts.
///
/// # Errors
/// It would not, or there is no such launcher.
pub fn can_share_hosts(launcher: &str) -> Result<(), Fault> {
    let (_, arguments) = words(launcher)?;
    if flavour(launcher)? != Launcher::Slurm || is_in_allocation(&arguments) {
        return Ok(());
    }
    Err(Fault::Start(format!(
        "outside of an allocation {launcher} would put the ranks of each transport on hosts of their own: run all of it in one, such as \
         `salloc -N 2 ropeway bench ...`, or name one with --jobid"
    )))
}

/// Whether srun with these arguments starts a step of an allocation that is there already.
fn is_in_allocation(arguments: &[String]) -> bool {
    std::env::var_os("SLURM_JOB_ID").is_some() || arguments.iter().any(|argument| argument.starts_with("--jobid"))
}

/// Whose launcher this is, by what it says of its version.
fn flavour(launcher: &str) -> Result<Launcher, Fault> {
    /// One that does not know the question may do anything, for as long as it likes.
    const ASKING: Duration = Duration::from_secs(5);
    let (program, _) = words(launcher)?;
    let mut command = Command::new(&program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| no_launcher(launcher, &e))?;
    if wait(&mut child, ASKING).is_none() {
        let _ = child.kill();
        let _ = child.wait();
        return Ok(Launcher::Unknown);
    }
    let (mut said, mut length) = (vec![0; VERSION_BYTES], 0);
    // What it said is in the pipe. Whom it has started may keep that open: nobody waits for its end.
    if let Some(output) = &mut child.stdout
        && wait_for([output.as_fd()].into_iter(), PollFlags::IN, Some(Duration::ZERO))
    {
        length = output.read(&mut said).map_err(|e| no_launcher(launcher, &e))?;
    }
    Ok(flavour_of(&String::from_utf8_lossy(&said[..length])))
}

fn flavour_of(version: &str) -> Launcher {
    if ["Open MPI", "OpenRTE", "open-mpi.org"].iter().any(|sign| version.contains(sign)) {
        Launcher::OpenMpi
    } else if version.contains("HYDRA") {
        Launcher::Mpich
    } else if version.starts_with("slurm") {
        Launcher::Slurm
    } else {
        Launcher::Unknown
    }
}

/// Where Open MPI makes a directory for its jobs.
const OPEN_MPI_BASE: &str = "OMPI_MCA_orte_tmpdir_base";

/// Options of srun that say which nodes of the allocation a step has.
const CHOICE_OF_NODES: [&str; 6] = ["-w", "--nodelist", "-x", "--exclude", "-r", "--relative"];

fn command(start: &Start, launcher: Launcher, address: &str, scratch: &Path) -> Result<Command, Fault> {
    let (program, arguments) = words(start.launcher)?;
    let mut command = Command::new(program);
    command.args(&arguments).arg("-n").arg(start.ranks.to_string());
    // Ranks bind themselves, to the processors that those of other transports have too.
    match launcher {
        Launcher::OpenMpi => {
            // There may be more of them than cores.
            command.args(["--bind-to", "none", "--oversubscribe", "-x", TOKEN_VAR]);
            if rustix::process::geteuid().is_root() {
                command.arg("--allow-run-as-root");
            }
            // Jobs that begin and end at the same time take each other's directory away where they share one. On other hosts ours is not.
            if start.meet.is_none() && std::env::var_os(OPEN_MPI_BASE).is_none() {
                command.env(OPEN_MPI_BASE, scratch);
            }
        }
        Launcher::Slurm => {
            // The ranks of all transports have the same processors, and there may be more of them: one step of the allocation for each, all at once.
            command.args(["--overlap", "--overcommit", "--cpu-bind=none"]);
            let chooses = |argument: &String| CHOICE_OF_NODES.iter().any(|option| argument.starts_with(option));
            if is_in_allocation(&arguments) && !arguments.iter().any(chooses) {
                // Otherwise a step is put on nodes that have none yet.
                command.arg("--relative=0");
            }
            // A batch script that was given no environment would keep the token from the ranks.
            command.env_remove("SLURM_EXPORT_ENV");
        }
        Launcher::Mpich | Launcher::Unknown => {}
    }
    let program: Vec<&OsStr> = match start.meet {
        // A command with arguments is the user's.
        Some(_) => start.program.to_str().unwrap_or_default().split_ascii_whitespace().map(OsStr::new).collect(),
        None => vec![start.program],
    };
    match start.preloaded {
        true => command.args(["env", "-u", "ROPEWAY"]),
        // Asked for as it is without us.
        false => command.args(["env", "ROPEWAY=off"]),
    };
    command.args(rank_line(&program, start.preloaded, start.meet.is_none().then_some(scratch)));
    command.arg("--control").arg(address);
    Ok(command)
}

/// More than any launcher says of its version.
const VERSION_BYTES: usize = 16 << 10;

/// A launcher and its own arguments.
fn words(launcher: &str) -> Result<(String, Vec<String>), Fault> {
    let mut words = launcher.split_ascii_whitespace().map(str::to_owned);
    match words.next() {
        Some(program) => Ok((program, words.collect())),
        None => Err(Fault::Start("the launcher names no program: give one, such as mpirun.mpich".to_owned())),
    }
}

fn no_launcher(launcher: &str, error: &io::Error) -> Fault {
    Fault::Start(format!(
        "cannot start {launcher}: {error}. The transport mpi needs an MPI: install one (Debian: apt-get install openmpi-bin libopenmpi-dev, \
         or mpich libmpich-dev), or name its launcher with --mpirun; --launcher names one that starts the ranks of every transport"
    ))
}

/// Waits until one of these happened to one of these; false when the limit passed without.
fn wait_for<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, what: PollFlags, limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::from_borrowed_fd(fd, what)).collect();
    matches!(poll(&mut fds, limit.as_ref()), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_by_their_version() {
        assert_eq!(flavour_of("mpirun (Open MPI) 4.1.4\n"), Launcher::OpenMpi);
        assert_eq!(flavour_of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Launcher::OpenMpi);
        assert_eq!(flavour_of("HYDRA build details:\n    Version: 4.0.2\n"), Launcher::Mpich);
        assert_eq!(flavour_of("slurm-wlm 22.05.8\n"), Launcher::Slurm);
        assert_eq!(flavour_of("slurm 23.11.4\n"), Launcher::Slurm);
        assert_eq!(flavour_of("prun 2.1\n"), Launcher::Unknown);
    }

    #[test]
    fn the_launcher_keeps_its_own_arguments() {
        let line = |start: &Start, launcher| {
            let command = command(start, launcher, "10.0.0.1:99", Path::new("/tmp/x")).expect("a command");
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let program = OsStr::new("/bin/ropeway");
        let here = Start { launcher: "mpirun -x A=b", program, ranks: 3, preloaded: false, meet: None };
        let rank = "/bin/ropeway bench rank --control 10.0.0.1:99";
        assert_eq!(line(&here, Launcher::Mpich), format!("mpirun -x A=b -n 3 env ROPEWAY=off {rank}"));
        assert!(
            line(&here, Launcher::OpenMpi)
                .starts_with("mpirun -x A=b -n 3 --bind-to none --oversubscribe -x ROPEWAY_BENCH_TOKEN")
        );
        let preloaded = Start { preloaded: true, ..here };
        let stats = "mpirun -x A=b -n 3 env -u ROPEWAY /bin/ropeway run --stats /tmp/x/stats --";
        assert_eq!(line(&preloaded, Launcher::Mpich), format!("{stats} {rank}"));
        let far = Start { meet: Some("10.0.0.1"), program: OsStr::new("nice ropeway"), launcher: "srun", ..preloaded };
        let rank = "nice ropeway bench rank --devices --control 10.0.0.1:99";
        let far_line = format!("env -u ROPEWAY nice ropeway run -- {rank}");
        assert_eq!(line(&far, Launcher::Unknown), format!("srun -n 3 {far_line}"));
        let step = "-n 3 --overlap --overcommit --cpu-bind=none";
        let within = Start { launcher: "srun --jobid=7", ..far };
        assert_eq!(line(&within, Launcher::Slurm), format!("srun --jobid=7 {step} --relative=0 {far_line}"));
        let chosen = Start { launcher: "srun --jobid=7 -w a,b", ..far };
        assert_eq!(line(&chosen, Launcher::Slurm), format!("srun --jobid=7 -w a,b {step} {far_line}"));
        assert!(words(" ").is_err());
    }

    /// A launcher that is this script.
    fn launcher(directory: &Path, script: &str) -> String {
        let (source, path) = (directory.join("script"), directory.join("launcher"));
        std::fs::write(&source, format!("#!/bin/sh\n{script}")).expect("a script");
        ropeway_testkit::env::install(&source, &path);
        path.to_str().expect("a path").to_owned()
    }

    fn two_ranks(launcher: &str) -> Result<(Vec<Member>, Job), Fault> {
        let scratch = tempfile::tempdir().expect("a directory");
        let program = OsStr::new("/bin/true");
        let asked = Start { launcher, program, ranks: 2, preloaded: false, meet: None };
        start(&asked, scratch.path(), Duration::from_secs(20), &|| false)
    }

    #[test]
    fn a_launcher_that_ends_early_gives_its_last_sentence() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "printf '%s\\n' warned ----- 'no' 'slots' ----- >&2\nexit 3\n";
        let text = two_ranks(&launcher(directory.path(), script)).expect_err("it ends").to_string();
        assert!(text.contains("exit status: 3 before") && text.contains("(no slots)"), "{text}");
    }

    fn connection(door: &Door) -> TcpStream {
        TcpStream::connect(door.address().expect("an address")).expect("a connection")
    }

    /// How many come in within a moment.
    fn admitted(door: &mut Door) -> usize {
        (0..40).map(|_| door.admit(Duration::from_millis(5)).expect("a socket that listens").len()).sum()
    }

    #[test]
    fn only_ranks_of_the_job_are_admitted() {
        let mut door = Door::open(None, 4).expect("a socket");
        let token = door.token.clone();
        let say = |stream: &mut TcpStream, word: &str| stream.write_all(word.as_bytes()).expect("said");
        let mut silent = connection(&door);
        assert_eq!((admitted(&mut door), door.strangers.len()), (0, 1), "who says nothing waits");
        say(&mut connection(&door), &"0".repeat(TOKEN_BYTES));
        assert_eq!((admitted(&mut door), door.strangers.len()), (0, 1), "who guesses is sent away");
        say(&mut silent, &token[..5]);
        assert_eq!(admitted(&mut door), 0);
        say(&mut silent, &token[5..]);
        assert_eq!((admitted(&mut door), door.strangers.len()), (1, 0), "in two pieces");
    }

    #[test]
    fn a_crowd_of_strangers_keeps_no_rank_out() {
        let mut door = Door::open(None, 20).expect("a socket");
        let token = door.token.clone();
        let knock = |door: &mut Door, count: usize| -> Vec<TcpStream> {
            let streams = (0..count).map(|_| connection(door)).collect();
            (0..count).for_each(|_| assert!(door.admit(Duration::from_millis(100)).expect("it listens").is_empty()));
            streams
        };
        let _crowd = knock(&mut door, 3 * MOST_STRANGERS);
        // All knock before the first has the processor to say the token.
        let mut ranks = knock(&mut door, 20);
        assert_eq!(door.strangers.len(), 20 + MOST_STRANGERS);
        ranks.iter_mut().for_each(|rank| rank.write_all(token.as_bytes()).expect("said"));
        assert_eq!(admitted(&mut door), 20);
    }

    #[test]
    fn a_launcher_that_does_not_answer_is_one_of_an_unknown_kind() {
        let directory = tempfile::tempdir().expect("a directory");
        let asked = Instant::now();
        assert_eq!(flavour(&launcher(directory.path(), "exec sleep 60\n")), Ok(Launcher::Unknown));
        // One that leaves somebody behind with its output.
        let left = directory.path().join("left");
        let script = format!("sleep 60 &\necho $! > {}\necho 'mpirun (Open MPI) 4.1.4'\n", left.display());
        assert_eq!(flavour(&launcher(directory.path(), &script)), Ok(Launcher::OpenMpi));
        assert!(asked.elapsed() < Duration::from_secs(25));
        let pid = std::fs::read_to_string(left).expect("its number").trim().parse().ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a number"), Signal::KILL).expect("it sleeps still");
    }
}
