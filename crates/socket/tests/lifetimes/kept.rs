//! Calls that go on with a socket whose descriptor is closed.

use super::*;

#[test]
fn a_receive_whose_socket_is_closed_goes_on_over_tcp_when_the_ring_ends() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = connected();
        warm(&a, &b);
        let reader = close_sleeping(a, receive);
        lifecycle::pin(b.h, b.fd, Reason::Off);
        assert_eq!(b.send(b"late"), 4);
        assert_eq!(reader.join().expect("the reader"), 4);
        assert_eq!(b.recv(&mut [0; 8]), 0, "the socket is closed when the call returns");
    });
}

#[test]
fn a_send_whose_socket_is_closed_goes_on_over_tcp_when_the_ring_ends() {
    let _alone = alone();
    within(LIMIT, "sending", || {
        let (a, b) = connected();
        warm(&a, &b);
        for n in [1000, 1] {
            while a.send_flags(&vec![1; n], libc::MSG_DONTWAIT) > 0 {}
        }
        // It goes to TCP by itself, because the reader does not go on.
        let writer = close_sleeping(a, |h, fd| send_on(h, fd, b"late", 0));
        assert_eq!(writer.join().expect("the writer"), 4);
        let mut last = [0; 4];
        let mut bytes = [0; 4096];
        loop {
            match b.recv(&mut bytes) {
                n if n > 0 => last.copy_from_slice(&bytes[n as usize - 4..n as usize]),
                n => break assert_eq!(n, 0),
            }
        }
        assert_eq!(&last, b"late");
    });
}

#[test]
fn a_thread_back_from_its_sleep_takes_a_rest_back_on_the_descriptor_that_close_kept_whoever_has_the_number_now() {
    let _alone = alone();
    within(LIMIT, "a recall", || {
        let (a, b) = connected();
        warm(&a, &b);
        assert_eq!(a.send(&[7; 3000]), 3000);
        let (h, number) = (a.h, a.fd);
        let (next, other) = on_tcp();
        let reader = close_sleeping(a, receive);
        sys::dup2(next.fd, number).expect("the number of the closed one");
        {
            let mut rx = handover::lock_rx(b.h.sock());
            rx.demote(b.h, b.fd, Reason::Off);
            let (ring, c) = rx.ring().expect("closed, and not drained");
            ring.recall(c);
        }
        handover::service_recall(h.sock(), h, number);
        rest();
        assert_eq!([b.fd, other.fd].map(shadow::queued), [Some(3000), Some(0)]);
        sys::close(number).expect("close");
        drop(b);
        reader.join().expect("the reader");
    });
}

#[test]
fn the_end_of_whoever_has_the_number_of_a_closed_socket_is_not_its_own() {
    let _alone = alone();
    within(LIMIT, "an end", || {
        let (a, b) = connected();
        warm(&a, &b);
        let (h, number) = (a.h, a.fd);
        let (next, other) = on_tcp();
        let reader = close_sleeping(a, receive);
        sys::dup2(next.fd, number).expect("the number of the closed one");
        drop(other);
        // As by a thread that has looked at the number and waited for the lock.
        handover::peer_fin(h.sock(), h, number);
        assert!(!h.sock().has(FLAG_PEER_FIN));
        sys::close(number).expect("close");
        drop(b);
        assert_eq!(reader.join().expect("the reader"), 0);
    });
}

#[test]
fn a_receive_does_not_sleep_on_whoever_has_the_number_of_its_closed_socket() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = connected();
        warm(&a, &b);
        let (quiet, _writer) = std::io::pipe().expect("pipe");
        let reader = asleep_on(&a, receive);
        give_to_a_quiet_pipe(&a, &quiet);
        drop(b);
        assert_eq!(reader.join().expect("the reader"), 0);
    });
}

#[test]
fn a_receive_that_begins_to_wait_beside_a_close_does_not_sleep_on_whoever_has_the_number_next() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (quiet, _writer) = std::io::pipe().expect("pipe");
        let mut draw = first_draw();
        for _ in 0..ROUNDS {
            let after = next_delay(&mut draw, Duration::from_micros(60));
            let (a, b) = connected();
            warm(&a, &b);
            let (h, fd) = (a.h, a.fd);
            let begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begun.store(true, Ordering::Release);
                    receive(h, fd)
                });
                while !begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                while start.elapsed() < after {
                    std::hint::spin_loop();
                }
                give_to_a_quiet_pipe(&a, &quiet);
                drop(b);
            });
        }
    });
}

