//! The mapped receive ring of a packet socket (`PACKET_RX_RING`, `TPACKET_V2`): the kernel copies each frame into the next slot and hands the
//! slot over by its status word; no system call is needed to look, to take or to give back.

use super::{set_int, set_option, syscall};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes before the packet in a slot: the kernel's header, the sender's address, and 16 for a link header, which it keeps clear.
pub const HEADROOM_BYTES: usize = 80;

/// Slots begin at multiples of this.
const SLOT_ALIGNMENT: usize = 64;
const _: () = assert!(HEADROOM_BYTES.is_multiple_of(align_of::<AtomicU64>()));

/// Physically contiguous memory in one piece: 64 KiB is found even when memory is in fragments, and little of it is left over by slots.
const BLOCK_BYTES: usize = 64 << 10;

/// Lines of the cache behind a slot's first that are fetched at once: another processor wrote them, and each is as far away as the status was. They hold a
/// header and a short message.
const PREFETCHED_LINES: usize = 2;

/// So many looks that find nothing at a packet's first bytes are one at the slot's status, for packets that begin with zeros.
const EARLY_LOOKS: u32 = 16;
/// And behind a packet that begins with zeros so many looks are at the status: who sends them holds nobody up.
const LOOKS_AFTER_ZEROS: u32 = 1024;
/// Looks at the status of a slot whose packet is there already: it follows within some hundred nanoseconds, and never if the kernel gave up half-way.
const STATUS_LOOKS: u32 = 20;

const TPACKET_V2: i32 = 1;
const PACKET_RX_RING: i32 = 5;
const PACKET_VERSION: i32 = 10;

const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;
const STATUS_LOSING: u32 = 4;
const STATUS_VLAN_VALID: u32 = 16;
const STATUS_VLAN_TYPE_VALID: u32 = 64;

/// IEEE 802.1Q, which tags are of unless the kernel says otherwise.
const USUAL_VLAN_TYPE: u16 = 0x8100;

/// `struct tpacket2_hdr`: status, length, captured length (4 each), offset of the link header, of the packet (2 each), seconds, nanoseconds
/// (4 each), VLAN tag and type (2 each), 4 unused.
mod at {
    pub const LEN: usize = 4;
    pub const CAPTURED: usize = 8;
    /// Where a socket without link headers (`SOCK_DGRAM`) has the packet.
    pub const LINK: usize = 12;
    pub const SECONDS: usize = 16;
    pub const NANOSECONDS: usize = 20;
    pub const VLAN_TCI: usize = 24;
    pub const VLAN_TYPE: usize = 26;
    /// The `sockaddr_ll` after the header: the number of its device, its packet type, its address.
    pub const DEVICE: usize = 32 + 4;
    pub const PACKET_TYPE: usize = 32 + 10;
    pub const ADDRESS: usize = 32 + 12;
}

/// A frame in its slot.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub from: [u8; 6],
    /// `PACKET_HOST` and so on.
    pub packet_type: u8,
    /// The device at which it was seen.
    pub device: u32,
    /// When, since 1970: seconds and nanoseconds.
    seen: [u32; 2],
    /// The VLAN tag that was taken off the frame, as it stood there.
    pub tag: Option<[u8; 4]>,
    /// The kernel dropped frames since it was last asked for how many.
    pub losing: bool,
    /// The packet does not end with `bytes`.
    pub truncated: bool,
    /// With the link header if the socket wants it (`SOCK_RAW`).
    pub bytes: &'a [u8],
}

