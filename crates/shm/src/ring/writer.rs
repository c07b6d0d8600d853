//! The writer's side of a ring.

use super::{
    EPOCH_MASK, KIND_CLOSED, KIND_DATA, KIND_SWITCH, KIND_WRAP, Position, Producer, Ring, SOFT_WRAP_CELLS, WriteStop,
    cells_for, in_order, word,
};
use crate::atomic::{Ordering, fence_after_rmw};
use crate::cells::{CELL_BYTES, HEADER_BYTES};

/// As much finds room in a ring that counts as writable: who may not wait takes no more out of a pipe before it sends that. A
/// message that is no longer is written whole or not at all.
pub const SURE_BYTES: usize = 4096;

/// What a writer that died had published last without having moved its cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    Nothing,
    /// That many bytes.
    Data(u32),
    /// The switch of its epoch: the direction is on the ring already.
    Switch,
}

impl Ring {
    /// Begins an epoch on the writer's side: the record says at which byte of the TCP stream this ring continues it. `note` notes
    /// that the writer is on the ring, when the record stands there and before the cursor moves over it: if the writer dies, whoever
    /// takes its lock over finds one or the other.
    pub fn switch(&self, p: &mut Producer, epoch: u32, at: u64, note: impl FnOnce()) -> Result<(), WriteStop> {
        p.epoch = epoch;
        let (cell, _) = self.reserve(p, 8, 8)?;
        // SAFETY: `reserve` gave room for eight bytes at `cell`, which no reader looks at before it is published.
        unsafe { self.cells.payload(cell).cast::<u64>().write_unaligned(at) };
        let noted = || {
            note();
            in_order();
        };
        self.publish(p, KIND_SWITCH, 8, noted)
    }

    /// Where up to `most` bytes may be written, at least `least` of them (a quarter of the ring at most): the payload
    /// address and its room. Nothing is visible to the reader before [`Ring::commit`], so a caller that has nothing to
    /// write after all simply does not commit.
    #[inline]
    pub fn begin(&self, p: &mut Producer, least: usize, most: usize) -> Result<(*mut u8, usize), WriteStop> {
        let (cell, room) = self.reserve(p, least, most)?;
        Ok((self.cells.payload(cell), room.min(most)))
    }

    /// To be called after [`Ring::begin`] by a writer whose reader is likely to be polling, with the length of the record. The
    /// header behind it is cleared before the payload is written; as stores become visible in order, nothing is left to wait
    /// for between the payload and its publication, and a reader that polls has no time to take their line away.
    #[inline(always)]
    pub fn expect_poll(&self, p: &mut Producer, len: usize) {
        if p.wrap == 0 && cells_for(len) <= self.free_cells(p) {
            self.clear(p, p.head.cell + cells_for(len));
        }
    }

    /// Makes the header at `next` read 0, which it must before the record in front of it can be seen: the reader polls exactly
    /// one word.
    #[inline(always)]
    fn clear(&self, p: &mut Producer, next: u32) {
        self.cells.header(next).store(0, Ordering::Relaxed);
        p.cleared = next;
    }

    /// Publishes the `len` bytes written where [`Ring::begin`] said; none of them is no record.
    #[inline]
    pub fn commit(&self, p: &mut Producer, len: usize) -> Result<(), WriteStop> {
        if len == 0 {
            return Ok(());
        }
        self.publish(p, KIND_DATA, len as u32, || {})
    }

    /// Finds room for a record: its first cell and how many payload bytes fit there (at least `least`).
    #[inline]
    fn reserve(&self, p: &mut Producer, least: usize, most: usize) -> Result<(u32, usize), WriteStop> {
        // A quarter always fits into an empty ring, before its end or after a wrap.
        let need = cells_for(least.min((self.n as usize / 4 * CELL_BYTES).saturating_sub(HEADER_BYTES)));
        // A writer that has much to say does not creep through the last few cells: it waits for an eighth of the ring.
        let want = cells_for(most.min(self.n as usize * CELL_BYTES)).min(self.n / 8).max(need);
        (p.wrap, p.cleared) = (0, 0);
        if p.head.cell.wrapping_sub(p.soft) >= SOFT_WRAP_CELLS && self.soft_wrap_pays(p, want)? {
            return Ok(self.reserve_wrapped(p));
        }
        let mut free = self.free_cells(p);
        if free < want {
            self.refresh_tail(p)?;
            free = self.free_cells(p);
            if free < want {
                // After wrapping, cells 0..tail-1 are free, less the one that keeps head and tail apart.
                if p.tail.lap != p.head.lap || p.tail.cell <= want {
                    // Others may write before the rest of a message, and who does not wait tells the program of a part.
                    if free >= need.max(want.min(self.sure_cells())) && self.wrapped_early(p) {
                        return Ok((p.head.cell, free as usize * CELL_BYTES - HEADER_BYTES));
                    }
                    return Err(if self.closed_at_head(p) { WriteStop::Closed } else { WriteStop::Full });
                }
                return Ok(self.reserve_wrapped(p));
            }
        }
        Ok((p.head.cell, free as usize * CELL_BYTES - HEADER_BYTES))
    }

