//! A two-way stream of bytes between two processes of one host over one [`Pair`], for programs that speak to rings directly.
//!
//! One side makes the segment, the other opens its descriptor; how the descriptor travels is the callers' business. Nothing
//! here blocks. Who wants to sleep follows the rule of `docs/ring.md`: ask to be rung ([`Pipe::ask_for_data`],
//! [`Pipe::ask_for_room`]), look once more, then wait for [`Doorbell`] to become readable and silence it.
//!
//! What does not live here: sockets beside the ring and epochs. A pipe begins in epoch 0 and never leaves it. Nor the death
//! of a peer that closes nothing: only the kernel knows of it, so callers keep a socket to the peer in their wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use crate::bell::{self, Bell, RINGS_AT_ONCE};
use crate::memfd;
use crate::ring::{Consumer, End, Look, Producer, Ring, WriteStop};
use crate::segment::{Pair, pair_bytes};

/// Payload of one record of a long write: the reader copies out what is published while the writer copies in the rest.
const PIECE_BYTES: usize = 16 * 1024 - 8;

/// A writer that has written so often and read nothing meanwhile is taken for one that expects no answers.
const WRITES_UNANSWERED: u32 = 16;

/// Why a pipe is of no more use in a direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The other side has closed it. What it wrote before has been read.
    Closed,
    /// The other side wrote nonsense into the segment.
    Corrupt,
}

/// Where a thread that uses pipes waits for all of them: readable when one of them has rung.
pub struct Doorbell {
    bell: Bell,
    /// What the thread rings others from.
    ringer: OwnedFd,
}

impl Doorbell {
    pub fn create() -> io::Result<Rc<Doorbell>> {
        let ringer = bell::create_ringer().map_err(io::Error::from_raw_os_error)?;
        // SAFETY: a descriptor that was just made, and that nobody else has.
        let ringer = unsafe { OwnedFd::from_raw_fd(ringer) };
        Ok(Rc::new(Doorbell { bell: Bell::create().map_err(io::Error::from_raw_os_error)?, ringer }))
    }

    /// Takes what has rung, so that the next wait sleeps.
    pub fn silence(&self) {
        let mut tags = [0; RINGS_AT_ONCE];
        while self.bell.take(&mut tags) == RINGS_AT_ONCE {}
    }

    /// Wakes who waits at that end.
    #[cold]
    fn ring(&self, ring: &Ring, end: End) {
        for (id, tag) in ring.take_armed(end) {
            if id != 0 {
                // The socket is ours and open; every other failure means that the bell rings already or that its owner is gone.
                let _ = bell::ring(self.ringer.as_raw_fd(), id, tag);
            }
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the bell is closed by our drop, and not before.
        unsafe { BorrowedFd::borrow_raw(self.bell.fd) }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.bell.close();
    }
}

/// One side of a pipe, used by one thread.
pub struct Pipe {
    pair: Pair,
    outgoing: Ring,
    incoming: Ring,
    producer: Producer,
    consumer: Consumer,
    doorbell: Rc<Doorbell>,
    /// Where our bell stands in the slots of the incoming ring's reader and of the outgoing ring's writer.
    reader_slot: u32,
    writer_slot: u32,
    /// Writes since something was read.
    unanswered: u32,
}

impl Pipe {
    /// Makes a segment with rings of `ring_bytes` each. The other side opens the descriptor; it may be closed here then.
    pub fn create(ring_bytes: u32, doorbell: &Rc<Doorbell>) -> io::Result<(Pipe, OwnedFd)> {
        let segment = memfd::sealed(c"ropeway-pipe", pair_bytes(ring_bytes)).map_err(io::Error::from_raw_os_error)?;
        Ok((Pipe::map(segment.as_fd(), ring_bytes, 0, doorbell)?, segment))
    }

    /// The other side of a pipe that was made with the same `ring_bytes`.
    pub fn open(segment: BorrowedFd<'_>, ring_bytes: u32, doorbell: &Rc<Doorbell>) -> io::Result<Pipe> {
        Pipe::map(segment, ring_bytes, 1, doorbell)
    }

    fn map(segment: BorrowedFd<'_>, ring_bytes: u32, side: u8, doorbell: &Rc<Doorbell>) -> io::Result<Pipe> {
        let pair = Pair::map(segment.as_raw_fd(), ring_bytes, side).map_err(io::Error::from_raw_os_error)?;
        let (outgoing, incoming) = (pair.outgoing(), pair.incoming());
        let slots = incoming.claim_bell(End::Reader, doorbell.bell.id, 0).zip(outgoing.claim_bell(
            End::Writer,
            doorbell.bell.id,
            0,
        ));
        let Some((reader_slot, writer_slot)) = slots else {
            // SAFETY: neither the pair nor a ring of it is used afterwards.
            unsafe { pair.unmap() };
            return Err(io::Error::other("all bells of this side of the pipe are taken: it is in use"));
        };
        Ok(Pipe {
            pair,
            outgoing,
            incoming,
            producer: Producer::default(),
            consumer: Consumer::default(),
            doorbell: doorbell.clone(),
            reader_slot,
            writer_slot,
            unanswered: 0,
        })
    }

