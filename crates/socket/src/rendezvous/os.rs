//! The few system calls of the rendezvous with safe signatures, for the client inside hooks and for the daemon alike:
//! packet sockets, one descriptor beside a message, credentials of the other side, the mailbox page.
//!
//! Descriptors that the kernel hands over are [`ReceivedFd`]: nothing is closed behind the holder's back, because closing
//! by `OwnedFd` would go through the C library, which the preload interposes.

use core::ffi::c_int;
use core::mem::{size_of, zeroed};
use core::sync::atomic::AtomicU32;
use std::os::fd::{FromRawFd, OwnedFd};

use ropeway_shm::sys::{self, Errno, Result};

use super::wire::{MAILBOX_BYTES, MAX_MESSAGE_BYTES};

/// Who is at the other end of a socket, or sent a message, as the kernel says. `pid` is 0 when that process is not
/// visible from our pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    pub pid: u32,
    pub uid: u32,
}

/// A descriptor that arrived beside a message and that nobody owns yet.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a received descriptor stays open until somebody closes it"]
pub struct ReceivedFd(c_int);

impl ReceivedFd {
    /// The number; the caller closes it (inside hooks: with `sys::close`).
    pub fn into_raw(self) -> c_int {
        self.0
    }

    /// For code outside hooks.
    pub fn into_owned(self) -> OwnedFd {
        // SAFETY: the kernel installed this descriptor for us in `recv`, which made exactly one `ReceivedFd` of it, and
        // that is consumed here.
        unsafe { OwnedFd::from_raw_fd(self.0) }
    }

    pub fn close(self) {
        let _ = sys::close(self.0);
    }
}

/// One received message.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message; 0 = the other side closed. More than the buffer = cut, not a message of ours.
    pub len: usize,
    pub fd: Option<ReceivedFd>,
    /// There was no free number for a descriptor: it is gone.
    pub lost: bool,
    /// Present if `SO_PASSCRED` is on.
    pub sender: Option<Credentials>,
}

/// A non-blocking, close-on-exec packet socket.
pub fn packet_socket() -> Result<c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    sys::socket(libc::AF_UNIX, kind, 0).map(|fd| fd as c_int)
}

/// Connects to an abstract name; never blocks on a socket of [`packet_socket`] (`EAGAIN`: the listener's queue is full).
pub fn connect(fd: c_int, name: &[u8]) -> Result<()> {
    let (addr, len) = sys::abstract_address(name);
    // SAFETY: `addr` is a sockaddr_un of at least `len` bytes.
    unsafe { sys::connect(fd, (&raw const addr).cast(), len) }.map(drop)
}

/// `SO_PEERCRED` of a connected socket.
pub fn peer(fd: c_int) -> Result<Credentials> {
    // SAFETY: ucred is plain integers.
    let mut cred: libc::ucred = unsafe { zeroed() };
    let mut len = size_of::<libc::ucred>() as u32;
    // SAFETY: `cred` and `len` are valid for writing.
    unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) }?;
    Ok(Credentials { pid: cred.pid.max(0) as u32, uid: cred.uid })
}

/// A system call that `sys` has no name for.
///
/// # Safety
/// As the system call requires of its arguments.
unsafe fn call(nr: i64, a: usize, b: usize) -> Result<usize> {
    // SAFETY: passed on to the caller.
    match unsafe { sys::syscall6(nr, a, b, 0, 0, 0, 0) } {
        failed @ -4095..0 => Err(-failed as Errno),
        ok => Ok(ok as usize),
    }
}

/// The inode number behind a descriptor: tells whether the number still means the same socket.
pub fn inode(fd: c_int) -> Result<u64> {
    stat(fd).map(|st| st.st_ino)
}

/// Size in bytes of the file behind a descriptor.
pub fn file_bytes(fd: c_int) -> Result<u64> {
    stat(fd).map(|st| st.st_size as u64)
}

fn stat(fd: c_int) -> Result<libc::stat> {
    // SAFETY: stat is plain integers.
    let mut st: libc::stat = unsafe { zeroed() };
    // SAFETY: `st` is valid for writing.
    unsafe { call(libc::SYS_fstat, fd as usize, (&raw mut st) as usize) }?;
    Ok(st)
}

/// True if the descriptor is a memfd that can never become smaller: reading a mapping of it cannot raise SIGBUS.
pub fn sealed_against_shrinking(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GET_SEALS, 0).is_ok_and(|seals| seals as c_int & libc::F_SEAL_SHRINK != 0)
}

/// The real user id.
pub fn real_uid() -> u32 {
    sys::getuid().map_or(u32::MAX, |uid| uid as u32)
}

/// The name of the calling thread, padded with zeros.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    let _ = unsafe { call(libc::SYS_prctl, libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize) };
    name
}

/// Control data, aligned as `cmsghdr` wants.
#[repr(align(8))]
struct Control<const BYTES: usize>([u8; BYTES]);

