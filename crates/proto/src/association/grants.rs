//! What the peer may send: what it is granted and told of that, what is taken back, and what more it wants of the gate (docs/protocol.md 6). What this end may send is in `lease`.

use ropeway_wire::Flags;

use super::Association;
use crate::arrivals::{Drain, Line};
use crate::config::Config;
use crate::gate::Demand;
use crate::time::Time;

/// Who says nothing is told of its grant for so many leases: it is asked again and again, and until some time after the last word of it what is granted cannot be taken back.
pub const TOLD_LEASES: u64 = 4;
/// Who speaks and uses nothing of its grant, for so many: enough for a sender that loses most of what it is told, or looks seldom.
pub const UNUSED_LEASES: u64 = 8;
/// Whose grant was taken back gets no more than this until it uses it.
const UNUSED_PACKETS: u64 = 1;

impl Association {
    /// Whether the peer is told of what is granted.
    pub(super) fn tells_grant(&self, now: Time) -> bool {
        now.since(self.heard_at.max(self.given_at)) <= self.lease.many_ns(TOLD_LEASES)
            && now.since(self.unused_since()) <= self.lease.many_ns(UNUSED_LEASES)
    }

    /// Since when nothing has come of what is granted, nor more was granted: that ends at its share.
    pub fn unused_since(&self) -> Time {
        self.given_at.max(self.arrived_at)
    }

    /// So many more numbers may be used.
    pub fn lend(&mut self, packets: u64, now: Time) {
        let is_first = self.outstanding_packets() == 0;
        let from = if is_first { self.received.next() } else { self.granted };
        if is_first {
            self.pace.begin(now);
        }
        self.granted = from.wrapping_add(packets);
        (self.given_at, self.granted_at) = (now, now);
        self.ack_due = true;
    }

    /// What is left of the grant may not be used any more. Others were heard until `heard_at`.
    pub fn take_back(&mut self, heard_at: Time, now: Time) {
        self.note_unused(heard_at.since(self.left_since()), now);
        self.granted = self.received.next();
        self.left_unused = true;
        self.pace.stop();
        // What it wants it says again when it speaks again.
        self.peer_backlog = 0;
        self.counters.leases_expired += 1;
    }

    /// The peer says that it has nothing more to send, and all that it has sent is known: nothing else is expected, and what is left of its grant goes back.
    pub fn end_peer_period(&mut self) {
        self.peer_busy = false;
        self.granted = self.received.next();
        (self.ask_beyond, self.asked_beyond) = (None, None);
    }

    /// What was to be sent has been dropped, and no packet says that it was the last: a control packet does.
    pub fn end_period_early(&mut self) {
        self.lease.give_back(self.sent.next());
        self.ack_due |= self.busy;
        self.busy = self.sent.in_flight() > 0;
    }

    /// The peer waits for an answer, which will tell it of its grant, perhaps.
    pub fn note_question(&mut self, now: Time) {
        (self.ack_due, self.asked) = (true, true);
        if self.tells_grant(now) {
            self.granted_at = now;
        }
    }

    /// `gate = esp`: numbers below this may be sent.
    pub fn esp_limit(&self, config: &Config) -> u64 {
        self.esp_ack.wrapping_add(u64::from(config.esp_window_packets()))
    }

    /// Granted and not seen.
    pub fn outstanding_packets(&self) -> u64 {
        (self.granted.wrapping_sub(self.received.next()) as i64).max(0) as u64
    }

    /// It has more to send than it could begin with, and stands in line with others.
    pub fn is_in_line(&self) -> bool {
        self.peer_backlog > 0 || self.outstanding_packets() > 0
    }

    /// A packet that does not say how much waits behind it: less by what it carries than was said before.
    pub fn estimate_backlog(&mut self, flags: Flags, bytes: u64) {
        self.peer_backlog = match flags.contains(Flags::TXF) {
            true => 0,
            // Something does.
            false => self.peer_backlog.saturating_sub(bytes).max(1),
        };
    }

