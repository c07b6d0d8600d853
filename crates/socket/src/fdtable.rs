//! Which descriptor number of this process leads to which record of the shared table.
//!
//! One word per number, read by every hook first: 0 means "not ours", and the hook goes straight on to the C library.
//! The table is private to the process and copied by fork, as the kernel's own.

use crate::process;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use ropeway_shm::sys;
use ropeway_shm::table::{Set, Sock};

/// Descriptor numbers that can be tracked; higher ones stay on TCP.
pub const MAX_FDS: usize = 1 << 20;

static FDS: [AtomicU64; MAX_FDS] = [const { AtomicU64::new(0) }; MAX_FDS];

const KIND_SHIFT: u32 = 56;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u64 = 0xff_ffff;

/// What a descriptor leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    Sock = 1,
    Set = 2,
    /// One of our own descriptors: the program must neither use nor close it.
    Internal = 3,
    /// A socket until now: the kernel's close of the number has begun, or is about to, and has not come back.
    Closing = 4,
    /// The same of a `dup2` onto the number, which is never closed in between.
    Replacing = 5,
    /// An epoll set until now: as both of them.
    SetClosing = 6,
}

/// The word of a tracked descriptor: kind, generation and index of the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle(u64);

impl Handle {
    pub const fn new(kind: Kind, index: u32, generation: u32) -> Handle {
        Handle((kind as u64) << KIND_SHIFT | (generation as u64 & GENERATION_MASK) << GENERATION_SHIFT | index as u64)
    }

    /// The handle of the socket that has record `index` now.
    pub fn of_record(index: u32) -> Handle {
        Handle::new(Kind::Sock, index, process::table().sock(index).generation.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            1 => Kind::Sock,
            2 => Kind::Set,
            4 => Kind::Closing,
            5 => Kind::Replacing,
            6 => Kind::SetClosing,
            _ => Kind::Internal,
        }
    }

    #[inline(always)]
    pub fn is_sock(self) -> bool {
        self.0 >> KIND_SHIFT == Kind::Sock as u64
    }

    /// True for a mark that [`begin_closing`] has left of a socket.
    pub fn is_mark(self) -> bool {
        matches!(self.kind(), Kind::Closing | Kind::Replacing)
    }

    /// True for a mark of the socket or set `h`.
    pub fn is_mark_of(self, h: Handle) -> bool {
        let is_mark = if h.kind() == Kind::Set { self.kind() == Kind::SetClosing } else { self.is_mark() };
        is_mark && self.token() == h.token()
    }

    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0 as u32
    }

    /// The record, for a handle of kind `Sock`.
    #[inline(always)]
    pub fn sock(self) -> &'static Sock {
        debug_assert!(self.is_sock());
        process::table().sock(self.index())
    }

    /// The record, for a handle of kind `Set`.
    #[inline(always)]
    pub fn set(self) -> &'static Set {
        debug_assert_eq!(self.kind(), Kind::Set);
        process::table().set(self.index())
    }

    /// How often the record had been used when the handle was made.
    pub fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT & GENERATION_MASK) as u32
    }

    /// A number under which the daemon knows this record: index and generation.
    pub fn token(self) -> u64 {
        self.0 & !(0xff << KIND_SHIFT)
    }

    /// The handle of a record known by its token.
    pub fn from_token(token: u64) -> Handle {
        Handle(token).of_kind(Kind::Sock)
    }

    /// The same record under another kind.
    pub fn of_kind(self, kind: Kind) -> Handle {
        Handle(self.token() | (kind as u64) << KIND_SHIFT)
    }

    /// True while the record still is what the handle was made for.
    pub fn is_current(self) -> bool {
        self.sock().generation.load(Ordering::Acquire) as u64 & GENERATION_MASK == self.generation() as u64
    }
}

#[inline(always)]
fn slot(fd: i32) -> Option<&'static AtomicU64> {
    FDS.get(fd as usize)
}

/// What `fd` leads to; None for anything that is not ours.
#[inline(always)]
pub fn lookup(fd: i32) -> Option<Handle> {
    let word = slot(fd)?.load(Ordering::Acquire);
    if word == 0 { None } else { Some(Handle(word)) }
}

