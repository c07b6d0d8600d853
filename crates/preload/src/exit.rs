//! The ways out of a process: all lead through [`leave`] once, before the kernel closes everything.

use crate::lifecycle::following;
use crate::next;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use ropeway_shm::sys;
use ropeway_socket::{lifecycle, process};

static LEFT: AtomicBool = AtomicBool::new(false);

/// What is due before the process ends. Later calls do nothing, nor do those of a child in the memory of this process.
pub fn leave() {
    if following() && sys::getpid() == Ok(process::pid() as usize) && !LEFT.swap(true, Ordering::AcqRel) {
        lifecycle::at_exit();
    }
}

/// In the child of fork: this process has not left yet.
pub fn after_fork_child() {
    LEFT.store(false, Ordering::Relaxed);
}

hooks! {
    fn _exit(status: c_int) -> ! {
        leave();
        next::_exit(status)
    }

    fn _Exit(status: c_int) -> ! {
        leave();
        next::_Exit(status)
    }

    fn quick_exit(status: c_int) -> ! {
        leave();
        next::quick_exit(status)
    }
}
