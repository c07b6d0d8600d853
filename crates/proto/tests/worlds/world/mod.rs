//! A small world in virtual time: endpoints on a switch whose ports have a rate and a buffer, with loss, duplication, reordering and damage.
//!
//! Deterministic from its seed. Everything that happens is an event at a time; endpoints are called as an event loop would call them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use ropeway_proto::crypto::{ClusterKey, ClusterKeys};
use ropeway_proto::{Config, Endpoint, Path, Presence, Taken, Time};

/// Nanoseconds, for readable tests.
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// What is different on one of several networks between the hosts: that of the addresses with its number as alias.
#[derive(Clone, Debug, Default)]
pub struct Plane {
    /// Besides that of the net.
    pub delay_ns: u64,
    pub loss_ppm: u64,
    /// Longest packet that passes; 0: any.
    pub most_bytes: usize,
    pub is_cut: bool,
    /// Each packet arrives with a congestion mark.
    pub marks: bool,
    /// Packets that were sent into it.
    pub packets: u64,
}

/// What the network does to packets.
#[derive(Clone, Debug)]
pub struct Net {
    /// One way, without queueing.
    pub delay_ns: u64,
    /// Bits per second of every port; 0: no limit.
    pub rate: u64,
    /// Bytes that a port queues.
    pub port_buffer: u64,
    /// Of a million packets.
    pub loss_ppm: u64,
    pub duplication_ppm: u64,
    pub reordering_ppm: u64,
    pub corruption_ppm: u64,
    /// What was damaged is lost, as UDP's checksum or the medium's makes it. Between hosts with a key it arrives: they have to see it themselves.
    pub checksum: bool,
    /// Bytes on the medium around each packet.
    pub overhead: u64,
}

impl Default for Net {
    fn default() -> Net {
        Net {
            delay_ns: 20 * US,
            rate: 0,
            port_buffer: 128 << 10,
            loss_ppm: 0,
            duplication_ppm: 0,
            reordering_ppm: 0,
            corruption_ppm: 0,
            checksum: !is_keyed(),
            overhead: 46,
        }
    }
}

/// A host's send buffer. It is on no host unless a test puts it there.
#[derive(Clone, Debug, Default)]
pub struct Socket {
    /// Packets that it holds at most.
    pub room: usize,
    /// How long each takes up room; those for hosts that are not there, [`Socket::UNRESOLVED_NS`].
    pub holds_ns: u64,
    /// Until when those in it do.
    held: BTreeSet<(u64, u64)>,
    taken: u64,
}

impl Socket {
    /// For so long a kernel looks for the hardware address of a host that is off.
    pub const UNRESOLVED_NS: u64 = 3 * S;

    pub fn with_room(room: usize, holds_ns: u64) -> Socket {
        Socket { room, holds_ns, ..Socket::default() }
    }

