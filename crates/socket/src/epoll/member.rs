//! Memberships: how the kernel's registration of a socket follows its carriers (`docs/readiness.md`, section 2).

use super::sets::{self, Locked, Ref};
use crate::fdtable::{self, Handle};
use crate::reason::Reason;
use crate::{handover, lifecycle, process, ready};
use core::sync::atomic::{Ordering, fence};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use ropeway_shm::ring::End;
use ropeway_shm::sys;
use ropeway_shm::table::{
    FLAG_PINNED, MAX_MEMBERSHIPS, MAX_SOCKS, MEMBER_DISABLED, MEMBER_FRESH, MEMBER_GHOST, MEMBER_HINT, MEMBER_TOKEN,
    MODE_NATIVE, MODE_NONE, MODE_SHADOW, MODE_TOKEN, Member, Sock, TX_TCP,
};

pub const EDGE: u32 = libc::EPOLLET as u32;
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// The number of an entry, which tokens and tags carry.
pub fn number(h: Handle, e: usize) -> u32 {
    h.index() * MAX_MEMBERSHIPS as u32 + e as u32
}

/// The socket and entry that a number stands for.
pub fn at(number: u64) -> Option<(u32, usize)> {
    let (i, e) = (number / MAX_MEMBERSHIPS as u64, number as usize % MAX_MEMBERSHIPS);
    (i < MAX_SOCKS as u64).then_some((i as u32, e))
}

/// Where a token has the lowest bits of the record's generation: above the entry's number.
const GENERATION_SHIFT: u32 = 18;
const GENERATION_BITS: u32 = 0x1f;

/// The number in a token, by which the kernel knows a member.
fn registered(h: Handle, e: usize) -> u32 {
    number(h, e) | (h.generation() & GENERATION_BITS) << GENERATION_SHIFT
}

/// The member that a token's number stands for. None when that was one of a connection that is closed: the kernel may have reported it
/// before, and the entry is another one's now.
pub fn named_by(registered_as: u32) -> Option<(Handle, usize)> {
    let (i, e) = at((registered_as & ((1 << GENERATION_SHIFT) - 1)) as u64)?;
    Some((Handle::of_record(i), e)).filter(|(h, e)| registered(*h, *e) == registered_as)
}

/// The entries by which a socket is in the set called `name`.
#[inline]
pub fn entries(s: &Sock, name: u32) -> impl Iterator<Item = (usize, &Member)> {
    (0..MAX_MEMBERSHIPS).filter(move |e| s.member_of[*e].load(Ordering::SeqCst) == name).map(|e| (e, &s.members[e]))
}

/// The entry for descriptor `fd`.
pub fn find(s: &Sock, name: u32, fd: i32) -> Option<usize> {
    entries(s, name).find(|(_, m)| m.fd.load(Ordering::Acquire) == fd).map(|(e, _)| e)
}

