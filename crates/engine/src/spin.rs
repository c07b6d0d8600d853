//! How long a waiting thread polls before it sleeps: no longer than a bound, and no longer than polling has paid off lately.

use ropeway_proto::Time;
use ropeway_shm::processors::{self, Crowd};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// Without a setting: about the cost of a sleep and a wake-up.
pub const USUAL_SPIN_NS: u64 = 50_000;
/// Failures in a row after which a thread stops spinning ...
const MOST_FAILURES: u32 = 4;
/// ... except every so many waits, to notice when it would pay again.
const PROBE_EVERY: u32 = 32;
/// ... for so many times the bound: the other end may be asleep as well, and answer only after it was woken. Two that sleep would else never find out that both would do better.
const PROBE_TIMES: u64 = 3;
/// A thread that spins offers the processor to others this often: rarer than the answers of a fast network come, as an offer may be taken ...
const YIELD_EVERY_NS: u64 = 10_000;
/// ... but soon when the last wait was ended by such an offer: the other end is on this processor.
const YIELD_SOON_NS: u64 = 500;
/// An offer that took no longer was not taken: a thread that is switched to, does something and is left again needs more, and the call alone half a microsecond.
const TAKEN_NS: u64 = 4_000;
/// Waits in a row that a yield ended, before the thread leaves the processor to the other end: wake-ups tend to bring two ends together.
const ASIDE_WAITS: u32 = 16;
/// While nobody is seen to wait for a processor, or many are at every count, counts are so much rarer: one takes as long as some messages.
const RARE_COUNTS: u64 = 4;
/// Time from one step aside to the next; doubled when the next one is due soon again.
const ASIDE_NS: u64 = 2_000_000;
const ASIDE_MOST_NS: u64 = 64_000_000;

/// How often a thread that spins offers the processor to others.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    every_ns: u64,
    offered: Time,
    /// It did so right before the last look.
    just_now: bool,
}

impl Pace {
    /// Whether another offer is due.
    pub fn is_due(&mut self, now: Time) -> bool {
        self.just_now = false;
        now.since(self.offered) >= self.every_ns
    }

    pub fn yields(&mut self, now: Time) {
        (self.offered, self.just_now) = (now, true);
    }
}

/// Whether polling has paid off lately for those who wait for the same: what calls wait for comes at other times than what event loops get.
#[derive(Debug, Default)]
pub struct Record {
    failures: u32,
    waits: u32,
}

impl Record {
    /// Polling brought what was waited for.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The budget ran out.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// What a wait may spin for, where that is `most_ns` as long as it pays.
    fn budget_ns(&mut self, most_ns: u64) -> u64 {
        self.waits = self.waits.wrapping_add(1);
        match self.failures < MOST_FAILURES {
            true => most_ns,
            false if self.waits.is_multiple_of(PROBE_EVERY) => PROBE_TIMES * most_ns,
            false => 0,
        }
    }
}

/// What polling has brought lately.
#[derive(Debug)]
pub struct Spin {
    most_ns: u64,
    /// Processors of the machine, and whether more threads want to run than that.
    online: u32,
    crowd: Crowd,
    /// Says how many threads want to run. It stays open: to open it takes four times as long as to read it.
    loadavg: Option<OwnedFd>,
    counted_at: Time,
    pub callers: Record,
    pub helper: Record,
    /// Waits in a row that an offer of the processor ended.
    by_yield: u32,
    aside_at: Time,
    aside_pause_ns: u64,
}

impl Spin {
    /// On one processor polling only keeps the peer from running.
    pub fn new(most_ns: u64) -> Spin {
        let alone = processors::usable() < 2;
        Spin {
            most_ns: if alone { 0 } else { most_ns },
            online: processors::online(),
            crowd: Crowd::default(),
            loadavg: None,
            counted_at: Time::ZERO,
            callers: Record::default(),
            helper: Record::default(),
            by_yield: 0,
            aside_at: Time::ZERO,
            aside_pause_ns: ASIDE_NS,
        }
    }

    /// How long a call's wait that begins now, or goes on after a sleep, may spin from the last arrival on.
    pub fn budget_ns(&mut self, now: Time) -> u64 {
        if self.is_crowded(now) { 0 } else { self.callers.budget_ns(self.most_ns) }
    }

    /// The same for the helper, when something has arrived for an event loop.
    pub fn helper_budget_ns(&mut self, now: Time) -> u64 {
        if self.is_crowded(now) { 0 } else { self.helper.budget_ns(self.most_ns) }
    }

