//! The board: what the processes of one host that receive over the network tell each other about their share of the gate's budget.
//!
//! A file in `/dev/shm` for each user and network namespace, with a slot for each process: how much it wants, how much it holds, and when it last said so. Everybody computes
//! its own share from the slots, and holds no more of it than the others leave ([`claim`]); there is no counter that a dying process could leave
//! wrong. A slot that has not been written for longer than a grant can live counts for nothing.
//!
//! The other processes belong to the same user, so they are trusted with fairness, not with memory safety: all words are atomic, and what is read is only ever
//! compared and added with saturation. What is not here: how much budget there is, and who gets it inside a process (the gate).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::claim;
use crate::sys::monotonic_ns;

/// Processes with a slot; more get the smallest share there is.
pub const SLOTS: usize = 64;
/// A slot whose owner died may be taken over; alive is who wrote within this time, or still exists.
const ABANDONED_NS: u64 = 1_000_000_000;
/// Changes when the layout does: another layout is another file.
const LAYOUT: u32 = 2;

/// One process. A cache line each: everybody writes only its own.
#[repr(C, align(64))]
struct Slot {
    /// 0: free. Written by compare-and-swap when a process takes the slot.
    pid: AtomicU32,
    /// In the first slot: how many slots at the beginning have ever been taken; nobody looks at the others. Raised by who takes one (AcqRel).
    used: AtomicU32,
    /// Bytes that this process could have granted now. Written by its owner (Relaxed: a hint), read by all.
    demand_bytes: AtomicU64,
    /// Bytes that this process may have granted at this time. Written by its owner, as [`claim`] says.
    held_bytes: AtomicU64,
    /// When the owner last wrote, `CLOCK_MONOTONIC` in nanoseconds. Written last (Release), read first (Acquire), so that the demand is not older than it.
    written_ns: AtomicU64,
}

const BYTES: usize = SLOTS * std::mem::size_of::<Slot>();

/// The shared slots, and which one is ours.
#[derive(Debug)]
pub struct Board {
    slots: NonNull<Slot>,
    own: Option<usize>,
    pid: u32,
    /// Keeps the file's name resolvable in /proc for whoever looks.
    _file: File,
}

// SAFETY: the mapping lives as long as the board, and all of it is atomic.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

/// What the others want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The demand, in bytes, of each process that has one.
    pub demands: Vec<u64>,
    /// How many of these have a slot before ours: our place in a round.
    pub before: u64,
}

/// What is asked of [`Board::hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub wanted_bytes: u64,
    /// Less is of no use.
    pub least_bytes: u64,
    /// What all together may hold.
    pub whole_bytes: u64,
}

impl Board {
    /// Opens, or makes, the board of this user in this network namespace and takes a slot.
    ///
    /// # Errors
    /// `/dev/shm` cannot be written, or what lies there under that name is not ours.
    pub fn open() -> io::Result<Board> {
        let namespace = std::fs::metadata("/proc/self/ns/net")?.ino();
        // SAFETY: has no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        Board::open_at(PathBuf::from(format!("/dev/shm/ropeway-gate-{LAYOUT}-{user}-{namespace}")))
    }

