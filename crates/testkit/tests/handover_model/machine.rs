//! The steps. Each is one access to something that the other end, or the kernel, can change at the same time; what only
//! the owners of a lock see is done in the same step. Clause numbers are those of docs/handover.md.

use super::state::*;
use stateright::{Model, Property};

/// A scenario: who runs what, and what else may happen.
#[derive(Clone)]
pub struct Scenario {
    pub rules: Rules,
    /// End, process and script of each thread.
    pub threads: Vec<(usize, usize, Vec<Op>)>,
    /// Demotions that may happen at any call boundary, by either end of a direction (clauses 3.1 and 3.2).
    pub whims: u8,
    /// Processes of which one may be killed at any step.
    pub mortal: Vec<usize>,
    /// Records that a ring holds before it is full.
    pub room: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Step(usize),
    /// 5.1: a sending call looks at the shadow before it goes on.
    Glance(usize),
    /// A thread at a call boundary demotes the direction it sends, or the one it receives.
    Whim {
        thread: usize,
        outgoing: bool,
    },
    /// Nothing moved for ten milliseconds (clause 3.1), or for the second that a recall waits (clause 4).
    Timer(usize),
    /// The end of a process, and the kernel's close.
    Exit(usize),
    Kill(usize),
}

impl Scenario {
    pub fn new(threads: &[(usize, usize, &[Op])]) -> Scenario {
        let threads = threads.iter().map(|(end, process, script)| (*end, *process, script.to_vec())).collect();
        Scenario { rules: Rules::ALL, threads, whims: 0, mortal: vec![], room: 8 }
    }

    /// Whether a step that nobody else can tell from the one before it is taken along with that one: it touches only
    /// what the owners of a lock see, under that lock, or nobody else owns the end; and nobody is killed between.
    fn goes_along(&self, s: &State, t: usize) -> bool {
        let alone = s.threads.iter().filter(|other| other.end == s.threads[t].end).count() == 1;
        let private = match s.threads[t].pc {
            Pc::Idle => return true,
            Pc::SwitchPhase | Pc::PhaseTcp(_) | Pc::CountTaken(_) => true,
            Pc::CountSent | Pc::CountNative(_) => alone,
            _ => false,
        };
        private && self.mortal.is_empty()
    }

    fn op(&self, t: usize, next: usize) -> Option<Op> {
        self.threads[t].2.get(next).copied()
    }

    /// A lock is free, or its holder is dead.
    fn free(state: &State, lock: Option<usize>) -> bool {
        lock.is_none_or(|holder| state.threads[holder].pc == Pc::Dead)
    }

    /// The same for the reader's lock. Who takes it from the dead while a recall is being answered waits for that.
    fn free_rx(&self, state: &State, d: &Direction) -> bool {
        Self::free(state, d.rx.lock) && !(self.rules.settle_recall && d.is_being_answered())
    }

    /// Whether the next step of a thread can be taken now.
    fn enabled(&self, s: &State, t: usize) -> bool {
        let thread = &s.threads[t];
        let (out, inn) = (&s.dirs[thread.end], &s.dirs[1 - thread.end]);
        let shadow_in_wait = self.rules.shadow_in_wait;
        let peer_ended = inn.fin || s.ends[thread.end].kernel_reset;
        match thread.pc {
            Pc::Over | Pc::Dead | Pc::Unborn => false,
            Pc::Send | Pc::Demote(_) | Pc::PeerFin(_) => Self::free(s, out.tx.lock),
            Pc::Recv | Pc::DemoteReader(_) | Pc::AskBack | Pc::LookAgain { .. } => self.free_rx(s, inn),
            Pc::UncountedNativeSend | Pc::UncountedNativeRecv => true,
            Pc::SleepForRoom => thread.rung || (shadow_in_wait && peer_ended),
            Pc::SleepForData => thread.rung || (shadow_in_wait && (!inn.queue.is_empty() || peer_ended)),
            Pc::NativeRecv => !inn.queue.is_empty() || peer_ended,
            Pc::ForeignRead => !inn.queue.is_empty() || peer_ended || inn.delivered >= thread.to_send,
            Pc::AwaitRecall => inn.recalled == inn.rx.epoch,
            _ => true,
        }
    }
}

/// Rings every thread whose bit is set.
pub fn ring(threads: &mut [Thread], armed: &mut u8) {
    for (i, thread) in threads.iter_mut().enumerate() {
        thread.rung |= *armed & (1 << i) != 0;
    }
    *armed = 0;
}

