//! Which channels of an association have something that may go: they take turns in its round.

use super::Endpoint;
use super::sending::is_kept_back;
use crate::association::Association;
use crate::channel::{Channel, Sendable, Unsent};
use crate::time::Time;

impl Endpoint {
    /// From now on something is undelivered, if nothing was before.
    pub(super) fn begin_waiting(&mut self, now: Time, index: u32) {
        let association = &mut self.associations[index as usize];
        if !association.has_undelivered() {
            association.waiting_since = now;
        }
    }

    /// Brings the sums over a channel's queue up to date and puts it into its association's round if it has something that may go. If what it had was dropped, and nothing else waits, the peer is told.
    pub(super) fn schedule_channel(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if channel.detached {
            return;
        }
        let index = channel.association;
        let association = &mut self.associations[index as usize];
        // What a channel has to say when it is opened is counted then: until that it may go to another association.
        if !association.is_open() {
            return;
        }
        let waits = is_kept_back(association, channel);
        let (had_backlog, may_send) = (association.backlog_bytes > 0, recount(association, channel));
        if may_send && !waits {
            enter_round(association, channel, at);
            self.make_ready(index);
        } else if had_backlog && association.backlog_bytes == 0 {
            association.end_period_early();
            self.make_ready(index);
        }
    }
}

/// Puts a channel that may send into its association's round, or among those whose next packet needs no grant.
pub(super) fn enter_round(association: &mut Association, channel: &mut Channel, at: u32) {
    if !std::mem::replace(&mut channel.outgoing.scheduled, true) {
        let is_exempt = channel.outgoing.front().is_some_and(Unsent::is_exempt);
        let line = if is_exempt { &mut association.ending } else { &mut association.round };
        line.push_back(at);
    }
}

/// Brings the channel's part in its association's backlog up to date, and whether it waits for its reader. Says whether it may send.
pub(super) fn recount(association: &mut Association, channel: &mut Channel) -> bool {
    let outgoing = &mut channel.outgoing;
    let sendable = outgoing.sendable();
    let blocked = sendable == Sendable::Blocked;
    let to_come = match sendable {
        Sendable::Nothing => outgoing.owed_bytes().min(outgoing.credit_left()),
        Sendable::Blocked => 0,
        Sendable::Bytes(bytes) => bytes,
    };
    association.backlog_bytes = association.backlog_bytes + to_come - outgoing.counted_bytes;
    outgoing.counted_bytes = to_come;
    if std::mem::replace(&mut outgoing.counted_blocked, blocked) != blocked {
        if blocked {
            association.blocked.insert(channel.number);
        } else {
            association.unblock(channel.number);
        }
    }
    matches!(sendable, Sendable::Bytes(_))
}
