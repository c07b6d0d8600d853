//! Where `ropeway ss` gets its facts: the socket tables of all process families that this user may see.
//!
//! Tables come from the daemons, as the processes gave them; and from /proc for processes that have not said hello to the
//! present daemon yet. The tables belong to others: the reader copies and checks, this module only asks who is alive.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use ropeway_shm::table::{Connection, Reader};
use ropeway_socket::reason::Reason;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::daemon::control::{self, Control, ControlError};
use crate::daemon::diag::{Diag, Listed};
use crate::daemon::process;

/// One end of a connection, as its own process sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The same connection at another look: table, record and its generation.
    pub key: (u64, u32, u32),
    /// Living owners, at least one.
    pub pids: Vec<u32>,
    pub program: String,
    /// Local and remote address; `None` for a socket of another network namespace that has not registered.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// What the kernel holds of it; `None` for a socket of another network namespace.
    pub kernel: Option<KernelQueues>,
    /// Bytes sent and received on the rings of the present pair.
    pub on_pair: [u64; 2],
    pub tx_on_shm: bool,
    pub rx_on_shm: bool,
    pub reason: &'static str,
    pub remote_reason: &'static str,
    pub bytes: Bytes,
    pub promotions: u32,
    pub demotions: u32,
}

/// Bytes in the kernel's two queues of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelQueues {
    pub unread: u64,
    pub unacknowledged: u64,
}

/// Bytes since the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bytes {
    pub tcp_sent: u64,
    pub shm_sent: u64,
    pub tcp_received: u64,
    pub shm_received: u64,
}

impl Bytes {
    pub fn sent(&self) -> u64 {
        self.tcp_sent.saturating_add(self.shm_sent)
    }

    pub fn received(&self) -> u64 {
        self.tcp_received.saturating_add(self.shm_received)
    }
}

/// All ends that can be seen now, and what kept others from being seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub ends: Vec<End>,
    /// True if a daemon answered or a process was found.
    pub anyone: bool,
    pub problems: Vec<String>,
}

/// Reads all tables once.
pub fn look() -> Seen {
    let mut tables = Tables::default();
    for name in control::names() {
        match Control::connect(&name).and_then(|daemon| daemon.list(|entry| tables.add_listed(entry.table))) {
            Ok(()) => tables.anyone = true,
            Err(ControlError::NotRunning(_)) => {}
            Err(error) => tables.note(error.to_string()),
        }
    }
    tables.add_from_proc();
    // Without netlink (a sandbox) what has registered still has its addresses.
    let listed = Diag::open().and_then(|mut diag| diag.live_sockets()).unwrap_or_default();
    let kernel: HashMap<u64, Listed> = listed.into_iter().map(|socket| (socket.cookie, socket)).collect();
    let Tables { read, anyone, problems } = tables;
    let mut ends: Vec<End> = Vec::new();
    for (inode, connections) in read {
        ends.extend(connections.into_iter().filter_map(|connection| end(inode, connection, &kernel)));
    }
    ends.sort_by(|a, b| (&a.program, &a.pids, a.ends, a.key).cmp(&(&b.program, &b.pids, b.ends, b.key)));
    Seen { ends, anyone, problems }
}

/// The tables that were found. Each is read and closed before the next: there may be more than one can have open.
#[derive(Debug, Default)]
struct Tables {
    /// By inode.
    read: HashMap<u64, Vec<Connection>>,
    anyone: bool,
    problems: Vec<String>,
}

