//! What a box is and what its ports have done, read from the kernel: devices, queues, filters.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;

use serde::{Deserialize, Serialize};

use super::delay::{self, Report};
use super::error::{Error, Result};
use super::hysteresis;
use super::label::Label;
use super::names::{Found, Member};
use super::netns;
use super::plan::{Leg, Segment, Shaper};
use super::switch::{Direction, Fault, JUMP_IF_AT_LEAST, delay_in, show_filters, uplink_out};
use super::tools::{Tool, ask, ask_all};
use super::units::{Rate, Share};

/// A box, as `status --json` prints it.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Status {
    pub name: String,
    pub mtu_bytes: u32,
    /// What holds ports to their rate, if they have one.
    pub shaper: Option<Shaper>,
    /// Whether htb sends a burst for each timer; null where there is no htb.
    pub htb_hysteresis: Option<bool>,
    /// What delays frames, if anything does.
    pub delay_by: Option<DelayBy>,
    /// What the delay line says; null if there is none, or it does not live any more.
    pub delay_line: Option<Report>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum DelayBy {
    /// The kernel.
    Netem,
    /// A process.
    DelayLine,
}

/// A port of the switch: the end of a host's cable. "Sent" goes to the host, "received" comes from it. Counters never go back.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Port {
    pub port: String,
    pub host: String,
    pub segment: &'static str,
    /// The host's addresses at this port.
    pub addresses: [String; 2],
    pub mac: String,
    /// Null if the port sends as fast as the processors can.
    pub rate_bits_per_s: Option<u64>,
    pub buffer_bytes: Option<u64>,
    /// How much the port may send at once after a pause.
    pub burst_bytes: Option<u64>,
    /// Of the host's own interface.
    pub host_rate_bits_per_s: Option<u64>,
    pub delay_us: Option<f64>,
    /// What waits in the port's buffer now.
    pub queue_bytes: u64,
    pub queue_packets: u64,
    /// Frames that found the port's buffer full.
    pub drops: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    /// Frames that found the queue of the host's own interface full.
    pub host_drops: u64,
    /// Frames lost by `box loss` and `box cut`, in both directions.
    pub lost_packets: u64,
    /// Frames that the kernel of this machine had no room for, between the host and the switch, in both directions: a sign that
    /// the processors, and not the box, are the limit.
    pub missed_packets: u64,
    pub cut: bool,
    pub loss_from_host_percent: f64,
    pub loss_to_host_percent: f64,
}

/// A device, in the words of `ip -json -statistics link`.
#[derive(Debug, Deserialize)]
struct Link {
    ifname: String,
    mtu: u32,
    #[serde(default)]
    ifalias: String,
    stats64: LinkCounters,
}

#[derive(Debug, Deserialize)]
struct LinkCounters {
    rx: Counter,
    tx: Counter,
}

#[derive(Debug, Deserialize)]
struct Counter {
    bytes: u64,
    packets: u64,
    dropped: u64,
}

/// A queueing discipline, in the words of `tc -json -statistics -raw qdisc`.
#[derive(Debug, Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    #[serde(default)]
    options: QdiscOptions,
    drops: u64,
    backlog: u64,
    qlen: u64,
}

#[derive(Debug, Default, Deserialize)]
struct QdiscOptions {
    limit: Option<u64>,
    delay: Option<NetemDelay>,
}

#[derive(Debug, Deserialize)]
struct NetemDelay {
    /// Seconds.
    delay: f64,
}

/// A filter, in the words of `tc -json filter`.
#[derive(Debug, Deserialize)]
struct Filter {
    pref: u32,
    options: Option<FilterOptions>,
}

#[derive(Debug, Deserialize)]
struct FilterOptions {
    bytecode: Option<Bytecode>,
}

#[derive(Debug, Deserialize)]
struct Bytecode {
    insns: Vec<Instruction>,
}

#[derive(Debug, Deserialize)]
struct Instruction {
    code: u16,
    k: u32,
}

/// The legs of a box that is there, from the devices of its switch.
fn legs(found: &Found, links: &[Link]) -> Vec<Leg> {
    let segment = |alias: &str| Segment::ALL.into_iter().find(|segment| segment.name() == alias);
    let mut legs: Vec<(Leg, &Link)> = found
        .hosts()
        .flat_map(|member| Segment::ALL.map(|segment| Leg { member, segment }))
        .filter_map(|leg| {
            let port = leg.port();
            let link = links.iter().find(|link| link.ifname == port && segment(&link.ifalias) == Some(leg.segment))?;
            Some((leg, link))
        })
        .collect();
    legs.sort_by_key(|(leg, _)| leg.member);
    legs.into_iter().map(|(leg, _)| leg).collect()
}

