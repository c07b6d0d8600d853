//! Options and queries of a tracked socket: what the kernel cannot answer alone once bytes are on a ring.

use crate::fdtable::Handle;
use crate::handover::{self, lock_rx, lock_tx};
use crate::reason::Reason;
use crate::thread::Critical;
use crate::wait::{self, Deadline};
use crate::{lifecycle, ready, recv, shadow};
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, timeval};
use ropeway_shm::ring::Consumer;
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_INQ, FLAG_PEER_FIN, FLAG_PINNED, FLAG_RCVTIMEO_PASSED, FLAG_SHUT_RD, FLAG_SNDTIMEO_PASSED,
    FLAG_TIMEOUTS_ASKED, FLAG_TIMEOUTS_KNOWN, RX_ATTACHED, RX_TCP, Sock, TX_RING,
};

/// Second numbers of options, for 64-bit time everywhere; here they mean the same.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
/// The option, and the type of the control message that it asks for.
pub const TCP_INQ: c_int = 36;

/// How long calls wait, and for how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// SO_RCVTIMEO and SO_SNDTIMEO, 0 for none.
    receive_us: u64,
    send_us: u64,
    /// SO_RCVLOWAT, at least 1.
    low_water_bytes: u32,
}

impl Bounds {
    /// Those of a new socket.
    const NONE: Bounds = Bounds { receive_us: 0, send_us: 0, low_water_bytes: 1 };

    /// The kernel's answer. None when it gives none.
    fn of_descriptor(fd: i32) -> Option<Bounds> {
        let time = |name: c_int| {
            let mut t = timeval { tv_sec: 0, tv_usec: 0 };
            let mut len = size_of::<timeval>() as u32;
            // SAFETY: buffer and length are valid.
            unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut t).cast(), &mut len) }.ok()?;
            Some((t.tv_sec as u64).saturating_mul(1_000_000).saturating_add(t.tv_usec as u64))
        };
        let mut mark = 1i32;
        let mut len = size_of::<i32>() as u32;
        // SAFETY: buffer and length are valid.
        unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw mut mark).cast(), &mut len) }.ok()?;
        Some(Bounds {
            receive_us: time(libc::SO_RCVTIMEO)?,
            send_us: time(libc::SO_SNDTIMEO)?,
            low_water_bytes: mark.max(1) as u32,
        })
    }

    /// What is kept of them, or what `ask` says where that may be old.
    fn of(s: &Sock, ask: impl FnOnce() -> Option<Bounds>) -> Bounds {
        if s.flags.load(Ordering::Acquire) & (FLAG_TIMEOUTS_KNOWN | FLAG_TIMEOUTS_ASKED) != FLAG_TIMEOUTS_KNOWN {
            return Bounds::learn(s, ask);
        }
        Bounds {
            receive_us: s.rcvtimeo_us.load(Ordering::Relaxed),
            send_us: s.sndtimeo_us.load(Ordering::Relaxed),
            low_water_bytes: s.rcvlowat.load(Ordering::Relaxed),
        }
    }

    /// Asks, and keeps the answer unless one of them is set meanwhile ([`Bounds::forget`]). Who finds another thread asking keeps
    /// nothing, so there is one answer at a time; should that thread be killed, everybody asks from then on.
    #[cold]
    fn learn(s: &Sock, ask: impl FnOnce() -> Option<Bounds>) -> Bounds {
        // A signal handler that jumps must not leave this in the middle.
        let _critical = Critical::enter();
        if s.flags.fetch_or(FLAG_TIMEOUTS_ASKED, Ordering::AcqRel) & FLAG_TIMEOUTS_ASKED != 0 {
            return ask().unwrap_or(Bounds::NONE);
        }
        s.set(FLAG_TIMEOUTS_KNOWN);
        let answer = ask();
        match answer {
            Some(bounds) => {
                s.rcvtimeo_us.store(bounds.receive_us, Ordering::Relaxed);
                s.sndtimeo_us.store(bounds.send_us, Ordering::Relaxed);
                s.rcvlowat.store(bounds.low_water_bytes, Ordering::Relaxed);
            }
            None => Bounds::forget(s),
        }
        s.clear(FLAG_TIMEOUTS_ASKED);
        answer.unwrap_or(Bounds::NONE)
    }

    /// After one of them may have been set.
    fn forget(s: &Sock) {
        s.clear(FLAG_TIMEOUTS_KNOWN);
    }
}

/// When a receive that begins to wait now gives up (SO_RCVTIMEO).
pub fn receive_deadline(s: &Sock, fd: i32) -> Deadline {
    wait::deadline_after_us(Bounds::of(s, || Bounds::of_descriptor(fd)).receive_us)
}

