//! `epoll_wait`: the rings of hot members first, then the kernel's set, then spinning, then sleep.

use super::member;
use super::scan::{self, Out};
use super::sets::{self, BELL, Ref, Sleeper};
use super::{NATIVE_PWAIT, memory, owners, rings, settling};
use crate::fdtable::{self, Handle};
use crate::ready::{ALWAYS, NAP_NS};
use crate::thread::{self, Signals};
use crate::wait::{self, Deadline};
use crate::{machine, settings, stats};
use core::sync::atomic::Ordering;
use libc::epoll_event;
use ropeway_shm::sys;
use ropeway_shm::table::{MEMBER_DISABLED, MEMBER_HINT, MEMBER_TOKEN, MODE_SHADOW, MODE_TOKEN};

/// While rings keep delivering, the kernel's set is looked at after so many waits or so much time.
const LOOK_ROUNDS: u32 = 16;
const LOOK_US: u64 = 50;
/// While spinning, it is looked at this often.
const SPIN_LOOK_US: u64 = 8;
/// Members that keep becoming hot while a thread tries to sleep keep it from that so often.
const TRIES: u32 = 3;

/// How long a program is willing to wait.
#[derive(Clone, Copy)]
pub struct Timeout {
    /// Nanoseconds; None for ever.
    pub ns: Option<u64>,
    /// The program counts in milliseconds.
    pub coarse: bool,
}

impl Timeout {
    /// What is left of it when the wait has begun at `start` (ticks).
    fn since(self, start: u64) -> Timeout {
        let spent = sys::ticks().wrapping_sub(start) * 1000 / machine::ticks_per_us();
        Timeout { ns: self.ns.map(|ns| ns.saturating_sub(spent)), ..self }
    }
}

/// What the program gave.
struct Call {
    ep: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: Timeout,
    mask: *const u64,
    /// Handlers that had run when the program called.
    signals: Signals,
}

/// A wait that has rings to look at, or tokens to translate.
struct Wait {
    r: Ref,
    h: Handle,
    ep: i32,
    out: Out,
    mask: Option<u64>,
    timeout: Timeout,
    signals: Signals,
    /// A set that is closed meanwhile is kept as long.
    sleeper: Sleeper,
    /// The array holds events of the kernel: asking again could report them twice.
    fetched: bool,
}

#[derive(PartialEq, Eq)]
enum Slept {
    /// Look again.
    Look,
    TimedOut,
}

/// See [`super::wait()`].
///
/// # Safety
/// As for [`super::wait()`].
pub unsafe fn wait(
    ep: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: Timeout,
    mask: *const u64,
    native: impl FnOnce() -> isize,
) -> isize {
    let mut call = Call { ep, events, max, timeout, mask, signals: thread::signals() };
    match enter(ep) {
        // SAFETY: passed on to the caller.
        Ok(Some((h, sleeper))) => leaving(h, || unsafe { wait_in(h, sleeper, call, native) }),
        Err(e) => -(e as isize),
        Ok(None) => {
            let start = sys::ticks();
            let got = native();
            if got > 0
                && fdtable::lookup(ep).is_some()
                && let Ok(Some((h, sleeper))) = enter(ep)
            {
                // The number has been given to a set of ours meanwhile, and tokens may be among what the kernel told.
                call.timeout = timeout.since(start);
                // SAFETY: passed on to the caller.
                return leaving(h, || unsafe { wait_on(h, sleeper, call, got as usize) });
            }
            got
        }
    }
}

/// The set that a number leads to, in which the calling thread is entered as one that waits.
#[inline]
fn enter(ep: i32) -> sys::Result<Option<(Handle, Sleeper)>> {
    while let Some(h) = sets::lookup(ep)? {
        let r = Ref::of(h);
        let sleeper = r.enter();
        // Closing takes the number out first, then looks who waits.
        if fdtable::leads_to(ep, h) {
            return Ok(Some((h, sleeper)));
        }
        drop(sleeper);
        owners::wait_over(r);
    }
    Ok(None)
}

#[inline]
fn leaving(h: Handle, wait: impl FnOnce() -> isize) -> isize {
    let answer = wait();
    owners::wait_over(Ref::of(h));
    answer
}

/// # Safety
/// As for [`super::wait()`].
unsafe fn wait_in(h: Handle, mut sleeper: Sleeper, mut call: Call, native: impl FnOnce() -> isize) -> isize {
    let r = Ref::of(h);
    if call.max <= 0 || call.max as usize > i32::MAX as usize / size_of::<epoll_event>() {
        return native();
    }
    if r.set.waited.load(Ordering::Relaxed) == 0 {
        r.set.waited.store(1, Ordering::Release);
    }
    let mut got = 0;
    if !is_ours(r) {
        let start = sys::ticks();
        match natively(r, call.timeout, &mut sleeper, native) {
            // Where the number has gone to another set meanwhile, tokens of that one may be among them.
            Some(n) if n <= 0 || r.set.tokens.load(Ordering::Acquire) == 0 && fdtable::leads_to(call.ep, h) => {
                return n;
            }
            Some(n) => got = n as usize,
            None => {}
        }
        call.timeout = call.timeout.since(start);
    }
    // SAFETY: passed on to the caller.
    unsafe { wait_on(h, sleeper, call, got) }
}

