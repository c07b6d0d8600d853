//! Cases between hosts: the engine over its links against the kernel's TCP and UDP and against the bare links, in boxes.
//!
//! All of them run one program, `crates/engine/examples/wire`, and measure what arrives, where it arrives. In the table the column "TCP" holds the peer that the
//! row names.

use super::bed::{Bed, Rounds};
use super::row::{Better, Goal, Row, median};
use crate::{Result, product};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Process, command};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// A measurement of a second, with its start and its end.
const LIMIT: Duration = Duration::from_secs(60);
/// A server is there when its first client is: connections are tried again for longer than it takes to start.
const START: Duration = Duration::from_millis(400);
const SECONDS: &str = "1";
/// Full frames of 1500 bytes on the medium, with preamble, gap, header and check sum.
const FRAME_BYTES: f64 = 1538.0;
/// What a full packet of the engine carries over UDP, and over raw Ethernet, seven of eight with the short header; TCP's segments with timestamps.
const UDP_PAYLOAD: f64 = 1454.5;
const PACKET_PAYLOAD: f64 = 1482.5;
const TCP_PAYLOAD: f64 = 1448.0;
/// The cable between the two hosts that goes through no switch.
const DIRECT: &str = "direct0";
const DIRECT_ADDRESSES: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
const DIRECT_MACS: [&str; 2] = ["02:52:57:0f:00:01", "02:52:57:0f:00:02"];
const PORT: u16 = 7000;

/// Some hosts, and the program that measures between them.
struct Hosts<'a> {
    bed: &'a Bed,
    hosts: TestBox,
    program: std::path::PathBuf,
}

/// What the program is told besides its arguments.
type Environment = [(&'static str, &'static str)];

impl<'a> Hosts<'a> {
    fn up(bed: &'a Bed, options: &[&str]) -> Result<Self> {
        let built = product::cargo().args(["build", "--release", "-p", "ropeway-engine", "--example", "wire"]).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("the example wire does not build: see above".into());
        }
        bed.note(&command("ropeway", [&["box", "up"], options].concat()));
        let program = env::target_dir().join("release/examples/wire");
        Ok(Self { bed, hosts: TestBox::up(options), program })
    }

    /// Two hosts with a veth pair between them: no switch, no rate.
    fn direct(bed: &'a Bed) -> Result<Self> {
        let hosts = Self::up(bed, &["--hosts", "2"])?;
        let names = ["h1", "h2"].map(|host| hosts.hosts.namespace(host));
        let [one, other] = &names;
        ip(&["link", "add", DIRECT, "netns", one, "type", "veth", "peer", "name", DIRECT, "netns", other])?;
        for ((name, address), mac) in names.iter().zip(DIRECT_ADDRESSES).zip(DIRECT_MACS) {
            ip(&["-n", name, "link", "set", DIRECT, "address", mac])?;
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", DIRECT])?;
            ip(&["-n", name, "link", "set", DIRECT, "up"])?;
        }
        Ok(hosts)
    }

    fn address(&self, host: usize) -> String {
        self.hosts.v4(&format!("h{host}")).to_string()
    }

    fn mac(&self, host: usize, direct: bool) -> String {
        if direct { DIRECT_MACS[host - 1].to_owned() } else { self.hosts.port(&format!("h{host}")).mac }
    }

    /// What serves and what asks for it: the arguments for a carrier on a device of two hosts.
    fn ends(&self, carrier: &str, direct: bool, server: usize, client: usize) -> (String, String, String) {
        let device = if direct { DIRECT } else { "eth0" };
        let address = |host: usize| if direct { DIRECT_ADDRESSES[host - 1].to_owned() } else { self.address(host) };
        if carrier.ends_with("packet") {
            (format!("{carrier}:{device}"), format!("{carrier}:{device}"), self.mac(server, direct))
        } else {
            let peer = format!("{}:{PORT}", address(server));
            (format!("{carrier}:{peer}"), format!("{carrier}:{}:0", address(client)), peer)
        }
    }

    fn program(&self, args: &[&str], cpu: Option<&str>, environment: &Environment) -> Command {
        let mut program = match cpu {
            Some(cpu) => {
                let mut taskset = command("taskset", ["-c", cpu]);
                taskset.arg(&self.program);
                taskset
            }
            None => Command::new(&self.program),
        };
        program.args(args).envs(environment.iter().copied());
        program
    }

    /// One measurement from host 1 to host 2, with the two ends on different processors.
    fn measure(&self, carrier: &str, case: &[&str], direct: bool, environment: &Environment) -> Result<Value> {
        self.measure_for(SECONDS, carrier, case, direct, environment)
    }

    fn measure_for(
        &self,
        seconds: &str,
        carrier: &str,
        case: &[&str],
        direct: bool,
        environment: &Environment,
    ) -> Result<Value> {
        let (local, from, peer) = self.ends(carrier, direct, 2, 1);
        let server = self.hosts.spawn("h2", &self.program(&["serve", &local], Some("0"), environment));
        std::thread::sleep(START);
        let args = [&[case[0], &from, &peer], &case[1..], &["--seconds", seconds]].concat();
        let client = self.program(&args, Some("1"), environment);
        self.bed.note(&command("wire", &args));
        let shown = self.hosts.run("h1", &client, LIMIT);
        server.kill();
        parse(&shown.stdout).map_err(|e| format!("{carrier} {case:?}: {e}: {}", shown.stderr).into()).inspect(
            |value: &Value| self.bed.keep(json!({ "carrier": carrier, "environment": environment, "measured": value })),
        )
    }

    /// A server in each of the hosts 2, 3, ..., which host 1 asks.
    fn servers(&self, carrier: &str, count: usize) -> (Vec<Process>, String, String) {
        let (mut processes, mut peers, mut own) = (Vec::new(), Vec::new(), String::new());
        for host in 2..count + 2 {
            let (local, from, peer) = self.ends(carrier, false, host, 1);
            processes.push(self.hosts.spawn(&format!("h{host}"), &self.program(&["serve", &local], None, &[])));
            peers.push(peer);
            own = from;
        }
        std::thread::sleep(START);
        (processes, own, peers.join(","))
    }
}

