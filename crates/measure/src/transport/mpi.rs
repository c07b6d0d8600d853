//! Ranks of an MPI job: messages through whatever MPI `mpirun` provides (`mpi`). Point to point, as Ropeway's own are: what a library adds to its network is in the figures.
//!
//! Every rank must be started by the launcher, and MPI is begun and ended once in a process.

use std::time::Duration;

use ropeway_mpi::{Error, Mpi};

use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

/// A rank of a job.
pub struct OverMpi {
    mpi: Mpi,
    patience: Duration,
}

impl OverMpi {
    /// Joins the job; the launcher says which rank this is. Calls that wait give up after `patience`.
    ///
    /// # Errors
    /// No launcher started this process, there is no `mpicc`, or MPI fails.
    pub fn begin(patience: Duration) -> Result<OverMpi, Failure> {
        let mpi = Mpi::begin(patience).map_err(|error| Failure::Unsupported(error.to_string()))?;
        Ok(OverMpi { mpi, patience })
    }

    /// The same where the launcher has said this to be `rank` of so many.
    ///
    /// # Errors
    /// As [`OverMpi::begin`]; or MPI says otherwise.
    pub fn begin_as(patience: Duration, rank: Rank, ranks: usize) -> Result<OverMpi, Failure> {
        let over = OverMpi::begin(patience)?;
        if (over.rank(), over.ranks()) != (rank, ranks) {
            return Err(Failure::Unsupported(format!(
                "MPI takes this for rank {} of {} where the launcher has started rank {rank} of {ranks}: the launcher and the compiler belong to \
                 different MPIs; name those of one with --mpirun and ROPEWAY_MPICC",
                over.rank(),
                over.ranks()
            )));
        }
        Ok(over)
    }

    /// What MPI says of itself, in one line.
    pub fn version(&self) -> Result<String, Failure> {
        self.mpi.version().map_err(|error| self.failure(error))
    }

    fn failure(&self, error: Error) -> Failure {
        match error {
            Error::Silent { peer } => Failure::Silent { peer, limit: self.patience },
            Error::Length { peer, expected, .. } => Failure::Damaged { peer, expected, what: "another length" },
            error => Failure::Unsupported(error.to_string()),
        }
    }
}

impl Transport for OverMpi {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn rank(&self) -> Rank {
        self.mpi.rank()
    }

    fn ranks(&self) -> usize {
        self.mpi.size()
    }

    fn largest_message(&self) -> usize {
        i32::MAX as usize
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        self.mpi.send(to, bytes).map_err(|error| self.failure(error))
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        self.mpi.receive(from, into).map(|()| true).map_err(|error| self.failure(error))
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        self.mpi.try_receive(from, into).map_err(|error| self.failure(error))
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let length = self.mpi.wait_length(from).map_err(|error| self.failure(error))?;
        let expected = into.len();
        let Some(room) = into.get_mut(..length) else {
            return Err(Failure::Damaged { peer: from, expected, what: "larger than the buffer" });
        };
        self.receive(from, room).map(|_| length)
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        self.mpi.wait_any().map(Some).map_err(|error| self.failure(error))
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.mpi.barrier().map_err(|error| self.failure(error))
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
