//! Max-min fairness: everybody may have an equal part, and of what others do not want of theirs an equal part again.

/// What is left of `whole` for somebody who takes all it can get, beside others who want so much each. Sorts these.
pub fn rest(whole: u64, demands: &mut [u64]) -> u64 {
    // Who wants less than an equal part of what is left gets that; who takes all it can get is served last.
    demands.sort_unstable();
    let (mut left, mut sharers) = (whole, demands.len() as u64 + 1);
    for &demand in demands.iter() {
        left -= demand.min(left.div_ceil(sharers));
        sharers -= 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_it_can_get_has_an_equal_part_and_what_the_others_do_not_want() {
        assert_eq!(rest(900, &mut []), 900);
        assert_eq!(rest(900, &mut [u64::MAX]), 450);
        assert_eq!(rest(900, &mut [u64::MAX, 100]), 400);
        assert_eq!(rest(900, &mut [0, 10, 20]), 870);
        assert_eq!(rest(0, &mut [1, 2]), 0);
    }
}
