//! Streams between two threads over one connection whose carriers change all the time: every byte must arrive once, in
//! order. Replay a failure with `ROPEWAY_SEED=<seed> cargo test -p ropeway-socket --test carriers`.

use ropeway_shm::segment::{MIN_RING_BYTES, pair_bytes};
use ropeway_shm::sys;
use ropeway_shm::table::PAIR_REGISTERED;
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::reason::Reason;
use ropeway_socket::{lifecycle, promote, recv, send, settings};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs in which both directions of an end were on a ring for a while.
static USED: AtomicU32 = AtomicU32::new(0);

struct End {
    fd: i32,
    h: Handle,
    _stream: TcpStream,
}

fn native(result: sys::Result<usize>) -> isize {
    result.map_or_else(|e| -(e as isize), |n| n as isize)
}

impl End {
    fn track(stream: TcpStream) -> End {
        let fd = stream.as_raw_fd();
        lifecycle::accepted(None, fd, 0);
        let h = fdtable::sock(fd).expect("the socket is tracked");
        End { fd, h, _stream: stream }
    }

    fn send(&self, bytes: &[u8], flags: i32) -> isize {
        let v = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one entry that describes `bytes`; the closure makes the same call on the kernel.
        unsafe {
            send::send(self.h, self.fd, &v, 1, flags | libc::MSG_NOSIGNAL, || {
                let flags = flags | libc::MSG_NOSIGNAL;
                native(sys::sendto(self.fd, bytes.as_ptr(), bytes.len(), flags, std::ptr::null(), 0))
            })
        }
    }

    fn recv(&self, bytes: &mut [u8], flags: i32) -> isize {
        let (ptr, len) = (bytes.as_mut_ptr(), bytes.len());
        let v = libc::iovec { iov_base: ptr.cast(), iov_len: len };
        // SAFETY: as in `send`.
        unsafe {
            recv::recv(self.h, self.fd, &v, 1, flags, || {
                native(sys::recvfrom(self.fd, ptr, len, flags, std::ptr::null_mut(), std::ptr::null_mut()))
            })
        }
    }

    fn on_ring(&self) -> bool {
        self.h.sock().tx.ring_bytes.load(Ordering::Relaxed) > 0
            && self.h.sock().rx.ring_bytes.load(Ordering::Relaxed) > 0
    }

    fn close(self) {
        lifecycle::closing(self.fd);
    }
}

/// A connection whose ends share a pair, as the rendezvous would have arranged.
fn connected() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    let (a, b) = (End::track(a), End::track(b));
    // SAFETY: a valid C string.
    let fd = unsafe { sys::memfd_create(c"pair".as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let fd = fd.expect("memfd") as i32;
    sys::ftruncate(fd, pair_bytes(MIN_RING_BYTES) as i64).expect("size");
    sys::fcntl(fd, libc::F_ADD_SEALS, (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize).expect("seal");
    for (side, end) in [(0, &a), (1, &b)] {
        end.h.sock().pairing.store(PAIR_REGISTERED, Ordering::Release);
        promote::granted(end.h.token(), side, MIN_RING_BYTES, fd);
    }
    sys::close(fd).expect("close");
    (a, b)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Byte `at` of the stream that `salt` names.
fn byte(salt: u64, at: u64) -> u8 {
    ((at ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn write_stream(end: &End, salt: u64, total: u64, mut rng: u64) {
    let mut at = 0;
    while at < total {
        let most = if next(&mut rng).is_multiple_of(4) { 40_000 } else { 200 };
        let n = (1 + next(&mut rng) % most).min(total - at);
        let bytes: Vec<u8> = (at..at + n).map(|i| byte(salt, i)).collect();
        let sent = end.send(&bytes, 0);
        assert!(sent > 0, "send answered {sent} at {at}");
        at += sent as u64;
    }
}

fn read_stream(end: &End, salt: u64, total: u64, mut rng: u64) {
    let mut at = 0;
    let mut buffer = vec![0u8; 70_000];
    while at < total {
        let n = 1 + next(&mut rng) as usize % if next(&mut rng).is_multiple_of(3) { 60_000 } else { 300 };
        let flags = match next(&mut rng) % 8 {
            0 => libc::MSG_PEEK,
            1 if n as u64 <= total - at => libc::MSG_WAITALL,
            _ => 0,
        };
        let got = end.recv(&mut buffer[..n], flags);
        assert!(got > 0, "recv answered {got} at {at} of {total} (flags {flags:#x})");
        for (i, b) in buffer[..got as usize].iter().enumerate() {
            assert_eq!(*b, byte(salt, at + i as u64), "byte {} (flags {flags:#x})", at + i as u64);
        }
        if flags & libc::MSG_WAITALL != 0 {
            assert_eq!(got as usize, n, "WAITALL at {at}");
        }
        if flags & libc::MSG_PEEK == 0 {
            at += got as u64;
        }
    }
}

fn run(seed: u64, total: u64) {
    let (a, b) = connected();
    std::thread::scope(|scope| {
        let (a, b) = (&a, &b);
        scope.spawn(move || write_stream(a, 1, total, seed | 1));
        scope.spawn(move || read_stream(b, 1, total, seed * 3 + 1));
        scope.spawn(move || write_stream(b, 2, total, seed * 5 + 1));
        scope.spawn(move || read_stream(a, 2, total, seed * 7 + 1));
    });
    for (name, end) in [("a", &a), ("b", &b)] {
        let s = end.h.sock();
        let [ring, tcp] = [&s.tx.ring_bytes, &s.tx.tcp_bytes].map(|n| n.load(Ordering::Relaxed));
        let [up, down] = [&s.promotions, &s.demotions].map(|n| n.load(Ordering::Relaxed));
        let reason = Reason::name_of(s.reason.load(Ordering::Relaxed) as u16);
        eprintln!(
            "seed {seed}, {name}: {ring} bytes on rings, {tcp} on TCP, {up} promotions, {down} demotions, {reason}"
        );
    }
    USED.fetch_add((a.on_ring() || b.on_ring()) as u32, Ordering::Relaxed);
    assert_eq!(a.send(b"bye", 0), 3);
    a.close();
    let mut rest = [0u8; 16];
    assert_eq!(b.recv(&mut rest, 0), 3, "what was sent before close arrives");
    b.close();
}

/// A watchdog: a hang is a failure, too.
fn within(limit: Duration, what: &str, f: impl FnOnce() + Send + 'static) {
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

#[test]
fn streams_survive_every_change_of_carrier() {
    let chaos = std::env::var("ROPEWAY_CHAOS").unwrap_or_else(|_| "7:150".into());
    let text: &'static std::ffi::CStr = Box::leak(std::ffi::CString::new(chaos).expect("no NUL").into_boxed_c_str());
    settings::init(|name| if name == b"ROPEWAY_CHAOS" { text.as_ptr().cast() } else { std::ptr::null() });
    let seeds: Vec<u64> = match std::env::var("ROPEWAY_SEED") {
        Ok(seed) => vec![seed.parse().expect("ROPEWAY_SEED is a number")],
        Err(_) => (1..=20).collect(),
    };
    for seed in seeds {
        eprintln!("replay: ROPEWAY_SEED={seed} cargo test -p ropeway-socket --test carriers");
        within(Duration::from_secs(60), "streams", move || run(seed, 6_000_000));
    }
    assert!(USED.load(Ordering::Relaxed) > 0, "no run used the rings in both directions");
}
