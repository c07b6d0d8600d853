//! What a socket is ready for, as TCP would say it, whichever carrier its bytes are on (`docs/readiness.md`, section 1).

use crate::fdtable::Handle;
use crate::handover::{self, RxLock, TxLock, lock_rx, lock_tx, pair, try_lock_rx, try_lock_tx};
use crate::reason::Reason;
use crate::send::{NO_PROGRESS_NS, still_leads};
use crate::{bells, lifecycle, options, process, recv, shadow, wait};
use core::sync::atomic::Ordering;
use ropeway_shm::ring::{Consumer, End, Look, Position, Ring};
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_LEFT_UNREAD, FLAG_PEER_FIN, FLAG_PINNED, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR, Member, RX_ATTACHED,
    RX_DRAIN, RX_RING, RX_TCP, Sock, TX_RING, TX_TCP,
};

/// Event bits. Those of poll and of epoll are the same numbers.
pub const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub const WRITE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub const URGENT: u32 = libc::EPOLLPRI as u32;
pub const ENDING: u32 = libc::EPOLLRDHUP as u32;
pub const HANGUP: u32 = libc::EPOLLHUP as u32;
pub const ERROR: u32 = libc::EPOLLERR as u32;
/// Reported whether asked for or not.
pub const ALWAYS: u32 = HANGUP | ERROR;

/// True while a ring decides, beside the kernel, what a socket is ready for: either direction is on one, or on its way to or
/// from it, or its end was or may turn out to be a reset that the kernel knows nothing of. One that has left for good is the
/// kernel's alone: its process may not be allowed to ask for more any longer.
#[inline(always)]
pub fn has_ring(s: &Sock) -> bool {
    s.rx.phase.load(Ordering::SeqCst) != RX_TCP
        || s.tx.phase.load(Ordering::SeqCst) != TX_TCP
        || matches!(s.flags.load(Ordering::SeqCst), f if f & (FLAG_RESET | FLAG_LEFT_UNREAD) != 0 && f & FLAG_PINNED == 0)
}

/// True when this process may touch the rings of `h` under one of its locks, or under the lock of a set that it is in:
/// closing brings this to an end before it passes the locks and unmaps.
#[inline(always)]
pub fn is_open(h: Handle) -> bool {
    // In this order: should the record be another's, its descriptor count may be, too.
    process::local(h.index()).fds.load(Ordering::SeqCst) > 0 && h.is_current() || lifecycle::kept_fd(h).is_some()
}

/// What is asked about a socket.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// A descriptor of it in this process; None if there is none: the shadow is not looked at then.
    pub fd: Option<i32>,
    /// The events that matter.
    pub want: u32,
    /// Whether the shadow may have something that has not been taken into account.
    pub hint: bool,
    /// Whether the kernel has said so just now.
    pub token: bool,
    /// The edge-triggered member that asks; its marks are brought up to date.
    pub member: Option<&'a Member>,
    /// Whether that member reports what is there, new or not.
    pub fresh: bool,
    /// Whether the asker waits for room, and not only for the news that there is some.
    pub needs_room: bool,
}

/// What a socket is ready for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Answer {
    pub events: u32,
    /// Something of it is new to the edge-triggered member that asked.
    pub news: bool,
    /// The shadow must be looked at again next time: it holds a state of which the kernel gives no second token.
    pub hint: bool,
    /// Nothing might wake a sleeper when what is wanted comes: it must look again after so many nanoseconds.
    pub again_ns: Option<u64>,
}

/// How long a thread sleeps at most when nothing might wake it.
pub const NAP_NS: u64 = 1_000_000;

/// What stands at the front of the incoming stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Front {
    /// The next byte comes over TCP, if there is one.
    Tcp,
    Empty,
    Data,
}

