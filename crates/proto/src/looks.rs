//! How much of what it keeps an end looks through for a peer that names it: who names all of it in each packet makes no more work than one that needs it (docs/protocol.md 2.8).

use crate::time::Time;

/// So long for each number, which takes a processor a thirtieth of that. No line brings five million packets a second to one peer, and who loses some of fewer asks for less.
const LOOK_NS: u64 = 200;
/// But so many may be named at once: all there can be, four times.
const MOST_AT_ONCE: u64 = 4 * crate::received::WINDOW_PACKETS;

#[derive(Debug, Default)]
pub struct Looks {
    /// Until then those before are paid for.
    paid_until: Time,
}

impl Looks {
    /// Whether so many numbers may be looked at now.
    pub fn may_look_at(&mut self, numbers: u64, now: Time) -> bool {
        let from = self.paid_until.max(now);
        let may = from.since(now) + numbers * LOOK_NS <= MOST_AT_ONCE * LOOK_NS;
        if may {
            self.paid_until = from.after(numbers * LOOK_NS);
        }
        may
    }
}
