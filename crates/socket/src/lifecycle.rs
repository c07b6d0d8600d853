//! The life of a tracked descriptor: created, duplicated, forked, passed on, closed.

mod closing;
mod ending;
mod forks;
mod images;

pub(crate) use closing::{Behind, behind_now, kept_soon, lookup};
pub use closing::{Closing, closing, duplicated, give_way, once_closed, once_set_closed, replacing, was_closed};
pub use ending::{forget_all, let_go};
pub(crate) use forks::{add_owner, begin_birth, enter_owner, is_child_expected};
pub use forks::{after_vfork, fork_child, fork_child_apart, fork_parent, fork_prepare, in_vfork_child};
pub use images::{at_exit, before_exec, before_spawn, exec_failed};

use crate::fdtable::{self, Handle};
use crate::handover::{self, Patience, lock_rx, lock_tx, pair};
use crate::process::{self, local};
use crate::reason::Reason;
use crate::rendezvous::client;
use crate::thread::{self, Critical};
use crate::{adopt, bells, epoll, options, promote, ready, relay, shadow, stats, wait};
use core::sync::atomic::{AtomicU32, Ordering};
use ropeway_shm::ring::End;
use ropeway_shm::segment::Pair;
use ropeway_shm::sys;
use ropeway_shm::table::{
    CLASS_CONNECTED, CLASS_FREE, CLASS_FRESH, FLAG_CONNECTING, FLAG_INHERITED, FLAG_NONBLOCK, FLAG_PINNED,
    FLAG_SHUT_RD, FLAG_SHUT_WR, FLAG_UNCOUNTED, OWNER_LEAVES, PAIR_NONE, PAIR_REGISTERED, Sock,
};

/// How many sockets this process has followed so far.
static TRACKED: AtomicU32 = AtomicU32::new(0);
/// After this many, records of processes that died are looked for.
const REAP_EVERY: u32 = 1024;

/// Gives back records whose owners have all died without closing (a process that exits or is killed closes nothing
/// through us).
#[cold]
fn reap() {
    forks::forget_dead_children();
    (0..process::table().used_socks()).for_each(release_if_abandoned);
}

/// True for a record in use that no living process owns. Certain under its lock only.
fn is_abandoned(index: u32) -> bool {
    let (s, l, pid) = (process::table().sock(index), local(index), process::pid());
    s.class.load(Ordering::Acquire) != CLASS_FREE
        && l.fds.load(Ordering::Acquire) == 0
        && l.marks.load(Ordering::SeqCst) == 0
        && (l.left.load(Ordering::SeqCst) || s.owners.iter().all(|o| o.load(Ordering::Relaxed) & !OWNER_LEAVES != pid))
        && !others_own(s, pid)
}

fn release_if_abandoned(index: u32) {
    if !is_abandoned(index) {
        return;
    }
    let table = process::table();
    let s = table.sock(index);
    let _critical = Critical::enter();
    s.lock.lock(thread::me());
    // Once more: an owner that is leaving just now gives the record back itself.
    let abandoned = is_abandoned(index);
    if abandoned {
        local(index).left.store(false, Ordering::Relaxed);
        remove_owner(s, process::pid());
        epoll::sock_gone(Handle::of_record(index));
        s.class.store(CLASS_FREE, Ordering::Release);
    }
    s.lock.unlock();
    if abandoned {
        table.release(index, thread::me());
    }
}

/// Follows a descriptor from now on. Nothing happens if the table is full: the socket stays on TCP.
fn track(fd: i32, class: u32, nonblocking: bool) -> Option<Handle> {
    if fd < 0 || !process::ready() {
        return None;
    }
    let table = process::table();
    if TRACKED.fetch_add(1, Ordering::Relaxed) % REAP_EVERY == REAP_EVERY - 1 {
        reap();
    }
    let index = table.allocate(class, process::pid())?;
    let s = table.sock(index);
    if nonblocking {
        s.set(FLAG_NONBLOCK);
    }
    s.cookie.store(promote::cookie(fd).unwrap_or(0), Ordering::Relaxed);
    local(index).fds.store(1, Ordering::Release);
    local(index).keep_fd.store(0, Ordering::Relaxed);
    local(index).linger.store(0, Ordering::Relaxed);
    local(index).exposed.store(false, Ordering::Relaxed);
    let h = Handle::of_record(index);
    let (old, entered) = fdtable::enter(fd, h);
    if let Some(old) = old.filter(|o| o.is_sock()) {
        // The number was closed behind our back (a raw system call): the old socket is gone already.
        drop_reference(old, -1);
    }
    if !entered {
        local(index).fds.store(0, Ordering::Relaxed);
        table.release(index, thread::me());
        return None;
    }
    process::note_fd(fd);
    Some(h)
}

