//! What is known about one connection: counts, and what its sending has waited for ("why is it slow"). Plain numbers; who shows them, and how, is not
//! decided here.

use crate::crypto::OpenError;
use crate::endpoint::Path;

/// Counts of one association. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssociationCounters {
    pub packets_sent: u64,
    pub packets_received: u64,
    pub resent: u64,
    /// Packets taken back as the peer had no memory for them.
    pub withdrawn: u64,
    pub requests_sent: u64,
    pub requests_received: u64,
    /// Numbers that were found missing.
    pub lost: u64,
    /// Originals that arrived after they had been asked for.
    pub spurious_requests: u64,
    pub duplicates: u64,
    pub states_sent: u64,
    pub leases_expired: u64,
}

/// What the sending of an association waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Nothing: the program has handed nothing over, or all of it flies.
    #[default]
    Program,
    /// A grant of the peer's gate.
    Grant,
    /// The reader at the other end.
    Reader,
    /// The repetition of a lost packet.
    Loss,
    /// Any word of the peer at all.
    Silence,
}

/// How long the sending of an association has waited for what, in nanoseconds. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitTimes {
    pub program_ns: u64,
    pub grant_ns: u64,
    pub reader_ns: u64,
    pub loss_ns: u64,
    pub silence_ns: u64,
}

impl LimitTimes {
    pub(crate) fn add(&mut self, limit: Limit, ns: u64) {
        let sum = match limit {
            Limit::Program => &mut self.program_ns,
            Limit::Grant => &mut self.grant_ns,
            Limit::Reader => &mut self.reader_ns,
            Limit::Loss => &mut self.loss_ns,
            Limit::Silence => &mut self.silence_ns,
        };
        *sum += ns;
    }
}

/// What became of an association's packets under its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealingStatistics {
    /// How often the key that this end seals with was changed.
    pub generation: u64,
    pub sealed: u64,
    pub opened: u64,
    /// Packets that did not open, by [`OpenError::index`].
    pub refused: [u64; OpenError::ALL.len()],
}

/// An association as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssociationStatistics {
    /// The default one, if there are several.
    pub path: Path,
    /// Paths there are, and of these the ones that carry packets.
    pub paths: usize,
    pub good_paths: usize,
    pub is_open: bool,
    /// This end began it.
    pub is_opener: bool,
    pub channels: usize,
    /// The longest packet, header included.
    pub packet_bytes: usize,
    pub round_trip_ns: u64,
    pub least_round_trip_ns: u64,
    pub variation_ns: u64,
    /// How long a number may be late before it is asked for.
    pub reorder_window_ns: u64,
    pub in_flight_packets: u64,
    /// Bytes that could leave if there were grants.
    pub backlog_bytes: u64,
    /// Packets that may leave now.
    pub allowance_packets: u64,
    /// What the peer says that it has to send.
    pub peer_backlog_bytes: u64,
    /// Packets that the peer was granted and that have not been seen.
    pub granted_packets: u64,
    pub missing_packets: u32,
    pub waits_for: Limit,
    pub waited: LimitTimes,
    pub counters: AssociationCounters,
    /// `None`: it has no key, or is not open.
    pub sealing: Option<SealingStatistics>,
}

/// A channel as it is now, and the association that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelStatistics {
    pub local_port: u16,
    pub remote_port: u16,
    /// Bytes handed over and not yet on their way.
    pub queued_bytes: usize,
    /// Bytes on their way and not acknowledged.
    pub unacked_bytes: usize,
    /// Bytes that the peer takes before its reader has read more.
    pub credit_bytes: u64,
    /// Bytes received and not read.
    pub unread_bytes: u64,
    /// Payload bytes sent and received since the channel was opened, with the lengths of messages.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Messages dropped because their deadline passed before they were under way.
    pub expired_messages: u64,
    /// `None`: the channel is over, and the association may be.
    pub association: Option<AssociationStatistics>,
}
