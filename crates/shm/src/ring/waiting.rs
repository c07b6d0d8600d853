//! Who is to be woken at either end of a ring.

use super::{BELL_SLOTS, BellSlot, End, Ring};
use crate::atomic::{AtomicU32, Ordering, fence_after_rmw};

impl Ring {
    fn waiters(&self, end: End) -> (&AtomicU32, &[BellSlot; BELL_SLOTS]) {
        match end {
            End::Reader => (&self.h().reader.armed, &self.h().reader_bells.slots),
            End::Writer => (&self.h().writer.armed, &self.h().writer_bells.slots),
        }
    }

    /// Enters a bell under which `end` can be rung. None when all slots are taken: wait with a timeout then.
    pub fn claim_bell(&self, end: End, id: u64, tag: u64) -> Option<u32> {
        let (_, slots) = self.waiters(end);
        for (i, slot) in slots.iter().enumerate() {
            if slot.id.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.tag.store(tag, Ordering::Release);
                return Some(i as u32);
            }
        }
        None
    }

    /// Changes the tag of a bell that is entered, perhaps armed. A full barrier must stand between this and the caller's
    /// next look at the ring: a ringer that still found the old tag has published before.
    #[inline]
    pub fn retag(&self, end: End, slot: u32, tag: u64) {
        let (_, slots) = self.waiters(end);
        slots[slot as usize].tag.store(tag, Ordering::Release);
    }

    /// Takes a bell out again.
    pub fn release_bell(&self, end: End, slot: u32) {
        let (armed, slots) = self.waiters(end);
        armed.fetch_and(!(1 << slot), Ordering::AcqRel);
        slots[slot as usize].id.store(0, Ordering::Release);
    }

    /// Takes out the bells of which `is_gone` says that nobody has them any more.
    pub fn forget_bells(&self, end: End, is_gone: impl Fn(u64) -> bool) {
        /// No bell: stands in a slot that is being emptied, so that nobody claims and arms it meanwhile.
        const LEAVING: u64 = u64::MAX;
        let (_, slots) = self.waiters(end);
        for (i, slot) in slots.iter().enumerate() {
            let id = slot.id.load(Ordering::Acquire);
            if id != 0
                && is_gone(id)
                && slot.id.compare_exchange(id, LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                self.release_bell(end, i as u32);
            }
        }
    }

    /// Forgets every bell of this end: the only process that could wait here is the caller's.
    pub fn clear_bells(&self, end: End) {
        let (armed, slots) = self.waiters(end);
        armed.store(0, Ordering::Release);
        for slot in slots {
            slot.id.store(0, Ordering::Release);
        }
    }

    /// Asks to be rung. The caller must look at the ring once more afterwards, before it sleeps.
    #[inline]
    pub fn arm(&self, end: End, slot: u32) {
        let (armed, _) = self.waiters(end);
        // First half of armed/header and writer-armed/index: pairs with `put` and with `flush_now`.
        armed.fetch_or(1 << slot, Ordering::SeqCst);
        fence_after_rmw();
    }

    #[inline]
    pub fn is_armed(&self, end: End, slot: u32) -> bool {
        self.waiters(end).0.load(Ordering::Relaxed) & (1 << slot) != 0
    }

    /// After a publish: which bells of the reader must be rung (each as id and tag). Usually none, at the cost of one
    /// load of a line that nobody writes.
    #[inline(always)]
    pub fn must_ring(&self, end: End) -> bool {
        self.waiters(end).0.load(Ordering::SeqCst) != 0
    }

    /// Takes the armed bells of `end` to ring them.
    #[cold]
    pub fn take_armed(&self, end: End) -> [(u64, u64); BELL_SLOTS] {
        let mask = self.waiters(end).0.swap(0, Ordering::SeqCst);
        self.bells_in(end, mask)
    }

    /// Takes every bell of `end`, armed or not: somebody who had taken them may have died before it rang.
    #[cold]
    pub fn take_all(&self, end: End) -> [(u64, u64); BELL_SLOTS] {
        self.waiters(end).0.store(0, Ordering::SeqCst);
        self.bells_in(end, u32::MAX)
    }

    /// Id and tag of the bells in `mask`, id 0 where there is none.
    fn bells_in(&self, end: End, mask: u32) -> [(u64, u64); BELL_SLOTS] {
        let (_, slots) = self.waiters(end);
        let mut out = [(0, 0); BELL_SLOTS];
        for (i, slot) in slots.iter().enumerate() {
            if mask & (1 << i) != 0 {
                out[i] = (slot.id.load(Ordering::Acquire), slot.tag.load(Ordering::Acquire));
            }
        }
        out
    }
}
