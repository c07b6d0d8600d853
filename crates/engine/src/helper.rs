//! The helper thread: keeps time and answers while no call polls.
//!
//! It never competes with callers. While calls come and go it looks once a millisecond, or every 4 where that has always been in vain (16 on a machine with more to run than processors), whether somebody has
//! taken care since; when nobody has, it takes over and sleeps on the links like a caller would. While a call sleeps there itself, the helper is parked. So a
//! process without traffic uses no processor time, and a program that computes between its calls still acknowledges within a millisecond or two.

use crate::core::{Core, Poller};
use crate::inner::Inner;
use crate::thread::{self, ENGINE_STACK_BYTES};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the links may be left alone.
pub const TICK: Duration = Duration::from_millis(1);
/// The same when a timer is due before that, or other threads wait for something that may come meanwhile ...
const SHORT_TICK: Duration = Duration::from_micros(200);
/// ... unless so many calls came and went since the last tick: they look at the links for all.
const MANY_CALLS: u64 = 8;
/// After so many in a tick the next one, which does what is due, is never far.
const FLOOD_CALLS: u64 = 100;
/// In a program that for so long has not left the links alone for a tick, and in which no thread began or ended a wait beside another one, the helper's wake-ups
/// were all in vain ...
const STEADY: Duration = Duration::from_millis(250);
/// ... and while somebody polls, or has lately and calls all the time, it looks more seldom. A program that begins to compute after that answers so late, and a tick, once.
const LONG_TICK: Duration = Duration::from_millis(4);
/// The same where more threads want to run than there are processors: each wake-up takes one from somebody, and whoever waits for this program waits for others anyway.
const CROWDED_TICK: Duration = Duration::from_millis(16);
/// What panicked once may do it again, and each time is told on the program's standard error.
pub const AFTER_PANIC: Duration = Duration::from_millis(100);
/// After so many ticks with the same caller polling the helper parks itself.
const TICKS_TO_PARK: u32 = 4;

pub fn start(inner: Arc<Inner>) -> io::Result<JoinHandle<()>> {
    thread::spawn("ropeway", ENGINE_STACK_BYTES, move || keep_running(&inner))
}

/// A panic is a fault of ours, and where panics are caught the engine goes on without waiting for a program that may never call again.
fn keep_running(inner: &Inner) {
    // What the panic may have left is put in order by who takes the lock next.
    while catch_unwind(AssertUnwindSafe(|| run(inner))).is_err() {
        // Without the lock: it is not to be held for so long.
        std::thread::sleep(AFTER_PANIC);
        let mut core = inner.lock();
        if core.poller == Poller::Helper {
            core.poller = Poller::Nobody;
        }
    }
}

fn run(inner: &Inner) {
    let (mut seen, mut ticks) = (inner.left(), 0);
    let mut before = Before::Usual;
    // For how long calls have done with what was there, and not looked at the links.
    let (mut looked, mut unlooked) = (inner.looked(), Duration::ZERO);
    loop {
        // Without the lock: callers that come and go are not to meet the helper there.
        let calls = inner.left().wrapping_sub(seen);
        let looks = inner.looked();
        if looks != looked || calls == 0 {
            (looked, unlooked) = (looks, Duration::ZERO);
        }
        seen = seen.wrapping_add(calls);
        if calls > 0 && unlooked < TICK {
            ticks = 0;
            let rest;
            (rest, before) = tick(inner, calls, before);
            unlooked += rest;
            inner.helper_rests(rest);
            continue;
        }
        if inner.is_polled() && ticks < TICKS_TO_PARK {
            ticks += 1;
            let rest;
            (rest, before) = tick(inner, calls, before);
            inner.helper_rests(rest);
            continue;
        }
        let core = if inner.is_polled() { Some(inner.lock()) } else { inner.lock_if_free() };
        let Some(mut core) = core else {
            // Whoever has it is in a call, which does what is due before it ends.
            inner.helper_rests(TICK);
            continue;
        };
        if core.shut_down {
            return;
        }
        if core.poller == Poller::Nobody {
            core.poller = Poller::Helper;
            drop(take_care(inner, core));
            continue;
        }
        // The same caller has polled for long, and may sleep: it says when it leaves.
        core.helper_parked = true;
        ticks = 0;
        drop(core);
        inner.helper_parks();
    }
}

/// Whether callers have looked at the links by themselves since the last tick.
#[derive(Clone, Copy, PartialEq)]
enum Polls {
    Never,
    /// One that has left.
    Lately,
    Now,
}

/// What the rest before was.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Usual,
    /// A long one.
    Long,
    /// One behind a long one, whose calls may all have come at its beginning: to see whether others do.
    Doubtful,
}