    /// Takes what there is room for.
    fn take(&mut self, now: u64, is_there: bool, packets: usize) -> usize {
        while self.held.first().is_some_and(|&(until, _)| until <= now) {
            self.held.pop_first();
        }
        let count = packets.min(self.room.saturating_sub(self.held.len()));
        let until = now + if is_there { self.holds_ns } else { Socket::UNRESOLVED_NS };
        for _ in 0..count {
            self.taken += 1;
            self.held.insert((until, self.taken));
        }
        count
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Port {
    free_at: u64,
    /// Until then it forwards nothing.
    paused_until: u64,
    pub drops: u64,
    /// Of these, data that were sent for the first time.
    pub drops_of_new: u64,
    pub most_queued: u64,
}

/// Bits per second of a host's own line, and when it is free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uplink {
    pub rate: u64,
    free_at: u64,
}

impl Uplink {
    pub fn new(rate: u64) -> Uplink {
        Uplink { rate, free_at: 0 }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: u64,
    order: u64,
    from: usize,
    to: usize,
    alias: u64,
    bytes: Vec<u8>,
    congested: bool,
}

pub type Attacker = Box<dyn FnMut(u64, usize, usize, &[u8]) -> Vec<(usize, usize, Vec<u8>)>>;
type Filter = Box<dyn FnMut(u64, usize, usize, &[u8]) -> bool>;

pub struct World {
    pub net: Net,
    pub now: u64,
    pub hosts: Vec<Endpoint>,
    ports: Vec<Port>,
    flying: BinaryHeap<Reverse<Flying>>,
    order: u64,
    random: u64,
    /// Pairs that cannot reach each other.
    pub cut: BTreeSet<(usize, usize)>,
    /// Hosts whose own line is slower than the ports; it queues whatever they send.
    pub uplinks: BTreeMap<usize, Uplink>,
    leaving: BinaryHeap<Reverse<Flying>>,
    /// By alias; others are as the net is.
    pub planes: BTreeMap<u64, Plane>,
    /// Hosts that do nothing. What arrives waits for them, as in a socket.
    pub stopped: BTreeSet<usize>,
    waiting: Vec<Flying>,
    /// Called for each packet before it flies: false loses it.
    pub filter: Option<Filter>,
    /// Sees each packet that is not lost by then, and says what flies in its place: from, to, bytes.
    pub attacker: Option<Attacker>,
    /// That no counter seals two packets.
    pub counters: CounterOracle,
    pub packets: u64,
    /// Of these, the ones that the network damaged.
    pub damaged: u64,
    /// How far each host's clock is ahead of the world's.
    skews: Vec<i64>,
    /// Where hosts cannot send as much as they like.
    pub sockets: BTreeMap<usize, Socket>,
    /// Of these, the ones that have another one for who has not answered.
    pub apart: BTreeMap<usize, Socket>,
    /// Hosts, and those of their links (`link_of`) that take nothing.
    pub full: BTreeSet<(usize, usize)>,
    /// What was sent to who had not answered: when, from which host, to which, what. Kept if a test asks for it.
    pub doubted: Option<Vec<(u64, usize, usize, u8)>>,
    /// Packets that hosts have sent so far.
    pub sent_by: Vec<u64>,
}

pub fn path(host: usize) -> Path {
    alias(host, 0)
}

/// One of many addresses of a host: what comes from `alias(a, n)` is answered to `alias(b, n)`.
pub fn alias(host: usize, alias: u64) -> Path {
    let mut bytes = [0; Path::BYTES];
    bytes[..8].copy_from_slice(&(host as u64).to_be_bytes());
    bytes[8..16].copy_from_slice(&alias.to_be_bytes());
    Path(bytes)
}

/// Of two links, the one that an alias belongs to.
pub fn link_of(path: &Path) -> usize {
    usize::from(path.0[15] % 2)
}

/// Over which path something comes from an alias of a host.
pub fn arrival(host: usize, name: u64) -> Path {
    alias(host, name).bound(own(name))
}

/// The number of the own address that is spoken to by this alias, where hosts tell their addresses apart.
fn own(name: u64) -> u8 {
    if is_wildcard() { 1 + (name % 255) as u8 } else { 0 }
}

fn host_of(path: &Path) -> (usize, u64) {
    let is_own = path.own() == 0 || path.own() == own(u64::from_be_bytes(path.0[8..16].try_into().unwrap()));
    assert!(is_own, "an answer leaves under another address than was asked: {path:?}");
    let word = |at: usize| u64::from_be_bytes(path.0[at..at + 8].try_into().unwrap());
    (word(0) as usize, word(8))
}

impl World {
    pub fn new(hosts: usize, net: Net, config: &Config, seed: u64) -> World {
        World::of((0..hosts).map(|host| endpoint(host, config, seed)).collect(), net, seed)
    }

    pub fn of(hosts: Vec<Endpoint>, net: Net, seed: u64) -> World {
        World {
            skews: vec![0; hosts.len()],
            sent_by: vec![0; hosts.len()],
            net,
            now: S,
            ports: vec![Port::default(); hosts.len()],
            hosts,
            flying: BinaryHeap::new(),
            order: 0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            cut: BTreeSet::new(),
            uplinks: BTreeMap::new(),
            leaving: BinaryHeap::new(),
            planes: BTreeMap::new(),
            sockets: BTreeMap::new(),
            apart: BTreeMap::new(),
            full: BTreeSet::new(),
            doubted: None,
            stopped: BTreeSet::new(),
            waiting: Vec::new(),
            filter: None,
            attacker: None,
            counters: CounterOracle::default(),
            packets: 0,
            damaged: 0,
        }
    }

    pub fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// What the clock of a host says.
    pub fn clock(&self, host: usize) -> Time {
        Time::from_nanos(self.now.saturating_add_signed(self.skews[host]))
    }