impl Tables {
    fn note(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn add(&mut self, table: &OwnedFd) {
        let Ok(stat) = rustix::fs::fstat(table) else { return };
        if self.read.contains_key(&stat.st_ino) {
            return;
        }
        let connections = Reader::open(table.as_fd()).map(|reader| reader.connections()).unwrap_or_else(|error| {
            self.note(format!("a socket table cannot be read: {error}"));
            Vec::new()
        });
        self.read.insert(stat.st_ino, connections);
    }

    /// What a daemon said of a process.
    fn add_listed(&mut self, table: Option<io::Result<OwnedFd>>) {
        match table {
            Some(Ok(table)) => self.add(&table),
            Some(Err(error)) => self.note(format!("a socket table cannot be taken from the daemon: {error}")),
            None => {}
        }
    }

    /// Tables that processes of ours hold open.
    fn add_from_proc(&mut self) {
        let processes = self.entries("/proc".into());
        let is_process =
            |path: &PathBuf| path.file_name().is_some_and(|n| n.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        for process in processes.into_iter().filter(is_process) {
            for descriptor in self.entries(process.join("fd")) {
                let link = std::fs::read_link(&descriptor).unwrap_or_default();
                if !link.as_os_str().as_encoded_bytes().starts_with(b"/memfd:ropeway-table") {
                    continue;
                }
                match open_memfd(&descriptor) {
                    Ok(Some(table)) => {
                        self.anyone = true;
                        self.add(&table);
                    }
                    Ok(None) => {}
                    Err(error) => self.note_unless_gone(&descriptor, &error),
                }
            }
        }
    }

    fn entries(&mut self, directory: PathBuf) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&directory).map(|all| all.flatten().map(|entry| entry.path()).collect());
        entries.unwrap_or_else(|error| {
            self.note_unless_gone(&directory, &error);
            Vec::new()
        })
    }

    /// What cannot be looked at in /proc has mostly ended, or is another user's.
    fn note_unless_gone(&mut self, path: &Path, error: &io::Error) {
        let is_gone = error.raw_os_error() == Some(Errno::SRCH.raw_os_error());
        if !is_gone && !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) {
            self.note(format!("{}: {error}", path.display()));
        }
    }
}

/// Opens a descriptor of another process for reading, if it is a file. That process may put anything in its place at any time; what is opened like this does nothing and waits for nobody
/// before it was looked at.
fn open_memfd(descriptor: &Path) -> io::Result<Option<OwnedFd>> {
    let place = rustix::fs::open(descriptor, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) == FileType::RegularFile;
    Ok(if is_file { Some(process::for_reading(place)?) } else { None })
}

/// `None` if no owner lives: the record was left behind by a process that was killed.
fn end(table: u64, c: Connection, kernel: &HashMap<u64, Listed>) -> Option<End> {
    let comm = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let pids: Vec<u32> = c.owners.into_iter().filter(|pid| comm(pid).is_some()).collect();
    let program = comm(pids.first()?)?.trim_end().to_owned();
    let [tcp_sent, shm_sent, tcp_received, shm_received] = c.bytes;
    let name = |code: u32| Reason::name_of(u16::try_from(code).unwrap_or(u16::MAX));
    let registered = (c.remote.1 != 0).then(|| (address(c.local), address(c.remote)));
    let kernel = kernel.get(&c.cookie);
    let ends = kernel.map(|k| (address((k.local.addr, k.local.port)), address((k.remote.addr, k.remote.port))));
    // Not registered and nothing against it: it has not moved enough yet.
    let too_young = registered.is_none() && c.reason == u32::from(Reason::None.code());
    Some(End {
        key: (table, c.index, c.generation),
        pids,
        program,
        ends: ends.or(registered),
        kernel: kernel.map(|k| KernelQueues { unread: k.unread.into(), unacknowledged: k.unacknowledged.into() }),
        on_pair: c.on_pair,
        tx_on_shm: c.tx_on_ring,
        rx_on_shm: c.rx_on_ring,
        reason: if too_young { Reason::TooYoung.name() } else { name(c.reason) },
        remote_reason: name(c.remote_reason),
        bytes: Bytes { tcp_sent, shm_sent, tcp_received, shm_received },
        promotions: c.promotions,
        demotions: c.demotions,
    })
}

fn address((ip, port): ([u8; 16], u16)) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}
