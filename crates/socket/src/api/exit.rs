//! The end of the process: what was sent still has to arrive.

use super::{Uncancelled, home};

/// Has the engines of this process finish what they have when it exits. Not when it is killed, nor by `_exit`.
pub fn register() {
    // SAFETY: the handler is a function of this library, which glibc calls before the library goes.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    // Somebody may want this thread cancelled, and it is not to be unwound from here.
    let _uncancelled = Uncancelled::begin();
    home::finish_all();
}
