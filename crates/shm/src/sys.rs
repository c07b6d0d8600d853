//! System calls made directly, without the C library.
//!
//! The preload exports `read`, `close`, `poll` and many more under their C names. Code that runs inside a hook must not
//! call those names, or it would call itself. Everything here enters the kernel by the `syscall` instruction, touches
//! neither `errno` nor thread cancellation, allocates nothing and is async-signal-safe.
//!
//! Results are `Ok(value)` or `Err(errno)`.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{c_int, c_void, off_t, sockaddr_un, timespec};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("Ropeway's preload supports x86-64 Linux only for now");

/// An error number of the kernel, positive.
pub type Errno = c_int;
pub type Result<T> = core::result::Result<T, Errno>;

/// Enters the kernel with six arguments and returns its raw answer (`-errno` on failure).
///
/// # Safety
/// The caller upholds what the named system call requires of its arguments.
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the register convention of x86-64 Linux; rcx and r11 are clobbered by the instruction.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

#[inline(always)]
fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) { Err(-ret as Errno) } else { Ok(ret as usize) }
}

macro_rules! call {
    ($nr:expr $(, $arg:expr)*) => { check(call!(@pad $nr; $($arg as usize),*)) };
    (@pad $nr:expr; ) => { syscall6($nr, 0, 0, 0, 0, 0, 0) };
    (@pad $nr:expr; $a:expr) => { syscall6($nr, $a, 0, 0, 0, 0, 0) };
    (@pad $nr:expr; $a:expr, $b:expr) => { syscall6($nr, $a, $b, 0, 0, 0, 0) };
    (@pad $nr:expr; $a:expr, $b:expr, $c:expr) => { syscall6($nr, $a, $b, $c, 0, 0, 0) };
    (@pad $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr) => { syscall6($nr, $a, $b, $c, $d, 0, 0) };
    (@pad $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => { syscall6($nr, $a, $b, $c, $d, $e, 0) };
    (@pad $nr:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => { syscall6($nr, $a, $b, $c, $d, $e, $f) };
}

/// Calls that take no pointers: safe for any argument, at worst an error.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $nr:ident;)*) => { $(
        $(#[$doc])*
        #[inline]
        pub fn $name($($arg: $ty),*) -> Result<usize> {
            // SAFETY: no argument is a pointer.
            unsafe { call!(libc::$nr $(, $arg)*) }
        }
    )* };
}

/// Calls that take pointers: the caller vouches for them.
macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $nr:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers must be valid for what the system call reads and writes; a bad address gives `EFAULT`.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> Result<usize> {
            // SAFETY: passed on to the caller.
            unsafe { call!(libc::$nr $(, $arg)*) }
        }
    )* };
}

plain! {
    pidfd_open(pid: c_int, flags: c_int) = SYS_pidfd_open;
    /// Closes a descriptor.
    close(fd: c_int) = SYS_close;
    dup(fd: c_int) = SYS_dup;
    dup2(old: c_int, new: c_int) = SYS_dup2;
    fcntl(fd: c_int, cmd: c_int, arg: usize) = SYS_fcntl;
    socket(domain: c_int, kind: c_int, protocol: c_int) = SYS_socket;
    shutdown(fd: c_int, how: c_int) = SYS_shutdown;
    ftruncate(fd: c_int, length: off_t) = SYS_ftruncate;
    lseek(fd: c_int, offset: off_t, whence: c_int) = SYS_lseek;
    getpid() = SYS_getpid;
    getppid() = SYS_getppid;
    gettid() = SYS_gettid;
    getuid() = SYS_getuid;
    kill(pid: c_int, sig: c_int) = SYS_kill;
    tgkill(pid: c_int, tid: c_int, sig: c_int) = SYS_tgkill;
    sched_yield() = SYS_sched_yield;
    close_range(first: u32, last: u32, flags: u32) = SYS_close_range;
}

