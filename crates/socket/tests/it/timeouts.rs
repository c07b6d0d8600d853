//! Receives with a time-out that begin on one carrier and end on another.

use crate::support::{End, connected, poll_on, warm, within};
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
    set_option(&b, libc::SO_RCVTIMEO, libc::timeval { tv_sec: TIMEOUT.as_secs() as i64, tv_usec: 0 });
    warm(&a, &b);
    (a, b)
}

fn set_option<T>(end: &End, name: i32, value: T) {
    let len = size_of::<T>() as u32;
    // SAFETY: `value` is valid for its length.
    unsafe { sys::setsockopt(end.fd, libc::SOL_SOCKET, name, (&raw const value).cast(), len) }.expect("an option");
}

/// Leaves times of departure in the socket's error queue, for which the kernel shows `POLLERR` until somebody reads them.
fn fill_error_queue(end: &End) {
    handover::lock_tx(end.h.sock()).demote(end.h, end.fd, Reason::Off);
    set_option(end, libc::SO_TIMESTAMPING, libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_TX_ACK);
    assert_eq!(end.send(b"stamped"), 7);
}

/// Processor time of the calling thread.
fn processor_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) }, 0);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
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

/// Waits with `flags` on an end of which another thread fills the error queue, before the ring ends if it `ends`. `got` bytes come
/// from there in time.
fn wait_beside_error_queue(flags: i32, ends: bool, got: usize) {
    let (a, b) = timed();
    let case = format!("flags {flags:#x}, {got} bytes, the ring ends: {ends}");
    let mut bytes = [0; 8];
    assert_eq!(a.send(&bytes[..got]), got as isize);
    let (begun, used) = (Instant::now(), processor_time());
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            fill_error_queue(&b);
            if ends {
                handover::lock_tx(a.h.sock()).demote(a.h, a.fd, Reason::Off);
            }
        });
        b.recv_flags(&mut bytes, flags)
    });
    let (took, used) = (begun.elapsed(), processor_time() - used);
    assert_eq!(answer, if got > 0 { got as isize } else { -(libc::EAGAIN as isize) }, "{case}");
    assert!((TIMEOUT..TIMEOUT * 2).contains(&took), "{case}: it took {took:?}");
    assert!(used < TIMEOUT / 4, "{case}: {used:?} of processor time");
    let events = libc::POLLIN | libc::POLLRDHUP;
    assert_eq!(poll_on(&[(b.fd, events)], 0).1, [libc::POLLERR], "{case}");
    assert_eq!((a.send(b"more"), b.recv(&mut bytes)), (4, 4), "{case}");
}

#[test]
fn what_stands_in_the_error_queue_ends_no_wait_and_keeps_none_awake() {
    within(Duration::from_secs(20), "receives", || {
        for ends in [true, false] {
            for_each_at_once(&[0, libc::MSG_PEEK], |flags| wait_beside_error_queue(flags, ends, 0));
            for_each_at_once(&[0, 3], |got| wait_beside_error_queue(libc::MSG_WAITALL, ends, got as usize));
        }
    });
}
