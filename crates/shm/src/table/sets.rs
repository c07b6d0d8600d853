//! Epoll sets and what sockets are members of them: the part of the table that `docs/readiness.md` is about.

use super::{MAX_MEMBERSHIPS, MAX_OWNERS, MAX_SOCKS};
use crate::lock::Lock;
use crate::present;
use crate::ring::Position;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Epoll sets that one family can have in use at a time; sockets in more stay on TCP.
pub const MAX_SETS: u32 = 4_096;
/// Threads that can be told apart while they sleep in one set.
pub const MAX_SLEEPERS: usize = 8;

/// Report the present state, whatever was reported before (the program has just added or modified it).
pub const MEMBER_FRESH: u32 = 1 << 0;
/// The kernel has reported our token since the member was evaluated last.
pub const MEMBER_TOKEN: u32 = 1 << 1;
/// The shadow may have something: it must be looked at.
pub const MEMBER_HINT: u32 = 1 << 2;
/// A oneshot member that has fired.
pub const MEMBER_DISABLED: u32 = 1 << 3;
/// Deleted by the program, still registered with the kernel.
pub const MEMBER_GHOST: u32 = 1 << 4;

/// How the kernel knows a member.
pub const MODE_NONE: u32 = 0;
/// As the program said.
pub const MODE_NATIVE: u32 = 1;
/// The program's events, our token as data.
pub const MODE_TOKEN: u32 = 2;
/// What matters of the shadow, our token as data.
pub const MODE_SHADOW: u32 = 3;

/// One membership of a socket in an epoll set. Which set it belongs to stands in `Sock::member_of`.
#[repr(C, align(64))]
pub struct Member {
    /// The descriptor number, events and data that the program registered.
    pub fd: AtomicI32,
    pub events: AtomicU32,
    pub data: AtomicU64,
    /// `MEMBER_*`.
    pub flags: AtomicU32,
    /// `MODE_*`, changed under the set's lock, and the events that the kernel was told then.
    pub mode: AtomicU32,
    pub told: AtomicU32,
    /// Bell slot claimed in the incoming ring's and in the outgoing ring's header, + 1; 0 for none. Under the set's lock.
    pub rx_slot: AtomicU32,
    pub tx_slot: AtomicU32,
    /// Events of the shadow when it was looked at last (edge-triggered).
    pub seen: AtomicU32,
    /// Rounds without an event since it became hot.
    pub idle: AtomicU32,
    /// The wait that reported it last.
    pub stamp: AtomicU32,
    /// End of the incoming ring when readability was reported last (edge-triggered): lap << 32 | cell.
    edge: AtomicU64,
}

impl Member {
    pub fn edge(&self) -> Position {
        let word = self.edge.load(Ordering::Relaxed);
        Position { lap: (word >> 32) as u32, cell: word as u32 }
    }

    pub fn set_edge(&self, at: Position) {
        self.edge.store((at.lap as u64) << 32 | at.cell as u64, Ordering::Relaxed);
    }

    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Brings a free entry to its first state.
    pub fn reset(&self) {
        for word in [&self.events, &self.flags, &self.mode, &self.told, &self.rx_slot, &self.tx_slot] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.seen, &self.idle, &self.stamp] {
            word.store(0, Ordering::Relaxed);
        }
        self.fd.store(-1, Ordering::Relaxed);
        self.data.store(0, Ordering::Relaxed);
        self.edge.store(0, Ordering::Relaxed);
    }
}

