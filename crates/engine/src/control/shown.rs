//! What an engine tells about itself: its links, its connections, and what it has counted.

use ropeway_link::Link;
use ropeway_proto::crypto::OpenError;
use ropeway_proto::{AssociationStatistics, ChannelStatistics, Counters};
use serde::{Deserialize, Serialize};

use crate::inner::Inner;
use crate::path;

/// An engine as it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    pub pid: u32,
    pub program: String,
    pub links: Vec<LinkShown>,
    pub connections: Vec<ConnectionShown>,
    pub counters: std::collections::BTreeMap<String, u64>,
    /// Bytes of the gate's budget, and of these what is granted and has not arrived.
    pub gate_budget_bytes: u64,
    pub gate_charged_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkShown {
    pub name: String,
    pub local: String,
    pub sent_packets: u64,
    pub received_packets: u64,
    pub send_full: u64,
    pub receive_drops: u64,
}

impl LinkShown {
    pub(crate) fn of(link: &dyn Link) -> LinkShown {
        let counters = link.counters();
        LinkShown {
            name: link.name(),
            local: link.local().to_string(),
            sent_packets: counters.sent_packets,
            received_packets: counters.received_packets,
            send_full: counters.send_full,
            receive_drops: counters.receive_drops,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionShown {
    pub link: String,
    pub local: String,
    pub peer: String,
    pub local_port: u16,
    pub remote_port: u16,
    pub queued_bytes: u64,
    pub unacked_bytes: u64,
    pub unread_bytes: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub round_trip_us: f64,
    pub resent: u64,
    pub lost: u64,
    /// Paths there are to the peer, and of these the ones that carry packets.
    #[serde(default)]
    pub paths: u64,
    #[serde(default)]
    pub good_paths: u64,
    /// How often the key was changed; nothing where hosts are trusted.
    #[serde(default)]
    pub key_changes: Option<u64>,
    /// What its sending waits for now, and has waited for, in milliseconds: `program`, `grant`, `reader`, `loss`, `silence`.
    pub waits_for: String,
    pub waited_ms: std::collections::BTreeMap<String, f64>,
}

pub(super) fn show(inner: &Inner) -> Shown {
    let now = inner.now();
    let mut core = inner.lock();
    let links: Vec<LinkShown> = core.links().map(|(_, link)| LinkShown::of(link)).collect();
    let statistics: Vec<ChannelStatistics> = core.endpoint.channel_statistics(now).collect();
    let gate = core.endpoint.gate();
    Shown {
        pid: std::process::id(),
        program: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().into(),
        gate_budget_bytes: gate.budget_bytes(),
        gate_charged_bytes: gate.charged_bytes(),
        counters: counters(&core.endpoint.counters()),
        connections: statistics.iter().map(|statistics| connection(statistics, &links)).collect(),
        links,
    }
}

fn connection(statistics: &ChannelStatistics, links: &[LinkShown]) -> ConnectionShown {
    let association = statistics.association;
    let place = association.and_then(|association| path::decode(&association.path));
    let link = place.and_then(|place| links.get(place.link));
    let waited = |association: &AssociationStatistics| {
        let waited = association.waited;
        let all = [
            ("program", waited.program_ns),
            ("grant", waited.grant_ns),
            ("reader", waited.reader_ns),
            ("loss", waited.loss_ns),
            ("silence", waited.silence_ns),
        ];
        all.into_iter().map(|(name, ns)| (name.to_owned(), ns as f64 / 1e6)).collect()
    };
    ConnectionShown {
        link: link.map_or_else(|| "-".into(), |link| link.name.clone()),
        local: link.map_or_else(|| "-".into(), |link| link.local.clone()),
        peer: place.map_or_else(
            || "-".into(),
            |place| match place.node {
                None => place.address.to_string(),
                Some(node) => format!("@{node} through {}", place.address),
            },
        ),
        paths: association.map_or(0, |association| association.paths as u64),
        good_paths: association.map_or(0, |association| association.good_paths as u64),
        local_port: statistics.local_port,
        remote_port: statistics.remote_port,
        queued_bytes: statistics.queued_bytes as u64,
        unacked_bytes: statistics.unacked_bytes as u64,
        unread_bytes: statistics.unread_bytes,
        sent_bytes: statistics.sent_bytes,
        received_bytes: statistics.received_bytes,
        round_trip_us: association.map_or(0.0, |association| association.round_trip_ns as f64 / 1e3),
        resent: association.map_or(0, |association| association.counters.resent),
        lost: association.map_or(0, |association| association.counters.lost),
        key_changes: association.and_then(|association| association.sealing).map(|sealing| sealing.generation),
        waits_for: association
            .map_or_else(|| "over".into(), |association| format!("{:?}", association.waits_for).to_lowercase()),
        waited_ms: association.as_ref().map(waited).unwrap_or_default(),
    }
}

/// The endpoint's counters by name, for people and for scripts.
fn counters(counters: &Counters) -> std::collections::BTreeMap<String, u64> {
    let named = [
        ("packets_received", counters.packets_received),
        ("packets_sent", counters.packets_sent),
        ("payload_received_bytes", counters.payload_received_bytes),
        ("payload_sent_bytes", counters.payload_sent_bytes),
        ("dropped_malformed", counters.dropped_malformed.iter().sum()),
        ("dropped_unknown_id", counters.dropped_unknown_id),
        ("dropped_foreign_path", counters.dropped_foreign_path),
        ("dropped_window", counters.dropped_window),
        ("dropped_duplicate", counters.dropped_duplicate),
        ("dropped_channel", counters.dropped_channel),
        ("dropped_memory", counters.dropped_memory),
        ("dropped_cookie", counters.dropped_cookie),
        ("dropped_unasked", counters.dropped_unasked),
        ("dropped_reset", counters.dropped_reset),
        ("dropped_join", counters.dropped_join),
        ("paths_joined", counters.paths_joined),
        ("paths_suspected", counters.paths_suspected),
        ("paths_recovered", counters.paths_recovered),
        ("defaults_changed", counters.defaults_changed),
        ("dropped_handshake", counters.dropped_handshake.iter().sum()),
        ("violations", counters.violations),
        ("channels_opened", counters.channels_opened),
        ("channels_accepted", counters.channels_accepted),
        ("channels_refused", counters.channels_refused),
        ("associations_opened", counters.associations_opened),
        ("associations_ended", counters.associations_ended.iter().sum()),
        ("timeouts", counters.timeouts),
        ("resent", counters.resent),
        ("requests_sent", counters.requests_sent),
        ("lost", counters.lost),
        ("spurious_requests", counters.spurious_requests),
        ("states_sent", counters.states_sent),
        ("buffers_taken", counters.buffers_taken),
        ("buffers_allocated", counters.buffers_allocated),
        ("gate_grants", counters.gate.grants),
        ("gate_exhausted", counters.gate.exhausted),
        ("gate_suspects", counters.gate.suspects),
        ("gate_cuts", counters.gate.cuts),
    ];
    let sealed = OpenError::NAMES.into_iter().zip(counters.dropped_sealed);
    let sealed = sealed.map(|(name, count)| (format!("dropped_sealed_{}", name.replace('-', "_")), count));
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).chain(sealed).collect()
}
