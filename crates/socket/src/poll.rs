//! `poll`, `ppoll`, `select` and `pselect` on descriptors some of which have their bytes on rings.
//!
//! Rings are looked at first, everything else by the kernel's own poll; while nothing is ready, a borrowed bell stands
//! in both. What a socket is ready for is [`ready::level`]'s to say (`docs/readiness.md`).

mod reach;
mod select;
mod slots;

pub use reach::within_table;
pub use select::{pselect, select};

use crate::bells::{self, Lent};
use crate::fdtable::{self, Kind};
use crate::ready::{self, ALWAYS, Answer, ENDING, NAP_NS, Question, READ, URGENT, WRITE};
use crate::thread::{self, Signals};
use crate::wait::{self, Deadline};
use crate::{epoll, lifecycle, machine, settings, shadow, stats};
use core::sync::atomic::Ordering;
use libc::{pollfd, timespec};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_PEER_FIN, FLAG_SHUT_RD, FLAG_WAITED, RX_RING, Sock, TX_TCP};
use slots::{FEW, Slot};

/// A socket whose ring delivers has its shadow looked at this often.
const LOOK_US: u64 = 50;
/// While spinning, the kernel is asked this often.
const SPIN_LOOK_US: u64 = 8;
/// `poll`. `native` makes the program's own call on the kernel and returns its answer or -errno.
///
/// # Safety
/// `fds` must point to `n` valid entries.
pub unsafe fn poll(fds: *mut pollfd, n: usize, timeout_ms: i32, native: impl FnOnce() -> isize) -> isize {
    let ns = (timeout_ms >= 0).then(|| timeout_ms as u64 * 1_000_000);
    // SAFETY: passed on to the caller.
    unsafe { watch(fds, n, ns, None, native) }
}

/// `ppoll`: `timeout` and `mask` (the kernel's signal set, one word) may be null.
///
/// # Safety
/// `fds` must point to `n` valid entries, the other pointers must be null or valid.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    n: usize,
    timeout: *const timespec,
    mask: *const u64,
    native: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: passed on to the caller.
    unsafe {
        match wait::time_of(timeout) {
            Some(ns) => watch(fds, n, ns, mask.as_ref().copied(), native),
            None => native(),
        }
    }
}

/// # Safety
/// `fds` must point to `n` valid entries.
unsafe fn watch(
    fds: *mut pollfd,
    n: usize,
    ns: Option<u64>,
    mask: Option<u64>,
    native: impl FnOnce() -> isize,
) -> isize {
    if fds.is_null() || n > FEW && n as u64 > most_descriptors() {
        return native();
    }
    // SAFETY: passed on to the caller; only this call uses the entries while it lasts.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, n) };
    match survey(fds) {
        Found::Nothing => native(),
        Found::Tcp if ns == Some(0) => native(),
        Found::Tcp => {
            let mut native = Some(native);
            slots::with(n, |slots, kernel| {
                fill(fds, slots);
                if slots::count_in(slots)
                    && let Some(native) = native.take()
                {
                    return native();
                }
                Watch::new(fds, slots, kernel).run(ns, mask, Kernel::AsksLater)
            })
            .unwrap_or(-(libc::ENOMEM as isize))
        }
        Found::Rings => slots::with(n, |slots, kernel| {
            fill(fds, slots);
            Watch::new(fds, slots, kernel).run(ns, mask, Kernel::AsksLater)
        })
        .unwrap_or(-(libc::ENOMEM as isize)),
    }
}

fn most_descriptors() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    match unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, core::ptr::null(), &mut limit) } {
        Ok(_) => limit.rlim_cur,
        Err(_) => 0,
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// Nothing of ours.
    Nothing,
    /// Sockets of ours, all on TCP.
    Tcp,
    /// A socket on a ring, or a set that may hold one.
    Rings,
}

fn survey(fds: &[pollfd]) -> Found {
    let mut found = Found::Nothing;
    for h in fds.iter().filter_map(|p| lifecycle::lookup(p.fd)) {
        let here = match h.kind() {
            Kind::Sock => {
                let s = h.sock();
                if !s.has(FLAG_WAITED) {
                    s.set(FLAG_WAITED);
                }
                if ready::has_ring(s) { Found::Rings } else { Found::Tcp }
            }
            Kind::Set if epoll::watched(h) => Found::Rings,
            Kind::Set | Kind::Internal | Kind::Closing | Kind::Replacing | Kind::SetClosing => Found::Nothing,
        };
        found = found.max(here);
    }
    found
}

