//! A reader that leaves Ropeway asks for what it has not read while the kernel has no room for that (handover, clause 4).

use crate::support::{End, IN, Set, connected, connected_to, listener, native, poll_on, rest, warm, warm_pair, within};
use ropeway_shm::sys;
use ropeway_shm::table::{RX_ATTACHED, RX_TCP, TX_RING, TX_TCP};
use ropeway_socket::reason::Reason;
use ropeway_socket::{fdtable, handover, lifecycle};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const AGAIN: isize = -(libc::EAGAIN as isize);

/// Byte `at` of the stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 24) as u8
}

/// Sends the stream on from `at` until there is no room; where it is then.
fn stuff(end: &End, mut at: usize) -> usize {
    loop {
        let bytes: Vec<u8> = (at..at + 8192).map(byte).collect();
        match end.send_flags(&bytes, libc::MSG_DONTWAIT) {
            n if n > 0 => at += n as usize,
            answer => {
                assert_eq!(answer, AGAIN);
                return at;
            }
        }
    }
}

fn set_option(fd: i32, level: i32, name: i32, value: libc::c_int) {
    // SAFETY: `value` is valid for reading.
    unsafe { sys::setsockopt(fd, level, name, (&raw const value).cast(), 4) }.expect("an option");
}

/// Receives past Ropeway.
fn recv_past(end: &End, buffer: &mut [u8]) -> isize {
    let none = std::ptr::null_mut();
    // SAFETY: the buffer is writable; no address is asked for.
    native(unsafe { sys::recvfrom(end.fd, buffer.as_mut_ptr(), buffer.len(), 0, none, none.cast()) })
}

/// A connection on which the first end has filled the kernel's buffers and then its ring, and how many bytes that were.
fn full() -> (End, End, usize) {
    let (a, b) = connected();
    // Sizes that are set do not grow.
    for (end, option) in [(&a, libc::SO_SNDBUF), (&b, libc::SO_RCVBUF)] {
        set_option(end.fd, libc::SOL_SOCKET, option, 64 << 10);
    }
    let mut sent = 0;
    loop {
        let before = sent;
        sent = stuff(&a, sent);
        if sent == before {
            break;
        }
        // Longer than an acknowledgment may be delayed, or a full window is left alone.
        std::thread::sleep(Duration::from_millis(300));
    }
    while b.h.sock().rx.phase.load(Ordering::Relaxed) != RX_ATTACHED {
        assert_eq!(b.recv_flags(&mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT), 1);
    }
    let over_tcp = sent;
    sent = stuff(&a, sent);
    assert!(sent > over_tcp && a.h.sock().tx.phase.load(Ordering::Relaxed) == TX_RING);
    (a, b, sent)
}

#[test]
fn a_peer_that_recalls_and_reads_nothing_holds_up_no_send() {
    within(Duration::from_secs(20), "a send amid a recall", || {
        let (a, b, _) = full();
        let mut rx = handover::lock_rx(b.h.sock());
        rx.demote(b.h, b.fd, Reason::Off);
        let (ring, c) = rx.ring().expect("closed, and not drained");
        ring.recall(c);
        drop(rx);
        assert_eq!(a.send_flags(b"x", libc::MSG_DONTWAIT), AGAIN);
        assert_eq!(a.h.sock().tx.phase.load(Ordering::Relaxed), TX_TCP);
    });
}

#[test]
fn a_peer_that_recalls_what_it_has_not_closed_holds_up_no_send_that_waits() {
    within(Duration::from_secs(20), "a send amid a recall", || {
        let (a, b) = connected();
        warm(&a, &b);
        stuff(&a, 0);
        while a.send_flags(b"x", libc::MSG_DONTWAIT) == 1 {}
        {
            let mut rx = handover::lock_rx(b.h.sock());
            let (ring, c) = rx.ring().expect("open");
            ring.recall(c);
        }
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(a.h.sock().tx.phase.load(Ordering::Relaxed), TX_TCP, "nobody reads");
    });
}

#[test]
fn a_recall_for_which_the_kernel_has_no_room_ends_in_a_relay_and_loses_nothing() {
    within(Duration::from_secs(40), "a recall without room", || {
        let (a, b, sent) = full();
        std::thread::scope(|scope| {
            // A writer that waits for an answer is asked where it sleeps.
            scope.spawn(|| {
                assert_eq!(a.recv(&mut [0]), 1);
                assert_eq!(a.send(&[byte(sent)]), 1);
            });
            rest();
            lifecycle::leave(b.h, b.fd, Reason::Stdio);
            // Past Ropeway from here on.
            let mut buffer = vec![0u8; 65536];
            let (mut got, mut answered) = (0, false);
            while got < sent + 1 {
                let n = recv_past(&b, &mut buffer);
                assert!(n > 0, "{n} behind {got} of {sent} bytes");
                let n = n as usize;
                assert!(buffer[..n].iter().enumerate().all(|(i, b)| *b == byte(got + i)), "behind {got} bytes");
                got += n;
                if !answered && got == sent {
                    answered = true;
                    // SAFETY: one readable byte.
                    assert_eq!(unsafe { sys::sendto(b.fd, b"!".as_ptr(), 1, 0, std::ptr::null(), 0) }, Ok(1));
                }
            }
        });
    });
}

