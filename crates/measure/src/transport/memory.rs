//! Ranks that are threads of one process, with queues of the standard library between them: for tests, and as the floor for the cost of the patterns themselves.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

/// A test that waits longer than this is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of the channels between threads.
pub struct Memory {
    rank: Rank,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    /// Messages that [`Transport::wait_any`] has seen and nobody has received yet.
    waiting: Vec<Option<Vec<u8>>>,
    barrier: Arc<Barrier>,
    /// Where [`Transport::wait_any`] looks first, so that nobody is passed over.
    next: Rank,
}

/// The ends of so many ranks, one for each thread.
pub fn ranks(count: usize) -> Vec<Memory> {
    let barrier = Arc::new(Barrier::new(count));
    let mut ends: Vec<Memory> = (0..count)
        .map(|rank| Memory {
            rank,
            to: Vec::new(),
            from: Vec::new(),
            waiting: vec![None; count],
            barrier: barrier.clone(),
            next: 0,
        })
        .collect();
    for from in 0..count {
        for to in 0..count {
            let (sender, receiver) = channel();
            ends[from].to.push(sender);
            ends[to].from.push(receiver);
        }
    }
    ends
}

impl Memory {
    fn take(&mut self, from: Rank) -> Result<Option<Vec<u8>>, Failure> {
        if let Some(message) = self.waiting[from].take() {
            return Ok(Some(message));
        }
        match self.from[from].try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Failure::Closed { peer: from }),
        }
    }

    fn wait(&mut self, from: Rank) -> Result<Vec<u8>, Failure> {
        if let Some(message) = self.waiting[from].take() {
            return Ok(message);
        }
        self.from[from].recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => Failure::Silent { peer: from, limit: PATIENCE },
            RecvTimeoutError::Disconnected => Failure::Closed { peer: from },
        })
    }
}

fn fill(into: &mut [u8], message: &[u8], from: Rank) -> Result<(), Failure> {
    if into.len() != message.len() {
        return Err(Failure::Damaged { peer: from, expected: into.len(), what: "another length" });
    }
    into.copy_from_slice(message);
    Ok(())
}

impl Transport for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        self.to[to].send(bytes.to_vec()).map_err(|_| Failure::Closed { peer: to })
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let message = self.wait(from)?;
        fill(into, &message, from).map(|()| true)
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.take(from)? {
            Some(message) => fill(into, &message, from).map(|()| true),
            None => Ok(false),
        }
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let message = self.wait(from)?;
        let Some(start) = into.get_mut(..message.len()) else {
            return Err(Failure::Damaged { peer: from, expected: into.len(), what: "larger than the buffer" });
        };
        start.copy_from_slice(&message);
        Ok(message.len())
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            for step in 0..self.ranks() {
                let from = (self.next + step) % self.ranks();
                if from == self.rank {
                    continue;
                }
                match self.take(from) {
                    Ok(None) => continue,
                    Ok(message) => self.waiting[from] = message,
                    // Who only wants to know whether somebody else has sent something need not fail for one that is gone.
                    Err(_) => continue,
                }
                self.next = from + 1;
                return Ok(Some(from));
            }
            if Instant::now() > end {
                return Err(Failure::Silent { peer: self.next, limit: PATIENCE });
            }
            std::thread::yield_now();
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.barrier.wait();
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
