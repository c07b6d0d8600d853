//! Many connections at once, and many one after the other: what they cost, and that nothing is left of them.

use ropeway_testkit::compat::is_bare;
use ropeway_testkit::faults::{LIMIT, Over, Peer, assert_over_shm, program};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::stop;
use ropeway_testkit::{World, net, skip};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Connections that one process holds at the same time.
const CROWD: usize = 10_000;
/// Descriptors that Ropeway may add to a process, however many connections it has.
const EXTRA_DESCRIPTORS: usize = 64;
/// Resident shared memory of an idle promoted connection, per process.
const IDLE_BYTES: u64 = 160 << 10;

/// Connections made and closed one after the other; `ROPEWAY_TEST_CYCLES` sets another number.
const CYCLES: usize = 200_000;
const CYCLES_VAR: &str = "ROPEWAY_TEST_CYCLES";
/// Enough rounds that a connection is promoted, both ways, when as many others have their turns between them.
const PROMOTING_ROUNDS: usize = 40;
const AT_A_TIME: usize = 50;

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("one's own child has descriptors").count()
}

fn shared_segments(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("one's own child has mappings");
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// A figure of `/proc/<pid>/status`, in bytes.
fn resident(pid: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("one's own child has a status");
    let line = status.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kilobytes = line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or_else(|| panic!("no {figure} in\n{status}")) * 1024
}

fn crowd(over: Over, args: &[&str]) -> std::process::Command {
    over.command(command(program("crowd").build(), args))
}

fn serve(over: Over, port: u16) -> Process {
    let server = Process::spawn(crowd(over, &["serve", &port.to_string()]));
    server.wait_for_port(port, LIMIT);
    server
}

#[test]
fn ten_thousand_promoted_connections_need_few_descriptors_and_little_memory() {
    let test = "crowds::ten_thousand_promoted_connections";
    let hard_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if hard_limit < (CROWD + 200) as u64 {
        skip!("needs {} descriptors per process, the hard limit is {hard_limit} (ulimit -Hn)", CROWD + 200);
    }
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let server = serve(over, port);
    let (idle, before) = (descriptors(server.pid()), resident(server.pid(), "RssShmem"));
    let mut client = Peer::from_command(crowd(over, &["hold", &port.to_string(), &CROWD.to_string()]));
    client.process.wait_for_output("held", 2 * LIMIT);
    wait_for_pairs(&world, CROWD);
    let extra = descriptors(server.pid()) - idle - CROWD;
    assert!(extra <= EXTRA_DESCRIPTORS, "{extra} descriptors beside those of the connections");
    // Three standard ones, and nothing else of its own.
    let extra = descriptors(client.process.pid()) - 3 - CROWD;
    assert!(extra <= EXTRA_DESCRIPTORS, "{extra} descriptors beside those of the connections");
    let each = (resident(server.pid(), "RssShmem") - before) / CROWD as u64;
    assert!(each <= IDLE_BYTES, "{each} bytes of shared memory are resident for each connection");
    println!("{each} bytes of shared memory for each of {CROWD} connections");
    client.go();
    client.process.succeed(LIMIT);
    stop(&server);
    // A round or more of every connection, both ways.
    let least = (CROWD * 2 * 32) as u64;
    assert_over_shm(&world, test, client.process.pid(), least);
    assert_over_shm(&world, test, server.pid(), least);
}

/// Waits until the daemon has granted so many pairs, and each of their connections had a turn since.
fn wait_for_pairs(world: &World, pairs: usize) {
    if is_bare() {
        return;
    }
    let deadline = Instant::now() + 2 * LIMIT;
    loop {
        let status = world.ropeway(&["daemon", "status"]).stdout;
        let figure =
            status.lines().find_map(|line| line.trim().strip_prefix("live_pairs")?.trim().parse::<usize>().ok());
        if figure.is_some_and(|live| live >= pairs) {
            break;
        }
        assert!(Instant::now() < deadline, "{pairs} pairs are expected:\n{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(3));
}

/// Runs `count` connections, either short ones that stay on TCP or longer ones, and returns what is left in the client.
fn cycle(over: Over, port: u16, count: usize, promoted: bool) -> (usize, usize) {
    let (rounds, at_a_time) = if promoted { (PROMOTING_ROUNDS, AT_A_TIME) } else { (1, 1) };
    let args = ["cycle".into(), port.to_string(), count.to_string(), rounds.to_string(), at_a_time.to_string()];
    let args = args.each_ref().map(String::as_str);
    let mut client = Peer::from_command(crowd(over, &args));
    client.process.wait_for_output("cycled", 2 * LIMIT);
    let left = (descriptors(client.process.pid()), shared_segments(client.process.pid()));
    client.go();
    client.process.succeed(LIMIT);
    left
}

#[test]
fn connections_made_and_closed_leave_nothing_behind() {
    let test = "crowds::connections_made_and_closed";
    let cycles = std::env::var(CYCLES_VAR).map_or(CYCLES, |n| n.parse().expect("a number of cycles"));
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let server = serve(over, port);
    // What a process allocates once and keeps is there after the first connections of either kind.
    let kept = cycle(over, port, 500, true);
    cycle(over, port, 500, false);
    let daemon = if is_bare() { None } else { world.daemon_pid() };
    let pids: Vec<u32> = [server.pid()].into_iter().chain(daemon).collect();
    let footprint =
        || -> Vec<(usize, usize)> { pids.iter().map(|pid| (descriptors(*pid), shared_segments(*pid))).collect() };
    let memory = || -> u64 { pids.iter().map(|pid| resident(*pid, "VmRSS")).sum() };
    let (before, memory_before) = (footprint(), memory());
    // Short ones stay on TCP; of the longer ones each gets a segment and gives it back.
    let left = [cycle(over, port, cycles, false), cycle(over, port, cycles / 40, true)];
    for (descriptors, segments) in left {
        assert!(descriptors <= kept.0 && segments <= kept.1, "left in the client: {left:?}, after a few: {kept:?}");
    }
    // Less is well, too: before, the daemon may not have noticed the end of a client yet.
    let no_more = || footprint().iter().zip(&before).all(|(now, then)| now.0 <= then.0 && now.1 <= then.1);
    let settled = server.wait_until("the footprint of before", Duration::from_secs(10), no_more);
    settled.unwrap_or_else(|e| panic!("descriptors and segments: {before:?} before, {:?} after: {e}", footprint()));
    let grown = memory().saturating_sub(memory_before);
    assert!(grown < 2 << 20, "the server and the daemon grew by {grown} bytes over {cycles} connections");
    if !is_bare() {
        let status = world.ropeway(&["daemon", "status"]);
        println!("{}", status.stdout);
    }
    stop(&server);
    assert_over_shm(&world, test, server.pid(), (cycles / 40 * 32) as u64);
}

/// More than a socket can count as its owners.
const CHILDREN: usize = 10;
const FAMILY_ROUNDS: usize = 20;

/// How many sockets and how many epoll sets the table of a process had in use at the same time, at the most.
fn records(pid: u32) -> [u32; 2] {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("one's own child has descriptors");
    let is_table = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|file| file.to_string_lossy().starts_with("/memfd:ropeway-table"))
    };
    let table = descriptors.flatten().map(|entry| entry.path()).find(is_table).expect("it has a table of sockets");
    let mut header = [0; 24];
    File::open(table).and_then(|file| file.read_exact_at(&mut header, 0)).expect("the table can be read");
    // Behind the mark and two sizes, as `crates/shm/src/table.rs` says.
    let (mark, figures) = header.split_at(8);
    assert_eq!(mark, b"ropeway1", "the table begins with another mark");
    [8, 12].map(|at| u32::from_ne_bytes(figures[at..at + 4].try_into().expect("four bytes")))
}

/// Runs `family`, which does the same again and again, and requires that it takes no more records than doing it once.
fn rounds_take_no_more_records_than_one(test: &str, args: &[&str]) {
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let server = serve(over, port);
    let (port, rounds) = (port.to_string(), FAMILY_ROUNDS.to_string());
    let args = [&args[..1], &[port.as_str(), rounds.as_str()], &args[1..]].concat();
    let program = program("family").flag("-pthread").build();
    let mut family = Peer::from_command(over.command(command(program, &args)));
    family.reached("round\n");
    let before = if is_bare() { [0; 2] } else { records(family.process.pid()) };
    family.go();
    family.reached("rounds\n");
    let after = if is_bare() { [0; 2] } else { records(family.process.pid()) };
    family.go();
    family.process.succeed(LIMIT);
    assert_eq!(after, before, "sockets and sets in the table, after {FAMILY_ROUNDS} rounds and after one");
    stop(&server);
    // What came last was promoted.
    assert_over_shm(&world, test, family.process.pid(), 32 * 32);
}

#[test]
fn a_connection_that_outlives_many_children_gives_its_record_back() {
    let children = CHILDREN.to_string();
    rounds_take_no_more_records_than_one("crowds::a_connection_that_outlives", &["grow", &children]);
}

#[test]
fn a_fork_counts_no_connection_that_another_thread_closes_or_opens_meanwhile() {
    rounds_take_no_more_records_than_one("crowds::a_fork_counts_no_connection", &["beside"]);
}
