//! Receives with a time-out that begin on one carrier and end on another.

use crate::support::{End, connected, warm, within};
use ropeway_shm::sys;
use ropeway_shm::table::RX_TCP;
use ropeway_socket::handover;
use ropeway_socket::reason::Reason;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(2);

/// An end that waits for `TIMEOUT` at most, and its peer.
fn timed() -> (End, End) {
    let (a, b) = connected();
    let timeout = libc::timeval { tv_sec: TIMEOUT.as_secs() as i64, tv_usec: 0 };
    let len = size_of::<libc::timeval>() as u32;
    // SAFETY: `timeout` is valid for its length.
    unsafe { sys::setsockopt(b.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const timeout).cast(), len) }
        .expect("a time-out");
    warm(&a, &b);
    (a, b)
}

/// Receives with `flags` on an end whose peer goes back to TCP after a while, and does something `then`: the answer, the bytes, and
/// how long it took.
fn receive_across(flags: i32, ends_after: Duration, then: impl Fn(&End) + Send + Sync) -> (isize, [u8; 8], Duration) {
    let (a, b) = timed();
    let (mut bytes, begun) = ([0; 8], Instant::now());
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(ends_after);
            handover::lock_tx(a.h.sock()).demote(a.h, a.fd, Reason::Off);
            std::thread::sleep(Duration::from_millis(100));
            then(&a);
        });
        b.recv_flags(&mut bytes, flags)
    });
    let took = begun.elapsed();
    assert_eq!(b.h.sock().rx.phase.load(Ordering::Relaxed), RX_TCP, "it has seen the end of its ring");
    (answer, bytes, took)
}

fn for_each_at_once(flags: &[i32], test: impl Fn(i32) + Sync) {
    std::thread::scope(|scope| flags.iter().for_each(|flags| drop(scope.spawn(|| test(*flags)))));
}

#[test]
fn a_timeout_goes_on_where_the_ring_ends() {
    within(Duration::from_secs(20), "receives", || {
        for_each_at_once(&[0, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC], |flags| {
            let ends_after = TIMEOUT * 3 / 4;
            let (answer, _, took) = receive_across(flags, ends_after, |_| ());
            assert_eq!(answer, -(libc::EAGAIN as isize), "with flags {flags:#x}");
            assert!((TIMEOUT..TIMEOUT + ends_after).contains(&took), "with flags {flags:#x} it took {took:?}");
        });
    });
}

#[test]
fn what_comes_over_tcp_before_the_timeout_is_received() {
    within(Duration::from_secs(20), "receives", || {
        for_each_at_once(&[0, libc::MSG_PEEK, libc::MSG_WAITALL], |flags| {
            let ends_after = Duration::from_millis(300);
            let send = |a: &End| assert_eq!(a.send(b"12345678"), 8);
            let (answer, bytes, _) = receive_across(flags, ends_after, send);
            assert_eq!((answer, &bytes), (8, b"12345678"), "with flags {flags:#x}");
            let end = |a: &End| assert_eq!(a.shutdown(libc::SHUT_WR), 0);
            assert_eq!(receive_across(flags, ends_after, end).0, 0, "with flags {flags:#x}");
        });
    });
}
