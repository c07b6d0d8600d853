//! Cases measured with public tools: sockperf, iperf3, redis-benchmark, pgbench.

use super::bed::{Arm, Bed, Carried, Rounds, Server};
use super::row::{Better, Goal, Needs, Row};
use crate::Result;
use ropeway_testkit::proc::command;
use ropeway_testkit::servers;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Instant;

const HOST: &str = "127.0.0.1";

/// Two servers, one for each arm, both up for the whole case: an idle one costs the other nothing.
pub struct Pair {
    tcp: (Server, u16),
    ropeway: (Server, u16),
}

impl Pair {
    pub fn start(bed: &Bed, mut server: impl FnMut(u16) -> Result<Command>) -> Result<Self> {
        let mut start = |arm| {
            let port = bed.port();
            Ok::<_, Box<dyn std::error::Error>>((bed.server(arm, &server(port)?, port)?, port))
        };
        Ok(Self { tcp: start(Arm::Tcp)?, ropeway: start(Arm::Ropeway)? })
    }

    pub fn port(&self, arm: Arm) -> u16 {
        match arm {
            Arm::Tcp => self.tcp.1,
            Arm::Ropeway => self.ropeway.1,
        }
    }

    /// Ends both; keeps and returns what the server under Ropeway says about its connections.
    pub fn stop(self, bed: &Bed) -> Carried {
        let carried = self.ropeway.0.stop();
        bed.keep(json!({ "server_under_ropeway": carried.to_string(), "promoted": carried.promoted }));
        carried
    }
}

/// Rounds of sockperf: it sleeps for more than 2 s in each run of 1 s.
const SOCKPERF_ROUNDS: u32 = 3;

/// sockperf's default: blocking sockets, 14-byte messages, the mean of half the round trip. By default it has also room for
/// little more than a million messages a second, and ends with an error beyond; a rate that nothing reaches gives it more.
pub fn sockperf(bed: &Bed) -> Result<Vec<Row>> {
    let pair = Pair::start(bed, |port| Ok(sockperf_server(port)))?;
    let rounds = bed.some_in_turn(SOCKPERF_ROUNDS, |arm| {
        let output = bed.client(arm, &sockperf_client(pair.port(arm)))?.stdout;
        number_after(&output, "Latency is ")
    })?;
    pair.stop(bed);
    let goal = Goal::Times { at_least: 8.0, aim: 20.0 };
    Ok(vec![Row::new("sockperf ping-pong --tcp", ("us", Better::Less), goal, rounds, (Needs::Shm, &bed.carried()))])
}

pub fn sockperf_server(port: u16) -> Command {
    command("sockperf", ["server", "--tcp", "-i", HOST, "-p", &port.to_string()])
}

pub fn sockperf_client(port: u16) -> Command {
    command("sockperf", ["ping-pong", "--tcp", "-i", HOST, "-p", &port.to_string(), "-t", "1", "--mps=5000000"])
}

pub fn iperf3(bed: &Bed) -> Result<Vec<Row>> {
    iperf3_with(bed, "iperf3", &[], Goal::Times { at_least: 3.0, aim: 4.5 })
}

pub fn iperf3_p8(bed: &Bed) -> Result<Vec<Row>> {
    iperf3_with(bed, "iperf3 -P 8", &["-P", "8"], Goal::Times { at_least: 2.0, aim: 3.0 })
}

fn iperf3_with(bed: &Bed, what: &str, options: &[&str], goal: Goal) -> Result<Vec<Row>> {
    let pair = Pair::start(bed, iperf3_server)?;
    let rounds = bed.in_turn(|arm| iperf3_client(bed, arm, pair.port(arm), options))?;
    pair.stop(bed);
    Ok(vec![Row::new(what, ("Gbit/s", Better::More), goal, rounds, (Needs::Shm, &bed.carried()))])
}

pub fn iperf3_server(port: u16) -> Result<Command> {
    Ok(command("iperf3", ["-s", "-B", HOST, "-p", &port.to_string()]))
}