/// The same command line without the place of the program.
fn named(client: &Command) -> Command {
    command("wire", client.get_args())
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

fn parse(stdout: &str) -> std::result::Result<Value, String> {
    serde_json::from_str(stdout.trim()).map_err(|e| format!("no result ({e})"))
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

const US: (&str, Better) = ("us", Better::Less);

/// 64-byte messages and answers over a veth pair.
pub fn pingpong(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let arms: [(&str, &Environment); 9] = [
        ("raw-packet", &[]),
        ("packet", SPINS),
        ("tcp-spin", &[]),
        ("raw-udp", &[]),
        ("udp", SPINS),
        ("tcp", &[]),
        ("packet", &[("SPIN_US", "0")]),
        ("packet", &[]),
        ("udp", &[]),
    ];
    let mut figures: [Vec<f64>; 9] = Default::default();
    for _ in 0..bed.rounds() {
        for ((carrier, environment), figures) in arms.iter().zip(&mut figures) {
            figures.push(number(&hosts.measure(carrier, &["pingpong"], true, environment)?, "one_way_us"));
        }
    }
    let row = |what: &str, goal: Goal, peer: usize, ours: usize| {
        Row::between_hosts(what, US, goal, Rounds { tcp: figures[peer].clone(), ropeway: figures[ours].clone() })
    };
    Ok(vec![
        row("64-byte ping-pong, packet against the bare ring", Goal::OfLimit { at_most: 1.4, aim: 1.15 }, 0, 1),
        row("the same against spinning TCP", Goal::Times { at_least: 1.0 / 0.45, aim: 4.0 }, 2, 1),
        row("64-byte ping-pong, udp against a bare socket", Goal::OfLimit { at_most: 1.4, aim: 1.15 }, 3, 4),
        row("blocking, spin off, packet against TCP", Goal::Times { at_least: 1.0, aim: 1.2 }, 5, 6),
        row("blocking, default spin, packet against TCP", Goal::Times { at_least: 5.0, aim: 10.0 }, 5, 7),
        row("blocking, default spin, udp against TCP", Goal::Times { at_least: 5.0, aim: 10.0 }, 5, 8),
    ])
}

/// Polls as the peers that spin do: for ever.
const SPINS: &Environment = &[("SPIN_US", "1000000")];

const GBIT: (&str, Better) = ("Gbit/s", Better::More);

/// One stream over a veth pair: as fast as the processors can.
pub fn stream(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let (mut figures, mut iperf3): (ByCarrier, Vec<f64>) = Default::default();
    for _ in 0..bed.rounds() {
        iperf3.push(iperf3_cubic(&hosts)?);
        for (carrier, figures) in ["tcp", "udp", "packet"].iter().zip(&mut figures) {
            figures.push(number(&hosts.measure(carrier, &["stream"], true, &[])?, "gbit_per_s"));
        }
    }
    let [tcp, udp, packet] = figures;
    let row = |what, goal, peer: &Vec<f64>, ours: &Vec<f64>| {
        Row::between_hosts(what, GBIT, goal, Rounds { tcp: peer.clone(), ropeway: ours.clone() })
    };
    Ok(vec![
        row(
            "one stream, unshaped, udp against iperf3 -C cubic",
            Goal::Times { at_least: 1.8, aim: 2.4 },
            &iperf3,
            &udp,
        ),
        row("the same against TCP cubic, sends of 256 KiB", Goal::Times { at_least: 1.0, aim: 1.0 }, &tcp, &udp),
        row(
            "one stream, unshaped, packet against the same TCP",
            Goal::Times { at_least: 1.0, aim: 1.0 },
            &tcp,
            &packet,
        ),
    ])
}

/// What people measure TCP with.
fn iperf3_cubic(hosts: &Hosts<'_>) -> Result<f64> {
    let server = hosts.hosts.spawn("h2", &command("taskset", ["-c", "0", "iperf3", "-s", "-1"]));
    std::thread::sleep(START);
    let args = ["-c", "1", "iperf3", "-c", DIRECT_ADDRESSES[1], "-C", "cubic", "-t", SECONDS, "-J"];
    let client = command("taskset", args);
    hosts.bed.note(&client);
    let shown = hosts.hosts.run("h1", &client, LIMIT);
    drop(server.kill());
    let report: Value = parse(&shown.stdout).map_err(|e| format!("iperf3: {e}: {}", shown.stderr))?;
    Ok(number(&report["end"]["sum_received"], "bits_per_second") / 1e9)
}

/// The same with a key.
pub fn keyed(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let key = bed.dir("key")?.join("key");
    let made = Command::new(env::ropeway()).args(["key", "new"]).arg(&key).output()?;
    if !made.status.success() {
        return Err(format!("ropeway key new: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let key: &'static str = Box::leak(key.display().to_string().into_boxed_str());
    let with_key: &'static Environment = Box::leak(vec![("ROPEWAY_KEY_FILE", key)].into_boxed_slice());
    let mut rounds = Rounds::default();
    for _ in 0..bed.rounds() {
        rounds.tcp.push(number(&hosts.measure("udp", &["stream"], true, &[])?, "gbit_per_s"));
        rounds.ropeway.push(number(&hosts.measure("udp", &["stream"], true, with_key)?, "gbit_per_s"));
    }
    // 0.8 and 0.95 of what 30 Gbit/s without a key and the cipher alone at 53 give one after the other.
    Ok(vec![Row::between_hosts(
        "one stream, udp, with a key against without",
        GBIT,
        Goal::Times { at_least: 0.51, aim: 0.6 },
        rounds,
    )])
}

/// Messages of 64 bytes, a send for each.
pub fn rate(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let (mut rounds, mut sends) = (Rounds::default(), Rounds::default());
    for _ in 0..bed.rounds() {
        let rate = |carrier, environment| -> Result<f64> {
            Ok(number(&hosts.measure(carrier, &["messages"], true, environment)?, "millions_per_s"))
        };
        let (single, batch, ours) = (rate("raw-udp", &[])?, rate("raw-udp-batch", &[])?, rate("udp", &[])?);
        sends.tcp.push(single);
        sends.ropeway.push(ours);
        rounds.tcp.push(batch);
        rounds.ropeway.push(ours);
    }
    let unit = ("M/s", Better::More);
    let goal = Goal::Times { at_least: 10.0, aim: 20.0 };
    Ok(vec![
        Row::between_hosts("64-byte messages one way, udp against UDP with sendmmsg", unit, goal, rounds),
        Row::between_hosts("the same against a send for each", unit, goal, sends),
    ])
}

/// A port of the box, with 128 KiB of buffer.
struct Speed {
    rate: &'static str,
    gbit_per_s: f64,
    /// As text, behind a name; the usual one goes without saying.
    shown: &'static str,
    /// How long a measurement takes.
    seconds: &'static str,
}

/// The table's port.
const FAST: Speed = Speed { rate: "1gbit", gbit_per_s: 1.0, shown: "", seconds: SECONDS };
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

/// Senders and bytes of the rounds, after figure 20 of document 2.
const INCAST: [(usize, &str); 6] =
    [(2, "65536"), (2, "1048576"), (8, "65536"), (8, "1048576"), (32, "65536"), (32, "262144")];

/// The same at a lower rate, where a round of the largest takes ten times as long.
const INCAST_SLOW: [(usize, &str); 4] = [(2, "262144"), (8, "65536"), (32, "65536"), (32, "262144")];

/// Beside programs that want a processor each, as many as there are here.
const INCAST_BUSY: [(usize, &str); 1] = [(8, "262144")];
const HOGS: usize = 2;

/// A case may take two minutes.
const INCAST_ROUNDS: u32 = 2;

/// Many send to one at once, and again when all have arrived.
pub fn incast(bed: &Bed) -> Result<Vec<Row>> {
    incast_at(bed, &FAST, &INCAST, 0)
}

/// At a rate that leaves the processors idle.
pub fn incast_slow(bed: &Bed) -> Result<Vec<Row>> {
    incast_at(bed, &SLOW, &INCAST_SLOW, 0)
}

/// Beside programs that want all processors.
pub fn incast_busy(bed: &Bed) -> Result<Vec<Row>> {
    incast_at(bed, &FAST, &INCAST_BUSY, HOGS)
}

fn incast_at(bed: &Bed, speed: &Speed, cases: &[(usize, &str)], hogs: usize) -> Result<Vec<Row>> {
    let most = cases.iter().map(|(senders, _)| senders).max().expect("some");
    let count = (most + 1).to_string();
    let hosts = Hosts::up(bed, &[&["--hosts", &count], &speed.options()[..]].concat())?;
    let busy: Vec<Process> =
        (0..hogs).map(|_| hosts.hosts.spawn("h1", &command("sh", ["-c", "while :; do :; done"]))).collect();
    let mut rows = Vec::new();
    for &(senders, bytes) in cases {
        let [mut shares, mut tails, mut drops]: [ByCarrier; 3] = Default::default();
        for _ in 0..bed.rounds().min(INCAST_ROUNDS) {
            for (arm, (carrier, payload)) in ARMS.iter().enumerate() {
                let (servers, own, peers) = hosts.servers(carrier, senders);
                let before = hosts.hosts.port("h1").drops;
                let case = ["rounds", &own, &peers, "--bytes", bytes, "--seconds", speed.seconds];
                let client = hosts.program(&case, None, &[]);
                bed.note(&named(&client));
                let shown = hosts.hosts.run("h1", &client, LIMIT);
                servers.iter().for_each(|server| drop(server.kill()));
                let measured = parse(&shown.stdout).map_err(|e| format!("{carrier}: {e}: {}", shown.stderr))?;
                let dropped = (hosts.hosts.port("h1").drops - before) as f64;
                let gbit_per_s = speed.gbit_per_s * payload / FRAME_BYTES;
                let ideal_us = senders as f64 * bytes.parse::<f64>()? * 8.0 / 1e3 / gbit_per_s;
                shares[arm].push(number(&measured, "gbit_per_s") * 100.0 / gbit_per_s);
                tails[arm].push(number(&measured, "p99_us") / ideal_us);
                drops[arm].push(dropped);
                bed.keep(json!({ "carrier": carrier, "senders": senders, "drops": dropped, "measured": measured }));
            }
        }
        let (shown, beside) = (speed.shown, if hogs > 0 { " beside programs that want all processors" } else { "" });
        let name = |carrier: &str| {
            let kib = bytes.parse::<u64>().unwrap_or(0) >> 10;
            format!("{senders} senders of {kib} KiB at once{shown}{beside}, {carrier}")
        };
        for (arm, carrier) in [(1, "udp"), (2, "packet")] {
            let pair = |values: &ByCarrier| Rounds { tcp: values[0].clone(), ropeway: values[arm].clone() };
            let goal = match hogs {
                0 => Goal::Above { at_least: 97.0, aim: 99.0 },
                _ => Goal::Above { at_least: 75.0, aim: 97.0 },
            };
            rows.push(Row::between_hosts(&name(carrier), ("%", Better::More), goal, pair(&shares)));
            if hogs == 0 {
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
            let shown = hosts.hosts.run("h2", &own, LIMIT);
            let measured = parse(&shown.stdout).map_err(|e| format!("udp: {e}: {}", shown.stderr))?;
            let mut sum = 0.0;
            for flow in &background {
                let finished = flow.wait(LIMIT)?;
                let shown = parse(&finished.stdout).map_err(|e| format!("tcp: {e}: {}", finished.stderr))?;
                sum += number(&shown, "gbit_per_s");
            }
            drop([ours.kill(), theirs.kill()]);
            // Each flow's fair share is an equal part.
            let fair = (number(&measured, "gbit_per_s") + sum) / (flows + 1) as f64;
            rounds.ropeway.push(number(&measured, "gbit_per_s") / fair);
            rounds.tcp.push(sum / flows as f64 / fair);
            let counters = &measured["counters"];
            losses.ropeway.push(number(counters, "resent") * 100.0 / number(counters, "packets_sent"));
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
        rows.push(Row::between_hosts("our loss beside them", ("%", Better::Less), goal, losses));
    }
    Ok(rows)
}