/// When a send that begins to wait now gives up (SO_SNDTIMEO).
pub fn send_deadline(s: &Sock, fd: i32) -> Deadline {
    wait::deadline_after_us(Bounds::of(s, || Bounds::of_descriptor(fd)).send_us)
}

/// A negative time-out has passed as soon as it begins: such a call waits no more than one with MSG_DONTWAIT. The kernel,
/// when asked, does not tell it from none.
///
/// # Safety
/// `value` must be what the kernel has just accepted for the option `name` of sockets.
unsafe fn note_passed(s: &Sock, name: c_int, value: *const c_void) {
    let passed = match name {
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => FLAG_RCVTIMEO_PASSED,
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => FLAG_SNDTIMEO_PASSED,
        _ => return,
    };
    // SAFETY: a time-out, which the kernel has read.
    note(s, passed, unsafe { value.cast::<timeval>().read_unaligned() }.tv_sec < 0);
}

fn note(s: &Sock, flag: u32, on: bool) {
    if on { s.set(flag) } else { s.clear(flag) }
}

/// The kernel gives an accepted socket what its listener had when the connection was made. `listener`: what is known of it.
pub fn take_after(listener: Option<&Sock>, s: &Sock, fd: i32) {
    const NOT_TOLD_BY_THE_KERNEL: u32 = FLAG_RCVTIMEO_PASSED | FLAG_SNDTIMEO_PASSED;
    let Some(listener) = listener else { return learn(s, fd) };
    let flags = listener.flags.load(Ordering::Acquire);
    if flags & FLAG_INQ != 0 {
        learn(s, fd);
    }
    s.set(flags & NOT_TOLD_BY_THE_KERNEL);
    let reason = Reason::from_code(listener.reason.load(Ordering::Relaxed) as u16);
    if flags & FLAG_PINNED != 0
        && let Some(reason @ (Reason::UnsupportedOption | Reason::Zerocopy | Reason::PeekOffset)) = reason
    {
        handover::pin(s, reason);
    }
}

/// What the kernel tells of a socket that others may have set options of.
pub fn learn(s: &Sock, fd: i32) {
    note(s, FLAG_INQ, shadow::int_option(fd, libc::IPPROTO_TCP, TCP_INQ) != 0);
}

/// SO_RCVLOWAT in bytes, at least 1.
pub fn receive_low_water(s: &Sock, fd: i32) -> usize {
    Bounds::of(s, || Bounds::of_descriptor(fd)).low_water_bytes as usize
}

/// Options that only the kernel's own stream can honour, and why.
fn needs_tcp(level: c_int, name: c_int) -> Option<Reason> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(Reason::Zerocopy),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => Some(Reason::PeekOffset),
        (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Reason::Ktls),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Some(Reason::Repair),
        _ => None,
    }
}

/// Options that ask for times of arrival or departure. The kernel promises none for what came before, so the rest of a ring
/// may be read from there.
fn asks_for_times(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(
            name,
            libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | SO_TIMESTAMP_NEW
                | SO_TIMESTAMPNS_NEW
                | SO_TIMESTAMPING_NEW
        )
}

/// Around `setsockopt`.
///
/// # Safety
/// `value` must be what the program gave to `setsockopt`.
pub unsafe fn setsockopt(
    h: Handle,
    fd: i32,
    level: c_int,
    name: c_int,
    value: *const c_void,
    native: impl FnOnce() -> isize,
) -> isize {
    if let Some(reason) = needs_tcp(level, name) {
        lifecycle::leave(h, fd, reason);
    }
    if asks_for_times(level, name) {
        lifecycle::pin(h, fd, Reason::UnsupportedOption);
    }
    let r = native();
    if level == libc::SOL_SOCKET {
        // Time-outs have two numbers each (32- and 64-bit time); any option of this level makes us ask again.
        Bounds::forget(h.sock());
        if r == 0 {
            // SAFETY: the kernel has accepted it.
            unsafe { note_passed(h.sock(), name, value) };
            if name == libc::SO_RCVLOWAT {
                // What is there may be enough now.
                lifecycle::wake_readers(h, fd);
            }
        }
    }
    if r == 0 && level == libc::IPPROTO_TCP && name == TCP_INQ {
        // SAFETY: the kernel has read a number there.
        note(h.sock(), FLAG_INQ, unsafe { value.cast::<c_int>().read_unaligned() } != 0);
    }
    r
}

/// Around `getsockopt`.
///
/// # Safety
/// `value` must be what the program gave to `getsockopt`.
pub unsafe fn getsockopt(
    h: Handle,
    fd: i32,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    native: impl FnOnce() -> isize,
) -> isize {
    if level == libc::IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE {
        lifecycle::leave(h, fd, Reason::Zerocopy);
    }
    let r = native();
    if r == 0 && level == libc::SOL_SOCKET && name == libc::SO_ERROR {
        let pending = h.sock().error.swap(0, Ordering::AcqRel);
        let value: *mut c_int = value.cast();
        // SAFETY: the kernel has just written an int there.
        unsafe {
            if *value == 0 && pending != 0 {
                *value = pending;
            }
        }
    }
    r
}

