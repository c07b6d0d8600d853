//! Where `ropeway ss` gets its facts: the socket tables of all process families that this user may see.
//!
//! Tables come from the daemons, as the processes gave them; and from /proc for processes that have not said hello to the
//! present daemon yet. The tables belong to others: the reader copies and checks, this module asks who is alive, and reads of all that is another user's no more than so much.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ropeway_shm::table::{self, Connection};
use ropeway_socket::reason::Reason;
use rustix::fs::{AtFlags, FileType, MemfdFlags, Mode, OFlags, Statx, StatxFlags};
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

/// Records that are read of all tables of another user's together, each table being one more: many times as many as the usual limits let him have.
const MOST_RECORDS: u32 = 1 << 18;

/// Reads all tables once.
pub fn look() -> Seen {
    let mut tables = Tables::new();
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
    let Tables { read, anyone, problems, .. } = tables;
    let alive = alive(read.values().flat_map(|table| &table.connections).flat_map(|c| &c.owners).copied().collect());
    let mut ends: Vec<End> = Vec::new();
    for (inode, table) in read {
        let of_table = table.connections.into_iter();
        ends.extend(of_table.filter_map(|connection| end(inode, table.user, connection, &kernel, &alive)));
    }
    ends.sort_by(|a, b| (&a.program, &a.pids, a.ends, a.key).cmp(&(&b.program, &b.pids, b.ends, b.key)));
    Seen { ends, anyone, problems }
}

/// A process that runs.
#[derive(Debug)]
struct Running {
    comm: String,
    user: u32,
}

/// Those of these processes that run. Each is looked at once, however often it is named.
fn alive(named: HashSet<u32>) -> HashMap<u32, Running> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let look = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().filter(|pid| named.contains(pid))?;
        let user = process.metadata().ok()?.uid();
        let comm = std::fs::read_to_string(process.path().join("comm")).ok()?.trim_end().to_owned();
        Some((pid, Running { comm, user }))
    };
    processes.filter_map(look).collect()
}

/// The tables that were found. Each is read and closed before the next: there may be more than one can have open.
#[derive(Debug, Default)]
struct Tables {
    /// The device of files in memory.
    memory: Option<(u32, u32)>,
    /// By inode.
    read: HashMap<u64, Table>,
    /// Of each user, how many records may still be read.
    left: HashMap<u32, u32>,
    anyone: bool,
    problems: Vec<String>,
}

/// What was read of a table.
#[derive(Debug)]
struct Table {
    /// Whose file it is.
    user: u32,
    connections: Vec<Connection>,
}

/// What a descriptor leads to, if that is a file in memory, as tables are.
#[derive(Debug)]
struct InMemory {
    inode: u64,
    user: u32,
}

/// What is known of a file without asking who answers for it: the server of a file system may never do so.
fn known_of(file: impl AsFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::UID)?)
}

/// Where files in memory are.
fn memory() -> io::Result<(u32, u32)> {
    let one = known_of(rustix::fs::memfd_create(c"ropeway-ss", MemfdFlags::CLOEXEC)?)?;
    Ok((one.stx_dev_major, one.stx_dev_minor))
}

impl Tables {
    fn new() -> Tables {
        let mut tables = Tables::default();
        match memory() {
            Ok(memory) => tables.memory = Some(memory),
            Err(error) => tables.note(format!("socket tables cannot be told from other files: {error}")),
        }
        tables
    }

    fn note(&mut self, problem: String) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    fn in_memory(&self, descriptor: impl AsFd) -> io::Result<Option<InMemory>> {
        let file = known_of(descriptor)?;
        let is_in_memory = FileType::from_raw_mode(file.stx_mode.into()) == FileType::RegularFile
            && self.memory == Some((file.stx_dev_major, file.stx_dev_minor));
        Ok(is_in_memory.then_some(InMemory { inode: file.stx_ino, user: file.stx_uid }))
    }

