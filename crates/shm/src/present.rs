//! Shared memory that is there before it is touched.
//!
//! The pages of a memfd come with the first touch. Where the kernel counts what it has promised (`vm.overcommit_memory = 2`) it may have
//! none to give by then, and whoever touches the page is ended by SIGBUS. There, and only there, they are made in advance.

use crate::{processors, sys};
use core::sync::atomic::{AtomicU32, Ordering};

/// Whether the kernel counts; 0 before it was asked.
static COUNTS: AtomicU32 = AtomicU32::new(0);
const DOES: u32 = 1;
const DOES_NOT: u32 = 2;

/// Asked once: an administrator decides it when the machine starts.
fn kernel_counts() -> bool {
    match COUNTS.load(Ordering::Relaxed) {
        0 => {
            let mut text = [0u8; 4];
            let n = processors::read_file(c"/proc/sys/vm/overcommit_memory".as_ptr().cast(), &mut text);
            let counts = text[..n].starts_with(b"2");
            COUNTS.store(if counts { DOES } else { DOES_NOT }, Ordering::Relaxed);
            counts
        }
        known => known == DOES,
    }
}

/// True when `bytes` from `at` on can be touched later without being refused a page. Kernels before 5.14 cannot tell.
///
/// # Safety
/// They lie in a shared mapping that is writable.
#[inline]
pub unsafe fn ensure(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: passed on to the caller.
    !kernel_counts() || unsafe { make(at, bytes) }
}

#[cold]
unsafe fn make(at: *mut u8, bytes: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    let before = at as usize % PAGE_BYTES;
    // SAFETY: the pages that the range lies in, of which nothing changes but that they are there.
    let made = unsafe { sys::madvise(at.sub(before).cast(), before + bytes, libc::MADV_POPULATE_WRITE) };
    matches!(made, Ok(_) | Err(libc::EINVAL))
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use crate::segment::{MIN_RING_BYTES, Pair, pair_bytes};
    use core::ptr;

    /// From now on as where the kernel counts. It costs other tests of the process some memory, no more.
    pub(crate) fn count() {
        COUNTS.store(DOES, Ordering::Relaxed);
    }

    /// Refuses every page of the range that is not there yet, as a kernel that has none to give; for as long as the descriptor is open. None
    /// where the test may not do that.
    pub(crate) fn refuse(at: *mut u8, bytes: usize) -> Option<i32> {
        const UFFD_API: u64 = 0xaa;
        const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
        const UFFDIO_API: u64 = 0xc018_aa3f;
        const UFFDIO_REGISTER: u64 = 0xc020_aa00;
        const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
        // SAFETY: the structures are those of linux/userfaultfd.h; the range is the caller's own.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            let mut api = [UFFD_API, UFFD_FEATURE_SIGBUS, 0];
            let mut register = [at as u64, bytes as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
            let done = fd >= 0
                && sys::ioctl(fd, UFFDIO_API, &raw mut api as usize).is_ok()
                && sys::ioctl(fd, UFFDIO_REGISTER, &raw mut register as usize).is_ok();
            done.then_some(fd)
        }
    }

    #[test]
    fn a_mapped_pair_has_all_its_pages() {
        count();
        // SAFETY: a file of the size that the pair needs; the structure is filled in by the kernel.
        unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            let fd = sys::memfd_create(c"test".as_ptr().cast(), flags).expect("a memfd") as i32;
            sys::ftruncate(fd, pair_bytes(MIN_RING_BYTES) as libc::off_t).expect("room");
            sys::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK as usize).expect("sealed");
            Pair::map(fd, MIN_RING_BYTES, 0).expect("mapped").unmap();
            let mut file: libc::stat = core::mem::zeroed();
            assert_eq!(libc::fstat(fd, &mut file), 0);
            assert_eq!(file.st_blocks as usize * 512, pair_bytes(MIN_RING_BYTES));
            sys::close(fd).expect("close");
        }
    }

    #[test]
    fn pages_are_made_or_found_missing() {
        // SAFETY: a new file of a page, in a mapping of two: behind the file there can be none.
        unsafe {
            let fd = sys::memfd_create(c"test".as_ptr().cast(), libc::MFD_CLOEXEC).expect("a memfd") as i32;
            sys::ftruncate(fd, 4096).expect("a page");
            let at = sys::mmap(ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0);
            let at = at.expect("mapped") as *mut u8;
            assert!(make(at, 1) && make(at.add(100), 3996));
            assert!(!make(at.add(100), 3997) && !make(at.add(4096), 1));
            sys::close(fd).expect("close");
        }
    }
}
