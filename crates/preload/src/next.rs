//! Where hooks go on to: the next library in search order that defines the name, which usually is the C library.
//!
//! All names are looked up once, in our constructor. A hook that is called earlier (another library's constructor, an
//! allocator that starts itself) makes the system call directly where there is one of the name, so that `dlsym`, which
//! may allocate, never runs inside somebody's allocator.

use crate::hook::answer;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{FILE, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval};
use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, rlimit, sigaction as sigaction_t,
};
use ropeway_shm::sys;

/// The function that a name leads to.
pub struct Slot {
    name: &'static str,
    address: AtomicPtr<()>,
}

impl Slot {
    const fn new(name: &'static str, early: *mut ()) -> Slot {
        Slot { name, address: AtomicPtr::new(early) }
    }

    /// The address to call; never null.
    #[inline(always)]
    pub fn get(&self) -> *mut () {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    /// Looks the name up. When nobody defines it, what was there before stays: the system call, or [`missing`].
    #[cold]
    fn find(&self) -> *mut () {
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) }.cast::<()>();
        if !found.is_null() {
            self.address.store(found, Ordering::Relaxed);
            return found;
        }
        let early = self.address.load(Ordering::Relaxed);
        if early.is_null() { missing as *mut () } else { early }
    }
}

/// Stands in for a function that this C library does not have.
extern "C" fn missing() -> isize {
    answer(-(libc::ENOSYS as isize))
}

/// The system call `NR` in the C library's clothes.
unsafe extern "C" fn system_call<const NR: i64>(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    // SAFETY: passed on to the caller.
    answer(unsafe { sys::syscall6(NR, a, b, c, d, e, f) })
}

/// Looks all names up.
pub fn find_all() {
    for slot in ALL {
        slot.find();
    }
}

/// The address behind any name in search order, or null.
pub fn find_anywhere(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Lists the names. Those after `jump:` take variable arguments and are reached through their slot alone; a name followed
/// by a system call stands for that call until it is looked up.
macro_rules! next {
    (jump: $($jump:ident)*; $($name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $(= $nr:ident)?;)*) => {
        #[allow(non_upper_case_globals, reason = "named like the functions they lead to")]
        pub mod slots {
            use super::*;
            $(pub static $jump: Slot = Slot::new(concat!(stringify!($jump), "\0"), core::ptr::null_mut());)*
            $(pub static $name: Slot = Slot::new(concat!(stringify!($name), "\0"), next!(@early $($nr)?));)*
        }
        static ALL: &[&Slot] = &[$(&slots::$jump,)* $(&slots::$name),*];
        $(
            /// The next function of this name.
            ///
            /// # Safety
            /// As for the C function.
            #[allow(non_snake_case, reason = "some C names have capitals")]
            #[inline(always)]
            pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the name has this type in C; the caller keeps its contract.
                unsafe {
                    let f: unsafe extern "C" fn($($ty),*) $(-> $ret)? = core::mem::transmute(slots::$name.get());
                    f($($arg),*)
                }
            }
        )*
    };
    (@early) => { core::ptr::null_mut() };
    (@early $nr:ident) => { system_call::<{ libc::$nr }> as *mut () };
}

type Str = *const c_char;
type Strs = *const *const c_char;

