//! What poll and select say of sockets whose bytes are in rings, call by call.

use crate::readiness::meanwhile;
use crate::support::*;
use ropeway_shm::sys;
use ropeway_shm::table::{Sock, TX_RING};
use ropeway_socket::thread::{in_critical, me};
use ropeway_socket::{lifecycle, poll, ready};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PIN: i16 = libc::POLLIN;
const POUT: i16 = libc::POLLOUT;
const PRDHUP: i16 = libc::POLLRDHUP;

#[test]
fn poll_tells_what_rings_hold_and_waits_for_it() {
    let (a, b) = connected();
    assert_eq!(poll_on(&[(b.fd, PIN)], 0), (0, vec![0]));
    warm(&a, &b);
    assert_eq!(poll_on(&[(b.fd, PIN | POUT | PRDHUP)], 0), (1, vec![POUT]));
    let start = Instant::now();
    assert_eq!(poll_on(&[(b.fd, PIN)], 30), (0, vec![0]));
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(a.send(b"0123"), 4);
    assert_eq!(
        poll_on(&[(b.fd, PIN), (-1, PIN), (b.fd, POUT), (899, PIN)], -1),
        (3, vec![PIN, 0, POUT, libc::POLLNVAL])
    );
    assert_eq!(b.take(), 4);
    for _ in 0..10 {
        assert_eq!(meanwhile(|| assert_eq!(a.send(b"x"), 1), || poll_on(&[(b.fd, PIN)], 5000)), (1, vec![PIN]));
        assert_eq!(b.take(), 1);
    }
    assert!(b.on_rings());
    assert_eq!(meanwhile(|| assert_eq!(a.shutdown(libc::SHUT_WR), 0), || poll_on(&[(b.fd, PIN | PRDHUP)], 5000)).0, 1);
    rest();
    assert_eq!(poll_on(&[(b.fd, PIN | PRDHUP | POUT)], 0), (1, vec![PIN | PRDHUP | POUT]));
}

#[test]
fn poll_waits_for_room_and_learns_that_the_reader_is_gone() {
    let (a, b) = connected();
    warm(&a, &b);
    b.nonblocking(true);
    let (mut sent, begun) = (0, Instant::now());
    while let n @ 1.. = b.send(&[1u8; 500]) {
        sent += n as usize;
    }
    assert_eq!(poll_on(&[(b.fd, POUT)], 0), (0, vec![0]));
    let after = poll_on(&[(b.fd, POUT)], 3);
    // A reader that takes nothing for 10 ms gets the rest over TCP, which has room.
    assert!(after == (0, vec![0]) || begun.elapsed() >= Duration::from_millis(10), "{after:?}");
    let mut all = vec![0u8; sent];
    let got = meanwhile(|| assert!(a.recv_flags(&mut all, libc::MSG_WAITALL) > 0), || poll_on(&[(b.fd, POUT)], 5000));
    assert_eq!(got, (1, vec![POUT]));
    while b.send(&[1u8; 500]) > 0 {}
    let (n, shown) = meanwhile(|| a.close(), || poll_on(&[(b.fd, POUT)], 5000));
    assert_eq!((n, shown), (1, vec![POUT | libc::POLLERR | libc::POLLHUP]));
}

/// Both ends fill their rings before either reads: TCP has more room, so waiting for some must lead there.
#[test]
fn a_reader_that_stands_still_makes_room_on_tcp() {
    type Wait = fn(&Set, &Set, &End) -> bool;
    let ways: [(&str, Wait); 5] = [
        ("poll", |_, _, b| poll_on(&[(b.fd, POUT)], 5000) == (1, vec![POUT])),
        ("a wait", |set, _, _| set.wait(5000) == [(OUT, 1)]),
        ("poll on the set", |set, _, _| poll_on(&[(set.ep, PIN)], 5000) == (1, vec![PIN])),
        ("a wait on a set around it", |_, outer, _| outer.wait(5000) == [(IN, 2)]),
        ("poll on a set around it", |_, outer, _| poll_on(&[(outer.ep, PIN)], 5000) == (1, vec![PIN])),
    ];
    for (what, wait) in ways {
        let (set, outer) = (Set::new(), Set::new());
        let (a, b) = warm_pair(&set, IN, 1);
        set.modify(&b, OUT, 1);
        if what.ends_with("around it") {
            assert_eq!(outer.ctl(libc::EPOLL_CTL_ADD, set.ep, IN, 2), 0);
        }
        let piece = vec![1u8; 10_000];
        let mut sent = 0;
        while sent < 200_000 {
            match b.send(&piece) {
                n if n > 0 => sent += n as usize,
                _ => assert!(wait(&set, &outer, &b), "by {what}, behind {sent} bytes"),
            }
        }
        let mut all = vec![0u8; sent];
        assert_eq!(a.recv_flags(&mut all, libc::MSG_WAITALL), sent as isize);
        assert!(all.iter().all(|byte| *byte == 1));
    }
}

