//! What a thread still uses while another one closes the socket, or gives its pair back: records of the table, descriptors,
//! mapped rings. What a test gets wrong here may end the whole program (SIGSEGV).

mod support;

use ropeway_shm::segment::{MIN_RING_BYTES, PAGE_BYTES, Pair, Stamps};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_PEER_FIN, PAIR_LEFT, PAIR_MAPPED, PAIR_NONE, PAIR_REGISTERED, RX_ATTACHED, Sock};
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::reason::Reason;
use ropeway_socket::{adopt, handover, lifecycle, process, promote, recv, send, shadow, thread, wait};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{
    End, IN, Set, connected, forked, native, new_pair, on_tcp, poll_on, recv_on, rest, says_yes, send_on, warm,
    warm_pair, within,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A number that leads nowhere.
const NOTHING: i32 = -1;

/// One test at a time: they depend on which record is taken next, and one of them forks.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- records ----

/// Tracks and closes a descriptor again and again: every so often this looks for abandoned records.
fn come_and_go(fd: i32) {
    for _ in 0..100_000 {
        lifecycle::accepted(None, fd, 0);
        lifecycle::closing(fd);
    }
}

fn socket() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    TcpStream::connect(listener.local_addr().expect("address")).expect("connect")
}

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

fn receive(h: Handle, fd: i32) -> isize {
    recv_on(h, fd, &mut [0; 8], 0)
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

/// Sends a file of so many bytes.
fn send_file_on(h: Handle, fd: i32, bytes: usize) -> isize {
    // SAFETY: a valid C string.
    let file = unsafe { sys::memfd_create(c"file".as_ptr().cast(), libc::MFD_CLOEXEC) }.expect("memfd");
    // SAFETY: nobody else has it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(file as i32) });
    file.write_all(&vec![7; bytes]).expect("written");
    let mut offset = 0;
    // SAFETY: the offset is valid.
    unsafe { send::sendfile(h, fd, file.as_raw_fd(), &raw mut offset, bytes, || panic!("on a ring")) }
}

/// Gives the number of an end to another connection, as `dup2` does.
fn give_to(end: &End, next: &End) {
    let _until_replaced = lifecycle::replacing(end.fd, next.fd).expect("a descriptor of the program");
    sys::dup2(next.fd, end.fd).expect("dup2");
    lifecycle::duplicated(next.fd, end.fd);
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

fn is_open(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

fn descriptors(h: Handle) -> u32 {
    process::local(h.index()).fds.load(Ordering::Acquire)
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

// ---- rings ----

/// Waits until the thread with this number sleeps in the kernel.
fn until_asleep(tid: &AtomicU32) {
    let sleeps = || match tid.load(Ordering::Acquire) {
        0 => false,
        tid => {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).expect("a thread of ours");
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
        }
    };
    while !sleeps() {
        std::thread::yield_now();
    }
}

/// Starts a call on an end that waits on the ring, and comes back when it sleeps.
fn asleep_on(end: &End, call: fn(Handle, i32) -> isize) -> JoinHandle<isize> {
    let (h, fd) = (end.h, end.fd);
    let tid = Arc::new(AtomicU32::new(0));
    let thread = std::thread::spawn({
        let tid = Arc::clone(&tid);
        move || {
            tid.store(sys::gettid().expect("gettid") as u32, Ordering::Release);
            call(h, fd)
        }
    });
    until_asleep(&tid);
    thread
}

/// The same, and closes the end then.
fn close_sleeping(end: End, call: fn(Handle, i32) -> isize) -> JoinHandle<isize> {
    let thread = asleep_on(&end, call);
    drop(end);
    thread
}

/// Closes the number of an end as `dup2` of a pipe does, on which nothing ever happens.
fn give_to_a_quiet_pipe(end: &End, quiet: &impl AsRawFd) {
    let _until_replaced = lifecycle::replacing(end.fd, quiet.as_raw_fd()).expect("a descriptor of the program");
    sys::dup2(quiet.as_raw_fd(), end.fd).expect("dup2");
}

const ROUNDS: u64 = 500;

/// What random moments are drawn from; says how to draw the same again.
fn first_draw() -> u64 {
    let draw = std::env::var("ROPEWAY_SEED").map_or(0x9E37_79B9, |seed| seed.parse().expect("a number")) | 1u64;
    println!("again: ROPEWAY_SEED={draw} cargo test -p ropeway-socket --test lifetimes");
    draw
}

fn next_delay(draw: &mut u64, most: Duration) -> Duration {
    *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    Duration::from_nanos((*draw >> 33) % most.as_nanos() as u64)
}

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
        s.expected.store(shared as u32, Ordering::Release);
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
        lifecycle::fork_parent(child < 0);
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

// ---- sets ----

/// Epoll sets that this process has in the kernel.
fn sets_in_the_kernel() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors of this process");
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| leads_to_a_set(link)).count()
}

fn leads_to_a_set(link: &Path) -> bool {
    link.to_string_lossy().contains("eventpoll")
}

/// The numbers of Ropeway's own descriptors.
fn ropeways_own() -> impl Iterator<Item = i32> {
    (0..fdtable::MAX_FDS as i32).filter(|fd| fdtable::is_internal(*fd))
}

#[test]
fn a_set_that_is_closed_under_a_wait_serves_it_and_is_gone_then() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let before = sets_in_the_kernel();
        let set = Set::new();
        let (a, b) = warm_pair(&set, IN, 7);
        let tid = Arc::new(AtomicU32::new(0));
        let waiter = std::thread::spawn({
            let (ep, tid) = (set.ep, Arc::clone(&tid));
            move || {
                tid.store(sys::gettid().expect("gettid") as u32, Ordering::Release);
                std::mem::ManuallyDrop::new(Set { ep }).wait(10_000)
            }
        });
        until_asleep(&tid);
        drop(set);
        let next = Set::new();
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(waiter.join().expect("the waiter"), [(IN, 7)]);
        assert_eq!(next.wait(0), []);
        next.add(&b, IN, 8);
        assert_eq!(next.wait(1000), [(IN, 8)]);
        drop(next);
        assert_eq!(sets_in_the_kernel(), before);
    });
}

