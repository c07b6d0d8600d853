//! What an idle connection costs: CPU time and memory, with everything that Ropeway adds counted (both ends and the daemon).

use super::bed::{Arm, Bed, Carried, Rounds};
use super::row::{Better, Goal, Needs, Row};
use crate::Result;
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::{LOAD_LIMIT, START_LIMIT, python};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::time::Duration;

/// An ordinary program in Python: a server on epoll, and a client that uses each connection and then waits on all of them.
const PROGRAM: &str = include_str!("idle.py");

/// Enough that the cost of one connection stands out of the programs' own memory, few enough for the usual limit of 1024 descriptors.
const CONNECTIONS: usize = 300;

/// How long nothing happens.
const IDLE: Duration = Duration::from_millis(1500);

/// Rounds of this case: memory hardly differs between them, and each takes some seconds.
const IDLE_ROUNDS: u32 = 2;

/// CPU time that counts as none, in microseconds per second: a tenth of what one timer interrupt per millisecond would cost.
const NO_CPU: f64 = 100.0;

/// What one run of one arm gave.
struct Cost {
    cpu_us_per_s: f64,
    kib_per_connection: f64,
}

pub fn measure(bed: &Bed) -> Result<Vec<Row>> {
    let (mut cpu, mut memory) = (Rounds::default(), Rounds::default());
    let mut carried = Carried::default();
    for _ in 0..bed.count().min(IDLE_ROUNDS) {
        let tcp = one(bed, Arm::Tcp)?.0;
        let (ropeway, round_carried) = one(bed, Arm::Ropeway)?;
        cpu.tcp.push(tcp.cpu_us_per_s);
        cpu.ropeway.push(ropeway.cpu_us_per_s);
        memory.tcp.push(tcp.kib_per_connection);
        memory.ropeway.push(ropeway.kib_per_connection);
        carried = round_carried;
    }
    // The statistics of the client alone; it is one end of each connection.
    let all_moved = Needs::Moves(CONNECTIONS as u64);
    let cpu_goal = Goal::Below { at_most: NO_CPU, aim: NO_CPU };
    let memory_goal = Goal::Below { at_most: 160.0, aim: 64.0 };
    Ok(vec![
        Row::new("idle connections: CPU time", ("us/s", Better::Less), cpu_goal, cpu, (all_moved, &carried)),
        Row::new(
            "idle connection: memory of both ends",
            ("KiB", Better::Less),
            memory_goal,
            memory,
            (all_moved, &carried),
        ),
    ])
}

fn one(bed: &Bed, arm: Arm) -> Result<(Cost, Carried)> {
    let port = bed.port();
    let program = |role: &str| command(python(), ["-c", PROGRAM, role, &port.to_string(), &CONNECTIONS.to_string()]);
    let server = bed.server(arm, &program("server"), port)?;
    let (client, mut orders) = bed.spawn_with_orders(arm, &program("client"))?;
    let reaches = |word: &str| client.process.wait_until(word, START_LIMIT, || client.process.stdout().contains(word));
    let resident = || {
        let daemon = bed.world().daemon_pid().filter(|_| arm == Arm::Ropeway);
        let pids = [Some(server.process.pid()), Some(client.process.pid()), daemon];
        pids.into_iter().flatten().map(memory_kib).sum::<Result<f64>>()
    };

    reaches("ready")?;
    let (before, shmem_before) = (resident()?, shmem_kib()?);
    orders.write_all(b"connect\n")?;
    reaches("idle")?;
    // The programs are on their way into their waits, and the last hand-overs may still be under way.
    std::thread::sleep(Duration::from_millis(300));
    let (after, shmem_after) = (resident()?, shmem_kib()?);
    let cpu = || Ok::<f64, Box<dyn std::error::Error>>(cpu_us(&server.process)? + cpu_us(&client.process)?);
    let cpu_before = cpu()?;
    std::thread::sleep(IDLE);
    let cpu_us_per_s = (cpu()? - cpu_before) / IDLE.as_secs_f64();
    // All must still work: the client uses each connection once more and ends; the server ends with its last connection.
    orders.write_all(b"again\n")?;
    bed.finish(arm, &client)?;
    server.process.wait(LOAD_LIMIT)?;

    let cost = Cost { cpu_us_per_s, kib_per_connection: (after - before) / CONNECTIONS as f64 };
    let shmem = (shmem_after - shmem_before) / CONNECTIONS as f64;
    let carried = bed.carried();
    bed.keep(json!({
        "arm": format!("{arm:?}"), "connections": CONNECTIONS, "cpu_us_per_s": cost.cpu_us_per_s,
        "kib_per_connection": cost.kib_per_connection, "promoted": carried.promoted,
        "shmem_of_the_machine_kib_per_connection": shmem,
    }));
    Ok((cost, carried))
}

/// CPU time that all threads of a process have used, in microseconds.
fn cpu_us(process: &Process) -> Result<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir(format!("/proc/{}/task", process.pid()))? {
        let schedstat = fs::read_to_string(task?.path().join("schedstat"))?;
        let ns: f64 = schedstat.split_ascii_whitespace().next().unwrap_or("").parse()?;
        sum += ns / 1e3;
    }
    Ok(sum)
}

/// Memory of a process: its share of the pages that it maps, and its page tables.
fn memory_kib(pid: u32) -> Result<f64> {
    Ok(field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? + field(&format!("/proc/{pid}/status"), "VmPTE:")?)
}

/// Shared memory of the whole machine: includes pages that nobody maps, but also what others do meanwhile.
fn shmem_kib() -> Result<f64> {
    field("/proc/meminfo", "Shmem:")
}

fn field(file: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("{file} has no {name}"))?;
    Ok(line.split_ascii_whitespace().next().unwrap_or("").parse()?)
}