/// Such a sender has no wait in which the reader's time could end.
#[test]
fn a_reader_that_stands_still_makes_room_for_who_tries_again_without_waiting() {
    for pause in [Duration::from_millis(1), Duration::from_millis(1100)] {
        let (a, b) = connected();
        warm(&a, &b);
        let refused = |n: isize| n == -(libc::EAGAIN as isize);
        let (mut sent, begun) = (0, Instant::now());
        while let n @ 1.. = b.send_flags(&[1; 500], libc::MSG_DONTWAIT) {
            sent += n as usize;
        }
        loop {
            thread::sleep(pause);
            match b.send_flags(&[1; 500], libc::MSG_DONTWAIT) {
                n if refused(n) => assert!(begun.elapsed() < Duration::from_secs(5), "in vain, every {pause:?}"),
                n => break sent += n as usize,
            }
        }
        assert!(begun.elapsed() >= Duration::from_millis(9), "a moment without room is no reason to leave the ring");
        let mut all = vec![0u8; sent];
        assert_eq!(a.recv_flags(&mut all, libc::MSG_WAITALL), sent as isize);
    }
}

/// A server that sends files waits for edges on whichever carrier they fill.
#[test]
fn a_file_that_fills_one_carrier_after_the_other_gets_its_edges() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | OUT | RDHUP | ET, 1);
    while !set.wait(0).is_empty() {}
    const SIZE: usize = 12 << 20;
    // SAFETY: a valid C string.
    let file = unsafe { sys::memfd_create(c"file".as_ptr().cast(), libc::MFD_CLOEXEC) }.expect("memfd") as i32;
    sys::ftruncate(file, SIZE as i64).expect("size");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // First nobody reads, so that the ring is given up.
            thread::sleep(Duration::from_millis(40));
            let mut all = vec![1u8; SIZE];
            let got = a.recv_flags(&mut all, libc::MSG_WAITALL);
            assert!(all.iter().all(|byte| *byte == 0));
            got
        });
        let mut at = 0i64;
        while at < SIZE as i64 {
            let left = SIZE - at as usize;
            let native = |at: &mut i64| {
                let at = &raw mut *at as usize;
                // SAFETY: `at` is valid.
                unsafe { sys::syscall6(libc::SYS_sendfile, b.fd as usize, file as usize, at, left, 0, 0) }
            };
            let p = &raw mut at;
            // SAFETY: `p` is valid, for the closure, too.
            let sent = unsafe { ropeway_socket::send::sendfile(b.h, b.fd, file, p, left, || native(&mut *p)) };
            if sent < left as isize {
                let got = set.wait(5000);
                assert!(got == [(OUT, 1)], "{got:?} after {at} bytes, the last call sent {sent}");
            }
        }
        assert_eq!(reader.join().expect("reader"), SIZE as isize);
    });
    sys::close(file).expect("close");
}

