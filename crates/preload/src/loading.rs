//! Libraries loaded with RTLD_DEEPBIND: they call the C library's own functions past every hook. Before one comes in, all
//! sockets go back to TCP, and stay there.

use crate::next::{Slot, slots};
use crate::whole_process;
use core::arch::naked_asm;
use core::ffi::c_int;
use ropeway_socket::reason::Reason;

extern "C" fn before_loading(flags: c_int, slot: &Slot) -> *mut () {
    if flags & libc::RTLD_DEEPBIND != 0 {
        whole_process::stop(Reason::ForeignBytes);
    }
    slot.get()
}

/// Looks at the flags, then jumps to the C library's function: it must see the caller's own return address, by which it
/// finds whose search path counts.
///
/// # Safety
/// As for the C function of this name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov edi, esi",
        "lea rsi, [rip + {slot}]",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        slot = sym slots::dlopen,
        before = sym before_loading,
    )
}
