//! One end of a ring whose other end, and all of whose memory, is the fuzzer's.
//!
//! Input: one byte for the size of the ring, then commands of one byte with their arguments behind it. Memory starts as
//! zeroes; commands that poke stand for the peer and may come between any two others. The cells end at a page that
//! faults, so leaving them is a crash with every sanitizer and without.

#[path = "../../crates/shm/tests/support/mod.rs"]
pub mod support;

use ropeway_shm::ring::{Consumer, End, Look, Position, Producer, Ring, next_epoch};
use std::sync::atomic::Ordering;
use support::{Memory, Stop};

/// Cells of the largest ring that is tried: small rings have all the corners.
const MOST_CELLS: u32 = 40;

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// A number that may be anything, in as few bytes as its size needs; 0 at the end of the input.
    fn number(&mut self) -> u64 {
        let bytes = usize::from(self.byte().unwrap_or(0) % 9);
        (0..bytes).fold(0, |n, _| n << 8 | u64::from(self.byte().unwrap_or(0)))
    }

    /// A header word, most often one that is half right.
    fn word(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            kind @ 0..=7 => u64::from(kind) << 56 | (self.number() & 0xff_ffff) << 32 | self.number() & 0xffff_ffff,
            8 => 0,
            _ => self.number(),
        }
    }
}

/// What the peer can do at any time: write any word.
fn poke(memory: &Memory, n: u32, input: &mut Input) {
    if input.byte().unwrap_or(0).is_multiple_of(4) {
        let words = memory.header_words();
        let i = usize::from(input.byte().unwrap_or(0)) % words.len();
        words[i].store(input.number() as u32, Ordering::Relaxed);
    } else {
        let cell = u32::from(input.byte().unwrap_or(0)) % (n + 1);
        memory.word(cell).store(input.word(), Ordering::Relaxed);
    }
}

fn ring_of(input: &mut Input) -> Option<(Memory, Ring, u32)> {
    let n = 2 + u32::from(input.byte()?) % (MOST_CELLS - 1);
    let memory = Memory::new(n);
    let ring = memory.ring();
    Some((memory, ring, n))
}

/// A reader with a hostile writer.
pub fn ring_reader(data: &[u8]) {
    let mut input = Input(data);
    let Some((memory, ring, n)) = ring_of(&mut input) else { return };
    let (mut c, mut out) = (Consumer::default(), vec![0u8; 4096]);
    // No honest chain of records holds more, whatever its words say.
    let most_bytes = (n as usize + 3) * u32::MAX as usize;
    while let Some(command) = input.byte() {
        match command % 13 {
            0..=3 => poke(&memory, n, &mut input),
            4 => {
                let most = input.number() as usize % 4096;
                let expected = support::peek(ring, &c, 0, most);
                let (got, stop) = support::read(ring, &mut c, most);
                // A peek is what the next read gives, as far as one walk around the ring goes.
                assert_eq!(got.get(..expected.len()), Some(&expected[..]), "peek and read differ");
                assert!(got.len() <= most && (got.len() == most) == (stop == Stop::Limit));
            }
            5 => {
                let (skip, room) = (input.number() as usize, input.number() as usize % out.len());
                // SAFETY: `out` is longer than `room`.
                let got = unsafe { ring.peek(&c, skip, out.as_mut_ptr(), room) };
                assert!(got <= room);
            }
            6 => {
                let (bytes, at) = ring.unread(&c);
                assert!(at.cell <= n && bytes <= most_bytes);
                ring.pending_at(at);
            }
            7 => {
                ring.close_reader(&c);
            }
            8 => {
                let epoch = next_epoch(c.epoch);
                ring.offer(&mut c, epoch);
            }
            9 => {
                if matches!(ring.look(&mut c), Look::Switch { .. }) {
                    ring.consume_switch(&mut c);
                }
            }
            10 => {
                ring.recover_consumer(&mut c);
                ring.flush(&mut c);
            }
            11 => {
                ring.recall(&mut c);
                ring.recalled();
                ring.left();
                ring.wr_shut();
            }
            _ => {
                // What a waiter does, and a hint that was read without the lock.
                if let Some(slot) = ring.claim_bell(End::Reader, input.number() | 1, 1) {
                    ring.arm(End::Reader, slot);
                    ring.pending(&Consumer::starting_at(Position { lap: 0, cell: input.number() as u32 }, c.epoch));
                    ring.release_bell(End::Reader, slot);
                }
                ring.take_armed(End::Writer);
                ring.take_all(End::Writer);
            }
        }
        assert!(c.at.cell <= n, "the cursor left the ring");
    }
}

/// A writer with a hostile reader.
pub fn ring_writer(data: &[u8]) {
    let mut input = Input(data);
    let Some((memory, ring, n)) = ring_of(&mut input) else { return };
    let (mut p, bytes) = (Producer::default(), vec![0x5a; 4096]);
    while let Some(command) = input.byte() {
        match command % 12 {
            0..=3 => poke(&memory, n, &mut input),
            4 => {
                let (least, most) = (input.number() as usize, input.number() as usize % 4096);
                if let Ok(written) = support::write(ring, &mut p, least, &bytes[..most]) {
                    assert!(written <= most);
                }
            }
            5 => {
                // Room that is asked for and used another way than it was asked for.
                let (least, most) = (input.number() as usize, input.number() as usize);
                if let Ok((to, room)) = ring.begin(&mut p, least, most) {
                    assert!(room <= n as usize * 64 - 8);
                    // SAFETY: `begin` gave `room` writable bytes.
                    unsafe { to.write_bytes(0xa5, room) };
                }
                let _ = ring.commit(&mut p, input.number() as usize);
            }
            6 => {
                ring.writable(&mut p);
                ring.drained(&mut p);
                assert!(ring.unread_cells(&mut p) <= n + 1);
                ring.progress();
            }
            7 => {
                let epoch = next_epoch(p.epoch);
                let _ = ring.switch(&mut p, epoch, input.number(), || {});
            }
            8 => {
                ring.recover_producer(&mut p, || {});
                ring.recover_epoch(&mut p);
            }
            9 => {
                ring.close_writer(&p);
                ring.leave(&p);
            }
            10 => copy_rest(ring, &mut p, n),
            _ => {
                ring.offered();
                ring.recall_asked();
                if ring.must_ring(End::Reader) {
                    ring.take_armed(End::Reader);
                }
            }
        }
        assert!(p.head.cell <= n, "the cursor left the ring");
    }
}

/// What a writer does for a reader that recalls.
fn copy_rest(ring: Ring, p: &mut Producer, n: u32) {
    let Some((at, consumed)) = ring.reader_stopped_at(p) else { return };
    assert!(at.cell <= n);
    let walk = Consumer::starting_at(at, p.epoch);
    support::peek(ring, &walk, consumed, 4096);
}
