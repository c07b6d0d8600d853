//! What a simulated network is made of, and what it counts.

use crate::{Ecn, Faults};

/// A simulated network: its switches, what joins them, and what a host is unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// At least one. Hosts name theirs by its place in this list.
    pub switches: Vec<Switch>,
    /// Joins the first two switches. Without it, switches are separate networks, which only gateways with a host on each can join.
    pub trunk: Option<Trunk>,
    /// The hosts that [`Network::attach`](super::Network::attach) makes.
    pub host: Host,
    pub framing: Framing,
}

impl Default for Config {
    /// One switch, hosts at 1 Gbit/s over 5 us, 128 KiB for each port.
    fn default() -> Config {
        Config { switches: vec![Switch::default()], trunk: None, host: Host::default(), framing: Framing::default() }
    }
}

/// What a packet costs beyond its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Header and checksum: they lie in buffers and go over the wire. 18 on Ethernet; 28 or 48 more for UDP.
    pub frame_bytes: u32,
    /// Shorter frames are padded to this. 64 on Ethernet.
    pub least_frame_bytes: u32,
    /// Preamble and gap between frames: they only take time on the wire. 20 on Ethernet.
    pub gap_bytes: u32,
}

impl Default for Framing {
    /// Ethernet.
    fn default() -> Framing {
        Framing { frame_bytes: 18, least_frame_bytes: 64, gap_bytes: 20 }
    }
}

/// A host, its network card and its cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its switch's place in [`Config::switches`].
    pub switch: usize,
    /// Of the card, and of the switch's port at the other end of the cable.
    pub rate_bits_per_s: u64,
    /// From one end of the cable to the other.
    pub delay_ns: u64,
    /// The longest packet that the card sends and takes.
    pub mtu: usize,
    /// Frames that wait in the host for its card, in bytes; sends beyond it are refused.
    pub send_queue_bytes: u64,
    /// Packets that wait for somebody to take them; arrivals beyond it are dropped.
    pub receive_slots: usize,
    /// What the packets of this host say in their ECN bits.
    pub ecn: Ecn,
    /// Whether urgent packets overtake bulk ones in the host's queue.
    pub urgent_first: bool,
    /// Faults of the cable towards the switch.
    pub to_switch: Faults,
    /// Faults of the cable towards the host.
    pub to_host: Faults,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            switch: 0,
            rate_bits_per_s: 1_000_000_000,
            delay_ns: 5_000,
            mtu: 1500,
            // What Linux's fq_codel or a socket's buffer lets wait, roughly.
            send_queue_bytes: 256 << 10,
            receive_slots: 4096,
            ecn: Ecn::Capable0,
            urgent_first: true,
            to_switch: Faults::default(),
            to_host: Faults::default(),
        }
    }
}

/// A store-and-forward switch with queues at its output ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Most bytes of frames in one port's queue, the one being sent included.
    pub port_buffer_bytes: u64,
    /// Memory that all ports share.
    pub shared: Option<SharedBuffer>,
    /// A frame that makes its port's queue longer than this is marked (CE) if it is capable.
    pub ecn_threshold_bytes: Option<u64>,
}

impl Default for Switch {
    /// 128 KiB for each port, nothing shared, no marks: a cheap switch.
    fn default() -> Switch {
        Switch { port_buffer_bytes: 128 << 10, shared: None, ecn_threshold_bytes: None }
    }
}

/// Memory that the ports of a switch share by dynamic thresholds (Choudhury and Hahne 1998): a port's queue may grow to a fixed share of what is
/// free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBuffer {
    pub bytes: u64,
    /// That share, in percent; 100 is the usual alpha of 1.
    pub threshold_percent: u64,
}

/// What joins two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trunk {
    pub rate_bits_per_s: u64,
    pub delay_ns: u64,
    /// In both directions.
    pub faults: Faults,
}

/// One of the two directions of a host's cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToSwitch,
    ToHost,
}

/// Counts of one queue and what sends from it: a port of a switch, or a host's card. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Bytes of frames there now, the one being sent included.
    pub queued_bytes: u64,
    /// The most there ever were.
    pub most_queued_bytes: u64,
    pub sent_packets: u64,
    /// Bytes of frames, without preamble and gap.
    pub sent_bytes: u64,
    /// Packets that found the queue full. A host's card drops none: it refuses them.
    pub dropped_packets: u64,
    pub dropped_bytes: u64,
    /// Packets marked CE.
    pub marked_packets: u64,
}

/// Counts of the network as a whole. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkCounters {
    /// Packets that a partition kept from their host.
    pub partitioned: u64,
    /// Packets to a host that is not there, or that nobody is attached to.
    pub nobody: u64,
    /// Corrupted packets that a switch dropped because of their checksum.
    pub bad_at_switch: u64,
    /// Events processed.
    pub events: u64,
}