fn links(found: &Found) -> Result<Vec<Link>> {
    if !found.members.contains(&Member::Switch) {
        return Err(Error::Incomplete { name: found.name.to_string() });
    }
    let links: Vec<Link> = ask(Tool::Ip, &found.namespace(Member::Switch), &["-statistics", "link", "show"])?;
    if !label(&links).is_complete {
        return Err(Error::Incomplete { name: found.name.to_string() });
    }
    Ok(links)
}

fn label(links: &[Link]) -> Label {
    links.iter().find(|link| link.ifname == "lo").map_or_else(Label::default, |lo| Label::parse(&lo.ifalias))
}

/// The ports that a user names: by a host, all of its, or by a port.
pub fn ports_of(found: &Found, host_or_port: &str) -> Result<Vec<Leg>> {
    let legs = legs(found, &links(found)?);
    let is_meant = |leg: &&Leg| leg.port() == host_or_port || leg.member.to_string() == host_or_port;
    let meant: Vec<Leg> = legs.iter().filter(is_meant).copied().collect();
    if meant.is_empty() {
        let mut there: Vec<String> = Vec::new();
        for name in legs.iter().flat_map(|leg| [leg.member.to_string(), leg.port()]) {
            // The port of a host that has but one is called like the host.
            if !there.contains(&name) {
                there.push(name);
            }
        }
        return Err(Error::NoPort { name: found.name.to_string(), port: host_or_port.into(), there: there.join(", ") });
    }
    Ok(meant)
}

/// The faults of ports, in both directions each.
pub fn faults(found: &Found, legs: &[Leg]) -> Result<Vec<Vec<(Direction, Fault)>>> {
    let directions = |leg: &Leg| Direction::BOTH.map(|direction| (leg.port(), direction));
    let asked: Vec<(String, Direction)> = legs.iter().flat_map(directions).collect();
    let lines: Vec<String> = asked.iter().map(|(port, direction)| show_filters(port, *direction)).collect();
    let answers: Vec<Vec<Filter>> = ask_all(Tool::Tc, &found.namespace(Member::Switch), &lines)?;
    let pairs: Vec<Vec<(Direction, Fault)>> = answers
        .iter()
        .zip(&asked)
        .map(|(filters, (_, direction))| filters.iter().filter_map(|f| Some((*direction, fault(f)?))).collect())
        .collect();
    Ok(pairs.chunks(Direction::BOTH.len()).map(<[_]>::concat).collect())
}

fn fault(filter: &Filter) -> Option<Fault> {
    let program = filter.options.as_ref()?.bytecode.as_ref()?;
    let compared = program.insns.iter().find(|i| i.code == JUMP_IF_AT_LEAST).map(|i| i.k);
    Fault::of(filter.pref, compared)
}

/// Looks at a box.
pub fn status(found: &Found) -> Result<Status> {
    let links = links(found)?;
    let legs = legs(found, &links);
    let switch = found.namespace(Member::Switch);
    let qdiscs: Vec<Qdisc> = ask(Tool::Tc, &switch, &["-statistics", "-raw", "qdisc", "show"])?;
    let faults = faults(found, &legs)?;
    let mut in_hosts = HashMap::new();
    for member in found.hosts() {
        in_hosts.insert(member, netns::inside(&found.namespace(member), dropped_by_devices)?);
    }
    let by_name: HashMap<&str, &Link> = links.iter().map(|link| (link.ifname.as_str(), link)).collect();
    let mut ports = Vec::new();
    for (leg, faults) in legs.iter().zip(&faults) {
        let port = leg.port();
        let Some(link) = by_name.get(port.as_str()) else { continue };
        let in_host = in_hosts.get(&leg.member).and_then(|devices| devices.get(leg.device())).copied().unwrap_or(0);
        let of = |device: &str, kind: &str| qdiscs.iter().find(|q| q.dev == device && q.kind == kind);
        // Frames wait in tbf itself, or in a queue behind htb's class.
        let queue = |device: &str| of(device, TBF).or_else(|| of(device, BEHIND_HTB));
        let parts = Parts {
            label: label(&links),
            line: by_name.get(delay_in(&port).as_str()).copied(),
            queue: queue(&port),
            delay: of(&port, "netem"),
            filters: of(&port, "clsact"),
            uplink: queue(&uplink_out(&port)),
        };
        ports.push(row(*leg, link, &parts, faults, in_host));
    }
    let mtu_bytes = legs.first().and_then(|leg| by_name.get(leg.port().as_str())).map_or(0, |link| link.mtu);
    let has_line = legs.iter().any(|leg| by_name.contains_key(delay_in(&leg.port()).as_str()));
    let delay_by = match ports.iter().any(|port| port.delay_us.is_some()) {
        true if has_line => Some(DelayBy::DelayLine),
        true => Some(DelayBy::Netem),
        false => None,
    };
    let delay_line = if has_line { delay::ask(&switch)? } else { None };
    let shaper = qdiscs.iter().find_map(|qdisc| match qdisc.kind.as_str() {
        TBF => Some(Shaper::Tbf),
        BEHIND_HTB => Some(Shaper::Htb),
        _ => None,
    });
    let htb_hysteresis = (shaper == Some(Shaper::Htb)).then(hysteresis::is_on);
    let name = found.name.to_string();
    Ok(Status { name, mtu_bytes, shaper, htb_hysteresis, delay_by, delay_line, ports })
}

