//! Hashes of the first bytes of a stream, by which the rendezvous tells connections with the same addresses apart.

use core::sync::atomic::{AtomicU32, Ordering};

/// Checkpoints of the prefix hash: after 1, 2, 4 ... 256 bytes.
pub const PREFIX_POINTS: usize = 9;

/// A running hash over the first bytes of one direction, kept at powers of two.
#[repr(C)]
pub struct Prefix {
    /// FNV-1a of the bytes so far.
    state: AtomicU32,
    /// Bytes hashed so far, at most 256; `u32::MAX / 2` and more: hashing was given up (two callers at once).
    len: AtomicU32,
    points: [AtomicU32; PREFIX_POINTS],
}

const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
const PREFIX_BYTES: u32 = 256;

impl Prefix {
    pub(super) fn reset(&self) {
        self.state.store(FNV_BASIS, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
    }

    /// True while more bytes are wanted.
    #[inline(always)]
    pub fn wants(&self) -> bool {
        self.len.load(Ordering::Relaxed) < PREFIX_BYTES
    }

    /// Adds bytes, in stream order.
    pub fn add(&self, bytes: &[u8]) {
        let mut len = self.len.load(Ordering::Relaxed);
        let mut state = self.state.load(Ordering::Relaxed);
        for &b in bytes {
            if len >= PREFIX_BYTES {
                break;
            }
            state = (state ^ b as u32).wrapping_mul(FNV_PRIME);
            len += 1;
            if len.is_power_of_two() {
                self.points[len.trailing_zeros() as usize].store(state, Ordering::Relaxed);
            }
        }
        self.state.store(state, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }

    /// Stops hashing: what was hashed so far stays valid.
    pub fn stop(&self) {
        let len = self.len.load(Ordering::Relaxed);
        self.len.store(len | PREFIX_BYTES << 1, Ordering::Relaxed);
    }

    /// The checkpoints and how many bytes they cover.
    pub fn snapshot(&self) -> ([u32; PREFIX_POINTS], u64) {
        let len = self.len.load(Ordering::Relaxed) & ((PREFIX_BYTES << 1) - 1);
        (core::array::from_fn(|i| self.points[i].load(Ordering::Relaxed)), len as u64)
    }

    /// Takes over what another keeper of the same stream knows (adoption).
    pub fn restore(&self, points: &[u32; PREFIX_POINTS], len: u64) {
        for (mine, theirs) in self.points.iter().zip(points) {
            mine.store(*theirs, Ordering::Relaxed);
        }
        self.len.store(len.min(PREFIX_BYTES as u64) as u32 | PREFIX_BYTES << 1, Ordering::Relaxed);
    }
}
