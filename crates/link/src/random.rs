//! A small seeded generator for faults: the same seed gives the same faults on every machine and with every version of every library.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, equidistributed, good enough to choose packets, useless for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

/// The increment of SplitMix64: 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// An independent generator for one of many parts that share a seed.
    pub fn of_part(seed: u64, part: u64) -> Random {
        // Two draws between the seed and the state: parts of one sequence would repeat each other, shifted.
        let seed = Random::new(seed).next();
        Random::new(Random::new(seed ^ part).next())
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if there is none. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn parts_differ_and_bounds_hold() {
        assert_ne!(Random::of_part(7, 0).next(), Random::of_part(7, 1).next());
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| random.below(10) < 10));
        assert_eq!(random.below(0), 0);
    }
}
