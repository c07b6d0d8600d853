//! Lazy promotion: when to ask the rendezvous for a pair, and what to do with its answers.
//!
//! Everything happens at call boundaries of the program; nothing waits (handover, clause 1).

use crate::fdtable::Handle;
use crate::handover::{calls, lock_rx, lock_tx, note_reason, pair, pass_directions, pin};
use crate::reason::Reason;
use crate::rendezvous::client::{self, Register, Reply, Unavailable};
use crate::rendezvous::wire::{Endpoint, Prefix};
use crate::thread::{self, Critical};
use crate::{adopt, bells, epoll, lifecycle, process, ready, settings, shadow, wait};
use core::sync::atomic::Ordering;
use ropeway_shm::ring::Look;
use ropeway_shm::segment::{Pair, Stamps};
use ropeway_shm::sys;
use ropeway_shm::table::{
    CLASS_CONNECTED, FLAG_INHERITED, FLAG_PEER_FIN, FLAG_PINNED, FLAG_RESET, FLAG_SHUT_RD, FLAG_SHUT_WR,
    FLAG_STRICT_FAIL, MAX_SOCKS, PAIR_LEFT, PAIR_MAPPED, PAIR_NONE, PAIR_READY, PAIR_REGISTERED, RX_ATTACHED, Sock,
};

/// Calls until a connection that could not register tries again.
const RETRY_CALLS: u32 = 256;
/// Calls until a registration that the daemon had no room for is repeated.
const BUSY_CALLS: u32 = 8;
/// Calls until a connection is looked at again that several processes have: a server's child is often alone with it soon.
const SHARED_CALLS: u32 = 32;
/// Calls between two looks at whether the daemon that has our registration still lives.
const DAEMON_LOOK_CALLS: u32 = 1024;
/// Calls for which one end waits with a mapped half for the other end's stamp.
const STAMP_PATIENCE_CALLS: u32 = 4096;

/// To be called first by every sending and receiving call. True: the call must fail, see [`strict_failure`].
#[inline]
pub fn at_boundary(s: &Sock, h: Handle, fd: i32) -> bool {
    if client::mail_waiting() {
        read_mail();
    }
    let pairing = s.pairing.load(Ordering::Acquire);
    if pairing == PAIR_READY {
        return false;
    }
    progress(s, h, fd, pairing)
}

fn progress(s: &Sock, h: Handle, fd: i32, pairing: u32) -> bool {
    let flags = s.flags.load(Ordering::Acquire);
    if flags & FLAG_PINNED != 0 {
        return flags & FLAG_STRICT_FAIL != 0;
    }
    if pairing == PAIR_MAPPED {
        await_stamp(s, h);
        return false;
    }
    if pairing == PAIR_LEFT {
        if is_time(s) {
            give_left_pair_back(s, h, fd);
        }
        return false;
    }
    let calls = calls(s);
    if pairing == PAIR_REGISTERED {
        if calls % DAEMON_LOOK_CALLS == DAEMON_LOOK_CALLS - 1 {
            read_mail();
        }
        return false;
    }
    let due = is_time(s)
        && (calls >= settings::promote_after_calls()
            || s.tx.tcp_bytes.load(Ordering::Relaxed).max(s.rx.tcp_bytes.load(Ordering::Relaxed))
                >= settings::promote_after_bytes());
    if due {
        consider(s, h, fd);
    }
    false
}

/// True when the pause that [`try_later`] or a demotion made is over.
fn is_time(s: &Sock) -> bool {
    (calls(s).wrapping_sub(s.try_at.load(Ordering::Relaxed)) as i32) >= 0
}

/// For one that may come to a ring yet: what was pinned meanwhile has its reason already.
pub(crate) fn try_later(s: &Sock, reason: Reason) {
    if s.has(FLAG_PINNED) {
        return;
    }
    note_reason(s, reason);
    s.try_at.store(calls(s).wrapping_add(RETRY_CALLS), Ordering::Relaxed);
}

/// Registers the connection if it can be promoted at all.
#[cold]
fn consider(s: &Sock, h: Handle, fd: i32) {
    let _critical = Critical::enter();
    if !s.lock.try_lock(thread::me()) {
        return;
    }
    consider_locked(s, h, fd);
    s.lock.unlock();
}

