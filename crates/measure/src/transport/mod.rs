//! Channels between ranks 0..n-1: one small interface for everything that moves messages ([2:2.4.2]).

mod early;
pub mod kind;
pub mod memory;
pub mod mpi;
pub mod sim;
mod streams;
pub mod tcp;
pub mod udp;
pub mod unix;
pub mod wire;

pub mod shm;

use crate::Failure;
/// The clock of all trials: the same for all processes of a host.
pub use ropeway_shm::sys::monotonic_ns;

/// Number of a rank: 0..n.
pub type Rank = usize;

/// One rank's end of the channels to all others. Messages of one channel arrive in order, or (see [`Transport::is_reliable`]) not at all.
///
/// A call that waits gives up with [`Failure::Silent`] after the transport's patience, so that no trial hangs for ever.
pub trait Transport {
    /// The name that a user gives, such as `tcp`.
    fn name(&self) -> &'static str;

    fn rank(&self) -> Rank;

    /// Number of all ranks, this one included.
    fn ranks(&self) -> usize;

    /// Whether every message arrives; where not, the patterns number their messages and count those that do not.
    fn is_reliable(&self) -> bool {
        true
    }

    /// The largest message that one call can send.
    fn largest_message(&self) -> usize {
        usize::MAX
    }

    /// Sends one message; returns when the bytes may be changed again. Two ranks that send to each other at the same time both get on: who has to wait for room takes in what arrives meanwhile.
    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure>;

    /// Fills `into` with the next message from that rank, whose length the receiver knows (as a stream's receiver must). `false` (never where the transport is
    /// reliable): nothing came for the time in which a lost message would have.
    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure>;

    /// The same, without waiting; `false`: nothing whole is there. Also moves what waits to be sent, where no one else does that.
    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure>;

    /// Waits for some bytes of that rank, as many as there are and fit: whole messages where the transport keeps their boundaries, else any part of a stream.
    /// 0 (never where the transport is reliable): nothing came.
    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure>;

    /// Waits until some rank has sent something that can be received, and says which. A fair choice: no rank is passed over for ever. `None` (never where the transport is
    /// reliable): nothing came.
    fn wait_any(&mut self) -> Result<Option<Rank>, Failure>;

    /// Returns when every rank has called it. Reliable on every transport. What an unreliable one still holds of before is lost.
    fn barrier(&mut self) -> Result<(), Failure>;

    /// The rank's part of a trial is over: it calls nothing but `barrier` next, whenever that is. Only simulated time needs to know.
    fn rest(&mut self) {}

    /// Makes a new connection to that rank, uses it once each way and closes it; the other rank calls this too. For transports that have connections.
    fn reconnect(&mut self, _peer: Rank) -> Result<(), Failure> {
        Err(Failure::Unsupported(format!("{} has no connections that could be made anew", self.name())))
    }

    /// Sets a tunable of the transport in this rank, by the name that `ropeway tune list` shows.
    fn tune(&mut self, name: &str, _value: f64) -> Result<(), Failure> {
        Err(Failure::Unsupported(format!("{} has no tunable {name}", self.name())))
    }

    /// What [`Transport::tune`] would change; `None`: there is no such tunable.
    fn tuned(&self, _name: &str) -> Option<f64> {
        None
    }

    /// The rank's clock in nanoseconds: CLOCK_MONOTONIC, or simulated time. Costs about 25 ns on real transports.
    fn now_ns(&self) -> u64;

    /// Occupies the processor for so long without a call of the transport.
    fn compute(&mut self, ns: u64) {
        let end = self.now_ns() + ns;
        while self.now_ns() < end {
            std::hint::spin_loop();
        }
    }
}
