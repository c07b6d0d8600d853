//! Copies to and from memory that may not be there.
//!
//! The kernel answers EFAULT when a program gives it an address that is not mapped. A copy made by us would end the
//! program instead, in the middle of a critical section. So every copy between a ring and a program's buffer is made
//! here: a fault in it makes it return `false`, provided that the process's handler of SIGSEGV and SIGBUS asks
//! [`recover`] first (the preload's does).
//!
//! Small copies are a function without a frame, recognised by its place; large ones are the C library's, recognised by a
//! per-thread mark that says where their frame is.

use core::arch::{asm, global_asm};
use libc::{siginfo_t, ucontext_t};

/// Largest copy of the small kind: four vector registers.
const SMALL_BYTES: usize = 64;
/// What is between two bytes that must be touched to know that everything between them is there.
const PAGE_BYTES: usize = 4096;

unsafe extern "C" {
    fn ropeway_copy_small(dst: *mut u8, src: *const u8, n: usize) -> bool;
    fn ropeway_copy_large(dst: *mut u8, src: *const u8, n: usize) -> bool;
    fn ropeway_touch(at: *const u8) -> bool;
    // Places in the code, not functions to call.
    fn ropeway_guarded_begin();
    fn ropeway_guarded_end();
    fn ropeway_guarded_failed();
    fn ropeway_copy_large_failed();
}

global_asm!(
    ".pushsection .tbss.ropeway_copying,\"awT\",@nobits",
    ".p2align 3",
    ".globl ropeway_copying",
    ".hidden ropeway_copying",
    ".type ropeway_copying, @object",
    ".size ropeway_copying, 8",
    "ropeway_copying: .zero 8",
    ".popsection",
);

macro_rules! function {
    ($name:literal) => {
        concat!(".globl ", $name, "\n.hidden ", $name, "\n.type ", $name, ", @function\n", $name, ":")
    };
}

// Arguments: rdi destination, rsi source, rdx length. Everything is loaded before anything is stored, so that a bad
// source leaves the destination alone.
global_asm!(
    ".pushsection .text.ropeway_guarded,\"ax\",@progbits",
    function!("ropeway_guarded_begin"),
    function!("ropeway_copy_small"),
    "cmp edx, 16",
    "jb 3f",
    "cmp edx, 32",
    "ja 2f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "mov eax, 1",
    "ret",
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "mov eax, 1",
    "ret",
    "3:",
    "cmp edx, 8",
    "jb 4f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "mov eax, 1",
    "ret",
    "4:",
    "cmp edx, 4",
    "jb 5f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "mov eax, 1",
    "ret",
    "5:",
    "test edx, edx",
    "jz 6f",
    // One to three bytes: the first, the middle one and the last cover them.
    "mov r8d, edx",
    "shr r8d, 1",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + r8]",
    "movzx r9d, byte ptr [rsi + rdx - 1]",
    "mov [rdi], al",
    "mov [rdi + r8], cl",
    "mov [rdi + rdx - 1], r9b",
    "6:",
    "mov eax, 1",
    "ret",
    function!("ropeway_touch"),
    "movzx eax, byte ptr [rdi]",
    "mov eax, 1",
    "ret",
    function!("ropeway_guarded_end"),
    function!("ropeway_guarded_failed"),
    "xor eax, eax",
    "ret",
    function!("ropeway_copy_large"),
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "push rsi",
    "push rdx",
    // The mark: where this frame is. `recover` reads the three arguments at its top.
    "mov rbx, qword ptr [rip + ropeway_copying@GOTTPOFF]",
    "mov qword ptr fs:[rbx], rsp",
    "call qword ptr [rip + memcpy@GOTPCREL]",
    "mov qword ptr fs:[rbx], 0",
    "mov eax, 1",
    "7:",
    "add rsp, 24",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    function!("ropeway_copy_large_failed"),
    "xor eax, eax",
    "jmp 7b",
    ".popsection",
);

/// Copies `n` bytes; false when a page of either side was not there. Then some bytes may have been copied.
///
/// # Safety
/// With more than `SMALL_BYTES` no signal handler of the program may run meanwhile (it is called inside critical sections): the
/// mark would be that of one copy where there are two. Where both sides are mapped they must be valid for their kind of
/// access and not overlap.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) -> bool {
    // SAFETY: passed on to the caller; a fault makes either return false.
    unsafe { if n <= SMALL_BYTES { ropeway_copy_small(dst, src, n) } else { ropeway_copy_large(dst, src, n) } }
}

