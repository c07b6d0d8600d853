//! What every hook needs: the form of a definition, the look-up, and the C library's way of giving errors.

use crate::lifecycle::following;
use core::ffi::c_int;
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::lifecycle;

/// Defines exported functions. `as` names further exported names of the same function.
///
/// The body is unsafe code: the program's arguments are what the C function of that name requires.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $(as $alias:ident)* $body:block)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C function of this name.
        #[allow(non_snake_case, reason = "some C names have capitals")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            #[allow(unused_unsafe, reason = "some bodies are a single safe call")]
            // SAFETY: the contract of the C function, which the program keeps.
            unsafe { $body }
        }
        hooks!(@alias $name ($($arg: $ty),*) ($(-> $ret)?) $($alias)*);
    )* };
    (@alias $name:ident $args:tt $ret:tt) => {};
    (@alias $name:ident ($($arg:ident: $ty:ty),*) ($(-> $ret:ty)?) $alias:ident $($more:ident)*) => {
        const _: () = {
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $alias($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the same contract.
                unsafe { $name($($arg),*) }
            }
        };
        hooks!(@alias $name ($($arg: $ty),*) ($(-> $ret)?) $($more)*);
    };
}

/// The socket of ours behind `fd`; None in a child of vfork, where every hook makes only the plain call.
#[inline(always)]
pub fn tracked(fd: c_int) -> Option<Handle> {
    let h = fdtable::lookup(fd)?;
    let sock = if h.is_sock() { Some(h) } else { unless_followed(fd, h) };
    sock.filter(|_| !crate::vfork::in_child())
}

/// What else of ours is behind `fd`: a socket only where another thread is closing or replacing it.
#[cold]
fn unless_followed(fd: c_int, h: Handle) -> Option<Handle> {
    if h.is_mark() && following() { lifecycle::once_closed(fd, h) } else { None }
}

/// Gives `r` (>= 0, or -errno) the way the C library does.
#[inline(always)]
pub fn answer(r: isize) -> isize {
    if r < 0 { fail(-r as c_int) } else { r }
}

/// [`answer`] for functions that return an int.
#[inline(always)]
pub fn answer_int(r: isize) -> c_int {
    answer(r) as c_int
}

/// Sets `errno` and returns -1.
#[cold]
pub fn fail(errno: c_int) -> isize {
    // SAFETY: the C library gives every thread a valid place for it.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: as in `fail`.
    unsafe { *libc::__errno_location() }
}

/// What a C function returned (-1 with `errno` set) as >= 0 or -errno.
#[inline(always)]
pub fn result(r: isize) -> isize {
    if r == -1 { -(errno() as isize) } else { r }
}
