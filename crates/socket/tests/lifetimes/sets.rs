//! Epoll sets that are closed under those who wait in them, and what a close has kept.

use super::*;

/// Epoll sets that this process has in the kernel.
fn sets_in_the_kernel() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors of this process");
    let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| leads_to_a_set(link)).count()
}

fn leads_to_a_set(link: &Path) -> bool {
    link.to_string_lossy().contains("eventpoll")
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

/// What a wait on the number of a set reports within `ms`, where another thread does `f` before the kernel is asked.
fn reported_after(ep: i32, ms: i32, f: impl FnOnce() + Send) -> Vec<(u32, u64)> {
    reported_by(ep, ms, |kernel| {
        std::thread::scope(|scope| scope.spawn(f).join().expect("the other thread"));
        kernel()
    })
}

#[test]
fn a_set_whose_number_goes_to_another_one_before_the_kernel_is_asked_takes_none_of_its_events() {
    let _alone = alone();
    within(LIMIT, "two sets", || {
        for ms in [0, 50] {
            for events in [IN, IN | ET] {
                let (set, next) = (Set::new(), Set::new());
                let (a, b) = warm_pair(&next, events, 8);
                next.wait(0);
                // The kernel tells of the member by a token, once, and of the bell as long as it rings.
                drop(a);
                rest();
                assert_eq!(reported_after(set.ep, ms, || give_set_to(set.ep, &next)), [], "{ms} ms, {events:x}");
                let reported = set.wait(1000);
                assert!(matches!(reported[..], [(_, 8)]), "{reported:?}");
                drop(b);
            }
        }
    });
}

#[test]
fn a_number_that_comes_to_stand_for_a_set_before_the_kernel_is_asked_tells_no_tokens() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let next = Set::new();
        let (a, _b) = warm_pair(&next, IN, 8);
        drop(a);
        rest();
        // A set that nobody has told us of.
        // SAFETY: no pointers.
        let set = Set { ep: unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } };
        let reported = reported_after(set.ep, 1000, || give_set_to(set.ep, &next));
        assert!(matches!(reported[..], [(_, 8)]), "{reported:?}");
    });
}

#[test]
fn a_signal_that_came_while_the_kernel_was_asked_interrupts_a_wait_that_goes_on() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let next = Set::new();
        let (a, b) = warm_pair(&next, IN, 8);
        drop(a);
        rest();
        // SAFETY: no pointers.
        let set = Set { ep: unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let p = events.as_mut_ptr();
        // The kernel has a token to tell, of a member that is gone before anybody looks; and so long a handler runs.
        let native = || {
            give_set_to(set.ep, &next);
            // SAFETY: the array is valid for so many events.
            let n = unsafe { native(sys::epoll_pwait(set.ep, p, 4, 1000, std::ptr::null(), sys::SIGSET_BYTES)) };
            drop(b);
            thread::note_handler(true);
            n
        };
        // SAFETY: as above.
        let answer = unsafe { epoll::wait(set.ep, p, 4, 1000, std::ptr::null(), native) };
        assert_eq!(answer, -(libc::EINTR as isize));
    });
}

#[test]
fn a_set_whose_number_goes_to_another_one_while_a_wait_looks_at_it_serves_the_wait() {
    let _alone = alone();
    within(LIMIT, "two sets", || {
        let before = sets_in_the_kernel();
        let (set, next) = (Set::new(), Set::new());
        let [(a, b), (c, _d)] = [warm_pair(&set, IN, 7), warm_pair(&next, IN, 8)];
        assert_eq!(a.send(b"x"), 1);
        assert_eq!(members::reported_while(&set, 1000, b.h, || give_set_to(set.ep, &next)), [(IN, 7)]);
        assert_eq!(c.send(b"x"), 1);
        assert_eq!(set.wait(1000), [(IN, 8)]);
        assert_eq!(sets_in_the_kernel(), before + 2, "two descriptors of one set");
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
        assert!(ropeways_own().any(|fd| is_a_set(&fd)), "it is kept behind another number");
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
        assert!(lifecycle::kept_fd(h).is_some_and(|kept| kept != number), "it is kept behind another number");
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
