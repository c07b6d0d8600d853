//! A secret of this process and of its children by fork: what comes of it can neither be told beforehand nor be aimed at by who
//! writes the other half of shared memory.

use core::hash::Hasher;
use core::sync::atomic::{AtomicU64, Ordering};
use ropeway_shm::sys;
use std::hash::DefaultHasher;

/// Drawn when they are needed for the first time; 0 until then.
static WORDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

#[inline]
fn words() -> [u64; 2] {
    WORDS.each_ref().map(|word| match word.load(Ordering::Relaxed) {
        0 => draw(word),
        drawn => drawn,
    })
}

#[cold]
fn draw(word: &AtomicU64) -> u64 {
    let drawn = sys::random_u64() | 1;
    word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(drawn)
}

/// Draws the secret, so that children that are forked from now on have the same.
pub fn prepare() {
    let _ = words();
}

/// Stands for two words that others may have chosen. For what stays in this process: who sees digests can compute others.
#[inline]
pub fn digest(a: u64, b: u64) -> u64 {
    let [x, y] = words();
    let product = u128::from(a ^ x) * u128::from(b ^ y);
    (product ^ product >> 64) as u64
}

/// The number `n` of 2^32 in an order that is `of`'s own. Each number comes once, and who sees some of them does not know the
/// others: a Feistel network, whose rounds are of SipHash.
pub fn shuffled(of: u64, n: u32) -> u32 {
    const ROUNDS: u32 = 4;
    let [x, y] = words();
    let (mut left, mut right) = (n >> 16, n & 0xffff);
    for round in 0..ROUNDS {
        let mut hash = DefaultHasher::new();
        for word in [x, y, of, u64::from(round << 16 | right)] {
            hash.write_u64(word);
        }
        (left, right) = (right, left ^ hash.finish() as u32 & 0xffff);
    }
    left << 16 | right
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn shuffled_numbers_come_once_and_in_an_order_of_their_own() {
        const MANY: u32 = 100_000;
        let numbers: Vec<u32> = (0..MANY).map(|n| shuffled(1, n)).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), MANY as usize);
        let steps: HashSet<u32> = numbers.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
        assert!(steps.len() > MANY as usize * 99 / 100, "{} different steps", steps.len());
        let same = (0..MANY).filter(|n| shuffled(2, *n) == numbers[*n as usize]).count();
        assert!(same < 10, "{same} numbers are at the same place in another order");
    }
}
