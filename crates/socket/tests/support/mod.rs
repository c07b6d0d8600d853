//! Connections whose two ends live in this process and share a pair, as the rendezvous would have arranged, and the
//! calls of a program on them.

#![allow(dead_code, reason = "each test program uses its own part")]

use ropeway_shm::segment::{MIN_RING_BYTES, pair_bytes};
use ropeway_shm::sys;
use ropeway_shm::table::{PAIR_REGISTERED, RX_RING, TX_RING};
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::reason::Reason;
use ropeway_socket::{epoll, lifecycle, poll, process, promote, recv, send};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub fn native(result: sys::Result<usize>) -> isize {
    result.map_or_else(|e| -(e as isize), |n| n as isize)
}

/// One end of a connection.
pub struct End {
    pub fd: i32,
    pub h: Handle,
    stream: TcpStream,
}

impl End {
    fn track(stream: TcpStream) -> End {
        let fd = stream.as_raw_fd();
        stream.set_nodelay(true).expect("TCP_NODELAY");
        // While another thread makes the table, sockets are not tracked.
        while !process::ready() {
            std::thread::yield_now();
        }
        lifecycle::accepted(None, fd, 0);
        let h = fdtable::sock(fd).expect("the socket is tracked");
        End { fd, h, stream }
    }

    pub fn nonblocking(&self, on: bool) {
        self.stream.set_nonblocking(on).expect("O_NONBLOCK");
        lifecycle::set_nonblocking(self.h, on);
    }

    pub fn send_flags(&self, bytes: &[u8], flags: i32) -> isize {
        send_on(self.h, self.fd, bytes, flags)
    }

    pub fn send(&self, bytes: &[u8]) -> isize {
        self.send_flags(bytes, 0)
    }

    pub fn recv_flags(&self, bytes: &mut [u8], flags: i32) -> isize {
        recv_on(self.h, self.fd, bytes, flags)
    }

    pub fn recv(&self, bytes: &mut [u8]) -> isize {
        self.recv_flags(bytes, 0)
    }

    /// Receives what is there, without waiting.
    pub fn take(&self) -> usize {
        let mut bytes = [0u8; 4096];
        let mut got = 0;
        loop {
            match self.recv_flags(&mut bytes, libc::MSG_DONTWAIT) {
                n if n > 0 => got += n as usize,
                _ => return got,
            }
        }
    }

    pub fn on_rings(&self) -> bool {
        self.h.sock().tx.phase.load(Ordering::Relaxed) == TX_RING
            && self.h.sock().rx.phase.load(Ordering::Relaxed) == RX_RING
    }

    pub fn shutdown(&self, how: i32) -> isize {
        lifecycle::shutdown(self.h, self.fd, how, || native(sys::shutdown(self.fd, how)))
    }

    pub fn close(self) {}
}

impl Drop for End {
    fn drop(&mut self) {
        // The stream closes the descriptor next.
        lifecycle::closing(self.fd);
    }
}

/// A thread's call on a socket that another thread may close meanwhile.
pub fn send_on(h: Handle, fd: i32, bytes: &[u8], flags: i32) -> isize {
    let v = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: one entry that describes `bytes`; the closure makes the same call on the kernel.
    unsafe {
        send::send(h, fd, &v, 1, flags, || {
            native(sys::sendto(fd, bytes.as_ptr(), bytes.len(), flags, std::ptr::null(), 0))
        })
    }
}

pub fn recv_on(h: Handle, fd: i32, bytes: &mut [u8], flags: i32) -> isize {
    let (ptr, len) = (bytes.as_mut_ptr(), bytes.len());
    let v = libc::iovec { iov_base: ptr.cast(), iov_len: len };
    // SAFETY: as in `send_on`.
    unsafe {
        recv::recv(h, fd, &v, 1, flags, || {
            native(sys::recvfrom(fd, ptr, len, flags, std::ptr::null_mut(), std::ptr::null_mut()))
        })
    }
}

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("bind")
}

/// A connection without a pair.
pub fn on_tcp() -> (End, End) {
    on_tcp_to(&listener())
}

fn on_tcp_to(listener: &TcpListener) -> (End, End) {
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (End::track(a), End::track(b))
}

/// A connection whose ends share a pair; both blocking, both on TCP yet.
pub fn connected() -> (End, End) {
    connected_to(&listener())
}

/// The same through a listener of which the second end inherits its options.
pub fn connected_to(listener: &TcpListener) -> (End, End) {
    let (a, b) = on_tcp_to(listener);
    pair_up(&a, &b);
    (a, b)
}

/// Offers two ends a pair.
pub fn pair_up(a: &End, b: &End) {
    let fd = new_pair();
    for (side, end) in [(0, a), (1, b)] {
        end.h.sock().pairing.store(PAIR_REGISTERED, Ordering::Release);
        promote::granted(end.h.token(), side, MIN_RING_BYTES, fd);
    }
    sys::close(fd).expect("close");
}