#[test]
fn poll_on_many_descriptors_and_on_pipes_beside() {
    let pairs: Vec<_> = (0..80).map(|_| connected()).collect();
    pairs.iter().for_each(|(a, b)| warm(a, b));
    let mut pipe = [0i32; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let mut asked: Vec<(i32, i16)> = pairs.iter().map(|(_, b)| (b.fd, PIN)).collect();
    asked.push((pipe[0], PIN));
    assert_eq!(poll_on(&asked, 0).0, 0);
    let (n, shown) = meanwhile(|| assert_eq!(pairs[77].0.send(b"x"), 1), || poll_on(&asked, 5000));
    assert_eq!((n, shown[77]), (1, PIN));
    assert_eq!(pairs[77].1.take(), 1);
    // SAFETY: one readable byte.
    let (n, shown) =
        meanwhile(|| assert_eq!(unsafe { sys::write(pipe[1], b"x".as_ptr(), 1) }, Ok(1)), || poll_on(&asked, 5000));
    assert_eq!((n, shown[80]), (1, PIN));
    pipe.iter().for_each(|fd| assert!(sys::close(*fd).is_ok()));
}

#[test]
fn select_fills_the_sets_and_leaves_the_rest_of_the_time() {
    let (a, b) = connected();
    warm(&a, &b);
    let set = |fd: i32| {
        let mut words = [0u64; 16];
        words[fd as usize / 64] |= 1 << (fd % 64);
        words
    };
    let select = |read: &mut [u64; 16], write: Option<&mut [u64; 16]>, ms: i64| {
        let mut time = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
        let write = write.map_or(std::ptr::null_mut(), |w| w.as_mut_ptr());
        // SAFETY: sets of 1024 bits and a valid time; the kernel is not needed here.
        let n = unsafe {
            poll::select(b.fd + 1, read.as_mut_ptr(), write, std::ptr::null_mut(), &mut time, || unreachable!())
        };
        (n, time.tv_sec * 1000 + time.tv_usec / 1000)
    };
    let (mut r, mut w) = (set(b.fd), set(b.fd));
    assert_eq!(select(&mut r, Some(&mut w), 0).0, 1);
    assert_eq!((r, w), ([0; 16], set(b.fd)));
    let mut r = set(b.fd);
    assert_eq!(select(&mut r, None, 20), (0, 0));
    assert_eq!(r, [0; 16]);
    let mut r = set(b.fd);
    let (n, left) = meanwhile(|| assert_eq!(a.send(b"x"), 1), || select(&mut r, None, 5000));
    assert_eq!((n, r), (1, set(b.fd)));
    assert!((2000..=4980).contains(&left), "{left} ms are left");
}

#[test]
fn a_socket_closed_during_a_wait_is_gone_and_others_are_not() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    let (c, _d) = warm_pair(&set, IN, 2);
    let got = meanwhile(
        || {
            b.close();
            assert_eq!(c.send(b"x"), 1);
        },
        || set.wait(5000),
    );
    assert_eq!(got, [(IN, 2)]);
    drop(a);
}

#[test]
fn a_closed_number_whose_duplicate_lives_is_left_to_the_kernel() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    let copy = sys::dup(b.fd).expect("dup") as i32;
    lifecycle::duplicated(b.fd, copy);
    b.close();
    assert_eq!(a.send(b"data"), 4);
    assert_eq!(set.wait(1000), [(IN, 1)], "by the open file, under its old data");
    lifecycle::closing(copy);
    sys::close(copy).expect("close");
    rest();
    assert_eq!(set.wait(0), []);
}

/// A handler may use the socket whose wait it interrupted, or leave by `siglongjmp`: where the lock was taken it would wait
/// for itself, or leave it taken.
#[test]
fn a_wait_that_looks_at_a_ring_puts_handlers_off() {
    static SOCKET: AtomicPtr<Sock> = AtomicPtr::new(std::ptr::null_mut());
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: records are mapped as long as the process lives.
        let s = unsafe { &*SOCKET.load(Ordering::Acquire) };
        let holds = [&s.tx.lock, &s.rx.lock].iter().any(|lock| lock.owner() == me());
        INSIDE.fetch_add(u32::from(holds && !in_critical()), Ordering::Relaxed);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    let (a, b) = connected();
    warm(&a, &b);
    a.nonblocking(true);
    while a.send(&[0; 4096]) > 0 {}
    let s = a.h.sock();
    assert_eq!(s.tx.phase.load(Ordering::Relaxed), TX_RING);
    SOCKET.store(std::ptr::from_ref(s).cast_mut(), Ordering::Release);
    // SAFETY: a handler that only looks at atomic variables; no other test uses this signal.
    unsafe { libc::signal(libc::SIGUSR2, handler as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    // SAFETY: no arguments.
    let waits = unsafe { libc::pthread_self() };
    let until = Instant::now() + Duration::from_millis(300);
    thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < until {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(waits, libc::SIGUSR2) };
                thread::sleep(Duration::from_micros(50));
            }
        });
        while Instant::now() < until {
            for _ in 0..1000 {
                assert!(!ready::maybe_writable(s) && ready::surely_unreadable(s));
            }
        }
    });
    let handled = HANDLED.load(Ordering::Relaxed);
    assert!(handled > 10, "{handled}");
    assert_eq!(INSIDE.load(Ordering::Relaxed), 0, "of {handled} handlers");
}
