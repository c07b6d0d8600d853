//! The board: what the processes of one host that receive over the network tell each other about their share of the gate's budget.
//!
//! A file in `/dev/shm` for each user and network namespace, with a slot for each process (for each engine, where one has several): how much it wants, how much it holds,
//! when it said so and for how long that counts. Everybody computes its own share from the slots, and holds no more of it than the others leave ([`claim`]); there is no counter that a
//! dying process could leave wrong. A slot is its owner's by a lock that the kernel takes away with the owner. The locks lie in a file of their own, which nobody else may open: who may
//! read a file may keep others from locking it.
//!
//! The other processes of the same user are trusted with fairness, not with memory safety: all words are atomic, and what is read is only ever compared and added with saturation.
//! Other users may read the board, and are trusted with nothing (`users`). What is not here: how much budget there is, and who gets it inside a process (the gate).

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::claim;
use crate::fair::Wanted;
use crate::sys::{Uncancelled, check_file_size, lock_byte, monotonic_ns};
use users::Users;

mod users;

pub use users::USERS;

/// Engines with a slot; more take what these leave, unseen.
pub const SLOTS: usize = 64;
/// What somebody wanted so long ago it does not want any more; until then the wish fades.
const WISH_NS: u64 = 4_000_000;
/// For so long it does not fade to others: twice the time between two words of who is busy.
const FRESH_NS: u64 = 1_000_000;
/// What somebody holds counts for no longer than this after it was written, whatever stands there: twice the longest lease that can be set, and room.
const LONGEST_NS: u64 = 5_000_000_000;
/// Where boards lie.
const DIRECTORY: &str = "/dev/shm";
/// The beginning of a board's name, before layout, user and network namespace.
const PREFIX: &str = "ropeway-gate-";
/// Changes when the layout does: another layout is another file.
const LAYOUT: u32 = 4;
/// No packet is longer, with all that a line adds to it, whatever stands on a board.
const LONGEST_PACKET_BYTES: u64 = (64 << 10) + 128;
/// The board, for all to read whatever the process's umask is, and its locks.
const BOARD_MODE: u32 = 0o644;
const LOCKS_MODE: u32 = 0o600;

/// One process. A cache line each: everybody writes only its own.
#[repr(C, align(64))]
struct Slot {
    /// In the first slot: how many slots at the beginning have ever been taken; nobody looks at the others. Raised by who takes one (AcqRel).
    used: AtomicU64,
    /// Bytes that this process could have granted, when it said so. Written by its owner (Relaxed: a hint), read by all.
    demand_bytes: AtomicU64,
    /// What it takes the whole budget for. As above.
    whole_bytes: AtomicU64,
    /// How long its packets are. As above.
    packet_bytes: AtomicU64,
    /// Bytes that this process may have granted at this time. Written by its owner, as [`claim`] says.
    held_bytes: AtomicU64,
    /// When the owner last wrote, and until when what it holds counts if it says no more. Written after the wish (Release) and read before it (Acquire), so that it is not
    /// older.
    written_ns: AtomicU64,
    valid_until_ns: AtomicU64,
}

const BYTES: usize = SLOTS * std::mem::size_of::<Slot>();

/// Where a board lies, and whose it is.
#[derive(Clone, Debug)]
pub struct Place {
    pub directory: PathBuf,
    pub user: u32,
    /// The network namespace, by its inode.
    pub namespace: u64,
    /// Nanoseconds, the same in all processes.
    pub clock: fn() -> u64,
    /// Whether a file is this user's.
    pub is_owner: fn(&Metadata, u32) -> bool,
}

/// The shared slots, and which one is ours.
#[derive(Debug)]
pub struct Board {
    slots: Slots,
    own: Option<usize>,
    pid: u32,
    place: Place,
    /// The board's inode: another one is another board.
    inode: u64,
    /// Holds the lock on our slot.
    locks: File,
    users: Users,
}

/// The mapped slots.
#[derive(Debug)]
struct Slots(NonNull<Slot>);

// SAFETY: the mapping lives as long as the value, and all of it is atomic.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

