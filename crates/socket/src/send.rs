//! Sending on a tracked socket: over the kernel with accounting, or into the ring.

mod file;

pub use file::sendfile;

use crate::fdtable::{self, Handle};
use crate::handover::{self, Recalls, TxLock, lock_tx};
use crate::iov::{Cursor, Unusable};
use crate::lifecycle::Behind;
use crate::reason::Reason;
use crate::thread::{self, Signals};
use crate::wait::{self, Deadline, Waiting, Woken};
use crate::{epoll, lifecycle, options, promote, ready, shadow};
use core::sync::atomic::Ordering;
use libc::iovec;
use ropeway_shm::ring::{End, Producer, Ring, WriteStop};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_NONBLOCK, FLAG_RESET, FLAG_SHUT_RD, FLAG_SNDTIMEO_PASSED, Sock, TX_RING};

/// Payload of one record of a large send. Publishing in pieces lets the reader copy out while we still copy in.
const PIECE_BYTES: usize = 16 * 1024 - 8;
/// A blocking writer that sees no progress of the reader for this long goes back to TCP, which buffers more
/// (two ends that both send first must not deadlock).
pub(crate) const NO_PROGRESS_NS: u64 = 10_000_000;

/// Sends on a socket of ours. `native` makes the program's own call on the kernel and returns its answer or -errno.
///
/// # Safety
/// `iov` must point to `n` valid entries with readable buffers, as for `sendmsg`.
#[inline]
pub unsafe fn send(
    h: Handle,
    fd: i32,
    iov: *const iovec,
    n: usize,
    flags: i32,
    native: impl FnMut() -> isize,
) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { step(h, fd, iov, n, flags, false, native) }
}

/// The same as a step of a call that makes several, and is entered as a waiter for all of them ([`wait::begin_steps`]). `begun`: others
/// went before. As in the kernel, the call stays with the socket whatever becomes of the number: it goes on with the descriptor
/// that close keeps for it, or fails with EBADF where there is none.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn step(
    h: Handle,
    fd: i32,
    iov: *const iovec,
    n: usize,
    flags: i32,
    begun: bool,
    mut native: impl FnMut() -> isize,
) -> isize {
    if !begun && promote::at_boundary(h.sock(), h, fd) {
        return promote::strict_failure(h);
    }
    if flags & libc::MSG_OOB != 0 {
        if begun && !fdtable::leads_to(fd, h) {
            return -(libc::EBADF as isize);
        }
        lifecycle::pin(h, fd, Reason::UrgentData);
        return over_tcp_only(h, native);
    }
    // SAFETY: passed on to the caller.
    let list = match unsafe { Cursor::new(iov, n) } {
        Ok(list) => list,
        Err(Unusable::Refused) => return native(),
        Err(Unusable::Fault) => return -(libc::EFAULT as isize),
    };
    begin(h, fd, &list, flags, begun, native)
}

#[inline(always)]
fn begin(h: Handle, fd: i32, list: &Cursor, flags: i32, begun: bool, native: impl FnMut() -> isize) -> isize {
    let s = h.sock();
    if s.tx.phase.load(Ordering::Acquire) == TX_RING {
        if s.has(FLAG_RESET) {
            return reset_error(s, flags);
        }
        let mut cursor = *list;
        return over_ring(h, fd, &mut cursor, flags, begun, native);
    }
    over_tcp(h, fd, list, flags, begun, native)
}

/// A send whose number was found not to lead to the socket any more, before anything was sent.
#[cold]
fn gone(h: Handle, fd: i32, list: &Cursor, flags: i32, begun: bool, mut native: impl FnMut() -> isize) -> isize {
    let waiting = wait::begin(h);
    let kept = if begun { lifecycle::kept_soon(fd, h) } else { lifecycle::kept_fd(h) };
    if let Some(kept) = kept.filter(|kept| *kept != fd) {
        return over_tcp(h, kept, list, flags, begun, native);
    }
    drop(waiting);
    if begun {
        return -(libc::EBADF as isize);
    }
    match lifecycle::behind_now(fd) {
        Behind::Socket(other) => begin(other, fd, list, flags, false, native),
        Behind::Kernel => native(),
        Behind::Closing => -(libc::EBADF as isize),
    }
}