#[test]
fn a_recall_succeeds_where_the_program_limits_what_the_kernel_holds_unsent() {
    within(Duration::from_secs(20), "a recall with a limit", || {
        let listener = listener();
        // The window is smaller than what the ring will hold.
        set_option(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 2048);
        let (a, b) = connected_to(&listener);
        set_option(a.fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 1024);
        warm(&a, &b);
        let mut buffer = vec![0u8; 65536];
        let sent = 12 << 10;
        assert_eq!(a.send(&(0..sent).map(byte).collect::<Vec<u8>>()), sent as isize);
        assert!(a.on_rings());
        std::thread::scope(|scope| {
            // A writer that waits for an answer is asked where it sleeps.
            scope.spawn(|| assert_eq!(a.recv(&mut [0]), 1));
            rest();
            lifecycle::leave(b.h, b.fd, Reason::Stdio);
            let mut got = 0;
            while got < sent {
                let n = recv_past(&b, &mut buffer);
                assert!(n > 0, "{n} behind {got} of {sent} bytes");
                let n = n as usize;
                assert!(buffer[..n].iter().enumerate().all(|(i, b)| *b == byte(got + i)), "behind {got} bytes");
                got += n;
            }
            // SAFETY: one readable byte.
            assert_eq!(unsafe { sys::sendto(b.fd, b"!".as_ptr(), 1, 0, std::ptr::null(), 0) }, Ok(1));
        });
        let (mut limit, mut len) = (0 as libc::c_int, 4u32);
        let place = (&raw mut limit).cast();
        // SAFETY: value and length are writable.
        unsafe { sys::getsockopt(a.fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, place, &mut len) }.expect("a limit");
        assert_eq!(limit, 1024, "what the program has set is so again");
    });
}

/// An end leaves with bytes unread in its ring while the peer, which has sent them, sleeps in `wait`.
fn leave_while_the_peer_sleeps(peer: &End, end: &End, wait: impl FnOnce() + Send) {
    assert_eq!(peer.send(b"unread"), 6);
    std::thread::scope(|scope| {
        scope.spawn(wait);
        std::thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        lifecycle::leave(end.h, end.fd, Reason::Stdio);
        assert!(begun.elapsed() < Duration::from_millis(700), "it took {:?}", begun.elapsed());
        assert!(fdtable::leads_to(end.fd, end.h), "no relay has taken its place");
        let mut buffer = [0; 16];
        assert_eq!(recv_past(end, &mut buffer), 6);
        // Past Ropeway from here on.
        // SAFETY: one readable byte.
        assert_eq!(unsafe { sys::sendto(end.fd, b"!".as_ptr(), 1, 0, std::ptr::null(), 0) }, Ok(1));
    });
}

#[test]
fn a_peer_that_waits_on_a_set_is_asked_where_it_sleeps() {
    within(Duration::from_secs(20), "a recall", || {
        let set = Set::new();
        let (b, a) = warm_pair(&set, IN, 7);
        leave_while_the_peer_sleeps(&a, &b, || assert_eq!(set.wait(10_000), [(IN, 7)]));
    });
}

#[test]
fn a_peer_that_polls_is_asked_where_it_sleeps() {
    within(Duration::from_secs(20), "a recall", || {
        let (a, b) = connected();
        warm(&a, &b);
        leave_while_the_peer_sleeps(&a, &b, || assert_eq!(poll_on(&[(a.fd, libc::POLLIN)], 10_000).1, [libc::POLLIN]));
    });
}

/// A connection whose first end sends over a ring and has not received anything yet, so that its reader is on TCP.
fn on_one_ring() -> (End, End) {
    let (a, b) = connected();
    while a.h.sock().tx.phase.load(Ordering::Relaxed) != TX_RING {
        assert_eq!(a.send(b"w"), 1);
        assert_eq!(b.recv(&mut [0]), 1);
    }
    assert_eq!(a.h.sock().rx.phase.load(Ordering::Relaxed), RX_TCP);
    (a, b)
}

