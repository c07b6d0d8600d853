//! One rank's end of a simulated network: its clock, its interface, its noise, and its turns.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::world::{Picos, Wants, World, picos};
use super::{Model, SimParameters};
use crate::Failure;
use crate::random::Random;
use crate::transport::{Rank, Transport};

/// Looks at whose turn it is before a rank sleeps: the other rank's turn is mostly short, and waking a thread takes longer than several of them.
const LOOKS: u32 = 40;
/// A yield that takes so long gave the processor to somebody with other work ...
const LONG_YIELD: Duration = Duration::from_millis(1);
/// ... and for so many turns nobody yields: who sleeps is sooner on a busy processor again than who gives it away.
const TURNS_WITHOUT_YIELDS: u32 = 1000;

/// One rank of a simulated network.
pub struct Sim {
    shared: Arc<Shared>,
    parameters: SimParameters,
    rank: Rank,
    ranks: usize,
    now: Cell<Picos>,
    random: Random,
    /// When the interface is free of what it was given.
    interface_free: Picos,
    /// When each message that waits for the interface is taken up by it.
    queued: VecDeque<Picos>,
    /// Arrival of the last message to each rank: none overtakes another.
    last_arrival: Vec<Picos>,
    /// Where [`Transport::wait_any`] looks first, so that nobody is passed over.
    next: Rank,
}

struct Shared {
    world: Mutex<World>,
    /// Copy of the world's `running`, to be looked at without its lock; the number of ranks while there is none.
    turn: AtomicUsize,
    turns: Vec<Condvar>,
    /// Waits that go to sleep at once. A hint.
    sleepy: AtomicU32,
}

/// The ends of so many ranks, one for each thread. Every rank that has been made must take part, or be dropped.
///
/// # Errors
/// When the parameters make no network; the text says what is allowed.
pub fn ranks(count: usize, parameters: &SimParameters) -> Result<Vec<Sim>, Failure> {
    parameters.check().map_err(|what| Failure::Unsupported(format!("sim: {what}")))?;
    let world = Mutex::new(World::new(parameters.clone(), count));
    let turns = (0..count).map(|_| Condvar::new()).collect();
    let shared = Arc::new(Shared { world, turn: AtomicUsize::new(0), turns, sleepy: AtomicU32::new(0) });
    let end = |rank| Sim {
        shared: shared.clone(),
        parameters: parameters.clone(),
        rank,
        ranks: count,
        now: Cell::new(0),
        random: Random::for_user(parameters.seed, rank as u64),
        interface_free: 0,
        queued: VecDeque::new(),
        last_arrival: vec![0; count],
        next: 0,
    };
    Ok((0..count).map(end).collect())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        // A rank that panicked is dropped like any other; what it left is whole.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the rank whose turn it is now.
    fn announce(&self, world: &World) {
        // Pairs with the Acquire in `wait`; the world itself is under its lock.
        self.turn.store(world.running.unwrap_or(self.turns.len()), Ordering::Release);
        if let Some(running) = world.running {
            self.turns[running].notify_one();
        }
    }

    /// Returns when it is this rank's turn.
    fn wait<'a>(&'a self, mut world: MutexGuard<'a, World>, rank: Rank) -> MutexGuard<'a, World> {
        if world.running == Some(rank) {
            return world;
        }
        drop(world);
        let sleepy = self.sleepy.load(Ordering::Relaxed);
        self.sleepy.store(sleepy.saturating_sub(1), Ordering::Relaxed);
        let looks = if sleepy > 0 { 0 } else { LOOKS };
        for _ in 0..looks {
            // Pairs with the Release in `announce`.
            if self.turn.load(Ordering::Acquire) == rank {
                break;
            }
            let yielded_at = Instant::now();
            std::thread::yield_now();
            if yielded_at.elapsed() > LONG_YIELD {
                self.sleepy.store(TURNS_WITHOUT_YIELDS, Ordering::Relaxed);
                break;
            }
        }
        world = self.lock();
        while world.running != Some(rank) {
            world = self.turns[rank].wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world
    }

    /// This rank's turn, the first time and whenever it has it already.
    fn turn(&self, rank: Rank) -> MutexGuard<'_, World> {
        let mut world = self.lock();
        world.resume(rank);
        self.wait(world, rank)
    }

    /// Gives the turn away until `wake`, or until what is wanted is there.
    fn pause(&self, rank: Rank, clock: Picos, wants: Wants, wake: Option<Picos>) -> MutexGuard<'_, World> {
        // Who joins a barrier changes nothing for ranks that have not come to it yet.
        let mut world = if wants == Wants::Barrier { self.lock() } else { self.turn(rank) };
        world.pause(rank, clock, wants, wake);
        self.announce(&world);
        self.wait(world, rank)
    }
}

