//! What surrounds every exported function: no panic gets into C, failures become `-1`, `errno` and a sentence that the thread can ask for, and no thread is cancelled
//! (`pthread_cancel`) inside: to unwind through it would end the process.

use crate::failure::{Failure, Outcome};
use ropeway_socket::api::Uncancelled;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

thread_local! {
    /// What the last call of this thread that failed had to say.
    static SAID: RefCell<CString> = RefCell::default();
}

/// The integers that C functions return.
pub trait Answer {
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}

impl Answer for isize {
    const FAILED: isize = -1;
}

/// Lets go of something shared. Its end, if this was the last, makes calls in which threads are cancelled.
pub fn let_go<T>(shared: Arc<T>) {
    if let Some(last) = Arc::into_inner(shared) {
        let _uncancelled = Uncancelled::begin();
        drop(last);
    }
}

/// As [`call`], for a body that may make such calls of the C library.
pub fn call_to_the_end<T: Answer>(body: impl FnOnce() -> Outcome<T>) -> T {
    let _uncancelled = Uncancelled::begin();
    call(body)
}

/// Runs the body of an exported function. What it works on is behind locks that survive a panic, so going on afterwards is sound; that it happened is an
/// error like others. (Where the library was built to abort on panics, it aborts.)
///
/// For those that move data: all that they do makes system calls by itself, or says that it is [`Uncancelled`], and [`let_go`] sees to the rest. To say so for each call would take 17 ns, half of what a short message does.
pub fn call<T: Answer>(body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Failure::new(libc::ENOTRECOVERABLE, "a fault in libropeway: please report it")));
    outcome.unwrap_or_else(|failure| {
        // A thread that is ending has no place for the sentence any more.
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        let _ = SAID.try_with(|said| *said.borrow_mut() = text);
        // SAFETY: the C library gives every thread a valid place for it.
        unsafe { *libc::__errno_location() = failure.errno };
        T::FAILED
    })
}

/// The sentence, as C wants it: it stays until the thread's next call that fails.
pub fn said() -> *const c_char {
    SAID.try_with(|said| said.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    fn sentence() -> String {
        // SAFETY: the thread's own sentence, which no call changes meanwhile.
        unsafe { std::ffi::CStr::from_ptr(said()) }.to_str().unwrap().into()
    }

    #[test]
    fn panics_and_failures_become_numbers_and_sentences() {
        assert_eq!(call(|| Ok(7)), 7);
        assert_eq!(call::<isize>(|| Err(Failure::new(libc::EAGAIN, "later\0 or never"))), -1);
        assert_eq!((errno(), sentence()), (libc::EAGAIN, "later  or never".into()));
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(call::<c_int>(|| panic!("by intention")), -1);
        std::panic::set_hook(hook);
        assert_eq!(errno(), libc::ENOTRECOVERABLE);
        assert!(sentence().contains("please report"), "{}", sentence());
    }
}