    /// What this sender wants of the gate.
    pub fn demand(&self, config: &Config, line: Line, drain: impl FnOnce() -> Drain, now: Time) -> Demand {
        let outstanding = self.outstanding_packets();
        let payload_bytes = self.payload_bytes as u64;
        let paced = self.pace.most_held(self.rtt.known_least_ns().unwrap_or(0), payload_bytes, line.bytes_per_ms);
        let on_probation = self.most_on_probation(now);
        Demand {
            outstanding_packets: outstanding,
            asked_packets: match self.received.asked() {
                asked if asked > 0 && now < self.asked_back_at(config, drain()) => asked,
                _ => 0,
            },
            backlog_bytes: self.peer_backlog,
            wanted_packets: match self.peer_backlog {
                // Between short messages there is none, and a division costs as much as all the rest.
                0 => 0,
                backlog => {
                    let most = if self.left_unused { UNUSED_PACKETS } else { u64::MAX };
                    backlog.div_ceil(payload_bytes).min(most).saturating_sub(outstanding)
                }
            },
            frame_bytes: self.frame_bytes(config),
            overhead_bytes: self.frame_bytes(config) - payload_bytes,
            round_trip_ns: self.rtt.smoothed_ns(),
            lease_ns: self.lease.lasts_ns(),
            left_unused: self.left_unused,
            most_held: paced.into_iter().chain(on_probation).min(),
            is_quick: paced.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ropeway_wire::Id;

    use super::super::Phase;
    use super::*;
    use crate::endpoint::Path;

    fn begun() -> (Association, Time) {
        let at = Time::from_nanos(1_000_000_000);
        let (id, path) = (Id::default(), Path([0; Path::BYTES]));
        let mut association = Association::new(id, path, Phase::Open, (0, 0), 0, &Config::default(), at);
        association.set_packet_bytes(1472);
        (association, at)
    }

    #[test]
    fn who_only_asks_has_its_grant_no_longer_for_that() {
        let ways: [fn(&mut Association, Time); 2] =
            [Association::note_question, |association, now| association.said(&Config::default(), now)];
        for says in ways {
            let (mut association, at) = begun();
            association.lend(10, at);
            for (ns, is_told) in [(UNUSED_LEASES * association.lease.lasts_ns(), true), (1, false)] {
                let now = association.granted_at.after(ns);
                association.heard_at = now;
                says(&mut association, now);
                assert_eq!(association.granted_at == now, is_told);
            }
        }
    }

    #[test]
    fn who_answers_late_keeps_a_grant_that_it_does_not_use_for_two_of_its_longer_leases() {
        let (mut association, at) = begun();
        association.lease.follow(190_000_000);
        association.lend(10, at);
        let is_told = |association: &mut Association, ns| {
            association.heard_at = at.after(ns);
            association.tells_grant(association.heard_at)
        };
        let ns = 2 * 8 * 190_000_000;
        assert_eq!([ns, ns + 1].map(|ns| is_told(&mut association, ns)), [true, false]);
    }

    #[test]
    fn whose_grant_was_taken_back_gets_a_packet_at_a_time() {
        let (mut association, at) = begun();
        let wanted = |association: &Association| {
            association.demand(&Config::default(), Line::default(), || Drain { ns: 0, slow_ns: 0 }, at).wanted_packets
        };
        association.peer_backlog = 20 * association.payload_bytes as u64;
        assert_eq!(wanted(&association), 20);
        association.take_back(at, at);
        assert_eq!(wanted(&association), 0, "until it says again what it wants");
        association.peer_backlog = 20 * association.payload_bytes as u64;
        assert_eq!(wanted(&association), UNUSED_PACKETS);
        association.lend(UNUSED_PACKETS, at);
        assert_eq!(wanted(&association), 0);
    }

    #[test]
    fn something_is_behind_a_packet_that_is_not_the_last() {
        let (mut association, _) = begun();
        association.peer_backlog = 1500;
        let mut after = |flags| {
            association.estimate_backlog(flags, 1000);
            association.peer_backlog
        };
        assert_eq!([Flags::NONE, Flags::NONE, Flags::TXF].map(&mut after), [500, 1, 0]);
    }
}