/// The memory of a pair that nobody has stamped.
pub fn new_pair() -> i32 {
    // SAFETY: a valid C string.
    let fd = unsafe { sys::memfd_create(c"pair".as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let fd = fd.expect("memfd") as i32;
    sys::ftruncate(fd, pair_bytes(MIN_RING_BYTES) as i64).expect("size");
    sys::fcntl(fd, libc::F_ADD_SEALS, (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize).expect("seal");
    fd
}

/// Sends to and fro until both directions of both ends are on rings.
pub fn warm(a: &End, b: &End) {
    let mut byte = [0u8; 1];
    for _ in 0..20 {
        for (from, to) in [(a, b), (b, a)] {
            assert_eq!(from.send(b"w"), 1);
            while to.recv(&mut byte) != 1 {}
        }
        if a.on_rings() && b.on_rings() {
            // One more look at an empty ring, so that both know it to be empty.
            assert_eq!((a.take(), b.take()), (0, 0));
            return;
        }
    }
    let state = |end: &End| {
        let s = end.h.sock();
        let words = [&s.pairing, &s.rx.phase, &s.tx.phase, &s.rx.inflight, &s.tx.inflight, &s.flags];
        let reason = Reason::name_of(s.reason.load(Ordering::Relaxed) as u16);
        format!("{:?} {reason}", words.map(|w| w.load(Ordering::Relaxed)))
    };
    panic!("the connection did not come onto rings: {}, {}", state(a), state(b));
}

/// Both, with `b` in `set`.
pub fn warm_pair(set: &Set, events: u32, data: u64) -> (End, End) {
    let (a, b) = connected();
    b.nonblocking(true);
    set.add(&b, events, data);
    set.wait(0);
    warm(&a, &b);
    (a, b)
}

/// An epoll set.
pub struct Set {
    pub ep: i32,
}

pub const IN: u32 = libc::EPOLLIN as u32;
pub const OUT: u32 = libc::EPOLLOUT as u32;
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub const HUP: u32 = libc::EPOLLHUP as u32;
pub const ERR: u32 = libc::EPOLLERR as u32;
pub const ET: u32 = libc::EPOLLET as u32;
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

impl Set {
    pub fn new() -> Set {
        // SAFETY: no pointers.
        let ep = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        epoll::created(ep);
        Set { ep }
    }

    pub fn ctl(&self, op: i32, fd: i32, events: u32, data: u64) -> isize {
        let mut event = libc::epoll_event { events, u64: data };
        let p = &raw mut event;
        // SAFETY: `event` is valid.
        unsafe { epoll::ctl(self.ep, op, fd, p, || native(sys::epoll_ctl(self.ep, op, fd, p))) }
    }

    pub fn add(&self, end: &End, events: u32, data: u64) {
        assert_eq!(self.ctl(libc::EPOLL_CTL_ADD, end.fd, events, data), 0);
    }

    pub fn modify(&self, end: &End, events: u32, data: u64) {
        assert_eq!(self.ctl(libc::EPOLL_CTL_MOD, end.fd, events, data), 0);
    }

    pub fn delete(&self, end: &End) -> isize {
        self.ctl(libc::EPOLL_CTL_DEL, end.fd, 0, 0)
    }

    /// What `epoll_wait` answers.
    pub fn wait_into(&self, events: &mut [libc::epoll_event], ms: i32) -> isize {
        let (p, max) = (events.as_mut_ptr(), events.len() as i32);
        // SAFETY: the array is valid for `max` events.
        unsafe {
            epoll::wait(self.ep, p, max, ms, std::ptr::null(), || {
                native(sys::epoll_pwait(self.ep, p, max, ms, std::ptr::null(), sys::SIGSET_BYTES))
            })
        }
    }

    /// At most `max` events within `ms`, in the order of their data.
    pub fn wait_max(&self, max: usize, ms: i32) -> Vec<(u32, u64)> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        let n = self.wait_into(&mut events, ms);
        assert!(n >= 0, "epoll_wait answered {n}");
        let mut got: Vec<(u32, u64)> = events[..n as usize].iter().map(|e| (e.events, e.u64)).collect();
        got.sort_by_key(|e| e.1);
        got
    }

    pub fn wait(&self, ms: i32) -> Vec<(u32, u64)> {
        self.wait_max(64, ms)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        lifecycle::closing(self.ep);
        let _ = sys::close(self.ep);
    }
}

/// `poll` on pairs of descriptor and events: the answer and what each entry shows.
pub fn poll_on(entries: &[(i32, i16)], ms: i32) -> (isize, Vec<i16>) {
    let mut fds: Vec<libc::pollfd> =
        entries.iter().map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 }).collect();
    let (p, n) = (fds.as_mut_ptr(), fds.len());
    // SAFETY: the entries are valid.
    let answer = unsafe {
        poll::poll(p, n, ms, || {
            let mut time = libc::timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000) as i64 * 1_000_000 };
            let time = if ms < 0 { std::ptr::null_mut() } else { &raw mut time };
            native(sys::ppoll(p, n, time, std::ptr::null(), sys::SIGSET_BYTES))
        })
    };
    (answer, fds.iter().map(|p| p.revents).collect())
}

/// Forks, after `fork_prepare`; the child ends with what `f` says.
pub fn forked(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs only what a child of the program runs in the hooks, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        lifecycle::fork_child();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!f())) };
    }
    lifecycle::fork_parent(child);
    child
}

pub fn says_yes(child: i32) -> bool {
    let mut status = -1;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// A watchdog: a hang is a failure, too.
pub fn within(limit: Duration, what: &str, f: impl FnOnce() + Send + 'static) {
    let (done, finished) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    match finished.recv_timeout(limit) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
            eprintln!("{what}: no end after {limit:?}");
            std::process::abort();
        }
        _ => thread.join().expect("the test thread"),
    }
}

/// Gives bytes in flight the time to arrive over the kernel.
pub fn rest() {
    std::thread::sleep(Duration::from_millis(5));
}
