//! How long a thread's stack has to be: the C library takes the static thread-local memory of all loaded objects out of it.

use std::ffi::c_void;

use libc::{RTLD_DEFAULT, dlsym, pthread_attr_t};

/// A stack of which a thread has so many bytes for itself, however much thread-local memory the program has.
pub fn with_thread_locals(bytes: usize) -> usize {
    bytes.saturating_add(least())
}

/// The least that glibc gives a thread: thread-local memory, and a little. Other C libraries have no such function, and add what they need by themselves.
fn least() -> usize {
    type Least = unsafe extern "C" fn(*const pthread_attr_t) -> usize;
    // SAFETY: a name that ends with zero.
    let found = unsafe { dlsym(RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: since glibc 2.15 the function has this type; it only reads the attributes.
    unsafe {
        let least = std::mem::transmute::<*mut c_void, Least>(found);
        let mut attributes = std::mem::zeroed();
        if libc::pthread_attr_init(&raw mut attributes) != 0 {
            return 0;
        }
        let bytes = least(&raw const attributes);
        libc::pthread_attr_destroy(&raw mut attributes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_longer_by_what_the_program_has_of_thread_local_memory() {
        assert!((1..1 << 20).contains(&least()), "{}", least());
        assert_eq!(with_thread_locals(1 << 20), (1 << 20) + least());
    }
}
