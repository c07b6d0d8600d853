//! Moving one direction of a connection between kernel TCP and its ring, at an exact byte.
//!
//! `docs/handover.md` states the protocol; the clause numbers in the comments are its. Everything here runs under the
//! direction's process-shared lock, which the guards [`TxLock`] and [`RxLock`] hold.

mod chaos;
mod ends;
mod recalls;

pub use chaos::chaos;
pub use ends::{break_connection, forget_left, look_for_end, peer_fin, time_to_look};
pub(crate) use recalls::Recalls;
pub use recalls::{Patience, answer_recall, is_recalled, recall_and_wait, service_recall};

use crate::fdtable::{self, Handle};
use crate::reason::Reason;
use crate::thread::Critical;
use crate::{bells, epoll, process, promote, ready, settings, shadow, stats, thread};
use core::sync::atomic::Ordering;
use ropeway_shm::lock::Taken;
use ropeway_shm::ring::{Consumer, End, Look, Producer, Recovered, Ring, WriteStop, next_epoch};
use ropeway_shm::segment::Pair;
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_LEFT_UNREAD, FLAG_NONBLOCK, FLAG_PEER_FIN, FLAG_PINNED, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR, FLAG_WAITED,
    PAIR_READY, RX_ATTACHED, RX_DRAIN, RX_TCP, Sock, TX_RING, TX_TCP,
};

/// After this many returns to TCP a connection is left there (clause 6.3).
const MAX_DEMOTIONS: u32 = 256;
/// Calls that a demoted connection stays on TCP at first; doubled by each demotion, up to `BACKOFF_MAX_CALLS`.
const BACKOFF_CALLS: u32 = 16;
const BACKOFF_MAX_CALLS: u32 = 1 << 16;

/// The pair that a socket is mapped to in this process.
#[inline(always)]
pub fn pair(s: &Sock) -> Option<Pair> {
    let base = s.seg_base.load(Ordering::Acquire);
    if base == 0 {
        return None;
    }
    // SAFETY: `promote` stored the numbers of a mapping that every owner has; it is removed only when this process has
    // no descriptor and no waiter left (lifecycle).
    Some(unsafe {
        Pair::from_parts(base, s.seg_ring_bytes.load(Ordering::Relaxed), s.seg_side.load(Ordering::Relaxed) as u8)
    })
}

/// Calls made on TCP so far, both directions: the clock of lazy promotion and of back-off.
pub fn calls(s: &Sock) -> u32 {
    s.tx.calls.load(Ordering::Relaxed).wrapping_add(s.rx.calls.load(Ordering::Relaxed))
}

/// Remembers why a connection is on TCP.
pub fn note_reason(s: &Sock, reason: Reason) {
    s.reason.store(reason.code() as u32, Ordering::Relaxed);
}

/// Forbids promotion for good.
pub fn pin(s: &Sock, reason: Reason) {
    note_reason(s, reason);
    s.set(FLAG_PINNED);
}

fn note_promoted(s: &Sock) {
    s.promotions.fetch_add(1, Ordering::Relaxed);
    stats::TOTALS.promoted.fetch_add(1, Ordering::Relaxed);
    s.reason.store(Reason::None.code() as u32, Ordering::Relaxed);
}

fn note_demoted(s: &Sock, reason: Reason) {
    note_reason(s, reason);
    stats::count_reason(reason);
    stats::TOTALS.demoted.fetch_add(1, Ordering::Relaxed);
    let times = s.demotions.fetch_add(1, Ordering::Relaxed);
    if settings::is_chaotic() {
        return;
    }
    if times >= MAX_DEMOTIONS {
        pin(s, Reason::ManyDemotions);
    }
    let wait = BACKOFF_CALLS.checked_shl(times).unwrap_or(BACKOFF_MAX_CALLS).min(BACKOFF_MAX_CALLS);
    s.try_at.store(calls(s).wrapping_add(wait), Ordering::Relaxed);
}

/// True when the back-off after a demotion has passed.
fn may_try(s: &Sock) -> bool {
    settings::is_chaotic() || (calls(s).wrapping_sub(s.try_at.load(Ordering::Relaxed)) as i32) >= 0
}

fn note_on_ring(s: &Sock) {
    s.tx.phase.store(TX_RING, Ordering::Release);
    s.clear(FLAG_LEFT_UNREAD);
}

/// The outgoing direction, locked.
pub struct TxLock<'a> {
    pub s: &'a Sock,
    _critical: Critical,
}

/// Locks the outgoing direction; repairs it if the previous holder died (clause 7.2).
#[inline]
pub fn lock_tx(s: &Sock) -> TxLock<'_> {
    let critical = Critical::enter();
    let taken = s.tx.lock.lock(thread::me());
    let mut locked = TxLock { s, _critical: critical };
    if taken == Taken::FromTheDead {
        locked.recover();
    }
    locked
}

