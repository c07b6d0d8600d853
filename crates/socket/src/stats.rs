//! Counters of this process: monotonic, always on, written as one JSON line at exit when `ROPEWAY_STATS` names a file.

use crate::reason::Reason;
use crate::{fdtable, process, settings};
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use ropeway_shm::sys;
use ropeway_shm::table::{CLASS_CONNECTED, Sock};

const REASONS: usize = 64;

pub struct Totals {
    pub connections: AtomicU64,
    /// Directions that moved to a ring, and back.
    pub promoted: AtomicU64,
    pub demoted: AtomicU64,
    /// Bells rung for others, and sleeps of our own threads.
    pub rung: AtomicU64,
    pub slept: AtomicU64,
    pub spins_won: AtomicU64,
    pub spins_lost: AtomicU64,
    /// Bytes of closed sockets: sent on TCP, sent on rings, received on TCP, received on rings.
    bytes: [AtomicU64; 4],
    reasons: [AtomicU64; REASONS],
}

pub static TOTALS: Totals = Totals {
    connections: AtomicU64::new(0),
    promoted: AtomicU64::new(0),
    demoted: AtomicU64::new(0),
    rung: AtomicU64::new(0),
    slept: AtomicU64::new(0),
    spins_won: AtomicU64::new(0),
    spins_lost: AtomicU64::new(0),
    bytes: [const { AtomicU64::new(0) }; 4],
    reasons: [const { AtomicU64::new(0) }; REASONS],
};

/// 1 once the line was written: exit paths may lead here twice.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// The file, opened before the program can lose the right to: it may change its root or its user later. -1 for none.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// Opens the file, when the first socket is followed. A forked child inherits it.
pub fn open_file() {
    if let Some(fd) = open() {
        let fd = sys::move_high(fd);
        fdtable::enter_internal(fd);
        FILE.store(fd, Ordering::Release);
    }
}

fn open() -> Option<i32> {
    let path = settings::stats_path()?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    // SAFETY: `path` is a C string of the environment.
    unsafe { sys::open(path, flags, 0o666) }.ok().map(|fd| fd as i32)
}

/// Counts why a connection of this process is, or went back, on TCP.
pub fn count_reason(reason: Reason) {
    TOTALS.reasons[(reason.code() as usize).min(REASONS - 1)].fetch_add(1, Ordering::Relaxed);
}

/// Adds what a socket has moved since it was added last.
pub fn fold(s: &Sock) {
    let now = [&s.tx.tcp_bytes, &s.tx.ring_bytes, &s.rx.tcp_bytes, &s.rx.ring_bytes];
    for ((now, folded), total) in now.iter().zip(&s.folded).zip(&TOTALS.bytes) {
        let value = now.load(Ordering::Relaxed);
        let before = folded.swap(value, Ordering::AcqRel);
        total.fetch_add(value.saturating_sub(before), Ordering::Relaxed);
    }
}

/// In the child of fork: counters start at nothing; what inherited sockets have moved so far is the parent's.
pub fn after_fork_child() {
    let t = &TOTALS;
    for c in [&t.connections, &t.promoted, &t.demoted, &t.rung, &t.slept, &t.spins_won, &t.spins_lost] {
        c.store(0, Ordering::Relaxed);
    }
    t.bytes.iter().chain(&t.reasons).for_each(|c| c.store(0, Ordering::Relaxed));
    WRITTEN.store(0, Ordering::Relaxed);
}

/// A line built without allocation; what does not fit is cut, and then nothing is written.
struct Line {
    text: [u8; 4096],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        self.text.get_mut(self.len..end).ok_or(core::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Appends the line to the file, once per process. A process that never had a connection writes nothing.
pub fn write_at_exit() {
    if settings::stats_path().is_none() || !process::started() || WRITTEN.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    for index in 0..process::table().used_socks() {
        let s = process::table().sock(index);
        if process::local(index).fds.load(Ordering::Relaxed) > 0 && s.class.load(Ordering::Acquire) == CLASS_CONNECTED {
            fold(s);
            let reason = s.reason.load(Ordering::Relaxed) as u16;
            if let Some(reason) = Reason::from_code(reason).filter(|r| *r != Reason::None) {
                count_reason(reason);
            }
        }
    }
    if TOTALS.connections.load(Ordering::Relaxed) == 0 && TOTALS.bytes.iter().all(|b| b.load(Ordering::Relaxed) == 0) {
        return;
    }
    let mut line = Line { text: [0; 4096], len: 0 };
    if render(&mut line).is_err() {
        return;
    }
    let kept = Some(FILE.load(Ordering::Acquire)).filter(|fd| *fd >= 0 && fdtable::is_internal(*fd));
    let Some(fd) = kept.or_else(open) else { return };
    if has_room(fd, line.len) {
        // SAFETY: the line is readable for its length.
        let _ = unsafe { sys::write(fd, line.text.as_ptr(), line.len) };
    }
    if kept.is_none() {
        let _ = sys::close(fd);
    }
}

/// False for a file that may not become so long: the program would be ended by a signal.
fn has_room(fd: i32, bytes: usize) -> bool {
    // SAFETY: no pointers.
    let end = unsafe { sys::syscall6(libc::SYS_lseek, fd as usize, 0, libc::SEEK_END as usize, 0, 0, 0) };
    // A pipe or a terminal has no end, and no limit.
    end < 0 || sys::check_file_size(end as u64 + bytes as u64).is_ok()
}

fn render(out: &mut Line) -> core::fmt::Result {
    let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
    let t = &TOTALS;
    write!(out, "{{\"pid\":{},\"comm\":\"", process::pid())?;
    let mut comm = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { sys::syscall6(libc::SYS_prctl, libc::PR_GET_NAME as usize, comm.as_mut_ptr() as usize, 0, 0, 0, 0) };
    for &b in comm.iter().take_while(|b| **b != 0) {
        let plain = if b.is_ascii_graphic() && b != b'"' && b != b'\\' || b == b' ' { b as char } else { '?' };
        out.write_char(plain)?;
    }
    write!(
        out,
        "\",\"connections\":{},\"promoted\":{},\"demoted\":{}",
        get(&t.connections),
        get(&t.promoted),
        get(&t.demoted)
    )?;
    let [tcp_sent, shm_sent, tcp_received, shm_received] = t.bytes.each_ref().map(get);
    write!(out, ",\"bytes\":{{\"tcp\":{{\"sent\":{tcp_sent},\"received\":{tcp_received}}}")?;
    write!(out, ",\"shm\":{{\"sent\":{shm_sent},\"received\":{shm_received}}}}},\"reasons\":{{")?;
    let mut first = true;
    for (code, count) in t.reasons.iter().enumerate() {
        if get(count) > 0 {
            write!(out, "{}\"{}\":{}", if first { "" } else { "," }, Reason::name_of(code as u16), get(count))?;
            first = false;
        }
    }
    write!(out, "}},\"bells\":{{\"rung\":{},\"slept\":{}}}", get(&t.rung), get(&t.slept))?;
    writeln!(out, ",\"spins\":{{\"won\":{},\"lost\":{}}}}}", get(&t.spins_won), get(&t.spins_lost))
}

/// Counts a connection of this process.
pub fn count_connection() {
    TOTALS.connections.fetch_add(1, Ordering::Relaxed);
}

/// The process goes on after all (a failed exec): another line will hold what is counted from now on.
pub fn not_exiting_after_all() {
    after_fork_child();
}
