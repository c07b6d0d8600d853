//! Thread-local storage without the dynamic linker's help.
//!
//! The standard library's thread-locals reach theirs through `__tls_get_addr`, which makes the library depend on
//! `ld-linux-x86-64.so.2` by name. A child process of another C library (musl) inherits `LD_PRELOAD`, does not know that
//! name, and would not start. A preloaded library's block lies in the static TLS area, at one offset from the thread
//! pointer for all threads, so a function of our own can answer.

core::arch::global_asm!(
    ".pushsection .text.ropeway_tls,\"ax\",@progbits",
    ".hidden __tls_get_addr",
    ".globl __tls_get_addr",
    ".type __tls_get_addr, @function",
    "__tls_get_addr:",
    // The address of a variable of ours in this thread ..
    "mov rax, qword ptr fs:[0]",
    "add rax, qword ptr [rip + ropeway_thread@GOTTPOFF]",
    // .. less its place in our block, plus the place that is asked for (second word of the argument).
    "lea rcx, [ropeway_thread@DTPOFF]",
    "sub rax, rcx",
    "add rax, qword ptr [rdi + 8]",
    "ret",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
);
