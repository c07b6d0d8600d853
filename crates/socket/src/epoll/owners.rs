//! Who has a set: its descriptors are duplicated and closed, its process forks.

use super::sets::{Locked, Ref, for_each_local, for_each_since};
use crate::fdtable::{self, Handle, Kind};
use crate::thread::Fork;
use crate::{lifecycle, process};
use core::sync::atomic::{Ordering, fence};
use ropeway_shm::sys;
use ropeway_shm::table::EXPECTED_FOR_GOOD;

/// After `dup` of a set's descriptor.
pub fn duplicated(h: Handle) {
    Ref::of(h).local.fds.fetch_add(1, Ordering::AcqRel);
}

/// Before a set's descriptor is closed; it has been taken out of the table of descriptors already.
pub fn set_closing(h: Handle, fd: i32) {
    let r = Ref::of(h);
    // Pairs with `wait::enter`, which enters a waiter and then looks where the number leads.
    fence(Ordering::SeqCst);
    if r.local.fds.load(Ordering::Acquire) == 1
        && r.siblings_wait()
        && let Ok(kept) = sys::duplicate_high(fd)
    {
        // As in the kernel: waits that are under way go on with the set.
        fdtable::enter_internal(kept);
        r.local.ep.store(kept, Ordering::Release);
        r.local.kept.store(kept, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        wait_over(r);
        return;
    }
    set_closed(h, fd);
}

/// A wait has returned. If the set was closed meanwhile, the last one carries that out.
#[inline]
pub fn wait_over(r: Ref) {
    if r.local.kept.load(Ordering::SeqCst) >= 0 {
        give_kept_back(r);
    }
}

#[cold]
fn give_kept_back(r: Ref) {
    while !r.siblings_wait() && Ref::named(r.name).is_some() {
        let kept = r.local.kept.swap(-1, Ordering::SeqCst);
        if kept < 0 {
            return;
        }
        r.local.ep.swap(-1, Ordering::SeqCst);
        // Whoever enters as a waiter from here on finds that the number leads elsewhere; who did so before is found now.
        if r.siblings_wait() {
            r.local.ep.store(kept, Ordering::Release);
            r.local.kept.store(kept, Ordering::SeqCst);
            continue;
        }
        set_closed(r.handle(), kept);
        fdtable::close_internal(kept);
        return;
    }
}

/// The program puts something else behind one of our own numbers: what is kept there of a set goes on behind another one.
pub fn move_kept(fd: i32) {
    for_each_local(|r| {
        if r.local.kept.load(Ordering::SeqCst) == fd
            && let Ok(kept) = sys::duplicate_high(fd)
        {
            fdtable::enter_internal(kept);
            if r.local.kept.compare_exchange(fd, kept, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                fdtable::close_internal(kept);
                return;
            }
            // Unless the last wait has returned meanwhile.
            let _ = r.local.ep.compare_exchange(fd, kept, Ordering::SeqCst, Ordering::SeqCst);
        }
    });
}

/// After a set's descriptor was closed, or before that where nobody waits in it.
pub fn set_closed(h: Handle, fd: i32) {
    let r = Ref::of(h);
    if r.local.fds.fetch_sub(1, Ordering::AcqRel) > 1 {
        if r.local.ep.load(Ordering::Acquire) == fd {
            fdtable::for_each_in(0, u32::MAX, |other, leads| {
                if leads == h {
                    r.local.ep.store(other, Ordering::Release);
                }
            });
        }
        return;
    }
    let locked = r.lock();
    locked.drop_own_bell();
    let pid = process::pid();
    for owner in &r.set.owners {
        let _ = owner.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    release_if_unowned(locked);
}

/// Gives the set back if nobody has a descriptor of it any more.
fn release_if_unowned(locked: Locked) {
    let r = locked.r;
    if !r.is_owned_by(sys::process_exists) {
        if r.set.members.load(Ordering::Acquire) != 0 {
            super::member::forget_all(&locked);
        }
        drop(locked);
        process::table().release_set(r.index, sys::process_exists);
    }
}

/// Before fork: every set will have one owner more. A set with members gets its bell now, so that parent and child hold the same
/// one.
pub fn fork_prepare(fork: Fork) {
    for_each_local(|r| {
        let locked = r.lock();
        // A thread that closes the last descriptor looks for other owners under the lock, after this.
        if r.local.fds.load(Ordering::Acquire) > 0 {
            r.set.expected.fetch_or(fork.birth.bit(), Ordering::AcqRel);
            r.local.fork.fetch_max(fork.number, Ordering::Relaxed);
            if r.set.members.load(Ordering::Acquire) != 0 {
                locked.ensure_bell();
            }
        }
    });
}

/// No child comes of the forks with these bits.
pub fn forget_children(bits: u64) {
    expecting(bits).for_each(|index| forget_child(index, bits));
}

/// The sets that expect a child of one of these forks.
fn expecting(bits: u64) -> impl Iterator<Item = u32> {
    let table = process::table();
    (0..table.used_sets()).filter(move |index| table.set(*index).expected.load(Ordering::Acquire) & bits != 0)
}

/// If the set was closed meanwhile, the child that was expected kept it.
fn forget_child(index: u32, bits: u64) {
    let locked = Ref::at(index).lock();
    if locked.r.set.expected.fetch_and(!bits, Ordering::AcqRel) & bits != 0 {
        release_if_unowned(locked);
    }
}

/// In the child of fork. A child that finds no free entry is expected for good: the set is never given back then.
pub fn after_fork_child(fork: Option<Fork>) {
    let pid = process::pid();
    for_each_local(|r| {
        // Threads that are not here wait in it in the parent.
        let kept = r.local.kept.swap(-1, Ordering::Relaxed);
        if kept >= 0 {
            r.lock().drop_own_bell();
            r.local.fds.store(0, Ordering::Relaxed);
            fdtable::close_internal(kept);
        }
    });
    let bit = fork.map_or(0, |fork| fork.birth.bit());
    // What another thread made when the fork had looked already: the parent knew of no other owner until now.
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        let is_new = h.kind() == Kind::Set && Ref::of(h).set.expected.load(Ordering::Acquire) & bit == 0;
        if is_new && !join(h, pid) {
            fdtable::remove(fd);
            Ref::of(h).local.fds.fetch_sub(1, Ordering::AcqRel);
        }
    });
    let Some(Fork { birth, number }) = fork else { return };
    for_each_since(number, |r| {
        if r.set.expected.load(Ordering::Acquire) & bit == 0 {
            return;
        }
        if r.local.fds.load(Ordering::Acquire) == 0 {
            forget_child(r.index, birth.ended_bit());
            return;
        }
        if !lifecycle::enter_owner(&r.set.owners, pid) {
            r.set.expected.fetch_or(EXPECTED_FOR_GOOD, Ordering::AcqRel);
        }
        r.set.expected.fetch_and(!birth.ended_bit(), Ordering::AcqRel);
    });
}

/// Enters a child as an owner. False when the parent has given the set back, or more own it than can be counted.
fn join(h: Handle, pid: u32) -> bool {
    let locked = Ref::of(h).lock();
    let set = locked.r.set;
    let is_current = h == Handle::new(Kind::Set, h.index(), set.generation.load(Ordering::Acquire));
    let owned = set.owners.iter().any(|owner| owner.load(Ordering::Acquire) != 0);
    let entered = set.owners.iter().any(|owner| owner.load(Ordering::Acquire) == pid);
    is_current && owned && (entered || lifecycle::enter_owner(&set.owners, pid))
}
