//! What a reader leaves behind that dies while it holds the lock of its direction (handover, clause 7.2).

use crate::support::{End, connected, rest, within};
use ropeway_shm::lock::holder;
use ropeway_shm::sys;
use ropeway_shm::table::{RX_ATTACHED, RX_DRAIN, Sock, TX_RING};
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
