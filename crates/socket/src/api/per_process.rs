//! A value that every process makes for itself: at first use, never freed, and without a lock that a fork could leave locked. A forked child does not see its
//! parent's.

use ropeway_shm::fork::Birthmark;
use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Owned<T> {
    birthmark: Birthmark,
    value: T,
}

/// A place for a static variable.
pub struct PerProcess<T: 'static> {
    place: AtomicPtr<Owned<T>>,
}

/// What [`PerProcess::get_or_make`] found.
pub struct Found<T: 'static> {
    pub value: &'static T,
    /// No process of this program's image had one before, parents included.
    pub is_first: bool,
}

impl<T: Send + Sync> PerProcess<T> {
    #[expect(clippy::new_without_default, reason = "for static variables alone")]
    pub const fn new() -> PerProcess<T> {
        PerProcess { place: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn seen(&self) -> (*mut Owned<T>, Option<&'static T>) {
        let seen = self.place.load(Ordering::Acquire);
        // SAFETY: only `get_or_make` writes it, with pointers to values that are never freed. Acquire pairs with its Release.
        let owned: Option<&'static Owned<T>> = unsafe { seen.as_ref() };
        (seen, owned.filter(|owned| !owned.birthmark.is_inherited()).map(|owned| &owned.value))
    }

    /// That of this process, if it has made one.
    pub fn get(&self) -> Option<&'static T> {
        self.seen().1
    }

    /// That of this process. Of several threads that come first, all but one made theirs in vain.
    ///
    /// # Errors
    /// No memory.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> io::Result<Found<T>> {
        let (mut seen, value) = self.seen();
        if let Some(value) = value {
            return Ok(Found { value, is_first: false });
        }
        let fresh = Box::into_raw(Box::new(Owned { birthmark: Birthmark::new()?, value: make() }));
        loop {
            match self.place.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just made, and never freed from here on.
                Ok(_) => return Ok(Found { value: unsafe { &(*fresh).value }, is_first: seen.is_null() }),
                Err(_) => match self.seen() {
                    (_, Some(value)) => {
                        // SAFETY: nobody else has seen this one.
                        drop(unsafe { Box::from_raw(fresh) });
                        return Ok(Found { value, is_first: false });
                    }
                    (other, None) => seen = other,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLACE: PerProcess<u32> = PerProcess::new();

    #[test]
    fn a_child_makes_its_own_and_the_parent_keeps_its() {
        assert_eq!(PLACE.get(), None);
        let found = PLACE.get_or_make(|| 1).unwrap();
        assert!(found.is_first && *found.value == 1);
        assert!(!PLACE.get_or_make(|| 2).unwrap().is_first);
        // SAFETY: the child looks at memory of its own and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = PLACE.get().is_none()
                && PLACE.get_or_make(|| 3).is_ok_and(|found| *found.value == 3 && !found.is_first)
                && PLACE.get() == Some(&3);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, PLACE.get()), (0, Some(&1)));
    }
}