/// One thread's step, with everything in reach.
pub struct Step<'a> {
    pub s: &'a mut State,
    pub rules: Rules,
    pub room: usize,
    pub t: usize,
    pub end: usize,
}

impl Step<'_> {
    pub(super) fn out(&mut self) -> &mut Direction {
        &mut self.s.dirs[self.end]
    }

    pub(super) fn inn(&mut self) -> &mut Direction {
        &mut self.s.dirs[1 - self.end]
    }

    pub(super) fn me(&mut self) -> &mut Thread {
        &mut self.s.threads[self.t]
    }

    pub(super) fn my_end(&mut self) -> &mut EndState {
        &mut self.s.ends[self.end]
    }

    pub(super) fn go(&mut self, pc: Pc) {
        self.me().pc = pc;
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.s.fault.get_or_insert(fault);
    }

    /// The operation is over: on to the next entry of the script.
    pub(super) fn done(&mut self) {
        let me = self.me();
        (me.pc, me.moved, me.to_send) = (Pc::Idle, 0, 0);
        me.next += 1;
    }

    /// The thread ends: its connection has failed, or its stream is over.
    pub(super) fn over(&mut self) {
        self.go(Pc::Over);
    }

    pub(super) fn then(&mut self, then: Then) {
        match then {
            Then::Send => self.go(Pc::Send),
            Then::EndOfStream => self.end_of_stream(),
            Then::Recv => self.go(Pc::Recv),
            Then::Shutdown => self.go(Pc::Fin),
            Then::LeaveReader => self.go(Pc::DemoteReader(Then::AskBack)),
            Then::AskBack => self.go(Pc::AskBack),
        }
    }

    // ---- locks ----

    /// Clause 7.2: whoever takes a lock from the dead completes what they had begun.
    pub(super) fn lock_tx(&mut self) {
        let (t, recovery) = (self.t, self.rules.recovery);
        let from_the_dead = self.out().tx.lock.is_some();
        let tx = &mut self.out().tx;
        tx.lock = Some(t);
        if from_the_dead && recovery {
            if tx.switch_pending {
                (tx.phase, tx.switch_pending) = (TxPhase::Ring, false);
            }
            let State { dirs, threads, .. } = &mut *self.s;
            ring(threads, &mut dirs[self.end].armed_readers);
        }
    }

    pub(super) fn unlock_tx(&mut self) {
        self.out().tx.lock = None;
    }

    pub(super) fn lock_rx(&mut self) {
        let (t, recovery, settle_recall) = (self.t, self.rules.recovery, self.rules.settle_recall);
        let d = self.inn();
        let from_the_dead = d.rx.lock.is_some();
        d.rx.lock = Some(t);
        if from_the_dead && recovery {
            // The kernel's count is the true one (nobody is in the kernel while the ring is attached); a switch that the
            // phase tells of has been passed.
            if d.rx.phase != RxPhase::Tcp {
                d.rx.counted = d.taken;
            }
            if matches!(d.rx.phase, RxPhase::Drain | RxPhase::Ring)
                && d.ring.first() == Some(&Record::Switch(d.rx.switch_at))
            {
                d.ring.remove(0);
            }
            if d.rx.recalling && settle_recall {
                if d.recalled == d.rx.epoch {
                    d.skip_unread();
                    d.rx.phase = RxPhase::Tcp;
                } else {
                    d.recall = 0;
                }
                d.rx.recalling = false;
            }
            let State { dirs, threads, .. } = &mut *self.s;
            ring(threads, &mut dirs[1 - self.end].armed_writers);
        }
    }

    pub(super) fn unlock_rx(&mut self) {
        self.inn().rx.lock = None;
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let children: Vec<usize> =
            self.threads.iter().flat_map(|(_, _, script)| script).filter_map(Op::child).collect();
        let thread = |(t, (end, process, _)): (usize, &(usize, usize, Vec<Op>))| Thread {
            end: *end,
            process: *process,
            next: 0,
            pc: if children.contains(&t) { Pc::Unborn } else { Pc::Idle },
            moved: 0,
            to_send: 0,
            rung: false,
        };
        let mut state = State {
            dirs: Default::default(),
            ends: Default::default(),
            threads: self.threads.iter().enumerate().map(thread).collect(),
            whims: self.whims,
            killed: false,
            fault: None,
        };
        for t in 0..state.threads.len() {
            if state.threads[t].pc == Pc::Idle {
                self.step_on(&mut state, t);
            }
        }
        vec![state]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        if s.fault.is_some() {
            return;
        }
        for (t, thread) in s.threads.iter().enumerate() {
            if self.enabled(s, t) {
                actions.push(Action::Step(t));
            }
            let (out, inn) = (&s.dirs[thread.end], &s.dirs[1 - thread.end]);
            let at_boundary = matches!(thread.pc, Pc::Send | Pc::Recv) && thread.moved == 0;
            if at_boundary && s.whims > 0 {
                if out.tx.phase == TxPhase::Ring && Self::free(s, out.tx.lock) {
                    actions.push(Action::Whim { thread: t, outgoing: true });
                }
                if inn.rx.phase != RxPhase::Tcp && !inn.is_closed() && Self::free(s, inn.rx.lock) {
                    actions.push(Action::Whim { thread: t, outgoing: false });
                }
            }
            if (thread.pc == Pc::SleepForRoom && self.rules.patience) || thread.pc == Pc::AwaitRecall {
                actions.push(Action::Timer(t));
            }
            let ended = inn.fin || s.ends[thread.end].kernel_reset;
            if thread.pc == Pc::Send && ended && !s.ends[thread.end].saw_fin {
                actions.push(Action::Glance(t));
            }
            if !s.killed && self.mortal.contains(&thread.process) && !matches!(thread.pc, Pc::Over | Pc::Dead) {
                actions.push(Action::Kill(thread.process));
            }
        }
        for end in [A, B] {
            let mut its = s.threads.iter().filter(|thread| thread.end == end).peekable();
            if !s.ends[end].gone && its.peek().is_some() && its.all(|t| matches!(t.pc, Pc::Over | Pc::Dead)) {
                actions.push(Action::Exit(end));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(t) => self.step_on(&mut state, t),
            Action::Whim { thread, outgoing } => {
                state.whims -= 1;
                let then = if state.threads[thread].pc == Pc::Send { Then::Send } else { Then::Recv };
                state.threads[thread].pc = if outgoing { Pc::Demote(then) } else { Pc::DemoteReader(then) };
            }
            Action::Timer(t) => {
                let end = state.threads[t].end;
                if state.threads[t].pc == Pc::AwaitRecall {
                    Step { s: &mut state, rules: self.rules, room: self.room, t, end }.withdraw_recall();
                } else {
                    state.dirs[end].armed_writers &= !(1 << t);
                    state.threads[t].rung = false;
                    state.threads[t].pc = Pc::Demote(Then::Send);
                }
            }
            Action::Glance(t) => state.threads[t].pc = Pc::LookForEnd,
            Action::Exit(end) => {
                // 5.5: unread bytes in the ring, as in the kernel's queue, make the close a reset.
                let d = &state.dirs[1 - end];
                let orderly = state.threads.iter().any(|t| t.end == end && t.pc == Pc::Over);
                let unread_in_ring = d.rx.phase != RxPhase::Tcp && d.unread() > 0 && orderly;
                state.ends[1 - end].kernel_reset |= !d.queue.is_empty() || unread_in_ring;
                state.ends[end].gone = true;
                state.dirs[end].fin = true;
            }
            Action::Kill(process) => {
                state.killed = true;
                for thread in state.threads.iter_mut().filter(|t| t.process == process && t.pc != Pc::Over) {
                    thread.pc = Pc::Dead;
                }
                // What it had not forked yet will never be.
                for (t, thread) in state.threads.iter_mut().enumerate() {
                    let parent = self.threads.iter().position(|(_, _, script)| script.contains(&Op::Fork(t)));
                    if thread.pc == Pc::Unborn && parent.is_some_and(|p| self.threads[p].1 == process) {
                        thread.pc = Pc::Dead;
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every byte at its place", |_, s: &State| s.fault.is_none()),
            Property::always("nobody hangs", |model: &Scenario, s: &State| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty()
                    || s.fault.is_some()
                    || s.threads.iter().all(|t| matches!(t.pc, Pc::Over | Pc::Dead))
            }),
            Property::always("what was accepted arrives", |_, s: &State| {
                // At the end of everything, for each reader that was told the end of a stream that went well.
                s.fault.is_some()
                    || [A, B].iter().all(|&end| {
                        let d = &s.dirs[1 - end];
                        !s.ends[end].told_end || d.delivered == d.accepted
                    })
            }),
            Property::sometimes("the ring carries bytes", |_, s: &State| s.dirs.iter().any(|d| d.unread() > 0)),
        ]
    }
}

impl Scenario {
    fn step_on(&self, s: &mut State, t: usize) {
        self.step(s, t);
        while self.goes_along(s, t) {
            self.step(s, t);
        }
    }

    fn step(&self, s: &mut State, t: usize) {
        let end = s.threads[t].end;
        let pc = s.threads[t].pc;
        let mut x = Step { s, rules: self.rules, room: self.room, t, end };
        match pc {
            Pc::Over | Pc::Dead | Pc::Unborn => {}
            Pc::Idle => self.begin(&mut x),
            Pc::Send => x.send(),
            Pc::Switch => x.switch(),
            Pc::SwitchPhase => {
                let tx = &mut x.out().tx;
                (tx.phase, tx.switch_pending) = (TxPhase::Ring, false);
                x.go(Pc::RingReader);
            }
            Pc::NativeSend => x.native_send(),
            Pc::UncountedNativeSend => {
                x.out().tx.inflight += 1;
                x.go(Pc::NativeSend);
            }
            Pc::CountSent => {
                let tx = &mut x.out().tx;
                tx.counted += 1;
                tx.inflight -= 1;
                if x.me().to_send == 0 { x.done() } else { x.go(Pc::Send) }
            }
            Pc::RingReader => x.ring_reader(),
            Pc::LookForEnd => {
                let ended = x.inn().fin || x.my_end().kernel_reset;
                x.go(if ended { Pc::PeerFin(Then::Send) } else { Pc::Send });
            }
            Pc::Ended(then) => {
                // 4.1: accepted by compare-and-swap.
                let tail_first = x.rules.tail_first;
                let d = x.out();
                let asked = d.recall != 0 && d.recall == d.tx.epoch;
                if asked {
                    (d.recall, d.accepted_recall) = (0, true);
                }
                let next = match asked {
                    true if tail_first => Pc::CopyTail(then),
                    true => Pc::Recalled(then),
                    false => x.leaving(then),
                };
                x.go(next);
            }
            Pc::CopyTail(then) => x.copy_tail(then),
            Pc::Recalled(then) => {
                let d = x.out();
                d.recalled = d.tx.epoch;
                let next = x.leaving(then);
                x.go(next);
            }
            Pc::CloseBlindly(then) => {
                x.out().ring.push(Record::Closed);
                x.go(Pc::Ended(then));
            }
            Pc::LeaveTooSoon(then) => {
                let d = x.out();
                d.left = d.tx.epoch;
                x.go(Pc::PhaseTcp(then));
            }
            Pc::PhaseTcp(then) => {
                let tx = &mut x.out().tx;
                (tx.phase, tx.switch_pending) = (TxPhase::Tcp, false);
                x.go(Pc::LeaveEpoch(then));
            }
            Pc::LeaveEpoch(then) => x.leave_epoch(then),
            Pc::Demote(then) => x.demote(then),
            Pc::ArmWriter => {
                x.out().armed_writers |= 1 << t;
                x.go(if x.rules.look_after_arming { Pc::LookForRoom } else { Pc::SleepForRoom });
            }
            Pc::LookForRoom => {
                let room = x.room;
                let d = x.out();
                let ready = d.ring.len() < room || d.is_closed() || d.tx.phase != TxPhase::Ring;
                if ready {
                    d.armed_writers &= !(1 << t);
                    x.me().rung = false;
                }
                x.go(if ready { Pc::Send } else { Pc::SleepForRoom });
            }
            Pc::SleepForRoom => {
                x.out().armed_writers &= !(1 << t);
                x.me().rung = false;
                x.go(Pc::LookForEnd);
            }
            Pc::MarkShut => {
                x.out().wr_shut = true;
                x.my_end().shut_wr = true;
                x.go(Pc::Demote(Then::Shutdown));
            }
            Pc::Fin => {
                x.out().fin = true;
                x.done();
            }
            Pc::Recv => x.recv(),
            Pc::Clear => {
                let d = x.inn();
                if d.is_closed() {
                    d.ring.pop();
                }
                d.rx.epoch += 1;
                x.go(Pc::Offer);
            }
            Pc::Offer => {
                let d = x.inn();
                d.offer = d.rx.epoch;
                x.unlock_rx();
                x.go(Pc::Recv);
            }
            Pc::LookForSwitch { peeked, end } => x.look_for_switch(peeked, end),
            Pc::ReadWithoutPeek => x.read_without_peek(),
            Pc::PassSwitch => {
                x.inn().ring.remove(0);
                x.unlock_rx();
                x.go(Pc::Recv);
            }
            Pc::CountTaken(n) => {
                x.inn().rx.counted += n;
                x.unlock_rx();
                if x.me().moved < CALL_BYTES { x.go(Pc::Recv) } else { x.received() }
            }
            Pc::RingWriter => {
                let State { dirs, threads, .. } = &mut *x.s;
                ring(threads, &mut dirs[1 - end].armed_writers);
                x.unlock_rx();
                if x.me().moved < CALL_BYTES { x.go(Pc::Recv) } else { x.received() }
            }
            Pc::LookAtShadow => x.look_at_shadow(),
            Pc::LookAgain { ended } => x.look_again(ended),
            Pc::LookAtRing { ended, queued } => x.look_at_ring(ended, queued),
            Pc::LookAtQueue { ended } => {
                let queued = !x.inn().queue.is_empty();
                x.judge(ended, queued, false);
            }
            Pc::ArmReader => {
                x.inn().armed_readers |= 1 << t;
                x.go(if x.rules.look_after_arming { Pc::LookForData } else { Pc::SleepForData });
            }
            Pc::LookForData => {
                let d = x.inn();
                let ready = !d.ring.is_empty() || d.rx.phase == RxPhase::Tcp;
                if ready {
                    d.armed_readers &= !(1 << t);
                    x.me().rung = false;
                }
                x.go(if ready { Pc::Recv } else { Pc::SleepForData });
            }
            Pc::SleepForData => {
                x.inn().armed_readers &= !(1 << t);
                x.me().rung = false;
                // 4.1: a thread that wakes does what a leaving reader asked for.
                let d = x.out();
                let asked = d.tx.phase == TxPhase::Ring && d.recall != 0 && d.recall == d.tx.epoch;
                x.go(if asked { Pc::Demote(Then::Recv) } else { Pc::Recv });
            }
            Pc::NativeRecv => {
                let d = x.inn();
                if !d.queue.is_empty() {
                    return x.native(CALL_BYTES);
                }
                d.rx.inflight -= 1;
                if x.rules.fin_anywhere { x.go(Pc::PeerFin(Then::EndOfStream)) } else { x.end_of_stream() }
            }
            Pc::UncountedNativeRecv => {
                x.inn().rx.inflight += 1;
                x.go(Pc::NativeRest);
            }
            Pc::NativeRest => {
                let room = CALL_BYTES - x.me().moved;
                x.native(room);
            }
            Pc::CountNative(n) => {
                let rx = &mut x.inn().rx;
                rx.counted += n;
                rx.inflight -= 1;
                x.received();
            }
            Pc::PeerFin(then) => x.peer_fin(then),
            Pc::DemoteReader(then) => x.demote_reader(then),
            Pc::CloseAsReader { end, then } => {
                x.inn().ring.truncate(usize::from(end));
                x.inn().ring.push(Record::Closed);
                x.go(Pc::RingWriterAfterClose(then));
            }
            Pc::RingWriterAfterClose(then) => {
                let State { dirs, threads, .. } = &mut *x.s;
                ring(threads, &mut dirs[1 - end].armed_writers);
                x.unlock_rx();
                x.then(then);
            }
            Pc::AskBack => x.ask_back(),
            Pc::Relay => x.relay(),
            Pc::NoteRecall => x.note_recall(),
            Pc::PublishRecall => x.publish_recall(),
            Pc::AwaitRecall => {
                x.inn().skip_unread();
                x.go(Pc::RecallAnswered);
            }
            Pc::RecallAnswered => {
                let rx = &mut x.inn().rx;
                (rx.phase, rx.recalling) = (RxPhase::Tcp, false);
                x.unlock_rx();
                x.go(Pc::ForeignRead);
            }
            Pc::RecallWithdrawn => {
                x.inn().rx.recalling = false;
                x.leave_rest();
            }
            Pc::ForeignRead => x.foreign_read(),
        }
    }

    /// The next call of the script.
    fn begin(&self, x: &mut Step) {
        let next = x.me().next;
        match self.op(x.t, next) {
            None => x.over(),
            Some(Op::Send(n)) => {
                x.me().to_send = n;
                x.go(Pc::Send);
            }
            Some(Op::Recv) => {
                x.me().next += 1;
                x.go(Pc::Recv);
            }
            Some(Op::RecvAll) => x.go(Pc::Recv),
            Some(Op::ShutWr) => x.go(Pc::MarkShut),
            Some(Op::Fork(child)) => {
                x.s.threads[child].pc = Pc::Idle;
                x.done();
            }
            Some(Op::Leave(bytes)) => {
                x.me().to_send = bytes;
                x.my_end().pinned = true;
                x.go(Pc::Demote(Then::LeaveReader));
            }
        }
    }
}
