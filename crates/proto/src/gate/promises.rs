//! What senders were told that they may begin with, each beyond the one packet that any may begin with: it may arrive at any moment, within a lease.

use crate::time::Time;

/// A promise counts for a lease, in which it may be used, and as long again, in which what was sent stands in the port's queue.
pub const PROMISE_LEASES: u64 = 2;

/// All of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    /// Counted up when as much time has passed as a promise counts.
    turn: u64,
    turn_at: Time,
    turn_ns: u64,
    /// Told in this turn, and in the one before.
    now_bytes: u64,
    before_bytes: u64,
}

/// What one sender was told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    packets: u64,
    frame_bytes: u64,
    turn: u64,
}

impl Promises {
    /// Lets what is over go; `lease_ns` is that of some sender, the longest counts.
    pub fn advance(&mut self, now: Time, lease_ns: u64) {
        self.turn_ns = self.turn_ns.max(PROMISE_LEASES * lease_ns);
        let elapsed = now.since(self.turn_at);
        if elapsed >= self.turn_ns {
            let is_pause = elapsed >= 2 * self.turn_ns;
            self.before_bytes = if is_pause { 0 } else { self.now_bytes };
            self.now_bytes = 0;
            self.turn += if is_pause { 2 } else { 1 };
            self.turn_at = now;
        }
    }

    pub fn bytes(&self) -> u64 {
        self.now_bytes + self.before_bytes
    }

    /// In place of a promise that has been taken back.
    pub fn make(&mut self, packets: u64, frame_bytes: u64) -> Promise {
        self.now_bytes += packets * frame_bytes;
        Promise { packets, frame_bytes, turn: self.turn }
    }

    /// Takes one back: its packets, if it still counted.
    pub fn take(&mut self, promise: Promise) -> u64 {
        let Promise { packets, frame_bytes, turn } = promise;
        if turn == self.turn {
            self.now_bytes -= packets * frame_bytes;
        } else if turn + 1 == self.turn {
            self.before_bytes -= packets * frame_bytes;
        } else {
            return 0;
        }
        packets
    }
}
