//! Processes that share one end of a ring are killed at any instruction; the survivor takes the lock over and goes on.
//!
//! The first tests single-step a child through one operation and copy the shared memory after every instruction: what the
//! survivor of a kill at that point would find. The last one kills for good, at random, with the other end running.

#![cfg(not(loom))]

mod support;

use core::cell::UnsafeCell;
use ropeway_shm::lock::{Lock, Taken, holder};
use ropeway_shm::ring::{Consumer, End, Look, Producer, Recovered, Ring};
use ropeway_shm::sys;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Memory, Numbers, Stop, promote, read, write};

/// What the owners of one end share and the other end does not see: the socket table, in small.
#[repr(C)]
struct Family {
    tx: Lock,
    rx: Lock,
    producer: UnsafeCell<Producer>,
    consumer: UnsafeCell<Consumer>,
    /// Not 0: the writer has noted that it is on the ring.
    on_ring: AtomicU64,
    /// Not 0: a copy, whose locks belong to the dead.
    is_copy: AtomicU64,
    /// The last two records that were begun: where, and their number + 1, entered last.
    notes: [(AtomicU64, AtomicU64); 2],
}

impl Family {
    fn lock(&self, lock: &Lock) -> Taken {
        match self.is_copy.load(Ordering::Relaxed) {
            0 => lock.lock(me()),
            _ => lock.lock_unless(me(), |_| false),
        }
    }

    fn note_on_ring(&self) {
        self.on_ring.store(1, Ordering::Release);
    }

    /// The number of the next record: that of the newest note, or one more if its record is published.
    fn next_number(&self, head: u64) -> u64 {
        let newest = self.notes.iter().max_by_key(|note| note.1.load(Ordering::Relaxed)).expect("two notes");
        let begun = newest.1.load(Ordering::Relaxed);
        if begun != 0 && newest.0.load(Ordering::Relaxed) == head { begun - 1 } else { begun }
    }

    /// Notes that record `number` is begun at `head`. A kill in here leaves the other note valid.
    fn note(&self, number: u64, head: u64) {
        let note = &self.notes[(number % 2) as usize];
        note.0.store(head, Ordering::SeqCst);
        note.1.store(number + 1, Ordering::SeqCst);
    }
}

// SAFETY: cursors are used under their locks only.
unsafe impl Sync for Family {}

/// A page of zeroes that children inherit; unmapped when dropped.
struct Page(*mut Family);

impl Page {
    fn new() -> Page {
        // SAFETY: a new mapping of zeroes: free locks and cursors before the first epoch.
        unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            Page(sys::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).unwrap() as _)
        }
    }

    fn copy(&self) -> Page {
        let copy = Page::new();
        // SAFETY: whole pages, both mapped; the child that writes the original is stopped.
        unsafe { core::ptr::copy_nonoverlapping(self.0.cast::<u8>(), copy.0.cast(), 4096) };
        copy.is_copy.store(1, Ordering::Relaxed);
        copy
    }
}

// SAFETY: the address of a Family, which may be shared.
unsafe impl Sync for Page {}

impl std::ops::Deref for Page {
    type Target = Family;
    fn deref(&self) -> &Family {
        // SAFETY: mapped until dropped.
        unsafe { &*self.0 }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped.
        let _ = unsafe { sys::munmap(self.0.cast(), 4096) };
    }
}

fn me() -> u64 {
    holder(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32)
}

/// Takes the writer's lock, repairs the cursor if its holder died, and runs `f`.
fn with_producer<T>(family: &Family, ring: Ring, f: impl FnOnce(&mut Producer, Option<Recovered>) -> T) -> T {
    let taken = family.lock(&family.tx);
    // SAFETY: under the lock.
    let p = unsafe { &mut *family.producer.get() };
    let recovered = (taken == Taken::FromTheDead).then(|| ring.recover_producer(p, || family.note_on_ring()));
    let result = f(p, recovered);
    family.tx.unlock();
    result
}

/// Likewise for the reader's side; says whether the lock came from the dead.
fn with_consumer<T>(family: &Family, ring: Ring, f: impl FnOnce(&mut Consumer, bool) -> T) -> T {
    let from_the_dead = family.lock(&family.rx) == Taken::FromTheDead;
    // SAFETY: under the lock.
    let c = unsafe { &mut *family.consumer.get() };
    if from_the_dead {
        ring.recover_consumer(c);
    }
    let result = f(c, from_the_dead);
    family.rx.unlock();
    result
}