fn fill(fds: &[pollfd], slots: &mut [Slot]) {
    for (p, slot) in fds.iter().zip(slots) {
        slot.h = fdtable::sock(p.fd);
        slot.follow();
        slot.is_set = slot.h.is_none() && fdtable::lookup(p.fd).is_some_and(|h| h.kind() == Kind::Set);
    }
}

/// What a look at the rings does about the kernel, which knows of descriptors without rings and of shadows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// Asks it, unless rings are ready and nothing else could be.
    Ask,
    /// Asks it only beside rings that are ready: without any, a sleep follows, which asks.
    AsksLater,
    /// It has just said that it has nothing.
    HasNothing,
}

/// One call's entries: the program's, what we know of each, and what the kernel is asked (one place more, for the bell).
struct Watch<'a> {
    fds: &'a mut [pollfd],
    slots: &'a mut [Slot],
    kernel: &'a mut [pollfd],
    signals: Signals,
    /// The first look is over.
    has_looked: bool,
}

impl<'a> Watch<'a> {
    fn new(fds: &'a mut [pollfd], slots: &'a mut [Slot], kernel: &'a mut [pollfd]) -> Watch<'a> {
        Watch { fds, slots, kernel, signals: thread::signals(), has_looked: false }
    }

    /// `first` is what the first look of a wait that may not spin does about the kernel.
    fn run(&mut self, ns: Option<u64>, mask: Option<u64>, first: Kernel) -> isize {
        match self.wait(ns, mask, first) {
            Ok(n) => n as isize,
            Err(e) => -(e as isize),
        }
    }

    fn wait(&mut self, ns: Option<u64>, mask: Option<u64>, first: Kernel) -> sys::Result<usize> {
        let mut deadline: Option<Deadline> = None;
        let mut spun = false;
        let spins = ns != Some(0) && wait::spin_budget() != 0;
        let mut kernel = if ns == Some(0) || spins { Kernel::Ask } else { first };
        loop {
            if self.look(kernel)? != 0 {
                // None is left when a number leads to something else now that is not ready: then the wait goes on.
                let ready = self.look_for_closed();
                if ready != 0 {
                    return Ok(ready);
                }
            }
            if ns == Some(0) {
                return self.let_in(mask).map(|()| 0);
            }
            self.has_looked = true;
            let deadline = *deadline.get_or_insert_with(|| ns.map(|ns| sys::monotonic_ns().saturating_add(ns)));
            if spins && !spun && self.spin() {
                spun = true;
                kernel = Kernel::Ask;
                continue;
            }
            spun = false;
            kernel = self.sleep(deadline, mask)?;
            if deadline.is_some_and(|d| sys::monotonic_ns() >= d) {
                self.look(Kernel::Ask)?;
                return Ok(self.look_for_closed());
            }
        }
    }

    /// As the kernel does where nothing is ready and there is no time to wait: a signal that is pending, and that `mask` lets
    /// in, interrupts the call all the same.
    fn let_in(&self, mask: Option<u64>) -> sys::Result<()> {
        if mask.is_some() {
            let mut none = timespec { tv_sec: 0, tv_nsec: 0 };
            wait::masked(mask, || self.signals.any(), |mask| wait::ppoll(&mut [], Some(&mut none), mask))?;
        }
        Ok(())
    }

    /// As the kernel does when a wait ends: looks up the numbers again, and says of one that leads elsewhere now what that is.
    fn look_for_closed(&mut self) -> usize {
        for i in 0..self.fds.len() {
            if self.slots[i].on_ring().is_some()
                && let Some(h) = self.slots[i].h
                && !fdtable::leads_to(self.fds[i].fd, h)
            {
                self.slots[i].h = None;
                self.fds[i].revents = shadow::poll(self.fds[i].fd, self.fds[i].events);
            }
        }
        self.fds.iter().filter(|entry| entry.revents != 0).count()
    }

    /// Fills in what is ready now, and says how many entries have something.
    fn look(&mut self, kernel: Kernel) -> sys::Result<usize> {
        let (mut ready, mut ask_kernel) = (0, false);
        for i in 0..self.fds.len() {
            self.fds[i].revents = 0;
            let Some(s) = self.slots[i].on_ring() else {
                ask_kernel |= self.fds[i].fd >= 0;
                continue;
            };
            let a = self.level(i, s, false);
            self.fds[i].revents = self.told(i, a);
            ready += (self.fds[i].revents != 0) as usize;
            ask_kernel |= is_time(s);
        }
        match kernel {
            Kernel::HasNothing => return Ok(ready),
            Kernel::AsksLater if ready == 0 => return Ok(0),
            _ if ready != 0 && !ask_kernel => return Ok(ready),
            _ => {}
        }
        self.ask(0);
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let n = self.fds.len();
        // SAFETY: the entries and the time are valid.
        unsafe { sys::ppoll(self.kernel.as_mut_ptr(), n, &mut now, core::ptr::null(), sys::SIGSET_BYTES)? };
        let mut ready = 0;
        for i in 0..n {
            let shown = self.kernel[i].revents;
            match self.slots[i].on_ring() {
                // The shadow has something: what that means is worked out with the ring.
                Some(s) if shown != 0 => {
                    let a = self.level(i, s, true);
                    self.fds[i].revents = self.told(i, a);
                }
                Some(_) => {}
                None => self.fds[i].revents = shown & (self.fds[i].events | ALWAYS as i16 | libc::POLLNVAL),
            }
            ready += (self.fds[i].revents != 0) as usize;
        }
        Ok(ready)
    }

    fn told(&self, i: usize, a: Answer) -> i16 {
        (a.events & (self.want(i) | ALWAYS)) as i16
    }

    fn want(&self, i: usize) -> u32 {
        self.fds[i].events as u16 as u32
    }

    fn level(&mut self, i: usize, s: &Sock, hint: bool) -> Answer {
        let want = self.want(i);
        let fd = self.slots[i].descriptor(self.fds[i].fd);
        let partly_on_tcp = s.rx.phase.load(Ordering::Acquire) != RX_RING
            || want & WRITE != 0 && s.tx.phase.load(Ordering::Acquire) == TX_TCP;
        match self.slots[i].h {
            Some(h) => ready::level(
                h,
                Question {
                    fd,
                    want,
                    hint: hint || partly_on_tcp,
                    token: false,
                    member: None,
                    fresh: false,
                    needs_room: true,
                },
            ),
            None => Answer::default(),
        }
    }

    /// Writes down what the kernel is asked, with `bell` (0 for none) behind it, and settles the sets among it. Some: they must
    /// be settled again after so many nanoseconds.
    fn ask(&mut self, bell: i32) -> Option<u64> {
        let mut again_ns = None;
        for i in 0..self.fds.len() {
            let (fd, events) = match self.slots[i].on_ring() {
                None => {
                    let fd = self.fds[i].fd;
                    if self.slots[i].is_set
                        && let Some(h) = fdtable::lookup(fd).filter(|h| h.kind() == Kind::Set)
                    {
                        again_ns = again_ns.into_iter().chain(epoll::settle(h)).min();
                    }
                    (fd, self.fds[i].events)
                }
                Some(s) => (self.slots[i].descriptor(self.fds[i].fd).unwrap_or(-1), shadow_events(s, self.want(i))),
            };
            self.kernel[i] = pollfd { fd, events, revents: 0 };
        }
        self.kernel[self.fds.len()] = pollfd { fd: bell, events: libc::POLLIN, revents: 0 };
        again_ns
    }

    /// Spins on the rings, and asks the kernel now and then. True when there is something to look at.
    fn spin(&mut self) -> bool {
        if self.fds.len() > FEW || !self.slots.iter().any(|slot| slot.on_ring().is_some()) {
            return false;
        }
        let interval = SPIN_LOOK_US * machine::ticks_per_us();
        let mut next = sys::ticks() + interval;
        let signals = self.signals;
        wait::spin(
            || {
                if self.may_be_ready() {
                    return true;
                }
                let now = sys::ticks();
                if (now.wrapping_sub(next) as i64) < 0 {
                    return false;
                }
                next = now + interval;
                !matches!(self.look(Kernel::Ask), Ok(0))
            },
            signals,
        )
    }

    fn may_be_ready(&self) -> bool {
        self.slots.iter().zip(self.fds.iter()).any(|(slot, p)| {
            let want = p.events as u16 as u32;
            slot.on_ring().is_some_and(|s| {
                want & READ != 0 && ready::maybe_readable(s, None) || want & WRITE != 0 && ready::maybe_writable(s)
            })
        })
    }

    /// Arms every ring, counts itself in where there is none, and sleeps. Says what is known of the kernel then.
    fn sleep(&mut self, deadline: Deadline, mask: Option<u64>) -> sys::Result<Kernel> {
        // First, so that whatever receives over a ring then is armed, and nothing comes to one unarmed.
        let followed = slots::count_in(self.slots);
        let lent = bells::borrow();
        let mut armed = lent.is_some();
        if let Some(lent) = &lent {
            for (slot, p) in self.slots.iter().zip(self.fds.iter()) {
                armed &= slot.arm(p.events as u16 as u32, lent.bell.id);
            }
        }
        self.answer_recalls();
        let mut again_ns = (!armed).then_some(NAP_NS);
        let result = if !followed || self.anything_on_rings(&mut again_ns) {
            Ok(Kernel::AsksLater)
        } else {
            let again = again_ns.map(|ns| sys::monotonic_ns() + ns);
            let until = deadline.into_iter().chain(again).min();
            self.sleep_until(lent, until, mask)
        };
        if let Some(lent) = lent {
            bells::put_back(lent, || self.slots.iter().for_each(Slot::disarm));
        }
        self.answer_recalls();
        self.slots.iter_mut().for_each(Slot::settle);
        result
    }

    fn answer_recalls(&self) {
        self.slots.iter().zip(self.fds.iter()).for_each(|(slot, p)| slot.answer_recall(p.fd));
    }

    /// After arming: exact. `again_ns` becomes the longest that a sleep may last.
    fn anything_on_rings(&mut self, again_ns: &mut Option<u64>) -> bool {
        (0..self.fds.len()).any(|i| {
            let Some(s) = self.slots[i].on_ring() else { return false };
            let a = self.level(i, s, false);
            *again_ns = again_ns.iter().copied().chain(a.again_ns).min();
            self.told(i, a) != 0
        })
    }

    fn sleep_until(&mut self, lent: Option<Lent>, until: Deadline, mask: Option<u64>) -> sys::Result<Kernel> {
        let again = self.ask(lent.map_or(-1, |lent| lent.bell.fd)).map(|ns| sys::monotonic_ns() + ns);
        let until = until.into_iter().chain(again).min();
        let n = self.fds.len() + 1;
        stats::TOTALS.slept.fetch_add(1, Ordering::Relaxed);
        let start = sys::ticks();
        let signals = self.signals;
        let slept = wait::masked(
            mask,
            || signals.any() || lent.is_some_and(|lent| !lent.is_valid()),
            |mask| wait::ppoll_or_nap(&mut self.kernel[..n], n - 1, until, mask),
        );
        let now = sys::ticks();
        machine::note_wait(now.wrapping_sub(start), settings::spin_ns());
        slept?;
        if let Some(lent) = &lent {
            bells::note_events(&lent.bell, self.kernel[n - 1].revents);
        }
        if self.kernel[..n - 1].iter().any(|entry| entry.revents != 0) {
            return Ok(Kernel::Ask);
        }
        self.slots.iter().filter_map(Slot::on_ring).for_each(|s| s.rx.looked.store(now, Ordering::Relaxed));
        Ok(Kernel::HasNothing)
    }
}

/// True, and noted, when the shadow of a socket has not been looked at for a while.
fn is_time(s: &Sock) -> bool {
    let now = sys::ticks();
    let due = now.wrapping_sub(s.rx.looked.load(Ordering::Relaxed)) > LOOK_US * machine::ticks_per_us();
    if due {
        s.rx.looked.store(now, Ordering::Relaxed);
    }
    due
}

/// What of a shadow can make a difference. What is known to have ended must not wake a wait that does not ask for it.
fn shadow_events(s: &Sock, want: u32) -> i16 {
    let mut events = (want & URGENT) as i16;
    if want & READ != 0 {
        events |= libc::POLLIN;
    }
    if !s.has(FLAG_PEER_FIN) && !s.has(FLAG_SHUT_RD) || want & ENDING != 0 {
        events |= libc::POLLRDHUP;
    }
    if want & WRITE != 0 && s.tx.phase.load(Ordering::Acquire) == TX_TCP {
        events |= libc::POLLOUT;
    }
    events
}
