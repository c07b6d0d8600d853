//! What the kernel says of the shadow, the TCP connection under every socket: its byte counters, its events, its end.

use core::ptr;
use core::sync::atomic::Ordering;
use ropeway_shm::ring::{Consumer, Look, Producer, Ring};
use ropeway_shm::sys;
use ropeway_shm::table::Sock;

/// Offsets in `struct tcp_info` (linux/tcp.h), which the kernel only ever extends at its end.
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_NOTSENT_BYTES: usize = 144;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANS: usize = 208;
const INFO_BYTES: usize = 232;

/// Asks whether an urgent mark has been reached (asm-generic/sockios.h).
pub const SIOCATMARK: u64 = 0x8905;

/// Events that an end of the connection always shows. `POLLERR` alone tells of an error queue with something in it (times of
/// departure, zero-copy notifications), or of an error that ends nothing.
pub const END_EVENTS: i16 = libc::POLLRDHUP | libc::POLLHUP;

/// States of a connection (linux/tcp_states.h).
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

struct Info([u8; INFO_BYTES]);

impl Info {
    fn of(fd: i32) -> Option<Info> {
        let mut info = Info([0; INFO_BYTES]);
        let mut len = INFO_BYTES as u32;
        // SAFETY: buffer and length are valid.
        unsafe {
            sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.0.as_mut_ptr().cast(), &mut len).ok()?;
        }
        // Kernels before 4.19 do not count; nothing is promoted there.
        (len as usize >= INFO_BYTES_RETRANS + 8).then_some(info)
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(core::array::from_fn(|i| self.0[at + i]))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(core::array::from_fn(|i| self.0[at + i]))
    }

    /// TCP_ESTABLISHED and its like (linux/tcp_states.h).
    fn state(&self) -> u8 {
        self.0[0]
    }

    fn fin_received(&self) -> bool {
        /// CLOSE_WAIT, LAST_ACK, CLOSING.
        const STATES: [u8; 3] = [8, 9, 11];
        STATES.contains(&self.state())
    }
}

/// Bytes given to the kernel for sending so far, sent or not. None when the kernel does not tell, or the connection is not
/// established any more: no hand-over begins then.
pub fn sent(fd: i32) -> Option<u64> {
    // One call: the kernel holds the socket while it fills the structure, so the numbers belong together.
    let info = Info::of(fd).filter(|info| info.state() == ESTABLISHED)?;
    let on_the_wire = info.u64_at(INFO_BYTES_SENT).checked_sub(info.u64_at(INFO_BYTES_RETRANS))?;
    Some(on_the_wire + info.u32_at(INFO_NOTSENT_BYTES) as u64)
}

/// Bytes taken from the kernel so far. None when the kernel does not tell, the numbers move while we look, or the connection
/// is not established any more: no hand-over begins then.
pub fn received(fd: i32) -> Option<u64> {
    taken(fd).filter(|_| established(fd))
}

/// As [`received`], in any state in which the peer's FIN has come or can still come.
pub fn taken(fd: i32) -> Option<u64> {
    /// Bytes may arrive while we look; then once more.
    const TRIES: u32 = 4;
    for _ in 0..TRIES {
        let info = Info::of(fd).filter(|info| info.state() != CLOSED)?;
        let before = info.u64_at(INFO_BYTES_RECEIVED);
        let waiting = queued(fd)? as u64;
        let now = Info::of(fd)?;
        if now.u64_at(INFO_BYTES_RECEIVED) == before && now.state() == info.state() {
            // The kernel counts the peer's FIN as a byte.
            return before.checked_sub(waiting + info.fin_received() as u64);
        }
    }
    None
}

/// True for a connection in state ESTABLISHED.
pub fn established(fd: i32) -> bool {
    Info::of(fd).is_some_and(|info| info.state() == ESTABLISHED)
}

/// True when the peer's FIN or a reset has come, whatever this end has shut down itself.
pub fn peer_ended(fd: i32) -> bool {
    Info::of(fd).is_some_and(|info| info.fin_received() || info.state() == CLOSED)
}

/// True when a reset or a time-out has ended the connection, of which `taken` bytes were taken from the kernel, before the peer's
/// FIN came. The state alone does not tell: the kernel shows TIME_WAIT as CLOSED.
pub fn ended_without_fin(fd: i32, taken: u64) -> bool {
    // The kernel counts the peer's FIN as a byte.
    let all_but_a_fin = |info: Info| Some(info.u64_at(INFO_BYTES_RECEIVED)) == queued(fd).map(|n| taken + n as u64);
    Info::of(fd).filter(|info| info.state() == CLOSED).is_some_and(all_but_a_fin)
}

