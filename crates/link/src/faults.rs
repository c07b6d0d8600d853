//! What can go wrong with a packet on its way, as numbers: shared by the simulated network and the `fault` wrapper.

use crate::random::Random;

/// The denominator of all probabilities here: whole numbers replay the same on every machine.
pub const PER_MILLION: u32 = 1_000_000;

/// How often which fault befalls a packet. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that vanish, of a million.
    pub loss_ppm: u32,
    /// Packets that arrive twice, of a million.
    pub duplicate_ppm: u32,
    /// Packets that are held back, and so overtaken, of a million.
    pub reorder_ppm: u32,
    /// The longest time that a packet is held back, in nanoseconds; each draws its own from 1 on.
    pub reorder_ns: u64,
    /// Packets of which 1 to [`MOST_FLIPS`] bits are flipped, of a million.
    pub corrupt_ppm: u32,
    /// Whether corrupted packets arrive, as over a medium without a checksum; otherwise they are counted as bad arrivals and dropped.
    pub corrupt_delivered: bool,
}

/// Most bits that corruption flips: more than one, so that a parity bit would not do as a checksum.
pub const MOST_FLIPS: u64 = 4;

impl Faults {
    /// Loss alone.
    pub fn loss(ppm: u32) -> Faults {
        Faults { loss_ppm: ppm, ..Faults::default() }
    }

    /// Draws what happens to the next packet. Without faults nothing is drawn, so that turning them on for one link does not change others.
    pub(crate) fn draw(&self, random: &mut Random) -> Fate {
        let mut hit = |ppm: u32| ppm > 0 && random.below(u64::from(PER_MILLION)) < u64::from(ppm);
        let (lost, duplicated) = (hit(self.loss_ppm), hit(self.duplicate_ppm));
        let (held, corrupted) = (hit(self.reorder_ppm), hit(self.corrupt_ppm));
        let held_ns = if held { 1 + random.below(self.reorder_ns.max(1)) } else { 0 };
        Fate { lost, duplicated, corrupted, held_ns }
    }
}

/// What faults did to packets: of one direction of a cable, or of a wrapped link. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounters {
    pub lost: u64,
    pub duplicated: u64,
    /// Held back for a while.
    pub held: u64,
    pub corrupted: u64,
}

impl FaultCounters {
    /// Counts one packet's fate. A lost packet meets nothing else.
    pub(crate) fn count(&mut self, fate: Fate) {
        self.lost += u64::from(fate.lost);
        if !fate.lost {
            self.duplicated += u64::from(fate.duplicated);
            self.held += u64::from(fate.held_ns > 0);
            self.corrupted += u64::from(fate.corrupted);
        }
    }
}

/// What happens to one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub lost: bool,
    pub duplicated: bool,
    pub corrupted: bool,
    /// 0: it keeps its place.
    pub held_ns: u64,
}

/// Flips 1 to [`MOST_FLIPS`] different bits.
pub(crate) fn corrupt(bytes: &mut [u8], random: &mut Random) {
    let bits = bytes.len() as u64 * 8;
    let flips = (1 + random.below(MOST_FLIPS)).min(bits);
    let first = random.below(bits);
    // An odd step over a number of bits that is a multiple of 8 never comes back within a few steps: no flip undoes another.
    let step = 1 + 2 * random.below(bits / 2);
    for n in 0..flips {
        let bit = (first + n * step) % bits.max(1);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_always_changes_the_packet() {
        let mut random = Random::new(1);
        for len in [1, 2, 3, 24, 1500] {
            for _ in 0..200 {
                let mut bytes = vec![0; len];
                corrupt(&mut bytes, &mut random);
                let flipped: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
                assert!((1..=MOST_FLIPS as u32).contains(&flipped), "{flipped} bits of {len} bytes");
            }
        }
        corrupt(&mut [], &mut random);
    }

    #[test]
    fn faults_come_as_often_as_asked() {
        let faults = Faults { loss_ppm: 100_000, duplicate_ppm: PER_MILLION, ..Faults::default() };
        let mut random = Random::new(2);
        let fates: Vec<Fate> = (0..10_000).map(|_| faults.draw(&mut random)).collect();
        let lost = fates.iter().filter(|fate| fate.lost).count();
        assert!((900..1100).contains(&lost), "{lost} of 10000 at 10 %");
        assert!(fates.iter().all(|fate| fate.duplicated && !fate.corrupted && fate.held_ns == 0));
    }
}
