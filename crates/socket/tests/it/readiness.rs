//! What epoll says of sockets whose bytes are in rings, call by call.

use crate::support::*;
use ropeway_shm::sys;
use ropeway_socket::handover::{lock_rx, lock_tx};
use ropeway_socket::reason::Reason;
use ropeway_socket::thread::me;
use ropeway_socket::{poll, process};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PIN: i16 = libc::POLLIN;

/// Runs `f` while another thread does `later` after a moment in which `f` has gone to sleep.
pub fn meanwhile<R>(later: impl FnOnce() + Send, f: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            later();
        });
        f()
    })
}

#[test]
fn level_triggered_members_are_reported_while_they_are_ready() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 7);
    assert_eq!(set.wait(0), []);
    assert_eq!(a.send(b"0123456789"), 10);
    assert_eq!(set.wait(0), [(IN, 7)]);
    assert_eq!(set.wait(-1), [(IN, 7)]);
    let mut four = [0u8; 4];
    assert_eq!(b.recv(&mut four), 4);
    assert_eq!(set.wait(0), [(IN, 7)], "six bytes are left");
    assert_eq!(b.take(), 6);
    assert_eq!(set.wait(0), []);
    assert_eq!(set.wait(10), []);
    set.modify(&b, IN | OUT, 8);
    assert_eq!(set.wait(-1), [(OUT, 8)]);
    set.modify(&b, 0, 9);
    assert_eq!(a.send(b"x"), 1);
    assert_eq!(set.wait(0), []);
    assert!(b.on_rings());
}

#[test]
fn a_sleeper_wakes_by_what_comes_through_the_ring() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    for round in 0..20 {
        let got = meanwhile(|| assert_eq!(a.send(b"x"), 1), || set.wait(5000));
        assert_eq!(got, [(IN, 1)], "round {round}");
        assert_eq!(b.take(), 1);
    }
    assert!(b.on_rings());
}

#[test]
fn an_edge_is_new_data_and_nothing_else() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | ET, 1);
    while !set.wait(0).is_empty() {}
    assert_eq!(a.send(b"01234"), 5);
    assert_eq!(set.wait(0), [(IN, 1)]);
    assert_eq!(set.wait(0), []);
    let mut two = [0u8; 2];
    assert_eq!(b.recv(&mut two), 2);
    assert_eq!(set.wait(0), [], "reading a part is no edge");
    assert_eq!(a.send(b"5678"), 4);
    assert_eq!(set.wait(0), [(IN, 1)], "new data is, though old is unread");
    assert_eq!(set.wait(0), []);
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"9"), 1), || set.wait(5000)), [(IN, 1)]);
    set.modify(&b, IN | ET, 2);
    assert_eq!(set.wait(0), [(IN, 2)], "armed again");
    assert_eq!(set.wait(0), []);
    assert_eq!(b.take(), 8);
    set.modify(&b, IN | ET, 3);
    assert_eq!(set.wait(0), []);
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"y"), 1), || set.wait(5000)), [(IN, 3)]);
}

#[test]
fn the_end_of_a_ring_behind_unread_data_is_no_edge() {
    type Ending = fn(&End, &End);
    let endings: [(&str, Ending); 3] = [
        ("the writer shuts down", |a, _| assert_eq!(a.shutdown(libc::SHUT_WR), 0)),
        ("the writer goes to TCP", |a, _| lock_tx(a.h.sock()).demote(a.h, a.fd, Reason::NoProgress)),
        ("the reader goes to TCP", |_, b| lock_rx(b.h.sock()).demote(b.h, b.fd, Reason::Off)),
    ];
    for (what, end) in endings {
        let set = Set::new();
        let (a, b) = warm_pair(&set, IN | ET, 1);
        while !set.wait(0).is_empty() {}
        assert_eq!(a.send(b"01234"), 5);
        assert_eq!(set.wait(0), [(IN, 1)]);
        end(&a, &b);
        rest();
        // A FIN is news of the kernel's.
        set.wait(0);
        for _ in 0..10 {
            assert_eq!(set.wait(0), [], "{what}");
        }
        assert_eq!(set.wait(10), [], "{what}");
        if a.send(b"56") == 2 {
            assert_eq!(set.wait(1000), [(IN, 1)], "what comes over TCP is an edge: {what}");
            assert_eq!(set.wait(10), [], "{what}");
        }
        let mut three = [0u8; 3];
        assert_eq!(b.recv(&mut three), 3);
        assert_eq!(set.wait(0), [], "reading a part is no edge: {what}");
        b.take();
        assert_eq!(set.wait(0), [], "{what}");
        if a.send(b"7") == 1 {
            assert_eq!(set.wait(1000), [(IN, 1)], "{what}");
        }
    }
}

