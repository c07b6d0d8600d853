//! Children that are being forked, and have not entered themselves yet among the owners of what their parent has.
//!
//! A fork has an entry here, and its bit in what the child will have (`Sock::expected`, `Set::expected`). Both parent and child say
//! which process the entry stands for, because either may be killed before it comes to that: of a child that is dead nothing is
//! expected. Nor is it where the forking thread died first: the kernel may have made it no child. Whoever clears bits or frees entries may die over it, too; doing it twice is doing it once.

use crate::lock::{Holder, Lock};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

/// Forks of one family that can be under way at a time.
pub const MAX_BIRTHS: usize = 63;
/// The bit of children that have no entry, or found no room among the owners: they are expected for good.
pub const EXPECTED_FOR_GOOD: u64 = 1 << MAX_BIRTHS;

/// In the place of the child, which is none: the thread was killed over its fork.
const NOBODY: u32 = u32::MAX;

#[repr(C)]
pub struct Births {
    /// Held by who settles what the dead were expected for.
    lock: Lock,
    /// `forking thread << 32 | child`: 0 for a free entry, without a child as long as that is not known.
    entries: [AtomicU64; MAX_BIRTHS],
}

/// A fork of a thread, and its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Birth(NonZeroU64);

impl Birth {
    fn new(thread: u32, entry: usize) -> Birth {
        // No thread has the number 0.
        Birth(NonZeroU64::new((thread as u64) << 32 | entry as u64).unwrap_or(NonZeroU64::MAX))
    }

    /// One without an entry.
    pub fn for_good(thread: u32) -> Birth {
        Birth::new(thread, MAX_BIRTHS)
    }

    fn entry(self) -> usize {
        self.0.get() as u32 as usize
    }

    /// What stands in the entry once the child is known, or (0) before.
    fn word(self, child: u32) -> u64 {
        self.0.get() & !(u32::MAX as u64) | child as u64
    }

    /// Its bit in what the child will have.
    pub fn bit(self) -> u64 {
        1 << self.entry()
    }

    /// The same once nobody is expected any more.
    pub fn ended_bit(self) -> u64 {
        self.bit() & !EXPECTED_FOR_GOOD
    }
}

impl Births {
    /// Begins a fork of a thread, which has no other one under way. None while all entries are in use.
    pub fn begin(&self, thread: u32) -> Option<Birth> {
        let word = Birth::new(thread, 0).word(0);
        let take = |entry: &AtomicU64| entry.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.entries.iter().position(take).map(|entry| Birth::new(thread, entry))
    }

    /// Says which process the child is, unless that is said already, or all is over. False when the entry does not stand for that child:
    /// nobody was expected any more.
    pub fn born(&self, birth: Birth, child: u32) -> bool {
        self.change(birth, birth.word(0), birth.word(child)).is_none_or(|now| now == birth.word(child))
    }

    /// True while nobody has said which process the child is.
    pub fn is_unborn(&self, birth: Birth) -> bool {
        self.entries.get(birth.entry()).is_some_and(|entry| entry.load(Ordering::Acquire) == birth.word(0))
    }

    /// The fork's bit is nowhere any more, says the child, or (0) the parent where there is none.
    pub fn end(&self, birth: Birth, child: u32) {
        self.change(birth, birth.word(child), 0);
    }