/// The error of a send on a connection that was reset, as TCP gives it: once ECONNRESET, then EPIPE.
fn reset_error(s: &Sock, flags: i32) -> isize {
    let pending = s.error.swap(0, Ordering::AcqRel);
    if pending != 0 {
        return -(pending as isize);
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        let me = thread::me();
        let _ = sys::tgkill((me >> 32) as i32, me as u32 as i32, libc::SIGPIPE);
    }
    -(libc::EPIPE as isize)
}

fn over_tcp_only(h: Handle, mut native: impl FnMut() -> isize) -> isize {
    let r = native();
    if r > 0
        && let Some(tx) = handover::lock_tx_again(h)
    {
        tx.s.tx.tcp_bytes.fetch_add(r as u64, Ordering::AcqRel);
    }
    r
}

fn over_tcp(h: Handle, fd: i32, list: &Cursor, flags: i32, begun: bool, mut native: impl FnMut() -> isize) -> isize {
    let s = h.sock();
    let (leads, alone) = {
        let mut tx = lock_tx(s);
        let leads = fdtable::leads_to(fd, h);
        if !leads && lifecycle::kept_fd(h) != Some(fd) {
            drop(tx);
            return gone(h, fd, list, flags, begun, native);
        }
        if s.has(FLAG_RESET) {
            drop(tx);
            return reset_error(s, flags);
        }
        if tx.ring().is_some() || tx.try_switch(h, fd) {
            drop(tx);
            let mut cursor = *list;
            return over_ring(h, fd, &mut cursor, flags, begun, native);
        }
        tx.look_at_left(h);
        (leads, s.tx.inflight.fetch_add(1, Ordering::AcqRel) == 0)
    };
    let r = if leads {
        native()
    } else {
        // SAFETY: the program's buffers, as in `send`.
        unsafe { list.kernel_call(fd, list.left(), flags, true) }.map_or_else(|e| -(e as isize), |n| n as isize)
    };
    let Some(_tx) = handover::lock_tx_again(h) else { return r };
    if r > 0 && s.tx.prefix.wants() {
        // Another one that has begun since may have sent bytes before these.
        hash_prefix(s, list, r as usize, alone && s.tx.inflight.load(Ordering::Acquire) == 1);
    }
    count_out(s, r, list.left());
    r
}

/// After a kernel call that was to send `wanted` bytes and was counted in. Under the lock.
fn count_out(s: &Sock, r: isize, wanted: usize) {
    if r > 0 {
        s.tx.tcp_bytes.fetch_add(r as u64, Ordering::AcqRel);
    }
    note_shortage(s, r, wanted);
    s.tx.inflight.fetch_sub(1, Ordering::AcqRel);
    s.tx.calls.fetch_add(1, Ordering::Relaxed);
}

/// After a kernel call that was to send `wanted` bytes: a set in which the socket is edge-triggered must report room again.
pub fn note_shortage(s: &Sock, r: isize, wanted: usize) {
    if r == -(libc::EAGAIN as isize) || r >= 0 && (r as usize) < wanted {
        s.tx.blocked.store(1, Ordering::Relaxed);
    }
}

/// Feeds the hash of the first bytes. Two senders at once leave their order unknown: then hashing stops.
fn hash_prefix(s: &Sock, list: &Cursor, n: usize, alone: bool) {
    if !alone {
        return s.tx.prefix.stop();
    }
    // SAFETY: the kernel has just read these bytes from the program's buffers.
    list.for_each(n.min(256), |p, len| s.tx.prefix.add(unsafe { core::slice::from_raw_parts(p, len) }));
}

/// Why filling the ring stopped.
enum Stop {
    Done,
    /// There was no room when the reader had come so far ([`Ring::progress_seen`]).
    Full(u64),
    /// This direction is on TCP (again).
    Tcp,
    /// The descriptor no longer leads to this socket.
    Gone,
    Reset,
    /// The program's buffer is not there.
    Fault,
}