/// One epoll instance, shared by everybody who inherited its descriptor.
#[repr(C, align(64))]
pub struct Set {
    /// 0 for free.
    pub used: AtomicU32,
    /// Grows each time the entry is used again; part of every handle and of `Sock::member_of`.
    pub generation: AtomicU32,
    pub lock: Lock,
    /// Not 0: a member may have a ring. Set before that is so, cleared under the lock.
    pub rings: AtomicU32,
    /// Not 0: the kernel may report tokens of ours.
    pub tokens: AtomicU32,
    /// Not 0: another set, or a poll, watches this one.
    pub nested: AtomicU32,
    /// Not 0: other sets are members of this one.
    pub contains: AtomicU32,
    /// Not 0: a wait of ours has been called on it.
    pub waited: AtomicU32,
    /// Not 0: a member's mode could not be brought into line by whoever changed its carrier.
    pub dirty: AtomicU32,
    /// Memberships, ghosts included.
    pub members: AtomicU32,
    /// Numbers given to sleeps so far.
    pub sleeps: AtomicU32,
    /// Socket at which the next look at the hot members begins.
    pub cursor: AtomicU32,
    /// Not 0: the kernel's events filled the array of the last wait: now the rings come first.
    pub turn: AtomicU32,
    /// Waits since the kernel's set was looked at last, and when that was, in ticks.
    pub rounds: AtomicU32,
    pub looked: AtomicU64,
    /// The bell that stands in the kernel's set, 0 for none yet. Under the lock.
    pub bell_id: AtomicU64,
    /// Forks whose children have not entered themselves yet: bits of [`super::Births`].
    pub expected: AtomicU64,
    /// Process numbers of those who have a descriptor of it, 0 for a free entry.
    pub owners: [AtomicU32; MAX_OWNERS],
    /// Threads that wait in it, as holders of locks are named, with bit 31 while they have not slept yet; 0 for a free entry. More only
    /// make `crowd` grow.
    pub sleepers: [AtomicU64; MAX_SLEEPERS],
    pub crowd: AtomicU32,
}

impl Set {
    fn reset(&self) {
        for word in [&self.rings, &self.tokens, &self.nested, &self.waited, &self.dirty, &self.members, &self.cursor] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.sleeps, &self.contains, &self.turn, &self.rounds, &self.crowd] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.looked, &self.bell_id, &self.expected] {
            word.store(0, Ordering::Relaxed);
        }
        self.owners.iter().for_each(|o| o.store(0, Ordering::Relaxed));
        self.sleepers.iter().for_each(|o| o.store(0, Ordering::Relaxed));
        self.lock.reset_private();
    }
}

const WORDS: usize = MAX_SOCKS as usize / 64;

/// A set of socket numbers that several processes change at the same time without a lock.
#[repr(C, align(64))]
pub struct Numbers {
    /// Bit i: `words[i]` has been in use. Never cleared while the list is used: clearing would open an instant in which
    /// somebody who is about to sleep misses a number that has just been entered.
    summary: [AtomicU64; WORDS / 64],
    /// Bit i: `summary[i]` has been in use. Never cleared either.
    top: AtomicU64,
    words: [AtomicU64; WORDS],
}

const _: () = assert!(WORDS / 64 <= 64, "one word must do as the summary of the summary");

impl Numbers {
    #[inline]
    fn place(i: u32) -> (usize, u64) {
        (i as usize / 64, 1 << (i % 64))
    }

    #[inline]
    pub fn contains(&self, i: u32) -> bool {
        let (at, bit) = Self::place(i);
        self.words[at].load(Ordering::SeqCst) & bit != 0
    }

    /// Enters a number. A full barrier, whether it was there or not: the caller looks at something else next.
    pub fn insert(&self, i: u32) {
        let (at, bit) = Self::place(i);
        self.words[at].fetch_or(bit, Ordering::SeqCst);
        let (s, bit) = Self::place(at as u32);
        if self.summary[s].load(Ordering::SeqCst) & bit == 0 {
            self.summary[s].fetch_or(bit, Ordering::SeqCst);
        }
        // Whoever set that bit may not have come to this one yet.
        if self.top.load(Ordering::SeqCst) & 1 << s == 0 {
            self.top.fetch_or(1 << s, Ordering::SeqCst);
        }
    }

    pub fn remove(&self, i: u32) {
        let (at, bit) = Self::place(i);
        self.words[at].fetch_and(!bit, Ordering::SeqCst);
    }

    pub fn is_empty(&self) -> bool {
        let mut empty = true;
        self.words_in(0, WORDS, &mut |_, _| {
            empty = false;
            false
        });
        empty
    }

