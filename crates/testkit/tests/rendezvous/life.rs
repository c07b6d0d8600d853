//! The daemon starts once, dies, is stopped and comes back; it costs nothing while nobody asks.

use std::time::{Duration, Instant};

use ropeway_testkit::World;
use ropeway_testkit::proc::{Process, command};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::client::{Answer, Client, REQUEST, RESPONSE, connection, hello, reason};
use crate::world;

const LIMIT: Duration = Duration::from_secs(10);

fn daemon(world: &World) -> Pid {
    let pid = world.daemon_pid().expect("the daemon runs").cast_signed();
    Pid::from_raw(pid).expect("a pid")
}

fn ropeway(world: &World, args: &[&str]) -> Process {
    Process::spawn(world.ropeway_command(args))
}

#[test]
fn it_starts_once_however_many_ask() {
    let world = World::new();
    let starters: Vec<_> = (0..8).map(|_| ropeway(&world, &["daemon"])).collect();
    starters.iter().for_each(|s| drop(s.succeed(LIMIT)));
    let first = daemon(&world);
    ropeway(&world, &["daemon"]).succeed(LIMIT);
    ropeway(&world, &["daemon", "--foreground"]).succeed(LIMIT);
    assert_eq!(daemon(&world), first);
    assert!(world.ropeway(&["daemon", "status"]).expect_success().stdout.contains("listening at @"));
    world.stop_daemon().expect_success();
    assert_eq!(world.daemon_pid(), None);
    assert!(!world.ropeway(&["daemon", "status"]).success());
    world.stop_daemon().expect_success();
}

#[test]
fn it_belongs_to_no_session_and_to_no_program() {
    let world = World::new();
    // The program that `run` becomes must not find a child that it did not start.
    let shell = "exec 2>/dev/null; wait; cat /proc/$$/task/$$/children";
    let run = ropeway(&world, &["run", "--", "sh", "-c", shell]).succeed(LIMIT);
    let children: Vec<&str> = run.stdout.split_whitespace().collect();
    let daemon = daemon(&world).as_raw_nonzero().to_string();
    assert!(!children.contains(&daemon.as_str()), "{children:?}");
    let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).expect("it runs");
    let after_name = stat.rsplit_once(')').expect("a name in brackets").1;
    assert_eq!(after_name.split_whitespace().nth(3), Some(daemon.as_str()), "it leads a session of its own");
    assert_eq!(std::fs::read_link(format!("/proc/{daemon}/cwd")).expect("it runs").to_str(), Some("/"));
}

#[test]
fn after_a_kill_the_next_one_pairs_what_registers_again() {
    let world = world();
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let (one, two) = (Client::start(&world), Client::start(&world));
    one.register(1, &a, REQUEST, RESPONSE);
    assert!(one.is_quiet());
    kill_process(daemon(&world), Signal::KILL).expect("our daemon");
    assert!(matches!(one.next(LIMIT), Some(None)), "the death is seen");
    assert!(matches!(two.next(LIMIT), Some(None)));
    ropeway(&world, &["daemon"]).succeed(LIMIT);
    let (one, two) = (Client::start(&world), Client::start(&world));
    two.register(2, &b, RESPONSE, REQUEST);
    one.register(1, &a, REQUEST, RESPONSE);
    assert_eq!(one.granted(1).0, two.granted(2).0);
}

#[test]
fn a_stopped_daemon_delays_answers_and_nobody() {
    let world = world();
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(&world);
    kill_process(daemon(&world), Signal::STOP).expect("our daemon");
    let started = Instant::now();
    client.register(1, &a, REQUEST, RESPONSE);
    client.register(2, &b, RESPONSE, REQUEST);
    let late = Client::connect(&world);
    late.send(&hello(""));
    let mut sent = 0;
    while late.try_send(&hello("")).is_ok() {
        sent += 1;
        assert!(sent < 100_000, "the kernel's queue has an end");
    }
    assert!(started.elapsed() < Duration::from_secs(2), "nothing waited");
    assert!(client.is_quiet());
    let silent = world.ropeway(&["daemon", "status"]);
    assert!(!silent.success() && silent.stderr.contains("does not answer"), "{silent:?}");
    kill_process(daemon(&world), Signal::CONT).expect("our daemon");
    assert_eq!(client.granted(1).0, client.granted(2).0);
}

#[test]
fn an_idle_daemon_does_not_run() {
    let world = world();
    let (a, _b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(&world);
    client.register(1, &a, REQUEST, RESPONSE);
    assert!(client.is_quiet());
    let pid = daemon(&world).as_raw_nonzero();
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let count = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
        status.lines().filter(|l| l.contains("ctxt_switches")).filter_map(count).sum::<u64>()
    };
    let before = switches();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(switches(), before, "it was not scheduled once");
}

