//! A ring in memory that faults at the first byte outside of it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use ropeway_shm::cells::CELL_BYTES;
use ropeway_shm::ring::{Consumer, End, Look, Producer, Ring, RingHeader, WriteStop, next_epoch};
use ropeway_shm::sys;

const PAGE: usize = 4096;

/// Owns the memory of one ring: a header page, and cells that end exactly at a page that nobody may touch.
pub struct Memory {
    base: *mut u8,
    bytes: usize,
    cells: usize,
    n: u32,
}

// SAFETY: an address of memory that lives as long as the value; a ring is made for several threads.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(n: u32) -> Memory {
        let used = (n as usize + 1) * CELL_BYTES;
        let pages = used.next_multiple_of(PAGE);
        let bytes = PAGE + PAGE + pages + PAGE;
        // SAFETY: a new private mapping; the guard pages before and after the cells lie inside it.
        let base = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let base = sys::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
                .expect("a few pages of memory") as *mut u8;
            for guard in [PAGE, bytes - PAGE] {
                assert_eq!(libc::mprotect(base.add(guard).cast(), PAGE, libc::PROT_NONE), 0);
            }
            base
        };
        Memory { base, bytes, cells: bytes - PAGE - used, n }
    }

    pub fn ring(&self) -> Ring {
        // SAFETY: header and cells lie in the mapping, which the value owns; tests keep it as long as the ring.
        unsafe { Ring::from_raw(self.base.cast::<RingHeader>(), self.base.add(self.cells), self.n) }
    }

    /// The same memory once more, as it is now.
    pub fn copy(&self) -> Memory {
        let copy = Memory::new(self.n);
        // SAFETY: two mappings of one layout; the guard pages between header and cells are left out.
        unsafe {
            core::ptr::copy_nonoverlapping(self.base, copy.base, PAGE);
            let cells = (self.n as usize + 1) * CELL_BYTES;
            core::ptr::copy_nonoverlapping(self.base.add(self.cells), copy.base.add(self.cells), cells);
        }
        copy
    }

    /// The header word of cell `i`, for tests that write nonsense.
    pub fn word(&self, i: u32) -> &core::sync::atomic::AtomicU64 {
        assert!(i <= self.n);
        // SAFETY: inside the mapping, aligned.
        unsafe { &*self.base.add(self.cells + i as usize * CELL_BYTES).cast() }
    }

    /// The 32-bit words of the ring's header.
    pub fn header_words(&self) -> &[core::sync::atomic::AtomicU32] {
        // SAFETY: inside the mapping, aligned; the header is atomics only.
        unsafe { core::slice::from_raw_parts(self.base.cast(), size_of::<RingHeader>() / 4) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; rings do not outlive it.
        let _ = unsafe { sys::munmap(self.base.cast(), self.bytes) };
    }
}

/// Offers the next epoch and switches to it, as the handover does.
pub fn promote(ring: Ring, p: &mut Producer, c: &mut Consumer, at: u64) {
    let epoch = next_epoch(c.epoch);
    ring.offer(c, epoch);
    assert_eq!(ring.offered(), epoch);
    ring.switch(p, epoch, at, || {}).expect("an empty ring has room for the switch");
    assert_eq!(ring.look(c), Look::Switch { at });
    ring.consume_switch(c);
    ring.flush(c);
}

/// Writes what fits of `bytes` as one record.
pub fn write(ring: Ring, p: &mut Producer, least: usize, bytes: &[u8]) -> Result<usize, WriteStop> {
    let (ptr, room) = ring.begin(p, least, bytes.len())?;
    let n = room.min(bytes.len());
    // SAFETY: `begin` gave `room` writable bytes.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, n) };
    ring.commit(p, n)?;
    Ok(n)
}

/// What stopped a [`read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    Limit,
    Empty,
    Switch,
    Closed,
    Corrupt,
}

/// Reads up to `most` bytes, as one call of a program does, and flushes.
pub fn read(ring: Ring, c: &mut Consumer, most: usize) -> (Vec<u8>, Stop) {
    let mut out = Vec::new();
    let stop = loop {
        if out.len() == most {
            break Stop::Limit;
        }
        match ring.look(c) {
            Look::Data { ptr, len } => {
                let n = len.min(most - out.len());
                let old = out.len();
                out.resize(old + n, 0);
                // SAFETY: `look` showed `len` bytes.
                unsafe { core::ptr::copy_nonoverlapping(ptr, out[old..].as_mut_ptr(), n) };
                ring.consume(c, n);
            }
            Look::Empty => break Stop::Empty,
            Look::Switch { .. } => break Stop::Switch,
            Look::Closed => break Stop::Closed,
            Look::Corrupt => break Stop::Corrupt,
        }
    };
    if ring.flush(c) {
        ring.take_armed(End::Writer);
    }
    (out, stop)
}

/// Peeks `room` bytes from `skip` on.
pub fn peek(ring: Ring, c: &Consumer, skip: usize, room: usize) -> Vec<u8> {
    let mut out = vec![0; room];
    // SAFETY: `out` has `room` bytes.
    let n = unsafe { ring.peek(c, skip, out.as_mut_ptr(), room) };
    out.truncate(n);
    out
}

/// A small generator of numbers (xorshift64*), so that a seed replays a run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.any() >> 16) % n
    }
}
