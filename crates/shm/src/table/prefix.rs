//! Hashes of the first bytes of a stream, by which the rendezvous tells connections with the same addresses apart.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Checkpoints of the prefix hash: after 1, 2, 4 ... 256 bytes.
pub const PREFIX_POINTS: usize = 9;

/// A running hash over the first bytes of one direction, kept at powers of two. It goes by words of eight bytes: most
/// connections are short, and pay for it with every byte.
#[repr(C)]
pub struct Prefix {
    /// Hash of the whole words so far.
    state: AtomicU64,
    /// The bytes behind them, the first one lowest.
    partial: AtomicU64,
    /// Bytes hashed so far, at most 256; twice that and more: hashing was given up (two callers at once).
    len: AtomicU32,
    points: [AtomicU32; PREFIX_POINTS],
}

const WORD_BYTES: usize = size_of::<u64>();
const PREFIX_BYTES: u32 = 256;

fn mix(state: u64, word: u64) -> u64 {
    (state.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Prefix {
    pub(super) fn reset(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.partial.store(0, Ordering::Relaxed);
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
        let (mut state, mut partial) = (self.state.load(Ordering::Relaxed), self.partial.load(Ordering::Relaxed));
        let mut rest = &bytes[..bytes.len().min(PREFIX_BYTES.saturating_sub(len) as usize)];
        if len == 0
            && let Some((word, others)) = rest.split_first_chunk()
        {
            let word = u64::from_le_bytes(*word);
            for n in [1, 2, 4] {
                self.reach(n, 0, word & (u64::MAX >> (64 - 8 * n)));
            }
            state = mix(0, word);
            len = WORD_BYTES as u32;
            rest = others;
            self.reach(len, state, 0);
        }
        while let Some((&byte, others)) = rest.split_first() {
            let place = len as usize % WORD_BYTES;
            // Whole words in one go, up to the next checkpoint.
            let most = if place == 0 && len != 0 { (len + 1).next_power_of_two() - len } else { 0 };
            let (words, _) = rest[..rest.len().min(most as usize)].as_chunks();
            if words.is_empty() {
                partial |= (byte as u64) << (8 * place);
                len += 1;
                rest = others;
                if place == WORD_BYTES - 1 {
                    state = mix(state, partial);
                    partial = 0;
                }
            } else {
                state = words.iter().fold(state, |state, word| mix(state, u64::from_le_bytes(*word)));
                let n = words.len() * WORD_BYTES;
                len += n as u32;
                rest = &rest[n..];
            }
            if len.is_power_of_two() {
                self.reach(len, state, partial);
            }
        }
        self.state.store(state, Ordering::Relaxed);
        self.partial.store(partial, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }

    /// Notes the checkpoint after `len` bytes.
    #[inline(always)]
    fn reach(&self, len: u32, state: u64, partial: u64) {
        let hash = if partial == 0 { state } else { mix(state, partial) };
        self.points[len.trailing_zeros() as usize].store((hash >> 32) as u32, Ordering::Relaxed);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn hashed(pieces: &[&[u8]]) -> ([u32; PREFIX_POINTS], u64) {
        let prefix = Prefix {
            state: AtomicU64::new(1),
            partial: AtomicU64::new(1),
            len: AtomicU32::new(1),
            points: core::array::from_fn(|_| AtomicU32::new(0)),
        };
        prefix.reset();
        pieces.iter().for_each(|piece| prefix.add(piece));
        prefix.snapshot()
    }

    #[test]
    fn how_the_bytes_were_divided_does_not_matter() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * i * 7 + i / 3) as u8).collect();
        let whole = hashed(&[&bytes]);
        assert_eq!(whole.1, 256);
        for step in 1..70 {
            assert_eq!(hashed(&bytes.chunks(step).collect::<Vec<_>>()), whole, "in pieces of {step}");
        }
    }

    #[test]
    fn every_byte_counts_from_the_next_checkpoint_on() {
        let bytes = [9u8; 256];
        let whole = hashed(&[&bytes]).0;
        for at in 0..256usize {
            let mut other = bytes;
            other[at] ^= 1;
            let changed = hashed(&[&other]).0;
            for (point, (a, b)) in whole.iter().zip(&changed).enumerate() {
                assert_eq!(a == b, (1 << point) <= at, "byte {at}, checkpoint {point}");
            }
        }
    }
}
