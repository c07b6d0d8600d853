//! Which numbers have arrived, which are missing, and when to ask for them (docs/protocol.md 5).
//!
//! One window for each association and direction. What lies in order leaves no trace but `base`; slots exist only from the first missing number on.
//! What arrived but cannot be delivered yet, because the packet before it in the same channel is missing, waits in its slot.

use std::collections::VecDeque;

use crate::pool::Buffer;
use crate::time::Time;

/// Numbers that may lie between the first missing one and the newest: bounds memory, and is far below what 32 bits can tell apart.
pub const WINDOW_PACKETS: u64 = 16_384;

/// Slots of all associations together: 32 MiB. Honest senders have as many as they were granted and lost something of, which is a few hundred each.
pub const MOST_SLOTS: usize = 1 << 20;
/// But so many are anybody's: who lost a packet goes on even if others have taken all.
pub const LEAST_SLOTS: usize = 64;

/// A window with more slots than this is looked through for what is due now and then only, and not with each packet that shows a gap: an honest end has that many where a long line loses,
/// and a few microseconds are little there.
pub const WIDE_SLOTS: usize = 1024;

/// What a look for missing numbers that are due came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// When the next one will be due, once what was taken has been asked for.
    pub again_at: Option<Time>,
    /// So many slots were looked at.
    pub slots: usize,
}

/// A numbered packet that waits for the one before it in its channel.
#[derive(Debug)]
pub struct Held {
    pub kind: ropeway_wire::Type,
    pub flags: ropeway_wire::Flags,
    pub channel: u16,
    pub payload: Buffer,
}

#[derive(Debug)]
enum State {
    /// Not here. `asked` is when it was last asked for.
    Missing { since: Time, asked: Option<Time> },
    /// Arrived and delivered, or not to be delivered.
    Done,
    /// Arrived, waits for an earlier one of its channel.
    Held(Box<Held>),
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// Distance to the channel's next packet if that one waits for this; 0: none does.
    follower: u16,
}

/// What an arriving number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not seen before. `late_by_ns`: it had been thought missing for so long; `requested`: and was asked for.
    New { late_by_ns: Option<u64>, requested: bool },
    /// Seen before.
    Duplicate,
    /// Too far ahead to be true.
    Beyond,
}

/// Numbers received in one direction of an association.
#[derive(Debug)]
pub struct Received {
    /// The lowest number not received: what `ack` says.
    base: u64,
    /// One more than the highest number known to have been sent.
    next: u64,
    /// Slot i is number `base + i`; numbers beyond the last slot and below `next` do not exist.
    slots: VecDeque<Slot>,
    missing: u32,
    /// Of the missing, how many have been asked for: no more than there are in a window.
    asked: u16,
    /// Packets that wait and count as of messages that have begun.
    held_begun: u16,
    /// Memory of what waits.
    held_bytes: usize,
}

/// Slots kept when nothing is missing: bursts beyond that give their memory back.
const QUIET_SLOTS: usize = 16;

