//! Sleepers are rung by processes that have no descriptor left, by children of fork, and after a ring that was refused.

mod support;

use ropeway_socket::{bells, stats};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use support::{connected, rest, within};

/// Bells and limits are the process's.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Opens files until no descriptor is left.
fn all_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// A bell for the next wait, which thus needs no descriptor.
fn prepare_a_bell() {
    bells::put_back(bells::borrow().expect("a bell"), || {});
}

/// One end sleeps until the other sends.
fn wake_a_sleeper() {
    let (a, b) = connected();
    let files = all_descriptors();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| b.recv(&mut [0]));
        rest();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(a.send(b"w"), 1);
        assert_eq!(sleeper.join().expect("the sleeper"), 1);
    });
    drop(files);
}

#[test]
fn a_sleeper_is_rung_though_no_descriptor_is_left() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    within(Duration::from_secs(20), "a ring", || {
        // SAFETY: the limits are valid.
        unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = 64;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        prepare_a_bell();
        wake_a_sleeper();
        bells::after_fork_child();
        prepare_a_bell();
        wake_a_sleeper();
    });
}

/// The bell that the next thread to sleep borrows.
fn next_bell() -> UnixDatagram {
    let lent = bells::borrow().expect("a bell");
    // SAFETY: the bell is kept open.
    let bell = unsafe { BorrowedFd::borrow_raw(lent.bell.fd) }.try_clone_to_owned().expect("a descriptor");
    bells::put_back(lent, || {});
    bell.into()
}

#[test]
fn a_bell_that_was_closed_behind_our_back_is_not_lent_again() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lent = bells::borrow().expect("a bell");
    // SAFETY: nobody else has the bell, or looks for its number.
    unsafe { libc::close(lent.bell.fd) };
    bells::note_events(&lent.bell, libc::POLLNVAL);
    bells::put_back(lent, || {});
    next_bell();
}

#[test]
fn a_ring_that_was_refused_is_owed_until_the_next_send() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    within(Duration::from_secs(20), "a ring", || {
        let (a, b) = connected();
        let bell = next_bell();
        // Whoever is connected takes datagrams of that peer alone: EPERM, as from a sandbox.
        let name = SocketAddr::from_abstract_name(format!("ropeway-test/{}", std::process::id())).expect("a name");
        let _only_friend = UnixDatagram::bind_addr(&name).expect("a socket");
        bell.connect_addr(&name).expect("a connection");
        let slept = || stats::TOTALS.slept.load(Ordering::Relaxed);
        let before = slept();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| b.recv(&mut [0; 2]));
            while slept() == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(a.send(b"r"), 1);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!sleeper.is_finished(), "the ring was not refused");
            dissolve(&bell);
            assert_eq!(a.send(b"w"), 1);
            assert_eq!(sleeper.join().expect("the sleeper"), 2);
        });
    });
}

/// Lets the socket take datagrams of everybody again.
fn dissolve(socket: &UnixDatagram) {
    let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: a valid address of that length.
    let done = unsafe { libc::connect(socket.as_raw_fd(), &nobody, size_of_val(&nobody) as u32) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
