//! The memory that joins the two ends of one connection: a sealed memfd with one ring in each direction.
//!
//! ```text
//! 0      pair header (64 B): stamps
//! 64     ring header of direction 0 (side 0 -> side 1), then of direction 1; the rest of the page is unused
//! 4096   cells of direction 0, one spare cell, rounded up to pages
//! ...    cells of direction 1, likewise
//! ```
//! A segment filled with zeroes is a valid pair that nobody has stamped and on which nothing was offered.

use crate::atomic::{AtomicU32, Ordering};
use crate::cells::CELL_BYTES;
use crate::ring::{Ring, RingHeader};
use crate::{memfd, present, sys};

/// Bytes per page that layouts are rounded to. Larger pages of the kernel only waste the rest of the last one.
pub const PAGE_BYTES: usize = 4096;

/// Smallest and largest ring that a pair may be built with, in bytes of cells.
pub const MIN_RING_BYTES: u32 = 16 * 1024;
pub const MAX_RING_BYTES: u32 = 16 * 1024 * 1024;

/// Default size of one ring. A stream fills it; a connection of short requests stays in its first two pages, because
/// the writer returns to the start of the ring whenever the reader has kept up (`docs/ring.md`).
pub const DEFAULT_RING_BYTES: u32 = 512 * 1024;

