//! What `ropeway ss` says of a connection, from its first byte to its last.

use ropeway_testkit::faults::{Over, Peer};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{World, need_root, net, skip};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, Uid};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::client::{Answer, Client, hello, list};
use crate::fuse::{self, GETATTR, OPEN};

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
    let (table, _ends) = table_of_a_process(&world);
    let mut magic = [0u8; 8];
    assert_eq!(rustix::io::pread(&table, &mut magic, 0), Ok(8));
    // Neither writes nor mappings for writing are possible through such a descriptor.
    assert_eq!(rustix::io::pwrite(&table, &magic, 0), Err(rustix::io::Errno::BADF));
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

/// A table of a process that runs, and the process, which ends with its other end.
fn table_of_a_process(world: &World) -> (OwnedFd, [Peer; 2]) {
    let (accepting, connecting) = (["pong=100", "wait"], ["calm=100", "mark=held", "wait"]);
    let ends = Peer::pair(Over::Ropeway(world), net::free_port(), &accepting, &connecting);
    ends.1.reached("held ");
    let asking = Client::connect(world);
    asking.send(&list());
    let table = loop {
        match asking.answer() {
            Answer::Entry { pid, table } if pid == ends.1.process.pid() => break table.expect("a table"),
            Answer::Entry { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    (table, ends.into())
}

/// A file with the size and the name of a table, and what there is in `table` of it up to `most` bytes.
fn copy_of(table: &OwnedFd, most: u64) -> OwnedFd {
    let copy = rustix::fs::memfd_create("ropeway-table", MemfdFlags::ALLOW_SEALING).expect("a file in memory");
    rustix::fs::ftruncate(&copy, rustix::fs::fstat(table).expect("a file").st_size.cast_unsigned()).expect("sparse");
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(table, SeekFrom::Data(at))
        && data < most
    {
        at = rustix::fs::seek(table, SeekFrom::Hole(data)).expect("an end at least");
        let mut bytes = vec![0; (at.min(most) - data) as usize];
        rustix::io::pread(table, &mut bytes, data).expect("a file");
        rustix::io::pwrite(&copy, &bytes, data).expect("a file of ours");
    }
    rustix::fs::fcntl_add_seals(&copy, SealFlags::SHRINK | SealFlags::GROW).expect("a file of ours");
    copy
}

/// The owner of a table says how much there is to be read. A page that is looked at where none is would be made.
#[test]
fn looking_at_a_table_leaves_nothing_in_it() {
    const HEAD_BYTES: u64 = 4096;
    const MAX_RECORDS_AT: u64 = 12;
    const USED_RECORDS_AT: u64 = 16;
    let world = World::new();
    let (table, _ends) = table_of_a_process(&world);
    let mut all = [0; 4];
    rustix::io::pread(&table, &mut all, MAX_RECORDS_AT).expect("a table");
    assert_eq!(u32::from_ne_bytes(all), 65_536);
    for with_hello in [false, true] {
        let copy = copy_of(&table, HEAD_BYTES);
        rustix::io::pwrite(&copy, &all, USED_RECORDS_AT).expect("a file of ours");
        let client = Client::connect(&world);
        if with_hello {
            client.send_with(&hello(""), &copy);
            assert!(matches!(client.answer(), Answer::Welcome { .. }));
        }
        let blocks = || rustix::fs::fstat(&copy).expect("a file of ours").st_blocks;
        let before = blocks();
        world.ropeway(&["ss"]).expect_success();
        assert_eq!(blocks(), before);
    }
}

/// Anybody can write into a table of his own what he likes.
#[test]
fn a_table_speaks_for_processes_of_its_own_user_alone_and_one_of_root_for_all() {
    need_root!();
    const NOBODY: u32 = 65_534;
    let world = World::new();
    let (table, ends) = table_of_a_process(&world);
    let pid = ends[1].process.pid();
    for (user, lines) in [(NOBODY, 1), (0, 2)] {
        let copy = copy_of(&table, u64::MAX);
        rustix::fs::fchown(&copy, Some(Uid::from_raw(user)), None).expect("root may");
        let listed = world.ropeway(&["ss", "--json"]).expect_success().stdout;
        let listed: Vec<Value> = serde_json::from_str(&listed).expect("an array of objects");
        assert_eq!(listed.iter().filter(|row| row["pid"] == pid).count(), lines, "{listed:#?}");
    }
}

/// What looks like a table in /proc may be a file whose server is asked for all that is to be known of it.
#[test]
fn a_file_that_is_in_no_memory_is_not_waited_for() {
    need_root!();
    let world = World::new();
    let server = match fuse::Server::start(world.dir(), "memfd:ropeway-table", &[GETATTR, OPEN], None) {
        Err(why) => skip!("{why}"),
        Ok(server) => server,
    };
    let ss = Process::spawn(world.ropeway_command(&["ss"]));
    let ended = ss.wait(Duration::from_secs(10));
    // Who waits for it cannot even be killed.
    drop(server);
    ended.expect("it waits for nobody");
}
