//! The C library's functions that install handlers, all on top of [`set_action`].

use crate::hook;
use crate::signals::set_action;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, sigaction as sigaction_t, sighandler_t};
use ropeway_shm::sys;

/// Signals that `siginterrupt` made interrupting: `signal` leaves SA_RESTART out for them.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// `sigset`'s disposition that means "block it".
const SIG_HOLD: sighandler_t = 2;

fn bit(sig: c_int) -> u64 {
    if (1..65).contains(&sig) { 1 << (sig - 1) } else { 0 }
}

/// Installs a handler; returns the previous one, or SIG_ERR.
fn install(sig: c_int, handler: sighandler_t, flags: c_int, mask_itself: bool) -> sighandler_t {
    if handler == libc::SIG_ERR {
        return hook::fail(libc::EINVAL) as sighandler_t;
    }
    // SAFETY: zero is an action without handler, flags and mask; both actions are valid.
    unsafe {
        let mut new: sigaction_t = core::mem::zeroed();
        let mut old: sigaction_t = core::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if mask_itself {
            *(&raw mut new.sa_mask).cast::<u64>() = bit(sig);
        }
        if set_action(sig, &new, &mut old) < 0 { libc::SIG_ERR } else { old.sa_sigaction }
    }
}

/// Blocks or unblocks one signal; true when it was blocked before. None, with `errno`, for a bad number.
fn change_mask(how: c_int, sig: c_int) -> Option<bool> {
    let mask = bit(sig);
    if mask == 0 {
        hook::fail(libc::EINVAL);
        return None;
    }
    let mut old = 0u64;
    // SAFETY: both sets are valid for the kernel's size.
    unsafe {
        let _ = sys::sigprocmask(how, &mask, &mut old, sys::SIGSET_BYTES);
    }
    Some(old & mask != 0)
}

hooks! {
    fn sigaction(sig: c_int, new: *const sigaction_t, old: *mut sigaction_t) -> c_int as __sigaction {
        set_action(sig, new, old)
    }

    /// BSD semantics: the handler stays, and interrupted calls are restarted.
    fn signal(sig: c_int, handler: sighandler_t) -> sighandler_t as bsd_signal as ssignal {
        let flags = if INTERRUPTING.load(Ordering::Relaxed) & bit(sig) != 0 { 0 } else { SA_RESTART };
        install(sig, handler, flags, true)
    }

    /// System V semantics: once, unmasked, interrupting.
    fn __sysv_signal(sig: c_int, handler: sighandler_t) -> sighandler_t as sysv_signal {
        /// SA_INTERRUPT: no effect in Linux, but shown by `sigaction`.
        const SA_INTERRUPT: c_int = 0x2000_0000;
        install(sig, handler, SA_RESETHAND | SA_NODEFER | SA_INTERRUPT, false)
    }

    fn siginterrupt(sig: c_int, interrupts: c_int) -> c_int {
        let mut action: sigaction_t = core::mem::zeroed();
        if set_action(sig, core::ptr::null(), &mut action) < 0 {
            return -1;
        }
        if interrupts != 0 {
            INTERRUPTING.fetch_or(bit(sig), Ordering::Relaxed);
            action.sa_flags &= !SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!bit(sig), Ordering::Relaxed);
            action.sa_flags |= SA_RESTART;
        }
        set_action(sig, &action, core::ptr::null_mut())
    }

    fn sigset(sig: c_int, handler: sighandler_t) -> sighandler_t {
        if handler == SIG_HOLD {
            let Some(held) = change_mask(libc::SIG_BLOCK, sig) else { return libc::SIG_ERR };
            let mut now: sigaction_t = core::mem::zeroed();
            return match (held, set_action(sig, core::ptr::null(), &mut now)) {
                (true, _) => SIG_HOLD,
                (false, 0) => now.sa_sigaction,
                _ => libc::SIG_ERR,
            };
        }
        let old = install(sig, handler, 0, false);
        if old == libc::SIG_ERR {
            return old;
        }
        match change_mask(libc::SIG_UNBLOCK, sig) {
            Some(true) => SIG_HOLD,
            Some(false) => old,
            None => libc::SIG_ERR,
        }
    }
}
