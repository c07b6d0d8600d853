//! Signal handlers of the program run through [`trampoline`], so that none ever runs while its thread holds a lock of
//! ours.
//!
//! A signal that arrives inside a critical section is put aside: its details are kept, and the mask that the kernel
//! restores when the trampoline returns blocks everything further. At the end of the section the thread sends the signal
//! to itself again and restores its mask. The kernel then delivers it as if it had come a moment later, with the
//! program's own mask, stack and flags. One place per thread is enough, as nothing more can arrive meanwhile.

use crate::{next, startup, thread as local, vfork};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, sigaction as sigaction_t, siginfo_t, ucontext_t};
use ropeway_shm::{guarded, sys};
use ropeway_socket::thread;

/// The program's handler of each signal, with the flags that the kernel must not see or that we need in the same moment.
static HANDLERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
const SIGNALS: usize = 65;

/// Flags in the upper bits of an entry: addresses of programs end below.
const WITH_INFO: u64 = 1 << 63;
const RESTART: u64 = 1 << 62;
const ONCE: u64 = 1 << 61;
const ADDRESS: u64 = ONCE - 1;

/// Faults of the running instruction: putting them aside would only make it fault again.
const FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
/// Signals that the C library uses for itself (cancellation, set*id): their handlers never call hooks.
const INTERNAL: [c_int; 2] = [32, 33];

const fn bit(sig: c_int) -> u64 {
    1 << (sig - 1)
}

/// Everything that can wait.
const fn deferrable() -> u64 {
    let mut mask = u64::MAX;
    let mut i = 0;
    while i < FAULTS.len() {
        mask &= !bit(FAULTS[i]);
        i += 1;
    }
    mask & !bit(INTERNAL[0]) & !bit(INTERNAL[1])
}

/// What the kernel calls for every handler that was installed through us.
///
/// # Safety
/// Called by the kernel.
unsafe extern "C" fn trampoline(sig: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives valid pointers; positive codes come from the kernel itself, for faults always.
    unsafe {
        if (sig == libc::SIGSEGV || sig == libc::SIGBUS) && guarded::recover(info, context.cast()) {
            return;
        }
        let fault = FAULTS.contains(&sig) && (*info).si_code > 0;
        if thread::in_critical() && !fault {
            return put_aside(sig, info, context.cast());
        }
        run(sig, info, context);
    }
}

unsafe fn put_aside(sig: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    let local = local::this();
    // SAFETY: the kernel gives valid pointers. Its signal set is the first word of the C library's.
    unsafe {
        let mask: *mut u64 = (&raw mut (*context).uc_sigmask).cast();
        core::ptr::copy_nonoverlapping(info.cast::<u64>(), local.deferred_info.get().cast(), 16);
        local.deferred_mask.set(*mask);
        *mask |= deferrable();
    }
    local.deferred_signal.set(sig);
    thread::note_deferred();
}

/// At the end of a critical section: delivers what was put aside.
pub fn run_deferred() {
    let local = local::this();
    let sig = local.deferred_signal.replace(0);
    if sig == 0 {
        return;
    }
    // SAFETY: the details are a whole siginfo; the mask is a kernel signal set.
    unsafe {
        send_again(sig, local.deferred_info.get().cast());
        let mask = local.deferred_mask.get();
        let _ = sys::sigprocmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut(), sys::SIGSET_BYTES);
    }
}

/// Calls the program's handler.
unsafe fn run(sig: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let slot = &HANDLERS[sig as usize % SIGNALS];
    let mut entry = slot.load(Ordering::Acquire);
    if entry & ONCE != 0 {
        // SA_RESETHAND is ours to do, or the kernel would reset a signal that is put aside.
        match slot.compare_exchange(entry, entry & !ONCE, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => reset(sig, entry),
            Err(now) => entry = now,
        }
    }
    let handler = (entry & ADDRESS) as usize;
    if handler == libc::SIG_DFL {
        // SAFETY: the kernel's pointers.
        return unsafe { end_by(sig, info, entry) };
    }
    thread::note_handler(entry & RESTART != 0);
    // SAFETY: the program installed this function as a handler. One that takes the number alone ignores the rest.
    unsafe {
        let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = core::mem::transmute(handler);
        handler(sig, info, context);
    }
}