next! {
    jump: dprintf vdprintf __dprintf_chk __vdprintf_chk dlopen;

    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = SYS_read;
    readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = SYS_readv;
    preadv2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> ssize_t = SYS_recvfrom;
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = SYS_recvmsg;
    recvmmsg(fd: c_int, vec: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = SYS_recvmmsg;
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = SYS_write;
    writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = SYS_writev;
    pwritev2(fd: c_int, iov: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, len: socklen_t) -> ssize_t = SYS_sendto;
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = SYS_sendmsg;
    sendmmsg(fd: c_int, vec: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = SYS_sendmmsg;
    __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t;
    __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) -> ssize_t;

    sendfile(out: c_int, file: c_int, at: *mut off_t, n: size_t) -> ssize_t = SYS_sendfile;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, n: size_t, flags: c_uint) -> ssize_t = SYS_splice;
    aio_read(cb: *mut libc::aiocb) -> c_int;
    aio_write(cb: *mut libc::aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut libc::aiocb, n: c_int, event: *mut libc::sigevent) -> c_int;

    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = SYS_socket;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = SYS_accept;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = SYS_accept4;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = SYS_connect;
    shutdown(fd: c_int, how: c_int) -> c_int = SYS_shutdown;
    close(fd: c_int) -> c_int = SYS_close;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = SYS_close_range;
    closefrom(first: c_int);
    dup(fd: c_int) -> c_int = SYS_dup;
    dup2(old: c_int, new: c_int) -> c_int = SYS_dup2;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int = SYS_dup3;
    pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int = SYS_pidfd_getfd;
    fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int = SYS_fcntl;
    ioctl(fd: c_int, request: usize, arg: usize) -> c_int = SYS_ioctl;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = SYS_setsockopt;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = SYS_getsockopt;

    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = SYS_poll;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int;
    __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int = SYS_select;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int = SYS_epoll_create;
    epoll_create1(flags: c_int) -> c_int = SYS_epoll_create1;
    epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = SYS_epoll_ctl;
    epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = SYS_epoll_wait;
    epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;

    fork() -> pid_t;
    _Fork() -> pid_t;
    daemon(nochdir: c_int, noclose: c_int) -> c_int;
    forkpty(master: *mut c_int, name: *mut c_char, termios: *const c_void, size: *const c_void) -> pid_t;
    login_tty(fd: c_int) -> c_int;
    clone(f: *mut c_void, stack: *mut c_void, flags: c_int, arg: *mut c_void, ptid: usize, tls: usize, ctid: usize) -> c_int;
    unshare(flags: c_int) -> c_int = SYS_unshare;
    setns(namespace: c_int, kind: c_int) -> c_int = SYS_setns;
    prctl(option: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int = SYS_prctl;
    execve(path: Str, argv: Strs, envp: Strs) -> c_int = SYS_execve;
    execv(path: Str, argv: Strs) -> c_int;
    execvp(file: Str, argv: Strs) -> c_int;
    execvpe(file: Str, argv: Strs, envp: Strs) -> c_int;
    fexecve(fd: c_int, argv: Strs, envp: Strs) -> c_int;
    execveat(dir: c_int, path: Str, argv: Strs, envp: Strs, flags: c_int) -> c_int = SYS_execveat;
    posix_spawn(pid: *mut pid_t, path: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs) -> c_int;
    posix_spawnp(pid: *mut pid_t, file: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int;
    system(command: Str) -> c_int;
    popen(command: Str, mode: Str) -> *mut FILE;
    _exit(status: c_int) -> ! = SYS_exit_group;
    _Exit(status: c_int) -> ! = SYS_exit_group;
    quick_exit(status: c_int) -> !;

    fdopen(fd: c_int, mode: Str) -> *mut FILE;
    freopen(path: Str, mode: Str, stream: *mut FILE) -> *mut FILE;
    freopen64(path: Str, mode: Str, stream: *mut FILE) -> *mut FILE;
    fclose(stream: *mut FILE) -> c_int;
    fileno(stream: *mut FILE) -> c_int;

    sigaction(sig: c_int, new: *const sigaction_t, old: *mut sigaction_t) -> c_int;

    getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int = SYS_getrlimit;
    setrlimit(resource: c_uint, limit: *const rlimit) -> c_int = SYS_setrlimit;
    prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int = SYS_prlimit64;
    syscall(nr: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}

/// Not looked up at start: where no library has them, every program would pay for the search in vain.
pub mod late {
    use super::*;
    macro_rules! late {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => { $(
            /// The next function of this name.
            ///
            /// # Safety
            /// As for the C function.
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                static SLOT: Slot = Slot::new(concat!(stringify!($name), "\0"), core::ptr::null_mut());
                // SAFETY: the name has this type in C; the caller keeps its contract.
                unsafe {
                    let f: unsafe extern "C" fn($($ty),*) -> $ret = core::mem::transmute(SLOT.get());
                    f($($arg),*)
                }
            }
        )* };
    }
    late! {
        pidfd_spawn(pidfd: *mut c_int, path: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs) -> c_int;
        pidfd_spawnp(pidfd: *mut c_int, file: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs) -> c_int;
        io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int;
        io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
        io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int;
    }
}
