//! `splice` between a socket and a pipe: by the kernel while the bytes are on TCP, by hand while they are on a ring.

use crate::hook::{answer, result, tracked};
use crate::next;
use core::ffi::{c_int, c_uint};
use core::mem::zeroed;
use libc::{
    MSG_DONTWAIT, O_RDONLY, O_WRONLY, POLLERR, POLLHUP, POLLIN, POLLOUT, SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE,
    SPLICE_F_NONBLOCK, iovec, off_t, pollfd, size_t, ssize_t,
};
use ropeway_shm::ring::SURE_BYTES;
use ropeway_shm::sys;
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::thread::{self, Signals};
use ropeway_socket::wait::begin_steps;
use ropeway_socket::{poll, recv, send, shadow};

/// Bytes moved at a time through the stack of the caller, which may be as small as a thread's can be.
const CHUNK: usize = 4 * 1024;
/// What has left a pipe cannot go back: a ring that counts as writable has room for it.
const _: () = assert!(CHUNK <= SURE_BYTES);
/// What the kernel knows; it refuses others.
const FLAGS: c_uint = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
/// What fits into a pipe that `poll` calls writable.
const SURE_ROOM: usize = libc::PIPE_BUF;

const WAIT_FOR_EVER: c_int = -1;
/// How often a wait for room looks whether its number still leads to the socket.
const LOOK_AGAIN_MS: c_int = 10;

/// A call of the program.
#[derive(Clone, Copy)]
pub struct Call {
    pub from: c_int,
    pub to: c_int,
    pub flags: c_uint,
}

impl Call {
    unsafe fn native(self, n: size_t, more_flags: c_uint) -> isize {
        let null = core::ptr::null_mut();
        // SAFETY: no pointers.
        result(unsafe { next::splice(self.from, null, self.to, null, n, self.flags | more_flags) })
    }
}

hooks! {
    fn splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, n: size_t, flags: c_uint) -> ssize_t {
        let call = Call { from, to, flags };
        let is_valid = from_at.is_null() && to_at.is_null() && flags & !FLAGS == 0;
        match (tracked(from), tracked(to)) {
            (Some(h), None) if is_valid && is_pipe(to, O_WRONLY) => answer(out_of_socket(h, call, n)),
            (None, Some(h)) if is_valid && is_pipe(from, O_RDONLY) => answer(into_socket(h, call, n)),
            // The kernel refuses everything else.
            _ => next::splice(from, from_at, to, to_at, n, flags),
        }
    }
}

/// True for an end of a pipe that is open for `access` (`O_RDONLY` or `O_WRONLY`).
pub fn is_pipe(fd: c_int, access: c_int) -> bool {
    // SAFETY: `status` is a valid place for the answer.
    let is_pipe = unsafe {
        let mut status: libc::stat = zeroed();
        let r = sys::syscall6(libc::SYS_fstat, fd as usize, (&raw mut status) as usize, 0, 0, 0, 0);
        r == 0 && status.st_mode & libc::S_IFMT == libc::S_IFIFO
    };
    let opened = |flags: usize| flags as c_int & libc::O_ACCMODE;
    is_pipe && sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| [access, libc::O_RDWR].contains(&opened(flags)))
}

/// Waits by `poll`, which every signal handler ends, until more than handlers that restart the call has ended it.
fn restarting(signals: Signals, mut poll: impl FnMut() -> isize) -> isize {
    loop {
        let r = poll();
        if r != -(libc::EINTR as isize) || signals.interrupted() || !signals.any() {
            return r;
        }
    }
}

/// What the end of a pipe is ready for; waits unless `now`.
fn pipe_events(fd: c_int, events: i16, now: bool, signals: Signals) -> Result<i16, isize> {
    let mut entry = pollfd { fd, events, revents: 0 };
    let timeout = if now { 0 } else { WAIT_FOR_EVER };
    // SAFETY: one valid entry.
    match restarting(signals, || result(unsafe { next::poll(&mut entry, 1, timeout) } as isize)) {
        r if r < 0 => Err(r),
        _ => Ok(entry.revents),
    }
}