impl Sim {
    /// A time with the network's noise.
    fn noisy(&mut self, ns: f64) -> Picos {
        let mut ns = ns;
        if self.parameters.noise > 0.0 {
            let mut z = self.random.normal();
            while z.abs() > 3.0 {
                z = self.random.normal();
            }
            ns *= 1.0 + self.parameters.noise * z;
        }
        if let Some(outliers) = self.parameters.outliers
            && self.random.unit() < outliers.probability
        {
            ns *= outliers.factor;
        }
        picos(ns)
    }

    fn spend(&self, time: Picos) {
        self.now.set(self.now.get() + time);
    }

    fn until(&self, time: Picos) {
        self.now.set(self.now.get().max(time));
    }

    /// Waits until the interface's queue and the peer's window have room.
    fn make_room(&mut self, to: Rank, bytes: usize) -> Result<(), Failure> {
        while self.queued.front().is_some_and(|taken_up| *taken_up <= self.now.get()) {
            self.queued.pop_front();
        }
        if self.queued.len() >= self.parameters.queue
            && let Some(taken_up) = self.queued.pop_front()
        {
            self.until(taken_up);
        }
        while !self.shared.turn(self.rank).has_room(self.rank, to, bytes) {
            let world = self.shared.pause(self.rank, self.now.get(), Wants::Room(to), None);
            let (clock, stalled) = (world.clock(self.rank), world.is_stalled(self.rank));
            drop(world);
            self.until(clock);
            if stalled {
                return Err(self.hopeless(Wants::Room(to)));
            }
        }
        Ok(())
    }

    /// When a message that the interface is given now reaches its receiver's port; None: it is lost.
    fn arrival(&mut self, to: Rank, bytes: usize, taken_up: Picos) -> Option<Picos> {
        let mut arrival = taken_up + self.noisy(self.parameters.flight_ns(bytes));
        arrival += picos(self.parameters.switch_delay_ns(bytes));
        while self.parameters.loss > 0.0 && self.random.unit() < self.parameters.loss {
            if !self.parameters.reliable {
                return None;
            }
            arrival += picos(self.parameters.retransmit_ns);
        }
        let last = &mut self.last_arrival[to];
        *last = arrival.max(*last);
        Some(*last)
    }

    /// Waits for a message; which rank's, or None when a lost one would have been here by now.
    fn wait_for(&mut self, wants: Wants) -> Result<Option<Rank>, Failure> {
        let now = self.now.get();
        let deadline = (!self.parameters.reliable).then(|| now + picos(self.parameters.timeout_ns));
        let mut world = self.shared.turn(self.rank);
        let known = self.candidates(wants).filter_map(|from| world.available(from, self.rank)).min();
        let wake = match (known, deadline) {
            (Some(known), Some(deadline)) => Some(known.min(deadline)),
            (known, deadline) => known.or(deadline),
        };
        drop(world);
        world = self.shared.pause(self.rank, now, wants, wake);
        let clock = world.clock(self.rank);
        let stalled = world.is_stalled(self.rank);
        let there = self.candidates(wants).find(|from| world.available(*from, self.rank).is_some_and(|at| at <= clock));
        drop(world);
        self.until(clock);
        match there {
            Some(from) => Ok(Some(from)),
            None if stalled => Err(self.hopeless(wants)),
            None => Ok(None),
        }
    }

    /// Ranks whose messages would do, those first that were served longest ago.
    fn candidates(&self, wants: Wants) -> impl Iterator<Item = Rank> + use<> {
        let (from, count) = match wants {
            Wants::From(rank) => (rank, 1),
            _ => (self.next, self.ranks),
        };
        let ranks = self.ranks;
        (0..count).map(move |step| (from + step) % ranks)
    }

    /// Receives the oldest message of that rank, of which there is one; its length.
    fn take(&mut self, from: Rank, into: &mut [u8], whole: bool) -> Result<usize, Failure> {
        let mut world = self.shared.turn(self.rank);
        let message = world.take(from, self.rank, self.now.get());
        let length = message.len();
        let fits = if whole { length == into.len() } else { length <= into.len() };
        if fits {
            into[..length].copy_from_slice(&message);
        }
        world.recycle(message);
        drop(world);
        let overhead = self.noisy(self.parameters.receive_overhead.of(length));
        self.spend(overhead);
        let what = if whole { "another length" } else { "larger than the buffer" };
        if fits { Ok(length) } else { Err(Failure::Damaged { peer: from, expected: into.len(), what }) }
    }

