//! Max-min fairness: everybody may have an equal part, and of what others do not want of theirs an equal part again; but nobody less than a packet. Where there is not a packet for each at
//! once they take turns.

/// What somebody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub bytes: u64,
    /// Less is of no use to it.
    pub packet_bytes: u64,
}

/// What of `whole` is for somebody who takes all it can get, in packets of so many bytes, beside others. For where all have their part at once ([`rounds`] is 1). Sorts these.
pub fn part(whole: u64, packet: u64, others: &mut [Wanted]) -> u64 {
    let (mut left, mut others) = (whole, others);
    loop {
        let part = rest(left, others);
        // Who needs more than an equal part for a packet has that, and the others divide what is left.
        let least = |other: &Wanted| other.bytes.min(other.packet_bytes);
        let Some(place) = others.iter().position(|other| least(other) > part) else { return part.max(packet) };
        left = left.saturating_sub(least(&others[place]));
        let last = others.len() - 1;
        others.swap(place, last);
        others = &mut others[..last];
    }
}

/// How many turns it takes until everybody has had one: somebody with packets of so many bytes, and the others.
pub fn rounds(whole: u64, packet: u64, others: &[Wanted]) -> u64 {
    let at_once = others.iter().fold(packet, |all, other| all.saturating_add(other.packet_bytes));
    match whole / longest(whole, packet, others).max(1) {
        _ if at_once <= whole => 1,
        packets => (others.len() as u64 + 1).div_ceil(packets.max(1)),
    }
}

/// The longest of their packets: what who has the turn may have. It is no longer than the whole.
pub fn longest(whole: u64, packet: u64, others: &[Wanted]) -> u64 {
    others.iter().fold(packet, |longest, other| longest.max(other.packet_bytes)).min(whole)
}

/// What is left of `whole` for somebody who takes all it can get, beside others, none of which needs more than its part.
fn rest(whole: u64, others: &mut [Wanted]) -> u64 {
    // Who wants less than an equal part of what is left gets that; who takes all it can get is served last.
    others.sort_unstable_by_key(|other| other.bytes);
    let (mut left, mut sharers) = (whole, others.len() as u64 + 1);
    for other in others.iter() {
        left -= other.bytes.min(left.div_ceil(sharers));
        sharers -= 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<const N: usize>(of: [(u64, u64); N]) -> [Wanted; N] {
        of.map(|(bytes, packet_bytes)| Wanted { bytes, packet_bytes })
    }

    #[test]
    fn who_takes_all_it_can_get_has_an_equal_part_and_what_the_others_do_not_want() {
        assert_eq!(part(900, 1, &mut []), 900);
        assert_eq!(part(900, 1, &mut wanted([(u64::MAX, 1)])), 450);
        assert_eq!(part(900, 1, &mut wanted([(u64::MAX, 1), (100, 1)])), 400);
        assert_eq!(part(900, 1, &mut wanted([(0, 1), (10, 1), (20, 1)])), 870);
        assert_eq!(part(0, 0, &mut wanted([(1, 1), (2, 2)])), 0);
    }

    #[test]
    fn nobody_has_less_than_a_packet_of_its_own_and_all_have_what_there_is_together() {
        assert_eq!(part(900, 600, &mut wanted([(1000, 15)])), 600);
        assert_eq!(part(900, 15, &mut wanted([(1000, 600)])), 300);
        assert_eq!(part(900, 15, &mut wanted([(1000, 600), (1000, 15)])), 150);
        assert_eq!(part(900, 15, &mut wanted([(100, 600), (1000, 15)])), 400, "that one wants less");
        // One that fits in alone, and no longer beside one that is longer.
        assert_eq!(part(900, 250, &mut wanted([(1000, 500), (1000, 15)])), 250);
        assert_eq!(part(900, 15, &mut wanted([(1000, 500), (1000, 250)])), 150);
    }

    #[test]
    fn where_there_is_no_packet_for_each_they_take_turns_of_the_longest() {
        let all = |packets: [u64; 2]| wanted(packets.map(|packet| (1000, packet)));
        let turns = |packet, others: &[Wanted]| (rounds(900, packet, others), longest(900, packet, others));
        assert_eq!(turns(15, &all([600, 285])), (1, 600));
        assert_eq!(turns(15, &all([600, 286])), (3, 600));
        assert_eq!(turns(286, &all([600, 15])), (3, 600));
        assert_eq!(turns(400, &all([400, 400])), (2, 400));
        assert_eq!(turns(15, &all([u64::MAX, 15])), (3, 900));
        assert_eq!(turns(1000, &[]), (1, 900));
    }
}
