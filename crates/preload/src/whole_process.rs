//! Calls that change what the whole process may do, or see.

use crate::{fork, lifecycle as descriptors, next, startup, transfer};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{iocb, pid_t, rlimit};
use ropeway_shm::{guarded, sys};
use ropeway_socket::handover::Patience;
use ropeway_socket::lifecycle;
use ropeway_socket::reason::Reason;
use ropeway_socket::{fdtable, process, stats};

/// Why no socket of this process is promoted any more; 0 while some may be.
static STOPPED: AtomicU32 = AtomicU32::new(0);
/// Nothing new is followed: behind a seccomp filter, system calls that the program did not make itself could kill it, and in
/// another PID namespace than the rest of its family a process is taken for another.
static CLOSED: AtomicBool = AtomicBool::new(false);
/// Nor is anything followed from before.
static OVER: AtomicBool = AtomicBool::new(false);

/// Why every socket must stay on TCP, if it must.
pub fn stopped() -> Option<Reason> {
    match STOPPED.load(Ordering::Relaxed) {
        0 => None,
        code => Reason::from_code(code as u16),
    }
}

/// True once nothing new is followed.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// True once every hook makes only the plain call: nothing is left that a descriptor could lead to.
pub fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// Takes every socket back to TCP, those to come as well.
pub fn stop(reason: Reason) {
    if !descriptors::following() {
        return;
    }
    STOPPED.store(reason.code() as u32, Ordering::Relaxed);
    take_back(reason);
}

/// Takes every socket that there is back to TCP.
pub fn take_back(reason: Reason) {
    let patience = Patience::begin();
    fdtable::for_each_in(0, c_uint::MAX, |fd, h| {
        if h.is_sock() {
            lifecycle::leave_among(h, fd, reason, &patience);
        }
    });
}

/// Before a seccomp filter: everything that Ropeway would do later is done now, and nothing is followed from here on.
fn before_filter() {
    if descriptors::following() {
        stop(Reason::Seccomp);
        stats::write_at_exit();
        CLOSED.store(true, Ordering::Relaxed);
        OVER.store(lifecycle::let_go(), Ordering::Relaxed);
    }
}

/// In a child that follows nothing from its first moment on.
pub fn end() {
    CLOSED.store(true, Ordering::Relaxed);
    OVER.store(true, Ordering::Relaxed);
    lifecycle::forget_all();
}

/// `fd` is a second way to what may be a socket of ours: by the kernel's cookie, the same one.
pub fn leave_same_socket(fd: c_int, reason: Reason) {
    let Some(cookie) = cookie(fd) else { return };
    fdtable::for_each_in(0, c_uint::MAX, |ours, h| {
        if h.is_sock() && ours != fd && cookie_of_record(h) == cookie {
            lifecycle::leave(h, ours, reason);
        }
    });
}

fn cookie_of_record(h: fdtable::Handle) -> u64 {
    h.sock().cookie.load(Ordering::Relaxed)
}

fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as u32;
    // SAFETY: buffer and length are valid.
    unsafe { sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &mut len).ok()? };
    Some(cookie)
}

/// What system call `nr` with these arguments means for the whole process; called before it is made.
pub fn before_system_call(nr: i64, a: usize, b: usize, c: usize) {
    match nr {
        libc::SYS_seccomp if a == SECCOMP_SET_MODE_STRICT => before_filter(),
        libc::SYS_seccomp if a == SECCOMP_SET_MODE_FILTER && is_program(c) => before_filter(),
        libc::SYS_io_uring_setup => stop(Reason::IoUring),
        // SAFETY: the program's own arguments; what is not there is not looked at.
        libc::SYS_io_submit => unsafe { transfer::leave_for_kernel_aio(b as i64, c as *const *const iocb) },
        libc::SYS_landlock_create_ruleset => note_ruleset(a, b),
        libc::SYS_landlock_restrict_self if RULES.load(Ordering::Relaxed) != RULES_WITHIN => stop(Reason::Landlock),
        _ => {}
    }
}

/// What the rulesets that this process has made are about.
static RULES: AtomicU32 = AtomicU32::new(RULES_UNKNOWN);
/// It has made none: one that it is given can be about anything.
const RULES_UNKNOWN: u32 = 0;
/// About nothing that Ropeway needs later.
const RULES_WITHIN: u32 = 1;
/// Abstract addresses, as bells have, or TCP, which relays speak, may be out of reach with one of them.
const RULES_BEYOND: u32 = 2;

/// Before a ruleset of Landlock is made, of `bytes` of attributes.
fn note_ruleset(attributes: usize, bytes: usize) {
    /// `struct landlock_ruleset_attr` (linux/landlock.h): access to files, to the network, and the scope.
    type Attributes = [u64; 3];
    const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
    let mut given: Attributes = [0; 3];
    let known = bytes.min(size_of::<Attributes>());
    // SAFETY: the attributes have room for so much; what cannot be read makes no ruleset.
    if attributes == 0 || !unsafe { guarded::copy((&raw mut given).cast(), attributes as *const u8, known) } {
        return;
    }
    let [_, network, scope] = given;
    let is_beyond = network != 0 || scope & SCOPE_ABSTRACT_UNIX_SOCKET != 0;
    RULES.fetch_max(if is_beyond { RULES_BEYOND } else { RULES_WITHIN }, Ordering::Relaxed);
}

