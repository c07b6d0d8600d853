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
    let mut sets = sets.into_iter().filter(|set| !set.is_null());
    // Where a filter forbids to look, the program knows what it gives.
    sets.try_fold(known, |size, set| size_with(set as usize, size, wanted)).map_or(nfds, |size| size.min(wanted) as i32)
}

/// The size of the kernel's table of descriptors when `highest` is the highest number that it ever had.
fn table_with(highest: i64) -> usize {
    /// So many are there from the start.
    const LEAST: u64 = 64;
    (highest.max(0) as u64 + 1).next_power_of_two().max(LEAST) as usize
}

/// The size of a table of `size` at least, when the program's descriptors that `set` names are in it as well. What names none of
/// them is not part of the set any more; but some of them may have been closed.
fn size_with(set: usize, mut size: usize, wanted: usize) -> sys::Result<usize> {
    /// Behind a set of the usual size may be anything, and each of these is a system call.
    const MOST_CLOSED: usize = 16;
    let (mut from, mut closed) = (size, 0);
    while closed < MOST_CLOSED
        && let Some(fd) = first_from(set, from, wanted)?
    {
        if is_the_programs(fd as c_int) {
            size = table_with(fd as i64);
            from = size;
        } else {
            closed += 1;
            from = fd + 1;
        }
    }
    Ok(size)
}

fn is_the_programs(fd: c_int) -> bool {
    !fdtable::is_internal(fd) && !client::owns_fd(fd) && sys::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// The first number in `set` from `from` on and below `end`. None, too, where the set's memory ends before. It is read by a system
/// call: nobody may be there to catch a fault.
fn first_from(set: usize, from: usize, end: usize) -> sys::Result<Option<usize>> {
    const BATCH_WORDS: usize = 256;
    let mut words = [0u64; BATCH_WORDS];
    let first_word = from / WORD_BITS;
    for batch in (first_word..end.div_ceil(WORD_BITS)).step_by(BATCH_WORDS) {
        let count = BATCH_WORDS.min(end.div_ceil(WORD_BITS) - batch);
        let Some(at) = set.checked_add(batch * size_of::<u64>()) else { return Ok(None) };
        let to = iovec { iov_base: words.as_mut_ptr().cast(), iov_len: count * size_of::<u64>() };
        let there = iovec { iov_base: at as *mut c_void, ..to };
        // SAFETY: the words are writable, and any bytes are some; what cannot be read is an error.
        let bytes = match unsafe { sys::process_vm_readv(process::pid() as c_int, &to, 1, &there, 1, 0) } {
            Err(libc::EFAULT) => 0,
            read => read?,
        };
        let read = &mut words[..bytes / size_of::<u64>()];
        if batch == first_word
            && let Some(first) = read.first_mut()
        {
            *first &= u64::MAX << (from % WORD_BITS);
        }
        if let Some(i) = read.iter().position(|word| *word != 0) {
            let number = (batch + i) * WORD_BITS + read[i].trailing_zeros() as usize;
            return Ok(Some(number).filter(|fd| *fd < end));
        }
        if read.len() < count {
            return Ok(None);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;
    use std::sync::{Mutex, PoisonError};

    /// Which numbers are open is the whole process's.
    static NUMBERS: Mutex<()> = Mutex::new(());

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
        let _numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        for behind in [0, u64::MAX] {
            assert_eq!(reach(&[behind; BITS / WORD_BITS]), LEAST_BITS as i32);
        }
    }

    #[test]
    fn a_set_reaches_as_far_as_the_programs_descriptors_in_it_and_not_for_ours() {
        // Far from those that other tests of this process have moved up.
        const HIGH: usize = 16_500;
        let _numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
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
        // One before it that was closed is the program's as well: the kernel says so.
        set[1500 / WORD_BITS] = 1 << (1500 % WORD_BITS);
        assert_eq!(reach(&set), 32_768);
        set[1500 / WORD_BITS] = 0;
        fdtable::enter_internal(fd);
        assert_eq!(reach(&set), LEAST_BITS as i32);
        fdtable::remove(fd);
        assert_eq!(reach(&set), 32_768);
        sys::close(fd).expect("it is open");
        assert_eq!(reach(&set), LEAST_BITS as i32);
    }
}
