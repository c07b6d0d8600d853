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

    /// The peer may send a packet with so much in it before anything is read. One that is longer than what is left of its credit waits.
    pub fn has_credit_for(&self, payload_bytes: usize) -> bool {
        self.limit.saturating_sub(self.offset) >= payload_bytes as u64
    }

    fn promise(&mut self, limit: u64, pool: &mut Pool) {
        self.limit = self.limit.max(limit);
        self.keep_accounts(pool);
    }

    /// Brings the pool's sums up to date with `limit` and `offset`, and with the message at hand.
    pub(super) fn keep_accounts(&mut self, pool: &mut Pool) {
        let promised = (self.limit - self.initial).min(self.limit.saturating_sub(self.offset));
        pool.promised_bytes = pool.promised_bytes + promised - self.promised;
        self.promised = promised;
        if self.has_set_aside() && !self.is_reserved() {
            self.keep_set_aside(0, pool);
        }
        self.keep_begun(pool);
    }

    /// What is here of a message without memory for the rest counts until it has some, or is whole.
    pub(super) fn keep_begun(&mut self, pool: &mut Pool) {
        let buffers = match self.lacks_memory() {
            // The packet that begins it may bring nothing but its length.
            true => (self.message_bytes - self.unfinished_bytes).div_ceil(pool.payload_bytes() as u64).max(1) as u32,
            false => 0,
        };
        let before = std::mem::replace(&mut self.begun_buffers, buffers);
        if buffers != before {
            pool.keep_begun(self.account, before as usize, buffers as usize);
        }
    }

    fn keep_set_aside(&mut self, buffers: u32, pool: &mut Pool) {
        let before = std::mem::replace(&mut self.set_aside, buffers);
        pool.keep_set_aside(self.account, before as usize, buffers as usize);
    }

    /// A buffer is needed: one of those that were set aside, or none of these is left.
    pub(super) fn use_set_aside(&mut self, pool: &mut Pool) -> bool {
        let has_some = self.has_set_aside();
        if has_some {
            self.keep_set_aside(self.set_aside - 1, pool);
        }
        has_some
    }

    /// A buffer of those is free again before the message is whole.
    pub(super) fn set_aside_again(&mut self, pool: &mut Pool) {
        if self.is_reserved() {
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

    /// Lets the message at hand come as a whole, in so many buffers that are set aside. Says whether the limit is another one by that.
    pub fn reserve(&mut self, buffers: usize, pool: &mut Pool) -> bool {
        (self.reserved_until, self.has_reservation) = (self.end_at_hand(), true);
        self.keep_set_aside(buffers as u32, pool);
        let before = self.limit;
        self.promise(self.reach(pool), pool);
        self.limit > before
    }

    /// With so much credit the message at hand comes to its end, also in a packet with others behind it.
    fn reach(&self, pool: &Pool) -> u64 {
        self.end_at_hand() + pool.payload_bytes() as u64
    }

    /// Where the message at hand ends: one that has begun, or one that begins with what was given back.
    fn end_at_hand(&self) -> u64 {
        if self.is_unfinished() { self.message_end } else { self.offset + self.missing_bytes() }
    }

    /// The message at hand may get memory for all of it: it has the credit for that, or it is its turn, as what came before the last one with memory set aside was read, and that one, too. Otherwise
    /// each packet that ends one message and begins the next would bring credit for another.
    pub fn may_reserve(&self, pool: &Pool) -> bool {
        self.consumed >= self.reserved_until || self.reach(pool) <= self.limit
    }

    /// What comes next is of a message that memory was set aside for.
    pub fn is_reserved(&self) -> bool {
        self.has_reservation && self.offset < self.reserved_until
    }

    /// A message has begun and has no memory for what is missing of it.
    pub fn lacks_memory(&self) -> bool {
        self.is_unfinished() && !self.is_reserved()
    }

    /// What is missing of the message that memory was set aside for.
    pub fn lacking_bytes(&self) -> u64 {
        self.reserved_until.saturating_sub(self.offset)
    }

    /// Memory was set aside for a message, and all of that has come.
    pub fn is_past_reserved(&self) -> bool {
        self.has_reservation && !self.is_reserved()
    }

    /// The message at hand needs more credit than `window` allows.
    pub fn is_longer_than(&self, window: u64) -> bool {
        self.wanted > self.limit && self.wanted > self.consumed + window
    }

    /// Takes back what is left of the memory that was set aside for a message, and says whether there was such a message.
    pub fn end_reservation(&mut self, pool: &mut Pool) -> bool {
        let had_some = std::mem::take(&mut self.has_reservation);
        self.keep_accounts(pool);
        had_some
    }
}
