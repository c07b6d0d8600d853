//! Whether the image that an exec starts certainly comes with this library, so that it can go on with its sockets.
//!
//! Every doubt is answered with no: then the sockets stay on TCP.

use core::ffi::{CStr, c_char, c_int};
use libc::{Elf64_Ehdr, Elf64_Phdr};
use ropeway_shm::{guarded, sys};

/// How the program names the file.
#[derive(Clone, Copy)]
pub enum File {
    Path(*const c_char),
    /// A bare name is looked for in the directories of `PATH`.
    Search(*const c_char),
    /// By a descriptor, alone or together with a path.
    Descriptor,
}

const LIBRARY: &[u8] = b"libropeway_preload.so";
const PATH_ROOM: usize = libc::PATH_MAX as usize;

/// True if the kernel would start a dynamic glibc program, without more rights than its user, whose environment has this
/// library in `LD_PRELOAD`.
///
/// # Safety
/// `file` and `environment` must be what `execve` takes.
pub unsafe fn comes_with_us(file: File, environment: *const *const c_char) -> bool {
    // SAFETY: passed on to the caller.
    unsafe {
        if !keeps_us(environment) || has_other_rights() {
            return false;
        }
        let mut path = [0u8; PATH_ROOM];
        match file {
            File::Path(name) => copy(&mut path, &[text(name)]),
            File::Search(name) if text(name).contains(&b'/') => copy(&mut path, &[text(name)]),
            File::Search(name) => search(&mut path, text(name)),
            File::Descriptor => None,
        }
        .is_some_and(|()| is_ours(&mut path))
    }
}

/// The dynamic linker would leave us out.
fn has_other_rights() -> bool {
    // SAFETY: no pointers.
    let id = |nr| unsafe { sys::syscall6(nr, 0, 0, 0, 0, 0, 0) };
    id(libc::SYS_getuid) != id(libc::SYS_geteuid) || id(libc::SYS_getgid) != id(libc::SYS_getegid)
}

/// A C string, empty for an address that no program can own.
unsafe fn text<'a>(string: *const c_char) -> &'a [u8] {
    if !guarded::is_readable(string as usize, 1) {
        return &[];
    }
    // SAFETY: a C string (contract of the exec functions).
    unsafe { CStr::from_ptr(string) }.to_bytes()
}

/// The environment of the next image names this library, where it can be found, and does not switch it off.
unsafe fn keeps_us(environment: *const *const c_char) -> bool {
    let (mut named, mut at) = (false, environment);
    // SAFETY: a list of C strings that a null ends (contract of the exec functions).
    unsafe {
        while guarded::is_readable(at as usize, size_of::<usize>()) && !(*at).is_null() {
            let entry = text(*at);
            if let Some(list) = entry.strip_prefix(b"LD_PRELOAD=") {
                named = list.split(|b| matches!(b, b':' | b' ')).any(|item| item.ends_with(LIBRARY) && readable(item));
            } else if entry.starts_with(b"ROPEWAY=") {
                return false;
            }
            at = at.add(1);
        }
    }
    named
}

fn readable(path: &[u8]) -> bool {
    let mut room = [0u8; PATH_ROOM];
    path.starts_with(b"/") && copy(&mut room, &[path]).is_some() && can(&room, libc::R_OK)
}

/// `path` ends with a zero.
fn can(path: &[u8; PATH_ROOM], mode: c_int) -> bool {
    // SAFETY: a C string.
    unsafe { sys::syscall6(libc::SYS_access, path.as_ptr() as usize, mode as usize, 0, 0, 0, 0) == 0 }
}

/// The parts one after the other, and a zero.
fn copy(room: &mut [u8; PATH_ROOM], parts: &[&[u8]]) -> Option<()> {
    let mut at = 0;
    for part in parts.iter().chain([&&b"\0"[..]]) {
        room.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    Some(())
}

/// The first file of that name that could be run, as the C library looks for it.
fn search(room: &mut [u8; PATH_ROOM], name: &[u8]) -> Option<()> {
    let list = crate::startup::environment::find(b"PATH")?.to_bytes();
    let found = list.split(|b| *b == b':').find(|dir| {
        !name.is_empty() && dir.starts_with(b"/") && copy(room, &[dir, b"/", name]).is_some() && can(room, libc::X_OK)
    });
    found.map(|_| ())
}

/// The file is a program of ours, or a script for one.
fn is_ours(path: &mut [u8; PATH_ROOM]) -> bool {
    let mut head = [0u8; 512];
    let Some(n) = read(path, &mut head, 0) else { return false };
    let Some(line) = head[..n].strip_prefix(b"#!") else { return is_program(path) };
    let line = line.split(|b| *b == b'\n').next().unwrap_or(&[]).trim_ascii_start();
    let interpreter = line.split(|b| b.is_ascii_whitespace()).next().unwrap_or(&[]);
    interpreter.starts_with(b"/") && copy(path, &[interpreter]).is_some() && is_program(path)
}

/// Reads from a place in the file; `None` if it cannot be read, is not a plain file, or gives rights to who runs it.
fn read(path: &[u8; PATH_ROOM], out: &mut [u8], at: u64) -> Option<usize> {
    // SAFETY: a C string, a writable structure, a writable buffer.
    unsafe {
        let fd = sys::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0).ok()? as c_int;
        let mut about: libc::stat = core::mem::zeroed();
        let known = sys::syscall6(libc::SYS_fstat, fd as usize, &raw mut about as usize, 0, 0, 0, 0) == 0;
        let name = c"security.capability".as_ptr() as usize;
        let capable = sys::syscall6(libc::SYS_fgetxattr, fd as usize, name, 0, 0, 0, 0) > 0;
        let plain = about.st_mode & libc::S_IFMT == libc::S_IFREG;
        let lends = about.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 || capable;
        let n = sys::pread(fd, out.as_mut_ptr(), out.len(), at as libc::off_t);
        let _ = sys::close(fd);
        n.ok().filter(|_| known && plain && !lends)
    }
}

/// An ELF program for this machine that glibc's dynamic linker starts.
fn is_program(path: &[u8; PATH_ROOM]) -> bool {
    /// Programs have about a dozen.
    const MOST_HEADERS: usize = 32;
    let mut head = [0u8; size_of::<Elf64_Ehdr>()];
    if read(path, &mut head, 0) != Some(head.len()) || head[..5] != *b"\x7fELF\x02" {
        return false;
    }
    // SAFETY: plain integers, for which any bytes are valid.
    let about: Elf64_Ehdr = unsafe { core::mem::transmute(head) };
    if about.e_machine != libc::EM_X86_64 || usize::from(about.e_phentsize) != size_of::<Elf64_Phdr>() {
        return false;
    }
    for i in 0..usize::from(about.e_phnum).min(MOST_HEADERS) {
        let mut header = [0u8; size_of::<Elf64_Phdr>()];
        let at = about.e_phoff.wrapping_add((i * header.len()) as u64);
        if read(path, &mut header, at) != Some(header.len()) {
            return false;
        }
        // SAFETY: plain integers, for which any bytes are valid.
        let header: Elf64_Phdr = unsafe { core::mem::transmute(header) };
        if header.p_type == libc::PT_INTERP {
            let mut linker = [0u8; 64];
            let n = read(path, &mut linker, header.p_offset).unwrap_or(0).min(header.p_filesz as usize);
            let name = linker[..n].split(|b| *b == 0).next().unwrap_or(&[]);
            return name.ends_with(b"/ld-linux-x86-64.so.2");
        }
    }
    false
}
