//! Endpoints of the protocol on hosts of a simulated network, driven as the event loop drives them, and programs that send, read and check every byte.

use ropeway_engine::link::sim::{Config as Network, Network as Sim, PortCounters, SimLink};
use ropeway_engine::link::{Address, Batch, Ecn, Link, Received, Urgency};
use ropeway_proto::{ChannelId, Config, Endpoint, Event, Mode, Path, RecvError, SendError, Time};
use std::collections::BTreeMap;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;

/// Where senders of streams reach the receiver.
const PORT: u16 = 7;
/// What a program writes, or reads, at once.
const CHUNK_BYTES: usize = 64 << 10;
/// What the loop takes from a link at once, as the engine's does.
const ARRIVALS: usize = 64;

struct Host {
    endpoint: Endpoint,
    link: SimLink,
}

/// A stream from one host to another.
pub struct Flow {
    from: (usize, ChannelId),
    to: (usize, ChannelId),
    total: u64,
    sent: u64,
    pub received: u64,
}

pub struct World {
    pub network: Sim,
    hosts: Vec<Host>,
    pub flows: Vec<Flow>,
    /// The flow that an end of a channel belongs to.
    ends: BTreeMap<(usize, ChannelId), usize>,
    /// The same of the flows in the other direction.
    answers: BTreeMap<(usize, ChannelId), usize>,
}

fn path(host: u32) -> Path {
    let mut bytes = [0; Path::BYTES];
    bytes[..4].copy_from_slice(&host.to_be_bytes());
    Path(bytes)
}

fn address(path: &Path) -> Address {
    Address::Sim(u32::from_be_bytes(path.0[..4].try_into().expect("4 bytes")))
}

fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

impl Host {
    fn receive(&mut self, now: Time) {
        let Host { endpoint, link } = self;
        let mut take = |received: Received<'_>| {
            let Address::Sim(from) = received.from else { unreachable!("a simulated network") };
            endpoint.handle_packet(now, &path(from), received.ecn == Ecn::Congested, received.bytes);
        };
        if link.receive(ARRIVALS, &mut take).expect("the link works") > 0 {
            self.endpoint.finish_batch(now);
        }
    }

    fn transmit(&mut self, now: Time) {
        if !self.endpoint.wants_to_transmit() {
            return;
        }
        let link = &mut self.link;
        self.endpoint.transmit(now, &mut |path, handling, packets| {
            let urgency = match handling.urgency {
                ropeway_proto::Urgency::Urgent => Urgency::Urgent,
                ropeway_proto::Urgency::Bulk => Urgency::Bulk,
            };
            link.send(&Batch { urgency, ..Batch::new(address(path), packets) }).expect("the link works")
        });
    }
}

impl World {
    /// So many senders, each with a stream to host 0 that is open.
    pub fn fan_in(senders: u32, network: Network, config: &Config, seed: u64) -> World {
        let pairs: Vec<_> = (1..=senders as usize).map(|from| (from, 0)).collect();
        World::of(&pairs, network, config, seed)
    }

    /// Host 0 has a stream to each of so many receivers.
    pub fn fan_out(receivers: u32, network: Network, config: &Config, seed: u64) -> World {
        let pairs: Vec<_> = (1..=receivers as usize).map(|to| (0, to)).collect();
        World::of(&pairs, network, config, seed)
    }