/// True while sends follow each other without anything being received in between. The other direction's count may belong to
/// another processor, so that it is looked at now and then only. Under the lock.
#[inline(always)]
fn is_one_way(s: &Sock) -> bool {
    /// Sends between two looks.
    const SENDS: u32 = 16;
    let mut run = s.tx.run.load(Ordering::Relaxed) + 1;
    if run.is_multiple_of(SENDS) {
        let heard = s.rx.ring_bytes.load(Ordering::Relaxed) as u32;
        run = if heard == s.tx.heard.load(Ordering::Relaxed) { SENDS } else { 0 };
        s.tx.heard.store(heard, Ordering::Relaxed);
    }
    s.tx.run.store(run, Ordering::Relaxed);
    run >= SENDS
}

fn fill(tx: &mut TxLock, h: Handle, fd: i32, cursor: &mut Cursor) -> Stop {
    let s = tx.s;
    let Some((ring, p)) = tx.ring() else { return Stop::Tcp };
    let before = cursor.left();
    let one_way = is_one_way(s);
    let stop = loop {
        if cursor.left() == 0 {
            if one_way {
                ring.expect_next(p, before);
            }
            break Stop::Done;
        }
        match ring.begin(p, 1, cursor.left().min(PIECE_BYTES)) {
            Ok((dst, room)) => {
                if !one_way {
                    ring.expect_poll(p, room.min(cursor.left()));
                }
                let rest = *cursor;
                // SAFETY: `begin` gave `room` writable bytes; the program's buffers are its own.
                let Some(n) = (unsafe { cursor.copy_out(dst, room) }) else {
                    *cursor = rest;
                    break Stop::Fault;
                };
                match ring.commit(p, n) {
                    Ok(()) if ring.must_ring(End::Reader) => crate::bells::ring_all(&ring, End::Reader),
                    Ok(()) => {}
                    Err(stop) => {
                        *cursor = rest;
                        break stop_of(stop, &ring, p);
                    }
                }
            }
            Err(stop) => break stop_of(stop, &ring, p),
        }
    };
    let moved = (before - cursor.left()) as u64;
    s.tx.ring_bytes.store(s.tx.ring_bytes.load(Ordering::Relaxed) + moved, Ordering::Relaxed);
    match stop {
        Stop::Tcp => tx.closed_by_reader(h, fd),
        Stop::Reset => tx.corrupt(h, fd),
        _ => {}
    }
    stop
}

fn stop_of(stop: WriteStop, ring: &Ring, p: &Producer) -> Stop {
    match stop {
        WriteStop::Full => Stop::Full(ring.progress_seen(p)),
        WriteStop::Closed => Stop::Tcp,
        WriteStop::Corrupt => Stop::Reset,
    }
}

