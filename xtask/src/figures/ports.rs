//! Cases between hosts whose switch has ports with a rate and a buffer: what one stream, messages, many senders at once and neighbours make of them.

use super::bed::{Bed, Rounds};
use super::row::{Better, Goal, Row, median};
use super::wire::{GBIT, Hosts, LIMIT, SECONDS, START, named, number, parse};
use crate::Result;
use ropeway_testkit::proc::{Process, command};
use serde_json::json;

/// Full frames of 1500 bytes on the medium, with preamble, gap, header and check sum.
const FRAME_BYTES: f64 = 1538.0;
/// What a full packet of the engine carries over UDP, and over raw Ethernet, seven of eight with the short header; TCP's segments with timestamps.
const UDP_PAYLOAD: f64 = 1454.5;
const PACKET_PAYLOAD: f64 = 1482.5;
const TCP_PAYLOAD: f64 = 1448.0;

/// A port of the box, with 128 KiB of buffer.
struct Speed {
    rate: &'static str,
    gbit_per_s: f64,
    /// As text, behind a name.
    shown: &'static str,
    /// How long a measurement takes.
    seconds: &'static str,
}

/// The table's port.
const FAST: Speed = Speed { rate: "1gbit", gbit_per_s: 1.0, shown: " at 1 Gbit/s", seconds: SECONDS };
/// One at which the box's own switch needs a tenth of the processors that it needs at the table's: what is missing there and not here is the machine's.
const SLOW: Speed = Speed { rate: "100mbit", gbit_per_s: 0.1, shown: " at 100 Mbit/s", seconds: "3" };

impl Speed {
    fn options(&self) -> [&'static str; 4] {
        ["--rate", self.rate, "--port-buffer", "128KiB"]
    }
}

/// One stream into a port with 1 Gbit/s.
pub fn port(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::up(bed, &[&["--hosts", "2"], &FAST.options()[..]].concat())?;
    let [mut shares, mut drops]: [ByCarrier; 2] = Default::default();
    for _ in 0..bed.rounds() {
        for (arm, (carrier, payload)) in ARMS.iter().enumerate() {
            let before = hosts.hosts.port("h2").drops;
            let measured = hosts.measure(carrier, &["stream"], false, &[])?;
            shares[arm].push(number(&measured, "gbit_per_s") * 100.0 * FRAME_BYTES / payload);
            drops[arm].push((hosts.hosts.port("h2").drops - before) as f64);
        }
    }
    bed.keep(json!({ "drops": { "tcp": drops[0], "udp": drops[1], "packet": drops[2] } }));
    let share = |what, arm: usize| {
        let rounds = Rounds { tcp: shares[0].clone(), ropeway: shares[arm].clone() };
        Row::between_hosts(what, ("%", Better::More), Goal::Above { at_least: 98.0, aim: 99.5 }, rounds)
    };
    let lost = |what, arm: usize| {
        let rounds = Rounds { tcp: drops[0].clone(), ropeway: drops[arm].clone() };
        Row::between_hosts(what, ("drops", Better::Less), Goal::Below { at_most: 0.0, aim: 0.0 }, rounds)
    };
    Ok(vec![
        share("one stream at 1 Gbit/s, udp, of the payload rate", 1),
        lost("its drops at the port", 1),
        share("one stream at 1 Gbit/s, packet, of the payload rate", 2),
        lost("its drops at the port", 2),
    ])
}

/// Sizes of messages, after figure 5.4 of document 0.
const SIZES: [&str; 6] = ["8", "64", "256", "512", "1024", "1472"];

/// TCP segments that a host has sent for the first time, and sent again.
fn segments(hosts: &Hosts, host: &str) -> Result<[f64; 2]> {
    let shown = hosts.hosts.run(host, &command("cat", ["/proc/net/snmp"]), LIMIT).stdout;
    let [names, values] = shown.lines().filter(|line| line.starts_with("Tcp:")).collect::<Vec<_>>()[..] else {
        return Err(format!("/proc/net/snmp of {host} has no two lines of TCP").into());
    };
    let of = |wanted: &str| {
        let mut columns = names.split(' ').zip(values.split(' '));
        let column = columns.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok());
        column.ok_or_else(|| format!("/proc/net/snmp of {host} has no {wanted}"))
    };
    Ok([of("OutSegs")?, of("RetransSegs")?])
}