    /// Whether a thread that spins keeps others from their work. Counted now and then.
    pub fn is_crowded(&mut self, now: Time) -> bool {
        let pause_ns = Crowd::COUNT_NS * if self.crowd.is_over() || self.crowd.is_lasting() { RARE_COUNTS } else { 1 };
        if self.most_ns > 0 && now.since(self.counted_at) >= pause_ns {
            self.counted_at = now;
            self.crowd = self.crowd.after(self.runnable(), self.online);
        }
        self.was_crowded()
    }

    /// The same when it was counted last.
    pub fn was_crowded(&self) -> bool {
        self.crowd.is_there()
    }

    /// Threads of the whole machine that run or could run. 0 when `/proc` cannot be read.
    fn runnable(&mut self) -> u32 {
        // Not by the C library's open and pread: in these a thread of a C program may be cancelled, and it waits here.
        if self.loadavg.is_none() {
            self.loadavg = rustix::fs::open("/proc/loadavg", OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let mut text = [0u8; 64];
        let n = self.loadavg.as_ref().map_or(0, |file| rustix::io::pread(file, &mut text, 0).unwrap_or(0));
        processors::runnable_in(&text[..n])
    }

    /// How a wait that begins now offers the processor to others.
    pub fn pace(&self, now: Time) -> Pace {
        let every_ns = if self.by_yield > 0 { YIELD_SOON_NS } else { YIELD_EVERY_NS };
        Pace { every_ns, offered: now, just_now: false }
    }

    /// A look brought something; `now` was before it.
    pub fn found(&mut self, pace: &Pace, now: Time) {
        if !pace.just_now || now.since(pace.offered) < TAKEN_NS {
            self.by_yield = 0;
            return;
        }
        self.by_yield += 1;
        let since_ns = now.since(self.aside_at);
        if self.by_yield >= ASIDE_WAITS && since_ns >= self.aside_pause_ns {
            let soon = since_ns < 4 * self.aside_pause_ns;
            self.aside_pause_ns = if soon { (2 * self.aside_pause_ns).min(ASIDE_MOST_NS) } else { ASIDE_NS };
            (self.aside_at, self.by_yield) = (now, 1);
            processors::leave_current();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_rare_while_they_find_the_same() {
        let mut spin = Spin { most_ns: 1, ..Spin::new(0) };
        let [soon, late] = [1, RARE_COUNTS].map(|count| Time::from_nanos(count * Crowd::COUNT_NS));
        spin.is_crowded(soon);
        assert_eq!(spin.counted_at, Time::ZERO);
        spin.is_crowded(late);
        assert_eq!(spin.counted_at, late);
        (spin.crowd, spin.counted_at) = (Crowd { level: 1 }, Time::ZERO);
        spin.is_crowded(soon);
        assert_eq!(spin.counted_at, soon);
        let lasting = (0..9).fold(Crowd::default(), |crowd, _| crowd.after(9, 2));
        (spin.crowd, spin.counted_at) = (lasting, Time::ZERO);
        spin.is_crowded(soon);
        assert_eq!(spin.counted_at, Time::ZERO);
    }

    #[test]
    fn offers_that_nobody_takes_end_no_wait() {
        let mut spin = Spin::new(0);
        let mut at = Time::ZERO;
        for (away_ns, every_ns) in [(TAKEN_NS, YIELD_SOON_NS), (TAKEN_NS - 1, YIELD_EVERY_NS)] {
            for _ in 0..ASIDE_WAITS - 1 {
                let mut pace = spin.pace(at);
                pace.yields(at);
                at = at.after(away_ns);
                spin.found(&pace, at);
            }
            assert_eq!(spin.pace(at).every_ns, every_ns);
        }
    }

    #[test]
    fn spinning_that_never_pays_becomes_rare() {
        let mut spin = Spin { most_ns: 1, ..Spin::new(0) };
        let spent: u64 = (0..320)
            .map(|_| {
                let budget = spin.budget_ns(Time::ZERO);
                if budget > 0 {
                    spin.callers.failed();
                }
                budget
            })
            .sum();
        assert!(spent <= 4 + 10 * PROBE_TIMES, "{spent}");
        assert_eq!(spin.helper_budget_ns(Time::ZERO), 1, "its waits are others");
        spin.callers.succeeded();
        assert_eq!(spin.budget_ns(Time::ZERO), 1);
    }
}