pub fn iperf3_client(bed: &Bed, arm: Arm, port: u16, options: &[&str]) -> Result<f64> {
    let mut client = command("iperf3", ["-c", HOST, "-p", &port.to_string(), "-t", "1", "-J"]);
    client.args(options);
    let output = bed.client(arm, &client)?.stdout;
    let report: Value = serde_json::from_str(&output).map_err(|e| format!("iperf3 did not print JSON: {e}"))?;
    let received = &report["end"]["sum_received"]["bits_per_second"];
    Ok(received.as_f64().ok_or("iperf3's report has no sum_received")? / 1e9)
}

pub fn redis_c1(bed: &Bed) -> Result<Vec<Row>> {
    redis_with(bed, "redis-benchmark GET -c 1", &["-c", "1", "-n", "12000"], Goal::Times { at_least: 2.5, aim: 4.0 })
}

pub fn redis_c50(bed: &Bed) -> Result<Vec<Row>> {
    redis_with(bed, "redis-benchmark GET -c 50", &["-c", "50", "-n", "40000"], Goal::Times { at_least: 2.2, aim: 3.5 })
}

pub fn redis_c50_p16(bed: &Bed) -> Result<Vec<Row>> {
    let options = ["-c", "50", "-P", "16", "-n", "600000"];
    redis_with(bed, "redis-benchmark GET -c 50 -P 16", &options, Goal::Times { at_least: 1.2, aim: 1.8 })
}

fn redis_with(bed: &Bed, what: &str, options: &[&str], goal: Goal) -> Result<Vec<Row>> {
    let pair = redis_pair(bed)?;
    let rounds = bed.in_turn(|arm| redis_requests(bed, arm, pair.port(arm), options))?;
    pair.stop(bed);
    Ok(vec![Row::new(what, ("req/s", Better::More), goal, rounds, (Needs::Shm, &bed.carried()))])
}

/// Two servers that hold the key that redis-benchmark asks for.
fn redis_pair(bed: &Bed) -> Result<Pair> {
    let pair = Pair::start(bed, |port| redis_server(bed, port))?;
    for arm in Arm::BOTH {
        redis_set(bed, pair.port(arm))?;
    }
    Ok(pair)
}

fn redis_server(bed: &Bed, port: u16) -> Result<Command> {
    let mut server = command("redis-server", ["--port", &port.to_string(), "--bind", HOST, "--save", "", "--dir"]);
    server.arg(bed.dir("redis")?);
    Ok(server)
}

fn redis_set(bed: &Bed, port: u16) -> Result<()> {
    bed.client(Arm::Tcp, &redis_benchmark(port, &["-t", "set", "-c", "1", "-n", "1"])).map(|_| ())
}

fn redis_benchmark(port: u16, options: &[&str]) -> Command {
    let mut client = command("redis-benchmark", ["-h", HOST, "-p", &port.to_string(), "--csv"]);
    client.args(options);
    client
}

fn redis_requests(bed: &Bed, arm: Arm, port: u16, options: &[&str]) -> Result<f64> {
    let mut client = redis_benchmark(port, options);
    client.args(["-t", "get"]);
    let output = bed.client(arm, &client)?.stdout;
    // A line such as "GET","123456.78","0.200",...
    let line = output.lines().find_map(|line| line.strip_prefix("\"GET\",\""));
    let figure = line.and_then(|rest| rest.split('"').next()?.parse().ok());
    Ok(figure.ok_or_else(|| format!("redis-benchmark did not print a rate: {output}"))?)
}

