//! The helper thread: keeps time and answers while no call polls.
//!
//! It never competes with callers. While calls come and go it looks once a millisecond whether somebody has taken care since; when nobody has, it takes over and
//! sleeps on the links like a caller would. While a call sleeps there itself, the helper is parked. So a process without traffic uses no processor time,
//! and a program that computes between its calls still acknowledges within a millisecond or two.

use crate::core::Poller;
use crate::inner::Inner;
use std::io;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the links may be left alone.
const TICK: Duration = Duration::from_millis(1);
/// The same when other threads wait for something that may come meanwhile.
const SHORT_TICK: Duration = Duration::from_micros(200);
/// After so many ticks with the same caller polling the helper parks itself.
const TICKS_TO_PARK: u32 = 16;

pub fn start(inner: Arc<Inner>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("ropeway".into()).stack_size(256 << 10).spawn(move || run(&inner))
}

fn run(inner: &Inner) {
    let mut core = inner.lock();
    let (mut seen, mut ticks) = (core.left, 0);
    let (mut spin_until, mut offered) = (inner.now(), inner.now());
    while !core.shut_down {
        if core.poller == Poller::Nobody && core.left == seen {
            core.poller = Poller::Helper;
        }
        if core.poller == Poller::Helper {
            let now = inner.now();
            if core.turn(now) {
                spin_until = now.after(if core.waiters.has_watches() { inner.most_spin_ns } else { 0 });
            } else if now < spin_until {
                // An event loop that just got something will soon cause more.
                core = inner.give_way(core, now, &mut offered);
            } else {
                core = inner.sleep_on_links(core, None);
            }
            seen = core.left;
            continue;
        }
        ticks = if core.left == seen { ticks + 1 } else { 0 };
        seen = core.left;
        core = if ticks >= TICKS_TO_PARK {
            ticks = 0;
            core.helper_parked = true;
            let woken = inner.helper_condition.wait_while(core, |core| core.helper_parked && !core.shut_down);
            woken.unwrap_or_else(PoisonError::into_inner)
        } else {
            let tick = if core.waiters.is_empty() { TICK } else { SHORT_TICK };
            inner.helper_condition.wait_timeout(core, tick).unwrap_or_else(PoisonError::into_inner).0
        };
    }
}
