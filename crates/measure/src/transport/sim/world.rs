//! What all ranks of a simulated network share: messages under way, and whose turn it is.
//!
//! One rank runs at a time. It runs on without asking until it looks at the network (receives, waits, joins a barrier); then whatever happens first in virtual time is
//! done: a message reaches a port, or a rank whose clock is behind runs. So nobody ever sees the network at a time before which somebody else can still act.

use std::collections::{BTreeMap, VecDeque};

use super::SimParameters;
use crate::transport::Rank;

/// Virtual time in picoseconds: 213 days of them, and parts of a nanosecond per byte are not rounded away.
pub type Picos = u64;

/// Messages whose memory is kept.
const MOST_SPARE: usize = 64;

pub fn picos(ns: f64) -> Picos {
    (ns * 1e3).round() as Picos
}

/// What a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Only that everything before its clock has happened.
    Present,
    From(Rank),
    Any,
    /// Room in the window to that rank.
    Room(Rank),
    Barrier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It runs, or can run from its clock on.
    Runnable,
    /// It can run from `wake` on, if that is known.
    Waiting {
        wants: Wants,
        wake: Option<Picos>,
    },
    /// Between trials: only a barrier brings it back.
    Resting,
    Gone,
}

/// A message that a rank can receive from this time on.
struct Message {
    available: Picos,
    bytes: Vec<u8>,
}

/// From one rank to another.
#[derive(Default)]
struct Channel {
    sent: u64,
    /// Number of the message that is to be delivered next, where order is kept.
    next: u64,
    ready: VecDeque<Message>,
    /// Delivered before an earlier one that was lost and is sent again.
    early: BTreeMap<u64, Message>,
    /// Bytes sent and not received (reliable), or delivered and not received (unreliable).
    held: usize,
    last_available: Picos,
}

/// The network, its messages and its ranks.
pub struct World {
    pub parameters: SimParameters,
    clocks: Vec<Picos>,
    states: Vec<State>,
    /// Ranks whom nothing that can still happen would wake.
    stalled: Vec<bool>,
    channels: Vec<Channel>,
    /// On the way, by (arrival at the port, from, to, number).
    flying: BTreeMap<(Picos, Rank, Rank, u64), Vec<u8>>,
    /// Memory of messages that were received, for those to come: fresh memory of large messages costs more than their copies.
    spare: Vec<Vec<u8>>,
    /// When each receiver's port has passed on what it has.
    port_free: Vec<Picos>,
    /// Whose turn it is; None while all rest.
    pub running: Option<Rank>,
}

impl World {
    pub fn new(parameters: SimParameters, ranks: usize) -> World {
        World {
            parameters,
            clocks: vec![0; ranks],
            states: vec![State::Runnable; ranks],
            stalled: vec![false; ranks],
            channels: (0..ranks * ranks).map(|_| Channel::default()).collect(),
            flying: BTreeMap::new(),
            spare: Vec::new(),
            port_free: vec![0; ranks],
            running: Some(0),
        }
    }

    pub fn clock(&self, rank: Rank) -> Picos {
        self.clocks[rank]
    }

    pub fn is_stalled(&self, rank: Rank) -> bool {
        self.stalled[rank]
    }

    pub fn is_gone(&self, rank: Rank) -> bool {
        self.states[rank] == State::Gone
    }

    pub fn somebody_gone(&self) -> Option<Rank> {
        self.states.iter().position(|state| *state == State::Gone)
    }

    /// Whether a message of so many bytes fits into the window; one alone always does.
    pub fn has_room(&self, from: Rank, to: Rank, bytes: usize) -> bool {
        let held = self.channel(from, to).held;
        !self.parameters.reliable || held == 0 || held + bytes <= self.parameters.window
    }

    /// A message leaves for that rank's port.
    pub fn launch(&mut self, from: Rank, to: Rank, arrival: Picos, message: &[u8]) {
        let reliable = self.parameters.reliable;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.extend_from_slice(message);
        let channel = self.channel_mut(from, to);
        let number = channel.sent;
        channel.sent += 1;
        if reliable {
            channel.held += bytes.len();
        }
        self.flying.insert((arrival, from, to, number), bytes);
    }

    /// When the oldest message of that channel can be received, if one is known.
    pub fn available(&self, from: Rank, to: Rank) -> Option<Picos> {
        self.channel(from, to).ready.front().map(|message| message.available)
    }

    /// Whether nothing of that channel is under way or waits to be received.
    pub fn is_silent(&self, from: Rank, to: Rank) -> bool {
        let flying = self.flying.keys().any(|(_, sender, receiver, _)| (*sender, *receiver) == (from, to));
        let channel = self.channel(from, to);
        !flying && channel.ready.is_empty() && channel.early.is_empty()
    }

    /// Takes the oldest message of a channel at this time; there is one.
    pub fn take(&mut self, from: Rank, to: Rank, now: Picos) -> Vec<u8> {
        let channel = self.channel_mut(from, to);
        let message = channel.ready.pop_front().map(|message| message.bytes).unwrap_or_default();
        channel.held -= message.len();
        if let State::Waiting { wants: Wants::Room(rank), wake } = &mut self.states[from]
            && *rank == to
        {
            *wake = Some(self.clocks[from].max(now));
        }
        message
    }

    /// Takes back the memory of a message that was received.
    pub fn recycle(&mut self, mut message: Vec<u8>) {
        if self.spare.len() < MOST_SPARE {
            message.clear();
            self.spare.push(message);
        }
    }

