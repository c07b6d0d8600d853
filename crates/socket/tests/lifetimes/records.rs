//! Records of the table: each is given back once, and what counts for one counts for no other.

use super::*;

/// Takes records for many descriptors at once: each must be another one.
fn assert_each_record_is_free_once(socket: &TcpStream) {
    let many: Vec<OwnedFd> = (0..200).map(|_| socket.try_clone().expect("dup").into()).collect();
    let records: BTreeSet<u32> = many
        .iter()
        .map(|fd| {
            lifecycle::accepted(None, fd.as_raw_fd(), 0);
            fdtable::sock(fd.as_raw_fd()).expect("tracked").index()
        })
        .collect();
    many.iter().for_each(|fd| drop(lifecycle::closing(fd.as_raw_fd())));
    assert_eq!(records.len(), many.len());
}

#[test]
fn threads_that_close_and_look_for_abandoned_records_give_each_back_once() {
    let _alone = alone();
    within(LIMIT, "coming and going", || {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| come_and_go(socket().as_raw_fd()));
            }
        });
        assert_each_record_is_free_once(&socket());
    });
}

#[test]
fn processes_that_close_and_look_for_abandoned_records_give_each_back_once() {
    let _alone = alone();
    within(LIMIT, "coming and going", || {
        let sockets = [socket(), socket()];
        lifecycle::accepted(None, sockets[0].as_raw_fd(), 0);
        lifecycle::closing(sockets[0].as_raw_fd());
        lifecycle::fork_prepare();
        let child = forked(|| {
            come_and_go(sockets[1].as_raw_fd());
            true
        });
        come_and_go(sockets[0].as_raw_fd());
        assert!(says_yes(child));
        assert_each_record_is_free_once(&sockets[0]);
    });
}

/// Forks a child that is killed before it has entered itself anywhere. It is not waited for.
fn stillborn() -> i32 {
    lifecycle::fork_prepare();
    // SAFETY: the child waits for its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            sys::nap(1_000_000_000);
        }
    }
    lifecycle::fork_parent(child);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    child
}

#[test]
fn what_a_child_was_to_have_that_was_killed_at_its_birth_is_its_parents_alone() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        // More than can be under way at a time.
        for _ in 0..100 {
            let (a, b) = on_tcp();
            let set = Set::new();
            set.add(&a, IN, 7);
            assert!(!says_yes(stillborn()));
            let names = [a.h, b.h];
            assert!(names.iter().all(|h| lifecycle::sole_owner(h.sock())));
            drop((a, b, set));
            assert!(!names.iter().any(|h| h.is_current()), "their records are given back");
        }
    });
}

#[test]
fn what_a_child_kept_that_was_killed_at_its_birth_is_given_back() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        let (a, b) = on_tcp();
        let (name, set) = (a.h, Set::new());
        set.add(&a, IN, 7);
        lifecycle::fork_prepare();
        let (told, tell) = std::io::pipe().expect("pipe");
        // SAFETY: the child waits for its end, before it has entered itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(tell);
            let _ = (&told).read(&mut [0]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(1) };
        }
        lifecycle::fork_parent(child);
        drop((a, b, set));
        assert!(name.is_current(), "the child may have it");
        drop(tell);
        assert!(!says_yes(child));
        // At the next fork at the latest.
        lifecycle::fork_prepare();
        assert!(says_yes(forked(|| true)));
        assert!(!name.is_current());
        let table = process::table();
        assert!(
            (0..table.used_sets()).all(|i| table.set(i).expected.load(Ordering::Acquire) == 0),
            "of the set as well"
        );
    });
}

