//! Looking at the members of a set that are hot, and making them cold (`docs/readiness.md`, section 3).

use super::member::{self, EDGE, ONESHOT};
use super::rings::answer_recalls;
use super::sets::{self, Locked, Ref};
use crate::fdtable::{self, Handle};
use crate::handover;
use crate::process;
use crate::ready::{self, ALWAYS, Question, READ, WRITE};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use libc::epoll_event;
use ropeway_shm::ring::End;
use ropeway_shm::table::{
    FLAG_PEER_FIN, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR, MAX_SOCKS, MEMBER_DISABLED, MEMBER_FRESH, MEMBER_GHOST,
    MEMBER_HINT, MEMBER_TOKEN, MODE_SHADOW, Member, RX_TCP, Sock, TX_RING,
};

/// Fruitless rounds after which a hot member becomes cold. Looking once costs a few nanoseconds, ringing a bell and taking
/// it several hundred times as much.
const IDLE_ROUNDS: u32 = 256;
/// Sockets that are looked at under one hold of the set's lock.
const BATCH: usize = 64;

/// The program's array of events.
pub struct Out {
    events: *mut epoll_event,
    room: usize,
    pub n: usize,
    /// A member is the kernel's again, which reports it next time it is asked.
    pub ask_kernel: bool,
    /// A member must be looked at again after so many nanoseconds, whatever wakes us.
    pub again_ns: Option<u64>,
    /// Marks the members that this wait has reported: one wait looks at a member several times.
    stamp: u32,
}

/// Stamps given out so far.
static STAMPS: AtomicU32 = AtomicU32::new(0);

impl Out {
    /// # Safety
    /// `events` must have room for `room` entries while this is used.
    pub unsafe fn new(events: *mut epoll_event, room: usize) -> Out {
        let stamp = STAMPS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Out { events, room, n: 0, ask_kernel: false, again_ns: None, stamp }
    }

    /// True when this wait has reported the member already: a second event of one wait would be a lie once the program has
    /// dealt with the first.
    fn has(&self, m: &Member) -> bool {
        self.n > 0 && m.stamp.load(Ordering::Relaxed) == self.stamp
    }

    pub fn left(&self) -> usize {
        self.room - self.n
    }

    /// Where the next event goes; [`Out::left`] of them fit.
    pub fn next(&self) -> *mut epoll_event {
        self.events.wrapping_add(self.n)
    }

    pub fn push(&mut self, events: u32, data: u64) {
        if self.left() > 0 {
            // SAFETY: inside the program's array (contract of `new`); packed, so of any alignment.
            unsafe { self.next().write_unaligned(epoll_event { events, u64: data }) };
            self.n += 1;
        }
    }
}

/// A guess without locks whether a member has something to report; None if it wants nothing. The caller keeps the rings
/// mapped.
#[inline]
fn hopeful(s: &Sock, m: &Member) -> Option<bool> {
    let flags = m.flags.load(Ordering::SeqCst);
    if m.mode.load(Ordering::Relaxed) != MODE_SHADOW || flags & (MEMBER_GHOST | MEMBER_DISABLED) != 0 {
        return None;
    }
    if flags & (MEMBER_FRESH | MEMBER_TOKEN | MEMBER_HINT) != 0 {
        return Some(true);
    }
    let events = m.events.load(Ordering::Relaxed);
    let edge = events & EDGE != 0;
    if !edge && s.flags.load(Ordering::Acquire) & (FLAG_RESET | FLAG_PEER_FIN | FLAG_SHUT_RD | FLAG_SHUT_WR) != 0 {
        return Some(true);
    }
    let reads = events & READ != 0 && ready::maybe_readable(s, edge.then_some(m));
    let writes = events & WRITE != 0 && (!edge || s.tx.blocked.load(Ordering::SeqCst) != 0) && ready::maybe_writable(s);
    Some(reads || writes)
}

/// True while this process has the socket: only then are its rings mapped here.
#[inline(always)]
fn is_here(i: u32) -> bool {
    process::local(i).fds.load(Ordering::SeqCst) > 0
}

