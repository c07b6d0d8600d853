//! Receiving on a tracked socket: from the kernel with accounting, or from the ring, or across the switch between them.

mod end;
mod pass;

pub use pass::look_for_switch;

use crate::fdtable::{self, Handle};
use crate::handover::{self, Recalls, lock_rx};
use crate::iov::{Cursor, Unusable};
use crate::lifecycle::Behind;
use crate::reason::Reason;
use crate::send::{REST_PIECE_BYTES, still_leads};
use crate::thread::{self, Signals};
use crate::wait::{self, Deadline, Waiting, Woken};
use crate::{lifecycle, machine, options, promote, ready, shadow};
use core::sync::atomic::Ordering;
use end::{Ended, look_at_end};
use libc::iovec;
use pass::{Mode, Pass, peek, peek_tcp, take};
use ropeway_shm::ring::End;
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_NONBLOCK, FLAG_PEER_FIN, FLAG_RCVTIMEO_PASSED, FLAG_RESET, RX_RING, RX_TCP, Sock, TX_RING,
};

/// Receives on a socket of ours. `native` makes the program's own call on the kernel and returns its answer or -errno.
///
/// # Safety
/// `iov` must point to `n` valid entries with writable buffers, as for `recvmsg`.
#[inline]
pub unsafe fn recv(
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

/// The same as a step of a call that makes several, as for sending ([`crate::send::step`]).
///
/// # Safety
/// As for [`recv`].
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
    // With MSG_TRUNC the buffers are not written.
    let count_only = flags & libc::MSG_TRUNC != 0;
    // SAFETY: passed on to the caller.
    let list = unsafe { if count_only { Cursor::counting(iov, n) } else { Cursor::new(iov, n) } };
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Neither is part of the stream.
        if begun && !fdtable::leads_to(fd, h) {
            return -(libc::EBADF as isize);
        }
        if flags & libc::MSG_OOB != 0 {
            lifecycle::pin(h, fd, Reason::UrgentData);
        }
        return native();
    }
    let mut cursor = match list {
        Ok(cursor) => cursor,
        Err(Unusable::Refused) => return native(),
        Err(Unusable::Fault) => return -(libc::EFAULT as isize),
    };
    begin(h, fd, &mut cursor, flags, begun, native)
}

#[inline(always)]
fn begin(h: Handle, fd: i32, cursor: &mut Cursor, flags: i32, begun: bool, native: impl FnMut() -> isize) -> isize {
    if h.sock().rx.phase.load(Ordering::Acquire) == RX_TCP {
        return over_tcp(h, fd, cursor, flags, begun, native);
    }
    over_ring(h, fd, cursor, flags, begun, native)
}

/// A receive whose number was found not to lead to the socket any more, before anything was received.
#[cold]
fn gone(h: Handle, fd: i32, cursor: &mut Cursor, flags: i32, begun: bool, mut native: impl FnMut() -> isize) -> isize {
    let waiting = wait::begin(h);
    let kept = if begun { lifecycle::kept_soon(fd, h) } else { lifecycle::kept_fd(h) };
    if let Some(kept) = kept.filter(|kept| *kept != fd) {
        return over_tcp(h, kept, cursor, flags, begun, native);
    }
    drop(waiting);
    if begun {
        return -(libc::EBADF as isize);
    }
    match lifecycle::behind_now(fd) {
        Behind::Socket(other) => begin(other, fd, cursor, flags, false, native),
        Behind::Kernel => native(),
        Behind::Closing => -(libc::EBADF as isize),
    }
}

/// What a call that has received something does with the error of a further receive: if it is the connection's, the next call
/// tells it. The kernel told it once, or we did.
pub fn tell_later(h: Handle, fd: i32, error: i32) {
    let Pass::Error(e) = Pass::stopped_by(error) else { return };
    let Some(rx) = handover::lock_rx_again(h) else { return };
    let has_ended = || rx.s.has(FLAG_RESET) || shadow::poll(fd, 0) & libc::POLLHUP != 0;
    if lifecycle::is_shadow(fd, h) && has_ended() {
        rx.s.keep_error(e);
    }
}