/// Takes a free entry for a membership in `locked`'s set. A full barrier: the caller looks at the phases next. None when
/// the socket is in too many sets.
pub fn allocate(locked: &Locked, s: &Sock, fd: i32) -> Option<usize> {
    let free = |e: &usize| {
        let now = s.member_of[*e].load(Ordering::Acquire);
        // An entry of a set that is gone (its processes died) is free, too.
        (now == 0 || Ref::named(now).is_none())
            && s.member_of[*e].compare_exchange(now, u32::MAX, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let e = (0..MAX_MEMBERSHIPS).find(free)?;
    s.members[e].reset();
    s.members[e].fd.store(fd, Ordering::Release);
    s.member_of[e].swap(locked.r.name, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    locked.r.set.members.fetch_add(1, Ordering::AcqRel);
    Some(e)
}

/// Frees an entry.
pub fn release(locked: &Locked, h: Handle, e: usize) {
    let s = h.sock();
    give_slots_back(h, &s.members[e]);
    s.members[e].reset();
    s.member_of[e].swap(0, Ordering::SeqCst);
    locked.r.set.members.fetch_sub(1, Ordering::AcqRel);
    unlist(locked, h);
}

/// Takes a socket off the list of promoted ones when no membership of it in this set is in `SHADOW` mode any more.
fn unlist(locked: &Locked, h: Handle) {
    let shadows = entries(h.sock(), locked.r.name).any(|(_, m)| m.mode.load(Ordering::Relaxed) == MODE_SHADOW);
    let lists = locked.r.lists();
    if !shadows {
        lists.promoted.remove(h.index());
        lists.hot.remove(h.index());
    }
    if lists.promoted.is_empty() {
        locked.r.set.rings.store(0, Ordering::SeqCst);
    }
}

/// Takes the bells of a membership out of the rings. Under the set's lock.
pub fn give_slots_back(h: Handle, m: &Member) {
    match sets::rings_of(h) {
        Some(rings) => {
            for (ring, end) in &rings {
                let slot = if *end == End::Reader { &m.rx_slot } else { &m.tx_slot };
                ready::disarm(ring, *end, slot);
            }
        }
        None => {
            m.rx_slot.store(0, Ordering::Relaxed);
            m.tx_slot.store(0, Ordering::Relaxed);
        }
    }
}

/// How the kernel should know a member now.
pub fn mode_for(s: &Sock, m: &Member) -> u32 {
    let events = m.events.load(Ordering::Relaxed);
    let was_shadow = m.mode.load(Ordering::Relaxed) == MODE_SHADOW;
    if ready::has_ring(s) {
        MODE_SHADOW
    } else if m.has(MEMBER_GHOST) {
        MODE_NONE
    } else if was_shadow && events & EDGE != 0 && !s.has(FLAG_PINNED) {
        // Modified back, the kernel would report what is there once more. The socket may soon be on a ring again.
        MODE_SHADOW
    } else if events & ONESHOT != 0 {
        MODE_TOKEN
    } else {
        MODE_NATIVE
    }
}

/// What the kernel is told of a member in a mode.
fn registration(h: Handle, e: usize, mode: u32) -> epoll_event {
    let (s, m) = (h.sock(), &h.sock().members[e]);
    let events = m.events.load(Ordering::Relaxed);
    let token = sets::token(registered(h, e));
    match mode {
        MODE_SHADOW => {
            let mut shown = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 | EDGE | events & ready::URGENT;
            // Room on the idle shadow makes no event by itself; for an edge-triggered member it is asked for from the start,
            // because modifying the entry later would report what is there once more.
            let over_tcp = s.tx.phase.load(Ordering::SeqCst) == TX_TCP;
            if events & ready::WRITE != 0 && !m.has(MEMBER_GHOST) && (over_tcp || events & EDGE != 0) {
                shown |= libc::EPOLLOUT as u32;
            }
            epoll_event { events: shown, u64: token }
        }
        MODE_TOKEN if m.has(MEMBER_DISABLED) => epoll_event { events: ONESHOT, u64: token },
        MODE_TOKEN => epoll_event { events, u64: token },
        _ => epoll_event { events, u64: m.data.load(Ordering::Relaxed) },
    }
}

/// Enters with the kernel what [`mode_for`] says of a new member.
pub fn register(locked: &Locked, h: Handle, e: usize) -> sys::Result<()> {
    let m = &h.sock().members[e];
    let mode = mode_for(h.sock(), m);
    let mut event = registration(h, e, mode);
    expect_tokens(locked, mode);
    control(locked, m, EPOLL_CTL_ADD, &mut event)?;
    settle_mode(locked, h, e, mode, event.events);
    Ok(())
}

/// Before the kernel is told of a member: it may report the token before whoever told it has returned, to a thread that
/// waits natively and would hand it on to the program.
fn expect_tokens(locked: &Locked, mode: u32) {
    if matches!(mode, MODE_SHADOW | MODE_TOKEN) {
        locked.r.set.tokens.store(1, Ordering::SeqCst);
    }
}

fn control(locked: &Locked, m: &Member, op: i32, event: &mut epoll_event) -> sys::Result<()> {
    let ep = locked.r.ep().ok_or(libc::EBADF)?;
    // SAFETY: `event` is valid.
    unsafe { sys::epoll_ctl(ep, op, m.fd.load(Ordering::Relaxed), event).map(|_| ()) }
}

/// Brings the kernel's registration of a member into line with its carriers and with what the program wants.
pub fn sync(locked: &Locked, h: Handle, e: usize) -> sys::Result<()> {
    let (s, m) = (h.sock(), &h.sock().members[e]);
    let (mode, now) = (mode_for(s, m), m.mode.load(Ordering::Relaxed));
    let mut event = registration(h, e, mode);
    let events = event.events;
    if mode == now && mode == MODE_SHADOW && events & !m.told.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    if locked.r.ep().is_none() || !fdtable::leads_to(m.fd.load(Ordering::Relaxed), h) {
        // Only a process that has both descriptors can do it: the next wait of one will.
        locked.r.set.dirty.store(1, Ordering::Release);
        return Ok(());
    }
    let exclusive = m.events.load(Ordering::Relaxed) & EXCLUSIVE != 0 && now != mode;
    expect_tokens(locked, mode);
    match (now, mode) {
        (_, MODE_NONE) => control(locked, m, EPOLL_CTL_DEL, &mut event)?,
        _ if exclusive => {
            // The kernel modifies no exclusive entry.
            control(locked, m, EPOLL_CTL_DEL, &mut event)?;
            control(locked, m, EPOLL_CTL_ADD, &mut event)?;
        }
        _ => control(locked, m, EPOLL_CTL_MOD, &mut event)?,
    }
    settle_mode(locked, h, e, mode, events);
    Ok(())
}

/// Notes what the kernel has been told, and what follows from it for the lists.
fn settle_mode(locked: &Locked, h: Handle, e: usize, mode: u32, events: u32) {
    let m = &h.sock().members[e];
    m.told.store(events, Ordering::Relaxed);
    let before = m.mode.swap(mode, Ordering::AcqRel);
    let lists = locked.r.lists();
    match mode {
        MODE_SHADOW => {
            locked.r.set.rings.store(1, Ordering::SeqCst);
            lists.promoted.insert(h.index());
            if before != MODE_SHADOW {
                // An edge that the kernel had noted and the program has not fetched is gone with the old registration.
                m.seen.store(0, Ordering::Relaxed);
                m.flags.fetch_or(MEMBER_FRESH, Ordering::AcqRel);
            }
        }
        MODE_NONE => release(locked, h, e),
        _ => unlist(locked, h),
    }
}

/// A direction of a socket changed its carrier. Called under that direction's lock.
pub fn carrier_changed(h: Handle) {
    let s = h.sock();
    // Second half of phase/membership: pairs with `allocate`.
    fence(Ordering::SeqCst);
    for e in 0..MAX_MEMBERSHIPS {
        let Some(r) = Ref::named(s.member_of[e].load(Ordering::SeqCst)) else { continue };
        let locked = r.lock();
        if s.member_of[e].load(Ordering::Acquire) != r.name {
            continue;
        }
        let m = &s.members[e];
        m.flags.fetch_or(MEMBER_HINT, Ordering::AcqRel);
        if sync(&locked, h, e) == Err(libc::ENOENT) {
            // Deleted behind our back.
            release(&locked, h, e);
        } else if m.mode.load(Ordering::Relaxed) == MODE_SHADOW {
            m.idle.store(0, Ordering::Relaxed);
            r.lists().hot.insert(h.index());
        }
        drop(locked);
        r.wake();
    }
}

/// The kernel has reported a member to a thread that waits in another set, whose number was given to the member's. It will not do so
/// again by itself: who waits in the member's set looks at once.
#[cold]
pub fn reported_elsewhere(h: Handle, e: usize) {
    let s = h.sock();
    if Ref::named(s.member_of[e].load(Ordering::Acquire)).is_some() {
        s.members[e].flags.fetch_or(MEMBER_TOKEN, Ordering::AcqRel);
        s.rx.shadow_event.store(1, Ordering::Release);
        carrier_changed(h);
    }
}

/// A send on a socket with a ring found no room for all of its bytes: room is an event from now on.
pub fn send_blocked(h: Handle) {
    let s = h.sock();
    for e in 0..MAX_MEMBERSHIPS {
        if let Some(r) = Ref::named(s.member_of[e].load(Ordering::SeqCst))
            && s.members[e].events.load(Ordering::Relaxed) & (EDGE | ready::WRITE) > EDGE
        {
            r.lists().hot.insert(h.index());
            r.wake();
        }
    }
}

/// Does what others could not do for want of a descriptor.
#[cold]
pub fn clean(r: Ref) {
    r.set.dirty.store(0, Ordering::Release);
    let locked = r.lock();
    r.lists().promoted.for_each_from(0, |i| {
        let h = Handle::of_record(i);
        for e in 0..MAX_MEMBERSHIPS {
            if h.sock().member_of[e].load(Ordering::Acquire) == r.name && sync(&locked, h, e) == Err(libc::ENOENT) {
                release(&locked, h, e);
            }
        }
        true
    });
}

/// Before a socket's descriptor is taken out to be closed, while another one leads there. This may wait for the peer.
pub fn leave_if_a_member_outlives(h: Handle, fd: i32) {
    let s = h.sock();
    if s.member_of.iter().all(|name| name.load(Ordering::Acquire) == 0)
        || process::local(h.index()).fds.load(Ordering::Acquire) <= 1
        || !lifecycle::sole_owner(s)
    {
        return;
    }
    let outlives = |m: &Member| m.fd.load(Ordering::Acquire) == fd && !m.has(MEMBER_GHOST);
    let is_member = |e: usize| Ref::named(s.member_of[e].load(Ordering::Acquire)).is_some();
    if (0..MAX_MEMBERSHIPS).any(|e| is_member(e) && outlives(&s.members[e])) {
        // The kernel goes on reporting under this number, which nobody can name any more: it must say it all itself.
        handover::pin(s, Reason::UnhookedWait);
        // By a descriptor that still leads to the socket. There is none if other threads close them just now.
        if let Some(other) = fdtable::descriptor_of(s) {
            lifecycle::leave(h, other, Reason::UnhookedWait);
        }
    }
}

/// Before a socket's descriptor is closed; it leads nowhere any more, but the kernel's is still open.
pub fn descriptor_closing(h: Handle, fd: i32) {
    let s = h.sock();
    if s.member_of.iter().all(|name| name.load(Ordering::Acquire) == 0) || !lifecycle::sole_owner(s) {
        // Where another process has the same descriptor, the membership lives on in its hands.
        return;
    }
    // A second time: another thread may have made it a member since. Otherwise there is nothing to wait for.
    leave_if_a_member_outlives(h, fd);
    let lives_on = process::local(h.index()).fds.load(Ordering::Acquire) > 1;
    for e in 0..MAX_MEMBERSHIPS {
        let m = &s.members[e];
        let Some(r) = Ref::named(s.member_of[e].load(Ordering::Acquire)) else { continue };
        if m.fd.load(Ordering::Acquire) != fd {
            continue;
        }
        let locked = r.lock();
        if s.member_of[e].load(Ordering::Acquire) != r.name {
            continue;
        }
        if lives_on {
            hand_to_kernel(&locked, h, e);
        }
        release(&locked, h, e);
    }
}

/// Before a socket is not followed any more, whose descriptor `fd` stays open: leaves its memberships to the kernel. False, and
/// nothing is done, when others rely on one of them.
pub fn leave_to_kernel(h: Handle, fd: i32) -> bool {
    let s = h.sock();
    let set_of = |e: usize| Ref::named(s.member_of[e].load(Ordering::Acquire));
    if (0..MAX_MEMBERSHIPS).filter_map(set_of).any(|r| !r.is_this_threads_alone()) {
        return false;
    }
    for (e, m) in s.members.iter().enumerate() {
        let Some(r) = set_of(e) else { continue };
        let locked = r.lock();
        if s.member_of[e].load(Ordering::Acquire) == r.name && m.fd.load(Ordering::Acquire) == fd {
            hand_to_kernel(&locked, h, e);
            release(&locked, h, e);
        }
    }
    true
}

/// Around `replace`, which puts another file behind the socket's descriptor `fd`: the kernel's sets would go on with the old one.
pub fn replaced(h: Handle, fd: i32, replace: impl FnOnce()) {
    let s = h.sock();
    let mut registered = [None; MAX_MEMBERSHIPS];
    for (e, m) in s.members.iter().enumerate() {
        let Some(r) = Ref::named(s.member_of[e].load(Ordering::Acquire)) else { continue };
        let locked = r.lock();
        if s.member_of[e].load(Ordering::Acquire) == r.name && m.fd.load(Ordering::Acquire) == fd {
            let mut event = of_the_kernel(h, e);
            let _ = control(&locked, m, EPOLL_CTL_DEL, &mut event);
            registered[e] = r.ep().filter(|_| !m.has(MEMBER_GHOST)).map(|ep| (ep, event));
            release(&locked, h, e);
        }
    }
    replace();
    for (ep, mut event) in registered.into_iter().flatten() {
        // SAFETY: `event` is valid.
        let _ = unsafe { sys::epoll_ctl(ep, EPOLL_CTL_ADD, fd, &mut event) };
    }
}

/// A member as the program registered it.
fn of_the_kernel(h: Handle, e: usize) -> epoll_event {
    let event = registration(h, e, MODE_NATIVE);
    if h.sock().members[e].has(MEMBER_DISABLED) { epoll_event { events: ONESHOT, ..event } } else { event }
}

/// Leaves a member to the kernel for good, as the program registered it; takes a ghost out.
fn hand_to_kernel(locked: &Locked, h: Handle, e: usize) {
    let m = &h.sock().members[e];
    let mut event = of_the_kernel(h, e);
    if m.has(MEMBER_GHOST) {
        let _ = control(locked, m, EPOLL_CTL_DEL, &mut event);
    } else if m.mode.load(Ordering::Relaxed) != MODE_NATIVE {
        let _ = control(locked, m, EPOLL_CTL_MOD, &mut event);
    }
}

/// A socket's last owner has gone, and with it the kernel's registrations.
pub fn sock_gone(h: Handle) {
    let s = h.sock();
    for e in 0..MAX_MEMBERSHIPS {
        if let Some(r) = Ref::named(s.member_of[e].load(Ordering::Acquire)) {
            let locked = r.lock();
            if s.member_of[e].load(Ordering::Acquire) == r.name {
                release(&locked, h, e);
            }
        }
    }
}

/// The set itself goes: all its members forget it.
pub fn forget_all(locked: &Locked) {
    let table = process::table();
    for i in 0..table.used_socks() {
        for e in 0..MAX_MEMBERSHIPS {
            if table.sock(i).member_of[e].load(Ordering::Acquire) == locked.r.name {
                release(locked, Handle::of_record(i), e);
            }
        }
    }
}