/// Bytes in the kernel's receive queue (FIONREAD).
pub fn queued(fd: i32) -> Option<usize> {
    let mut n = 0i32;
    // SAFETY: `n` is writable.
    unsafe { sys::ioctl(fd, libc::FIONREAD, &raw mut n as usize).ok()? };
    Some(n.max(0) as usize)
}

/// True when the next byte of the kernel's receive queue is the one behind an urgent mark (SIOCATMARK).
pub fn at_mark(fd: i32) -> bool {
    let mut at = 0i32;
    // SAFETY: `at` is writable.
    unsafe { sys::ioctl(fd, SIOCATMARK, &raw mut at as usize) }.is_ok() && at != 0
}

/// Bytes in the kernel's send queue (SIOCOUTQ): sent or not, but not acknowledged.
pub fn unacknowledged(fd: i32) -> usize {
    let mut n = 0i32;
    // SAFETY: `n` is writable.
    let _ = unsafe { sys::ioctl(fd, libc::TIOCOUTQ, &raw mut n as usize) };
    n.max(0) as usize
}

/// Events of the shadow right now; errors and hang-up are always told.
pub fn poll(fd: i32, events: i16) -> i16 {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: all pointers are valid.
    match unsafe { sys::ppoll(&mut p, 1, &mut now, ptr::null(), sys::SIGSET_BYTES) } {
        Ok(_) => p.revents,
        Err(_) => 0,
    }
}

/// Sends a pending acknowledgment at once, and the next few without delay.
pub fn acknowledge_now(fd: i32) {
    let on = 1i32;
    // SAFETY: `on` is valid for reading.
    let _ = unsafe { sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, (&raw const on).cast(), 4) };
}

/// Ends the connection in both directions at once, as a broken stream must not go on.
pub fn abort(fd: i32) {
    linger_zero(fd);
    let _ = sys::shutdown(fd, libc::SHUT_RDWR);
}

/// Resets the connection now, and leaves the error to the next call on the kernel's side: after [`abort`] alone there would be
/// an end.
pub fn reset(fd: i32) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: the address is valid for its length.
    let _ = unsafe { sys::connect(fd, (&raw const nobody).cast(), size_of::<libc::sockaddr>() as u32) };
}

/// The next close sends RST, as TCP does when bytes are left unread.
pub fn linger_zero(fd: i32) {
    set_linger(fd, libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Before the last close of a socket with bytes unread in its ring, which TCP answers with RST. What the kernel holds back
/// (Nagle's algorithm) goes first: it waits for an acknowledgment that the unread bytes would have brought over TCP.
pub fn reset_at_close(fd: i32) {
    push(fd);
    linger_zero(fd);
}

/// Sends what the kernel holds back for more to come: switching TCP_NODELAY on does.
fn push(fd: i32) {
    let nodelay = int_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    set_nodelay(fd, 1);
    if nodelay == 0 {
        set_nodelay(fd, nodelay);
    }
}

fn set_nodelay(fd: i32, on: i32) {
    // SAFETY: `on` is valid for reading.
    let _ = unsafe { sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), 4) };
}

/// SO_LINGER.
pub fn linger(fd: i32) -> Option<libc::linger> {
    let mut l = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of::<libc::linger>() as u32;
    // SAFETY: buffer and length are valid.
    unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut l).cast(), &mut len).ok()? };
    Some(l)
}

pub fn set_linger(fd: i32, l: libc::linger) {
    // SAFETY: `l` is valid for reading.
    unsafe {
        let _ = sys::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const l).cast(),
            size_of::<libc::linger>() as u32,
        );
    }
}

/// Looks for a byte in the kernel's receive queue: 1, or 0 at the end of the stream, or the connection's error, which the kernel
/// tells once.
pub fn peek_one(fd: i32) -> sys::Result<usize> {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: one writable byte; no address is asked for.
    unsafe { sys::recvfrom(fd, &mut byte, 1, flags, ptr::null_mut(), ptr::null_mut()) }
}

/// Discards `n` bytes from the kernel's receive queue, which a PEEK has just shown.
pub fn discard(fd: i32, n: usize) -> sys::Result<usize> {
    // SAFETY: with MSG_TRUNC, TCP drops bytes without writing to the buffer.
    unsafe {
        sys::recvfrom(fd, ptr::null_mut(), n, libc::MSG_TRUNC | libc::MSG_DONTWAIT, ptr::null_mut(), ptr::null_mut())
    }
}

