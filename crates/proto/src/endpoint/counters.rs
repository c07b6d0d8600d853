//! What an endpoint has counted.

use ropeway_wire::{ErrorCode, Malformed};

use crate::crypto::{KeyError, OpenError};
use crate::gate::GateCounters;

/// Codes without a name are counted in the last place.
pub const LAST_CODE: usize = 12;

/// Counts since the endpoint was made; never reset. Each arrival that is not taken moves one of the `dropped` ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub packets_received: u64,
    /// Of these, the ones that continued a run, and were taken by the shorter way.
    pub packets_in_runs: u64,
    pub packets_sent: u64,
    pub payload_received_bytes: u64,
    pub payload_sent_bytes: u64,
    /// By [`Malformed::index`]. What numbered packets carry is judged by their channel, and among the violations as well. A shim is the link's affair, and what is wrong
    /// with sealing counts as `dropped_sealed`: those reasons stay 0.
    pub dropped_malformed: [u64; Malformed::COUNT],
    /// No association has that id.
    pub dropped_unknown_id: u64,
    /// The id exists, but the packet came from somewhere else.
    pub dropped_foreign_path: u64,
    /// Number or acknowledgment out of the window.
    pub dropped_window: u64,
    /// Seen before.
    pub dropped_duplicate: u64,
    /// Seen for a channel that does not exist any more.
    pub dropped_channel: u64,
    /// No memory to keep it.
    pub dropped_memory: u64,
    /// A cookie that is not ours, or too old.
    pub dropped_cookie: u64,
    /// An answer to something that was not asked.
    pub dropped_unasked: u64,
    /// A reset with a wrong token.
    pub dropped_reset: u64,
    /// A JOIN without a good proof or cookie, or one that nobody waits for.
    pub dropped_join: u64,
    /// Paths added to associations that were open.
    pub paths_joined: u64,
    /// Paths that did not answer while the peer was heard over another one.
    pub paths_suspected: u64,
    /// Of these, the ones that did later.
    pub paths_recovered: u64,
    /// Times that an association changed its default path.
    pub defaults_changed: u64,
    /// Packets of associations with a key that did not open, by [`OpenError::index`].
    pub dropped_sealed: [u64; OpenError::ALL.len()],
    /// Messages of the handshake that did not open, by [`KeyError::index`].
    pub dropped_handshake: [u64; KeyError::COUNT],
    /// Answers not made because too many waited already.
    pub replies_suppressed: u64,
    /// Channels ended because the peer broke a rule.
    pub violations: u64,
    pub channels_opened: u64,
    pub channels_accepted: u64,
    pub channels_refused: u64,
    /// By error code; the last place is for codes without a name.
    pub associations_ended: [u64; LAST_CODE + 1],
    pub associations_opened: u64,
    /// Of those without a channel, the ones that gave way to others when all places were taken.
    pub associations_displaced: u64,
    pub timeouts: u64,
    /// Times that a timer ran out a second late: this process was stopped, or the clock set forward.
    pub overslept: u64,
    pub resent: u64,
    /// Packets taken back as the peer had no memory for them: they go again, under other numbers.
    pub withdrawn: u64,
    pub requests_sent: u64,
    pub lost: u64,
    pub spurious_requests: u64,
    pub states_sent: u64,
    pub buffers_taken: u64,
    pub buffers_allocated: u64,
    pub gate: GateCounters,
}

/// Where ends by this code are counted.
pub(super) fn place_of(code: ErrorCode) -> usize {
    if let ErrorCode::Other(_) = code { LAST_CODE } else { usize::from(u16::from(code)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_that_has_a_name_is_counted_apart_and_all_others_in_the_last_place() {
        let places: Vec<_> = ErrorCode::ALL.into_iter().map(place_of).collect();
        assert_eq!(places, (0..LAST_CODE).collect::<Vec<_>>());
        assert_eq!([11, 12, u16::MAX].map(|number| place_of(number.into())), [LAST_CODE; 3]);
    }
}
