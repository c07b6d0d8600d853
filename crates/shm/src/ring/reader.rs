//! The reader's side of a ring.

use super::words::tell;
use super::{
    Consumer, EPOCH_MASK, KIND_CLOSED, KIND_DATA, KIND_SWITCH, KIND_WRAP, Look, Position, Ring, cells_for, in_order,
    word,
};
use crate::atomic::{Ordering, fence_after_rmw};
use crate::guarded;

enum Step {
    /// The next record's position and this one's payload bytes.
    Next(Position, usize),
    Closed,
    Corrupt,
}

impl Ring {
    /// What stands at the cursor. `WRAP` is followed.
    #[inline]
    pub fn look(&self, c: &mut Consumer) -> Look {
        if c.len != 0 {
            return self.rest(c);
        }
        loop {
            // Pairs with the publishing swap in `put`: the payload is visible once the word is.
            let w = self.cells.header(c.at.cell).load(Ordering::Acquire);
            if w == 0 {
                return Look::Empty;
            }
            let (kind, epoch, len) = (w >> 56, (w >> 32) as u32 & EPOCH_MASK, w as u32);
            if epoch != c.epoch {
                return Look::Corrupt;
            }
            match kind {
                KIND_DATA => {
                    // Zero-length records do not exist; the length must end inside the ring.
                    if len == 0 || c.at.cell >= self.n || cells_for(len as usize) > self.n - c.at.cell {
                        return Look::Corrupt;
                    }
                    c.end = c.at.cell + cells_for(len as usize);
                    c.off = 0;
                    in_order();
                    c.len = len;
                    return self.rest(c);
                }
                KIND_SWITCH => {
                    if len != 8 || c.at.cell >= self.n {
                        return Look::Corrupt;
                    }
                    // SAFETY: inside the ring; the value is checked by the state machine.
                    let at = unsafe { self.cells.payload(c.at.cell).cast::<u64>().read_unaligned() };
                    return Look::Switch { at };
                }
                KIND_WRAP if c.at.cell > 0 => {
                    c.unflushed = c.unflushed.wrapping_add(1);
                    c.at.set(Position { lap: c.at.lap.wrapping_add(1), cell: 0 });
                }
                KIND_CLOSED => return Look::Closed,
                _ => return Look::Corrupt,
            }
        }
    }

    #[inline(always)]
    fn rest(&self, c: &Consumer) -> Look {
        // SAFETY: `look` checked that the record, of which `off` bytes are consumed, lies inside the ring.
        let ptr = unsafe { self.cells.payload(c.at.cell).add(c.off as usize) };
        Look::Data { ptr, len: (c.len - c.off) as usize }
    }

    /// True when the word at the cursor is not 0: something to look at. The cheapest poll there is.
    #[inline(always)]
    pub fn pending(&self, c: &Consumer) -> bool {
        c.len != 0 || self.pending_at(c.at)
    }

    /// True when the word at `at`, an end seen earlier, is no longer 0.
    #[inline(always)]
    pub fn pending_at(&self, at: Position) -> bool {
        at.cell <= self.n && self.cells.header(at.cell).load(Ordering::Acquire) != 0
    }

    /// True when a record of `epoch` stands at `at`, an end seen earlier: neither the end of the ring nor nonsense.
    #[inline]
    pub fn has_record_at(&self, at: Position, epoch: u32) -> bool {
        self.pending_at(at)
            && matches!(self.next_record(at, self.cells.header(at.cell).load(Ordering::Acquire), epoch), Step::Next(..))
    }

    /// Consumes `n` of the bytes that [`Ring::look`] showed.
    #[inline]
    pub fn consume(&self, c: &mut Consumer, n: usize) {
        debug_assert!(n <= (c.len - c.off) as usize, "more consumed than looked at");
        c.off += n as u32;
        if c.off >= c.len {
            c.unflushed = c.unflushed.wrapping_add(c.end.wrapping_sub(c.at.cell));
            self.leave_record(c);
        }
    }

    /// Moves behind the record at the cursor. Doing it twice is doing it once.
    #[inline(always)]
    fn leave_record(&self, c: &mut Consumer) {
        in_order();
        c.at.cell = c.end;
        in_order();
        c.len = 0;
        in_order();
        c.off = 0;
    }

    /// To be called by a reader that found several records in a row: there are likely to be more.
    #[inline(always)]
    pub fn expect_more(&self, c: &Consumer) {
        /// Far enough to hide a cache-line transfer behind the work on this many small records.
        const AHEAD_CELLS: u32 = 10;
        self.cells.expect_read(c.at.cell + AHEAD_CELLS);
    }

    /// Consumes the switch record that [`Ring::look`] has just shown.
    pub fn consume_switch(&self, c: &mut Consumer) {
        debug_assert!(c.len == 0 && c.at.cell < self.n, "no switch record was looked at");
        c.unflushed = c.unflushed.wrapping_add(1);
        c.at.cell += 1;
    }

    /// Completes what a reader that died under the lock had begun. What it had consumed stays consumed. It may have died
    /// before it rang: ring every bell of the writer afterwards ([`Ring::take_all`]).
    pub fn recover_consumer(&self, c: &mut Consumer) {
        if c.len != 0 && c.off >= c.len {
            self.leave_record(c);
        }
        c.unflushed = c.unflushed.max(1);
    }

    /// To be called at the end of every read: tells the writer how far cells are free, when that is worth a cache-line
    /// transfer or when nothing is left to read. True when a sleeping writer must be rung.
    #[inline]
    pub fn flush(&self, c: &mut Consumer) -> bool {
        if c.unflushed == 0 || (c.unflushed < self.n / 8 && self.more_to_read(c)) {
            return false;
        }
        self.flush_now(c)
    }

