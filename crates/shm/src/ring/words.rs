//! The control words of the handover (`docs/handover.md`): who may be on the ring, in which epoch.
//!
//! After each word that a side sets here, it looks at the other side's `armed` ([`Ring::must_ring`]) and rings.

use super::{Consumer, Position, Producer, Ring};
use crate::atomic::{AtomicU32, Ordering, fence_after_rmw};

/// Stores a control word of the slow path in such a way that the caller may look at `armed` afterwards.
pub(super) fn tell(word: &AtomicU32, value: u32) {
    // Release for whoever acquires the word; a read-modify-write for the store-then-look rule.
    word.swap(value, Ordering::SeqCst);
    fence_after_rmw();
}

/// Mark of the writer in the reader's request: it is being answered. Epochs have 24 bits.
const ACCEPTED: u32 = 1 << 31;

impl Ring {
    /// The writer says that it has left its epoch: its bytes are on TCP.
    pub fn leave(&self, p: &Producer) {
        tell(&self.h().writer.left, p.epoch);
    }

    /// The epoch that the reader offers.
    #[inline(always)]
    pub fn offered(&self) -> u32 {
        self.h().reader.offer.load(Ordering::Acquire)
    }

    /// The last epoch that the writer has left.
    pub fn left(&self) -> u32 {
        self.h().writer.left.load(Ordering::Acquire)
    }

    /// The reader asks for its unread tail back on TCP; it has closed the ring already.
    pub fn recall(&self, c: &mut Consumer) {
        self.flush_now(c);
        let consumed = if c.len == 0 { 0 } else { c.off };
        self.h().reader.recall_off.store(consumed, Ordering::Relaxed);
        tell(&self.h().reader.recall, c.epoch);
    }

    /// The reader has waited long enough. True: the writer will not answer any more. False: it has begun to, and what it
    /// does must be waited for.
    pub fn withdraw_recall(&self, epoch: u32) -> bool {
        self.h().reader.recall.compare_exchange(epoch, 0, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// True while what the reader asked for is not withdrawn, whether the writer has begun to answer or not.
    pub fn recall_stands(&self, epoch: u32) -> bool {
        self.h().reader.recall.load(Ordering::Acquire) & !ACCEPTED == epoch
    }

    /// The writer takes the request on. False when it was withdrawn, or never made for this epoch.
    pub fn accept_recall(&self, epoch: u32) -> bool {
        let asked = &self.h().reader.recall;
        asked.compare_exchange(epoch, epoch | ACCEPTED, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// The epoch that the reader asks for and that nobody has begun to answer for; 0 for none.
    #[inline(always)]
    pub fn recall_asked(&self) -> u32 {
        match self.h().reader.recall.load(Ordering::Acquire) {
            answered if answered & ACCEPTED != 0 => 0,
            asked => asked,
        }
    }

    /// The writer has copied the tail of `epoch` onto TCP.
    pub fn recall_done(&self, epoch: u32) {
        tell(&self.h().writer.recalled, epoch);
    }

    pub fn recalled(&self) -> u32 {
        self.h().writer.recalled.load(Ordering::Acquire)
    }

    /// Where a reader that recalls its tail stopped: the record, and how many of its bytes it had consumed.
    pub fn reader_stopped_at(&self, p: &mut Producer) -> Option<(Position, usize)> {
        self.refresh_tail(p).ok()?;
        Some((p.tail, self.h().reader.recall_off.load(Ordering::Relaxed) as usize))
    }

    pub fn set_wr_shut(&self) {
        tell(&self.h().writer.wr_shut, 1);
    }

    pub fn wr_shut(&self) -> bool {
        self.h().writer.wr_shut.load(Ordering::Acquire) != 0
    }
}
