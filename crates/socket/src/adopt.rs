//! Sockets that go through exec: what the former image passes on, and how the next one takes it up (handover, clause 7.4).
//!
//! The former image tells the rendezvous what it knows, if it is sure that it alone holds the socket and that the next image
//! is preloaded. The next one finds the socket when it starts, and asks. Whatever anybody else did with the socket in
//! between shows in the kernel's counters, which must be what both images have counted together.

use crate::fdtable::{self, Handle};
use crate::handover::{lock_tx, note_reason, pair, pin};
use crate::reason::Reason;
use crate::rendezvous::client;
use crate::rendezvous::wire::Legacy;
use crate::{lifecycle, process, promote, ready, shadow};
use core::sync::atomic::Ordering;
use ropeway_shm::sys;
use ropeway_shm::table::{
    CLASS_CONNECTED, FLAG_INHERITED, FLAG_PEER_FIN, FLAG_PINNED, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR,
    FLAG_UNCOUNTED, PAIR_NONE, PAIR_REGISTERED, Sock,
};

/// [`Sock::heir`] of a socket that went into an image of which nothing is known.
const NOBODY_KNOWN: u32 = u32::MAX;

/// So many closed numbers in a row end the search for inherited sockets: programs are given low numbers.
const GAP: u32 = 64;

/// True if the next image may go on with the socket in Ropeway. To be asked before it leaves; the other end is told that it
/// does.
pub fn may_be_inherited(h: Handle) -> bool {
    let s = h.sock();
    let obstacles = FLAG_PINNED | FLAG_PEER_FIN | FLAG_SHUT_RD | FLAG_SHUT_WR | FLAG_RESET | FLAG_UNCOUNTED;
    // The kernel would go on reporting it in a set that the next image does not know.
    let watched = s.member_of.iter().any(|set| set.load(Ordering::Acquire) != 0);
    let may = s.class.load(Ordering::Acquire) == CLASS_CONNECTED
        && s.flags.load(Ordering::Acquire) & obstacles == 0
        && !lifecycle::is_child_expected(s)
        && s.heir.load(Ordering::Acquire) == 0
        && !watched;
    if may {
        // Under the lock: another thread may be closing it, and unmap the pair.
        let _tx = lock_tx(s);
        if ready::is_open(h)
            && let Some(pair) = pair(s)
        {
            pair.retire();
        }
    }
    may
}

/// After the socket has left Ropeway for the next image of this process.
pub fn leave_to_next_image(h: Handle, fd: i32, inheritable: bool) {
    let s = h.sock();
    let heir = if inheritable { process::pid() } else { NOBODY_KNOWN };
    // A second descriptor of the same socket changes nothing; another process that takes it along, too, does.
    if let Err(other) = s.heir.compare_exchange(0, heir, Ordering::AcqRel, Ordering::Acquire)
        && other != process::pid()
    {
        s.heir.store(NOBODY_KNOWN, Ordering::Release);
    }
    if s.has(FLAG_INHERITED) {
        // What was passed on to us was not asked for yet. It still holds for the next image of this process, unless we have
        // moved bytes.
        let touched = s.tx.tcp_bytes.load(Ordering::Acquire) + s.rx.tcp_bytes.load(Ordering::Acquire) > 0;
        if touched || !inheritable {
            tell(s, h, fd, 0);
        }
    } else if s.heir.load(Ordering::Acquire) == process::pid() && lifecycle::sole_owner(s) {
        tell(s, h, fd, process::pid());
    }
}

/// Somebody may hold the socket of whom nothing is known.
pub fn given_away(h: Handle) {
    h.sock().heir.store(NOBODY_KNOWN, Ordering::Release);
}

/// This process goes on with its sockets after all.
pub fn stay_with_this_image(h: Handle, fd: i32) {
    let s = h.sock();
    if s.heir.compare_exchange(process::pid(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        tell(s, h, fd, 0);
    }
}

/// Before this process closes its last descriptor of a socket that others still own: if that is only the one who took it
/// into another image, it is his alone from now on.
pub fn leave_to_heir(h: Handle, fd: i32) {
    let s = h.sock();
    let heir = s.heir.load(Ordering::Acquire);
    let others = || s.owners.iter().any(|owner| ![0, heir].contains(&owner.load(Ordering::Acquire)));
    let known = heir != 0 && heir != NOBODY_KNOWN && !s.has(FLAG_INHERITED);
    // In this order: a child enters itself among the owners, then is no longer expected.
    if known && fd >= 0 && !lifecycle::is_child_expected(s) && !others() {
        tell(s, h, fd, heir);
    }
}

fn tell(s: &Sock, h: Handle, fd: i32, heir: u32) {
    let Some(socket) = promote::describe(s, h, fd) else { return };
    let (sent, received) = (s.tx.tcp_bytes.load(Ordering::Acquire), s.rx.tcp_bytes.load(Ordering::Acquire));
    // What the daemon does not hear stays on TCP.
    let _ = client::pass_on(heir, &socket, sent, received);
}

/// At the start of an image: calls `found` with every connected TCP socket that it was given. Standard descriptors stay on
/// TCP in any case.
pub fn each_inherited(mut found: impl FnMut(i32)) {
    let (mut fd, mut gap) = (3, 0);
    while gap < GAP {
        if sys::fcntl(fd, libc::F_GETFD, 0).is_err() {
            gap += 1;
        } else {
            gap = 0;
            if lifecycle::is_tcp(fd) && shadow::established(fd) {
                found(fd);
            }
        }
        fd += 1;
    }
}

/// Follows an inherited socket, on TCP until the daemon has said what happened on it before.
pub fn inherited(fd: i32) {
    let Some(cookie) = promote::cookie(fd) else { return };
    // The same socket under another number.
    let mut same = None;
    fdtable::for_each_in(0, u32::MAX, |other, h| {
        if h.is_sock() && h.sock().cookie.load(Ordering::Relaxed) == cookie {
            same = Some(other);
        }
    });
    match same {
        Some(other) => lifecycle::duplicated(other, fd),
        None => lifecycle::inherited(fd),
    }
}

/// The daemon's answer: what both images counted is counted together from now on, and compared with the kernel before the
/// socket is registered.
pub fn adopted(s: &Sock, legacy: &Legacy) {
    if !s.has(FLAG_INHERITED) {
        return;
    }
    s.tx.prefix.restore(&legacy.tx.hash, legacy.tx.len);
    s.rx.prefix.restore(&legacy.rx.hash, legacy.rx.len);
    // The statistics of this process do not include what others have moved.
    for (bytes, folded, before) in
        [(&s.tx.tcp_bytes, &s.folded[0], legacy.sent), (&s.rx.tcp_bytes, &s.folded[2], legacy.received)]
    {
        bytes.fetch_add(before, Ordering::AcqRel);
        folded.fetch_add(before, Ordering::AcqRel);
    }
    s.clear(FLAG_INHERITED);
    note_reason(s, Reason::TooYoung);
    if s.pairing.compare_exchange(PAIR_REGISTERED, PAIR_NONE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        pin(s, Reason::Exec);
    }
}