    /// Sets a host's clock forward, or back.
    pub fn step_clock(&mut self, host: usize, ns: i64) {
        self.skews[host] += ns;
    }

    /// Puts another endpoint in the place of a host, as if its process had been started anew.
    pub fn replace(&mut self, host: usize, endpoint: Endpoint) {
        self.hosts[host] = endpoint;
    }

    /// A host takes leave of all others. `false`: it has to send something first.
    pub fn close_all(&mut self, host: usize) -> bool {
        let now = self.clock(host);
        self.hosts[host].close_all(now)
    }

    /// When the host's earliest timer is due.
    pub fn wakes_at(&mut self, host: usize) -> Option<u64> {
        let now = self.clock(host);
        let at = self.hosts[host].next_timeout(now)?.as_nanos();
        Some(at.saturating_add_signed(-self.skews[host]))
    }

    pub fn drops(&self, host: usize) -> u64 {
        self.ports[host].drops
    }

    pub fn drops_of_new(&self, host: usize) -> u64 {
        self.ports[host].drops_of_new
    }

    /// The port of `host` forwards nothing more for so long, but what stands in it already.
    pub fn pause_port(&mut self, host: usize, ns: u64) {
        let port = &mut self.ports[host];
        port.paused_until = port.free_at.max(self.now) + ns;
    }

    pub fn most_queued(&self, host: usize) -> u64 {
        self.ports[host].most_queued
    }

    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn chance(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.random() % 1_000_000 < ppm
    }

    /// Lets a host say all it has to say.
    pub fn flush(&mut self, host: usize) {
        if self.stopped.contains(&host) || !self.hosts[host].wants_to_transmit() {
            return;
        }
        let now = self.clock(host);
        let mut out: Vec<((usize, u64), Vec<u8>)> = Vec::new();
        let (world_now, hosts) = (self.now, self.hosts.len());
        let (mut socket, mut apart) = (self.sockets.get_mut(&host), self.apart.get_mut(&host));
        let (cut, full, doubted) = (&self.cut, &self.full, &mut self.doubted);
        self.hosts[host].transmit_by(now, &mut || now, &mut |path, handling, packets| {
            let to = host_of(path).0;
            let is_there = to < hosts && !cut.contains(&(host, to)) && !cut.contains(&(to, host));
            let is_heard = handling.presence == Presence::Heard;
            let goes_apart = !is_heard && apart.is_some();
            let socket = if goes_apart { &mut apart } else { &mut socket };
            if full.contains(&(host, link_of(path))) {
                return 0.into();
            }
            let count = socket.as_mut().map_or(packets.len(), |socket| socket.take(world_now, is_there, packets.len()));
            out.extend(packets[..count].iter().map(|packet| (host_of(path), packet.to_vec())));
            if let Some(doubted) = doubted.as_mut().filter(|_| !is_heard) {
                doubted.extend(packets[..count].iter().map(|packet| (world_now, host, to, packet[0])));
            }
            let is_lost = goes_apart && handling.presence == Presence::Silent;
            if is_lost { Taken { packets: packets.len(), discarded: packets.len() - count } } else { count.into() }
        });
        self.sent_by[host] += out.len() as u64;
        for ((to, alias), bytes) in out {
            self.launch(host, to, alias, bytes);
        }
    }

    fn launch(&mut self, from: usize, to: usize, alias: u64, bytes: Vec<u8>) {
        self.packets += 1;
        // One association may use all networks.
        let seen_as = if self.planes.is_empty() { alias } else { 0 };
        self.counters.note(from, to, seen_as, &bytes);
        if self.cut.contains(&(from, to)) || self.cut.contains(&(to, from)) || to >= self.hosts.len() {
            return;
        }
        let now = self.now;
        if self.filter.as_mut().is_some_and(|filter| !filter(now, from, to, &bytes)) {
            return;
        }
        if let Some(uplink) = self.uplinks.get_mut(&from) {
            let size = bytes.len() as u64 + self.net.overhead;
            uplink.free_at = uplink.free_at.max(now) + size * 8 * S / uplink.rate;
            self.order += 1;
            let (at, order) = (uplink.free_at, self.order);
            return self.leaving.push(Reverse(Flying { at, order, from, to, alias, bytes, congested: false }));
        }
        let Some(mut attacker) = self.attacker.take() else { return self.fly(from, to, alias, bytes) };
        for (from, to, bytes) in attacker(now, from, to, &bytes) {
            self.fly(from, to, alias, bytes);
        }
        self.attacker = Some(attacker);
    }

