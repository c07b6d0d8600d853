//! Descriptors that are being closed, or replaced by `dup2`, while others make calls on them.

use super::*;

#[test]
fn a_number_that_is_being_closed_takes_no_bytes() {
    let _alone = alone();
    within(LIMIT, "closing", || {
        let (a, b) = connected();
        warm(&a, &b);
        let (h, fd) = (a.h, a.fd);
        let closing = lifecycle::closing(fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(fd).expect("marked");
        assert!(fdtable::is_closing(fd, h) && fdtable::sock(fd).is_none());
        // As by a signal handler in the middle of it: the close goes on only when the handler has returned.
        assert_eq!(lifecycle::once_closed(fd, marked), Some(h));
        assert_eq!([send_on(h, fd, b"lost", 0), receive(h, fd)], [-(libc::EBADF as isize); 2]);
        drop(closing);
        assert_eq!(fdtable::lookup(fd), None);
        drop(a);
        assert_eq!(b.recv(&mut [0; 8]), 0, "the end, and nothing before it");
    });
}

#[test]
fn whoever_has_the_number_of_a_close_that_lingers_is_not_held_up() {
    let _alone = alone();
    within(LIMIT, "closing", || {
        let (a, b) = connected();
        warm(&a, &b);
        let (pipe, _writer) = std::io::pipe().expect("pipe");
        let closing = lifecycle::closing(a.fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(a.fd).expect("marked");
        sys::dup2(pipe.as_raw_fd(), a.fd).expect("dup2");
        assert_eq!(lifecycle::once_closed(a.fd, marked), None);
        assert_eq!(fdtable::lookup(a.fd), None, "nor looked at again");
        drop(closing);
        assert_eq!(b.recv(&mut [0; 8]), 0);
    });
}

#[test]
fn a_call_on_a_number_that_dup2_is_replacing_waits_for_whoever_has_it_next() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let ((a, b), (next, other)) = (connected(), connected());
        warm(&a, &b);
        warm(&next, &other);
        let closing = lifecycle::replacing(a.fd, next.fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(a.fd).expect("marked");
        std::thread::scope(|scope| {
            let found = scope.spawn(|| lifecycle::once_closed(a.fd, marked));
            std::thread::sleep(Duration::from_millis(2));
            assert!(!found.is_finished());
            sys::dup2(next.fd, a.fd).expect("dup2");
            lifecycle::duplicated(next.fd, a.fd);
            assert_eq!(found.join().expect("the caller"), Some(next.h));
        });
        drop(closing);
        assert_eq!(fdtable::sock(a.fd), Some(next.h));
    });
}

#[test]
fn whoever_dup2_has_put_behind_a_number_has_it_while_the_one_before_lingers() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let ((a, b), (next, other)) = (connected(), connected());
        warm(&a, &b);
        warm(&next, &other);
        let closing = lifecycle::replacing(a.fd, next.fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(a.fd).expect("marked");
        sys::dup2(next.fd, a.fd).expect("dup2");
        assert_eq!(lifecycle::once_closed(a.fd, marked), Some(next.h));
        assert!(fdtable::leads_to(a.fd, next.h));
        // The system call comes back.
        lifecycle::duplicated(next.fd, a.fd);
        drop(closing);
        assert_eq!((fdtable::sock(a.fd), descriptors(next.h)), (Some(next.h), 2));
        drop(a);
        assert_eq!((fdtable::sock(next.fd), descriptors(next.h)), (Some(next.h), 1));
        assert_eq!(b.recv(&mut [0; 8]), 0);
    });
}

#[test]
fn whoever_has_the_number_when_a_dup2_that_lingers_comes_back_keeps_it() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let ((a, _b), (next, _other), (third, _peer)) = (connected(), connected(), connected());
        let number = a.fd;
        let replacing = lifecycle::replacing(number, next.fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(number).expect("marked");
        sys::dup2(next.fd, number).expect("dup2");
        assert_eq!(lifecycle::once_closed(number, marked), Some(next.h));
        // Another thread closes it and gets it again, for another connection.
        let closing = lifecycle::closing(number).expect("a descriptor of the program");
        sys::close(number).expect("close");
        drop(closing);
        sys::dup2(third.fd, number).expect("dup2");
        lifecycle::duplicated(third.fd, number);
        // The system call comes back.
        lifecycle::duplicated(next.fd, number);
        drop(replacing);
        assert_eq!(fdtable::sock(number), Some(third.h));
        assert_eq!([next.h, third.h].map(descriptors), [1, 2]);
    });
}

