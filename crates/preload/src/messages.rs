//! Messages: buffers with an address and control data, one or several at a call; descriptors that travel in them.

use crate::hook::{answer, answer_int, fail, result, tracked};
use crate::lifecycle::connecting;
use crate::{next, wait::tell};
use core::ffi::{c_int, c_uint};
use libc::{
    EFAULT, MSG_CTRUNC, MSG_DONTWAIT, MSG_FASTOPEN, MSG_WAITFORONE, cmsghdr, iovec, mmsghdr, msghdr, ssize_t, timespec,
};
use ropeway_shm::{guarded, sys};
use ropeway_socket::fdtable::Handle;
use ropeway_socket::iov::{Cursor, MAX_IOVECS};
use ropeway_socket::reason::Reason;
use ropeway_socket::{lifecycle, options, process, recv, send, wait};

/// True for a message that the kernel refuses, and shall.
unsafe fn bad_message(msg: *const msghdr) -> bool {
    if !guarded::is_readable(msg as usize, size_of::<msghdr>()) {
        return true;
    }
    // SAFETY: readable.
    match unsafe { ((*msg).msg_iov, (*msg).msg_iovlen) } {
        (iov, 1) => !guarded::is_readable(iov as usize, size_of::<iovec>()),
        (_, n) => n > MAX_IOVECS,
    }
}

/// True for one of several messages that is there. The kernel looks at each when it comes to it.
fn is_there(entry: *const mmsghdr) -> bool {
    guarded::is_readable(entry as usize, size_of::<mmsghdr>())
}

fn bad_time(timeout: *const timespec) -> bool {
    !timeout.is_null() && !guarded::is_readable(timeout as usize, size_of::<timespec>())
}

/// Receives one message; `begun`: not the first of the call. `native` is used when the bytes are the kernel's, which then fills
/// in the rest as well.
unsafe fn receive(h: Handle, fd: c_int, msg: *mut msghdr, flags: c_int, begun: bool) -> isize {
    // SAFETY: the program gave a valid message (contract of `recvmsg`).
    unsafe {
        if bad_message(msg) {
            return result(next::recvmsg(fd, msg, flags));
        }
        let mut by_kernel = false;
        let r = recv::step(h, fd, (*msg).msg_iov, (*msg).msg_iovlen, flags, begun, || {
            by_kernel = true;
            result(next::recvmsg(fd, msg, flags))
        });
        if r >= 0 && !by_kernel {
            // TCP gives no address.
            (*msg).msg_namelen = 0;
            (*msg).msg_flags = 0;
            (*msg).msg_controllen = options::bytes_left(h, fd).map_or(0, |left| tell_left(msg, left));
        }
        r
    }
}

/// Says in a control message how many bytes are left, as far as there is room: how many bytes that took.
unsafe fn tell_left(msg: *mut msghdr, left: c_int) -> usize {
    #[repr(C)]
    struct Left {
        header: cmsghdr,
        left: c_int,
    }
    // SAFETY: the program gave a valid message (contract of `recvmsg`); its control data is written as far as it is there, by
    // a copy so small that handlers may run meanwhile.
    unsafe {
        let whole = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
        let room = if (*msg).msg_control.is_null() { 0 } else { (*msg).msg_controllen };
        let length = if room < size_of::<cmsghdr>() { 0 } else { room.min(whole) };
        if length < whole {
            (*msg).msg_flags |= MSG_CTRUNC;
        }
        let header = cmsghdr { cmsg_len: length, cmsg_level: libc::IPPROTO_TCP, cmsg_type: options::TCP_INQ };
        let told = Left { header, left };
        if !guarded::copy((*msg).msg_control.cast(), (&raw const told).cast(), length) {
            return 0;
        }
        if length == 0 { 0 } else { room.min(libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize) }
    }
}

unsafe fn transmit(h: Handle, fd: c_int, msg: *const msghdr, flags: c_int, begun: bool) -> isize {
    // SAFETY: the program gave a valid message (contract of `sendmsg`).
    unsafe {
        let native = || result(next::sendmsg(fd, msg, flags));
        if bad_message(msg) {
            return native();
        }
        if (*msg).msg_controllen > 0 {
            // What it asks for is the kernel's to do or to refuse.
            lifecycle::pin(h, fd, Reason::UnsupportedOption);
        }
        let send = || send::step(h, fd, (*msg).msg_iov, (*msg).msg_iovlen, flags, begun, native);
        if flags & MSG_FASTOPEN != 0 { connecting(h, send) } else { send() }
    }
}

