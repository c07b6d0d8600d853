//! The atomics that rings use: the processor's in the product, loom's in model checks (`--cfg loom`).

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Gives the processor away in a loop that waits for another thread.
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    let _ = crate::sys::sched_yield();
}

/// A full barrier after an atomic read-modify-write, between a store and a later look ("store, then look").
///
/// On x86-64 a locked instruction already orders everything around it, so only the compiler has to be told; elsewhere,
/// and under loom, it is a sequentially consistent fence.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}
