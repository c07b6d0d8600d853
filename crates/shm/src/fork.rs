//! Knowing a forked child from the process that made something: a page that the kernel wipes in children (`MADV_WIPEONFORK`), so that asking costs one load and
//! no hook in the C library is needed.

use std::sync::atomic::{AtomicU32, Ordering};

const PAGE_BYTES: usize = 4096;

/// Says whether this process made it, or is a child that inherited the memory.
#[derive(Debug)]
pub struct Birthmark {
    page: *const AtomicU32,
}

// SAFETY: the page is only read after it was made, and unmapped by its only owner.
unsafe impl Send for Birthmark {}
// SAFETY: as above; the word is atomic.
unsafe impl Sync for Birthmark {}

impl Birthmark {
    /// # Errors
    /// No memory, or a kernel before 4.14.
    pub fn new() -> std::io::Result<Birthmark> {
        // SAFETY: a private anonymous mapping of one page touches nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mark = Birthmark { page: page.cast_const().cast() };
        // SAFETY: the page is ours and mapped.
        if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped until drop, page-aligned, and large enough; only this process sees it.
        unsafe { &*self.page }
    }

    /// This process is a child of the one that made the mark.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }
}

impl Drop for Birthmark {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and is not used after this.
        unsafe { libc::munmap(self.page.cast_mut().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_that_it_is_one() {
        let mark = Birthmark::new().unwrap();
        assert!(!mark.is_inherited());
        // SAFETY: the child only loads a word and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!mark.is_inherited())) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!mark.is_inherited());
    }
}
