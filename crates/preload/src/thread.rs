//! What the preload keeps per thread.
//!
//! Placed in the static thread-local block (initial-exec model) by hand: the general model may call the allocator in
//! `__tls_get_addr`, which a hook inside a signal handler, or inside somebody's allocator, must not.

use core::arch::{asm, global_asm};
use core::cell::{Cell, UnsafeCell};

/// Zero at the start of every thread.
#[repr(C)]
pub struct Thread {
    /// Above 0 while this thread is inside `vfork`, which is: in the child, as the parent stands still.
    pub vfork_depth: Cell<u32>,
    /// 1 when the handlers of fork have run since a hook cleared it; tells a failed fork from one not tried.
    pub fork_prepared: Cell<u32>,
    /// A signal that came inside a critical section, 0 for none; its details, and the mask to restore.
    pub deferred_signal: Cell<i32>,
    pub deferred_mask: Cell<u64>,
    pub deferred_info: UnsafeCell<[u64; 16]>,
}

const BYTES: usize = 256;
const _: () = assert!(size_of::<Thread>() <= BYTES);

global_asm!(
    ".pushsection .tbss.ropeway_preload_thread,\"awT\",@nobits",
    ".p2align 4",
    ".globl ropeway_preload_thread",
    ".hidden ropeway_preload_thread",
    ".type ropeway_preload_thread, @object",
    ".size ropeway_preload_thread, {bytes}",
    "ropeway_preload_thread: .zero {bytes}",
    ".popsection",
    bytes = const BYTES,
);

/// The calling thread's record.
#[inline(always)]
pub fn this() -> &'static Thread {
    let address: *const Thread;
    // SAFETY: the thread pointer plus the offset of the block above, which is aligned, zeroed and as large as `Thread`.
    // The reference does not leave the thread: it is used at once by every caller.
    unsafe {
        asm!("mov {0}, qword ptr fs:[0]", "add {0}, qword ptr [rip + ropeway_preload_thread@GOTTPOFF]",
             out(reg) address, options(pure, nomem, nostack));
        &*address
    }
}
