//! Whether a link takes packets, and how to wait until it does.

use std::time::Duration;

use ropeway_proto::Time;

/// Some queues are full although the socket can be written to: the device's own, behind it. Nothing tells when those have room again, so they are tried after so long: a device of 100 Mbit/s
/// sends four packets meanwhile, and a processor has 2000 tries a second to do at most.
pub const PAUSE: Duration = Duration::from_micros(500);
/// One that goes on taking nothing, as a firewall may that drops what is sent, is tried again after this part of the time for which it has: after four tries less and less often ...
const PAUSE_SHARE: u64 = 4;
/// ... but as often as this.
const MOST_PAUSE: Duration = Duration::from_millis(8);

/// What is known of one link's queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// It refused packets in the last round of sends.
    full: bool,
    /// It took some in that round.
    took: bool,
    /// Its descriptor was writable, and since then it took nothing.
    promised: bool,
    /// Since when that is so.
    vain_since: Option<Time>,
    /// When it is tried again.
    tries_at: Time,
    /// In this round it is not tried.
    rests: bool,
}

impl Room {
    /// A round of sends begins.
    pub fn begin(&mut self, now: Time) {
        // At first whoever comes by tries: a queue that is full for a moment is not to run empty.
        let is_left_alone =
            self.vain_since.is_some_and(|since| pause_ns(since, self.tries_at) > PAUSE.as_nanos() as u64);
        self.rests = self.pauses() && is_left_alone && now < self.tries_at;
        if !self.rests {
            (self.full, self.took) = (false, false);
        }
    }

    /// Whether it is not to be tried in this round.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// A send took so many of the packets that were offered.
    pub fn note(&mut self, took: usize, offered: usize) {
        if !self.rests {
            self.full |= took < offered;
            self.took |= took > 0;
        }
    }

    /// The round ends.
    pub fn end(&mut self, now: Time) {
        if self.rests {
            return;
        }
        self.promised &= self.full && !self.took;
        self.vain_since = self.vain_since.or(Some(now)).filter(|_| self.promised);
        if let Some(since) = self.vain_since {
            self.tries_at = now.after(pause_ns(since, now));
        }
    }

    /// The descriptor of a link that was full is writable.
    pub fn promise(&mut self) {
        self.promised = self.full;
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Full, and its descriptor will say when it is not.
    pub fn will_tell(&self) -> bool {
        self.full && !self.promised
    }

    /// Full, and its descriptor says that it is not.
    fn pauses(&self) -> bool {
        self.full && self.promised
    }

    /// When to try one again that is full, and whose descriptor says that it is not.
    pub fn tries_at(&self) -> Option<Time> {
        self.pauses().then_some(self.tries_at)
    }
}

/// For how long a link is left alone that has taken nothing since then.
fn pause_ns(since: Time, now: Time) -> u64 {
    (now.since(since) / PAUSE_SHARE).clamp(PAUSE.as_nanos() as u64, MOST_PAUSE.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn at(us: u64) -> Time {
        Time::from_nanos(us * US)
    }

    /// A round in which the link takes so many of four packets.
    fn round(room: &mut Room, now: Time, took: usize) {
        room.begin(now);
        if !room.rests() {
            room.note(took, 4);
        }
        room.end(now);
    }

    #[test]
    fn who_takes_nothing_although_writable_is_left_alone_for_a_pause() {
        let mut room = Room::default();
        room.promise();
        round(&mut room, at(0), 0);
        assert!(room.will_tell() && room.tries_at().is_none(), "it was not full when it was writable");
        room.promise();
        round(&mut room, at(10), 0);
        assert!(room.tries_at() == Some(at(510)) && !room.will_tell());
        round(&mut room, at(20), 0);
        assert!(room.tries_at() == Some(at(520)), "nothing has changed");
        round(&mut room, at(30), 1);
        assert!(room.will_tell(), "its queue moves");
        room.promise();
        round(&mut room, at(40), 4);
        assert!(!room.is_full() && !room.will_tell() && room.tries_at().is_none());
    }

    /// When a link is tried that takes nothing, by who comes by every so often and looks when it is told to.
    fn tries(every_us: u64, until_us: u64) -> Vec<u64> {
        let mut room = Room::default();
        round(&mut room, at(0), 0);
        room.promise();
        (0..until_us)
            .filter(|&us| {
                let is_due = us % every_us == 0 || room.tries_at().is_some_and(|tries_at| tries_at <= at(us));
                let before = room.tries_at;
                if is_due {
                    round(&mut room, at(us), 0);
                }
                assert!(room.is_full());
                room.tries_at != before
            })
            .collect()
    }

    #[test]
    fn who_goes_on_taking_nothing_is_tried_less_and_less_often() {
        for every_us in [10, 1_000_000] {
            let tries = tries(every_us, 1_000_000);
            let within = |from_us, to_us| tries.iter().filter(|&&us| (from_us..to_us).contains(&us)).count();
            assert!(within(0, 2000) >= 4, "for a moment nothing is slower, {tries:?}");
            assert!((115..=125).contains(&within(50_000, 1_000_000)), "{}", within(50_000, 1_000_000));
            assert!(tries.windows(2).all(|two| two[1] - two[0] <= 8000));
        }
    }

    #[test]
    fn what_is_taken_again_begins_anew() {
        let mut room = Room::default();
        round(&mut room, at(0), 0);
        room.promise();
        for us in [10, 100_000, 110_000] {
            round(&mut room, at(us), 0);
        }
        assert_eq!(room.tries_at(), Some(at(118_000)));
        round(&mut room, at(118_000), 1);
        assert!(room.will_tell());
        room.promise();
        round(&mut room, at(118_010), 0);
        assert_eq!(room.tries_at(), Some(at(118_510)));
    }
}
