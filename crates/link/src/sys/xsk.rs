//! Memory shared with the kernel by an AF_XDP socket: the packet buffers, and the four rings in which they change hands.
//!
//! A buffer belongs to the kernel while its address is in the fill ring or the ring of sends, and to us while it comes out of the ring of arrivals or of
//! completions, or was never given away. Each ring has one producer and one consumer.

use super::{get_option, set_int, set_option, syscall};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

pub const SOL_XDP: i32 = 283;
const XDP_MMAP_OFFSETS: i32 = 1;
const XDP_UMEM_REG: i32 = 4;

/// Bytes of a buffer: a page, the most that the kernel allows in its usual mode.
pub const BUFFER_BYTES: usize = 4096;

/// Kept clear by the kernel before an arriving frame.
pub const KERNEL_HEADROOM_BYTES: usize = 256;

const NEED_WAKEUP: u32 = 1;

/// Memory mapped for as long as this value lives.
#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; whoever holds the value has it alone.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize, flags: i32, fd: i32, offset: usize) -> io::Result<Mapping> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let args = [0, bytes, protection, (flags | libc::MAP_POPULATE) as usize, fd as usize, offset];
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe { syscall(libc::SYS_mmap, args) }? as *mut u8;
        Ok(Mapping { base, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. It cannot fail for a whole mapping.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.base as usize, self.bytes, 0, 0, 0, 0]) };
    }
}

/// Packet buffers, one after the other.
#[derive(Debug)]
pub struct Buffers {
    mapping: Mapping,
}

impl Buffers {
    /// Makes buffers and gives them to a socket.
    pub fn new(fd: BorrowedFd<'_>, count: usize) -> io::Result<Buffers> {
        let mapping = Mapping::new(count * BUFFER_BYTES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
        // `struct xdp_umem_reg`: address, length; size of a buffer, headroom, flags, unused.
        let sizes = [BUFFER_BYTES as u32, 0, 0, 0];
        let mut registration = [mapping.base as u64, mapping.bytes as u64].map(u64::to_ne_bytes).concat();
        registration.extend(sizes.iter().flat_map(|size| size.to_ne_bytes()));
        set_option(fd, SOL_XDP, XDP_UMEM_REG, &registration)?;
        Ok(Buffers { mapping })
    }

    /// A part of the memory that lies in one buffer; none, if it does not.
    fn part(&self, at: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(at).ok()?;
        let inside = at % BUFFER_BYTES + len <= BUFFER_BYTES && at < self.mapping.bytes;
        // SAFETY: within the mapping, as buffers are.
        inside.then(|| unsafe { self.mapping.base.add(at) })
    }

    /// A frame that arrived.
    ///
    /// # Safety
    /// The buffer came out of the ring of arrivals and was not given back.
    pub unsafe fn arrived(&self, at: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: the buffer is ours, by the caller, so nobody writes to it.
        self.part(at, len).map(|start| unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Room for a frame to send.
    ///
    /// # Safety
    /// The buffer is free: never given away, or out of the ring of completions.
    pub unsafe fn free(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        // SAFETY: the buffer is ours, by the caller, and borrowed with all others.
        self.part(at, len).map(|start| unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

/// The kinds of rings: their option, where they are mapped, and where their offsets stand in what the kernel tells.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Arrivals,
    Sends,
    Fill,
    Completions,
}

impl Kind {
    fn option(self) -> i32 {
        match self {
            Kind::Arrivals => 2,
            Kind::Sends => 3,
            Kind::Fill => 5,
            Kind::Completions => 6,
        }
    }

    fn page_offset(self) -> usize {
        match self {
            Kind::Arrivals => 0,
            Kind::Sends => 0x8000_0000,
            Kind::Fill => 0x1_0000_0000,
            Kind::Completions => 0x1_8000_0000,
        }
    }

    fn offsets_at(self) -> usize {
        self as usize * 32
    }
}

/// What an entry of a ring is: an address, or an address with a length.
pub trait Entry: Copy {}

impl Entry for u64 {}

/// `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Descriptor {
    pub at: u64,
    pub len: u32,
    pub options: u32,
}

impl Entry for Descriptor {}

/// A ring, seen from our end of it.
#[derive(Debug)]
pub struct Ring<T> {
    mapping: Mapping,
    producer_at: usize,
    consumer_at: usize,
    flags_at: usize,
    entries_at: usize,
    mask: u32,
    /// Our own index: of the next entry to write, or to read.
    own: u32,
    /// The other end's index when we last looked.
    other: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Makes a ring of so many entries, a power of two.
    pub fn new(fd: BorrowedFd<'_>, kind: Kind, entries: u32) -> io::Result<Ring<T>> {
        set_int(fd, SOL_XDP, kind.option(), entries as i32)?;
        // `struct xdp_mmap_offsets`: for each kind of ring producer, consumer, entries, flags.
        let mut offsets = [0; 128];
        if get_option(fd, SOL_XDP, XDP_MMAP_OFFSETS, &mut offsets)? < offsets.len() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "AF_XDP needs Linux 5.4 or newer"));
        }
        let offset = |n: usize| {
            let at = kind.offsets_at() + n * 8;
            u64::from_ne_bytes(offsets[at..at + 8].try_into().expect("8 bytes")) as usize
        };
        let bytes = offset(2) + entries as usize * size_of::<T>();
        let mapping = Mapping::new(bytes, libc::MAP_SHARED, fd.as_raw_fd(), kind.page_offset())?;
        Ok(Ring {
            mapping,
            producer_at: offset(0),
            consumer_at: offset(1),
            entries_at: offset(2),
            flags_at: offset(3),
            mask: entries - 1,
            own: 0,
            other: 0,
            entry: std::marker::PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel gave this offset for an aligned word of the mapping; both sides use it atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.base.add(at).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: masked, the index is below the number of entries, all of which lie in the mapping.
        unsafe { self.mapping.base.add(self.entries_at).cast::<T>().add((index & self.mask) as usize) }
    }

    /// Whether the kernel asks for a system call to go on.
    pub fn needs_wakeup(&self) -> bool {
        // Relaxed: set by the kernel before it stops, and looked at after the index was published.
        self.word(self.flags_at).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Writes an entry, if there is room; the kernel sees it after [`Ring::publish`].
    pub fn push(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.other) > self.mask {
            // Pairs with the kernel's release of what it has read.
            self.other = self.word(self.consumer_at).load(Ordering::Acquire);
            if self.own.wrapping_sub(self.other) > self.mask {
                return false;
            }
        }
        // SAFETY: the entry is free: the kernel has consumed what was there before.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// Shows the kernel what was written.
    pub fn publish(&mut self) {
        // Pairs with the kernel's look at the producer's index.
        self.word(self.producer_at).store(self.own, Ordering::Release);
    }

    /// Reads the next entry, if there is one; it stays the kernel's to see as unread until [`Ring::release`].
    pub fn pop(&mut self) -> Option<T> {
        if self.own == self.other {
            // Pairs with the kernel's release of what it has written.
            self.other = self.word(self.producer_at).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: the kernel has published this entry and leaves it alone until it is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Gives the kernel back the room of what was read.
    pub fn release(&mut self) {
        // Pairs with the kernel's look at the consumer's index.
        self.word(self.consumer_at).store(self.own, Ordering::Release);
    }

    /// Entries that we wrote and the kernel has not taken yet.
    pub fn untaken(&self) -> u32 {
        self.own.wrapping_sub(self.word(self.consumer_at).load(Ordering::Acquire))
    }
}