    /// Calls `f` with every number from `start` up, then with those below, until it says `false`.
    #[inline]
    pub fn for_each_from(&self, start: u32, mut f: impl FnMut(u32) -> bool) {
        let (first, _) = Self::place(start % MAX_SOCKS);
        let above = u64::MAX << (start % 64);
        let mut whole = true;
        self.words_in(first, WORDS, &mut |at, word| {
            whole = each_bit(at, if at == first { word & above } else { word }, &mut f);
            whole
        });
        if whole {
            self.words_in(0, first + 1, &mut |at, word| {
                each_bit(at, if at == first { word & !above } else { word }, &mut f)
            });
        }
    }

    /// Calls `f` with the words of `from..to` that are not 0.
    #[inline]
    fn words_in(&self, from: usize, to: usize, f: &mut impl FnMut(usize, u64) -> bool) {
        let mut used = self.top.load(Ordering::SeqCst) & u64::MAX << (from / 64);
        while used != 0 {
            let s = used.trailing_zeros() as usize;
            used &= used - 1;
            let mut left = self.summary[s].load(Ordering::SeqCst);
            if s == from / 64 {
                left &= u64::MAX << (from % 64);
            }
            while left != 0 {
                let at = s * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if at >= to {
                    return;
                }
                let word = self.words[at].load(Ordering::SeqCst);
                if word != 0 && !f(at, word) {
                    return;
                }
            }
        }
    }

    /// Enters every number of `other`.
    pub fn insert_all(&self, other: &Numbers) {
        other.words_in(0, WORDS, &mut |at, word| {
            self.words[at].fetch_or(word, Ordering::SeqCst);
            let (s, bit) = Self::place(at as u32);
            self.summary[s].fetch_or(bit, Ordering::SeqCst);
            self.top.fetch_or(1 << s, Ordering::SeqCst);
            true
        });
    }

    fn clear(&self) {
        self.words_in(0, WORDS, &mut |at, _| {
            self.words[at].store(0, Ordering::Relaxed);
            true
        });
        self.summary.iter().for_each(|s| s.store(0, Ordering::Relaxed));
        self.top.store(0, Ordering::Relaxed);
    }
}

/// Calls `f` with the number of every bit of word `at`.
#[inline]
fn each_bit(at: usize, mut word: u64, f: &mut impl FnMut(u32) -> bool) -> bool {
    while word != 0 {
        if !f((at * 64) as u32 + word.trailing_zeros()) {
            return false;
        }
        word &= word - 1;
    }
    true
}

/// Which members of a set are promoted, and which are hot. Most of it is never touched, and costs no memory then.
#[repr(C)]
pub struct Lists {
    pub promoted: Numbers,
    pub hot: Numbers,
}