/// Kills a child and waits until it is dead, without reaping it: locks must be taken from zombies, too.
fn kill(pid: i32) {
    sys::kill(pid, libc::SIGKILL).unwrap();
    // SAFETY: our own child; the zombie stays.
    unsafe {
        let mut info: libc::siginfo_t = core::mem::zeroed();
        libc::waitid(libc::P_PID, pid as u32, &mut info, libc::WEXITED | libc::WNOWAIT);
    }
}

fn reap(pid: i32) {
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
}

/// Longest operation in instructions, also in a build without optimisation.
const MOST_STEPS: u64 = 100_000;

/// Runs `operation` in a child, one instruction at a time, and shows `check` what a kill at each of these points leaves.
fn at_every_instruction(
    what: &str,
    memory: &Memory,
    page: &Page,
    operation: impl FnOnce(),
    mut check: impl FnMut(u64, Ring, &Page),
) {
    // SAFETY: the child makes system calls and touches shared memory only.
    let pid = match unsafe { libc::fork() } {
        0 => {
            // SAFETY: stops this child for its parent, then leaves without running anything of the harness.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                operation();
                libc::_exit(0)
            }
        }
        pid => pid,
    };
    for steps in 0..MOST_STEPS {
        let mut status = 0;
        // SAFETY: our own child, and a writable status.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0, "the child's own checks failed");
            println!("{what}: {steps} instructions");
            assert!(steps > 50, "the child did nothing");
            return;
        }
        assert!(libc::WIFSTOPPED(status), "the child ended in another way: {status:#x}");
        let (memory, page) = (memory.copy(), page.copy());
        check(steps, memory.ring(), &page);
        // SAFETY: our own child, which is stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) }, 0, "single-stepping needs ptrace");
    }
    panic!("{what}: more than {MOST_STEPS} instructions");
}

/// A world at the point where a child will publish: ring, page, and what the reader will find before it.
fn world(n: u32, fill: &[u8]) -> (Memory, Page) {
    let (memory, page) = (Memory::new(n), Page::new());
    let ring = memory.ring();
    with_producer(&page, ring, |p, _| {
        with_consumer(&page, ring, |c, _| {
            promote(ring, p, c, 0);
            // Records that were read already, so that the next one can wrap.
            for &bytes in fill {
                assert_eq!(write(ring, p, 1, &vec![1; bytes.into()]), Ok(bytes.into()));
                read(ring, c, 4096);
            }
        });
    });
    (memory, page)
}

fn a_writer_killed_while_publishing(n: u32, fill: &[u8], record: &[u8]) {
    let (memory, page) = world(n, fill);
    let what = format!("publish of {} bytes at cell {}", record.len(), fill.len() + 1);
    let mut found = [0; 2];
    let publish = || {
        with_producer(&page, memory.ring(), |p, _| {
            assert_eq!(write(memory.ring(), p, record.len(), record), Ok(record.len()));
        });
    };
    at_every_instruction(&what, &memory, &page, publish, |steps, ring, page| {
        let next = [9u8; 30];
        with_producer(page, ring, |p, recovered| {
            // SAFETY: nobody else runs on the copy.
            let at = ring.unread(unsafe { &*page.consumer.get() }).1;
            assert_eq!(at, p.head, "after {steps} instructions and {recovered:?}");
            assert_eq!(write(ring, p, 30, &next), Ok(next.len()));
        });
        let (got, stop) = with_consumer(page, ring, |c, _| read(ring, c, 4096));
        assert_eq!(stop, Stop::Empty);
        let published = got.len() > next.len();
        assert_eq!(got, if published { [record, &next].concat() } else { next.to_vec() }, "after {steps}");
        found[usize::from(published)] += 1;
    });
    assert!(found[0] > 10 && found[1] > 10, "killed on both sides of the swap: {found:?}");
}

#[test]
fn a_writer_is_killed_at_every_instruction_of_a_publish() {
    a_writer_killed_while_publishing(16, &[10], &[5; 100]);
}

#[test]
fn a_writer_is_killed_at_every_instruction_of_a_wrap() {
    a_writer_killed_while_publishing(8, &[10; 6], &[5; 70]);
}

fn switch(family: &Family, ring: Ring) {
    with_producer(family, ring, |p, _| ring.switch(p, 1, 55, || family.note_on_ring()).unwrap());
}

