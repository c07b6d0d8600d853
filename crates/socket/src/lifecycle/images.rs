//! What happens to sockets when the process starts another image, or ends.

use super::{add_owner, leave_among, remove_owner, sole_owner, take_back};
use crate::fdtable::{self, Handle};
use crate::handover::{Patience, lock_tx, pair, unread};
use crate::process::{self, local};
use crate::reason::Reason;
use crate::{adopt, ready, shadow, stats};
use core::sync::atomic::Ordering;
use ropeway_shm::sys;
use ropeway_shm::table::CLASS_CONNECTED;

/// Before another image is started in this process: descriptors that stay open leave Ropeway, the others lose this
/// process as an owner. `preloaded` says whether the image certainly comes with Ropeway, and may take them up.
pub fn before_exec(preloaded: impl Fn() -> bool) {
    let pid = process::pid();
    let (patience, mut answer) = (Patience::begin(), None);
    each_descriptor(|fd, h, stays| {
        if stays {
            let inheritable = *answer.get_or_insert_with(&preloaded) && adopt::may_be_inherited(h);
            take_back(h, fd, Reason::Exec, &patience);
            // Otherwise a relay has taken its place.
            if fdtable::leads_to(fd, h) {
                adopt::leave_to_next_image(h, fd, inheritable);
            }
        } else {
            remove_owner(h.sock(), pid);
            if sole_owner(h.sock()) && unread(h) > 0 {
                keep_linger(h, fd);
                shadow::linger_zero(fd);
            }
        }
    });
    stats::write_at_exit();
}

/// Notes how the program wants its socket closed, unless another descriptor of the same one has led here before.
fn keep_linger(h: Handle, fd: i32) {
    let kept = &local(h.index()).linger;
    if kept.load(Ordering::Acquire) == 0
        && let Some(linger) = shadow::linger(fd)
    {
        kept.store(1 << 63 | (linger.l_onoff as u64) << 32 | linger.l_linger as u32 as u64, Ordering::Release);
    }
}

fn put_linger_back(h: Handle, fd: i32) {
    let kept = local(h.index()).linger.swap(0, Ordering::AcqRel);
    if kept != 0 {
        let l_onoff = (kept >> 32 & 1) as i32;
        shadow::set_linger(fd, libc::linger { l_onoff, l_linger: kept as u32 as i32 });
    }
}

/// The image could not be started: this process goes on.
pub fn exec_failed() {
    let pid = process::pid();
    each_descriptor(|fd, h, stays| {
        if stays {
            adopt::stay_with_this_image(h, fd);
        } else {
            add_owner(h.sock(), pid);
            put_linger_back(h, fd);
        }
    });
    stats::not_exiting_after_all();
}

/// Before a child is started without fork (posix_spawn, system, popen): what it inherits is shared with an image that
/// Ropeway cannot count.
pub fn before_spawn() {
    let patience = Patience::begin();
    each_descriptor(|fd, h, stays| {
        if stays {
            leave_among(h, fd, Reason::Exec, &patience);
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
        if h.is_sock() && pair(h.sock()).is_some() && sole_owner(h.sock()) {
            if unread(h) > 0 {
                shadow::linger_zero(fd);
            }
            mark_as_closing(h);
        }
    });
    stats::write_at_exit();
}

/// Tells the peer that its end is near.
fn mark_as_closing(h: Handle) {
    let s = h.sock();
    // Under the lock: another thread may be closing it, and unmap the pair.
    let _tx = lock_tx(s);
    if ready::is_open(h)
        && let Some(pair) = pair(s)
    {
        pair.set_closing();
    }
}