impl super::Table {
    /// The epoll set with this index, which must be below [`MAX_SETS`].
    #[inline(always)]
    pub fn set(&self, index: u32) -> &'static Set {
        debug_assert!(index < MAX_SETS);
        // SAFETY: inside the mapping, which is never removed; sets consist of atomics.
        unsafe { &*self.address().add(super::SETS_AT).cast::<Set>().add(index as usize) }
    }

    /// The lists of the same set.
    #[inline(always)]
    pub fn lists(&self, index: u32) -> &'static Lists {
        debug_assert!(index < MAX_SETS);
        // SAFETY: as for `set`.
        unsafe { &*self.address().add(super::LISTS_AT).cast::<Lists>().add(index as usize) }
    }

    /// How many set entries have ever been used.
    pub fn used_sets(&self) -> u32 {
        self.header().used_sets.load(Ordering::Acquire).min(MAX_SETS)
    }

    /// A fresh set entry that belongs to `pid`, or None when all are in use. `dead` says of a process number whether it
    /// is gone for good: entries that only such processes own are taken over, when there are no others.
    pub fn allocate_set(&self, pid: u32, dead: impl Fn(u32) -> bool) -> Option<u32> {
        let free = |i: &u32| self.claim_set(*i, 0);
        let abandoned = |i: &u32| self.claim_unowned(*i, |p| !dead(p));
        let index = (0..self.used_sets()).find(free).or_else(|| self.extend_sets()).or_else(|| {
            // Processes that ended without closing leave their sets behind.
            (0..self.used_sets()).find(abandoned)
        })?;
        let set = self.set(index);
        set.generation.fetch_add(1, Ordering::AcqRel);
        set.reset();
        self.lists(index).promoted.clear();
        self.lists(index).hot.clear();
        set.owners[0].store(pid, Ordering::Relaxed);
        set.used.store(1, Ordering::Release);
        Some(index)
    }

    fn claim_set(&self, index: u32, from: u32) -> bool {
        self.set(index).used.compare_exchange(from, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Claims an entry in use that nobody owns. That is looked at once more when nobody else can claim it: meanwhile it may have been
    /// given back, and to another owner.
    fn claim_unowned(&self, index: u32, lives: impl Fn(u32) -> bool) -> bool {
        if self.is_owned(index, &lives) || !self.claim_set(index, 1) {
            return false;
        }
        let is_owned = self.is_owned(index, lives);
        if is_owned {
            self.set(index).used.store(1, Ordering::Release);
        }
        !is_owned
    }

    /// True while a process for which `lives` is true owns the set, or is about to.
    pub fn is_owned(&self, index: u32, lives: impl Fn(u32) -> bool) -> bool {
        let set = self.set(index);
        let expected = set.expected.load(Ordering::Acquire);
        self.births().may_come(expected, &lives)
            || set.owners.iter().any(|owner| matches!(owner.load(Ordering::Acquire), pid if pid != 0 && lives(pid)))
    }

    fn extend_sets(&self) -> Option<u32> {
        let used = &self.header().used_sets;
        loop {
            let next = |index: u32| (index < MAX_SETS && self.is_there(index)).then_some(index + 1);
            let i = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
            // Now that it counts as used before, another process may have found it free.
            if self.claim_set(i, 0) {
                return Some(i);
            }
        }
    }

    /// False when there is no memory for this entry and its lists.
    fn is_there(&self, index: u32) -> bool {
        // SAFETY: both lie in the mapping.
        unsafe {
            present::ensure(ptr::from_ref(self.set(index)).cast_mut().cast(), size_of::<Set>())
                && present::ensure(ptr::from_ref(self.lists(index)).cast_mut().cast(), size_of::<Lists>())
        }
    }

    /// Gives a set entry back, if it is in use and nobody owns it; its members were removed.
    pub fn release_set(&self, index: u32, lives: impl Fn(u32) -> bool) {
        if self.claim_unowned(index, lives) {
            let set = self.set(index);
            // Bits of children that are dead: whoever clears them finds nothing here to give back.
            set.expected.store(0, Ordering::Relaxed);
            set.used.store(0, Ordering::Release);
        }
    }
}

/// The word under which memberships name a set: never 0, another one for each use of the entry.
pub fn set_name(index: u32, generation: u32) -> u32 {
    generation << 16 | (index + 1)
}

const _: () = assert!(MAX_SETS < 0xffff, "a set's number fits into its name");
const _: () = assert!(MAX_MEMBERSHIPS == 4 && MAX_SOCKS <= 1 << 16, "a member's number fits into 18 bits");

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Box<Numbers> {
        // SAFETY: atomics, for which all-zero is a valid state.
        unsafe { Box::new(core::mem::zeroed()) }
    }

    fn all_from(n: &Numbers, start: u32) -> Vec<u32> {
        let mut out = Vec::new();
        n.for_each_from(start, |i| {
            out.push(i);
            true
        });
        out
    }

    #[test]
    fn numbers_come_in_order_from_any_start_and_each_once() {
        let n = numbers();
        let chosen = [0, 1, 63, 64, 65, 4095, 4096, 4097, 40_000, MAX_SOCKS - 1];
        assert!(n.is_empty());
        chosen.iter().for_each(|i| n.insert(*i));
        for start in [0, 1, 2, 63, 64, 66, 4096, 5000, 65_000, MAX_SOCKS - 1] {
            let mut expected: Vec<u32> = chosen.iter().copied().filter(|i| *i >= start).collect();
            expected.extend(chosen.iter().filter(|i| **i < start));
            assert_eq!(all_from(&n, start), expected, "from {start}");
        }
        let mut seen = 0;
        n.for_each_from(64, |_| {
            seen += 1;
            seen < 3
        });
        assert_eq!(seen, 3, "it stops when told");
        chosen.iter().for_each(|i| n.remove(*i));
        assert!(n.is_empty() && all_from(&n, 0).is_empty());
    }

    #[test]
    fn a_number_is_there_while_others_come_and_go_in_its_word() {
        let n = numbers();
        std::thread::scope(|scope| {
            for lane in 0..2u32 {
                let n = &n;
                scope.spawn(move || {
                    for _ in 0..200_000 {
                        n.insert(lane);
                        assert!(n.contains(lane) && !n.is_empty(), "{lane} was forgotten");
                        n.remove(lane);
                    }
                });
            }
        });
        assert!(n.is_empty());
    }

    #[test]
    fn one_list_joins_another() {
        let (a, b) = (numbers(), numbers());
        a.insert(3);
        b.insert(3);
        b.insert(60_000);
        a.insert_all(&b);
        assert_eq!(all_from(&a, 0), [3, 60_000]);
        a.clear();
        assert!(a.is_empty());
    }

    #[test]
    fn no_entry_is_given_to_two() {
        for _ in 0..20 {
            let (table, fd) = crate::table::Table::create().expect("table");
            let mut all: Vec<u32> = std::thread::scope(|scope| {
                let lanes: Vec<_> = (0..3)
                    .map(|_| scope.spawn(|| (0..200).filter_map(|_| table.allocate_set(7, |_| false)).collect()))
                    .collect();
                lanes.into_iter().flat_map(|lane| -> Vec<u32> { lane.join().expect("lane") }).collect()
            });
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 600);
            crate::sys::close(fd).expect("close");
        }
    }

    #[test]
    fn sets_of_processes_that_died_are_used_again_when_no_others_are_left() {
        let (table, fd) = crate::table::Table::create().expect("table");
        for i in 0..MAX_SETS {
            assert_eq!(table.allocate_set(7, |_| false), Some(i));
        }
        assert_eq!(table.allocate_set(8, |_| false), None, "their owner lives");
        let before = table.set(0).generation.load(Ordering::Relaxed);
        assert_eq!(table.allocate_set(8, |p| p == 7), Some(0));
        assert_eq!(table.set(0).generation.load(Ordering::Relaxed), before + 1);
        assert_eq!(table.set(0).owners[0].load(Ordering::Relaxed), 8);
        table.release_set(5, |p| p != 7);
        assert_eq!(table.allocate_set(8, |_| false), Some(5));
        crate::sys::close(fd).expect("close");
    }

    #[test]
    fn who_gives_a_set_back_late_takes_it_from_nobody() {
        let (table, fd) = crate::table::Table::create().expect("table");
        let lives = |p| p != 7;
        let index = table.allocate_set(7, |_| false).expect("room");
        table.release_set(index, |p| {
            // Another one has given it back in the meantime, and the next one has it.
            if p == 7 {
                table.release_set(index, lives);
                assert_eq!(table.allocate_set(8, |_| false), Some(index));
            }
            lives(p)
        });
        assert_ne!(table.allocate_set(9, |_| false), Some(index), "given to two");
        table.release_set(index, lives);
        assert_ne!(table.allocate_set(9, |_| false), Some(index), "given to two");
        table.set(index).owners[0].store(0, Ordering::Relaxed);
        table.release_set(index, lives);
        assert_eq!(table.allocate_set(9, |_| false), Some(index));
        crate::sys::close(fd).expect("close");
    }
}
