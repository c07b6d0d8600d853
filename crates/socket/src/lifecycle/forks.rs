//! What happens to sockets when the process forks.
//!
//! Who owns a socket decides whether it may be promoted and when it ends. A fork expects a child in advance, because the
//! parent may close its own descriptor before the child has run at all; the child then enters itself as an owner. Other
//! threads open and close sockets between that and the copy of the memory that the child gets, so what expects the child has
//! a bit of the fork ([`ropeway_shm::table::Births`]), and is settled by that alone.

use super::closing::settle_marks_in_child;
use super::images::still_owns;
use super::{forget_descriptor, release_if_abandoned};
use crate::fdtable::{self, Handle};
use crate::process::{self, local};
use crate::rendezvous::client;
use crate::thread::{self, Critical, Fork};
use crate::{bells, epoll, machine, stats, wait};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ropeway_shm::sys;
use ropeway_shm::table::{Birth, CLASS_FREE, FLAG_UNCOUNTED, MAX_OWNERS, Sock};

/// Forks of this process so far.
static FORKS: AtomicU64 = AtomicU64::new(0);

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
    thread::keep_fork(None);
    if !process::started() {
        return;
    }
    let fork = Fork { birth: begin_birth(), number: FORKS.fetch_add(1, Ordering::Relaxed) + 1 };
    for_each_sock(|index, s| {
        // What was moved so far is the parent's.
        stats::fold(s);
        let _critical = Critical::enter();
        s.lock.lock(thread::me());
        // A thread that closes the last descriptor looks for other owners under the lock, after this.
        if local(index).fds.load(Ordering::Acquire) > 0 {
            s.expected.fetch_or(fork.birth.bit(), Ordering::AcqRel);
            // Another thread's fork may come after this one, and be through with this socket already.
            local(index).fork.fetch_max(fork.number, Ordering::Relaxed);
        }
        s.lock.unlock();
    });
    epoll::fork_prepare(fork);
    thread::keep_fork(Some(fork));
}

/// A fork of this thread, whose child is known by its bit.
pub(crate) fn begin_birth() -> Birth {
    /// How long a fork waits for others to be over: each child has a moment's work to do.
    const LOOKS: u32 = 200;
    const NAP_NS: u64 = 100_000;
    let thread = thread::me() as u32;
    forget_dead_children();
    for _ in 0..LOOKS {
        if let Some(birth) = process::table().births().begin(thread) {
            return birth;
        }
        sys::nap(NAP_NS);
        forget_dead_children();
    }
    Birth::for_good(thread)
}

/// True while a child of a fork that is under way may come to have the socket.
pub(crate) fn is_child_expected(s: &Sock) -> bool {
    process::table().births().may_come(s.expected.load(Ordering::Acquire), sys::process_exists)
}

/// After fork, in the parent: `answer` is the child, or negative when there is none.
pub fn fork_parent(answer: i32) {
    let Some(Fork { birth, .. }) = thread::keep_fork(None) else { return };
    match u32::try_from(answer) {
        Ok(child) => {
            process::table().births().born(birth, child);
        }
        Err(_) => no_child(birth),
    }
}

fn no_child(birth: Birth) {
    forget_children(birth.ended_bit());
    process::table().births().end(birth, 0);
}

/// Children that were killed before they had entered themselves.
pub(super) fn forget_dead_children() {
    let _critical = Critical::enter();
    process::table().births().forget_the_dead(thread::me(), sys::process_exists, forget_children);
}

/// No child comes of the forks with these bits.
fn forget_children(bits: u64) {
    expecting(bits).for_each(|index| forget_child(index, bits));
    epoll::forget_children(bits);
}

/// The sockets that expect a child of one of these forks.
fn expecting(bits: u64) -> impl Iterator<Item = u32> {
    let table = process::table();
    (0..table.used_socks()).filter(move |index| table.sock(*index).expected.load(Ordering::Acquire) & bits != 0)
}

/// In a child of `vfork`: calls `f` on the parent's behalf, which finds that another process has the socket, too.
pub fn in_vfork_child(h: Handle, f: impl FnOnce()) {
    thread::in_vfork_child(|| {
        let (birth, child) = (begin_birth(), sys::getpid().unwrap_or(1) as u32);
        let births = process::table().births();
        births.born(birth, child);
        h.sock().expected.fetch_or(birth.bit(), Ordering::AcqRel);
        f();
        h.sock().expected.fetch_and(!birth.ended_bit(), Ordering::AcqRel);
        births.end(birth, child);
    });
}

/// In the parent, after its child of `vfork` has ended, or has another image.
pub fn after_vfork() {
    thread::after_vfork(process::pid());
}

/// After fork, in the child.
pub fn fork_child() {
    process::after_fork_child();
    let pid = process::pid();
    // Where the parent was killed over the fork, somebody may have found that nobody is expected.
    let fork = thread::keep_fork(None).filter(|fork| process::table().births().born(fork.birth, pid));
    thread::after_fork_child();
    stats::after_fork_child();
    client::after_fork_child();
    bells::after_fork_child();
    wait::after_fork_child();
    machine::forget();
    settle_marks_in_child();
    let bit = fork.map_or(0, |fork| fork.birth.bit());
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        let is_expected = || h.sock().expected.load(Ordering::Acquire) & bit != 0;
        if h.is_sock() && !is_expected() && !join(h, pid) {
            forget_descriptor(fd, h);
        }
    });
    if let Some(Fork { birth, number }) = fork {
        for index in (0..process::table().used_socks()).filter(|index| expects(*index, number, bit)) {
            let s = process::table().sock(index);
            if local(index).fds.load(Ordering::Acquire) > 0 {
                add_owner(s, pid);
                s.expected.fetch_and(!birth.ended_bit(), Ordering::AcqRel);
            } else {
                forget_child(index, birth.ended_bit());
            }
        }
    }
    epoll::after_fork_child(fork);
    if let Some(Fork { birth, .. }) = fork {
        process::table().births().end(birth, pid);
    }
}

/// In the child of the fork with this number and bit: true for a socket that expects it. Most records are told apart by what the
/// child has got of its parent's memory: of the table, which is shared, it would have to fetch every page that was ever used.
fn expects(index: u32, number: u64, bit: u64) -> bool {
    local(index).fork.load(Ordering::Relaxed) >= number
        && process::table().sock(index).expected.load(Ordering::Acquire) & bit != 0
}

/// After fork, in a child that shares nothing with its parent: what is the parent's alone leaves it.
pub fn fork_child_apart() {
    process::after_fork_child();
    client::after_fork_child();
}

/// If the socket was closed meanwhile, the child that was expected kept the record.
fn forget_child(index: u32, bits: u64) {
    let s = process::table().sock(index);
    {
        let _critical = Critical::enter();
        // Under the lock nobody is in the middle of closing it.
        s.lock.lock(thread::me());
        s.expected.fetch_and(!bits, Ordering::AcqRel);
        s.lock.unlock();
    }
    release_if_abandoned(index);
}

/// In the child: enters it for a socket that another thread opened when the fork had looked already. The parent knew of
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
