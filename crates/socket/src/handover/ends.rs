//! Ends of connections (clause 5): the peer's death or FIN as the shadow shows it, and what of it is a reset.

use super::{lock_tx, lock_tx_again, note_demoted, pair, pin};
use crate::fdtable::Handle;
use crate::reason::Reason;
use crate::send::still_leads;
use crate::{epoll, lifecycle, shadow, stats};
use core::sync::atomic::Ordering;
use ropeway_shm::ring::{Producer, Ring};
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_LEFT_UNREAD, FLAG_PEER_FIN, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR, Sock, TX_RING, TX_TCP,
};

/// Clause 5.4: bytes can no longer be attributed to a place in the stream. Both ends see a reset, never wrong bytes.
pub fn break_connection(s: &Sock, h: Handle, fd: i32, reason: Reason) {
    pin(s, reason);
    stats::count_reason(reason);
    s.keep_error(libc::ECONNRESET);
    shadow::abort(fd);
    epoll::carrier_changed(h);
}

/// Clause 5.2: the peer's FIN was seen on the shadow. Decides between a good end and a reset, and moves what we send to
/// TCP, so that the kernel tells us from now on if the peer dies.
pub fn peer_fin(s: &Sock, h: Handle, fd: i32) {
    let mut tx = lock_tx(s);
    // Closed in the meantime: what the descriptor showed may be another socket's end, and the rings may be unmapped.
    if !lifecycle::is_shadow(fd, h) || s.has(FLAG_PEER_FIN) {
        return;
    }
    // After one's own SHUT_RD the kernel shows an end of its own: only the state of the connection tells of the peer's.
    if s.has(FLAG_SHUT_RD) && !shadow::peer_ended(fd) {
        return;
    }
    s.set(FLAG_PEER_FIN);
    let on_ring = s.tx.phase.load(Ordering::Relaxed) == TX_RING;
    if s.has(FLAG_LEFT_UNREAD) {
        s.clear(FLAG_LEFT_UNREAD);
        epoll::carrier_changed(h);
    }
    let Some(pair) = pair(s) else { return };
    let Some((ring, p)) = tx.any_ring() else { return };
    let hung_up = shadow::poll(fd, 0) & libc::POLLHUP != 0;
    // After one's own SHUT_WR the kernel shows that of any end.
    let broken =
        hung_up && (!s.has(FLAG_SHUT_WR) || shadow::ended_without_fin(fd, s.rx.tcp_bytes.load(Ordering::Acquire)));
    // A ring that was left before counts, too: TCP would have had its bytes unread.
    let unread = p.epoch != 0 && !pair.incoming().wr_shut() && !ring.drained(p);
    if !broken && !unread {
        return tx.demote(h, fd, Reason::PeerClosed);
    }
    if !broken {
        s.keep_error(libc::ECONNRESET);
    } // Else the kernel has the error, and gives it to whoever asks next, or has given it already.
    if on_ring {
        s.tx.phase.store(TX_TCP, Ordering::Release);
        note_demoted(s, Reason::Reset);
    }
    epoll::carrier_changed(h);
}

/// Clause 5.1: a writer looks at its shadow at least once per millisecond of sending.
#[inline]
pub fn time_to_look(s: &Sock) -> bool {
    /// Half a millisecond at the usual clock rates; no need to be exact.
    const LOOK_TICKS: u64 = 1 << 20;
    let now = sys::ticks();
    if now.wrapping_sub(s.tx.looked.load(Ordering::Relaxed)) < LOOK_TICKS {
        return false;
    }
    s.tx.looked.store(now, Ordering::Relaxed);
    true
}

/// Looks at the shadow for the peer's end.
pub fn look_for_end(s: &Sock, h: Handle, mut fd: i32) {
    if !still_leads(&mut fd, h) {
        return;
    }
    if shadow::poll(fd, libc::POLLRDHUP) & shadow::END_EVENTS != 0 {
        peer_fin(s, h, fd);
    }
}

/// A socket that has left for good is the kernel's alone, whatever a ring may hold yet.
pub fn forget_left(s: &Sock, h: Handle) {
    if s.flags.load(Ordering::Acquire) & (FLAG_LEFT_UNREAD | FLAG_RESET) != 0 {
        let Some(_locked) = lock_tx_again(h) else { return };
        s.clear(FLAG_LEFT_UNREAD);
        epoll::carrier_changed(h);
    }
}

/// Clause 5.2 for a ring that the writer leaves.
pub(super) fn note_left(s: &Sock, ring: &Ring, p: &mut Producer) {
    if !ring.drained(p) {
        s.set(FLAG_LEFT_UNREAD);
    }
}
