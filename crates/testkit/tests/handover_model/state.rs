//! What the model knows: the two directions of one connection, the two ends, and the threads of their processes.

/// The end that writes direction 0 and reads direction 1.
pub const A: usize = 0;
/// The end that writes direction 1 and reads direction 0.
pub const B: usize = 1;

/// Bytes that one receiving call asks for: enough to span an offset.
pub const CALL_BYTES: u8 = 2;

/// A record of a ring. Bytes are named by their place in the stream, so every loss, repetition or exchange shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Record {
    Data(u8),
    Switch(u8),
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TxPhase {
    #[default]
    Tcp,
    Ring,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RxPhase {
    #[default]
    Tcp,
    Attached,
    Drain,
    Ring,
}

/// What the writer's owners share.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tx {
    pub phase: TxPhase,
    pub epoch: u8,
    /// `S` as the wrappers count it.
    pub counted: u8,
    pub inflight: u8,
    pub lock: Option<usize>,
    /// A switch is published, but the phase does not say so yet.
    pub switch_pending: bool,
}

/// What the reader's owners share.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rx {
    pub phase: RxPhase,
    pub epoch: u8,
    /// `C` as the wrappers count it.
    pub counted: u8,
    /// `N` of the switch that was seen.
    pub switch_at: u8,
    pub inflight: u8,
    pub lock: Option<usize>,
    /// The holder of the lock asks for the rest.
    pub recalling: bool,
}

/// One direction.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Direction {
    /// The kernel's receive queue at the reader, the end of the stream behind it, and the kernel's two counts.
    pub queue: Vec<u8>,
    pub fin: bool,
    pub sent: u8,
    pub taken: u8,
    /// Unread records; a `Closed` stands last.
    pub ring: Vec<Record>,
    pub offer: u8,
    pub left: u8,
    pub recall: u8,
    pub accepted_recall: bool,
    pub recalled: u8,
    /// Records of the rest that the writer has sent over TCP.
    pub copied: u8,
    pub wr_shut: bool,
    /// Threads that want to be rung, one bit each.
    pub armed_readers: u8,
    pub armed_writers: u8,
    pub tx: Tx,
    pub rx: Rx,
    /// How many bytes the writer's calls have accepted, in whatever way, and how many the reader's calls delivered.
    pub accepted: u8,
    pub delivered: u8,
}

impl Direction {
    pub fn is_closed(&self) -> bool {
        self.ring.last() == Some(&Record::Closed)
    }

    /// What is unread has gone another way.
    pub fn skip_unread(&mut self) {
        self.ring.retain(|record| *record == Record::Closed);
    }

    /// A recall that the writer has begun to answer.
    pub fn is_being_answered(&self) -> bool {
        self.rx.recalling && self.accepted_recall && self.recalled != self.rx.epoch
    }

    pub fn unread(&self) -> usize {
        self.ring.iter().filter(|r| matches!(r, Record::Data(_))).count()
    }
}

/// One end's view of the whole connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct EndState {
    /// All its threads are through and the kernel has closed its socket.
    pub gone: bool,
    /// The kernel holds an error for it (RST).
    pub kernel_reset: bool,
    /// Clause 5.2 decided for a reset.
    pub reset: bool,
    pub saw_fin: bool,
    pub pinned: bool,
    pub shut_wr: bool,
    /// A reader was told the end of the stream.
    pub told_end: bool,
}

/// What a thread does after a piece that several operations have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Then {
    /// Goes on with the send that is under way.
    Send,
    /// The receive that is under way ends: the stream is over.
    EndOfStream,
    /// Goes on with the receive.
    Recv,
    Shutdown,
    LeaveReader,
    AskBack,
}

/// Where a thread stands: one step each, at most one access to something that the other end can touch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pc {
    /// Its process is not forked yet.
    Unborn,
    Idle,
    Over,
    Dead,
    // Sending.
    Send,
    Switch,
    SwitchPhase,
    NativeSend,
    UncountedNativeSend,
    CountSent,
    RingReader,
    LookForEnd,
    /// The ring has ended; is the rest wanted back?
    Ended(Then),
    CopyTail(Then),
    Recalled(Then),
    CloseBlindly(Then),
    LeaveEpoch(Then),
    PhaseTcp(Then),
    LeaveTooSoon(Then),
    Demote(Then),
    ArmWriter,
    LookForRoom,
    SleepForRoom,
    MarkShut,
    Fin,
    // Receiving.
    Recv,
    Clear,
    Offer,
    ReadWithoutPeek,
    LookForSwitch {
        peeked: u8,
        end: bool,
    },
    PassSwitch,
    CountTaken(u8),
    RingWriter,
    LookAtShadow,
    LookAgain {
        ended: bool,
    },
    LookAtRing {
        ended: bool,
        queued: bool,
    },
    LookAtQueue {
        ended: bool,
    },
    ArmReader,
    LookForData,
    SleepForData,
    NativeRecv,
    UncountedNativeRecv,
    CountNative(u8),
    NativeRest,
    PeerFin(Then),
    CloseAsReader {
        end: u8,
        then: Then,
    },
    DemoteReader(Then),
    RingWriterAfterClose(Then),
    AskBack,
    NoteRecall,
    PublishRecall,
    AwaitRecall,
    RecallAnswered,
    RecallWithdrawn,
    Relay,
    ForeignRead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Thread {
    pub end: usize,
    /// Threads of one end may belong to several processes (fork).
    pub process: usize,
    /// Next entry of its script.
    pub next: usize,
    pub pc: Pc,
    /// Bytes that the call under way has moved, and those still to send (or, outside of Ropeway, to read).
    pub moved: u8,
    pub to_send: u8,
    pub rung: bool,
}

