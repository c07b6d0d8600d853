//! The built product starts, is found where it is installed, and moves one connection to shared memory and no more.

use ropeway_testkit::env::{self, CProgram};
use ropeway_testkit::proc::{Exit, Finished, Process, command};
use ropeway_testkit::{Stats, World};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Far more calls than a connection makes before it is moved.
const MESSAGES: &str = "20000";

const BYTES: &str = "100";

/// What the client alone sends: messages times bytes.
const SENT_BYTES: u64 = 2_000_000;

/// Enough that both ends have asked the daemon for a pair: they do after 16 calls.
const FIRST: &str = "100";
const FIRST_BYTES: u64 = 10_000;

#[test]
fn the_program_tells_how_to_use_it() {
    let help = Process::spawn(command(env::ropeway(), ["--help"])).succeed(LIMIT);
    for word in ["run", "ss", "cp", "tune", "doctor", "daemon", "box", "key", "bench"] {
        assert!(help.stdout.contains(word), "{word} is not in: {}", help.stdout);
    }
}

#[test]
fn the_preload_resolves_all_its_symbols() {
    let mut idle = Command::new("true");
    idle.env("LD_PRELOAD", env::preload()).env("LD_BIND_NOW", "1");
    // The dynamic linker says on standard error what it cannot load, and goes on.
    assert_eq!(Process::spawn(idle).succeed(LIMIT).stderr, "");
}

#[test]
fn run_passes_output_arguments_and_exit_code_through() {
    let world = World::new();
    let finished = world.spawn(command("sh", ["-c", "echo \"$1\"; echo err >&2; exit 7", "sh", "a b"])).wait(LIMIT);
    let finished = finished.expect("it ends");
    assert_eq!((finished.exit, finished.stdout.as_str(), finished.stderr.as_str()), (Exit::Code(7), "a b\n", "err\n"));
}

#[test]
fn a_command_that_does_not_exist_is_an_error_that_names_it() {
    let world = World::new();
    let finished = world.spawn(Command::new("no-such-program-anywhere")).wait(LIMIT).expect("it ends");
    assert_eq!(finished.exit, Exit::Code(127));
    assert!(finished.stderr.contains("no-such-program-anywhere"), "{}", finished.stderr);
}