/// Answers exactly. The caller holds no lock.
pub fn level(h: Handle, q: Question) -> Answer {
    let s = h.sock();
    let mut a = Answer::default();
    let phase = s.rx.phase.load(Ordering::Acquire);
    let front = if q.want & (READ | ENDING) == 0 { Front::Empty } else { front(h, &q, &mut a) };
    let came_to_tcp = front == Front::Tcp && s.rx.phase.load(Ordering::Acquire) != phase;
    let writes = q.want & WRITE != 0;
    let mut left_ring = false;
    if writes && s.tx.phase.load(Ordering::Acquire) == TX_RING {
        room(h, &q, &mut a);
        left_ring = s.tx.phase.load(Ordering::Acquire) == TX_TCP;
    }
    let on_tcp = front == Front::Tcp || writes && s.tx.phase.load(Ordering::Acquire) == TX_TCP;
    if (q.hint || came_to_tcp || left_ring || q.fresh && on_tcp)
        && let Some(fd) = q.fd
    {
        look_at_shadow(h, fd, front, &q, &mut a);
    }
    ends(s, &mut a);
    if let Some(m) = q.member {
        let ends = a.events & (ENDING | ALWAYS | URGENT);
        if ends != 0 && ends & !m.seen.fetch_or(ends, Ordering::AcqRel) != 0 {
            a.news = true;
        }
    }
    a
}

/// The incoming direction's part.
fn front(h: Handle, q: &Question, a: &mut Answer) -> Front {
    let s = h.sock();
    if s.rx.phase.load(Ordering::Acquire) == RX_TCP {
        return Front::Tcp;
    }
    let mut rx = lock_rx(s);
    if !is_open(h) {
        return Front::Empty;
    }
    let front = settle(&mut rx, h, q.fd.unwrap_or(-1));
    if enough(s, &mut rx, front, q.fd, a) {
        a.events |= READ;
        if let Some(m) = q.member
            && let Some((ring, c)) = rx.ring()
        {
            a.news |= is_news(s, &ring, c, m.edge());
            if a.news || q.fresh {
                m.set_edge(ring.unread(c).1);
            }
        }
    }
    front
}

/// Whether there is more than an edge-triggered member was told of, which reached to `edge`. The end of the ring there is no
/// data: of what TCP brings behind it, the kernel tells. Not of bytes that reach the low-water mark only with those in the ring.
#[inline]
fn is_news(s: &Sock, ring: &Ring, c: &Consumer, edge: Position) -> bool {
    let passed = c.at.reached(edge) && c.at != edge;
    passed && ring.pending(c) || ring.has_record_at(edge, c.epoch) || counts_both_carriers(s) && ring.pending_at(edge)
}

/// Whether there is a low-water mark, for which bytes count wherever they are.
fn counts_both_carriers(s: &Sock) -> bool {
    s.rcvlowat.load(Ordering::Relaxed) > 1
}

/// Passes over records that carry no bytes, changing the phase as a receive would, until it is clear what comes next.
fn settle(rx: &mut RxLock, h: Handle, fd: i32) -> Front {
    let s = rx.s;
    loop {
        match s.rx.phase.load(Ordering::Relaxed) {
            RX_TCP => return Front::Tcp,
            RX_ATTACHED => {
                if recv::look_for_switch(rx, h, fd).is_none() {
                    return Front::Tcp;
                }
            }
            RX_RING => {
                let Some((ring, c)) = rx.ring() else { return Front::Tcp };
                match ring.look(c) {
                    Look::Data { .. } => return Front::Data,
                    Look::Empty => return Front::Empty,
                    Look::Closed => rx.closed(h),
                    Look::Switch { .. } | Look::Corrupt => rx.corrupt(h, fd),
                }
            }
            _ if is_before_switch(s) => return Front::Tcp,
            _ => s.rx.phase.store(RX_RING, Ordering::Release),
        }
    }
}

/// Whether the writer has sent bytes over TCP that come before those in the ring, and were not read yet.
fn is_before_switch(s: &Sock) -> bool {
    s.rx.switch_at.load(Ordering::Relaxed) != s.rx.tcp_bytes.load(Ordering::Relaxed)
}

/// SO_RCVLOWAT, at least 1.
fn low_water(s: &Sock, fd: Option<i32>) -> usize {
    match fd {
        Some(fd) => options::receive_low_water(s, fd),
        None => s.rcvlowat.load(Ordering::Relaxed) as usize,
    }
}

/// Fewer bytes than the low-water mark are none. They count on both carriers; but then the kernel, which knows its own
/// share only, gives no token for the last of them.
fn enough(s: &Sock, rx: &mut RxLock, front: Front, fd: Option<i32>, a: &mut Answer) -> bool {
    let low = low_water(s, fd);
    if low <= 1 {
        return front == Front::Data;
    }
    let Some((ring, c)) = rx.ring() else { return false };
    let (in_ring, end) = ring.unread(c);
    let split = front == Front::Tcp || ring.pending_at(end);
    let bytes = fd.filter(|_| split).map_or(in_ring, |fd| rx.readable(fd).unwrap_or(0));
    a.again_ns = (split && bytes > 0 && bytes < low).then_some(NAP_NS);
    bytes >= low
}

