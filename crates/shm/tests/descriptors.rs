//! Descriptors of our own stay out of the program's way. Alone in its process: it changes the limit on descriptors.

#![cfg(not(loom))]

use ropeway_shm::bell::Bell;
use ropeway_shm::sys::{self, RaisingLimit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

fn limit() -> (u64, u64) {
    let mut lim = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `lim` is writable.
    unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, core::ptr::null(), &mut lim).unwrap() };
    (lim.rlim_cur, lim.rlim_max)
}

/// So low that descriptors go above it, whatever the machine's default is.
fn low_limit() -> (u64, u64) {
    let low = libc::rlimit64 { rlim_cur: 1024, rlim_max: limit().1 };
    assert!(low.rlim_max >= 4096, "the hard limit leaves no room for this test");
    // SAFETY: `low` is readable.
    unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, &low, core::ptr::null_mut()).unwrap() };
    limit()
}

#[test]
fn a_process_that_is_made_while_the_limit_is_at_rest_has_the_programs() {
    const CHILDREN: u32 = 300;
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = low_limit();
    let enough = AtomicBool::new(false);
    let mut wrong = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                Bell::create().unwrap().close();
            }
        });
        for _ in 0..CHILDREN {
            let at_rest = (0..1000).find_map(|_| RaisingLimit::begin()).expect("nobody has it raised for long");
            // SAFETY: the child makes system calls only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(limit() != before)) };
            }
            drop(at_rest);
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            wrong += u32::from(status != 0);
        }
        enough.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong, 0, "of {CHILDREN} children");
}

#[test]
fn many_threads_moving_descriptors_leave_the_programs_limit_as_it_was() {
    let _alone = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = low_limit();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    Bell::create().unwrap().close();
                }
            });
        }
    });
    assert_eq!(limit(), before);
    let bell = Bell::create().unwrap();
    assert!((1024..1024 + 256).contains(&bell.fd), "number {} is in the program's way, or far out", bell.fd);
    bell.close();
}