    /// Lets the record start at cell 0. The caller has seen that the cells before the tail's last are free.
    #[cold]
    fn reserve_wrapped(&self, p: &mut Producer) -> (u32, usize) {
        p.wrap = 1;
        (0, (p.tail.cell - 1) as usize * CELL_BYTES - HEADER_BYTES)
    }

    /// True when something stands where the next header goes: the reader's `CLOSED`, or nonsense.
    fn closed_at_head(&self, p: &Producer) -> bool {
        self.cells.header(p.head.cell).load(Ordering::Acquire) != 0
    }

    /// Cells in one piece from the head on, keeping the next header clear of what is unread.
    #[inline(always)]
    pub(super) fn free_cells(&self, p: &Producer) -> u32 {
        if p.tail.lap == p.head.lap { self.n - p.head.cell } else { p.tail.cell - p.head.cell - 1 }
    }

    /// Reads the reader's tail and checks it against what can be true.
    pub(super) fn refresh_tail(&self, p: &mut Producer) -> Result<(), WriteStop> {
        // Pairs with the release in `flush`: cells before the tail are no longer read.
        let tail = Position::unpack(self.h().tail.tail.load(Ordering::Acquire));
        let possible = tail.reached(p.tail)
            && p.head.reached(tail)
            && (tail.lap == p.head.lap || (tail.lap.wrapping_add(1) == p.head.lap && tail.cell > p.head.cell))
            && tail.cell <= self.n;
        if !possible {
            return Err(WriteStop::Corrupt);
        }
        p.tail.set(tail);
        Ok(())
    }

    /// Whether to return to the start early: the reader has kept up, and a few of what is wanted fit before its tail (a
    /// stream would stop and go if only one did).
    #[cold]
    fn soft_wrap_pays(&self, p: &mut Producer, want: u32) -> Result<bool, WriteStop> {
        p.soft = p.head.cell;
        self.refresh_tail(p)?;
        let kept_up = p.tail.lap == p.head.lap && p.head.cell - p.tail.cell <= SOFT_WRAP_CELLS / 4;
        Ok(kept_up && p.tail.cell > (want * 4).max(want + self.sure_cells() + 1).max(SOFT_WRAP_CELLS / 2))
    }

    /// The cells of [`SURE_BYTES`], but no more than an empty ring always has in one piece: the smallest of a pair have more.
    fn sure_cells(&self) -> u32 {
        cells_for(SURE_BYTES).min((self.n / 2).saturating_sub(1)).max(1)
    }

    /// True while the reader has yet to follow an early wrap: little is unread, though there is little room in one piece. A
    /// peer that reads what is there next must not find that its writer stopped for a full ring.
    #[cold]
    fn wrapped_early(&self, p: &Producer) -> bool {
        p.tail.lap != p.head.lap && self.cells_unread(p) <= self.n / 4
    }

    /// As far as the reader has told when it was looked at last.
    fn cells_unread(&self, p: &Producer) -> u32 {
        if p.tail.lap == p.head.lap {
            p.head.cell - p.tail.cell
        } else {
            p.left_at.saturating_sub(p.tail.cell) + p.head.cell
        }
    }

    /// Publishes a record, calls `done`, and moves the cursor.
    #[inline]
    fn publish(&self, p: &mut Producer, kind: u64, len: u32, done: impl FnOnce()) -> Result<(), WriteStop> {
        if p.wrap != 0 {
            return self.publish_wrapped(p, kind, len, done);
        }
        if cells_for(len as usize) > self.free_cells(p) {
            return Err(WriteStop::Corrupt); // The caller committed more than it had begun.
        }
        let next = p.head.cell + cells_for(len as usize);
        if p.cleared != next {
            self.clear(p, next);
        }
        self.put(p.head.cell, word(kind, p.epoch, len))?;
        done();
        p.head.cell = next;
        Ok(())
    }

    /// To be called by a writer that sends messages of about `len` bytes without waiting for answers: there are likely to be
    /// more. The cells to come were the reader's a lap ago, and a publication waits for every line that was written.
    #[inline(always)]
    pub fn expect_next(&self, p: &Producer, len: usize) {
        /// Far enough to hide a cache-line transfer behind the publication of this many small records.
        const AHEAD_CELLS: u32 = 4;
        /// Of longer messages only the beginning: the processor itself fetches ahead in what is written in order.
        const MOST_CELLS: u32 = 32;
        let cells = cells_for(len.min(MOST_CELLS as usize * CELL_BYTES));
        let first = p.head.cell + cells.max(AHEAD_CELLS);
        (first..first + cells).for_each(|cell| self.cells.expect_write(cell));
    }

