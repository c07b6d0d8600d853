//! `ropeway bench`: every row of every pattern is measured, what it says can be trusted, and it leaves nothing running.

use ropeway_testkit::World;
use ropeway_testkit::proc::{Exit, Finished, Process, behind};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Short rounds: these tests look at the form of the result and at the carrier, not at the figures.
const QUICK: [&str; 5] = ["--json", "--seconds", "0.1", "--rounds", "2"];

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
    let all = ["tcp", "tcp-spin", "unix", "unix-spin", "udp", "udp-spin"];
    // A datagram does not hold the usual message of a stream.
    for (pattern, transports) in [("pingpong", &all[..]), ("stream", &all[..4]), ("rate", &all[..])] {
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
    let line = report(&world, "pingpong", "tcp-spin,cache-line");
    let times_better = row(&line, "cache-line")["times_better_than"]["tcp-spin"].as_f64().expect("a ratio");
    assert!(times_better > 1.0, "a system call cannot be faster than a cache line: {times_better}");
    assert!(row(&report(&world, "stream", "memcpy"), "memcpy")["figure"]["median"].as_f64().expect("a figure") > 0.0);
}

#[test]
fn the_tcp_program_is_carried_by_shared_memory_under_ropeway() {
    let world = World::new();
    for pattern in ["pingpong", "stream", "rate"] {
        let report = report(&world, pattern, "ropeway");
        let carried = &row(&report, "ropeway")["carried"];
        assert_eq!(carried["processes"], 2, "two ranks, for all rounds: {carried}");
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
    refused(&["pingpong", "--pin", "0,0"], "different CPU numbers");
    refused(&["pingpong", "--pin", "0,100000"], "100000");
    refused(&["rate", "--transport", "cache-line"], "no rate measurement");
    refused(&["stream", "--seconds", "0"], "above 0");
    refused(&["pingpnog"], "pingpong, stream, rate");
    refused(&["pingpong", "--transport", "tpc"], "tcp-spin");
    refused(&["pingpong", "--transport", "ropeway-packet,ropeway-packet:spin=0"], "both want the device eth0");
    refused(&["pingpong", "--size", "0"], "out of range");
    refused(&["pingpong", "--size", "4Gi"], "out of range");
    refused(&["pingpong", "--ranks", "1"], "2 ranks at least");
    refused(&["pingpong", "--ranks", "0"], "1..=512");
    refused(&["pingpong", "--set", "bath=1"], "bath");
    refused(&["pingpong", "--hosts", "local"], "two hosts");
    refused(&["pingpong", "--out", "/nowhere/x.jsonl"], "/nowhere/x.jsonl");
    refused(&["pingpong", "--transport", "tcp:nonsense", "--rounds", "1"], "congestion control nonsense");
    refused(&["pingpong", "--transport", "udp", "--size", "64Ki", "--rounds", "1"], "65503 bytes at most");
    refused(&["pingpong", "--transport", "tcp", "--hosts", "a,b", "--ssh", "/nowhere/ssh"], "/nowhere/ssh");
    refused(&["pingpong", "--transport", "tcp", "--box=nobox", "--rounds", "1"], "nobox");
}

#[test]
fn sizes_are_interleaved_and_every_sample_is_kept() {
    let world = World::new();
    let out = world.dir().join("x.jsonl");
    let out = out.to_str().expect("a path");
    let args = [
        "pingpong",
        "--transport",
        "tcp,unix",
        "--size",
        "1..4",
        "--rounds",
        "3",
        "--seconds",
        "0.02",
        "--seed",
        "5",
        "--csv",
    ];
    let finished = bench(&world, &[&args[..], &["--out", out]].concat()).expect_success();
    assert_eq!(finished.stdout.lines().count(), 1 + 2 * 3, "{}", finished.stdout);
    // Of times that drifted or jumped: the machine may be busy. No progress bar.
    let complains = |line: &str| line.starts_with("ropeway bench: ") && !line.contains(['\r', '\u{1b}']);
    assert!(finished.stderr.lines().all(complains), "nothing but complaints on a pipe: {}", finished.stderr);
    let lines = lines(out);
    assert_eq!((lines[0]["line"].as_str(), lines[0]["seed"].as_u64()), (Some("run"), Some(5)));
    assert_eq!(lines.last().expect("lines")["line"], "end");
    let trials: Vec<&Value> = lines.iter().filter(|line| line["line"] == "measured").collect();
    assert_eq!(trials.len(), 2 * 3 * 3);
    let transport = |trial: &Value| trial["transport"].as_str().expect("a name").to_owned();
    for (place, pair) in trials.chunks(2).enumerate() {
        assert_eq!((&pair[0]["size"], &pair[0]["round"]), (&pair[1]["size"], &pair[1]["round"]), "next to each other");
        let first = if place / 3 % 2 == 0 { "tcp" } else { "unix" };
        assert_eq!(transport(pair[0]), first, "to and fro");
        assert!(pair[0]["series"][0]["values"]["samples"].as_array().is_some_and(|samples| !samples.is_empty()));
    }
}

/// The lines of a result file.
fn lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a result file");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A long measurement of two ranks; what happens to them, the test decides.
fn long_run(world: &World, more: &[&str]) -> (Process, Vec<u32>) {
    let args = ["bench", "pingpong", "--seconds", "30", "--rounds", "1", "--patience", "1"];
    let bench = Process::spawn(world.ropeway_command(&[&args[..], more].concat()));
    let children = || {
        let listed = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", bench.pid())).unwrap_or_default();
        listed.split_ascii_whitespace().map(|pid| pid.parse::<u32>().expect("a pid")).collect::<Vec<_>>()
    };
    // In the middle of a trial both have used the processor.
    let used = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ticks = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum());
        ticks.unwrap_or(0u64) >= 20
    };
    bench
        .wait_until("two ranks work", LIMIT, || children().len() == 2 && children().iter().all(used))
        .unwrap_or_else(|e| panic!("{e}"));
    let ranks = children();
    (bench, ranks)
}

