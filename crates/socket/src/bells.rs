//! The bells of this process, and the socket it rings others from.
//!
//! A thread borrows a bell for one wait, so there are as many as threads that sleep at the same time, not as many as
//! connections. Epoll sets keep one each (`epoll`).
//!
//! A thread that leaves a wait by a jump or by cancellation gives nothing back. Its bell is closed when the same thread
//! borrows another one, or when more are made for others and the thread has ended. So a bell that stands in a ring and is not there
//! any more was left behind, and gives its place to the next one ([`claim`]).

use crate::thread::{self, Critical};
use crate::{fdtable, process, secret, stats};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ropeway_shm::bell::{self, Bell, RINGS_AT_ONCE};
use ropeway_shm::ring::{BELL_SLOTS, End, Ring};
use ropeway_shm::sys;

/// Bells for waiting threads. When all are out, a thread sleeps in short naps instead (`wait`).
const POOL: usize = 1024;
/// So many are made whatever they take of the program's descriptors.
const FEW: usize = 32;
/// So many are kept that nobody waits with: making one takes several system calls, keeping it a descriptor.
const KEPT: usize = 64;

struct Entry {
    fd: AtomicI32,
    id: AtomicU64,
    /// The thread that has it; 0 for none, and while it changes hands.
    tid: AtomicU32,
    /// How often it was lent.
    loans: AtomicU32,
    /// Index + 1 of the entry below it in its stack, 0 for none.
    below: AtomicU32,
}

static BELLS: [Entry; POOL] = [const {
    Entry {
        fd: AtomicI32::new(-1),
        id: AtomicU64::new(0),
        tid: AtomicU32::new(0),
        loans: AtomicU32::new(0),
        below: AtomicU32::new(0),
    }
}; POOL];

/// Entries that have been used: those from here on have no bell, and are in no stack.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Entries with a bell that nobody has.
static IDLE: Stack = Stack::new();
/// Entries without a bell.
static EMPTY: Stack = Stack::new();

/// Entries of [`BELLS`], last in, first out. The word has the index of the top one + 1 (0 for none) in bits 0 to 15, how many
/// there are in bits 16 to 31, and a number above that changes each time, so that nobody takes one top for another.
struct Stack(AtomicU64);

impl Stack {
    const ONE_MORE: u64 = 1 << 16;
    const CHANGED: u64 = 1 << 32;
    const TOP: u64 = Stack::ONE_MORE - 1;

    const fn new() -> Stack {
        Stack(AtomicU64::new(0))
    }

    fn len(&self) -> usize {
        (self.0.load(Ordering::Relaxed) / Stack::ONE_MORE) as u16 as usize
    }

    fn push(&self, entry: usize) {
        let with = |word: u64| {
            BELLS[entry].below.store((word & Stack::TOP) as u32, Ordering::Relaxed);
            Some((word & !Stack::TOP).wrapping_add(Stack::CHANGED + Stack::ONE_MORE) | (entry as u64 + 1))
        };
        // Release: what was written to the entry is there for who pops it.
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, with);
    }

    fn pop(&self) -> Option<usize> {
        let top = |word: u64| ((word & Stack::TOP) as usize).checked_sub(1);
        let without = |word: u64| {
            let below = BELLS[top(word)?].below.load(Ordering::Relaxed) as u64;
            Some((word & !Stack::TOP).wrapping_add(Stack::CHANGED - Stack::ONE_MORE) | below)
        };
        // Acquire: pairs with the release in `push`.
        top(self.0.fetch_update(Ordering::Acquire, Ordering::Acquire, without).ok()?)
    }
}

/// Something that costs much, and whose want is felt by many threads many times a second.
struct Seldom(AtomicU64);

impl Seldom {
    const INTERVAL_NS: u64 = 100_000_000;

    const fn new() -> Seldom {
        Seldom(AtomicU64::new(0))
    }

