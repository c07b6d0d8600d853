//! What `ropeway ss` says of a connection, from its first byte to its last.

use ropeway_testkit::faults::{Over, Peer};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{World, net};
use serde_json::Value;
use std::time::{Duration, Instant};

use crate::client::{Answer, Client, list};

/// The line of a process's only connection.
#[track_caller]
fn row(world: &World, end: &Peer) -> Value {
    let listed: Vec<Value> =
        serde_json::from_str(&world.ropeway(&["ss", "--json"]).expect_success().stdout).expect("an array of objects");
    let pid = end.process.pid();
    listed.into_iter().find(|row| row["pid"] == pid).unwrap_or_else(|| panic!("process {pid} is not listed"))
}

/// Both ends' lines: the accepting end has so much unread, by this carrier; nothing waits the other way.
#[track_caller]
fn assert_unread(world: &World, port: u16, ends: [&Peer; 2], unread: u64, carrier: &str) -> [Value; 2] {
    let queues = |row: &Value| (row["recv_q"].as_u64(), row["send_q"].as_u64());
    // A ring is one queue with two ends; TCP's bytes leave the sender's queue when the other kernel has acknowledged them,
    // which may take it a moment.
    let unsent = if carrier == "shm" { unread } else { 0 };
    let expected = [(Some(unread), Some(0)), (Some(0), Some(unsent))];
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut rows = ends.map(|end| row(world, end));
    while rows.each_ref().map(queues) != expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        rows = ends.map(|end| row(world, end));
    }
    assert_eq!(rows.each_ref().map(queues), expected, "{rows:#?}");
    let [accepting, connecting] = rows;
    let here = format!("127.0.0.1:{port}");
    assert_eq!((&accepting["local"], &connecting["remote"]), (&here.clone().into(), &here.into()));
    assert_eq!(accepting["remote"], connecting["local"], "{accepting:#}\n{connecting:#}");
    assert!(!accepting["remote"].is_null());
    assert_eq!(connecting["carrier"]["tx"], carrier, "{connecting:#}");
    [accepting, connecting]
}

#[test]
fn ends_and_queues_are_right_before_during_and_after_promotion() {
    let world = World::new();
    let port = net::free_port();
    let accepting = ["wait", "recv=1000", "pong=200", "wait", "recv=1000", "stdio=0", "wait", "recv=700"];
    let connecting = [
        "send=1000",
        "mark=young",
        "wait",
        "calm=200",
        "send=1000",
        "mark=promoted",
        "wait",
        "send=700",
        "mark=pinned",
        "wait",
    ];
    let (mut one, mut two) = Peer::pair(Over::Ropeway(&world), port, &accepting, &connecting);
    one.reached("accept ");
    two.reached("young ");
    let young = assert_unread(&world, port, [&one, &two], 1000, "tcp");
    assert!(young.iter().all(|row| row["reason"] == "too-young"), "{young:#?}");
    one.go();
    two.go();
    two.reached("promoted ");
    assert_unread(&world, port, [&one, &two], 1000, "shm");
    // Opened as a stream, with nothing unread.
    one.go();
    one.reached("stdio ");
    two.go();
    two.reached("pinned ");
    let [pinned, _] = assert_unread(&world, port, [&one, &two], 700, "tcp");
    assert_eq!(pinned["reason"], "stdio", "{pinned:#}");
    one.go();
    two.go();
    one.all_right();
    two.all_right();
}

#[test]
fn a_socket_table_is_handed_out_for_reading_only() {
    let world = World::new();
    let (accepting, mut connecting) = Peer::pair(
        Over::Ropeway(&world),
        net::free_port(),
        &["pong=100", "recv=eof"],
        &["calm=100", "mark=held", "wait"],
    );
    connecting.reached("held ");
    let asking = Client::connect(&world);
    asking.send(&list());
    let table = loop {
        match asking.answer() {
            Answer::Entry { pid, table } if pid == connecting.process.pid() => break table.expect("a table"),
            Answer::Entry { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let mut magic = [0u8; 8];
    assert_eq!(rustix::io::pread(&table, &mut magic, 0), Ok(8));
    // Neither writes nor mappings for writing are possible through such a descriptor.
    assert_eq!(rustix::io::pwrite(&table, &magic, 0), Err(rustix::io::Errno::BADF));
    connecting.go();
    connecting.all_right();
    accepting.all_right();
}

#[test]
fn more_programs_than_descriptors_are_all_listed() {
    const DESCRIPTORS: usize = 64;
    const PAIRS: usize = 40;
    let world = World::new();
    let pair = |_| {
        let ends = Peer::pair(Over::Ropeway(&world), net::free_port(), &["wait"], &["mark=held", "wait"]);
        ends.1.reached("held ");
        ends
    };
    let mut pairs: Vec<_> = (0..PAIRS).map(pair).collect();
    let mut ss = command("sh", ["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" ss --json")]);
    ss.arg(ropeway_testkit::env::ropeway()).env("ROPEWAY_SOCKET", world.socket());
    let finished = Process::spawn(ss).succeed(Duration::from_secs(30));
    let listed: Vec<Value> = serde_json::from_str(&finished.stdout).expect("an array of objects");
    let is_listed = |end: &Peer| listed.iter().any(|row| row["pid"] == end.process.pid());
    let missing = pairs.iter().flat_map(|(one, two)| [one, two]).filter(|end| !is_listed(end)).count();
    assert_eq!(missing, 0, "of {}: {}", 2 * PAIRS, finished.stderr);
    for (one, two) in &mut pairs {
        one.go();
        two.go();
    }
}

/// What has the number of a socket table in one moment and in the next that of a pipe that nobody writes to.
#[test]
fn a_descriptor_that_is_not_always_a_table_is_not_waited_for() {
    const SWAPPING: &str = "\
import os, sys
pipe = sys.argv[1]
os.mkfifo(pipe)
pipe = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
table = os.memfd_create('ropeway-table')
number = os.dup(table)
print('swapping', flush=True)
while True:
    os.dup2(pipe, number)
    os.dup2(table, number)
";
    let world = World::new();
    let pipe = world.dir().join("pipe");
    let swapping = Process::spawn(command("python3", ["-c".as_ref(), SWAPPING.as_ref(), pipe.as_os_str()]));
    swapping.wait_for_output("swapping", Duration::from_secs(10));
    for _ in 0..100 {
        Process::spawn(world.ropeway_command(&["ss"])).wait(Duration::from_secs(10)).expect("it waits for nobody");
    }
}

/// Whoever owns a file may have others wait for him before they open it.
#[test]
fn a_lease_on_a_table_is_not_waited_for() {
    const LEASING: &str = "\
import fcntl, os, signal, sys
first = os.memfd_create('ropeway-table')
table = os.open('/proc/self/fd/%d' % first, os.O_RDWR)
os.close(first)
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(table, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('leased', flush=True)
sys.stdin.read()
";
    let world = World::new();
    let (leasing, _input) = Process::spawn_with_stdin(command("python3", ["-c", LEASING]));
    leasing.wait_for_output("leased", Duration::from_secs(10));
    Process::spawn(world.ropeway_command(&["ss"])).wait(Duration::from_secs(10)).expect("it waits for nobody");
}