/// The same unless somebody has it, alive or dead.
pub fn try_lock_tx(s: &Sock) -> Option<TxLock<'_>> {
    let critical = Critical::enter();
    s.tx.lock.try_lock(thread::me()).then(|| TxLock { s, _critical: critical })
}

/// Locks the outgoing direction after a call in the kernel, during which the socket may have been closed. None: its record was
/// given back, and nothing is left to account for.
pub fn lock_tx_again(h: Handle) -> Option<TxLock<'static>> {
    let tx = lock_tx(h.sock());
    h.is_current().then_some(tx)
}

impl Drop for TxLock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.s.tx.lock.unlock();
    }
}

impl TxLock<'_> {
    /// Completes what the previous holder, who died, had begun (clause 7.2).
    #[cold]
    fn recover(&mut self) {
        let s = self.s;
        let Some((ring, p)) = self.any_ring() else { return };
        if let Recovered::Data(n) = ring.recover_producer(p, || note_on_ring(s)) {
            s.tx.ring_bytes.fetch_add(n as u64, Ordering::Relaxed);
        }
        if s.tx.phase.load(Ordering::Relaxed) == TX_TCP {
            ring.recover_epoch(p);
        }
        bells::ring_everybody(&ring, End::Reader);
        epoll::carrier_changed(Handle::of_record(process::table().index_of(s)));
    }

    /// Ring and cursor, if this direction is on its ring.
    #[inline]
    pub fn ring(&mut self) -> Option<(Ring, &mut Producer)> {
        if self.s.tx.phase.load(Ordering::Relaxed) != TX_RING {
            return None;
        }
        self.any_ring()
    }

    /// Ring and cursor, whatever carrier is in use.
    pub fn any_ring(&mut self) -> Option<(Ring, &mut Producer)> {
        // SAFETY: the lock is held by `self`, which the reference borrows.
        pair(self.s).map(|p| (p.outgoing(), unsafe { self.s.producer() }))
    }

    /// Before another pair: the cursor of the former one means nothing on it.
    pub fn forget_ring(&mut self) {
        // SAFETY: under the lock that `self` holds.
        unsafe { *self.s.producer() = Producer::default() };
        self.s.tx.blocked.store(0, Ordering::Relaxed);
        self.s.tx.stuck.store(0, Ordering::Relaxed);
    }

    /// Clause 2.3: moves from TCP to the ring if the reader is attached and everything written so far is accounted for.
    pub fn try_switch(&mut self, h: Handle, fd: i32) -> bool {
        let s = self.s;
        if s.pairing.load(Ordering::Acquire) != PAIR_READY
            || s.flags.load(Ordering::Acquire) & (FLAG_PINNED | FLAG_SHUT_WR | FLAG_PEER_FIN | FLAG_RESET) != 0
        {
            return false;
        }
        if promote::peer_left(s) {
            return false;
        }
        let Some((ring, p)) = self.any_ring() else { return false };
        let epoch = ring.offered();
        if epoch == 0 || epoch != next_epoch(p.epoch) || s.tx.inflight.load(Ordering::Acquire) != 0 || !may_try(s) {
            return false;
        }
        let at = s.tx.tcp_bytes.load(Ordering::Acquire);
        match shadow::sent(fd) {
            Some(sent) if sent == at => {}
            Some(_) => {
                pin(s, Reason::ForeignBytes);
                return false;
            }
            None => return false,
        }
        if !epoll::can_follow(h) {
            return false;
        }
        match ring.switch(p, epoch, at, || note_on_ring(s)) {
            Ok(()) => {
                s.tx.looked.store(sys::ticks(), Ordering::Relaxed);
                note_promoted(s);
                self.ring_reader(&ring);
                // What was read before would be acknowledged with what is sent now.
                shadow::acknowledge_now(fd);
                epoll::carrier_changed(h);
                true
            }
            Err(stop) => {
                // The reader closed its offer before we took it: that epoch is over.
                if stop == WriteStop::Closed {
                    ring.leave(p);
                } else {
                    pin(s, Reason::RingCorrupt);
                }
                false
            }
        }
    }

    /// On TCP: the ring that was left may have been read to its end since.
    #[inline]
    pub fn look_at_left(&mut self, h: Handle) {
        if self.s.has(FLAG_LEFT_UNREAD) && self.any_ring().is_none_or(|(ring, p)| ring.drained(p)) {
            self.s.clear(FLAG_LEFT_UNREAD);
            epoll::carrier_changed(h);
        }
    }

    /// Wakes the reader if it asked for that.
    #[inline]
    pub fn ring_reader(&self, ring: &Ring) {
        if ring.must_ring(End::Reader) {
            bells::ring_all(ring, End::Reader);
        }
    }

    /// Clause 3.1: the writer ends the ring; later bytes go over TCP.
    pub fn demote(&mut self, h: Handle, fd: i32, reason: Reason) {
        let s = self.s;
        let Some((ring, p)) = self.ring() else { return };
        if ring.close_writer(p) {
            ends::note_left(s, &ring, p);
            // First the phase: whoever sees that the epoch was left may offer the next one.
            s.tx.phase.store(TX_TCP, Ordering::Release);
            ring.leave(p);
            // What follows on TCP may be too little for the kernel to wake a reader with a low-water mark.
            self.ring_reader(&ring);
            note_demoted(s, reason);
            epoll::carrier_changed(h);
        } else {
            self.closed_by_reader(h, fd);
        }
    }

    /// Clause 3.2: the reader ended the ring. If it wants its unread tail back on TCP, that goes first (clause 4), where the
    /// kernel has room for it: nobody waits here for a peer that may never read.
    pub fn closed_by_reader(&mut self, h: Handle, fd: i32) {
        let s = self.s;
        let Some((ring, p)) = self.any_ring() else { return };
        let takes_back = ring.recall_asked() == p.epoch && shadow::has_room_for_tail(&ring, p, fd);
        if !takes_back || !ring.accept_recall(p.epoch) {
            ends::note_left(s, &ring, p);
        } else if shadow::copy_tail(s, &ring, p, fd) {
            ring.recall_done(p.epoch);
        } else {
            break_connection(s, h, fd, Reason::NoProgress);
        }
        s.tx.phase.store(TX_TCP, Ordering::Release);
        // Behind the answer to a recall, if there is one: that the epoch was left without an answer is a refusal.
        ring.leave(p);
        note_demoted(s, Reason::PeerDemoted);
        epoll::carrier_changed(h);
    }

    /// The ring holds nonsense: the connection cannot be continued.
    pub fn corrupt(&mut self, h: Handle, fd: i32) {
        self.s.tx.phase.store(TX_TCP, Ordering::Release);
        break_connection(self.s, h, fd, Reason::RingCorrupt);
    }
}

