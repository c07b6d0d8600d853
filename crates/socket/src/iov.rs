//! A caller's scatter/gather list, walked once from front to back.

use libc::iovec;
use ropeway_shm::{guarded, sys};

/// The kernel's own limit (UIO_MAXIOV): longer lists are EINVAL there.
pub const MAX_IOVECS: usize = 1024;
/// Pieces handed to the kernel at a time when the rest of a list goes over TCP.
const KERNEL_PIECES: usize = 64;

/// True for an address range that reaches beyond user space: the kernel answers EFAULT without moving a byte.
#[inline]
fn is_beyond(address: usize, len: usize) -> bool {
    const END: usize = 0x7fff_ffff_f000;
    len > END || address > END - len
}

/// True for an address range that no program can own. (Other bad addresses are found by touching them, see [`guarded`].)
#[inline]
pub fn is_bad(address: usize, len: usize) -> bool {
    /// Nothing is mapped below (vm.mmap_min_addr).
    const LOWEST: usize = 64 * 1024;
    len != 0 && (address < LOWEST || is_beyond(address, len))
}

/// What the kernel says to a list of buffers before it moves a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// It is refused as a whole, with an error of the call in question.
    Refused,
    /// EFAULT: the list is not there, or a buffer reaches beyond user space.
    Fault,
}

/// A cursor over a list of buffers that belong to the program.
#[derive(Clone, Copy)]
pub struct Cursor {
    at: *const iovec,
    n: usize,
    /// Bytes of `at[0]` already passed.
    off: usize,
    /// Bytes left in the whole list.
    left: usize,
}

/// The kernel moves no more than this in one call.
const MAX_BYTES: usize = 0x7fff_f000;

impl Cursor {
    /// # Safety
    /// `iov` must point to `n` entries whose buffers stay valid for the kind of access the cursor is used for.
    #[inline]
    pub unsafe fn new(iov: *const iovec, n: usize) -> Result<Cursor, Unusable> {
        let bytes = n * size_of::<iovec>();
        if n > MAX_IOVECS {
            return Err(Unusable::Refused);
        }
        if is_bad(iov as usize, bytes) || n > 1 && !guarded::is_readable(iov as usize, bytes) {
            return Err(Unusable::Fault);
        }
        let (mut left, mut beyond) = (0usize, false);
        for i in 0..n {
            // SAFETY: i < n.
            let v = unsafe { &*iov.add(i) };
            // As the kernel: one length alone is cut before it is checked, and all are checked before the addresses.
            if n > 1 && v.iov_len > isize::MAX as usize {
                return Err(Unusable::Refused);
            }
            let checked = if n == 1 { v.iov_len.min(MAX_BYTES) } else { v.iov_len };
            beyond |= is_beyond(v.iov_base as usize, checked);
            left += v.iov_len.min(MAX_BYTES);
        }
        if beyond {
            return Err(Unusable::Fault);
        }
        Ok(Cursor { at: iov, n, off: 0, left: left.min(MAX_BYTES) })
    }

    /// A cursor over a list of which only the lengths count.
    ///
    /// # Safety
    /// `iov` must point to `n` entries.
    pub unsafe fn counting(iov: *const iovec, n: usize) -> Result<Cursor, Unusable> {
        let bytes = n * size_of::<iovec>();
        let mut left = 0usize;
        if n > MAX_IOVECS {
            return Err(Unusable::Refused);
        }
        if is_bad(iov as usize, bytes) || !guarded::is_readable(iov as usize, bytes) {
            return Err(Unusable::Fault);
        }
        for i in 0..n {
            // SAFETY: i < n.
            left += unsafe { (*iov.add(i)).iov_len }.min(MAX_BYTES);
        }
        Ok(Cursor { at: iov, n, off: 0, left: left.min(MAX_BYTES) })
    }

    #[inline(always)]
    pub fn left(&self) -> usize {
        self.left
    }

    /// The contiguous piece at the cursor: address and length. Length 0 only at the end.
    #[inline]
    fn piece(&mut self) -> (*mut u8, usize) {
        while self.n > 0 {
            // SAFETY: n > 0 entries are left.
            let v = unsafe { &*self.at };
            if v.iov_len > self.off {
                // SAFETY: inside the buffer.
                return (unsafe { v.iov_base.cast::<u8>().add(self.off) }, v.iov_len - self.off);
            }
            // SAFETY: one past the last entry is allowed.
            self.at = unsafe { self.at.add(1) };
            self.n -= 1;
            self.off = 0;
        }
        (core::ptr::null_mut(), 0)
    }