    /// Reads a table, unless it was read before or too much of its user's was.
    fn add(&mut self, file: &InMemory, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<()> {
        if self.read.contains_key(&file.inode) {
            return Ok(());
        }
        let is_own = file.user == rustix::process::geteuid().as_raw();
        let left = self.left.get(&file.user).filter(|_| !is_own);
        let mut left = left.copied().unwrap_or(MOST_RECORDS);
        if left > 0 {
            let table = File::from(open()?);
            left -= 1;
            let connections = table::connections(&table, &mut left).unwrap_or_else(|error| {
                self.note(format!("a socket table cannot be read: {error}"));
                Vec::new()
            });
            self.read.insert(file.inode, Table { user: file.user, connections });
        }
        if left == 0 {
            self.note(format!("the socket tables of user {} hold too much; not all of it is shown", file.user));
        }
        self.left.insert(file.user, left);
        Ok(())
    }

    /// What a daemon said of a process.
    fn add_listed(&mut self, table: Option<io::Result<OwnedFd>>) {
        let added = table.map(|table| {
            let table = table?;
            self.in_memory(&table)?.map_or(Ok(()), |file| self.add(&file, || Ok(table)))
        });
        if let Some(Err(error)) = added {
            self.note(format!("a socket table cannot be taken from the daemon: {error}"));
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
                if let Err(error) = self.add_held(&descriptor) {
                    self.note_unless_gone(&descriptor, &error);
                }
            }
        }
    }

    /// What a process holds open under a number. It may put anything in its place at any time; what is opened like this does nothing and waits for nobody before it was looked at.
    fn add_held(&mut self, descriptor: &Path) -> io::Result<()> {
        let place = rustix::fs::open(descriptor, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let Some(file) = self.in_memory(&place)? else { return Ok(()) };
        self.anyone = true;
        self.add(&file, || process::for_reading(place))
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

/// `None` if no owner lives: the record was left behind by a process that was killed. A table speaks for processes of its own user alone; one that root made, for those too that were root before.
fn end(
    table: u64,
    user: u32,
    c: Connection,
    kernel: &HashMap<u64, Listed>,
    alive: &HashMap<u32, Running>,
) -> Option<End> {
    let is_owner = |pid: &u32| alive.get(pid).is_some_and(|owner| user == 0 || owner.user == user);
    let pids: Vec<u32> = c.owners.into_iter().filter(is_owner).collect();
    let program = alive.get(pids.first()?)?.comm.clone();
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

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_shm::table::CLASS_CONNECTED;

    #[test]
    fn of_all_tables_of_another_user_no_more_is_read_than_of_one() {
        let (table, fd) = table::Table::create().unwrap();
        (0..5).for_each(|_| assert!(table.allocate(CLASS_CONNECTED, 1).is_some()));
        let open = || Ok(OwnedFd::from(File::open(format!("/proc/self/fd/{fd}"))?));
        let mut tables = Tables::new();
        assert!(tables.in_memory(open().unwrap()).unwrap().is_some());
        assert!(tables.in_memory(File::open("/proc/self/exe").unwrap()).unwrap().is_none());
        let own = rustix::process::geteuid().as_raw();
        for (user, inodes) in [(own, [1, 2, 3]), (own + 1, [4, 5, 6])] {
            tables.left.insert(user, 8);
            inodes.into_iter().for_each(|inode| tables.add(&InMemory { inode, user }, open).unwrap());
        }
        let read = [1, 2, 3, 4, 5, 6].map(|inode| Some(tables.read.get(&inode)?.connections.len()));
        assert_eq!(read, [Some(5), Some(5), Some(5), Some(5), Some(1), None]);
        assert_eq!(tables.problems.len(), 1);
        assert!(tables.problems[0].contains(&format!("of user {} hold too much", own + 1)), "{:?}", tables.problems);
        ropeway_shm::sys::close(fd).unwrap();
    }
}