#[test]
fn a_peer_that_waits_on_a_set_for_its_first_byte_is_asked_where_it_sleeps() {
    within(Duration::from_secs(20), "a recall", || {
        let (a, b) = on_one_ring();
        let set = Set::new();
        a.nonblocking(true);
        set.add(&a, IN, 7);
        leave_while_the_peer_sleeps(&a, &b, || assert_eq!(set.wait(10_000), [(IN, 7)]));
    });
}

#[test]
fn a_peer_that_polls_for_its_first_byte_is_asked_where_it_sleeps() {
    within(Duration::from_secs(20), "a recall", || {
        let (a, b) = on_one_ring();
        leave_while_the_peer_sleeps(&a, &b, || assert_eq!(poll_on(&[(a.fd, libc::POLLIN)], 10_000).1, [libc::POLLIN]));
    });
}

#[test]
fn peers_that_do_not_answer_are_waited_for_once() {
    within(Duration::from_secs(30), "recalls", || {
        let pairs: Vec<(End, End)> = (0..4).map(|_| connected()).collect();
        for (a, b) in &pairs {
            warm(a, b);
            assert_eq!(a.send(b"unread"), 6);
        }
        let (begun, patience) = (Instant::now(), handover::Patience::begin());
        for (_, b) in &pairs {
            lifecycle::leave_among(b.h, b.fd, Reason::Stdio, &patience);
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
        for (_, b) in &pairs {
            assert_eq!(recv_past(b, &mut [0; 16]), 6);
        }
    });
}

/// Connections whose second end leaves with a byte unread while the first says that it answers, and does not. How long it took.
fn leave_silent_peers(pairs: &[(End, End)], then: impl Fn(&End) + Sync) -> Duration {
    for (a, b) in pairs {
        warm(a, b);
        assert_eq!(a.send(b"x"), 1);
    }
    let (begun, patience) = (Instant::now(), handover::Patience::begin());
    for (a, b) in pairs {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (ring, epoch) = {
                    let mut tx = handover::lock_tx(a.h.sock());
                    let (ring, p) = tx.ring().expect("on its ring");
                    (ring, p.epoch)
                };
                while !ring.accept_recall(epoch) {
                    std::thread::yield_now();
                }
                then(a);
            });
            lifecycle::leave_among(b.h, b.fd, Reason::Stdio, &patience);
        });
        assert_eq!(recv_past(b, &mut [0; 16]), -(libc::ECONNRESET as isize), "nobody knows what is where");
    }
    begun.elapsed()
}

#[test]
fn peers_that_begin_an_answer_and_do_not_give_it_are_waited_for_once() {
    within(Duration::from_secs(30), "recalls", || {
        let pairs: Vec<(End, End)> = (0..4).map(|_| connected()).collect();
        let took = leave_silent_peers(&pairs, |_| ());
        assert!(took < Duration::from_millis(7500), "it took {took:?}");
    });
}

#[test]
fn a_peer_that_begins_an_answer_and_ends_is_not_waited_for() {
    within(Duration::from_secs(30), "a recall", || {
        let end = |a: &End| {
            sys::shutdown(a.fd, libc::SHUT_WR).expect("it is connected");
        };
        let took = leave_silent_peers(&[connected()], end);
        assert!(took < Duration::from_secs(2), "it took {took:?}");
    });
}

#[test]
fn a_relay_that_cannot_be_made_ends_in_an_error_and_not_in_an_early_end() {
    ropeway_testkit::need_root!();
    within(Duration::from_secs(40), "a recall without a relay", || {
        let (a, b, sent) = full();
        // This thread becomes another user, who may have one process more than this: that in between.
        const NOBODY_ELSE: usize = 54321;
        let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limits are valid. Other threads stay what they are, and root has no limit.
        unsafe {
            sys::prlimit(0, libc::RLIMIT_NPROC, std::ptr::null(), &mut limit).expect("a limit");
            limit.rlim_cur = 2;
            sys::prlimit(0, libc::RLIMIT_NPROC, &limit, std::ptr::null_mut()).expect("a limit");
            assert_eq!(sys::syscall6(libc::SYS_setresuid, NOBODY_ELSE, NOBODY_ELSE, NOBODY_ELSE, 0, 0, 0), 0);
        }
        // The writer does not answer: it is asked in vain.
        lifecycle::leave(b.h, b.fd, Reason::Stdio);
        assert_eq!(b.h.sock().expected.load(Ordering::Relaxed), 0, "nobody is expected");
        let mut buffer = vec![0u8; 65536];
        let mut got = 0;
        let last = loop {
            match recv_past(&b, &mut buffer) {
                n if n > 0 => got += n as usize,
                n => break n,
            }
        };
        assert!(got < sent);
        assert_eq!(last, -(libc::ECONNRESET as isize), "behind {got} of {sent} bytes");
        drop(a);
    });
}
