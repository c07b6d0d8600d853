//! `sendmmsg` and `recvmmsg`: many messages in one entry into the kernel.

use super::syscall;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Messages in one call: enough that its cost is shared by many, few enough that their headers stay in the first-level cache.
pub const VECTOR: usize = 32;

/// The longest socket address used here (`sockaddr_in6`).
pub const NAME_BYTES: usize = 28;

/// Room for the control messages that come with one message, over IPv6 the most. With an arrival: the length of merged packets, the traffic class and the count of drops, 24 bytes each, and the own
/// address, 40. With an error report: the traffic class, the own address, and the report with its address, 64. And some to spare for what others may switch on.
pub const CONTROL_BYTES: usize = 160;

/// One message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub parts: &'a [IoSlice<'a>],
    /// Control messages as [`push_control`] writes them.
    pub control: &'a [u8],
}

/// Sends messages to one address, as many as the kernel takes, without waiting; at most [`VECTOR`]. An error concerns the first of them.
pub fn send_messages(fd: BorrowedFd<'_>, to: &[u8], messages: &[Outgoing<'_>]) -> io::Result<usize> {
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; VECTOR];
    let count = messages.len().min(VECTOR);
    for (header, message) in headers.iter_mut().zip(messages) {
        header.write(libc::mmsghdr { msg_hdr: outgoing_header(to, message), msg_len: 0 });
    }
    let fd = fd.as_raw_fd() as usize;
    let (at, flags) = (headers.as_mut_ptr() as usize, libc::MSG_DONTWAIT as usize);
    // SAFETY: `count` headers were written; all they point to is borrowed for the call, and the kernel only reads it.
    unsafe { syscall(libc::SYS_sendmmsg, [fd, at, count, flags, 0, 0]) }
}

/// Sends one message, without waiting.
pub fn send_message(fd: BorrowedFd<'_>, to: &[u8], message: &Outgoing<'_>) -> io::Result<()> {
    if let (&[only], []) = (&message.parts, message.control) {
        return send_bytes(fd, to, only);
    }
    let header = outgoing_header(to, message);
    let args = [fd.as_raw_fd() as usize, (&raw const header) as usize, libc::MSG_DONTWAIT as usize, 0, 0, 0];
    // SAFETY: all that the header points to is borrowed for the call, and the kernel only reads it.
    unsafe { syscall(libc::SYS_sendmsg, args) }.map(drop)
}

fn outgoing_header(to: &[u8], message: &Outgoing<'_>) -> libc::msghdr {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len() as u32;
    // `IoSlice` has the layout of `iovec`.
    header.msg_iov = message.parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = message.parts.len();
    header.msg_control = message.control.as_ptr().cast_mut().cast();
    header.msg_controllen = message.control.len();
    header
}

/// The same for a message of one part without control messages: the kernel has no header to take apart (60 of 1,060 ns for a round over loopback,
/// `sendto` against `sendmsg`).
fn send_bytes(fd: BorrowedFd<'_>, to: &[u8], bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT as usize;
    let (at, name) = (bytes.as_ptr() as usize, to.as_ptr() as usize);
    // SAFETY: both are borrowed for the call, with their lengths, and the kernel only reads them.
    unsafe { syscall(libc::SYS_sendto, [fd.as_raw_fd() as usize, at, bytes.len(), flags, name, to.len()]) }.map(drop)
}

/// Buffers for messages that arrive, and what arrived last.
#[derive(Debug)]
pub struct Incoming {
    /// One after the other, each of `stride` bytes.
    buffers: Vec<u8>,
    stride: usize,
    slots: Vec<Slot>,
}

/// A message that arrived, without its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
struct Slot {
    name: [u8; NAME_BYTES],
    control: [u8; CONTROL_BYTES],
    name_len: usize,
    control_len: usize,
    len: usize,
    flags: i32,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    pub name: &'a [u8],
    pub control: &'a [u8],
    pub bytes: &'a [u8],
    /// `MSG_TRUNC` and others.
    pub flags: i32,
}

impl Incoming {
    /// Room for [`VECTOR`] messages of at most `longest` bytes. Longer ones are truncated.
    pub fn new(longest: usize) -> Incoming {
        let slot =
            Slot { name: [0; NAME_BYTES], control: [0; CONTROL_BYTES], name_len: 0, control_len: 0, len: 0, flags: 0 };
        // Whole cache lines, so that no two buffers share one.
        let stride = longest.next_multiple_of(64);
        Incoming { buffers: vec![0; stride * VECTOR], stride, slots: vec![slot; VECTOR] }
    }

