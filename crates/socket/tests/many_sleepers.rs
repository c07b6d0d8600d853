//! A server with a thread for each of its connections, all of which have nothing to do.

mod support;

use std::time::Duration;
use support::{End, connected, warm, within};

/// The processor time of all threads of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_hundred_threads_that_wait_for_bytes_use_no_processor_until_they_come() {
    within(Duration::from_secs(30), "a hundred sleepers", || {
        let pairs: Vec<(End, End)> = (0..100).map(|_| connected()).collect();
        pairs.iter().for_each(|(a, b)| warm(a, b));
        assert!(pairs.iter().all(|(a, b)| a.on_rings() && b.on_rings()));
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = pairs.iter().map(|(_, b)| scope.spawn(|| b.recv(&mut [0]))).collect();
            std::thread::sleep(Duration::from_millis(500));
            let before = cpu_time();
            std::thread::sleep(Duration::from_secs(1));
            let used = cpu_time() - before;
            pairs.iter().for_each(|(a, _)| assert_eq!(a.send(b"x"), 1));
            sleepers.into_iter().for_each(|sleeper| assert_eq!(sleeper.join().expect("a sleeper"), 1));
            assert!(used < Duration::from_millis(30), "{used:?} of processor time in a second");
        });
    });
}