#[test]
fn waits_on_a_number_see_whoever_dup2_has_put_there_while_the_one_before_lingers() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        for by_a_set in [false, true] {
            let ((a, b), (next, other)) = (connected(), connected());
            warm(&a, &b);
            warm(&next, &other);
            let closing = lifecycle::replacing(a.fd, next.fd).expect("a descriptor of the program");
            sys::dup2(next.fd, a.fd).expect("dup2");
            let set = Set::new();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    if by_a_set {
                        set.add(&a, IN, 7);
                        set.wait(10_000) == [(IN, 7)]
                    } else {
                        poll_on(&[(a.fd, libc::POLLIN)], 10_000).1 == [libc::POLLIN]
                    }
                });
                rest();
                assert_eq!(other.send(b"x"), 1);
                assert!(waits.join().expect("the one that waits"));
            });
            assert!(next.on_rings());
            lifecycle::duplicated(next.fd, a.fd);
            drop(closing);
            drop(b);
        }
    });
}

#[test]
fn a_call_that_comes_when_dup2_is_over_is_one_on_whoever_has_the_number_then() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        for was_on_rings in [false, true] {
            let ((a, b), (next, other)) = (connected(), connected());
            warm(&next, &other);
            if was_on_rings {
                warm(&a, &b);
            }
            give_to(&a, &next);
            assert_eq!(other.send(b"question"), 8);
            let mut bytes = [0; 8];
            assert_eq!((recv_on(a.h, a.fd, &mut bytes, 0), &bytes), (8, b"question"));
            assert_eq!(send_on(a.h, a.fd, b"answer", 0), 6);
            assert_eq!((other.recv(&mut bytes), &bytes[..6]), (6, &b"answer"[..]));
            assert_eq!(send_file_on(a.h, a.fd, 8), 8);
            assert_eq!((other.recv(&mut bytes), &bytes), (8, &[7; 8]));
            assert!(next.on_rings() && other.on_rings());
            assert_eq!(b.recv(&mut bytes), 0);
        }
    });
}

#[test]
fn a_call_that_meets_the_mark_of_dup2_late_waits_for_whoever_has_the_number_then() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let ((a, b), (next, other)) = (connected(), connected());
        warm(&next, &other);
        let replacing = lifecycle::replacing(a.fd, next.fd).expect("a descriptor of the program");
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| send_on(a.h, a.fd, b"answer", 0));
            std::thread::sleep(Duration::from_millis(2));
            assert!(!sends.is_finished());
            sys::dup2(next.fd, a.fd).expect("dup2");
            lifecycle::duplicated(next.fd, a.fd);
            assert_eq!(sends.join().expect("the writer"), 6);
        });
        drop(replacing);
        assert_eq!(other.take(), 6);
        assert!(next.on_rings());
        assert_eq!(b.recv(&mut [0; 8]), 0);
    });
}

#[test]
fn a_call_in_the_kernel_that_comes_when_dup2_is_over_passes_no_ring() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let ((a, b), (next, other)) = (connected(), connected());
        warm(&next, &other);
        let (begun, over) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| {
                let byte = b"x";
                let v = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
                // SAFETY: one entry with a readable byte.
                unsafe {
                    send::send(a.h, a.fd, &v, 1, 0, || {
                        begun.wait();
                        over.wait();
                        native(sys::sendto(a.fd, byte.as_ptr(), 1, 0, std::ptr::null(), 0))
                    })
                }
            });
            begun.wait();
            give_to(&a, &next);
            over.wait();
            assert_eq!(sends.join().expect("the writer"), 1);
        });
        let mut bytes = [0; 5];
        assert_eq!((next.send(b"next"), other.recv_flags(&mut bytes, libc::MSG_WAITALL)), (4, 5));
        assert_eq!(&bytes, b"xnext");
        assert_eq!((other.send(b"back"), next.recv(&mut bytes)), (4, 4));
        assert!(!next.on_rings());
        drop(b);
    });
}

