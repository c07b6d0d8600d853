//! A one-way queue of records between two processes that do not trust each other. `docs/ring.md` is the specification.
//!
//! A record is one or more consecutive 64-byte cells; the first eight bytes of its first cell are its header word, the
//! payload follows in the same line, so a message of up to 56 bytes moves in a single cache-line transfer. The writer
//! publishes by compare-and-swap of that word from 0; closing the ring swaps the same word to `CLOSED`. Whoever wins,
//! both ends know at which byte the ring ended.
//!
//! Cursors ([`Producer`], [`Consumer`]) live outside the segment, where the peer cannot write. Nothing read from the
//! segment is used before it is checked, and it is read only once.

mod reader;
#[cfg(all(test, not(loom)))]
mod ring_tests;
mod waiting;
mod words;
mod writer;

pub use writer::{Recovered, SURE_BYTES};

use crate::atomic::{AtomicU32, AtomicU64};
use crate::cells::{CELL_BYTES, Cells, HEADER_BYTES, Mapped};
use core::sync::atomic::compiler_fence;

/// Payload that fits beside the header in one cell.
pub const INLINE_BYTES: usize = CELL_BYTES - HEADER_BYTES;

/// Waiters that can be named at once on one side of a ring. More wait with a short timeout instead.
pub const BELL_SLOTS: usize = 4;

/// After this many cells the writer returns to the start of the ring if the reader has kept up, so that a connection
/// of short requests touches two pages and not the whole ring.
const SOFT_WRAP_CELLS: u32 = 96;

/// Control lines of one ring, in the shared segment. Who writes which line is fixed, so that each line has one writer.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RingHeader {
    /// Reader's line, looked at by the writer after every publish.
    reader: ReaderLine,
    /// Reader's line: how far cells are free again, `lap << 32 | cell`.
    tail: TailLine,
    /// Whom to ring when there is data, one entry per bit of `ReaderLine::armed`.
    reader_bells: BellLine,
    /// Writer's line.
    writer: WriterLine,
    /// Whom to ring when there is room, one entry per bit of `WriterLine::armed`.
    writer_bells: BellLine,
}

#[repr(C, align(64))]
#[derive(Default)]
struct ReaderLine {
    /// Bit i: a reader sleeps (or is about to) and wants bell i rung. The writer clears what it rings.
    armed: AtomicU32,
    /// Epoch in which the reader is ready to follow the writer from TCP onto this ring; 0 for never yet.
    offer: AtomicU32,
    /// Epoch that the reader wants back on TCP, unread tail included; 0 for none.
    recall: AtomicU32,
    /// Bytes consumed of the record at the tail, valid while `recall` asks.
    recall_off: AtomicU32,
}

#[repr(C, align(64))]
#[derive(Default)]
struct TailLine {
    tail: AtomicU64,
}

#[repr(C, align(64))]
#[derive(Default)]
struct WriterLine {
    /// Bit i: a writer sleeps until there is room and wants bell i rung.
    armed: AtomicU32,
    /// The writer has shut this direction down in good order (`SHUT_WR`).
    wr_shut: AtomicU32,
    /// Last epoch that the writer has left: the reader may offer the next one.
    left: AtomicU32,
    /// Epoch whose recalled tail the writer has copied onto TCP.
    recalled: AtomicU32,
}

#[repr(C, align(64))]
#[derive(Default)]
struct BellLine {
    slots: [BellSlot; BELL_SLOTS],
}

#[repr(C)]
#[derive(Default)]
struct BellSlot {
    /// Bell id, 0 for free.
    id: AtomicU64,
    /// What the ringer puts into the datagram.
    tag: AtomicU64,
}

/// What a header word says. Numbers are part of the shared layout.
const KIND_DATA: u64 = 1;
const KIND_WRAP: u64 = 2;
const KIND_SWITCH: u64 = 3;
const KIND_CLOSED: u64 = 4;

const EPOCH_MASK: u32 = 0x00ff_ffff;

fn word(kind: u64, epoch: u32, len: u32) -> u64 {
    kind << 56 | ((epoch & EPOCH_MASK) as u64) << 32 | len as u64
}

/// The epoch after `epoch`; never 0, which means "none".
pub fn next_epoch(epoch: u32) -> u32 {
    if epoch >= EPOCH_MASK { 1 } else { epoch + 1 }
}

const fn cells_for(payload: usize) -> u32 {
    ((payload + HEADER_BYTES).div_ceil(CELL_BYTES)) as u32
}