    /// Takes at most `count` messages without waiting and says how many.
    pub fn receive(&mut self, fd: BorrowedFd<'_>, count: usize, flags: i32) -> io::Result<usize> {
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; VECTOR];
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; VECTOR];
        let count = count.min(VECTOR);
        let buffers = self.buffers.chunks_exact_mut(self.stride);
        for (((header, part), slot), buffer) in
            headers.iter_mut().zip(&mut parts).zip(&mut self.slots).zip(buffers).take(count)
        {
            let part = part.write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
            header.write(libc::mmsghdr { msg_hdr: incoming_header(slot, part), msg_len: 0 });
        }
        let fd = fd.as_raw_fd() as usize;
        let (at, flags) = (headers.as_mut_ptr() as usize, (flags | libc::MSG_DONTWAIT) as usize);
        // SAFETY: `count` headers were written, with pointers into `self` and `parts`, both borrowed or owned until after the call; each length
        // is that of its buffer. One message alone goes the shorter way; its header is the first member of `mmsghdr`.
        let received = unsafe {
            match count {
                0 => 0,
                1 => {
                    let len = syscall(libc::SYS_recvmsg, [fd, at, flags, 0, 0, 0])?;
                    headers[0].assume_init_mut().msg_len = len as u32;
                    1
                }
                _ => syscall(libc::SYS_recvmmsg, [fd, at, count, flags, 0, 0])?,
            }
        };
        for (slot, header) in self.slots.iter_mut().zip(&headers).take(received) {
            // SAFETY: written above.
            let header = unsafe { header.assume_init_ref() };
            slot.name_len = (header.msg_hdr.msg_namelen as usize).min(NAME_BYTES);
            slot.control_len = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
            slot.len = (header.msg_len as usize).min(self.stride);
            slot.flags = header.msg_hdr.msg_flags;
        }
        Ok(received)
    }

    /// The message at a place below what [`Incoming::receive`] returned last.
    pub fn get(&self, index: usize) -> Arrived<'_> {
        let slot = &self.slots[index];
        let start = index * self.stride;
        Arrived {
            name: &slot.name[..slot.name_len],
            control: &slot.control[..slot.control_len],
            bytes: &self.buffers[start..start + slot.len],
            flags: slot.flags,
        }
    }
}

fn incoming_header(slot: &mut Slot, part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = slot.name.as_mut_ptr().cast();
    header.msg_namelen = NAME_BYTES as u32;
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = slot.control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    header
}

/// Length, level and type.
const CONTROL_HEADER_BYTES: usize = 16;

/// Writes a control message at `at` and returns where the next one begins.
///
/// # Panics
/// There is no room: callers write a fixed set of them.
pub fn push_control(buffer: &mut [u8], at: usize, level: i32, kind: i32, value: &[u8]) -> usize {
    let len = CONTROL_HEADER_BYTES + value.len();
    buffer[at..at + 8].copy_from_slice(&len.to_ne_bytes());
    buffer[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
    buffer[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
    buffer[at + CONTROL_HEADER_BYTES..at + len].copy_from_slice(value);
    at + len.next_multiple_of(8)
}

/// The control messages that came with a message: level, type, value.
pub fn controls(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let header = control.get(..CONTROL_HEADER_BYTES)?;
        let len = usize::from_ne_bytes(header[..8].try_into().expect("8 bytes"));
        let value = control.get(CONTROL_HEADER_BYTES..len)?;
        let int = |at: usize| i32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        control = control.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some((int(8), int(12), value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_read_as_they_were_written() {
        let mut buffer = [0; CONTROL_BYTES];
        let at = push_control(&mut buffer, 0, 17, 103, &1472u16.to_ne_bytes());
        let end = push_control(&mut buffer, at, 1, 12, &6i32.to_ne_bytes());
        let read: Vec<_> = controls(&buffer[..end]).collect();
        assert_eq!(read, [(17, 103, &1472u16.to_ne_bytes()[..]), (1, 12, &6i32.to_ne_bytes()[..])]);
    }

    #[test]
    fn broken_controls_end_the_list() {
        let mut buffer = [0; 64];
        let end = push_control(&mut buffer, 0, 1, 2, &[3; 4]);
        assert_eq!(controls(&buffer[..end - 5]).count(), 0, "truncated");
        assert_eq!(controls(&buffer).count(), 1, "a length of 0 ends it");
        buffer[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(controls(&buffer).count(), 0);
        assert_eq!(controls(&[]).count(), 0);
    }
}
