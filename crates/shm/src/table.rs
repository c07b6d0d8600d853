//! The table of sockets that a family of processes (a process and what it forks) shares.
//!
//! One record per open socket description, as in the kernel: `dup` and `fork` lead to the same record. The table lives in
//! a sealed memfd, mapped at one address in the whole family; only its owners map it. `ropeway ss` copies
//! records out of the file while its owners run, so every field that it shows is an atomic.
//!
//! What is *not* here: which descriptor number leads to which record (private to each process, `socket::fdtable`).

mod births;
mod prefix;
mod reader;
mod sets;

pub use births::{Birth, Births, EXPECTED_FOR_GOOD};
pub use prefix::{PREFIX_POINTS, Prefix};
pub use reader::{Connection, connections};
pub use sets::*;

use crate::lock::{Holder, Lock};
use crate::ring::{Consumer, Producer};
use crate::{memfd, present, sys};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::os::fd::IntoRawFd;

/// Sockets that one family can have open and tracked at a time; more stay on TCP (`table-full`).
pub const MAX_SOCKS: u32 = 65_536;
/// Processes that may own one socket and still be counted.
pub const MAX_OWNERS: usize = 8;
/// Epoll sets that one socket may be a member of and still be promoted.
pub const MAX_MEMBERSHIPS: usize = 4;

const MAGIC: u64 = u64::from_le_bytes(*b"ropeway1");

/// What a record stands for.
pub const CLASS_FREE: u32 = 0;
/// A TCP socket that is not connected yet.
pub const CLASS_FRESH: u32 = 1;
/// A connected TCP socket.
pub const CLASS_CONNECTED: u32 = 2;

/// Carrier of the outgoing direction.
pub const TX_TCP: u32 = 0;
pub const TX_RING: u32 = 1;

/// Carrier of the incoming direction.
pub const RX_TCP: u32 = 0;
/// The ring is offered; the writer may switch at any moment, so TCP is read by PEEK first.
pub const RX_ATTACHED: u32 = 1;
/// The writer has switched; bytes before the switch are still to be read from TCP.
pub const RX_DRAIN: u32 = 2;
pub const RX_RING: u32 = 3;

/// How far a record has come on its way to a ring.
pub const PAIR_NONE: u32 = 0;
pub const PAIR_REGISTERED: u32 = 1;
/// Mapped and stamped by this side.
pub const PAIR_MAPPED: u32 = 2;
/// Both ends have stamped.
pub const PAIR_READY: u32 = 3;
/// The other end has left for good: the pair is given back as soon as nobody uses it.
pub const PAIR_LEFT: u32 = 4;

/// In an entry of [`Sock::owners`]: the process is about to start another image, which will not have the socket. Process
/// numbers have 22 bits.
pub const OWNER_LEAVES: u32 = 1 << 31;

/// Flag bits of [`Sock::flags`].
pub const FLAG_NONBLOCK: u32 = 1 << 0;
/// Never promote (again); the local reason says why.
pub const FLAG_PINNED: u32 = 1 << 1;
/// The peer's FIN was seen on the shadow.
pub const FLAG_PEER_FIN: u32 = 1 << 2;
/// The connection is reset: errors are given as TCP gives them.
pub const FLAG_RESET: u32 = 1 << 3;
/// `shutdown(SHUT_WR)` was called here.
pub const FLAG_SHUT_WR: u32 = 1 << 4;
/// `shutdown(SHUT_RD)` was called here.
pub const FLAG_SHUT_RD: u32 = 1 << 5;
/// A wrapped poll, select or epoll wait has looked at this socket.
pub const FLAG_WAITED: u32 = 1 << 6;
/// More processes own it than can be counted.
pub const FLAG_UNCOUNTED: u32 = 1 << 7;
/// The time-outs and low-water mark below are known, unless somebody is asking for them still.
pub const FLAG_TIMEOUTS_KNOWN: u32 = 1 << 8;
/// `connect` has been called (and may still be under way).
pub const FLAG_CONNECTING: u32 = 1 << 9;
/// Strict mode found that this connection should have been promoted and was not.
pub const FLAG_STRICT_FAIL: u32 = 1 << 10;
/// It came with this image, which does not know yet what happened on it before.
pub const FLAG_INHERITED: u32 = 1 << 11;
/// We left a ring of which the peer had not read everything: should it die now, TCP would have reset the connection.
pub const FLAG_LEFT_UNREAD: u32 = 1 << 12;
/// `SO_RCVTIMEO` is a negative time: a receive that would wait fails at once.
pub const FLAG_RCVTIMEO_PASSED: u32 = 1 << 13;
/// `SO_SNDTIMEO` is a negative time: a send that would wait fails at once.
pub const FLAG_SNDTIMEO_PASSED: u32 = 1 << 14;
/// `TCP_INQ`: each `recvmsg` tells how many bytes are left.
pub const FLAG_INQ: u32 = 1 << 15;
/// A thread is asking the kernel for the time-outs and the low-water mark. They are known afterwards if [`FLAG_TIMEOUTS_KNOWN`] is set
/// still: who sets another clears that.
pub const FLAG_TIMEOUTS_ASKED: u32 = 1 << 16;

