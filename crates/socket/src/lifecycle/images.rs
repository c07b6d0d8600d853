//! What happens to sockets when the process starts another image, or ends.

use super::{forget_descriptor, leave_among, sole_owner, take_back};
use crate::fdtable::{self, Handle};
use crate::handover::{Patience, lock_tx, pair, unread};
use crate::process::{self, local};
use crate::reason::Reason;
use crate::rendezvous::client;
use crate::thread::{self, Critical};
use crate::{adopt, ready, shadow, stats};
use core::sync::atomic::{AtomicU32, Ordering};
use ropeway_shm::sys;
use ropeway_shm::table::{CLASS_CONNECTED, FLAG_UNCOUNTED, OWNER_LEAVES};

/// Before another image is started in this process: sockets that stay open leave Ropeway, the others lose this process as an
/// owner when it has started. `preloaded` says whether the image certainly comes with Ropeway, and may take them up.
pub fn before_exec(preloaded: impl Fn() -> bool) {
    let (patience, mut answer) = (Patience::begin(), None);
    each_descriptor(|fd, h, stays| {
        if stays {
            let inheritable = *answer.get_or_insert_with(&preloaded) && adopt::may_be_inherited(h);
            take_back(h, fd, Reason::Exec, &patience);
            // Otherwise a relay has taken its place.
            if fdtable::leads_to(fd, h) {
                adopt::leave_to_next_image(h, fd, inheritable);
            }
        }
    });
    hold_image(libc::F_WRLCK);
    each_descriptor(|fd, h, stays| {
        if !stays && !stays_open(h) {
            change_owner(h, process::pid(), process::pid() | OWNER_LEAVES);
            if sole_owner(h.sock()) && unread(h) > 0 {
                keep_linger(h, fd);
                shadow::reset_at_close(fd);
            }
        }
    });
    stats::write_at_exit();
}

/// True when the image that is started has the socket, by whichever descriptor.
fn stays_open(h: Handle) -> bool {
    let mut stays = false;
    if local(h.index()).fds.load(Ordering::Acquire) > 1 {
        fdtable::for_each_in(0, u32::MAX, |fd, other| stays |= other == h && stays_over_exec(fd));
    }
    stays
}

fn stays_over_exec(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags as i32 & libc::FD_CLOEXEC == 0)
}

/// Changes this process's entry among the owners. False when it stands there as neither: others have found it gone.
fn change_owner(h: Handle, from: u32, to: u32) -> bool {
    let s = h.sock();
    let _critical = Critical::enter();
    // Others count the owners under the lock, and act upon that before they let go of it.
    s.lock.lock(thread::me());
    let change = |owner: &AtomicU32| match owner.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(now) => now == to,
    };
    let owns = h.is_current() && (s.owners.iter().any(change) || s.has(FLAG_UNCOUNTED));
    s.lock.unlock();
    owns
}

/// True while the process that an entry among owners stands for has what it owns.
pub(super) fn still_owns(owner: u32) -> bool {
    if owner & OWNER_LEAVES == 0 { sys::process_exists(owner) } else { is_image_held(owner & !OWNER_LEAVES) }
}

/// Holds (`F_WRLCK`) what tells the processes of the family that this image is still there, or lets go of it (`F_UNLCK`): a
/// lock on the byte of the table's file that has this process's number. The kernel takes it when it closes the descriptors of an
/// image that another one replaces.
fn hold_image(kind: i32) {
    if let Some(table) = client::table_fd() {
        let _ = sys::lock_byte(table, libc::F_SETLK, process::pid() as usize, kind);
    }
}

fn is_image_held(pid: u32) -> bool {
    client::table_fd().is_some_and(|table| {
        sys::lock_byte(table, libc::F_GETLK, pid as usize, libc::F_WRLCK).is_ok_and(|found| found != libc::F_UNLCK)
    })
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
    each_descriptor(|fd, h, stays| {
        if stays {
            adopt::stay_with_this_image(h, fd);
        } else {
            put_linger_back(h, fd);
            if !change_owner(h, process::pid() | OWNER_LEAVES, process::pid()) {
                // Nothing could be held: what others did with the socket meanwhile is not known here.
                forget_descriptor(fd, h);
            }
        }
    });
    hold_image(libc::F_UNLCK);
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
            f(fd, h, stays_over_exec(fd));
        }
    });
}

/// Before the process ends in an orderly way: the kernel closes everything next.
pub fn at_exit() {
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && pair(h.sock()).is_some() && sole_owner(h.sock()) {
            if unread(h) > 0 {
                shadow::reset_at_close(fd);
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
