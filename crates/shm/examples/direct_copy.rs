//! What a direct copy out of another process's memory gives (`process_vm_readv`), against which the ring's two overlapping
//! copies have to be held (`ropeway bench stream --size SIZE`): decision 0002.
//!
//! `cargo run --release -p ropeway-shm --example direct_copy`

use ropeway_shm::sys;
use std::time::{Duration, Instant};

const MOST: usize = 64 << 20;
const ROUND: Duration = Duration::from_millis(300);

/// GB/s of copies of `size` bytes each from the same place of process `pid`, as a sender that uses its buffer again has it;
/// `step` moves both places on after each copy, as one has it whose data is not in the cache.
fn rate(pid: i32, source: &[u8], target: &mut [u8], size: usize, step: usize) -> f64 {
    let (start, mut bytes, mut at) = (Instant::now(), 0usize, 0usize);
    while start.elapsed() < ROUND {
        let local = libc::iovec { iov_base: target[at..].as_mut_ptr().cast(), iov_len: size };
        let remote = libc::iovec { iov_base: source[at..].as_ptr().cast_mut().cast(), iov_len: size };
        // SAFETY: `size` writable bytes here; the child has the same memory at the same address.
        bytes += unsafe { sys::process_vm_readv(pid, &local, 1, &remote, 1, 0) }.expect("process_vm_readv");
        at = if at + step + size <= MOST { at + step } else { 0 };
    }
    bytes as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let source = vec![7u8; MOST];
    let mut target = vec![0u8; MOST];
    // SAFETY: the child makes no call but `pause`, until it is killed.
    let pid = match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: no pointers.
            unsafe { libc::pause() };
        },
        pid => pid,
    };
    println!("{:>10}  {:>14}  {:>14}", "bytes", "same place", "moving on");
    for size in [16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20] {
        let same = rate(pid, &source, &mut target, size, 0);
        let moving = rate(pid, &source, &mut target, size, size);
        println!("{size:>10}  {same:>9.1} GB/s  {moving:>9.1} GB/s");
    }
    let _ = sys::kill(pid, libc::SIGKILL);
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}
