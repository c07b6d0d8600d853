//! The last resort of a reader that leaves Ropeway: a small process that stands between the program's descriptor and the
//! shadow (handover, clause 4.2).
//!
//! It inherits the ring and the shadow, hands on what is unread in the order of the stream, and then relays both
//! directions until both have ended. The program's descriptors become one end of a loopback TCP connection to it, so that
//! an image that knows nothing of Ropeway reads the right bytes.

use crate::fdtable::Handle;
use crate::handover::break_connection;
use crate::reason::Reason;
use crate::rendezvous::client;
use crate::{lifecycle, process, recv, shadow, thread, wait};
use core::ptr;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, iovec, pollfd, sockaddr_in};
use ropeway_shm::sys;
use ropeway_shm::table::{Birth, FLAG_NONBLOCK, RX_TCP};

/// Bytes of each direction that are held at a time.
const BUFFER_BYTES: usize = 32 * 1024;

/// What a relay holds. Not on its stack, which is a copy of that of whatever thread left Ropeway and may be small.
static mut HELD: [[u8; BUFFER_BYTES]; 2] = [[0; BUFFER_BYTES]; 2];

/// Puts a relay in the place of every descriptor of `h` in this process. If that cannot be done, the connection is reset:
/// bytes are never delivered at a wrong place.
pub fn take_over(h: Handle, fd: i32) {
    let s = h.sock();
    if !loopback_pair().is_some_and(|(program_end, relay_end)| {
        let takes_over = start(h, fd, relay_end);
        if takes_over {
            if s.has(FLAG_NONBLOCK) {
                let _ = sys::fcntl(program_end, libc::F_SETFL, libc::O_NONBLOCK as usize);
            }
            lifecycle::replace_descriptors(h, program_end);
        }
        let _ = sys::close(program_end);
        let _ = sys::close(relay_end);
        takes_over
    }) {
        // For whoever reads past Ropeway: it would take the end that `break_connection` makes here for that of the stream.
        shadow::reset(fd);
        break_connection(s, h, fd, Reason::UnsupportedOption);
    }
}

/// Makes the process that relays between the shadow `fd` and `relay_end`. False when it does not come to run.
fn start(h: Handle, fd: i32, relay_end: c_int) -> bool {
    let s = h.sock();
    let Ok([hears, tells]) = pipe() else { return false };
    let birth = lifecycle::begin_birth();
    s.expected.fetch_or(birth.bit(), Ordering::AcqRel);
    // Neither of the two new processes may run the program's handlers, nor end by what the program outlives: what is sent to
    // the group is meant for the program. They never let a signal in.
    wait::with_signals_blocked(|_| {
        // Two forks: the process in between is ours to wait for, so that the program never sees a child it did not make.
        match fork() {
            Ok(0) => match fork() {
                Ok(0) => run(h, fd, relay_end, tells, birth),
                _ => exit(0),
            },
            Ok(child) => wait_for(child),
            Err(_) => {}
        }
    });
    let _ = sys::close(tells);
    let runs = has_told(hears);
    let _ = sys::close(hears);
    // One that has died was the owner of what it left.
    let births = process::table().births();
    if !runs && births.is_unborn(birth) {
        s.expected.fetch_and(!birth.ended_bit(), Ordering::AcqRel);
        births.end(birth, 0);
    }
    runs
}

fn pipe() -> sys::Result<[c_int; 2]> {
    let mut ends = [0; 2];
    // SAFETY: room for the two numbers.
    match unsafe { sys::syscall6(libc::SYS_pipe2, (&raw mut ends) as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0) } {
        0 => Ok(ends),
        e => Err(-e as c_int),
    }
}

/// Waits for the process in between.
fn wait_for(child: usize) {
    // SAFETY: no pointers; __WALL, because a child without an exit signal is not waited for otherwise.
    while unsafe { sys::syscall6(libc::SYS_wait4, child, 0, libc::__WALL as usize, 0, 0, 0) } == -libc::EINTR as isize {
    }
}

/// True once the relay has said that it runs. A pipe that ends without that says that there is none, or none any more.
fn has_told(hears: c_int) -> bool {
    let mut told = 0u8;
    loop {
        // SAFETY: a writable byte.
        match unsafe { sys::read(hears, &mut told, 1) } {
            Err(libc::EINTR) => {}
            read => return read == Ok(1),
        }
    }
}

/// A plain fork without an exit signal: no handler of fork runs, and the program's `wait` does not see the child.
fn fork() -> sys::Result<usize> {
    // SAFETY: without flags, clone copies the process; the child runs only code of this module.
    match unsafe { sys::syscall6(libc::SYS_clone, 0, 0, 0, 0, 0, 0) } {
        e if e < 0 => Err(-e as c_int),
        pid => Ok(pid as usize),
    }
}