fn over_ring(h: Handle, fd: i32, cursor: &mut Cursor, flags: i32, begun: bool, native: impl FnMut() -> isize) -> isize {
    let s = h.sock();
    let total = cursor.left();
    if total == 0 {
        return 0;
    }
    // As the kernel, which looks at the beginning of a call: what is set meanwhile holds for the next one.
    let waits = flags & libc::MSG_DONTWAIT == 0 && !s.has(FLAG_NONBLOCK | FLAG_SNDTIMEO_PASSED);
    let mut blocking: Option<Blocking> = None;
    let is_entered = |blocking: &Option<Blocking>| begun || blocking.is_some();
    let mut fd = fd;
    loop {
        handover::chaos(s, h, fd);
        if handover::time_to_look(s) {
            handover::look_for_end(s, h, fd);
        }
        let stop = {
            let mut tx = lock_tx(s);
            if !still_leads(&mut fd, h) {
                Stop::Gone
            } else if s.has(FLAG_RESET) {
                Stop::Reset
            } else {
                fill(&mut tx, h, fd, cursor)
            }
        };
        let done = total - cursor.left();
        let seen = match stop {
            Stop::Done => return total as isize,
            Stop::Gone if is_entered(&blocking) && lifecycle::kept_soon(fd, h).is_some() => continue,
            Stop::Gone if done > 0 => return done as isize,
            Stop::Gone => return gone(h, fd, cursor, flags, is_entered(&blocking), native),
            Stop::Reset => return if done > 0 { done as isize } else { reset_error(s, flags) },
            Stop::Fault => return if done > 0 { done as isize } else { -(libc::EFAULT as isize) },
            Stop::Tcp if done == 0 => return over_tcp(h, fd, cursor, flags, is_entered(&blocking), native),
            Stop::Tcp => {
                match rest_over_tcp(h, &mut fd, cursor, flags) {
                    Rest::Full => {}
                    Rest::LookAgain => continue,
                    Rest::Over => return (total - cursor.left()) as isize,
                }
                if waits && blocking.get_or_insert_with(|| Blocking::new(s, h, fd)).wait_for_tcp(fd) == Woken::Look {
                    continue;
                }
                note_shortage(s, 0, 1);
                return (total - cursor.left()) as isize;
            }
            Stop::Full(seen) => seen,
        };
        let woken = if waits {
            blocking.get_or_insert_with(|| Blocking::new(s, h, fd)).wait_for_room(s, h, fd, seen, done > 0)
        } else {
            Woken::TimedOut
        };
        if woken == Woken::Look {
            continue;
        }
        note_full(h);
        match woken {
            Woken::Interrupted => return if done > 0 { done as isize } else { -(libc::EINTR as isize) },
            // The reader may have made room before it could see the mark: nobody would tell us then.
            _ if writable_now(h) => {}
            _ if done > 0 => return done as isize,
            _ if ready::tried_long_enough(h, fd) => {}
            _ => return -(libc::EAGAIN as isize),
        }
    }
}

/// True while the descriptor (or the one that close kept for waiters) leads to this socket; updates `fd`.
pub(crate) fn still_leads(fd: &mut i32, h: Handle) -> bool {
    fdtable::leads_to(*fd, h)
        || lifecycle::kept_fd(h).is_some_and(|kept| {
            *fd = kept;
            true
        })
}

/// Not all bytes found room: from now on room is an event for those who wait for it (`docs/readiness.md`, section 4).
pub fn note_full(h: Handle) {
    h.sock().tx.blocked.swap(1, Ordering::SeqCst);
    epoll::send_blocked(h);
}

fn writable_now(h: Handle) -> bool {
    let mut tx = lock_tx(h.sock());
    // Closed in another thread, its rings may be unmapped.
    match tx.ring().filter(|_| ready::is_open(h)) {
        Some((ring, p)) => ring.writable(p),
        None => true,
    }
}

/// How sending the rest of a list over TCP ended.
enum Rest {
    /// All is sent, or no more will be.
    Over,
    Full,
    /// Another thread has moved the direction to a ring again, or closed the descriptor.
    LookAgain,
}

/// What is moved over TCP behind a ring that ended in the middle of a call, under the direction's lock at a time.
pub(crate) const REST_PIECE_BYTES: usize = 64 * 1024;

/// Sends what follows a ring that was closed in the middle of a send, without waiting. Each piece under the lock, which close
/// passes before the number can be another's.
fn rest_over_tcp(h: Handle, fd: &mut i32, cursor: &mut Cursor, flags: i32) -> Rest {
    let s = h.sock();
    // No SIGPIPE: part of the data was sent already.
    let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    while cursor.left() > 0 {
        let mut tx = lock_tx(s);
        if !still_leads(fd, h) || tx.ring().is_some() {
            return Rest::LookAgain;
        }
        // SAFETY: the program's buffers, as in `send`.
        match unsafe { cursor.kernel_call(*fd, cursor.left().min(REST_PIECE_BYTES), flags, true) } {
            Ok(n) => {
                if s.tx.prefix.wants() {
                    hash_prefix(s, cursor, n, s.tx.inflight.load(Ordering::Acquire) == 0);
                }
                s.tx.tcp_bytes.fetch_add(n as u64, Ordering::AcqRel);
                cursor.advance(n);
            }
            Err(libc::EAGAIN | libc::EINTR) => return Rest::Full,
            Err(libc::EPIPE | libc::EFAULT) => return Rest::Over,
            Err(e) => {
                s.keep_error(e);
                return Rest::Over;
            }
        }
    }
    Rest::Over
}