    /// Why a wait can have no end.
    fn hopeless(&self, wants: Wants) -> Failure {
        let world = self.shared.lock();
        let others = (0..self.ranks).filter(|rank| *rank != self.rank);
        let peer = match wants {
            Wants::From(peer) | Wants::Room(peer) => world.is_gone(peer).then_some(peer),
            Wants::Barrier => world.somebody_gone(),
            Wants::Any | Wants::Present => {
                others.clone().all(|rank| world.is_gone(rank)).then(|| others.clone().next()).flatten()
            }
        };
        let waits_for = match wants {
            Wants::From(peer) => format!("a message from rank {peer}"),
            Wants::Room(peer) => format!("rank {peer} to receive"),
            Wants::Barrier => "all ranks at a barrier".to_owned(),
            Wants::Any | Wants::Present => "a message from any rank".to_owned(),
        };
        match peer {
            Some(peer) => Failure::Closed { peer },
            None => Failure::Deadlock { rank: self.rank, waits_for },
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let mut world = self.shared.lock();
        world.gone(self.rank);
        self.shared.announce(&world);
    }
}

impl Transport for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn is_reliable(&self) -> bool {
        self.parameters.reliable
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        self.make_room(to, bytes.len())?;
        let start = self.now.get();
        let overhead = self.noisy(self.parameters.send_overhead.of(bytes.len()));
        self.spend(overhead);
        let given = match self.parameters.model {
            Model::LogGp => self.now.get(),
            Model::PLogP => start,
        };
        let taken_up = given.max(self.interface_free);
        self.interface_free = taken_up + self.noisy(self.parameters.gap_ns(bytes.len()));
        self.queued.push_back(taken_up);
        if let Some(arrival) = self.arrival(to, bytes.len(), taken_up) {
            self.shared.turn(self.rank).launch(self.rank, to, arrival, bytes);
        }
        Ok(())
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let Some(from) = self.wait_for(Wants::From(from))? else { return Ok(false) };
        self.take(from, into, true).map(|_| true)
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let now = self.now.get();
        let world = self.shared.pause(self.rank, now, Wants::Present, Some(now));
        let there = world.available(from, self.rank).is_some_and(|at| at <= now);
        let closed = !there && world.is_gone(from) && world.is_silent(from, self.rank);
        drop(world);
        if !there {
            self.spend(picos(self.parameters.poll_ns));
            return if closed { Err(Failure::Closed { peer: from }) } else { Ok(false) };
        }
        self.take(from, into, true).map(|_| true)
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let Some(from) = self.wait_for(Wants::From(from))? else { return Ok(0) };
        self.take(from, into, false)
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let found = self.wait_for(Wants::Any)?;
        // Also when there is one at once: who looks again and again without receiving must let time pass for the others.
        self.spend(picos(self.parameters.poll_ns));
        if let Some(from) = found {
            self.next = from + 1;
        }
        Ok(found)
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        let world = self.shared.pause(self.rank, self.now.get(), Wants::Barrier, None);
        let (clock, stalled) = (world.clock(self.rank), world.is_stalled(self.rank));
        drop(world);
        self.until(clock);
        if stalled { Err(self.hopeless(Wants::Barrier)) } else { Ok(()) }
    }

    /// Two messages of a handshake, and one each way.
    fn reconnect(&mut self, peer: Rank) -> Result<(), Failure> {
        if !self.parameters.reliable {
            return Err(Failure::Unsupported("sim has connections only where it is reliable".to_owned()));
        }
        let mut message = [0u8; 1];
        for _ in 0..2 {
            if self.rank < peer {
                self.send(peer, &message)?;
                self.receive(peer, &mut message)?;
            } else {
                self.receive(peer, &mut message)?;
                self.send(peer, &message)?;
            }
        }
        Ok(())
    }

    fn rest(&mut self) {
        let mut world = self.shared.turn(self.rank);
        world.rest(self.rank, self.now.get());
        self.shared.announce(&world);
    }

    fn now_ns(&self) -> u64 {
        self.spend(picos(self.parameters.clock_ns).max(1));
        self.now.get() / 1_000
    }

    fn compute(&mut self, ns: u64) {
        self.spend(ns.saturating_mul(1_000));
    }
}
