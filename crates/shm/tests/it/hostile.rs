//! A peer writes anything into every shared word, at any time: the other end never crashes, never leaves its memory (the
//! rings of these tests end at a page that faults) and never runs for ever.

use crate::support::{self, Memory, Numbers, promote, read, write};
use ropeway_shm::ring::{Consumer, End, Look, Position, Producer, Ring, next_epoch};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A header word that is likely to be half believed.
fn plausible_word(numbers: &mut Numbers, n: u32) -> u64 {
    let kind = numbers.below(6);
    let epoch = numbers.below(4);
    let length = match numbers.below(6) {
        0 => 0,
        1 => numbers.below(56),
        2 => 8,
        3 => numbers.below(u64::from(n) * 64 + 64),
        4 => u64::from(n) * 64 - 8,
        _ => numbers.any() as u32 as u64,
    };
    match numbers.below(8) {
        0 => 0,
        1 => numbers.any(),
        _ => kind << 56 | epoch << 32 | length,
    }
}

/// What the three threads of an attack share besides the ring.
#[derive(Default)]
struct Attack {
    stop: AtomicBool,
    writes: AtomicU64,
    /// The cells where reader and writer stand: nonsense written there meets them.
    reader_at: AtomicU32,
    writer_at: AtomicU32,
    /// How often the reader found data, and the writer could write: proof that the attack met something.
    reads: AtomicU64,
    written: AtomicU64,
}

/// Successes that each end needs before an attack counts.
const ENOUGH: u64 = 5;
/// How long an attack lasts at least, and at most on a busy machine.
const LEAST: Duration = Duration::from_millis(300);
const MOST: Duration = Duration::from_secs(20);

impl Attack {
    fn goes_on(&self, start: Instant) -> bool {
        let met = self.reads.load(Ordering::Relaxed).min(self.written.load(Ordering::Relaxed)) >= ENOUGH;
        start.elapsed() < if met { LEAST } else { MOST }
    }
}

/// Writes nonsense everywhere until told to stop.
fn scribble(memory: &Memory, n: u32, seed: u64, attack: &Attack) {
    let mut numbers = Numbers::new(seed);
    while !attack.stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            if numbers.below(16) == 0 {
                let words = memory.header_words();
                let i = numbers.below(words.len() as u64) as usize;
                let value = match numbers.below(3) {
                    0 => numbers.any() as u32,
                    1 => numbers.below(u64::from(n) + 3) as u32,
                    _ => numbers.below(3) as u32,
                };
                words[i].store(value, Ordering::Relaxed);
            } else {
                let word = plausible_word(&mut numbers, n);
                let cell = match numbers.below(4) {
                    0 => attack.reader_at.load(Ordering::Relaxed),
                    1 => attack.writer_at.load(Ordering::Relaxed),
                    _ => numbers.below(u64::from(n) + 1) as u32,
                };
                memory.word(cell).store(word, Ordering::Relaxed);
            }
        }
        attack.writes.fetch_add(64, Ordering::Relaxed);
    }
}

/// Does everything that a reader can do, in a random order.
fn abused_reader(ring: Ring, n: u32, seed: u64, attack: &Attack) {
    let (mut numbers, mut c, start) = (Numbers::new(seed), Consumer::default(), Instant::now());
    let mut out = vec![0u8; n as usize * 64 + 64];
    while attack.goes_on(start) {
        for _ in 0..256 {
            attack.reader_at.store(c.at.cell, Ordering::Relaxed);
            match numbers.below(20) {
                0..=10 => {
                    let (bytes, stop) = read(ring, &mut c, 1 + numbers.below(3000) as usize);
                    attack.reads.fetch_add(u64::from(!bytes.is_empty()), Ordering::Relaxed);
                    if stop == support::Stop::Switch {
                        // Looked at before, changed since, perhaps: the caller looks again and only then consumes.
                        if matches!(ring.look(&mut c), Look::Switch { .. }) {
                            ring.consume_switch(&mut c);
                        }
                    }
                }
                11 => {
                    let room = numbers.below(out.len() as u64) as usize;
                    let skip = numbers.below(5000) as usize;
                    // SAFETY: `out` is longer than `room`.
                    let got = unsafe { ring.peek(&c, skip, out.as_mut_ptr(), room) };
                    assert!(got <= room);
                }
                12 => {
                    let (_, at) = ring.unread(&c);
                    assert!(at.cell <= n);
                    ring.pending_at(at);
                }
                13 => {
                    ring.close_reader(&c);
                }
                14 => {
                    let epoch = next_epoch(c.epoch) & 3;
                    ring.offer(&mut c, epoch);
                }
                15 => ring.recover_consumer(&mut c),
                16 => c = Consumer::starting_at(Position { lap: 0, cell: numbers.below(u64::from(n)) as u32 }, 1),
                17 => {
                    ring.recall(&mut c);
                    ring.take_armed(End::Writer);
                    ring.take_all(End::Writer);
                }
                _ => {
                    if let Some(slot) = ring.claim_bell(End::Reader, numbers.any() | 1, 0) {
                        ring.arm(End::Reader, slot);
                        ring.release_bell(End::Reader, slot);
                    }
                }
            }
            assert!(c.at.cell <= n, "the cursor left the ring");
        }
    }
}

