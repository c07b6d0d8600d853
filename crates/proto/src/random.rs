//! Unpredictable numbers out of the caller's seed: nonces, first numbers, secrets, jitter. The same seed gives the same run.

use blake2::Blake2sMac;
use blake2::digest::consts::U8;
use blake2::digest::{KeyInit, Mac};

/// Keyed BLAKE2s in counter mode: a third of a microsecond each, for things that happen once an attempt or a timeout.
pub struct Random {
    key: [u8; 32],
    count: u64,
}

impl Random {
    pub fn new(seed: &[u8; 32]) -> Random {
        Random { key: *seed, count: 0 }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.count += 1;
        let mut mac = <Blake2sMac<U8> as KeyInit>::new(&self.key.into());
        mac.update(&self.count.to_be_bytes());
        u64::from_be_bytes(mac.finalize().into_bytes().into())
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_be_bytes()[..chunk.len()]);
        }
        out
    }
}
