//! What a gateway does with packets, without I/O (docs/protocol.md 12.4): which are forwarded, where to, and what waits. It knows nodes and their addresses, and of
//! connections nothing: any gateway between two nodes can be replaced by any other at any moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;

use ropeway_wire::{Packet, SHIM_BYTES, Shim};

use crate::endpoint::{BATCH_PACKETS, Handling, Path, Presence, Sink, Urgency};

/// Nodes in the table, at most: as many as a large cluster has, and a bound for what a wrong file can ask for.
pub const MOST_NODES: usize = 65_536;
/// Packets that wait for one neighbour, at most, however short: each costs more than its bytes.
const MOST_WAITING_PACKETS: usize = 4096;
/// Buffers kept for packets to come.
const SPARE_BUFFERS: usize = 1024;

/// Bounds of the queue towards each neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that wait; what comes then is dropped.
    pub queue_bytes: usize,
    /// With so many bytes waiting packets are marked (CE).
    pub mark_bytes: usize,
}

impl Default for Limits {
    /// About what a port of a switch queues, and marks long before it is full: a receiver's budget is 3/4 of such a port.
    fn default() -> Limits {
        Limits { queue_bytes: 256 << 10, mark_bytes: 64 << 10 }
    }
}

/// Counts since the gateway was made; never reset. What has come in was forwarded, waits, or moved one of the `dropped` ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounters {
    pub received: u64,
    pub forwarded: u64,
    pub forwarded_bytes: u64,
    /// Of these, the ones marked here.
    pub marked: u64,
    /// Not from a neighbour of the table.
    pub dropped_stranger: u64,
    /// No shim, or one with unknown bits.
    pub dropped_shim: u64,
    /// No packet of this version behind the shim.
    pub dropped_malformed: u64,
    pub dropped_hops: u64,
    /// The destination is not in the table.
    pub dropped_no_route: u64,
    /// It would go back where it came from.
    pub dropped_returning: u64,
    /// The queue towards the neighbour was full.
    pub dropped_full: u64,
    /// The link towards the neighbour bears only shorter ones.
    pub dropped_too_long: u64,
}

impl GatewayCounters {
    pub fn dropped(&self) -> u64 {
        self.dropped_stranger
            + self.dropped_shim
            + self.dropped_malformed
            + self.dropped_hops
            + self.dropped_no_route
            + self.dropped_returning
            + self.dropped_full
            + self.dropped_too_long
    }
}

/// What a link did with the packets that it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// It is done with so many, from the first on.
    pub packets: usize,
    /// Those of them that are longer than this it did not send.
    pub longest_bytes: usize,
}

impl From<usize> for Accepted {
    fn from(packets: usize) -> Accepted {
        Accepted { packets, longest_bytes: usize::MAX }
    }
}

/// Why there is no gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("node {0} is in the table twice")]
    Twice(u32),
    #[error("host {0} is in the table twice")]
    HostTwice(u16),
    #[error("there are more than {MOST_NODES} nodes in the table")]
    TooMany,
    #[error("a gateway needs at least two neighbours; name more nodes")]
    TooFew,
}

/// The queue towards one neighbour.
#[derive(Debug)]
struct Output {
    to: Path,
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
}

/// A forwarder between the neighbours of its table.
#[derive(Debug)]
pub struct Forwarder {
    /// Places in `outputs` by node.
    nodes: BTreeMap<u32, usize>,
    /// The same for whole hosts, each of which has the nodes with its number in their upper half.
    hosts: BTreeMap<u16, usize>,
    outputs: Vec<Output>,
    /// Places of the outputs with something waiting, each once: those whose turn is still to come in this round ...
    turns: VecDeque<usize>,
    /// ... and in the next one. A link that is full then begins with those that had nothing of it.
    next_turns: VecDeque<usize>,
    neighbours: BTreeSet<Path>,
    limits: Limits,
    spare: Vec<Vec<u8>>,
    counters: GatewayCounters,
}

impl Forwarder {
    /// With a table of nodes and the neighbours through which they are reached: themselves, or gateways before them.
    ///
    /// # Errors
    /// A table that cannot be meant.
    pub fn new(table: &[(u32, Path)], limits: Limits) -> Result<Forwarder, TableError> {
        Forwarder::with_hosts(table, &[], limits)
    }

