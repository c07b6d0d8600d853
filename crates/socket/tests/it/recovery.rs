//! What a reader leaves behind that dies while it holds the lock of its direction (handover, clause 7.2).

use crate::support::{End, OUT, Set, connected, rest, warm, within};
use ropeway_shm::lock::holder;
use ropeway_shm::ring::{Consumer, Ring};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_LEFT_UNREAD, RX_ATTACHED, RX_DRAIN, RX_TCP, Sock, TX_RING};
use ropeway_socket::handover;
use ropeway_socket::reason::Reason;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs `f` in a thread that ends with the lock of the incoming direction in its hands.
fn die_over(end: &End, f: impl FnOnce(&Sock) + Send) {
    let h = end.h;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let s = h.sock();
            s.rx.lock.lock(holder(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32));
            f(s);
        });
    });
}

#[test]
fn an_offer_that_it_was_about_to_take() {
    within(Duration::from_secs(20), "about to take an offer", || {
        let (a, b) = attached();
        let h = a.h;
        let writer = std::thread::spawn(move || {
            let s = h.sock();
            s.tx.lock.lock(holder(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32));
            // SAFETY: under the lock.
            unsafe { s.producer() }.epoch = 1;
        });
        writer.join().expect("the writer");
        switch(&a);
        assert_eq!(all(&b), b"bcdefghi");
    });
}

#[test]
fn a_switch_that_it_made_and_did_not_note() {
    within(Duration::from_secs(20), "made a switch", || {
        let (a, _b) = attached();
        a.nonblocking(true);
        let set = Set::new();
        set.add(&a, OUT, 1);
        assert_eq!(set.wait(0), [(OUT, 1)]);
        let h = a.h;
        let writer = std::thread::spawn(move || {
            let s = h.sock();
            s.tx.lock.lock(holder(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32));
            s.set(FLAG_LEFT_UNREAD);
            let ring = handover::pair(s).expect("a pair").outgoing();
            let die = || std::panic::resume_unwind(Box::new("between the record and its note"));
            // SAFETY: under the lock.
            let _ = ring.switch(unsafe { s.producer() }, 1, s.tx.tcp_bytes.load(Ordering::Relaxed), die);
        });
        assert!(writer.join().is_err());
        drop(handover::lock_tx(a.h.sock()));
        assert!(!a.h.sock().has(FLAG_LEFT_UNREAD));
        while a.send(&[0; 4096]) > 0 {}
        assert_eq!(set.wait(0), [], "the ring is full");
    });
}

/// A connection whose second end has attached and read the first of six bytes that came over TCP.
fn attached() -> (End, End) {
    let (a, b) = connected();
    assert_eq!(a.send(b"abcdef"), 6);
    rest();
    let mut byte = [0u8; 1];
    while b.h.sock().rx.phase.load(Ordering::Relaxed) != RX_ATTACHED {
        assert_eq!(b.recv_flags(&mut byte, libc::MSG_PEEK), 1);
    }
    assert_eq!(b.recv(&mut byte), 1);
    (a, b)
}

/// The first end goes on over the ring.
fn switch(a: &End) {
    assert_eq!(a.send(b"ghi"), 3);
    assert_eq!(a.h.sock().tx.phase.load(Ordering::Relaxed), TX_RING);
}

fn all(end: &End) -> Vec<u8> {
    let (mut bytes, mut got) = ([0u8; 64], 0);
    loop {
        match end.recv_flags(&mut bytes[got..], libc::MSG_DONTWAIT) {
            n if n > 0 => got += n as usize,
            n => {
                assert_eq!(n, -(libc::EAGAIN as isize));
                return bytes[..got].to_vec();
            }
        }
    }
}

#[test]
fn bytes_that_it_took_and_did_not_count() {
    within(Duration::from_secs(20), "taken and not counted", || {
        let (a, b) = attached();
        let fd = b.fd;
        // SAFETY: with MSG_TRUNC, TCP drops bytes without writing to the buffer.
        let discard = || unsafe {
            sys::recvfrom(fd, std::ptr::null_mut(), 3, libc::MSG_TRUNC, std::ptr::null_mut(), std::ptr::null_mut())
        };
        die_over(&b, |_| assert_eq!(discard(), Ok(3)));
        switch(&a);
        assert_eq!(all(&b), b"efghi");
        assert_eq!(a.send(b"jkl"), 3);
        assert_eq!(all(&b), b"jkl");
    });
}

#[test]
fn a_switch_that_it_saw_and_did_not_pass() {
    within(Duration::from_secs(20), "seen and not passed", || {
        let (a, b) = attached();
        switch(&a);
        die_over(&b, |s| {
            s.rx.switch_at.store(6, Ordering::Relaxed);
            s.rx.phase.store(RX_DRAIN, Ordering::Release);
        });
        assert_eq!(all(&b), b"bcdefghi");
    });
}

#[test]
fn a_switch_that_it_had_not_seen() {
    within(Duration::from_secs(20), "not seen", || {
        let (a, b) = attached();
        switch(&a);
        die_over(&b, |_| {});
        assert_eq!(all(&b), b"bcdefghi");
    });
}