/// What `fd` leads to, if that is a socket.
#[inline(always)]
pub fn sock(fd: i32) -> Option<Handle> {
    lookup(fd).filter(|h| h.is_sock())
}

/// True while `fd` still leads to `h`.
#[inline(always)]
pub fn leads_to(fd: i32, h: Handle) -> bool {
    slot(fd).is_some_and(|s| s.load(Ordering::Acquire) == h.0)
}

/// Enters a descriptor. Returns what stood there. False in the second place when the number is too high to track.
pub fn enter(fd: i32, h: Handle) -> (Option<Handle>, bool) {
    match slot(fd) {
        Some(s) => {
            let old = s.swap(h.0, Ordering::AcqRel);
            (if old == 0 { None } else { Some(Handle(old)) }, true)
        }
        None => (None, false),
    }
}

/// Takes a descriptor out and returns what it led to.
pub fn remove(fd: i32) -> Option<Handle> {
    let old = slot(fd)?.swap(0, Ordering::AcqRel);
    if old == 0 { None } else { Some(Handle(old)) }
}

/// Takes a descriptor out before the kernel closes or replaces it, and returns what it led to. A socket's stays marked as
/// `mark`, a set's as one that closes, until [`closed`]: while the number is still open, a call on it past us would go by the
/// rings, or be told what of ours stands in the kernel's set.
pub fn begin_closing(fd: i32, mark: Kind) -> Option<Handle> {
    let mark = |word| match Handle(word).kind() {
        Kind::Sock => Some(Handle(word).of_kind(mark).0),
        Kind::Set => Some(Handle(word).of_kind(Kind::SetClosing).0),
        Kind::Closing | Kind::Replacing | Kind::SetClosing => None,
        Kind::Internal => Some(0),
    };
    let old = slot(fd)?.fetch_update(Ordering::AcqRel, Ordering::Acquire, mark).ok()?;
    if old == 0 { None } else { Some(Handle(old)) }
}

/// True between [`begin_closing`] of a descriptor that led to the socket or set `h` and [`closed`].
pub fn is_closing(fd: i32, h: Handle) -> bool {
    lookup(fd).is_some_and(|mark| mark.is_mark_of(h))
}

/// Takes the mark off, unless the number stands for something else of ours already.
pub fn closed(fd: i32, h: Handle) {
    if let Some(s) = slot(fd) {
        let unmarked = |word| Handle(word).is_mark_of(h).then_some(0);
        let _ = s.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unmarked);
    }
}

/// Turns a mark into what stands behind the number now. False when it is gone.
pub fn lead_on(fd: i32, mark: Handle, next: Handle) -> bool {
    slot(fd).is_some_and(|s| s.compare_exchange(mark.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

const INTERNAL: Handle = Handle::new(Kind::Internal, 0, 0);

/// Marks one of our own descriptors.
pub fn enter_internal(fd: i32) {
    enter(fd, INTERNAL);
}

/// Takes the mark of one of our own off. False where the number is somebody else's by now.
pub fn forget_internal(fd: i32) -> bool {
    slot(fd).is_some_and(|s| s.compare_exchange(INTERNAL.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// True for one of our own descriptors.
pub fn is_internal(fd: i32) -> bool {
    lookup(fd).is_some_and(|h| h.kind() == Kind::Internal)
}

/// Closes one of our own descriptors, unless the program has put one of its own in its place (`lifecycle::give_way`).
pub fn close_internal(fd: i32) {
    if forget_internal(fd) {
        let _ = sys::close(fd);
    }
}

/// A descriptor of this process that leads to a record. Looks at all of them: for rare occasions.
pub fn descriptor_of(s: &Sock) -> Option<i32> {
    let mut found = None;
    for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && ptr::eq(h.sock(), s) {
            found = Some(fd);
        }
    });
    found
}

/// Calls `f` with every tracked descriptor in `first..=last`.
pub fn for_each_in(first: u32, last: u32, mut f: impl FnMut(i32, Handle)) {
    let top = process::highest_fd().min(last as i64);
    for fd in first as i64..=top {
        if let Some(h) = lookup(fd as i32) {
            f(fd as i32, h);
        }
    }
}