fn wait_until_gone(ranks: &[u32]) {
    let gone = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !ranks.iter().all(gone) {
        assert!(Instant::now() < deadline, "a rank outlived the program: {ranks:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("a signal for a child of our child");
}

#[test]
fn the_ranks_end_with_the_program() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let (bench, ranks) = long_run(&world, &["--transport", "tcp-spin"]);
    bench.signal(Signal::KILL);
    wait_until_gone(&ranks);
}

#[test]
fn a_rank_that_dies_ends_the_run_with_an_error_that_names_it() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    for transport in ["tcp", "tcp-spin", "unix", "udp"] {
        let out = world.dir().join(transport);
        let out = out.to_str().expect("a path");
        let (bench, ranks) = long_run(&world, &["--transport", transport, "--out", out]);
        signal(ranks[1], Signal::KILL);
        let finished = bench.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(finished.exit, Exit::Code(1));
        assert!(finished.stderr.contains("rank 1 ended with signal: 9"), "{transport}: {}", finished.stderr);
        wait_until_gone(&ranks);
        let kinds: Vec<String> =
            lines(out).iter().map(|line| line["line"].as_str().unwrap_or_default().to_owned()).collect();
        assert_eq!(kinds, ["run", "failed", "end"], "{transport}");
    }
}

#[test]
fn a_rank_that_hangs_is_found_out_and_ended() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let (bench, ranks) = long_run(&world, &["--transport", "tcp"]);
    signal(ranks[0], Signal::STOP);
    let finished = bench.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(finished.exit, Exit::Code(1));
    assert!(finished.stderr.contains("rank 0 did not answer within 1s"), "{}", finished.stderr);
    assert!(finished.elapsed < Duration::from_secs(20), "{:?}", finished.elapsed);
    wait_until_gone(&ranks);
}

/// Arguments of a measurement of many short trials, into that file.
fn short_trials<'a>(rounds: &'a str, out: &'a str) -> [&'a str; 10] {
    ["bench", "pingpong", "--transport", "unix", "--seconds", "0.1", "--rounds", rounds, "--out", out]
}

