//! Ranks that are threads of one process, with queues of the standard library between them: for tests, and as the floor for the cost of the patterns themselves.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Rank, Transport, monotonic_ns};
use crate::Failure;
use crate::random::Random;

/// Who waits longer than this waits for something that will not come, unless told otherwise.
const USUAL_PATIENCE: Duration = Duration::from_secs(10);

/// How long a lost message is waited for: a thread that is not scheduled for so long looks like a loss.
const QUIET: Duration = Duration::from_millis(30);

/// The tunable that is there.
const PATIENCE_MS: &str = "patience_ms";

/// One end of the channels between threads.
pub struct Memory {
    rank: Rank,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    /// Messages that [`Transport::wait_any`] has seen and nobody has received yet.
    waiting: Vec<Option<Vec<u8>>>,
    barrier: Arc<Meeting>,
    /// Where [`Transport::wait_any`] looks first, so that nobody is passed over.
    next: Rank,
    patience: Duration,
    /// Part of the messages that get lost, and what chooses them; `None`: the channels are reliable.
    loss: Option<(f64, Random)>,
}

/// A barrier whose wait ends although somebody never comes.
#[derive(Default)]
struct Meeting {
    /// Who has come, and how often all have.
    state: Mutex<(usize, u64)>,
    all_came: Condvar,
}

impl Meeting {
    fn wait(&self, of: usize, patience: Duration) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = state.1;
        state.0 += 1;
        if state.0 == of {
            *state = (0, meeting + 1);
            self.all_came.notify_all();
            return true;
        }
        let waits = |state: &mut (usize, u64)| state.1 == meeting;
        let waited = self.all_came.wait_timeout_while(state, patience, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The ends of so many ranks, whose channels lose that part of the messages, chosen from the seed.
pub fn lossy_ranks(count: usize, part: f64, seed: u64) -> Vec<Memory> {
    let mut ends = ranks(count);
    for (rank, end) in ends.iter_mut().enumerate() {
        end.loss = Some((part, Random::for_user(seed, rank as u64)));
    }
    ends
}

/// The ends of so many ranks, one for each thread.
pub fn ranks(count: usize) -> Vec<Memory> {
    let barrier = Arc::new(Meeting::default());
    let mut ends: Vec<Memory> = (0..count)
        .map(|rank| Memory {
            rank,
            to: Vec::new(),
            from: Vec::new(),
            waiting: vec![None; count],
            barrier: barrier.clone(),
            next: 0,
            patience: USUAL_PATIENCE,
            loss: None,
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

    /// `None`: nothing came, and it may be lost.
    fn wait(&mut self, from: Rank) -> Result<Option<Vec<u8>>, Failure> {
        if let Some(message) = self.waiting[from].take() {
            return Ok(Some(message));
        }
        match self.from[from].recv_timeout(self.limit()) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) if self.loss.is_some() => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(Failure::Silent { peer: from, limit: self.patience }),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Closed { peer: from }),
        }
    }

    fn limit(&self) -> Duration {
        if self.loss.is_some() { QUIET } else { self.patience }
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

    fn is_reliable(&self) -> bool {
        self.loss.is_none()
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        if self.loss.as_mut().is_some_and(|(part, draw)| draw.unit() < *part) {
            return Ok(());
        }
        self.to[to].send(bytes.to_vec()).map_err(|_| Failure::Closed { peer: to })
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.wait(from)? {
            Some(message) => fill(into, &message, from).map(|()| true),
            None => Ok(false),
        }
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.take(from)? {
            Some(message) => fill(into, &message, from).map(|()| true),
            None => Ok(false),
        }
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let Some(message) = self.wait(from)? else { return Ok(0) };
        let Some(start) = into.get_mut(..message.len()) else {
            return Err(Failure::Damaged { peer: from, expected: into.len(), what: "larger than the buffer" });
        };
        start.copy_from_slice(&message);
        Ok(message.len())
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let end = Instant::now() + self.limit();
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
                let silent = Failure::Silent { peer: self.next % self.ranks(), limit: self.patience };
                return if self.loss.is_some() { Ok(None) } else { Err(silent) };
            }
            std::thread::yield_now();
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        match self.barrier.wait(self.ranks(), self.patience) {
            true => Ok(()),
            false => Err(Failure::Silent { peer: self.next % self.ranks(), limit: self.patience }),
        }
    }

    /// There is nothing to be made anew here, but a byte goes each way.
    fn reconnect(&mut self, peer: Rank) -> Result<(), Failure> {
        if self.loss.is_some() {
            return Err(Failure::Unsupported("memory that loses messages has no connections".to_owned()));
        }
        self.send(peer, &[0])?;
        self.receive(peer, &mut [0]).map(drop)
    }

    fn tune(&mut self, name: &str, value: f64) -> Result<(), Failure> {
        if name != PATIENCE_MS || !(1.0..=1e9).contains(&value) {
            return Err(Failure::Unsupported(format!("memory has no tunable {name} that could be {value}")));
        }
        self.patience = Duration::from_millis(value as u64);
        Ok(())
    }

    fn tuned(&self, name: &str) -> Option<f64> {
        (name == PATIENCE_MS).then_some(self.patience.as_millis() as f64)
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
