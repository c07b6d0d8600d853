//! What an engine tells about itself: its links, its connections, and what it has counted.

use std::collections::BTreeMap;

use ropeway_link::{Address, Link};
use ropeway_proto::crypto::{KeyError, OpenError};
use ropeway_proto::{AssociationCounters, AssociationStatistics, ChannelStatistics, Counters, ErrorCode, Malformed};
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
    pub counters: BTreeMap<String, u64>,
    /// Bytes of the gate's budget, and of these what is granted and has not arrived.
    pub gate_budget_bytes: u64,
    pub gate_charged_bytes: u64,
    /// What the port before this host seems to queue; nothing before packets were lost.
    #[serde(default)]
    pub gate_port_estimate_bytes: Option<u64>,
    /// The host's other processes do not see what this one grants: it has no place on their board.
    #[serde(default)]
    pub gate_unshared: bool,
}

/// A link, with all that it has counted ([`ropeway_link::Counters`]).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkShown {
    pub name: String,
    pub local: String,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub send_calls: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    pub receive_calls: u64,
    pub send_errors: u64,
    pub send_fallbacks: u64,
    pub send_full: u64,
    pub send_discarded: u64,
    pub sent_apart: u64,
    pub sent_unparted: u64,
    pub receive_drops: u64,
    pub receive_bad: u64,
    /// Its device is gone, and nothing goes over it any more.
    pub failed: bool,
}

impl LinkShown {
    pub(crate) fn of(link: &dyn Link) -> LinkShown {
        let counters = link.counters();
        LinkShown {
            name: link.name(),
            local: link.local().to_string(),
            sent_packets: counters.sent_packets,
            sent_bytes: counters.sent_bytes,
            send_calls: counters.send_calls,
            received_packets: counters.received_packets,
            received_bytes: counters.received_bytes,
            receive_calls: counters.receive_calls,
            send_errors: counters.send_errors,
            send_fallbacks: counters.send_fallbacks,
            send_full: counters.send_full,
            send_discarded: counters.send_discarded,
            sent_apart: counters.sent_apart,
            sent_unparted: counters.sent_unparted,
            receive_drops: counters.receive_drops,
            receive_bad: counters.receive_bad,
            failed: false,
        }
    }
}

/// A connection. All connections to one peer share an association, and with it everything from `round_trip_us` on.
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
    /// Bytes that the peer takes before its reader has read more.
    #[serde(default)]
    pub credit_bytes: u64,
    /// Messages dropped because their deadline passed before they were under way.
    #[serde(default)]
    pub expired_messages: u64,
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
    pub waited_ms: BTreeMap<String, f64>,
    /// What the association has counted.
    #[serde(default)]
    pub association: BTreeMap<String, u64>,
}

pub(super) fn show(inner: &Inner) -> Shown {
    let now = inner.now();
    let mut core = inner.lock();
    let links: Vec<LinkShown> =
        core.links().map(|(id, link)| LinkShown { failed: core.has_failed(id), ..LinkShown::of(link) }).collect();
    let own_address = |statistics: &ChannelStatistics| core.own_address(&statistics.association.as_ref()?.path);
    let statistics: Vec<(ChannelStatistics, Option<Address>)> =
        core.endpoint.channel_statistics(now).map(|statistics| (statistics, own_address(&statistics))).collect();
    let gate_port_estimate_bytes = core.endpoint.port_buffer_estimate_bytes();
    let gate_unshared = core.is_unshared();
    let counted = core.endpoint.counters();
    let gate = core.endpoint.gate();
    let (gate_budget_bytes, gate_charged_bytes) = (gate.budget_bytes(), gate.charged_bytes());
    // The words for all of it are made without the lock: of thousands of connections that takes as long as many leases.
    drop(core);
    Shown {
        pid: std::process::id(),
        program: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().into(),
        gate_budget_bytes,
        gate_charged_bytes,
        gate_port_estimate_bytes,
        gate_unshared,
        counters: counters(&counted),
        connections: statistics.iter().map(|(statistics, own)| connection(statistics, *own, &links)).collect(),
        links,
    }
}