raw! {
    sched_getaffinity(pid: c_int, size: usize, mask: *mut u64) = SYS_sched_getaffinity;
    sched_setaffinity(pid: c_int, size: usize, mask: *const u64) = SYS_sched_setaffinity;
    getcpu(cpu: *mut u32, node: *mut u32, unused: *mut c_void) = SYS_getcpu;
    read(fd: c_int, buf: *mut u8, len: usize) = SYS_read;
    write(fd: c_int, buf: *const u8, len: usize) = SYS_write;
    pread(fd: c_int, buf: *mut u8, len: usize, offset: off_t) = SYS_pread64;
    open(path: *const u8, flags: c_int, mode: u32) = SYS_open;
    recvfrom(fd: c_int, buf: *mut u8, len: usize, flags: c_int, addr: *mut c_void, alen: *mut u32) = SYS_recvfrom;
    recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, n: usize, flags: c_int, timeout: *mut libc::timespec) = SYS_recvmmsg;
    sendto(fd: c_int, buf: *const u8, len: usize, flags: c_int, addr: *const c_void, alen: u32) = SYS_sendto;
    recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) = SYS_recvmsg;
    sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) = SYS_sendmsg;
    bind(fd: c_int, addr: *const c_void, len: u32) = SYS_bind;
    connect(fd: c_int, addr: *const c_void, len: u32) = SYS_connect;
    getsockname(fd: c_int, addr: *mut c_void, len: *mut u32) = SYS_getsockname;
    getpeername(fd: c_int, addr: *mut c_void, len: *mut u32) = SYS_getpeername;
    getsockopt(fd: c_int, level: c_int, name: c_int, val: *mut c_void, len: *mut u32) = SYS_getsockopt;
    setsockopt(fd: c_int, level: c_int, name: c_int, val: *const c_void, len: u32) = SYS_setsockopt;
    ioctl(fd: c_int, request: u64, arg: usize) = SYS_ioctl;
    ppoll(fds: *mut libc::pollfd, n: usize, timeout: *mut timespec, mask: *const u64, masksize: usize) = SYS_ppoll;
    epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) = SYS_epoll_ctl;
    epoll_pwait(ep: c_int, events: *mut libc::epoll_event, max: c_int, timeout_ms: c_int, mask: *const u64, masksize: usize) = SYS_epoll_pwait;
    epoll_pwait2(ep: c_int, events: *mut libc::epoll_event, max: c_int, timeout: *const timespec, mask: *const u64, masksize: usize) = SYS_epoll_pwait2;
    sigprocmask(how: c_int, set: *const u64, old: *mut u64, size: usize) = SYS_rt_sigprocmask;
    sigqueueinfo(pid: c_int, tid: c_int, sig: c_int, info: *const c_void) = SYS_rt_tgsigqueueinfo;
    mmap(addr: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: off_t) = SYS_mmap;
    munmap(addr: *mut c_void, len: usize) = SYS_munmap;
    munlock(addr: *const c_void, len: usize) = SYS_munlock;
    mprotect(addr: *mut c_void, len: usize, prot: c_int) = SYS_mprotect;
    madvise(addr: *mut c_void, len: usize, advice: c_int) = SYS_madvise;
    memfd_create(name: *const u8, flags: u32) = SYS_memfd_create;
    getrandom(buf: *mut u8, len: usize, flags: u32) = SYS_getrandom;
    prlimit(pid: c_int, resource: u32, new: *const libc::rlimit64, old: *mut libc::rlimit64) = SYS_prlimit64;
    process_vm_readv(pid: c_int, local: *const libc::iovec, nlocal: usize, remote: *const libc::iovec, nremote: usize, flags: usize) = SYS_process_vm_readv;
    getdents64(fd: c_int, buf: *mut u8, len: usize) = SYS_getdents64;
    clock_gettime(clock: c_int, ts: *mut timespec) = SYS_clock_gettime;
}

unsafe extern "C" {
    /// Of the C library; the `libc` crate lacks it.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// While it lives the thread is not cancelled (`pthread_cancel`); who wanted that waits. For calls of the C library, as files make them, in the middle of what must not be unwound through.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    pub fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: a state that there is, and a place for the one before.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Uncancelled { before }
    }

    /// Whether it was so before.
    #[cfg(test)]
    pub(crate) fn is_nested(&self) -> bool {
        self.before == CANCEL_DISABLE
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that it had.
        unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
    }
}

/// Size in bytes of the kernel's signal set.
pub const SIGSET_BYTES: usize = 8;

