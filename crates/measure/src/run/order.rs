//! In which order the trials of a round are made.

/// A well-mixed number of a seed (the finalizer of SplitMix64).
pub fn mixed(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A random order, the same for the same seed: what changes slowly in the machine falls on all alike.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    for (step, last) in (1..items.len()).rev().enumerate() {
        let other = mixed(seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(step as u64)) % (last as u64 + 1);
        items.swap(last, other as usize);
    }
}

/// A B C in even rounds, C B A in odd ones: nobody always comes after the same other.
pub fn to_and_fro(count: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_one_another() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn every_item_comes_first_about_equally_often() {
        let mut first = [0u32; 5];
        for seed in 0..5000 {
            let mut items = [0, 1, 2, 3, 4];
            shuffle(&mut items, seed);
            first[items[0]] += 1;
        }
        // Four standard deviations (28 each) around 1000.
        assert!(first.iter().all(|count| (887..=1113).contains(count)), "{first:?}");
    }
}