#[test]
fn room_is_an_edge_after_a_send_that_found_none() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | OUT | ET, 1);
    while !set.wait(0).is_empty() {}
    assert_eq!(b.send(b"x"), 1);
    assert_eq!(set.wait(0), [], "a send that went through is no edge");
    let mut sent = 1;
    loop {
        match b.send(&[0x5a; 1000]) {
            n if n > 0 => sent += n as usize,
            n => break assert_eq!(n, -(libc::EAGAIN as isize)),
        }
    }
    assert_eq!(set.wait(0), [], "full");
    let mut all = vec![0u8; sent];
    let got = meanwhile(
        || {
            let mut at = 0;
            while at < sent {
                at += a.recv(&mut all[at..]) as usize;
            }
        },
        || set.wait(5000),
    );
    assert_eq!(got, [(OUT, 1)]);
    assert_eq!(a.send(b"y"), 1);
    let both = set.wait(0);
    assert!(both == [(IN | OUT, 1)], "an edge shows everything that is ready: {both:?}");
    // The reader may have ended the ring meanwhile or not; no further edge either way.
    assert_eq!(b.take(), 1);
    assert_eq!(set.wait(5), []);
}

#[test]
fn a_partial_send_waits_for_room_like_a_refused_one() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, OUT | ET, 1);
    while !set.wait(0).is_empty() {}
    let big = vec![1u8; 1 << 20];
    let sent = b.send(&big) as usize;
    assert!(sent < big.len());
    assert_eq!(set.wait(0), []);
    let mut all = vec![0u8; sent];
    let mut at = 0;
    while at < sent {
        at += a.recv(&mut all[at..]) as usize;
    }
    assert_eq!(set.wait(1000), [(OUT, 1)]);
}

#[test]
fn a_oneshot_member_fires_once_until_it_is_armed_again() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    set.modify(&b, IN | ONESHOT, 2);
    assert_eq!(a.send(b"0123"), 4);
    assert_eq!(set.wait(0), [(IN, 2)]);
    assert_eq!(set.wait(0), []);
    assert_eq!(a.send(b"4"), 1);
    assert_eq!(set.wait(10), []);
    set.modify(&b, IN | ONESHOT, 3);
    assert_eq!(set.wait(0), [(IN, 3)]);
    assert_eq!(b.take(), 5);
    set.modify(&b, IN | ONESHOT, 4);
    assert_eq!(set.wait(0), []);
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"x"), 1), || set.wait(5000)), [(IN, 4)]);
}

#[test]
fn a_oneshot_member_on_tcp_stays_fired_when_it_comes_onto_a_ring() {
    let set = Set::new();
    let (a, b) = connected();
    b.nonblocking(true);
    set.add(&b, IN | ONESHOT, 1);
    assert_eq!(set.wait(0), []);
    assert_eq!(a.send(b"x"), 1);
    assert_eq!(set.wait(1000), [(IN, 1)], "by the kernel, under the program's own data");
    assert_eq!(set.wait(0), []);
    assert_eq!(b.take(), 1);
    warm(&a, &b);
    assert_eq!(a.send(b"x"), 1);
    assert_eq!(set.wait(10), [], "fired is fired");
    set.modify(&b, IN | ONESHOT, 2);
    assert_eq!(set.wait(0), [(IN, 2)]);
}

