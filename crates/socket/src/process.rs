//! What a process has of its own: its number, its view of the shared table, and how many of its descriptors lead to
//! each record.

use crate::rendezvous::client;
use crate::{fdtable, stats};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ropeway_shm::sys;
use ropeway_shm::table::{MAX_SOCKS, Table};

static TABLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static PID: AtomicU32 = AtomicU32::new(0);
static HIGHEST_FD: AtomicI64 = AtomicI64::new(-1);
/// 0: not tried, 1: being made, 2: made, 3: cannot be made.
static STATE: AtomicU32 = AtomicU32::new(0);

/// This process's part of a record.
pub struct Local {
    /// Descriptors of this process that lead to the record.
    pub fds: AtomicU32,
    /// Threads of this process that wait on it or otherwise rely on its mapping without a lock.
    pub users: AtomicU32,
    /// Keeps the shadow open while somebody waits on it after the last descriptor was closed: its number + 1; 0 for none.
    pub keep_fd: AtomicI32,
    /// Numbers that are marked because they stood for it (`lifecycle::Closing`).
    pub marks: AtomicU32,
    /// This process was the last one to have it, and gives the record back when no number is marked for it.
    pub left: AtomicBool,
    /// `dup2` has put it behind a number on which calls were under way, and may come to it.
    pub exposed: AtomicBool,
    /// The last fork of this process that expects its child to have it (`lifecycle::fork_prepare`); 0 for none.
    pub fork: AtomicU64,
    /// SO_LINGER as the program set it, while an exec under way has replaced it (`lifecycle`); 0 for none.
    pub linger: AtomicU64,
}

static LOCAL: [Local; MAX_SOCKS as usize] = [const {
    Local {
        fds: AtomicU32::new(0),
        users: AtomicU32::new(0),
        keep_fd: AtomicI32::new(0),
        marks: AtomicU32::new(0),
        left: AtomicBool::new(false),
        exposed: AtomicBool::new(false),
        fork: AtomicU64::new(0),
        linger: AtomicU64::new(0),
    }
}; MAX_SOCKS as usize];

/// This process's part of record `index`.
#[inline(always)]
pub fn local(index: u32) -> &'static Local {
    &LOCAL[index as usize]
}

/// The shared table. Only after [`ready`] has returned true, which every tracked descriptor proves.
#[inline(always)]
pub fn table() -> Table {
    // SAFETY: `start` stored the address of a table that is never unmapped.
    unsafe { Table::from_address(TABLE.load(Ordering::Acquire)) }
}

/// This process's number, without a system call.
#[inline]
pub fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            let pid = sys::getpid().unwrap_or(1) as u32;
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Makes the table if it does not exist yet. False when it cannot be had: then nothing is tracked.
#[inline]
pub fn ready() -> bool {
    STATE.load(Ordering::Acquire) == 2 || start()
}

/// True when the table exists already.
pub fn started() -> bool {
    STATE.load(Ordering::Acquire) == 2
}

#[cold]
fn start() -> bool {
    /// How often a thread looks whether another one has made the table, and how long it sleeps in between.
    const LOOKS: u32 = 1000;
    const NAP_NS: u64 = 100_000;
    if STATE.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread is at it, or it has failed. What is not tracked from its first call on stays on TCP for ever, so
        // that is worth a moment; not more, because this may be a handler that interrupted that other thread.
        let mut looks = 0;
        while STATE.load(Ordering::Acquire) == 1 && looks < LOOKS {
            looks += 1;
            sys::nap(NAP_NS);
        }
        return STATE.load(Ordering::Acquire) == 2;
    }
    match Table::create() {
        Ok((table, fd)) => {
            TABLE.store(table.address(), Ordering::Release);
            fdtable::enter_internal(fd);
            client::set_table_fd(fd);
            stats::open_file();
            STATE.store(2, Ordering::Release);
            true
        }
        Err(_) => {
            STATE.store(3, Ordering::Release);
            false
        }
    }
}

/// Remembers that a descriptor this high was tracked.
pub fn note_fd(fd: i32) {
    HIGHEST_FD.fetch_max(fd as i64, Ordering::Relaxed);
}

/// The highest descriptor number ever tracked in this process, -1 for none.
pub fn highest_fd() -> i64 {
    HIGHEST_FD.load(Ordering::Relaxed)
}

/// In the child of fork.
pub fn after_fork_child() {
    PID.store(0, Ordering::Relaxed);
    if started() {
        for index in 0..table().used_socks() {
            let l = local(index);
            // What is only read needs no page of the child's own.
            for count in [&l.users, &l.marks] {
                if count.load(Ordering::Relaxed) != 0 {
                    count.store(0, Ordering::Relaxed);
                }
            }
            if l.left.load(Ordering::Relaxed) {
                l.left.store(false, Ordering::Relaxed);
            }
            if l.keep_fd.load(Ordering::Relaxed) != 0 {
                // Threads that are not here wait on it in the parent.
                fdtable::close_internal(l.keep_fd.swap(0, Ordering::Relaxed) - 1);
            }
        }
    }
}