fn is_nonblocking(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags as c_int & libc::O_NONBLOCK != 0)
}

/// Bytes in the pipe.
fn held(pipe: c_int) -> Option<usize> {
    let mut held: c_int = 0;
    // SAFETY: a valid place for the answer.
    unsafe { sys::ioctl(pipe, libc::FIONREAD, (&raw mut held) as usize) }.ok()?;
    Some(held as usize)
}

/// Bytes that can be written to the pipe, when it is writable at all, by pieces that fill its pages.
fn room(pipe: c_int) -> usize {
    match sys::fcntl(pipe, libc::F_GETPIPE_SZ, 0) {
        Ok(size) if held(pipe) == Some(0) => size.max(SURE_ROOM),
        _ => SURE_ROOM,
    }
}

/// As the kernel: waits for the first byte only, then takes what is there.
pub unsafe fn out_of_socket(h: Handle, call: Call, n: size_t) -> isize {
    let signals = thread::signals();
    let _for_the_whole_call = begin_steps(h, call.from);
    let now = call.flags & SPLICE_F_NONBLOCK != 0 || is_nonblocking(call.to);
    let mut buffer = [0u8; CHUNK];
    let mut total = 0;
    let mut sure_room = 0;
    while total < n {
        if sure_room == 0 {
            match pipe_events(call.to, POLLOUT, now || total > 0, signals) {
                Ok(events) if events & POLLERR != 0 && total == 0 => {
                    // Nobody reads the pipe: the kernel says so, with its signal.
                    // SAFETY: no pointers.
                    return unsafe { call.native(n, 0) };
                }
                Ok(POLLOUT) => sure_room = room(call.to),
                _ if total > 0 => break,
                Ok(_) => return -(libc::EAGAIN as isize),
                Err(e) => return e,
            }
        }
        let piece = sure_room.min(CHUNK);
        let iov = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: piece.min(n - total) };
        let (flags, native_flags) = if total > 0 { (MSG_DONTWAIT, SPLICE_F_NONBLOCK) } else { (0, 0) };
        // What the kernel moves is not seen here, so the hash of the first bytes ends.
        h.sock().rx.prefix.stop();
        let mut by_kernel = false;
        // SAFETY: one entry within the buffer.
        let r = unsafe {
            recv::step(h, call.from, &iov, 1, flags, total > 0, || {
                by_kernel = true;
                // SPLICE_F_NONBLOCK speaks of the pipe only: a blocking socket without bytes would make the rest wait.
                if total > 0 && shadow::queued(call.from).unwrap_or(0) == 0 {
                    return -(libc::EAGAIN as isize);
                }
                call.native(n - total, native_flags)
            })
        };
        if r <= 0 {
            if total == 0 {
                return r;
            }
            recv::tell_later(h, call.from, -r as c_int);
            break;
        }
        total += r as usize;
        if by_kernel {
            break;
        }
        write_all(call.to, &buffer[..r as usize]);
        // Behind a piece that leaves a page half empty, the next one may begin another page.
        sure_room = if r as usize == piece { sure_room - piece } else { 0 };
    }
    total as isize
}

/// There is room; only other writers of the same pipe can make this wait.
fn write_all(pipe: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: a valid buffer.
        match unsafe { sys::write(pipe, bytes.as_ptr(), bytes.len()) } {
            Ok(n) => bytes = &bytes[n..],
            Err(libc::EAGAIN) => {
                let _ = pipe_events(pipe, POLLOUT, false, thread::signals());
            }
            Err(libc::EINTR) => {}
            Err(_) => return,
        }
    }
}