fn wait_for_two_trials(bench: &Process, out: &str) {
    let measured = || std::fs::read_to_string(out).unwrap_or_default().lines().count() >= 3;
    bench.wait_until("two trials are in the file", LIMIT, measured).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn what_was_measured_before_a_ctrl_c_is_kept() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let out = world.dir().join(format!("{code}.jsonl"));
        let out = out.to_str().expect("a path");
        // What whoever runs the tests ignores, as `nohup` does hangups, the program would ignore, too.
        let command = world.ropeway_command(&short_trials("1000", out));
        let bench = Process::spawn(behind(&["env", "--default-signal=INT,TERM,HUP"], &command));
        wait_for_two_trials(&bench, out);
        bench.signal(signal);
        let finished = bench.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(finished.exit, Exit::Code(code));
        assert!(finished.stdout.contains("unix") && finished.stdout.contains("broken off"), "{}", finished.stdout);
        let lines = lines(out);
        assert!(lines.iter().filter(|line| line["line"] == "measured").count() >= 2);
        assert_eq!(lines.last().expect("lines")["line"], "warning");
    }
}

#[test]
fn a_measurement_under_nohup_outlives_its_terminal() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let out = world.dir().join("x.jsonl");
    let out = out.to_str().expect("a path");
    let command = world.ropeway_command(&short_trials("5", out));
    let bench = Process::spawn(behind(&["nohup"], &command));
    wait_for_two_trials(&bench, out);
    bench.signal(Signal::HUP);
    bench.wait(LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
}

