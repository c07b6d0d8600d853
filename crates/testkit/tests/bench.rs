//! `ropeway bench`: every row of every pattern is measured, what it says can be trusted, and it leaves nothing running.

use ropeway_testkit::World;
use ropeway_testkit::proc::{Finished, Process};
use serde_json::Value;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Short rounds: these tests look at the form of the result and at the carrier, not at the figures.
const QUICK: [&str; 5] = ["--json", "--seconds", "0.2", "--rounds", "2"];

/// One measurement at a time: all of them use the same two cores, and some spin.
static CORES: Mutex<()> = Mutex::new(());

fn bench(world: &World, args: &[&str]) -> Finished {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let args: Vec<&str> = std::iter::once("bench").chain(args.iter().copied()).collect();
    Process::spawn(world.ropeway_command(&args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

fn report(world: &World, pattern: &str, transports: &str) -> Value {
    let args = [&[pattern, "--transport", transports], &QUICK[..]].concat();
    let finished = bench(world, &args).expect_success();
    serde_json::from_str(&finished.stdout).expect("one JSON object")
}

fn two_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2)
}

fn row<'a>(report: &'a Value, transport: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["transport"] == transport).unwrap_or_else(|| panic!("no row {transport}: {report}"))
}

#[test]
fn every_pattern_measures_every_transport_of_the_kernel() {
    let world = World::new();
    let transports = ["tcp-blocking", "tcp-spinning", "unix"];
    for pattern in ["pingpong", "stream", "rate"] {
        let report = report(&world, pattern, &transports.join(","));
        for transport in transports {
            let row = row(&report, transport);
            assert_eq!(row["rounds"].as_array().expect("rounds").len(), 2, "{pattern} {transport}");
            let [min, median, max] =
                ["min", "median", "max"].map(|name| row["figure"][name].as_f64().expect("a figure"));
            assert!(0.0 < min && min <= median && median <= max, "{pattern} {transport}: {min} {median} {max}");
        }
    }
}

#[test]
fn the_limits_of_the_machine_are_measured() {
    if !two_cores() {
        ropeway_testkit::skip!("needs two cores: a cache line is handed from one to the other");
    }
    let world = World::new();
    let line = report(&world, "pingpong", "tcp-spinning,cache-line");
    let times_better = row(&line, "cache-line")["times_better_than"]["tcp-spinning"].as_f64().expect("a ratio");
    assert!(times_better > 1.0, "a system call cannot be faster than a cache line: {times_better}");
    assert!(row(&report(&world, "stream", "memcpy"), "memcpy")["figure"]["median"].as_f64().expect("a figure") > 0.0);
}

#[test]
fn the_tcp_program_is_carried_by_shared_memory_under_ropeway() {
    let world = World::new();
    for pattern in ["pingpong", "stream", "rate"] {
        let report = report(&world, pattern, "ropeway");
        let carried = &row(&report, "ropeway")["carried"];
        assert_eq!(carried["processes"], 4, "two workers in each of two rounds: {carried}");
        let [shm, tcp] = ["shm_bytes", "tcp_bytes"].map(|name| carried[name].as_u64().expect("a count"));
        assert!(shm > tcp, "{pattern} stayed on TCP: {carried}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let world = World::new();
    let refused = |args: &[&str], reason: &str| {
        let finished = bench(&world, args);
        assert!(!finished.success(), "{args:?} was accepted");
        assert!(finished.stderr.contains(reason), "{args:?}: {}", finished.stderr);
    };
    refused(&["pingpong", "--pin", "0,0"], "two different CPU");
    refused(&["pingpong", "--pin", "0,100000"], "100000");
    refused(&["rate", "--transport", "cache-line"], "no rate measurement");
    refused(&["stream", "--seconds", "0"], "above 0");
}

#[test]
fn the_workers_end_with_the_program() {
    let world = World::new();
    let args = ["bench", "pingpong", "--transport", "tcp-spinning", "--seconds", "30"];
    let bench = Process::spawn(world.ropeway_command(&args));
    let children = || {
        let listed = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", bench.pid())).unwrap_or_default();
        listed.split_ascii_whitespace().map(|pid| pid.parse::<u32>().expect("a pid")).collect::<Vec<_>>()
    };
    bench.wait_until("two workers run", LIMIT, || children().len() == 2).unwrap_or_else(|e| panic!("{e}"));
    let workers = children();
    bench.signal(rustix::process::Signal::KILL);
    let gone = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !workers.iter().all(gone) {
        assert!(Instant::now() < deadline, "a worker outlived the killed program: {workers:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
