//! Memory behind a descriptor, which processes pass to each other.

use crate::sys;
use core::ffi::{CStr, c_int};
use core::ptr;
use std::os::fd::{FromRawFd, OwnedFd};

/// A memfd of this size that can neither shrink nor grow, nor be sealed further. `name` shows in /proc/PID/maps.
pub fn sealed(name: &CStr, bytes: usize) -> sys::Result<OwnedFd> {
    sys::check_file_size(bytes as u64)?;
    // SAFETY: a valid C string.
    let fd = unsafe { sys::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) }? as c_int;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let made = sys::ftruncate(fd, bytes as libc::off_t).and_then(|_| sys::fcntl(fd, libc::F_ADD_SEALS, seals as usize));
    if let Err(e) = made {
        let _ = sys::close(fd);
        return Err(e);
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps the first `bytes` for access by `prot`. Pages come with their first touch, also in a program that has all its memory locked
/// (`mlockall` with `MCL_FUTURE`): most of a table, and much of a ring, is never used.
pub fn map(fd: c_int, bytes: usize, prot: c_int) -> sys::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing. What cannot be accessed yet has no pages that
    // locking could bring, and nobody knows of it before this returns.
    unsafe {
        let at = sys::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)?
            as *mut u8;
        // Where it may not be unlocked, it is there all the same.
        let _ = sys::munlock(at.cast(), bytes);
        if let Err(e) = sys::mprotect(at.cast(), bytes, prot) {
            let _ = sys::munmap(at.cast(), bytes);
            return Err(e);
        }
        Ok(at)
    }
}
