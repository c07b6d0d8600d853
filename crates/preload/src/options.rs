//! Options and queries of sockets.

use crate::hook::{answer_int, result, tracked};
use crate::{next, transfer, vfork};
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use ropeway_socket::reason::Reason;
use ropeway_socket::{handover, lifecycle, options, shadow};

hooks! {
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let Some(h) = tracked(fd) else { return next::setsockopt(fd, level, name, value, len) };
        answer_int(options::setsockopt(h, fd, level, name, value, || {
            result(next::setsockopt(fd, level, name, value, len) as isize)
        }))
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let Some(h) = tracked(fd) else { return next::getsockopt(fd, level, name, value, len) };
        answer_int(options::getsockopt(h, fd, level, name, value, || {
            result(next::getsockopt(fd, level, name, value, len) as isize)
        }))
    }

    fn ioctl(fd: c_int, request: usize, arg: usize) -> c_int {
        if request as u64 == libc::FIONCLEX {
            vfork::note_inherited(fd);
        }
        let Some(h) = tracked(fd) else { return next::ioctl(fd, request, arg) };
        if request as u64 == libc::FIOASYNC {
            transfer::leave(fd, Reason::AsyncIo);
        }
        let r = next::ioctl(fd, request, arg);
        if r != 0 {
            return r;
        }
        // The kernel has just written, or read, a number there.
        let number = arg as *mut c_int;
        let bytes = match request as u64 {
            libc::FIONREAD => options::readable_bytes(h, fd),
            libc::TIOCOUTQ => options::unsent_bytes(h),
            // An urgent mark stands behind what the ring still holds.
            shadow::SIOCATMARK if handover::unread(h) > 0 => Some(0),
            libc::FIONBIO => {
                lifecycle::set_nonblocking(h, *number != 0);
                None
            }
            _ => None,
        };
        if let Some(bytes) = bytes {
            *number = bytes.min(c_int::MAX as usize) as c_int;
        }
        r
    }

    /// The C library's own goes past the hook.
    fn sockatmark(fd: c_int) -> c_int {
        let mut mark: c_int = 0;
        if ioctl(fd, shadow::SIOCATMARK as usize, (&raw mut mark) as usize) < 0 { -1 } else { mark }
    }
}