/// True when a hot member may have something to report. Changes nothing.
#[inline]
pub fn anything(r: Ref) -> bool {
    let _locked = r.lock();
    let mut found = false;
    r.lists().hot.for_each_from(0, |i| {
        let s = process::table().sock(i);
        found = is_here(i) && member::entries(s, r.name).any(|(_, m)| hopeful(s, m) == Some(true));
        !found
    });
    found
}

/// Looks at all hot members, from where the last look stopped, and reports what is ready.
pub fn look(r: Ref, out: &mut Out) {
    let start = r.set.cursor.load(Ordering::Relaxed);
    in_batches(
        r.lock(),
        start,
        |i| is_worth_a_closer_look(r, i),
        |i| {
            if out.left() == 0 {
                r.set.cursor.store(i, Ordering::Relaxed);
                return false;
            }
            let h = Handle::of_record(i);
            if !report(r, h, out) && is_tired(r, i) {
                cool(r, h, out);
            }
            true
        },
    );
}

/// Goes once around the hot sockets from `start` on. Calls `f`, without the lock, with those that `picks` takes under it, until it
/// says false.
#[inline]
fn in_batches(mut locked: Locked, start: u32, picks: impl Fn(u32) -> bool, mut f: impl FnMut(u32) -> bool) {
    let r = locked.r;
    let rank = |i: u32| i.wrapping_sub(start) % MAX_SOCKS;
    let mut from = start;
    loop {
        let (mut batch, mut n, mut rest) = ([0u32; BATCH], 0, None);
        r.lists().hot.for_each_from(from, |i| {
            if rank(i) < rank(from) {
                return false;
            }
            if n == BATCH {
                rest = Some(i);
                return false;
            }
            if picks(i) {
                batch[n] = i;
                n += 1;
            }
            true
        });
        drop(locked);
        if !batch[..n].iter().all(|i| f(*i)) {
            return;
        }
        let Some(next) = rest else { return };
        (from, locked) = (next, r.lock());
    }
}

/// The quick part of a look at a hot socket, without locks on it.
#[inline]
fn is_worth_a_closer_look(r: Ref, i: u32) -> bool {
    let s = process::table().sock(i);
    if !is_here(i) {
        return false;
    }
    let mut wants = false;
    for (_, m) in member::entries(s, r.name) {
        match hopeful(s, m) {
            Some(true) => return true,
            Some(false) => wants = true,
            None => {}
        }
    }
    if !wants {
        r.lists().hot.remove(i);
        return false;
    }
    is_tired(r, i)
}

/// Counts a fruitless round; true when there were many.
fn is_tired(r: Ref, i: u32) -> bool {
    let s = process::table().sock(i);
    member::entries(s, r.name).next().is_some_and(|(_, m)| {
        let idle = m.idle.load(Ordering::Relaxed) + 1;
        m.idle.store(idle, Ordering::Relaxed);
        idle > IDLE_ROUNDS
    })
}

/// Works out what the memberships of a socket have to report, exactly. True when one had.
fn report(r: Ref, h: Handle, out: &mut Out) -> bool {
    let s = h.sock();
    let mut any = false;
    for (e, m) in member::entries(s, r.name) {
        if report_member(r, h, e, m, false, out) {
            m.idle.store(0, Ordering::Relaxed);
            any = true;
        }
    }
    any
}

/// Reports a member that the kernel has just named, so that its event stands among the kernel's own where it belongs: a
/// program may rely on seeing first what happened first.
pub fn report_named(r: Ref, i: u32, e: usize, out: &mut Out) {
    let h = Handle::of_record(i);
    let m = &h.sock().members[e];
    if is_here(i) && report_member(r, h, e, m, true, out) {
        m.idle.store(0, Ordering::Relaxed);
    }
}

