//! One engine's end of the protocol: all its associations and channels, without I/O.
//!
//! Calls of four kinds, in any order but this one within a turn of an event loop: [`Endpoint::handle_packet`] for everything that arrived, then
//! [`Endpoint::finish_batch`]; [`Endpoint::handle_timeout`] if [`Endpoint::next_timeout`] has passed; commands ([`Endpoint::connect`], [`Endpoint::send`], ...);
//! then [`Endpoint::transmit`] until everything is out, and [`Endpoint::poll_event`] until there is none. The caller passes the time; it may stand
//! still, and must not run backwards by more than a lease without costing speed.

mod attempting;
mod batches;
mod commands;
mod connecting;
mod control;
mod cookies;
mod counters;
mod deliver;
#[cfg(test)]
mod fixed;

mod input;
mod joining;
mod keeping;
mod keyed_opening;
mod listening;
mod numbered;
mod opening;
mod output;
mod path;
mod pausing;
mod places;
mod ports;
mod queues;
mod reading;
mod reserving;
mod resets;
mod returning;
mod rounds;
mod routing;
mod run;
mod sending;
mod statistics;
mod timers;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ropeway_wire::{ErrorCode, Id, Mode};
use slab::Slab;

use crate::arrivals::Arrivals;
use crate::association::Association;
use crate::channel::{Channel, ChannelId};
use crate::config::{Config, SetError};
use crate::crypto::ClusterKeys;
use crate::crypto::token::Secret;
use crate::gate::Gate;
use crate::keyed::Sealing;
use crate::pool::{Pool, SHORT_SAVES_BYTES};
use crate::random::Random;
use crate::time::Time;

pub use connecting::ConnectError;
pub use counters::Counters;
use listening::Listener;
pub use listening::{AcceptError, ListenError};
pub use output::{BATCH_PACKETS, Handling, Presence, Sink, Taken, Urgency};
pub use path::Path;
use places::Places;
use ports::Ports;
use queues::Queues;
pub use reading::RecvError;
use reserving::Reserved;
use resets::Incarnations;
pub use resets::MOST_STARTS;
pub use routing::Route;
pub use run::Landing;
use run::Run;
pub use sending::{Joined, SendError};
pub(crate) use windows::LEAST_WINDOW_BYTES;

/// Something that the user of an endpoint should look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The readiness of a channel may have changed.
    Changed(ChannelId),
    /// A channel waits to be accepted at this port.
    Incoming(u16),
}

/// A CONFIRM that was answered: its cookie is spent, and the same CONFIRM again means that the answer was lost.
#[derive(Debug)]
struct Spent {
    /// What it opened; nothing if it was refused.
    opened: Option<(u32, Id)>,
    until: Time,
    /// With a key, the answer byte for byte, until the client has been heard.
    answer: Option<Box<[u8]>>,
}

/// Events not fetched, of listeners and channels together: each stands in the queue once at most, so this bounds nothing a peer controls.
const EVENTS_AT_FIRST: usize = 64;

/// All associations and channels of one engine.
pub struct Endpoint {
    config: Config,
    node: u64,
    steering: u16,
    random: Random,
    secret: Secret,
    /// None: everybody is trusted.
    keys: Option<Arc<ClusterKeys>>,
    /// In memory of their own: a table that grows by doubling would keep room for as many again.
    associations: Slab<Box<Association>>,
    incarnations: Incarnations,
    /// Open associations, and attempts, by where the peer is (an unbound path): the newest of each.
    peers: BTreeMap<Path, u32>,
    /// Older ones, by the peer's id: the peer was started anew, or several peers share a path, or the same is there under several of this host's addresses.
    elders: BTreeMap<(Path, Id), u32>,
    channels: Slab<Box<Channel>>,
    channel_generation: u32,
    listeners: BTreeMap<u16, Listener>,
    /// Paths that lead back here.
    own_paths: BTreeSet<Path>,
    spent: BTreeMap<(Path, u64), Spent>,
    /// The same, oldest first.
    spent_order: VecDeque<(Path, u64)>,
    places: Places,
    gate: Gate,
    tx_pool: Pool,
    rx_pool: Pool,
    /// Associations of which a message waits for memory.
    line: VecDeque<u32>,
    /// The channel of the one that claims what becomes free.
    claimant: Option<u32>,
    /// Messages that memory is set aside for, by their channels.
    reserved: BTreeMap<u32, Reserved>,
    /// These have their place among the timers.
    reserved_stand_in_timers: bool,
    /// Channels whose peer is to send nothing for now, each behind its association.
    paused: BTreeSet<(u32, u32)>,
    /// The one that went on last by itself: the others behind it come first.
    let_go_last: (u32, u32),
    /// Slots for numbers that are missing, or came behind such, of all associations.
    slots: usize,
    /// Before that no wide window is looked through for what is missing, but those whose turn was told before.
    looks_at: Time,
    /// What waits for each link.
    queues: Queues,
    /// The packets of the batch at hand that were taken last, if more may follow.
    run: Option<Run>,
    /// Associations that something arrived for in the batch at hand.
    touched: Vec<u32>,
    /// Associations whose earliest timer may have changed; one that has ended since is found gone, or another in its place, whose timers are looked at once more.
    unsettled: Vec<u32>,
    /// Numbers of the batch that is being sent; kept for its memory.
    numbers: Vec<u64>,
    /// Where packets are opened.
    opened: Vec<u8>,
    timers: BTreeSet<(Time, u32)>,
    /// The pools of packet memory have their place among the timers.
    pools_stand_in_timers: bool,
    /// Since when the caller has looked at the clock in time: silence before that says nothing about the peers.
    awake_at: Time,
    /// When the links had nothing for us, last.
    empty_at: Time,
    /// When what is being transmitted now began to be.
    turn_at: Time,
    events: VecDeque<Event>,
    /// Channels whose users wait for memory, and how many packets need some.
    lacking_memory: Vec<(u32, usize)>,
    arrivals: Arrivals,
    counters: Counters,
    ports: Ports,
}

