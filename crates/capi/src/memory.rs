//! The program's pointers: looked at once, here. C programs vouch that what they hand over is theirs and as long as they say; null is an error, not a fault.

use crate::failure::{Failure, Outcome};
use libc::iovec;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

fn fault(what: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("{what} is a null pointer"))
}

fn length(len: usize) -> Outcome<usize> {
    if len <= isize::MAX as usize {
        Ok(len)
    } else {
        Err(Failure::new(libc::EINVAL, "a length of more than half the address space"))
    }
}

/// Memory to read from.
///
/// # Safety
/// `at` is null or points to `len` bytes that nobody writes while the result lives.
pub unsafe fn bytes<'a>(at: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    match length(len)? {
        0 => Ok(&[]),
        _ if at.is_null() => Err(fault("the buffer")),
        // SAFETY: not null, and what the caller vouches for.
        len => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) }),
    }
}

/// Memory to write to.
///
/// # Safety
/// `at` is null or points to `len` bytes that nobody else touches while the result lives.
pub unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    match length(len)? {
        0 => Ok(&mut []),
        _ if at.is_null() => Err(fault("the buffer")),
        // SAFETY: not null, and what the caller vouches for. That C has not initialized it does not matter for bytes that are only written.
        len => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) }),
    }
}

/// Buffers that one call takes, at most: as many as `writev` (`IOV_MAX`).
const MOST_BUFFERS: usize = 1024;

/// The buffers that an array names.
///
/// # Safety
/// `at` is null or points to `count` of them.
unsafe fn buffers<'a>(at: *const iovec, count: c_int) -> Outcome<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST_BUFFERS);
    let count = count.ok_or_else(|| Failure::new(libc::EINVAL, format!("between 0 and {MOST_BUFFERS} buffers")))?;
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(fault("the array"));
    }
    // SAFETY: not null, and what the caller vouches for.
    let all = unsafe { std::slice::from_raw_parts(at, count) };
    length(all.iter().fold(0, |sum: usize, one| sum.saturating_add(one.iov_len)))?;
    Ok(all)
}

/// Memory to read from, in several places.
///
/// # Safety
/// `at` is null or points to `count` buffers that nobody writes while the result lives.
pub unsafe fn parts<'a>(at: *const iovec, count: c_int) -> Outcome<Vec<IoSlice<'a>>> {
    // SAFETY: the caller's contract.
    let all = unsafe { buffers(at, count) }?;
    // SAFETY: as above.
    all.iter().map(|one| unsafe { bytes(one.iov_base, one.iov_len) }.map(IoSlice::new)).collect()
}

/// Memory to write to, in several places.
///
/// # Safety
/// `at` is null or points to `count` buffers that do not overlap and that nobody else touches while the result lives.
pub unsafe fn parts_mut<'a>(at: *const iovec, count: c_int) -> Outcome<Vec<IoSliceMut<'a>>> {
    // SAFETY: the caller's contract.
    let all = unsafe { buffers(at, count) }?;
    // SAFETY: as above.
    all.iter().map(|one| unsafe { bytes_mut(one.iov_base, one.iov_len) }.map(IoSliceMut::new)).collect()
}

/// A text.
///
/// # Safety
/// `at` is null or points to a text with its end.
pub unsafe fn text<'a>(at: *const c_char) -> Outcome<&'a str> {
    if at.is_null() {
        return Err(fault("the text"));
    }
    // SAFETY: not null, and what the caller vouches for.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::new(libc::EINVAL, "the text is not UTF-8"))
}

/// An array of texts.
///
/// # Safety
/// `at` is null or points to `count` pointers to texts.
pub unsafe fn texts<'a>(at: *const *const c_char, count: usize) -> Outcome<Vec<&'a str>> {
    if at.is_null() && count > 0 {
        return Err(fault("the array"));
    }
    // SAFETY: in the array, as the caller vouches.
    (0..count).map(|index| unsafe { text(*at.add(index)) }).collect()
}

/// Writes a value, if there is somewhere to write it.
///
/// # Safety
/// `at` is null or points to a place for it.
pub unsafe fn put<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: not null, and what the caller vouches for.
        unsafe { at.write_unaligned(value) };
    }
}

/// A value of the program's.
///
/// # Safety
/// `at` is null or points to one.
pub unsafe fn get<T: Copy>(at: *const T, what: &str) -> Outcome<T> {
    // SAFETY: not null, and what the caller vouches for.
    if at.is_null() { Err(fault(what)) } else { Ok(unsafe { at.read_unaligned() }) }
}

/// Writes a value of changing length as the socket calls do: as much of it as there is room for, and how long it is.
///
/// # Safety
/// `len` is null or points to the length of what `at` points to.
pub unsafe fn put_sized(value: &[u8], at: *mut c_void, len: *mut libc::socklen_t) -> Outcome<()> {
    // SAFETY: the caller's contract.
    let room = unsafe { get(len, "the length") }? as usize;
    // SAFETY: as above.
    let out = unsafe { bytes_mut(at, room.min(value.len())) }?;
    out.copy_from_slice(&value[..out.len()]);
    // SAFETY: not null, or it could not have been read.
    unsafe { put(len, value.len() as libc::socklen_t) };
    Ok(())
}

/// What [`put_address`] would say about where it is to write.
///
/// # Safety
/// As [`put_address`].
pub unsafe fn check_address(at: *const libc::sockaddr, len: *const libc::socklen_t) -> Outcome<()> {
    // SAFETY: the caller's contract.
    if at.is_null() { Ok(()) } else { unsafe { get(len, "the length") }.map(drop) }
}

/// The same for an address that the program may not want at all.
///
/// # Safety
/// As [`put_sized`].
pub unsafe fn put_address(value: &[u8], at: *mut libc::sockaddr, len: *mut libc::socklen_t) -> Outcome<()> {
    if at.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { put_sized(value, at.cast(), len) }
}