    /// The record stands at cell 0 already; one swap at the head sends the reader there. A reader never finds a `WRAP`
    /// with nothing behind it.
    #[cold]
    fn publish_wrapped(&self, p: &mut Producer, kind: u64, len: u32, done: impl FnOnce()) -> Result<(), WriteStop> {
        let next = cells_for(len as usize);
        if next >= p.tail.cell {
            return Err(WriteStop::Corrupt); // The caller committed more than it had begun.
        }
        self.cells.header(next).store(0, Ordering::Relaxed);
        self.cells.header(0).store(word(kind, p.epoch, len), Ordering::Relaxed);
        self.put(p.head.cell, word(KIND_WRAP, p.epoch, 0))?;
        done();
        p.left_at = p.head.cell;
        p.head.set(Position { lap: p.head.lap.wrapping_add(1), cell: next });
        p.soft = 0;
        Ok(())
    }

    #[inline]
    fn put(&self, cell: u32, word: u64) -> Result<(), WriteStop> {
        // Pairs with the acquire in `look` and with the closing swap of the reader. SeqCst: first half of publish/armed.
        match self.cells.header(cell).compare_exchange(0, word, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => {
                // The caller looks at `armed` next (`must_ring`).
                fence_after_rmw();
                Ok(())
            }
            Err(seen) if seen >> 56 == KIND_CLOSED => Err(WriteStop::Closed),
            Err(_) => Err(WriteStop::Corrupt),
        }
    }

    /// The writer ends the ring at its head. True when it did, false when the reader had closed it already.
    pub fn close_writer(&self, p: &Producer) -> bool {
        self.put(p.head.cell, word(KIND_CLOSED, p.epoch, 0)).is_ok()
    }

    /// True when the writer has room for a message worth waking for.
    pub fn writable(&self, p: &mut Producer) -> bool {
        let sure = self.sure_cells();
        let much = sure.max(self.n / 4);
        let enough = |p: &Producer| {
            if p.tail.lap == p.head.lap {
                (self.n - p.head.cell).max(p.tail.cell.saturating_sub(1)) >= much
            } else {
                let free = self.free_cells(p);
                free >= much || free >= sure && self.wrapped_early(p)
            }
        };
        // A corrupt tail or a closed ring counts as writable: the write will find it and say so.
        enough(p) || self.refresh_tail(p).is_err() || enough(p) || self.closed_at_head(p)
    }

    /// True when everything written was consumed, as far as the reader has told (it tells before it sleeps, and
    /// whenever it finds the ring empty).
    pub fn drained(&self, p: &mut Producer) -> bool {
        self.refresh_tail(p).is_err() || p.tail == p.head
    }

    /// Cells between the reader's tail and the head: an upper bound of what is unread.
    pub fn unread_cells(&self, p: &mut Producer) -> u32 {
        let _ = self.refresh_tail(p);
        self.cells_unread(p)
    }

    /// The raw tail word: changes whenever the reader makes progress.
    pub fn progress(&self) -> u64 {
        self.h().tail.tail.load(Ordering::Relaxed)
    }

    /// The same as the writer saw it last: what it is compared with after the ring was found full.
    pub fn progress_seen(&self, p: &Producer) -> u64 {
        p.tail.pack()
    }

    /// Recomputes the head after a writer died between publishing and moving its cursor, and says what it had published.
    /// It may have died before it rang: ring every bell of the reader afterwards ([`Ring::take_all`]). `note` as for
    /// [`Ring::switch`].
    pub fn recover_producer(&self, p: &mut Producer, note: impl Fn()) -> Recovered {
        p.wrap = 0;
        // At most one record is ahead of the cursor, with the `WRAP` that leads to it.
        for _ in 0..2 {
            let w = self.cells.header(p.head.cell).load(Ordering::Acquire);
            let (kind, epoch, len) = (w >> 56, (w >> 32) as u32 & EPOCH_MASK, w as u32);
            if epoch != p.epoch & EPOCH_MASK {
                break;
            }
            match kind {
                // Only cells that were free can hold it; anything else the peer has put there.
                KIND_DATA | KIND_SWITCH if len != 0 && cells_for(len as usize) <= self.free_cells(p) => {
                    if kind == KIND_SWITCH {
                        note();
                        in_order();
                    }
                    p.head.set(Position { lap: p.head.lap, cell: p.head.cell + cells_for(len as usize) });
                    return if kind == KIND_DATA { Recovered::Data(len) } else { Recovered::Switch };
                }
                KIND_WRAP if p.head.cell > 0 && p.tail.lap == p.head.lap && p.tail.cell > 1 => {
                    p.left_at = p.head.cell;
                    p.head.set(Position { lap: p.head.lap.wrapping_add(1), cell: 0 });
                    p.soft = 0;
                }
                _ => break,
            }
        }
        Recovered::Nothing
    }

    /// Completes what a writer died over that was not on the ring: it was about to begin an epoch, or to say that it has left one.
    pub fn recover_epoch(&self, p: &mut Producer) {
        let w = self.cells.header(p.head.cell).load(Ordering::Acquire);
        if w == 0 {
            // Of an epoch that was left, the reader clears the `CLOSED` before it offers the next.
            if self.offered() == p.epoch && self.left() != p.epoch {
                p.epoch = p.epoch.saturating_sub(1);
            }
        } else if w >> 56 == KIND_CLOSED && (w >> 32) as u32 & EPOCH_MASK == p.epoch & EPOCH_MASK {
            self.leave(p);
        }
    }
}
