//! The cells of a ring: an array of 64-byte lines whose first eight bytes are the record header.
//!
//! In the product this is raw mapped memory. Under loom the headers are loom's atomics and payloads a plain array, so
//! that the very same ring code can be model-checked.

use crate::atomic::AtomicU64;

/// A structure of atomics in the shared segment: an address in the product, an owned copy under loom.
#[cfg(not(loom))]
pub struct Mapped<T>(*const T);

#[cfg(not(loom))]
impl<T> Mapped<T> {
    /// # Safety
    /// `at` must point to a mapped, aligned `T` made of atomics only, for as long as the value or a copy of it is used.
    pub unsafe fn new(at: *const T) -> Mapped<T> {
        Mapped(at)
    }

    #[inline(always)]
    pub fn get(&self) -> &T {
        // SAFETY: mapped for as long as this is used (constructor).
        unsafe { &*self.0 }
    }
}

#[cfg(not(loom))]
impl<T> Copy for Mapped<T> {}

#[cfg(not(loom))]
impl<T> Clone for Mapped<T> {
    fn clone(&self) -> Mapped<T> {
        *self
    }
}

#[cfg(loom)]
impl<T> Clone for Mapped<T> {
    fn clone(&self) -> Mapped<T> {
        Mapped(self.0.clone())
    }
}

#[cfg(loom)]
pub struct Mapped<T>(std::sync::Arc<T>);

#[cfg(loom)]
impl<T> Mapped<T> {
    pub fn new_loom(value: T) -> Mapped<T> {
        Mapped(std::sync::Arc::new(value))
    }

    pub fn get(&self) -> &T {
        &self.0
    }
}

/// One cell is one cache line.
pub const CELL_BYTES: usize = 64;
/// What the header word takes of a record's first cell.
pub const HEADER_BYTES: usize = 8;

#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct Cells(*mut u8);

#[cfg(not(loom))]
impl Cells {
    /// # Safety
    /// `base` must point to mapped, 64-byte aligned memory for all cells that are ever named, for as long as the value
    /// or a copy of it is used.
    pub unsafe fn new(base: *mut u8) -> Cells {
        Cells(base)
    }

    /// The header word of cell `i`. The caller has checked `i` against the ring's size.
    #[inline(always)]
    pub fn header(&self, i: u32) -> &AtomicU64 {
        // SAFETY: inside the mapping (constructor), aligned; atomics may be shared with a peer.
        unsafe { &*self.0.add(i as usize * CELL_BYTES).cast::<AtomicU64>() }
    }

    /// Has the processor fetch cell `i` for writing, without waiting for it. Any `i` will do.
    #[inline(always)]
    pub fn expect_write(&self, i: u32) {
        let line = self.0.wrapping_add(i as usize * CELL_BYTES);
        // Not `_mm_prefetch`, which fetches for reading unless all of the crate is compiled for processors that know better.
        // SAFETY: a hint; it reads and writes nothing and raises no fault. Processors that do not know it do nothing.
        unsafe { core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) }
    }

    /// Likewise for reading.
    #[inline(always)]
    pub fn expect_read(&self, i: u32) {
        let line = self.0.wrapping_add(i as usize * CELL_BYTES);
        // SAFETY: as in `expect_write`.
        unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast_const().cast()) }
    }

    /// Where the payload of a record that starts at cell `i` begins.
    #[inline(always)]
    pub fn payload(&self, i: u32) -> *mut u8 {
        // SAFETY: inside the mapping (constructor).
        unsafe { self.0.add(i as usize * CELL_BYTES + HEADER_BYTES) }
    }
}

#[cfg(loom)]
#[derive(Clone)]
pub struct Cells(std::sync::Arc<LoomCells>);

#[cfg(loom)]
struct LoomCells {
    headers: Vec<AtomicU64>,
    /// Eight bytes of payload per cell; loom checks that accesses never race.
    payload: Vec<loom::cell::UnsafeCell<u64>>,
}

#[cfg(loom)]
impl Cells {
    #[expect(clippy::arc_with_non_send_sync, reason = "loom runs its threads one at a time")]
    pub fn new_loom(n: u32) -> Cells {
        Cells(std::sync::Arc::new(LoomCells {
            headers: (0..=n).map(|_| AtomicU64::new(0)).collect(),
            payload: (0..=n).map(|_| loom::cell::UnsafeCell::new(0)).collect(),
        }))
    }

    pub fn header(&self, i: u32) -> &AtomicU64 {
        &self.0.headers[i as usize]
    }

    pub fn expect_write(&self, _: u32) {}

    pub fn expect_read(&self, _: u32) {}

    /// Eight bytes of payload. Naming them counts as writing them, so that loom finds every access that is not ordered
    /// by the ring's own words, reads included.
    pub fn payload(&self, i: u32) -> *mut u8 {
        self.0.payload[i as usize].with_mut(|p| p.cast())
    }
}