#[test]
fn a_send_that_goes_on_over_tcp_does_not_sleep_on_whoever_has_the_number_of_its_closed_socket() {
    const LARGE: usize = 16 << 20;
    let _alone = alone();
    within(LIMIT, "sending", || {
        let (a, b) = connected();
        warm(&a, &b);
        let (quiet, _writer) = std::io::pipe().expect("pipe");
        let writer = asleep_on(&a, |h, fd| send_on(h, fd, &vec![7; LARGE], 0));
        // It goes to TCP by itself, because nobody reads, and fills what the kernel has room for.
        let queued = || shadow::unacknowledged(a.fd);
        let mut before = 0;
        while queued() == 0 || queued() != before {
            before = queued();
            std::thread::sleep(Duration::from_millis(100));
        }
        give_to_a_quiet_pipe(&a, &quiet);
        let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
        while got < LARGE {
            let n = b.recv(&mut buffer);
            assert!(n > 0, "recv answered {n} after {got} bytes");
            got += n as usize;
        }
        assert_eq!(writer.join().expect("the writer"), LARGE as isize);
    });
}

/// Reads `most` bytes, or to the end, all of which must be `byte`; how many there were.
fn read_only(end: &End, most: usize, byte: u8) -> usize {
    let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
    while got < most {
        let n = end.recv(&mut buffer);
        assert!(n >= 0, "recv answered {n} after {got} bytes");
        if n == 0 {
            break;
        }
        assert!(buffer[..n as usize].iter().all(|b| *b == byte), "a byte of another connection after {got}");
        got += n as usize;
    }
    got
}

const LARGE: usize = 16 << 20;

/// Waits until a thread that sends on an end has filled its ring and then what the kernel has room for.
fn until_nothing_moves(end: &End) {
    let mut before = 0;
    loop {
        let queued = shadow::unacknowledged(end.fd);
        if queued != 0 && queued == before {
            return;
        }
        before = queued;
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_file_goes_to_the_socket_that_it_was_sent_on_whoever_has_the_number_next() {
    let _alone = alone();
    within(LIMIT, "sending a file", || {
        let ((a, b), (next, other)) = (connected(), connected());
        warm(&a, &b);
        let writer = asleep_on(&a, |h, fd| send_file_on(h, fd, LARGE));
        until_nothing_moves(&a);
        give_to(&a, &next);
        assert_eq!(read_only(&b, LARGE, 7), LARGE);
        assert_eq!(writer.join().expect("the writer"), LARGE as isize);
        assert_eq!(other.take(), 0);
        assert_eq!(b.recv(&mut [0; 8]), 0, "the socket is closed when the call returns");
    });
}

#[test]
fn a_send_that_goes_on_over_tcp_sends_nothing_to_whoever_has_the_number_next() {
    let _alone = alone();
    within(LIMIT, "sending", || {
        let mut draw = first_draw();
        for _ in 0..20 {
            let after = next_delay(&mut draw, Duration::from_millis(5));
            let ((a, b), (next, other)) = (connected(), on_tcp());
            warm(&a, &b);
            let writer = asleep_on(&a, |h, fd| send_on(h, fd, &vec![7; LARGE], 0));
            lifecycle::pin(b.h, b.fd, Reason::Off);
            let got = std::thread::scope(|scope| {
                let reader = scope.spawn(|| read_only(&b, LARGE, 7));
                std::thread::sleep(after);
                give_to(&a, &next);
                let sent = writer.join().expect("the writer");
                assert_eq!(reader.join().expect("the reader") as isize, sent);
                sent
            });
            assert_eq!(got, LARGE as isize);
            assert_eq!(other.take(), 0);
        }
    });
}

#[test]
fn a_further_step_of_a_call_is_one_on_the_socket_that_the_call_began_with() {
    let _alone = alone();
    within(LIMIT, "a call of several steps", || {
        for on_rings in [false, true] {
            let ((a, b), (next, other)) = (connected(), connected());
            if on_rings {
                warm(&a, &b);
            }
            let step = |bytes: &mut [u8; 4], sends: bool, begun: bool| {
                let v = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 4 };
                // SAFETY: one entry that describes the bytes; a call on the number is none of another connection.
                unsafe {
                    if sends {
                        send::step(a.h, a.fd, &v, 1, 0, begun, || {
                            native(sys::sendto(a.fd, bytes.as_ptr(), 4, 0, std::ptr::null(), 0))
                        })
                    } else {
                        let none = std::ptr::null_mut();
                        recv::step(a.h, a.fd, &v, 1, 0, begun, || {
                            native(sys::recvfrom(a.fd, bytes.as_mut_ptr(), 4, 0, none, none.cast()))
                        })
                    }
                }
            };
            let whole_call = wait::begin_steps(a.h, a.fd);
            let mut bytes = [0; 4];
            assert_eq!([b.send(b"one "), other.send(b"else")], [4; 2]);
            assert_eq!((step(&mut bytes, false, false), &bytes), (4, b"one "));
            std::thread::scope(|scope| {
                scope.spawn(|| give_to(&a, &next));
            });
            assert_eq!(b.send(b"two "), 4);
            assert_eq!((step(&mut bytes, false, true), &bytes), (4, b"two "));
            assert_eq!(step(&mut bytes, true, true), 4);
            drop(whole_call);
            assert_eq!(step(&mut bytes, true, true), -(libc::EBADF as isize));
            assert_eq!((b.recv(&mut bytes), &bytes), (4, b"two "));
            assert_eq!((next.recv(&mut bytes), &bytes, other.take()), (4, b"else", 0));
            assert_eq!(b.recv(&mut bytes), 0, "the socket is closed when the call returns");
        }
    });
}

/// Leaves this process no descriptor below its limit, which becomes lower, while `f` runs.
fn with_no_descriptor_left(f: impl FnOnce()) {
    let mut before = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is writable.
    unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, std::ptr::null(), &mut before) }.expect("the limit");
    let low = libc::rlimit64 { rlim_cur: 64, ..before };
    // SAFETY: the limits are readable.
    let set = |limit| unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, limit, std::ptr::null_mut()) }.expect("a limit");
    set(&low);
    let (pipe, _writer) = std::io::pipe().expect("pipe");
    let taken: Vec<_> = std::iter::from_fn(|| pipe.try_clone().ok()).collect();
    f();
    drop(taken);
    set(&before);
}