    /// Puts a packet on its way, whoever made it.
    pub fn inject(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.fly(from, to, 0, bytes.to_vec());
    }

    fn fly(&mut self, from: usize, to: usize, alias: u64, mut bytes: Vec<u8>) {
        let plane = self.planes.get_mut(&alias).map(|plane| {
            plane.packets += 1;
            plane.clone()
        });
        let Plane { delay_ns, loss_ppm, most_bytes, is_cut, marks, .. } = plane.unwrap_or_default();
        if is_cut || (most_bytes > 0 && bytes.len() > most_bytes) || self.chance(loss_ppm) {
            return;
        }
        if self.chance(self.net.loss_ppm) {
            return;
        }
        if self.chance(self.net.corruption_ppm) && !bytes.is_empty() {
            self.damaged += 1;
            if self.net.checksum {
                return;
            }
            self.damage(&mut bytes);
        }
        let copies = 1 + u64::from(self.chance(self.net.duplication_ppm));
        for _ in 0..copies {
            let Some(mut at) = self.through_port(to, bytes.len() as u64) else {
                let is_new = [0x17, 0x10].contains(&bytes[0]) && bytes[1] & 0x20 == 0;
                self.ports[to].drops_of_new += u64::from(is_new);
                continue;
            };
            if self.chance(self.net.reordering_ppm) {
                at += self.random() % (5 * self.net.delay_ns + 1);
            }
            self.order += 1;
            at += delay_ns;
            let bytes = bytes.clone();
            self.flying.push(Reverse(Flying { at, order: self.order, from, to, alias, bytes, congested: marks }));
        }
    }

    /// Some bits, or the end.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let bits = self.random() % 4;
        for _ in 0..bits {
            let at = self.random() as usize % bytes.len();
            bytes[at] ^= 1 << (self.random() % 8);
        }
        if bits == 0 {
            bytes.truncate(self.random() as usize % bytes.len());
        }
    }

    /// When a packet leaves the port of `to`; `None`: the port's buffer is full.
    fn through_port(&mut self, to: usize, bytes: u64) -> Option<u64> {
        let arrives = self.now + self.net.delay_ns;
        if self.net.rate == 0 {
            return Some(arrives);
        }
        let port = &mut self.ports[to];
        let size = bytes + self.net.overhead;
        let served_from = arrives.max(port.paused_until);
        let waiting_ns = port.free_at.saturating_sub(served_from);
        let queued = waiting_ns * self.net.rate / 8 / S;
        port.most_queued = port.most_queued.max(queued);
        if queued + size > self.net.port_buffer {
            port.drops += 1;
            return None;
        }
        port.free_at = port.free_at.max(served_from) + size * 8 * S / self.net.rate;
        Some(port.free_at)
    }

    /// Until `end`, or until `done` says so; `done` is called after each step, and may use the endpoints. Says whether it was done.
    pub fn run(&mut self, end: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        self.wake();
        for host in 0..self.hosts.len() {
            self.flush(host);
        }
        let (mut still, mut steps) = (self.now, 0);
        while !done(self) {
            steps = if still == self.now { steps + 1 } else { 0 };
            still = self.now;
            assert!(steps < 100_000, "time stands still at {still}");
            for host in 0..self.hosts.len() {
                self.flush(host);
            }
            let packet = self.flying.peek().map(|Reverse(flying)| flying.at);
            let running: Vec<usize> = (0..self.hosts.len()).filter(|host| !self.stopped.contains(host)).collect();
            let timer = running.into_iter().filter_map(|host| self.wakes_at(host)).min();
            let leaves = self.leaving.peek().map(|Reverse(leaving)| leaving.at);
            let next = [packet, leaves, timer, self.room_at()].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = end;
                return done(self);
            };
            self.now = self.now.max(next);
            while let Some(Reverse(Flying { from, to, alias, bytes, .. })) = self.pop_leaving() {
                self.fly(from, to, alias, bytes);
            }
            self.arrivals();
            for host in 0..self.hosts.len() {
                if !self.stopped.contains(&host) && self.wakes_at(host).is_some_and(|at| at <= self.now) {
                    let now = self.clock(host);
                    self.hosts[host].note_empty(now);
                    self.hosts[host].handle_timeout(now);
                    self.flush(host);
                }
            }
        }
        true
    }