impl Frame<'_> {
    /// When it was seen, since 1970.
    pub fn seen(&self) -> Duration {
        let [seconds, nanoseconds] = self.seen;
        Duration::from_secs(seconds.into()) + Duration::from_nanos(nanoseconds.into())
    }

    /// The number of the VLAN in the tag; 0 is a tag with a priority alone, or none.
    pub fn vlan(&self) -> u16 {
        self.tag.map_or(0, |[_, _, high, low]| u16::from_be_bytes([high, low]) & 0xfff)
    }
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
    slots: usize,
    /// Looks at the next packet's first bytes that found nothing.
    early_looks: u32,
    /// Looks that are to be at the status.
    status_looks: u32,
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
        request(fd, [block_bytes, blocks, slot_bytes, slots])?;
        let mapped_bytes = blocks * block_bytes;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe { map(std::ptr::null_mut(), mapped_bytes, Some(fd)) };
        // The kernel makes no other ring as long as it has this one.
        let base = base.inspect_err(|_| drop(request(fd, [0; 4])))?;
        let (block_at, in_block, early_looks, status_looks) = (0, 0, 0, 0);
        Ok(Ring {
            base,
            mapped_bytes,
            block_bytes,
            slot_bytes,
            slots_per_block,
            block_at,
            in_block,
            slots,
            early_looks,
            status_looks,
        })
    }

    /// Puts a ring for packets of `packet_bytes` with as many slots in the place of this one, in the same socket, bound as it is. What this one holds, and what comes meanwhile, is lost. Where the kernel
    /// refuses that, for want of memory or as a forked child has this one as well, packets stay as long as they were.
    ///
    /// # Errors
    /// There is none at all any more: nothing is received.
    pub fn replace(&mut self, fd: BorrowedFd<'_>, packet_bytes: usize) -> io::Result<()> {
        let here = |fd| {
            // SAFETY: in the place of the mapping, which is this value's own and of which nothing is borrowed.
            unsafe { map(self.base, self.mapped_bytes, fd) }
        };
        // The kernel gives up no ring that is mapped; zeros in its place are slots without frames.
        if here(None).is_err() {
            return Ok(());
        }
        if request(fd, [0; 4]).is_err() {
            return here(Some(fd)).map(drop);
        }
        if let Ok(ring) = Ring::new(fd, self.slots, packet_bytes) {
            *self = ring;
            return Ok(());
        }
        // In the same place, for which there is room in any case.
        let blocks = self.mapped_bytes / self.block_bytes;
        request(fd, [self.block_bytes, blocks, self.slot_bytes, self.slots])?;
        here(Some(fd))?;
        (self.block_at, self.in_block) = (0, 0);
        Ok(())
    }

    /// Frames that it holds.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The longest packet that fits into a slot.
    pub fn packet_bytes(&self) -> usize {
        self.slot_bytes - HEADROOM_BYTES
    }

    /// Looks at the next frame, if there is one, and gives its slot back.
    #[inline]
    pub fn take(&mut self, look: impl FnOnce(Frame<'_>)) -> bool {
        let Some(frame) = self.first() else { return false };
        look(frame);
        if self.early().load(Ordering::Relaxed) == 0 {
            self.status_looks = LOOKS_AFTER_ZEROS;
        }
        self.release();
        true
    }

    /// Whether [`take`](Self::take) may find something, for who looks all the time: a frame that is there is seen at once if its packet does not begin with zeros,
    /// else some looks later.
    ///
    /// The kernel copies a packet, writes the frame's header into the line of the cache that has the status, and then the status. A processor that looks at
    /// the status meanwhile takes that line away from the kernel's, which has to fetch it back first. The packet's first bytes are in another line, which is
    /// written but once.
    #[inline]
    pub fn may_have_next(&mut self) -> bool {
        if self.status_looks > 0 {
            self.status_looks -= 1;
            return true;
        }
        if self.early().load(Ordering::Relaxed) == 0 {
            self.early_looks = self.early_looks.wrapping_add(1);
            return self.early_looks.is_multiple_of(EARLY_LOOKS);
        }
        for _ in 0..STATUS_LOOKS {
            if self.status().load(Ordering::Relaxed) & STATUS_USER != 0 {
                break;
            }
            std::hint::spin_loop();
        }
        true
    }

    /// The next frame, which stays.
    #[inline]
    pub fn first(&self) -> Option<Frame<'_>> {
        // Pairs with the kernel's barrier between filling the slot and setting its status.
        let status = self.status().load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        let slot = self.slot();
        for line in 1..=PREFETCHED_LINES.min(self.slot_bytes / SLOT_ALIGNMENT - 1) {
            // SAFETY: a hint, about memory inside the slot.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(slot.add(line * SLOT_ALIGNMENT).cast()) };
        }
        // SAFETY: the slot lies in the mapping, and the kernel leaves it alone until its status says that it is the kernel's again,
        // for which `release` needs `self` whole.
        let bytes = unsafe { std::slice::from_raw_parts(slot, self.slot_bytes) };
        Some(frame(bytes, status))
    }

    /// Gives back the slot of the frame that [`first`](Self::first) shows. Only after it has shown one: any other slot is the kernel's.
    #[inline]
    pub fn release(&mut self) {
        self.early().store(0, Ordering::Relaxed);
        // Pairs with the kernel's look at the status before it fills the slot.
        self.status().store(STATUS_KERNEL, Ordering::Release);
        self.advance();
    }

    fn slot(&self) -> *mut u8 {
        // SAFETY: all slots lie in the mapping.
        unsafe { self.base.add(self.block_at + self.in_block * self.slot_bytes) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the word is aligned, as slots are, lives as long as the mapping, and is shared with the kernel only atomically.
        unsafe { AtomicU32::from_ptr(self.slot().cast()) }
    }

    /// The first bytes of the packet; zeros while there is none, as the mapping begins with and [`release`](Self::release) leaves.
    fn early(&self) -> &AtomicU64 {
        // SAFETY: the bytes are aligned, as slots and `HEADROOM_BYTES` are, lie in the slot, which is longer, and live as long as the mapping. They are written
        // here only before the slot is given back, when no frame of it is borrowed; before that they are read atomically alone.
        unsafe { AtomicU64::from_ptr(self.slot().add(HEADROOM_BYTES).cast()) }
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

/// Asks the kernel for a ring: bytes of a block, blocks, bytes of a slot, slots; all zero: for none any more.
fn request(fd: BorrowedFd<'_>, values: [usize; 4]) -> io::Result<()> {
    let too_large = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let mut request = Vec::new();
    for value in values {
        request.extend(u32::try_from(value).map_err(too_large)?.to_ne_bytes());
    }
    set_option(fd, libc::SOL_PACKET, PACKET_RX_RING, &request)
}

/// Maps a socket's ring to read and write, or zeros to read: these take no memory that the kernel would have to promise, and are refused before what is in their place is gone. At a given place the mapping
/// comes instead of what is there; else the kernel chooses one.
///
/// # Safety
/// Nothing borrows from what is at a given place.
unsafe fn map(at: *mut u8, bytes: usize, ring: Option<BorrowedFd<'_>>) -> io::Result<*mut u8> {
    let (protection, flags, fd) = match ring {
        Some(fd) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd()),
        None => (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let flags = if at.is_null() { flags } else { flags | libc::MAP_FIXED };
    let arguments = [at as usize, bytes, protection as usize, flags as usize, fd as isize as usize, 0];
    // SAFETY: the caller's contract; elsewhere the kernel chooses a place where nothing is.
    unsafe { syscall(libc::SYS_mmap, arguments) }.map(|at| at as *mut u8)
}

/// Reads what the kernel wrote into a slot. Offsets that lead out of it, which the kernel never writes, make an empty packet.
#[inline]
fn frame(slot: &[u8], status: u32) -> Frame<'_> {
    let u16_at = |at: usize| u16::from_ne_bytes([slot[at], slot[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes(slot[at..at + 4].try_into().expect("4 bytes"));
    let (start, captured) = (usize::from(u16_at(at::LINK)), u32_at(at::CAPTURED) as usize);
    let tag = || {
        let has_type = status & STATUS_VLAN_TYPE_VALID != 0;
        let kind = if has_type { u16_at(at::VLAN_TYPE) } else { USUAL_VLAN_TYPE };
        let ([a, b], [c, d]) = (kind.to_be_bytes(), u16_at(at::VLAN_TCI).to_be_bytes());
        [a, b, c, d]
    };
    Frame {
        from: slot[at::ADDRESS..at::ADDRESS + 6].try_into().expect("6 bytes"),
        packet_type: slot[at::PACKET_TYPE],
        device: u32_at(at::DEVICE),
        seen: [u32_at(at::SECONDS), u32_at(at::NANOSECONDS)],
        tag: (status & STATUS_VLAN_VALID != 0).then(tag),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot as the kernel fills it for a frame of six bytes, seen at device 5 with a tag of VLAN 7 and priority 1.
    fn slot() -> Vec<u8> {
        let mut slot = vec![0; 128];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(at::LEN, &6_u32.to_ne_bytes());
        put(at::CAPTURED, &6_u32.to_ne_bytes());
        put(at::LINK, &100_u16.to_ne_bytes());
        put(at::SECONDS, &3_u32.to_ne_bytes());
        put(at::NANOSECONDS, &4_u32.to_ne_bytes());
        put(at::VLAN_TCI, &0x2007_u16.to_ne_bytes());
        put(at::VLAN_TYPE, &0x88a8_u16.to_ne_bytes());
        put(at::DEVICE, &5_u32.to_ne_bytes());
        put(100, b"packet");
        slot
    }

    #[test]
    fn a_slot_says_what_came_when_and_where() {
        let slot = slot();
        let plain = frame(&slot, STATUS_USER);
        assert_eq!((plain.bytes, plain.device, plain.seen()), (&b"packet"[..], 5, Duration::new(3, 4)));
        assert_eq!((plain.tag, plain.vlan(), plain.truncated, plain.losing), (None, 0, false, false));
        let usual = frame(&slot, STATUS_USER | STATUS_VLAN_VALID);
        assert_eq!((usual.tag, usual.vlan()), (Some([0x81, 0x00, 0x20, 0x07]), 7));
        let other = frame(&slot, STATUS_USER | STATUS_VLAN_VALID | STATUS_VLAN_TYPE_VALID);
        assert_eq!((other.tag, other.vlan()), (Some([0x88, 0xa8, 0x20, 0x07]), 7));
    }

    #[test]
    fn a_slot_that_leads_out_of_itself_is_empty() {
        let mut slot = slot();
        slot[at::CAPTURED..at::CAPTURED + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(frame(&slot, STATUS_USER).bytes, b"");
    }
}
