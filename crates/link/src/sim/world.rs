//! The state of a simulated network and its events.

use super::config::{Config, Direction, Host, NetworkCounters, PortCounters};
use super::frame::{Frame, FrameId, Frames};
use super::port::{Place, Port};
use super::{MOST_HOSTS, Time};
use crate::random::Random;
use crate::{Counters, Ecn, FaultCounters, Faults, Urgency, faults};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Index into [`World::ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortId(u32);

/// Something that happens. Events of one instant happen in the order in which they were planned.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Time,
    order: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The last bit of a port's frame goes into the cable.
    Sent(PortId),
    /// The last bit of a frame comes out of the cable.
    Arrives(FrameId, Place),
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A host that was attached once.
#[derive(Debug)]
pub(super) struct Station {
    pub config: Host,
    /// Which of its links is the present one; those before it are void.
    pub generation: u64,
    pub attached: bool,
    pub stopped: bool,
    pub inbox: VecDeque<FrameId>,
    /// A send was refused, and there was no room since.
    refused: bool,
    /// It stands in the list of hosts that can do something.
    listed: bool,
    pub counters: Counters,
    card: PortId,
    port: PortId,
}

#[derive(Debug)]
struct Partition {
    a: Vec<u32>,
    b: Vec<u32>,
    from: Time,
    until: Time,
}

impl Partition {
    fn parts(&self, from: u32, to: u32, now: Time) -> bool {
        let between = |x: &[u32], y: &[u32]| x.binary_search(&from).is_ok() && y.binary_search(&to).is_ok();
        (self.from..self.until).contains(&now) && (between(&self.a, &self.b) || between(&self.b, &self.a))
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub now: Time,
    config: Config,
    seed: u64,
    pub frames: Frames,
    /// By number; not all have to be there.
    stations: Vec<Option<Station>>,
    ports: Vec<Port>,
    /// The ends of the trunk, at the first and at the second switch.
    trunk: Option<[PortId; 2]>,
    /// Bytes in the ports of each switch.
    switch_bytes: Vec<u64>,
    partitions: Vec<Partition>,
    events: BinaryHeap<Reverse<Event>>,
    next_order: u64,
    /// Hosts that can receive, or send again, in the order in which they came to.
    ready: VecDeque<u32>,
    pub counters: NetworkCounters,
}

impl World {
    pub fn new(config: Config, seed: u64) -> World {
        assert!(!config.switches.is_empty(), "a network has at least one switch");
        let mut world = World {
            now: 0,
            seed,
            frames: Frames::default(),
            stations: Vec::new(),
            ports: Vec::new(),
            trunk: None,
            switch_bytes: vec![0; config.switches.len()],
            partitions: Vec::new(),
            events: BinaryHeap::new(),
            next_order: 0,
            ready: VecDeque::new(),
            counters: NetworkCounters::default(),
            config,
        };
        if let Some(trunk) = world.config.trunk {
            assert!(world.config.switches.len() >= 2, "a trunk joins two switches");
            let mut end = |at, to| world.add_port(Some(at), trunk.rate_bits_per_s, trunk.delay_ns, to, trunk.faults);
            world.trunk = Some([end(0, Place::Switch(1)), end(1, Place::Switch(0))]);
        }
        world
    }

    fn add_port(&mut self, switch: Option<usize>, rate: u64, delay_ns: u64, to: Place, faults: Faults) -> PortId {
        let id = PortId(self.ports.len() as u32);
        // A generator for each cable: faults of one do not depend on the traffic of another.
        let random = Random::of_part(self.seed, u64::from(id.0));
        self.ports.push(Port::new(switch, rate, delay_ns, to, faults, random));
        id
    }

    pub fn default_host(&self) -> Host {
        self.config.host
    }

    /// Attaches to a host, which is made if it is not there, and returns the generation of this attachment.
    pub fn attach(&mut self, number: u32, host: Host) -> u64 {
        assert!(number < MOST_HOSTS, "host {number}: at most {MOST_HOSTS} hosts");
        assert!(host.switch < self.config.switches.len(), "host {number}: there is no switch {}", host.switch);
        let index = number as usize;
        if self.stations.len() <= index {
            self.stations.resize_with(index + 1, || None);
        }
        if self.stations[index].is_none() {
            let (rate, delay) = (host.rate_bits_per_s, host.delay_ns);
            let card = self.add_port(None, rate, delay, Place::Switch(host.switch), host.to_switch);
            let port = self.add_port(Some(host.switch), rate, delay, Place::Host(number), host.to_host);
            self.stations[index] = Some(Station {
                config: host,
                generation: 0,
                attached: false,
                stopped: false,
                inbox: VecDeque::new(),
                refused: false,
                listed: false,
                counters: Counters::default(),
                card,
                port,
            });
        }
        self.empty_inbox(number);
        let station = self.station_mut(number).expect("just made");
        (station.attached, station.refused, station.counters) = (true, false, Counters::default());
        station.generation += 1;
        station.generation
    }

    /// Nobody takes this host's packets any more.
    pub fn detach(&mut self, number: u32) {
        self.empty_inbox(number);
        if let Some(station) = self.station_mut(number) {
            station.attached = false;
        }
    }

    fn empty_inbox(&mut self, number: u32) {
        let Some(Some(station)) = self.stations.get_mut(number as usize) else { return };
        for frame in station.inbox.drain(..) {
            self.frames.remove(frame);
        }
    }

    pub fn station(&self, number: u32) -> Option<&Station> {
        self.stations.get(number as usize)?.as_ref()
    }

    pub fn station_mut(&mut self, number: u32) -> Option<&mut Station> {
        self.stations.get_mut(number as usize)?.as_mut()
    }

    /// Stops a host or lets it go on.
    pub fn set_stopped(&mut self, number: u32, stopped: bool) {
        let Some(station) = self.station_mut(number) else { return };
        station.stopped = stopped;
        let card = station.card;
        self.ports[card.0 as usize].stopped = stopped;
        if !stopped {
            self.start(card, false);
            self.list(number);
        }
    }

    pub fn add_partition(&mut self, a: &[u32], b: &[u32], from: Time, until: Time) {
        let now = self.now;
        self.partitions.retain(|partition| partition.until > now);
        let sorted = |hosts: &[u32]| {
            let mut hosts = hosts.to_vec();
            hosts.sort_unstable();
            hosts
        };
        self.partitions.push(Partition { a: sorted(a), b: sorted(b), from, until });
    }

    pub fn heal(&mut self) {
        self.partitions.clear();
    }

    fn cable(&self, number: u32, direction: Direction) -> Option<PortId> {
        let station = self.station(number)?;
        Some(if direction == Direction::ToSwitch { station.card } else { station.port })
    }

    pub fn set_faults(&mut self, number: u32, direction: Direction, faults: Faults) {
        if let Some(id) = self.cable(number, direction) {
            self.ports[id.0 as usize].faults = faults;
        }
    }

    pub fn port_counters(&self, number: u32, direction: Direction) -> Option<PortCounters> {
        self.cable(number, direction).map(|id| self.ports[id.0 as usize].counters)
    }

    pub fn cable_counters(&self, number: u32, direction: Direction) -> Option<FaultCounters> {
        self.cable(number, direction).map(|id| self.ports[id.0 as usize].cable)
    }

    pub fn trunk_counters(&self, from_switch: usize) -> Option<PortCounters> {
        let id = self.trunk?.get(from_switch).copied()?;
        Some(self.ports[id.0 as usize].counters)
    }

    fn frame_bytes(&self, packet_bytes: usize) -> u64 {
        let framing = self.config.framing;
        (packet_bytes as u64 + u64::from(framing.frame_bytes)).max(u64::from(framing.least_frame_bytes))
    }

    /// Puts one packet into its host's queue. `false`: there is no room.
    pub fn send(&mut self, from: u32, to: u32, bytes: &[u8], urgency: Urgency) -> bool {
        let frame_bytes = self.frame_bytes(bytes.len());
        let Some(Some(station)) = self.stations.get_mut(from as usize) else { return false };
        let (host, card) = (station.config, station.card);
        if station.stopped || !self.ports[card.0 as usize].has_room(frame_bytes, host.send_queue_bytes) {
            station.refused = true;
            return false;
        }
        let mut buffer = self.frames.buffer();
        buffer.extend_from_slice(bytes);
        let urgent = urgency == Urgency::Urgent && host.urgent_first;
        let frame = Frame { bytes: buffer, from, to, ecn: host.ecn, damaged: false, frame_bytes };
        let id = self.frames.insert(frame);
        self.ports[card.0 as usize].enqueue(id, frame_bytes, urgent);
        self.start(card, false);
        true
    }

    /// Takes one packet that arrived.
    pub fn receive(&mut self, number: u32) -> Option<(u32, Ecn, Vec<u8>)> {
        let station = self.station_mut(number).filter(|station| !station.stopped)?;
        let id = station.inbox.pop_front()?;
        let frame = self.frames.get(id);
        let (from, ecn) = (frame.from, frame.ecn);
        Some((from, ecn, self.frames.take(id)))
    }

    pub fn next_event(&self) -> Option<Time> {
        self.events.peek().map(|Reverse(event)| event.at)
    }

    /// Lets happen all that is planned up to then.
    pub fn advance(&mut self, to: Time) {
        while self.next_event().is_some_and(|at| at <= to) {
            self.step();
        }
        self.now = self.now.max(to);
    }

    /// Like [`World::advance`], but ends with the first instant in which some host can do something.
    pub fn advance_until_ready(&mut self, limit: Time) {
        while self.ready.is_empty() {
            match self.next_event().filter(|at| *at <= limit) {
                Some(at) => self.advance(at),
                None if limit == Time::MAX => return,
                None => return self.advance(limit),
            }
        }
    }

    /// Hands out the hosts that can do something, each once.
    pub fn take_ready(&mut self, hosts: &mut Vec<u32>) {
        while let Some(number) = self.ready.pop_front() {
            let Some(station) = self.station_mut(number) else { continue };
            station.listed = false;
            if station.attached && !station.stopped {
                hosts.push(number);
            }
        }
    }

    /// Enters a host into the list of those that can do something.
    pub fn list(&mut self, number: u32) {
        let Some(station) = self.station_mut(number) else { return };
        if !std::mem::replace(&mut station.listed, true) {
            self.ready.push_back(number);
        }
    }

    fn step(&mut self) {
        let Some(Reverse(event)) = self.events.pop() else { return };
        self.now = event.at;
        self.counters.events += 1;
        match event.what {
            What::Sent(port) => self.sent(port),
            What::Arrives(frame, Place::Switch(switch)) => self.forward(frame, switch),
            What::Arrives(frame, Place::Host(host)) => self.deliver(frame, host),
        }
    }

    fn plan(&mut self, at: Time, what: What) {
        self.events.push(Reverse(Event { at, order: self.next_order, what }));
        self.next_order += 1;
    }

    /// Begins to send the next frame of a port, if it is idle and there is one.
    fn start(&mut self, id: PortId, back_to_back: bool) {
        let port = &mut self.ports[id.0 as usize];
        let Some(frame) = port.next() else { return };
        let wire_bytes = self.frames.get(frame).frame_bytes + u64::from(self.config.framing.gap_bytes);
        let at = self.now + port.duration(wire_bytes, back_to_back);
        self.plan(at, What::Sent(id));
    }

    /// A frame is out of its port: the cable does with it what it does, and the next one begins.
    fn sent(&mut self, id: PortId) {
        let port = &mut self.ports[id.0 as usize];
        let Some(frame) = port.sending else { return };
        let frame_bytes = self.frames.get(frame).frame_bytes;
        port.sent(frame_bytes);
        match port.switch {
            Some(switch) => self.switch_bytes[switch] -= frame_bytes,
            None => self.room_again(self.frames.get(frame).from),
        }
        self.through_cable(id, frame);
        self.start(id, true);
    }

    /// Tells a host that was refused that it may send again.
    fn room_again(&mut self, number: u32) {
        if let Some(station) = self.station_mut(number)
            && std::mem::take(&mut station.refused)
        {
            self.list(number);
        }
    }

    fn through_cable(&mut self, id: PortId, frame: FrameId) {
        let port = &mut self.ports[id.0 as usize];
        let fate = port.faults.draw(&mut port.random);
        let at = self.now + port.delay_ns;
        let to = port.to;
        port.cable.count(fate);
        if fate.lost {
            return self.frames.remove(frame);
        }
        // The second copy is whole and in its place, whatever happens to the first.
        let copy = fate.duplicated.then(|| self.frames.copy(frame));
        if fate.corrupted {
            let port = &mut self.ports[id.0 as usize];
            let frame = self.frames.get_mut(frame);
            faults::corrupt(&mut frame.bytes, &mut port.random);
            frame.damaged = !port.faults.corrupt_delivered;
        }
        self.plan(at + fate.held_ns, What::Arrives(frame, to));
        if let Some(copy) = copy {
            self.plan(at, What::Arrives(copy, to));
        }
    }

    /// A frame is whole in a switch: into the queue of the port that leads to its host.
    fn forward(&mut self, frame: FrameId, switch: usize) {
        let Frame { from, to, damaged, .. } = *self.frames.get(frame);
        if damaged {
            self.counters.bad_at_switch += 1;
            return self.frames.remove(frame);
        }
        let now = self.now;
        if self.partitions.iter().any(|partition| partition.parts(from, to, now)) {
            self.counters.partitioned += 1;
            return self.frames.remove(frame);
        }
        let Some(port) = self.way(to, switch) else {
            self.counters.nobody += 1;
            return self.frames.remove(frame);
        };
        self.queue_at_switch(frame, switch, port);
    }

    /// The port of a switch that leads to a host.
    fn way(&self, to: u32, switch: usize) -> Option<PortId> {
        let station = self.station(to)?;
        if station.config.switch == switch {
            return Some(station.port);
        }
        let trunk = self.trunk?;
        // The trunk joins the first two switches only.
        (station.config.switch < 2).then(|| trunk.get(switch).copied()).flatten()
    }

    fn queue_at_switch(&mut self, frame: FrameId, switch: usize, id: PortId) {
        let config = self.config.switches[switch];
        let frame_bytes = self.frames.get(frame).frame_bytes;
        let limit = config.shared.map_or(config.port_buffer_bytes, |shared| {
            let free = shared.bytes.saturating_sub(self.switch_bytes[switch]);
            let threshold = free * shared.threshold_percent / 100;
            // Beside the threshold, the frame has to fit into what is free at all.
            let whole = if free >= frame_bytes { threshold } else { 0 };
            config.port_buffer_bytes.min(whole)
        });
        let port = &mut self.ports[id.0 as usize];
        if !port.has_room(frame_bytes, limit) {
            port.dropped(frame_bytes);
            return self.frames.remove(frame);
        }
        port.enqueue(frame, frame_bytes, false);
        self.switch_bytes[switch] += frame_bytes;
        let queued = port.counters.queued_bytes;
        let ecn = &mut self.frames.get_mut(frame).ecn;
        if config.ecn_threshold_bytes.is_some_and(|threshold| queued > threshold) && *ecn != Ecn::NotCapable {
            *ecn = Ecn::Congested;
            port.counters.marked_packets += 1;
        }
        self.start(id, false);
    }

    /// A frame comes out of a host's cable.
    fn deliver(&mut self, frame: FrameId, number: u32) {
        let damaged = self.frames.get(frame).damaged;
        let len = self.frames.get(frame).bytes.len();
        let Some(Some(station)) = self.stations.get_mut(number as usize) else { return self.frames.remove(frame) };
        if !station.attached {
            self.counters.nobody += 1;
            return self.frames.remove(frame);
        }
        if damaged || len > station.config.mtu {
            station.counters.receive_bad += 1;
            return self.frames.remove(frame);
        }
        if station.inbox.len() >= station.config.receive_slots {
            station.counters.receive_drops += 1;
            return self.frames.remove(frame);
        }
        station.inbox.push_back(frame);
        self.list(number);
    }
}