/// What must never be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// A byte was delivered at a wrong place: lost, doubled or exchanged.
    Disorder,
    /// The end (or a reset) was told before all bytes that were accepted had been delivered.
    EndTooEarly,
    /// A good end was told although the peer had gone without reading all that was sent to it (5.2).
    EndTooGood,
    /// Bytes on TCP that no switch explains, though nobody is foreign.
    Foreign,
    /// A record at a place where it cannot be.
    Corrupt,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub dirs: [Direction; 2],
    pub ends: [EndState; 2],
    pub threads: Vec<Thread>,
    /// Demotions that may still come out of the blue.
    pub whims: u8,
    pub killed: bool,
    pub fault: Option<Fault>,
}

/// One entry of a thread's script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// One sending call of this many bytes.
    Send(u8),
    /// One receiving call.
    Recv,
    /// Receiving calls until the end of the stream.
    RecvAll,
    ShutWr,
    /// Hands the descriptor to somebody outside of Ropeway (clause 4), who ends once so many bytes of the stream were read.
    Leave(u8),
    /// Starts the process of that thread.
    Fork(usize),
}

impl Op {
    pub fn child(&self) -> Option<usize> {
        if let Op::Fork(child) = self { Some(*child) } else { None }
    }
}

/// The rules of docs/handover.md, each of which can be left out to see what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// I2: ends by compare-and-swap.
    pub cas: bool,
    /// 2.1: only after the writer has left the previous epoch.
    pub left_first: bool,
    /// 2.1: no thread of the reader is inside the kernel.
    pub readers_out: bool,
    /// 2.3: no other call sends over TCP.
    pub senders_out: bool,
    /// 2.1, 2.3: a call that goes on over TCP is counted before it lets go of the lock.
    pub count_under_lock: bool,
    /// 2.4: PEEK, then look, then consume no more than `N - C`.
    pub peek: bool,
    /// 3.1: a writer that makes no progress returns to TCP.
    pub patience: bool,
    /// 3.1: the writer's phase changes before it says that it has left.
    pub phase_first: bool,
    /// 4.1: a recall is accepted or withdrawn, by compare-and-swap.
    pub recall_cas: bool,
    /// 4.1: a writer that dies between accepting and answering is not waited for.
    pub accepted_then_gone: bool,
    /// 7.2: a recall of the dead is withdrawn, or its answer waited for.
    pub settle_recall: bool,
    /// 7.2: that one is under way is noted before the request can be seen.
    pub note_recall_first: bool,
    /// 4.1: the rest goes out before any later byte.
    pub tail_first: bool,
    /// 4.2: a rest that nobody takes back is read before what the kernel has.
    pub relay: bool,
    /// 5.2: unread bytes of ours at the peer's FIN are a reset, its mark is a good end.
    pub mark: bool,
    /// 5.2: what can be read is read before the reset is told.
    pub drain_before_reset: bool,
    /// 5.2: also when the FIN is seen by a read over TCP.
    pub fin_anywhere: bool,
    /// 5.3: the ring is looked at after the FIN.
    pub look_after_fin: bool,
    /// 5.4: whether bytes on TCP are foreign is asked of the queue first and of the ring then, under the lock.
    pub queue_first: bool,
    /// I5: a sleeper has the shadow in its wait.
    pub shadow_in_wait: bool,
    /// ring.md 6: look once more after arming.
    pub look_after_arming: bool,
    /// 7.2: what a dead holder of a lock left half done is completed.
    pub recovery: bool,
}

impl Rules {
    pub const ALL: Rules = Rules {
        cas: true,
        left_first: true,
        readers_out: true,
        senders_out: true,
        count_under_lock: true,
        peek: true,
        patience: true,
        phase_first: true,
        recall_cas: true,
        accepted_then_gone: true,
        settle_recall: true,
        note_recall_first: true,
        tail_first: true,
        relay: true,
        mark: true,
        drain_before_reset: true,
        fin_anywhere: true,
        look_after_fin: true,
        queue_first: true,
        shadow_in_wait: true,
        look_after_arming: true,
        recovery: true,
    };
}
