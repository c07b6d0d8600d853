//! Messages between ranks through whatever MPI this machine has, without MPI when Ropeway is built.
//!
//! * [`shim`]: a small file in C, compiled by the user's `mpicc` when it is first needed, and kept.
//! * [`Mpi`]: that file loaded, as safe functions. MPI's own threads and handles never come here.
//!
//! What does not live here: starting ranks (`mpirun` does), and what ranks do (`ropeway-measure`).

mod error;
mod loaded;
pub mod shim;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use error::Error;
use loaded::{ANYBODY, Found, Loaded};

/// Looks between two of the clock: it costs a third of a look.
const LOOKS_PER_CHECK: u32 = 64;

/// Looks without success between two in which the processor is offered to others: there may be more ranks than processors.
const LOOKS_PER_YIELD: u32 = 1024;

/// MPI is begun once in a process, for good: it cannot be begun again after its end.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// This process as a rank of an MPI job. MPI ends with it.
///
/// Not for other threads: MPI was not asked for any.
#[derive(Debug)]
pub struct Mpi {
    loaded: Loaded,
    rank: usize,
    size: usize,
    patience: Duration,
    /// Messages that were taken in while a send waited, by rank.
    taken: Vec<VecDeque<Vec<u8>>>,
    /// Where [`Mpi::wait_any`] looks first.
    next: usize,
    one_thread: PhantomData<*const ()>,
}

impl Mpi {
    /// Joins the job whose launcher started this process; calls that wait give up after `patience`.
    ///
    /// # Errors
    /// No launcher did; the shim cannot be compiled or loaded; MPI itself fails.
    pub fn begin(patience: Duration) -> Result<Mpi, Error> {
        let launcher = shim::launcher().ok_or(Error::NotLaunched)?;
        Mpi::begin_with(&shim::build(launcher)?, patience)
    }