#[test]
fn a_receive_whose_socket_is_closed_at_the_limit_on_descriptors_keeps_the_connection() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = connected();
        warm(&a, &b);
        let reader = asleep_on(&a, receive);
        with_no_descriptor_left(|| drop(a));
        lifecycle::pin(b.h, b.fd, Reason::Off);
        assert_eq!(b.send(b"late"), 4);
        assert_eq!(reader.join().expect("the reader"), 4);
        assert_eq!(b.recv(&mut [0; 8]), 0, "the socket is closed when the call returns");
    });
}

#[test]
fn a_receive_whose_descriptor_nobody_could_keep_ends_and_has_its_rings_until_then() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = connected();
        warm(&a, &b);
        let reader = asleep_on(&a, receive);
        // As where it was closed by a raw system call, and the number is another connection's already.
        sys::dup2(socket().as_raw_fd(), a.fd).expect("dup2");
        lifecycle::accepted(None, a.fd, 0);
        assert_eq!(reader.join().expect("the reader"), -(libc::EBADF as isize));
        drop(b);
    });
}

#[test]
fn a_child_does_not_keep_open_what_a_close_kept_for_a_thread_of_its_parent() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = connected();
        warm(&a, &b);
        let reader = close_sleeping(a, receive);
        let (mut told, tell) = std::io::pipe().expect("pipe");
        lifecycle::fork_prepare();
        // SAFETY: the child runs only what a child of the program runs in the hooks, says so, and waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lifecycle::fork_child();
            let _ = (&tell).write(b"x");
            loop {
                sys::nap(1_000_000_000);
            }
        }
        lifecycle::fork_parent(child);
        told.read_exact(&mut [0]).expect("the child runs");
        assert_eq!(b.send(b"late"), 4);
        assert_eq!(reader.join().expect("the reader"), 4);
        let shown = poll_on(&[(b.fd, libc::POLLRDHUP)], 5000).1;
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(shown, [libc::POLLRDHUP], "the peer is told of the end while the child lives");
    });
}