#[test]
fn a_set_that_is_being_closed_shows_nobody_what_the_kernel_has_in_it() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let set = std::mem::ManuallyDrop::new(Set::new());
        let (a, b) = warm_pair(&set, IN, 7);
        // The shadow's event, which the kernel knows under our token.
        drop(a);
        rest();
        let closing = lifecycle::closing(set.ep).expect("a descriptor of the program");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| set.wait_into(&mut [libc::epoll_event { events: 0, u64: 0 }], 1000));
            let changes = scope.spawn(|| set.ctl(libc::EPOLL_CTL_ADD, b.fd, IN, 8));
            std::thread::sleep(Duration::from_millis(50));
            sys::close(set.ep).expect("close");
            drop(closing);
            let answers = [waits, changes].map(|thread| thread.join().expect("the caller"));
            assert_eq!(answers, [-(libc::EBADF as isize); 2]);
        });
        assert_eq!(fdtable::lookup(set.ep), None);
    });
}

#[test]
fn a_wait_on_a_number_that_dup2_is_replacing_waits_in_the_set_that_has_it_next() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let (set, next) = (Set::new(), Set::new());
        let pairs = [warm_pair(&set, IN, 7), warm_pair(&next, IN, 8)];
        assert_eq!(pairs.each_ref().map(|(a, _)| a.send(b"x")), [1; 2]);
        let replacing = lifecycle::replacing(set.ep, next.ep).expect("a descriptor of the program");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| set.wait(1000));
            std::thread::sleep(Duration::from_millis(50));
            sys::dup2(next.ep, set.ep).expect("dup2");
            lifecycle::duplicated(next.ep, set.ep);
            drop(replacing);
            assert_eq!(waits.join().expect("the waiter"), [(IN, 8)]);
        });
    });
}

/// Threads asleep in the set, each for `ms` at most; each takes a byte of `end` if the set reports it, and says how often it did.
fn asleep_in(set: &Set, count: usize, ms: i32, end: &End) -> Vec<JoinHandle<usize>> {
    let tids: Arc<Vec<AtomicU32>> = Arc::new((0..count).map(|_| AtomicU32::new(0)).collect());
    let waiters = (0..count).map(|i| {
        let (ep, h, fd, tids) = (set.ep, end.h, end.fd, Arc::clone(&tids));
        std::thread::spawn(move || {
            tids[i].store(sys::gettid().expect("gettid") as u32, Ordering::Release);
            let reported = std::mem::ManuallyDrop::new(Set { ep }).wait(ms).len();
            if reported != 0 {
                recv_on(h, fd, &mut [0], libc::MSG_DONTWAIT);
            }
            reported
        })
    });
    let waiters = waiters.collect();
    tids.iter().for_each(until_asleep);
    waiters
}

#[test]
fn a_set_that_is_closed_under_two_waits_serves_the_second_when_the_first_has_returned() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let before = sets_in_the_kernel();
        let (a, b) = connected();
        warm(&a, &b);
        for _ in 0..40 {
            let set = Set::new();
            set.add(&b, IN, 7);
            let waiters = asleep_in(&set, 2, 40, &b);
            drop(set);
            // Both wake, and one finds nothing.
            assert_eq!(a.send(b"x"), 1);
            let reported: usize = waiters.into_iter().map(|waiter| waiter.join().expect("a waiter")).sum();
            assert!((1..=2).contains(&reported), "{reported}");
            b.take();
        }
        assert_eq!(sets_in_the_kernel(), before);
    });
}

