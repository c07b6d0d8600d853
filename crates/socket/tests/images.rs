//! Sockets of a process that starts another image, or tries to.

mod support;

use ropeway_shm::sys;
use ropeway_shm::table::PAIR_NONE;
use ropeway_socket::lifecycle;
use std::io::{Read, Write, pipe};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use support::{connected, forked, on_tcp, rest, says_yes, warm, within};

const LIMIT: Duration = Duration::from_secs(60);

/// One test at a time: all sockets of the process are concerned.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_socket_is_shared_while_one_of_its_processes_tries_to_start_another_image() {
    let _alone = alone();
    within(LIMIT, "an exec that fails", || {
        let (a, b) = on_tcp();
        let (mut begun, begins) = pipe().expect("pipe");
        let (goes_on, mut go_on) = pipe().expect("pipe");
        lifecycle::fork_prepare();
        let child = forked(|| {
            lifecycle::before_exec(|| false);
            let told = (&begins).write(b"x").is_ok() && (&goes_on).read(&mut [0]).is_ok();
            lifecycle::exec_failed();
            told && a.recv(&mut [0; 8]) == 4
        });
        begun.read_exact(&mut [0]).expect("the child has begun");
        assert!(!lifecycle::sole_owner(a.h.sock()));
        support::pair_up(&a, &b);
        assert_eq!(a.h.sock().pairing.load(Ordering::Acquire), PAIR_NONE, "it is not promoted");
        go_on.write_all(b"x").expect("the child waits");
        assert_eq!(b.send(b"both"), 4);
        assert!(says_yes(child));
        assert!(lifecycle::sole_owner(a.h.sock()));
    });
}

#[test]
fn a_process_that_has_started_another_image_has_nothing_any_more_that_is_closed_on_exec() {
    let _alone = alone();
    within(LIMIT, "an exec", || {
        let (a, b) = on_tcp();
        lifecycle::fork_prepare();
        let child = forked(|| {
            lifecycle::before_exec(|| false);
            let arguments = [c"sleep".as_ptr(), c"100".as_ptr(), std::ptr::null()];
            // SAFETY: strings of C, and a list that ends with a null.
            unsafe { libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr()) };
            false
        });
        while !lifecycle::sole_owner(a.h.sock()) || !lifecycle::sole_owner(b.h.sock()) {
            rest();
        }
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(child, 0) }, 0);
        let command = std::fs::read_to_string(format!("/proc/{child}/comm")).expect("it runs");
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        assert_eq!(command, "sleep\n");
        assert!(!says_yes(child));
    });
}

fn linger(fd: i32) -> [i32; 2] {
    let (mut linger, mut len) = ([-1; 2], 8u32);
    // SAFETY: value and length are writable.
    unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger.as_mut_ptr().cast(), &mut len) }
        .expect("an option");
    linger
}

#[test]
fn a_socket_that_stays_open_by_another_number_is_left_to_the_next_image_as_it_is() {
    let _alone = alone();
    within(LIMIT, "an exec", || {
        let (a, b) = connected();
        warm(&a, &b);
        // Inherited, and behind the number that is closed.
        let stays = sys::fcntl(a.fd, libc::F_DUPFD, a.fd as usize).expect("dup") as i32;
        lifecycle::duplicated(a.fd, stays);
        assert_eq!(b.send(b"unread"), 6);
        let linger_before = linger(stays);
        let owns = || a.h.sock().owners.iter().any(|owner| owner.load(Ordering::Acquire) == std::process::id());
        let passed_on = std::thread::scope(|scope| {
            // The peer answers where it sleeps.
            scope.spawn(|| assert_eq!(b.recv(&mut [0]), 1));
            std::thread::sleep(Duration::from_millis(100));
            lifecycle::before_exec(|| false);
            let passed_on = (linger(stays), owns());
            lifecycle::exec_failed();
            assert_eq!(a.send(b"!"), 1);
            passed_on
        });
        assert_eq!(passed_on, (linger_before, true));
        let mut bytes = [0; 8];
        assert_eq!((a.recv(&mut bytes), &bytes[..6]), (6, &b"unread"[..]));
        drop(lifecycle::closing(stays));
        sys::close(stays).expect("close");
    });
}