const fn region_bytes(ring_bytes: u32) -> usize {
    (ring_bytes as usize + CELL_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Size of the memfd for a pair with rings of `ring_bytes` (a multiple of a page) in each direction.
pub const fn pair_bytes(ring_bytes: u32) -> usize {
    PAGE_BYTES + 2 * region_bytes(ring_bytes)
}

/// True for a ring size that a pair may have.
pub const fn valid_ring_bytes(ring_bytes: u32) -> bool {
    ring_bytes >= MIN_RING_BYTES && ring_bytes <= MAX_RING_BYTES && (ring_bytes as usize).is_multiple_of(PAGE_BYTES)
}

/// First cache line of a segment.
#[repr(C, align(64))]
pub struct PairHeader {
    /// Bit 0 and 1: that side has mapped its half and will use it. Bit 2: given up, nobody may stamp any more. Bit 3: a side
    /// has gone for good, and its socket may come back with another pair. Bit 4: a side is closing its socket.
    stamps: AtomicU32,
}

const _: () =
    assert!(size_of::<PairHeader>() + 2 * size_of::<RingHeader>() <= PAGE_BYTES, "the headers fit into a page");

const STAMP_BOTH: u32 = 3;
const STAMP_VOID: u32 = 4;
const STAMP_RETIRED: u32 = 8;
const STAMP_CLOSING: u32 = 16;

/// What the stamps of a pair say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamps {
    /// Only this side is here so far.
    Waiting,
    /// Both ends have mapped the pair: it may be used.
    Both,
    /// One end gave up before the other arrived.
    Void,
}

/// A mapped pair, seen from one side. Copyable: it is an address, valid while the mapping lives.
#[derive(Clone, Copy)]
pub struct Pair {
    base: *mut u8,
    ring_bytes: u32,
    side: u8,
}

impl Pair {
    /// Maps the pair in `fd`, after checking that its size is what `ring_bytes` needs and that it cannot shrink. `ENOMEM` also where its
    /// pages could not be had later ([`present`]).
    /// The descriptor may be closed afterwards.
    pub fn map(fd: i32, ring_bytes: u32, side: u8) -> sys::Result<Pair> {
        if !valid_ring_bytes(ring_bytes) || side > 1 {
            return Err(libc::EINVAL);
        }
        let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0)? as i32;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(libc::EPERM);
        }
        let len = pair_bytes(ring_bytes);
        let mut st: libc::stat = unsafe_zeroed();
        // SAFETY: `st` is valid for writing a stat structure.
        if unsafe { sys::syscall6(libc::SYS_fstat, fd as usize, &raw mut st as usize, 0, 0, 0, 0) } < 0 {
            return Err(libc::EBADF);
        }
        if (st.st_size as usize) < len {
            return Err(libc::EINVAL);
        }
        let base = memfd::map(fd, len, libc::PROT_READ | libc::PROT_WRITE)?;
        let pair = Pair { base, ring_bytes, side };
        // SAFETY: the new mapping, which nobody uses yet.
        unsafe {
            if !present::ensure(pair.base, len) {
                pair.unmap();
                return Err(libc::ENOMEM);
            }
        }
        Ok(pair)
    }

    /// The same pair from numbers kept in the socket table.
    ///
    /// # Safety
    /// They must come from [`Pair::address`] and friends of a mapping that is still in place in this process.
    pub unsafe fn from_parts(base: u64, ring_bytes: u32, side: u8) -> Pair {
        Pair { base: base as *mut u8, ring_bytes, side }
    }

    pub fn address(&self) -> u64 {
        self.base as u64
    }

    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    pub fn side(&self) -> u8 {
        self.side
    }

    /// Removes the mapping.
    ///
    /// # Safety
    /// Nobody in this process may use the pair or a ring of it afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: the range is exactly what `map` mapped; the caller vouches that it is unused.
        let _ = unsafe { sys::munmap(self.base.cast(), pair_bytes(self.ring_bytes)) };
    }

    fn header(&self) -> &PairHeader {
        // SAFETY: the mapping starts with a PairHeader, which consists of atomics only.
        unsafe { &*self.base.cast::<PairHeader>() }
    }

    /// Says that this side is here. Void stays void.
    pub fn stamp(&self) -> Stamps {
        let mine = 1u32 << self.side;
        let mut now = self.header().stamps.load(Ordering::Acquire);
        loop {
            if now & STAMP_VOID != 0 || now & mine != 0 {
                return self.stamps();
            }
            match self.header().stamps.compare_exchange(now, now | mine, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.stamps(),
                Err(other) => now = other,
            }
        }
    }

    pub fn stamps(&self) -> Stamps {
        let now = self.header().stamps.load(Ordering::Acquire);
        if now & STAMP_VOID != 0 {
            Stamps::Void
        } else if now & STAMP_BOTH == STAMP_BOTH {
            Stamps::Both
        } else {
            Stamps::Waiting
        }
    }

    /// Says that this side will not use the pair any more.
    pub fn retire(&self) {
        self.header().stamps.fetch_or(STAMP_RETIRED, Ordering::AcqRel);
    }

    /// True when the other side has gone for good (or this one).
    pub fn is_retired(&self) -> bool {
        self.header().stamps.load(Ordering::Acquire) & STAMP_RETIRED != 0
    }

    /// Says that this side is about to close its socket.
    pub fn set_closing(&self) {
        self.header().stamps.fetch_or(STAMP_CLOSING, Ordering::AcqRel);
    }

    /// True when the other side's end is near, or there (or this one's).
    pub fn is_closing(&self) -> bool {
        self.header().stamps.load(Ordering::Acquire) & STAMP_CLOSING != 0
    }

    /// Gives the pair up unless both ends have stamped it. True when it is void now.
    pub fn give_up(&self) -> bool {
        let mut now = self.header().stamps.load(Ordering::Acquire);
        loop {
            if now & STAMP_VOID != 0 {
                return true;
            }
            if now & STAMP_BOTH == STAMP_BOTH {
                return false;
            }
            match self.header().stamps.compare_exchange(now, now | STAMP_VOID, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
    }

    fn ring(&self, direction: u8) -> Ring {
        let header = 64 + direction as usize * core::mem::size_of::<RingHeader>();
        let cells = PAGE_BYTES + direction as usize * region_bytes(self.ring_bytes);
        // SAFETY: both offsets lie inside the mapping that `map` checked to be `pair_bytes` long, cache-line aligned.
        unsafe {
            Ring::from_raw(self.base.add(header).cast(), self.base.add(cells), self.ring_bytes / CELL_BYTES as u32)
        }
    }

    /// The ring that this side writes.
    pub fn outgoing(&self) -> Ring {
        self.ring(self.side)
    }

    /// The ring that this side reads.
    pub fn incoming(&self) -> Ring {
        self.ring(1 - self.side)
    }
}

fn unsafe_zeroed<T>() -> T {
    // SAFETY: only used for kernel structures of plain integers, for which all-zero is a valid value.
    unsafe { core::mem::zeroed() }
}
