//! What happens to sockets when the process starts another image, or ends.

use super::{add_owner, leave, remove_owner, sole_owner, take_back};
use crate::fdtable::{self, Handle};
use crate::handover::unread;
use crate::reason::Reason;
use crate::{adopt, process, shadow, stats};
use core::sync::atomic::Ordering;
use ropeway_shm::sys;
use ropeway_shm::table::CLASS_CONNECTED;

/// Before another image is started in this process: descriptors that stay open leave Ropeway, the others lose this
/// process as an owner. `preloaded` says whether the image certainly comes with Ropeway, and may take them up.
pub fn before_exec(preloaded: impl Fn() -> bool) {
    let pid = process::pid();
    let mut answer = None;
    each_descriptor(|fd, h, stays| {
        if stays {
            let inheritable = *answer.get_or_insert_with(&preloaded) && adopt::may_be_inherited(h);
            take_back(h, fd, Reason::Exec);
            // Otherwise a relay has taken its place.
            if fdtable::leads_to(fd, h) {
                adopt::leave_to_next_image(h, fd, inheritable);
            }
        } else {
            let s = h.sock();
            if remove_owner(s, pid) && unread(s) > 0 {
                shadow::linger_zero(fd);
            }
        }
    });
    stats::write_at_exit();
}

/// The image could not be started: this process goes on.
pub fn exec_failed() {
    let pid = process::pid();
    each_descriptor(|fd, h, stays| {
        if stays {
            adopt::stay_with_this_image(h, fd);
        } else {
            add_owner(h.sock(), pid);
        }
    });
    stats::not_exiting_after_all();
}

/// Before a child is started without fork (posix_spawn, system, popen): what it inherits is shared with an image that
/// Ropeway cannot count.
pub fn before_spawn() {
    each_descriptor(|fd, h, stays| {
        if stays {
            leave(h, fd, Reason::Exec);
        }
    });
}

fn each_descriptor(mut f: impl FnMut(i32, Handle, bool)) {
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && h.sock().class.load(Ordering::Acquire) == CLASS_CONNECTED {
            let flags = sys::fcntl(fd, libc::F_GETFD, 0).unwrap_or(libc::FD_CLOEXEC as usize);
            f(fd, h, flags as i32 & libc::FD_CLOEXEC == 0);
        }
    });
}

/// Before the process ends in an orderly way: the kernel closes everything next.
pub fn at_exit() {
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && unread(h.sock()) > 0 && sole_owner(h.sock()) {
            shadow::linger_zero(fd);
        }
    });
    stats::write_at_exit();
}
