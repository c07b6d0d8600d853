//! What arrives at this endpoint as a whole: from how many senders, how fast, and over what line.

use crate::lease::LEASE_ROUND_TRIPS;
use crate::rate::Rate;
use crate::time::Time;

/// The line's rate is measured over this long, pauses included: what piled up while this host looked away must not be taken for a faster line.
const PERIOD_NS: u64 = 16_000_000;
/// What is known of it loses this part with each such time in which less arrived.
const LINE_FADES: u64 = 16;

/// While somebody has a grant, the rate of a slow line is that of so many packets with more behind them, and no less time beside the longest pause: a port may let many out at once, or stand still for once.
const SLOW_PACKETS: u32 = 8;
const SLOW_WINDOW_NS: u64 = 20_000_000;
/// So long without a packet is a sender that waits for something else, and after it nothing is known of the line.
const SLOW_PAUSE_NS: u64 = 1_000_000_000;
/// A line is slow if less arrives in a millisecond, a usual packet; and is not as soon as what would be that much over the whole time has come.
pub const SLOW_BYTES_PER_MS: u64 = 1500;
/// No line is believed to be so slow that all that is granted takes longer: by default that is one of 160 kbit/s. Who sends single bytes, one by one, would keep this host from asking others for anything.
pub const MOST_SLOW_NS: u64 = 5_000_000_000;

/// The way of packets to this host, as far as arrivals tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Payload that has arrived in a millisecond, on average, for some time.
    pub bytes_per_ms: u64,
    /// The least round trip of the nearest of those who sent it lately: without queues. 0: not known.
    pub round_trip_ns: u64,
    /// Payload that has arrived in the last such time.
    pub latest_bytes: u64,
}

impl Line {
    /// What is on its way and stands in no queue: no more than came out of it lately, or after a pause all of it would be asked for at once.
    pub fn pipe_bytes(&self) -> u64 {
        (self.bytes_per_ms.saturating_mul(self.round_trip_ns) / 1_000_000).min(self.latest_bytes)
    }

    /// How long so much takes to arrive; 0: that is not known.
    pub fn ns_for(&self, bytes: u64) -> u64 {
        (bytes * 1_000_000).checked_div(self.bytes_per_ms).unwrap_or(0)
    }
}

/// How long it takes until something has arrived that stands in one queue.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// At the rate seen lately: who sent little makes it long.
    pub ns: u64,
    /// The same if the line is known to be slow, else 0.
    pub slow_ns: u64,
}

/// Sums over the arrivals of late.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// Counted up from lease to lease: who was noted in this one has its number.
    epoch: u64,
    epoch_at: Time,
    senders_now: u64,
    senders_before: u64,
    bytes: Rate,
    slow: Slow,
    period_at: Time,
    period_bytes: u64,
    /// The rate in the last period that is over.
    period_rate: u64,
    least_round_trip_ns: Option<u64>,
    /// The round trip at hand, and what arrived in it.
    trip_at: Time,
    trip_bytes: u64,
    line: Line,
    /// When something came last, whatever and of whomever.
    heard_at: Time,
    /// When something came again after a lease without anything.
    resumed_at: Time,
}

impl Arrivals {
    pub fn new() -> Arrivals {
        Arrivals {
            epoch: 1,
            epoch_at: Time::ZERO,
            senders_now: 0,
            senders_before: 0,
            bytes: Rate::default(),
            slow: Slow::default(),
            period_at: Time::ZERO,
            period_bytes: 0,
            period_rate: 0,
            least_round_trip_ns: None,
            trip_at: Time::ZERO,
            trip_bytes: 0,
            line: Line::default(),
            heard_at: Time::ZERO,
            resumed_at: Time::ZERO,
        }
    }

    /// Something has come.
    pub fn note_heard(&mut self, now: Time, lease_ns: u64) {
        if self.is_still(now, lease_ns) {
            self.resumed_at = now;
        }
        self.heard_at = now;
    }

    /// When something came last.
    pub fn heard_at(&self) -> Time {
        self.heard_at
    }