/// A connection over rings, on which the second end has read half of the first of three messages. It is for two processes, of which
/// one dies while it asks for the rest: what it leaves at its death is what `f` does with its ring.
fn dead_over_a_recall(f: impl FnOnce(&End, &Sock, &Ring, &mut Consumer) + Send) -> (End, End) {
    let (a, b) = connected();
    warm(&a, &b);
    for message in [b"AAAAAAAA", b"BBBBBBBB", b"CCCCCCCC"] {
        assert_eq!(a.send(message), 8);
    }
    assert_eq!(b.recv(&mut [0; 4]), 4);
    handover::pin(b.h.sock(), Reason::Stdio);
    die_over(&b, |s| {
        let ring = handover::pair(s).expect("on rings").incoming();
        // SAFETY: under the lock, and there is no other reference.
        let c = unsafe { s.consumer() };
        assert!(ring.close_reader(c));
        s.rx.recalling.store(c.epoch, Ordering::Release);
        f(&a, s, &ring, c);
    });
    (a, b)
}

const REST: &[u8] = b"AAAABBBBBBBBCCCCCCCC";

/// What is sent from here on comes behind what is unread, of which nothing is lost and nothing comes twice.
fn goes_on((a, b): (End, End)) {
    let mut got = vec![0; 2];
    assert_eq!(b.recv(&mut got), 2);
    assert_eq!(a.send(b"later"), 5);
    rest();
    got.append(&mut all(&b));
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&[REST, b"later"].concat()));
    assert_eq!(b.h.sock().rx.recalling.load(Ordering::Relaxed), 0);
}

#[test]
fn a_rest_that_it_was_about_to_ask_for() {
    within(Duration::from_secs(20), "not asked yet", || goes_on(dead_over_a_recall(|_, _, _, _| {})));
}

#[test]
fn a_rest_that_it_asked_for_and_nobody_sent() {
    within(Duration::from_secs(20), "asked", || goes_on(dead_over_a_recall(|_, _, ring, c| ring.recall(c))));
}

#[test]
fn a_rest_that_it_no_longer_asked_for() {
    within(Duration::from_secs(20), "withdrawn", || {
        goes_on(dead_over_a_recall(|_, _, ring, c| {
            ring.recall(c);
            assert!(ring.withdraw_recall(c.epoch));
        }));
    });
}

#[test]
fn a_rest_that_the_writer_was_not_asked_for_before_it_left() {
    within(Duration::from_secs(20), "refused", || {
        goes_on(dead_over_a_recall(|a, _, ring, c| {
            handover::lock_tx(a.h.sock()).closed_by_reader(a.h, a.fd);
            ring.recall(c);
        }));
    });
}

/// Asks, and the writer answers.
fn answered(a: &End, ring: &Ring, c: &mut Consumer) {
    ring.recall(c);
    handover::service_recall(a.h.sock(), a.h, a.fd);
    assert_eq!(ring.recalled(), c.epoch);
}

#[test]
fn a_rest_that_the_writer_has_sent() {
    within(Duration::from_secs(20), "answered", || goes_on(dead_over_a_recall(|a, _, ring, c| answered(a, ring, c))));
}

#[test]
fn a_rest_that_the_writer_has_sent_and_it_had_begun_to_pass_over() {
    within(Duration::from_secs(20), "passed over in part", || {
        goes_on(dead_over_a_recall(|a, _, ring, c| {
            answered(a, ring, c);
            *c = Consumer::starting_at(c.at, c.epoch);
        }));
    });
}

#[test]
fn a_rest_that_the_writer_has_sent_and_it_had_passed_over() {
    within(Duration::from_secs(20), "passed over", || {
        goes_on(dead_over_a_recall(|a, s, ring, c| {
            answered(a, ring, c);
            ring.skip_unread(c);
            s.rx.phase.store(RX_TCP, Ordering::Release);
        }));
    });
}

/// How much of it is on TCP nobody can tell.
#[test]
fn a_rest_that_the_writer_had_begun_to_send_when_it_died_resets_the_connection() {
    within(Duration::from_secs(20), "accepted", || {
        let (a, b) = dead_over_a_recall(|a, _, ring, c| {
            ring.recall(c);
            assert!(ring.accept_recall(c.epoch));
            // What whoever has the socket with the dead writer does next.
            handover::lock_tx(a.h.sock()).closed_by_reader(a.h, a.fd);
        });
        assert_eq!(b.recv(&mut [0; 8]), -(libc::ECONNRESET as isize));
        drop(a);
    });
}

#[test]
fn a_connection_that_it_gave_up_and_had_not_reset_yet_is_reset() {
    within(Duration::from_secs(20), "given up", || {
        let (a, b) = dead_over_a_recall(|a, s, ring, c| {
            ring.recall(c);
            assert!(ring.accept_recall(c.epoch));
            handover::lock_tx(a.h.sock()).closed_by_reader(a.h, a.fd);
            s.rx.phase.store(RX_TCP, Ordering::Release);
        });
        assert_eq!(b.recv(&mut [0; 8]), -(libc::ECONNRESET as isize));
        drop(a);
    });
}
