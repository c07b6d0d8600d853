//! The mapped receive ring of a packet socket (`PACKET_RX_RING`, `TPACKET_V2`): the kernel copies each frame into the next slot and hands the
//! slot over by its status word; no system call is needed to look, to take or to give back.

use super::{set_int, set_option, syscall};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes before the packet in a slot: the kernel's header, the sender's address, and 16 for a link header, which it keeps clear.
pub const HEADROOM_BYTES: usize = 80;

/// Slots begin at multiples of this.
const SLOT_ALIGNMENT: usize = 64;

/// Physically contiguous memory in one piece: 64 KiB is found even when memory is in fragments, and little of it is left over by slots.
const BLOCK_BYTES: usize = 64 << 10;

/// Lines of the cache behind a slot's first that are fetched at once: another processor wrote them, and each is as far away as the status was. They hold a
/// header and a short message.
const PREFETCHED_LINES: usize = 2;

const TPACKET_V2: i32 = 1;
const PACKET_RX_RING: i32 = 5;
const PACKET_VERSION: i32 = 10;

const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;
const STATUS_LOSING: u32 = 4;
const STATUS_VLAN_VALID: u32 = 16;

/// `struct tpacket2_hdr`: status, length, captured length (4 each), offset of the link header, of the packet (2 each), seconds, nanoseconds
/// (4 each), VLAN tag and type (2 each), 4 unused.
mod at {
    pub const LEN: usize = 4;
    pub const CAPTURED: usize = 8;
    pub const NET: usize = 14;
    pub const VLAN_TCI: usize = 24;
    /// The `sockaddr_ll` after the header: its packet type, its address.
    pub const PACKET_TYPE: usize = 32 + 10;
    pub const ADDRESS: usize = 32 + 12;
}

/// A frame in its slot.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub from: [u8; 6],
    /// `PACKET_HOST` and so on.
    pub packet_type: u8,
    /// The number of the VLAN in the tag that the device took off; 0 is a tag with a priority alone.
    pub vlan: Option<u16>,
    /// The kernel dropped frames since it was last asked for how many.
    pub losing: bool,
    /// The packet does not end with `bytes`.
    pub truncated: bool,
    pub bytes: &'a [u8],
}

/// A ring of slots.
#[derive(Debug)]
pub struct Ring {
    base: *mut u8,
    mapped_bytes: usize,
    block_bytes: usize,
    slot_bytes: usize,
    slots_per_block: usize,
    /// Where the next slot is: its block's first byte, and its place in the block.
    block_at: usize,
    in_block: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes a ring of at least `slots` slots for packets of `packet_bytes` in a packet socket that is not bound yet.
    pub fn new(fd: BorrowedFd<'_>, slots: usize, packet_bytes: usize) -> io::Result<Ring> {
        let slot_bytes = (HEADROOM_BYTES + packet_bytes).next_multiple_of(SLOT_ALIGNMENT);
        let block_bytes = BLOCK_BYTES.max(slot_bytes.next_power_of_two());
        let slots_per_block = block_bytes / slot_bytes;
        let blocks = slots.div_ceil(slots_per_block).max(1);
        let slots = blocks * slots_per_block;
        set_int(fd, libc::SOL_PACKET, PACKET_VERSION, TPACKET_V2)?;
        let too_large = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let mut request = Vec::new();
        for value in [block_bytes, blocks, slot_bytes, slots] {
            request.extend(u32::try_from(value).map_err(too_large)?.to_ne_bytes());
        }
        set_option(fd, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        let mapped_bytes = blocks * block_bytes;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
        let args = [0, mapped_bytes, protection, flags, fd.as_raw_fd() as usize, 0];
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe { syscall(libc::SYS_mmap, args) }? as *mut u8;
        Ok(Ring { base, mapped_bytes, block_bytes, slot_bytes, slots_per_block, block_at: 0, in_block: 0 })
    }

    /// Frames that it holds.
    pub fn slots(&self) -> usize {
        self.mapped_bytes / self.block_bytes * self.slots_per_block
    }

    /// The longest packet that fits into a slot.
    pub fn packet_bytes(&self) -> usize {
        self.slot_bytes - HEADROOM_BYTES
    }

    /// Looks at the next frame, if there is one, and gives its slot back.
    #[inline]
    pub fn take(&mut self, look: impl FnOnce(Frame<'_>)) -> bool {
        // SAFETY: all slots lie in the mapping; the status word is aligned, as they are, and shared with the kernel only atomically.
        let (slot, status_word) = unsafe {
            let slot = self.base.add(self.block_at + self.in_block * self.slot_bytes);
            (slot, AtomicU32::from_ptr(slot.cast()))
        };
        // Pairs with the kernel's barrier between filling the slot and setting its status.
        let status = status_word.load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return false;
        }
        for line in 1..=PREFETCHED_LINES.min(self.slot_bytes / SLOT_ALIGNMENT - 1) {
            // SAFETY: a hint, about memory inside the slot.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(slot.add(line * SLOT_ALIGNMENT).cast()) };
        }
        // SAFETY: the kernel leaves the slot alone until its status says that it is the kernel's again.
        let bytes = unsafe { std::slice::from_raw_parts(slot, self.slot_bytes) };
        look(frame(bytes, status));
        // Pairs with the kernel's look at the status before it fills the slot.
        status_word.store(STATUS_KERNEL, Ordering::Release);
        self.advance();
        true
    }

    fn advance(&mut self) {
        self.in_block += 1;
        if self.in_block == self.slots_per_block {
            self.in_block = 0;
            self.block_at += self.block_bytes;
            if self.block_at == self.mapped_bytes {
                self.block_at = 0;
            }
        }
    }
}

/// Reads what the kernel wrote into a slot. Offsets that lead out of it, which the kernel never writes, make an empty packet.
fn frame(slot: &[u8], status: u32) -> Frame<'_> {
    let u16_at = |at: usize| u16::from_ne_bytes([slot[at], slot[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes(slot[at..at + 4].try_into().expect("4 bytes"));
    let (start, captured) = (usize::from(u16_at(at::NET)), u32_at(at::CAPTURED) as usize);
    Frame {
        from: slot[at::ADDRESS..at::ADDRESS + 6].try_into().expect("6 bytes"),
        packet_type: slot[at::PACKET_TYPE],
        vlan: (status & STATUS_VLAN_VALID != 0).then(|| u16_at(at::VLAN_TCI) & 0xfff),
        losing: status & STATUS_LOSING != 0,
        truncated: u32_at(at::LEN) as usize != captured,
        bytes: slot.get(start..start.saturating_add(captured)).unwrap_or_default(),
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it any more. It cannot fail for a whole mapping.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.base as usize, self.mapped_bytes, 0, 0, 0, 0]) };
    }
}