/// A thread that waits looks at a oneshot member for what was asked of it before, while another one asks for something else.
#[test]
fn what_is_asked_while_a_waiter_looks_is_reported() {
    const ROUNDS: u64 = 2_000;
    for (before, then) in [(0, IN), (IN, OUT), (OUT, IN)] {
        for on_a_ring in [true, false] {
            let set = Set::new();
            let (a, b) = if on_a_ring {
                let (a, b) = warm_pair(&set, ONESHOT, 0);
                // What is unread stands in the kernel, and makes no edge any more.
                lock_tx(a.h.sock()).demote(a.h, a.fd, Reason::Off);
                (a, b)
            } else {
                let (a, b) = on_tcp();
                set.add(&b, ONESHOT, 0);
                (a, b)
            };
            assert_eq!(a.send(b"x"), 1);
            let reported = AtomicU64::new(0);
            let is_late = |data| {
                let patience = Instant::now() + Duration::from_secs(5);
                while reported.load(Ordering::Relaxed) < data {
                    if Instant::now() > patience {
                        return true;
                    }
                    thread::yield_now();
                }
                false
            };
            let lost = thread::scope(|scope| {
                scope.spawn(|| {
                    while reported.load(Ordering::Relaxed) < 2 * ROUNDS {
                        for (_, data) in set.wait(100).into_iter().filter(|(events, _)| events & then != 0) {
                            reported.fetch_max(data, Ordering::Relaxed);
                        }
                    }
                });
                let lost = (1..=ROUNDS).find(|round| {
                    set.modify(&b, before | ONESHOT, 2 * round - 1);
                    // Into each part of the look that this begins.
                    let until = Instant::now() + Duration::from_nanos(round % 512 * 200);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                    set.modify(&b, then | ONESHOT, 2 * round);
                    is_late(2 * round)
                });
                reported.store(u64::MAX, Ordering::Relaxed);
                lost
            });
            assert_eq!(lost, None, "{before:#x}, then {then:#x}, on a ring: {on_a_ring}");
        }
    }
}

#[test]
fn deleting_and_adding_again_costs_no_event() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    for round in 0..50 {
        assert_eq!(set.delete(&b), 0);
        assert_eq!(set.delete(&b), -(libc::ENOENT as isize));
        assert_eq!(set.ctl(libc::EPOLL_CTL_MOD, b.fd, IN, 0), -(libc::ENOENT as isize));
        if round % 2 == 0 {
            assert_eq!(a.send(b"x"), 1);
            assert_eq!(set.wait(0), []);
        }
        set.add(&b, IN, round);
        assert_eq!(set.ctl(libc::EPOLL_CTL_ADD, b.fd, IN, 0), -(libc::EEXIST as isize));
        if round % 2 != 0 {
            assert_eq!(a.send(b"x"), 1);
        }
        assert_eq!(set.wait(0), [(IN, round)]);
        assert_eq!(b.take(), 1);
    }
}

#[test]
fn a_set_that_sleeps_in_the_kernel_alone_wakes_when_a_member_comes_onto_a_ring() {
    for round in 0..10 {
        let set = Set::new();
        let (a, b) = connected();
        let (c, d) = connected();
        b.nonblocking(true);
        set.add(&b, IN, 1);
        set.add(&d, IN, 2);
        assert_eq!(set.wait(0), []);
        // Another thread than the one that waits reads, and so moves the socket.
        let got = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                warm(&c, &d);
                thread::sleep(Duration::from_millis(20));
                assert_eq!(a.send(b"x"), 1);
            });
            loop {
                let got = set.wait(5000);
                if got.iter().any(|e| e.1 == 1) || got.is_empty() {
                    return got;
                }
            }
        });
        assert_eq!(got, [(IN, 1)], "round {round}");
        assert!(d.on_rings());
        assert_eq!(
            meanwhile(
                || assert_eq!(c.send(b"x"), 1),
                || loop {
                    let got = set.wait(5000);
                    if got != [(IN, 1)] {
                        return got;
                    }
                    b.take();
                }
            ),
            [(IN, 2)]
        );
    }
}

#[test]
fn the_end_of_the_peer_is_told_as_tcp_tells_it() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | RDHUP, 1);
    assert_eq!(a.send(b"last"), 4);
    assert_eq!(a.shutdown(libc::SHUT_WR), 0);
    rest();
    assert_eq!(set.wait(0), [(IN | RDHUP, 1)]);
    assert_eq!(b.take(), 4);
    assert_eq!(set.wait(0), [(IN | RDHUP, 1)]);
    set.modify(&b, IN, 2);
    assert_eq!(set.wait(0), [(IN, 2)]);
    set.modify(&b, RDHUP, 3);
    assert_eq!(set.wait(0), [(RDHUP, 3)]);
    assert_eq!(b.shutdown(libc::SHUT_WR), 0);
    rest();
    assert_eq!(set.wait(0), [(RDHUP | HUP, 3)]);
}