/// A blocking send that found the ring full.
struct Blocking {
    /// For the rest of the call: close in another thread leaves us the socket.
    _waiting: Waiting,
    deadline: Deadline,
    signals: Signals,
    /// What the reader's progress was when it was looked at last (ring, kernel's send queue), and when that was.
    progress: (u64, usize),
    progress_at: u64,
    /// Requests to take a rest back that the caller is sent to look at.
    recalls: Recalls,
}

impl Blocking {
    fn new(s: &Sock, h: Handle, fd: i32) -> Blocking {
        let deadline = options::send_deadline(s, fd);
        let signals = thread::signals();
        Blocking {
            _waiting: wait::begin(h),
            deadline,
            signals: if deadline.is_some() { signals.by_any_handler() } else { signals },
            progress: (0, 0),
            progress_at: 0,
            recalls: Recalls::default(),
        }
    }

    /// Waits for room in the kernel's send buffer, for a call that has sent something already. Nobody rings here when the
    /// number is closed, and becomes another's: the caller looks at that now and then.
    fn wait_for_tcp(&mut self, fd: i32) -> Woken {
        let mut room = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let soon = sys::monotonic_ns() + NO_PROGRESS_NS;
        let until = self.deadline.map_or(soon, |d| d.min(soon));
        let woken = wait::poll_with_signals(&mut room, Some(until), self.signals.by_any_handler());
        woken.or_look_until(self.deadline)
    }

    /// `seen`: how far the reader had come when there was no room. It may have read all since, and then says nothing more.
    fn wait_for_room(&mut self, s: &Sock, h: Handle, mut fd: i32, seen: u64, partial: bool) -> Woken {
        if !ready::is_open(h) {
            // Closed before we were entered: nothing keeps the rings for us.
            return Woken::Look;
        }
        let Some(pair) = handover::pair(s) else { return Woken::Look };
        // A call that has something to show for itself is never restarted.
        let signals = if partial { self.signals.by_any_handler() } else { self.signals };
        let ring = pair.outgoing();
        if self.recalls.is_new(ring.recall_asked()) {
            return Woken::Look;
        }
        let recalls = &self.recalls;
        let ready = || {
            ring.progress() != seen
                || recalls.is_another(ring.recall_asked())
                || s.tx.phase.load(Ordering::Acquire) != TX_RING
        };
        if wait::spin(ready, signals) {
            return Woken::Look;
        }
        let now = sys::monotonic_ns();
        if seen != self.progress.0 || self.progress_at == 0 || now >= self.progress_at + NO_PROGRESS_NS {
            // A reader that is still draining TCP before it comes to the ring makes progress, too.
            let progress = (seen, shadow::unacknowledged(fd));
            if progress != self.progress || self.progress_at == 0 {
                self.progress = progress;
                self.progress_at = now;
            }
        }
        let patience = self.progress_at + NO_PROGRESS_NS;
        if now >= patience {
            let mut tx = lock_tx(s);
            if still_leads(&mut fd, h) {
                tx.demote(h, fd, Reason::NoProgress);
            }
            return Woken::Look;
        }
        let until = self.deadline.map_or(patience, |d| d.min(patience));
        // After one's own SHUT_RD the kernel would report it for ever.
        let events = if s.has(FLAG_SHUT_RD) { 0 } else { libc::POLLRDHUP };
        let woken = wait::sleep(&ring, End::Writer, wait::Shadow { h, fd, events }, Some(until), signals, ready);
        handover::look_for_end(s, h, fd);
        woken.or_look_until(self.deadline)
    }
}