/// Messages of document 0's sizes at 1 Gbit/s, a send for each.
pub fn messages(bed: &Bed) -> Result<Vec<Row>> {
    messages_at(bed, &FAST, &SIZES)
}

/// The largest at a rate that leaves the processors idle.
pub fn messages_slow(bed: &Bed) -> Result<Vec<Row>> {
    messages_at(bed, &SLOW, &SIZES[4..])
}

fn messages_at(bed: &Bed, speed: &Speed, sizes: &[&str]) -> Result<Vec<Row>> {
    let hosts = Hosts::up(bed, &[&["--hosts", "2"], &speed.options()[..]].concat())?;
    let shown = speed.shown;
    let mut rows = Vec::new();
    for &size in sizes {
        let mut figures: [Vec<f64>; 4] = Default::default();
        for _ in 0..bed.rounds() {
            for (carrier, figures) in ["tcp", "raw-udp", "packet", "udp"].iter().zip(&mut figures) {
                let case = ["messages", "--bytes", size];
                let measured = hosts.measure_for(speed.seconds, carrier, &case, false, &[])?;
                figures.push(number(&measured, "gbit_per_s"));
            }
        }
        let row = |what: String, at_least: f64, peer: usize, ours: usize| {
            let rounds = Rounds { tcp: figures[peer].clone(), ropeway: figures[ours].clone() };
            Row::between_hosts(&what, GBIT, Goal::Times { at_least, aim: at_least }, rounds)
        };
        rows.push(row(format!("messages of {size} B{shown}, packet against TCP"), 1.0, 0, 2));
        rows.push(row(format!("messages of {size} B{shown}, packet against UDP"), 1.0, 1, 2));
        rows.push(row(format!("messages of {size} B{shown}, udp against TCP"), 1.0, 0, 3));
        if size == "1472" {
            rows.push(row(format!("messages of {size} B{shown}, udp against UDP"), 0.98, 1, 3));
        }
    }
    Ok(rows)
}

/// Round by round: the carriers of [`ARMS`].
type ByCarrier = [Vec<f64>; 3];

/// Carriers, and what their full packets carry.
const ARMS: [(&str, f64); 3] = [("tcp", TCP_PAYLOAD), ("udp", UDP_PAYLOAD), ("packet", PACKET_PAYLOAD)];

/// An incast: what all senders do, how many they are and the bytes of a message.
struct Incast<'a> {
    /// The case of the program that measures, and what it is called.
    case: (&'static str, &'static str),
    loads: &'a [(usize, &'static str)],
    speed: Speed,
    hogs: usize,
}

/// As document 2 did for figure 20: every sender's next message follows the answer to its last.
const EACH_AGAIN: (&str, &str) = ("incast", "");
/// The next ones begin when all have arrived, all in one moment.
const ALL_AGAIN: (&str, &str) = ("rounds", " in rounds");

/// Shorter messages are compared with TCP only.
const LONG_BYTES: u64 = 64 << 10;
/// A measurement takes a second at least, ten messages of each sender and two hundred of all.
const INCAST_SECONDS: f64 = 1.0;
const MESSAGES_EACH: f64 = 10.0;
const MESSAGES: f64 = 200.0;
/// A case may take five minutes.
const INCAST_ROUNDS: u32 = 2;

/// Two send to one.
pub fn incast_2(bed: &Bed) -> Result<Vec<Row>> {
    incast_of_sizes(bed, 2)
}

/// Eight send to one.
pub fn incast_8(bed: &Bed) -> Result<Vec<Row>> {
    incast_of_sizes(bed, 8)
}

/// Thirty-two send to one.
pub fn incast_32(bed: &Bed) -> Result<Vec<Row>> {
    incast_of_sizes(bed, 32)
}

fn incast_of_sizes(bed: &Bed, senders: usize) -> Result<Vec<Row>> {
    let loads = ["1024", "16384", "65536", "262144", "1048576", "4194304"].map(|bytes| (senders, bytes));
    incast_of(bed, &Incast { case: EACH_AGAIN, loads: &loads, speed: FAST, hogs: 0 })
}

/// All of them at once, and again when all have arrived.
pub fn incast_rounds(bed: &Bed) -> Result<Vec<Row>> {
    let loads = &[(2, "65536"), (2, "1048576"), (8, "65536"), (8, "1048576"), (32, "65536"), (32, "262144")];
    incast_of(bed, &Incast { case: ALL_AGAIN, loads, speed: FAST, hogs: 0 })
}