    /// Whether nothing has come for a lease.
    pub fn is_still(&self, now: Time, lease_ns: u64) -> bool {
        now.since(self.heard_at) >= lease_ns
    }

    /// When something came again after that.
    pub fn resumed_at(&self) -> Time {
        self.resumed_at
    }

    /// The same payload as part of a longer transfer. `is_clear`: it came in its turn, while somebody had a grant; `is_last`: nothing is behind it.
    pub fn note_pace(&mut self, bytes: u64, is_clear: bool, is_last: bool, now: Time) {
        self.slow.note(bytes, is_clear, is_last, now);
    }

    /// Notes `bytes` of payload from a sender that was last noted in `epoch`, at least `round_trip_ns` away, if that is known.
    pub fn note(&mut self, bytes: u64, epoch: &mut u64, round_trip_ns: Option<u64>, now: Time, lease_ns: u64) {
        self.bytes.note(bytes, now, true);
        let elapsed = now.since(self.trip_at);
        if elapsed >= self.line.round_trip_ns {
            self.line.latest_bytes = if elapsed < 2 * self.line.round_trip_ns { self.trip_bytes } else { 0 };
            (self.trip_at, self.trip_bytes) = (now, 0);
        }
        self.trip_bytes += bytes;
        self.period_bytes += bytes;
        if let Some(ns) = round_trip_ns {
            self.least_round_trip_ns = Some(self.least_round_trip_ns.map_or(ns, |least| least.min(ns)));
        }
        let elapsed = now.since(self.period_at);
        if elapsed >= PERIOD_NS {
            self.end_period(elapsed);
            self.period_at = now;
        }
        self.note_active(epoch, now, lease_ns);
    }

    /// Notes that a sender, last noted in `epoch`, may begin to send: it was heard, or spoken to.
    pub fn note_active(&mut self, epoch: &mut u64, now: Time, lease_ns: u64) {
        // What it was told holds for as long as its lease does.
        let epoch_ns = lease_ns.max(LEASE_ROUND_TRIPS * self.line.round_trip_ns);
        if now.since(self.epoch_at) >= epoch_ns {
            let skipped = now.since(self.epoch_at) >= 2 * epoch_ns;
            self.senders_before = if skipped { 0 } else { self.senders_now };
            self.senders_now = 0;
            self.epoch += 1;
            self.epoch_at = now;
        }
        self.senders_now += u64::from(std::mem::replace(epoch, self.epoch) != self.epoch);
    }

    fn end_period(&mut self, elapsed_ns: u64) {
        let bytes = std::mem::take(&mut self.period_bytes);
        let round_trip_ns = self.least_round_trip_ns.take().unwrap_or(self.line.round_trip_ns);
        if elapsed_ns >= 2 * PERIOD_NS {
            // Mostly a pause, which is no slow line.
            return;
        }
        let rate = bytes * 1_000_000 / elapsed_ns;
        let sustained = rate.min(std::mem::replace(&mut self.period_rate, rate));
        // Whoever sends less than the line bears says little about it.
        let known = self.line.bytes_per_ms;
        let bytes_per_ms = sustained.max(known - known / LINE_FADES);
        self.line = Line { bytes_per_ms, round_trip_ns, ..self.line };
    }

    /// Senders heard or spoken to within the last lease.
    pub fn active(&self) -> u64 {
        self.senders_now.max(self.senders_before)
    }

    /// Payload that has arrived in a millisecond lately.
    pub fn bytes_per_ms(&self) -> u64 {
        self.bytes.per_ms()
    }

    pub fn line(&self) -> Line {
        self.line
    }

    /// How long `bytes` take at the rate seen lately.
    pub fn drain(&self, bytes: u64) -> Drain {
        let at = |per_ms| (bytes * 1_000_000).checked_div(per_ms);
        let slow_ns = self.slow.per_ms.and_then(at).map(|ns| ns.min(MOST_SLOW_NS));
        Drain { ns: slow_ns.or_else(|| at(self.bytes_per_ms())).unwrap_or(0), slow_ns: slow_ns.unwrap_or(0) }
    }
}

