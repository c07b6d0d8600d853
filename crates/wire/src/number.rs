//! Packet numbers have 64 bits, of which 32 travel.

/// The 64-bit number nearest to `expected` whose low 32 bits are `low`; of two equally near ones the lower.
///
/// Numbers go round at 2^64, as their low halves do at 2^32. The result is a guess from the wire: the caller checks that it lies in its window.
#[must_use]
#[inline]
pub const fn expand(expected: u64, low: u32) -> u64 {
    let distance = low.wrapping_sub(expected as u32) as i32;
    expected.wrapping_add_signed(distance as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_number_is_found_on_both_sides_of_every_edge() {
        let edges =
            [0, 1 << 31, (1 << 32) - 1, 1 << 32, 7 << 32, (7 << 32) + (1 << 31), u64::MAX - (1 << 31), u64::MAX];
        for edge in edges {
            for expected in [edge.wrapping_sub(1), edge, edge.wrapping_add(1)] {
                for distance in [0, 1, 1000, (1 << 31) - 1] {
                    let (ahead, behind) = (expected.wrapping_add(distance), expected.wrapping_sub(distance));
                    assert_eq!(expand(expected, ahead as u32), ahead);
                    assert_eq!(expand(expected, behind as u32), behind);
                }
            }
        }
    }

    #[test]
    fn exactly_half_way_is_taken_as_the_past() {
        assert_eq!(expand(5 << 32, 1 << 31), (5 << 32) - (1 << 31));
    }
}