/// Waits by ourselves. `got` events of the kernel stand in the program's array already.
///
/// # Safety
/// As for [`super::wait()`].
unsafe fn wait_on(h: Handle, sleeper: Sleeper, call: Call, got: usize) -> isize {
    let Call { ep, events, max, timeout, mask, signals } = call;
    let room = if got > 0 { max as usize } else { memory::room(events, max as usize) };
    if room == 0 {
        return -(libc::EFAULT as isize);
    }
    // SAFETY: null or valid (contract).
    let mask = if mask.is_null() { None } else { Some(unsafe { *mask }) };
    // SAFETY: `room` entries can be written (contract, and just checked).
    let out = unsafe { Out::new(events, room) };
    Wait { r: Ref::of(h), h, ep, out, mask, timeout, signals, sleeper, fetched: false }.run(got)
}

/// True when a wait must look at more than the kernel's set.
#[inline]
pub fn is_ours(r: Ref) -> bool {
    r.set.rings.load(Ordering::SeqCst) != 0 || r.set.contains.load(Ordering::Relaxed) != 0 && sets::any_nested()
}

/// Waits in the kernel alone. None: a socket of the set came onto a ring before that began.
fn natively(r: Ref, timeout: Timeout, sleeper: &mut Sleeper, native: impl FnOnce() -> isize) -> Option<isize> {
    if timeout.ns == Some(0) {
        return Some(native());
    }
    // First half of sleeper/rings: pairs with `carrier_changed`, which sets `rings` and then looks for sleepers.
    sleeper.sleeps();
    (!is_ours(r)).then(native)
}

impl Wait {
    /// `got` events of the kernel stand in the array already.
    fn run(mut self, got: usize) -> isize {
        if got > 0 {
            self.translate(got);
            if self.out.n > 0 && !is_ours(self.r) {
                return self.out.n as isize;
            }
        }
        match self.wait() {
            Ok(n) => self.end(n as isize),
            Err(e) => self.end(-(e as isize)),
        }
    }

    fn wait(&mut self) -> sys::Result<usize> {
        let poll = self.timeout.ns == Some(0);
        let mut deadline: Option<Deadline> = None;
        let mut spun = false;
        loop {
            self.follow()?;
            if self.r.set.dirty.load(Ordering::Acquire) != 0 {
                member::clean(self.r);
            }
            // Before a sleep that will ask the kernel anyway, rings without news are no reason to ask it.
            let news =
                poll || self.out.n > 0 || self.out.ask_kernel || wait::spin_budget() != 0 || scan::anything(self.r);
            if news && (self.look(poll)? > 0 || poll) {
                return Ok(self.out.n);
            }
            let deadline =
                *deadline.get_or_insert_with(|| self.timeout.ns.map(|ns| sys::monotonic_ns().saturating_add(ns)));
            if !spun && self.spin()? {
                // What made it end may turn out to be nothing: then no second time.
                spun = true;
                continue;
            }
            if self.sleep(deadline)? == Slept::TimedOut {
                return Ok(self.out.n);
            }
            spun = false;
        }
    }

    /// Goes on by another descriptor of the set when the number was closed, and may be another set's. An error when there is none: none
    /// could be kept.
    fn follow(&mut self) -> sys::Result<()> {
        if !fdtable::leads_to(self.ep, self.h) {
            self.ep = Ref::named(self.r.name).and_then(|r| r.ep()).ok_or(libc::EBADF)?;
        }
        Ok(())
    }

    /// One look at the rings, and at the kernel's set if it is time for that or the rings had nothing. Each member is
    /// reported once at most.
    fn look(&mut self, poll: bool) -> sys::Result<usize> {
        let turn = &self.r.set.turn;
        let due = self.is_time() || poll;
        let kernel_first = due && turn.load(Ordering::Relaxed) == 0;
        if kernel_first {
            self.ask_kernel()?;
        }
        // When one side filled the array, the other one comes first next time.
        turn.store((kernel_first && self.out.left() == 0) as u32, Ordering::Relaxed);
        scan::look(self.r, &mut self.out);
        if due && !kernel_first {
            self.ask_kernel()?;
        } else if self.out.ask_kernel || self.out.n == 0 && !due && wait::spin_budget() != 0 {
            self.ask_kernel()?;
            if self.out.n == 0 {
                scan::look(self.r, &mut self.out);
            }
        }
        Ok(self.out.n)
    }