/// The server is PostgreSQL's own user's, as it insists; server and client share the machine's cores.
pub fn pgbench(bed: &Bed) -> Result<Vec<Row>> {
    let bin = servers::postgres_bin().ok_or("PostgreSQL is not installed: install the package postgresql")?;
    let pair = Pair::start(bed, |port| Ok(servers::postgres(&bin, &bed.dir("pg")?, port)))?;
    let client = |port: u16, options: &[&str]| {
        let mut client = command(bin.join("pgbench"), ["-h", HOST, "-U", "postgres", "-p", &port.to_string()]);
        client.args(options).arg("postgres");
        client
    };
    for arm in Arm::BOTH {
        bed.client(Arm::Tcp, &client(pair.port(arm), &["-i", "-q", "-s", "1"]))?;
    }
    let rounds = bed.in_turn(|arm| {
        let load = client(pair.port(arm), &["-S", "-n", "-c", "4", "-j", "2", "-T", "1"]);
        number_after(&bed.client(arm, &load)?.stdout, "tps = ")
    })?;
    pair.stop(bed);
    let goal = Goal::Times { at_least: 1.15, aim: 1.4 };
    Ok(vec![Row::new("pgbench -S -c 4 -j 2", ("tps", Better::More), goal, rounds, (Needs::Shm, &bed.carried()))])
}

/// Only one end under Ropeway: what the preload costs when it can gain nothing.
pub fn plain_peer(bed: &Bed) -> Result<Vec<Row>> {
    let goal = Goal::Times { at_least: 0.97, aim: 1.0 };
    let redis = redis_pair(bed)?;
    let options = ["-c", "50", "-n", "25000"];
    // The client is plain in both arms; the port chooses the server.
    let server_only = bed.in_turn(|arm| redis_requests(bed, Arm::Tcp, redis.port(arm), &options))?;
    let server_carried = redis.stop(bed);

    let port = bed.port();
    let plain = bed.server(Arm::Tcp, &iperf3_server(port)?, port)?;
    let client_only = bed.in_turn(|arm| iperf3_client(bed, arm, port, &[]))?;
    plain.stop();
    let row = |what: &str, unit: &str, rounds: Rounds, carried: &Carried| {
        Row::new(what, (unit, Better::More), goal, rounds, (Needs::Preload, carried))
    };
    Ok(vec![
        row("plain redis-benchmark -c 50, preloaded server", "req/s", server_only, &server_carried),
        row("preloaded iperf3, plain server", "Gbit/s", client_only, &bed.carried()),
    ])
}

/// Pairs of the crowded case: eight processes on the two cores of the reference machine.
const CROWD: usize = 4;

/// Requests of each client of the crowded case.
const CROWD_REQUESTS: u32 = 15_000;

/// Four servers and four clients at once. The figure is all requests by the time until the last client ended.
pub fn four_pairs(bed: &Bed) -> Result<Vec<Row>> {
    let pairs = (0..CROWD).map(|_| redis_pair(bed)).collect::<Result<Vec<_>>>()?;
    let requests = CROWD_REQUESTS.to_string();
    let rounds = bed.in_turn(|arm| {
        let begin = Instant::now();
        let clients = pairs
            .iter()
            .map(|pair| bed.spawn(arm, &redis_benchmark(pair.port(arm), &["-t", "get", "-c", "50", "-n", &requests])))
            .collect::<Result<Vec<_>>>()?;
        for client in &clients {
            bed.finish(arm, client)?;
        }
        Ok(f64::from(CROWD_REQUESTS) * CROWD as f64 / begin.elapsed().as_secs_f64())
    })?;
    for pair in pairs {
        pair.stop(bed);
    }
    let goal = Goal::Times { at_least: 1.0, aim: 1.5 };
    Ok(vec![Row::new(
        "4 redis pairs, GET -c 50 each",
        ("req/s", Better::More),
        goal,
        rounds,
        (Needs::Shm, &bed.carried()),
    )])
}

/// The number that follows the first occurrence of `label`.
pub fn number_after(output: &str, label: &str) -> Result<f64> {
    let rest = output.split_once(label).map(|(_, rest)| rest.trim_start());
    let number = rest.map(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or(""));
    Ok(number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("no number after {label:?} in the output:\n{output}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_tools_output() {
        assert_eq!(
            number_after("tps = 12345.678901 (without initial connection time)", "tps = ").ok(),
            Some(12345.678901)
        );
        assert_eq!(number_after("Requests/sec:  48012.33\n", "Requests/sec:").ok(), Some(48012.33));
        assert!(number_after("nothing here", "tps = ").is_err());
    }
}
