//! Bells: what wakes a reader or writer of a ring that sleeps.
//!
//! A bell is a bound AF_UNIX datagram socket with a random abstract name. Its 64-bit id, which is its name, stands in
//! the header of every ring that may ring it. Ringing never blocks: a full queue means that the bell is ringing already.
//! No descriptor is ever passed, and a peer that names a wrong bell harms nobody: the sleeper looks at its rings again.

use crate::sys;
use libc::c_int;

/// What a bell socket's abstract name starts with; sixteen hexadecimal digits of the id follow.
const PREFIX: &[u8; 13] = b"ropeway-bell/";

/// The tag that says "look at everything": used where no particular socket is meant.
pub const TAG_ANY: u64 = u64::MAX;

/// Rings that are taken at once: with room for one more than there usually are, one call takes all and says so.
pub const RINGS_AT_ONCE: usize = 4;

fn address(id: u64) -> (libc::sockaddr_un, u32) {
    let mut name = [0u8; 29];
    name[..13].copy_from_slice(PREFIX);
    for (i, digit) in name[13..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(id >> (60 - 4 * i)) as usize & 15];
    }
    sys::abstract_address(&name)
}

/// The receiving end of a bell: owned by one wait place of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    pub fd: c_int,
    pub id: u64,
}

impl Bell {
    /// Makes a bell. The descriptor is close-on-exec and moved to a high number.
    pub fn create() -> sys::Result<Bell> {
        /// Two draws of the same 64-bit number do not happen; a few tries cost nothing.
        const TRIES: u32 = 4;
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)? as c_int;
        for _ in 0..TRIES {
            let id = sys::random_u64() | 1;
            let (addr, len) = address(id);
            // SAFETY: `addr` is a valid address of `len` bytes.
            match unsafe { sys::bind(fd, (&raw const addr).cast(), len) } {
                Ok(_) => return Ok(Bell { fd: sys::move_high(fd), id }),
                Err(libc::EADDRINUSE) => continue,
                Err(e) => {
                    let _ = sys::close(fd);
                    return Err(e);
                }
            }
        }
        let _ = sys::close(fd);
        Err(libc::EADDRINUSE)
    }

    /// Takes pending rings, as many as there are tags at most, and returns how many. Fewer than that: it was all.
    pub fn take(&self, tags: &mut [u64; RINGS_AT_ONCE]) -> usize {
        let mut parts = tags.each_mut().map(|tag| libc::iovec { iov_base: (tag as *mut u64).cast(), iov_len: 8 });
        let mut messages = parts.each_mut().map(|part| {
            // SAFETY: zeroes are a valid header: no address, no control data.
            let mut message: libc::mmsghdr = unsafe { core::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        });
        // SAFETY: each header names one part of eight writable bytes.
        let got = unsafe {
            sys::recvmmsg(self.fd, messages.as_mut_ptr(), RINGS_AT_ONCE, libc::MSG_DONTWAIT, core::ptr::null_mut())
        };
        let got = match got {
            Ok(n) => n.min(RINGS_AT_ONCE),
            Err(libc::EAGAIN) => 0,
            // The call that takes several is not allowed here, or not there.
            Err(_) => return self.take_singly(tags),
        };
        for (tag, message) in tags.iter_mut().zip(&messages[..got]) {
            if message.msg_len != 8 {
                *tag = TAG_ANY;
            }
        }
        got
    }

    #[cold]
    fn take_singly(&self, tags: &mut [u64; RINGS_AT_ONCE]) -> usize {
        let (no_address, no_length) = (core::ptr::null_mut(), core::ptr::null_mut());
        for (i, tag) in tags.iter_mut().enumerate() {
            // SAFETY: eight writable bytes; no address is asked for.
            let got =
                unsafe { sys::recvfrom(self.fd, (&raw mut *tag).cast(), 8, libc::MSG_DONTWAIT, no_address, no_length) };
            match got {
                Ok(8) => {}
                Ok(_) => *tag = TAG_ANY,
                Err(_) => return i,
            }
        }
        RINGS_AT_ONCE
    }

    pub fn close(self) {
        let _ = sys::close(self.fd);
    }
}

/// The socket that a process rings bells from: unbound, so that a child of fork may go on with it.
pub fn create_ringer() -> sys::Result<c_int> {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)? as c_int;
    Ok(sys::move_high(fd))
}

/// Calls `f` with a way to ask whether a bell is gone for good, which does not ring those that are there.
pub fn with_probe(f: impl FnOnce(&dyn Fn(u64) -> bool)) {
    let Ok(fd) = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) else {
        return;
    };
    f(&|id| {
        let (addr, len) = address(id);
        // SAFETY: `addr` is a valid address of `len` bytes.
        unsafe { sys::connect(fd as c_int, (&raw const addr).cast(), len) == Err(libc::ECONNREFUSED) }
    });
    let _ = sys::close(fd as c_int);
}

/// Rings bell `id` with `tag` from the socket `from`. After an error its owner sleeps on: this process has no socket to ring
/// from, or may not. A bell that rings already, or whose owner is gone, is no trouble.
pub fn ring(from: c_int, id: u64, tag: u64) -> sys::Result<()> {
    match send(from, id, tag) {
        Ok(_) | Err(libc::ECONNREFUSED) => Ok(()),
        Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => ring_apart(id, tag),
        Err(e) => Err(e),
    }
}

fn send(from: c_int, id: u64, tag: u64) -> sys::Result<usize> {
    let (addr, len) = address(id);
    let bytes = tag.to_ne_bytes();
    // SAFETY: buffer and address are valid for their lengths.
    unsafe {
        sys::sendto(from, bytes.as_ptr(), 8, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, (&raw const addr).cast(), len)
    }
}

/// Rings from a socket made for this one ring. EAGAIN has two meanings: that the bell's queue is full (it rings already),
/// or that rings which other, stopped processes have not taken fill the send buffer of the usual socket. A fresh socket
/// has room, and what it sent stays queued when it is closed.
#[cold]
fn ring_apart(id: u64, tag: u64) -> sys::Result<()> {
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)? as c_int;
    let sent = send(fd, id, tag);
    let _ = sys::close(fd);
    match sent {
        Ok(_) | Err(libc::ECONNREFUSED | libc::EAGAIN) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_bell_is_gone_and_asking_rings_no_other() {
        let (here, closed) = (Bell::create().unwrap(), Bell::create().unwrap());
        closed.close();
        with_probe(|is_gone| {
            assert!(is_gone(closed.id));
            assert!(!is_gone(here.id));
        });
        assert_eq!(here.take(&mut [0; RINGS_AT_ONCE]), 0);
        here.close();
    }

    #[test]
    fn a_bell_that_is_full_or_gone_is_no_trouble_and_one_that_may_not_be_rung_is() {
        let (bell, other, ringer) = (Bell::create().unwrap(), Bell::create().unwrap(), create_ringer().unwrap());
        for _ in 0..1000 {
            assert_eq!(ring(ringer, bell.id, 1), Ok(()));
        }
        // Whoever is connected takes datagrams of that peer alone.
        let (addr, len) = address(other.id);
        // SAFETY: `addr` is a valid address of `len` bytes.
        unsafe { sys::connect(bell.fd, (&raw const addr).cast(), len) }.unwrap();
        assert_eq!(ring(ringer, bell.id, 1), Err(libc::EPERM));
        bell.close();
        assert_eq!(ring(ringer, bell.id, 1), Ok(()));
        other.close();
        assert_eq!(ring(-1, bell.id, 1), Err(libc::EBADF));
        let _ = sys::close(ringer);
    }
}
