//! How much the peer may send to a channel, and the memory that stands for it.

use super::Incoming;
use crate::pool::Pool;

impl Incoming {
    /// Raises the limit towards what `window` allows beyond what was read; says it if that is worth a CREDIT.
    pub fn raise_limit(&mut self, window: u64, pool: &mut Pool) -> bool {
        let reach = self.consumed + window;
        let worth = reach >= self.limit + window / 4;
        if worth {
            self.promise(reach, pool);
        }
        worth
    }

    fn promise(&mut self, limit: u64, pool: &mut Pool) {
        self.limit = self.limit.max(limit);
        self.keep_promised(pool);
    }

    /// Brings the pool's sum up to date with `limit` and `offset`.
    pub(super) fn keep_promised(&mut self, pool: &mut Pool) {
        let promised = (self.limit - self.initial).min(self.limit.saturating_sub(self.offset));
        pool.promised_bytes = pool.promised_bytes + promised - self.promised;
        self.promised = promised;
        if self.set_aside > 0 && self.lacking_bytes() == 0 {
            self.keep_set_aside(0, pool);
        }
    }

    fn keep_set_aside(&mut self, buffers: usize, pool: &mut Pool) {
        pool.set_aside = pool.set_aside + buffers - std::mem::replace(&mut self.set_aside, buffers);
    }

    /// A buffer is needed: one of those that were set aside, or none of these is left.
    pub(super) fn use_set_aside(&mut self, pool: &mut Pool) -> bool {
        let has_some = self.has_set_aside();
        if has_some {
            self.keep_set_aside(self.set_aside - 1, pool);
        }
        has_some
    }

    /// Buffers of what was set aside that nothing has come into yet.
    pub fn set_aside(&self) -> usize {
        self.set_aside
    }

    /// A buffer of those is free again before the message is whole.
    pub(super) fn set_aside_again(&mut self, pool: &mut Pool) {
        if self.has_reservation() && self.lacking_bytes() > 0 {
            self.keep_set_aside(self.set_aside + 1, pool);
        }
    }

    /// What comes has memory, whatever others keep.
    pub fn has_set_aside(&self) -> bool {
        self.set_aside > 0
    }

    /// Nothing will come any more: what was promised is free.
    pub fn revoke(&mut self, pool: &mut Pool) {
        pool.promised_bytes -= std::mem::take(&mut self.promised);
        self.initial = self.limit;
        self.keep_set_aside(0, pool);
    }

    /// The message at hand fits the window but not the limit that was told: raises it, and says that it did.
    pub fn raise_for_message(&mut self, window: u64, pool: &mut Pool) -> bool {
        let worth = self.wanted > self.limit && self.wanted <= self.consumed + window;
        if worth {
            self.promise(self.consumed + window, pool);
        }
        worth
    }

    /// Lets the message at hand come as a whole, in memory that is set aside: of its association's part of the last, if it is `of_part`.
    pub fn allow_message(&mut self, reserved_bytes: u64, buffers: usize, of_part: bool, pool: &mut Pool) {
        (self.of_part, self.reserved_until) = (of_part, self.message_end);
        if of_part {
            let bytes = buffers * pool.buffer_bytes();
            self.reserved_bytes = bytes as u64;
            pool.of_part_bytes += bytes;
        } else {
            self.reserved_bytes = reserved_bytes;
            pool.reserved_bytes += reserved_bytes;
        }
        self.lacks_memory = false;
        self.keep_set_aside(buffers, pool);
        self.promise(self.wanted, pool);
    }

    pub fn has_reservation(&self) -> bool {
        self.reserved_bytes > 0
    }

    /// It has memory of its association's part of the last.
    pub fn is_of_part(&self) -> bool {
        self.has_reservation() && self.of_part
    }

    /// What is missing of the message for which memory was set aside.
    pub fn lacking_bytes(&self) -> u64 {
        self.reserved_until.saturating_sub(self.offset)
    }

    /// The message for which memory was set aside has been read.
    pub fn is_past_reserved(&self) -> bool {
        self.has_reservation() && self.consumed >= self.reserved_until
    }

    /// That message is whole, and unread.
    pub fn keeps_reserved(&self) -> bool {
        self.has_reservation() && self.lacking_bytes() == 0 && !self.is_past_reserved()
    }

    /// Bytes beyond `window` that the message at hand needs and has no promise for; 0: none.
    pub fn shortage(&self, window: u64) -> u64 {
        if self.wanted > self.limit && self.wanted > self.consumed + window { self.wanted - self.limit } else { 0 }
    }

    /// Bytes that the message at hand needs memory for that is set aside: what the window alone does not let come, or all that it lacks if some of that found none; 0: none.
    pub fn wants_set_aside(&self, window: u64) -> u64 {
        match self.shortage(window) {
            0 if self.lacks_memory => self.unfinished_bytes,
            shortage => shortage,
        }
    }

    /// A packet found no memory, and it was its turn. Says whether the channel is to stand in line for some: for a message that has begun, as nobody can read it before the rest is here.
    pub fn stands_in_line(&mut self) -> bool {
        self.lacks_memory = self.is_unfinished() && !self.has_reservation();
        self.lacks_memory && !std::mem::replace(&mut self.reserving, true)
    }

    /// Takes back the memory set aside for a message, and says whether there was any.
    pub fn take_reservation(&mut self, pool: &mut Pool) -> bool {
        self.keep_set_aside(0, pool);
        let bytes = std::mem::take(&mut self.reserved_bytes);
        match self.of_part {
            true => pool.of_part_bytes -= bytes as usize,
            false => pool.reserved_bytes -= bytes,
        }
        bytes > 0
    }
}