/// What a writer leaves that dies over a switch: the record stands there, and it is noted that the writer is on the ring, or neither.
/// True for the first.
fn has_switched(steps: u64, ring: Ring, page: &Page) -> bool {
    let switched = with_producer(page, ring, |_, _| page.on_ring.load(Ordering::Relaxed) != 0);
    // SAFETY: nobody else runs on the copy.
    assert_eq!(ring.pending(unsafe { &*page.consumer.get() }), switched, "after {steps} instructions");
    with_producer(page, ring, |p, _| {
        if !switched {
            ring.recover_epoch(p);
            assert_eq!(p.epoch, 0, "after {steps} instructions");
            assert_eq!(ring.switch(p, 1, 55, || {}), Ok(()), "after {steps} instructions");
        }
        assert_eq!(write(ring, p, 1, b"x"), Ok(1));
    });
    with_consumer(page, ring, |c, _| {
        assert_eq!(ring.look(c), Look::Switch { at: 55 });
        ring.consume_switch(c);
        assert_eq!(read(ring, c, 9), (b"x".to_vec(), Stop::Empty));
    });
    switched
}

#[test]
fn a_writer_is_killed_at_every_instruction_of_a_switch() {
    let (memory, page) = (Memory::new(16), Page::new());
    with_consumer(&page, memory.ring(), |c, _| memory.ring().offer(c, 1));
    let mut found = [0; 2];
    let switch = || switch(&page, memory.ring());
    at_every_instruction("switch", &memory, &page, switch, |steps, ring, page| {
        found[usize::from(has_switched(steps, ring, page))] += 1;
    });
    assert!(found[0] > 10 && found[1] > 10, "killed on both sides of the swap: {found:?}");
}

#[test]
fn who_takes_over_a_switch_is_killed_at_every_instruction_of_that() {
    let (memory, page) = (Memory::new(16), Page::new());
    let ring = memory.ring();
    with_consumer(&page, ring, |c, _| ring.offer(c, 1));
    // A writer that died with its record published, and nothing else.
    page.tx.lock(me());
    // SAFETY: under the lock.
    let p = unsafe { &mut *page.producer.get() };
    let before = *p;
    ring.switch(p, 1, 55, || {}).unwrap();
    *p = before;
    p.epoch = 1;
    page.is_copy.store(1, Ordering::Relaxed);
    let take_over = || with_producer(&page, ring, |_, _| {});
    at_every_instruction("taking over", &memory, &page, take_over, |steps, ring, page| {
        assert!(has_switched(steps, ring, page));
    });
}

/// The child reads `most` bytes of a stream of which 60 were read before. Whatever it got done: the survivor reads on at
/// a byte between, and the writer learns that all is free.
fn a_reader_killed_while_reading(n: u32, fill: &[u8], records: &[usize], most: usize) {
    let stream: Vec<u8> = (0..records.iter().sum::<usize>()).map(|i| (i % 251) as u8).collect();
    let (memory, page) = world(n, fill);
    with_producer(&page, memory.ring(), |p, _| {
        let mut rest = &stream[..];
        for &bytes in records {
            assert_eq!(write(memory.ring(), p, bytes, &rest[..bytes]), Ok(bytes));
            rest = &rest[bytes..];
        }
    });
    assert_eq!(with_consumer(&page, memory.ring(), |c, _| read(memory.ring(), c, 60)).0, stream[..60]);
    let mut places = std::collections::BTreeSet::new();
    let reads = || with_consumer(&page, memory.ring(), |c, _| read_without_allocating(memory.ring(), c, most));
    let what = format!("read of {most} bytes of {records:?}");
    at_every_instruction(&what, &memory, &page, reads, |steps, ring, page| {
        let rest = with_consumer(page, ring, |c, _| read(ring, c, 4096)).0;
        assert!(rest.len() <= stream.len() - 60, "nothing comes twice");
        assert!(rest.len() >= stream.len() - 60 - most, "no more is gone than the dead could have taken");
        assert_eq!(rest, stream[stream.len() - rest.len()..], "after {steps} instructions");
        places.insert(rest.len());
        with_producer(page, ring, |p, _| assert!(ring.drained(p), "the writer knows, after {steps} instructions"));
    });
    assert!(places.len() > 1, "killed before and after consuming: {places:?}");
}

/// What [`read`] does, for a forked child.
fn read_without_allocating(ring: Ring, c: &mut Consumer, most: usize) {
    let (mut buffer, mut got) = ([0u8; 512], 0);
    while got < most
        && let Look::Data { ptr, len } = ring.look(c)
    {
        let n = len.min(most - got);
        // SAFETY: `look` showed the bytes, and the buffer has room for `most`.
        unsafe { core::ptr::copy_nonoverlapping(ptr, buffer[got..].as_mut_ptr(), n) };
        ring.consume(c, n);
        got += n;
    }
    ring.flush(c);
}