fn over_tcp(
    h: Handle,
    fd: i32,
    cursor: &mut Cursor,
    flags: i32,
    begun: bool,
    mut native: impl FnMut() -> isize,
) -> isize {
    let s = h.sock();
    let (leads, alone) = {
        let mut rx = lock_rx(s);
        let leads = fdtable::leads_to(fd, h);
        if !leads && lifecycle::kept_fd(h) != Some(fd) {
            drop(rx);
            return gone(h, fd, cursor, flags, begun, native);
        }
        if s.rx.phase.load(Ordering::Relaxed) != RX_TCP || rx.try_attach(h, fd) {
            drop(rx);
            return over_ring(h, fd, cursor, flags, begun, native);
        }
        if s.has(FLAG_RESET) && shadow::queued(fd).is_none_or(|n| n == 0) {
            return -(s.error.swap(0, Ordering::AcqRel) as isize);
        }
        (leads, s.rx.inflight.fetch_add(1, Ordering::AcqRel) == 0)
    };
    let r = if leads {
        native()
    } else {
        // SAFETY: the program's buffers, writable by the contract of `recv`.
        unsafe { cursor.kernel_call(fd, cursor.left(), flags, false) }.map_or_else(|e| -(e as isize), |n| n as isize)
    };
    {
        let Some(_rx) = handover::lock_rx_again(h) else { return r };
        if r > 0 && flags & libc::MSG_PEEK == 0 {
            // Another one that has begun since may have taken bytes before these.
            let alone = alone && s.rx.inflight.load(Ordering::Acquire) == 1;
            note_tcp(s, cursor, r as usize, alone && flags & libc::MSG_TRUNC == 0);
        }
        s.rx.inflight.fetch_sub(1, Ordering::AcqRel);
        s.rx.calls.fetch_add(1, Ordering::Relaxed);
    }
    if r > 0 && flags & libc::MSG_PEEK == 0 {
        acknowledge(s, fd);
    }
    if r == 0 && cursor.left() > 0 && !s.has(FLAG_PEER_FIN) {
        // The kernel knows nothing of what the peer left unread in its ring.
        handover::peer_fin(s, h, fd);
        if s.has(FLAG_RESET) {
            return -(s.error.swap(0, Ordering::AcqRel) as isize);
        }
    }
    r
}

/// While only what we send is on a ring, no reply carries our acknowledgments any more: a peer with Nagle's algorithm
/// would wait for the delayed one.
fn acknowledge(s: &Sock, fd: i32) {
    if s.tx.phase.load(Ordering::Relaxed) == TX_RING {
        shadow::acknowledge_now(fd);
    }
}

/// Accounts for `n` bytes that came from the kernel into the list at the cursor.
fn note_tcp(s: &Sock, cursor: &Cursor, n: usize, in_order: bool) {
    if s.rx.prefix.wants() {
        if in_order {
            // SAFETY: the kernel has just written these bytes into the program's buffers.
            cursor.for_each(n.min(256), |p, len| s.rx.prefix.add(unsafe { core::slice::from_raw_parts(p, len) }));
        } else {
            s.rx.prefix.stop();
        }
    }
    s.rx.tcp_bytes.fetch_add(n as u64, Ordering::AcqRel);
}

