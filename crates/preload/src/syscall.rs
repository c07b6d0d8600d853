//! `syscall`: system calls by number. Those that have a hook go through it, the others straight to the kernel.

use crate::{
    exec, exit, fork, hook, io, lifecycle, messages, next, options, splice, startup, transfer, vfork, wait,
    whole_process,
};
use core::arch::naked_asm;
use core::ffi::{c_int, c_long};
use libc::{sigset_t, timespec};
use ropeway_shm::{guarded, sys};
use ropeway_socket::wait::{time_of, time_until};

/// # Safety
/// As for the C function of this name.
///
/// `vfork` must not return through a frame of ours, which its child would overwrite.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() -> c_long {
    naked_asm!(
        "cmp rdi, {vfork_nr}",
        "je {vfork}",
        "jmp {other}",
        vfork_nr = const libc::SYS_vfork,
        vfork = sym vfork::vfork,
        other = sym by_number,
    )
}

unsafe extern "C" fn by_number(nr: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: the program's own arguments, for the function of the same meaning.
    unsafe {
        match hooked(nr, [a, b, c, d, e, f]) {
            Some(r) => r as c_long,
            None => next::syscall(nr, a, b, c, d, e, f),
        }
    }
}

/// Calls the hook of a system call. None when there is none, or nothing of ours is concerned.
#[rustfmt::skip]
unsafe fn hooked(nr: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<isize> {
    if !startup::active() || vfork::in_child() {
        return None;
    }
    let fd = a as c_int;
    // SAFETY: passed on to the caller.
    unsafe {
        Some(match nr {
            libc::SYS_read => io::read(fd, b as _, c),
            libc::SYS_write => io::write(fd, b as _, c),
            libc::SYS_readv => io::readv(fd, b as _, c as _),
            libc::SYS_writev => io::writev(fd, b as _, c as _),
            libc::SYS_preadv2 => io::preadv2(fd, b as _, c as _, d as _, f as _),
            libc::SYS_pwritev2 => io::pwritev2(fd, b as _, c as _, d as _, f as _),
            libc::SYS_recvfrom => io::recvfrom(fd, b as _, c, d as _, e as _, f as _),
            libc::SYS_sendto => io::sendto(fd, b as _, c, d as _, e as _, f as _),
            libc::SYS_recvmsg => messages::recvmsg(fd, b as _, c as _),
            libc::SYS_sendmsg => messages::sendmsg(fd, b as _, c as _),
            libc::SYS_recvmmsg => messages::recvmmsg(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_sendmmsg => messages::sendmmsg(fd, b as _, c as _, d as _) as isize,
            libc::SYS_sendfile => transfer::sendfile(fd, b as _, c as _, d),
            libc::SYS_splice => splice::splice(fd, b as _, c as _, d as _, e, f as _),
            libc::SYS_socket => lifecycle::socket(fd, b as _, c as _) as isize,
            libc::SYS_accept => lifecycle::accept(fd, b as _, c as _) as isize,
            libc::SYS_accept4 => lifecycle::accept4(fd, b as _, c as _, d as _) as isize,
            libc::SYS_connect => lifecycle::connect(fd, b as _, c as _) as isize,
            libc::SYS_shutdown => lifecycle::shutdown(fd, b as _) as isize,
            libc::SYS_close => lifecycle::close(fd) as isize,
            libc::SYS_close_range => lifecycle::close_range(a as _, b as _, c as _) as isize,
            libc::SYS_dup => lifecycle::dup(fd) as isize,
            libc::SYS_dup2 => lifecycle::dup2(fd, b as _) as isize,
            libc::SYS_dup3 => lifecycle::dup3(fd, b as _, c as _) as isize,
            libc::SYS_pidfd_getfd => lifecycle::pidfd_getfd(fd, b as _, c as _) as isize,
            libc::SYS_fcntl => lifecycle::fcntl(fd, b as _, c) as isize,
            libc::SYS_ioctl => options::ioctl(fd, b, c) as isize,
            libc::SYS_setsockopt => options::setsockopt(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_getsockopt => options::getsockopt(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_poll => wait::poll(a as _, b as _, c as _) as isize,
            libc::SYS_ppoll if wait::following_any() && is_mask(d, e) => timed(c as _, || wait::ppoll(a as _, b as _, c as _, d as _)),
            libc::SYS_select => wait::select(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_pselect6 if wait::following_any() => {
                let mask = mask_of_pselect6(f)?;
                timed(e as _, || wait::pselect(fd, b as _, c as _, d as _, e as _, mask))
            }
            libc::SYS_epoll_create => wait::epoll_create(fd) as isize,
            libc::SYS_epoll_create1 => wait::epoll_create1(fd) as isize,
            libc::SYS_epoll_ctl => wait::epoll_ctl(fd, b as _, c as _, d as _) as isize,
            libc::SYS_epoll_wait => wait::epoll_wait(fd, b as _, c as _, d as _) as isize,
            libc::SYS_epoll_pwait if is_mask(e, f) => wait::epoll_pwait(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_epoll_pwait2 if is_mask(e, f) => wait::epoll_pwait2(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_execve => exec::execve(a as _, b as _, c as _) as isize,
            libc::SYS_execveat => exec::execveat(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_fork => hook::answer(fork::around(0, || sys::syscall6(nr, 0, 0, 0, 0, 0, 0))),
            libc::SYS_clone | libc::SYS_clone3 => {
                let flags = if nr == libc::SYS_clone { a } else { flags_of_clone3(a)? };
                fork::before_clone(flags);
                if !fork::copies_memory(flags) {
                    return None;
                }
                // With memory of its own the child may come back through this frame: it has a copy.
                hook::answer(fork::around(flags, || sys::syscall6(nr, a, b, c, d, e, f)))
            }
            libc::SYS_unshare => whole_process::unshare(a as _) as isize,
            libc::SYS_setns => whole_process::setns(fd, b as _) as isize,
            libc::SYS_prctl => whole_process::prctl(a as _, b, c, d, e) as isize,
            libc::SYS_getrlimit => whole_process::getrlimit(a as _, b as _) as isize,
            libc::SYS_setrlimit => whole_process::setrlimit(a as _, b as _) as isize,
            libc::SYS_prlimit64 => whole_process::prlimit(a as _, b as _, c as _, d as _) as isize,
            libc::SYS_io_uring_setup if !whole_process::io_uring_allowed() => hook::fail(libc::ENOSYS),
            libc::SYS_exit_group => {
                exit::leave();
                return None;
            }
            _ => {
                whole_process::before_system_call(nr, a, b, c);
                return None;
            }
        })
    }
}

/// The flags are the first word of the system call's structure. None where the kernel finds none.
unsafe fn flags_of_clone3(arguments: usize) -> Option<usize> {
    // SAFETY: the program's structure.
    guarded::is_readable(arguments, size_of::<u64>()).then(|| unsafe { *(arguments as *const u64) } as usize)
}

/// The size that the kernel demands of a signal set; a system call with another one is left to it.
fn is_mask(mask: usize, bytes: usize) -> bool {
    mask == 0 || bytes == sys::SIGSET_BYTES
}

/// The system call takes its signal set in a structure of pointer and size. None for one that the kernel refuses.
unsafe fn mask_of_pselect6(argument: usize) -> Option<*const sigset_t> {
    if argument == 0 {
        return Some(core::ptr::null());
    }
    if !guarded::is_readable(argument, size_of::<[usize; 2]>()) {
        return None;
    }
    // SAFETY: the program's structure.
    let [mask, bytes] = unsafe { *(argument as *const [usize; 2]) };
    is_mask(mask, bytes).then_some(mask as *const sigset_t)
}

/// A wait whose system call, unlike the C library's function, tells what is left of the time-out.
unsafe fn timed(timeout: *mut timespec, call: impl FnOnce() -> c_int) -> isize {
    let begun = sys::monotonic_ns();
    // SAFETY: null, or a time that was found to be there.
    let time = unsafe {
        let there = timeout.is_null() || guarded::is_readable(timeout as usize, size_of::<timespec>());
        if there { time_of(timeout).flatten() } else { None }
    };
    let r = call();
    if let Some(ns) = time.filter(|ns| *ns > 0) {
        // SAFETY: the program's time-out. What cannot be written stays as it is, as in the kernel.
        unsafe { wait::tell(timeout, time_until(begun.saturating_add(ns))) };
    }
    r as isize
}
