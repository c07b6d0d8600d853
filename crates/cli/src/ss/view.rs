//! What `ropeway ss` prints: a table for people, JSON for programs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

#[cfg(test)]
use super::source::KernelQueues;
use super::source::{Bytes, End};
use crate::output::printable;

/// One line of output.
#[derive(Debug, Serialize, PartialEq)]
pub struct Row {
    pid: u32,
    /// All living processes that hold the socket.
    pids: Vec<u32>,
    program: String,
    /// Null for a socket of another network namespace that has not registered.
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    carrier: Directions<&'static str>,
    reason: &'static str,
    remote_reason: &'static str,
    bytes: ByCarrier,
    /// Bytes per second since the look before; absent at the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Directions<u64>>,
    /// Bytes that arrived and the program has not taken, on both carriers; null if that cannot be known, because the other
    /// end of the ring, or the kernel's socket, cannot be seen.
    recv_q: Option<u64>,
    /// Bytes that the program sent and the other end has not taken (shared memory) or acknowledged (TCP); null likewise.
    send_q: Option<u64>,
    promotions: u32,
    demotions: u32,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct Directions<T> {
    pub tx: T,
    pub rx: T,
}

impl Directions<u64> {
    /// What was added to a former sum, for each second since.
    pub fn rate(self, before: Self, since: Duration) -> Self {
        let per_second = |now: u64, then: u64| (now.saturating_sub(then) as f64 / since.as_secs_f64()) as u64;
        Directions { tx: per_second(self.tx, before.tx), rx: per_second(self.rx, before.rx) }
    }
}

/// Two cells of a table.
pub fn rates(rate: Option<Directions<u64>>) -> [String; 2] {
    rate.map_or(["-".into(), "-".into()], |rate| [short(rate.tx), short(rate.rx)])
}

/// The head of these cells.
pub const RATES: [&str; 2] = ["Sent/s", "Received/s"];

#[derive(Debug, Serialize, PartialEq)]
struct ByCarrier {
    tcp: SentReceived,
    shm: SentReceived,
}

#[derive(Debug, Serialize, PartialEq)]
struct SentReceived {
    sent: u64,
    received: u64,
}

/// What the former look saw, for the rates.
#[derive(Debug, Default)]
pub struct Former(HashMap<(u64, u32, u32), Bytes>);

impl Former {
    pub fn of(ends: &[End]) -> Former {
        Former(ends.iter().map(|e| (e.key, e.bytes)).collect())
    }
}

/// Rows for the ends, with rates against a former look.
pub fn rows(ends: &[End], former: Option<(&Former, Duration)>) -> Vec<Row> {
    let by_ends: HashMap<_, &End> = ends.iter().filter_map(|e| Some((e.ends?, e))).collect();
    let carrier = |on_shm: bool| if on_shm { "shm" } else { "tcp" };
    let row = |e: &End| {
        let peer = e.ends.and_then(|(local, remote)| by_ends.get(&(remote, local)).copied());
        let sums = |bytes: &Bytes| Directions { tx: bytes.sent(), rx: bytes.received() };
        let rate = former.and_then(|(former, time)| Some(sums(&e.bytes).rate(sums(former.0.get(&e.key)?), time)));
        Row {
            pid: e.pids[0],
            pids: e.pids.clone(),
            program: e.program.clone(),
            local: e.ends.map(|(local, _)| local),
            remote: e.ends.map(|(_, remote)| remote),
            carrier: Directions { tx: carrier(e.tx_on_shm), rx: carrier(e.rx_on_shm) },
            reason: e.reason,
            remote_reason: e.remote_reason,
            bytes: ByCarrier {
                tcp: SentReceived { sent: e.bytes.tcp_sent, received: e.bytes.tcp_received },
                shm: SentReceived { sent: e.bytes.shm_sent, received: e.bytes.shm_received },
            },
            rate,
            recv_q: e.kernel.and_then(|k| Some(k.unread.saturating_add(unread_in_ring(e, peer)?))),
            send_q: e.kernel.and_then(|k| Some(k.unacknowledged.saturating_add(untaken_in_ring(e, peer)?))),
            promotions: e.promotions,
            demotions: e.demotions,
        }
    };
    ends.iter().map(row).collect()
}

/// Bytes in the incoming ring. One that this end has left is empty.
fn unread_in_ring(e: &End, peer: Option<&End>) -> Option<u64> {
    match peer {
        Some(peer) => Some(peer.on_pair[0].saturating_sub(e.on_pair[1])),
        None => (!e.rx_on_shm).then_some(0),
    }
}

/// Bytes in the outgoing ring. One that this end has left may still hold some.
fn untaken_in_ring(e: &End, peer: Option<&End>) -> Option<u64> {
    match peer {
        Some(peer) => Some(e.on_pair[0].saturating_sub(peer.on_pair[1])),
        None => (!e.tx_on_shm && e.on_pair[0] == 0).then_some(0),
    }
}

/// A table with columns as wide as their contents, in the manner of `ss`.
pub fn table(rows: &[Row]) -> String {
    let with_rates = rows.iter().any(|r| r.rate.is_some());
    let mut head = vec!["Program", "Pid", "Recv-Q", "Send-Q", "Local", "Peer", "Tx", "Rx", "Sent", "Received"];
    if with_rates {
        head.extend(RATES);
    }
    head.push("Reason");
    let queue = |bytes: Option<u64>| bytes.map_or("-".into(), |n| n.to_string());
    let cells = |r: &Row| {
        let mut cells = vec![
            r.program.clone(),
            if r.pids.len() > 1 { format!("{}+{}", r.pid, r.pids.len() - 1) } else { r.pid.to_string() },
            queue(r.recv_q),
            queue(r.send_q),
            r.local.map_or("-".into(), |a| a.to_string()),
            r.remote.map_or("-".into(), |a| a.to_string()),
            r.carrier.tx.to_owned(),
            r.carrier.rx.to_owned(),
            short(r.bytes.tcp.sent.saturating_add(r.bytes.shm.sent)),
            short(r.bytes.tcp.received.saturating_add(r.bytes.shm.received)),
        ];
        if with_rates {
            cells.extend(rates(r.rate));
        }
        cells.push(reasons(r));
        cells
    };
    columns(&head, rows.iter().map(cells).collect())
}

/// Lines under a head, with columns as wide as their contents.
pub fn columns(head: &[&str], lines: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    // Names of programs, and what is at an engine's address, are others' words.
    let lines = lines.into_iter().map(|line| line.iter().map(|cell| printable(cell)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(lines).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Why a direction is on TCP, here and there; nothing when both are on shared memory.
fn reasons(r: &Row) -> String {
    let here = if r.carrier.tx == "shm" && r.carrier.rx == "shm" { "-" } else { r.reason };
    match r.remote_reason {
        "none" => here.to_owned(),
        there => format!("{here} (peer: {there})"),
    }
}

/// A number of bytes in at most six characters.
pub fn short(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 9999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0}{}", UNITS[unit])
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pid: u32, program: &str, local: &str, remote: &str, on_shm: bool, bytes: Bytes) -> End {
        End {
            key: (1, pid, 1),
            pids: vec![pid],
            program: program.into(),
            ends: Some((local.parse().unwrap(), remote.parse().unwrap())),
            tx_on_shm: on_shm,
            rx_on_shm: on_shm,
            reason: if on_shm { "none" } else { "peer-not-registered" },
            remote_reason: "none",
            bytes,
            kernel: Some(KernelQueues::default()),
            on_pair: [bytes.shm_sent, bytes.shm_received],
            promotions: u32::from(on_shm),
            demotions: 0,
        }
    }

    fn sample() -> Vec<End> {
        let (server, client) = ("127.0.0.1:6379", "127.0.0.1:40000");
        let sent = Bytes { tcp_sent: 100, shm_sent: 20_000, tcp_received: 10, shm_received: 5_000 };
        let received = Bytes { tcp_sent: 10, shm_sent: 6_000, tcp_received: 100, shm_received: 19_000 };
        vec![
            end(7, "redis-cli", client, server, true, sent),
            end(8, "redis-server", server, client, true, received),
            end(8, "redis-server", server, "[::1]:5", false, Bytes::default()),
        ]
    }

    #[test]
    fn queues_are_those_of_the_kernel_and_of_the_rings() {
        let mut ends = sample();
        ends[0].kernel = Some(KernelQueues { unread: 7, unacknowledged: 5 });
        ends[2].kernel = Some(KernelQueues { unread: 3, unacknowledged: 0 });
        // Bytes on the rings of a former pair are no part of this.
        ends[1].on_pair[1] -= 500;
        let queues = |ends: &[End]| -> Vec<_> { rows(ends, None).iter().map(|r| (r.recv_q, r.send_q)).collect() };
        assert_eq!(queues(&ends), [(Some(1_007), Some(1_505)), (Some(1_500), Some(1_000)), (Some(3), Some(0))]);
        assert_eq!(queues(&ends[1..])[0], (None, None), "the other end of the rings is not to be seen");
        ends[1].tx_on_shm = false;
        ends[1].rx_on_shm = false;
        assert_eq!(queues(&ends[1..])[0], (Some(0), None), "nobody tells what is left in the ring");
        ends[2].kernel = None;
        assert_eq!(queues(&ends)[2], (None, None), "nor can the kernel's socket");
    }

    #[test]
    fn the_table_lines_up() {
        let text = table(&rows(&sample(), None));
        let expected = "\
Program       Pid  Recv-Q  Send-Q  Local            Peer             Tx   Rx   Sent   Received  Reason
redis-cli     7    1000    1000    127.0.0.1:40000  127.0.0.1:6379   shm  shm  19.6K  5010      -
redis-server  8    1000    1000    127.0.0.1:6379   127.0.0.1:40000  shm  shm  6010   18.7K     -
redis-server  8    0       0       127.0.0.1:6379   [::1]:5          tcp  tcp  0      0         peer-not-registered
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_cannot_be_known_is_a_dash() {
        let mut ends = sample();
        ends[2].ends = None;
        ends[2].kernel = None;
        ends[2].reason = "too-young";
        let text = table(&rows(&ends, None));
        assert!(text.contains("redis-server  8    -       -       -                -                tcp"), "{text}");
    }

    #[test]
    fn rates_are_against_the_former_look() {
        let mut ends = sample();
        let former = Former::of(&ends[..1]);
        ends[0].bytes.shm_sent += 3_000;
        let rows = rows(&ends, Some((&former, Duration::from_millis(500))));
        assert_eq!(rows[0].rate, Some(Directions { tx: 6_000, rx: 0 }));
        assert_eq!(rows[1].rate, None, "not seen before");
        assert!(table(&rows).contains("Sent/s"));
    }

    #[test]
    fn what_a_program_is_called_does_not_reach_the_terminal_as_an_order() {
        let mut ends = sample();
        ends[0].program = "redis\x1b[2J\n".into();
        // Nor do its numbers stop who looks.
        ends[0].bytes = Bytes { tcp_sent: u64::MAX, shm_sent: 1, tcp_received: 1, shm_received: u64::MAX };
        assert!(table(&rows(&ends, None)).contains("redis?[2J?"));
    }

    #[test]
    fn numbers_stay_short() {
        for (bytes, expected) in [(0, "0"), (9_999, "9999"), (10_000, "9.8K"), (1 << 20, "1024K"), (1 << 40, "1024G")] {
            assert_eq!(short(bytes), expected);
        }
        assert_eq!(short(u64::MAX), "16777216T");
    }

    #[test]
    fn json_has_one_object_per_end() {
        let json = serde_json::to_value(rows(&sample(), None)).unwrap();
        assert_eq!(json[0]["carrier"]["tx"], "shm");
        assert_eq!(json[0]["bytes"]["shm"]["sent"], 20_000);
        assert_eq!(json[2]["reason"], "peer-not-registered");
        assert_eq!((&json[0]["recv_q"], &json[0]["send_q"]), (&1_000.into(), &1_000.into()));
        assert!(json[0].get("rate").is_none());
    }
}
