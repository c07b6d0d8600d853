//! Processes that do not keep to the protocol, and processes that do not read.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{World, need_root};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::Shutdown;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use rustix::thread::CpuSet;

use crate::client::{
    Answer, Client, REQUEST, RESPONSE, VERSION, connection, cookie, hello, list, registration, status_query, stop,
    unregister,
};
use crate::{world, world_with};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Runs a little program as `nobody` that holds `socket` under its own number and sends a hello and `registration` to the
/// daemon. True if it was granted.
pub fn register_as_nobody(world: &World, socket: &TcpStream, registration: &[u8]) -> bool {
    const PROGRAM: &str = "\
import socket, sys
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.settimeout(10)
daemon.connect('\\0' + sys.argv[1])
for message in sys.argv[2:]:
    daemon.send(bytes.fromhex(message))
while True:
    answer = daemon.recv(512)
    if answer[3] != 2:
        print(answer[3])
        break
";
    // Inheritable for the instant of the spawn; the registration names the number it has here and there.
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).expect("our descriptor");
    let output = Command::new("python3")
        .args(["-c", PROGRAM, world.socket(), &hex(&hello("")), &hex(registration)])
        .uid(65534)
        .gid(65534)
        .output()
        .expect("python3 runs");
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).expect("our descriptor");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout == b"5\n"
}

/// A process that says hello as root and becomes `nobody` has no more rights than `nobody`.
#[test]
fn the_rights_of_root_end_when_a_process_is_root_no_more() {
    const PROGRAM: &str = "\
import os, socket, sys
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.settimeout(10)
daemon.connect('\\0' + sys.argv[1])
daemon.send(bytes.fromhex(sys.argv[2]))
assert daemon.recv(512)[3] == 2
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
for message in sys.argv[3:]:
    daemon.send(bytes.fromhex(message))
    answer = daemon.recv(512)
    print(answer[3] if answer else 'closed')
";
    need_root!();
    let world = world();
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(&world);
    client.register(1, &a, REQUEST, RESPONSE);
    let messages = [&hello(""), &list(), &registration(2, cookie(&b), &b, RESPONSE, REQUEST), &stop()];
    let output = Command::new("python3")
        .args(["-c", PROGRAM, world.socket()])
        .args(messages.map(|message| hex(message)))
        .output()
        .expect("python3 runs");
    // The end of an empty list, a refusal, and the end of the connection.
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "22\n6\nclosed\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    client.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(client.granted(1).0, client.granted(2).0);
}

/// What the passing program sends: messages, and how many copies of its socket go beside them.
const PASSING: &str = "\
import array, socket, struct, sys
listener = socket.create_server(('127.0.0.1', 0))
lingering = socket.create_connection(listener.getsockname())
deaf = listener.accept()[0]
lingering.setblocking(False)
try:
    while True:
        lingering.send(bytes(1 << 16))
except BlockingIOError:
    pass
lingering.setblocking(True)
lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1 << 20))
connections = [(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), messages) for messages in sys.argv[2:]]
for daemon, _ in connections:
    daemon.connect('\\0' + sys.argv[1])
