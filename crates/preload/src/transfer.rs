//! Bytes that move between descriptors, or by themselves.

use crate::hook::{answer, result, tracked};
use crate::{next, splice};
use core::ffi::c_int;
use libc::{aiocb, c_long, iocb, off_t, sigevent, size_t, ssize_t};
use ropeway_shm::{guarded, sys};
use ropeway_socket::reason::Reason;
use ropeway_socket::{lifecycle, send};

/// The socket goes back to TCP, because `reason` works on the kernel's own stream.
#[inline(always)]
pub fn leave(fd: c_int, reason: Reason) {
    if let Some(h) = tracked(fd) {
        lifecycle::leave(h, fd, reason);
    }
}

unsafe fn leave_for_aio(cb: *const aiocb) {
    if guarded::is_readable(cb as usize, size_of::<aiocb>()) {
        // SAFETY: the program gave a valid control block.
        leave(unsafe { (*cb).aio_fildes }, Reason::AsyncIo);
    }
}

/// Sockets among the descriptors of `n` requests to the kernel go back to TCP: it moves their bytes itself.
pub unsafe fn leave_for_kernel_aio(n: c_long, list: *const *const iocb) {
    for i in 0..n.max(0) as usize {
        let place = list.wrapping_add(i);
        // As the kernel: it stops at the first that is not there.
        if !guarded::is_readable(place as usize, size_of::<*const iocb>()) {
            return;
        }
        // SAFETY: readable, and any bytes are a pointer.
        let request = unsafe { *place };
        if !guarded::is_readable(request as usize, size_of::<iocb>()) {
            return;
        }
        // SAFETY: readable, and any bytes are a descriptor.
        leave(unsafe { (*request).aio_fildes } as c_int, Reason::AsyncIo);
    }
}

hooks! {
    fn sendfile(out: c_int, file: c_int, at: *mut off_t, n: size_t) -> ssize_t as sendfile64 {
        match (tracked(out), tracked(file)) {
            (Some(h), None) if at.is_null() || guarded::is_readable(at as usize, size_of::<off_t>()) => {
                answer(send::sendfile(h, out, file, at, n, || result(next::sendfile(out, file, at, n))))
            }
            // The only other way that leads out of a socket: the kernel makes a splice of it.
            (None, Some(h)) if at.is_null() && splice::is_pipe(out, libc::O_WRONLY) => {
                answer(splice::out_of_socket(h, splice::Call { from: file, to: out, flags: 0 }, n))
            }
            _ => next::sendfile(out, file, at, n),
        }
    }

    fn aio_read(cb: *mut aiocb) -> c_int as aio_read64 {
        leave_for_aio(cb);
        next::aio_read(cb)
    }

    fn aio_write(cb: *mut aiocb) -> c_int as aio_write64 {
        leave_for_aio(cb);
        next::aio_write(cb)
    }

    fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int as lio_listio64 {
        if guarded::is_readable(list as usize, n.max(0) as usize * size_of::<*mut aiocb>()) {
            (0..n.max(0) as usize).for_each(|i| leave_for_aio(*list.add(i)));
        }
        next::lio_listio(mode, list, n, event)
    }

    /// Of libaio, where it is the system call alone, which is made here: that library may be out of reach of `dlsym`, loaded for
    /// another one's use. It gives errors as the kernel does.
    fn io_submit(context: usize, n: c_long, list: *const *const iocb) -> c_int {
        leave_for_kernel_aio(n, list);
        sys::syscall6(libc::SYS_io_submit, context, n as usize, list as usize, 0, 0, 0) as c_int
    }
}