    /// The same with hosts besides: each stands for all nodes that have its number in their upper 16 bits, and in the lower ones anything but 0. What the
    /// lower half says is for whoever hands the packets on to know.
    ///
    /// # Errors
    /// A table that cannot be meant.
    pub fn with_hosts(
        table: &[(u32, Path)],
        table_of_hosts: &[(u16, Path)],
        limits: Limits,
    ) -> Result<Forwarder, TableError> {
        if table.len() + table_of_hosts.len() > MOST_NODES {
            return Err(TableError::TooMany);
        }
        let paths_of_hosts = table_of_hosts.iter().map(|&(_, path)| path);
        let neighbours: BTreeSet<Path> = table.iter().map(|&(_, path)| path).chain(paths_of_hosts).collect();
        if neighbours.len() < 2 {
            return Err(TableError::TooFew);
        }
        let places: BTreeMap<Path, usize> = neighbours.iter().copied().zip(0..).collect();
        let mut nodes = BTreeMap::new();
        for (node, path) in table {
            if nodes.insert(*node, places[path]).is_some() {
                return Err(TableError::Twice(*node));
            }
        }
        let mut hosts = BTreeMap::new();
        for (host, path) in table_of_hosts {
            if hosts.insert(*host, places[path]).is_some() {
                return Err(TableError::HostTwice(*host));
            }
        }
        let output = |&to: &Path| Output { to, waiting: VecDeque::new(), waiting_bytes: 0 };
        let outputs = neighbours.iter().map(output).collect();
        let (turns, next_turns) = (VecDeque::new(), VecDeque::new());
        let (spare, counters) = (Vec::new(), GatewayCounters::default());
        Ok(Forwarder { nodes, hosts, outputs, turns, next_turns, neighbours, limits, spare, counters })
    }

    /// Whether the table has a neighbour at this path.
    pub fn has_neighbour(&self, path: &Path) -> bool {
        self.neighbours.contains(path)
    }

    /// The place of a node's neighbour in `outputs`.
    fn place(&self, node: u32) -> Option<usize> {
        let of_host = || self.hosts.get(&((node >> 16) as u16)).filter(|_| node as u16 != 0);
        self.nodes.get(&node).or_else(of_host).copied()
    }

    pub fn counters(&self) -> GatewayCounters {
        self.counters
    }

    /// Packets and bytes that wait.
    pub fn waiting(&self) -> (usize, usize) {
        let sums = self.outputs.iter().map(|output| (output.waiting.len(), output.waiting_bytes));
        sums.fold((0, 0), |(packets, bytes), (more, longer)| (packets + more, bytes + longer))
    }

    /// Takes one packet that arrived from `from`; `congested` if the network below marked it.
    pub fn take(&mut self, from: &Path, congested: bool, bytes: &[u8]) {
        self.counters.received += 1;
        if let Err(counter) = self.queue(from, congested, bytes) {
            *counter(&mut self.counters) += 1;
        }
    }

    /// `Err`: the counter of why not.
    fn queue(
        &mut self,
        from: &Path,
        congested: bool,
        bytes: &[u8],
    ) -> Result<(), fn(&mut GatewayCounters) -> &mut u64> {
        // Who is not in the table has no business here: nobody sends through us to third parties.
        if !self.neighbours.contains(from) {
            return Err(|counters| &mut counters.dropped_stranger);
        }
        let Ok((shim, packet)) = Shim::parse(bytes) else { return Err(|counters| &mut counters.dropped_shim) };
        if Packet::parse(packet).is_err() {
            return Err(|counters| &mut counters.dropped_malformed);
        }
        let Some(hops) = shim.hops.checked_sub(1) else { return Err(|counters| &mut counters.dropped_hops) };
        let Some(place) = self.place(shim.destination) else {
            return Err(|counters| &mut counters.dropped_no_route);
        };
        let output = &mut self.outputs[place];
        if output.to == *from {
            return Err(|counters| &mut counters.dropped_returning);
        }
        let is_full = output.waiting_bytes + bytes.len() > self.limits.queue_bytes;
        if is_full || output.waiting.len() >= MOST_WAITING_PACKETS {
            return Err(|counters| &mut counters.dropped_full);
        }
        let is_marked = output.waiting_bytes >= self.limits.mark_bytes;
        self.counters.marked += u64::from(is_marked);
        let shim = Shim { congested: shim.congested || congested || is_marked, hops, ..shim };
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(&shim.to_bytes());
        buffer.extend_from_slice(&bytes[SHIM_BYTES..]);
        if output.waiting.is_empty() {
            self.next_turns.push_back(place);
        }
        output.waiting_bytes += buffer.len();
        output.waiting.push_back(buffer);
        Ok(())
    }

    /// Hands what waits to `sink`, a batch for each neighbour in turn, until what is left was refused. `false`: some still waits.
    pub fn transmit(&mut self, sink: &mut Sink<'_>) -> bool {
        self.transmit_by(&mut |path, handling, packets| sink(path, handling, packets).into())
    }