print('connected', flush=True)
sys.stdin.readline()
for daemon, messages in connections:
    for message in messages.split(','):
        count, message = message.split('*')
        fds = array.array('i', [lingering.fileno()] * int(count))
        daemon.sendmsg([bytes.fromhex(message)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if fds else [])
lingering.close()
print('passed', flush=True)
sys.stdin.read()
";

/// Passes a socket whose last close waits for ever to the daemon, as `nobody`, and has the daemon be the last who has it.
/// Of each connection there is what its messages are, in hex, after the number of copies that go with each.
fn assert_serves_beside_a_close_that_hangs(world: &World, connections: &[String]) {
    need_root!();
    let daemon = world.daemon_pid().expect("a daemon runs").cast_signed();
    let daemon = Pid::from_raw(daemon).expect("a pid");
    let signal = |signal| kill_process(daemon, signal).expect("our daemon");
    let mut program = Command::new("python3");
    program.args(["-c", PASSING, world.socket()]).args(connections).uid(65534).gid(65534);
    signal(Signal::STOP);
    // Which ends with its input: without the other end of the socket there is nothing to wait for.
    let (passing, mut input) = Process::spawn_with_stdin(program);
    input.write_all(b"\n").expect("it reads");
    passing.wait_for_output("passed", Duration::from_secs(10));
    signal(Signal::CONT);
    assert_serves_at_once(world);
}

fn assert_serves_at_once(world: &World) {
    for _ in 0..2 {
        let begin = Instant::now();
        assert_serves(world);
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}

/// Says hello with `table` beside it; whether the daemon kept it, and hands it out.
fn keeps_table(world: &World, table: impl AsFd) -> bool {
    let client = Client::connect(world);
    client.send_with(&hello(""), table);
    assert!(matches!(client.answer(), Answer::Welcome { .. }));
    client.send(&list());
    let mut kept = false;
    loop {
        match client.answer() {
            Answer::Entry { pid, table } => kept |= pid == std::process::id() && table.is_some(),
            Answer::EndOfList => return kept,
            other => panic!("{other:?}"),
        }
    }
}

/// How long a socket table is, as the programs of this build have them.
fn table_bytes(world: &World) -> u64 {
    const PROGRAM: &str = "\
import os, socket
socket.create_server(('127.0.0.1', 0))
for fd in os.listdir('/proc/self/fd'):
    # One of them was that of the list.
    if os.path.lexists('/proc/self/fd/' + fd) and 'ropeway-table' in os.readlink('/proc/self/fd/' + fd):
        print(os.fstat(int(fd)).st_size)
";
    let finished = Process::spawn(world.command(&command("python3", ["-c", PROGRAM]))).succeed(Duration::from_secs(30));
    finished.stdout.trim().parse().unwrap_or_else(|_| panic!("{finished:?}"))
}

/// The last close of a file in memory takes as long as there is something in it: of one that is no table, and may be of any size, the daemon is not to be the last.
#[test]
fn a_file_that_has_not_the_size_of_a_table_for_good_is_not_kept() {
    let world = world();
    let length = table_bytes(&world);
    let file = |bytes, seals| {
        let file = rustix::fs::memfd_create("ropeway-table", MemfdFlags::ALLOW_SEALING).expect("a file in memory");
        rustix::fs::ftruncate(&file, bytes).expect("a sparse file");
        rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
        file
    };
    let both = SealFlags::SHRINK | SealFlags::GROW;
    assert!(keeps_table(&world, file(length, both)));
    assert!(!keeps_table(&world, file(1 << 30, both)));
    assert!(!keeps_table(&world, file(length + 1, both)));
    assert!(!keeps_table(&world, file(length - 1, both)));
    assert!(!keeps_table(&world, file(length, SealFlags::SHRINK)));
    assert!(!keeps_table(&world, file(length, SealFlags::GROW)));
}

/// Whoever owns a file may have others wait for him before they open it.
#[test]
fn a_table_with_a_lease_holds_up_nobody() {
    const PROGRAM: &str = "\
import array, fcntl, os, signal, socket, sys
first = os.memfd_create('ropeway-table', os.MFD_ALLOW_SEALING)
os.ftruncate(first, int(sys.argv[3]))
fcntl.fcntl(first, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
table = os.open('/proc/self/fd/%d' % first, os.O_RDWR)
os.close(first)
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(table, fcntl.F_SETLEASE, fcntl.F_WRLCK)
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.connect('\\0' + sys.argv[1])
daemon.sendmsg([bytes.fromhex(sys.argv[2])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [table]))])
print('passed', flush=True)
sys.stdin.read()
";
    let world = world();
    let mut program = Command::new("python3");
    program.args(["-c", PROGRAM, world.socket(), &hex(&hello("")), &table_bytes(&world).to_string()]);
    let (passing, _input) = Process::spawn_with_stdin(program);
    passing.wait_for_output("passed", Duration::from_secs(10));
    assert_serves_at_once(&world);
}

#[test]
fn a_descriptor_beside_a_hello_holds_up_nobody() {
    let hello = hex(&hello(""));
    assert_serves_beside_a_close_that_hangs(&world(), &[format!("1*{hello}")]);
}

#[test]
fn more_descriptors_than_a_message_has_hold_up_nobody() {
    let hello = hex(&hello(""));
    assert_serves_beside_a_close_that_hangs(&world(), &[format!("253*{hello}")]);
}

#[test]
fn a_descriptor_in_a_connection_that_is_refused_holds_up_nobody() {
    let hello = hex(&hello(""));
    // The second connection is one too many.
    let world = world_with("[limits]\nprocesses = 1\n");
    let connections = [format!("0*{hello}"), format!("1*{hello}")];
    assert_serves_beside_a_close_that_hangs(&world, &connections);
}

#[test]
fn a_descriptor_behind_nonsense_holds_up_nobody() {
    let hello = hex(&hello(""));
    assert_serves_beside_a_close_that_hangs(&world(), &[format!("0*00,1*{hello}"), format!("1*00,1*{hello}")]);
}

/// The kernel would close them inside the daemon's call.
#[test]
fn descriptors_for_which_all_numbers_are_in_use_hold_up_nobody() {
    const MOST: u64 = 600;
    need_root!();
    let world = world();
    let daemon = Pid::from_raw(world.daemon_pid().expect("a daemon runs").cast_signed()).expect("a pid");
    let signal = |signal| kill_process(daemon, signal).expect("our daemon");
    let client = Client::start(&world);
    let lists = || {
        client.send(&list());
        while !matches!(client.answer(), Answer::EndOfList) {}
    };
    let mut program = Command::new("python3");
    program.args(["-c", PASSING, world.socket(), &format!("253*{}", hex(&hello("")))]).uid(65534).gid(65534);
    let (passing, mut input) = Process::spawn_with_stdin(program);
    passing.wait_for_output("connected", Duration::from_secs(10));
    // The one before is accepted with this one.
    let _later = Client::start(&world);
    let limit = Rlimit { current: Some(MOST), maximum: Some(MOST) };
    rustix::process::prlimit(Some(daemon), Resource::Nofile, limit).expect("our daemon");
    let _crowd: Vec<_> = (0..MOST).map(|_| Client::connect(&world)).collect();
    lists();
    lists();
    signal(Signal::STOP);
    input.write_all(b"\n").expect("it reads");
    passing.wait_for_output("passed", Duration::from_secs(10));
    signal(Signal::CONT);
    for _ in 0..2 {
        let begin = Instant::now();
        lists();
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}

#[test]
fn descriptors_beside_empty_messages_are_closed() {
    let world = world();
    let daemon = world.daemon_pid().expect("a daemon runs");
    let descriptors = || std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("our daemon").count();
    let before = descriptors();
    for _ in 0..100 {
        let client = Client::connect(&world);
        client.send_with(&[], std::io::stdin());
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while descriptors() > before + 10 {
        assert!(Instant::now() < deadline, "{} descriptors, {before} before", descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Passes sockets that are closed one after the other, each in 20 ms, with many descriptors behind them, and tells how long the daemon's loop ran
/// meanwhile and how long that took, in seconds; then asks for the status behind all of it.
const PASSING_SLOWLY: &str = "\
import array, os, signal, socket, struct, sys, time
SLOW, BEHIND = 40, 300
reset = struct.pack('ii', 1, 0)
listener = socket.create_server(('127.0.0.1', 0))
slow, deaf = [], []
for _ in range(SLOW):
    one = socket.create_connection(listener.getsockname())
    deaf.append(listener.accept()[0])
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    one.setblocking(True)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1 << 20))
    slow.append(one)
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.settimeout(10)
daemon.connect('\\0' + sys.argv[1])
hello, unregister, status = map(bytes.fromhex, sys.argv[3:])
pid = int(sys.argv[2])
os.kill(pid, signal.SIGSTOP)
daemon.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
daemon.send(hello)
for one in slow + [listener] * BEHIND:
    daemon.sendmsg([unregister], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [one.fileno()]))])
daemon.send(status)
# The daemon is to be the last who has them.
for one in slow:
    one.close()
os.kill(pid, signal.SIGCONT)
def ran():
    stat = open('/proc/%d/task/%d/stat' % (pid, pid)).read().rsplit(')', 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf('SC_CLK_TCK')
for i, one in enumerate(deaf):
    time.sleep(0.02)
    if i == 5:
        before, begin = ran(), time.monotonic()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    one.close()
print(ran() - before, time.monotonic() - begin, flush=True)
while True:
    answer = daemon.recv(512)
    if not answer or answer[3] == 17:
        print('answered' if answer else 'ended')
        break
";

#[test]
fn closes_that_take_long_keep_nobody_busy() {
    const ATTEMPTS: usize = 10;
    let world = world();
    let daemon = world.daemon_pid().expect("a daemon runs").to_string();
    let messages = [hello(""), unregister(7), status_query()].map(|message| hex(&message));
    for _ in 0..ATTEMPTS {
        let mut program = command("python3", ["-c", PASSING_SLOWLY, world.socket(), &daemon]);
        program.args(&messages);
        let finished = Process::spawn(program).wait(Duration::from_secs(30)).expect("it ends");
        let told: Vec<&str> = finished.stdout.split_whitespace().collect();
        // A machine with much else to do may have taken long enough for one close that it counted as one that hangs.
        let [ran, took, "answered"] = told[..] else { continue };
        let seconds = |text: &str| text.parse::<f64>().expect("a number");
        assert!(seconds(ran) < seconds(took) / 20.0, "the loop ran {ran} of {took} s");
        return;
    }
    panic!("each of {ATTEMPTS} closed too slowly");
}

/// The daemon still does its work.
fn assert_serves(world: &World) {
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(world);
    client.register(1, &a, REQUEST, RESPONSE);
    client.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(client.granted(1).0, client.granted(2).0);
}

/// More connections than a close that hangs would have waiting, refused before the daemon's other thread had a turn.
#[test]
fn a_burst_of_refused_connections_ends_none_that_was_accepted() {
    let world = world_with("[limits]\nprocesses = 1\n");
    let daemon = world.daemon_pid().expect("a daemon runs").cast_signed();
    let daemon = Pid::from_raw(daemon).expect("a pid");
    let client = Client::start(&world);
    let allowed = rustix::thread::sched_getaffinity(Some(daemon)).expect("our daemon");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("it runs somewhere"));
    rustix::thread::sched_setaffinity(Some(daemon), &one).expect("our daemon");
    for _ in 0..5 {
        kill_process(daemon, Signal::STOP).expect("our daemon");
        let refused: Vec<_> = (0..600).map(|_| Client::connect(&world)).collect();
        kill_process(daemon, Signal::CONT).expect("our daemon");
        assert!(refused.iter().all(|client| matches!(client.next(Duration::from_secs(5)), Some(None))));
        client.send(&list());
        while !matches!(client.answer(), Answer::EndOfList) {}
    }
}

fn status(world: &World, counter: &str) -> u64 {
    let status = world.ropeway(&["daemon", "status"]).expect_success().stdout;
    let line = status.lines().find_map(|line| line.strip_prefix(counter)?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("no {counter} in {status}"))
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let world = world();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let (a, _b) = connection("127.0.0.1:0", "127.0.0.1");
    let valid = registration(1, cookie(&a), &a, REQUEST, RESPONSE);
    for round in 0..300 {
        let client = if round % 2 == 0 { Client::connect(&world) } else { Client::start(&world) };
        let mut message = valid.clone();
        match round % 5 {
            0 => message.iter_mut().for_each(|b| *b = next() as u8),
            1 => message.truncate(next() as usize % message.len()),
            2 => message.resize(10_000, 1),
            3 => message[3] = next() as u8,
            _ => message[2] = VERSION + 1 + (next() % 100) as u8,
        }
        if message.is_empty() {
            continue; // an empty packet cannot be told from the end of the connection
        }
        // It may be closed before the second.
        let _ = client.try_send(&message).and_then(|_| client.try_send(&message));
    }
    assert!(status(&world, "malformed") > 100);
    assert_serves(&world);
    let deadline = Instant::now() + Duration::from_secs(5);
    while status(&world, "live_processes") > 0 {
        assert!(Instant::now() < deadline, "connections are left behind");
    }
}

#[test]
fn another_version_is_answered_in_words_it_can_recognise() {
    let world = world();
    let client = Client::connect(&world);
    let mut old = hello("");
    old[2] = VERSION + 1;
    client.send(&old);
    // A message of the daemon's version, then the end.
    assert!(matches!(client.next(Duration::from_secs(5)), Some(Some(Answer::Deny { .. }))));
    assert!(matches!(client.next(Duration::from_secs(5)), Some(None)));
}

#[test]
fn a_registration_before_the_hello_is_refused() {
    let world = world();
    let (a, _b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::connect(&world);
    client.register(1, &a, REQUEST, RESPONSE);
    assert!(matches!(client.next(Duration::from_secs(5)), Some(None)));
    assert_serves(&world);
}

#[test]
fn a_child_does_not_speak_for_its_parent() {
    let world = world();
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(&world);
    client.register(1, &a, REQUEST, RESPONSE);
    // `cat` writes the other end's registration into the inherited connection.
    let inherited = client.socket.as_fd().try_clone_to_owned().expect("a descriptor");
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(inherited).spawn().expect("cat runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&registration(2, cookie(&b), &b, RESPONSE, REQUEST)).expect("room in the pipe");
    drop(input);
    assert!(child.wait().expect("our child").success());
    assert!(client.is_quiet());
    assert!(status(&world, "malformed") >= 1);
    client.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(client.granted(1).0, client.granted(2).0);
}

/// A process that reads no answer, and says so much that the daemon no longer reads it.
fn deaf(world: &World, refused: &[u8]) -> Client {
    let deaf = Client::start(world);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut full_since: Option<Instant> = None;
    while full_since.is_none_or(|since| since.elapsed() < Duration::from_millis(300)) {
        match deaf.try_send(refused) {
            Ok(_) => full_since = None,
            Err(rustix::io::Errno::AGAIN) => {
                full_since.get_or_insert_with(Instant::now);
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "the daemon queues without end");
    }
    deaf
}

#[test]
fn a_process_that_never_reads_delays_nobody() {
    let world = world();
    let (a, _b) = connection("127.0.0.1:0", "127.0.0.1");
    // Each of these is answered by a refusal.
    let refused = registration(1, 0, &a, REQUEST, RESPONSE);
    let deaf = deaf(&world, &refused);
    assert_serves(&world);
    // Once it reads, it is read again.
    deaf.denied(1);
    let deadline = Instant::now() + Duration::from_secs(5);
    while deaf.try_send(&refused).is_err() {
        deaf.denied(1);
        assert!(Instant::now() < deadline);
    }
}

/// The kernel tells of the end of a connection whether it is asked to or not.
#[test]
fn a_process_that_never_reads_and_ends_its_connection_keeps_the_daemon_busy_no_longer() {
    let world = world();
    let (a, _b) = connection("127.0.0.1:0", "127.0.0.1");
    let daemon = world.daemon_pid().expect("a daemon runs");
    let ran_centiseconds = || {
        let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).expect("our daemon");
        let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
        after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("a number")).sum::<u64>()
    };
    let deaf = deaf(&world, &registration(1, 0, &a, REQUEST, RESPONSE));
    rustix::net::shutdown(&deaf.socket, Shutdown::Both).expect("it is connected");
    std::thread::sleep(Duration::from_millis(100));
    let before = ran_centiseconds();
    std::thread::sleep(Duration::from_secs(1));
    let ran = ran_centiseconds() - before;
    assert!(ran < 10, "it ran {ran} hundredths of a second");
    assert_eq!(status(&world, "live_processes"), 0);
    drop(deaf);
}

/// A queue of connections that never gets empty, by whoever may connect.
#[test]
fn a_flood_of_connections_delays_no_process_that_is_connected() {
    let world = world();
    let client = Client::start(&world);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(5);
                while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
                    drop(Client::try_connect(&world));
                }
            });
        }
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            let asked = Instant::now();
            client.send(&list());
            while !matches!(client.answer(), Answer::EndOfList) {}
            assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn connections_of_one_user_are_bounded() {
    let world = world_with("[limits]\nprocesses = 5\n");
    let mut clients: Vec<_> = (0..5).map(|_| Client::start(&world)).collect();
    let refused = Client::connect(&world);
    assert!(matches!(refused.next(Duration::from_secs(5)), Some(None)));
    clients.pop();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let next = Client::connect(&world);
        let _ = next.try_send(&hello(""));
        if matches!(next.next(Duration::from_secs(5)), Some(Some(Answer::Welcome { .. }))) {
            return;
        }
        assert!(Instant::now() < deadline, "a place became free");
    }
}