/// A position in the ring: how often it was wrapped, and the cell.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    pub lap: u32,
    pub cell: u32,
}

impl Position {
    fn pack(self) -> u64 {
        (self.lap as u64) << 32 | self.cell as u64
    }

    fn unpack(v: u64) -> Position {
        Position { lap: (v >> 32) as u32, cell: v as u32 }
    }

    /// Replaces both halves by one store: a process killed here leaves the old position or the new one, never a mixture.
    #[inline(always)]
    fn set(&mut self, to: Position) {
        // SAFETY: eight plain bytes, aligned (repr) and exclusively borrowed; `transmute` keeps their order.
        unsafe { (&raw mut *self).cast::<u64>().write_volatile(core::mem::transmute::<Position, u64>(to)) }
    }

    /// True when `self` lies at or beyond `other`; both within one lap of each other.
    pub fn reached(self, other: Position) -> bool {
        let laps = self.lap.wrapping_sub(other.lap) as i32;
        laps > 0 || laps == 0 && self.cell >= other.cell
    }
}

/// Writer's cursor. All-zero is the state before the first epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Producer {
    /// Cell of the next header.
    pub head: Position,
    /// Last checked value of the reader's tail.
    tail: Position,
    pub epoch: u32,
    /// Cell at which returning to the start was considered last.
    soft: u32,
    /// Not 0: the record being written stands at cell 0 of the next lap, and its publication sends the reader there.
    wrap: u32,
    /// Cell whose header has been cleared for the record that is being written, 0 for none.
    cleared: u32,
    /// Cell at which the last lap was left: nothing behind it is unread.
    left_at: u32,
}

/// Reader's cursor. All-zero is the state before the first epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Consumer {
    /// Cell of the record being read.
    pub at: Position,
    /// Payload length of that record once it has been looked at and checked; 0 before.
    len: u32,
    /// Bytes of it already consumed; meaningful while `len` is not 0.
    off: u32,
    pub epoch: u32,
    /// Cells consumed since the tail was last written back.
    unflushed: u32,
    /// The cell after that record; meaningful while `len` is not 0.
    end: u32,
}

/// Keeps the compiler from exchanging stores to a cursor around it. The processor keeps their order by itself, so a
/// process killed between two instructions leaves a state that [`Ring::recover_consumer`] understands.
#[inline(always)]
fn in_order() {
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

impl Consumer {
    /// A cursor of its own for a walk over what is unread.
    pub fn starting_at(at: Position, epoch: u32) -> Consumer {
        Consumer { at, epoch, ..Consumer::default() }
    }
}

/// Why nothing can be written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteStop {
    /// No room: wait for the reader.
    Full,
    /// The reader closed the ring; the writer's bytes continue on TCP.
    Closed,
    /// The peer wrote nonsense.
    Corrupt,
}

/// What the reader finds at its cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    Empty,
    /// `len` bytes at `ptr` (inside the ring, written by the peer at any time: copy, never borrow).
    Data {
        ptr: *const u8,
        len: usize,
    },
    /// The writer moved here at byte `at` of the TCP stream.
    Switch {
        at: u64,
    },
    /// The ring ended here; bytes continue on TCP.
    Closed,
    /// The peer wrote nonsense.
    Corrupt,
}

/// Who a ring's waiters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Reader,
    Writer,
}

/// One ring of a mapped pair.
#[cfg_attr(not(loom), derive(Clone, Copy))]
#[cfg_attr(loom, derive(Clone))]
pub struct Ring {
    header: Mapped<RingHeader>,
    cells: Cells,
    n: u32,
}

impl Ring {
    /// # Safety
    /// `header` and `cells` (for `n` cells and a spare one) must be mapped and aligned to cache lines for as long as
    /// the ring or a copy of it is used.
    #[cfg(not(loom))]
    pub unsafe fn from_raw(header: *const RingHeader, cells: *mut u8, n: u32) -> Ring {
        // SAFETY: passed on to the caller; a header consists of atomics only.
        unsafe { Ring { header: Mapped::new(header), cells: Cells::new(cells), n } }
    }

    /// A ring of `n` cells for model checks.
    #[cfg(loom)]
    pub fn new_loom(n: u32) -> Ring {
        Ring { header: Mapped::new_loom(RingHeader::default()), cells: Cells::new_loom(n), n }
    }

    /// The control lines.
    #[inline(always)]
    fn h(&self) -> &RingHeader {
        self.header.get()
    }
}