const TBF: &str = "tbf";
const BEHIND_HTB: &str = "bfifo";

/// The queueing disciplines of a port, the device of the delay line, and what the box says of all its ports.
struct Parts<'a> {
    label: Label,
    line: Option<&'a Link>,
    queue: Option<&'a Qdisc>,
    delay: Option<&'a Qdisc>,
    filters: Option<&'a Qdisc>,
    uplink: Option<&'a Qdisc>,
}

fn row(leg: Leg, link: &Link, parts: &Parts<'_>, faults: &[(Direction, Fault)], dropped_in_host: u64) -> Port {
    let Parts { label, line, queue, delay, filters, uplink } = parts;
    let by_netem = delay.and_then(|q| q.options.delay.as_ref()).map(|netem| netem.delay * 1e6);
    let by_line = || line.and_then(|link| link.ifalias.parse::<u64>().ok()).map(|ns| ns as f64 / 1e3);
    let loss = |of: Direction| {
        let share = faults.iter().find_map(|(direction, fault)| match fault {
            Fault::Loss(share) if *direction == of => Some(*share),
            _ => None,
        });
        share.unwrap_or(Share::NONE).percent()
    };
    Port {
        port: leg.port(),
        host: leg.member.to_string(),
        segment: leg.segment.name(),
        addresses: [leg.v4().to_string(), leg.v6().to_string()],
        mac: leg.mac_text(),
        rate_bits_per_s: label.rate_bits_per_s,
        buffer_bytes: queue.and_then(|q| q.options.limit),
        burst_bytes: label.burst_bytes,
        host_rate_bits_per_s: label.host_rate_bits_per_s,
        delay_us: by_netem.or_else(by_line),
        queue_bytes: queue.map_or(0, |q| q.backlog),
        queue_packets: queue.map_or(0, |q| q.qlen),
        drops: queue.map_or(0, |q| q.drops),
        sent_packets: link.stats64.tx.packets,
        sent_bytes: link.stats64.tx.bytes,
        received_packets: link.stats64.rx.packets,
        received_bytes: link.stats64.rx.bytes,
        host_drops: uplink.map_or(0, |q| q.drops),
        lost_packets: filters.map_or(0, |q| q.drops),
        missed_packets: link.stats64.tx.dropped + dropped_in_host,
        cut: faults.iter().any(|(_, fault)| *fault == Fault::Cut),
        loss_from_host_percent: loss(Direction::FromHost),
        loss_to_host_percent: loss(Direction::ToHost),
    }
}

/// Frames that could not be handed to the other end of a cable, by device, in the namespace that the calling thread is in.
fn dropped_by_devices() -> Result<HashMap<String, u64>> {
    const TABLE: &str = "/proc/thread-self/net/dev";
    let text = fs::read_to_string(TABLE).map_err(Error::system(format!("read {TABLE}")))?;
    Ok(text.lines().filter_map(dropped_when_sending).collect())
}

/// From a line of `/proc/net/dev`: eight numbers of what was received, then bytes, packets, errors and drops of what was sent.
fn dropped_when_sending(line: &str) -> Option<(String, u64)> {
    const SENT_DROPPED: usize = 8 + 3;
    let (name, numbers) = line.split_once(':')?;
    Some((name.trim().to_owned(), numbers.split_ascii_whitespace().nth(SENT_DROPPED)?.parse().ok()?))
}

