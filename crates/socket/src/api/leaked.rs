//! A value of the whole process that is made at first use and never freed, without a lock that a fork could leave locked.

use std::sync::atomic::{AtomicPtr, Ordering};

/// What is there.
pub fn get<T: Sync>(place: &'static AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: only `replace` writes it, with pointers to values that are never freed. Acquire pairs with its Release.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Puts `fresh` there if nothing is, or what is there `is_void`. Gives what is there afterwards, and whether there was nothing at all before.
pub fn replace<T: Sync + Send>(
    place: &'static AtomicPtr<T>,
    fresh: T,
    is_void: impl Fn(&T) -> bool,
) -> (&'static T, bool) {
    let fresh = Box::into_raw(Box::new(fresh));
    let mut seen = place.load(Ordering::Acquire);
    loop {
        // SAFETY: as in `get`.
        if let Some(value) = unsafe { seen.as_ref() }.filter(|value| !is_void(value)) {
            // SAFETY: nobody else has seen this one.
            drop(unsafe { Box::from_raw(fresh) });
            return (value, false);
        }
        match place.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and never freed from here on.
            Ok(_) => return (unsafe { &*fresh }, seen.is_null()),
            Err(other) => seen = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stays_until_it_is_void() {
        static PLACE: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
        assert_eq!(get(&PLACE), None);
        assert_eq!(replace(&PLACE, 1, |_| false), (&1, true));
        assert_eq!(replace(&PLACE, 2, |_| false), (&1, false));
        assert_eq!(replace(&PLACE, 3, |&old| old == 1), (&3, false));
        assert_eq!(get(&PLACE), Some(&3));
    }
}