#[test]
fn the_end_wakes_a_sleeper_once() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | RDHUP | ET, 1);
    while !set.wait(0).is_empty() {}
    assert_eq!(meanwhile(|| a.close(), || set.wait(5000)), [(IN | RDHUP, 1)]);
    let mut byte = [0u8; 1];
    assert_eq!(b.recv(&mut byte), 0);
    assert_eq!(set.wait(20), []);
}

#[test]
fn a_reset_is_told_until_its_error_was_taken() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    assert_eq!(b.send(b"unread"), 6);
    assert_eq!(meanwhile(|| a.close(), || set.wait(5000)), [(IN | ERR | HUP, 1)]);
    let mut byte = [0u8; 1];
    assert_eq!(b.recv(&mut byte), -(libc::ECONNRESET as isize));
    assert_eq!(set.wait(0), [(IN | HUP, 1)]);
}

#[test]
fn one_event_at_a_time_reaches_every_member_and_the_kernels() {
    let set = Set::new();
    let pairs: Vec<_> = (0..6).map(|i| warm_pair(&set, IN, i)).collect();
    let mut pipe = [0i32; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    assert_eq!(set.ctl(libc::EPOLL_CTL_ADD, pipe[0], IN, 100), 0);
    // SAFETY: one readable byte.
    assert_eq!(unsafe { sys::write(pipe[1], b"x".as_ptr(), 1) }, Ok(1));
    pairs.iter().for_each(|(a, _)| assert_eq!(a.send(b"x"), 1));
    for ms in [0, 1000] {
        let mut seen: Vec<u64> = (0..80).flat_map(|_| set.wait_max(1, ms)).map(|e| e.1).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 100]);
    }
    let all: Vec<u64> = set.wait(0).iter().map(|e| e.1).collect();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 100]);
    pipe.iter().for_each(|fd| assert!(sys::close(*fd).is_ok()));
}

#[test]
fn events_of_the_kernels_set_keep_its_order() {
    for ms in [0, 1000] {
        let set = Set::new();
        let (a, _b) = warm_pair(&set, IN | RDHUP, 1);
        let (c, d) = on_tcp();
        set.add(&d, IN, 2);
        assert_eq!(set.wait(0), []);
        assert_eq!(a.shutdown(libc::SHUT_WR), 0);
        rest();
        assert_eq!(c.send(b"x"), 1);
        rest();
        assert_eq!(set.wait(ms), [(IN | RDHUP, 1), (IN, 2)], "the end came first; waiting for {ms} ms at most");
    }
}

#[test]
fn an_entry_that_is_given_to_another_set_while_the_kernel_names_it_is_not_reported() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN | RDHUP, 1);
    assert_eq!(a.shutdown(libc::SHUT_WR), 0);
    rest();
    let s = b.h.sock();
    let name = s.member_of[0].load(Ordering::Relaxed);
    let lock = &process::table().set((name & 0xffff) - 1).lock;
    lock.lock(me());
    let reported = thread::scope(|scope| {
        let waiting = scope.spawn(|| set.wait(0));
        // Until it has been told by the kernel, and waits for the lock.
        thread::sleep(Duration::from_millis(30));
        s.members[0].data.store(2, Ordering::Relaxed);
        s.member_of[0].store(u32::MAX, Ordering::Relaxed);
        lock.unlock();
        waiting.join().expect("the waiting thread")
    });
    s.member_of[0].store(name, Ordering::Relaxed);
    assert_eq!(reported, []);
}

#[test]
fn one_socket_in_two_sets_has_an_edge_in_each() {
    let (one, two) = (Set::new(), Set::new());
    let (a, b) = connected();
    b.nonblocking(true);
    one.add(&b, IN | ET, 1);
    two.add(&b, IN, 2);
    assert_eq!((one.wait(0), two.wait(0)), (vec![], vec![]));
    warm(&a, &b);
    while !one.wait(0).is_empty() {}
    assert_eq!(two.wait(0), []);
    assert_eq!(a.send(b"data"), 4);
    assert_eq!(one.wait(0), [(IN, 1)]);
    assert_eq!(one.wait(0), []);
    assert_eq!((two.wait(0), two.wait(0)), (vec![(IN, 2)], vec![(IN, 2)]));
    assert_eq!(b.take(), 4);
    drop(two);
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"more"), 4), || one.wait(5000)), [(IN, 1)]);
}

