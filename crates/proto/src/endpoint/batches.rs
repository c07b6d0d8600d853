//! The end of a batch of arrivals: what is granted and acknowledged for it (docs/protocol.md 6).

use super::Endpoint;
use crate::config::GateMode;
use crate::time::Time;

impl Endpoint {
    /// Whether packets have arrived for which [`Endpoint::finish_batch`] was not called.
    pub fn has_open_batch(&self) -> bool {
        !self.touched.is_empty() || self.gate.has_freed()
    }

    /// Whether [`Endpoint::finish_batch`] can be called a little later, as nobody waits for what comes of it: the ends of short messages have arrived, and nothing is missing.
    pub fn may_finish_later(&self) -> bool {
        let wants_nothing = |&index: &u32| {
            let association = &self.associations[index as usize];
            association.peer_backlog == 0
                && !association.ack_due
                && association.ask_at.is_none()
                && association.lost_unreported == 0
        };
        self.touched.len() == 1
            && self.touched.iter().all(wants_nothing)
            && !self.gate.is_waited_at()
            && !self.wants_to_transmit()
    }

    /// To be called where a look at the links finds nothing: what is handed over later has not lain there since before. Where nobody says so, how old a grant is
    /// is told by its echo alone, which counts what the peer's process did not run, too.
    pub fn note_empty(&mut self, now: Time) {
        self.empty_at = now;
    }

    /// To be called after the last packet of those that arrived together: gaps are asked for, acknowledgments and grants decided.
    pub fn finish_batch(&mut self, now: Time) {
        self.run = None;
        let mut touched = std::mem::take(&mut self.touched);
        for &index in &touched {
            let association = &mut self.associations[index as usize];
            association.touched = false;
            let arrived = std::mem::take(&mut association.arrived_unreported);
            if arrived > 0 {
                let holds_some = association.outstanding_packets() > 0;
                association.pace.note(arrived, holds_some, now);
                if !holds_some {
                    association.note_used_up();
                }
            }
            let demand = association.demand(
                &self.config,
                self.arrivals.line(),
                || self.arrivals.drain(self.gate.flying_bytes()),
                now,
            );
            let round_trip_ns = association.rtt.smoothed_ns();
            let lost = u64::from(std::mem::take(&mut association.lost_unreported));
            self.gate.observe(now, round_trip_ns, u64::from(arrived), lost, false);
            let heard_at = association.heard_at;
            self.gate.report(index, demand, heard_at, now);
        }
        match self.config.gate_mode {
            GateMode::Grants => self.hand_out_grants(now),
            GateMode::Esp => self.release_acks(now, &touched),
        }
        for &index in &touched {
            self.settle_timers(now, index);
        }
        touched.clear();
        self.announce_memory();
        // Keep the allocation.
        if self.touched.is_empty() {
            self.touched = touched;
        }
    }

    pub(super) fn hand_out_grants(&mut self, now: Time) {
        if !self.gate.is_waited_at() && !self.gate.has_freed() {
            return;
        }
        let drain_ns = self.drain().ns;
        let senders = self.associations.len() as u64;
        let frame_bytes = u64::from(self.config.packet_bytes) + u64::from(self.config.frame_overhead_bytes);
        self.gate.set_surroundings(drain_ns, senders, frame_bytes);
        self.gate.set_line(self.arrivals.line());
        let (associations, queues) = (&mut self.associations, &mut self.queues);
        self.gate.distribute(now, |index, packets| {
            let association = &mut associations[index as usize];
            association.lend(packets, now);
            queues.add(&mut association.queued_in, &association.path, index);
        });
    }

    /// `gate = esp`: of all senders that transmit, all but one have their acknowledgments held ([2:3.2.6]).
    fn release_acks(&mut self, now: Time, touched: &[u32]) {
        // Who has stopped would keep the turn of another one.
        let active = self.associations.iter().filter(|(index, association)| {
            let is_heard = now.since(association.heard_at) <= self.config.lease_ns;
            association.peer_backlog > 0 && (is_heard || self.gate.withholds(*index as u32))
        });
        let active = active.count() as u64;
        let mut released = Vec::new();
        for &index in touched {
            let association = &mut self.associations[index as usize];
            let due = association.ack_due || association.arrivals_unacked >= self.config.packets_to_ack;
            let is_over = association.peer_backlog == 0;
            if is_over {
                // Whose last word was an acknowledgment gets none for it.
                if due || association.received.base() != association.esp_ack {
                    released.push(index);
                }
            } else if due && association.received.base() != association.esp_ack {
                // A question is answered at once, if only with the acknowledgment of before: silence would be taken for death.
                association.ack_due = association.asked;
                self.gate.hold_ack(index, active, |index| released.push(index));
            }
        }
        self.gate.release_acks(active, |index| released.push(index));
        for index in released {
            let association = &mut self.associations[index as usize];
            association.esp_ack = association.received.base();
            association.ack_due = true;
            self.make_ready(index);
        }
    }
}