/// The outgoing direction's part, while it is on its ring.
fn room(h: Handle, q: &Question, a: &mut Answer) {
    let s = h.sock();
    let mut tx = lock_tx(s);
    if !is_open(h) {
        return;
    }
    let Some((ring, p)) = tx.ring() else { return };
    if ring.writable(p) {
        a.events |= WRITE;
    } else if let (true, Some(mut fd)) = (q.needs_room, q.fd)
        && still_leads(&mut fd, h)
    {
        a.again_ns = a.again_ns.into_iter().chain(await_reader(&mut tx, h, fd)).min();
    }
}

/// For a send that found no room and does not wait for it: true when the program has tried in vain for so long that its bytes go
/// over TCP from now on.
pub(crate) fn tried_long_enough(h: Handle, mut fd: i32) -> bool {
    let mut tx = lock_tx(h.sock());
    is_open(h) && still_leads(&mut fd, h) && await_reader(&mut tx, h, fd).is_none()
}

/// How many nanoseconds whoever needs room still waits for the reader before the bytes go over TCP, which buffers more (two
/// ends that both send first must not deadlock). None: the direction is there now, as that time is over.
fn await_reader(tx: &mut TxLock, h: Handle, fd: i32) -> Option<u64> {
    /// Unit of the time that is kept, a little more than a millisecond.
    const SHIFT: u32 = 20;
    let s = tx.s;
    let (ring, _) = tx.ring()?;
    // A reader that is still draining TCP before it comes to the ring makes progress, too.
    let progress = ring.progress() ^ (shadow::unacknowledged(fd) as u64) << 20;
    let hash = (progress.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
    let now = (sys::monotonic_ns() >> SHIFT) as u32;
    let seen = s.tx.stuck.load(Ordering::Relaxed);
    if (seen >> 32) as u32 != hash || seen == 0 {
        s.tx.stuck.store((hash as u64) << 32 | now as u64, Ordering::Relaxed);
        return Some(NO_PROGRESS_NS);
    }
    let waited = (now.wrapping_sub(seen as u32) as u64) << SHIFT;
    if waited < NO_PROGRESS_NS {
        return Some(NO_PROGRESS_NS - waited);
    }
    tx.demote(h, fd, Reason::NoProgress);
    None
}

/// The kernel's part.
fn look_at_shadow(h: Handle, fd: i32, front: Front, q: &Question, a: &mut Answer) {
    let s = h.sock();
    let sends_on_tcp = || s.tx.phase.load(Ordering::Acquire) == TX_TCP;
    let ask = || {
        let room = if sends_on_tcp() && q.want & WRITE != 0 { libc::POLLOUT } else { 0 };
        shadow::poll(fd, libc::POLLIN | libc::POLLRDHUP | (q.want & URGENT) as i16 | room) as u16 as u32
    };
    let before = sends_on_tcp();
    let mut got = ask();
    if !lifecycle::is_shadow(fd, h) {
        // Closed in the meantime: that was somebody else's descriptor.
        return;
    }
    if got != 0 {
        s.rx.shadow_event.store(1, Ordering::Release);
    }
    if got & HANGUP != 0 || got & ENDING != 0 && !s.has(FLAG_SHUT_RD) {
        note_end(h, fd);
        if sends_on_tcp() != before {
            got = ask();
        }
    }
    if s.has(FLAG_RESET) {
        // The error that the program is to see is ours; the kernel's own is never asked for.
        got &= !ERROR;
    }
    if got & libc::POLLIN as u32 != 0 {
        a.events |= READ;
    }
    if got & libc::POLLOUT as u32 != 0 {
        a.events |= WRITE;
    }
    a.events |= got & (ENDING | ALWAYS | URGENT);
    if got & HANGUP != 0 {
        // Neither direction waits for anything any more.
        a.events |= READ | WRITE | ENDING;
    }
    // A finished stream is known by its flag; the kernel gives one token for each further change.
    let lasting = ALWAYS | URGENT | if front == Front::Tcp { READ } else { 0 } | WRITE;
    a.hint = got & lasting != 0;
    // An edge of the kernel's own is one of ours while that direction is on TCP.
    let edges = libc::POLLIN as u32 | if sends_on_tcp() { libc::POLLOUT as u32 } else { 0 };
    a.news |= q.token && got & edges != 0;
}

/// The peer's end was seen on the shadow. Keeps the mapping while the handover looks at the rings.
fn note_end(h: Handle, fd: i32) {
    let s = h.sock();
    if s.has(FLAG_PEER_FIN) {
        return;
    }
    let _waiting = wait::begin(h);
    if is_open(h) {
        handover::peer_fin(s, h, fd);
    }
}

/// What shutting down and resetting make of it, as the kernel would show it.
fn ends(s: &Sock, a: &mut Answer) {
    let flags = s.flags.load(Ordering::Acquire);
    if flags & (FLAG_RESET | FLAG_PEER_FIN | FLAG_SHUT_RD | FLAG_SHUT_WR) == 0 {
        return;
    }
    let no_more = flags & (FLAG_PEER_FIN | FLAG_SHUT_RD) != 0;
    if flags & FLAG_RESET != 0 {
        a.events |= READ | WRITE | ENDING | HANGUP;
        if s.error.load(Ordering::Acquire) != 0 {
            a.events |= ERROR;
        }
    }
    if no_more {
        a.events |= READ | ENDING;
    }
    if flags & FLAG_SHUT_WR != 0 {
        a.events |= WRITE | if no_more { HANGUP } else { 0 };
    }
}

/// A guess without locks whether [`level`] would find the socket readable (for an edge-triggered member: newly so). The
/// caller keeps the rings mapped. A reader that is at work at this moment may make it wrong either way.
#[inline]
pub fn maybe_readable(s: &Sock, member: Option<&Member>) -> bool {
    let phase = s.rx.phase.load(Ordering::Acquire);
    if phase == RX_TCP {
        return false;
    }
    let Some(pair) = pair(s) else { return false };
    let (ring, c) = (pair.incoming(), s.consumer_hint());
    match member {
        _ if !ring.pending(&c) => false,
        None => true,
        // Of what comes over TCP until then, the kernel tells.
        Some(_) if phase == RX_DRAIN && is_before_switch(s) && !counts_both_carriers(s) => false,
        // What stands at the cursor may be the end of the ring, which has to be passed.
        Some(m) => c.at == m.edge() || is_news(s, &ring, &c, m.edge()),
    }
}

/// True when nothing stands at the reader's cursor. Exact, unlike [`maybe_readable`], but false when that cannot be known
/// without waiting. May be called under any lock, while the rings are mapped.
pub fn surely_unreadable(s: &Sock) -> bool {
    try_lock_rx(s).is_some_and(|mut rx| rx.any_ring().is_none_or(|(ring, c)| !ring.pending(c)))
}

/// A guess in the same way whether there is room in the outgoing ring. May be called under any lock.
pub fn maybe_writable(s: &Sock) -> bool {
    if s.tx.phase.load(Ordering::Acquire) != TX_RING {
        return false;
    }
    try_lock_tx(s).is_none_or(|mut tx| tx.ring().is_some_and(|(ring, p)| ring.writable(p)))
}

/// Puts a bell into one end of the socket's ring and asks to be rung. `slot` keeps the place, + 1. False when all places
/// are taken. The caller keeps the rings mapped; it looks at the ring once more afterwards, behind a full barrier.
pub fn arm(ring: &Ring, end: End, slot: &core::sync::atomic::AtomicU32, bell: u64, tag: u64) -> bool {
    let place = match slot.load(Ordering::Relaxed) {
        0 => match bells::claim(ring, end, bell, tag) {
            Some(place) => {
                slot.store(place + 1, Ordering::Relaxed);
                place
            }
            None => return false,
        },
        place => place - 1,
    };
    ring.retag(end, place, tag);
    if !ring.is_armed(end, place) {
        ring.arm(end, place);
    }
    true
}

/// Whether who sleeps for bytes enters a bell in the incoming ring: they may come there, or the peer asks there for what it has
/// not read of ours, if it leaves Ropeway (handover, clause 4.1).
pub fn hears_incoming(s: &Sock) -> bool {
    s.rx.phase.load(Ordering::Acquire) != RX_TCP || s.tx.phase.load(Ordering::Acquire) == TX_RING
}

/// Takes the bell out again.
pub fn disarm(ring: &Ring, end: End, slot: &core::sync::atomic::AtomicU32) {
    let place = slot.swap(0, Ordering::Relaxed);
    if place != 0 {
        ring.release_bell(end, place - 1);
    }
}