fn connection(statistics: &ChannelStatistics, own: Option<Address>, links: &[LinkShown]) -> ConnectionShown {
    let association = statistics.association;
    let place = association.map(|association| path::decode(&association.path));
    let link = place.and_then(|place| links.get(place.link));
    let own = own.map(|own| own.to_string());
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
        local: own.or_else(|| link.map(|link| link.local.clone())).unwrap_or_else(|| "-".into()),
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
        credit_bytes: statistics.credit_bytes,
        expired_messages: statistics.expired_messages,
        round_trip_us: association.map_or(0.0, |association| association.round_trip_ns as f64 / 1e3),
        resent: association.map_or(0, |association| association.counters.resent),
        lost: association.map_or(0, |association| association.counters.lost),
        key_changes: association.and_then(|association| association.sealing).map(|sealing| sealing.generation),
        waits_for: association
            .map_or_else(|| "over".into(), |association| format!("{:?}", association.waits_for).to_lowercase()),
        waited_ms: association.as_ref().map(waited).unwrap_or_default(),
        association: association.map(|association| of_association(&association.counters)).unwrap_or_default(),
    }
}

fn of_association(counters: &AssociationCounters) -> BTreeMap<String, u64> {
    let named = [
        ("packets_sent", counters.packets_sent),
        ("packets_received", counters.packets_received),
        ("resent", counters.resent),
        ("withdrawn", counters.withdrawn),
        ("requests_sent", counters.requests_sent),
        ("requests_received", counters.requests_received),
        ("lost", counters.lost),
        ("spurious_requests", counters.spurious_requests),
        ("duplicates", counters.duplicates),
        ("states_sent", counters.states_sent),
        ("leases_expired", counters.leases_expired),
    ];
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

/// The endpoint's counters by name, for people and for scripts. What has reasons is there as their sum and by each: `dropped_malformed_truncated`.
fn counters(counters: &Counters) -> BTreeMap<String, u64> {
    let named = [
        ("packets_received", counters.packets_received),
        ("packets_in_runs", counters.packets_in_runs),
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
        ("dropped_sealed", counters.dropped_sealed.iter().sum()),
        ("dropped_handshake", counters.dropped_handshake.iter().sum()),
        ("replies_suppressed", counters.replies_suppressed),
        ("violations", counters.violations),
        ("channels_opened", counters.channels_opened),
        ("channels_accepted", counters.channels_accepted),
        ("channels_refused", counters.channels_refused),
        ("associations_opened", counters.associations_opened),
        ("associations_displaced", counters.associations_displaced),
        ("associations_ended", counters.associations_ended.iter().sum()),
        ("timeouts", counters.timeouts),
        ("overslept", counters.overslept),
        ("resent", counters.resent),
        ("withdrawn", counters.withdrawn),
        ("requests_sent", counters.requests_sent),
        ("lost", counters.lost),
        ("spurious_requests", counters.spurious_requests),
        ("states_sent", counters.states_sent),
        ("buffers_taken", counters.buffers_taken),
        ("buffers_allocated", counters.buffers_allocated),
        ("gate_grants", counters.gate.grants),
        ("gate_granted_packets", counters.gate.granted_packets),
        ("gate_exhausted", counters.gate.exhausted),
        ("gate_suspects", counters.gate.suspects),
        ("gate_slow", counters.gate.slow),
        ("gate_cuts", counters.gate.cuts),
        ("gate_acks_held", counters.gate.acks_held),
    ];
    // Codes without a name are counted behind the others.
    let codes = ErrorCode::ALL.into_iter().map(ErrorCode::name).chain(["OTHER"]);
    let by_reason = by_reason("dropped_malformed", Malformed::NAMES, &counters.dropped_malformed)
        .chain(by_reason("dropped_sealed", OpenError::NAMES, &counters.dropped_sealed))
        .chain(by_reason("dropped_handshake", KeyError::NAMES, &counters.dropped_handshake))
        .chain(by_reason("associations_ended", codes, &counters.associations_ended));
    named.into_iter().map(|(name, count)| (name.to_owned(), count)).chain(by_reason).collect()
}

fn by_reason<'a>(
    what: &'a str,
    reasons: impl IntoIterator<Item = &'static str> + 'a,
    counts: &'a [u64],
) -> impl Iterator<Item = (String, u64)> + 'a {
    let named = reasons.into_iter().zip(counts);
    named.map(move |(reason, count)| (format!("{what}_{}", reason.replace('-', "_").to_lowercase()), *count))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;

    use ropeway_link::{Address, Batch, Received};

    use super::*;

    /// The fields of a struct of numbers, as it prints itself.
    fn printed(counted: &impl std::fmt::Debug) -> BTreeMap<String, u64> {
        let text = format!("{counted:?}");
        let fields = text.split([' ', '{', '}']).collect::<Vec<_>>();
        let fields = fields.windows(2).filter_map(|pair| Some((pair[0].strip_suffix(':')?, pair[1])));
        let number = |text: &str| text.trim_end_matches(',').parse().ok();
        fields.filter_map(|(name, text)| Some((name.to_owned(), number(text)?))).collect()
    }

    struct Counting(ropeway_link::Counters);

    impl Link for Counting {
        fn name(&self) -> String {
            "counting".into()
        }

        fn local(&self) -> Address {
            Address::Sim(0)
        }

        fn max_packet(&self) -> usize {
            1472
        }

        fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
            Ok(batch.packets.len())
        }

        fn receive(&mut self, _limit: usize, _sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
            Ok(0)
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn counters(&self) -> ropeway_link::Counters {
            self.0
        }
    }

    #[test]
    fn everything_that_a_link_counts_is_shown_under_its_name() {
        let mut counted = ropeway_link::Counters::default();
        counted.sent_packets = 1;
        counted.sent_bytes = 2;
        counted.send_calls = 3;
        counted.received_packets = 4;
        counted.received_bytes = 5;
        counted.receive_calls = 6;
        counted.send_errors = 7;
        counted.send_fallbacks = 8;
        counted.send_full = 9;
        counted.receive_drops = 10;
        counted.receive_bad = 11;
        counted.sent_apart = 12;
        counted.sent_unparted = 13;
        counted.send_discarded = 14;
        let shown = serde_json::to_value(LinkShown::of(&Counting(counted))).unwrap();
        let fields = printed(&counted);
        assert_eq!(fields.len(), 14, "{fields:?}");
        for (name, count) in fields {
            assert!(count > 0, "a new counter, which this test does not set: {name}");
            assert_eq!(shown[&name], count, "{name}");
        }
    }

    #[test]
    fn everything_that_an_association_counts_is_shown_under_its_name() {
        let counted = AssociationCounters {
            packets_sent: 1,
            packets_received: 2,
            resent: 3,
            withdrawn: 11,
            requests_sent: 4,
            requests_received: 5,
            lost: 6,
            spurious_requests: 7,
            duplicates: 8,
            states_sent: 9,
            leases_expired: 10,
        };
        assert_eq!(of_association(&counted), printed(&counted));
    }

    #[test]
    fn everything_that_an_endpoint_counts_is_shown() {
        let mut all = Counters::default();
        (all.gate.grants, all.gate.granted_packets, all.gate.exhausted) = (1, 2, 3);
        (all.gate.suspects, all.gate.cuts, all.gate.acks_held) = (4, 5, 6);
        (all.replies_suppressed, all.overslept, all.gate.slow) = (7, 8, 9);
        let shown = counters(&all);
        for (name, count) in printed(&all.gate) {
            assert_eq!(shown[&format!("gate_{name}")], count, "{name}");
        }
        assert_eq!((shown["replies_suppressed"], shown["overslept"]), (7, 8));
        let all = format!("{all:?}");
        let names = all.split([' ', '{']).filter_map(|word| word.strip_suffix(':')).filter(|name| *name != "gate");
        let missing: Vec<&str> =
            names.filter(|&name| !shown.contains_key(name) && !shown.contains_key(&format!("gate_{name}"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_reason_has_a_name_and_a_count_of_its_own() {
        let mut all = Counters::default();
        let by_reason = [
            &mut all.dropped_malformed[..],
            &mut all.dropped_sealed[..],
            &mut all.dropped_handshake[..],
            &mut all.associations_ended[..],
        ];
        for (counts, first) in by_reason.into_iter().zip([1, 101, 201, 301]) {
            counts.iter_mut().zip(first..).for_each(|(count, number)| *count = number);
        }
        let shown = counters(&all);
        let of = |what: &str| shown.iter().filter(|(name, _)| name.starts_with(what)).count() - 1;
        assert_eq!(of("dropped_malformed"), all.dropped_malformed.len());
        assert_eq!(of("dropped_sealed"), all.dropped_sealed.len());
        assert_eq!(of("dropped_handshake"), all.dropped_handshake.len());
        assert_eq!(of("associations_ended"), all.associations_ended.len());
        assert_eq!(shown["dropped_malformed_truncated"], 1);
        assert_eq!(shown["dropped_malformed_shim"], 14);
        assert_eq!(shown["dropped_sealed_too_old"], 103);
        assert_eq!(shown["dropped_handshake_unknown"], 201 + KeyError::Unknown.index() as u64);
        assert_eq!(shown["dropped_handshake_order"], 201 + KeyError::Order.index() as u64);
        assert_eq!(shown["associations_ended_closed"], 301);
        assert_eq!(shown["associations_ended_too_long"], 305);
        assert_eq!(shown["associations_ended_other"], 313);
        assert_eq!(shown["associations_ended"], (301..=313).sum::<u64>());
    }
}
