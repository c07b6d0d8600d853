//! Hashes of what came first over TCP, by which the two ends of a connection are known to belong together.

use crate::support::{connected, warm, within};
use ropeway_socket::handover;
use ropeway_socket::reason::Reason;
use std::sync::atomic::Ordering;
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
