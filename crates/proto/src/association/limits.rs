//! What an end waits for that has something to send, and for how long it has.

use super::Association;
use crate::statistics::{Limit, LimitTimes};
use crate::time::Time;

/// After so many STATEs without an answer the peer is silent rather than slow.
const SILENT_STATES: u32 = 2;

impl Association {
    /// Whether something has been handed over and is not known to be delivered.
    pub fn has_undelivered(&self) -> bool {
        self.sent.in_flight() > 0
            || !self.round.is_empty()
            || !self.ending.is_empty()
            || !self.refusals.is_empty()
            || !self.blocked.is_empty()
    }

    /// Whether the peer has not been sent every refusal of a channel. They go before anything else that acknowledges the OPEN: to the peer that alone would mean that the channel was taken.
    pub fn has_to_refuse(&self) -> bool {
        !self.refusals.is_empty() || self.sent.begins_with_refusal()
    }

    /// What is known of the time since when some channel waits for credit is up to date.
    pub fn note_blocked(&mut self, now: Time) {
        if !self.blocked.is_empty() && self.blocked_since == Time::MAX {
            (self.blocked_since, self.want_doublings) = (now, 0);
        }
    }

    /// A channel does not wait for credit any more.
    pub fn unblock(&mut self, number: u16) {
        self.blocked.remove(&number);
        if self.blocked.is_empty() {
            self.blocked_since = Time::MAX;
        }
    }

    fn limit_now(&self, now: Time) -> Limit {
        if !self.has_undelivered() {
            Limit::Program
        } else if self.states_unanswered >= SILENT_STATES {
            Limit::Silence
        } else if self.recovers_to.wrapping_sub(self.sent.una()) as i64 > 0 {
            Limit::Loss
        } else if !self.round.is_empty() && self.allowance(now) == 0 {
            Limit::Grant
        } else if self.round.is_empty() && !self.blocked.is_empty() {
            Limit::Reader
        } else {
            Limit::Program
        }
    }

    /// What is waited for now, and how long for what altogether.
    pub fn limits(&self, now: Time) -> (Limit, LimitTimes) {
        let mut times = self.limit_times;
        times.add(self.limit_kind, now.since(self.limit_since));
        (self.limit_now(now), times)
    }

    /// Books the time since the last call under what was waited for then, and looks what is waited for now.
    pub fn note_limit(&mut self, now: Time) {
        self.limit_times.add(self.limit_kind, now.since(self.limit_since));
        self.limit_kind = self.limit_now(now);
        self.limit_since = now;
    }
}
