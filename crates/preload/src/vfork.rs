//! `vfork`: the child runs on the parent's stack and in its memory until it execs or exits.
//!
//! Whatever the child did to our tables it would do to the parent's, so its hooks only make the plain call (and
//! [`note_inherited`]). The mark of
//! that is per thread: the thread-local block is shared with the child, and the parent's thread stands still meanwhile.

use crate::lifecycle::following;
use crate::{hook, startup, thread};
use core::arch::naked_asm;
use core::ffi::c_int;
use libc::pid_t;
use ropeway_socket::reason::Reason;
use ropeway_socket::{fdtable, lifecycle, process, thread as local};

/// True in a child of `vfork`.
#[inline(always)]
pub fn in_child() -> bool {
    thread::this().vfork_depth.get() != 0
}

/// The C library's `vfork`, with our steps before and, in the parent, after.
///
/// The return address is kept in a register, because the child returns first and overwrites its place on the stack.
///
/// # Safety
/// As for the C function of this name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rdi",
        "mov eax, {nr}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "mov rdi, rax",
        "jmp {after}",
        "2:",
        "ret",
        before = sym before,
        after = sym after,
        nr = const libc::SYS_vfork,
    )
}

/// The same function under its other exported name.
///
/// # Safety
/// As for `vfork`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    naked_asm!("jmp {}", sym vfork)
}

/// Steps of the parent before: what the child inherits, the image that it starts will have as well.
pub extern "C" fn before() {
    if following() {
        // Learnt now: in the child they would be learnt wrong, for the parent too.
        local::me();
        process::pid();
        lifecycle::before_spawn();
    }
    let depth = &thread::this().vfork_depth;
    depth.set(depth.get() + 1);
}

/// Steps of the parent afterwards; `r` is the kernel's answer.
pub extern "C" fn after(r: isize) -> pid_t {
    let depth = &thread::this().vfork_depth;
    depth.set(depth.get() - 1);
    if following() {
        lifecycle::after_vfork();
    }
    hook::answer_int(r)
}

/// In the child, which prepares `fd` for the image that it will start: the socket goes back to TCP now. That is done on
/// the parent's behalf, in the memory that both have.
pub fn note_inherited(fd: c_int) {
    if in_child()
        && startup::active()
        && let Some(h) = fdtable::sock(fd)
    {
        // Shared with the parent for the moment: no relay may take the place of descriptors that are only copies.
        lifecycle::in_vfork_child(h, || lifecycle::leave(h, fd, Reason::Exec));
    }
}
