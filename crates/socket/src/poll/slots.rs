//! What a poll keeps of each entry while it lasts, without allocating.

use crate::fdtable::Handle;
use crate::handover::{lock_rx_again, pair, service_recall};
use crate::ready::{self, READ, WRITE};
use crate::send::still_leads;
use crate::wait::{self, Waiting};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::pollfd;
use ropeway_shm::ring::End;
use ropeway_shm::sys;
use ropeway_shm::table::{RX_TCP, Sock, TX_RING};

/// Entries whose slots fit on the stack.
pub const FEW: usize = 64;

/// What is known of one entry.
#[derive(Default)]
pub struct Slot {
    /// The socket, if it is one of ours.
    pub h: Option<Handle>,
    pub is_set: bool,
    /// Keeps the rings mapped from the first look at them on.
    waiting: Option<Waiting>,
    /// Counted in `rx.inflight`: the socket does not attach while we sleep in the kernel.
    counted: bool,
    rx_slot: AtomicU32,
    tx_slot: AtomicU32,
}

impl Slot {
    /// The socket, if its rings are in use (and in this process).
    #[inline]
    pub fn on_ring(&self) -> Option<&'static Sock> {
        let h = self.h?;
        let s = h.sock();
        (self.waiting.is_some() && ready::has_ring(s) && h.is_current()).then_some(s)
    }

    /// Looks again whether the socket came to a ring, and keeps its mapping if so.
    pub fn follow(&mut self) {
        if self.waiting.is_none()
            && let Some(h) = self.h
            && ready::has_ring(h.sock())
        {
            let waiting = wait::begin(h);
            // Closing first says that it is over, then looks for waiters.
            if ready::is_open(h) {
                self.waiting = Some(waiting);
            } else {
                self.h = None;
            }
        }
    }

    /// A descriptor that leads to the socket, the program's own if that still does.
    pub fn descriptor(&self, fd: i32) -> Option<i32> {
        let mut fd = fd;
        still_leads(&mut fd, self.h?).then_some(fd)
    }

    /// Does what the peer asks for if it leaves Ropeway (handover, clause 4.1).
    pub fn answer_recall(&self, fd: i32) {
        if let (Some(s), Some(h)) = (self.on_ring(), self.h) {
            service_recall(s, h, fd);
        }
    }

    /// Enters a bell in the rings that matter. False when there was no place.
    pub fn arm(&self, want: u32, bell: u64) -> bool {
        let Some(s) = self.on_ring() else { return true };
        let Some(pair) = pair(s) else { return true };
        let tag = ropeway_shm::bell::TAG_ANY;
        let mut armed = true;
        if want & READ != 0 && ready::hears_incoming(s) {
            armed &= ready::arm(&pair.incoming(), End::Reader, &self.rx_slot, bell, tag);
        }
        if want & WRITE != 0 && s.tx.phase.load(Ordering::Acquire) == TX_RING {
            armed &= ready::arm(&pair.outgoing(), End::Writer, &self.tx_slot, bell, tag);
        }
        armed
    }

    /// Takes the bell out of the rings.
    pub fn disarm(&self) {
        if self.waiting.is_some()
            && let Some(pair) = self.h.filter(|h| h.is_current()).and_then(|h| pair(h.sock()))
        {
            ready::disarm(&pair.incoming(), End::Reader, &self.rx_slot);
            ready::disarm(&pair.outgoing(), End::Writer, &self.tx_slot);
        }
    }

    /// Forgets what a sleep entered, and looks where the socket is now.
    pub fn settle(&mut self) {
        (self.rx_slot, self.tx_slot) = Default::default();
        self.count_out();
        self.follow();
    }

    fn count_out(&mut self) {
        if self.counted
            && let Some(rx) = self.h.and_then(lock_rx_again)
        {
            rx.s.rx.inflight.fetch_sub(1, Ordering::AcqRel);
        }
        self.counted = false;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count_out();
    }
}

/// Counts the caller in for every socket that receives over TCP: it stays there until the sleep is over. False when one has
/// come to a ring that the caller does not follow yet.
pub fn count_in(slots: &mut [Slot]) -> bool {
    let mut all = true;
    for slot in slots.iter_mut().filter(|slot| !slot.counted) {
        let Some(rx) = slot.h.and_then(lock_rx_again) else { continue };
        let s = rx.s;
        if slot.waiting.is_none() && ready::has_ring(s) {
            drop(rx);
            slot.follow();
            all = false;
        } else if s.rx.phase.load(Ordering::Relaxed) == RX_TCP {
            s.rx.inflight.fetch_add(1, Ordering::AcqRel);
            slot.counted = true;
        }
    }
    all
}

/// Calls `f` with `n` fresh slots and one entry more for the kernel. None when there is no memory for so many.
pub fn with<R>(n: usize, f: impl FnOnce(&mut [Slot], &mut [pollfd]) -> R) -> Option<R> {
    if n <= FEW {
        let mut slots = [const { MaybeUninit::<Slot>::uninit() }; FEW];
        let mut kernel = [const { MaybeUninit::<pollfd>::uninit() }; FEW + 1];
        for entry in &mut kernel[..=n] {
            entry.write(pollfd { fd: -1, events: 0, revents: 0 });
        }
        // SAFETY: room for `n` slots; `n + 1` entries were written.
        return Some(unsafe {
            let kernel = core::slice::from_raw_parts_mut(kernel.as_mut_ptr().cast(), n + 1);
            run(slots.as_mut_ptr().cast(), n, kernel, f)
        });
    }
    let (slot_bytes, poll_bytes) = (n * size_of::<Slot>(), (n + 1) * size_of::<pollfd>());
    let len = slot_bytes + poll_bytes;
    // SAFETY: a new mapping of zeroes disturbs nothing; it is removed when nothing uses it any more. Zeroes are valid entries.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = sys::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).ok()?;
        let kernel = core::slice::from_raw_parts_mut((at + slot_bytes) as *mut pollfd, n + 1);
        let result = run(at as *mut Slot, n, kernel, f);
        let _ = sys::munmap(at as *mut _, len);
        Some(result)
    }
}

/// # Safety
/// `slots` must have room for `n` slots.
unsafe fn run<R>(
    slots: *mut Slot,
    n: usize,
    kernel: &mut [pollfd],
    f: impl FnOnce(&mut [Slot], &mut [pollfd]) -> R,
) -> R {
    // SAFETY: room for `n` (contract); each is initialised before use and dropped once.
    unsafe {
        (0..n).for_each(|i| slots.add(i).write(Slot::default()));
        let result = f(core::slice::from_raw_parts_mut(slots, n), kernel);
        (0..n).for_each(|i| slots.add(i).drop_in_place());
        result
    }
}