/// Outgoing direction of a socket. Fields that are not atomic are protected by `lock`.
#[repr(C, align(64))]
pub struct Tx {
    pub lock: Lock,
    /// `TX_*`; changed under the lock, read anywhere.
    pub phase: AtomicU32,
    /// Calls that are sending on TCP right now.
    pub inflight: AtomicU32,
    producer: UnsafeCell<Producer>,
    /// Bytes that the wrappers sent on TCP / wrote to rings.
    pub tcp_bytes: AtomicU64,
    pub ring_bytes: AtomicU64,
    /// Sending calls on TCP, for lazy promotion.
    pub calls: AtomicU32,
    /// A write found the ring full since writability was reported last.
    pub blocked: AtomicU32,
    /// A waiter that does not block saw this progress of the reader (a hash), and when: `hash << 32 | time`.
    pub stuck: AtomicU64,
    /// When the shadow was looked at last, in ticks.
    pub looked: AtomicU64,
    /// Sends since the other direction was looked at last, and what of its `ring_bytes` stood there then (`send::is_one_way`).
    pub run: AtomicU32,
    pub heard: AtomicU32,
    pub prefix: Prefix,
}

/// Incoming direction of a socket.
#[repr(C, align(64))]
pub struct Rx {
    pub lock: Lock,
    /// `RX_*`; changed under the lock, read anywhere.
    pub phase: AtomicU32,
    /// Threads that are reading from, or waiting in, the kernel without the bell.
    pub inflight: AtomicU32,
    consumer: UnsafeCell<Consumer>,
    /// TCP offset (of this socket's incoming stream) at which the ring begins.
    pub switch_at: AtomicU64,
    /// Bytes that the wrappers consumed from TCP / from rings.
    pub tcp_bytes: AtomicU64,
    pub ring_bytes: AtomicU64,
    pub calls: AtomicU32,
    /// The shadow reported an event that no call has looked at yet (epoll's token).
    pub shadow_event: AtomicU32,
    /// When the shadow was looked at last, in ticks.
    pub looked: AtomicU64,
    /// What had been sent on rings when a reader waited last, and how many short waits in a row went without a send: a stream
    /// of small messages one way.
    pub sent_before: AtomicU64,
    pub short_waits: AtomicU32,
    /// Epoch whose unread rest the holder of the lock asks the writer for; 0 for none. Set before the request can be seen, and cleared
    /// when all is done that follows from what came of it: whoever takes the lock over from the dead settles it.
    pub recalling: AtomicU32,
    pub prefix: Prefix,
}

