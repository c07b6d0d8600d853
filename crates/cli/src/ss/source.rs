//! Where `ropeway ss` gets its facts: the socket tables of all process families that this user may see.
//!
//! Tables come from the daemons, as the processes gave them; and from /proc for processes that have not said hello to the
//! present daemon yet. The tables belong to others: the reader copies and checks, this module only asks who is alive.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use ropeway_shm::table::{Connection, Reader};
use ropeway_socket::reason::Reason;

use crate::daemon::control::{self, Control, ControlError};
use crate::daemon::diag::{Diag, Listed};

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
    let mut seen = Seen::default();
    let mut tables: HashMap<u64, OwnedFd> = HashMap::new();
    for name in control::names() {
        match Control::connect(&name).and_then(|daemon| daemon.list()) {
            Ok(entries) => {
                seen.anyone = true;
                for table in entries.into_iter().filter_map(|e| e.table) {
                    add(&mut tables, table);
                }
            }
            Err(ControlError::NotRunning(_)) => {}
            Err(error) => seen.problems.push(error.to_string()),
        }
    }
    for table in tables_in_proc() {
        seen.anyone = true;
        add(&mut tables, table);
    }
    // Without netlink (a sandbox) what has registered still has its addresses.
    let listed = Diag::open().and_then(|mut diag| diag.live_sockets()).unwrap_or_default();
    let kernel: HashMap<u64, Listed> = listed.into_iter().map(|socket| (socket.cookie, socket)).collect();
    for (inode, table) in &tables {
        match Reader::open(table.as_fd()) {
            Ok(reader) => seen.ends.extend(reader.connections().into_iter().filter_map(|c| end(*inode, c, &kernel))),
            Err(error) => seen.problems.push(format!("a socket table cannot be read: {error}")),
        }
    }
    seen.ends.sort_by(|a, b| (&a.program, &a.pids, a.ends, a.key).cmp(&(&b.program, &b.pids, b.ends, b.key)));
    seen
}

fn add(tables: &mut HashMap<u64, OwnedFd>, table: OwnedFd) {
    if let Ok(stat) = rustix::fs::fstat(&table) {
        tables.insert(stat.st_ino, table);
    }
}

/// Tables that processes of ours hold open.
fn tables_in_proc() -> Vec<OwnedFd> {
    let mut known = HashSet::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter(|p| p.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let descriptors = pids.flat_map(|pid| std::fs::read_dir(pid.path().join("fd")).into_iter().flatten().flatten());
    let is_table = |path: &PathBuf| {
        let link = std::fs::read_link(path).unwrap_or_default();
        link.as_os_str().as_encoded_bytes().starts_with(b"/memfd:ropeway-table")
    };
    let mut open = |path: PathBuf| {
        let inode = rustix::fs::stat(&path).ok()?.st_ino;
        known.insert(inode).then(|| File::open(path).ok().map(OwnedFd::from))?
    };
    descriptors.map(|fd| fd.path()).filter(is_table).filter_map(&mut open).collect()
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
