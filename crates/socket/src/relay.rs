//! The last resort of a reader that leaves Ropeway: a small process that stands between the program's descriptor and the
//! shadow (handover, clause 4.2).
//!
//! It inherits the ring and the shadow, hands on what is unread in the order of the stream, and then relays both
//! directions until both have ended. The program's descriptors become one end of a loopback TCP connection to it, so that
//! an image that knows nothing of Ropeway reads the right bytes.

use crate::fdtable::Handle;
use crate::handover::break_connection;
use crate::reason::Reason;
use crate::{lifecycle, process, recv, thread};
use core::ptr;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, iovec, pollfd, sockaddr_in};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_NONBLOCK, RX_TCP};

/// Bytes handed on at a time.
const BUFFER_BYTES: usize = 64 * 1024;

/// Puts a relay in the place of every descriptor of `h` in this process. If that cannot be done, the connection is reset:
/// bytes are never delivered at a wrong place.
pub fn take_over(h: Handle, fd: i32) {
    let s = h.sock();
    let Some((program_end, relay_end)) = loopback_pair() else {
        return break_connection(s, h, fd, Reason::UnsupportedOption);
    };
    s.expected.fetch_add(1, Ordering::AcqRel);
    // Two forks: the process in between is ours to wait for, so that the program never sees a child it did not make.
    match fork() {
        Ok(0) => {
            if fork() == Ok(0) {
                run(h, fd, relay_end);
            }
            exit()
        }
        Ok(child) => {
            // SAFETY: no status is asked for; __WALL, because a child without an exit signal is not waited for otherwise.
            unsafe { sys::syscall6(libc::SYS_wait4, child, 0, libc::__WALL as usize, 0, 0, 0) };
            let nonblocking = s.has(FLAG_NONBLOCK);
            if nonblocking {
                let _ = sys::fcntl(program_end, libc::F_SETFL, libc::O_NONBLOCK as usize);
            }
            lifecycle::replace_descriptors(h, program_end);
        }
        Err(_) => {
            s.expected.fetch_sub(1, Ordering::AcqRel);
            break_connection(s, h, fd, Reason::UnsupportedOption);
        }
    }
    let _ = sys::close(program_end);
    let _ = sys::close(relay_end);
}

/// A plain fork without an exit signal: none of the program's handlers runs, and its `wait` does not see the child.
fn fork() -> sys::Result<usize> {
    // SAFETY: without flags, clone copies the process; the child runs only code of this module.
    match unsafe { sys::syscall6(libc::SYS_clone, 0, 0, 0, 0, 0, 0) } {
        e if e < 0 => Err(-e as c_int),
        pid => Ok(pid as usize),
    }
}

fn exit() -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { sys::syscall6(libc::SYS_exit_group, 0, 0, 0, 0, 0, 0) };
    }
}

fn socket() -> sys::Result<c_int> {
    sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).map(|fd| fd as c_int)
}

/// Two connected TCP sockets on loopback.
fn loopback_pair() -> Option<(c_int, c_int)> {
    let listener = socket().ok()?;
    let pair = connect_to(listener);
    let _ = sys::close(listener);
    pair
}

fn connect_to(listener: c_int) -> Option<(c_int, c_int)> {
    let mut address = sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let mut len = size_of::<sockaddr_in>() as u32;
    let place: *mut c_void = (&raw mut address).cast();
    // SAFETY: the address is valid for its length in every call.
    unsafe {
        sys::bind(listener, place, len).ok()?;
        sys::getsockname(listener, place, &mut len).ok()?;
        sys::syscall6(libc::SYS_listen, listener as usize, 1, 0, 0, 0, 0);
        let client = socket().ok()?;
        if sys::connect(client, place, len).is_err() {
            let _ = sys::close(client);
            return None;
        }
        let mut caller = address;
        let (at, mut room) = (&raw mut caller as usize, len);
        let flags = libc::SOCK_CLOEXEC as usize;
        let server = sys::syscall6(libc::SYS_accept4, listener as usize, at, &raw mut room as usize, flags, 0, 0);
        let named = sys::getsockname(client, place, &mut len);
        if server >= 0 && named.is_ok() && caller.sin_port == address.sin_port {
            return Some((client, server as c_int));
        }
        // Nobody, or a stranger who was faster.
        let _ = sys::close(client);
        if server >= 0 {
            let _ = sys::close(server as c_int);
        }
        None
    }
}