/// After `socket`. Only TCP sockets are followed.
pub fn socket_created(fd: i32, domain: i32, kind: i32, protocol: i32) {
    let tcp = (domain == libc::AF_INET || domain == libc::AF_INET6)
        && kind & 0xf == libc::SOCK_STREAM
        && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if tcp {
        track(fd, CLASS_FRESH, kind & libc::SOCK_NONBLOCK != 0);
    }
}

/// After `accept`: `listener` is what the listening descriptor leads to, if it is ours.
pub fn accepted(listener: Option<Handle>, fd: i32, flags: i32) {
    let tcp = match listener {
        Some(h) => h.is_sock(),
        None => is_tcp(fd),
    };
    if tcp && let Some(h) = track(fd, CLASS_CONNECTED, flags & libc::SOCK_NONBLOCK != 0) {
        let listener = listener.filter(|l| l.is_current()).map(Handle::sock);
        options::take_after(listener, h.sock(), fd);
        stats::count_connection();
    }
}

/// At the start of an image: a connected socket that it was given.
pub(crate) fn inherited(fd: i32) {
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0);
    if let Some(h) = track(fd, CLASS_CONNECTED, nonblocking) {
        let s = h.sock();
        s.set(FLAG_INHERITED);
        options::learn(s, fd);
        handover::note_reason(s, Reason::Exec);
        stats::count_connection();
    }
}

pub(crate) fn is_tcp(fd: i32) -> bool {
    let mut protocol = 0i32;
    let mut len = 4u32;
    // SAFETY: buffer and length are valid.
    let asked =
        unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, (&raw mut protocol).cast(), &mut len) };
    asked.is_ok() && protocol == libc::IPPROTO_TCP
}

/// Around `connect`.
pub fn connect(h: Handle, native: impl FnOnce() -> isize) -> isize {
    let s = h.sock();
    s.set(FLAG_CONNECTING);
    let r = native();
    let under_way = r == 0 || r == -(libc::EINPROGRESS as isize) || r == -(libc::EINTR as isize);
    if under_way && s.class.compare_exchange(CLASS_FRESH, CLASS_CONNECTED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        stats::count_connection();
    }
    r
}

/// The descriptor that a close kept open for threads that still wait on the socket.
pub fn kept_fd(h: Handle) -> Option<i32> {
    let kept = local(h.index()).keep_fd.load(Ordering::SeqCst);
    (kept > 0 && h.is_current()).then(|| kept - 1)
}

/// True for a descriptor that is open and the socket's: what was learnt of it until now is the socket's, too, and not that of
/// whoever has the number next.
pub fn is_shadow(fd: i32, h: Handle) -> bool {
    fdtable::leads_to(fd, h) || kept_fd(h) == Some(fd)
}

/// One descriptor fewer in this process. `fd` is still open, or -1 if it is gone already.
fn drop_reference(h: Handle, fd: i32) {
    let l = local(h.index());
    if l.fds.fetch_sub(1, Ordering::SeqCst) > 1 {
        if fd >= 0 {
            handover::pass_directions(h.sock());
        }
        return;
    }
    let waited_on = wait::anybody_waits(h.index());
    // As in the kernel: a call that is under way keeps the socket open until it returns.
    if waited_on
        && fd >= 0
        && let Ok(kept) = sys::duplicate_high(fd)
    {
        fdtable::enter_internal(kept);
        l.keep_fd.store(kept + 1, Ordering::SeqCst);
        point_to_kept(h);
        waiter_left(h.index());
        return;
    }
    leave_sock(h, fd, waited_on);
    give_back(h.index());
}