/// A fault that only we catch ends the program, as it would without us.
unsafe fn end_by(sig: c_int, info: *const siginfo_t, entry: u64) {
    reset(sig, entry);
    // SAFETY: the kernel's pointers.
    unsafe {
        // A fault comes again as soon as the handler returns; what somebody sent must be sent again.
        if (*info).si_code <= 0 {
            send_again(sig, info);
        }
    }
}

/// Sends the signal to the calling thread.
unsafe fn send_again(sig: c_int, info: *const siginfo_t) {
    let (pid, tid) = (sys::getpid().unwrap_or(0) as c_int, sys::gettid().unwrap_or(0) as c_int);
    // SAFETY: a whole siginfo (contract).
    if unsafe { sys::sigqueueinfo(pid, tid, sig, info.cast()) }.is_err() {
        // The queue is full (RLIMIT_SIGPENDING): the signal itself always fits.
        let _ = sys::tgkill(pid, tid, sig);
    }
}

/// From the first socket on, faults are caught, so that a copy to or from a buffer that is not there fails as it would in
/// the kernel (`guarded`). A program that has handlers of its own already keeps them, wrapped or not.
pub fn catch_faults() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) || DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    for sig in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: `action` is valid for both calls.
        unsafe {
            let mut action: sigaction_t = core::mem::zeroed();
            next::sigaction(sig, core::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_DFL {
                HANDLERS[sig as usize].store(entry_of(&action) & !ONCE, Ordering::Release);
                action.sa_sigaction = trampoline as *const () as usize;
                action.sa_flags = action.sa_flags & !SA_RESETHAND | SA_SIGINFO;
                next::sigaction(sig, &action, core::ptr::null_mut());
            }
        }
    }
}

/// Resets a signal to its default as SA_RESETHAND does: flags and mask stay.
fn reset(sig: c_int, entry: u64) {
    // SAFETY: `action` is valid for both calls.
    unsafe {
        let mut action: sigaction_t = core::mem::zeroed();
        next::sigaction(sig, core::ptr::null(), &mut action);
        show_as_installed(&mut action, entry);
        action.sa_sigaction = libc::SIG_DFL;
        next::sigaction(sig, &action, core::ptr::null_mut());
    }
}

/// What the program knows about a signal's action.
fn entry_of(action: &sigaction_t) -> u64 {
    let flag = |flag: c_int, bit: u64| if action.sa_flags & flag != 0 { bit } else { 0 };
    action.sa_sigaction as u64 & ADDRESS
        | flag(SA_SIGINFO, WITH_INFO)
        | flag(SA_RESTART, RESTART)
        | flag(SA_RESETHAND, ONCE)
}

/// `sigaction` of the program, on which all other functions of the kind are built.
///
/// # Safety
/// As for the C function.
pub unsafe fn set_action(sig: c_int, new: *const sigaction_t, old: *mut sigaction_t) -> c_int {
    let catchable = (1..SIGNALS as c_int).contains(&sig) && sig != libc::SIGKILL && sig != libc::SIGSTOP;
    if !startup::active() || vfork::in_child() || !catchable {
        // SAFETY: passed on to the caller.
        return unsafe { next::sigaction(sig, new, old) };
    }
    // SAFETY: both pointers are null or valid (contract); `ours` and `was` are local copies.
    unsafe {
        let slot = &HANDLERS[sig as usize];
        let mut known = slot.load(Ordering::Acquire);
        let mut ours = if new.is_null() { core::mem::zeroed() } else { *new };
        if !new.is_null() && ours.sa_sigaction > libc::SIG_IGN {
            known = slot.swap(entry_of(&ours), Ordering::AcqRel);
            ours.sa_sigaction = trampoline as *const () as usize;
            ours.sa_flags = ours.sa_flags & !SA_RESETHAND | SA_SIGINFO;
        }
        let mut was: sigaction_t = core::mem::zeroed();
        let r = next::sigaction(sig, if new.is_null() { core::ptr::null() } else { &ours }, &mut was);
        if r == 0 && !old.is_null() {
            if was.sa_sigaction == trampoline as *const () as usize {
                show_as_installed(&mut was, known);
            }
            *old = was;
        }
        r
    }
}

/// Turns our action back into the program's.
fn show_as_installed(action: &mut sigaction_t, entry: u64) {
    action.sa_sigaction = (entry & ADDRESS) as usize;
    if entry & WITH_INFO == 0 {
        action.sa_flags &= !SA_SIGINFO;
    }
    if entry & ONCE != 0 {
        action.sa_flags |= SA_RESETHAND;
    }
}