unsafe fn into_socket(h: Handle, call: Call, n: size_t) -> isize {
    let signals = thread::signals();
    let nothing = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let _for_the_whole_call = begin_steps(h, call.to);
    h.sock().tx.prefix.stop();
    let mut by_kernel = false;
    // SAFETY: one empty entry.
    let r = unsafe {
        send::send(h, call.to, &nothing, 1, 0, || {
            by_kernel = true;
            call.native(n, 0)
        })
    };
    if by_kernel {
        send::note_shortage(h.sock(), r, n);
    }
    if by_kernel || r < 0 {
        return r;
    }
    let now = call.flags & SPLICE_F_NONBLOCK != 0 || is_nonblocking(call.from);
    let waits = !is_nonblocking(call.to);
    let mut buffer = [0u8; CHUNK];
    let mut total = 0;
    let mut sure = 0;
    while total < n {
        if sure == 0 {
            match pipe_events(call.from, POLLIN, now || total > 0, signals) {
                Ok(events) if events & POLLIN != 0 => sure = held(call.from).unwrap_or(0),
                Ok(events) if events & POLLHUP != 0 => break,
                _ if total > 0 => break,
                Ok(_) => return -(libc::EAGAIN as isize),
                Err(e) => return e,
            }
        }
        // Bytes that have left the pipe cannot go back: there must be room for some before.
        // A call that has something to show for itself is never restarted.
        let signals = if total > 0 { signals.by_any_handler() } else { signals };
        match if waits { await_room(h, call.to, signals) } else { look_for_room(h, call.to) } {
            Ok(()) => {}
            Err(_) if total > 0 => break,
            Err(e) => return e,
        }
        // SAFETY: a valid buffer.
        let got = match unsafe { sys::read(call.from, buffer.as_mut_ptr(), buffer.len().min(n - total)) } {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if total > 0 => break,
            Err(e) => return -(e as isize),
        };
        // SAFETY: bytes of the buffer.
        match unsafe { send_all(h, call.to, &buffer[..got], total > 0) } {
            Ok(()) => (total, sure) = (total + got, sure.saturating_sub(got)),
            Err(_) if total > 0 => break,
            Err(e) => return e,
        }
    }
    total as isize
}

/// Above 0 when there is room, 0 when the time is over, or -errno.
fn poll_for_room(fd: c_int, timeout: c_int) -> isize {
    let mut entry = pollfd { fd, events: POLLOUT, revents: 0 };
    let entry = &raw mut entry;
    // SAFETY: one valid entry; the closure makes the same call on the kernel.
    unsafe { poll::poll(entry, 1, timeout, || result(next::poll(entry, 1, timeout) as isize)) }
}

/// For a socket that does not block.
fn look_for_room(h: Handle, fd: c_int) -> Result<(), isize> {
    if poll_for_room(fd, 0) > 0 {
        return Ok(());
    }
    send::note_full(h);
    // The reader may have made some before it could see that.
    if poll_for_room(fd, 0) > 0 { Ok(()) } else { Err(-(libc::EAGAIN as isize)) }
}

/// For a socket that blocks. One that is closed meanwhile is left to the send, which has its duplicate to wait on.
fn await_room(h: Handle, fd: c_int, signals: Signals) -> Result<(), isize> {
    while fdtable::leads_to(fd, h) {
        match restarting(signals, || poll_for_room(fd, LOOK_AGAIN_MS)) {
            0 => {}
            r if r < 0 => return Err(r),
            _ => break,
        }
    }
    Ok(())
}

/// Sends everything, whatever the mode of the socket; `begun`: as the rest of what was sent before.
unsafe fn send_all(h: Handle, fd: c_int, mut bytes: &[u8], mut begun: bool) -> Result<(), isize> {
    while !bytes.is_empty() {
        let iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one entry that describes `bytes`; the closure makes the same call on the kernel.
        let r = unsafe {
            send::step(h, fd, &iov, 1, 0, begun, || result(next::send(fd, bytes.as_ptr().cast(), bytes.len(), 0)))
        };
        match r {
            n if n >= 0 => (bytes, begun) = (&bytes[n as usize..], true),
            // Once it is closed, whoever has the number next may have room now, or never.
            r if r == -(libc::EAGAIN as isize) && fdtable::leads_to(fd, h) => {
                poll_for_room(fd, LOOK_AGAIN_MS);
            }
            r if r == -(libc::EAGAIN as isize) => sys::nap(LOOK_AGAIN_MS as u64 * 1_000_000),
            r if r == -(libc::EINTR as isize) => {}
            error => return Err(error),
        }
    }
    Ok(())
}