impl Endpoint {
    /// An endpoint without keys, which trusts all hosts and the network between them. Its ids carry `steering`, and its randomness comes from `seed`, which
    /// must not be used twice.
    pub fn new(config: Config, node: u64, steering: u16, seed: [u8; 32]) -> Endpoint {
        Endpoint::with_keys(config, node, steering, seed, None)
    }

    /// The same with `keys`: it talks only to who has one of them, and every association is sealed. It must never be used on two sides of a `fork`.
    pub fn with_keys(
        config: Config,
        node: u64,
        steering: u16,
        seed: [u8; 32],
        keys: Option<Arc<ClusterKeys>>,
    ) -> Endpoint {
        let mut random = Random::new(&seed);
        let start = random.next_u64() as u32;
        let sealing = if keys.is_some() { Sealing::with_key() } else { Sealing::default() };
        let header_bytes = ropeway_wire::CHANNEL_HEADER_BYTES + sealing.overhead_bytes();
        let payload_bytes = usize::from(config.packet_bytes) - header_bytes;
        Endpoint {
            node,
            steering,
            secret: Secret::new(random.bytes()),
            random,
            keys,
            associations: Slab::new(),
            incarnations: Incarnations::new(start),
            peers: BTreeMap::new(),
            elders: BTreeMap::new(),
            channels: Slab::new(),
            channel_generation: 0,
            listeners: BTreeMap::new(),
            own_paths: BTreeSet::new(),
            spent: BTreeMap::new(),
            spent_order: VecDeque::new(),
            places: Places::new(),
            gate: Gate::new(&config),
            tx_pool: Pool::new(payload_bytes + SHORT_SAVES_BYTES, config.send_memory_bytes),
            rx_pool: Pool::new(payload_bytes + SHORT_SAVES_BYTES, config.receive_memory_bytes),
            line: VecDeque::new(),
            claimant: None,
            reserved: BTreeMap::new(),
            reserved_stand_in_timers: false,
            paused: BTreeSet::new(),
            let_go_last: (0, 0),
            slots: 0,
            looks_at: Time::ZERO,
            queues: Queues::new(),
            run: None,
            touched: Vec::new(),
            unsettled: Vec::new(),
            numbers: Vec::new(),
            opened: Vec::new(),
            timers: BTreeSet::new(),
            pools_stand_in_timers: false,
            awake_at: Time::ZERO,
            empty_at: Time::ZERO,
            turn_at: Time::ZERO,
            events: VecDeque::with_capacity(EVENTS_AT_FIRST),
            lacking_memory: Vec::new(),
            arrivals: Arrivals::new(),
            counters: Counters::default(),
            ports: Ports::new(),
            config,
        }
    }