/// Sockets of ours among the descriptors that a message to another process carries go back to TCP first: from now on
/// somebody reads them whom Ropeway cannot see.
#[cold]
unsafe fn note_passed(msg: *const msghdr) {
    // SAFETY: the program gave a valid message; the macros stay inside its control data.
    unsafe {
        let end = (*msg).msg_control as usize + (*msg).msg_controllen;
        let mut header: *mut cmsghdr = libc::CMSG_FIRSTHDR(msg);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let length = (*header).cmsg_len.min(end - header as usize);
                for i in 0..length.saturating_sub(libc::CMSG_LEN(0) as usize) / size_of::<c_int>() {
                    let passed = data.add(i).read_unaligned();
                    if let Some(h) = tracked(passed) {
                        lifecycle::leave(h, passed, Reason::FdPassed);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(msg, header);
        }
    }
}

#[inline(always)]
unsafe fn look_for_passed(msg: *const msghdr) {
    // SAFETY: the program gave a valid message; to an impossible address the kernel says EFAULT.
    unsafe {
        if process::started()
            && guarded::is_readable(msg as usize, size_of::<msghdr>())
            && (*msg).msg_controllen > 0
            && guarded::is_readable((*msg).msg_control as usize, (*msg).msg_controllen)
        {
            note_passed(msg);
        }
    }
}

/// What a call on several messages returns: how many were moved, or the first one's error.
fn total(done: c_uint, r: isize) -> c_int {
    if done > 0 { done as c_int } else { answer_int(r) }
}

/// True if `r` bytes are less than the whole message, which was sent.
unsafe fn is_part(msg: *const msghdr, r: isize) -> bool {
    // SAFETY: what was sent was valid.
    unsafe { Cursor::counting((*msg).msg_iov, (*msg).msg_iovlen) }.is_ok_and(|list| (r as usize) < list.left())
}

hooks! {
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        let Some(h) = tracked(fd) else { return next::recvmsg(fd, msg, flags) };
        answer(receive(h, fd, msg, flags, false))
    }

    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        if let Some(h) = tracked(fd) {
            return answer(transmit(h, fd, msg, flags, false));
        }
        look_for_passed(msg);
        next::sendmsg(fd, msg, flags)
    }

    /// As the kernel: the time-out is looked at between messages only, what is left of it is told (EFAULT where that cannot
    /// be written), and an error of the connection after the first message is left to the next call.
    fn recvmmsg(fd: c_int, vec: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let Some(h) = tracked(fd).filter(|_| !bad_time(timeout)) else {
            return next::recvmmsg(fd, vec, n, flags, timeout);
        };
        let Some(time) = wait::time_of(timeout) else { return next::recvmmsg(fd, vec, n, flags, timeout) };
        let until = time.map(|ns| sys::monotonic_ns().saturating_add(ns));
        let _for_the_whole_call = (n > 1).then(|| wait::begin_steps(h, fd));
        let mut msg_flags = flags & !MSG_WAITFORONE;
        let mut left = None;
        let mut done = 0;
        while done < n {
            let entry = vec.add(done as usize);
            let r = if is_there(entry) {
                receive(h, fd, &raw mut (*entry).msg_hdr, msg_flags, done > 0)
            } else {
                -(EFAULT as isize)
            };
            if r < 0 {
                if done == 0 {
                    return answer_int(r);
                }
                recv::tell_later(h, fd, -r as c_int);
                break;
            }
            (*entry).msg_len = r as c_uint;
            done += 1;
            if flags & MSG_WAITFORONE != 0 {
                msg_flags |= MSG_DONTWAIT;
            }
            left = until.map(wait::time_until);
            if left.is_some_and(|left| (left.tv_sec, left.tv_nsec) == (0, 0)) {
                break;
            }
        }
        match left {
            Some(left) if !tell(timeout, left) => fail(EFAULT) as c_int,
            _ => done as c_int,
        }
    }

    /// As the kernel: no more messages than a message may have buffers, and none after one that was sent in part, whose
    /// rest the program has to send first.
    fn sendmmsg(fd: c_int, vec: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
        let n = n.min(MAX_IOVECS as c_uint);
        let Some(h) = tracked(fd) else {
            for i in 0..n {
                look_for_passed(&raw const (*vec.add(i as usize)).msg_hdr);
            }
            return next::sendmmsg(fd, vec, n, flags);
        };
        let _for_the_whole_call = (n > 1).then(|| wait::begin_steps(h, fd));
        let mut done = 0;
        while done < n {
            let entry = vec.add(done as usize);
            let r = if is_there(entry) {
                transmit(h, fd, &raw const (*entry).msg_hdr, flags, done > 0)
            } else {
                -(EFAULT as isize)
            };
            if r < 0 {
                return total(done, r);
            }
            (*entry).msg_len = r as c_uint;
            done += 1;
            if is_part(&raw const (*entry).msg_hdr, r) {
                break;
            }
        }
        done as c_int
    }
}