/// Whether the line is one on which a packet takes a millisecond or more.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    packet_at: Time,
    window_at: Time,
    /// The longest time without a packet in this window.
    pause_ns: u64,
    packets: u32,
    bytes: u64,
    /// What arrives in a millisecond, if the last window that is over was that of a slow line.
    per_ms: Option<u64>,
}

impl Slow {
    fn begin_window(&mut self, now: Time) {
        *self = Slow { packet_at: now, window_at: now, per_ms: self.per_ms, ..Slow::default() };
    }

    /// Time in which nobody had a grant, or something was lost and asked for, says nothing about the line, and what has nothing behind it says little.
    fn note(&mut self, bytes: u64, is_clear: bool, is_last: bool, now: Time) {
        let apart_ns = now.since(std::mem::replace(&mut self.packet_at, now));
        if apart_ns >= SLOW_PAUSE_NS {
            // It may be another line by now.
            self.per_ms = None;
        }
        if !is_clear || apart_ns >= SLOW_PAUSE_NS {
            return self.begin_window(now);
        }
        self.pause_ns = self.pause_ns.max(apart_ns);
        if is_last {
            return;
        }
        (self.packets, self.bytes) = (self.packets + 1, self.bytes + bytes);
        let elapsed_ns = now.since(self.window_at);
        // One pause is that of a port, or of this host, that stood still.
        let moving_ns = elapsed_ns - self.pause_ns.min(elapsed_ns);
        if self.bytes >= SLOW_BYTES_PER_MS * SLOW_WINDOW_NS / 1_000_000 && elapsed_ns < SLOW_WINDOW_NS {
            self.per_ms = None;
            self.begin_window(now);
        } else if self.packets >= SLOW_PACKETS && moving_ns >= SLOW_WINDOW_NS {
            let is_slow = self.bytes * 1_000_000 / moving_ns < SLOW_BYTES_PER_MS;
            self.per_ms = is_slow.then(|| self.bytes * 1_000_000 / elapsed_ns);
            self.begin_window(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet each 12 us from `begin_ms` on, read when this host looks: at once, but for the first `away_ms` of every ten.
    fn after(arrivals: &mut Arrivals, begin_ms: u64, away_ms: u64) -> Line {
        let mut epoch = 0;
        for packet in 0..50_000 {
            let arrives_us = begin_ms * 1000 + packet * 12;
            let phase_us = arrives_us % 10_000;
            let read_us = if phase_us < away_ms * 1000 { arrives_us - phase_us + away_ms * 1000 } else { arrives_us };
            arrivals.note(1416, &mut epoch, Some(50_000), Time::from_nanos(read_us * 1000), 10_000_000);
        }
        arrivals.line()
    }

    #[test]
    fn a_line_is_slow_if_little_comes_though_more_wait_and_is_granted() {
        let mut arrivals = Arrivals::new();
        let come = |arrivals: &mut Arrivals, at_us: u64, is_clear, is_last| {
            arrivals.note_pace(1000, is_clear, is_last, Time::from_nanos(at_us * 1000));
        };
        // What comes when it was asked for, or was not granted, or has nothing behind it, says nothing.
        (1..100).for_each(|step| come(&mut arrivals, step * 10_000, step % 7 > 0, false));
        (100..200).for_each(|step| come(&mut arrivals, step * 10_000, step > 100, true));
        assert_eq!(arrivals.drain(50_000).slow_ns, 0);
        come(&mut arrivals, 2_000_000, false, false);
        (201..209).for_each(|step| come(&mut arrivals, step * 10_000, true, false));
        let Drain { ns, slow_ns } = arrivals.drain(50_000);
        assert_eq!((ns, slow_ns), (500_000_000, 500_000_000));
        // A port that lets ten out at once, every 100 ms, is as slow.
        (20..30)
            .for_each(|burst| (0..10).for_each(|step| come(&mut arrivals, burst * 100_000 + step * 10, true, false)));
        assert_eq!(arrivals.drain(50_000).slow_ns / 1_000_000, 500);
        // One on which they come faster for a while is not.
        (1..1000).for_each(|step| come(&mut arrivals, 2_900_000 + step * 100, true, false));
        assert_eq!(arrivals.drain(50_000).slow_ns, 0);
        // Seconds apart is no line at all.
        (10..30).for_each(|step| come(&mut arrivals, step * 1_000_000, true, false));
        assert_eq!(arrivals.drain(50_000).slow_ns, 0);
        // Nor is a line as slow as somebody may want it to look.
        (400..440).for_each(|step| come(&mut arrivals, step * 900_000, true, false));
        let Drain { ns, slow_ns } = arrivals.drain(50_000);
        assert_eq!((ns, slow_ns), (MOST_SLOW_NS, MOST_SLOW_NS));
    }

    #[test]
    fn a_port_that_stands_still_once_and_a_line_of_before_are_not_slow() {
        let mut arrivals = Arrivals::new();
        let mut at_us = 5_000_000;
        let mut come = |arrivals: &mut Arrivals, packets: u64, apart_us: u64| {
            (0..packets).for_each(|_| {
                at_us += apart_us;
                arrivals.note_pace(1000, true, false, Time::from_nanos(at_us * 1000));
            });
            arrivals.drain(50_000).slow_ns > 0
        };
        come(&mut arrivals, 5, 12);
        assert!(!come(&mut arrivals, 1, 900_000), "a pause");
        assert!((0..1000).all(|_| !come(&mut arrivals, 1, 30)), "what came before it, and behind it");
        assert!(come(&mut arrivals, 20, 12_000));
        // Somebody sends through a fast line, if not for long.
        assert!(!come(&mut arrivals, 40, 12));
        assert!(come(&mut arrivals, 20, 12_000));
        assert!(!come(&mut arrivals, 1, 1_000_000), "it may be another line by then");
    }

    #[test]
    fn a_steady_rate_is_believed_after_a_while_and_a_backlog_is_not() {
        let mut arrivals = Arrivals::new();
        let steady = after(&mut arrivals, 100, 0);
        assert!((115_000..=119_000).contains(&steady.bytes_per_ms), "{steady:?}");
        assert_eq!(steady.round_trip_ns, 50_000);
        for away_ms in [1, 2, 5, 9] {
            let stalling = after(&mut arrivals, 1_000 * away_ms, away_ms);
            assert!((90_000..=119_000).contains(&stalling.bytes_per_ms), "{stalling:?}");
        }
    }

    #[test]
    fn nobody_is_counted_twice_within_a_lease() {
        let (mut arrivals, mut epochs) = (Arrivals::new(), [0; 3]);
        for step in 0..9u64 {
            let now = Time::from_nanos(1_000_000_000 + step * 1_000_000);
            arrivals.note(100, &mut epochs[step as usize % 3], Some(50_000), now, 10_000_000);
        }
        assert_eq!(arrivals.active(), 3);
    }

    #[test]
    fn who_was_spoken_to_over_a_long_line_may_begin_for_longer() {
        for (round_trip_ms, expected) in [(0, 1..=2), (100, 20..=21)] {
            let (mut arrivals, mut epoch) = (Arrivals::new(), 0);
            for ms in 0..100 {
                let now = Time::from_nanos(1_000_000_000 + ms * 1_000_000);
                arrivals.note(1416, &mut epoch, Some(round_trip_ms * 1_000_000), now, 10_000_000);
            }
            // One every 30 ms, none of them heard: a lease is 10 ms, or 8 round trips.
            for peer in 0..20 {
                let now = Time::from_nanos(1_100_000_000 + peer * 30_000_000);
                arrivals.note_active(&mut 0, now, 10_000_000);
            }
            assert!(expected.contains(&arrivals.active()), "{round_trip_ms} ms: {}", arrivals.active());
        }
    }
}
