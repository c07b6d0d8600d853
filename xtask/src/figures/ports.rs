//! Cases between hosts whose switch has ports with a rate and a buffer: what one stream, messages, many senders at once and neighbours make of them.

use super::bed::{Bed, Rounds};
use super::row::{Better, Goal, Row};
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
    let rounds = bed.rounds(|| {
        ARMS.iter()
            .map(|(carrier, payload)| {
                let before = hosts.hosts.port("h2").drops;
                let measured = hosts.measure(carrier, &["stream"], false, &[])?;
                let drops = (hosts.hosts.port("h2").drops - before) as f64;
                bed.keep(json!({ "carrier": carrier, "drops": drops }));
                Ok([number(&measured, "gbit_per_s") * 100.0 * FRAME_BYTES / payload, drops])
            })
            .collect::<Result<Vec<_>>>()
    })?;
    let of = |figure: usize, arm: usize| Rounds::of(&rounds, |round| (round[0][figure], round[arm][figure]));
    let share = |what, arm| {
        Row::between_hosts(what, ("%", Better::More), Goal::Above { at_least: 98.0, aim: 99.5 }, of(0, arm))
    };
    let lost = |what, arm| {
        Row::between_hosts(what, ("drops", Better::Less), Goal::Below { at_most: 0.0, aim: 0.0 }, of(1, arm))
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
        let gbit_per_s = |carrier| -> Result<f64> {
            let case = ["messages", "--bytes", size];
            Ok(number(&hosts.measure_for(speed.seconds, carrier, &case, false, &[])?, "gbit_per_s"))
        };
        let rounds =
            bed.rounds(|| Ok([gbit_per_s("tcp")?, gbit_per_s("raw-udp")?, gbit_per_s("packet")?, gbit_per_s("udp")?]))?;
        let row = |what: String, at_least: f64, peer: usize, ours: usize| {
            let rounds = Rounds::of(&rounds, |round| (round[peer], round[ours]));
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

/// Carriers, and what their full packets carry.
const ARMS: [(&str, f64); 3] = [("tcp", TCP_PAYLOAD), ("udp", UDP_PAYLOAD), ("packet", PACKET_PAYLOAD)];

/// What arrived in an incast.
struct Arrived {
    gbit_per_s: f64,
    /// Of what the port can carry, in %.
    share: f64,
    /// The 99th percentile of the time of a message, of the ideal.
    tail: f64,
    drops: f64,
}

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
        let measure = |(carrier, payload): &(&str, f64)| -> Result<Arrived> {
            let (servers, own, peers) = hosts.servers(carrier, senders);
            let before = hosts.hosts.port("h1").drops;
            let client = hosts.program(&[&[*case, &own, &peers], &long[..]].concat(), None, &[]);
            bed.note(&named(&client));
            let shown = hosts.hosts.run("h1", &client, LIMIT);
            servers.iter().for_each(|server| drop(server.kill()));
            let measured = parse(&shown.stdout).map_err(|e| format!("{carrier}: {e}: {}", shown.stderr))?;
            let drops = (hosts.hosts.port("h1").drops - before) as f64;
            bed.keep(json!({ "carrier": carrier, "senders": senders, "drops": drops, "measured": measured }));
            let (most_gbit_per_s, ideal_us) = ideal_us(*payload);
            let gbit_per_s = number(&measured, "gbit_per_s");
            let share = gbit_per_s * 100.0 / most_gbit_per_s;
            Ok(Arrived { gbit_per_s, share, tail: number(&measured, "p99_us") / ideal_us, drops })
        };
        let rounds = bed.some_rounds(INCAST_ROUNDS, || ARMS.iter().map(measure).collect::<Result<Vec<_>>>())?;
        let (shown, beside) = (speed.shown, if *hogs > 0 { " beside two CPU hogs" } else { "" });
        let kib = message_bytes >> 10;
        for (arm, carrier) in [(1, "udp"), (2, "packet")] {
            let name = format!("{senders} senders of {kib} KiB{manner}{shown}{beside}, {carrier}");
            let pair =
                |figure: fn(&Arrived) -> f64| Rounds::of(&rounds, |round| (figure(&round[0]), figure(&round[arm])));
            let goal = match hogs {
                0 => Goal::Above { at_least: 97.0, aim: 99.0 },
                _ => Goal::Above { at_least: 75.0, aim: 97.0 },
            };
            rows.push(match message_bytes < LONG_BYTES {
                true => Row::between_hosts(
                    &name,
                    GBIT,
                    Goal::Times { at_least: 1.0, aim: 1.5 },
                    pair(|arrived| arrived.gbit_per_s),
                ),
                false => Row::between_hosts(&name, ("%", Better::More), goal, pair(|arrived| arrived.share)),
            });
            if *hogs == 0 && message_bytes >= LONG_BYTES {
                let goal = Goal::Below { at_most: 1.1, aim: 1.03 };
                let what = "its p99 completion, of the ideal";
                rows.push(Row::between_hosts(what, ("x", Better::Less), goal, pair(|arrived| arrived.tail)));
            }
            // One packet of each sender in the first flight.
            let goal = Goal::Below { at_most: senders as f64, aim: 0.0 };
            rows.push(Row::between_hosts(
                "its drops at the port",
                ("drops", Better::Less),
                goal,
                pair(|arrived| arrived.drops),
            ));
        }
    }
    busy.iter().for_each(|hog| drop(hog.kill()));
    Ok(rows)
}