/// Nanoseconds of `CLOCK_MONOTONIC`, by the C library's vDSO entry (no system call, nothing interposed).
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut ts = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec; clock_gettime is async-signal-safe.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// So many nanoseconds as the kernel takes them.
pub fn timespec_of(ns: u64) -> timespec {
    timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Sleeps for so long, or until a signal comes.
pub fn nap(ns: u64) {
    let mut time = timespec_of(ns);
    // SAFETY: no descriptors, a valid time and no signal mask.
    let _ = unsafe { ppoll(core::ptr::null_mut(), 0, &mut time, core::ptr::null(), SIGSET_BYTES) };
}

/// The processor's time-stamp counter: a cheap, monotonic measure of elapsed time for heuristics only.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc exists on every x86-64 processor.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// `fcntl` with a lock on one byte of a file, whether the file is that long or not: takes it (`F_SETLK` and its like with
/// `F_WRLCK`), gives it back (`F_UNLCK`), or looks whether another one is in its way (`F_GETLK`), and returns what kind is left.
pub fn lock_byte(fd: c_int, command: c_int, at: usize, kind: c_int) -> Result<c_int> {
    // SAFETY: all zero is a valid `flock`.
    let mut range: libc::flock = unsafe { core::mem::zeroed() };
    (range.l_type, range.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (range.l_start, range.l_len) = (at as libc::off_t, 1);
    fcntl(fd, command, &raw mut range as usize)?;
    Ok(c_int::from(range.l_type))
}

/// Whether a file is open nowhere but by this descriptor and its duplicates: only then the kernel gives a lease for writing, which is given back at once. It
/// gives none to who does not own the file, and not on every file system.
pub fn is_open_nowhere_else(fd: c_int) -> Result<bool> {
    match fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK as usize) {
        Ok(_) => fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK as usize).map(|_| true),
        Err(libc::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// True while a process with this number may have descriptors. A zombie has none; only a pidfd tells it from a process that
/// is still closing them. For the number of a thread that is not its process's first: true while the thread is there.
pub fn process_exists(pid: u32) -> bool {
    // A forked child asks of its parent once for each socket it closes or leaves at exec. A process loses its children when it
    // ends, after its descriptors are closed and before it is a zombie: this one call tells as much as the others.
    if getppid() == Ok(pid as usize) {
        return true;
    }
    if kill(pid as c_int, 0) == Err(libc::ESRCH) {
        return false;
    }
    let Ok(fd) = pidfd_open(pid as c_int, 0) else { return true };
    let mut ended = libc::pollfd { fd: fd as c_int, events: libc::POLLIN, revents: 0 };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: all pointers are valid.
    let _ = unsafe { ppoll(&mut ended, 1, &mut now, core::ptr::null(), SIGSET_BYTES) };
    let _ = close(fd as c_int);
    ended.revents == 0
}

/// True while this thread of this process can run. A zombie cannot: whoever waits for a thread that was killed may be
/// the parent that has yet to reap it.
pub fn thread_exists(pid: u32, tid: u32) -> bool {
    if tgkill(pid as c_int, tid as c_int, 0) == Err(libc::ESRCH) {
        return false;
    }
    // A thread that has ended has no memory left, which the kernel reports as ESRCH before it looks at permissions
    // (EPERM) and addresses (EFAULT). No descriptor is needed, unlike for a pidfd or /proc.
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 1 };
    // SAFETY: one writable byte; address 0 of the other process is not readable, and would do no harm if it were.
    unsafe { process_vm_readv(tid as c_int, &local, 1, &remote, 1, 0) != Err(libc::ESRCH) }
}

/// Fills `buf` with kernel randomness; on the (never seen) failure, with the time-stamp counter, so that two callers
/// still differ. Not for keys.
pub fn random_u64() -> u64 {
    let mut v = [0u8; 8];
    // SAFETY: `v` is eight writable bytes.
    match unsafe { getrandom(v.as_mut_ptr(), 8, 0) } {
        Ok(8) => u64::from_ne_bytes(v),
        _ => ticks().wrapping_mul(0x9E37_79B9_7F4A_7C15),
    }
}

/// An abstract AF_UNIX address (`name` without the leading zero byte), with the length the kernel wants.
///
/// Names longer than the address has room for are cut.
pub fn abstract_address(name: &[u8]) -> (sockaddr_un, u32) {
    let mut addr = sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let n = name.len().min(107);
    for (slot, byte) in addr.sun_path[1..].iter_mut().zip(&name[..n]) {
        *slot = *byte as libc::c_char;
    }
    (addr, (core::mem::size_of::<libc::sa_family_t>() + 1 + n) as u32)
}

/// `SO_PASSRIGHTS`, which Linux has since 6.16; the `libc` crate lacks it.
const SO_PASSRIGHTS: c_int = 83;

/// Whether processes may pass descriptors through a UNIX socket of ours, and through what connects to it while it listens. `ENOPROTOOPT` where the kernel cannot forbid it.
pub fn set_passes_descriptors(fd: c_int, passes: bool) -> Result<()> {
    let passes = c_int::from(passes);
    let len = core::mem::size_of::<c_int>() as u32;
    // SAFETY: `passes` is valid for reading `len` bytes.
    unsafe { setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const passes).cast(), len) }.map(drop)
}

/// Whether they may, which they may unless [`set_passes_descriptors`] has forbidden it.
pub fn passes_descriptors(fd: c_int) -> bool {
    let mut passes: c_int = 1;
    let mut len = core::mem::size_of::<c_int>() as u32;
    // SAFETY: `passes` and `len` are valid for writing.
    let known = unsafe { getsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw mut passes).cast(), &mut len) };
    known.is_err() || passes != 0
}