fn tick(inner: &Inner, calls: u64, before: Before) -> (Duration, Before) {
    let polls = match (inner.takes_was_polled(), inner.is_polled()) {
        (_, true) => Polls::Now,
        (true, false) => Polls::Lately,
        (false, false) => Polls::Never,
    };
    let steady = steady(inner.needless_for(), inner.is_crowded());
    rest(polls, inner.is_waited_beside(), inner.is_in_a_hurry(), calls, steady, before)
}

/// In a program that has not needed the helper: the longer tick.
fn steady(needless_for: Duration, is_crowded: bool) -> Option<Duration> {
    (needless_for >= STEADY).then_some(if is_crowded { CROWDED_TICK } else { LONG_TICK })
}

fn rest(
    polls: Polls,
    is_awaited: bool,
    is_urgent: bool,
    calls: u64,
    steady: Option<Duration>,
    before: Before,
) -> (Duration, Before) {
    match (polls, steady) {
        // Who polls now does it for all.
        (Polls::Now, Some(tick)) => (tick, Before::Long),
        (Polls::Now, None) => (TICK, Before::Usual),
        // A wake-up that meets the caller between two waits says no more than one that meets it in a wait: so many calls, or any in so short a time, prove that others will come.
        (Polls::Lately, Some(_)) if calls >= MANY_CALLS && before == Before::Long => (TICK, Before::Doubtful),
        (Polls::Lately, Some(tick)) if calls >= MANY_CALLS || calls > 0 && before == Before::Doubtful => {
            (tick, Before::Long)
        }
        _ if is_awaited && calls < MANY_CALLS || is_urgent && calls < FLOOD_CALLS => (SHORT_TICK, Before::Usual),
        _ => (TICK, Before::Usual),
    }
}

/// Polls and sleeps on the links until a caller does.
fn take_care<'a>(inner: &'a Inner, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
    let mut spin_until = inner.now();
    let (mut spin_ns, mut pace) = (0, core.spin.pace(spin_until));
    while core.poller == Poller::Helper && !core.shut_down {
        let now = inner.now();
        if core.turn(now) {
            if core.arrived_at == now {
                if now < spin_until {
                    core.spin.helper.succeeded();
                }
                // An event loop that just got something will soon cause more.
                spin_ns = if core.waiters.has_watches() { core.spin.helper_budget_ns(now) } else { 0 };
                spin_until = now.after(spin_ns);
            }
            core = inner.let_in(core);
        } else if now < spin_until && inner.may_keep(now, &mut pace) {
            std::hint::spin_loop();
        } else if now < spin_until {
            core = inner.give_way(core, now, &mut pace);
        } else {
            if spin_ns > 0 {
                core.spin.helper.failed();
                spin_ns = 0;
            }
            core = inner.sleep_on_links(core, now, None);
        }
    }
    core
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_rests_long_only_where_nothing_has_needed_it() {
        for (is_crowded, long_tick) in [(false, LONG_TICK), (true, CROWDED_TICK)] {
            // A server's thread in `accept` waits all the time.
            let rest_behind = |before, polls, calls, needless_for| {
                rest(polls, true, true, calls, steady(needless_for, is_crowded), before)
            };
            let rest_at = |polls, calls, needless_for| rest_behind(Before::Usual, polls, calls, needless_for).0;
            assert_eq!(rest_at(Polls::Now, 1, STEADY), long_tick);
            assert_eq!(rest_at(Polls::Now, 1, STEADY / 2), TICK);
            assert_eq!(rest_at(Polls::Lately, MANY_CALLS - 1, STEADY), SHORT_TICK, "nobody polls, and somebody waits");
            assert_eq!(rest_at(Polls::Lately, MANY_CALLS, STEADY), long_tick, "the next wait is near");
            assert_eq!(rest_at(Polls::Lately, MANY_CALLS, STEADY / 2), SHORT_TICK);
            assert_eq!(rest_at(Polls::Lately, FLOOD_CALLS, STEADY / 2), TICK);
            assert_eq!(rest_at(Polls::Never, FLOOD_CALLS, STEADY), TICK, "the next call is near");
            let doubtful = (TICK, Before::Doubtful);
            assert_eq!(rest_behind(Before::Long, Polls::Lately, FLOOD_CALLS, STEADY), doubtful, "they may be long ago");
            let long = (long_tick, Before::Long);
            assert_eq!(rest_behind(Before::Doubtful, Polls::Lately, 1, STEADY), long, "they go on coming");
            assert_eq!(rest_behind(Before::Doubtful, Polls::Now, 1, STEADY), long);
            assert_eq!(rest_behind(Before::Long, Polls::Lately, 1, STEADY), (SHORT_TICK, Before::Usual));
        }
        let kept_back = rest(Polls::Never, false, true, 1, steady(STEADY, false), Before::Usual);
        assert_eq!(kept_back.0, SHORT_TICK, "what was kept back leaves");
    }
}