    fn of(pairs: &[(usize, usize)], network: Network, config: &Config, seed: u64) -> World {
        let network = Sim::new(network, seed);
        let host = |number: u32| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&seed.to_be_bytes());
            key[8..12].copy_from_slice(&number.to_be_bytes());
            let mut endpoint = Endpoint::with_keys(config.clone(), u64::from(number) + 1, 1, key, None);
            let link = network.attach(number);
            endpoint.gate().add_receive_slots(link.receive_slots().expect("known") as u64);
            endpoint.listen(PORT, Mode::Stream, pairs.len()).expect("a free port");
            Host { endpoint, link }
        };
        let hosts = (0..=pairs.len() as u32).map(host).collect();
        let mut world = World { network, hosts, flows: Vec::new(), ends: BTreeMap::new(), answers: BTreeMap::new() };
        pairs.iter().for_each(|&(from, to)| world.open(from, to));
        world
    }

    fn now(&self) -> Time {
        // The protocol's clock has gone on for a while.
        Time::from_nanos(self.network.now() + S)
    }

    fn open(&mut self, from: usize, to: usize) {
        let now = self.now();
        let client =
            self.hosts[from].endpoint.connect(now, &path(to as u32), PORT, Mode::Stream).expect("there is room");
        let mut server = None;
        self.run(S, |world| {
            server = server.or_else(|| world.hosts[to].endpoint.accept(PORT).ok());
            server.is_some() && world.hosts[from].endpoint.readiness(client).is_some_and(|readiness| readiness.opened)
        });
        let (from, to) = ((from, client), (to, server.expect("it opens within a second")));
        self.ends.extend([from, to].map(|end| (end, self.flows.len())));
        self.flows.push(Flow { from, to, total: 0, sent: 0, received: 0 });
    }

    /// From now on every stream is carried in both directions.
    pub fn answer(&mut self) {
        for flow in 0..self.flows.len() {
            let Flow { from, to, .. } = self.flows[flow];
            self.answers.extend([from, to].map(|end| (end, self.flows.len())));
            self.flows.push(Flow { from: to, to: from, total: 0, sent: 0, received: 0 });
        }
    }

    /// Has every sender send so many bytes more.
    pub fn send(&mut self, bytes: u64) {
        self.flows.iter_mut().for_each(|flow| flow.total += bytes);
        (0..self.flows.len()).for_each(|flow| self.write(flow));
    }

    fn write(&mut self, index: usize) {
        let (now, flow) = (self.now(), &mut self.flows[index]);
        let (host, channel) = flow.from;
        let endpoint = &mut self.hosts[host].endpoint;
        while flow.sent < flow.total {
            let bytes = (flow.sent..flow.total).take(CHUNK_BYTES).map(pattern).collect::<Vec<_>>();
            match endpoint.send(now, channel, &bytes) {
                Ok(count) => flow.sent += count as u64,
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("send at {}: {error}", flow.sent),
            }
        }
        endpoint.flush(channel);
    }

    fn read(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        let (host, channel) = flow.to;
        let mut out = vec![0; CHUNK_BYTES];
        loop {
            match self.hosts[host].endpoint.recv(channel, &mut out) {
                Ok(Some(count)) => {
                    let is_right = (flow.received..).zip(&out[..count]).all(|(at, &byte)| byte == pattern(at));
                    assert!(is_right, "flow {index} from byte {} on", flow.received);
                    flow.received += count as u64;
                }
                Ok(None) => panic!("flow {index} ends at {}", flow.received),
                Err(RecvError::WouldBlock) => return,
                Err(error) => panic!("recv at {}: {error}", flow.received),
            }
        }
    }

    /// What each flow has carried.
    pub fn received(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.received).collect()
    }

    pub fn receiver(&mut self) -> &mut Endpoint {
        &mut self.hosts[0].endpoint
    }

    /// A counter's sum over all hosts.
    pub fn sum(&self, counter: impl Fn(&ropeway_proto::Counters) -> u64) -> u64 {
        self.hosts.iter().map(|host| counter(&host.endpoint.counters())).sum()
    }

    /// The switch's port to the receiver.
    pub fn port(&self) -> PortCounters {
        self.network.port(0).expect("the receiver is there")
    }

    /// Drops anywhere: in all ports, and in hosts that did not take their packets.
    pub fn drops(&self) -> u64 {
        let at = |host: u32| self.network.port(host).expect("there").dropped_packets;
        let untaken = self.hosts.iter().map(|host| host.link.counters().receive_drops).sum::<u64>();
        (0..self.hosts.len() as u32).map(at).sum::<u64>() + untaken
    }

    /// Lets so much time pass, or until `done` says so. Whether it did.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end = self.network.now() + limit_ns;
        let mut ready = Vec::new();
        loop {
            let now = self.now();
            self.hosts.iter_mut().for_each(|host| host.transmit(now));
            self.programs();
            if done(self) {
                return true;
            }
            let timer = self.hosts.iter_mut().filter_map(|host| host.endpoint.next_timeout(now)).min();
            let until = timer.map_or(end, |at| at.as_nanos().saturating_sub(S).min(end));
            if self.network.advance_until_ready(until.max(self.network.now())) >= end {
                return done(self);
            }
            let now = self.now();
            self.network.take_ready(&mut ready);
            ready.drain(..).for_each(|host| self.hosts[host as usize].receive(now));
            for host in &mut self.hosts {
                if host.endpoint.next_timeout(now).is_some_and(|at| at <= now) {
                    host.endpoint.handle_timeout(now);
                }
            }
        }
    }

    /// Whoever was told of something acts.
    fn programs(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(event) = self.hosts[host].endpoint.poll_event() {
                let Event::Changed(id) = event else { continue };
                let _ = self.hosts[host].endpoint.readiness(id);
                let flows = [&self.ends, &self.answers].map(|ends| ends.get(&(host, id)).copied());
                for flow in flows.into_iter().flatten() {
                    match self.flows[flow].to == (host, id) {
                        true => self.read(flow),
                        false => self.write(flow),
                    }
                }
            }
        }
        let now = self.now();
        self.hosts.iter_mut().for_each(|host| host.transmit(now));
    }
}

/// Jain's index of fairness: 1 when all have the same.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64) * (share as f64)).sum();
    sum * sum / (shares.len() as f64 * squares)
}
