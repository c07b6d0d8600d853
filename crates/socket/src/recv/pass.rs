//! One pass of a receive over the carriers: what is there now, in the order of the stream (handover, clause 2.4).

use super::{acknowledge, note_tcp};
use crate::fdtable::Handle;
use crate::handover::RxLock;
use crate::iov::Cursor;
use crate::{bells, handover, shadow};
use core::sync::atomic::Ordering;
use ropeway_shm::ring::{End, Look};
use ropeway_shm::sys;
use ropeway_shm::table::{RX_ATTACHED, RX_DRAIN, RX_RING, RX_TCP, Sock};

/// Bytes of TCP that a switch may lie ahead of what was consumed: more cannot be in flight.
const MAX_AHEAD_BYTES: u64 = 1 << 31;

/// What one pass over the carriers gave.
pub enum Pass {
    /// The list is full.
    Done,
    /// Nothing more right now.
    Empty,
    /// This direction is on TCP (again).
    Tcp,
    /// TCP stands at an urgent mark: what is behind it is for another call.
    Mark,
    /// The kernel says end of file, and the ring has nothing.
    End,
    Error(i32),
    /// The descriptor no longer leads to this socket.
    Gone,
    /// The program's buffer is not there.
    Fault,
}

impl Pass {
    /// What an error of the kernel means for a receive that does not wait.
    pub fn stopped_by(e: i32) -> Pass {
        match e {
            libc::EAGAIN | libc::EINTR => Pass::Empty,
            libc::EFAULT => Pass::Fault,
            e => Pass::Error(e),
        }
    }
}

/// How the bytes are wanted.
#[derive(Clone, Copy)]
pub struct Mode {
    /// MSG_TRUNC: the bytes are counted, not copied.
    pub count_only: bool,
    /// So many, before any have come.
    pub wanted: usize,
}

impl Mode {
    /// The flags with which the kernel shows what it has.
    fn peek_flags(self) -> i32 {
        let count = if self.count_only { libc::MSG_TRUNC } else { 0 };
        libc::MSG_PEEK | libc::MSG_DONTWAIT | count
    }
}

