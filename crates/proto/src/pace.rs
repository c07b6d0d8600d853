//! How fast one sender uses what it is granted, so that a slow one is not granted more than it needs (docs/protocol.md 6).

use crate::time::Time;

/// Who needs longer for a packet is slow: many who share a line of 1 Gbit/s do not, as no more than eight of them hold much at a time; ...
pub const SLOW_NS: u64 = 250_000;
/// ... and who needs as long as so many take of all senders together: otherwise it is the line of all that is slow ...
pub const LINE_PACKETS: u64 = 4;
/// ... and may hold what it uses in this time and a round trip, in which its own line is a part.
pub const HOLD_NS: u64 = 1_000_000;
/// It is granted so many together: if they come one right after the other, it is not its own line that is slow.
pub const PAIR_PACKETS: u64 = 2;
/// The pace is the least of so many times, so that one pause of a sender, or of this host, makes it no slower.
const TIMES: u8 = 4;
/// Who turns out to be quicker loses this part of the difference each time.
const QUICKENS: u64 = 8;

/// The time between packets of one sender while it could have sent more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Of one packet.
    each_ns: u64,
    /// The least of the times of late, of which none counts as longer than 4 s, and how many they were.
    least_ns: u32,
    times: u8,
    /// When it last sent something, or was granted something after it had nothing.
    since: Time,
    /// It knew by then that it may send more.
    is_free: bool,
}

impl Pace {
    /// It is granted something, and had nothing left.
    pub fn begin(&mut self, now: Time) {
        (self.since, self.is_free) = (now, false);
    }

    /// It may send no more.
    pub fn stop(&mut self) {
        self.is_free = false;
    }

    /// A batch has brought so many packets of it, and it may send more (`is_free`) or not.
    pub fn note(&mut self, packets: u32, is_free: bool, now: Time) {
        let each_ns = now.since(self.since) / u64::from(packets.max(1));
        if self.is_free {
            let least_ns = if self.times == 0 { u32::MAX } else { self.least_ns };
            self.least_ns = each_ns.min(least_ns.into()) as u32;
            self.times += 1;
            if self.times == TIMES {
                self.each_ns = self.each_ns.max(self.least_ns.into());
                self.quicken(self.least_ns.into());
                self.times = 0;
            }
        } else {
            // With all that it took until it knew.
            self.quicken(each_ns);
        }
        (self.since, self.is_free) = (now, is_free);
    }

    /// By and by: what holds a line to its rate may let some through at once after a pause.
    fn quicken(&mut self, each_ns: u64) {
        self.each_ns -= self.each_ns.saturating_sub(each_ns) / QUICKENS;
    }

    /// Packets that a slow one may hold, if all senders together bring `line_bytes_per_ms`; `None`: it is not slow, or no slower than the line that all of them share.
    pub fn most_held(&self, round_trip_ns: u64, payload_bytes: u64, line_bytes_per_ms: u64) -> Option<u64> {
        let line_bytes = line_bytes_per_ms.saturating_mul(self.each_ns) / 1_000_000;
        if self.each_ns <= SLOW_NS || line_bytes < LINE_PACKETS * payload_bytes {
            return None;
        }
        // Its own line's part of a round trip is one packet.
        Some(PAIR_PACKETS + (HOLD_NS + round_trip_ns).saturating_sub(self.each_ns / 2) / self.each_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Time {
        Time::from_nanos(1_000_000_000 + us * 1000)
    }

    /// Beside others that fill a line of 1 Gbit/s.
    fn held(pace: &Pace, round_trip_ns: u64) -> Option<u64> {
        pace.most_held(round_trip_ns, 1456, 120_000)
    }

    /// Batches of one packet, with times between them in turn.
    fn after(pace: &mut Pace, from_us: u64, times_us: &[u64], is_free: bool) -> u64 {
        times_us.iter().fold(from_us, |at, time| {
            pace.note(1, is_free, us(at + time));
            at + time
        })
    }

    #[test]
    fn who_needs_long_for_each_packet_is_slow_and_one_pause_makes_nobody_slow() {
        let mut pace = Pace::default();
        pace.begin(us(0));
        let at = after(&mut pace, 0, &[5000, 20, 5000, 20, 5000, 20, 5000, 5000, 20], true);
        assert_eq!(held(&pace, 0), None);
        let at = after(&mut pace, at, &[1200; 8], true);
        assert_eq!(held(&pace, 0), Some(2));
        assert_eq!(held(&pace, 5_000_000), Some(6), "and what is under way");
        after(&mut pace, at, &[20; 8], true);
        assert_eq!(held(&pace, 0), Some(2), "two short times may be a shaper's");
        after(&mut pace, at, &[20; 60], true);
        assert_eq!(held(&pace, 0), None);
    }

    #[test]
    fn what_a_sender_waits_for_its_turn_makes_it_no_slower_but_faster_perhaps() {
        let mut pace = Pace::default();
        pace.begin(us(0));
        let at = after(&mut pace, 0, &[5000; 20], false);
        assert_eq!(held(&pace, 0), None);
        let at = after(&mut pace, at, &[5000; 8], true);
        assert_eq!(held(&pace, 0), Some(2));
        // Whoever holds one packet never has another when that comes.
        pace.note(1, false, us(at + 5000));
        for turn in 0..30 {
            pace.begin(us(at + 9000 + turn * 1000));
            pace.note(1, false, us(at + 9100 + turn * 1000));
        }
        assert_eq!(held(&pace, 0), None);
    }

    #[test]
    fn what_comes_together_took_as_long_as_all_of_it() {
        let mut pace = Pace::default();
        pace.begin(us(0));
        (1..9).for_each(|batch| pace.note(5, true, us(batch * 5000)));
        assert_eq!(held(&pace, 0), Some(2));
        (9..90).for_each(|batch| pace.note(50, true, us(batch * 5000)));
        assert_eq!(held(&pace, 0), None);
    }

    #[test]
    fn who_is_as_slow_as_the_line_is_not_slow() {
        let mut pace = Pace::default();
        pace.begin(us(0));
        after(&mut pace, 0, &[1200; 8], true);
        assert_eq!(pace.most_held(0, 1456, 1456 * 3 / 2), None, "less than two packets of all in that time");
        assert_eq!(pace.most_held(0, 1456, 1456 * 4), Some(2), "five");
    }
}
