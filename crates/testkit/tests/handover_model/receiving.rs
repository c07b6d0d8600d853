//! The steps of a receiving call, of the end of a stream, and of a reader that leaves Ropeway.

use super::machine::{Step, ring};
use super::state::*;

impl Step<'_> {
    pub(super) fn deliver(&mut self, byte: u8) {
        let d = self.inn();
        if byte != d.delivered {
            return self.fault(Fault::Disorder);
        }
        d.delivered += 1;
        self.me().moved += 1;
    }

    /// The stream ends for the reader, which is told so: all that was accepted must have come.
    pub(super) fn end_of_stream(&mut self) {
        let d = self.inn();
        if d.delivered != d.accepted {
            self.fault(Fault::EndTooEarly);
        }
        let good = !self.my_end().reset && !self.my_end().kernel_reset;
        if good && self.out().unread() > 0 && !self.inn().wr_shut {
            self.fault(Fault::EndTooGood);
        }
        self.my_end().told_end = true;
        let failed = self.my_end().reset || self.my_end().kernel_reset;
        if failed { self.over() } else { self.done() }
    }

    /// The receiving call returns with what it has.
    pub(super) fn received(&mut self) {
        match self.me().pc {
            _ if self.me().moved == 0 => self.go(Pc::Recv),
            _ => {
                self.me().moved = 0;
                self.go(Pc::Idle);
            }
        }
    }

    pub(super) fn recv(&mut self) {
        self.lock_rx();
        let phase = self.inn().rx.phase;
        match phase {
            RxPhase::Tcp => self.recv_over_tcp(),
            RxPhase::Attached if !self.rules.peek => self.look_without_peek(),
            RxPhase::Attached => {
                // 2.4: PEEK.
                let room = CALL_BYTES - self.me().moved;
                let d = self.inn();
                let peeked = room.min(d.queue.len() as u8);
                let end = d.queue.is_empty() && d.fin;
                self.go(Pc::LookForSwitch { peeked, end });
            }
            RxPhase::Drain => {
                let room = CALL_BYTES - self.me().moved;
                let d = self.inn();
                let Some(limit) = d.rx.switch_at.checked_sub(d.rx.counted) else {
                    return self.fault(Fault::Disorder); // Bytes from behind N are out already.
                };
                if limit == 0 {
                    d.rx.phase = RxPhase::Ring;
                    return self.unlock_rx();
                }
                let n = room.min(limit).min(d.queue.len() as u8);
                self.take(n);
            }
            RxPhase::Ring => self.read_ring(),
        }
    }

    /// Under the lock: takes `n` bytes that a PEEK has shown.
    pub(super) fn take(&mut self, n: u8) {
        if n == 0 {
            if self.inn().fin && self.me().moved == 0 {
                // Bytes before N that will never come.
                self.fault(Fault::EndTooEarly);
            }
            self.unlock_rx();
            return if self.me().moved > 0 { self.received() } else { self.go(Pc::LookAtShadow) };
        }
        if self.inn().queue.len() < usize::from(n) {
            return self.fault(Fault::Disorder); // Another reader has taken what the PEEK had shown.
        }
        for _ in 0..n {
            let byte = self.inn().queue.remove(0);
            self.deliver(byte);
        }
        self.inn().taken += n;
        self.go(Pc::CountTaken(n));
    }

    pub(super) fn recv_over_tcp(&mut self) {
        let e = self.s.ends[self.end].clone();
        let rules = self.rules;
        let moved = self.me().moved;
        if e.reset && !rules.drain_before_reset {
            self.unlock_rx();
            return self.end_of_stream();
        }
        let d = self.inn();
        let may = !(e.pinned || e.saw_fin || e.reset);
        // 2.1: the writer has left the previous epoch, no reader is in the kernel, C is what the kernel says.
        let may = may
            && (d.left == d.rx.epoch || !rules.left_first)
            && (d.rx.inflight == 0 || !rules.readers_out)
            && (d.rx.counted == d.taken || !rules.readers_out);
        if may && moved == 0 {
            d.rx.phase = RxPhase::Attached;
            return self.go(Pc::Clear);
        }
        d.rx.inflight += 1;
        self.unlock_rx();
        self.go(if moved > 0 { Pc::NativeRest } else { Pc::NativeRecv });
    }

    /// What 2.4 forbids: looks at the ring, and then reads.
    pub(super) fn look_without_peek(&mut self) {
        let d = self.inn();
        match d.ring.first().copied() {
            Some(Record::Switch(n)) => {
                d.ring.remove(0);
                (d.rx.switch_at, d.rx.phase) = (n, RxPhase::Drain);
                self.unlock_rx();
            }
            Some(_) => {
                d.rx.phase = RxPhase::Tcp;
                self.unlock_rx();
            }
            None => self.go(Pc::ReadWithoutPeek),
        }
    }

    pub(super) fn read_without_peek(&mut self) {
        let room = CALL_BYTES - self.me().moved;
        let d = self.inn();
        let (n, end) = (room.min(d.queue.len() as u8), d.queue.is_empty() && d.fin);
        if n > 0 {
            return self.take(n);
        }
        self.unlock_rx();
        match self.me().moved {
            0 if end => self.go(Pc::PeerFin(Then::EndOfStream)),
            0 => self.go(Pc::LookAtShadow),
            _ => self.received(),
        }
    }

    /// 2.4: looks at the ring after the PEEK.
    pub(super) fn look_for_switch(&mut self, peeked: u8, end: bool) {
        let d = self.inn();
        match d.ring.first().copied() {
            None if peeked > 0 => self.take(peeked),
            None => {
                self.unlock_rx();
                match self.me().moved {
                    0 if end => self.go(Pc::PeerFin(Then::EndOfStream)),
                    0 => self.go(Pc::LookAtShadow),
                    _ => self.received(),
                }
            }
            Some(Record::Switch(n)) if n < d.rx.counted => self.fault(Fault::Corrupt),
            Some(Record::Switch(n)) => {
                (d.rx.switch_at, d.rx.phase) = (n, RxPhase::Drain);
                self.go(Pc::PassSwitch);
            }
            Some(Record::Closed) => {
                d.rx.phase = RxPhase::Tcp;
                self.unlock_rx();
                self.go(Pc::Recv);
            }
            Some(Record::Data(_)) => self.fault(Fault::Corrupt),
        }
    }

    pub(super) fn read_ring(&mut self) {
        let count_under_lock = self.rules.count_under_lock;
        let d = self.inn();
        match d.ring.first().copied() {
            Some(Record::Data(byte)) => {
                d.ring.remove(0);
                self.deliver(byte);
                self.go(Pc::RingWriter);
            }
            Some(Record::Closed) => {
                // 3.3: what follows comes over TCP.
                d.rx.phase = RxPhase::Tcp;
                if self.me().moved == 0 {
                    self.unlock_rx();
                    return self.go(Pc::Recv);
                }
                // The rest of the call, which must not wait: it has something already.
                if count_under_lock {
                    self.inn().rx.inflight += 1;
                    self.go(Pc::NativeRest);
                } else {
                    self.go(Pc::UncountedNativeRecv);
                }
                self.unlock_rx();
            }
            Some(Record::Switch(_)) => self.fault(Fault::Corrupt),
            None => {
                self.unlock_rx();
                if self.me().moved > 0 { self.received() } else { self.go(Pc::LookAtShadow) }
            }
        }
    }

    /// Takes from the kernel as the program's own call would.
    pub(super) fn native(&mut self, room: u8) {
        let n = room.min(self.inn().queue.len() as u8);
        for _ in 0..n {
            let byte = self.inn().queue.remove(0);
            self.deliver(byte);
        }
        self.inn().taken += n;
        self.go(Pc::CountNative(n));
    }

    /// 5.3: an event on the shadow, and the ring looked at afterwards.
    pub(super) fn look_at_shadow(&mut self) {
        let (reset, kernel_reset) = (self.my_end().reset, self.my_end().kernel_reset);
        let rules = self.rules;
        let d = self.inn();
        let ended = d.fin || kernel_reset;
        if reset {
            return self.end_of_stream();
        }
        if !ended && d.queue.is_empty() {
            return self.go(Pc::ArmReader);
        }
        if !rules.look_after_fin && ended {
            return self.go(Pc::PeerFin(Then::EndOfStream));
        }
        self.go(Pc::LookAgain { ended });
    }

    /// 5.3, 5.4: under the lock, so that no other reader takes away what was seen; the queue before the ring, so that
    /// what explains the bytes in the queue is in the ring by then.
    pub(super) fn look_again(&mut self, ended: bool) {
        self.lock_rx();
        if self.rules.queue_first {
            let queued = !self.inn().queue.is_empty();
            self.go(Pc::LookAtRing { ended, queued });
        } else {
            let d = self.inn();
            let more = !d.ring.is_empty() || d.rx.phase != RxPhase::Ring;
            self.unlock_rx();
            self.go(if more { Pc::Recv } else { Pc::LookAtQueue { ended } });
        }
    }

    pub(super) fn look_at_ring(&mut self, ended: bool, queued: bool) {
        let d = self.inn();
        let more = !d.ring.is_empty() || d.rx.phase != RxPhase::Ring;
        self.unlock_rx();
        self.judge(ended, queued, more);
    }

    pub(super) fn judge(&mut self, ended: bool, queued: bool, more: bool) {
        match () {
            () if more => self.go(Pc::Recv),
            () if queued => self.fault(Fault::Foreign),
            () if ended => self.go(Pc::PeerFin(Then::EndOfStream)),
            () => self.go(Pc::ArmReader),
        }
    }

    /// 5.2: the peer's FIN. A reset if it left bytes of ours unread without having said that it would; else our
    /// direction returns to TCP.
    pub(super) fn peer_fin(&mut self, then: Then) {
        self.lock_tx();
        let mark = !self.rules.mark || self.inn().wr_shut;
        let first = !std::mem::replace(&mut self.my_end().saw_fin, true);
        let kernel_reset = self.my_end().kernel_reset;
        let d = self.out();
        // Also a ring that this end has left already may hold bytes that nobody will read any more.
        let drained = d.ring.iter().all(|r| *r == Record::Closed);
        if first && !kernel_reset && !mark && !drained {
            self.my_end().reset = true;
        }
        let d = &mut self.s.dirs[self.end];
        if !first || kernel_reset || self.s.ends[self.end].reset || d.tx.phase != TxPhase::Ring {
            if first {
                d.tx.phase = TxPhase::Tcp;
            }
            self.unlock_tx();
            return self.then(then);
        }
        self.unlock_tx();
        self.go(Pc::Demote(then));
    }

    /// 3.2: the reader ends the ring behind what was published.
    pub(super) fn demote_reader(&mut self, then: Then) {
        self.lock_rx();
        let cas = self.rules.cas;
        let d = self.inn();
        if d.rx.phase == RxPhase::Tcp {
            self.unlock_rx();
            return self.then(then);
        }
        if !cas {
            let end = d.ring.len() as u8;
            return self.go(Pc::CloseAsReader { end, then });
        }
        if !d.is_closed() {
            d.ring.push(Record::Closed);
        }
        self.go(Pc::RingWriterAfterClose(then));
    }

    /// 4.1: with the ring closed: position and wish, unless the writer has left already.
    pub(super) fn ask_back(&mut self) {
        self.lock_rx();
        let d = self.inn();
        if d.rx.phase == RxPhase::Tcp || d.unread() == 0 {
            d.rx.phase = RxPhase::Tcp;
            self.unlock_rx();
            return self.go(Pc::ForeignRead);
        }
        if d.left == d.rx.epoch {
            return self.leave_rest();
        }
        self.go(if self.rules.note_recall_first { Pc::NoteRecall } else { Pc::PublishRecall });
    }

    /// 7.2: for whoever takes the lock over, should this one die.
    pub(super) fn note_recall(&mut self) {
        self.inn().rx.recalling = true;
        self.go(if self.rules.note_recall_first { Pc::PublishRecall } else { Pc::AwaitRecall });
    }

    pub(super) fn publish_recall(&mut self) {
        let d = self.inn();
        d.recall = d.rx.epoch;
        let State { dirs, threads, .. } = &mut *self.s;
        ring(threads, &mut dirs[1 - self.end].armed_writers);
        // A writer that waits for bytes of ours looks, too.
        ring(threads, &mut dirs[self.end].armed_readers);
        self.go(if self.rules.note_recall_first { Pc::AwaitRecall } else { Pc::NoteRecall });
    }

    /// 4.2, 4.3: a rest that nobody takes back is relayed, unless others read it through Ropeway.
    pub(super) fn leave_rest(&mut self) {
        let (end, process) = (self.end, self.me().process);
        let is_other = |t: &Thread| t.end == end && t.process != process && !matches!(t.pc, Pc::Over | Pc::Dead);
        if self.s.threads.iter().any(is_other) {
            self.unlock_rx();
            return self.over();
        }
        self.go(Pc::Relay);
    }

    /// 4.1: the second is over: withdrawn, unless it was accepted.
    pub(super) fn withdraw_recall(&mut self) {
        let rules = self.rules;
        let gone = self.s.ends[1 - self.end].gone;
        let d = self.inn();
        if d.recall == d.rx.epoch || !rules.recall_cas {
            d.recall = 0;
            self.go(Pc::RecallWithdrawn);
        } else if gone && d.recalled != d.rx.epoch && rules.accepted_then_gone {
            // Accepted, and died over it: nobody can tell how much of the rest is on TCP. The connection is reset.
            self.unlock_rx();
            self.my_end().reset = true;
            self.over();
        }
    }

    /// 4.2: the rest of the ring first, then what the kernel has.
    pub(super) fn relay(&mut self) {
        let relay = self.rules.relay;
        let d = self.inn();
        // Bytes before N come first there, too.
        let before_n = d.rx.phase != RxPhase::Ring && d.rx.counted < d.rx.switch_at;
        if before_n && relay {
            let byte = d.queue.remove(0);
            d.taken += 1;
            d.rx.counted += 1;
            return self.deliver(byte);
        }
        match d.ring.first().copied() {
            Some(Record::Data(byte)) if relay => {
                d.ring.remove(0);
                self.deliver(byte);
            }
            Some(Record::Switch(n)) if relay => {
                d.ring.remove(0);
                (d.rx.switch_at, d.rx.phase) = (n, RxPhase::Drain);
            }
            _ => {
                d.rx.phase = RxPhase::Tcp;
                self.unlock_rx();
                self.go(Pc::ForeignRead);
            }
        }
        self.me().moved = 0;
    }

    /// Somebody who knows nothing of Ropeway reads what the kernel has.
    pub(super) fn foreign_read(&mut self) {
        let enough = self.inn().delivered >= self.me().to_send;
        if enough {
            return self.over();
        }
        if self.inn().queue.is_empty() {
            return self.end_of_stream();
        }
        let byte = self.inn().queue.remove(0);
        self.inn().taken += 1;
        self.deliver(byte);
        self.me().moved = 0;
    }
}
