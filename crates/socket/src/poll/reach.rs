//! How far into its sets `select` looks.
//!
//! The kernel looks no further than the process's table of descriptors is long, and that is as long as the highest number it
//! ever had. Programs rely on it: they give `getdtablesize()` beside sets of 1024 bits. Our own descriptors have high numbers,
//! so without a bound of our own the kernel would read, and write, what lies behind such a set.

use crate::rendezvous::client;
use crate::thread::Critical;
use crate::{fdtable, process};
use core::sync::atomic::{AtomicI64, Ordering};
use ropeway_shm::directory::Names;
use ropeway_shm::{processors, sys};

/// The bits of an `fd_set`: every set has room for them, whatever is in the table.
const LEAST_BITS: i64 = libc::FD_SETSIZE as i64;

/// The highest descriptor of the program that was found when it was looked for.
static HIGHEST_FOUND: AtomicI64 = AtomicI64::new(-1);

/// The first argument of `select` as the kernel would take it if the program's own descriptors were all there are.
pub fn within_table(nfds: i32) -> i32 {
    let (wanted, known) = (nfds as i64, HIGHEST_FOUND.load(Ordering::Relaxed).max(process::highest_fd()));
    if wanted <= LEAST_BITS || wanted <= table_with(known) {
        return nfds;
    }
    // Descriptors of other kinds than sockets come without our being told.
    let Some(found) = highest_of_the_program() else { return nfds };
    HIGHEST_FOUND.fetch_max(found, Ordering::Relaxed);
    wanted.min(table_with(found.max(known))) as i32
}

/// The size of the kernel's table of descriptors when `highest` is the highest number that it ever had.
fn table_with(highest: i64) -> i64 {
    /// So many are there from the start.
    const LEAST: u64 = 64;
    (highest.max(0) as u64 + 1).next_power_of_two().max(LEAST) as i64
}

/// The highest number of an open descriptor that is none of ours. None where the kernel does not tell.
#[cold]
fn highest_of_the_program() -> Option<i64> {
    const BATCH_BYTES: usize = 1024;
    let _critical = Critical::enter();
    let mut entries = [0u8; BATCH_BYTES];
    let mut highest = -1;
    // SAFETY: a C string, and a buffer that is writable for its length.
    unsafe {
        let path = c"/proc/self/fd".as_ptr().cast();
        let directory = sys::open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0).ok()? as i32;
        while let Ok(n @ 1..) = sys::getdents64(directory, entries.as_mut_ptr(), BATCH_BYTES) {
            let numbers = Names::of(&entries[..n]).filter_map(processors::number).map(|fd| fd as i32);
            let others = numbers.filter(|fd| *fd != directory && !fdtable::is_internal(*fd) && !client::owns_fd(*fd));
            highest = others.map(i64::from).fold(highest, i64::max);
        }
        let _ = sys::close(directory);
    }
    Some(highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_grows_as_the_kernels() {
        assert_eq!([-1, 0, 63, 64, 1500, 16384].map(table_with), [64, 64, 64, 128, 2048, 32768]);
    }
}