/// One socket.
#[repr(C, align(64))]
pub struct Sock {
    /// `CLASS_*`.
    pub class: AtomicU32,
    /// Grows when the record is taken and when it is given back: odd while it is in use. Part of every handle.
    pub generation: AtomicU32,
    pub flags: AtomicU32,
    /// `PAIR_*`.
    pub pairing: AtomicU32,
    /// Reason codes (`socket::reason`): why this end is not on a ring, and what the daemon said of the other end.
    pub reason: AtomicU32,
    pub remote_reason: AtomicU32,
    /// Calls after which promotion is tried (again).
    pub try_at: AtomicU32,
    /// Times this connection was promoted and demoted, either direction.
    pub promotions: AtomicU32,
    pub demotions: AtomicU32,
    /// Pending error for the next call, as TCP's sk_err.
    pub error: AtomicI32,
    /// Guards pairing, mapping and owner changes.
    pub lock: Lock,
    pub cookie: AtomicU64,
    /// Mapped segment: address, size of its rings and our side. Valid in every owner.
    pub seg_base: AtomicU64,
    pub seg_ring_bytes: AtomicU32,
    pub seg_side: AtomicU32,
    /// SO_RCVTIMEO and SO_SNDTIMEO in microseconds (0: none), SO_RCVLOWAT in bytes.
    pub rcvtimeo_us: AtomicU64,
    pub sndtimeo_us: AtomicU64,
    pub rcvlowat: AtomicU32,
    /// Bytes written to, and read from, rings of former pairs.
    pub ring_before: [AtomicU64; 2],
    /// Bytes already added to a process's totals.
    pub folded: [AtomicU64; 4],
    /// Addresses, IPv6 or v4-mapped, 16 bytes each as two words, and ports; for `ropeway ss` and registration.
    pub local_ip: [AtomicU64; 2],
    pub remote_ip: [AtomicU64; 2],
    pub local_port: AtomicU32,
    pub remote_port: AtomicU32,
    /// Process numbers of the owners, perhaps with [`OWNER_LEAVES`]; 0 for a free entry.
    pub owners: [AtomicU32; MAX_OWNERS],
    /// Forks whose children have not entered themselves yet: bits of [`Births`].
    pub expected: AtomicU64,
    /// The owner that took it along into another image, where it is not counted here any more; 0 for none.
    pub heir: AtomicU32,
    next_free: AtomicU32,
    pub tx: Tx,
    pub rx: Rx,
    /// The sets that it is a member of (`set_name`, 0 for a free entry), and the entries.
    pub member_of: [AtomicU32; MAX_MEMBERSHIPS],
    pub members: [Member; MAX_MEMBERSHIPS],
}

impl Sock {
    /// The writer's cursor.
    ///
    /// # Safety
    /// The caller holds `tx.lock` and keeps no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "the lock that protects it lives in shared memory")]
    #[inline(always)]
    pub unsafe fn producer(&self) -> &mut Producer {
        // SAFETY: exclusive under the lock (contract).
        unsafe { &mut *self.tx.producer.get() }
    }

    /// The reader's cursor.
    ///
    /// # Safety
    /// The caller holds `rx.lock` and keeps no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "the lock that protects it lives in shared memory")]
    #[inline(always)]
    pub unsafe fn consumer(&self) -> &mut Consumer {
        // SAFETY: exclusive under the lock (contract).
        unsafe { &mut *self.rx.consumer.get() }
    }

    /// A copy of the reader's cursor, taken without the lock: good for a hint only.
    #[inline(always)]
    pub fn consumer_hint(&self) -> Consumer {
        // SAFETY: plain integers inside the mapping; a torn value leads to a wrong hint, which callers allow for (cells
        // are checked against the ring's size before use).
        unsafe { ptr::read_volatile(self.rx.consumer.get()) }
    }

    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    /// Keeps an error of the kernel's for the next call: this one has moved bytes, or was not the program's. 0 is none.
    pub fn keep_error(&self, e: i32) {
        if e != 0 {
            self.error.store(e, Ordering::Release);
            self.set(FLAG_RESET);
        }
    }

    pub fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::AcqRel);
    }

    /// Brings a free record to its first state. Generation and lock words are kept: a late comer may hold a lock for a moment.
    fn reset(&self) {
        for word in [&self.flags, &self.pairing, &self.reason, &self.remote_reason, &self.try_at] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.promotions, &self.demotions, &self.seg_ring_bytes, &self.seg_side] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.heir, &self.tx.phase, &self.tx.inflight, &self.tx.calls, &self.tx.blocked, &self.rx.phase] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.rx.inflight, &self.rx.calls, &self.rx.shadow_event, &self.local_port, &self.remote_port] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.cookie, &self.seg_base, &self.expected, &self.tx.tcp_bytes, &self.tx.ring_bytes] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.tx.looked,
            &self.tx.stuck,
            &self.rx.switch_at,
            &self.rx.tcp_bytes,
            &self.rx.ring_bytes,
            &self.rx.looked,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.tx.run, &self.tx.heard] {
            word.store(0, Ordering::Relaxed);
        }
        self.rx.sent_before.store(0, Ordering::Relaxed);
        self.rx.short_waits.store(0, Ordering::Relaxed);
        self.rx.recalling.store(0, Ordering::Relaxed);
        for word in self.folded.iter().chain(&self.ring_before) {
            word.store(0, Ordering::Relaxed);
        }
        for owner in &self.owners {
            owner.store(0, Ordering::Relaxed);
        }
        self.member_of.iter().for_each(|set| set.store(0, Ordering::Relaxed));
        self.members.iter().for_each(Member::reset);
        self.error.store(0, Ordering::Relaxed);
        self.tx.prefix.reset();
        self.rx.prefix.reset();
        // SAFETY: the record is free: nobody else uses its cursors.
        unsafe {
            *self.producer() = Producer::default();
            *self.consumer() = Consumer::default();
        }
    }
}