#[test]
fn a_measurement_goes_on_when_nobody_reads_what_it_says() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let gone = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let out = world.dir().join("x.jsonl");
    let out = out.to_str().expect("a path");
    for form in [&[][..], &["--csv"], &["--json"]] {
        let mut command = world.ropeway_command(&short_trials("1", out));
        let ended = command.args(form).stdout(gone()).output().expect("it starts");
        assert!(ended.status.success(), "{form:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
    // A datagram does not hold it, which is said in the first round.
    let mut command = world.ropeway_command(&short_trials("2", out));
    let ended = command.args(["--transport", "udp", "--size", "64Ki"]).stderr(gone()).output().expect("it starts");
    assert_eq!(ended.status.code(), Some(1));
    let kinds: Vec<Value> = lines(out).iter().map(|line| line["line"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "measured").count(), 2, "{kinds:?}");
    assert!(kinds.contains(&Value::from("failed")) && kinds.contains(&Value::from("end")), "{kinds:?}");
}

#[test]
fn a_budget_and_a_precision_end_a_run() {
    let world = World::new();
    let args = ["rate", "--transport", "unix", "--seconds", "0.05", "--budget", "1s", "--json"];
    let finished = bench(&world, &args).expect_success();
    assert!(finished.elapsed < Duration::from_secs(10), "{:?}", finished.elapsed);
    let args = ["pingpong", "--transport", "memcpy,unix", "--seconds", "0.02", "--precision", "90%", "--budget", "20s"];
    assert!(!bench(&world, &args).success(), "memcpy has no ping-pong");
    let args =
        ["pingpong", "--transport", "unix", "--seconds", "0.02", "--precision", "99%", "--rounds", "400", "--json"];
    let report: Value = serde_json::from_str(&bench(&world, &args).expect_success().stdout).expect("JSON");
    let rounds = report["rounds"].as_u64().expect("a number");
    assert!((6..400).contains(&rounds), "six rounds are the fewest that bound a median: {rounds}");
}

#[test]
fn a_budget_that_ends_before_the_precision_is_reached_is_said() {
    let world = World::new();
    let out = world.dir().join("x.jsonl");
    let out = out.to_str().expect("a path");
    let args = ["pingpong", "--transport", "sim:noise=33%", "--seconds", "0.01", "--seed", "1", "--out", out];
    bench(&world, &[&args[..], &["--precision", "0.01%", "--budget", "300ms"]].concat()).expect_success();
    let warned = |line: &Value| {
        line["line"] == "warning" && line["text"].as_str().is_some_and(|text| text.contains("not known to 0.01 %"))
    };
    let lines = lines(out);
    assert!(lines.iter().any(warned), "{:?}", lines.last());
}

#[test]
fn an_open_loop_may_be_slow() {
    let world = World::new();
    let out = world.dir().join("x.jsonl");
    let out = out.to_str().expect("a path");
    let args = ["request-response", "--transport", "sim,unix", "--set", "rate=10", "--seconds", "0.2", "--rounds", "1"];
    bench(&world, &[&args[..], &["--out", out]].concat()).expect_success();
    for line in lines(out).iter().filter(|line| line["line"] == "measured") {
        let series = line["series"].as_array().expect("series");
        let rates = series.iter().find(|series| series["metric"] == "message-rate").expect("the rate");
        let rates: Vec<f64> =
            rates["values"]["samples"].as_array().expect("samples").iter().filter_map(Value::as_f64).collect();
        assert!(!rates.is_empty() && rates.iter().all(|rate| (5.0..=10.0).contains(rate)), "{line}");
    }
}

#[test]
fn hosts_of_a_box_are_measured_from_one_to_the_other() {
    ropeway_testkit::need_box!();
    let world = World::new();
    let cluster = ropeway_testkit::boxes::TestBox::up(&["--hosts", "2"]);
    let in_box = format!("--box={}", cluster.name());
    let args = ["pingpong", "--transport", "tcp,udp", &in_box, "--seconds", "0.1", "--rounds", "2", "--json"];
    let finished = bench(&world, &args).expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    for transport in ["tcp", "udp"] {
        assert!(row(&report, transport)["figure"]["median"].as_f64().expect("a figure") > 0.0);
    }
}

#[test]
fn ranks_of_other_hosts_are_reached_by_ssh() {
    let world = World::new();
    // In place of ssh: greets like a login shell, then runs the last argument, the command, here.
    let ssh = world.script("ssh", "echo Welcome to this host\nfor command; do :; done\nexec sh -c \"$command\"\n");
    let ropeway = ropeway_testkit::env::ropeway();
    let out = world.dir().join("x.jsonl");
    let [ssh, ropeway, out] = [&ssh, &ropeway, &out].map(|path| path.to_str().expect("a path"));
    let far = ["--hosts", "far=localhost,local=127.0.0.1", "--ssh", ssh, "--remote-command", ropeway];
    let args = ["pingpong", "--transport", "tcp,udp", "--rounds", "1", "--seconds", "0.1", "--out", out];
    let finished = bench(&world, &[&args[..], &far[..]].concat()).expect_success();
    assert!(finished.stdout.contains("tcp") && finished.stdout.contains("udp"), "{}", finished.stdout);
    let run = &lines(out)[0];
    assert_eq!(run["hosts"].as_array().map(Vec::len), Some(2), "{run}");
    let offset = |side: usize| run["clock_offsets_ns"][1][side].as_f64().expect("a bound");
    assert!(offset(0) <= 0.0 && offset(1) >= 0.0, "both have one clock: {run}");
    let missing =
        ["pingpong", "--transport", "tcp", "--hosts", "a,b", "--ssh", ssh, "--remote-command", "/nowhere/ropeway"];
    let finished = bench(&world, &missing);
    assert!(!finished.success() && finished.stderr.contains("/nowhere/ropeway"), "{}", finished.stderr);
}

#[test]
fn the_program_is_brought_to_where_it_is_not() {
    let world = World::new();
    let home = world.dir().join("home");
    std::fs::create_dir(&home).expect("a directory");
    // In place of ssh: another host is another home.
    let ssh = world.script("ssh", &format!("for line; do :; done\ncd {} && exec sh -c \"$line\"\n", home.display()));
    let far = ["--hosts", "far=localhost,local=127.0.0.1", "--ssh", ssh.to_str().expect("a path"), "--copy"];
    let args = ["pingpong", "--transport", "tcp,ropeway", "--rounds", "1", "--seconds", "0.1"];
    for _ in 0..2 {
        bench(&world, &[&args[..], &far].concat()).expect_success();
        let builds: Vec<_> = std::fs::read_dir(home.join(".cache/ropeway")).expect("a directory").flatten().collect();
        assert_eq!(builds.len(), 1, "{builds:?}");
        assert_eq!(std::fs::read_dir(builds[0].path()).expect("a directory").count(), 2, "the program and its library");
    }
    std::fs::remove_dir_all(&home).expect("one's own directory");
    let finished = bench(&world, &[&args[..], &far].concat());
    assert!(!finished.success() && finished.stderr.contains("cannot copy"), "{}", finished.stderr);
}

/// A server of the real ssh for one test, and a client that asks nothing and knows it.
fn real_ssh(world: &World, sshd: &Path) -> (Process, PathBuf) {
    let port = ropeway_testkit::net::free_port();
    let dir = world.dir().display().to_string();
    for key in ["host", "user"] {
        let mut keygen = ropeway_testkit::proc::command("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f"]);
        keygen.arg(world.dir().join(key));
        Process::spawn(keygen).wait(LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
    }
    // Where sshd of Debian keeps nothing, and does not start without.
    std::fs::create_dir_all("/run/sshd").expect("root's own directory");
    let options = [
        format!("Port={port}"),
        "ListenAddress=127.0.0.1".into(),
        format!("HostKey={dir}/host"),
        format!("AuthorizedKeysFile={dir}/user.pub"),
        "StrictModes=no".into(),
        "PermitRootLogin=yes".into(),
        "UsePAM=no".into(),
    ];
    let mut server = ropeway_testkit::proc::command(sshd, ["-D", "-e", "-f", "/dev/null"]);
    server.args(options.iter().flat_map(|option| ["-o", option]));
    let server = Process::spawn(server);
    server.wait_for_port(port, LIMIT);
    let client = format!(
        "exec ssh -F /dev/null -p {port} -i {dir}/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={dir}/known -o LogLevel=ERROR \"$@\"\n"
    );
    (server, world.script("ssh", &client))
}

#[test]
fn ranks_behind_a_real_ssh_measure_and_end_with_the_program() {
    ropeway_testkit::need_root!();
    let [Some(sshd), Some(_), Some(_)] = ["sshd", "ssh", "ssh-keygen"].map(ropeway_testkit::env::find_program) else {
        ropeway_testkit::skip!(
            "not installed: openssh-server and openssh-client (scripts/setup leaves the server out: it would open a port of the machine)"
        );
    };
    let world = World::new();
    let (_server, ssh) = real_ssh(&world, &sshd);
    // A name by which the ranks of this test are known.
    let ropeway = world.dir().join("ropeway");
    std::os::unix::fs::symlink(ropeway_testkit::env::ropeway(), &ropeway).expect("a link");
    let [ssh, ropeway] = [&ssh, &ropeway].map(|path| path.to_str().expect("a path"));
    let far = ["--hosts", "127.0.0.1,localhost", "--ssh", ssh, "--remote-command", ropeway];
    let args = ["pingpong", "--transport", "tcp,ropeway-udp", "--rounds", "1", "--seconds", "0.1", "--json"];
    let finished = bench(&world, &[&args[..], &far].concat()).expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    for transport in ["tcp", "ropeway-udp"] {
        assert!(row(&report, transport)["figure"]["median"].as_f64().is_some_and(|figure| figure > 0.0), "{report}");
    }
    // Killed in the middle of a trial.
    let long = ["bench", "pingpong", "--transport", "tcp-spin", "--rounds", "1", "--seconds", "60"];
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let bench = Process::spawn(world.ropeway_command(&[&long[..], &far].concat()));
    let rank = format!("{ropeway}\0bench\0rank\0");
    let ranks = || ropeway_testkit::proc::with_command_line(&rank);
    bench.wait_until("two ranks are there", LIMIT, || ranks().len() == 2).unwrap_or_else(|e| panic!("{e}"));
    std::thread::sleep(Duration::from_millis(500));
    bench.signal(Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ranks().is_empty() {
        assert!(Instant::now() < deadline, "the coordinator was killed, and these live on: {:?}", ranks());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn instructions_of_the_stages_are_counted() {
    ropeway_testkit::need_program!("valgrind");
    let world = World::new();
    let stages = ropeway_testkit::env::example("stages");
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let args = ["bench", "stages", "--transport", "tcp", "--size", "64,1472", "--rounds", "1", "--json"];
    let mut command = world.ropeway_command(&args);
    command.env("ROPEWAY_STAGES", stages);
    let finished = Process::spawn(command).wait(LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let medians: Vec<f64> =
        report["rows"].as_array().expect("rows").iter().filter_map(|row| row["figure"]["median"].as_f64()).collect();
    // Some hundred for each message at least, and more for longer ones: their bytes are copied.
    assert!(medians.len() == 2 && medians[0] > 100.0 && medians[1] > medians[0], "{report}");
}