/// Room for one descriptor.
const SENT_CONTROL_BYTES: usize = 64;
/// Room for as many descriptors as one message can have (`SCM_MAX_FD`, 253) and one set of credentials: the kernel closes what there is no room for, and that may take
/// as long as the sender likes.
const RECEIVED_CONTROL_BYTES: usize = 1088;
const _: () = {
    const MOST_DESCRIPTORS: u32 = 253;
    // SAFETY: CMSG_SPACE only computes.
    let needed = unsafe {
        libc::CMSG_SPACE(MOST_DESCRIPTORS * size_of::<c_int>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
    };
    assert!(needed as usize <= RECEIVED_CONTROL_BYTES);
};

/// Sends one message, with at most one descriptor; never blocks, never raises SIGPIPE.
pub fn send(fd: c_int, message: &[u8], attach: Option<c_int>) -> Result<()> {
    let mut iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = Control([0; SENT_CONTROL_BYTES]);
    // SAFETY: msghdr is plain integers and pointers; zero is its empty value.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if let Some(passed) = attach {
        let payload = size_of::<c_int>() as u32;
        msg.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_FIRSTHDR only compute; one header with one int fits the aligned bytes.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(passed);
        }
    }
    // SAFETY: everything `msg` points at lives until the call returns.
    unsafe { sys::sendmsg(fd, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }.map(drop)
}

/// Receives one message; never blocks. Descriptors beyond the first, which no message of ours has, go to `surplus`.
pub fn recv(fd: c_int, buf: &mut [u8; MAX_MESSAGE_BYTES], mut surplus: impl FnMut(ReceivedFd)) -> Result<Received> {
    settled(|| recv_once(fd, buf, &mut surplus))
}

/// The kernel looks for a message first, and then whether the other side has closed. What comes between the two, with the end right behind it, is found by
/// a second look only.
fn settled(mut receive: impl FnMut() -> Result<Received>) -> Result<Received> {
    match receive()? {
        // Where credentials come with messages, an empty one is no end.
        Received { len: 0, fd: None, sender: None, .. } => receive(),
        received => Ok(received),
    }
}

fn recv_once(fd: c_int, buf: &mut [u8; MAX_MESSAGE_BYTES], surplus: &mut impl FnMut(ReceivedFd)) -> Result<Received> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = Control([0; RECEIVED_CONTROL_BYTES]);
    // SAFETY: as in `send`.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len();
    // SAFETY: everything `msg` points at lives until the call returns. MSG_TRUNC makes the kernel tell the real length.
    let len = unsafe { sys::recvmsg(fd, &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC) }?;
    let mut received = Received { len, fd: None, lost: msg.msg_flags & libc::MSG_CTRUNC != 0, sender: None };
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen` with well-formed headers; the macros stay inside.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&msg);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for i in 0..bytes / size_of::<c_int>() {
                        let passed = ReceivedFd(data.cast::<c_int>().add(i).read_unaligned());
                        match received.fd {
                            None => received.fd = Some(passed),
                            Some(_) => surplus(passed),
                        }
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    let cred = data.cast::<libc::ucred>().read_unaligned();
                    received.sender = Some(Credentials { pid: cred.pid.max(0) as u32, uid: cred.uid });
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&msg, header);
        }
    }
    Ok(received)
}

/// Maps the mailbox for reading, at `over` if that is an earlier mailbox (which it replaces at once: no thread ever reads
/// an unmapped page). The page stays mapped for the life of the process.
///
/// # Errors
/// `EINVAL` if the descriptor is not a memfd sealed against shrinking, or is too small.
pub(super) fn map_mailbox(fd: c_int, over: Option<&'static AtomicU32>) -> Result<&'static AtomicU32> {
    if !sealed_against_shrinking(fd) || file_bytes(fd)? < MAILBOX_BYTES as u64 {
        return Err(libc::EINVAL as Errno);
    }
    let place = over.map_or(core::ptr::null_mut(), |page| core::ptr::from_ref(page).cast_mut().cast());
    let fixed = if over.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping, or one over a page of our own that nobody else knows; read only.
    let at = unsafe { sys::mmap(place, MAILBOX_BYTES, libc::PROT_READ, libc::MAP_SHARED | fixed, fd, 0) }?;
    // SAFETY: the page is mapped for ever and page-aligned; the daemon writes it concurrently, which an atomic allows.
    Ok(unsafe { &*(at as *const AtomicU32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_just_before_the_end_is_read_before_it() {
        let mut looks = [0, 5, 6, 0, 0].into_iter();
        let mut next = || {
            let receive = || Ok(Received { len: looks.next().unwrap(), fd: None, lost: false, sender: None });
            settled(receive).unwrap().len
        };
        assert_eq!([next(), next(), next()], [5, 6, 0]);
    }
}
