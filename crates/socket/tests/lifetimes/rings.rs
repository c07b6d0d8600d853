//! Mapped rings that another thread gives back.

use super::*;

/// Closes one end of a connection on rings beside a thread that calls on it, at a random moment. `shared`: another process
/// has the socket, too.
fn close_beside(shared: bool, call: fn(Handle, i32) -> isize, other: fn(&End)) {
    let mut draw = first_draw();
    for _ in 0..ROUNDS {
        let after = next_delay(&mut draw, Duration::from_micros(20));
        let (a, b) = connected();
        warm(&a, &b);
        let (h, fd) = (a.h, a.fd);
        let s = h.sock();
        s.expected.store(shared as u64, Ordering::Release);
        let calls = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while call(h, fd) > 0 {
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
            while calls.load(Ordering::Relaxed) == 0 {
                other(&b);
            }
            let start = Instant::now();
            while start.elapsed() < after {
                other(&b);
            }
            drop(a);
            drop(b);
        });
        if shared {
            s.expected.store(0, Ordering::Release);
        }
    }
}

fn close_beside_a_receive(shared: bool) {
    let _alone = alone();
    within(LIMIT, "closing beside a receive", move || {
        close_beside(shared, receive, |b| {
            b.send_flags(b"x", libc::MSG_DONTWAIT);
        });
    });
}

fn close_beside_a_send(shared: bool) {
    let _alone = alone();
    within(LIMIT, "closing beside a send", move || {
        close_beside(
            shared,
            |h, fd| send_on(h, fd, &[7; 5000], 0),
            |b| {
                b.recv_flags(&mut [0; 5000], libc::MSG_DONTWAIT);
            },
        );
    });
}

#[test]
fn closing_beside_a_receive_that_begins_to_wait_leaves_it_no_unmapped_ring() {
    close_beside_a_receive(false);
}

#[test]
fn closing_a_shared_socket_beside_a_receive_that_begins_to_wait_leaves_it_no_unmapped_ring() {
    close_beside_a_receive(true);
}

#[test]
fn closing_beside_a_send_that_begins_to_wait_leaves_it_no_unmapped_ring() {
    close_beside_a_send(false);
}

#[test]
fn closing_a_shared_socket_beside_a_send_that_begins_to_wait_leaves_it_no_unmapped_ring() {
    close_beside_a_send(true);
}

/// Closes one end of a connection on rings that another process has, too, and makes a call of a thread that had looked the
/// descriptor up before. The rings, which are unmapped here, go on there.
fn close_shared_before(call: impl FnOnce(Handle, i32) + Send + 'static) {
    let _alone = alone();
    within(LIMIT, "a late call", || {
        let (a, b) = connected();
        warm(&a, &b);
        assert_eq!(b.send(b"unread"), 6);
        let (h, fd) = (a.h, a.fd);
        let other = h.sock().owners.iter().find(|owner| owner.load(Ordering::Acquire) == 0).expect("a free place");
        other.store(std::os::unix::process::parent_id(), Ordering::Release);
        let of_the_other_process = sys::duplicate_high(fd).expect("dup");
        drop(a);
        call(h, fd);
        assert_eq!(b.send(b"more"), 4);
        assert!(b.on_rings());
        other.store(0, Ordering::Release);
        sys::close(of_the_other_process).expect("close");
    });
}

#[test]
fn a_thread_that_takes_a_closed_socket_to_tcp_touches_no_unmapped_ring() {
    close_shared_before(|h, fd| lifecycle::pin(h, fd, Reason::UnsupportedOption));
}

#[test]
fn a_thread_that_takes_a_closed_socket_out_of_ropeway_touches_no_unmapped_ring() {
    close_shared_before(|h, fd| lifecycle::leave(h, fd, Reason::FdPassed));
}

#[test]
fn a_thread_that_passes_a_closed_socket_on_to_the_next_image_touches_no_unmapped_ring() {
    close_shared_before(|h, _| {
        adopt::may_be_inherited(h);
    });
}

#[test]
fn a_thread_that_counts_what_a_closed_socket_has_unread_touches_no_unmapped_ring() {
    close_shared_before(|h, _| assert_eq!(handover::unread(h), 0));
}

#[test]
fn a_thread_that_gives_back_the_left_pair_of_a_closed_socket_touches_no_unmapped_ring() {
    close_shared_before(|h, fd| {
        let s = h.sock();
        let phase = s.rx.phase.swap(RX_ATTACHED, Ordering::AcqRel);
        let pairing = s.pairing.swap(PAIR_LEFT, Ordering::AcqRel);
        assert_eq!(recv_on(h, fd, &mut [0; 8], 0), -(libc::EBADF as isize));
        s.rx.phase.store(phase, Ordering::Release);
        s.pairing.store(pairing, Ordering::Release);
    });
}

#[test]
fn a_thread_that_asks_the_peer_to_take_the_rest_of_a_socket_back_makes_no_relay_once_it_is_closed() {
    let _alone = alone();
    within(LIMIT, "leaving", || {
        let (a, b) = connected();
        warm(&a, &b);
        assert_eq!(b.send(b"unread"), 6);
        let s = a.h.sock();
        // The peer makes no call, and does not answer.
        let leaves = asleep_on(&a, |h, fd| {
            lifecycle::leave(h, fd, Reason::FdPassed);
            0
        });
        drop(a);
        leaves.join().expect("the thread that leaves");
        rest();
        assert!(s.owners.iter().all(|owner| owner.load(Ordering::Acquire) == 0), "no relay owns the socket");
        drop(b);
    });
}

#[test]
fn closing_a_shared_socket_beside_a_send_without_room_that_does_not_wait_leaves_it_no_unmapped_ring() {
    let _alone = alone();
    within(LIMIT, "closing beside a send", || {
        close_beside(
            true,
            |h, fd| match send_on(h, fd, &[7; 5000], libc::MSG_DONTWAIT) {
                n if n == -(libc::EAGAIN as isize) => 1,
                n => n,
            },
            |_| std::hint::spin_loop(),
        );
    });
}
