//! New processes that keep this program's memory: fork and what is built on it.
//!
//! The C library runs the handlers registered here in every `fork` of its own (also inside `forkpty`), in the child before
//! anybody else's. It does not run them in `_Fork` and `clone`, whose hooks call the same steps; and it does
//! not say that a fork failed, which the hook of `fork` sees.

use crate::{exit, hook, lifecycle as descriptors, next, startup, thread, vfork, whole_process};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::pid_t;
use ropeway_shm::sys;
use ropeway_socket::lifecycle;
use ropeway_socket::reason::Reason;

type Handler = Option<extern "C" fn()>;

/// Registers the handlers with the C library.
pub fn register_handlers() {
    let register = next::find_anywhere(c"__register_atfork");
    if register.is_null() {
        return;
    }
    // SAFETY: glibc's function of this name has this type. Without a library handle the handlers stay for ever; this
    // library is never unloaded.
    unsafe {
        let register: unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int =
            core::mem::transmute(register);
        register(Some(prepare), None, Some(child), core::ptr::null_mut());
    }
}

/// Children are made in another PID namespace from now on.
static APART: AtomicBool = AtomicBool::new(false);

/// The program has left its PID namespace to those that are there: its children will begin in another one.
pub fn children_are_apart() {
    APART.store(true, Ordering::Relaxed);
}

/// True when a child made with flags of `clone` is in another PID namespace. Owners of sockets and holders of locks are known by
/// their numbers, which mean others there: so nothing is shared with such a child.
fn is_apart(flags: usize) -> bool {
    flags & libc::CLONE_NEWPID as usize != 0 || APART.load(Ordering::Relaxed)
}

extern "C" fn prepare() {
    before_child_of(0);
}

fn before_child_of(flags: usize) {
    if !descriptors::following() || shares_descriptors(flags) {
        return;
    }
    thread::this().fork_prepared.set(1);
    if is_apart(flags) {
        whole_process::take_back(Reason::Fork);
    } else {
        lifecycle::fork_prepare();
    }
}

extern "C" fn child() {
    child_of(0);
}

fn child_of(flags: usize) {
    if vfork::in_child() {
        return;
    }
    if shares_descriptors(flags) {
        // What is open here is the parent's: nothing of it may be closed.
        return whole_process::end();
    }
    thread::this().fork_prepared.set(0);
    exit::after_fork_child();
    if is_apart(flags) && descriptors::following() {
        lifecycle::fork_child_apart();
        whole_process::end();
    } else if descriptors::following() {
        lifecycle::fork_child();
    } else {
        lifecycle::forget_all();
    }
    // As after `unshare`: the bells that it makes from here on are none that others can ring.
    if flags & libc::CLONE_NEWNET as usize != 0 {
        whole_process::stop(Reason::OtherNetns);
    }
}

/// After a function that forks inside itself returned `r` in the parent, or failed before it came as far as the handlers.
fn settle(r: c_int) -> c_int {
    ended(r);
    r
}

/// If the handlers have run, and this is the parent: says what came of it, a child or a negative answer.
fn ended(answer: c_int) {
    if thread::this().fork_prepared.replace(0) != 0 {
        lifecycle::fork_parent(answer);
    }
}

/// What `clone` needs to start the program's function in a child of its own memory. The child has its own copy.
struct Start {
    function: *mut c_void,
    arg: *mut c_void,
    flags: usize,
}

unsafe extern "C" fn start_in_child(start: *mut c_void) -> c_int {
    // SAFETY: `start` is the record in the copied frame of `clone`; the program vouches for its function.
    unsafe {
        let start = &*start.cast::<Start>();
        child_of(start.flags);
        let function: unsafe extern "C" fn(*mut c_void) -> c_int = core::mem::transmute(start.function);
        function(start.arg)
    }
}

/// True for clone flags that give the child a copy of the memory, as fork does.
pub fn copies_memory(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

fn shares_descriptors(flags: usize) -> bool {
    flags & libc::CLONE_FILES as usize != 0
}

/// Before a child, with flags of `clone`, that is no child of vfork. With the parent's memory and descriptors it is a thread, with
/// neither as after fork. With one of both, what a number means is no longer one thing for who knows of it.
pub fn before_clone(flags: usize) {
    if copies_memory(flags) == shares_descriptors(flags) {
        whole_process::stop(Reason::Fork);
    }
}

/// `call` makes a process as fork does, with flags of `clone`, without running the C library's handlers.
pub fn around(flags: usize, call: impl FnOnce() -> isize) -> isize {
    before_child_of(flags);
    let r = call();
    if r == 0 {
        child_of(flags);
    } else {
        ended(r as c_int);
    }
    r
}

/// Puts `/dev/null` behind descriptors 0 to 2.
fn standard_descriptors_to_null() -> c_int {
    // SAFETY: a C string.
    let null = match unsafe { sys::open(c"/dev/null".as_ptr().cast(), libc::O_RDWR, 0) } {
        Ok(fd) => fd as c_int,
        Err(e) => return hook::fail(e) as c_int,
    };
    for fd in 0..=2 {
        // SAFETY: no pointers.
        unsafe { descriptors::dup2(null, fd) };
    }
    if null > 2 {
        let _ = sys::close(null);
    }
    0
}

hooks! {
    fn fork() -> pid_t as __fork {
        thread::this().fork_prepared.set(0);
        settle(next::fork())
    }

    fn _Fork() -> pid_t {
        if !startup::active() {
            return next::_Fork();
        }
        hook::answer_int(around(0, || hook::result(next::_Fork() as isize)))
    }

    /// Made anew, because the C library's would end the parent past our hooks.
    fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
        if !startup::active() {
            return next::daemon(nochdir, noclose);
        }
        match fork() {
            -1 => return -1,
            0 => {}
            _ => exit::_exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if nochdir == 0 {
            // As the C library, which does not tell either.
            let _ = libc::chdir(c"/".as_ptr());
        }
        if noclose == 0 { standard_descriptors_to_null() } else { 0 }
    }

    fn forkpty(master: *mut c_int, name: *mut c_char, termios: *const c_void, size: *const c_void) -> pid_t {
        thread::this().fork_prepared.set(0);
        let r = settle(next::forkpty(master, name, termios, size));
        if r == 0 {
            descriptors::standard_were_replaced();
        }
        r
    }

    fn login_tty(fd: c_int) -> c_int {
        let r = next::login_tty(fd);
        if r == 0 {
            descriptors::standard_were_replaced();
        }
        r
    }

    fn clone(
        function: *mut c_void, stack: *mut c_void, flags: c_int, arg: *mut c_void, ptid: usize, tls: usize, ctid: usize
    ) -> c_int as __clone {
        if !startup::active() || vfork::in_child() {
            return next::clone(function, stack, flags, arg, ptid, tls, ctid);
        }
        if flags & libc::CLONE_VM != 0 && flags & libc::CLONE_VFORK != 0 && flags & libc::CLONE_SETTLS == 0 {
            // As vfork, on a stack of the child's own: this thread, and its mark, wait for it.
            vfork::before();
            let r = next::clone(function, stack, flags, arg, ptid, tls, ctid);
            vfork::after(0);
            return r;
        }
        before_clone(flags as usize);
        if copies_memory(flags as usize) {
            let mut start = Start { function, arg, flags: flags as usize };
            let entry = start_in_child as *mut c_void;
            let start = (&raw mut start).cast();
            return hook::answer_int(around(flags as usize, || {
                hook::result(next::clone(entry, stack, flags, start, ptid, tls, ctid) as isize)
            }));
        }
        next::clone(function, stack, flags, arg, ptid, tls, ctid)
    }
}