/// `named`: the kernel has just named it, and is asked again by a later wait only.
fn report_member(r: Ref, h: Handle, e: usize, m: &Member, named: bool, out: &mut Out) -> bool {
    const ASKS: u32 = MEMBER_FRESH | MEMBER_TOKEN | MEMBER_HINT;
    let flags = m.flags.load(Ordering::Acquire);
    if m.mode.load(Ordering::Acquire) != MODE_SHADOW || flags & (MEMBER_GHOST | MEMBER_DISABLED) != 0 || out.left() == 0
    {
        return false;
    }
    if out.has(m) {
        return true;
    }
    let asks = if flags & ASKS == 0 { 0 } else { m.flags.fetch_and(!ASKS, Ordering::AcqRel) & ASKS };
    // After that: who changes what is wanted asks for a look next.
    let events = m.events.load(Ordering::Acquire);
    let edge = events & EDGE != 0;
    let fd = Some(m.fd.load(Ordering::Acquire)).filter(|fd| fdtable::leads_to(*fd, h));
    let fresh = asks & MEMBER_FRESH != 0;
    let mut a = ready::level(
        h,
        Question {
            fd,
            want: events,
            hint: asks & (MEMBER_TOKEN | MEMBER_HINT) != 0,
            token: asks & MEMBER_TOKEN != 0,
            member: edge.then_some(m),
            fresh,
            needs_room: needs_room(h.sock(), events),
        },
    );
    out.again_ns = out.again_ns.into_iter().chain(a.again_ns).min();
    if !is_member(r, h, e) {
        // What was taken and noted may have been the next member's.
        m.seen.store(0, Ordering::Relaxed);
        ask_for_a_look(h, e, asks);
        return false;
    }
    if m.mode.load(Ordering::Acquire) != MODE_SHADOW {
        // Looking brought the socket back to TCP: the kernel, told so, reports what is there. A level need not wait for that.
        if named && events & (EDGE | ONESHOT) == 0 && put(r, h, e, a.events, out) {
            return true;
        }
        out.ask_kernel = true;
        return false;
    }
    if fd.is_none() {
        // Another process may look at the shadow.
        m.flags.fetch_or(asks & (MEMBER_TOKEN | MEMBER_HINT), Ordering::AcqRel);
    } else if a.hint && !edge {
        m.flags.fetch_or(MEMBER_HINT, Ordering::AcqRel);
    }
    if edge && a.events & events & WRITE != 0 && unblock(h, e) {
        a.news = true;
    }
    if a.events & (events | ALWAYS) == 0 || edge && !fresh && !a.news {
        return false;
    }
    if !put(r, h, e, a.events, out) {
        // What the kernel told of is told of once.
        if is_member(r, h, e) {
            m.flags.fetch_or(asks & (MEMBER_TOKEN | MEMBER_HINT), Ordering::AcqRel);
        }
        return false;
    }
    // What the kernel knew of the shadow then, it has said.
    h.sock().rx.looked.store(r.set.looked.load(Ordering::Relaxed), Ordering::Relaxed);
    true
}

/// Whether an entry of a socket still is what it was when `h` was looked up: its membership in this set.
fn is_member(r: Ref, h: Handle, e: usize) -> bool {
    h.sock().member_of[e].load(Ordering::Acquire) == r.name && h.is_current()
}

/// Puts what a socket is ready for into the program's array, if its member still is there and wants some of it. Under the set's
/// lock, as members come, go and change: what was found of one must not be reported under the data of the next.
fn put(r: Ref, h: Handle, e: usize, ready: u32, out: &mut Out) -> bool {
    let m = &h.sock().members[e];
    let _locked = r.lock();
    let events = m.events.load(Ordering::Relaxed);
    let mask = ready & (events | ALWAYS);
    // One that was armed anew since the look began is looked at again, for what is asked now.
    let is_asked_anew = events & ONESHOT != 0 && m.has(MEMBER_FRESH);
    if mask == 0 || is_asked_anew || !is_member(r, h, e) || m.has(MEMBER_GHOST | MEMBER_DISABLED) {
        return false;
    }
    if events & ONESHOT != 0 {
        m.flags.fetch_or(MEMBER_DISABLED, Ordering::AcqRel);
    }
    out.push(mask, m.data.load(Ordering::Relaxed));
    m.stamp.store(out.stamp, Ordering::Relaxed);
    true
}