    /// Like [`Ring::pending`], but the end of the ring is nothing to read: a writer that waits until all is drained is told.
    #[inline(always)]
    fn more_to_read(&self, c: &Consumer) -> bool {
        let w = self.cells.header(c.at.cell).load(Ordering::Relaxed);
        c.len != 0 || (w != 0 && w >> 56 != KIND_CLOSED)
    }

    pub(super) fn flush_now(&self, c: &mut Consumer) -> bool {
        c.unflushed = 0;
        // Release: the cells were read. SeqCst: first half of index/writer-armed, pairs with `arm(End::Writer)`.
        self.h().tail.tail.swap(c.at.pack(), Ordering::SeqCst);
        fence_after_rmw();
        self.h().writer.armed.load(Ordering::SeqCst) != 0
    }

    /// The reader ends the ring behind what the writer has published. Returns false if the peer wrote nonsense.
    pub fn close_reader(&self, c: &Consumer) -> bool {
        let (mut at, _) = self.first_unseen(c);
        // Each failed swap steps over a record; an honest writer has at most a ring full of them, and two wraps.
        for _ in 0..=self.n + 2 {
            let header = self.cells.header(at.cell);
            match header.compare_exchange(0, word(KIND_CLOSED, c.epoch, 1), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => {
                    // The caller looks at the writer's `armed` next.
                    fence_after_rmw();
                    return true;
                }
                Err(seen) => match self.next_record(at, seen, c.epoch) {
                    Step::Next(next, _) => at = next,
                    Step::Closed => return true,
                    Step::Corrupt => return false,
                },
            }
        }
        false
    }

    /// Unread bytes, and the position of the first header that is 0 (or where the ring was closed).
    pub fn unread(&self, c: &Consumer) -> (usize, Position) {
        let (mut at, mut bytes) = self.first_unseen(c);
        for _ in 0..=self.n + 2 {
            let seen = self.cells.header(at.cell).load(Ordering::Acquire);
            if seen == 0 {
                break;
            }
            match self.next_record(at, seen, c.epoch) {
                Step::Next(next, len) => {
                    at = next;
                    bytes += len;
                }
                Step::Closed | Step::Corrupt => break,
            }
        }
        (bytes, at)
    }

    /// Moves the cursor to where the ring ends: what is unread has gone another way. True when a sleeping writer must be rung.
    pub fn skip_unread(&self, c: &mut Consumer) -> bool {
        let (_, end) = self.unread(c);
        c.len = 0;
        in_order();
        c.off = 0;
        c.at.set(end);
        self.flush_now(c)
    }

    /// The first header behind the record at the cursor, and how many bytes of that record are unread: a header that was
    /// looked at once is not believed again.
    fn first_unseen(&self, c: &Consumer) -> (Position, usize) {
        if c.len == 0 {
            return (c.at, 0);
        }
        // A cursor copied without the lock may be torn (`Sock::consumer_hint`).
        (Position { lap: c.at.lap, cell: c.end }, c.len.saturating_sub(c.off) as usize)
    }

    /// Copies up to `room` unread bytes to `out` from `skip` bytes past the cursor on, consuming nothing (MSG_PEEK).
    /// Fewer than there are: the memory of `out` ended (see [`guarded`]).
    ///
    /// # Safety
    /// `out` must be valid for writing `room` bytes.
    pub unsafe fn peek(&self, c: &Consumer, mut skip: usize, mut out: *mut u8, mut room: usize) -> usize {
        let mut c = *c;
        let mut copied = 0;
        // No chain of honest records is longer than the ring.
        for _ in 0..self.n {
            if room == 0 {
                break;
            }
            match self.look(&mut c) {
                Look::Data { ptr, len } => {
                    let jump = skip.min(len);
                    let n = (len - jump).min(room);
                    // SAFETY: the source lies inside the ring, the destination is the caller's.
                    unsafe {
                        if !guarded::copy(out, ptr.add(jump), n) {
                            break;
                        }
                        out = out.add(n);
                    }
                    skip -= jump;
                    room -= n;
                    copied += n;
                    self.consume(&mut c, len);
                }
                _ => break,
            }
        }
        copied
    }

    fn next_record(&self, at: Position, w: u64, epoch: u32) -> Step {
        let (kind, e, len) = (w >> 56, (w >> 32) as u32 & EPOCH_MASK, w as u32);
        if e != epoch {
            return Step::Corrupt;
        }
        match kind {
            KIND_DATA | KIND_SWITCH => {
                let fits = len != 0 && at.cell < self.n && cells_for(len as usize) <= self.n - at.cell;
                if !fits || (kind == KIND_SWITCH && len != 8) {
                    return Step::Corrupt;
                }
                let payload = if kind == KIND_DATA { len as usize } else { 0 };
                Step::Next(Position { lap: at.lap, cell: at.cell + cells_for(len as usize) }, payload)
            }
            KIND_WRAP if at.cell > 0 => Step::Next(Position { lap: at.lap.wrapping_add(1), cell: 0 }, 0),
            KIND_CLOSED => Step::Closed,
            _ => Step::Corrupt,
        }
    }

    /// Offers the writer to continue on this ring in `epoch`. The previous epoch, if any, has been consumed up to its
    /// `CLOSED`, which is cleared here. Only when the writer has left it (see [`Ring::left`]).
    pub fn offer(&self, c: &mut Consumer, epoch: u32) {
        self.cells.header(c.at.cell).store(0, Ordering::Relaxed);
        c.epoch = epoch;
        c.len = 0;
        c.off = 0;
        self.flush_now(c);
        // Pairs with the acquire in `offered`: the cleared word is seen before the offer.
        tell(&self.h().reader.offer, epoch);
    }
}