    /// When a host that has something to send will find room for it.
    fn room_at(&self) -> Option<u64> {
        let waits = |&(host, _): &(&usize, &Socket)| self.hosts[*host].wants_to_transmit();
        let first = |(_, socket): (&usize, &Socket)| socket.held.first().map(|&(until, _)| until);
        self.sockets.iter().filter(waits).filter_map(first).min()
    }

    fn pop_leaving(&mut self) -> Option<Reverse<Flying>> {
        self.leaving.peek().is_some_and(|Reverse(leaving)| leaving.at <= self.now).then(|| self.leaving.pop())?
    }

    fn arrivals(&mut self) {
        let mut arrived = Vec::new();
        while self.flying.peek().is_some_and(|Reverse(flying)| flying.at <= self.now) {
            arrived.extend(self.flying.pop().map(|Reverse(flying)| flying));
        }
        let (waiting, arrived): (Vec<_>, Vec<_>) = arrived.into_iter().partition(|one| self.stopped.contains(&one.to));
        self.waiting.extend(waiting);
        self.deliver(arrived);
    }

    /// Hosts that go on find what has arrived meanwhile.
    fn wake(&mut self) {
        let (waiting, arrived) =
            std::mem::take(&mut self.waiting).into_iter().partition(|one| self.stopped.contains(&one.to));
        self.waiting = waiting;
        self.deliver(arrived);
    }

    fn deliver(&mut self, arrived: Vec<Flying>) {
        let mut reached = BTreeSet::new();
        for Flying { from, to, alias: name, bytes, congested, .. } in arrived {
            let now = self.clock(to);
            self.hosts[to].handle_packet(now, &arrival(from, name), congested, &bytes);
            reached.insert(to);
        }
        for host in reached {
            let now = self.clock(host);
            self.hosts[host].finish_batch(now);
            self.hosts[host].note_empty(now);
            self.flush(host);
        }
    }
}

mod counters;
pub use counters::CounterOracle;
pub mod hosts;
pub(crate) use hosts::{in_every_way, tests, with_a_key, with_and_without_a_key, with_own_addresses};
pub use hosts::{is_keyed, is_wildcard};
mod idlers;
pub use idlers::*;
mod traffic;
pub use traffic::*;

pub fn endpoint(host: usize, config: &Config, seed: u64) -> Endpoint {
    endpoint_with(host, config, seed, if is_keyed() { &[1] } else { &[] })
}

/// With these keys, or without any.
pub fn endpoint_with(host: usize, config: &Config, seed: u64, keys: &[u8]) -> Endpoint {
    endpoint_of(host, config, 0, seed, keys)
}

/// One that may share its address with others.
pub fn endpoint_steered(host: usize, config: &Config, steering: u16, seed: u64) -> Endpoint {
    endpoint_of(host, config, steering, seed, if is_keyed() { &[1] } else { &[] })
}

fn endpoint_of(host: usize, config: &Config, steering: u16, seed: u64, keys: &[u8]) -> Endpoint {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_be_bytes());
    key[8..16].copy_from_slice(&(host as u64).to_be_bytes());
    let keys = (!keys.is_empty()).then(|| Arc::new(cluster_keys(keys)));
    Endpoint::with_keys(config.clone(), host as u64 + 1, steering, key, keys)
}

/// What of a packet of usual size is data, seven of eight times behind the short header.
pub fn payload_bytes() -> f64 {
    if is_keyed() { 1434.5 } else { 1454.5 }
}

/// Keys that are told apart by numbers.
pub fn cluster_keys(numbers: &[u8]) -> ClusterKeys {
    let line = |&number: &u8| ClusterKey::new(std::array::from_fn(|at| number.wrapping_add(at as u8))).line();
    let lines: Vec<_> = numbers.iter().map(line).collect();
    let text: String = lines.iter().map(|line| format!("{}\n", **line)).collect();
    ClusterKeys::parse(&text).expect("keys of 32 different bytes")
}