/// A descriptor whose record others may have given back: it is followed no more, and nothing else is known of its socket.
fn forget_descriptor(fd: i32, h: Handle) {
    fdtable::remove(fd);
    if h.is_current() {
        local(h.index()).fds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives the record back if this process was the last one to have the socket.
fn give_back(index: u32) {
    if local(index).left.load(Ordering::SeqCst) {
        release_if_abandoned(index);
    }
}

/// Before the kernel gives the number of a closed descriptor to others: threads that sleep on it go on with the one that was
/// kept, and what is done with it under one of the locks has ended.
fn point_to_kept(h: Handle) {
    let s = h.sock();
    let tx = lock_tx(s);
    // The last of them may have left meanwhile, and unmapped.
    if ready::is_open(h)
        && let Some(pair) = pair(s)
    {
        ring_own_ends(&pair);
    }
    drop(tx);
    drop(lock_rx(s));
}

fn ring_own_ends(pair: &Pair) {
    bells::ring_all(&pair.incoming(), End::Reader);
    bells::ring_all(&pair.outgoing(), End::Writer);
}

/// A thread that waited on a socket which was closed in the meantime has returned: the last one carries that out.
pub fn waiter_left(index: u32) {
    let l = local(index);
    while l.fds.load(Ordering::SeqCst) == 0 && !wait::anybody_waits(index) {
        let kept = l.keep_fd.swap(0, Ordering::SeqCst);
        if kept == 0 {
            return;
        }
        // Whoever begins to wait from here on finds the socket closed; who did so before is found now.
        if wait::anybody_waits(index) {
            l.keep_fd.store(kept, Ordering::SeqCst);
            continue;
        }
        // The program may have put a descriptor of its own in its place.
        let fd = Some(kept - 1).filter(|fd| fdtable::is_internal(*fd)).unwrap_or(-1);
        leave_sock(Handle::of_record(index), fd, false);
        fdtable::close_internal(fd);
        give_back(index);
        return;
    }
}

/// This process has no descriptor of the socket any more. `waited_on`: none could be kept for threads that wait on it. To be
/// followed by [`give_back`].
fn leave_sock(h: Handle, fd: i32, waited_on: bool) {
    let s = h.sock();
    let _critical = Critical::enter();
    s.lock.lock(thread::me());
    let last = !others_own(s, process::pid());
    if !last {
        // The last one stays until the record is given back: other processes leave it alone as long.
        remove_owner(s, process::pid());
    }
    if s.class.load(Ordering::Acquire) == CLASS_CONNECTED {
        stats::fold(s);
        if let Some(reason) = Reason::from_code(s.reason.load(Ordering::Relaxed) as u16).filter(|r| *r != Reason::None)
        {
            stats::count_reason(reason);
        }
    }
    if s.pairing.compare_exchange(PAIR_REGISTERED, PAIR_NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        client::unregister(h.token());
    }
    if !last {
        adopt::leave_to_heir(h, fd);
    }
    let pair = pair(s);
    if let Some(pair) = &pair {
        if waited_on {
            // They find that nothing leads to the socket any more.
            ring_own_ends(pair);
        }
        if last {
            if fd >= 0 && lock_rx(s).unread() > 0 {
                shadow::reset_at_close(fd);
            }
            pair.give_up();
            pair.set_closing();
            pair.incoming().clear_bells(End::Reader);
            pair.outgoing().clear_bells(End::Writer);
        }
    }
    handover::pass_directions(s);
    if let Some(pair) = pair {
        epoll::mapping_going(h);
        if last {
            s.seg_base.store(0, Ordering::Release);
        }
        // Who waited takes its bells out of the rings when it wakes: it is left the mapping, for good.
        if !waited_on {
            // SAFETY: no descriptor and no waiter of this process leads here any more.
            unsafe { pair.unmap() };
        }
    }
    if last {
        epoll::sock_gone(h);
        local(h.index()).left.store(true, Ordering::SeqCst);
    }
    s.lock.unlock();
}

/// Takes a process off the owners.
fn remove_owner(s: &Sock, pid: u32) {
    for owner in &s.owners {
        for entry in [pid, pid | OWNER_LEAVES] {
            let _ = owner.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// True while another living process owns the socket, or may.
fn others_own(s: &Sock, pid: u32) -> bool {
    if is_child_expected(s) || s.has(FLAG_UNCOUNTED) {
        return true;
    }
    s.owners.iter().any(|owner| {
        let other = owner.load(Ordering::Acquire);
        if other == 0 || other & !OWNER_LEAVES == pid {
            return false;
        }
        // One that was about to start another image may just go on.
        let gone = || match owner.compare_exchange(other, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => now == 0,
        };
        images::still_owns(other) || !gone()
    })
}

/// True when this process is the only one that has the socket.
pub fn sole_owner(s: &Sock) -> bool {
    !others_own(s, process::pid())
}

/// Around `shutdown`.
pub fn shutdown(h: Handle, fd: i32, how: i32, native: impl FnOnce() -> isize) -> isize {
    let s = h.sock();
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        let mut tx = lock_tx(s);
        if !fdtable::leads_to(fd, h) {
            // Another thread has closed it: its rings may be unmapped.
            drop(tx);
            return native();
        }
        if let Some(pair) = pair(s) {
            pair.outgoing().set_wr_shut();
        }
        // The ring ends in good order; what is in it is read before the FIN (clause 5.3).
        tx.demote(h, fd, Reason::HalfClosed);
        s.set(FLAG_SHUT_WR);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        s.set(FLAG_SHUT_RD);
    }
    let r = native();
    wake_readers(h, fd);
    r
}

/// Rings those who sleep on what comes in: what they wait for has changed.
pub(crate) fn wake_readers(h: Handle, fd: i32) {
    let mut rx = lock_rx(h.sock());
    if fdtable::leads_to(fd, h)
        && let Some((ring, _)) = rx.any_ring()
    {
        bells::ring_all(&ring, End::Reader);
    }
}

/// Takes both directions back to TCP for good. The program goes on reading through Ropeway, so that the rest of the
/// incoming ring is read from there first.
pub fn pin(h: Handle, fd: i32, reason: Reason) {
    let s = h.sock();
    if !s.has(FLAG_PINNED) {
        handover::pin(s, reason);
    }
    end_outgoing(h, fd, reason);
    {
        let mut rx = lock_rx(s);
        if is_shadow(fd, h) {
            rx.demote(h, fd, reason);
        }
    }
    handover::forget_left(s, h);
}

/// Ends the outgoing ring, unless another thread has closed the descriptor meanwhile: the rings may be unmapped then.
fn end_outgoing(h: Handle, fd: i32, reason: Reason) {
    let mut tx = lock_tx(h.sock());
    if is_shadow(fd, h) {
        tx.demote(h, fd, reason);
    }
}

/// Takes both directions back to TCP for good before somebody reads the descriptor past Ropeway. An unread rest of the
/// incoming ring goes back to the writer, which sends it over TCP (clause 4.1); if that cannot be, because the writer does
/// not answer or has sent bytes over TCP behind it, a relay takes the descriptor's place (clause 4.2).
pub fn leave(h: Handle, fd: i32, reason: Reason) {
    leave_among(h, fd, reason, &Patience::begin());
}

/// The same as one of several, which have one time to wait in common.
pub fn leave_among(h: Handle, fd: i32, reason: Reason, patience: &Patience) {
    adopt::given_away(h);
    take_back(h, fd, reason, patience);
}

fn take_back(h: Handle, fd: i32, reason: Reason, patience: &Patience) {
    let s = h.sock();
    if !s.has(FLAG_PINNED) {
        handover::pin(s, reason);
    }
    // The incoming ring first: while ours is open, the peer waits where it can be asked for an unread rest.
    let settled = give_rest_back(h, fd, reason, patience);
    end_outgoing(h, fd, reason);
    handover::forget_left(s, h);
    // With other owners, the rest is theirs as much as ours: it stays for those who read through Ropeway. Another thread may
    // have closed the socket while the peer was asked.
    if !settled && is_shadow(fd, h) && sole_owner(s) {
        relay::take_over(h, fd);
    }
}

/// Closes the incoming ring, as [`end_outgoing`] the other one; true unless a rest stays in it that the writer does not take
/// back.
fn give_rest_back(h: Handle, fd: i32, reason: Reason, patience: &Patience) -> bool {
    let s = h.sock();
    let mut rx = lock_rx(s);
    if !is_shadow(fd, h) {
        return true;
    }
    rx.demote(h, fd, reason);
    let Some((ring, c)) = rx.ring() else { return true };
    if ring.unread(c).0 == 0 {
        rx.closed(h);
        return true;
    }
    let writer_is_there = ring.left() != c.epoch;
    writer_is_there && handover::recall_and_wait(&mut rx, h, fd, patience)
}

/// Every descriptor of this process that leads to the socket leads to `replacement` from now on, past Ropeway.
pub(crate) fn replace_descriptors(h: Handle, replacement: i32) {
    fdtable::for_each_in(0, u32::MAX, |fd, other| {
        if other == h {
            let flags = sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(0);
            epoll::replaced(h, fd, || {
                if sys::dup2(replacement, fd).is_ok() {
                    let _ = sys::fcntl(fd, libc::F_SETFD, flags);
                    fdtable::remove(fd);
                    drop_reference(h, -1);
                }
            });
        }
    });
}

/// The descriptor's mode changed (fcntl, ioctl).
pub fn set_nonblocking(h: Handle, on: bool) {
    if on { h.sock().set(FLAG_NONBLOCK) } else { h.sock().clear(FLAG_NONBLOCK) }
}