    fn end(&self, answer: isize) -> isize {
        settling::leave(self.r);
        answer
    }

    /// Whether the kernel's set has been left alone for long enough, though the rings deliver.
    fn is_time(&self) -> bool {
        let rounds = self.r.set.rounds.load(Ordering::Relaxed) + 1;
        self.r.set.rounds.store(rounds, Ordering::Relaxed);
        rounds >= LOOK_ROUNDS
            || sys::ticks().wrapping_sub(self.r.set.looked.load(Ordering::Relaxed)) > LOOK_US * machine::ticks_per_us()
    }

    /// Fetches what the kernel has, without waiting, into the room that is left. What is for rings makes members hot.
    fn ask_kernel(&mut self) -> sys::Result<()> {
        self.out.ask_kernel = false;
        if self.fetched || self.out.left() == 0 {
            return Ok(());
        }
        settling::settle_inner(self.r);
        self.note_asked();
        let room = self.out.left().min(i32::MAX as usize) as i32;
        // SAFETY: the program's array has that room left (contract of `Out`).
        let got = unsafe { sys::epoll_pwait(self.ep, self.out.next(), room, 0, core::ptr::null(), sys::SIGSET_BYTES) }?;
        self.translate(got);
        Ok(())
    }

    fn note_asked(&self) {
        self.r.set.rounds.store(0, Ordering::Relaxed);
        self.r.set.looked.store(sys::ticks(), Ordering::Relaxed);
    }

    /// Works through `got` events that the kernel has put behind those reported so far: keeps the program's own, does what
    /// ours ask for. The kernel's order stays, and each of its events makes one of ours at most, so none is overwritten unread.
    fn translate(&mut self, got: usize) {
        let (first, before) = (self.out.next(), self.out.n);
        for k in 0..got {
            // SAFETY: the kernel has just written these.
            let event = unsafe { first.add(k).read_unaligned() };
            match sets::number_in(event.u64) {
                None => self.out.push(event.events, event.u64),
                Some(BELL) => {
                    if !rings::take_rings(self.r) && !self.r.holds_bell() {
                        // Another process holds it: from now on the set rings ours.
                        self.r.lock().ensure_bell();
                    }
                }
                Some(number) => self.take_token(number, event.events),
            }
        }
        self.fetched |= self.out.n > before;
    }

    /// The kernel reported a member under our token.
    fn take_token(&mut self, number: u32, events: u32) {
        let Some((h, e)) = member::named_by(number) else { return };
        let (i, s) = (h.index(), h.sock());
        let m = &s.members[e];
        // The kernel may report a member before whoever registered it has written that down, and one that another thread is
        // just taking out: then the entry may be another socket's, in another set. Or the number that was asked by is another set's now.
        let locked = self.r.lock();
        if s.member_of[e].load(Ordering::Acquire) != self.r.name {
            drop(locked);
            member::reported_elsewhere(h, e);
            return;
        }
        if !h.is_current() {
            return;
        }
        match m.mode.load(Ordering::Acquire) {
            MODE_SHADOW => {
                m.flags.fetch_or(MEMBER_TOKEN | MEMBER_HINT, Ordering::AcqRel);
                s.rx.shadow_event.store(1, Ordering::Release);
                self.r.lists().hot.insert(i);
                drop(locked);
                scan::report_named(self.r, i, e, &mut self.out);
            }
            MODE_TOKEN => {
                let events = events & (m.events.load(Ordering::Acquire) | ALWAYS);
                // Otherwise it has fired already, or another firing is wanted now.
                if events != 0 && m.flags.fetch_or(MEMBER_DISABLED, Ordering::AcqRel) & MEMBER_DISABLED == 0 {
                    self.out.push(events, m.data.load(Ordering::Acquire));
                }
            }
            // Given back to the kernel, which reports it again under the program's own data.
            _ => {}
        }
    }

    /// Spins on the hot members, and asks the kernel now and then. True when there is something to look at.
    fn spin(&mut self) -> sys::Result<bool> {
        let r = self.r;
        if r.lists().hot.is_empty() {
            return Ok(false);
        }
        let interval = SPIN_LOOK_US * machine::ticks_per_us();
        let mut next = sys::ticks() + interval;
        let signals = self.signals;
        let mut asked = Ok(());
        let found = wait::spin(
            || {
                if scan::anything(r) {
                    return true;
                }
                let now = sys::ticks();
                if (now.wrapping_sub(next) as i64) < 0 {
                    return false;
                }
                next = now + interval;
                asked = self.ask_kernel();
                asked.is_err() || self.out.n > 0
            },
            signals,
        );
        asked.map(|()| found)
    }

