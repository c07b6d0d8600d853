//! What a fork has counted: the sockets and sets for which it expects a child.

use super::Numbers;
use crate::sys;
use core::ops::Deref;
use core::ptr::{self, NonNull};

/// Sockets and sets, by their number.
#[repr(C)]
pub struct Counts {
    pub socks: Numbers,
    pub sets: Numbers,
}

/// [`Counts`] in private memory, of which a child gets a copy.
#[repr(transparent)]
pub struct Counted(NonNull<Counts>);

impl Counted {
    /// Nothing counted yet. None when there is no memory.
    pub fn new() -> Option<Counted> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing. Its zeroes are empty lists.
        let at = unsafe { sys::mmap(ptr::null_mut(), size_of::<Counts>(), access, flags, -1, 0) }.ok()?;
        NonNull::new(at as *mut Counts).map(Counted)
    }
}

impl Deref for Counted {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        // SAFETY: mapped by `new` until this is dropped; it consists of atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and nothing of it outlives this.
        let _ = unsafe { sys::munmap(self.0.as_ptr().cast(), size_of::<Counts>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_sets_are_counted_apart() {
        let counted = Counted::new().expect("memory");
        assert!(counted.socks.is_empty() && counted.sets.is_empty());
        counted.socks.insert(65_535);
        counted.sets.insert(3);
        assert!(counted.socks.contains(65_535) && !counted.socks.contains(3) && counted.sets.contains(3));
    }
}