    /// The same with a shim that is there already.
    ///
    /// # Errors
    /// As [`Mpi::begin`].
    pub fn begin_with(shim: &Path, patience: Duration) -> Result<Mpi, Error> {
        // Relaxed: only that it happens once matters, nothing is published by it.
        if BEGUN.swap(true, Ordering::Relaxed) {
            return Err(Error::BegunBefore);
        }
        let loaded = Loaded::open(shim)?;
        let (rank, size) = loaded.init()?;
        let taken = (0..size).map(|_| VecDeque::new()).collect();
        Ok(Mpi { loaded, rank, size, patience, taken, next: 0, one_thread: PhantomData })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks of the job, this one included.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What MPI says of itself, in one line.
    ///
    /// # Errors
    /// It does not.
    pub fn version(&self) -> Result<String, Error> {
        self.loaded.version()
    }

    /// Sends a message. While MPI wants the receiver to be ready first, what arrives is taken in: two ranks that send to each other both get on.
    ///
    /// A message that nobody takes within the patience ends the whole job, after a sentence on standard error: MPI cannot take a send back, and the bytes are the caller's.
    ///
    /// # Errors
    /// No such rank, longer than MPI can count, or MPI's own.
    pub fn send(&mut self, to: usize, bytes: &[u8]) -> Result<(), Error> {
        let to_rank = self.known(to)?;
        let count = c_int::try_from(bytes.len()).map_err(|_| Error::TooLong { bytes: bytes.len() })?;
        let loaded = &self.loaded;
        let taken = &mut self.taken;
        let mut pace = Pace::new(self.patience);
        loaded.send(bytes, count, to_rank, || {
            take_in(loaded, taken)?;
            match pace.wait() {
                true => Ok(()),
                false => Err(Error::Silent { peer: to }),
            }
        })
    }

    /// Waits for a message of that rank, which must be of that length.
    ///
    /// # Errors
    /// None came within the patience; it has another length; MPI's own.
    pub fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<(), Error> {
        let from_rank = self.known(from)?;
        if let Some(message) = self.taken[from].pop_front() {
            return fill(into, &message, from);
        }
        let count = c_int::try_from(into.len()).map_err(|_| Error::TooLong { bytes: into.len() })?;
        let mut pace = Pace::new(self.patience);
        let expected = into.len();
        match self.loaded.receive(into, count, from_rank, || pace.wait())? {
            Some(length) if length == expected => Ok(()),
            Some(length) => Err(Error::Length { peer: from, length, expected }),
            None => Err(Error::Silent { peer: from }),
        }
    }

    /// The same without waiting; `false`: none is there.
    ///
    /// # Errors
    /// As [`Mpi::receive`].
    pub fn try_receive(&mut self, from: usize, into: &mut [u8]) -> Result<bool, Error> {
        match self.next_length(from)? {
            None => Ok(false),
            Some(length) if length == into.len() => self.receive(from, into).map(|()| true),
            Some(length) => {
                // It is damaged, but it must not stay in front of the others.
                self.receive(from, &mut vec![0; length])?;
                Err(Error::Length { peer: from, length, expected: into.len() })
            }
        }
    }

    /// The length of the next message of that rank, if it is there.
    ///
    /// # Errors
    /// No such rank, or MPI's own.
    pub fn next_length(&self, from: usize) -> Result<Option<usize>, Error> {
        let from_rank = self.known(from)?;
        match self.taken[from].front() {
            Some(message) => Ok(Some(message.len())),
            None => Ok(self.loaded.probe(from_rank)?.map(|found| found.length)),
        }
    }

    /// Waits for the next message of that rank, and says how long it is.
    ///
    /// # Errors
    /// None came within the patience; MPI's own.
    pub fn wait_length(&self, from: usize) -> Result<usize, Error> {
        let mut pace = Pace::new(self.patience);
        loop {
            if let Some(length) = self.next_length(from)? {
                return Ok(length);
            }
            if !pace.wait() {
                return Err(Error::Silent { peer: from });
            }
        }
    }

    /// Waits until a message of some rank is there, and says whose. Goes round, so that nobody is passed over.
    ///
    /// # Errors
    /// None came within the patience; MPI's own.
    pub fn wait_any(&mut self) -> Result<usize, Error> {
        let mut pace = Pace::new(self.patience);
        loop {
            let is_there = self.taken.iter().any(|messages| !messages.is_empty());
            if is_there || self.loaded.probe(ANYBODY)?.is_some() {
                for step in 0..self.size {
                    let from = (self.next + step) % self.size;
                    if self.next_length(from)?.is_some() {
                        self.next = (from + 1) % self.size;
                        return Ok(from);
                    }
                }
            }
            if !pace.wait() {
                return Err(Error::Silent { peer: self.next });
            }
        }
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Not all did within the patience, after which this rank cannot do it again; MPI's own.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let mut pace = Pace::new(self.patience);
        match self.loaded.meet(|| pace.wait())? {
            true => Ok(()),
            false => Err(Error::NotAllCame),
        }
    }

    fn known(&self, rank: usize) -> Result<c_int, Error> {
        match c_int::try_from(rank) {
            Ok(number) if rank < self.size => Ok(number),
            _ => Err(Error::NoSuchRank { rank, size: self.size }),
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // There is nobody left to tell; the launcher sees a rank that failed by its exit code.
        let _ = self.loaded.finalize();
    }
}

/// Takes the message that comes next from anybody, if there is one.
fn take_in(loaded: &Loaded, taken: &mut [VecDeque<Vec<u8>>]) -> Result<(), Error> {
    let Some(Found { from, length }) = loaded.probe(ANYBODY)? else { return Ok(()) };
    let mut message = vec![0; length];
    let (count, from_rank) = (length as c_int, from as c_int);
    // It is there: nothing is waited for but its bytes.
    if loaded.receive(&mut message, count, from_rank, || true)?.is_some() {
        taken[from].push_back(message);
    }
    Ok(())
}

fn fill(into: &mut [u8], message: &[u8], from: usize) -> Result<(), Error> {
    if into.len() != message.len() {
        return Err(Error::Length { peer: from, length: message.len(), expected: into.len() });
    }
    into.copy_from_slice(message);
    Ok(())
}

/// A wait without sleep, as MPI's own are, but one that ends.
struct Pace {
    patience: Duration,
    looks: u32,
    /// Set at the first look of the clock: a wait that is over at once costs none.
    until: Option<Instant>,
}

impl Pace {
    fn new(patience: Duration) -> Pace {
        Pace { patience, looks: 0, until: None }
    }

    /// Whether to look again.
    fn wait(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        }
        if !self.looks.is_multiple_of(LOOKS_PER_CHECK) {
            return true;
        }
        let now = Instant::now();
        now < *self.until.get_or_insert(now + self.patience)
    }
}