    /// Writes the beginning of `bytes`, as much as there is room for, and wakes the reader. 0: no room.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let one_way = self.unanswered >= WRITES_UNANSWERED;
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let (to, room) = match self.outgoing.begin(&mut self.producer, 1, rest.len().min(PIECE_BYTES)) {
                Ok(place) => place,
                Err(WriteStop::Full) => break,
                Err(stop) if done == 0 => return Err(broken(stop)),
                // The next call says so.
                Err(_) => break,
            };
            let piece = room.min(rest.len());
            if !one_way {
                self.outgoing.expect_poll(&mut self.producer, piece);
            }
            // SAFETY: `begin` gave `room` bytes of the ring, which lies in a mapping that lives as long as `self`.
            unsafe { core::ptr::copy_nonoverlapping(rest.as_ptr(), to, piece) };
            match self.outgoing.commit(&mut self.producer, piece) {
                Ok(()) => done += piece,
                Err(stop) if done == 0 => return Err(broken(stop)),
                Err(_) => break,
            }
            if self.outgoing.must_ring(End::Reader) {
                self.doorbell.ring(&self.outgoing, End::Reader);
            }
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if one_way {
            self.outgoing.expect_next(&self.producer, bytes.len());
        }
        Ok(done)
    }

    /// Reads what is there, as much as fits, and wakes a writer that waited for room. 0: nothing is there.
    #[inline]
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        let mut done = 0;
        let mut ended = None;
        while done < into.len() {
            match self.incoming.look(&mut self.consumer) {
                Look::Empty => break,
                Look::Data { ptr, len } => {
                    if done > 0 {
                        self.incoming.expect_more(&self.consumer);
                    }
                    let piece = len.min(into.len() - done);
                    // SAFETY: `look` showed `len` bytes of the ring, in a mapping that lives as long as `self`. The peer may
                    // change them meanwhile; they are copied as they are and mean nothing to us.
                    unsafe { core::ptr::copy_nonoverlapping(ptr, into[done..].as_mut_ptr(), piece) };
                    self.incoming.consume(&mut self.consumer, piece);
                    done += piece;
                }
                Look::Closed => {
                    ended = Some(Broken::Closed);
                    break;
                }
                // No pipe is switched to: it begins here.
                Look::Switch { .. } | Look::Corrupt => {
                    ended = Some(Broken::Corrupt);
                    break;
                }
            }
        }
        if done > 0 {
            self.unanswered = 0;
            if self.incoming.flush(&mut self.consumer) {
                self.doorbell.ring(&self.incoming, End::Writer);
            }
        }
        // What came before the end is handed out first; the next call finds the end again.
        match ended {
            Some(ended) if done == 0 => Err(ended),
            _ => Ok(done),
        }
    }

    /// True when [`Pipe::try_read`] has something to say: bytes, or the end.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.incoming.pending(&self.consumer)
    }

    /// Has the doorbell rung when something is written. The caller looks once more before it sleeps.
    pub fn ask_for_data(&self) {
        self.incoming.arm(End::Reader, self.reader_slot);
    }

    /// Has the doorbell rung when something is read. The caller tries to write once more before it sleeps.
    pub fn ask_for_room(&self) {
        self.outgoing.arm(End::Writer, self.writer_slot);
    }
}

fn broken(stop: WriteStop) -> Broken {
    match stop {
        WriteStop::Closed => Broken::Closed,
        WriteStop::Full | WriteStop::Corrupt => Broken::Corrupt,
    }
}

impl Drop for Pipe {
    /// Closes both directions, so that the other side learns it in its next call, and wakes it.
    fn drop(&mut self) {
        self.outgoing.close_writer(&self.producer);
        self.incoming.close_reader(&self.consumer);
        self.doorbell.ring(&self.outgoing, End::Reader);
        self.doorbell.ring(&self.incoming, End::Writer);
        self.incoming.release_bell(End::Reader, self.reader_slot);
        self.outgoing.release_bell(End::Writer, self.writer_slot);
        // SAFETY: the rings are copies inside `self`, which ends here.
        unsafe { self.pair.unmap() };
    }
}