    /// Makes every member cold and sleeps in the kernel.
    fn sleep(&mut self, deadline: Deadline) -> sys::Result<Slept> {
        if self.r.set.rings.load(Ordering::SeqCst) != 0 && !self.r.holds_bell() && !self.r.lock().ensure_bell() {
            return self.nap(NAP_NS, deadline);
        }
        // First half of sleeper/hot: pairs with those who make a member hot and then look for sleepers.
        self.sleeper.sleeps();
        self.follow()?;
        for _ in 0..TRIES {
            self.out.again_ns = None;
            let armed = scan::doze(self.r, &mut self.out);
            if !armed.all {
                self.out.again_ns = Some(NAP_NS);
            }
            if self.out.n > 0 {
                return Ok(Slept::Look);
            }
            if armed.quiet || !scan::anything(self.r) {
                break;
            }
            self.out.again_ns = Some(NAP_NS);
        }
        match self.out.again_ns {
            Some(ns) => self.nap(ns, deadline),
            None => self.sleep_until(deadline, deadline),
        }
    }

    /// Sleeps for a moment only: not everything that matters would wake us.
    fn nap(&mut self, ns: u64, deadline: Deadline) -> sys::Result<Slept> {
        let until = sys::monotonic_ns() + ns;
        self.sleep_until(Some(deadline.map_or(until, |d| d.min(until))), deadline)
    }

    fn sleep_until(&mut self, until: Deadline, deadline: Deadline) -> sys::Result<Slept> {
        let soon = settling::settle_inner(self.r).map(|ns| sys::monotonic_ns() + ns);
        let until = until.into_iter().chain(soon).min();
        stats::TOTALS.slept.fetch_add(1, Ordering::Relaxed);
        let start = sys::ticks();
        let signals = self.signals;
        let inner = self.r.set.contains.load(Ordering::Relaxed) != 0;
        let slept = wait::masked(
            self.mask,
            || signals.any(),
            |mask| {
                if inner { self.poll_set(until, mask) } else { self.pwait(until, mask) }
            },
        );
        machine::note_wait(sys::ticks().wrapping_sub(start), settings::spin_ns());
        let got = slept?;
        self.follow()?;
        if got > 0 {
            if inner {
                // Nothing has been fetched yet.
                self.out.ask_kernel = true;
            } else {
                self.note_asked();
                self.translate(got);
            }
        } else if deadline.is_some_and(|d| sys::monotonic_ns() >= d) {
            return Ok(Slept::TimedOut);
        }
        Ok(Slept::Look)
    }

    /// Sleeps until the set is readable without fetching anything: what the sets inside it show is checked first.
    fn poll_set(&mut self, until: Deadline, mask: &u64) -> sys::Result<usize> {
        let mut set = [libc::pollfd { fd: self.ep, events: libc::POLLIN, revents: 0 }];
        wait::ppoll_or_nap(&mut set, 0, until, mask)
    }

    /// The C library's `epoll_pwait`, which is a cancellation point; the raw call where its milliseconds are too coarse.
    fn pwait(&mut self, until: Deadline, mask: &u64) -> sys::Result<usize> {
        /// Longer than this is slept in pieces.
        const MOST_MS: u64 = 1 << 30;
        let left = until.map(|u| u.saturating_sub(sys::monotonic_ns()));
        let room = self.out.left().min(i32::MAX as usize) as i32;
        let events = self.out.next();
        if !self.timeout.coarse && left.is_some_and(|ns| ns < 1_000_000) {
            let time = until.map(wait::time_until);
            let time = time.as_ref().map_or(core::ptr::null(), |t| t as *const libc::timespec);
            // SAFETY: all pointers are valid for the call; the array has that room.
            return unsafe { sys::epoll_pwait2(self.ep, events, room, time, mask, sys::SIGSET_BYTES) };
        }
        let ms = match left {
            None => -1,
            Some(ns) if self.timeout.coarse => ns.div_ceil(1_000_000).min(MOST_MS) as i32,
            Some(ns) => (ns / 1_000_000).min(MOST_MS) as i32,
        };
        let native = NATIVE_PWAIT.load(Ordering::Acquire);
        if native.is_null() {
            // SAFETY: as above.
            return unsafe { sys::epoll_pwait(self.ep, events, room, ms, mask, sys::SIGSET_BYTES) };
        }
        let set = wait::wide(mask);
        // SAFETY: `set_native_pwait` stored a function of this type; pointers are valid for the call.
        unsafe {
            let f: super::EpollPwait = core::mem::transmute(native);
            let n = f(self.ep, events, room, ms, (&raw const set).cast());
            if n < 0 { Err(*libc::__errno_location()) } else { Ok(n as usize) }
        }
    }
}