    /// What stands in the birth's entry afterwards, if it has one.
    fn change(&self, birth: Birth, from: u64, to: u64) -> Option<u64> {
        let entry = self.entries.get(birth.entry())?;
        Some(entry.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).map_or_else(|now| now, |_| to))
    }

    /// False for an entry of which no child comes (any more). What the thread died over is settled here, for everybody who looks later,
    /// and for the child if there is one after all.
    fn is_expecting(entry: &AtomicU64, lives: &impl Fn(u32) -> bool) -> bool {
        let word = entry.load(Ordering::Acquire);
        match word as u32 {
            NOBODY => false,
            0 if word == 0 || lives((word >> 32) as u32) => true,
            0 => {
                let nobody = word | NOBODY as u64;
                entry.compare_exchange(word, nobody, Ordering::AcqRel, Ordering::Relaxed).is_err()
                    && Births::is_expecting(entry, lives)
            }
            child => lives(child),
        }
    }

    /// True when one of the forks whose bits are set may bring a child. To be asked before the owners are looked at: a child
    /// enters itself there, then clears its bit. `lives` is asked of threads, too.
    pub fn may_come(&self, mut bits: u64, lives: impl Fn(u32) -> bool) -> bool {
        while bits != 0 {
            let Some(entry) = self.entries.get(bits.trailing_zeros() as usize) else { return true };
            if Births::is_expecting(entry, &lives) {
                return true;
            }
            bits &= bits - 1;
        }
        false
    }

    /// Frees the entries of which no child comes any more, after `forget` has cleared the bit of each wherever it is set. Signal handlers
    /// are put off meanwhile.
    pub fn forget_the_dead(&self, me: Holder, lives: impl Fn(u32) -> bool, forget: impl Fn(u64)) {
        let is_dead = |entry: &AtomicU64| !Births::is_expecting(entry, &lives);
        if !self.entries.iter().any(is_dead) {
            return;
        }
        // Once more under the lock: another one may have freed the entry, which stands for another fork then.
        self.lock.lock(me);
        for (i, entry) in self.entries.iter().enumerate().filter(|(_, entry)| is_dead(entry)) {
            forget(1 << i);
            entry.store(0, Ordering::Release);
        }
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn births() -> Box<Births> {
        // SAFETY: atomics, for which all-zero is a valid state.
        unsafe { Box::new(core::mem::zeroed()) }
    }

    fn lives(child: u32) -> bool {
        child < 100
    }

    #[test]
    fn a_child_is_expected_until_it_is_known_to_be_dead() {
        let births = births();
        let (a, b) = (births.begin(7).expect("room"), births.begin(8).expect("room"));
        assert_ne!(a.bit(), b.bit());
        births.born(a, 100);
        assert!(births.may_come(a.bit() | b.bit(), lives) && !births.may_come(a.bit(), lives));
        births.born(b, 3);
        assert!(births.may_come(b.bit(), lives) && !births.may_come(0, lives));
        births.end(b, 3);
        assert!(births.may_come(b.bit(), lives), "who looks may have seen the bit before it was cleared");
    }

    #[test]
    fn what_the_parent_says_late_is_nothing_to_who_has_the_entry_next() {
        let births = births();
        let first = births.begin(7).expect("room");
        births.born(first, 3);
        births.end(first, 3);
        let next = births.begin(8).expect("room");
        assert_eq!(first.bit(), next.bit());
        births.born(first, 100);
        assert!(births.is_unborn(next) && !births.is_unborn(first));
        births.end(first, 3);
        births.end(first, 0);
        assert!(births.is_unborn(next));
    }

    #[test]
    fn entries_of_the_dead_are_free_again_when_their_bits_are_cleared() {
        let births = births();
        let all: Vec<Birth> = (0..MAX_BIRTHS as u32).filter_map(|i| births.begin(i + 1)).collect();
        assert_eq!((all.len(), births.begin(200)), (MAX_BIRTHS, None));
        births.born(all[5], 100);
        births.born(all[6], 3);
        let forgotten = AtomicU64::new(0);
        births.forget_the_dead(1, lives, |bit| {
            assert!(births.begin(200).is_none(), "not before");
            forgotten.fetch_or(bit, Ordering::Relaxed);
        });
        assert_eq!(forgotten.load(Ordering::Relaxed), all[5].bit());
        assert_eq!(births.begin(200).map(Birth::bit), Some(all[5].bit()));
    }

    #[test]
    fn of_a_thread_that_dies_before_its_child_is_known_nobody_is_expected() {
        let births = births();
        let birth = births.begin(100).expect("room");
        assert!(!births.may_come(birth.bit(), lives));
        let forgotten = AtomicU64::new(0);
        births.forget_the_dead(1, lives, |bit| {
            forgotten.fetch_or(bit, Ordering::Relaxed);
        });
        assert_eq!(forgotten.load(Ordering::Relaxed), birth.bit());
        assert_eq!(births.begin(8).map(Birth::bit), Some(birth.bit()));
    }

    #[test]
    fn a_child_is_told_whether_it_was_expected() {
        let births = births();
        let (a, b) = (births.begin(7).expect("room"), births.begin(100).expect("room"));
        assert!(births.born(a, 3) && births.born(a, 3), "both parent and child say so");
        assert!(!births.may_come(b.bit(), lives), "its parent is dead, and it has not said anything yet");
        assert!(!births.born(b, 4) && !births.may_come(b.bit(), lives));
        let c = births.begin(100).expect("room");
        assert!(births.born(c, 4) && births.may_come(c.bit(), lives), "said before anybody has looked");
        assert!(births.born(Birth::for_good(7), 4));
    }

    #[test]
    fn who_has_no_entry_is_expected_for_good() {
        let (births, birth) = (births(), Birth::for_good(7));
        births.born(birth, 100);
        births.end(birth, 100);
        assert!(births.may_come(birth.bit(), lives));
        assert_eq!(birth.ended_bit(), 0);
    }
}