#[test]
fn a_child_of_vfork_that_is_killed_amid_a_socket_of_its_parent_leaves_it_to_that() {
    let _alone = alone();
    within(LIMIT, "vfork", || {
        extern "C" fn killed(h: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the parent's, which waits.
            let h = unsafe { *h.cast::<Handle>() };
            lifecycle::in_vfork_child(h, || {
                let _rx = handover::lock_rx(h.sock());
                assert!(!lifecycle::sole_owner(h.sock()));
                let _ = sys::kill(sys::getpid().unwrap_or(0) as i32, libc::SIGKILL);
            });
            1
        }
        let (a, _b) = connected();
        let (mut h, mut stack) = (a.h, vec![0u128; 1 << 14]);
        thread::me();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child runs on a stack of its own, and this thread waits for it.
        let child = unsafe { libc::clone(killed, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut h).cast()) };
        lifecycle::after_vfork();
        assert!(!says_yes(child) && !thread::in_critical());
        drop(handover::lock_rx(h.sock()));
        assert!(lifecycle::sole_owner(h.sock()));
    });
}

/// Starts a call on an end, closes the end while the call is in the kernel, and gives its record to a new connection.
fn close_during<R: Send + 'static>(
    end: End,
    call: impl FnOnce(Handle, i32) -> R + Send + 'static,
) -> (JoinHandle<R>, (End, End)) {
    let (h, fd) = (end.h, end.fd);
    let thread = std::thread::spawn(move || call(h, fd));
    let counted = |s: &Sock| s.rx.inflight.load(Ordering::Acquire) + s.tx.inflight.load(Ordering::Acquire) > 0;
    while !counted(h.sock()) {
        std::thread::yield_now();
    }
    rest();
    drop(end);
    let next = on_tcp();
    assert_eq!(next.0.h.index(), h.index(), "the new connection has the record");
    (thread, next)
}

fn assert_undisturbed((a, b): (End, End)) {
    let s = a.h.sock();
    let counts = [&s.rx.inflight, &s.tx.inflight, &s.rx.calls, &s.tx.calls].map(|n| n.load(Ordering::Acquire));
    assert_eq!(counts, [0; 4]);
    assert_eq!([&s.rx.tcp_bytes, &s.tx.tcp_bytes].map(|n| n.load(Ordering::Acquire)), [0; 2]);
    assert!(!s.has(FLAG_PEER_FIN));
    let mut bytes = [0; 8];
    assert_eq!((b.send(b"new"), a.recv(&mut bytes)), (3, 3));
    assert_eq!((a.send(b"new"), b.recv(&mut bytes)), (3, 3));
}

#[test]
fn a_receive_on_tcp_whose_socket_is_closed_counts_nothing_for_the_next_connection() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = on_tcp();
        let (reader, next) = close_during(a, receive);
        assert_eq!(b.send(b"late"), 4);
        assert_eq!(reader.join().expect("the reader"), 4);
        assert_undisturbed(next);
    });
}

#[test]
fn the_end_of_a_closed_connection_is_not_the_end_of_the_next_one() {
    let _alone = alone();
    within(LIMIT, "receiving", || {
        let (a, b) = on_tcp();
        let (reader, next) = close_during(a, receive);
        b.close();
        assert_eq!(reader.join().expect("the reader"), 0);
        assert_undisturbed(next);
    });
}

#[test]
fn a_send_on_tcp_whose_socket_is_closed_counts_nothing_for_the_next_connection() {
    const LARGE: usize = 16 << 20;
    let _alone = alone();
    within(LIMIT, "sending", || {
        let (a, b) = on_tcp();
        let (writer, next) = close_during(a, |h, fd| send_on(h, fd, &vec![7; LARGE], 0));
        let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
        while got < LARGE {
            let n = b.recv(&mut buffer);
            assert!(n > 0, "recv answered {n} after {got} bytes");
            got += n as usize;
        }
        assert_eq!(writer.join().expect("the writer"), LARGE as isize);
        assert_undisturbed(next);
    });
}

#[test]
fn a_poll_whose_socket_is_closed_counts_nothing_for_the_next_connection() {
    let _alone = alone();
    within(LIMIT, "polling", || {
        let (a, b) = on_tcp();
        let (poller, next) = close_during(a, |_, fd| poll_on(&[(fd, libc::POLLIN)], 300).0);
        b.close();
        // The kernel may look at the number again, and find the new connection behind it, which has nothing.
        assert!(poller.join().expect("the poller") >= 0);
        assert_undisturbed(next);
    });
}