fn over_ring(h: Handle, fd: i32, cursor: &mut Cursor, flags: i32, begun: bool, native: impl FnMut() -> isize) -> isize {
    let s = h.sock();
    let list = *cursor;
    let total = list.left();
    if total == 0 {
        return over_ring_empty(h, fd, flags, begun, native);
    }
    let peeking = flags & libc::MSG_PEEK != 0;
    let target = if flags & libc::MSG_WAITALL != 0 { total } else { options::receive_low_water(s, fd).min(total) };
    let mode = Mode { count_only: flags & libc::MSG_TRUNC != 0, wanted: total };
    // As the kernel, which looks at the beginning of a call: what is set meanwhile holds for the next one.
    let waits = flags & libc::MSG_DONTWAIT == 0 && !s.has(FLAG_NONBLOCK | FLAG_RCVTIMEO_PASSED);
    let mut fd = fd;
    let mut blocking: Option<Blocking> = None;
    let is_entered = |blocking: &Option<Blocking>| begun || blocking.is_some();
    loop {
        handover::chaos(s, h, fd);
        let pass = {
            let mut rx = lock_rx(s);
            if !still_leads(&mut fd, h) {
                Pass::Gone
            } else if peeking {
                *cursor = list;
                peek(&mut rx, h, fd, cursor, mode)
            } else {
                take(&mut rx, h, fd, cursor, mode)
            }
        };
        let pass = match pass {
            Pass::Tcp => {
                let got = total - cursor.left();
                // The kernel would count a time-out that has begun anew.
                let is_timed = blocking.as_ref().is_some_and(|b| b.deadline.is_some());
                if got == 0 && !is_timed {
                    return over_tcp(h, fd, cursor, flags, is_entered(&blocking), native);
                }
                if peeking && got > 0 {
                    return got as isize;
                }
                rest_over_tcp(h, &mut fd, cursor, mode, peeking)
            }
            pass => pass,
        };
        let got = total - cursor.left();
        match pass {
            Pass::Done => return total as isize,
            Pass::Mark => return got as isize,
            Pass::Gone if is_entered(&blocking) && lifecycle::kept_soon(fd, h).is_some() => continue,
            Pass::Gone if got > 0 => return got as isize,
            Pass::Gone => return gone(h, fd, cursor, flags, is_entered(&blocking), native),
            Pass::Fault => return if got > 0 { got as isize } else { -(libc::EFAULT as isize) },
            Pass::Tcp => continue,
            Pass::Error(e) if got > 0 => {
                s.keep_error(e);
                return got as isize;
            }
            Pass::End if got > 0 => return got as isize,
            Pass::Error(e) if e != 0 => return -(e as isize),
            Pass::Error(_) => return -(s.error.swap(0, Ordering::AcqRel) as isize),
            Pass::End => {
                handover::peer_fin(s, h, fd);
                return -(s.error.swap(0, Ordering::AcqRel) as isize);
            }
            Pass::Empty => {}
        }
        if got >= target {
            return got as isize;
        }
        // Nor does the kernel wait for more there.
        if got > 0 && !peeking && s.rx.phase.load(Ordering::Acquire) != RX_RING && shadow::at_mark(fd) {
            return got as isize;
        }
        let again = match look_at_end(s, h, fd, blocking.is_some()) {
            // A peek consumes nothing: looking again at once would show the same.
            Some(Ended::Again) if peeking && got > 0 => {
                if shadow::poll(fd, libc::POLLRDHUP) & shadow::END_EVENTS != 0 {
                    return got as isize;
                }
                false
            }
            Some(Ended::With(r)) if got > 0 => {
                // Told once: by the next call.
                s.keep_error((-r).max(0) as i32);
                return got as isize;
            }
            Some(Ended::With(r)) => return r,
            end => end.is_some(),
        };
        if again && blocking.is_none() {
            continue;
        }
        if !waits {
            return if got > 0 { got as isize } else { -(libc::EAGAIN as isize) };
        }
        let b = blocking.get_or_insert_with(|| Blocking::new(s, h, fd));
        let woken = match b.may_go_on(got) {
            Woken::Look if !again => b.wait_for_bytes(s, h, fd, got, peeking),
            woken => woken,
        };
        match woken {
            Woken::Look => {}
            Woken::TimedOut => return if got > 0 { got as isize } else { -(libc::EAGAIN as isize) },
            Woken::Interrupted => return if got > 0 { got as isize } else { -(libc::EINTR as isize) },
        }
    }
}