/// Moves a descriptor of our own out of the program's way: to high numbers, above the program's soft limit if the hard
/// limit allows (the limit is raised for the instant of the call only). Close-on-exec is set.
/// The old number is closed. If nothing better is free, the old number is kept.
pub fn move_high(fd: c_int) -> c_int {
    match duplicate_out_of_the_way(fd) {
        Ok(new) => {
            let _ = close(fd);
            new
        }
        Err(_) => fd,
    }
}

/// Duplicates a descriptor for ourselves, with a number as [`move_high`] gives it, any other if there is none. That the
/// program has no descriptor left below its limit need not be in the way.
pub fn duplicate_high(fd: c_int) -> Result<c_int> {
    duplicate_out_of_the_way(fd).or_else(|_| Ok(fcntl(fd, libc::F_DUPFD_CLOEXEC, 3)? as c_int))
}

fn duplicate_out_of_the_way(fd: c_int) -> Result<c_int> {
    let raising = RaisingLimit::begin();
    let new = duplicate_alone(fd, raising.is_some());
    drop(raising);
    new
}

/// Keeps the threads of a process from taking each other's raised limit for the program's own.
pub struct RaisingLimit;

/// The process that has its limit raised now, 0 for none. A fork may copy a parent's number: that is nobody here.
static RAISING: AtomicU32 = AtomicU32::new(0);

impl RaisingLimit {
    /// Until it is dropped, no other thread has the limit raised. None on top of a thread that has.
    pub fn begin() -> Option<RaisingLimit> {
        /// The holder makes three short system calls; a signal handler on top of the holder gives up instead.
        const TRIES: u32 = 1000;
        let me = getpid().unwrap_or(0) as u32;
        for _ in 0..TRIES {
            let holder = RAISING.load(Ordering::Relaxed);
            // Acquire and the release in `drop` keep one thread's calls behind the other's.
            if holder != me && RAISING.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Some(RaisingLimit);
            }
            let _ = sched_yield();
        }
        None
    }
}

impl Drop for RaisingLimit {
    fn drop(&mut self) {
        RAISING.store(0, Ordering::Release);
    }
}

/// Room above the program's own limit that is worth going there for.
const LEAST_ROOM: u64 = 256;
/// No higher than this: the kernel's table of descriptors (8 bytes each, copied by fork) reaches to the highest one.
const HIGHEST_START: u64 = 16 * 1024;

fn descriptor_limit() -> Result<libc::rlimit64> {
    let mut lim = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `lim` is valid for writing.
    unsafe { prlimit(0, libc::RLIMIT_NOFILE, core::ptr::null(), &mut lim) }?;
    Ok(lim)
}

/// How many of our descriptors fit above the program's soft limit, 0 if they do not go there.
fn room_above(lim: &libc::rlimit64) -> u64 {
    /// Enough for a bell of each of a thousand threads.
    const MOST: u64 = 2048;
    let room = lim.rlim_max.saturating_sub(lim.rlim_cur).min(MOST);
    if lim.rlim_cur <= HIGHEST_START && room >= LEAST_ROOM { room } else { 0 }
}

/// `EFBIG` when a file of this process may not have so many bytes (`RLIMIT_FSIZE`): to make one so long is a signal, which ends
/// programs that know nothing of it. That holds for memfds, too.
pub fn check_file_size(bytes: u64) -> Result<()> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    unsafe { prlimit(0, libc::RLIMIT_FSIZE, core::ptr::null(), &mut limit) }?;
    if bytes > limit.rlim_cur { Err(libc::EFBIG) } else { Ok(()) }
}

/// How many descriptors of our own the program does not miss: those above its soft limit, or a sixteenth of its own.
pub fn spare_descriptors() -> usize {
    let _at_rest = RaisingLimit::begin();
    let Ok(lim) = descriptor_limit() else { return 0 };
    match room_above(&lim) {
        0 => (lim.rlim_cur / 16) as usize,
        room => room as usize,
    }
}

fn duplicate_alone(fd: c_int, may_raise: bool) -> Result<c_int> {
    let lim = descriptor_limit()?;
    let room = if may_raise { room_above(&lim) } else { 0 };
    let above = room != 0;
    let start = if above { lim.rlim_cur } else { lim.rlim_cur.saturating_sub(LEAST_ROOM).clamp(3, HIGHEST_START) };
    if above {
        let raised = libc::rlimit64 { rlim_cur: lim.rlim_cur + room, rlim_max: lim.rlim_max };
        // SAFETY: `raised` is valid for reading.
        let _ = unsafe { prlimit(0, libc::RLIMIT_NOFILE, &raised, core::ptr::null_mut()) };
    }
    let new = fcntl(fd, libc::F_DUPFD_CLOEXEC, start as usize);
    if above {
        // SAFETY: `lim` is valid for reading.
        let _ = unsafe { prlimit(0, libc::RLIMIT_NOFILE, &lim, core::ptr::null_mut()) };
    }
    Ok(new? as c_int)
}
