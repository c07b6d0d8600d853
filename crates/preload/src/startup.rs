//! Start and end of the library: once per process, before the program and after it.

use crate::{exit, fork, lifecycle, next, signals};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use ropeway_socket::{epoll, settings, thread, wait};

/// True once everything is in place. Until then, and for ever in a passive copy, nothing is tracked and no handler is
/// wrapped, which makes every hook pass its arguments on.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// True when this copy of the library does its work.
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// By this name a second copy in the same process finds that it is not the first: it leads to the first one's `IDENTITY`.
#[unsafe(no_mangle)]
pub static ropeway_preload_identity: &u64 = &IDENTITY;
static IDENTITY: u64 = u64::from_le_bytes(*b"ropeway1");

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = end;

extern "C" fn start() {
    next::find_all();
    if must_stay_passive() {
        return;
    }
    settings::init(environment::keep);
    thread::set_deferred_runner(signals::run_deferred);
    // SAFETY: the names have these types in C.
    unsafe {
        wait::set_native_ppoll(core::mem::transmute::<*mut (), wait::Ppoll>(next::slots::ppoll.get()));
        epoll::set_native_pwait(core::mem::transmute::<*mut (), epoll::EpollPwait>(next::slots::epoll_pwait.get()));
    }
    fork::register_handlers();
    ACTIVE.store(true, Ordering::Release);
    lifecycle::note_inherited();
}

extern "C" fn end() {
    exit::leave();
}

fn must_stay_passive() -> bool {
    // SAFETY: `getauxval` only reads what the kernel gave at start.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let off = environment::find(b"ROPEWAY").is_some_and(|v| v.to_bytes() == b"off");
    let first = next::find_anywhere(c"ropeway_preload_identity").cast::<*const u64>();
    // SAFETY: every copy of this library exports a pointer by this name.
    let second_copy = !first.is_null() && unsafe { first.read_volatile() } != &raw const IDENTITY;
    // Another C library (musl) loads us for its own programs too; its signal and thread structures are not known here.
    let foreign = next::find_anywhere(c"gnu_get_libc_version").is_null();
    privileged || off || second_copy || foreign
}

/// The environment as the program got it. Programs overwrite it (to show a title in `ps`), so values are copied.
pub mod environment {
    use super::*;
    use core::ffi::c_char;
    use core::sync::atomic::{AtomicU8, AtomicUsize};

    unsafe extern "C" {
        static environ: *const *const c_char;
    }

    /// The environment as it is now, for an image that is not given another.
    pub fn environment() -> *const *const c_char {
        // SAFETY: the C library's own variable; the program may change it at any time, as it may for the C library.
        unsafe { environ }
    }

    /// Room for all values together: one path of the longest kind and some short words.
    const ROOM: usize = libc::PATH_MAX as usize + 1024;
    static KEPT: [AtomicU8; ROOM] = [const { AtomicU8::new(0) }; ROOM];
    static USED: AtomicUsize = AtomicUsize::new(0);

    /// The value of a variable, where it stands now.
    pub fn find(name: &[u8]) -> Option<&'static CStr> {
        // SAFETY: the C library keeps a null-terminated list of C strings; nobody changes it during start.
        unsafe {
            let mut at = environ;
            while !at.is_null() && !(*at).is_null() {
                let entry = CStr::from_ptr(*at);
                if entry.to_bytes().strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'=')) {
                    return Some(CStr::from_ptr((*at).add(name.len() + 1)));
                }
                at = at.add(1);
            }
        }
        None
    }

    /// A copy of the value of a variable as a C string; null when it is not set or too long to be meant.
    pub fn keep(name: &[u8]) -> *const u8 {
        let Some(value) = find(name).map(CStr::to_bytes_with_nul) else { return core::ptr::null() };
        let at = USED.load(Ordering::Relaxed);
        let Some(place) = KEPT.get(at..at + value.len()) else { return core::ptr::null() };
        place.iter().zip(value).for_each(|(slot, byte)| slot.store(*byte, Ordering::Relaxed));
        USED.store(at + value.len(), Ordering::Relaxed);
        place.as_ptr().cast()
    }
}