#[repr(C, align(64))]
struct TableHeader {
    magic: AtomicU64,
    sock_bytes: AtomicU32,
    max_socks: AtomicU32,
    /// Records below this index have been used at least once.
    used_socks: AtomicU32,
    used_sets: AtomicU32,
    /// Free list: `change count << 32 | index + 1`.
    free: AtomicU64,
    births: Births,
}

/// Where the parts of the table begin, behind its header.
const SETS_AT: usize = 4096;
const _: () = assert!(size_of::<TableHeader>() <= SETS_AT);
const SOCKS_AT: usize = SETS_AT + MAX_SETS as usize * size_of::<Set>();
const LISTS_AT: usize = SOCKS_AT + MAX_SOCKS as usize * size_of::<Sock>();
/// Size of the file behind a table, for good.
pub const TABLE_BYTES: usize = LISTS_AT + MAX_SETS as usize * size_of::<Lists>();

/// The mapped table. Copyable: an address that stays valid for the life of the process.
#[derive(Clone, Copy)]
pub struct Table {
    base: *mut u8,
}

// SAFETY: the table consists of atomics, and of cells that are used under locks only.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Makes a new, empty table. Returns it with the memfd that backs it (to be shown to `ropeway ss`).
    pub fn create() -> sys::Result<(Table, i32)> {
        let fd = memfd::sealed(c"ropeway-table", TABLE_BYTES)?.into_raw_fd();
        let mapped = memfd::map(fd, TABLE_BYTES, libc::PROT_READ | libc::PROT_WRITE).and_then(|base| {
            // SAFETY: the new mapping, which begins with the header.
            let there = unsafe { present::ensure(base, size_of::<TableHeader>()) };
            if there { Ok(base) } else { Err(libc::ENOMEM) }
        });
        let base = match mapped {
            Ok(base) => base,
            Err(e) => {
                let _ = sys::close(fd);
                return Err(e);
            }
        };
        let table = Table { base };
        table.header().sock_bytes.store(size_of::<Sock>() as u32, Ordering::Relaxed);
        table.header().max_socks.store(MAX_SOCKS, Ordering::Relaxed);
        table.header().magic.store(MAGIC, Ordering::Release);
        Ok((table, sys::move_high(fd)))
    }

    /// The address of the mapping.
    pub fn address(&self) -> *mut u8 {
        self.base
    }

    /// The table at an address.
    ///
    /// # Safety
    /// [`Table::address`] gave it, in this process or in one that this one was forked from.
    #[inline(always)]
    pub unsafe fn from_address(base: *mut u8) -> Table {
        Table { base }
    }

    fn header(&self) -> &TableHeader {
        // SAFETY: the mapping begins with the header and is never removed.
        unsafe { &*self.base.cast() }
    }

    /// The record with this index, which must be below [`MAX_SOCKS`].
    #[inline(always)]
    pub fn sock(&self, index: u32) -> &'static Sock {
        debug_assert!(index < MAX_SOCKS);
        // SAFETY: inside the mapping, which is never removed; records are atomics and locked cells.
        unsafe { &*self.base.add(SOCKS_AT).cast::<Sock>().add(index as usize) }
    }

    /// The index of a record of this table.
    pub fn index_of(&self, sock: &Sock) -> u32 {
        ((ptr::from_ref(sock).addr() - self.base.addr() - SOCKS_AT) / size_of::<Sock>()) as u32
    }

    /// The forks of the family.
    pub fn births(&self) -> &'static Births {
        // SAFETY: in the header of the mapping, which is never removed; atomics.
        unsafe { &(*self.base.cast::<TableHeader>()).births }
    }

    pub fn used_socks(&self) -> u32 {
        self.header().used_socks.load(Ordering::Acquire).min(MAX_SOCKS)
    }

    /// Takes a record, in its first state and of class `class`, owned by `pid`. None when the table is full, or there is no memory
    /// for another.
    pub fn allocate(&self, class: u32, pid: u32) -> Option<u32> {
        let index = self.pop_free().or_else(|| self.extend_socks())?;
        let sock = self.sock(index);
        sock.reset();
        sock.generation.fetch_add(1, Ordering::AcqRel);
        sock.owners[0].store(pid, Ordering::Relaxed);
        sock.class.store(class, Ordering::Release);
        Some(index)
    }

    /// A record that was never used. All below `used_socks` are there for everybody to look at.
    fn extend_socks(&self) -> Option<u32> {
        let used = &self.header().used_socks;
        let is_there = |index: u32| {
            // SAFETY: a record of the mapping.
            index < MAX_SOCKS
                && unsafe { present::ensure(ptr::from_ref(self.sock(index)).cast_mut().cast(), size_of::<Sock>()) }
        };
        used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |index| is_there(index).then_some(index + 1)).ok()
    }

    /// Gives a record back. The caller was its last owner and has unmapped its segment. Passes the locks of both directions:
    /// who holds one and finds the generation that he knows has the record until he unlocks.
    pub fn release(&self, index: u32, me: Holder) {
        let sock = self.sock(index);
        sock.class.store(CLASS_FREE, Ordering::Release);
        sock.generation.fetch_add(1, Ordering::AcqRel);
        for lock in [&sock.tx.lock, &sock.rx.lock] {
            let _ = lock.lock(me);
            lock.unlock();
        }
        let mut head = self.header().free.load(Ordering::Acquire);
        loop {
            sock.next_free.store(head as u32, Ordering::Relaxed);
            let new = ((head >> 32).wrapping_add(1)) << 32 | (index as u64 + 1);
            match self.header().free.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop_free(&self) -> Option<u32> {
        let mut head = self.header().free.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.sock(index).next_free.load(Ordering::Relaxed);
            let new = ((head >> 32).wrapping_add(1)) << 32 | next as u64;
            match self.header().free.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder;
    use std::sync::Barrier;
    use std::time::Duration;

    fn me() -> Holder {
        holder(sys::getpid().expect("getpid") as u32, sys::gettid().expect("gettid") as u32)
    }

    #[test]
    fn no_record_is_taken_twice() {
        let (table, fd) = Table::create().expect("table");
        let ready = Barrier::new(4);
        let take = |most: usize| -> Vec<u32> { (0..most).filter_map(|_| table.allocate(CLASS_FRESH, 7)).collect() };
        let churn = || {
            ready.wait();
            for round in 0..2000 {
                take(1 + round % 7).into_iter().for_each(|i| table.release(i, me()));
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(churn))));
        let mut all = take(table.used_socks() as usize);
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..table.used_socks()), "each once: {all:?}");
        sys::close(fd).expect("close");
    }

    #[test]
    fn what_there_is_no_memory_for_is_not_taken() {
        present::tests::count();
        let (table, fd) = Table::create().expect("table");
        let Some(refusing) = present::tests::refuse(table.address(), TABLE_BYTES.next_multiple_of(SETS_AT)) else {
            ropeway_testkit::skip!("userfaultfd is not there or not allowed, and pages cannot be refused");
        };
        assert_eq!((table.allocate(CLASS_FRESH, 7), table.used_socks()), (None, 0));
        assert_eq!((table.allocate_set(7, |_| false), table.used_sets()), (None, 0));
        sys::close(refusing).expect("close");
        assert_eq!((table.allocate(CLASS_FRESH, 7), table.used_socks()), (Some(0), 1));
        assert_eq!((table.allocate_set(7, |_| false), table.used_sets()), (Some(0), 1));
        sys::close(fd).expect("close");
    }

    #[test]
    fn a_record_is_not_taken_while_a_late_comer_holds_a_lock_of_it() {
        let (table, fd) = Table::create().expect("table");
        let index = table.allocate(CLASS_CONNECTED, 7).expect("room");
        let s = table.sock(index);
        let generation = s.generation.load(Ordering::Relaxed);
        assert!(s.rx.lock.try_lock(me()));
        std::thread::scope(|scope| {
            let released = scope.spawn(|| table.release(index, me()));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!released.is_finished());
            assert_eq!(s.rx.lock.owner(), me());
            s.rx.lock.unlock();
        });
        assert_eq!(table.allocate(CLASS_CONNECTED, 7), Some(index));
        assert_ne!(s.generation.load(Ordering::Relaxed), generation, "who comes later sees that it is another one");
        sys::close(fd).expect("close");
    }
}