/// The incoming direction, locked.
pub struct RxLock<'a> {
    pub s: &'a Sock,
    _critical: Critical,
}

#[inline]
pub fn lock_rx(s: &Sock) -> RxLock<'_> {
    let critical = Critical::enter();
    let taken = s.rx.lock.lock(thread::me());
    let mut locked = RxLock { s, _critical: critical };
    if taken == Taken::FromTheDead {
        locked.recover();
    }
    locked
}

/// As [`try_lock_tx`].
pub fn try_lock_rx(s: &Sock) -> Option<RxLock<'_>> {
    let critical = Critical::enter();
    s.rx.lock.try_lock(thread::me()).then(|| RxLock { s, _critical: critical })
}

/// As [`lock_tx_again`].
pub fn lock_rx_again(h: Handle) -> Option<RxLock<'static>> {
    let rx = lock_rx(h.sock());
    h.is_current().then_some(rx)
}

impl Drop for RxLock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.s.rx.lock.unlock();
    }
}

impl RxLock<'_> {
    /// Completes what the previous holder, who died, had begun (clause 7.2).
    #[cold]
    fn recover(&mut self) {
        let s = self.s;
        let Some((ring, c)) = self.any_ring() else { return };
        ring.recover_consumer(c);
        let phase = s.rx.phase.load(Ordering::Relaxed);
        if phase == RX_DRAIN && ring.look(c) == (Look::Switch { at: s.rx.switch_at.load(Ordering::Relaxed) }) {
            ring.consume_switch(c);
        }
        if (phase == RX_ATTACHED || phase == RX_DRAIN)
            && let Some(taken) = fdtable::descriptor_of(s).and_then(shadow::taken)
        {
            // It may have taken bytes that it did not live to count.
            s.rx.tcp_bytes.store(taken, Ordering::Release);
        }
        bells::ring_everybody(&ring, End::Writer);
        epoll::carrier_changed(Handle::of_record(process::table().index_of(s)));
        recalls::settle_for_the_dead(self);
    }

    /// Ring and cursor, if this direction is attached to its ring.
    #[inline]
    pub fn ring(&mut self) -> Option<(Ring, &mut Consumer)> {
        if self.s.rx.phase.load(Ordering::Relaxed) == RX_TCP {
            return None;
        }
        self.any_ring()
    }

    pub fn any_ring(&mut self) -> Option<(Ring, &mut Consumer)> {
        // SAFETY: the lock is held by `self`, which the reference borrows.
        pair(self.s).map(|p| (p.incoming(), unsafe { self.s.consumer() }))
    }

    /// Unread bytes in the ring.
    pub fn unread(&mut self) -> usize {
        self.ring().map_or(0, |(ring, c)| ring.unread(c).0)
    }

    /// Bytes that a receive would find now, across carriers; None while this direction is on TCP alone.
    pub fn readable(&mut self, fd: i32) -> Option<usize> {
        let s = self.s;
        let (ring, c) = self.ring()?;
        let (in_ring, end) = ring.unread(c);
        let queued = || shadow::queued(fd).unwrap_or(0);
        // A word at the end of the chain is its `CLOSED`: what TCP has behind it counts, too.
        let closed = ring.pending_at(end);
        Some(match s.rx.phase.load(Ordering::Relaxed) {
            RX_ATTACHED => queued(),
            RX_DRAIN => {
                let ahead = (s.rx.switch_at.load(Ordering::Relaxed) - s.rx.tcp_bytes.load(Ordering::Relaxed)) as usize;
                match queued() {
                    // The ring's bytes come behind some that the kernel still has on their way.
                    queued if queued < ahead => queued,
                    queued if closed => queued + in_ring,
                    _ => ahead + in_ring,
                }
            }
            _ if closed => in_ring + queued(),
            _ => in_ring,
        })
    }

    /// Before another pair: the cursor of the former one means nothing on it.
    pub fn forget_ring(&mut self) {
        // SAFETY: under the lock that `self` holds.
        unsafe { *self.s.consumer() = Consumer::default() };
        self.s.rx.switch_at.store(0, Ordering::Relaxed);
    }

    /// Clauses 2.1 and 2.2: offers the ring to the writer, at a call boundary of the reader.
    pub fn try_attach(&mut self, h: Handle, fd: i32) -> bool {
        let s = self.s;
        let flags = s.flags.load(Ordering::Acquire);
        if s.pairing.load(Ordering::Acquire) != PAIR_READY
            || flags & (FLAG_PINNED | FLAG_SHUT_RD | FLAG_PEER_FIN | FLAG_RESET) != 0
            || s.rx.inflight.load(Ordering::Acquire) != 0
            || (flags & FLAG_NONBLOCK != 0 && flags & FLAG_WAITED == 0)
            || !may_try(s)
            || promote::peer_left(s)
        {
            return false;
        }
        let Some((ring, c)) = self.any_ring() else { return false };
        if ring.left() != c.epoch {
            return false;
        }
        match shadow::received(fd) {
            Some(consumed) if consumed == s.rx.tcp_bytes.load(Ordering::Acquire) => {}
            Some(_) => {
                pin(s, Reason::ForeignBytes);
                return false;
            }
            None => return false,
        }
        if !epoll::can_follow(h) {
            return false;
        }
        let epoch = next_epoch(c.epoch);
        s.rx.phase.store(RX_ATTACHED, Ordering::Release);
        ring.offer(c, epoch);
        note_promoted(s);
        epoll::carrier_changed(h);
        true
    }

    /// Clause 3.2: the reader ends the ring behind what was published, and will drain it.
    pub fn demote(&mut self, h: Handle, fd: i32, reason: Reason) {
        let s = self.s;
        let Some((ring, c)) = self.ring() else { return };
        if !ring.close_reader(c) {
            return self.corrupt(h, fd);
        }
        note_reason(s, reason);
        if ring.must_ring(End::Writer) {
            bells::ring_all(&ring, End::Writer);
        }
    }

    /// Clause 3.3: the end of the ring was reached; what follows comes over TCP.
    pub fn closed(&mut self, h: Handle) {
        let s = self.s;
        // The writer may have to know that all of it was read, when this end is gone (clause 5.2).
        if let Some((ring, c)) = self.any_ring()
            && ring.skip_unread(c)
        {
            bells::ring_all(&ring, End::Writer);
        }
        s.rx.phase.store(RX_TCP, Ordering::Release);
        s.rx.shadow_event.store(1, Ordering::Release);
        let reason = Reason::from_code(s.reason.load(Ordering::Relaxed) as u16).filter(|r| *r != Reason::None);
        note_demoted(s, reason.unwrap_or(Reason::PeerDemoted));
        epoll::carrier_changed(h);
    }

    pub fn corrupt(&mut self, h: Handle, fd: i32) {
        self.s.rx.phase.store(RX_TCP, Ordering::Release);
        break_connection(self.s, h, fd, Reason::RingCorrupt);
    }
}

/// Passes both directions' locks: what other threads did under one of them with a descriptor or a mapping that was there until
/// now has ended.
pub fn pass_directions(s: &Sock) {
    drop(lock_tx(s));
    drop(lock_rx(s));
}

/// Unread bytes in the incoming ring; none once another thread has closed the socket, whose rings may be unmapped.
pub fn unread(h: Handle) -> usize {
    let s = h.sock();
    if s.rx.phase.load(Ordering::Acquire) == RX_TCP {
        return 0;
    }
    let mut rx = lock_rx(s);
    if ready::is_open(h) { rx.unread() } else { 0 }
}
