//! Sending a file.

use super::{count_out, step};
use crate::fdtable::{self, Handle};
use crate::handover::{self, lock_tx};
use crate::lifecycle::{self, Behind};
use crate::{iov, promote, wait};
use core::sync::atomic::Ordering;
use libc::iovec;
use ropeway_shm::sys;
use ropeway_shm::table::TX_RING;

/// Sends a file's bytes straight into cells (sendfile).
///
/// # Safety
/// `offset` must be null or valid.
pub unsafe fn sendfile(
    h: Handle,
    fd: i32,
    file: i32,
    offset: *mut libc::off64_t,
    count: usize,
    mut native: impl FnMut() -> isize,
) -> isize {
    let s = h.sock();
    if promote::at_boundary(s, h, fd) {
        return promote::strict_failure(h);
    }
    if !offset.is_null() && iov::is_bad(offset as usize, 8) {
        return native();
    }
    if s.tx.phase.load(Ordering::Acquire) != TX_RING {
        let mut tx = lock_tx(s);
        if !fdtable::leads_to(fd, h) {
            drop(tx);
            return match lifecycle::behind_now(fd) {
                // SAFETY: passed on to the caller.
                Behind::Socket(other) => unsafe { sendfile(other, fd, file, offset, count, native) },
                Behind::Kernel => native(),
                Behind::Closing => -(libc::EBADF as isize),
            };
        }
        if tx.ring().is_none() && !tx.try_switch(h, fd) {
            // The bytes are not ours to hash: the prefix ends here.
            s.tx.prefix.stop();
            s.tx.inflight.fetch_add(1, Ordering::AcqRel);
            drop(tx);
            let r = native();
            if let Some(_tx) = handover::lock_tx_again(h) {
                count_out(s, r, count);
            }
            return r;
        }
    }
    file_into_ring(h, fd, file, offset, count)
}

fn file_into_ring(h: Handle, fd: i32, file: i32, offset: *mut libc::off64_t, count: usize) -> isize {
    // A staging buffer on the stack, which may be small: a file may be shorter than the room in the ring, and `pread` straight into cells
    // would hold the lock over disk reads.
    let mut buffer = [0u8; 4 * 1024];
    let _for_the_whole_call = wait::begin(h);
    let mut done = 0usize;
    let mut position = if offset.is_null() {
        // SAFETY: no pointers.
        match unsafe { sys::syscall6(libc::SYS_lseek, file as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0) } {
            at if at >= 0 => at as i64,
            // As the kernel says that sendfile is not for this file: programs then go on with `read` and `write`.
            error if error == -(libc::ESPIPE as isize) => return without_positions(file, libc::EINVAL),
            error => return error,
        }
    } else {
        // SAFETY: valid by contract.
        unsafe { *offset }
    };
    while done < count {
        let want = (count - done).min(buffer.len());
        // SAFETY: the buffer is writable for its length.
        let got = match unsafe { sys::pread(file, buffer.as_mut_ptr(), want, position) } {
            Ok(0) => break,
            Ok(n) => n,
            // Likewise of a directory.
            Err(libc::EISDIR) => return -(libc::EINVAL as isize),
            Err(libc::ESPIPE) => return without_positions(file, libc::ESPIPE),
            Err(e) if done == 0 => return -(e as isize),
            Err(_) => break,
        };
        let piece = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: got };
        // SAFETY: one entry with `got` readable bytes.
        let r = unsafe {
            step(h, fd, &piece, 1, 0, done > 0, || {
                sys::sendto(fd, buffer.as_ptr(), got, 0, core::ptr::null(), 0)
                    .map_or_else(|e| -(e as isize), |n| n as isize)
            })
        };
        if r <= 0 {
            if done == 0 {
                return r;
            }
            break;
        }
        done += r as usize;
        position += r as i64;
        if (r as usize) < got {
            break;
        }
    }
    if offset.is_null() {
        // SAFETY: no pointers.
        unsafe { sys::syscall6(libc::SYS_lseek, file as usize, position as usize, libc::SEEK_SET as usize, 0, 0, 0) };
    } else {
        // SAFETY: valid by contract.
        unsafe { *offset = position };
    }
    done as isize
}

/// The error for a file that has no positions: the kernel looks first whether it can be read at all.
#[cold]
fn without_positions(file: i32, error: i32) -> isize {
    let writes_only =
        sys::fcntl(file, libc::F_GETFL, 0).is_ok_and(|flags| flags as i32 & libc::O_ACCMODE == libc::O_WRONLY);
    -(if writes_only { libc::EBADF } else { error } as isize)
}