    /// This rank runs no further before `wake` or what it wants; whose turn it is afterwards is in `running`.
    pub fn pause(&mut self, rank: Rank, clock: Picos, wants: Wants, wake: Option<Picos>) {
        self.clocks[rank] = clock;
        self.stalled[rank] = false;
        self.states[rank] = State::Waiting { wants, wake };
        if wants == Wants::Barrier {
            self.open_barrier();
        }
        if self.running.is_none_or(|running| running == rank) {
            self.schedule();
        }
    }

    /// This rank does nothing until the next barrier.
    pub fn rest(&mut self, rank: Rank, clock: Picos) {
        self.clocks[rank] = clock;
        self.leave(rank, State::Resting);
    }

    /// A rank that rested goes on without a barrier.
    pub fn resume(&mut self, rank: Rank) {
        if self.states[rank] == State::Resting {
            self.states[rank] = State::Runnable;
            if self.running.is_none() {
                self.schedule();
            }
        }
    }

    /// This rank is no more.
    pub fn gone(&mut self, rank: Rank) {
        self.leave(rank, State::Gone);
    }

    fn leave(&mut self, rank: Rank, state: State) {
        self.states[rank] = state;
        if self.running.is_none_or(|running| running == rank) {
            self.schedule();
        }
    }

    fn open_barrier(&mut self) {
        // One that has a time to wake is still to leave the barrier before.
        let at_barrier = |state: &State| matches!(state, State::Waiting { wants: Wants::Barrier, wake: None });
        if self.states.iter().all(at_barrier) {
            let latest = self.clocks.iter().copied().max();
            self.states.fill(State::Waiting { wants: Wants::Barrier, wake: latest });
        }
    }

    /// Lets happen what happens first, until that is a rank's turn.
    fn schedule(&mut self) {
        loop {
            let next = self.first_rank();
            match (self.flying.first_key_value(), next) {
                (Some(((at, ..), _)), Some((time, _))) if *at <= time => self.deliver_first(),
                (Some(_), None) => self.deliver_first(),
                (_, Some((time, rank))) => return self.run(rank, time),
                (None, None) => return self.run_stalled(),
            }
        }
    }

    /// The rank that can run first, and from when on; the lower one of equals.
    fn first_rank(&self) -> Option<(Picos, Rank)> {
        let times = self.states.iter().enumerate().filter_map(|(rank, state)| match state {
            State::Runnable => Some((self.clocks[rank], rank)),
            State::Waiting { wake, .. } => wake.map(|wake| (wake.max(self.clocks[rank]), rank)),
            State::Resting | State::Gone => None,
        });
        times.min()
    }

    fn run(&mut self, rank: Rank, time: Picos) {
        self.clocks[rank] = time;
        self.states[rank] = State::Runnable;
        self.running = Some(rank);
    }

    /// Nothing will happen any more: a rank that waits for it is told so. Ranks at a barrier go on waiting for those that rest.
    fn run_stalled(&mut self) {
        let somebody_gone = self.somebody_gone().is_some();
        let hopeless = self.states.iter().position(|state| match state {
            State::Waiting { wants: Wants::Barrier, .. } => somebody_gone,
            State::Waiting { .. } => true,
            _ => false,
        });
        match hopeless {
            Some(rank) => {
                self.stalled[rank] = true;
                self.run(rank, self.clocks[rank]);
            }
            None => self.running = None,
        }
    }

    /// The first message under way reaches its receiver's port.
    fn deliver_first(&mut self) {
        let Some(((at, from, to, number), bytes)) = self.flying.pop_first() else { return };
        let mut available = at;
        if let Some(rate) = self.parameters.rate {
            let per_byte = 1e12 / rate;
            let waiting = self.port_free[to].saturating_sub(at) as f64 / per_byte;
            let full = self.parameters.buffer.is_some_and(|buffer| waiting + bytes.len() as f64 > buffer as f64);
            // A message larger than the buffer still passes an empty port.
            if full && waiting >= 1.0 {
                if self.parameters.reliable {
                    self.flying.insert((at + picos(self.parameters.retransmit_ns).max(1), from, to, number), bytes);
                }
                return;
            }
            available = self.port_free[to].max(at) + (bytes.len() as f64 * per_byte).round() as Picos;
            self.port_free[to] = available;
        }
        self.put(from, to, number, Message { available, bytes });
    }

    fn put(&mut self, from: Rank, to: Rank, number: u64, message: Message) {
        let (reliable, window) = (self.parameters.reliable, self.parameters.window);
        let channel = self.channel_mut(from, to);
        if !reliable {
            if channel.held > 0 && channel.held + message.bytes.len() > window {
                return;
            }
            channel.held += message.bytes.len();
            channel.next = number;
        }
        channel.early.insert(number, message);
        while let Some(mut message) = channel.early.remove(&channel.next) {
            channel.next += 1;
            message.available = message.available.max(channel.last_available);
            channel.last_available = message.available;
            channel.ready.push_back(message);
        }
        let Some(available) = self.available(from, to) else { return };
        if let State::Waiting { wants, wake } = &mut self.states[to]
            && (*wants == Wants::From(from) || *wants == Wants::Any)
        {
            *wake = Some(wake.map_or(available, |wake| wake.min(available)));
        }
    }

    fn channel(&self, from: Rank, to: Rank) -> &Channel {
        &self.channels[from * self.states.len() + to]
    }

    fn channel_mut(&mut self, from: Rank, to: Rank) -> &mut Channel {
        let ranks = self.states.len();
        &mut self.channels[from * ranks + to]
    }
}
