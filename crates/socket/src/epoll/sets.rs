//! Epoll sets themselves: what a process has of each, who sleeps in it, the bell that wakes them.

use crate::fdtable::{self, Handle, Kind};
use crate::thread::{self, Critical};
use crate::{bells, handover, lifecycle, process, ready, secret};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use ropeway_shm::bell::Bell;
use ropeway_shm::ring::{End, Position};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_NONBLOCK, Lists, MAX_SETS, Set, set_name};

/// What this process has of a set.
pub struct Local {
    /// Descriptors of this process that lead to it, and one of them, -1 while the last is being given back.
    pub fds: AtomicU32,
    pub ep: AtomicI32,
    /// The bell that this process holds for it, if the set still has the same one; id 0 for none.
    bell_id: AtomicU64,
    bell_fd: AtomicI32,
    /// The descriptor that a close kept open for threads that still wait on the set, -1 for none. `fds` counts it.
    pub kept: AtomicI32,
    /// The last fork of this process that expects its child to have the set; 0 for none.
    pub fork: AtomicU64,
}

static LOCAL: [Local; MAX_SETS as usize] = [const {
    Local {
        fds: AtomicU32::new(0),
        ep: AtomicI32::new(-1),
        bell_id: AtomicU64::new(0),
        bell_fd: AtomicI32::new(-1),
        kept: AtomicI32::new(-1),
        fork: AtomicU64::new(0),
    }
}; MAX_SETS as usize];

/// Sets of this process that are watched by another set, by poll or select. Never goes down.
static NESTED: AtomicU32 = AtomicU32::new(0);

/// 40 random bits shifted up by 24, drawn before the first set is made and inherited by fork.
static FAMILY: AtomicU64 = AtomicU64::new(0);

/// The number that stands for a set's bell among the numbers of members.
pub const BELL: u32 = 0xff_ffff;
/// A ring with this tag only wakes: what there is to know stands in the set's lists.
pub const TAG_WAKE: u64 = u64::MAX - 1;

/// Set beside the number of a thread that waits in a set and is awake. No thread's number is so high.
const AWAKE: u64 = 1 << 31;

/// What this program's own data word can be told from: the kernel reports it for entries that are ours.
pub fn token(number: u32) -> u64 {
    FAMILY.load(Ordering::Relaxed) | number as u64
}

/// The number in a token; None for a data word of the program.
#[inline(always)]
pub fn number_in(data: u64) -> Option<u32> {
    (data & !0xff_ffff == FAMILY.load(Ordering::Relaxed)).then_some(data as u32 & 0xff_ffff)
}

/// A set as this process sees it.
#[derive(Clone, Copy)]
pub struct Ref {
    pub index: u32,
    /// Under which memberships name it.
    pub name: u32,
    pub set: &'static Set,
    pub local: &'static Local,
}

impl Ref {
    pub fn of(h: Handle) -> Ref {
        Ref::at(h.index())
    }

    /// The set that has this number now.
    pub fn at(index: u32) -> Ref {
        let set = process::table().set(index);
        let name = set_name(index, set.generation.load(Ordering::Relaxed));
        Ref { index, name, set, local: &LOCAL[index as usize] }
    }

    pub fn handle(&self) -> Handle {
        Handle::new(Kind::Set, self.index, self.set.generation.load(Ordering::Relaxed))
    }

    /// The set that a membership names, if it is still that one.
    pub fn named(name: u32) -> Option<Ref> {
        let index = (name & 0xffff).checked_sub(1).filter(|i| *i < MAX_SETS)?;
        let set = process::table().set(index);
        let current =
            set.used.load(Ordering::Acquire) == 1 && set_name(index, set.generation.load(Ordering::Acquire)) == name;
        current.then(|| Ref { index, name, set, local: &LOCAL[index as usize] })
    }