/// Takes what is there into the list.
pub fn take(rx: &mut RxLock, h: Handle, fd: i32, cursor: &mut Cursor, mode: Mode) -> Pass {
    let s = rx.s;
    let mut in_a_row = false;
    let pass = loop {
        let phase = s.rx.phase.load(Ordering::Relaxed);
        if phase == RX_TCP {
            return Pass::Tcp;
        }
        if phase != RX_RING {
            match take_tcp(rx, h, fd, cursor, mode) {
                Some(pass) => break pass,
                None => continue,
            }
        }
        let Some((ring, c)) = rx.ring() else { return Pass::Tcp };
        match ring.look(c) {
            Look::Data { ptr, len } => {
                if in_a_row {
                    ring.expect_more(c);
                }
                in_a_row = true;
                let n = len.min(cursor.left());
                if mode.count_only {
                    cursor.advance(n);
                } else {
                    let rest = *cursor;
                    // SAFETY: `look` checked that the bytes lie inside the ring; the list is the program's.
                    if unsafe { cursor.copy_in(ptr, n) }.is_none() {
                        *cursor = rest;
                        break Pass::Fault;
                    }
                }
                ring.consume(c, n);
                s.rx.ring_bytes.store(s.rx.ring_bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
                if cursor.left() == 0 {
                    break Pass::Done;
                }
            }
            // With bytes in hand no end is owed.
            Look::Empty if in_a_row => break Pass::Empty,
            Look::Empty => break nothing_more(s),
            Look::Closed => rx.closed(h),
            Look::Switch { .. } | Look::Corrupt => {
                rx.corrupt(h, fd);
                return Pass::Error(0);
            }
        }
    };
    if let Some((ring, c)) = rx.ring()
        && ring.flush(c)
    {
        bells::ring_all(&ring, End::Writer);
    }
    pass
}

/// The ring is empty. Once the peer closes its socket, that is looked at before the call returns (`look_at_end`): who reads
/// without waiting finds the end at once, as in the kernel, and not only at its next look.
fn nothing_more(s: &Sock) -> Pass {
    if handover::pair(s).is_some_and(|pair| pair.is_closing()) {
        s.rx.shadow_event.store(1, Ordering::Release);
    }
    Pass::Empty
}

/// Clause 2.4: from attaching until the switch is passed, TCP is read by PEEK, the ring is looked at again, and no more
/// than what lies before the switch is consumed. None: the phase changed, look again.
fn take_tcp(rx: &mut RxLock, h: Handle, fd: i32, cursor: &mut Cursor, mode: Mode) -> Option<Pass> {
    let s = rx.s;
    let attached = s.rx.phase.load(Ordering::Relaxed) == RX_ATTACHED;
    let limit = before_switch(s, if attached { RX_ATTACHED } else { RX_DRAIN });
    if limit == 0 {
        return None;
    }
    let most = cursor.left().min(limit);
    if most == 0 {
        return Some(Pass::Done);
    }
    // SAFETY: the program's buffers, writable by the contract of `recv`.
    let peeked = unsafe { cursor.kernel_call(fd, most, mode.peek_flags(), false) };
    if attached && let Some(answer) = look_for_switch(rx, h, fd) {
        keep_error_of(s, peeked);
        return answer;
    }
    match peeked {
        Ok(0) => Some(Pass::End),
        // The kernel ends a receive at the mark, and knows nothing of what this one has already.
        Ok(_) if cursor.left() < mode.wanted && shadow::at_mark(fd) => Some(Pass::Mark),
        Ok(n) => match shadow::discard(fd, n) {
            Ok(n) => {
                note_tcp(s, cursor, n, !mode.count_only);
                acknowledge(s, fd);
                cursor.advance(n);
                if cursor.left() == 0 { Some(Pass::Done) } else { None }
            }
            Err(e) => Some(Pass::stopped_by(e)),
        },
        Err(e) => Some(Pass::stopped_by(e)),
    }
}

/// How many bytes may still come over TCP before the ring goes on. None are left: the direction is on the ring now.
fn before_switch(s: &Sock, phase: u32) -> usize {
    if phase == RX_ATTACHED {
        return usize::MAX;
    }
    let left = s.rx.switch_at.load(Ordering::Relaxed) - s.rx.tcp_bytes.load(Ordering::Relaxed);
    if left == 0 {
        s.rx.phase.store(RX_RING, Ordering::Release);
    }
    left as usize
}

/// The kernel tells the end of a broken connection once, also to a look whose bytes are not used.
fn keep_error_of(s: &Sock, peeked: sys::Result<usize>) {
    if let Err(e) = peeked
        && let Pass::Error(e) = Pass::stopped_by(e)
    {
        s.keep_error(e);
    }
}

/// Looks at the ring while the writer has not been seen to switch. Some: do not use what was peeked.
pub fn look_for_switch(rx: &mut RxLock, h: Handle, fd: i32) -> Option<Option<Pass>> {
    let s = rx.s;
    let Some((ring, c)) = rx.ring() else { return Some(Some(Pass::Tcp)) };
    match ring.look(c) {
        Look::Empty => None,
        Look::Switch { at } => {
            let consumed = s.rx.tcp_bytes.load(Ordering::Relaxed);
            if at < consumed || at - consumed > MAX_AHEAD_BYTES {
                rx.corrupt(h, fd);
                return Some(Some(Pass::Error(0)));
            }
            // In this order: whoever takes the lock over from the dead finds that the record was seen (clause 7.2).
            s.rx.switch_at.store(at, Ordering::Relaxed);
            s.rx.phase.store(RX_DRAIN, Ordering::Release);
            ring.consume_switch(c);
            Some(None)
        }
        Look::Closed => {
            rx.closed(h);
            Some(Some(Pass::Tcp))
        }
        Look::Data { .. } | Look::Corrupt => {
            rx.corrupt(h, fd);
            Some(Some(Pass::Error(0)))
        }
    }
}

/// Shows the list what is unread without consuming it, across carriers.
pub fn peek(rx: &mut RxLock, h: Handle, fd: i32, cursor: &mut Cursor, mode: Mode) -> Pass {
    let s = rx.s;
    loop {
        let phase = s.rx.phase.load(Ordering::Relaxed);
        match phase {
            RX_TCP => return Pass::Tcp,
            RX_RING => return peek_ring(rx, h, fd, cursor, mode, None),
            RX_ATTACHED => match look_for_switch(rx, h, fd) {
                Some(Some(pass)) => return pass,
                Some(None) => continue,
                None => {}
            },
            _ => {}
        }
        let limit = before_switch(s, phase);
        if limit == 0 {
            continue;
        }
        // SAFETY: the program's buffers, writable by the contract of `recv`.
        let peeked = unsafe { cursor.kernel_call(fd, limit, mode.peek_flags(), false) };
        if phase == RX_ATTACHED && rx.ring().is_some_and(|(ring, c)| ring.pending(c)) {
            keep_error_of(s, peeked);
            continue;
        }
        match peeked {
            Ok(0) => return Pass::End,
            Ok(n) => {
                let list = *cursor;
                cursor.advance(n);
                return match cursor.left() {
                    0 => Pass::Done,
                    _ if n == limit => peek_ring(rx, h, fd, cursor, mode, Some((list, limit))),
                    _ => Pass::Empty,
                };
            }
            Err(e) => return Pass::stopped_by(e),
        }
    }
}

/// Shows the list what the kernel has, where that is all.
pub fn peek_tcp(fd: i32, cursor: &mut Cursor, mode: Mode) -> Pass {
    // SAFETY: the program's buffers, writable by the contract of `recv`.
    match unsafe { cursor.kernel_call(fd, cursor.left(), mode.peek_flags(), false) } {
        Ok(0) => Pass::End,
        Ok(n) => {
            cursor.advance(n);
            if cursor.left() == 0 { Pass::Done } else { Pass::Empty }
        }
        Err(e) => Pass::stopped_by(e),
    }
}

/// Shows the list what the ring holds, and what TCP has behind a ring that has ended. `before`: so many bytes that come before
/// the ring are still in the kernel's queue, and were shown there.
fn peek_ring(
    rx: &mut RxLock,
    h: Handle,
    fd: i32,
    cursor: &mut Cursor,
    mode: Mode,
    before: Option<(Cursor, usize)>,
) -> Pass {
    let Some((ring, c)) = rx.ring() else { return Pass::Tcp };
    let (unread, end) = ring.unread(c);
    let there = unread.min(cursor.left());
    let (mut shown, mut more) = if mode.count_only { (there, false) } else { (0, true) };
    cursor.for_each(there, |p, len| {
        if more {
            // SAFETY: a piece of the program's list.
            let n = unsafe { ring.peek(c, shown, p, len) };
            shown += n;
            more = n == len;
        }
    });
    cursor.advance(shown);
    if cursor.left() == 0 {
        return Pass::Done;
    }
    if shown < there {
        return Pass::Fault;
    }
    if !ring.pending_at(end) {
        return if there > 0 { Pass::Empty } else { nothing_more(rx.s) };
    }
    if unread == 0 && before.is_none() {
        return match ring.look(c) {
            Look::Closed => {
                rx.closed(h);
                Pass::Tcp
            }
            Look::Empty | Look::Data { .. } => Pass::Empty,
            Look::Switch { .. } | Look::Corrupt => {
                rx.corrupt(h, fd);
                Pass::Error(0)
            }
        };
    }
    if before.is_none() && shadow::at_mark(fd) {
        return Pass::Mark;
    }
    // SAFETY: the program's buffers, writable by the contract of `recv`.
    let behind = unsafe {
        match before {
            Some((list, n)) => list.peek_around(fd, n, cursor, mode.peek_flags()),
            None => cursor.kernel_call(fd, cursor.left(), mode.peek_flags(), false),
        }
    };
    match behind {
        Ok(n) => {
            cursor.advance(n);
            if cursor.left() == 0 { Pass::Done } else { Pass::Empty }
        }
        Err(e) => Pass::stopped_by(e),
    }
}