/// The relay's life.
fn run(h: Handle, shadow: c_int, inner: c_int) -> ! {
    process::after_fork_child();
    thread::after_fork_child();
    let s = h.sock();
    lifecycle::add_owner(s, process::pid());
    s.expected.fetch_sub(1, Ordering::AcqRel);
    s.clear(FLAG_NONBLOCK);
    keep_only(shadow, inner);
    let mut buffer = [0u8; BUFFER_BYTES];
    // What the ring holds, and what lies on TCP before it. Ring and switch are closed: this ends.
    while s.rx.phase.load(Ordering::Acquire) != RX_TCP {
        let list = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: one entry that describes the buffer; the closure asks the kernel for the same.
        let n = unsafe {
            recv::recv(h, shadow, &list, 1, libc::MSG_DONTWAIT, || {
                sys::recvfrom(
                    shadow,
                    list.iov_base.cast(),
                    list.iov_len,
                    libc::MSG_DONTWAIT,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
                .map_or_else(|e| -(e as isize), |n| n as isize)
            })
        };
        match n {
            n if n > 0 && write_all(inner, &buffer[..n as usize]) => {}
            n if n == -(libc::EAGAIN as isize) => wait_for(shadow),
            _ => break,
        }
    }
    pass_on(shadow, inner, &mut buffer);
    exit()
}

/// Closes everything that was inherited but the two ends: a relay must not hold the program's files and sockets open.
fn keep_only(a: c_int, b: c_int) {
    let (low, high) = (a.min(b) as u32, a.max(b) as u32);
    if low > 0 {
        let _ = sys::close_range(0, low - 1, 0);
    }
    if high > low + 1 {
        let _ = sys::close_range(low + 1, high - 1, 0);
    }
    let _ = sys::close_range(high + 1, u32::MAX, 0);
}

fn wait_for(fd: c_int) {
    let mut p = pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    // SAFETY: `p` is valid; no time-out.
    let _ = unsafe { sys::ppoll(&mut p, 1, ptr::null_mut(), ptr::null(), sys::SIGSET_BYTES) };
}

fn write_all(fd: c_int, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: the slice is readable.
        match unsafe { sys::sendto(fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, ptr::null(), 0) } {
            Ok(n) => bytes = &bytes[n..],
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => {
                let mut p = pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: `p` is valid; no time-out.
                let _ = unsafe { sys::ppoll(&mut p, 1, ptr::null_mut(), ptr::null(), sys::SIGSET_BYTES) };
            }
            Err(_) => return false,
        }
    }
    true
}

/// Relays both directions, each until its end; a reset of one side resets the other.
fn pass_on(shadow: c_int, inner: c_int, buffer: &mut [u8]) {
    let ways = [(shadow, inner), (inner, shadow)];
    let mut open = [true, true];
    while open[0] || open[1] {
        let mut fds = ways.map(|(from, _)| pollfd { fd: from, events: libc::POLLIN, revents: 0 });
        for (p, open) in fds.iter_mut().zip(open) {
            if !open {
                p.fd = -1;
            }
        }
        // SAFETY: two valid entries; no time-out.
        let _ = unsafe { sys::ppoll(fds.as_mut_ptr(), 2, ptr::null_mut(), ptr::null(), sys::SIGSET_BYTES) };
        for (i, (from, to)) in ways.into_iter().enumerate() {
            if fds[i].revents == 0 {
                continue;
            }
            let flags = libc::MSG_DONTWAIT;
            // SAFETY: the buffer is writable.
            let n = unsafe {
                sys::recvfrom(from, buffer.as_mut_ptr(), buffer.len(), flags, ptr::null_mut(), ptr::null_mut())
            };
            match n {
                Ok(n) if n > 0 && write_all(to, &buffer[..n]) => {}
                Err(libc::EAGAIN | libc::EINTR) => {}
                Ok(0) => {
                    open[i] = false;
                    let _ = sys::shutdown(to, libc::SHUT_WR);
                }
                _ => {
                    crate::shadow::linger_zero(to);
                    return;
                }
            }
        }
    }
}
