//! Random numbers from a seed: the same on every machine and with every version of a library, so that a seed replays a run.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, equidistributed; good enough for simulated noise, orders and resampling, useless for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// A generator of its own for one of several users of a seed, such as a rank or a step.
    pub fn for_user(seed: u64, user: u64) -> Random {
        let mut random = Random::new(seed ^ user.wrapping_add(1).wrapping_mul(0xD134_2543_DE82_EF95));
        random.next_u64();
        random
    }

    pub fn next_u64(&mut self) -> u64 {
        // 2^64 divided by the golden ratio, odd.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..count; `count` is not 0. The bias of the multiplication is below count / 2^64.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next_u64()) * count as u128) >> 64) as usize
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut random = Random::new(1);
        assert_eq!([random.next_u64(), random.next_u64()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut random = Random::new(7);
        let n = 40_000;
        let (mut unit, mut normal, mut square, mut exponential) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..n {
            unit += random.unit();
            let z = random.normal();
            normal += z;
            square += z * z;
            exponential += random.exponential();
        }
        let n = f64::from(n);
        assert!((unit / n - 0.5).abs() < 0.01 && (normal / n).abs() < 0.03);
        assert!((square / n - 1.0).abs() < 0.04 && (exponential / n - 1.0).abs() < 0.03);
    }

    #[test]
    fn a_shuffle_keeps_what_is_there() {
        let mut items: Vec<usize> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert!(items.iter().enumerate().any(|(i, item)| i != *item));
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