/// True when every byte from `at` on, `n` of them, can be read now.
pub fn is_readable(at: usize, n: usize) -> bool {
    let Some(last) = at.checked_add(n.saturating_sub(1)) else { return false };
    let mut page = at;
    while page < last {
        // SAFETY: a fault makes it return false.
        if !unsafe { ropeway_touch(page as *const u8) } {
            return false;
        }
        page = page.saturating_add(PAGE_BYTES);
    }
    // SAFETY: as above.
    n == 0 || unsafe { ropeway_touch(last as *const u8) }
}

fn mark() -> *mut usize {
    let mark: *mut usize;
    // SAFETY: computes the address of the calling thread's copy of the word above.
    unsafe {
        asm!("mov {0}, qword ptr fs:[0]", "add {0}, qword ptr [rip + ropeway_copying@GOTTPOFF]",
             out(reg) mark, options(pure, nomem, nostack));
    }
    mark
}

/// To be called first by a handler of SIGSEGV or SIGBUS. True: the fault was in a copy, which will return false when the
/// handler returns.
///
/// # Safety
/// The pointers are those that the kernel gave to the handler.
pub unsafe fn recover(info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    // SAFETY: the kernel's pointers are valid; a mark of the thread leads to the frame of a copy that has not returned.
    unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize;
        if (ropeway_guarded_begin as *const () as usize..ropeway_guarded_end as *const () as usize).contains(&at) {
            registers[libc::REG_RIP as usize] = ropeway_guarded_failed as *const () as i64;
            return true;
        }
        let frame = *mark() as *const usize;
        if frame.is_null() {
            return false;
        }
        let [n, src, dst] = [*frame, *frame.add(1), *frame.add(2)];
        let fault = (*info).si_addr() as usize;
        if !(src..src + n).contains(&fault) && !(dst..dst + n).contains(&fault) {
            return false;
        }
        *mark() = 0;
        registers[libc::REG_RSP as usize] = frame as i64;
        registers[libc::REG_RIP as usize] = ropeway_copy_large_failed as *const () as i64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use core::ffi::{c_int, c_void};

    unsafe extern "C" fn on_fault(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel's pointers.
        if !unsafe { recover(info, context.cast()) } {
            std::process::abort();
        }
    }

    /// Two pages, of which the second cannot be touched.
    fn page_before_a_hole() -> *mut u8 {
        static HANDLER: std::sync::Once = std::sync::Once::new();
        // SAFETY: an anonymous mapping of our own; the handler only recovers copies.
        unsafe {
            HANDLER.call_once(|| {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGSEGV, &action, core::ptr::null_mut());
            });
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let at = sys::mmap(core::ptr::null_mut(), 2 * PAGE_BYTES, both, flags, -1, 0).expect("memory");
            // Kept, or another test's memory would come to lie there.
            assert_eq!(libc::mprotect((at + PAGE_BYTES) as *mut c_void, PAGE_BYTES, libc::PROT_NONE), 0, "a hole");
            at as *mut u8
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        let source: Vec<u8> = (0..300).map(|i| i as u8 ^ 0x5a).collect();
        for n in 0..=source.len() - 2 {
            let mut target = [0u8; 302];
            // SAFETY: both sides have room.
            assert!(unsafe { copy(target.as_mut_ptr().add(1), source.as_ptr().add(1), n) });
            assert_eq!(target[1..=n], source[1..=n], "{n} bytes");
            assert!(target[n + 1..].iter().all(|b| *b == 0) && target[0] == 0, "{n} bytes and no more");
        }
    }

    #[test]
    fn a_hole_on_either_side_is_told() {
        let page = page_before_a_hole();
        let mut buffer = [1u8; 512];
        for n in [1usize, 2, 3, 4, 7, 8, 15, 16, 17, 32, 33, 64, 65, 128, 500] {
            // SAFETY: the page ends within the range, which is what is tested.
            unsafe {
                let edge = page.add(PAGE_BYTES - n + 1);
                assert!(!copy(buffer.as_mut_ptr(), edge, n), "from, {n} bytes");
                assert!(!copy(edge, buffer.as_ptr(), n), "to, {n} bytes");
                assert!(copy(buffer.as_mut_ptr(), edge.sub(1), n), "just before it, {n} bytes");
            }
        }
    }

    #[test]
    fn readable_is_what_can_be_read_to_the_end() {
        let page = page_before_a_hole() as usize;
        assert!(is_readable(page, PAGE_BYTES) && is_readable(page + PAGE_BYTES - 1, 1) && is_readable(page, 0));
        assert!(!is_readable(page, PAGE_BYTES + 1) && !is_readable(page + PAGE_BYTES, 1) && !is_readable(16, 8));
        assert!(!is_readable(usize::MAX - 4, 8));
    }
}
