//! Sleepers are rung by processes that have no descriptor left, and by children of fork.

mod support;

use ropeway_socket::bells;
use std::fs::File;
use std::time::Duration;
use support::{connected, rest, within};

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