/// A receive of nothing waits for what a look at one byte would wait for, and gives the same errors.
fn over_ring_empty(h: Handle, fd: i32, flags: i32, begun: bool, mut native: impl FnMut() -> isize) -> isize {
    let mut byte = 0u8;
    let one = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one writable byte, which outlives the cursor.
    let Ok(mut cursor) = (unsafe { Cursor::new(&one, 1) }) else { return -(libc::EFAULT as isize) };
    // The kernel's 0 is not the end of file: the program asks it for nothing. (A closure's type would contain itself.)
    let natively: &mut dyn FnMut() -> isize = &mut || match native() {
        0 => 1,
        r => r,
    };
    over_ring(h, fd, &mut cursor, flags | libc::MSG_PEEK, begun, natively).min(0)
}

/// Takes, or shows, what TCP has behind a ring that ended in the middle of a receive, without waiting, each piece under the lock as
/// in sending. `Tcp`: the direction is on a ring again.
fn rest_over_tcp(h: Handle, fd: &mut i32, cursor: &mut Cursor, mode: Mode, peeking: bool) -> Pass {
    let s = h.sock();
    while cursor.left() > 0 {
        let _rx = lock_rx(s);
        if !still_leads(fd, h) {
            return Pass::Gone;
        }
        if s.rx.phase.load(Ordering::Relaxed) != RX_TCP {
            return Pass::Tcp;
        }
        if peeking {
            return peek_tcp(*fd, cursor, mode);
        }
        if cursor.left() < mode.wanted && shadow::at_mark(*fd) {
            return Pass::Mark;
        }
        let most = cursor.left().min(REST_PIECE_BYTES);
        let moved = if mode.count_only {
            shadow::discard(*fd, most)
        } else {
            // SAFETY: the program's buffers, writable by the contract of `recv`.
            unsafe { cursor.kernel_call(*fd, most, libc::MSG_DONTWAIT, false) }
        };
        match moved {
            Ok(0) => return Pass::End,
            Ok(n) => {
                let alone = s.rx.inflight.load(Ordering::Acquire) == 0;
                note_tcp(s, cursor, n, alone && !mode.count_only);
                acknowledge(s, *fd);
                cursor.advance(n);
            }
            Err(e) => return Pass::stopped_by(e),
        }
    }
    Pass::Done
}

/// How a reader keeps its distance from a writer of many small messages: a reader that looks at every line as it is written
/// takes it away from the writer each time, and both go at the pace of the cache lines between them. One that lags a little
/// finds several messages at once.
struct Pace {
    start: u64,
}

impl Pace {
    /// Waits in a row that were short, before the reader begins to lag.
    const SHORT_WAITS: u32 = 8;
    const SHORT_NS: u64 = 1_000;
    /// By how much it lags.
    const LAG_NS: u64 = 5_000;

    fn begin(s: &Sock) -> Pace {
        let mut start = sys::ticks();
        let sent = s.tx.ring_bytes.load(Ordering::Relaxed);
        if s.rx.sent_before.load(Ordering::Relaxed) != sent {
            // It answers: then every moment counts.
            s.rx.sent_before.store(sent, Ordering::Relaxed);
            s.rx.short_waits.store(0, Ordering::Relaxed);
        } else if s.rx.short_waits.load(Ordering::Relaxed) >= Pace::SHORT_WAITS {
            let lag = machine::ticks_per_us() * Pace::LAG_NS / 1000;
            // Where spinning is off or does not pay, a lag would keep the processor from the writer.
            let until = if wait::spin_budget() >= lag { start + lag } else { start };
            while start < until {
                core::hint::spin_loop();
                start = sys::ticks();
            }
        }
        Pace { start }
    }

    fn end(self, s: &Sock) {
        let short = machine::ticks_per_us() * Pace::SHORT_NS / 1000;
        let waits = &s.rx.short_waits;
        let now = if sys::ticks().wrapping_sub(self.start) < short {
            (waits.load(Ordering::Relaxed) + 1).min(Pace::SHORT_WAITS)
        } else {
            0
        };
        waits.store(now, Ordering::Relaxed);
    }
}