#[test]
fn a_fifth_set_takes_the_socket_back_to_tcp() {
    let sets: Vec<Set> = (0..5).map(|_| Set::new()).collect();
    let (a, b) = warm_pair(&sets[0], IN, 0);
    assert_eq!(a.send(b"x"), 1);
    for (i, set) in sets.iter().enumerate().skip(1) {
        thread::scope(|scope| {
            // Leaving may need the other end, to take an unread rest back.
            scope.spawn(|| {
                for _ in 0..20 {
                    thread::sleep(Duration::from_millis(5));
                    a.recv_flags(&mut [0u8; 1], libc::MSG_DONTWAIT);
                    assert_eq!(a.send(b"x"), 1);
                }
            });
            set.add(&b, IN, i as u64);
        });
    }
    assert!(!b.on_rings());
    rest();
    for (i, set) in sets.iter().enumerate() {
        assert_eq!(set.wait(1000), [(IN, i as u64)]);
    }
}

#[test]
fn a_nested_set_is_ready_exactly_while_a_member_is() {
    let (inner, outer, outermost) = (Set::new(), Set::new(), Set::new());
    let (a, b) = warm_pair(&inner, IN, 1);
    assert_eq!(outer.ctl(libc::EPOLL_CTL_ADD, inner.ep, IN, 2), 0);
    assert_eq!(outermost.ctl(libc::EPOLL_CTL_ADD, outer.ep, IN, 3), 0);
    assert_eq!(outermost.wait(0), []);
    assert_eq!(a.send(b"data"), 4);
    assert_eq!(outermost.wait(1000), [(IN, 3)]);
    assert_eq!(outer.wait(1000), [(IN, 2)]);
    assert_eq!(inner.wait(0), [(IN, 1)]);
    assert_eq!(poll_on(&[(outer.ep, PIN)], 1000), (1, vec![PIN]));
    assert_eq!(b.take(), 4);
    assert_eq!(outer.wait(0), []);
    assert_eq!(poll_on(&[(inner.ep, PIN)], 0), (0, vec![0]));
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"x"), 1), || outermost.wait(5000)), [(IN, 3)]);
    assert_eq!(inner.wait(0), [(IN, 1)]);
    assert_eq!(b.take(), 1);
    assert_eq!(meanwhile(|| assert_eq!(a.send(b"x"), 1), || poll_on(&[(outer.ep, PIN)], 5000)), (1, vec![PIN]));
    assert_eq!(inner.wait(0), [(IN, 1)]);
}

#[test]
fn a_set_behind_rings_in_a_poll_is_seen_without_a_sleep() {
    let (one, two) = (Set::new(), Set::new());
    let (a, b) = warm_pair(&one, IN, 1);
    let (c, d) = warm_pair(&two, IN, 2);
    let (_e, f) = connected();
    warm(&_e, &f);
    let first_entries = [("a socket", f.fd), ("another set", one.ep)];
    let both = |first: i32, ms| poll_on(&[(first, PIN), (two.ep, PIN)], ms);
    for (what, first) in first_entries {
        assert_eq!(two.wait(0), []);
        assert_eq!(c.send(b"x"), 1);
        assert_eq!(both(first, 0), (1, vec![0, PIN]), "behind {what}");
        assert_eq!(two.wait(0), [(IN, 2)]);
        assert_eq!(d.take(), 1);
        assert_eq!(both(first, 0), (0, vec![0, 0]), "read, behind {what}");
    }
    let mut words = [0u64; 16];
    for fd in [f.fd, two.ep] {
        words[fd as usize / 64] |= 1 << (fd % 64);
    }
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let none = std::ptr::null_mut();
    assert_eq!(c.send(b"x"), 1);
    // SAFETY: a set of 1024 bits and a valid time; the kernel is not needed here.
    let n = unsafe { poll::select(1024, words.as_mut_ptr(), none, none, &mut time, || unreachable!()) };
    assert_eq!((n, words[two.ep as usize / 64]), (1, 1 << (two.ep % 64)));
    // While something else is always ready.
    assert_eq!((d.take(), a.send(b"x")), (1, 1));
    assert_eq!(both(one.ep, 1000), (1, vec![PIN, 0]));
    assert_eq!(c.send(b"x"), 1);
    assert_eq!(both(one.ep, 1000), (2, vec![PIN, PIN]));
    assert_eq!(b.take(), 1);
}