#[test]
fn a_number_is_not_marked_while_dup2_waits_for_the_peer() {
    let _alone = alone();
    within(LIMIT, "replacing", || {
        let (a, b) = connected();
        warm(&a, &b);
        let other = sys::fcntl(a.fd, libc::F_DUPFD, 0).expect("dup") as i32;
        lifecycle::duplicated(a.fd, other);
        let set = Set::new();
        set.add(&a, IN, 1);
        // The registration outlives its number, so the socket leaves Ropeway; the peer does not answer.
        assert_eq!(b.send(b"unread"), 6);
        let replaces = asleep_on(&a, |_, fd| {
            drop(lifecycle::replacing(fd, NOTHING));
            0
        });
        assert!(fdtable::leads_to(a.fd, a.h));
        replaces.join().expect("the thread that replaces");
        assert!(fdtable::lookup(a.fd).is_none());
        drop(lifecycle::closing(other));
        sys::close(other).expect("close");
    });
}

#[test]
fn a_marked_number_keeps_the_record_when_the_last_waiter_leaves() {
    let _alone = alone();
    within(LIMIT, "closing", || {
        let (a, b) = connected();
        warm(&a, &b);
        let reader = asleep_on(&a, receive);
        let closing = lifecycle::closing(a.fd).expect("a descriptor of the program");
        let marked = fdtable::lookup(a.fd).expect("marked");
        b.send(b"last");
        assert_eq!(reader.join().expect("the reader"), 4);
        assert_eq!(lifecycle::once_closed(a.fd, marked), Some(a.h));
        assert!(fdtable::is_closing(a.fd, a.h));
        drop(closing);
        assert!(!a.h.is_current() && fdtable::lookup(a.fd).is_none());
    });
}

#[test]
fn a_marked_number_keeps_the_record_when_processes_look_for_abandoned_ones() {
    let _alone = alone();
    within(LIMIT, "closing", || {
        let ((a, b), other) = (connected(), socket());
        warm(&a, &b);
        let closing = lifecycle::closing(a.fd).expect("a descriptor of the program");
        lifecycle::fork_prepare();
        let child = forked(|| {
            come_and_go(other.as_raw_fd());
            true
        });
        come_and_go(other.as_raw_fd());
        assert!(says_yes(child));
        assert!(a.h.is_current());
        drop(closing);
        assert!(!a.h.is_current());
    });
}

#[test]
fn a_child_forked_while_dup2_replaces_a_number_has_the_number() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        let (a, b) = connected();
        warm(&a, &b);
        lifecycle::fork_prepare();
        let replacing = lifecycle::replacing(a.fd, NOTHING).expect("a descriptor of the program");
        let child = forked(|| is_open(a.fd) && fdtable::lookup(a.fd).is_none() && descriptors(a.h) == 0);
        drop(replacing);
        assert!(says_yes(child));
    });
}

#[test]
fn a_child_forked_while_dup2_replaces_one_number_of_a_socket_follows_it_by_both() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        let (a, b) = connected();
        warm(&a, &b);
        let other = sys::fcntl(a.fd, libc::F_DUPFD, 0).expect("dup") as i32;
        lifecycle::duplicated(a.fd, other);
        lifecycle::fork_prepare();
        let replacing = lifecycle::replacing(a.fd, other).expect("a descriptor of the program");
        let both = [a.fd, other];
        let child =
            forked(|| both.iter().all(|fd| is_open(*fd) && fdtable::leads_to(*fd, a.h)) && descriptors(a.h) == 2);
        sys::dup2(other, a.fd).expect("dup2");
        let same = forked(|| both.iter().all(|fd| is_open(*fd)));
        drop(replacing);
        assert!(says_yes(child) && says_yes(same));
        drop(lifecycle::closing(other));
        sys::close(other).expect("close");
    });
}

#[test]
fn a_child_forked_while_a_number_is_closed_does_not_own_the_socket() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        let (a, b) = connected();
        warm(&a, &b);
        lifecycle::fork_prepare();
        // As far as another thread's `closing` may have come.
        fdtable::begin_closing(a.fd, fdtable::Kind::Closing).expect("followed");
        let owns = || a.h.sock().owners.iter().any(|owner| owner.load(Ordering::Acquire) == process::pid());
        let child = forked(|| !is_open(a.fd) && descriptors(a.h) == 0 && !owns());
        assert!(says_yes(child));
        fdtable::enter(a.fd, a.h);
    });
}