/// The same at a rate that leaves the processors idle.
pub fn incast_slow(bed: &Bed) -> Result<Vec<Row>> {
    let loads = &[(2, "262144"), (8, "65536"), (32, "65536"), (32, "262144")];
    incast_of(bed, &Incast { case: ALL_AGAIN, loads, speed: SLOW, hogs: 0 })
}

/// Beside so many programs that want a processor each.
pub fn incast_busy(bed: &Bed) -> Result<Vec<Row>> {
    let loads = &[(8, "262144")];
    [EACH_AGAIN, ALL_AGAIN].into_iter().try_fold(Vec::new(), |rows, case| {
        Ok([rows, incast_of(bed, &Incast { case, loads, speed: FAST, hogs: 2 })?].concat())
    })
}

fn incast_of(bed: &Bed, incast: &Incast) -> Result<Vec<Row>> {
    let Incast { case: (case, manner), loads, speed, hogs } = incast;
    let most = loads.iter().map(|(senders, _)| senders).max().expect("some");
    let count = (most + 1).to_string();
    let hosts = Hosts::up(bed, &[&["--hosts", &count], &speed.options()[..]].concat())?;
    let busy: Vec<Process> =
        (0..*hogs).map(|_| hosts.hosts.spawn("h1", &command("sh", ["-c", "while :; do :; done"]))).collect();
    let mut rows = Vec::new();
    for &(senders, bytes) in *loads {
        let message_bytes: u64 = bytes.parse()?;
        let ideal_us = |payload: f64| {
            let gbit_per_s = speed.gbit_per_s * payload / FRAME_BYTES;
            (gbit_per_s, senders as f64 * message_bytes as f64 * 8.0 / 1e3 / gbit_per_s)
        };
        let messages = MESSAGES_EACH.max(MESSAGES / senders as f64);
        let messages = messages.max(INCAST_SECONDS * 1e6 / ideal_us(UDP_PAYLOAD).1).ceil();
        let seconds = (ideal_us(UDP_PAYLOAD).1 * messages / 1e6).to_string();
        let messages = messages.to_string();
        let long = ["--bytes", bytes, "--seconds", &seconds, "--messages", &messages];
        let [mut rates, mut shares, mut tails, mut drops]: [ByCarrier; 4] = Default::default();
        for _ in 0..bed.rounds().min(INCAST_ROUNDS) {
            for (arm, (carrier, payload)) in ARMS.iter().enumerate() {
                let (servers, own, peers) = hosts.servers(carrier, senders);
                let before = hosts.hosts.port("h1").drops;
                let client = hosts.program(&[&[*case, &own, &peers], &long[..]].concat(), None, &[]);
                bed.note(&named(&client));
                let shown = hosts.hosts.run("h1", &client, LIMIT);
                servers.iter().for_each(|server| drop(server.kill()));
                let measured = parse(&shown.stdout).map_err(|e| format!("{carrier}: {e}: {}", shown.stderr))?;
                let dropped = (hosts.hosts.port("h1").drops - before) as f64;
                let (gbit_per_s, ideal_us) = ideal_us(*payload);
                rates[arm].push(number(&measured, "gbit_per_s"));
                shares[arm].push(number(&measured, "gbit_per_s") * 100.0 / gbit_per_s);
                tails[arm].push(number(&measured, "p99_us") / ideal_us);
                drops[arm].push(dropped);
                bed.keep(json!({ "carrier": carrier, "senders": senders, "drops": dropped, "measured": measured }));
            }
        }
        let (shown, beside) = (speed.shown, if *hogs > 0 { " beside two CPU hogs" } else { "" });
        let kib = message_bytes >> 10;
        for (arm, carrier) in [(1, "udp"), (2, "packet")] {
            let name = format!("{senders} senders of {kib} KiB{manner}{shown}{beside}, {carrier}");
            let pair = |values: &ByCarrier| Rounds { tcp: values[0].clone(), ropeway: values[arm].clone() };
            let goal = match hogs {
                0 => Goal::Above { at_least: 97.0, aim: 99.0 },
                _ => Goal::Above { at_least: 75.0, aim: 97.0 },
            };
            rows.push(match message_bytes < LONG_BYTES {
                true => Row::between_hosts(&name, GBIT, Goal::Times { at_least: 1.0, aim: 1.5 }, pair(&rates)),
                false => Row::between_hosts(&name, ("%", Better::More), goal, pair(&shares)),
            });
            if *hogs == 0 && message_bytes >= LONG_BYTES {
                let goal = Goal::Below { at_most: 1.1, aim: 1.03 };
                let what = "its p99 completion, of the ideal";
                rows.push(Row::between_hosts(what, ("x", Better::Less), goal, pair(&tails)));
            }
            // One packet of each sender in the first flight.
            let goal = Goal::Below { at_most: senders as f64, aim: 0.0 };
            rows.push(Row::between_hosts("its drops at the port", ("drops", Better::Less), goal, pair(&drops)));
        }
    }
    busy.iter().for_each(|hog| drop(hog.kill()));
    Ok(rows)
}

