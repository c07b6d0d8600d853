//! Memory shared with the kernel by an AF_XDP socket: the packet buffers, and the four rings in which they change hands.
//!
//! A buffer is the kernel's while its address is in the fill ring or the ring of sends; it is ours from when it comes out of the ring of arrivals or of
//! completions until it goes back there. [`Memory`] keeps to that, so that its users need no care. Each ring has one producer and one consumer.

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
struct Buffers {
    mapping: Mapping,
}

impl Buffers {
    /// Makes buffers and gives them to a socket.
    fn new(fd: BorrowedFd<'_>, count: usize) -> io::Result<Buffers> {
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
    unsafe fn arrived(&self, at: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: the buffer is ours, by the caller, so nobody writes to it.
        self.part(at, len).map(|start| unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Room for a frame to send.
    ///
    /// # Safety
    /// The buffer is free: never given away, or out of the ring of completions.
    unsafe fn free(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        // SAFETY: the buffer is ours, by the caller, and borrowed with all others.
        self.part(at, len).map(|start| unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

/// The kinds of rings: their option, where they are mapped, and where their offsets stand in what the kernel tells.
#[derive(Clone, Copy, Debug)]
enum Kind {
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
trait Entry: Copy {}

impl Entry for u64 {}

/// `struct xdp_desc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Descriptor {
    at: u64,
    len: u32,
    options: u32,
}

impl Entry for Descriptor {}

/// A ring, seen from our end of it.
#[derive(Debug)]
struct Ring<T> {
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
    fn new(fd: BorrowedFd<'_>, kind: Kind, entries: u32) -> io::Result<Ring<T>> {
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
    fn needs_wakeup(&self) -> bool {
        // Relaxed: set by the kernel before it stops, and looked at after the index was published.
        self.word(self.flags_at).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Writes an entry, if there is room; the kernel sees it after [`Ring::publish`].
    fn push(&mut self, entry: T) -> bool {
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
    fn publish(&mut self) {
        // Pairs with the kernel's look at the producer's index.
        self.word(self.producer_at).store(self.own, Ordering::Release);
    }

    /// Reads the next entry, if there is one; it stays the kernel's to see as unread until [`Ring::release`].
    fn pop(&mut self) -> Option<T> {
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
    fn release(&mut self) {
        // Pairs with the kernel's look at the consumer's index.
        self.word(self.consumer_at).store(self.own, Ordering::Release);
    }

    /// Entries that we wrote and the kernel has not taken yet.
    fn untaken(&self) -> u32 {
        self.own.wrapping_sub(self.word(self.consumer_at).load(Ordering::Acquire))
    }
}

/// Buffers and rings of one socket.
#[derive(Debug)]
pub struct Memory {
    buffers: Buffers,
    fill: Ring<u64>,
    arrivals: Ring<Descriptor>,
    sends: Ring<Descriptor>,
    completions: Ring<u64>,
    /// Buffers for frames to send that are ours now.
    free: Vec<u64>,
}

/// The buffer that an address lies in: the kernel moves to where the frame begins, and back.
fn buffer_of(at: u64) -> u64 {
    at - at % BUFFER_BYTES as u64
}

impl Memory {
    /// Gives a socket so many buffers for frames to come and to go, powers of two.
    pub fn new(fd: BorrowedFd<'_>, receive_slots: u32, send_slots: u32) -> io::Result<Memory> {
        let address = |buffer: u32| u64::from(buffer) * BUFFER_BYTES as u64;
        let mut memory = Memory {
            buffers: Buffers::new(fd, (receive_slots + send_slots) as usize)?,
            // Twice: the kernel shows a frame before it shows that it has read the entry for its buffer.
            fill: Ring::new(fd, Kind::Fill, receive_slots * 2)?,
            completions: Ring::new(fd, Kind::Completions, send_slots)?,
            arrivals: Ring::new(fd, Kind::Arrivals, receive_slots)?,
            sends: Ring::new(fd, Kind::Sends, send_slots)?,
            free: (receive_slots..receive_slots + send_slots).map(address).collect(),
        };
        (0..receive_slots).for_each(|buffer| memory.give(address(buffer)));
        memory.fill.publish();
        Ok(memory)
    }

    /// Gives the kernel a buffer to fill.
    fn give(&mut self, buffer: u64) {
        let given = self.fill.push(buffer);
        debug_assert!(given, "the ring has two entries for each buffer");
    }

    /// Looks at the next frame that arrived, if there is one. The kernel gets the buffer after [`Memory::done_receiving`].
    pub fn take(&mut self, look: impl FnOnce(&[u8])) -> bool {
        let Some(Descriptor { at, len, .. }) = self.arrivals.pop() else { return false };
        // SAFETY: it just came out of the ring of arrivals, and goes back below. The kernel gives places in our buffers only; another would be
        // an empty frame.
        look(unsafe { self.buffers.arrived(at, len as usize) }.unwrap_or_default());
        self.give(buffer_of(at));
        true
    }

    /// Gives the kernel the buffers that were looked at, and says whether the driver waits for a call to go on.
    pub fn done_receiving(&mut self) -> bool {
        self.arrivals.release();
        self.fill.publish();
        self.fill.needs_wakeup()
    }

    /// Puts a frame of this length, at most a buffer's, into the ring of sends. `false`: there is no room. The kernel sees it after
    /// [`Memory::publish_sends`].
    pub fn send(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(buffer) = self.free.pop() else { return false };
        // SAFETY: the buffer is in the list of free ones.
        let Some(frame) = (unsafe { self.buffers.free(buffer, len) }) else { return false };
        write(frame);
        let sent = self.sends.push(Descriptor { at: buffer, len: len as u32, options: 0 });
        if !sent {
            self.free.push(buffer);
        }
        sent
    }

    pub fn publish_sends(&mut self) {
        self.sends.publish();
    }

    /// Takes back the buffers of frames that are out.
    pub fn reclaim(&mut self) {
        while let Some(at) = self.completions.pop() {
            self.free.push(buffer_of(at));
        }
        self.completions.release();
    }

    /// Frames in the ring of sends that the kernel has not taken, and waits for a call to take.
    pub fn sends_to_kick(&self) -> usize {
        if self.sends.needs_wakeup() { self.sends.untaken() as usize } else { 0 }
    }
}
