//! Other images: in this process (exec) or in a new one (spawn).
//!
//! An image that is started knows nothing of what this process holds on rings. Sockets that it will inherit go back to
//! TCP before the call, unless the call is made by a child of vfork: then that happened before the vfork.

use crate::image::{self, File};
use crate::lifecycle::following;
use crate::startup::environment::environment;
use crate::{next, transfer};
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use libc::{FILE, pid_t};
use ropeway_shm::{guarded, sys};
use ropeway_socket::lifecycle;
use ropeway_socket::reason::Reason;

type Str = *const c_char;
type Strs = *const *const c_char;

/// Around a call that replaces this image.
///
/// # Safety
/// `file` and `environment` must be what `execve` takes.
unsafe fn replacing(file: File, environment: Strs, call: impl FnOnce() -> c_int) -> c_int {
    if !following() || cannot_start(file) {
        return call();
    }
    // SAFETY: passed on to the caller.
    lifecycle::before_exec(|| unsafe { image::comes_with_us(file, environment) });
    let r = call();
    lifecycle::exec_failed();
    r
}

/// True for a file that certainly is no program: then nothing has to be given up. Programs try several places.
fn cannot_start(file: File) -> bool {
    let (File::Path(path) | File::Search(path)) = file else { return false };
    if !guarded::is_readable(path as usize, 1) {
        return true;
    }
    // SAFETY: a C string (contract of the exec functions).
    unsafe {
        !libc::strchr(path, c_int::from(b'/')).is_null()
            && sys::syscall6(libc::SYS_access, path as usize, libc::X_OK as usize, 0, 0, 0, 0) < 0
    }
}

/// Before a call that starts an image beside this one.
fn spawning() {
    if following() {
        lifecycle::before_spawn();
    }
}

/// The answer of a function that gives an error as its value: a C library that lacks it leaves one in `errno`.
fn or_not_there(answer: c_int) -> c_int {
    if answer == -1 { libc::ENOSYS } else { answer }
}

hooks! {
    fn execve(path: Str, argv: Strs, envp: Strs) -> c_int {
        replacing(File::Path(path), envp, || next::execve(path, argv, envp))
    }

    fn execv(path: Str, argv: Strs) -> c_int {
        replacing(File::Path(path), environment(), || next::execv(path, argv))
    }

    fn execvp(file: Str, argv: Strs) -> c_int {
        replacing(File::Search(file), environment(), || next::execvp(file, argv))
    }

    fn execvpe(file: Str, argv: Strs, envp: Strs) -> c_int {
        replacing(File::Search(file), envp, || next::execvpe(file, argv, envp))
    }

    fn fexecve(fd: c_int, argv: Strs, envp: Strs) -> c_int {
        replacing(File::Descriptor, envp, || next::fexecve(fd, argv, envp))
    }

    fn execveat(dir: c_int, path: Str, argv: Strs, envp: Strs, flags: c_int) -> c_int {
        replacing(File::Descriptor, envp, || next::execveat(dir, path, argv, envp, flags))
    }

    fn posix_spawn(
        pid: *mut pid_t, path: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs
    ) -> c_int {
        spawning();
        next::posix_spawn(pid, path, actions, attr, argv, envp)
    }

    fn posix_spawnp(
        pid: *mut pid_t, file: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs
    ) -> c_int {
        spawning();
        next::posix_spawnp(pid, file, actions, attr, argv, envp)
    }

    fn pidfd_spawn(
        pidfd: *mut c_int, path: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs
    ) -> c_int {
        spawning();
        or_not_there(next::late::pidfd_spawn(pidfd, path, actions, attr, argv, envp))
    }

    fn pidfd_spawnp(
        pidfd: *mut c_int, file: Str, actions: *const c_void, attr: *const c_void, argv: Strs, envp: Strs
    ) -> c_int {
        spawning();
        or_not_there(next::late::pidfd_spawnp(pidfd, file, actions, attr, argv, envp))
    }

    /// The duplicate stays open in the new image, whatever the original's close-on-exec flag says.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, old: c_int, new: c_int) -> c_int {
        transfer::leave(old, Reason::Exec);
        next::posix_spawn_file_actions_adddup2(actions, old, new)
    }

    fn system(command: Str) -> c_int {
        spawning();
        next::system(command)
    }

    fn popen(command: Str, mode: Str) -> *mut FILE {
        spawning();
        next::popen(command, mode)
    }
}

/// The `execl` family with its arguments as a list.
unsafe extern "C" fn execl_list(path: Str, argv: Strs) -> c_int {
    // SAFETY: the list was put together from the program's own arguments, which end with a null.
    unsafe { execv(path, argv) }
}

unsafe extern "C" fn execlp_list(file: Str, argv: Strs) -> c_int {
    // SAFETY: as above.
    unsafe { execvp(file, argv) }
}

/// The environment follows the null that ends the arguments.
unsafe extern "C" fn execle_list(path: Str, argv: Strs) -> c_int {
    // SAFETY: as above.
    unsafe {
        let mut end = argv;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, argv, (*end.add(1)).cast())
    }
}

/// Makes a list of variable arguments in place: the five that came in registers go below those that came on the stack,
/// the last of them where the return address was, which is kept below the list meanwhile.
macro_rules! with_variable_arguments {
    ($($name:ident => $list:ident;)*) => { $(
        /// Collects its arguments into a list and goes on with that.
        ///
        /// # Safety
        /// As for the C function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "mov rax, [rsp]",
                "mov [rsp], r9",
                "push r8", "push rcx", "push rdx", "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {list}",
                "pop rdx",
                "add rsp, 32",
                "mov [rsp], rdx",
                "ret",
                list = sym $list,
            )
        }
    )* };
}

with_variable_arguments! {
    execl => execl_list;
    execlp => execlp_list;
    execle => execle_list;
}
