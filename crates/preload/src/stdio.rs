//! Streams of the C library on sockets: it reads, writes and closes them without passing any hook.

use crate::next::{self, Slot, slots};
use crate::{lifecycle as descriptors, transfer};
use core::arch::naked_asm;
use core::ffi::{c_char, c_int};
use libc::FILE;
use ropeway_socket::reason::Reason;

type Str = *const c_char;

hooks! {
    fn fdopen(fd: c_int, mode: Str) -> *mut FILE {
        transfer::leave(fd, Reason::Stdio);
        next::fdopen(fd, mode)
    }

    fn freopen(path: Str, mode: Str, stream: *mut FILE) -> *mut FILE {
        closes(stream);
        next::freopen(path, mode, stream)
    }

    fn freopen64(path: Str, mode: Str, stream: *mut FILE) -> *mut FILE {
        closes(stream);
        next::freopen64(path, mode, stream)
    }

    fn fclose(stream: *mut FILE) -> c_int {
        closes(stream);
        next::fclose(stream)
    }
}

/// The C library is about to close the descriptor of a stream itself.
unsafe fn closes(stream: *mut FILE) {
    if !stream.is_null() {
        // SAFETY: the program gave a valid stream.
        descriptors::will_be_closed(unsafe { next::fileno(stream) });
    }
}

/// Before a formatted write to a descriptor, which the C library makes past our hooks; returns where to go on.
extern "C" fn before_formatted_write(fd: c_int, slot: &Slot) -> *mut () {
    transfer::leave(fd, Reason::Stdio);
    slot.get()
}

/// A function with variable arguments: all registers that may hold some are kept, then its namesake is jumped to.
macro_rules! formatted_writes {
    ($($name:ident)*) => { $(
        /// Tells us of the descriptor, then goes on.
        ///
        /// # Safety
        /// As for the C function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "lea rsi, [rip + {slot}]",
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                slot = sym slots::$name,
                before = sym before_formatted_write,
            )
        }
    )* };
}

formatted_writes!(dprintf vdprintf __dprintf_chk __vdprintf_chk);