/// Whichever member has an entry now is looked at soon, and as `asks` says.
fn ask_for_a_look(h: Handle, e: usize, asks: u32) {
    let s = h.sock();
    if let Some(r) = Ref::named(s.member_of[e].load(Ordering::Acquire)) {
        s.members[e].flags.fetch_or(asks, Ordering::AcqRel);
        r.lists().hot.insert(h.index());
        r.wake();
    }
}

/// Whether a member has something to report, without taking it: exact for a level-triggered member; an edge-triggered one
/// of which the kernel has said something counts as ready if it could be. `again_ns` becomes the time after which to look again, if
/// that is less.
pub fn is_ready(r: Ref, h: Handle, m: &Member, again_ns: &mut Option<u64>) -> bool {
    const KERNEL: u32 = MEMBER_TOKEN | MEMBER_HINT;
    let flags = m.flags.load(Ordering::Acquire);
    if m.mode.load(Ordering::Acquire) != MODE_SHADOW || flags & (MEMBER_GHOST | MEMBER_DISABLED) != 0 {
        return false;
    }
    let events = m.events.load(Ordering::Acquire);
    let fd = Some(m.fd.load(Ordering::Acquire)).filter(|fd| fdtable::leads_to(*fd, h));
    let asks =
        if flags & KERNEL == 0 || fd.is_none() { 0 } else { m.flags.fetch_and(!KERNEL, Ordering::AcqRel) & KERNEL };
    let (hint, fresh) = (asks != 0, flags & MEMBER_FRESH != 0);
    let s = h.sock();
    let needs_room = needs_room(s, events);
    let a = ready::level(h, Question { fd, want: events, hint, token: false, member: None, fresh, needs_room });
    *again_ns = again_ns.iter().copied().chain(a.again_ns).min();
    let mask = a.events & (events | ALWAYS);
    let news = || {
        let written = s.tx.blocked.load(Ordering::SeqCst) != 0 && mask & WRITE != 0;
        let _locked = r.lock();
        asks & MEMBER_TOKEN != 0 || fresh || written || is_here(h.index()) && ready::maybe_readable(s, Some(m))
    };
    let ready = mask != 0 && (events & EDGE == 0 || news());
    if ready || a.hint || !h.is_current() {
        m.flags.fetch_or(asks, Ordering::AcqRel);
    }
    ready && m.mode.load(Ordering::Acquire) == MODE_SHADOW
}

/// There is room again after a send that found none: true for the first who sees it, who tells the other memberships.
fn unblock(h: Handle, e: usize) -> bool {
    let s = h.sock();
    if s.tx.blocked.load(Ordering::SeqCst) == 0 || s.tx.blocked.swap(0, Ordering::SeqCst) == 0 {
        return false;
    }
    for (other, m) in s.members.iter().enumerate() {
        if other != e && m.events.load(Ordering::Relaxed) & EDGE != 0 {
            ask_for_a_look(h, other, MEMBER_FRESH);
        }
    }
    true
}

/// Makes a socket cold in the set and looks once more. It stays hot when a ring has no place left for our bell, or when it
/// must be looked at again soon.
fn cool(r: Ref, h: Handle, out: &mut Out) {
    let locked = r.lock();
    if !h.is_current() {
        // Closed meanwhile: whose record it is now has just come, and is hot.
        return;
    }
    r.lists().hot.remove(h.index());
    let armed = arm(&locked, h, 0);
    drop(locked);
    fence(Ordering::SeqCst);
    answer_recalls(r, h);
    let others = out.again_ns.take();
    if report(r, h, out) || !armed || out.again_ns.is_some() {
        r.lists().hot.insert(h.index());
    }
    out.again_ns = out.again_ns.into_iter().chain(others).min();
}

