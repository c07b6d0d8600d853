//! Stand-ins for the unwinder that the standard library's panic code refers to.
//!
//! A panic in a hook aborts the program; nothing is ever unwound by us. With these (hidden) definitions the library needs
//! nothing but the C library: libgcc_s would have to be found, loaded and relocated in every program and every chroot.

use core::arch::global_asm;

/// `_Unwind_Backtrace` that sees no frame.
const END_OF_STACK: u32 = 5;

macro_rules! absent {
    ($($name:literal),*) => {
        global_asm!(
            ".pushsection .text.ropeway_unwind,\"ax\",@progbits",
            $(concat!(".globl ", $name), concat!(".hidden ", $name), concat!(".type ", $name, ", @function"), concat!($name, ":"),)*
            "ud2",
            ".globl _Unwind_Backtrace",
            ".hidden _Unwind_Backtrace",
            ".type _Unwind_Backtrace, @function",
            "_Unwind_Backtrace:",
            "mov eax, {end}",
            "ret",
            ".popsection",
            end = const END_OF_STACK,
        );
    };
}

absent!(
    "_Unwind_DeleteException",
    "_Unwind_FindEnclosingFunction",
    "_Unwind_GetCFA",
    "_Unwind_GetDataRelBase",
    "_Unwind_GetIP",
    "_Unwind_GetIPInfo",
    "_Unwind_GetLanguageSpecificData",
    "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_SetGR",
    "_Unwind_SetIP"
);
