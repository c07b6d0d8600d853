//! Cases between hosts: the engine over its links against the kernel's TCP and UDP and against the bare links; here those over a cable without a switch.
//!
//! All of them run one program, `crates/engine/examples/wire`, and measure what arrives, where it arrives. In the table the column "TCP" holds the peer that the
//! row names.

use super::bed::{Bed, Rounds};
use super::row::{Better, Goal, Row};
use crate::{Result, product};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Process, command};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A measurement of a second, with its start and its end.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// A server is there when its first client is: connections are tried again for longer than it takes to start.
pub(super) const START: Duration = Duration::from_millis(400);
pub(super) const SECONDS: &str = "1";
/// Our carriers, as the arguments of the program name them.
const OURS: [&str; 3] = ["udp:", "packet:", "xdp:"];
/// The cable between the two hosts that goes through no switch.
const DIRECT: &str = "direct0";
const DIRECT_ADDRESSES: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
const DIRECT_MACS: [&str; 2] = ["02:52:57:0f:00:01", "02:52:57:0f:00:02"];
const PORT: u16 = 7000;

/// Some hosts, and what measures between them.
pub(super) struct Hosts<'a> {
    bed: &'a Bed,
    pub(super) hosts: TestBox,
    /// The program that measures between them: for our carriers as it is installed, for others as a plain build.
    ours: PathBuf,
    peers: PathBuf,
}

/// What the program is told besides its arguments.
type Environment = [(&'static str, &'static str)];

