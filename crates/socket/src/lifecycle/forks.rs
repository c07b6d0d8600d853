//! What happens to sockets when the process forks.
//!
//! Who owns a socket decides whether it may be promoted and when it ends. A fork counts a child in advance, because the
//! parent may close its own descriptor before the child has run at all; the child then enters itself as an owner. Other
//! threads open and close sockets between the counting and the copy of the memory that the child gets, so what was
//! counted is written down, and taken back by that alone.

use super::closing::settle_marks_in_child;
use super::images::still_owns;
use super::{forget_descriptor, release_if_abandoned};
use crate::fdtable::{self, Handle};
use crate::process::{self, local};
use crate::rendezvous::client;
use crate::thread::{self, Critical};
use crate::{bells, epoll, machine, stats, wait};
use core::sync::atomic::{AtomicU32, Ordering};
use ropeway_shm::table::{CLASS_FREE, Counted, FLAG_UNCOUNTED, MAX_OWNERS, Sock};

fn for_each_sock(mut f: impl FnMut(u32, &'static Sock)) {
    let table = process::table();
    for index in 0..table.used_socks() {
        if local(index).fds.load(Ordering::Acquire) > 0 {
            f(index, table.sock(index));
        }
    }
}

/// Before fork: every socket and every set will have one owner more.
pub fn fork_prepare() {
    // A fork that went past our hooks never says what came of it.
    drop(thread::keep_counted(None));
    if !process::started() {
        return;
    }
    // Without memory for it the child can only be late, as in `join`.
    let Some(counted) = Counted::new() else { return };
    for_each_sock(|index, s| {
        // What was moved so far is the parent's.
        stats::fold(s);
        let _critical = Critical::enter();
        s.lock.lock(thread::me());
        // A thread that closes the last descriptor looks for other owners under the lock, after this.
        if local(index).fds.load(Ordering::Acquire) > 0 {
            s.expected.fetch_add(1, Ordering::AcqRel);
            counted.socks.insert(index);
        }
        s.lock.unlock();
    });
    epoll::fork_prepare(&counted.sets);
    thread::keep_counted(Some(counted));
}

/// After fork, in the parent.
pub fn fork_parent(failed: bool) {
    let counted = thread::keep_counted(None);
    if let Some(counted) = counted.filter(|_| failed) {
        counted.socks.for_each_from(0, |index| {
            forget_child(index);
            true
        });
        epoll::fork_failed(&counted.sets);
    }
}

/// After fork, in the child.
pub fn fork_child() {
    process::after_fork_child();
    thread::after_fork_child();
    stats::after_fork_child();
    client::after_fork_child();
    bells::after_fork_child();
    wait::after_fork_child();
    machine::forget();
    settle_marks_in_child();
    let (counted, pid) = (thread::keep_counted(None), process::pid());
    if let Some(counted) = &counted {
        counted.socks.for_each_from(0, |index| {
            let s = process::table().sock(index);
            if local(index).fds.load(Ordering::Acquire) > 0 {
                add_owner(s, pid);
                s.expected.fetch_sub(1, Ordering::AcqRel);
            } else {
                forget_child(index);
            }
            true
        });
    }
    let was_counted = |h: Handle| counted.as_ref().is_some_and(|counted| counted.socks.contains(h.index()));
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && !was_counted(h) && !join(h, pid) {
            forget_descriptor(fd, h);
        }
    });
    epoll::after_fork_child(counted.as_ref().map(|counted| &counted.sets));
}

/// After fork, in a child that shares nothing with its parent: what is the parent's alone leaves it.
pub fn fork_child_apart() {
    process::after_fork_child();
    client::after_fork_child();
}

/// No child comes for a socket that was counted. If it was closed meanwhile, the child that was expected kept the record.
fn forget_child(index: u32) {
    let s = process::table().sock(index);
    {
        let _critical = Critical::enter();
        // Under the lock nobody is in the middle of closing it.
        s.lock.lock(thread::me());
        s.expected.fetch_sub(1, Ordering::AcqRel);
        s.lock.unlock();
    }
    release_if_abandoned(index);
}

/// In the child: enters it for a socket that another thread opened when the fork had counted already. The parent knew of
/// no other owner until now. False when it has closed the socket, or mapped rings that the child has not: then the child
/// does not follow it.
fn join(h: Handle, pid: u32) -> bool {
    let s = h.sock();
    let _critical = Critical::enter();
    s.lock.lock(thread::me());
    let owned = s.owners.iter().any(|owner| owner.load(Ordering::Acquire) != 0);
    let entered = s.owners.iter().any(|owner| owner.load(Ordering::Acquire) == pid);
    let joins = owned
        && h.is_current()
        && s.class.load(Ordering::Acquire) != CLASS_FREE
        && s.seg_base.load(Ordering::Acquire) == 0;
    if joins && !entered {
        add_owner(s, pid);
    }
    s.lock.unlock();
    joins
}

pub(crate) fn add_owner(s: &Sock, pid: u32) {
    if !enter_owner(&s.owners, pid) {
        s.set(FLAG_UNCOUNTED);
    }
}

/// Enters a process among owners, in the place of one that owns it no more if no other is free. False when there is none.
pub(crate) fn enter_owner(owners: &[AtomicU32; MAX_OWNERS], pid: u32) -> bool {
    let take = |owner: &AtomicU32, from| owner.compare_exchange(from, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    owners.iter().any(|owner| take(owner, 0))
        || owners.iter().any(|owner| {
            let other = owner.load(Ordering::Acquire);
            // Somebody else may just have found the same, and freed it.
            !still_owns(other) && take(owner, other) || take(owner, 0)
        })
}