fn consider_locked(s: &Sock, h: Handle, fd: i32) {
    let flags = s.flags.load(Ordering::Acquire);
    if s.class.load(Ordering::Acquire) != CLASS_CONNECTED || s.pairing.load(Ordering::Acquire) != PAIR_NONE {
        return;
    }
    if flags & (FLAG_PEER_FIN | FLAG_SHUT_RD | FLAG_SHUT_WR | FLAG_RESET) != 0 {
        return try_later(s, Reason::HalfClosed);
    }
    if fd <= 2 {
        return pin(s, Reason::StandardDescriptor);
    }
    if !lifecycle::sole_owner(s) {
        note_reason(s, Reason::SharedOwners);
        s.try_at.store(calls(s).wrapping_add(SHARED_CALLS), Ordering::Relaxed);
        return;
    }
    if s.tx.inflight.load(Ordering::Acquire) != 0 || s.rx.inflight.load(Ordering::Acquire) != 0 {
        // Another thread is in the kernel with it: its bytes are not counted yet. Soon again.
        s.try_at.store(calls(s).wrapping_add(1), Ordering::Relaxed);
        return;
    }
    if !shadow::established(fd) {
        return try_later(s, Reason::TooYoung);
    }
    if s.has(FLAG_INHERITED) {
        let cookie = s.cookie.load(Ordering::Relaxed);
        return ask(s, Reason::Exec, || client::adopt(h.token(), cookie, fd));
    }
    let (Some(sent), Some(received)) = (shadow::sent(fd), shadow::received(fd)) else {
        s.try_at.store(calls(s).wrapping_add(1), Ordering::Relaxed);
        return;
    };
    if sent != s.tx.tcp_bytes.load(Ordering::Acquire) || received != s.rx.tcp_bytes.load(Ordering::Acquire) {
        return pin(s, Reason::ForeignBytes);
    }
    let Some(registration) = describe(s, h, fd) else { return pin(s, Reason::UnsupportedOption) };
    ask(s, Reason::PeerNotRegistered, || client::register(&registration));
}

/// Sends the daemon a question about the connection; `waiting` is the reason until it answers.
fn ask(s: &Sock, waiting: Reason, send: impl FnOnce() -> Result<(), Unavailable>) {
    s.pairing.store(PAIR_REGISTERED, Ordering::Release);
    match send() {
        // What the daemon said earlier stays the reason until it says something else.
        Ok(()) if s.remote_reason.load(Ordering::Relaxed) == 0 => note_reason(s, waiting),
        Ok(()) => {}
        Err(Unavailable::Full | Unavailable::Busy) => {
            s.pairing.store(PAIR_NONE, Ordering::Release);
            s.try_at.store(calls(s).wrapping_add(BUSY_CALLS), Ordering::Relaxed);
        }
        Err(Unavailable::NoDaemon | Unavailable::Lost) => {
            s.pairing.store(PAIR_NONE, Ordering::Release);
            try_later(s, Reason::DaemonUnavailable);
        }
    }
}

/// What the daemon must know of a connection.
pub(crate) fn describe(s: &Sock, h: Handle, fd: i32) -> Option<Register> {
    let (local, remote) = (address(fd, false)?, address(fd, true)?);
    for (words, endpoint) in [(&s.local_ip, &local), (&s.remote_ip, &remote)] {
        for (i, word) in words.iter().enumerate() {
            let bytes: [u8; 8] = core::array::from_fn(|b| endpoint.addr[8 * i + b]);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }
    s.local_port.store(local.port as u32, Ordering::Relaxed);
    s.remote_port.store(remote.port as u32, Ordering::Relaxed);
    let cookie = Some(s.cookie.load(Ordering::Relaxed)).filter(|cookie| *cookie != 0)?;
    let prefix = |p: &ropeway_shm::table::Prefix| {
        let (hash, len) = p.snapshot();
        Prefix { hash, len }
    };
    Some(Register { token: h.token(), cookie, fd, local, remote, tx: prefix(&s.tx.prefix), rx: prefix(&s.rx.prefix) })
}

/// `SO_COOKIE`: the kernel's own number for a socket, never used again.
pub(crate) fn cookie(fd: i32) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = 8u32;
    // SAFETY: buffer and length are valid.
    unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &mut len).ok()? };
    Some(cookie)
}

fn address(fd: i32, peer: bool) -> Option<Endpoint> {
    let mut raw = [0u8; 128];
    let mut len = raw.len() as u32;
    // SAFETY: buffer and length are valid.
    unsafe {
        if peer {
            sys::getpeername(fd, raw.as_mut_ptr().cast(), &mut len).ok()?;
        } else {
            sys::getsockname(fd, raw.as_mut_ptr().cast(), &mut len).ok()?;
        }
    }
    Endpoint::from_sockaddr(&raw[..(len as usize).min(raw.len())])
}