impl<'a> Hosts<'a> {
    pub(super) fn up(bed: &'a Bed, options: &[&str]) -> Result<Self> {
        bed.note(&command("ropeway", [&["box", "up"], options].concat()));
        // No training run has weighed the code of other carriers.
        let peers = product::plain_example(product::WIRE_PACKAGE, product::WIRE)?;
        let ours = env::bin_dir().join(product::WIRE);
        Ok(Self { bed, hosts: TestBox::up(options), ours, peers })
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
    pub(super) fn ends(&self, carrier: &str, direct: bool, server: usize, client: usize) -> (String, String, String) {
        let device = if direct { DIRECT } else { "eth0" };
        let address = |host: usize| if direct { DIRECT_ADDRESSES[host - 1].to_owned() } else { self.address(host) };
        if carrier.ends_with("packet") {
            (format!("{carrier}:{device}"), format!("{carrier}:{device}"), self.mac(server, direct))
        } else {
            let peer = format!("{}:{PORT}", address(server));
            (format!("{carrier}:{peer}"), format!("{carrier}:{}:0", address(client)), peer)
        }
    }

    /// `args`: what to do, the carrier with the place of this end, and the rest.
    pub(super) fn program(&self, args: &[&str], cpu: Option<&str>, environment: &Environment) -> Command {
        let is_ours = args.get(1).is_some_and(|local| OURS.iter().any(|carrier| local.starts_with(carrier)));
        let path = if is_ours { &self.ours } else { &self.peers };
        let mut program = match cpu {
            Some(cpu) => {
                let mut taskset = command("taskset", ["-c", cpu]);
                taskset.arg(path);
                taskset
            }
            None => Command::new(path),
        };
        program.args(args).envs(environment.iter().copied());
        program
    }

    /// One measurement from host 1 to host 2, with the two ends on different processors.
    pub(super) fn measure(
        &self,
        carrier: &str,
        case: &[&str],
        direct: bool,
        environment: &Environment,
    ) -> Result<Value> {
        self.measure_for(SECONDS, carrier, case, direct, environment)
    }

    pub(super) fn measure_for(
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
    pub(super) fn servers(&self, carrier: &str, count: usize) -> (Vec<Process>, String, String) {
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
pub(super) fn named(client: &Command) -> Command {
    command("wire", client.get_args())
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

pub(super) fn parse(stdout: &str) -> std::result::Result<Value, String> {
    serde_json::from_str(stdout.trim()).map_err(|e| format!("no result ({e})"))
}

pub(super) fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

const US: (&str, Better) = ("us", Better::Less);

/// 64-byte messages and answers over a veth pair.
pub fn pingpong(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let arms: [(&str, &Environment); 10] = [
        ("raw-packet", &[]),
        ("packet", SPINS),
        ("tcp-spin", &[]),
        ("raw-udp", &[]),
        ("udp", SPINS),
        ("tcp", &[]),
        ("packet", &[("SPIN_US", "0")]),
        ("packet", &[]),
        ("udp", &[]),
        ("link-packet", &[]),
    ];
    let one_way_us = |(carrier, environment): &(&str, &Environment)| -> Result<f64> {
        Ok(number(&hosts.measure(carrier, &["pingpong"], true, environment)?, "one_way_us"))
    };
    let rounds = bed.rounds(|| arms.iter().map(one_way_us).collect::<Result<Vec<f64>>>())?;
    let row = |what: &str, goal: Goal, peer: usize, ours: usize| {
        Row::between_hosts(what, US, goal, Rounds::of(&rounds, |round| (round[peer], round[ours])))
    };
    Ok(vec![
        row("64-byte ping-pong, packet against the bare ring", Goal::OfLimit { at_most: 1.4, aim: 1.15 }, 0, 1),
        row("the same against the ring as its link reads it", Goal::OfLimit { at_most: 1.4, aim: 1.15 }, 9, 1),
        row("the same against spinning TCP", Goal::Times { at_least: 1.0 / 0.45, aim: 4.0 }, 2, 1),
        row("64-byte ping-pong, udp against a bare socket", Goal::OfLimit { at_most: 1.4, aim: 1.15 }, 3, 4),
        row("blocking, spin off, packet against TCP", Goal::Times { at_least: 1.0, aim: 1.2 }, 5, 6),
        row("blocking, default spin, packet against TCP", Goal::Times { at_least: 5.0, aim: 10.0 }, 5, 7),
        row("blocking, default spin, udp against TCP", Goal::Times { at_least: 5.0, aim: 10.0 }, 5, 8),
    ])
}

/// Polls as the peers that spin do: for ever.
const SPINS: &Environment = &[("SPIN_US", "1000000")];

pub(super) const GBIT: (&str, Better) = ("Gbit/s", Better::More);

/// One stream over a veth pair: as fast as the processors can.
pub fn stream(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let gbit_per_s =
        |carrier| -> Result<f64> { Ok(number(&hosts.measure(carrier, &["stream"], true, &[])?, "gbit_per_s")) };
    let rounds =
        bed.rounds(|| Ok([iperf3_cubic(&hosts)?, gbit_per_s("tcp")?, gbit_per_s("udp")?, gbit_per_s("packet")?]))?;
    let row = |what, at_least, aim, peer: usize, ours: usize| {
        let rounds = Rounds::of(&rounds, |round| (round[peer], round[ours]));
        Row::between_hosts(what, GBIT, Goal::Times { at_least, aim }, rounds)
    };
    Ok(vec![
        row("one stream, unshaped, udp against iperf3 -C cubic", 1.8, 2.4, 0, 2),
        row("the same against TCP cubic, sends of 256 KiB", 1.0, 1.0, 1, 2),
        row("one stream, unshaped, packet against the same TCP", 1.0, 1.0, 1, 3),
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
    let cipher_program = product::plain_example("ropeway-proto", "aead")?;
    let rounds = bed.rounds(|| {
        let without = number(&hosts.measure("udp", &["stream"], true, &[])?, "gbit_per_s");
        let cipher = cipher_alone(bed, &cipher_program)?;
        bed.keep(json!({ "without_gbit_per_s": without, "cipher_alone_gbit_per_s": cipher }));
        // One after the other, on the same processor.
        let bound = 1.0 / (1.0 / without + 1.0 / cipher);
        Ok((bound, number(&hosts.measure("udp", &["stream"], true, with_key)?, "gbit_per_s")))
    })?;
    Ok(vec![Row::between_hosts(
        "one stream, udp, with a key, against without and the cipher alone",
        GBIT,
        Goal::Times { at_least: 0.8, aim: 0.95 },
        Rounds::of(&rounds, |round| *round),
    )])
}

/// What the bare cipher seals of full payloads in a second, in Gbit/s.
fn cipher_alone(bed: &Bed, program: &Path) -> Result<f64> {
    bed.note(&command("aead", [""; 0]));
    let shown = String::from_utf8_lossy(&Command::new(program).output()?.stdout).into_owned();
    // Payload, "seal", nanoseconds, Gbit/s, and the nanoseconds that the cipher alone takes.
    let columns = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let parsed = columns.into_iter().find(|columns| columns.get(1..2) == Some(&["seal"][..])).and_then(|columns| {
        let [payload_bytes, ns] = [columns.first()?, columns.get(4)?].map(|text| text.parse::<f64>());
        Some(payload_bytes.ok()? * 8.0 / ns.ok()?)
    });
    parsed.ok_or_else(|| format!("the example aead says nothing of a cipher:\n{shown}").into())
}

/// Messages of 64 bytes, a send for each.
pub fn rate(bed: &Bed) -> Result<Vec<Row>> {
    let hosts = Hosts::direct(bed)?;
    let rate =
        |carrier| -> Result<f64> { Ok(number(&hosts.measure(carrier, &["messages"], true, &[])?, "millions_per_s")) };
    let rounds = bed.rounds(|| Ok([rate("raw-udp")?, rate("raw-udp-batch")?, rate("udp")?]))?;
    let row = |what, peer: usize| {
        let goal = Goal::Times { at_least: 10.0, aim: 20.0 };
        Row::between_hosts(what, ("M/s", Better::More), goal, Rounds::of(&rounds, |round| (round[peer], round[2])))
    };
    Ok(vec![
        row("64-byte messages one way, udp against UDP with sendmmsg", 1),
        row("the same against a send for each", 0),
    ])
}
