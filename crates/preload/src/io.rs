//! Bytes through one buffer or a list of buffers.

use crate::hook::{answer, result, tracked};
use crate::lifecycle::connecting;
use crate::next;
use core::ffi::{c_int, c_void};
use libc::{MSG_DONTWAIT, MSG_FASTOPEN, MSG_NOSIGNAL, RWF_NOWAIT, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use ropeway_shm::guarded;
use ropeway_socket::fdtable::Handle;
use ropeway_socket::iov::MAX_IOVECS;
use ropeway_socket::reason::Reason;
use ropeway_socket::{lifecycle, recv, send};

/// `preadv2` and `pwritev2` with this offset work on the stream, as `readv` and `writev`.
const NO_OFFSET: off_t = -1;
/// Flags of those two that a socket accepts without a change of meaning: they are about files.
const RWF_OF_FILES: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | libc::RWF_NOAPPEND;
/// As `MSG_NOSIGNAL`; the `libc` crate lacks it.
const RWF_NOSIGNAL: c_int = 0x100;

/// Receives into one buffer.
#[inline(always)]
unsafe fn receive(
    h: Handle,
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    native: impl FnMut() -> isize,
) -> ssize_t {
    let iov = iovec { iov_base: buf, iov_len: n };
    // SAFETY: one entry; the program gave a buffer of `n` writable bytes.
    answer(unsafe { recv::recv(h, fd, &iov, 1, flags, native) })
}

/// Sends from one buffer.
#[inline(always)]
unsafe fn transmit(
    h: Handle,
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    native: impl FnMut() -> isize,
) -> ssize_t {
    let iov = iovec { iov_base: buf.cast_mut(), iov_len: n };
    // SAFETY: one entry; the program gave a buffer of `n` readable bytes.
    answer(unsafe { send::send(h, fd, &iov, 1, flags, native) })
}

/// The socket of ours behind `fd`, if the list of buffers has a length that the kernel takes. One entry is looked for here:
/// elsewhere most lists of one are our own.
#[inline(always)]
fn tracked_list(fd: c_int, iov: *const iovec, n: c_int) -> Option<Handle> {
    tracked(fd).filter(|_| match n {
        1 => guarded::is_readable(iov as usize, size_of::<iovec>()),
        n => (0..=MAX_IOVECS as c_int).contains(&n),
    })
}

/// Flags for a call at no offset. None when the kernel itself must look at the arguments: it refuses every offset, and with flags
/// that are not known here it may move bytes, so that the socket leaves Ropeway first.
fn stream_flags(h: Handle, fd: c_int, at: off_t, flags: c_int) -> Option<c_int> {
    if at != NO_OFFSET {
        return None;
    }
    if flags & !(RWF_OF_FILES | RWF_NOWAIT | RWF_NOSIGNAL) != 0 {
        lifecycle::leave(h, fd, Reason::UnsupportedOption);
        return None;
    }
    let msg_flag = |flag, meaning| if flags & flag != 0 { meaning } else { 0 };
    Some(msg_flag(RWF_NOWAIT, MSG_DONTWAIT) | msg_flag(RWF_NOSIGNAL, MSG_NOSIGNAL))
}

/// TCP knows no sender's address: `recvfrom` says so by its length.
unsafe fn no_address(r: ssize_t, from: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    if r >= 0 && !from.is_null() && !len.is_null() {
        // SAFETY: the program gave a valid place.
        unsafe { *len = 0 };
    }
    r
}

/// True for a list without a byte.
unsafe fn is_empty(iov: *const iovec, n: c_int) -> bool {
    // SAFETY: the program gave `n` entries; an address that no program owns is left to the kernel.
    n == 0
        || guarded::is_readable(iov as usize, n as usize * size_of::<iovec>())
            && unsafe { core::slice::from_raw_parts(iov, n as usize) }.iter().all(|v| v.iov_len == 0)
}

hooks! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t as __read {
        // Reading nothing never reaches the socket; receiving nothing does.
        let Some(h) = tracked(fd).filter(|_| n > 0) else { return next::read(fd, buf, n) };
        receive(h, fd, buf, n, 0, || result(next::read(fd, buf, n)))
    }

    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        if n > room { next::__read_chk(fd, buf, n, room) } else { read(fd, buf, n) }
    }

    fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        let Some(h) = tracked_list(fd, iov, n).filter(|_| !is_empty(iov, n)) else { return next::readv(fd, iov, n) };
        answer(recv::recv(h, fd, iov, n as usize, 0, || result(next::readv(fd, iov, n))))
    }

    fn preadv2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t as preadv64v2 {
        let tracked = tracked_list(fd, iov, n).filter(|_| !is_empty(iov, n));
        match tracked.and_then(|h| Some((h, stream_flags(h, fd, at, flags)?))) {
            Some((h, msg_flags)) => {
                answer(recv::recv(h, fd, iov, n as usize, msg_flags, || result(next::preadv2(fd, iov, n, at, flags))))
            }
            None => next::preadv2(fd, iov, n, at, flags),
        }
    }

    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        let Some(h) = tracked(fd) else { return next::recv(fd, buf, n, flags) };
        receive(h, fd, buf, n, flags, || result(next::recv(fd, buf, n, flags)))
    }

    fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
        if n > room { next::__recv_chk(fd, buf, n, room, flags) } else { recv(fd, buf, n, flags) }
    }

    fn recvfrom(
        fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t
    ) -> ssize_t {
        let Some(h) = tracked(fd) else { return next::recvfrom(fd, buf, n, flags, from, len) };
        let r = receive(h, fd, buf, n, flags, || result(next::recvfrom(fd, buf, n, flags, from, len)));
        no_address(r, from, len)
    }

    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t
    ) -> ssize_t {
        if n > room {
            return next::__recvfrom_chk(fd, buf, n, room, flags, from, len);
        }
        recvfrom(fd, buf, n, flags, from, len)
    }

    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t as __write {
        let Some(h) = tracked(fd) else { return next::write(fd, buf, n) };
        transmit(h, fd, buf, n, 0, || result(next::write(fd, buf, n)))
    }

    fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        let Some(h) = tracked_list(fd, iov, n) else { return next::writev(fd, iov, n) };
        answer(send::send(h, fd, iov, n as usize, 0, || result(next::writev(fd, iov, n))))
    }

    fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t as pwritev64v2 {
        match tracked_list(fd, iov, n).and_then(|h| Some((h, stream_flags(h, fd, at, flags)?))) {
            Some((h, msg_flags)) => {
                answer(send::send(h, fd, iov, n as usize, msg_flags, || result(next::pwritev2(fd, iov, n, at, flags))))
            }
            None => next::pwritev2(fd, iov, n, at, flags),
        }
    }

    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t as __send {
        let Some(h) = tracked(fd) else { return next::send(fd, buf, n, flags) };
        transmit(h, fd, buf, n, flags, || result(next::send(fd, buf, n, flags)))
    }

    fn sendto(
        fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, len: socklen_t
    ) -> ssize_t {
        let Some(h) = tracked(fd) else { return next::sendto(fd, buf, n, flags, to, len) };
        let native = || result(next::sendto(fd, buf, n, flags, to, len));
        if flags & MSG_FASTOPEN != 0 {
            return answer(connecting(h, || result(transmit(h, fd, buf, n, flags, native))));
        }
        transmit(h, fd, buf, n, flags, native)
    }
}
