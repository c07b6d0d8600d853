//! When an association was last used, and what it keeps while it is not.

use super::Association;
use crate::time::Time;

/// Queues that have been empty for so long give their memory back: most connections are idle most of the time.
const REST_NS: u64 = 4_000_000_000;

impl Association {
    /// When something numbered was last sent or arrived: keep-alive is no use.
    pub fn used_at(&self) -> Time {
        self.arrived_at.max(self.new_at)
    }

    /// When the memory of queues that are empty may go back, if it has not since the last use.
    pub fn rests_at(&self) -> Option<Time> {
        (self.rested_at <= self.used_at()).then(|| self.used_at().after(REST_NS))
    }

    /// Gives that back.
    pub fn rest(&mut self, now: Time) {
        self.rested_at = now;
        self.sent.rest();
        self.round.shrink_to_fit();
    }
}