/// What two kinds of flows make of one port: parts of a fair share, and losses in %.
struct Shared {
    ours: f64,
    theirs: f64,
    our_loss: f64,
    their_loss: f64,
}

/// How the port lets its frames out, and how that is called behind a name.
const PORTS: [(&str, &str); 2] = [("tbf", ", frame by frame"), ("htb", ", eleven frames at a time")];

/// Ours beside cubic flows in one port. That of a real switch lets one frame out at a time, as the box's does with tbf. With htb, which leaves the processors to the hosts, it lets out eleven
/// in a row: who answers within the kernel finds the room that these leave, and who is woken for it comes when others have filled it.
pub fn beside(bed: &Bed) -> Result<Vec<Row>> {
    let cases = PORTS.into_iter().flat_map(|port| [1usize, 8].map(|flows| (port, flows)));
    Ok(cases.map(|(port, flows)| beside_flows(bed, port, flows)).collect::<Result<Vec<_>>>()?.concat())
}

fn beside_flows(bed: &Bed, (shaper, shown): (&str, &str), flows: usize) -> Result<Vec<Row>> {
    let hosts = Hosts::up(bed, &[&["--hosts", "3", "--shaper", shaper], &FAST.options()[..]].concat())?;
    let rounds = bed.rounds(|| {
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
        bed.keep(json!({ "shaper": shaper, "flows": flows, "ours": measured, "cubic_gbit_per_s": sum }));
        // Each flow's fair share is an equal part.
        let gbit_per_s = number(&measured, "gbit_per_s");
        let fair = (gbit_per_s + sum) / (flows + 1) as f64;
        let counters = &measured["counters"];
        let [sent, again] = [after[0] - before[0], after[1] - before[1]];
        Ok(Shared {
            ours: gbit_per_s / fair,
            theirs: sum / flows as f64 / fair,
            our_loss: number(counters, "resent") * 100.0 / number(counters, "packets_sent"),
            their_loss: again * 100.0 / (sent + again),
        })
    })?;
    let least = Rounds::of(&rounds, |round| (round.theirs, round.ours.min(round.theirs)));
    let losses = Rounds::of(&rounds, |round| (round.their_loss, round.our_loss));
    let goal = Goal::Above { at_least: 0.5, aim: 0.8 };
    let what = format!("beside {flows} cubic flows at 1 Gbit/s{shown}: the smaller side, of its fair share");
    let share = Row::between_hosts(&what, ("x", Better::More), goal, least);
    let goal = Goal::Below { at_most: 2.0, aim: 1.0 };
    let loss = Row::between_hosts("our loss beside them, and theirs", ("%", Better::Less), goal, losses);
    Ok(vec![share, loss])
}
