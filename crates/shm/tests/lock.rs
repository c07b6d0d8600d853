//! Locks that several processes share, and what happens when a holder dies.

#![cfg(not(loom))]

use ropeway_shm::lock::{Holder, Lock, Taken, holder};
use ropeway_shm::sys;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn me() -> Holder {
    holder(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32)
}

/// A page that parent and children share.
fn shared<T>() -> &'static T {
    assert!(size_of::<T>() <= 4096);
    // SAFETY: a new mapping of zeroes, a valid state of the atomics that the tests put there; never unmapped.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let page = sys::mmap(core::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).unwrap();
        &*(page as *const T)
    }
}

/// Runs `f` in a child process, which ends when `f` does. Only async-signal-safe things may happen in `f`.
fn child(f: impl FnOnce()) -> i32 {
    // SAFETY: the child touches shared memory and makes plain system calls only.
    match unsafe { libc::fork() } {
        0 => {
            f();
            // SAFETY: ends the child without running anything of the test harness.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

fn reap(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is writable.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status
}

#[test]
fn threads_exclude_each_other() {
    static LOCK: Lock = Lock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    assert_eq!(LOCK.lock(me()), Taken::Clean);
                    // Not atomic as a whole: only the lock makes it right.
                    COUNT.store(COUNT.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    LOCK.unlock();
                }
            });
        }
    });
    assert_eq!(COUNT.load(Ordering::Relaxed), 80_000);
    assert_eq!(LOCK.owner(), 0);
}

#[test]
fn a_lock_is_taken_over_from_a_process_that_was_killed() {
    let lock: &Lock = shared();
    let pid = child(|| {
        lock.lock(me());
        loop {
            let _ = sys::sched_yield();
        }
    });
    while lock.owner() == 0 {
        std::thread::yield_now();
    }
    assert!(!lock.try_lock(me()), "its holder lives");
    sys::kill(pid, libc::SIGKILL).unwrap();
    reap(pid);
    assert_eq!(lock.lock(me()), Taken::FromTheDead);
    lock.unlock();
    assert_eq!(lock.lock(me()), Taken::Clean, "once is enough");
    lock.unlock();
}

/// The parent of a killed child may be the one that waits: the zombie stays until the wait is over.
#[test]
fn a_lock_is_taken_over_from_a_zombie() {
    let lock: &Lock = shared();
    let pid = child(|| {
        lock.lock(me());
    });
    while lock.owner() == 0 {
        std::thread::yield_now();
    }
    let start = Instant::now();
    assert_eq!(lock.lock(me()), Taken::FromTheDead);
    assert!(start.elapsed() < Duration::from_secs(5));
    lock.unlock();
    assert_eq!(reap(pid), 0);
}

#[test]
fn a_holder_sees_that_another_process_waits_and_takes_no_notice_of_its_own_threads() {
    let lock: &Lock = shared();
    lock.lock(me());
    let mine = lock.owner();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock.lock(me());
            lock.unlock();
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!lock.is_wanted());
        let pid = child(|| {
            lock.lock(me());
            lock.unlock();
        });
        while !lock.is_wanted() {
            std::thread::yield_now();
        }
        assert_eq!(lock.owner(), mine);
        lock.unlock();
        assert_eq!(reap(pid), 0);
    });
    assert_eq!(lock.owner(), 0);
}

#[test]
fn a_lock_is_taken_over_from_a_thread_that_ended() {
    static LOCK: Lock = Lock::new();
    std::thread::spawn(|| assert_eq!(LOCK.lock(me()), Taken::Clean)).join().unwrap();
    assert_eq!(LOCK.lock(me()), Taken::FromTheDead);
    LOCK.unlock();
}

#[test]
fn a_stopped_holder_keeps_its_lock() {
    let lock: &Lock = shared();
    let pid = child(|| {
        lock.lock(me());
        // SAFETY: stops this child until the parent lets it go on.
        unsafe { libc::raise(libc::SIGSTOP) };
        lock.unlock();
    });
    let mut status = 0;
    // SAFETY: `status` is writable.
    unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    let waiter = std::thread::spawn(move || {
        let taken = lock.lock(me());
        lock.unlock();
        taken
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.is_finished(), "a holder that is only stopped will go on");
    sys::kill(pid, libc::SIGCONT).unwrap();
    assert_eq!(waiter.join().unwrap(), Taken::Clean);
    reap(pid);
}

#[test]
fn of_many_waiters_exactly_one_takes_over() {
    for _ in 0..20 {
        let lock: &Lock = shared();
        let pid = child(|| {
            lock.lock(me());
        });
        while lock.owner() == 0 {
            std::thread::yield_now();
        }
        let taken: Vec<Taken> = std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let taken = lock.lock(me());
                        std::thread::yield_now();
                        lock.unlock();
                        taken
                    })
                })
                .collect();
            waiters.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|t| **t == Taken::FromTheDead).count(), 1, "{taken:?}");
        reap(pid);
    }
}

#[test]
fn threads_and_processes_are_told_from_those_that_are_gone() {
    assert!(sys::thread_exists(sys::getpid().unwrap() as u32, sys::gettid().unwrap() as u32));
    assert!(sys::thread_exists(1, 1), "of another user, perhaps: still there");
    let pid = child(|| {}) as u32;
    while sys::thread_exists(pid, pid) || sys::process_exists(pid) {
        std::thread::yield_now();
    }
    reap(pid as i32);
    assert!(!sys::process_exists(pid), "neither as a zombie nor after that");
    assert!(sys::process_exists(sys::getpid().unwrap() as u32));
}

/// From here on the system call ends this process.
fn forbid(nr: libc::c_long) {
    let step = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, nr as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: plain numbers, and a filter that lives until the kernel has copied it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn a_forked_child_asks_of_its_parent_without_a_descriptor() {
    let parent = sys::getpid().unwrap() as u32;
    let found: &AtomicU64 = shared();
    let pid = child(|| {
        forbid(libc::SYS_pidfd_open);
        found.store(u64::from(sys::process_exists(parent)), Ordering::SeqCst);
    });
    assert_eq!(reap(pid), 0, "ended by a system call that it need not make");
    assert_eq!(found.load(Ordering::SeqCst), 1);
}

#[test]
fn an_orphan_finds_that_its_parent_is_gone() {
    let found: &AtomicU64 = shared();
    let pid = child(|| {
        let parent = sys::getpid().unwrap() as u32;
        child(|| {
            while sys::process_exists(parent) {
                sys::nap(1_000_000);
            }
            found.store(1, Ordering::SeqCst);
        });
    });
    // Not reaped yet: a zombie has no descriptors either.
    let begin = Instant::now();
    while found.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "still taken for alive");
        std::thread::yield_now();
    }
    reap(pid);
}
