//! Hashes of what came first over TCP, by which the two ends of a connection are known to belong together.

use crate::support::{End, connected, native, on_tcp, warm, within};
use ropeway_shm::sys;
use ropeway_socket::reason::Reason;
use ropeway_socket::{handover, recv};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn what_is_received_beside_another_receive_behind_a_ring_is_not_hashed() {
    within(Duration::from_secs(20), "a receive", || {
        let (a, b) = connected();
        warm(&a, &b);
        assert_eq!(a.send(b"ring"), 4);
        handover::lock_tx(a.h.sock()).demote(a.h, a.fd, Reason::Off);
        assert_eq!(a.send(b"over TCP"), 8);
        let rx = &b.h.sock().rx;
        let before = rx.prefix.snapshot();
        // As a thread in the kernel's receive would have it, which may have bytes that come before these.
        rx.inflight.fetch_add(1, Ordering::AcqRel);
        assert_eq!(b.recv_flags(&mut [0; 12], libc::MSG_WAITALL), 12);
        rx.inflight.fetch_sub(1, Ordering::AcqRel);
        assert_eq!(rx.prefix.snapshot(), before);
        assert!(!rx.prefix.wants(), "nothing that comes later is hashed either");
    });
}

/// Receives two bytes, and does something before and after the call in the kernel.
fn receive_two(end: &End, before: impl Fn(), after: impl Fn()) {
    let mut bytes = [0u8; 2];
    let p = bytes.as_mut_ptr();
    let v = libc::iovec { iov_base: p.cast(), iov_len: bytes.len() };
    // SAFETY: one entry that describes `bytes`; the closure makes the same call on the kernel.
    let got = unsafe {
        recv::recv(end.h, end.fd, &v, 1, 0, || {
            before();
            let got = native(sys::recvfrom(end.fd, p, 2, 0, ptr::null_mut(), ptr::null_mut()));
            after();
            got
        })
    };
    assert_eq!(got, 2);
}

#[test]
fn what_two_receives_took_is_not_hashed_in_the_order_in_which_they_end() {
    within(Duration::from_secs(20), "two receives", || {
        let (a, b) = on_tcp();
        assert_eq!(a.send(b"abcd"), 4);
        let (began, first_began) = channel();
        let (took, second_took) = channel();
        let (ended, first_ended) = channel();
        std::thread::scope(|scope| {
            let b = &b;
            scope.spawn(move || {
                let wait_for_the_second = || {
                    began.send(()).unwrap();
                    second_took.recv().unwrap();
                };
                receive_two(b, wait_for_the_second, || ());
                ended.send(()).unwrap();
            });
            scope.spawn(move || {
                first_began.recv().unwrap();
                let let_the_first_end = || {
                    took.send(()).unwrap();
                    first_ended.recv().unwrap();
                };
                receive_two(b, || (), let_the_first_end);
            });
        });
        assert_eq!(b.h.sock().rx.prefix.snapshot().1, 0);
    });
}