/// What the others want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// What each process of this user that wants something may use ([`usable`]).
    pub demands: Vec<Wanted>,
    /// How many of these have a slot before ours: our place in a round.
    pub before: u64,
    /// What the processes of each other user that wants something may use together, and the longest of their packets.
    pub users: Vec<Wanted>,
    /// How many of these have a lower number than this user: its place in a round of users.
    pub users_before: u64,
}

/// What a process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    pub demand: Wanted,
    /// What it takes the whole budget for.
    pub whole_bytes: u64,
    /// So long what it holds counts, should it say no more.
    pub valid_ns: u64,
}

/// What a process wants to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub wanted_bytes: u64,
    /// Less is of no use: a packet.
    pub least_bytes: u64,
    /// What it takes the whole budget for. Of processes of one user the largest counts.
    pub whole_bytes: u64,
    /// What that was before it was cut: no more is believed of what another user takes it for.
    pub uncut_bytes: u64,
    /// What all processes of this user may use together ([`usable`]), and the longest of their packets.
    pub usable: Wanted,
    /// For so long another user is waited for that holds more than its part.
    pub patience_ns: u64,
}

/// What somebody wants who said so some time ago.
pub fn faded(demand_bytes: u64, age_ns: u64) -> u64 {
    (u128::from(demand_bytes) * u128::from(WISH_NS.saturating_sub(age_ns)) / u128::from(WISH_NS)) as u64
}

/// What somebody may use who wants so much: a little more, for those who begin, and never less than a packet.
pub fn usable(demand_bytes: u64, packet_bytes: u64) -> u64 {
    demand_bytes.saturating_add(demand_bytes / 2).max(packet_bytes)
}

/// The same of who said so some time ago. Who is busy says it anew before it begins to fade, so that all reckon with the same.
fn usable_after(demand_bytes: u64, age_ns: u64, packet_bytes: u64) -> u64 {
    match faded(demand_bytes, age_ns.saturating_sub(FRESH_NS)) {
        0 => 0,
        wish => usable(wish, packet_bytes),
    }
}

impl Place {
    /// Of this user in this network namespace.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn here() -> io::Result<Place> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        // SAFETY: has no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        let is_owner = |meta: &Metadata, user: u32| meta.uid() == user;
        Ok(Place { directory: DIRECTORY.into(), user, namespace, clock: monotonic_ns, is_owner })
    }

    fn board_of(&self, user: u32) -> PathBuf {
        self.directory.join(format!("{PREFIX}{LAYOUT}-{user}-{}", self.namespace))
    }

    /// Where the board lies.
    pub fn board(&self) -> PathBuf {
        self.board_of(self.user)
    }

    /// Where its locks lie.
    pub fn locks(&self) -> PathBuf {
        self.directory.join(format!("{PREFIX}{LAYOUT}-locks-{}-{}", self.user, self.namespace))
    }

    /// Opens, or makes, a file of this user that has that mode, and is empty or has that length. One on which somebody has a lease is not waited for.
    fn open(&self, path: &Path, mode: u32, bytes: usize) -> io::Result<(File, Metadata)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)?;
        let meta = file.metadata()?;
        let refused = |why: &str| {
            let what = format!("{} {why}; remove it", path.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
        };
        if !(self.is_owner)(&meta, self.user) || !meta.is_file() {
            return refused("belongs to somebody else");
        }
        // Another file of this user, to which another user may have made the link, is not to be shown and written over.
        if meta.nlink() > 1 || ![0, bytes as u64].contains(&meta.len()) {
            return refused("is another file than it should be");
        }
        if meta.permissions().mode() & 0o777 != mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok((file, meta))
    }
}

impl Slot {
    /// When its owner last wrote, where `now_ns` was before. `None`: nobody can have written that yet, so nothing of it counts.
    fn written_ns(&self, now_ns: u64, clock: fn() -> u64) -> Option<u64> {
        let written_ns = self.written_ns.load(Ordering::Acquire);
        // It may have been written since.
        (written_ns <= now_ns || written_ns <= clock()).then_some(written_ns)
    }

    /// Until when what it holds counts.
    fn holds_until_ns(&self, now_ns: u64, clock: fn() -> u64) -> u64 {
        // In this order the last word is not older than its end.
        let until_ns = self.valid_until_ns.load(Ordering::Acquire);
        let written_ns = self.written_ns(now_ns, clock);
        written_ns.map_or(0, |written_ns| until_ns.min(written_ns.saturating_add(LONGEST_NS)))
    }
}