/// Ours beside cubic flows in one port.
pub fn beside(bed: &Bed) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for flows in [1usize, 8] {
        let hosts = Hosts::up(bed, &[&["--hosts", "3"], &FAST.options()[..]].concat())?;
        let (mut rounds, mut losses) = (Rounds::default(), Rounds::default());
        for _ in 0..bed.rounds() {
            // The box handles what comes from hosts 2 and 3 on different processors: else ours would stand behind TCP's before they reach the port.
            let (server, from, peer) = hosts.ends("udp", false, 1, 2);
            let (tcp_server, tcp_from, tcp_peer) = hosts.ends("tcp", false, 1, 3);
            let long = ["--seconds", "3"];
            let ours = hosts.hosts.spawn("h1", &hosts.program(&["serve", &server], None, &[]));
            let theirs = hosts.hosts.spawn("h1", &hosts.program(&["serve", &tcp_server], None, &[]));
            std::thread::sleep(START);
            let background: Vec<Process> = (0..flows)
                .map(|_| {
                    let flow = hosts.program(&[&["stream", &tcp_from, &tcp_peer], &long[..]].concat(), None, &[]);
                    hosts.hosts.spawn("h3", &flow)
                })
                .collect();
            let own = hosts.program(&[&["stream", &from, &peer], &long[..]].concat(), None, &[]);
            bed.note(&named(&own));
            let before = segments(&hosts, "h3")?;
            let shown = hosts.hosts.run("h2", &own, LIMIT);
            let measured = parse(&shown.stdout).map_err(|e| format!("udp: {e}: {}", shown.stderr))?;
            let mut sum = 0.0;
            for flow in &background {
                let finished = flow.wait(LIMIT)?;
                let shown = parse(&finished.stdout).map_err(|e| format!("tcp: {e}: {}", finished.stderr))?;
                sum += number(&shown, "gbit_per_s");
            }
            let after = segments(&hosts, "h3")?;
            drop([ours.kill(), theirs.kill()]);
            // Each flow's fair share is an equal part.
            let fair = (number(&measured, "gbit_per_s") + sum) / (flows + 1) as f64;
            rounds.ropeway.push(number(&measured, "gbit_per_s") / fair);
            rounds.tcp.push(sum / flows as f64 / fair);
            let counters = &measured["counters"];
            losses.ropeway.push(number(counters, "resent") * 100.0 / number(counters, "packets_sent"));
            let [sent, again] = [after[0] - before[0], after[1] - before[1]];
            losses.tcp.push(again * 100.0 / (sent + again));
            bed.keep(json!({ "flows": flows, "ours": measured, "cubic_gbit_per_s": sum }));
        }
        let smaller = |rounds: &Rounds| -> Vec<f64> {
            rounds.tcp.iter().zip(&rounds.ropeway).map(|(tcp, ours)| tcp.min(*ours)).collect()
        };
        let least = Rounds { tcp: rounds.tcp.clone(), ropeway: smaller(&rounds) };
        bed.keep(json!({ "ours_of_fair": median(&rounds.ropeway), "cubic_of_fair": median(&rounds.tcp) }));
        let goal = Goal::Above { at_least: 0.5, aim: 0.8 };
        let what = format!("beside {flows} cubic flows at 1 Gbit/s: the smaller side, of its fair share");
        rows.push(Row::between_hosts(&what, ("x", Better::More), goal, least));
        let goal = Goal::Below { at_most: 2.0, aim: 1.0 };
        rows.push(Row::between_hosts("our loss beside them, and theirs", ("%", Better::Less), goal, losses));
    }
    Ok(rows)
}