/// A table for people.
pub fn table(status: &Status) -> String {
    let mut text = format!("box {}: MTU {}", status.name, status.mtu_bytes);
    if let Some(port) = status.ports.first() {
        let or = |value: Option<String>, otherwise: &str| value.unwrap_or_else(|| otherwise.into());
        let rate = |bits: Option<u64>| bits.map(|bits_per_s| Rate { bits_per_s }.to_string());
        let buffer = port.buffer_bytes.map(|bytes| format!(", port buffer {bytes} bytes"));
        let host = rate(port.host_rate_bits_per_s).map(|rate| format!(", hosts' own rate {rate}"));
        let by = if status.delay_by == Some(DelayBy::Netem) { "netem" } else { "delay line" };
        let delay = port.delay_us.map(|us| format!(", delay {us} us ({by})"));
        let (rate, buffer) = (or(rate(port.rate_bits_per_s), "none"), or(buffer, ""));
        let shaper = match status.shaper {
            Some(Shaper::Htb) => " (htb)",
            Some(Shaper::Tbf) => " (tbf)",
            None => "",
        };
        // Writing to a string does not fail.
        let _ = write!(text, ", rate {rate}{shaper}{buffer}{}{}", or(host, ""), or(delay, ""));
    }
    text.push('\n');
    if status.htb_hysteresis == Some(false) {
        text.push_str(
            "htb_hysteresis is off on this machine: ports set a timer for each frame, which slows everything down; \
             `echo 1 > /sys/module/sch_htb/parameters/htb_hysteresis` switches it on\n",
        );
    }
    text.push_str(&delay_line(status));
    text.push('\n');
    let head = ["PORT", "SEGMENT", "ADDRESS", "QUEUE", "DROPS", "SENT", "RECEIVED", "LOST", "MISSED", "STATE"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(status.ports.iter().map(|port| {
        [
            port.port.clone(),
            port.segment.into(),
            port.addresses[0].clone(),
            port.queue_bytes.to_string(),
            port.drops.to_string(),
            port.sent_packets.to_string(),
            port.received_packets.to_string(),
            port.lost_packets.to_string(),
            port.missed_packets.to_string(),
            state(port),
        ]
    }));
    /// Numbers stand at the right of their columns.
    const RIGHT: std::ops::Range<usize> = 3..9;
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match RIGHT.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// What the process that delays has done, or that it is gone.
fn delay_line(status: &Status) -> String {
    match (status.delay_by, &status.delay_line) {
        (Some(DelayBy::DelayLine), Some(report)) => {
            let Report { pid, frames, waiting, passed, dropped, late_mean_us, late_most_us } = report;
            format!(
                "delay line: process {pid}, {waiting} of at most {frames} frames under way, {passed} passed, {dropped} dropped, \
                 late by {late_mean_us:.0} us on average and {late_most_us:.0} us at most\n"
            )
        }
        (Some(DelayBy::DelayLine), None) => format!(
            "delay line: its process has ended, or does not answer: NO FRAME PASSES BETWEEN HOSTS; `ropeway box down --name {}` \
             takes the box away, `up` makes it anew\n",
            status.name
        ),
        _ => String::new(),
    }
}

fn state(port: &Port) -> String {
    let (from, to) = (port.loss_from_host_percent, port.loss_to_host_percent);
    let loss = match (from > 0.0, to > 0.0) {
        (false, false) => None,
        (true, true) if from == to => Some(format!("loss {from}%")),
        (true, true) => Some(format!("loss {from}% from, {to}% to the host")),
        (true, false) => Some(format!("loss {from}% from the host")),
        (false, true) => Some(format!("loss {to}% to the host")),
    };
    let cut = port.cut.then(|| "cut".to_owned());
    let all: Vec<String> = [cut, loss].into_iter().flatten().collect();
    if all.is_empty() { "ok".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> T {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn devices_queues_and_filters_become_a_row() {
        let link: Link = parsed(
            r#"{"ifname":"h1","mtu":1500,"ifalias":"compute",
                "stats64":{"rx":{"bytes":1,"packets":2,"dropped":0},"tx":{"bytes":3,"packets":4,"dropped":5}}}"#,
        );
        let queue: Qdisc = parsed(
            r#"{"kind":"tbf","dev":"h1","options":{"rate":125000000,"burst":16375,"limit":131072,"lat":917},
                "drops":7,"backlog":1514,"qlen":1}"#,
        );
        let filters: Qdisc = parsed(r#"{"kind":"clsact","dev":"h1","options":{},"drops":9,"backlog":0,"qlen":0}"#);
        let loss: Vec<Filter> = parsed(
            r#"[{"pref":2,"kind":"bpf"},{"pref":2,"kind":"bpf","options":{"bytecode":{"length":4,"insns":[
                {"code":32,"jt":0,"jf":0,"k":4294963256},{"code":53,"jt":1,"jf":0,"k":42949673},
                {"code":6,"jt":0,"jf":0,"k":2},{"code":6,"jt":0,"jf":0,"k":4294967295}]}}},
               {"pref":10,"kind":"u32","options":{"match":{"off":-16},"match":{"off":-12}}}]"#,
        );
        let faults: Vec<_> = loss.iter().filter_map(|f| Some((Direction::ToHost, fault(f)?))).collect();
        let leg = Leg { member: Member::Host(1), segment: Segment::Compute };
        let label = Label::parse("complete rate=1000000000 burst=16384");
        let filters = Some(&filters);
        let parts = Parts { label, line: None, queue: Some(&queue), delay: None, filters, uplink: None };
        let port = row(leg, &link, &parts, &faults, 10);
        assert_eq!((port.rate_bits_per_s, port.buffer_bytes), (Some(1_000_000_000), Some(131_072)));
        assert_eq!((port.queue_bytes, port.queue_packets, port.drops), (1514, 1, 7));
        assert_eq!((port.sent_packets, port.received_packets, port.lost_packets, port.missed_packets), (4, 2, 9, 15));
        assert_eq!((port.cut, port.loss_from_host_percent, port.loss_to_host_percent), (false, 0.0, 1.0));
        assert_eq!(state(&port), "loss 1% to the host");
        assert_eq!(port.addresses, ["10.0.1.1", "fd00:1::1"]);
        let (name, shaper, htb_hysteresis) = ("b".into(), Some(Shaper::Htb), Some(true));
        let (delay_by, delay_line) = (None, None);
        let status = Status { name, mtu_bytes: 1500, shaper, htb_hysteresis, delay_by, delay_line, ports: vec![port] };
        let without = table(&Status { htb_hysteresis: Some(false), ..status.clone() });
        assert!(without.contains("bytes\nhtb_hysteresis is off on this machine"), "{without}");
        let shown = table(&status);
        assert!(shown.starts_with("box b: MTU 1500, rate 1gbit (htb), port buffer 131072 bytes\n\nPORT"), "{shown}");
    }

    #[test]
    fn a_delay_line_that_is_gone_says_so() {
        let link: Link = parsed(
            r#"{"ifname":"h1","mtu":1500,"stats64":{"rx":{"bytes":0,"packets":0,"dropped":0},"tx":{"bytes":0,"packets":0,"dropped":1}}}"#,
        );
        let line: Link = parsed(
            r#"{"ifname":"h1-dly","mtu":1500,"ifalias":"5000000",
                "stats64":{"rx":{"bytes":0,"packets":0,"dropped":0},"tx":{"bytes":0,"packets":0,"dropped":2}}}"#,
        );
        let leg = Leg { member: Member::Host(1), segment: Segment::Compute };
        let label = Label::default();
        let parts = Parts { label, line: Some(&line), queue: None, delay: None, filters: None, uplink: None };
        let port = row(leg, &link, &parts, &[], 4);
        assert_eq!((port.delay_us, port.missed_packets), (Some(5000.0), 5));
        let delay_by = Some(DelayBy::DelayLine);
        let (name, shaper, htb_hysteresis) = ("b".into(), None, None);
        let ports = vec![port];
        let gone = Status { name, mtu_bytes: 1500, shaper, htb_hysteresis, delay_by, delay_line: None, ports };
        let shown = table(&gone);
        assert!(shown.contains(", delay 5000 us (delay line)\ndelay line: its process has ended"), "{shown}");
        assert!(shown.contains("`ropeway box down --name b`"), "{shown}");
        let (late_mean_us, late_most_us) = (8.4, 100.0);
        let report = Report { pid: 7, frames: 9, waiting: 1, passed: 5, dropped: 2, late_mean_us, late_most_us };
        let shown = table(&Status { delay_line: Some(report), ..gone });
        assert!(
            shown.contains("process 7, 1 of at most 9 frames under way, 5 passed, 2 dropped, late by 8 us"),
            "{shown}"
        );
    }

    #[test]
    fn drops_are_read_from_the_table_of_devices() {
        let line = "  eth0: 1296 12 0 0 0 0 0 0  516 6 0 44 0 0 0 0";
        assert_eq!(dropped_when_sending(line), Some(("eth0".into(), 44)));
        assert_eq!(dropped_when_sending("Inter-|   Receive"), None);
        assert_eq!(dropped_when_sending(" face |bytes: x"), None);
    }
}