#[test]
fn a_reader_is_killed_at_every_instruction_inside_a_record() {
    a_reader_killed_while_reading(16, &[10], &[100, 40], 20);
}

#[test]
fn a_reader_is_killed_at_every_instruction_across_records() {
    a_reader_killed_while_reading(16, &[10], &[100, 40, 30], 90);
}

#[test]
fn a_reader_is_killed_at_every_instruction_across_a_wrap() {
    a_reader_killed_while_reading(8, &[10; 5], &[90, 90], 100);
}

/// A child writes numbered records as fast as it can and is killed at random; the parent, which shares the end, takes over for
/// one record, then another child goes on. All the time a thread of the parent reads.
#[test]
fn writers_are_killed_at_random_while_the_reader_runs() {
    const ROUNDS: u64 = 150;
    /// Whether a kill hits is the scheduler's choice: some machines need many.
    const MOST_ROUNDS: u64 = 4000;
    let (memory, page) = world(512, &[]);
    let mut numbers = Numbers::new(7);
    let (mut rounds, mut takeovers) = (0, 0);
    let last = std::thread::scope(|scope| {
        let reader = scope.spawn(|| follow(memory.ring(), &page));
        while rounds < ROUNDS || takeovers == 0 && rounds < MOST_ROUNDS {
            rounds += 1;
            // SAFETY: the child makes system calls and touches shared memory only.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                loop {
                    write_numbered(&page, memory.ring(), false);
                }
            }
            std::thread::sleep(Duration::from_micros(numbers.below(1500)));
            kill(pid);
            takeovers += u64::from(write_numbered(&page, memory.ring(), false));
            reap(pid);
        }
        write_numbered(&page, memory.ring(), true);
        reader.join().expect("the reader saw what it had to")
    });
    println!("{last} records, {takeovers} of {rounds} kills hit a holder of the lock");
    assert!(takeovers > 0, "no kill hit a holder of the lock");
    assert!(last > ROUNDS);
}

const LAST: u64 = 1 << 63;

/// Writes a few of the family's records under one lock. True when the lock came from the dead.
fn write_numbered(page: &Family, ring: Ring, last: bool) -> bool {
    const AT_ONCE: u32 = 16;
    let (mut from_the_dead, mut done) = (false, false);
    while !done {
        with_producer(page, ring, |p, recovered| {
            from_the_dead |= recovered.is_some();
            for _ in 0..if last { 1 } else { AT_ONCE } {
                let head = u64::from(p.head.lap) << 32 | u64::from(p.head.cell);
                let number = page.next_number(head);
                page.note(number, head);
                let length = 8 + (number * 37 % 200) as usize;
                let mut record = [number as u8; 208];
                record[..8].copy_from_slice(&(number | if last { LAST } else { 0 }).to_ne_bytes());
                done = write(ring, p, length, &record[..length]).is_ok();
                if !done {
                    break;
                }
            }
        });
        if !done {
            let _ = sys::sched_yield();
        }
    }
    from_the_dead
}

/// Reads numbered records until the last, whose number it returns.
fn follow(ring: Ring, page: &Family) -> u64 {
    let (mut expected, deadline) = (0u64, Instant::now() + Duration::from_secs(60));
    loop {
        let ended = with_consumer(page, ring, |c, _| {
            while let Look::Data { ptr, len } = ring.look(c) {
                let mut record = [0u8; 208];
                assert!((8..=208).contains(&len));
                // SAFETY: `look` showed `len` bytes.
                unsafe { core::ptr::copy_nonoverlapping(ptr, record.as_mut_ptr(), len) };
                let number = u64::from_ne_bytes(record[..8].try_into().unwrap());
                assert_eq!(number & !LAST, expected, "lost, doubled or out of order");
                assert_eq!(len, 8 + (expected * 37 % 200) as usize);
                assert!(record[8..len].iter().all(|&b| b == expected as u8), "a torn record");
                ring.consume(c, len);
                expected += 1;
                if number & LAST != 0 {
                    return true;
                }
            }
            if ring.flush(c) {
                ring.take_armed(End::Writer);
            }
            false
        });
        if ended {
            return expected;
        }
        assert!(Instant::now() < deadline, "no record {expected} for a minute");
        let _ = sys::sched_yield();
    }
}