/// Does everything that a writer can do, in a random order.
fn abused_writer(ring: Ring, n: u32, seed: u64, attack: &Attack) {
    let (mut numbers, mut p, start) = (Numbers::new(seed), Producer::default(), Instant::now());
    let bytes = vec![0x5a; n as usize * 64 + 64];
    while attack.goes_on(start) {
        for _ in 0..256 {
            attack.writer_at.store(p.head.cell, Ordering::Relaxed);
            match numbers.below(12) {
                0..=5 => {
                    let most = 1 + numbers.below(bytes.len() as u64 - 1) as usize;
                    let least = numbers.below(most as u64 + 1) as usize;
                    let ok = write(ring, &mut p, least, &bytes[..most]).is_ok();
                    attack.written.fetch_add(u64::from(ok), Ordering::Relaxed);
                }
                6 => {
                    ring.writable(&mut p);
                    ring.drained(&mut p);
                    assert!(ring.unread_cells(&mut p) <= n);
                }
                7 => {
                    let epoch = next_epoch(p.epoch) & 3;
                    let _ = ring.switch(&mut p, epoch, numbers.any(), || {});
                }
                8 => {
                    ring.recover_producer(&mut p, || {});
                    ring.recover_epoch(&mut p);
                }
                9 => {
                    ring.close_writer(&p);
                    ring.leave(&p);
                }
                10 => copy_tail(ring, &mut p, n),
                _ => {
                    ring.take_armed(End::Reader);
                    ring.offered();
                    ring.wr_shut();
                }
            }
            assert!(p.head.cell <= n, "the cursor left the ring");
        }
        // A word that stays wrong at the head would stop a writer for good; a new epoch is a new chance.
        if numbers.below(4) == 0 {
            p = Producer::default();
        }
    }
}

/// What the writer does for a reader that recalls: every step is checked, and their number is bounded by `unread`.
fn copy_tail(ring: Ring, p: &mut Producer, n: u32) {
    let Some((at, _)) = ring.reader_stopped_at(p) else { return };
    assert!(at.cell <= n);
    let mut walk = Consumer::starting_at(at, p.epoch);
    let mut left = ring.unread(&walk).0;
    while let Look::Data { len, .. } = ring.look(&mut walk) {
        if len > left {
            break;
        }
        left -= len;
        ring.consume(&mut walk, len);
    }
}

fn abuse(n: u32, seed: u64) {
    let memory = Memory::new(n);
    let attack = Attack::default();
    thread::scope(|scope| {
        scope.spawn(|| scribble(&memory, n, seed, &attack));
        let reader = scope.spawn(|| abused_reader(memory.ring(), n, seed + 1, &attack));
        abused_writer(memory.ring(), n, seed + 2, &attack);
        reader.join().expect("the reader survives");
        attack.stop.store(true, Ordering::Relaxed);
    });
    let [writes, written, reads] =
        [&attack.writes, &attack.written, &attack.reads].map(|count| count.load(Ordering::Relaxed));
    println!("{n} cells: {writes} words of nonsense, {written} writes and {reads} reads went through");
    assert!(written >= ENOUGH && reads >= ENOUGH, "the attack met nothing");
}

#[test]
fn nonsense_in_every_word_harms_nobody_in_small_rings() {
    abuse(2, 1);
    abuse(5, 2);
    abuse(16, 3);
}

#[test]
fn nonsense_in_every_word_harms_nobody_in_large_rings() {
    abuse(256, 4);
    abuse(8192, 5);
}

#[test]
fn chains_of_records_that_lead_in_a_circle_end() {
    let memory = Memory::new(8);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    // Every cell a one-byte record, the spare one a wrap: an endless ring.
    for i in 0..8 {
        memory.word(i).store(1 << 56 | 1 << 32 | 1, Ordering::Relaxed);
    }
    memory.word(8).store(2 << 56 | 1 << 32, Ordering::Relaxed);
    assert!(!ring.close_reader(&c), "there is no end to close at");
    assert!(ring.unread(&c).0 <= 8 + 3, "no more than a ring of them is counted");
    assert!(support::peek(ring, &c, 0, 1 << 20).len() <= 8, "no more than a ring of them is copied");
}

#[test]
fn a_wrap_at_the_first_cell_leads_nowhere() {
    let memory = Memory::new(8);
    let ring = memory.ring();
    memory.word(0).store(2 << 56, Ordering::Relaxed);
    assert_eq!(ring.look(&mut Consumer::default()), Look::Corrupt);
    assert!(!ring.close_reader(&Consumer::default()));
}

/// A hint that was taken without the lock may be torn, or of a larger ring that was there before.
#[test]
fn a_position_outside_of_the_ring_is_only_a_wrong_hint() {
    let memory = Memory::new(8);
    for cell in [9, 10_000, u32::MAX] {
        assert!(!memory.ring().pending_at(Position { lap: 0, cell }));
        assert!(!memory.ring().pending(&Consumer::starting_at(Position { lap: 0, cell }, 0)));
    }
}