impl Slots {
    fn map(file: &File) -> io::Result<Slots> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that is long enough; it touches nothing that exists.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let slots = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
        slots.map(Slots).ok_or_else(io::Error::last_os_error)
    }

    /// Those that have ever been taken, without one, with their places.
    fn without(&self, own: Option<usize>) -> impl Iterator<Item = (usize, &Slot)> {
        let used = self[0].used.load(Ordering::Acquire) as usize;
        self[..used.min(SLOTS)].iter().enumerate().filter(move |&(place, _)| Some(place) != own)
    }
}

impl Deref for Slots {
    type Target = [Slot];

    fn deref(&self) -> &[Slot] {
        // SAFETY: mapped with room for SLOTS until drop; zeroed pages are valid slots, and every field is atomic.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), SLOTS) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and not used after this.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

impl Board {
    /// Opens, or makes, the board of this user in this network namespace and takes a slot.
    ///
    /// # Errors
    /// `/dev/shm` cannot be written or is full, or what lies there under that name is not ours.
    pub fn open() -> io::Result<Board> {
        Board::open_at(Place::here()?)
    }

    /// The same at a given place.
    ///
    /// # Errors
    /// As [`Board::open`].
    pub fn open_at(place: Place) -> io::Result<Board> {
        let (locks, _) = place.open(&place.locks(), LOCKS_MODE, 0)?;
        let (file, meta) = place.open(&place.board(), BOARD_MODE, BYTES)?;
        allocate(&file)?;
        let slots = Slots::map(&file)?;
        let users = Users::of(&place);
        let mut board = Board { slots, own: None, pid: std::process::id(), place, inode: meta.ino(), locks, users };
        board.own = board.take_slot();
        Ok(board)
    }

    /// Whether somebody has removed the files, as a login manager may when the user's last session ends (systemd's `RemoveIPC`): who begins afterwards has another board, and does not see this one.
    pub fn is_removed(&self) -> bool {
        let is_there = |meta: Metadata| meta.ino() == self.inode;
        let has_locks = self.locks.metadata().is_ok_and(|meta| meta.nlink() > 0);
        !has_locks || !std::fs::symlink_metadata(self.place.board()).is_ok_and(is_there)
    }

    /// Goes over to the board that is there now under the name of this one.
    ///
    /// # Errors
    /// As [`Board::open`].
    pub fn reopen(&mut self) -> io::Result<()> {
        // As in `others`.
        let _uncancelled = Uncancelled::begin();
        let mut new = Board::open_at(self.place.clone())?;
        // What is thought of the other users stays.
        std::mem::swap(&mut self.users, &mut new.users);
        *self = new;
        Ok(())
    }

    fn take_slot(&self) -> Option<usize> {
        let now = self.now_ns();
        let counts = |place: &usize| self.slots[*place].holds_until_ns(now, self.place.clock) > now;
        // What the last owner of a slot has granted may still be under way: rather one where it is not.
        let (counting, other): (Vec<usize>, Vec<usize>) = (0..SLOTS).partition(counts);
        let own = other.into_iter().chain(counting).find(|&place| set_lock(&self.locks, place, libc::F_WRLCK))?;
        self.slots[0].used.fetch_max(own as u64 + 1, Ordering::AcqRel);
        claim::lower(&self.slots[own].held_bytes, 0);
        Some(own)
    }

    /// What time it is by the board's clock.
    pub fn now_ns(&self) -> u64 {
        (self.place.clock)()
    }

    fn own(&self) -> Option<&Slot> {
        self.own.map(|own| &self.slots[own])
    }

    /// Whether the others see what this one says: one of too many has no slot.
    pub fn has_slot(&self) -> bool {
        self.own.is_some()
    }

    /// Says what this process wants. Returns what it still holds: nothing, if it was silent for longer than it had said, as the others do not count it any more.
    pub fn publish(&self, word: Word) -> u64 {
        let Some(slot) = self.own() else { return 0 };
        let now = self.now_ns();
        let was_valid_until = slot.valid_until_ns.load(Ordering::Relaxed);
        slot.demand_bytes.store(word.demand.bytes, Ordering::Relaxed);
        slot.packet_bytes.store(word.demand.packet_bytes, Ordering::Relaxed);
        slot.whole_bytes.store(word.whole_bytes, Ordering::Relaxed);
        slot.written_ns.store(now, Ordering::Release);
        slot.valid_until_ns.store(now.saturating_add(word.valid_ns), Ordering::Release);
        // "Store, then look": who looked before that store, and found nothing, did so before this look at the clock.
        fence(Ordering::SeqCst);
        if was_valid_until < self.now_ns() {
            claim::lower(&slot.held_bytes, 0);
        }
        slot.held_bytes.load(Ordering::Relaxed)
    }

    /// Holds as much as is wanted, or less, if the others hold too much of the whole budget: the largest that anybody takes it for. What is held from now on; without a slot what the
    /// others leave, and they do not see it. To be called after [`Board::publish`] and [`Board::others`].
    pub fn hold(&mut self, claim: &Claim) -> u64 {
        // As in `others`.
        let _uncancelled = Uncancelled::begin();
        let Board { slots, own, place, users, .. } = self;
        let mut whole = None;
        let mut free = || {
            let now = (place.clock)();
            let valid = slots.without(*own).filter(|(_, slot)| slot.holds_until_ns(now, place.clock) >= now);
            let (held, most) = valid.fold((0u64, claim.whole_bytes), |(held, most), (_, slot)| {
                let more = slot.held_bytes.load(Ordering::Acquire);
                (held.saturating_add(more), most.max(slot.whole_bytes.load(Ordering::Relaxed)))
            });
            whole = Some(most);
            users.free(place, most, claim).saturating_sub(held)
        };
        let slot = own.map(|own| &slots[own]);
        let held = match slot {
            Some(slot) => claim::raise(&slot.held_bytes, claim.wanted_bytes, claim.least_bytes, free),
            None => claim.wanted_bytes.min(free()),
        };
        if let Some(whole) = whole {
            users.judge(place, whole, claim, held);
        }
        match slot {
            Some(slot) if slot.valid_until_ns.load(Ordering::Relaxed) < (place.clock)() => {
                // It took so long that nobody counts it.
                claim::lower(&slot.held_bytes, 0);
                0
            }
            _ => held,
        }
    }

    /// Holds so much, which is less than before: what was granted of the rest has arrived.
    pub fn release(&self, left_bytes: u64) {
        if let Some(slot) = self.own() {
            claim::lower(&slot.held_bytes, left_bytes);
        }
    }

    /// Waits for nobody any more: nothing more is wanted.
    pub fn end_wait(&mut self) {
        self.users.end_wait(&self.place);
    }

    /// What the others want. Looks for new users, if that is due.
    pub fn others(&mut self) -> Others {
        // Files are read, in the middle of a call that may be a program's in C.
        let _uncancelled = Uncancelled::begin();
        self.users.look(&self.place);
        let now = self.now_ns();
        let own = self.own.unwrap_or(SLOTS);
        let (users, users_before) = self.users.demands(self.place.user);
        let mut others = Others { users, users_before, ..Others::default() };
        for (place, slot) in self.slots.without(self.own) {
            let Some(written_ns) = slot.written_ns(now, self.place.clock) else { continue };
            let age_ns = now.saturating_sub(written_ns);
            let demand = slot.demand_bytes.load(Ordering::Relaxed);
            let packet_bytes = slot.packet_bytes.load(Ordering::Relaxed).min(LONGEST_PACKET_BYTES);
            // As other users reckon it: together processes of one user hold no more than is the user's.
            let bytes = usable_after(demand, age_ns, packet_bytes);
            if bytes > 0 {
                others.demands.push(Wanted { bytes, packet_bytes });
                others.before += u64::from(place < own);
            }
        }
        others
    }
}

/// Makes the file as long as a board, with memory behind all of it: a hole is filled when it is touched, and where the file system is full by then that is SIGBUS. Who made it may have
/// been killed before it was filled.
fn allocate(file: &File) -> io::Result<()> {
    check_file_size(BYTES as u64).map_err(io::Error::from_raw_os_error)?;
    loop {
        // SAFETY: has no pointers.
        let error = match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, BYTES as libc::off_t) } {
            0 => return Ok(()),
            _ => io::Error::last_os_error(),
        };
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Removes the boards of all users in a network namespace, given by its inode: for who is about to remove that, once its processes have ended. Another one may get the same
/// inode later. What this user may not remove stays, a page each.
pub fn remove_all_of(namespace: u64) {
    remove_all_in(Path::new(DIRECTORY), namespace);
}

fn remove_all_in(directory: &Path, namespace: u64) {
    let end = format!("-{namespace}");
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_board = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(&end));
        if is_board {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // A forked child shares the mapping, not the slot. What this one holds has been granted, and counts for as long as it said.
        if self.pid == std::process::id()
            && let Some(own) = self.own
        {
            self.slots[own].demand_bytes.store(0, Ordering::Relaxed);
            // A child that was forked meanwhile has the opening too, and with it the lock would live on.
            set_lock(&self.locks, own, libc::F_UNLCK);
        }
    }
}

/// Takes the lock on a slot (`F_WRLCK`), unless somebody has it, or lets go of it (`F_UNLCK`). It is this opening's of the file, and ends with it at the latest.
fn set_lock(file: &File, place: usize, kind: libc::c_int) -> bool {
    lock_byte(file.as_raw_fd(), libc::F_OFD_SETLK, place, kind).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    pub(super) const VALID_NS: u64 = 10_000_000;

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(1) };
    }

    pub(super) fn pass(ns: u64) {
        NOW_NS.set(NOW_NS.get() + ns);
    }

    /// Where the boards of a test lie, until it ends.
    pub(super) struct Directory(PathBuf);

    impl Directory {
        pub(super) fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("ropeway-board-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Directory(path)
        }

        pub(super) fn place(&self, user: u32) -> Place {
            // Whoever's the files are.
            Place { directory: self.0.clone(), user, namespace: 17, clock: || NOW_NS.get(), is_owner: |_, _| true }
        }

        pub(super) fn open(&self, user: u32) -> Board {
            Board::open_at(self.place(user)).unwrap()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn boards(name: &str, count: usize) -> (Directory, Vec<Board>) {
        let directory = Directory::new(name);
        let boards = (0..count).map(|_| directory.open(0)).collect();
        (directory, boards)
    }

    pub(super) fn hold(board: &mut Board, wanted_bytes: u64, least_bytes: u64, whole_bytes: u64) -> u64 {
        let patience_ns = VALID_NS;
        board.hold(&Claim {
            wanted_bytes,
            least_bytes,
            whole_bytes,
            uncut_bytes: whole_bytes.max(100),
            usable: Wanted { bytes: wanted_bytes, packet_bytes: least_bytes },
            patience_ns,
        })
    }

    pub(super) fn wanted(bytes: u64) -> Wanted {
        Wanted { bytes, packet_bytes: 10 }
    }

    pub(super) fn wants(demand_bytes: u64) -> Word {
        Word { demand: wanted(demand_bytes), whole_bytes: 100, valid_ns: VALID_NS }
    }

    #[test]
    fn everybody_sees_what_the_others_want() {
        let (_directory, mut boards) = boards("sees", 3);
        boards[0].publish(wants(1000));
        boards[1].publish(wants(500));
        assert_eq!(
            boards[2].others(),
            Others { demands: vec![wanted(1500), wanted(750)], before: 2, ..Others::default() }
        );
        assert_eq!(boards[0].others(), Others { demands: vec![wanted(750)], ..Others::default() });
        pass(FRESH_NS + WISH_NS / 2);
        boards[1].publish(wants(0));
        assert_eq!(boards[2].others(), Others { demands: vec![wanted(750)], before: 1, ..Others::default() });
    }

    #[test]
    fn who_wants_a_packet_is_left_one_until_its_wish_has_faded() {
        let (_directory, mut boards) = boards("packet", 2);
        boards[1].publish(wants(10));
        assert_eq!(boards[0].others().demands, [wanted(15)]);
        pass(FRESH_NS + WISH_NS - WISH_NS / 10);
        assert_eq!(boards[0].others().demands, [wanted(10)]);
        pass(WISH_NS / 10);
        assert_eq!(boards[0].others(), Others::default());
    }

    #[test]
    fn a_board_has_memory_behind_it_before_it_is_touched() {
        let directory = Directory::new("whole");
        let path = directory.place(0).board();
        // As somebody leaves it who was killed.
        File::create(&path).unwrap().set_len(BYTES as u64).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
        let _board = directory.open(0);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= BYTES as u64);
    }

    #[test]
    fn the_boards_of_one_namespace_are_removed_and_no_others() {
        let directory = std::env::temp_dir().join(format!("ropeway-boards-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let names = [
            "ropeway-gate-4-0-17",
            "ropeway-gate-4-1000-17",
            "ropeway-gate-4-locks-1000-17",
            "ropeway-gate-4-0-117",
            "ropeway-gate-4-17-18",
            "other-17",
        ];
        names.iter().for_each(|name| std::fs::write(directory.join(name), "").unwrap());
        remove_all_in(&directory, 17);
        let left: Vec<bool> = names.iter().map(|name| directory.join(name).exists()).collect();
        assert_eq!(left, [false, false, false, true, true, true]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn others_may_read_a_board_and_not_lock_its_slots_whatever_the_umask_is() {
        let directory = Directory::new("modes");
        let place = directory.place(0);
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let _board = directory.open(0);
        assert_eq!((mode(place.board()), mode(place.locks())), (0o644, 0o600));
        // As somebody with another umask leaves them.
        std::fs::set_permissions(place.board(), Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(place.locks(), Permissions::from_mode(0o666)).unwrap();
        let _board = directory.open(0);
        assert_eq!((mode(place.board()), mode(place.locks())), (0o644, 0o600));
    }

    #[test]
    fn a_board_is_removed_with_any_of_its_files_or_when_another_one_is_in_its_place() {
        let directory = Directory::new("removed");
        let place = directory.place(0);
        for path in [place.board(), place.locks()] {
            let mut board = directory.open(0);
            assert!(!board.is_removed());
            std::fs::remove_file(&path).unwrap();
            assert!(board.is_removed(), "{}", path.display());
            let _new = directory.open(0);
            assert!(board.is_removed(), "{}", path.display());
            board.reopen().unwrap();
            assert!(!board.is_removed());
        }
    }

    #[test]
    fn a_board_on_which_somebody_has_a_lease_is_not_waited_for() {
        /// As <fcntl.h> has it.
        const F_SETSIG: libc::c_int = 10;
        let directory = Directory::new("leased");
        let place = directory.place(0);
        for path in [place.board(), place.locks()] {
            drop(directory.open(0));
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            // Who has a lease is told by a signal that somebody waits, here by one that means nothing.
            // SAFETY: have no pointers.
            let leased = unsafe {
                libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
                libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
            };
            assert_eq!(leased, 0, "{}", io::Error::last_os_error());
            let began = std::time::Instant::now();
            let error = Board::open_at(place.clone()).unwrap_err();
            assert!(began.elapsed().as_secs() < 1, "{:?}", began.elapsed());
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{}", path.display());
        }
    }

    #[test]
    fn another_file_under_a_boards_name_is_left_as_it_is() {
        let file: [fn(&Place) -> PathBuf; 2] = [Place::board, Place::locks];
        for (file, bytes, is_link) in [
            (file[0], BYTES, true),
            (file[0], 2 * BYTES, true),
            (file[0], 2 * BYTES, false),
            (file[1], 0, true),
            (file[1], 1, false),
        ] {
            let directory = Directory::new("other");
            let place = directory.place(0);
            let (path, other) = (file(&place), directory.0.join("other"));
            let content = vec![b'x'; bytes];
            std::fs::write(&other, &content).unwrap();
            std::fs::set_permissions(&other, Permissions::from_mode(0o640)).unwrap();
            match is_link {
                true => std::fs::hard_link(&other, &path).unwrap(),
                false => std::fs::rename(&other, &path).unwrap(),
            }
            let error = Board::open_at(place).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode, std::fs::read(&path).unwrap() == content), (0o640, true), "{}", path.display());
        }
    }

    #[test]
    fn a_wish_fades() {
        assert_eq!([0, WISH_NS / 4, WISH_NS, u64::MAX].map(|age_ns| faded(1000, age_ns)), [1000, 750, 0, 0]);
        assert_eq!(faded(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn who_holds_something_leaves_the_others_the_rest() {
        let (_directory, mut boards) = boards("holds", 3);
        boards.iter().for_each(|board| assert_eq!(board.publish(wants(1000)), 0));
        assert_eq!(hold(&mut boards[0], 60, 10, 100), 60);
        assert_eq!(hold(&mut boards[1], 35, 10, 100), 35);
        assert_eq!(hold(&mut boards[2], 50, 10, 100), 0, "what is left is of no use");
        boards[0].release(20);
        assert_eq!(hold(&mut boards[2], 50, 10, 100), 45);
        assert_eq!(hold(&mut boards[2], 30, 10, 100), 45, "only a release makes it less");
        assert_eq!(hold(&mut boards[0], 30, 10, 40), 20, "there is no more");
        boards[2].release(0);
        assert_eq!(
            hold(&mut boards[0], 30, 10, 40),
            30,
            "who takes the budget for less measures by those who take it for more"
        );
    }

    #[test]
    fn what_the_dead_and_the_silent_hold_counts_for_as_long_as_they_said() {
        let (directory, mut boards) = boards("silent", 2);
        boards[1].publish(wants(1000));
        assert_eq!(hold(&mut boards[1], 70, 10, 100), 70);
        pass(VALID_NS);
        boards[0].publish(wants(1000));
        assert_eq!(hold(&mut boards[0], 100, 10, 100), 30);
        pass(1);
        assert_eq!(hold(&mut boards[0], 100, 10, 100), 100);
        assert_eq!(boards[1].publish(wants(1000)), 0, "it knows");
        assert_eq!(hold(&mut boards[1], 50, 10, 100), 0);
        drop(boards.remove(0));
        assert_eq!(hold(&mut boards[0], 50, 10, 100), 0, "what has been granted is still under way");
        assert_eq!(directory.open(0).own, Some(2), "another slot is better");
        pass(VALID_NS);
        boards[0].publish(wants(1000));
        assert_eq!(hold(&mut boards[0], 50, 10, 100), 50);
    }

    #[test]
    fn what_nobody_can_have_written_does_not_count_for_ever() {
        let (_directory, mut boards) = boards("damaged", 2);
        let damage = |board: &Board, written_ns: u64| {
            let slot = &board.slots[1];
            slot.demand_bytes.store(1000, Ordering::Relaxed);
            slot.held_bytes.store(1000, Ordering::Relaxed);
            slot.written_ns.store(written_ns, Ordering::Relaxed);
            slot.valid_until_ns.store(1 << 63, Ordering::Relaxed);
        };
        drop(boards.remove(1));
        damage(&boards[0], boards[0].now_ns());
        boards[0].publish(wants(1000));
        assert_eq!(hold(&mut boards[0], 100, 10, 100), 0);
        pass(LONGEST_NS + 1);
        boards[0].publish(wants(1000));
        assert_eq!(hold(&mut boards[0], 100, 10, 100), 100, "it is too long ago");
        boards[0].release(0);
        damage(&boards[0], 1 << 62);
        assert_eq!(boards[0].others(), Others::default());
        assert_eq!(hold(&mut boards[0], 100, 10, 100), 100, "it is still to come");
        assert_eq!(boards[0].take_slot(), Some(1));
    }

    #[test]
    fn a_slot_is_free_when_its_owner_has_gone_and_more_processes_than_slots_still_work() {
        let (directory, mut boards) = boards("dead", SLOTS + 2);
        assert!(boards[SLOTS].own.is_none());
        boards[SLOTS].publish(wants(7));
        boards[3].publish(wants(7));
        assert_eq!(hold(&mut boards[3], 70, 1, 100), 70);
        assert_eq!(hold(&mut boards[SLOTS + 1], 100, 1, 100), 30);
        // As a forked child has it that lives on.
        let copy = boards[5].locks.try_clone().unwrap();
        drop(boards.remove(5));
        assert_eq!(directory.open(0).own, Some(5));
        drop(copy);
    }
}
