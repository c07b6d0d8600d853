//! Which counters have been accepted: the replay window (docs/protocol.md, section 9.4).
//!
//! A ring of words in which the words ahead of the highest counter are cleared only as it moves on, the way of RFC
//! 6479: moving costs nothing per counter that was skipped beyond the size of the ring. One word more than the width,
//! so that the width holds wherever the highest counter lies in its word. The ring begins short: an association that has carried
//! a few packets needs a few words.

/// Counters below the highest accepted one that are still told apart. At 10 million packets a second (1472 bytes at 100
/// Gbit/s) that is 0.8 ms of reordering, several times what parallel paths or a batch held back by a driver make; what
/// is later than that counts as lost and is sent again under a new counter. 1 KiB for each association.
pub const WIDTH: u64 = 8192;

const WORDS: usize = (WIDTH / 64) as usize + 1;

/// Words at first: the packets of a short conversation.
const FIRST_WORDS: usize = 2;

/// Counters that were accepted, as far back as [`WIDTH`].
#[derive(Clone, Debug)]
pub struct Window {
    /// The highest accepted counter, plus one; 0: none yet.
    next: u64,
    /// Bit `c % 64` of word `c / 64 % length`: counter `c` was accepted. While it is shorter than [`WORDS`] it has not gone round.
    seen: Box<[u64]>,
}

/// Why a counter is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// It was accepted before.
    Replayed,
    /// It lies so far back that nobody knows.
    TooOld,
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 0, seen: [0; FIRST_WORDS].into() }
    }
}

impl Window {
    /// The 64-bit counter with these low bits that is nearest to the one expected next.
    pub fn expand(&self, low: u32) -> u64 {
        const HALF: u64 = 1 << 31;
        let near = self.next & !u64::from(u32::MAX) | u64::from(low);
        let other = if near > self.next && near - self.next >= HALF {
            near.checked_sub(1 << 32)
        } else if self.next > near && self.next - near > HALF {
            near.checked_add(1 << 32)
        } else {
            None
        };
        other.unwrap_or(near)
    }

    /// Whether `counter` may still be accepted. Changes nothing: the packet is not verified yet.
    ///
    /// The very last counter never may: no sender uses it, and there would be nothing after it.
    pub fn check(&self, counter: u64) -> Result<(), Stale> {
        if counter >= self.next && counter < u64::MAX {
            return Ok(());
        }
        if counter == u64::MAX || self.next - counter > WIDTH {
            return Err(Stale::TooOld);
        }
        let (word, bit) = self.place(counter);
        if self.seen[word] & bit != 0 { Err(Stale::Replayed) } else { Ok(()) }
    }

    /// Remembers `counter`, of a packet that was verified after [`Window::check`] let it pass.
    pub fn commit(&mut self, counter: u64) {
        if counter >= self.next {
            // Words between the old highest and this one still hold counters of a ring's length before.
            let (from, to) = (self.next.div_ceil(64), counter / 64);
            self.make_room(to);
            if to >= from {
                let stale = (to - from + 1).min(WORDS as u64);
                (to + 1 - stale..=to).for_each(|word| self.seen[(word % WORDS as u64) as usize] = 0);
            }
            self.next = counter.saturating_add(1);
        }
        let (word, bit) = self.place(counter);
        self.seen[word] |= bit;
    }

    /// Lengthens the ring until it holds this word without going round, or is as long as it gets. What is in it stays at its place.
    fn make_room(&mut self, word: u64) {
        let length = self.seen.len();
        if length < WORDS && word >= length as u64 {
            let wanted = usize::try_from(word).map_or(WORDS, |word| (word + 1).max(2 * length).min(WORDS));
            let mut longer = vec![0; wanted].into_boxed_slice();
            longer[..length].copy_from_slice(&self.seen);
            self.seen = longer;
        }
    }

    fn place(&self, counter: u64) -> (usize, u64) {
        ((counter / 64 % self.seen.len() as u64) as usize, 1 << (counter % 64))
    }

    /// The counter after the highest accepted one.
    pub fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What a window is, without its economy.
    #[derive(Default)]
    struct Oracle {
        accepted: BTreeSet<u64>,
    }

    impl Oracle {
        fn check(&self, counter: u64) -> Result<(), Stale> {
            let next = self.accepted.last().map_or(0, |highest| highest + 1);
            if self.accepted.contains(&counter) && next - counter <= WIDTH {
                Err(Stale::Replayed)
            } else if next > counter && next - counter > WIDTH {
                Err(Stale::TooOld)
            } else {
                Ok(())
            }
        }
    }

    /// The next counter to try, relative to the highest so far.
    fn step() -> impl Strategy<Value = i64> {
        let width = WIDTH as i64;
        prop_oneof![
            8 => -3i64..4,
            4 => -200i64..70,
            2 => -width - 70..-width + 70,
            2 => -width..width,
            1 => -3 * width..3 * width,
        ]
    }

    proptest! {
        #[test]
        fn the_window_says_what_a_set_of_all_counters_says(
            start in prop_oneof![Just(0u64), 0..u64::MAX / 2],
            steps in prop::collection::vec(step(), 1..400),
        ) {
            let (mut window, mut oracle, mut highest) = (Window::default(), Oracle::default(), start);
            for step in std::iter::once(0).chain(steps) {
                let counter = highest.saturating_add_signed(step);
                prop_assert_eq!(window.check(counter), oracle.check(counter), "counter {} after {}", counter, highest);
                if window.check(counter).is_ok() {
                    window.commit(counter);
                    oracle.accepted.insert(counter);
                    highest = highest.max(counter);
                }
                prop_assert_eq!(window.next(), highest + 1);
            }
        }

        #[test]
        fn a_counter_is_expanded_from_its_low_bits(next in any::<u64>(), distance in -(1i64 << 31) + 1..(1i64 << 31)) {
            let window = Window { next, ..Window::default() };
            let Some(counter) = next.checked_add_signed(distance) else { return Ok(()) };
            prop_assert_eq!(window.expand(counter as u32), counter);
        }

        #[test]
        fn no_low_bits_are_expanded_to_anything_with_other_low_bits(next in any::<u64>(), low in any::<u32>()) {
            let window = Window { next, ..Window::default() };
            prop_assert_eq!(window.expand(low) as u32, low);
        }
    }

    #[test]
    fn a_short_conversation_needs_little_memory_and_a_long_one_no_more_than_the_width() {
        let mut window = Window::default();
        for counter in 0..3 * WIDTH {
            window.commit(counter);
            let words = (counter / 64) as usize + 1;
            assert!(window.seen.len() <= (2 * words).clamp(FIRST_WORDS, WORDS), "{counter}");
        }
        let mut jumped = Window::default();
        jumped.commit(u64::MAX - 1);
        assert_eq!(jumped.seen.len(), WORDS);
    }

    #[test]
    fn the_whole_width_may_come_backwards_and_each_once() {
        for base in [0, 63, 64, 1_000_003] {
            let mut window = Window::default();
            let highest = base + 2 * WIDTH;
            for counter in (highest - WIDTH + 1..=highest).rev() {
                assert_eq!(window.check(counter), Ok(()));
                window.commit(counter);
                assert_eq!(window.check(counter), Err(Stale::Replayed));
            }
            assert_eq!(window.check(highest - WIDTH), Err(Stale::TooOld));
        }
    }
}