    /// What is sent over this path comes back to this endpoint: it may open channels to itself there.
    pub fn add_own_path(&mut self, path: Path) {
        self.own_paths.insert(path.unbound());
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes over changed settings, for what is decided from now on; [`Endpoint::finish_batch`] is to be called afterwards. The packet size stays.
    ///
    /// # Errors
    /// `receive_memory` would be less than what peers have been told about. Nothing is changed then.
    pub fn configure(&mut self, config: Config) -> Result<(), SetError> {
        // Messages of which a part has come would wait for each other's memory.
        if config.receive_memory_bytes < self.config.receive_memory_bytes && !self.associations.is_empty() {
            return Err(SetError::Promised);
        }
        let changes_mode = config.gate_mode != self.config.gate_mode;
        self.gate.configure(&config);
        self.tx_pool.set_limit(config.send_memory_bytes);
        self.rx_pool.set_limit(config.receive_memory_bytes);
        self.config = Config { packet_bytes: self.config.packet_bytes, ..config };
        if changes_mode {
            self.change_gate_mode();
        }
        self.serve_line();
        self.announce_room();
        Ok(())
    }

    /// Everybody is told how things stand in the new mode: with `gate = esp` what is acknowledged is another number, and who waited is in no line.
    fn change_gate_mode(&mut self) {
        self.gate.release_acks(0, |_| ());
        let indexes: Vec<u32> = self.associations.iter().map(|(index, _)| index as u32).collect();
        for index in indexes {
            let association = &mut self.associations[index as usize];
            association.esp_ack = association.received.base();
            association.ack_due = association.is_open();
            self.touch(index);
            self.make_ready(index);
        }
    }

    pub fn gate(&mut self) -> &mut Gate {
        &mut self.gate
    }

    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.gate = self.gate.counters();
        counters.buffers_taken = self.tx_pool.taken + self.rx_pool.taken;
        counters.buffers_allocated = self.tx_pool.allocated + self.rx_pool.allocated;
        counters
    }

    /// What the last switch port before this host seems to queue, learned from losses: the delay in that queue when packets were lost, at the rate
    /// of arrival. `None`: nothing was lost yet. An estimate to compare `port_buffer` with, which few people know.
    pub fn port_buffer_estimate_bytes(&self) -> Option<u64> {
        self.gate.port_estimate_bytes()
    }

    /// Packet buffers that are not free, sending and receiving: 0 when nothing is under way.
    pub fn buffers_in_use(&self) -> (usize, usize) {
        (self.tx_pool.in_use(), self.rx_pool.in_use())
    }

    /// Whether everything that was handed over to be sent has been acknowledged, and no message is being handed over.
    pub fn is_drained(&self) -> bool {
        self.tx_pool.in_use() == 0 && self.tx_pool.owed == 0
    }

    /// Bytes that peers may send beyond each channel's first window: 0 when there are no channels.
    pub fn promised_bytes(&self) -> u64 {
        self.rx_pool.promised_bytes
    }

    /// Associations, and channels in them, that exist now.
    pub fn sizes(&self) -> (usize, usize) {
        (self.associations.len(), self.channels.len())
    }