/// Reads what the daemon sent.
#[cold]
pub fn read_mail() {
    let _critical = Critical::enter();
    client::poll(&mut |reply| match reply {
        Reply::Granted { token, side, ring_bytes, fd, .. } => {
            granted(token, side, ring_bytes, fd);
            let _ = sys::close(fd);
        }
        Reply::Denied { token, reason, retry } => denied(token, reason, retry),
        Reply::Adopted { token, legacy } => {
            if let Some((s, _)) = ours(token) {
                adopt::adopted(s, &legacy);
            }
        }
        Reply::Lost => lost(),
    });
}

/// The record that a token names, if it still is what was registered and this process still has it.
fn ours(token: u64) -> Option<(&'static Sock, Handle)> {
    let h = Handle::from_token(token);
    if h.index() >= MAX_SOCKS || !process::started() || !h.is_current() {
        return None;
    }
    (process::local(h.index()).fds.load(Ordering::Acquire) > 0).then(|| (h.sock(), h))
}

/// Takes one half of a pair: maps and stamps it. The descriptor stays the caller's.
pub fn granted(token: u64, side: u8, ring_bytes: u32, fd: i32) {
    let mapped = match bells::can_ring() {
        true => Pair::map(fd, ring_bytes, side).map_err(|_| Reason::Memory),
        false => Err(Reason::Limits),
    };
    let pair = match mapped {
        Ok(pair) => pair,
        Err(reason) => {
            if let Some((s, _)) = ours(token) {
                s.pairing.store(PAIR_NONE, Ordering::Release);
                try_later(s, reason);
            }
            return;
        }
    };
    let taken = ours(token).is_some_and(|(s, h)| {
        let taken = take_half(s, h, &pair);
        if taken {
            await_stamp(s, h);
        }
        taken
    });
    if !taken {
        pair.give_up();
        // SAFETY: nobody else has seen this mapping.
        unsafe { pair.unmap() };
    }
}

