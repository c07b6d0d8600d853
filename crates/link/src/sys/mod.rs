//! System calls that rustix does not have, with safe signatures, made without the C library: an engine may live in a process whose socket
//! functions are the preload's.

pub mod bpf;
pub mod device;
pub mod message;
pub mod packet;
pub mod program;
pub mod ring;
pub mod xsk;

use core::arch::asm;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("Ropeway runs on Linux on x86-64");

/// Enters the kernel.
///
/// # Safety
/// The caller upholds what the named system call requires of its arguments.
#[inline(always)]
pub(crate) unsafe fn syscall(nr: i64, args: [usize; 6]) -> io::Result<usize> {
    let ret: isize;
    let [a, b, c, d, e, f] = args;
    // SAFETY: the register convention of x86-64 Linux; rcx and r11 are clobbered by the instruction.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&ret) { Err(io::Error::from_raw_os_error(-ret as i32)) } else { Ok(ret as usize) }
}

/// A descriptor that is closed without the C library, in whose `close` a thread may be cancelled (`pthread_cancel`): one that sends must not be unwound.
#[derive(Debug)]
pub struct Descriptor(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Descriptor {
        Descriptor(ManuallyDrop::new(fd))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: there are no pointers; it is ours, and nobody else closes it.
        let _ = unsafe { syscall(libc::SYS_close, [self.0.as_raw_fd() as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Nanoseconds of a clock that never goes back, as of the kernel's last tick: the cheapest there is.
pub fn coarse_time_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes one `timespec`. Not rustix, which reads clocks without the C library: such a program crashes under valgrind.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sets an option of a socket to plain bytes.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let args = [fd.as_raw_fd() as usize, level as usize, name as usize, value.as_ptr() as usize, value.len(), 0];
    // SAFETY: the kernel reads so many bytes from there, which are borrowed for the call.
    unsafe { syscall(libc::SYS_setsockopt, args) }.map(drop)
}

pub fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option(fd, level, name, &value.to_ne_bytes())
}

/// Reads an option of a socket into `value` and says how many bytes the kernel wrote.
pub fn get_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as u32;
    let args = [
        fd.as_raw_fd() as usize,
        level as usize,
        name as usize,
        value.as_mut_ptr() as usize,
        (&raw mut len) as usize,
        0,
    ];
    // SAFETY: the kernel writes at most so many bytes there, which are borrowed for the call, and the length.
    unsafe { syscall(libc::SYS_getsockopt, args) }?;
    Ok(len as usize)
}

pub fn get_int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    get_option(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// One instruction of a classic BPF program, as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

/// Attaches a classic BPF program to a socket, in the place of one that was there.
pub fn set_program(fd: BorrowedFd<'_>, level: i32, name: i32, program: &[Instruction]) -> io::Result<()> {
    let too_long = |_| io::Error::from_raw_os_error(libc::EINVAL);
    // `struct sock_fprog`: the number of instructions, padding, their address.
    let len = u64::from(u16::try_from(program.len()).map_err(too_long)?);
    let fprog = [len.to_ne_bytes(), (program.as_ptr() as u64).to_ne_bytes()].concat();
    // The kernel reads the instructions, which are borrowed for the call, and keeps its own copy.
    set_option(fd, level, name, &fprog)
}

/// Binds a socket to an address in the kernel's form.
pub fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let args = [fd.as_raw_fd() as usize, address.as_ptr() as usize, address.len(), 0, 0, 0];
    // SAFETY: the kernel reads so many bytes from there, which are borrowed for the call.
    unsafe { syscall(libc::SYS_bind, args) }.map(drop)
}

/// An AF_XDP socket: rustix does not know that family.
pub fn xdp_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: there are no pointers; the descriptor is new and ours.
    unsafe {
        let number = syscall(libc::SYS_socket, [libc::AF_XDP as usize, kind as usize, 0, 0, 0, 0])?;
        Ok(OwnedFd::from_raw_fd(number as i32))
    }
}

/// Lets the kernel go on with what lies in an AF_XDP socket's ring of sends.
pub fn kick(fd: BorrowedFd<'_>) -> io::Result<()> {
    let args = [fd.as_raw_fd() as usize, 0, 0, libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: an empty message at no address.
    unsafe { syscall(libc::SYS_sendto, args) }.map(drop)
}

/// Lets the driver go on with what lies in an AF_XDP socket's fill ring.
pub fn wake_receiver(fd: BorrowedFd<'_>) {
    let args = [fd.as_raw_fd() as usize, 0, 0, libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: no bytes are taken. It has no result: there is nothing to receive this way.
    let _ = unsafe { syscall(libc::SYS_recvfrom, args) };
}