/// A blocking receive that found nothing.
struct Blocking {
    deadline: Deadline,
    signals: Signals,
    /// Requests of the other direction's reader to take a rest back, which this call answers.
    recalls: Recalls,
    /// For the rest of the call: close in another thread leaves us the socket.
    _waiting: Waiting,
}

impl Blocking {
    fn new(s: &Sock, h: Handle, fd: i32) -> Blocking {
        let deadline = options::receive_deadline(s, fd);
        let signals = thread::signals();
        let signals = if deadline.is_some() { signals.by_any_handler() } else { signals };
        Blocking { deadline, signals, recalls: Recalls::default(), _waiting: wait::begin(h) }
    }

    /// What ends the call. One that has `got` something to show for itself is never restarted.
    fn signals(&self, got: usize) -> Signals {
        if got > 0 { self.signals.by_any_handler() } else { self.signals }
    }

    /// To be asked before every wait, and where the call looks again without one: some waits end at once each time.
    fn may_go_on(&self, got: usize) -> Woken {
        if self.signals(got).interrupted() { Woken::Interrupted } else { Woken::TimedOut.or_look_until(self.deadline) }
    }

    /// Waits for the ring or the shadow. The call has `got` bytes so far. What WAITALL or a low-water mark has gathered is
    /// consumed; only what was peeked is still there, and does not count.
    fn wait_for_bytes(&mut self, s: &Sock, h: Handle, fd: i32, got: usize, peeking: bool) -> Woken {
        let have = if peeking { got } else { 0 };
        if !ready::is_open(h) {
            // Closed before we were entered: nothing keeps the rings for us.
            return Woken::Look;
        }
        let Some(pair) = handover::pair(s) else { return Woken::Look };
        let signals = self.signals(got);
        let (ring, outgoing) = (pair.incoming(), pair.outgoing());
        self.recalls.is_new(outgoing.recall_asked());
        handover::service_recall(s, h, fd);
        let recalls = &self.recalls;
        let phase = s.rx.phase.load(Ordering::Acquire);
        // What stands at the cursor may be there already when peeking: then wait for the end of the ring to move.
        let from = s.consumer_hint();
        let (unread, end) = ring.unread(&from);
        if have > 0 && unread > have {
            return Woken::Look;
        }
        let changed = || {
            if (s.rx.phase.load(Ordering::Acquire) == RX_TCP) != (phase == RX_TCP)
                || recalls.is_another(outgoing.recall_asked())
            {
                return true;
            }
            let c = s.consumer_hint();
            phase != RX_TCP && (c.at != from.at && have == 0 || ring.pending_at(end) || have == 0 && ring.pending(&c))
        };
        if have > 0 && ring.pending_at(end) {
            // Peeking across a ring that has ended: nothing rings when TCP brings more behind it.
            return wait::nap(self.deadline, signals);
        }
        let pace = Pace::begin(s);
        if wait::spin(changed, signals) {
            pace.end(s);
            return Woken::Look;
        }
        s.rx.short_waits.store(0, Ordering::Relaxed);
        let on_tcp = phase != RX_RING;
        // While peeked bytes stay in the kernel's queue, POLLIN would never let us sleep; and the kernel, which knows its own
        // share of the bytes only, may never think them enough for the low-water mark.
        let alone = on_tcp && (have > 0 || got > 0 && options::receive_low_water(s, fd) > 1);
        let events = if on_tcp && have > 0 { libc::POLLRDHUP } else { libc::POLLIN | libc::POLLRDHUP };
        // An urgent mark ends a call that has some bytes, also where nothing comes behind it.
        let events = if on_tcp && got > 0 && !peeking { events | libc::POLLPRI } else { events };
        let soon = alone.then(|| sys::monotonic_ns() + ready::NAP_NS);
        let until = self.deadline.into_iter().chain(soon).min();
        let woken = wait::sleep(&ring, End::Reader, wait::Shadow { h, fd, events }, until, signals, changed);
        handover::service_recall(s, h, fd);
        woken.or_look_until(self.deadline)
    }
}