/// False when the socket has no use for it any more. Under the lock, because other threads close and fork.
fn take_half(s: &Sock, h: Handle, pair: &Pair) -> bool {
    let _critical = Critical::enter();
    s.lock.lock(thread::me());
    let awaited = ready::is_open(h) && s.pairing.load(Ordering::Acquire) == PAIR_REGISTERED;
    let taken = awaited && !s.has(FLAG_PINNED) && lifecycle::sole_owner(s);
    if taken {
        for (before, bytes) in s.ring_before.iter().zip([&s.tx.ring_bytes, &s.rx.ring_bytes]) {
            before.store(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        s.seg_ring_bytes.store(pair.ring_bytes(), Ordering::Relaxed);
        s.seg_side.store(pair.side() as u32, Ordering::Relaxed);
        s.seg_base.store(pair.address(), Ordering::Release);
        s.promotions.store(0, Ordering::Relaxed);
        pair.stamp();
        s.try_at.store(calls(s), Ordering::Relaxed);
        s.pairing.store(PAIR_MAPPED, Ordering::Release);
    } else if awaited {
        s.pairing.store(PAIR_NONE, Ordering::Release);
        try_later(s, Reason::SharedOwners);
    }
    s.lock.unlock();
    taken
}

/// Clause 1.4: a half is void until both ends have stamped it. The lock keeps it mapped: other threads give halves back, and
/// close.
fn await_stamp(s: &Sock, h: Handle) {
    let _critical = Critical::enter();
    if !s.lock.try_lock(thread::me()) {
        return;
    }
    if s.pairing.load(Ordering::Acquire) == PAIR_MAPPED
        && ready::is_open(h)
        && let Some(pair) = pair(s)
    {
        match pair.stamps() {
            Stamps::Both => {
                s.remote_reason.store(0, Ordering::Relaxed);
                s.pairing.store(PAIR_READY, Ordering::Release);
            }
            Stamps::Waiting => {
                let waited = calls(s).wrapping_sub(s.try_at.load(Ordering::Relaxed));
                if waited > STAMP_PATIENCE_CALLS && waited < u32::MAX / 2 && pair.give_up() {
                    give_half_back(s, pair);
                }
            }
            Stamps::Void => give_half_back(s, pair),
        }
    }
    s.lock.unlock();
}

/// Under the socket's lock.
#[cold]
fn give_half_back(s: &Sock, pair: Pair) {
    s.seg_base.store(0, Ordering::Release);
    // Both directions' locks: a shutdown in another thread may have found it under one of them.
    pass_directions(s);
    // SAFETY: a half that was never ready carried no bytes: whoever looks at it holds one of the locks that were passed.
    unsafe { pair.unmap() };
    try_later(s, Reason::PeerNotRegistered);
    s.pairing.store(PAIR_NONE, Ordering::Release);
}

/// True when the other end has left for good, in which case this end does not try its rings again (clause 1.5). Called
/// where a direction would move to them.
pub(crate) fn peer_left(s: &Sock) -> bool {
    let left = pair(s).is_some_and(|pair| pair.is_retired());
    if left {
        s.try_at.store(calls(s), Ordering::Relaxed);
        let _ = s.pairing.compare_exchange(PAIR_READY, PAIR_LEFT, Ordering::AcqRel, Ordering::Relaxed);
    }
    left
}

/// Clause 1.5: unmaps a pair whose other end has left for good, as soon as both directions are on TCP again and no thread
/// can be looking at it. The socket may then be paired anew.
#[cold]
fn give_left_pair_back(s: &Sock, h: Handle, fd: i32) {
    let _critical = Critical::enter();
    withdraw_offer(s, h, fd);
    if !s.lock.try_lock(thread::me()) {
        return;
    }
    let is_left = || s.pairing.load(Ordering::Acquire) == PAIR_LEFT && lifecycle::sole_owner(s);
    let pair = pair(s).filter(|_| ready::is_open(h) && is_left());
    match pair {
        Some(pair) if take_out_of_use(s, h, &pair) => {
            // SAFETY: taken out of use. What may look at rings does so under one of the locks that were passed since, or
            // is entered as a waiter, of which there are none.
            unsafe { pair.unmap() };
            s.pairing.store(PAIR_NONE, Ordering::Release);
            s.try_at.store(calls(s), Ordering::Relaxed);
        }
        _ => try_later(s, Reason::PeerDemoted),
    }
    s.lock.unlock();
}

/// Nobody is there any more who could switch.
fn withdraw_offer(s: &Sock, h: Handle, fd: i32) {
    let mut rx = lock_rx(s);
    if ready::is_open(h) && s.rx.phase.load(Ordering::Acquire) == RX_ATTACHED {
        rx.demote(h, fd, Reason::PeerDemoted);
        if rx.ring().is_some_and(|(ring, c)| ring.look(c) == Look::Closed) {
            rx.closed(h);
        }
    }
}

/// False, and nothing is changed, while a direction is on its ring or a thread waits on one.
fn take_out_of_use(s: &Sock, h: Handle, pair: &Pair) -> bool {
    // No direction moves to a ring any more (`PAIR_LEFT`), so one that is found on TCP under its lock stays there.
    let sends_on_tcp = lock_tx(s).ring().is_none();
    let receives_on_tcp = lock_rx(s).ring().is_none();
    if !sends_on_tcp || !receives_on_tcp {
        return false;
    }
    s.seg_base.store(0, Ordering::SeqCst);
    // A thread enters as a waiter, then looks for the pair: it finds none, or is found here.
    core::sync::atomic::fence(Ordering::SeqCst);
    if wait::anybody_waits(h.index()) {
        s.seg_base.store(pair.address(), Ordering::SeqCst);
        return false;
    }
    lock_tx(s).forget_ring();
    lock_rx(s).forget_ring();
    epoll::pair_going(h);
    true
}

fn denied(token: u64, reason: Reason, retry: bool) {
    let Some((s, _)) = ours(token) else { return };
    if s.pairing.compare_exchange(PAIR_REGISTERED, PAIR_NONE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    s.remote_reason.store(reason.code() as u32, Ordering::Relaxed);
    if retry {
        try_later(s, reason);
    } else {
        pin(s, reason);
    }
    if settings::strict() && !matches!(reason, Reason::Rule | Reason::Off | Reason::PeerNotRegistered | Reason::Exec) {
        s.set(FLAG_PINNED | FLAG_STRICT_FAIL);
    }
}

/// The daemon is gone: what it had not granted must be registered again.
fn lost() {
    if !process::started() {
        return;
    }
    for index in 0..process::table().used_socks() {
        if process::local(index).fds.load(Ordering::Relaxed) > 0 {
            let s = process::table().sock(index);
            let _ = s.pairing.compare_exchange(PAIR_REGISTERED, PAIR_NONE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Strict mode: the call fails, and says why on standard error.
#[cold]
pub fn strict_failure(h: Handle) -> isize {
    let reason = Reason::from_code(h.sock().reason.load(Ordering::Relaxed) as u16).unwrap_or(Reason::None);
    let head = b"ropeway: strict mode: a connection that should have been promoted was not: ";
    for part in [&head[..], reason.explain().as_bytes(), b"\n"] {
        // SAFETY: the part is readable for its length.
        let _ = unsafe { sys::write(2, part.as_ptr(), part.len()) };
    }
    -(libc::EPROTO as isize)
}