#[test]
fn the_preload_is_found_where_make_install_puts_it() {
    let world = World::new();
    let (bin, lib) = (world.dir().join("bin"), world.dir().join("lib/ropeway"));
    for (from, dir) in [(env::ropeway(), &bin), (env::preload(), &lib)] {
        std::fs::create_dir_all(dir).expect("a directory in one's own");
        env::install(&from, &dir.join(from.file_name().expect("a file")));
    }
    let mut run = command(bin.join("ropeway"), ["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    run.env(ropeway_testkit::DAEMON_SOCKET_VAR, world.socket()).env_remove("LD_PRELOAD");
    let finished = Process::spawn(run).succeed(LIMIT);
    assert_eq!(finished.stdout.trim(), lib.join("libropeway_preload.so").to_str().expect("UTF-8"));
}

/// Starts the server of the echo pair, wrapped as told, and says how its client is started.
fn echo_server(wrap: impl Fn(Command) -> Command) -> (Process, Command) {
    let smoke = CProgram::new("crates/testkit/programs/smoke.c").build();
    let server = Process::spawn(wrap(command(&smoke, ["serve", BYTES])));
    server.wait_for_output("\n", LIMIT);
    let port = server.stdout().trim().trim_start_matches("port ").to_owned();
    (server, command(&smoke, ["ask", &port, MESSAGES, BYTES]))
}

/// Runs the echo pair, each end wrapped as told.
fn echo(server: impl Fn(Command) -> Command, client: impl Fn(Command) -> Command) -> Finished {
    let (server, ask) = echo_server(server);
    let finished = Process::spawn(client(ask)).succeed(LIMIT);
    server.succeed(LIMIT);
    finished
}

#[test]
fn the_echo_pair_works_without_ropeway() {
    assert!(echo(|plain| plain, |plain| plain).stdout.contains("20000 messages came back"));
}

#[test]
fn two_programs_under_ropeway_talk_over_shared_memory() {
    let world = World::new();
    let (server, mut ask) = echo_server(|server| world.strict_command(&server));
    let (client, until_then) = Process::spawn_with_stdin(world.strict_command(ask.arg(FIRST)));
    // No call waits for the daemon, and a busy machine may let thousands of messages pass before that has run.
    let is_granted = || {
        let status = world.ropeway(&["daemon", "status"]).stdout;
        status.lines().any(|line| line.split_whitespace().eq(["granted", "1"]))
    };
    client.wait_until("the daemon grants a pair", LIMIT, is_granted).expect("in time");
    drop(until_then);
    assert!(client.succeed(LIMIT).stdout.contains("20100 messages came back"));
    server.succeed(LIMIT);
    let stats = world.stats();
    assert_eq!(stats.len(), 2, "one line for each process: {stats:?}");
    for Stats { connections, promoted, demoted, bytes, reasons, .. } in stats {
        // Each direction has moved once, and back at its end if at all.
        assert_eq!((connections, promoted), (1, 2), "{reasons:?}");
        assert!(demoted == 0 || reasons.keys().eq(["peer-closed"]), "{reasons:?}");
        assert_eq!(bytes.tcp.sent + bytes.shm.sent, FIRST_BYTES + SENT_BYTES);
        assert_eq!(bytes.tcp.received + bytes.shm.received, FIRST_BYTES + SENT_BYTES);
        let on_shm = bytes.shm.sent.min(bytes.shm.received);
        assert!(on_shm * 10 > SENT_BYTES * 9, "only {on_shm} bytes over shared memory: {reasons:?}");
    }
}

#[test]
fn one_end_alone_stays_on_tcp_and_says_why() {
    let world = World::new();
    echo(|server| world.command(&server), |plain| plain);
    let stats = world.stats();
    assert_eq!(stats.len(), 1);
    assert_eq!((stats[0].promoted, stats[0].bytes.shm.sent), (0, 0));
    assert_eq!(stats[0].bytes.tcp.sent, SENT_BYTES);
    assert!(stats[0].reasons.contains_key("peer-not-registered"), "{:?}", stats[0].reasons);
}

#[test]
fn the_daemon_starts_by_itself_tells_its_state_and_stops() {
    let world = World::new();
    assert!(!world.ropeway(&["daemon", "status"]).success(), "nobody started it yet");
    world.spawn(Command::new("true")).succeed(LIMIT);
    let status = world.ropeway(&["daemon", "status"]).expect_success();
    let pid = world.daemon_pid().expect("it runs").to_string();
    assert!(status.stdout.contains(&pid), "{pid} is not in: {}", status.stdout);
    world.stop_daemon().expect_success();
    assert_eq!(world.daemon_pid(), None);
}

#[test]
fn what_cannot_be_meant_ends_with_2_and_what_cannot_be_done_for_a_program_with_125() {
    let (link, other) = ("in=udp:127.0.0.1:0", "1=in/127.0.0.1:1");
    let cases: [(&[&str], u8, &str); 11] = [
        (&["cp", "file"], 2, "at least one file"),
        (&["cp", "--receive", "a", "b"], 2, "one directory"),
        (&["cp", "file", "127.0.0.1:0"], 2, "port 0"),
        (&["cp", "file", "host:/path"], 2, "a directory is named at the receiver"),
        (&["cp", "--bind", "[::1]", "file", "127.0.0.1"], 2, "--bind takes"),
        (&["cp", "--receive", "/dev/null"], 1, "not a directory"),
        (&["gateway", "--link", "x"], 2, "a link is NAME="),
        (&["gateway", "--link", link, "--route", "1=in/[::1]:1"], 2, "no address of the link in"),
        (&["gateway", "--link", link, "--route", other, "--queue", "1000"], 2, "no room for a packet"),
        (&["gateway", "--link", link, "--route", other, "--json"], 2, "--json is for --show"),
        (&["box", "--name", "b", "exec", "h1"], 125, "<CMD>"),
    ];
    for (args, code, text) in cases {
        let ended = Process::spawn(command(env::ropeway(), args)).wait(LIMIT).expect("it ends at once");
        assert_eq!(ended.exit, Exit::Code(code.into()), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(text), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn where_statistics_cannot_be_written_a_warning_says_so_and_the_program_runs() {
    let world = World::new();
    let ran = |file: &str| world.ropeway(&["run", "--no-daemon", "--stats", file, "true"]).expect_success();
    for file in ["/no/such/directory/file", "/dev/null/file"] {
        let said = ran(file).stderr;
        assert!(said.contains(&format!("--stats {file}: No")), "{said}");
    }
    // No process has anything to say, so none makes it or opens it.
    let absent = world.dir().join("absent");
    assert_eq!(ran(absent.to_str().expect("UTF-8")).stderr, "");
    assert!(!absent.exists());
    let pipe = world.dir().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).expect("made");
    let reader = rustix::fs::open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("opened");
    assert_eq!(ran(pipe.to_str().expect("UTF-8")).stderr, "");
    // Its end shows once somebody had it open to write.
    let mut ends = [PollFd::new(&reader, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ends, Some(&Timespec::default())), Ok(0));
}
