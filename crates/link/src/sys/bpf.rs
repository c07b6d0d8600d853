//! The few calls of `bpf(2)` that redirecting frames to a socket takes: a map of sockets, a program, its attachment to a device, and another program in
//! its place.

use super::syscall;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: usize = 0;
const MAP_UPDATE_ELEM: usize = 2;
const PROG_LOAD: usize = 5;
const LINK_CREATE: usize = 28;
const LINK_UPDATE: usize = 29;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;

/// Bytes of the kernel's `union bpf_attr` that are filled here, at most; the kernel takes the rest as zero.
const ATTRIBUTE_BYTES: usize = 72;

/// The arguments of one call, written at the offsets that `linux/bpf.h` gives them.
struct Attribute([u8; ATTRIBUTE_BYTES]);

impl Attribute {
    fn new() -> Attribute {
        Attribute([0; ATTRIBUTE_BYTES])
    }

    fn u32(mut self, at: usize, value: u32) -> Attribute {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attribute {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn pointer<T>(mut self, at: usize, to: &[T]) -> Attribute {
        self.0[at..at + 8].copy_from_slice(&(to.as_ptr() as u64).to_ne_bytes());
        self
    }

    /// # Safety
    /// All pointers written into it lead to memory that lives, and has the length that the call expects.
    unsafe fn call(&self, command: usize) -> io::Result<usize> {
        // SAFETY: by the caller; the kernel reads `ATTRIBUTE_BYTES` bytes from here.
        unsafe { syscall(libc::SYS_bpf, [command, self.0.as_ptr() as usize, ATTRIBUTE_BYTES, 0, 0, 0]) }
    }
}

fn descriptor(number: usize) -> OwnedFd {
    // SAFETY: the kernel just made it for us.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}

/// Makes a map from receive queues to sockets.
pub fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let attribute = Attribute::new().u32(0, MAP_TYPE_XSKMAP).u32(4, 4).u32(8, 4).u32(12, queues);
    // SAFETY: there are no pointers in it.
    unsafe { attribute.call(MAP_CREATE) }.map(descriptor)
}

/// Enters a socket into such a map.
pub fn enter(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = ([queue], [socket.as_raw_fd() as u32]);
    let attribute = Attribute::new().fd(0, map).pointer(8, &key).pointer(16, &value);
    // SAFETY: the map has keys and values of 4 bytes each.
    unsafe { attribute.call(MAP_UPDATE_ELEM) }.map(drop)
}

/// Loads an XDP program. The kernel's verifier reads it first.
pub fn load(program: &[u64]) -> io::Result<OwnedFd> {
    const LICENSE: &[u8] = b"Dual MIT/GPL\0";
    let attribute = Attribute::new().u32(0, PROG_TYPE_XDP).u32(4, program.len() as u32).pointer(8, program);
    let attribute = attribute.pointer(16, LICENSE).u32(68, ATTACH_TYPE_XDP);
    // A signal would end the verifier's work, which may take longer than signals are apart.
    let _later = SignalsLater::begin();
    // SAFETY: so many instructions of 8 bytes, and a string with its closing zero.
    unsafe { attribute.call(PROG_LOAD) }.map(descriptor)
}

/// Signals for this thread wait until this is dropped.
struct SignalsLater(libc::sigset_t);

impl SignalsLater {
    fn begin() -> SignalsLater {
        // SAFETY: a set is plain bits, which sigfillset sets; both pointers are valid.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            SignalsLater(before)
        }
    }
}

impl Drop for SignalsLater {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Attaches a program to a device until the descriptor is closed, so that nothing stays behind whatever happens to this process.
pub fn attach(program: BorrowedFd<'_>, device: u32, flags: u32) -> io::Result<OwnedFd> {
    let attribute = Attribute::new().fd(0, program).u32(4, device).u32(8, ATTACH_TYPE_XDP).u32(12, flags);
    // SAFETY: there are no pointers in it.
    unsafe { attribute.call(LINK_CREATE) }.map(descriptor)
}

/// Puts another program in the place of an attached one; no frame misses both.
pub fn replace(attachment: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attribute = Attribute::new().fd(0, attachment).fd(4, program);
    // SAFETY: there are no pointers in it.
    unsafe { attribute.call(LINK_UPDATE) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_testkit::need_root;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    extern "C" fn nothing(_: i32) {}

    #[test]
    fn signals_keep_nobody_from_loading_a_program() {
        need_root!();
        // 2 into register 0, so often that it takes the verifier a while, and the end.
        let program = [vec![0x2_0000_00b7; 4000], vec![0x95]].concat();
        // SAFETY: a handler that does nothing, for a signal that nobody else here uses.
        unsafe { libc::signal(libc::SIGURG, nothing as *const () as libc::sighandler_t) };
        // SAFETY: has no arguments and cannot fail.
        let loader = unsafe { libc::pthread_self() };
        let ends = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(loader, libc::SIGURG) };
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            let failed = (0..500).find_map(|_| load(&program).err());
            ends.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_none(), "{failed:?}");
    }
}