    /// Moves the cursor forward.
    #[inline]
    pub fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let (_, len) = self.piece();
            if len == 0 {
                return;
            }
            let step = n.min(len);
            self.off += step;
            self.left -= step;
            n -= step;
        }
    }

    /// Copies the next `n` bytes of the list to `dst` and moves on. Returns how many there were; None when the memory of
    /// the list ended, and then the cursor is of no further use.
    ///
    /// # Safety
    /// `dst` must be writable for `n` bytes and not overlap the list's buffers.
    #[inline]
    pub unsafe fn copy_out(&mut self, mut dst: *mut u8, n: usize) -> Option<usize> {
        let mut done = 0;
        while done < n {
            let (src, len) = self.piece();
            if len == 0 {
                break;
            }
            let step = (n - done).min(len);
            // SAFETY: source inside the caller's buffer, destination by contract.
            unsafe {
                if !guarded::copy(dst, src, step) {
                    return None;
                }
                dst = dst.add(step);
            }
            self.off += step;
            self.left -= step;
            done += step;
        }
        Some(done)
    }

    /// Copies `n` bytes from `src` into the list and moves on. Returns how many fitted; None as for `copy_out`.
    ///
    /// # Safety
    /// `src` must be readable for `n` bytes and not overlap the list's buffers.
    #[inline]
    pub unsafe fn copy_in(&mut self, mut src: *const u8, n: usize) -> Option<usize> {
        let mut done = 0;
        while done < n {
            let (dst, len) = self.piece();
            if len == 0 {
                break;
            }
            let step = (n - done).min(len);
            // SAFETY: destination inside the caller's buffer, source by contract.
            unsafe {
                if !guarded::copy(dst, src, step) {
                    return None;
                }
                src = src.add(step);
            }
            self.off += step;
            self.left -= step;
            done += step;
        }
        Some(done)
    }

    /// Calls `f` with up to `most` bytes from the cursor on, piece by piece, without moving.
    pub fn for_each(&self, most: usize, mut f: impl FnMut(*mut u8, usize)) {
        let mut c = *self;
        let mut left = most;
        while left > 0 {
            let (p, len) = c.piece();
            if len == 0 {
                return;
            }
            let step = len.min(left);
            f(p, step);
            c.advance(step);
            left -= step;
        }
    }

    /// Describes up to `most` bytes from the cursor on in `pieces`: how many are used, and how many bytes they hold.
    fn gather(&self, most: usize, pieces: &mut [iovec]) -> (usize, usize) {
        let mut c = *self;
        let (mut n, mut left) = (0, most);
        while n < pieces.len() && left > 0 {
            let (p, len) = c.piece();
            if len == 0 {
                break;
            }
            let step = len.min(left);
            pieces[n] = iovec { iov_base: p.cast(), iov_len: step };
            c.advance(step);
            left -= step;
            n += 1;
        }
        (n, most - left)
    }

    /// Sends or receives the next pieces with one kernel call, without moving the cursor: how many bytes it moved.
    ///
    /// # Safety
    /// As for the kernel call: buffers must be valid for its direction.
    pub unsafe fn kernel_call(&self, fd: i32, most: usize, flags: i32, send: bool) -> sys::Result<usize> {
        let mut pieces = NO_PIECES;
        let (n, _) = self.gather(most, &mut pieces);
        let mut msg = message(&mut pieces[..n]);
        // SAFETY: passed on to the caller.
        unsafe { if send { sys::sendmsg(fd, &msg, flags) } else { sys::recvmsg(fd, &mut msg, flags) } }
    }

    /// Shows, by a receive with `flags`, `first` bytes of the kernel's receive queue at this cursor once more, and what
    /// follows them at another one: so many bytes of the latter.
    ///
    /// # Safety
    /// Buffers must be writable.
    pub unsafe fn peek_around(&self, fd: i32, first: usize, then: &Cursor, flags: i32) -> sys::Result<usize> {
        let mut pieces = NO_PIECES;
        let (n, gathered) = self.gather(first, &mut pieces);
        if gathered < first {
            return Ok(0); // More pieces than we can name: the call shows less.
        }
        let (more, _) = then.gather(then.left(), &mut pieces[n..]);
        let mut msg = message(&mut pieces[..n + more]);
        // SAFETY: passed on to the caller.
        let shown = unsafe { sys::recvmsg(fd, &mut msg, flags) }?;
        Ok(shown.saturating_sub(first))
    }
}

const NO_PIECES: [iovec; KERNEL_PIECES] = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; KERNEL_PIECES];

fn message(pieces: &mut [iovec]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    msg
}