    /// True for one caller in each interval.
    fn is_due(&self) -> bool {
        let (last, now) = (self.0.load(Ordering::Relaxed), sys::monotonic_ns());
        now.saturating_sub(last) >= Seldom::INTERVAL_NS
            && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

static RINGER: AtomicI32 = AtomicI32::new(-1);

/// A bell lent to a thread; give it back with [`put_back`].
#[derive(Clone, Copy)]
pub struct Lent {
    pub bell: Bell,
    entry: usize,
    loan: u64,
}

impl Lent {
    fn new(bell: Bell, entry: usize) -> Lent {
        let e = &BELLS[entry];
        let loan = (e.loans.fetch_add(1, Ordering::Relaxed) as u64) << 32 | (entry as u64 + 1);
        e.tid.store(thread::me() as u32, Ordering::Release);
        thread::set_loan(loan);
        Lent { bell, entry, loan }
    }

    /// False when a handler that interrupted the thread has waited in between: then the bell is closed, and a wait that has
    /// not begun to sleep on it must begin anew.
    pub fn is_valid(&self) -> bool {
        thread::loan() == self.loan
    }
}

/// Borrows a bell. None when none is to be had: nap instead.
pub fn borrow() -> Option<Lent> {
    let _critical = Critical::enter();
    // This thread has jumped out of the wait that borrowed it, or is in a handler that interrupted that wait.
    if let Some(entry) = (thread::loan() as u32 as usize).checked_sub(1) {
        thread::set_loan(0);
        discard(entry);
    }
    let Some(entry) = IDLE.pop() else { return lend_new(unused()?) };
    let e = &BELLS[entry];
    let bell = Bell { fd: e.fd.load(Ordering::Relaxed), id: e.id.load(Ordering::Relaxed) };
    if fdtable::is_internal(bell.fd) {
        return Some(Lent::new(bell, entry));
    }
    // The program closed the number behind our back; it may be its own now.
    e.fd.store(-1, Ordering::Relaxed);
    lend_new(entry)
}

/// Lends an entry that has no bell yet.
#[cold]
fn lend_new(entry: usize) -> Option<Lent> {
    let Some(bell) = make() else {
        EMPTY.push(entry);
        return None;
    };
    let e = &BELLS[entry];
    e.fd.store(bell.fd, Ordering::Relaxed);
    e.id.store(bell.id, Ordering::Relaxed);
    Some(Lent::new(bell, entry))
}

/// An entry without a bell. None when there are as many bells as there may be.
#[cold]
fn unused() -> Option<usize> {
    static LOOKS: Seldom = Seldom::new();
    if USED.load(Ordering::Relaxed) >= FEW && LOOKS.is_due() {
        discard_of_the_dead();
    }
    EMPTY.pop().or_else(|| {
        let one_more = |used: usize| (used < FEW || used < sys::spare_descriptors().min(POOL)).then_some(used + 1);
        USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()
    })
}

/// Closes a bell that the caller alone knows to be out.
#[cold]
fn discard(entry: usize) {
    let e = &BELLS[entry];
    e.tid.store(0, Ordering::Relaxed);
    fdtable::close_internal(e.fd.swap(-1, Ordering::Relaxed));
    EMPTY.push(entry);
}

#[cold]
fn discard_of_the_dead() {
    for (entry, e) in BELLS.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let tid = e.tid.load(Ordering::Acquire);
        if tid != 0
            && !sys::thread_exists(process::pid(), tid)
            && e.tid.compare_exchange(tid, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            discard(entry);
        }
    }
}

/// Makes a bell of its own for a wait place that keeps it.
pub fn make() -> Option<Bell> {
    let bell = Bell::create().ok()?;
    fdtable::enter_internal(bell.fd);
    Some(bell)
}

/// Gives a bell back, with `release` to take it out of rings before. Rings that are still pending are taken out first. One
/// that is not valid any more is closed already, and stands in rings until its place is needed.
pub fn put_back(lent: Lent, release: impl FnOnce()) {
    let _critical = Critical::enter();
    if lent.is_valid() {
        release();
        drain(&lent.bell);
        thread::set_loan(0);
        if IDLE.len() < KEPT {
            BELLS[lent.entry].tid.store(0, Ordering::Relaxed);
            IDLE.push(lent.entry);
        } else {
            discard(lent.entry);
        }
    }
}

/// `revents`: what the kernel has told of a bell that somebody sleeps on. One that is not open was closed behind our back: another
/// is made in its place, or every sleep would end at once.
pub fn note_events(bell: &Bell, revents: i16) {
    if revents & libc::POLLNVAL != 0 {
        fdtable::forget_internal(bell.fd);
    }
}

/// Enters a bell in a ring, in the place of one that is gone if there is no other. None when all places are taken: wait with a
/// timeout then.
pub fn claim(ring: &Ring, end: End, bell: u64, tag: u64) -> Option<u32> {
    ring.claim_bell(end, bell, tag).or_else(|| claim_of_the_gone(ring, end, bell, tag))
}

#[cold]
fn claim_of_the_gone(ring: &Ring, end: End, bell: u64, tag: u64) -> Option<u32> {
    static LOOKS: Seldom = Seldom::new();
    if !LOOKS.is_due() {
        return None;
    }
    discard_of_the_dead();
    bell::with_probe(|is_gone| ring.forget_bells(end, is_gone));
    ring.claim_bell(end, bell, tag)
}

/// Takes all pending rings.
pub fn drain(bell: &Bell) {
    let mut tags = [0; RINGS_AT_ONCE];
    // The queue of a bell is short (net.unix.max_dgram_qlen); this bound only stops a flood.
    for _ in 0..64 / RINGS_AT_ONCE {
        if bell.take(&mut tags) < RINGS_AT_ONCE {
            return;
        }
    }
}

/// True when this process can ring others. Asked before it shares a ring with anybody: later it may have no descriptor left
/// for that, and whoever sleeps at the other end would sleep on.
pub fn can_ring() -> bool {
    ringer() >= 0
}

fn ringer() -> i32 {
    let fd = RINGER.load(Ordering::Acquire);
    if fd >= 0 && fdtable::is_internal(fd) { fd } else { make_ringer() }
}

#[cold]
fn make_ringer() -> i32 {
    let Ok(fd) = bell::create_ringer() else { return -1 };
    fdtable::enter_internal(fd);
    let old = RINGER.swap(fd, Ordering::AcqRel);
    fdtable::close_internal(old);
    fd
}

/// Rings one bell. False when this process cannot.
pub fn ring_one(id: u64, tag: u64) -> bool {
    id == 0
        || match bell::ring(ringer(), id, tag) {
            // The program closed the number behind our back.
            Err(libc::EBADF | libc::ENOTSOCK) => bell::ring(make_ringer(), id, tag).is_ok(),
            rung => rung.is_ok(),
        }
}

/// Rings everybody who sleeps on `end` of `ring`.
#[cold]
pub fn ring_all(ring: &Ring, end: End) {
    ring_these(ring, end, ring.take_armed(end));
}

/// Rings everybody who is entered on `end` of `ring`, armed or not: after somebody died who may have owed a ring.
#[cold]
pub fn ring_everybody(ring: &Ring, end: End) {
    ring_these(ring, end, ring.take_all(end));
}

fn ring_these(ring: &Ring, end: End, bells: [(u64, u64); BELL_SLOTS]) {
    for (slot, (id, tag)) in (0..).zip(bells) {
        if id != 0 && !ring_sleeper(id, tag) {
            // Still owed: whoever publishes next tries again.
            ring.arm(end, slot);
        }
    }
}

/// Sleeps that this process has ended already, by bell: digests of its id and the sleep's number, both of which stand where peers
/// write.
static ENDED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Rings for one sleep. Whoever waits for many rings at once names its sleep in the upper half of the tag (neither 0 nor all
/// ones): it looks at all of them when it wakes, and takes another number before it sleeps again, so it is rung once. False when
/// it sleeps on.
fn ring_sleeper(id: u64, tag: u64) -> bool {
    let sleep = tag >> 32;
    let entry = &ENDED[id as usize % ENDED.len()];
    let ended = secret::digest(id, sleep);
    let is_named = sleep != 0 && sleep != u32::MAX as u64;
    if is_named && entry.load(Ordering::Acquire) == ended {
        return true;
    }
    stats::TOTALS.rung.fetch_add(1, Ordering::Relaxed);
    let rung = ring_one(id, tag);
    if rung && is_named {
        entry.store(ended, Ordering::Release);
    }
    rung
}

/// In the child of fork: the parent's bells are the parent's. The socket that it rings from serves both.
pub fn after_fork_child() {
    for e in &BELLS[..USED.swap(0, Ordering::Relaxed)] {
        e.tid.store(0, Ordering::Relaxed);
        fdtable::close_internal(e.fd.swap(-1, Ordering::Relaxed));
    }
    // This is the only thread: nobody pushes or pops.
    IDLE.0.store(0, Ordering::Relaxed);
    EMPTY.0.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    #[test]
    fn a_sleep_is_ended_by_a_ring_for_it_alone() {
        let bell = make().expect("a bell");
        let rung = || bell.take(&mut [0; RINGS_AT_ONCE]);
        for (n, other) in [bell.id ^ 1 << 20, bell.id ^ 1 << 40].into_iter().enumerate() {
            let sleep = (n as u64 + 1) << 32;
            assert!(ring_sleeper(other, sleep), "nobody is there");
            for _ in 0..2 {
                assert!(ring_sleeper(bell.id, sleep | 5));
            }
            assert_eq!(rung(), 1, "once for a sleep, whatever else was rung");
        }
        fdtable::close_internal(bell.fd);
    }

    #[test]
    fn a_thread_that_never_comes_back_from_its_waits_leaves_bells_for_itself() {
        for _ in 0..2 * POOL {
            borrow().expect("what the last wait had is given up");
        }
        put_back(borrow().expect("one more"), || {});
        assert_eq!(thread::loan(), 0);
    }

    #[test]
    fn threads_that_end_in_a_wait_leave_their_bells_to_others() {
        let wait = || std::thread::spawn(|| (borrow().expect("a bell").entry, thread::me() as u32));
        let left: Vec<(usize, u32)> = (0..2 * FEW).map(|_| wait().join().expect("it waits for nothing")).collect();
        std::thread::sleep(Duration::from_nanos(Seldom::INTERVAL_NS));
        EMPTY.push(unused().expect("some of those that have them are gone"));
        assert!(left.iter().all(|(entry, tid)| BELLS[*entry].tid.load(Ordering::Relaxed) != *tid), "{left:?}");
    }

    #[test]
    fn a_look_that_many_want_is_taken_once_in_an_interval() {
        let looks = Seldom::new();
        let began = sys::monotonic_ns();
        let taken = (0..1000).filter(|_| looks.is_due()).count() as u64;
        assert!((1..=1 + (sys::monotonic_ns() - began) / Seldom::INTERVAL_NS).contains(&taken), "{taken} looks");
    }

    #[test]
    fn only_some_bells_are_kept_after_many_threads_have_waited() {
        let all_have_one = std::sync::Barrier::new(2 * KEPT);
        std::thread::scope(|scope| {
            for _ in 0..2 * KEPT {
                scope.spawn(|| {
                    let lent = borrow().expect("a bell");
                    all_have_one.wait();
                    put_back(lent, || {});
                });
            }
        });
        // Two that look at the same moment may both find room.
        assert!(IDLE.len() < 2 * KEPT, "{} bells are kept", IDLE.len());
    }
}