/// Sends all of a buffer over the kernel, whatever the descriptor's mode is; `more` comes behind it. False when that fails, or
/// the kernel has no room until `deadline`.
///
/// # Safety
/// `ptr` must be valid for `len` bytes.
unsafe fn send_all(fd: i32, mut ptr: *const u8, mut len: usize, more: bool, deadline: u64) -> bool {
    // Short records share packets: each alone would take the kernel much more room than its length.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    while len > 0 {
        // SAFETY: the caller vouches for the buffer.
        match unsafe { sys::sendto(fd, ptr, len, flags, ptr::null(), 0) } {
            Ok(n) => {
                // SAFETY: n <= len.
                ptr = unsafe { ptr.add(n) };
                len -= n;
            }
            Err(libc::EAGAIN) => {
                let mut left = sys::timespec_of(deadline.saturating_sub(sys::monotonic_ns()));
                let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: all pointers are valid.
                if unsafe { sys::ppoll(&mut p, 1, &mut left, ptr::null(), sys::SIGSET_BYTES) } == Ok(0) {
                    return false;
                }
            }
            Err(libc::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// The tail that the reader wants back: a cursor at the record where it stopped, how much of that it has consumed, and how many
/// bytes are unread from there on. The count is taken once, so that a reader that goes on changing its ring gets no more
/// than it holds.
fn tail(ring: &Ring, p: &mut Producer) -> Option<(Consumer, usize, usize)> {
    let (at, off) = ring.reader_stopped_at(p)?;
    let c = Consumer::starting_at(at, p.epoch);
    let unread = ring.unread(&c).0;
    Some((c, off, unread))
}

/// True when the kernel's send buffer surely takes the tail at once, though the peer reads nothing.
pub fn has_room_for_tail(ring: &Ring, p: &mut Producer, fd: i32) -> bool {
    /// What a byte may take of the buffer at most, with the overhead of the packets that [`send_all`] makes.
    const OVERHEAD: usize = 4;
    tail(ring, p).is_none_or(|(_, _, bytes)| (bytes + unacknowledged(fd)) * OVERHEAD <= send_buffer(fd))
}

/// Bytes of memory that the kernel may use for what is sent and not acknowledged (SO_SNDBUF).
fn send_buffer(fd: i32) -> usize {
    int_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).max(0) as usize
}

/// An option that is a number; 0 if the kernel does not know it.
pub fn int_option(fd: i32, level: i32, name: i32) -> i32 {
    let (mut value, mut len) = (0i32, 4u32);
    // SAFETY: value and length are writable.
    let _ = unsafe { sys::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    value
}

/// Above so many bytes that are not on their way, the kernel takes no more (TCP_NOTSENT_LOWAT; 0 is what the system says).
fn limit_unsent(fd: i32, bytes: i32) {
    // SAFETY: `bytes` is valid for reading.
    let _ = unsafe { sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, (&raw const bytes).cast(), 4) };
}

/// Copies what the reader left unread in the ring onto TCP, before any later byte (handover, clause 4). False when the
/// kernel did not take all of it.
pub fn copy_tail(s: &Sock, ring: &Ring, p: &mut Producer, fd: i32) -> bool {
    let Some(tail) = tail(ring, p) else { return true };
    // The room that was looked for is that of the send buffer.
    let limit = int_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    limit_unsent(fd, i32::MAX);
    let all = copy(s, ring, tail, fd);
    limit_unsent(fd, limit);
    all
}

fn copy(s: &Sock, ring: &Ring, (mut c, mut skip, mut left): (Consumer, usize, usize), fd: i32) -> bool {
    /// There was room for it ([`has_room_for_tail`]); a machine short of memory may make buffers smaller meanwhile.
    const ROOM_NS: u64 = 100_000_000;
    let deadline = sys::monotonic_ns() + ROOM_NS;
    s.tx.prefix.stop();
    // The ring is closed: its chain of records ends, and every step is checked.
    while left > 0 {
        let (ptr, len) = match ring.look(&mut c) {
            Look::Data { ptr, len } => (ptr, len),
            // The reader left before it saw that the ring had begun.
            Look::Switch { .. } => {
                ring.consume_switch(&mut c);
                continue;
            }
            _ => return true,
        };
        left = left.saturating_sub(len);
        let jump = skip.min(len);
        skip -= jump;
        // SAFETY: `look` checked that the bytes lie inside the ring.
        if !unsafe { send_all(fd, ptr.add(jump), len - jump, left > 0, deadline) } {
            return false;
        }
        s.tx.tcp_bytes.fetch_add((len - jump) as u64, Ordering::AcqRel);
        s.tx.ring_bytes.fetch_sub((len - jump) as u64, Ordering::AcqRel);
        ring.consume(&mut c, len);
    }
    true
}