impl Received {
    pub fn starting_at(first: u64) -> Received {
        Received {
            base: first,
            next: first,
            slots: VecDeque::new(),
            missing: 0,
            asked: 0,
            held_begun: 0,
            held_bytes: 0,
        }
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Memory of the packets that wait for an earlier one.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// How many of these [count](crate::pool::Pool::count_as_begun) as of messages that have begun.
    pub fn held_begun(&self) -> usize {
        self.held_begun.into()
    }

    /// Missing numbers that were asked for: they fly again, or should.
    pub fn asked(&self) -> u32 {
        self.asked.into()
    }

    /// Everything below `next` was sent: what of it is not here is missing from now on. Says whether that was news.
    pub fn learn_next(&mut self, next: u64, now: Time) -> bool {
        let ahead = next.wrapping_sub(self.next);
        if ahead == 0 || ahead > WINDOW_PACKETS || next.wrapping_sub(self.base) > WINDOW_PACKETS {
            return false;
        }
        for _ in 0..ahead {
            self.slots.push_back(Slot { state: State::Missing { since: now, asked: None }, follower: 0 });
        }
        self.missing += ahead as u32;
        self.next = next;
        true
    }

    /// Slots for which there is memory.
    pub fn kept_slots(&self) -> usize {
        self.slots.capacity()
    }

    /// Slots that there must be once it is known that everything below `next` was sent.
    pub fn slots_below(&self, next: u64) -> usize {
        let is_news = next.wrapping_sub(self.next) as i64 > 0;
        if is_news { next.wrapping_sub(self.base) as usize } else { 0 }
    }

    /// What may be learned of what was sent below `next` without more memory than each has in any case: the rest with a later word.
    pub fn least_known(&self, next: u64) -> u64 {
        let most = LEAST_SLOTS.max(self.kept_slots()) as u64;
        self.base.wrapping_add(next.wrapping_sub(self.base).min(most))
    }

    /// Whether `number` has arrived.
    pub fn has(&self, number: u64) -> bool {
        if number.wrapping_sub(self.next) as i64 >= 0 {
            return false;
        }
        // What lies below the base has no slot.
        let slot = self.slots.get(number.wrapping_sub(self.base) as usize);
        slot.is_none_or(|slot| !matches!(slot.state, State::Missing { .. }))
    }

    /// Everything below `number` has arrived, and nothing else.
    pub fn is_next(&self, number: u64) -> bool {
        number == self.next && self.slots.is_empty()
    }

    /// Notes the arrival of `number` if it is next.
    pub fn arrive_next(&mut self, number: u64) -> bool {
        let is_next = self.is_next(number);
        if is_next {
            self.base = number.wrapping_add(1);
            self.next = self.base;
        }
        is_next
    }

    /// Notes the arrival of `number`.
    pub fn arrive(&mut self, number: u64, now: Time) -> Arrival {
        let offset = number.wrapping_sub(self.base);
        if offset >= WINDOW_PACKETS {
            return if offset > u64::MAX / 2 { Arrival::Duplicate } else { Arrival::Beyond };
        }
        if self.arrive_next(number) {
            return Arrival::New { late_by_ns: None, requested: false };
        }
        let was_known = self.next.wrapping_sub(number) as i64 > 0;
        self.learn_next(number.wrapping_add(1), now);
        let slot = &mut self.slots[offset as usize];
        let State::Missing { since, asked } = slot.state else { return Arrival::Duplicate };
        slot.state = State::Done;
        self.missing -= 1;
        self.asked -= u16::from(asked.is_some());
        Arrival::New { late_by_ns: was_known.then(|| now.since(since)), requested: asked.is_some() }
    }

    /// These numbers, of which the caller knows that there are slots, bring nothing. What of them waits for an earlier one is given to `orphan`.
    pub fn void(&mut self, first: u64, count: u16, mut orphan: impl FnMut(Held)) {
        let begin = first.wrapping_sub(self.base) as usize;
        for at in begin..begin + usize::from(count) {
            match std::mem::replace(&mut self.slots[at].state, State::Done) {
                State::Missing { asked, .. } => {
                    self.missing -= 1;
                    self.asked -= u16::from(asked.is_some());
                }
                State::Held(held) => {
                    self.release(&held);
                    orphan(*held);
                }
                State::Done => {}
            }
        }
    }

    /// Lets `held`, which arrived as `number`, wait for `previous`. `Err` gives it back: nothing can wait for that.
    pub fn hold(&mut self, number: u64, previous: u64, held: Held) -> Result<(), Held> {
        let (at, before) = (number.wrapping_sub(self.base), previous.wrapping_sub(self.base));
        let distance = number.wrapping_sub(previous);
        // A previous number below the base was delivered when it came, one that is here will not come again, and a slot has one follower: anything
        // else is a lie.
        let can_come = |slot: &Slot| slot.follower == 0 && !matches!(slot.state, State::Done);
        if before >= at || !self.slots.get(before as usize).is_some_and(can_come) {
            return Err(held);
        }
        let (Ok(distance), Some(slot)) = (u16::try_from(distance), self.slots.get_mut(at as usize)) else {
            return Err(held);
        };
        self.held_bytes += held.payload.memory_bytes();
        self.held_begun += u16::from(held.payload.is_begun());
        slot.state = State::Held(Box::new(held));
        self.slots[before as usize].follower = distance;
        Ok(())
    }

    /// It waits no more.
    fn release(&mut self, held: &Held) {
        self.held_bytes -= held.payload.memory_bytes();
        self.held_begun -= u16::from(held.payload.is_begun());
    }

    /// The packet that waited for `number`, which has just been delivered, and its own number.
    pub fn take_follower(&mut self, number: u64) -> Option<(u64, Held)> {
        let at = number.wrapping_sub(self.base);
        let distance = self.slots.get(at as usize)?.follower;
        if distance == 0 {
            return None;
        }
        let slot = self.slots.get_mut((at + u64::from(distance)) as usize)?;
        match std::mem::replace(&mut slot.state, State::Done) {
            State::Held(held) => {
                self.release(&held);
                Some((number.wrapping_add(u64::from(distance)), *held))
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Moves `base` over everything that has arrived. What still waits there for a packet that cannot come any more is given to `orphan`.
    pub fn advance(&mut self, mut orphan: impl FnMut(Held)) {
        while let Some(slot) = self.slots.front() {
            if matches!(slot.state, State::Missing { .. }) {
                return;
            }
            if let Some(Slot { state: State::Held(held), .. }) = self.slots.pop_front() {
                self.release(&held);
                orphan(*held);
            }
            self.base = self.base.wrapping_add(1);
        }
        if self.slots.capacity() > QUIET_SLOTS {
            self.slots.shrink_to(QUIET_SLOTS);
        }
        self.base = self.next;
    }

    /// Whether looking through all of it takes long.
    pub fn is_wide(&self) -> bool {
        self.slots.len() > WIDE_SLOTS
    }

    /// Ranges of missing numbers to ask for now: those known missing for `window_ns`, and those asked for `again_ns` ago. Numbers from that of `slow` on
    /// may be under way over a slower path, and get its time from the start. Calls `ask(first, count)` until that says false; what it took is then to be marked
    /// ([`Received::mark_asked`]).
    pub fn ask(
        &self,
        now: Time,
        window_ns: u64,
        again_ns: u64,
        slow: Option<(u64, u64)>,
        mut ask: impl FnMut(u64, u16) -> bool,
    ) -> Look {
        if self.missing == 0 {
            return Look { again_at: None, slots: 0 };
        }
        let mut due: Option<Time> = None;
        let mut run: Option<(usize, u16)> = None;
        let mut has_taken = false;
        let mut take = |(first, count): (usize, u16)| ask(self.base.wrapping_add(first as u64), count);
        let (slow_from, slow_ns) =
            slow.map_or((usize::MAX, 0), |(number, ns)| (number.wrapping_sub(self.base) as usize, ns));
        // What does not fit is due still, whatever lies behind it.
        let still_due = |slots| Look { again_at: Some(now), slots };
        for (index, slot) in self.slots.iter().enumerate() {
            let when = match slot.state {
                State::Missing { since, asked: None } if index >= slow_from => {
                    Some(since.after(window_ns.max(slow_ns)))
                }
                State::Missing { since, asked: None } => Some(since.after(window_ns)),
                State::Missing { asked: Some(asked), .. } => Some(asked.after(again_ns)),
                _ => None,
            };
            if when.is_some_and(|when| when <= now) {
                // The window is smaller than a count can say.
                run = run.map_or(Some((index, 1)), |(first, count)| Some((first, count + 1)));
                continue;
            }
            if let Some(run) = run.take() {
                if !take(run) {
                    return still_due(index);
                }
                has_taken = true;
            }
            due = [due, when].into_iter().flatten().min();
        }
        if let Some(run) = run {
            if !take(run) {
                return still_due(self.slots.len());
            }
            has_taken = true;
        }
        let again = has_taken.then(|| now.after(again_ns));
        Look { again_at: [due, again].into_iter().flatten().min(), slots: self.slots.len() }
    }

    /// These have been asked for.
    pub fn mark_asked(&mut self, first: u64, count: u16, now: Time) {
        let first = first.wrapping_sub(self.base) as usize;
        for slot in self.slots.range_mut(first..first + usize::from(count)) {
            if let State::Missing { asked, .. } = &mut slot.state {
                self.asked += u16::from(asked.is_none());
                *asked = Some(now);
            }
        }
    }

    /// `number` has come and could not be kept. It is asked for again as if it had been at this moment: behind those that have not come, which may find memory, and of which a port holds only so many at a time.
    pub fn put_off(&mut self, number: u64, asked_at: Time) {
        let slot = self.slots.get_mut(number.wrapping_sub(self.base) as usize);
        if let Some(Slot { state: State::Missing { asked: Some(asked), .. }, .. }) = slot {
            *asked = asked_at;
        }
    }

    /// Gives everything that waits to `orphan`: the association ends.
    pub fn clear(&mut self, mut orphan: impl FnMut(Held)) {
        for slot in self.slots.drain(..) {
            if let State::Held(held) = slot.state {
                orphan(*held);
            }
        }
        (self.missing, self.asked, self.base) = (0, 0, self.next);
        (self.held_bytes, self.held_begun) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use proptest::prelude::*;

    const NEW: Arrival = Arrival::New { late_by_ns: None, requested: false };

    fn at(ns: u64) -> Time {
        Time::from_nanos(ns)
    }

    /// What is asked for at `now`, in `most` ranges at most, and when the next will be due.
    fn ask(
        received: &mut Received,
        now: u64,
        (window, again): (u64, u64),
        slow: Option<(u64, u64)>,
        most: usize,
    ) -> (Vec<(u64, u16)>, Option<Time>) {
        let mut ranges = Vec::new();
        let look = received.ask(at(now), window, again, slow, |first, count| {
            let fits = ranges.len() < most;
            ranges.extend(fits.then_some((first, count)));
            fits
        });
        ranges.iter().for_each(|&(first, count)| received.mark_asked(first, count, at(now)));
        (ranges, look.again_at)
    }

    fn held(pool: &mut Pool) -> Held {
        let payload = pool.take().unwrap();
        Held { kind: ropeway_wire::Type::Data, flags: ropeway_wire::Flags::default(), channel: 0, payload }
    }

    fn asked(received: &mut Received, now: u64, window: u64, again: u64) -> Vec<(u64, u16)> {
        ask(received, now, (window, again), None, usize::MAX).0
    }

    #[test]
    fn a_slot_has_as_many_bytes_as_the_specification_says() {
        assert_eq!(size_of::<Slot>() * MOST_SLOTS, 32 << 20);
    }

    #[test]
    fn in_order_arrivals_leave_no_slots() {
        let mut received = Received::starting_at(u64::MAX - 3);
        for i in 0..10 {
            assert_eq!(received.arrive((u64::MAX - 3).wrapping_add(i), at(0)), NEW);
        }
        assert_eq!((received.base(), received.slots.len()), (6, 0));
    }

    #[test]
    fn a_gap_is_asked_for_at_once_and_again_only_after_a_round_trip() {
        let mut received = Received::starting_at(u64::MAX);
        assert_eq!(received.arrive(u64::MAX, at(0)), NEW);
        for number in [3, 4, 9] {
            assert_eq!(received.arrive(number, at(10)), NEW);
        }
        assert_eq!(asked(&mut received, 10, 0, 100), [(0, 3), (5, 4)]);
        assert_eq!(received.asked(), 7);
        assert_eq!(asked(&mut received, 109, 0, 100), []);
        assert_eq!(asked(&mut received, 110, 0, 100), [(0, 3), (5, 4)]);
        assert_eq!(received.arrive(1, at(120)), Arrival::New { late_by_ns: Some(110), requested: true });
        assert_eq!(received.arrive(1, at(121)), Arrival::Duplicate);
        assert_eq!((received.missing(), received.asked()), (6, 6));
    }

    #[test]
    fn what_came_and_could_not_be_kept_is_asked_for_after_what_has_not_come() {
        let mut received = Received::starting_at(0);
        received.arrive(4, at(0));
        assert_eq!(asked(&mut received, 0, 0, 100), [(0, 4)]);
        [1, 4, 5].into_iter().for_each(|number| received.put_off(number, at(50)));
        assert_eq!(asked(&mut received, 100, 0, 100), [(0, 1), (2, 2)]);
        assert_eq!(asked(&mut received, 150, 0, 100), [(1, 1)]);
    }

    #[test]
    fn a_reorder_window_delays_the_first_request_only() {
        let mut received = Received::starting_at(0);
        received.arrive(1, at(0));
        assert_eq!(asked(&mut received, 49, 50, 100), []);
        assert_eq!(asked(&mut received, 50, 50, 100), [(0, 1)]);
    }

    #[test]
    fn what_may_come_over_a_slower_path_is_waited_for() {
        let mut received = Received::starting_at(0);
        for number in [1, 3, 5] {
            received.arrive(number, at(0));
        }
        let mut ask = |now| ask(&mut received, now, (10, 100), Some((2, 100)), usize::MAX);
        assert_eq!(ask(10), (vec![(0, 1)], Some(at(100))));
        assert_eq!(ask(100), (vec![(2, 1), (4, 1)], Some(at(110))));
    }

    #[test]
    fn what_does_not_fit_into_a_request_stays_due() {
        let mut received = Received::starting_at(0);
        for number in [1, 3, 5, 7] {
            received.arrive(number, at(0));
        }
        let (_, next) = ask(&mut received, 10, (0, 100), None, 2);
        assert_eq!((next, received.asked()), (Some(at(10)), 2));
        assert_eq!(asked(&mut received, 10, 0, 100), [(4, 1), (6, 1)]);
    }

    #[test]
    fn what_lies_behind_the_first_that_does_not_fit_is_not_looked_at() {
        let mut received = Received::starting_at(0);
        for number in 0..500 {
            received.arrive(2 * number + 1, at(0));
        }
        let mut fitting = 10;
        let look = received.ask(at(10), 0, 100, None, |_, _| {
            fitting -= 1;
            fitting >= 0
        });
        assert_eq!(look, Look { again_at: Some(at(10)), slots: 21 });
    }

    #[test]
    fn nothing_waits_for_a_packet_that_is_here() {
        let mut pool = Pool::new(64, 1 << 20);
        let mut received = Received::starting_at(0);
        received.arrive(1, at(0));
        received.arrive(2, at(0));
        assert!(received.hold(2, 1, held(&mut pool)).is_err());
    }

    #[test]
    fn what_waits_is_released_in_the_order_of_its_channel() {
        let mut pool = Pool::new(64, 1 << 20);
        let mut received = Received::starting_at(0);
        for number in [4u64, 2] {
            received.arrive(number, at(0));
            let previous = number - 2;
            received.hold(number, previous, held(&mut pool)).unwrap();
        }
        assert!(received.hold(4, 2, held(&mut pool)).is_err(), "a second follower of one packet");
        received.arrive(0, at(0));
        let (second, _) = received.take_follower(0).unwrap();
        let (third, _) = received.take_follower(second).unwrap();
        assert_eq!((second, third), (2, 4));
        assert!(received.take_follower(third).is_none());
        received.advance(|_| panic!("nothing is left waiting"));
        assert_eq!(received.base(), 1);
    }

    #[test]
    fn what_counts_as_begun_does_so_apart_until_it_waits_no_more() {
        let mut pool = Pool::new(64, 1 << 20);
        let mut received = Received::starting_at(0);
        for (number, is_begun) in [(1, true), (3, false), (5, true), (7, true)] {
            received.arrive(number, at(0));
            let mut held = held(&mut pool);
            if is_begun {
                pool.count_as_begun(&mut held.payload);
            }
            received.hold(number, number - 1, held).unwrap();
        }
        assert_eq!(received.held_begun(), 3);
        received.arrive(0, at(0));
        received.take_follower(0).unwrap();
        assert_eq!(received.held_begun(), 2);
        // What these wait for was not to be delivered.
        for number in [2, 4] {
            received.arrive(number, at(0));
        }
        received.advance(|_| ());
        assert_eq!(received.held_begun(), 1);
        received.clear(|_| ());
        assert_eq!((received.held_begun(), received.held_bytes()), (0, 0));
    }

    #[test]
    fn numbers_out_of_the_window_change_nothing() {
        let mut received = Received::starting_at(1000);
        assert_eq!(received.arrive(1000 + WINDOW_PACKETS, at(0)), Arrival::Beyond);
        assert_eq!(received.arrive(999, at(0)), Arrival::Duplicate);
        assert!(!received.learn_next(1000 + WINDOW_PACKETS + 1, at(0)));
        assert_eq!((received.base(), received.next(), received.missing()), (1000, 1000, 0));
    }

    proptest! {
        /// Against a set of numbers: whatever order, the window knows the same.
        #[test]
        fn agrees_with_a_set(start in prop_oneof![Just(0u64), Just(u64::MAX - 20), any::<u64>()], order in prop::collection::vec(0u64..60, 1..200)) {
            let mut received = Received::starting_at(start);
            let mut seen = std::collections::BTreeSet::new();
            for (step, offset) in order.into_iter().enumerate() {
                let arrival = received.arrive(start.wrapping_add(offset), at(step as u64));
                prop_assert_eq!(matches!(arrival, Arrival::New { .. }), seen.insert(offset));
                received.advance(|_| ());
                let base = (0..).find(|offset| !seen.contains(offset)).unwrap();
                let next = seen.last().unwrap() + 1;
                prop_assert_eq!(received.base(), start.wrapping_add(base));
                prop_assert_eq!(received.next(), start.wrapping_add(next.max(base)));
                prop_assert_eq!(u64::from(received.missing()), next.saturating_sub(seen.len() as u64));
            }
        }
    }
}