const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// FIONREAD: bytes that can be read now, across carriers. None: the kernel's answer is right.
pub fn readable_bytes(h: Handle, fd: i32) -> Option<usize> {
    readable(h, fd).map(|(bytes, _)| bytes)
}

/// [`readable_bytes`], and whether the stream may have ended behind them.
fn readable(h: Handle, fd: i32) -> Option<(usize, bool)> {
    let s = h.sock();
    if s.rx.phase.load(Ordering::Acquire) == RX_TCP {
        return None;
    }
    let mut rx = lock_rx(s);
    if !ready::is_open(h) {
        return None;
    }
    if s.rx.phase.load(Ordering::Relaxed) == RX_ATTACHED {
        // How far TCP goes is known only once the switch is seen.
        let _ = recv::look_for_switch(&mut rx, h, fd);
    }
    let bytes = rx.readable(fd)?;
    let may_have_ended = s.has(FLAG_PEER_FIN)
        || s.rx.shadow_event.load(Ordering::Acquire) != 0
        || handover::pair(s).is_some_and(|pair| pair.is_closing() || pair.incoming().wr_shut());
    Some((bytes, may_have_ended))
}

/// What a receive that did not go through the kernel tells with `TCP_INQ`: how many bytes are left, and one more for the end
/// once that has come, so that the program looks for it. None: the program did not ask.
pub fn bytes_left(h: Handle, fd: i32) -> Option<c_int> {
    let s = h.sock();
    if !s.has(FLAG_INQ) {
        return None;
    }
    let (left, may_have_ended) = readable(h, fd).unwrap_or_else(|| (shadow::queued(fd).unwrap_or(0), true));
    // The shadow is asked only where there is cause: an end that comes later is news by itself.
    let ended = may_have_ended
        && if s.has(FLAG_SHUT_RD) { shadow::peer_ended(fd) } else { shadow::poll(fd, libc::POLLRDHUP) != 0 };
    Some(left.min(c_int::MAX as usize - 1) as c_int + c_int::from(ended))
}

/// SIOCOUTQ: bytes not yet taken by the other side, in the ring. None: the kernel's answer is right.
pub fn unsent_bytes(h: Handle) -> Option<usize> {
    let s = h.sock();
    if s.tx.phase.load(Ordering::Acquire) != TX_RING {
        return None;
    }
    let mut tx = lock_tx(s);
    let (ring, p) = tx.ring().filter(|_| ready::is_open(h))?;
    Some(ring.unread(&Consumer::starting_at(ring.reader_stopped_at(p)?.0, p.epoch)).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use ropeway_shm::table::MAX_SOCKS;

    const OLD: Bounds = Bounds::NONE;
    const NEW: Bounds = Bounds { receive_us: 5_000_000, send_us: 1_000, low_water_bytes: 100 };

    /// A record of which nothing is known, at a place that no other test uses.
    fn record(number: u32) -> &'static Sock {
        assert!(process::ready(), "no table of sockets");
        process::table().sock(MAX_SOCKS - 1 - number)
    }

    fn known(s: &Sock) -> Bounds {
        Bounds::of(s, || panic!("it is known"))
    }

    #[test]
    fn what_the_kernel_says_is_asked_for_once() {
        let s = record(0);
        assert_eq!(Bounds::of(s, || Some(NEW)), NEW);
        assert_eq!(known(s), NEW);
    }

    #[test]
    fn a_time_out_that_is_set_while_another_thread_asks_for_the_old_one_is_seen() {
        let s = record(1);
        let set_meanwhile = || {
            Bounds::forget(s);
            Some(OLD)
        };
        assert_eq!(Bounds::of(s, set_meanwhile), OLD);
        assert_eq!(Bounds::of(s, || Some(NEW)), NEW);
        assert_eq!(known(s), NEW);
    }

    #[test]
    fn an_old_answer_is_not_kept_because_somebody_has_a_new_one() {
        let s = record(2);
        let asked_for_by_both = || {
            Bounds::forget(s);
            assert_eq!(Bounds::of(s, || Some(NEW)), NEW);
            Some(OLD)
        };
        assert_eq!(Bounds::of(s, asked_for_by_both), OLD);
        assert_eq!(Bounds::of(s, || Some(NEW)), NEW);
    }

    #[test]
    fn what_the_kernel_does_not_say_is_asked_for_again() {
        let s = record(3);
        assert_eq!(Bounds::of(s, || None), Bounds::NONE);
        assert_eq!(Bounds::of(s, || Some(NEW)), NEW);
    }
}
