//! Waits of a process that may not spin, as on one processor or among too many threads: every look that leads nowhere ends
//! in a sleep, and every sleep in an answer.

mod support;

use ropeway_shm::table::{RX_ATTACHED, RX_DRAIN, TX_RING};
use ropeway_socket::{poll, settings};
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{ET, IN, Set, connected, poll_on, rest, warm_pair, within};

fn may_not_spin() {
    settings::init(|name| if name == b"ROPEWAY_SPIN_US" { c"0".as_ptr().cast() } else { std::ptr::null() });
}

fn watched_pipe(set: &Set, data: u64) -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("pipe");
    assert_eq!(set.ctl(libc::EPOLL_CTL_ADD, reader.as_raw_fd(), IN, data), 0);
    (reader, writer)
}

/// The processor time that the calling thread spends in `f`.
fn cpu_time(f: impl FnOnce()) -> Duration {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = now();
    f();
    now() - before
}

#[test]
fn a_set_inside_another_lets_it_sleep_and_tell() {
    may_not_spin();
    within(Duration::from_secs(20), "nested sets", || {
        let (outer, inner) = (Set::new(), Set::new());
        let (a, b) = warm_pair(&inner, IN, 7);
        assert_eq!(outer.ctl(libc::EPOLL_CTL_ADD, inner.ep, IN, 1), 0);
        let (_reader, mut writer) = watched_pipe(&outer, 2);
        let began = Instant::now();
        let busy = cpu_time(|| assert_eq!(outer.wait(100), []));
        assert!(began.elapsed() >= Duration::from_millis(99), "it ended after {:?}", began.elapsed());
        assert!(busy < Duration::from_millis(50), "{busy:?} of processor time in a sleep of 100 ms");
        writer.write_all(b"x").expect("write");
        assert_eq!(outer.wait(-1), [(IN, 2)]);
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(outer.wait(-1), [(IN, 1), (IN, 2)]);
        assert_eq!(inner.wait(-1), [(IN, 7)]);
        assert_eq!(b.take(), 1);
        assert_eq!(outer.wait(-1), [(IN, 2)]);
    });
}

#[test]
fn an_edge_triggered_wait_sleeps_beside_unread_data_behind_which_the_ring_has_ended() {
    may_not_spin();
    within(Duration::from_secs(20), "an ended ring", || {
        let set = Set::new();
        let (a, b) = warm_pair(&set, IN | ET, 7);
        while !set.wait(0).is_empty() {}
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(set.wait(-1), [(IN, 7)]);
        assert_eq!(a.shutdown(libc::SHUT_WR), 0);
        rest();
        set.wait(0);
        let began = Instant::now();
        let busy = cpu_time(|| assert_eq!(set.wait(100), []));
        assert!(began.elapsed() >= Duration::from_millis(99), "it ended after {:?}", began.elapsed());
        assert!(busy < Duration::from_millis(50), "{busy:?} of processor time in a sleep of 100 ms");
        assert_eq!(b.take(), 1);
    });
}

#[test]
fn an_edge_triggered_wait_sleeps_beside_unread_bytes_of_tcp_behind_which_the_ring_goes_on() {
    may_not_spin();
    within(Duration::from_secs(20), "bytes before a ring", || {
        let set = Set::new();
        let (a, b) = connected();
        b.nonblocking(true);
        set.add(&b, IN | ET, 7);
        assert_eq!(set.wait(0), []);
        assert_eq!(a.send(b"tcp"), 3);
        assert_eq!(set.wait(-1), [(IN, 7)]);
        let (rx, tx) = (&b.h.sock().rx.phase, &a.h.sock().tx.phase);
        while rx.load(Ordering::Relaxed) != RX_ATTACHED {
            assert_eq!(b.recv_flags(&mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT), 1);
        }
        assert_eq!(a.send(b"ring"), 4);
        while !set.wait(0).is_empty() {}
        assert_eq!((rx.load(Ordering::Relaxed), tx.load(Ordering::Relaxed)), (RX_DRAIN, TX_RING));
        let before = sleeps();
        assert_eq!(set.wait(100), []);
        let sleeps = sleeps() - before;
        assert!(sleeps < 20, "{sleeps} sleeps in 100 ms");
        assert_eq!(b.recv(&mut [0; 3]), 3);
        assert_eq!(set.wait(0), [(IN, 7)], "what the ring has is next");
        assert_eq!(b.take(), 4);
    });
}

/// How often the calling thread has gone to sleep.
fn sleeps() -> i64 {
    // SAFETY: zeroes are valid, and writable.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

#[test]
fn a_poll_sleeps_until_the_ring_or_the_kernel_has_news() {
    may_not_spin();
    within(Duration::from_secs(20), "poll", || {
        let (a, b) = connected();
        support::warm(&a, &b);
        let (reader, mut writer) = pipe().expect("pipe");
        let wait = |ms| poll_on(&[(b.fd, libc::POLLIN), (reader.as_raw_fd(), libc::POLLIN)], ms);
        let busy = cpu_time(|| assert_eq!(wait(100), (0, vec![0, 0])));
        assert!(busy < Duration::from_millis(50), "{busy:?} of processor time in a sleep of 100 ms");
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(wait(-1), (1, vec![libc::POLLIN, 0]));
        writer.write_all(b"x").expect("write");
        assert_eq!(wait(-1), (2, vec![libc::POLLIN, libc::POLLIN]));
        assert_eq!(b.take(), 1);
        assert_eq!(wait(-1), (1, vec![0, libc::POLLIN]));
    });
}

#[test]
fn a_select_on_a_number_that_leads_nowhere_is_an_error() {
    may_not_spin();
    within(Duration::from_secs(20), "select", || {
        const NOWHERE: i32 = 1000;
        let (a, b) = connected();
        support::warm(&a, &b);
        let mut set = [0u64; 16];
        for fd in [b.fd, NOWHERE] {
            set[fd as usize / 64] |= 1 << (fd % 64);
        }
        let mut limit = libc::timeval { tv_sec: 5, tv_usec: 0 };
        let (set, none) = (set.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the set has room for all numbers below 1024; the time is valid.
        let answer = unsafe {
            poll::select(NOWHERE + 1, set, none, none, &mut limit, || {
                panic!("a socket on rings is not the kernel's alone")
            })
        };
        assert_eq!(answer, -(libc::EBADF as isize));
        a.close();
    });
}