    /// The next thing to look at.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        let announced = match event {
            Event::Incoming(port) => self.listeners.get_mut(&port).map(|listener| &mut listener.announced),
            Event::Changed(id) => self
                .channels
                .get_mut(id.index as usize)
                .filter(|channel| channel.generation == id.generation)
                .map(|channel| &mut channel.announced),
        };
        announced.into_iter().for_each(|announced| *announced = false);
        Some(event)
    }

    /// Tells the user of a change, once until the event is fetched. Nobody is told of channels that nobody has accepted, or that were closed.
    fn announce(events: &mut VecDeque<Event>, channel: &mut Channel, index: u32) {
        if channel.queued_in.is_some() || channel.released {
            return;
        }
        if !std::mem::replace(&mut channel.announced, true) {
            events.push_back(Event::Changed(ChannelId { index, generation: channel.generation }));
        }
    }

    fn announce_channel(&mut self, index: u32) {
        Endpoint::announce(&mut self.events, &mut self.channels[index as usize], index);
    }

    /// Puts an association into the queue of those with something to transmit.
    fn make_ready(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        self.queues.add(&mut association.queued_in, &association.path, index);
    }

    fn touch(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        if !std::mem::replace(&mut association.touched, true) {
            self.touched.push(index);
        }
    }

    /// The association that receives under `id`.
    fn find(&self, id: Id) -> Option<u32> {
        let index = u32::from(id.slot());
        self.associations.get(index as usize).filter(|association| association.id == id).map(|_| index)
    }

    /// The path over which something came for the owner of `id`, as that one knows it: who connects leaves its own address to the host, and takes what comes to any.
    fn known_path(&self, id: Id, path: &Path) -> Path {
        let is_known_unbound = |index: u32| {
            let association = &self.associations[index as usize];
            !association.has_path(path) && association.has_path(&path.unbound())
        };
        let unbinds = path.own() != 0 && self.find(id).is_some_and(is_known_unbound);
        if unbinds { path.unbound() } else { *path }
    }

    fn add_channel(&mut self, association: u32, number: u16, mode: Mode, ports: (u16, u16)) -> u32 {
        self.channel_generation = self.channel_generation.wrapping_add(1);
        let &Association { own_window, path, .. } = &*self.associations[association as usize];
        let generation = self.channel_generation;
        let channel = Channel::new(generation, path, association, number, mode, ports, own_window);
        let index = self.channels.insert(Box::new(channel)) as u32;
        self.associations[association as usize].attach(number, index);
        self.note_rest(association);
        index
    }

    fn channel_index(&self, id: ChannelId) -> Option<u32> {
        let channel = self.channels.get(id.index as usize)?;
        (channel.generation == id.generation && !channel.released).then_some(id.index)
    }

    /// The association does not use this path any more.
    fn forget_path(&mut self, path: &Path, peer: Id, index: u32) {
        let path = path.unbound();
        if self.peers.get(&path) == Some(&index) {
            self.peers.remove(&path);
        }
        if self.elders.get(&(path, peer)) == Some(&index) {
            self.elders.remove(&(path, peer));
        }
    }

    /// Ends an association: its channels fail with `code`.
    fn end_association(&mut self, index: u32, code: ErrorCode) {
        self.run = None;
        let mut association = self.associations.remove(index as usize);
        self.incarnations.advance(index as usize);
        for path in association.paths() {
            self.forget_path(&path, association.peer, index);
        }
        if let Some(at) = association.timer_at {
            self.timers.remove(&(at, index));
        }
        self.give_place(association.host, association.rest);
        self.gate.forget(index);
        self.touched.retain(|&touched| touched != index);
        self.queues.remove(&mut association.queued_in, index);
        association.sent.clear(|packet| self.tx_pool.give(packet.payload));
        self.slots -= association.received.kept_slots();
        association.received.clear(|held| self.rx_pool.give(held.payload));
        // Memory that one has for a long message goes to the next in line, which may be another of them.
        for channel in association.channels.indices() {
            self.channels[channel as usize].detached = true;
        }
        self.release_reservations(index, &association);
        for channel in association.channels.indices() {
            self.fail_channel(channel, code);
        }
        self.rx_pool.ledger.close(association.account);
        self.counters.associations_ended[counters::place_of(code)] += 1;
    }

    /// A channel whose association is gone.
    fn fail_channel(&mut self, index: u32, code: ErrorCode) {
        let channel = &mut self.channels[index as usize];
        channel.undelivered |= !channel.outgoing.is_delivered();
        channel.outgoing.drop_queue(&mut self.tx_pool);
        channel.outgoing.forget_sent();
        channel.incoming.revoke(&mut self.rx_pool);
        channel.incoming.drop_unfinished(&mut self.rx_pool);
        channel.outgoing.scheduled = false;
        channel.detached = true;
        // What arrived whole before the end can still be read; only then does the reader meet the error. That holds for who accepts it later as well.
        channel.failed.get_or_insert(code);
        let is_empty = !channel.incoming.is_readable(channel.mode) && !channel.incoming.is_finished();
        self.release_reservation(index);
        let channel = &self.channels[index as usize];
        if channel.released || (channel.queued_in.is_some() && is_empty) {
            self.free_channel(index);
        } else {
            self.announce_channel(index);
        }
    }

    /// Removes a channel that neither the wire nor its user needs.
    fn free_channel(&mut self, index: u32) {
        self.release_reservation(index);
        self.leave_listener(index);
        self.run = None;
        let mut channel = self.channels.remove(index as usize);
        if channel.gives_port_back {
            self.ports.give_back(channel.local_port);
        }
        channel.incoming.clear(&mut self.rx_pool);
        channel.incoming.revoke(&mut self.rx_pool);
        channel.outgoing.drop_queue(&mut self.tx_pool);
        self.serve_line();
    }

    /// Gives a channel's number back if both ends are through with it.
    fn settle_channel(&mut self, index: u32) {
        let channel = &mut self.channels[index as usize];
        if channel.detached || !channel.is_done() {
            return;
        }
        self.release_reservation(index);
        let channel = &mut self.channels[index as usize];
        channel.detached = true;
        let (number, released) = (channel.number, channel.released);
        let of = channel.association;
        let association = &mut self.associations[of as usize];
        association.detach(number);
        if std::mem::replace(&mut channel.outgoing.scheduled, false) {
            association.round.retain(|&at| at != index);
            association.ending.retain(|&at| at != index);
        }
        self.note_rest(of);
        if released {
            self.free_channel(index);
        }
    }
}
