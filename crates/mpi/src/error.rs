//! Why MPI did not do what was asked.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this process was not started by MPI: start it with `mpirun -n 2 ...` (or mpiexec, or srun --mpi)")]
    NotLaunched,
    #[error(
        "there is no MPI compiler ({tried}): install one (Debian: apt-get install libopenmpi-dev, or libmpich-dev), or name it with \
         ROPEWAY_MPICC"
    )]
    NoCompiler { tried: String },
    #[error("{compiler} cannot compile the shim: {said}")]
    Compile { compiler: String, said: String },
    #[error("cannot {what} {path}: {cause}")]
    File { what: &'static str, path: PathBuf, cause: std::io::Error },
    #[error("neither XDG_CACHE_HOME nor HOME names a directory where the compiled shim could be kept: set one of them")]
    NoCache,
    #[error("cannot load the shim {path}: {cause}. Delete it, and it is compiled anew")]
    Load { path: PathBuf, cause: libloading::Error },
    #[error("the shim {path} is one of another version of Ropeway: delete it, and it is compiled anew")]
    Interface { path: PathBuf },
    #[error("MPI was begun before in this process, and cannot be begun again")]
    BegunBefore,
    #[error("MPI cannot {what}: {why}")]
    Mpi { what: &'static str, why: String },
    #[error("MPI has no rank {rank}: the job has {size}")]
    NoSuchRank { rank: usize, size: usize },
    #[error("a message of {bytes} bytes is longer than MPI can count; 2147483647 is the most")]
    TooLong { bytes: usize },
    #[error("a message of rank {peer} has {length} bytes, and {expected} were expected")]
    Length { peer: usize, length: usize, expected: usize },
    #[error("rank {peer} kept silent for too long")]
    Silent { peer: usize },
    #[error("not all ranks came to the barrier in time")]
    NotAllCame,
}