    /// The same at a given place.
    ///
    /// # Errors
    /// As [`Board::open`].
    pub fn open_at(path: PathBuf) -> io::Result<Board> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)?;
        let meta = file.metadata()?;
        // SAFETY: has no arguments and cannot fail.
        if meta.uid() != unsafe { libc::geteuid() } || !meta.is_file() {
            let what = format!("{} belongs to somebody else; remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        if meta.len() < BYTES as u64 {
            file.set_len(BYTES as u64)?;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that is long enough; it touches nothing that exists.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let slots =
            NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)?;
        let mut board = Board { slots, own: None, pid: std::process::id(), _file: file };
        board.own = board.take_slot();
        Ok(board)
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: mapped with room for SLOTS until drop; zeroed pages are valid slots, and every field is atomic.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), SLOTS) }
    }

    fn take_slot(&self) -> Option<usize> {
        let now = monotonic_ns();
        let is_free = |slot: &Slot| {
            let pid = slot.pid.load(Ordering::Acquire);
            let quiet = now.saturating_sub(slot.written_ns.load(Ordering::Acquire)) > ABANDONED_NS;
            (pid == 0 || (quiet && !exists(pid))).then_some(pid)
        };
        let own = self.slots().iter().position(|slot| {
            is_free(slot).is_some_and(|pid| {
                // Pairs with the load above in another process: only one takes it.
                slot.pid.compare_exchange(pid, self.pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        })?;
        self.slots()[0].used.fetch_max(own as u32 + 1, Ordering::AcqRel);
        // What the one before held is forgotten with it.
        claim::lower(&self.slots()[own].held_bytes, 0);
        Some(own)
    }

    fn own(&self) -> Option<&Slot> {
        self.own.map(|own| &self.slots()[own])
    }

    /// The slots of the others that were written within the last `fresh_ns`, with their places.
    fn fresh(&self, fresh_ns: u64) -> impl Iterator<Item = (usize, &Slot)> {
        let now = monotonic_ns();
        let own = self.own.unwrap_or(SLOTS);
        let used = self.slots()[0].used.load(Ordering::Acquire) as usize;
        self.slots()[..used.min(SLOTS)].iter().enumerate().filter(move |&(place, slot)| {
            place != own && now.saturating_sub(slot.written_ns.load(Ordering::Acquire)) <= fresh_ns
        })
    }

    /// Says what this process wants now.
    pub fn publish(&self, demand_bytes: u64) {
        if let Some(slot) = self.own() {
            slot.demand_bytes.store(demand_bytes, Ordering::Relaxed);
            slot.written_ns.store(monotonic_ns(), Ordering::Release);
        }
    }

    /// Holds more, if the others leave it: those who said something within the last `fresh_ns`. What is held from now on; without a slot what the others
    /// leave, and they do not see it. Call [`Board::publish`] before, or they take this process for dead.
    pub fn hold(&self, claim: Claim, fresh_ns: u64) -> u64 {
        let others = || {
            self.fresh(fresh_ns).map(|(_, slot)| slot.held_bytes.load(Ordering::Acquire)).fold(0, u64::saturating_add)
        };
        match self.own() {
            Some(slot) => {
                claim::raise(&slot.held_bytes, claim.wanted_bytes, claim.least_bytes, claim.whole_bytes, others)
            }
            None => claim.wanted_bytes.min(claim.whole_bytes.saturating_sub(others())),
        }
    }

    /// Holds so much, which is less than before: what was granted of the rest has arrived.
    pub fn release(&self, left_bytes: u64) {
        if let Some(slot) = self.own() {
            claim::lower(&slot.held_bytes, left_bytes);
        }
    }

    /// What the others want, as said within the last `fresh_ns`.
    pub fn others(&self, fresh_ns: u64) -> Others {
        let own = self.own.unwrap_or(SLOTS);
        let mut others = Others::default();
        for (place, slot) in self.fresh(fresh_ns) {
            let demand = slot.demand_bytes.load(Ordering::Relaxed);
            if demand > 0 && slot.pid.load(Ordering::Relaxed) != 0 {
                others.demands.push(demand);
                others.before += u64::from(place < own);
            }
        }
        others
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // A forked child shares the mapping, not the slot.
        if self.pid == std::process::id()
            && let Some(slot) = self.own()
        {
            // What it holds has been granted: that it counts ends with the grants.
            slot.demand_bytes.store(0, Ordering::Relaxed);
            slot.pid.store(0, Ordering::Release);
        }
        // SAFETY: mapped by `open_at`, and not used after this.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), BYTES) };
    }
}

fn exists(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { libc::kill(pid as libc::pid_t, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_NS: u64 = 10_000_000_000;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ropeway-board-{name}-{}", std::process::id()))
    }

    #[test]
    fn everybody_sees_what_the_others_want() {
        let path = place("sees");
        let boards: Vec<Board> = (0..3).map(|_| Board::open_at(path.clone()).unwrap()).collect();
        boards[0].publish(1000);
        boards[1].publish(500);
        assert_eq!(boards[2].others(FRESH_NS), Others { demands: vec![1000, 500], before: 2 });
        assert_eq!(boards[0].others(FRESH_NS), Others { demands: vec![500], before: 0 });
        boards[1].publish(0);
        assert_eq!(boards[0].others(FRESH_NS), Others::default());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_fell_silent_counts_for_nothing_and_who_left_frees_the_slot() {
        let path = place("silent");
        let one = Board::open_at(path.clone()).unwrap();
        let other = Board::open_at(path.clone()).unwrap();
        other.publish(1000);
        assert_eq!(one.others(FRESH_NS).demands, [1000]);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(one.others(1_000_000), Others::default());
        let own = other.own;
        drop(other);
        let third = Board::open_at(path.clone()).unwrap();
        assert_eq!(third.own, own);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_holds_something_leaves_the_others_the_rest_and_a_dead_one_holds_it_until_it_is_stale() {
        let path = place("holds");
        let boards: Vec<Board> = (0..3).map(|_| Board::open_at(path.clone()).unwrap()).collect();
        boards.iter().for_each(|board| board.publish(1000));
        let claim = |wanted_bytes| Claim { wanted_bytes, least_bytes: 10, whole_bytes: 100 };
        assert_eq!(boards[0].hold(claim(60), FRESH_NS), 60);
        assert_eq!(boards[1].hold(claim(35), FRESH_NS), 35);
        assert_eq!(boards[2].hold(claim(50), FRESH_NS), 0, "what is left is of no use");
        boards[0].release(20);
        assert_eq!(boards[2].hold(claim(50), FRESH_NS), 45);
        assert_eq!(boards[2].hold(claim(30), FRESH_NS), 45, "only a release makes it less");
        drop(boards);
        let [one, _] = [(), ()].map(|()| Board::open_at(path.clone()).unwrap());
        one.publish(1000);
        assert_eq!(one.hold(claim(100), FRESH_NS), 100 - 45, "of the last one's slot nobody has taken over");
        std::thread::sleep(std::time::Duration::from_millis(2));
        one.publish(1000);
        assert_eq!(one.hold(claim(100), 1_000_000), 100);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_dead_owner_loses_its_slot_and_more_processes_than_slots_still_work() {
        let path = place("dead");
        let boards: Vec<Board> = (0..SLOTS + 2).map(|_| Board::open_at(path.clone()).unwrap()).collect();
        assert_eq!(boards[SLOTS].own, None);
        boards[SLOTS].publish(7);
        boards[3].publish(7);
        assert_eq!(boards[SLOTS + 1].others(FRESH_NS).demands, [7]);
        // Nobody has that number, and it has never written.
        boards[0].slots()[5].pid.store(u32::MAX / 2, Ordering::Relaxed);
        boards[0].slots()[5].written_ns.store(0, Ordering::Relaxed);
        let late = Board::open_at(path.clone()).unwrap();
        assert_eq!(late.own, Some(5));
        std::fs::remove_file(path).unwrap();
    }
}