#[test]
fn a_member_is_seen_in_a_set_inside_a_poll_behind_many_that_wait_for_room() {
    /// More than are looked at under one hold of the set's lock.
    const MANY: usize = 80;
    let set = Set::new();
    let mut pairs: Vec<_> = (0..MANY).map(|_| warm_pair(&set, IN, 1)).collect();
    // They are looked at in the order of their records.
    pairs.sort_by_key(|(_, b)| b.h.index());
    let ((a, _b), others) = pairs.split_last().expect("pairs");
    for (_, b) in others {
        set.modify(b, IN | OUT, 1);
        for n in [4096, 1] {
            while b.send(&vec![0; n]) > 0 {}
        }
    }
    // The readers' time begins now, however long the filling took.
    others.iter().for_each(|(_, b)| b.h.sock().tx.stuck.store(0, Ordering::Relaxed));
    assert_eq!(poll_on(&[(set.ep, PIN)], 0), (0, vec![0]));
    assert_eq!(a.send(b"x"), 1);
    assert_eq!(poll_on(&[(set.ep, PIN)], 0), (1, vec![PIN]));
}

#[test]
fn of_three_threads_asleep_on_one_edge_one_wakes() {
    let set = Set::new();
    let (a, _b) = warm_pair(&set, IN | ET, 1);
    while !set.wait(0).is_empty() {}
    let woken: usize = thread::scope(|scope| {
        let sleepers: Vec<_> = (0..3).map(|_| scope.spawn(|| set.wait(300).len())).collect();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(a.send(b"x"), 1);
        sleepers.into_iter().map(|s| s.join().expect("sleeper")).sum()
    });
    assert_eq!(woken, 1);
}

#[test]
fn a_change_of_the_set_wakes_the_thread_that_sleeps_in_it() {
    let set = Set::new();
    let (a, b) = connected();
    warm(&a, &b);
    assert_eq!(a.send(b"x"), 1);
    assert_eq!(meanwhile(|| set.add(&b, IN, 1), || set.wait(5000)), [(IN, 1)], "by add");
    set.modify(&b, 0, 2);
    assert_eq!(meanwhile(|| set.modify(&b, IN, 3), || set.wait(5000)), [(IN, 3)], "by modify");
    assert_eq!(b.take(), 1);
    assert_eq!(
        meanwhile(|| assert_eq!((set.delete(&b), a.send(b"y")), (0, 1)), || set.wait(100)),
        [],
        "not after delete"
    );
}

#[test]
fn a_thread_that_leaves_hands_over_to_one_that_sleeps() {
    let set = Set::new();
    let (a, b) = warm_pair(&set, IN, 1);
    let (c, d) = warm_pair(&set, IN, 2);
    let seen = thread::scope(|scope| {
        let sleeper = scope.spawn(|| set.wait_max(1, 5000));
        thread::sleep(Duration::from_millis(30));
        assert_eq!(a.send(b"x"), 1);
        let first = sleeper.join().expect("sleeper");
        let sleeper = scope.spawn(|| {
            let got = set.wait_max(1, 5000);
            b.take();
            got
        });
        let second = sleeper.join().expect("sleeper");
        // This thread takes one event and leaves; what comes then is the sleeper's.
        let sleeper = scope.spawn(|| set.wait(5000));
        thread::sleep(Duration::from_millis(30));
        assert_eq!(set.wait_max(1, 0), []);
        assert_eq!(c.send(b"y"), 1);
        (first, second, sleeper.join().expect("sleeper"))
    });
    assert_eq!(seen, (vec![(IN, 1)], vec![(IN, 1)], vec![(IN, 2)]));
    assert_eq!(d.take(), 1);
}
