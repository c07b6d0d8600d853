//! The one-byte minifloat in which a sender says how much waits (2.4).

/// Bytes that have not been sent for the first time, as `eeeemmmm` in units of 64 bytes: never less than there are, and 1/16 more at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backlog(pub u8);

/// Below a packet's payload it does not matter how much waits; 64 bytes keep the range at 32.5 MB, far more than the largest grant.
const UNIT_BYTES: u64 = 64;
const MANTISSA_BITS: u32 = 4;
/// The bit above the mantissa, which is there unless the exponent is 0.
const HIDDEN: u64 = 1 << MANTISSA_BITS;
const MAX_UNITS: u64 = (2 * HIDDEN - 1) << 14;

impl Backlog {
    /// Nothing waits.
    pub const NONE: Backlog = Backlog(0);

    /// This much or more: said of everything that is longer too.
    pub const MAX: Backlog = Backlog(0xFF);

    /// The least value that is not less than `bytes`, or [`Backlog::MAX`].
    #[must_use]
    #[inline]
    pub const fn from_bytes(bytes: u64) -> Backlog {
        let units = bytes.div_ceil(UNIT_BYTES);
        if units < HIDDEN {
            return Backlog(units as u8);
        }
        if units >= MAX_UNITS {
            return Backlog::MAX;
        }
        // With the hidden bit at its place, exponent and mantissa are one number: rounding up may carry from one into the other, rightly.
        let shift = units.ilog2() - MANTISSA_BITS;
        let rounded = (units + (1 << shift) - 1) >> shift;
        Backlog((((shift as u64) << MANTISSA_BITS) + rounded) as u8)
    }

    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> u64 {
        let exponent = self.0 as u32 >> MANTISSA_BITS;
        let mantissa = self.0 as u64 & (HIDDEN - 1);
        let units = if exponent == 0 { mantissa } else { (HIDDEN | mantissa) << (exponent - 1) };
        units * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_its_own_and_they_ascend() {
        for value in 0..=u8::MAX {
            assert_eq!(Backlog::from_bytes(Backlog(value).to_bytes()), Backlog(value));
            if value > 0 {
                assert!(Backlog(value).to_bytes() > Backlog(value - 1).to_bytes());
            }
        }
    }

    #[test]
    fn what_is_between_two_values_is_rounded_up() {
        for value in 1..=u8::MAX {
            let (below, at) = (Backlog(value - 1).to_bytes(), Backlog(value).to_bytes());
            for bytes in [below + 1, below.midpoint(at), at - 1] {
                assert_eq!(Backlog::from_bytes(bytes).0, value, "{bytes}");
            }
            assert!(at - below <= 64 || (at - below) * 16 <= at, "steps of at most 1/16");
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(Backlog::from_bytes(0), Backlog::NONE);
        assert_eq!(Backlog::from_bytes(1).to_bytes(), 64);
        assert_eq!(Backlog::MAX.to_bytes(), (31 << 14) * 64);
        assert_eq!(Backlog::from_bytes((31 << 14) * 64 + 1), Backlog::MAX);
        assert_eq!(Backlog::from_bytes(u64::MAX), Backlog::MAX);
    }
}
