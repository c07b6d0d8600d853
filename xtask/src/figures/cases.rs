//! The cases, in the order of the table.

use super::bed::Bed;
use super::row::Row;
use super::{agreement, builtin, idle, ports, tools, web, wire};
use crate::Result;

/// One case: some rows of the table, measured together.
pub struct Case {
    /// For `--case` and the name of the file.
    pub name: &'static str,
    pub about: &'static str,
    /// Programs without which it cannot be measured.
    pub needs: &'static [&'static str],
    pub measure: fn(&Bed) -> Result<Vec<Row>>,
}

pub const ALL: &[Case] = &[
    Case { name: "pingpong", about: "ropeway bench: 1-byte ping-pong", needs: &[], measure: builtin::pingpong },
    Case {
        name: "sockperf",
        about: "sockperf ping-pong --tcp, as it comes",
        needs: &["sockperf"],
        measure: tools::sockperf,
    },
    Case { name: "rate", about: "ropeway bench: 8-byte messages", needs: &[], measure: builtin::rate },
    Case { name: "iperf3", about: "iperf3, one stream", needs: &["iperf3"], measure: tools::iperf3 },
    Case { name: "iperf3-p8", about: "iperf3, eight streams", needs: &["iperf3"], measure: tools::iperf3_p8 },
    Case { name: "redis-c1", about: "redis GET, one connection", needs: REDIS, measure: tools::redis_c1 },
    Case { name: "redis-c50", about: "redis GET, 50 connections", needs: REDIS, measure: tools::redis_c50 },
    Case {
        name: "redis-c50-p16",
        about: "redis GET, 50 connections, pipelines of 16",
        needs: REDIS,
        measure: tools::redis_c50_p16,
    },
    Case { name: "pgbench", about: "PostgreSQL, pgbench -S -c 4 -j 2", needs: &["setpriv"], measure: tools::pgbench },
    Case {
        name: "nginx",
        about: "wrk on nginx, 1 KiB file, keep-alive",
        needs: &["nginx", "wrk"],
        measure: web::keep_alive,
    },
    Case {
        name: "short",
        about: "nginx, a connection for each request",
        needs: &["nginx", "wrk", "ab"],
        measure: web::short,
    },
    Case {
        name: "plain-peer",
        about: "one end under Ropeway, the other not",
        needs: &["redis-server", "redis-benchmark", "iperf3"],
        measure: tools::plain_peer,
    },
    Case { name: "busy", about: "four redis pairs at once", needs: REDIS, measure: tools::four_pairs },
    Case { name: "idle", about: "idle connections: CPU and memory", needs: &["python3"], measure: idle::measure },
    Case {
        name: "agree-sockperf",
        about: "ropeway bench and sockperf measure the same TCP",
        needs: &["sockperf", "taskset"],
        measure: agreement::sockperf,
    },
    Case {
        name: "agree-iperf3",
        about: "ropeway bench and iperf3 measure the same TCP",
        needs: &["iperf3"],
        measure: agreement::iperf3,
    },
    Case { name: "wire-pingpong", about: "two hosts: 64-byte ping-pong", needs: BOX, measure: wire::pingpong },
    Case {
        name: "wire-stream",
        about: "two hosts: one stream, unshaped",
        needs: &["ip", "tc", "taskset", "iperf3"],
        measure: wire::stream,
    },
    Case { name: "wire-keyed", about: "two hosts: one stream with a key", needs: BOX, measure: wire::keyed },
    Case { name: "wire-rate", about: "two hosts: 64-byte messages one way", needs: BOX, measure: wire::rate },
    Case { name: "wire-port", about: "two hosts: one stream at 1 Gbit/s, 128 KiB", needs: BOX, measure: ports::port },
    Case { name: "wire-messages", about: "two hosts: messages at 1 Gbit/s", needs: BOX, measure: ports::messages },
    Case { name: "wire-incast-2", about: "2 hosts send to one", needs: BOX, measure: ports::incast_2 },
    Case { name: "wire-incast-8", about: "8 hosts send to one", needs: BOX, measure: ports::incast_8 },
    Case { name: "wire-incast-32", about: "32 hosts send to one", needs: BOX, measure: ports::incast_32 },
    Case { name: "wire-incast-rounds", about: "2, 8 and 32, all at once", needs: BOX, measure: ports::incast_rounds },
    Case { name: "wire-incast-slow", about: "that at 100 Mbit/s", needs: BOX, measure: ports::incast_slow },
    Case { name: "wire-incast-busy", about: "incasts beside two hogs", needs: BOX, measure: ports::incast_busy },
    Case { name: "wire-messages-slow", about: "messages at 100 Mbit/s", needs: BOX, measure: ports::messages_slow },
    Case { name: "wire-beside", about: "one stream beside cubic flows", needs: BOX, measure: ports::beside },
];

/// Those between hosts also need root.
const BOX: &[&str] = &["ip", "tc", "taskset"];

const REDIS: &[&str] = &["redis-server", "redis-benchmark"];

/// The case with this name.
pub fn find(name: &str) -> Result<&'static Case> {
    let names = || ALL.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
    Ok(ALL
        .iter()
        .find(|case| case.name == name)
        .ok_or_else(|| format!("there is no case {name}: choose of {}", names()))?)
}
