//! How far into its sets `select` looks.
//!
//! The kernel looks no further than the process's table of descriptors is long, and that is as long as the highest number it
//! ever had. Programs rely on it: they give `getdtablesize()` beside sets of 1024 bits. Our own descriptors have high numbers,
//! so without a bound of our own the kernel would read, and write, what lies behind such a set.
//!
//! Descriptors of other kinds than sockets come without our being told. Where there are any with high numbers, a set that is
//! long enough for them names them.

use crate::rendezvous::client;
use crate::{fdtable, process};
use core::ffi::{c_int, c_void};
use libc::iovec;
use ropeway_shm::sys;

/// The bits of an `fd_set`: every set has room for them, whatever is in the table.
const LEAST_BITS: usize = libc::FD_SETSIZE;
const WORD_BITS: usize = u64::BITS as usize;

/// The first argument of `select` as the kernel would take it if the program's own descriptors were all there are.
pub fn within_table(nfds: i32, sets: [*const c_void; 3]) -> i32 {
    let wanted = nfds.max(0) as usize;
    let known = table_with(process::highest_fd()).max(LEAST_BITS);
    if wanted <= known {
        return nfds;
    }
    let sets = sets.into_iter().filter(|set| !set.is_null());
    sets.fold(known, |size, set| size_with(set as usize, size, wanted)).min(wanted) as i32
}

/// The size of the kernel's table of descriptors when `highest` is the highest number that it ever had.
fn table_with(highest: i64) -> usize {
    /// So many are there from the start.
    const LEAST: u64 = 64;
    (highest.max(0) as u64 + 1).next_power_of_two().max(LEAST) as usize
}

/// The size of a table of `size` at least, when the program's descriptors that `set` names are in it as well. What names none of
/// them is not part of the set any more.
fn size_with(set: usize, mut size: usize, wanted: usize) -> usize {
    while let Some(fd) = first_from(set, size, wanted)
        && is_the_programs(fd as c_int)
    {
        size = table_with(fd as i64);
    }
    size
}

fn is_the_programs(fd: c_int) -> bool {
    !fdtable::is_internal(fd) && !client::owns_fd(fd) && sys::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// The first number in `set` from `from` on, a multiple of the bits in a word, and below `end`. None, too, where the set's memory
/// ends before. It is read by a system call: nobody may be there to catch a fault.
fn first_from(set: usize, from: usize, end: usize) -> Option<usize> {
    const BATCH_WORDS: usize = 256;
    let mut words = [0u64; BATCH_WORDS];
    for batch in (from / WORD_BITS..end.div_ceil(WORD_BITS)).step_by(BATCH_WORDS) {
        let count = BATCH_WORDS.min(end.div_ceil(WORD_BITS) - batch);
        let at = set.checked_add(batch * size_of::<u64>())?;
        let to = iovec { iov_base: words.as_mut_ptr().cast(), iov_len: count * size_of::<u64>() };
        let from = iovec { iov_base: at as *mut c_void, ..to };
        // SAFETY: the words are writable, and any bytes are some; what cannot be read is an error.
        let bytes = unsafe { sys::process_vm_readv(process::pid() as c_int, &to, 1, &from, 1, 0) }.unwrap_or(0);
        let read = &words[..bytes / size_of::<u64>()];
        if let Some(i) = read.iter().position(|word| *word != 0) {
            return Some((batch + i) * WORD_BITS + read[i].trailing_zeros() as usize).filter(|fd| *fd < end);
        }
        if read.len() < count {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    const BITS: usize = 1 << 16;

    #[test]
    fn the_table_grows_as_the_kernels() {
        assert_eq!([-1, 0, 63, 64, 1500, 16384].map(table_with), [64, 64, 64, 128, 2048, 32768]);
    }

    fn reach(set: &[u64]) -> i32 {
        within_table(BITS as i32, [ptr::null(), set.as_ptr().cast(), ptr::null()])
    }

    #[test]
    fn what_is_behind_a_set_of_the_usual_size_is_none_of_it() {
        for behind in [0, u64::MAX] {
            assert_eq!(reach(&[behind; BITS / WORD_BITS]), LEAST_BITS as i32);
        }
    }

    #[test]
    fn a_set_reaches_as_far_as_the_programs_descriptors_in_it_and_not_for_ours() {
        const HIGH: usize = 16_390;
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is valid in both calls.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        let fd = sys::fcntl(0, libc::F_DUPFD_CLOEXEC, HIGH).expect("room for high numbers") as c_int;
        let mut set = [0; BITS / WORD_BITS];
        set[fd as usize / WORD_BITS] = 1 << (fd as usize % WORD_BITS);
        assert_eq!(reach(&set), 32_768);
        fdtable::enter_internal(fd);
        assert_eq!(reach(&set), LEAST_BITS as i32);
        fdtable::remove(fd);
        assert_eq!(reach(&set), 32_768);
        sys::close(fd).expect("it is open");
        assert_eq!(reach(&set), LEAST_BITS as i32);
    }
}
