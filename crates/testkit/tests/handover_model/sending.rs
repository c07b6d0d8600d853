//! The steps of a sending call, and of a writer that leaves its ring.

use super::machine::{Step, ring};
use super::state::*;

impl Step<'_> {
    pub(super) fn send(&mut self) {
        self.lock_tx();
        if self.my_end().reset {
            // The call fails; the program may still read what came.
            self.unlock_tx();
            return self.done();
        }
        if self.out().tx.phase == TxPhase::Ring {
            return self.publish();
        }
        let e = self.s.ends[self.end].clone();
        let may = !(e.pinned || e.saw_fin || e.shut_wr);
        let senders_out = self.rules.senders_out;
        let d = self.out();
        // 2.3: the next epoch is offered, nobody else is sending, and S is what the kernel says.
        if may
            && d.offer == d.tx.epoch + 1
            && (d.tx.inflight == 0 || !senders_out)
            && (d.tx.counted == d.sent || !senders_out)
        {
            return self.go(Pc::Switch);
        }
        d.tx.inflight += 1;
        self.unlock_tx();
        self.go(Pc::NativeSend);
    }

    /// Under the lock, on the ring: one byte, if there is room.
    pub(super) fn publish(&mut self) {
        let room = self.room;
        let d = self.out();
        if d.is_closed() {
            return self.go(Pc::Ended(Then::Send));
        }
        if d.ring.len() >= room {
            self.unlock_tx();
            return self.go(Pc::ArmWriter);
        }
        d.ring.push(Record::Data(d.accepted));
        d.accepted += 1;
        self.moved();
        self.go(Pc::RingReader);
    }

    pub(super) fn moved(&mut self) {
        let me = self.me();
        me.moved += 1;
        me.to_send -= 1;
    }

    /// 2.3: publishes `SWITCH(N = S)`, or finds that the offer was withdrawn.
    pub(super) fn switch(&mut self) {
        let d = self.out();
        d.tx.epoch += 1;
        if d.is_closed() {
            // Stays on TCP; the step that records that the epoch is left comes next.
            return self.go(Pc::LeaveEpoch(Then::Send));
        }
        d.ring.push(Record::Switch(d.tx.counted));
        d.tx.switch_pending = true;
        self.go(Pc::SwitchPhase);
    }

    pub(super) fn native_send(&mut self) {
        let (end, peer) = (self.end, 1 - self.end);
        if self.s.ends[end].kernel_reset {
            self.out().tx.inflight -= 1;
            return self.done();
        }
        if self.s.ends[peer].gone {
            // Accepted by the kernel, answered with RST.
            self.s.ends[end].kernel_reset = true;
        }
        let d = self.out();
        d.queue.push(d.accepted);
        d.accepted += 1;
        d.sent += 1;
        self.moved();
        self.go(Pc::CountSent);
    }

    /// Looks at `armed` after a publish, and rings.
    pub(super) fn ring_reader(&mut self) {
        let State { dirs, threads, .. } = &mut *self.s;
        ring(threads, &mut dirs[self.end].armed_readers);
        self.unlock_tx();
        if self.me().to_send == 0 { self.done() } else { self.go(Pc::Send) }
    }

    /// 3.1. Without compare-and-swap, what was seen free a moment ago is overwritten.
    pub(super) fn demote(&mut self, then: Then) {
        self.lock_tx();
        if self.out().tx.phase != TxPhase::Ring {
            self.unlock_tx();
            return self.then(then);
        }
        if self.out().is_closed() {
            return self.go(Pc::Ended(then));
        }
        if self.rules.cas {
            self.out().ring.push(Record::Closed);
            self.go(Pc::Ended(then));
        } else {
            self.go(Pc::CloseBlindly(then));
        }
    }

    /// 4: the rest of a recalled ring goes over TCP, one record a step.
    pub(super) fn copy_tail(&mut self, then: Then) {
        let d = self.out();
        // They stay in the ring until the reader has passed over them.
        match d.ring.get(usize::from(d.copied)) {
            Some(&Record::Data(byte)) => {
                d.queue.push(byte);
                d.sent += 1;
                d.tx.counted += 1;
                d.copied += 1;
            }
            Some(Record::Switch(_)) => d.copied += 1,
            _ => self.go(Pc::Recalled(then)),
        }
    }

    /// 3.1: the phase first, so that no heir of a dead writer publishes in an epoch that the reader believes left.
    pub(super) fn leaving(&self, then: Then) -> Pc {
        if self.rules.phase_first { Pc::PhaseTcp(then) } else { Pc::LeaveTooSoon(then) }
    }

    /// 3.1: says that the epoch is left, last of all: from now on the reader may offer the next.
    pub(super) fn leave_epoch(&mut self, then: Then) {
        let count_under_lock = self.rules.count_under_lock;
        let d = self.out();
        d.left = d.tx.epoch;
        self.unlock_tx();
        if then == Then::Send && !count_under_lock && self.me().moved > 0 {
            // The rest of a call whose beginning went into the ring, without asking again.
            return self.go(Pc::UncountedNativeSend);
        }
        self.then(then);
    }
}
