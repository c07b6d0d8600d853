//! Descriptors of our own stay out of the program's way. Alone in its process: it changes the limit on descriptors.

#![cfg(not(loom))]

use ropeway_shm::bell::Bell;
use ropeway_shm::sys;

#[test]
fn many_threads_moving_descriptors_leave_the_programs_limit_as_it_was() {
    let limit = || {
        let mut lim = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `lim` is writable.
        unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, core::ptr::null(), &mut lim).unwrap() };
        (lim.rlim_cur, lim.rlim_max)
    };
    // So low that descriptors go above it, whatever the machine's default is.
    let low = libc::rlimit64 { rlim_cur: 1024, rlim_max: limit().1 };
    assert!(low.rlim_max >= 4096, "the hard limit leaves no room for this test");
    // SAFETY: `low` is readable.
    unsafe { sys::prlimit(0, libc::RLIMIT_NOFILE, &low, core::ptr::null_mut()).unwrap() };
    let before = limit();
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