    /// The same for links that differ in the packets they bear.
    pub fn transmit_by(&mut self, sink: &mut Sink<'_, Accepted>) -> bool {
        self.turns.append(&mut self.next_turns);
        // It keeps its turn until the sink has answered: a sink that panics takes it from nobody.
        while let Some(&place) = self.turns.front() {
            let output = &mut self.outputs[place];
            let mut slices = [IoSlice::new(&[]); BATCH_PACKETS];
            let count = output.waiting.len().min(BATCH_PACKETS);
            slices.iter_mut().zip(&output.waiting).for_each(|(slice, packet)| *slice = IoSlice::new(packet));
            // Who is heard is not known here.
            let handling = Handling { urgency: Urgency::Bulk, presence: Presence::Heard };
            let Accepted { packets, longest_bytes } = sink(&output.to, handling, &slices[..count]);
            let accepted = packets.min(count);
            for packet in output.waiting.drain(..accepted) {
                output.waiting_bytes -= packet.len();
                if packet.len() > longest_bytes {
                    self.counters.dropped_too_long += 1;
                } else {
                    self.counters.forwarded += 1;
                    self.counters.forwarded_bytes += packet.len() as u64;
                }
                if self.spare.len() < SPARE_BUFFERS {
                    self.spare.push(packet);
                }
            }
            self.turns.pop_front();
            if accepted == 0 {
                self.next_turns.push_back(place);
            } else if !output.waiting.is_empty() {
                self.turns.push_back(place);
            }
        }
        self.next_turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_wire::{Header, Id, Type};

    const A: Path = Path([1; Path::BYTES]);
    const B: Path = Path([2; Path::BYTES]);

    fn forwarder(limits: Limits) -> Forwarder {
        Forwarder::new(&[(1, A), (2, B), (3, B)], limits).unwrap()
    }

    fn packet(shim: Shim, payload: usize) -> Vec<u8> {
        let header = Header { length: payload as u16, ..Header::new(Type::Control, Id(0x0010_0010)) };
        [&shim.to_bytes()[..], &header.to_bytes()[..24], &vec![7; payload]].concat()
    }

    const SHIM: Shim = Shim { congested: false, hops: 3, destination: 2, source: 1 };

    #[test]
    fn neighbours_behind_full_links_have_equal_parts_of_them() {
        // Three behind each of two links, whose packets have the neighbour's number in front.
        const LINKS: usize = 2;
        const BEHIND: usize = 3;
        const ROUNDS: usize = 300;
        const TAKEN: usize = 3;
        let neighbour = |at: usize| Path([at as u8; Path::BYTES]);
        let table: Vec<_> = (0..=LINKS * BEHIND).map(|at| (at as u32, neighbour(at))).collect();
        let mut forwarder = Forwarder::new(&table, Limits::default()).unwrap();
        let mut taken = [0; LINKS * BEHIND];
        for _ in 0..ROUNDS {
            for at in 0..taken.len() {
                let to = packet(Shim { destination: at as u32, source: 6, ..SHIM }, 10);
                while forwarder.outputs[at].waiting.len() < BATCH_PACKETS {
                    forwarder.take(&neighbour(LINKS * BEHIND), false, &to);
                }
            }
            let mut rooms = [TAKEN; LINKS];
            forwarder.transmit(&mut |path, _, packets| {
                let at = usize::from(path.0[0]);
                let count = packets.len().min(rooms[at / BEHIND]);
                rooms[at / BEHIND] -= count;
                taken[at] += count;
                count
            });
            assert_eq!(rooms, [0; LINKS], "what a link can take it is given");
        }
        let part = ROUNDS * TAKEN / BEHIND;
        assert!(taken.iter().all(|&count| count.abs_diff(part) <= BATCH_PACKETS), "{taken:?}, each {part}");
    }

    fn sent(forwarder: &mut Forwarder) -> Vec<(Path, Vec<u8>)> {
        let mut out = Vec::new();
        forwarder.transmit(&mut |path, _, packets| {
            out.extend(packets.iter().map(|packet| (*path, packet.to_vec())));
            packets.len()
        });
        out
    }

    #[test]
    fn a_packet_goes_to_its_node_with_one_hop_less_and_is_otherwise_the_same() {
        let mut forwarder = forwarder(Limits::default());
        forwarder.take(&A, false, &packet(SHIM, 10));
        forwarder.take(&A, true, &packet(Shim { destination: 3, ..SHIM }, 10));
        forwarder.take(&B, false, &packet(Shim { destination: 1, source: 2, congested: true, hops: 1 }, 10));
        let expected = [
            (B, packet(Shim { hops: 2, ..SHIM }, 10)),
            (B, packet(Shim { hops: 2, destination: 3, congested: true, ..SHIM }, 10)),
            (A, packet(Shim { destination: 1, source: 2, congested: true, hops: 0 }, 10)),
        ];
        assert_eq!(sent(&mut forwarder), expected);
    }

    #[test]
    fn what_is_not_well_formed_or_has_no_place_to_go_is_dropped_and_counted() {
        let mut forwarder = forwarder(Limits::default());
        let good = packet(SHIM, 10);
        let mut other_version = good.clone();
        other_version[SHIM_BYTES] = 0x2B;
        let mut unknown_bit = good.clone();
        unknown_bit[0] |= 2;
        forwarder.take(&Path([9; Path::BYTES]), false, &good);
        for bytes in [&good[SHIM_BYTES..], &unknown_bit, &good[..SHIM_BYTES - 1], &[]] {
            forwarder.take(&A, false, bytes);
        }
        for bytes in [&good[..SHIM_BYTES], &good[..good.len() - 1], &other_version, &[&good[..12], &good[..]].concat()]
        {
            forwarder.take(&A, false, bytes);
        }
        forwarder.take(&A, false, &packet(Shim { hops: 0, ..SHIM }, 0));
        forwarder.take(&A, false, &packet(Shim { destination: 4, ..SHIM }, 0));
        forwarder.take(&B, false, &packet(Shim { destination: 3, source: 2, ..SHIM }, 0));
        assert_eq!(sent(&mut forwarder), []);
        let GatewayCounters {
            dropped_stranger,
            dropped_shim,
            dropped_malformed,
            dropped_hops,
            dropped_no_route,
            dropped_returning,
            ..
        } = forwarder.counters();
        let counted =
            [dropped_stranger, dropped_shim, dropped_malformed, dropped_hops, dropped_no_route, dropped_returning];
        assert_eq!(counted, [1, 4, 4, 1, 1, 1]);
    }

    #[test]
    fn a_queue_marks_before_it_is_full_and_drops_when_it_is() {
        let bytes = packet(SHIM, 964).len();
        assert_eq!(bytes, 1000);
        let mut forwarder = forwarder(Limits { queue_bytes: 10_000, mark_bytes: 4_000 });
        (0..15).for_each(|_| forwarder.take(&A, false, &packet(SHIM, 964)));
        forwarder.take(&B, false, &packet(Shim { destination: 1, source: 2, ..SHIM }, 964));
        assert_eq!((forwarder.waiting(), forwarder.counters().dropped_full), ((11, 11_000), 5));
        // A link that takes three keeps nobody else waiting.
        let mut taken = [0, 0];
        assert!(!forwarder.transmit(&mut |path, _, packets| {
            let count = if *path == A { packets.len() } else { packets.len().min(3usize.saturating_sub(taken[1])) };
            taken[usize::from(*path == B)] += count;
            count
        }));
        assert_eq!((taken, forwarder.waiting()), ([1, 3], (7, 7_000)));
        let marks: Vec<bool> = sent(&mut forwarder).iter().map(|(_, bytes)| bytes[0] == 0xF1).collect();
        assert_eq!(marks, [false, true, true, true, true, true, true]);
        assert_eq!(forwarder.counters().marked, 6);
    }

    #[test]
    fn a_host_stands_for_all_nodes_with_its_number_but_those_of_their_own() {
        let hosts = [(7, B), (8, A)];
        let mut forwarder = Forwarder::with_hosts(&[(7 << 16 | 3, A)], &hosts, Limits::default()).unwrap();
        let from = 8 << 16 | 1;
        let to = |destination| packet(Shim { destination, source: from, ..SHIM }, 10);
        for destination in [7 << 16 | 1, 7 << 16 | 0xFFFF, 7 << 16, 9 << 16 | 1, 7, 7 << 16 | 3] {
            forwarder.take(&A, false, &to(destination));
        }
        let less = |packet: Vec<u8>| (B, [&[packet[0], 2], &packet[2..]].concat());
        assert_eq!(sent(&mut forwarder), [less(to(7 << 16 | 1)), less(to(7 << 16 | 0xFFFF))]);
        let counters = forwarder.counters();
        assert_eq!((counters.dropped_no_route, counters.dropped_returning), (3, 1));
    }

    #[test]
    fn tables_that_cannot_be_meant_are_refused() {
        let refused = |table: &[(u32, Path)]| Forwarder::new(table, Limits::default()).err();
        assert_eq!(refused(&[(1, A), (1, B)]), Some(TableError::Twice(1)));
        assert_eq!(refused(&[(1, A), (2, A)]), Some(TableError::TooFew));
        let twice = Forwarder::with_hosts(&[(1, A)], &[(1, B), (1, A)], Limits::default());
        assert_eq!(twice.err(), Some(TableError::HostTwice(1)));
    }
}