#[test]
fn what_the_program_puts_in_the_place_of_a_set_that_is_kept_for_a_wait_stays_open() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let set = Set::new();
        let (_a, b) = warm_pair(&set, IN, 7);
        let waiters = asleep_in(&set, 1, 100, &b);
        drop(set);
        let is_a_set =
            |fd: &i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|link| leads_to_a_set(&link));
        let number = ropeways_own().find(is_a_set).expect("the set is kept");
        let (quiet, _writer) = std::io::pipe().expect("pipe");
        lifecycle::give_way(number);
        sys::dup2(quiet.as_raw_fd(), number).expect("dup2");
        assert_eq!(waiters.into_iter().map(|waiter| waiter.join().expect("a waiter")).sum::<usize>(), 0);
        assert!(is_open(number));
        sys::close(number).expect("close");
    });
}

#[test]
fn what_the_program_puts_in_the_place_of_a_socket_that_is_kept_for_a_receive_stays_open() {
    let _alone = alone();
    within(LIMIT, "a socket", || {
        let (a, b) = connected();
        warm(&a, &b);
        let h = a.h;
        let reader = close_sleeping(a, receive);
        let number = lifecycle::kept_fd(h).expect("the socket is kept");
        let (quiet, _writer) = std::io::pipe().expect("pipe");
        lifecycle::give_way(number);
        sys::dup2(quiet.as_raw_fd(), number).expect("dup2");
        assert_eq!(b.send(b"late"), 4);
        assert_eq!(reader.join().expect("the reader"), 4);
        assert!(is_open(number));
        sys::close(number).expect("close");
    });
}

#[test]
fn a_child_keeps_no_bell_of_a_set_that_a_close_kept_for_a_thread_of_its_parent() {
    let _alone = alone();
    within(LIMIT, "forking", || {
        let set = Set::new();
        let (_a, b) = warm_pair(&set, IN, 7);
        let waiters = asleep_in(&set, 1, 300, &b);
        drop(set);
        lifecycle::fork_prepare();
        let child = forked(|| !ropeways_own().any(is_a_bell));
        assert!(ropeways_own().any(is_a_bell), "the set's own, in the parent");
        assert!(says_yes(child));
        waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().expect("a waiter"), 0));
    });
}

/// Of Ropeway's own descriptors, bells are sockets with a name.
fn is_a_bell(fd: i32) -> bool {
    // SAFETY: zeroes are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is writable for `len` bytes.
    let answer = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut len) };
    answer == 0 && len as usize > size_of::<libc::sa_family_t>()
}

// ---- halves of pairs ----

/// Gives the end one half of a pair, of which the other is returned.
fn give_half(end: &End) -> Pair {
    let memory = new_pair();
    let other = Pair::map(memory, MIN_RING_BYTES, 1).expect("mapped");
    end.h.sock().pairing.store(PAIR_REGISTERED, Ordering::Release);
    promote::granted(end.h.token(), 0, MIN_RING_BYTES, memory);
    sys::close(memory).expect("close");
    assert_eq!(end.h.sock().pairing.load(Ordering::Acquire), PAIR_MAPPED);
    other
}

#[test]
fn a_half_that_another_thread_is_giving_back_is_not_looked_at() {
    let _alone = alone();
    let (a, b) = on_tcp();
    let s = a.h.sock();
    let other = give_half(&a);
    let page = handover::pair(s).expect("mapped").address() as *mut libc::c_void;
    // SAFETY: a page of the half, which nobody should touch.
    let protect = |protection| assert_eq!(unsafe { libc::mprotect(page, PAGE_BYTES, protection) }, 0);
    assert_eq!(b.send(b"12"), 2);
    rest();
    // In the place of that thread.
    assert!(s.lock.try_lock(thread::me()));
    protect(libc::PROT_NONE);
    assert_eq!(a.recv(&mut [0; 1]), 1);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    s.lock.unlock();
    assert!(other.give_up());
    assert_eq!(a.recv(&mut [0; 1]), 1);
    assert_eq!(s.pairing.load(Ordering::Acquire), PAIR_NONE, "nobody else was at it");
    // SAFETY: nobody else has seen this mapping.
    unsafe { other.unmap() };
}

#[test]
fn a_half_is_not_unmapped_while_a_shutdown_holds_the_direction() {
    let _alone = alone();
    let (a, b) = on_tcp();
    let s = a.h.sock();
    let other = give_half(&a);
    let half = handover::pair(s).expect("mapped");
    assert!(other.give_up());
    assert_eq!(b.send(b"1"), 1);
    assert!(s.tx.lock.try_lock(thread::me()));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| a.recv(&mut [0; 1]));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished());
        assert_eq!(half.stamps(), Stamps::Void, "it is still mapped");
        s.tx.lock.unlock();
        assert_eq!(reader.join().expect("the reader"), 1);
    });
    assert!(handover::pair(s).is_none());
    // SAFETY: nobody else has seen this mapping.
    unsafe { other.unmap() };
}
