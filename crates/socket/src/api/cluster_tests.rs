//! What forked children do with what forwards.

use super::Forwarder;
use ropeway_testkit::proc::until;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_forked_child_that_drops_what_would_forward_waits_for_nobody_and_ends_nothing() {
    let forwards = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&forwards);
    let forwarder = Forwarder::waiting(move || set.store(true, Ordering::Relaxed)).unwrap();
    // SAFETY: the child only drops what it has, and leaves without running anything of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal for this child only, should it hang.
        unsafe { libc::alarm(10) };
        let is_dropped = catch_unwind(AssertUnwindSafe(|| drop(forwarder))).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_dropped)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(!forwards.load(Ordering::Relaxed));
    forwarder.start();
    until("the parent's forwards", || forwards.load(Ordering::Relaxed));
}