#[test]
fn who_connects_while_it_has_no_descriptor_is_served_once_it_has_one() {
    let world = world();
    let daemon = daemon(&world);
    let open = |n: &u64| std::fs::symlink_metadata(format!("/proc/{}/fd/{n}", daemon.as_raw_nonzero())).is_ok();
    let none_free = (0..).find(|n| !open(n)).expect("a number that is not used");
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(Some(daemon), Resource::Nofile, Rlimit { current, maximum }).expect("our daemon");
    let usual = limit(Some(none_free));
    // These take what others leave that are just going.
    let _before: Vec<Client> = (0..8).map(|_| Client::connect(&world)).collect();
    let client = Client::connect(&world);
    client.send(&hello(""));
    assert!(client.next(Duration::from_millis(300)).is_none());
    limit(usual.current);
    assert!(matches!(client.answer(), Answer::Welcome { .. }));
}

#[test]
fn where_its_files_must_be_small_connections_stay_on_tcp() {
    let world = world();
    let tight = Rlimit { current: Some(64 * 1024), maximum: Some(64 * 1024) };
    prlimit(Some(daemon(&world)), Resource::Fsize, tight).expect("our daemon");
    let (a, b) = connection("127.0.0.1:0", "127.0.0.1");
    let client = Client::start(&world);
    client.register(1, &a, REQUEST, RESPONSE);
    client.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(client.denied(1), (reason::LIMITS, true));
    assert_eq!(client.denied(2), (reason::LIMITS, true));
}

#[test]
fn its_files_may_be_as_large_as_its_starter_could_let_them() {
    let world = World::new();
    let start = world.ropeway_command(&["daemon"]);
    let mut shell = command("sh", ["-c", "ulimit -S -f 64; exec \"$0\" daemon"]);
    shell.arg(start.get_program()).envs(start.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Process::spawn(shell).succeed(LIMIT);
    let ours = getrlimit(Resource::Fsize);
    let limit = prlimit(Some(daemon(&world)), Resource::Fsize, ours).expect("our daemon");
    assert_eq!(limit.current, ours.maximum);
}

#[test]
fn a_bad_configuration_is_named_by_line_and_the_program_runs_on_tcp() {
    let world = World::new();
    let file = world.dir().join("config.toml");
    std::fs::write(&file, "[limits]\nprocesses = 5\nsegmnts = 3\n").expect("one's own directory");
    let run = |options: &[&str]| {
        let mut run = world.ropeway_command(&["run"]);
        run.args(options).args(["--", "sh", "-c", "echo ran with \"<$LD_PRELOAD>\""]);
        run.env("ROPEWAY_CONFIG", &file).env_remove("LD_PRELOAD");
        Process::spawn(run).wait(LIMIT).expect("it ends")
    };
    let lenient = run(&[]);
    assert!(lenient.success());
    assert_eq!(lenient.stdout, "ran with <>\n");
    assert!(lenient.stderr.contains("line 3") && lenient.stderr.contains("segmnts"), "{}", lenient.stderr);
    let strict = run(&["--strict"]);
    assert!(!strict.success() && strict.stdout.is_empty());
    assert_eq!(world.daemon_pid(), None);
}

#[test]
fn an_unknown_profile_is_refused_with_the_names_there_are() {
    let world = World::new();
    let run = ropeway(&world, &["run", "--profile", "fast", "--", "true"]).wait(LIMIT).expect("it ends");
    assert!(!run.success());
    assert!(run.stderr.contains("default, latency, safe"), "{}", run.stderr);
}

#[test]
fn the_section_of_every_command_in_the_manual_page_names_its_options() {
    let page = include_str!("../../../../docs/man/ropeway.1").replace("\\-", "-");
    let world = World::new();
    for command in ["run", "ss", "doctor", "daemon", "cp", "gateway", "tune", "tune list", "key", "bench"] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = world.ropeway(&words).expect_success().stdout;
        let begin = format!(".SS ropeway {}\n", words[0]);
        let (_, section) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let section = section.split("\n.S").next().expect("the first piece");
        // Where options are explained, the line begins with one.
        let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        for option in lines.flat_map(str::split_whitespace).filter(|word| word.starts_with("--") && *word != "--help") {
            let end = option.find(|c: char| c != '-' && !c.is_ascii_lowercase()).unwrap_or(option.len());
            let option = &option[..end];
            let is_named = section.split(|c: char| c != '-' && !c.is_ascii_lowercase()).any(|word| word == option);
            assert!(is_named, "{command}: {option}");
        }
    }
}