fn exit(status: usize) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { sys::syscall6(libc::SYS_exit_group, status, 0, 0, 0, 0, 0) };
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
fn run(h: Handle, shadow: c_int, inner: c_int, tells: c_int, birth: Birth) -> ! {
    process::after_fork_child();
    let (births, pid) = (process::table().births(), process::pid());
    if !births.born(birth, pid) {
        exit(1); // Whoever waits for this has been killed.
    }
    thread::after_fork_child();
    client::after_fork_child();
    let s = h.sock();
    lifecycle::add_owner(s, pid);
    s.expected.fetch_and(!birth.ended_bit(), Ordering::AcqRel);
    births.end(birth, pid);
    s.clear(FLAG_NONBLOCK);
    // SAFETY: a readable byte.
    if unsafe { sys::write(tells, &1, 1) } != Ok(1) {
        exit(1); // As above.
    }
    keep_only(shadow, inner);
    let held = &raw mut HELD;
    // SAFETY: this process has one thread, which comes here once.
    let [inward, outward] = unsafe { &mut *held };
    pass_on([Way::new(shadow, inner, Some(h), inward), Way::new(inner, shadow, None, outward)]);
    exit(0)
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

/// One direction. While the target has no room for what is held, the source is not read.
struct Way<'a> {
    from: c_int,
    to: c_int,
    /// The socket whose ring comes before what the kernel has of it.
    ring: Option<Handle>,
    held: &'a mut [u8],
    start: usize,
    end: usize,
    open: bool,
}

/// What a direction came to.
enum Step {
    Moved,
    /// Nothing can be moved before this.
    Waits(pollfd),
    /// One of the two ends was reset.
    Broken,
}

impl<'a> Way<'a> {
    fn new(from: c_int, to: c_int, ring: Option<Handle>, held: &'a mut [u8]) -> Way<'a> {
        Way { from, to, ring, held, start: 0, end: 0, open: true }
    }

    /// Moves one buffer on as far as that goes without waiting.
    fn step(&mut self) -> Step {
        if self.start == self.end {
            match self.receive() {
                Ok(0) => {
                    self.open = false;
                    let _ = sys::shutdown(self.to, libc::SHUT_WR);
                    return Step::Moved;
                }
                Ok(n) => (self.start, self.end) = (0, n),
                Err(libc::EINTR) => return Step::Moved,
                Err(libc::EAGAIN) => return Step::Waits(pollfd { fd: self.from, events: libc::POLLIN, revents: 0 }),
                Err(_) => return Step::Broken,
            }
        }
        let held = &self.held[self.start..self.end];
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the slice is readable.
        match unsafe { sys::sendto(self.to, held.as_ptr(), held.len(), flags, ptr::null(), 0) } {
            Ok(n) => {
                self.start += n;
                Step::Moved
            }
            Err(libc::EINTR) => Step::Moved,
            Err(libc::EAGAIN) => Step::Waits(pollfd { fd: self.to, events: libc::POLLOUT, revents: 0 }),
            Err(_) => Step::Broken,
        }
    }

    /// What the ring holds, and what lies on TCP before it, comes first. Ring and switch are closed: that ends.
    fn receive(&mut self) -> sys::Result<usize> {
        let (from, place, len) = (self.from, self.held.as_mut_ptr(), self.held.len());
        // SAFETY: the buffer is writable.
        let natively =
            || unsafe { sys::recvfrom(from, place, len, libc::MSG_DONTWAIT, ptr::null_mut(), ptr::null_mut()) };
        let Some(h) = self.ring.filter(|h| h.sock().rx.phase.load(Ordering::Acquire) != RX_TCP) else {
            return natively();
        };
        let list = iovec { iov_base: place.cast(), iov_len: len };
        // SAFETY: one entry that describes the buffer; the closure asks the kernel for the same.
        let n = unsafe {
            recv::recv(h, from, &list, 1, libc::MSG_DONTWAIT, || {
                natively().map_or_else(|e| -(e as isize), |n| n as isize)
            })
        };
        if n < 0 { Err(-n as c_int) } else { Ok(n as usize) }
    }
}

/// Relays both directions, each until its end and whether the other moves or not; a reset of one side resets the other.
fn pass_on(mut ways: [Way<'_>; 2]) {
    while ways.iter().any(|way| way.open) {
        let mut waits = [pollfd { fd: -1, events: 0, revents: 0 }; 2];
        let mut moved = false;
        for (way, wait) in ways.iter_mut().zip(&mut waits).filter(|(way, _)| way.open) {
            match way.step() {
                Step::Moved => moved = true,
                Step::Waits(event) => *wait = event,
                Step::Broken => {
                    shadow::linger_zero(way.from);
                    shadow::linger_zero(way.to);
                    return;
                }
            }
        }
        if !moved {
            // SAFETY: two valid entries; no time-out.
            let _ = unsafe { sys::ppoll(waits.as_mut_ptr(), 2, ptr::null_mut(), ptr::null(), sys::SIGSET_BYTES) };
        }
    }
}