    pub fn lists(&self) -> &'static Lists {
        process::table().lists(self.index)
    }

    /// A descriptor of it in this process.
    pub fn ep(&self) -> Option<i32> {
        (self.local.fds.load(Ordering::Acquire) > 0)
            .then(|| self.local.ep.load(Ordering::Acquire))
            .filter(|ep| *ep >= 0)
    }

    pub fn lock(&self) -> Locked {
        let critical = Critical::enter();
        // Whatever a holder that died was changing is worked out again from the sockets by the next change.
        let _ = self.set.lock.lock(thread::me());
        Locked { r: *self, _critical: critical }
    }

    /// True when this process holds the bell that the set has now.
    pub fn holds_bell(&self) -> bool {
        let id = self.local.bell_id.load(Ordering::Acquire);
        id != 0
            && id == self.set.bell_id.load(Ordering::Acquire)
            && fdtable::is_internal(self.local.bell_fd.load(Ordering::Acquire))
    }

    /// The bell, if this process holds it.
    pub fn bell(&self) -> Option<Bell> {
        self.holds_bell().then(|| Bell {
            fd: self.local.bell_fd.load(Ordering::Acquire),
            id: self.local.bell_id.load(Ordering::Acquire),
        })
    }

    /// Makes the kernel's set readable, if its bell is there to do it.
    pub fn ring(&self) {
        bells::ring_one(self.set.bell_id.load(Ordering::Acquire), TAG_WAKE);
    }

    /// To be called after a member was made hot by somebody who is not waiting: whoever sleeps must look.
    pub fn wake(&self) {
        if self.set.nested.load(Ordering::SeqCst) != 0 || self.others_sleep() {
            self.ring();
        }
    }

    /// True while another thread sleeps in the set.
    pub fn others_sleep(&self) -> bool {
        let me = thread::me();
        self.any_waiter(|who| who & AWAKE == 0 && who != me)
    }

    /// True while another thread of this process waits in the set, or may.
    pub fn siblings_wait(&self) -> bool {
        let (me, pid) = (thread::me(), process::pid());
        self.any_waiter(|who| {
            let who = who & !AWAKE;
            who != me && (who >> 32) as u32 == pid && sys::thread_exists(pid, who as u32)
        })
    }

    /// True when `counts` says so of an entry, or there are waiters without one.
    fn any_waiter(&self, counts: impl Fn(u64) -> bool) -> bool {
        let mut entries = self.set.sleepers.iter().map(|entry| entry.load(Ordering::SeqCst));
        self.set.crowd.load(Ordering::SeqCst) != 0 || entries.any(|who| who != 0 && counts(who))
    }

    /// True while a process for which `counts` is true owns the set, or is about to.
    pub fn is_owned_by(&self, counts: impl Fn(u32) -> bool) -> bool {
        process::table().is_owned(self.index, counts)
    }

    /// True when no other process has the set, and no other thread waits in it.
    pub fn is_this_threads_alone(&self) -> bool {
        let (thread, me) = (thread::me(), process::pid());
        !self.any_waiter(|who| who & !AWAKE != thread) && !self.is_owned_by(|pid| pid != me && sys::process_exists(pid))
    }

    /// Removes the entries of sleepers that no longer exist.
    pub fn forget_dead_sleepers(&self) {
        for entry in &self.set.sleepers {
            let who = entry.load(Ordering::Relaxed);
            if who != 0 && !sys::thread_exists((who >> 32) as u32, (who & !AWAKE) as u32) {
                let _ = entry.compare_exchange(who, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// A number for the sleep that is about to begin (`bells`): neither 0 nor all ones. Whoever is rung by us sees it, and could
    /// keep others from ringing for a sleep whose number it knew beforehand.
    pub fn next_sleep(&self) -> u32 {
        let bell = self.set.bell_id.load(Ordering::Relaxed);
        loop {
            let sleep = secret::shuffled(bell, self.set.sleeps.fetch_add(1, Ordering::Relaxed));
            if sleep != 0 && sleep != u32::MAX {
                return sleep;
            }
        }
    }

    /// Enters the calling thread as one that waits in the set, awake yet. A full barrier: it looks next where its number leads.
    pub fn enter(&self) -> Sleeper {
        let me = thread::me();
        Sleeper { set: self.set, entry: take_entry(self.set, me | AWAKE), me }
    }
}

/// Takes a place among the sleepers of a set; None when the thread is only counted.
fn take_entry(set: &'static Set, who: u64) -> Option<&'static AtomicU64> {
    // An entry of our own was left by a jump out of a wait, or belongs to the wait that our handler interrupted.
    let own = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) & !AWAKE == who & !AWAKE;
    let free = |entry: &&AtomicU64| entry.compare_exchange(0, who, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let renew = |entry: &&AtomicU64| entry.store(who, Ordering::SeqCst);
    let entry = set.sleepers.iter().find(own).inspect(renew).or_else(|| set.sleepers.iter().find(free));
    if entry.is_none() {
        set.crowd.fetch_add(1, Ordering::SeqCst);
    }
    entry
}

/// A thread's entry among the sleepers of a set, from the beginning of its wait to the end.
pub struct Sleeper {
    set: &'static Set,
    entry: Option<&'static AtomicU64>,
    me: u64,
}

impl Sleeper {
    /// The thread is about to sleep, and counts as asleep from now on, also while it is awake for a moment. A full barrier: it looks at
    /// the set's state next.
    pub fn sleeps(&mut self) {
        if self.entry.is_some() {
            // A wait in a handler that interrupted this one may have given it back.
            self.entry = take_entry(self.set, self.me);
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        match self.entry {
            // A full barrier: whether the set was closed meanwhile is looked at next (`owners::wait_over`). A wait in a handler that
            // interrupted this one has given the entry back, and another thread may have it.
            Some(entry) => {
                let ours = |who: u64| (who & !AWAKE == self.me).then_some(0);
                let _ = entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ours);
            }
            None => {
                self.set.crowd.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// A set, locked. The last lock to be taken: nothing else is locked under it.
pub struct Locked {
    pub r: Ref,
    _critical: Critical,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.r.set.lock.unlock();
    }
}

impl Locked {
    /// Makes sure that the set has a bell which this process holds and which stands in the kernel's set. False when that
    /// cannot be had.
    pub fn ensure_bell(&self) -> bool {
        let r = self.r;
        if r.holds_bell() {
            return true;
        }
        let Some(ep) = r.ep() else { return false };
        self.drop_own_bell();
        let Some(bell) = bells::make() else { return false };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token(BELL) };
        // SAFETY: `event` is valid.
        if unsafe { sys::epoll_ctl(ep, libc::EPOLL_CTL_ADD, bell.fd, &mut event) }.is_err() {
            fdtable::remove(bell.fd);
            bell.close();
            return false;
        }
        r.local.bell_fd.store(bell.fd, Ordering::Release);
        r.local.bell_id.store(bell.id, Ordering::Release);
        r.set.tokens.store(1, Ordering::SeqCst);
        if r.set.bell_id.swap(bell.id, Ordering::SeqCst) != 0 {
            self.forget_slots();
        }
        true
    }

    /// The old bell, known to rings under its name, was another process's, or its number was taken by the program: all
    /// members must enter the new one.
    fn forget_slots(&self) {
        let (r, table) = (self.r, process::table());
        r.lists().promoted.for_each_from(0, |i| {
            let s = table.sock(i);
            let h = Handle::of_record(i);
            for (name, m) in s.member_of.iter().zip(&s.members) {
                if name.load(Ordering::Acquire) == r.name {
                    super::member::give_slots_back(h, m);
                }
            }
            true
        });
        r.lists().hot.insert_all(&r.lists().promoted);
    }

    /// Closes a bell of this process that the set has no more.
    pub fn drop_own_bell(&self) {
        let (id, fd) =
            (self.r.local.bell_id.swap(0, Ordering::AcqRel), self.r.local.bell_fd.swap(-1, Ordering::AcqRel));
        if id != 0 {
            fdtable::close_internal(fd);
        }
    }
}

/// The set that a descriptor leads to; while another thread closes one, what the number leads to afterwards. An error when that
/// does not come to an end: the kernel must not be asked then, because it has entries of ours in the set.
#[inline]
pub fn lookup(ep: i32) -> sys::Result<Option<Handle>> {
    match fdtable::lookup(ep) {
        Some(h) if h.kind() == Kind::Set => Ok(Some(h)),
        Some(marked) if marked.kind() == Kind::SetClosing => lifecycle::once_set_closed(ep, marked),
        _ => Ok(None),
    }
}

/// After `epoll_create`: follows the set from now on. Sockets in a set that is not followed stay on TCP.
pub fn created(fd: i32) {
    if fd < 0 || !process::ready() {
        return;
    }
    if fdtable::lookup(fd).is_some() {
        // The number was closed behind our back.
        lifecycle::was_closed(fd);
    }
    if FAMILY.load(Ordering::Relaxed) == 0 {
        let drawn = sys::random_u64() & !0xff_ffff | 1 << 63;
        let _ = FAMILY.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
    }
    // All owners of a set number its sleeps in one order.
    secret::prepare();
    // What threads that were cancelled in a wait have left.
    for_each_local(super::owners::wait_over);
    let table = process::table();
    let Some(index) = table.allocate_set(process::pid(), |pid| !sys::process_exists(pid)) else { return };
    let h = Ref::at(index).handle();
    let local = &LOCAL[index as usize];
    local.kept.store(-1, Ordering::Relaxed);
    local.bell_id.store(0, Ordering::Relaxed);
    local.ep.store(fd, Ordering::Relaxed);
    local.fds.store(1, Ordering::Release);
    if fdtable::enter(fd, h).1 {
        process::note_fd(fd);
    } else {
        local.fds.store(0, Ordering::Release);
        table.set(index).owners[0].store(0, Ordering::Release);
        table.release_set(index, sys::process_exists);
    }
}

/// True when the kernel can serve a set without our help: no other process has it, and nothing that we follow is in it.
pub fn is_native(h: Handle) -> bool {
    let r = Ref::of(h);
    r.set.members.load(Ordering::Acquire) == 0 && r.is_this_threads_alone()
}

pub fn for_each_local(mut f: impl FnMut(Ref)) {
    if !process::started() {
        return;
    }
    let table = process::table();
    for index in 0..table.used_sets() {
        if LOCAL[index as usize].fds.load(Ordering::Acquire) > 0 {
            f(Ref::at(index));
        }
    }
}

/// In the child of the fork with this number: calls `f` with the sets that may expect it. As with sockets, the table is looked at for
/// no others.
pub fn for_each_since(number: u64, mut f: impl FnMut(Ref)) {
    for index in 0..process::table().used_sets() {
        if LOCAL[index as usize].fork.load(Ordering::Relaxed) >= number {
            f(Ref::at(index));
        }
    }
}

/// Remembers that something outside watches the set.
pub fn note_nested(r: Ref) {
    if r.set.nested.swap(1, Ordering::SeqCst) == 0 {
        NESTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// True when a set of this process is, or was, watched by something else.
pub fn any_nested() -> bool {
    NESTED.load(Ordering::Relaxed) != 0
}

/// Calls `f` with the sets of this process that are watched by something else and have rings.
pub fn for_each_nested(mut f: impl FnMut(Ref)) {
    if !any_nested() {
        return;
    }
    for_each_local(|r| {
        if r.set.nested.load(Ordering::Relaxed) != 0 && r.set.rings.load(Ordering::SeqCst) != 0 {
            f(r);
        }
    });
}

/// The mapping of a socket's rings is about to go in this process: waits until nobody looks at them under a set's lock.
pub fn mapping_going(h: Handle) {
    for name in &h.sock().member_of {
        if let Some(r) = Ref::named(name.load(Ordering::Acquire)) {
            drop(r.lock());
        }
    }
}

/// The pair of a socket has been taken out of use: waits until nobody looks at it under a set's lock, and forgets what the
/// memberships know of its rings.
pub fn pair_going(h: Handle) {
    for (name, m) in h.sock().member_of.iter().zip(&h.sock().members) {
        let Some(r) = Ref::named(name.load(Ordering::Acquire)) else { continue };
        let locked = r.lock();
        super::member::give_slots_back(h, m);
        m.set_edge(Position::default());
        drop(locked);
    }
}

/// True when every set that the socket is in could follow it onto a ring from this process (handover, clause 2.1). A
/// non-blocking socket must be in one, if in any, that a wait of ours has been called on.
pub fn can_follow(h: Handle) -> bool {
    let s = h.sock();
    let (mut members, mut waited) = (0, 0);
    let follows = s.member_of.iter().zip(&s.members).all(|(name, m)| {
        let Some(r) = Ref::named(name.load(Ordering::SeqCst)) else { return true };
        members += 1;
        waited += r.set.waited.load(Ordering::Acquire);
        r.ep().is_some()
            && fdtable::leads_to(m.fd.load(Ordering::Acquire), h)
            && (r.holds_bell() || r.lock().ensure_bell())
    });
    follows && (members == 0 || waited != 0 || !s.has(FLAG_NONBLOCK))
}

/// Both ends of a pair, and which of its rings a slot of each kind is in.
pub fn rings_of(h: Handle) -> Option<[(ropeway_shm::ring::Ring, End); 2]> {
    if !ready::is_open(h) {
        return None;
    }
    handover::pair(h.sock()).map(|p| [(p.incoming(), End::Reader), (p.outgoing(), End::Writer)])
}