/// Asks a socket's rings to ring for it; `sleep` is the number of the sleep that this is for, 0 for a cold member. False
/// when a ring has no place left. A full barrier must follow before the next look.
fn arm(locked: &Locked, h: Handle, sleep: u32) -> bool {
    let (r, s) = (locked.r, h.sock());
    let bell = r.set.bell_id.load(Ordering::Acquire);
    let Some([(incoming, _), (outgoing, _)]) = sets::rings_of(h) else { return true };
    let mut armed = true;
    for (e, m) in member::entries(s, r.name) {
        if m.mode.load(Ordering::Relaxed) != MODE_SHADOW || m.has(MEMBER_GHOST | MEMBER_DISABLED) {
            continue;
        }
        let events = m.events.load(Ordering::Relaxed);
        let tag = (sleep as u64) << 32 | member::number(h, e) as u64;
        if events & READ != 0 && ready::hears_incoming(s) {
            armed &= ready::arm(&incoming, End::Reader, &m.rx_slot, bell, tag);
        }
        if events & WRITE != 0 && needs_room(s, events) && s.tx.phase.load(Ordering::Acquire) == TX_RING {
            armed &= ready::arm(&outgoing, End::Writer, &m.tx_slot, bell, tag);
        }
    }
    armed
}

/// Whether a member waits for room: an edge-triggered one does so only after a send that found none.
fn needs_room(s: &Sock, events: u32) -> bool {
    events & EDGE == 0 || s.tx.blocked.load(Ordering::SeqCst) != 0
}

/// True when no membership of a socket has anything to report, as far as that can be known without waiting, and none waits
/// for room, which a thread that `sleeps` does for a while only. Under the set's lock.
fn is_quiet(r: Ref, i: u32, sleeps: bool) -> bool {
    let s = process::table().sock(i);
    member::entries(s, r.name).all(|(_, m)| {
        let Some(false) = hopeful(s, m) else { return m.mode.load(Ordering::Relaxed) != MODE_SHADOW || !wants(m) };
        let events = m.events.load(Ordering::Relaxed);
        let reads = events & READ != 0 && s.rx.phase.load(Ordering::Acquire) != RX_TCP;
        let on_ring = || s.tx.phase.load(Ordering::Acquire) == TX_RING;
        let writes = sleeps && events & WRITE != 0 && needs_room(s, events) && on_ring();
        !writes && (!reads || events & EDGE != 0 || ready::surely_unreadable(s))
    })
}

fn wants(m: &Member) -> bool {
    !m.has(MEMBER_GHOST | MEMBER_DISABLED)
}

/// What came of arming all hot members of a set.
pub struct Armed {
    /// Every ring had a place for our bell.
    pub all: bool,
    /// No member looked as if it had something to report.
    pub quiet: bool,
}

/// Arms all hot members for one sleep and calls `f` with those that may have something to report all the same, and where the
/// caller `sleeps` with those that wait for room.
pub fn arm_all(r: Ref, sleeps: bool, mut f: impl FnMut(Handle)) -> Armed {
    let sleep = r.next_sleep();
    let (mut all, mut quiet) = (true, true);
    let locked = r.lock();
    r.lists().hot.for_each_from(0, |i| {
        if is_here(i) {
            all &= arm(&locked, Handle::of_record(i), sleep);
        }
        true
    });
    fence(Ordering::SeqCst);
    in_batches(
        locked,
        0,
        |i| is_here(i) && (!is_quiet(r, i, sleeps) || handover::is_recalled(process::table().sock(i))),
        |i| {
            quiet = false;
            let h = Handle::of_record(i);
            answer_recalls(r, h);
            f(h);
            true
        },
    );
    Armed { all, quiet }
}

/// Arms all hot members for the calling thread's sleep and looks at them once more. Unless all could be armed, the sleep must
/// be short.
pub fn doze(r: Ref, out: &mut Out) -> Armed {
    arm_all(r, true, |h| {
        report(r, h, out);
    })
}