const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;

/// False for the address that programs give to learn whether the kernel knows filters: nothing is installed then.
fn is_program(at: usize) -> bool {
    guarded::is_readable(at, size_of::<libc::sock_fprog>())
}

/// True when this process may use io_uring, which works past every hook (`ROPEWAY_IO_URING=allow`). Otherwise programs are
/// told that the kernel has none and use what they used before.
pub fn io_uring_allowed() -> bool {
    !startup::active() || startup::environment::find(b"ROPEWAY_IO_URING").is_some_and(|v| v.to_bytes() == b"allow")
}

fn at_rest(resource: c_uint) -> Option<sys::RaisingLimit> {
    if resource == libc::RLIMIT_NOFILE && process::started() { sys::RaisingLimit::begin() } else { None }
}

/// Before a new limit on descriptors, which is one on the entries of `poll`, too: next to none leaves ours no room.
fn before_limit(resource: c_uint, new: *const rlimit) {
    /// Ropeway looks at two or three at a time; a program that goes below this means to open no more.
    const LEAST: libc::rlim_t = 16;
    if resource != libc::RLIMIT_NOFILE || !guarded::is_readable(new as usize, size_of::<rlimit>()) {
        return;
    }
    // SAFETY: readable, and any bytes are a limit.
    if unsafe { (*new).rlim_cur } < LEAST {
        stop(Reason::Limits);
    }
}

/// True when `setns` with these arguments may lead to another namespace of the kind `wanted`.
fn enters(wanted: c_int, namespace: c_int, kind: c_int) -> bool {
    /// Which `CLONE_NEW*` a descriptor of a namespace stands for (linux/nsfs.h).
    const NS_GET_NSTYPE: u64 = 0xb703;
    // SAFETY: no pointers.
    let any_kind = || unsafe { sys::ioctl(namespace, NS_GET_NSTYPE, 0) };
    match kind {
        0 => any_kind() == Ok(wanted as usize),
        kind => kind & wanted != 0,
    }
}

hooks! {
    /// A thread with a table of descriptors of its own: what a number means is no longer one thing in this process. And the
    /// names of bells belong to a network namespace: from another one nobody rings, nor is rung by, those who stay behind.
    /// Nor can there be relays once children begin in another PID namespace: the first one would be its init, which takes all others
    /// with it when it ends.
    fn unshare(flags: c_int) -> c_int {
        if flags & (libc::CLONE_FILES | libc::CLONE_NEWPID) != 0 {
            stop(Reason::Fork);
        }
        if flags & libc::CLONE_NEWNET != 0 {
            stop(Reason::OtherNetns);
        }
        let r = next::unshare(flags);
        if r == 0 && flags & libc::CLONE_NEWPID != 0 {
            fork::children_are_apart();
        }
        r
    }

    fn setns(namespace: c_int, kind: c_int) -> c_int {
        let apart = enters(libc::CLONE_NEWPID, namespace, kind);
        if apart {
            stop(Reason::Fork);
        }
        if enters(libc::CLONE_NEWNET, namespace, kind) {
            stop(Reason::OtherNetns);
        }
        let r = next::setns(namespace, kind);
        if r == 0 && apart {
            fork::children_are_apart();
        }
        r
    }

    fn prctl(option: c_int, b: usize, c: usize, d: usize, e: usize) -> c_int {
        let strict = b == libc::SECCOMP_MODE_STRICT as usize;
        if option == libc::PR_SET_SECCOMP && (strict || is_program(c)) {
            before_filter();
        }
        next::prctl(option, b, c, d, e)
    }

    /// The limit of descriptors is raised for an instant when Ropeway makes one of its own: the program must neither see
    /// that nor have its own change undone by it. A very low one takes the sockets back first.
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int as getrlimit64 {
        let _at_rest = at_rest(resource);
        next::getrlimit(resource, limit)
    }

    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int as setrlimit64 {
        before_limit(resource, limit);
        let _at_rest = at_rest(resource);
        next::setrlimit(resource, limit)
    }

    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int as prlimit64 {
        if pid == 0 || pid as u32 == process::pid() {
            before_limit(resource, new);
        }
        let _at_rest = at_rest(resource);
        next::prlimit(pid, resource, new, old)
    }

    fn io_uring_setup(entries: c_uint, params: *mut c_void) -> c_int {
        if !io_uring_allowed() {
            return -libc::ENOSYS;
        }
        stop(Reason::IoUring);
        next::late::io_uring_setup(entries, params)
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        if !io_uring_allowed() {
            return -libc::ENOSYS;
        }
        stop(Reason::IoUring);
        next::late::io_uring_queue_init(entries, ring, flags)
    }

    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
        if !io_uring_allowed() {
            return -libc::ENOSYS;
        }
        stop(Reason::IoUring);
        next::late::io_uring_queue_init_params(entries, ring, params)
    }
}
