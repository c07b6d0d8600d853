//! How a box comes, is used, and goes; and what the program says when it cannot be.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::proc::{Exit, Finished, Process, command};
use ropeway_testkit::{env, need_box, need_program};
use rustix::process::Signal;

use super::{LIMIT, until};

#[track_caller]
fn sh(cluster: &TestBox, host: &str, script: &str) -> Finished {
    cluster.run(host, &command("sh", ["-c", script]), LIMIT)
}

#[track_caller]
fn refused(cluster: &TestBox, args: &[&str], words: &[&str]) {
    let finished = cluster.ropeway(args);
    assert!(!finished.success(), "{args:?} went through: {}", finished.stdout);
    for word in words {
        assert!(finished.stderr.contains(word), "{args:?}: {word:?} is not in: {}", finished.stderr);
    }
}

#[test]
fn hosts_have_the_addresses_and_names_that_the_box_shows() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "3"]);
    let ports = cluster.ports();
    assert_eq!(ports.iter().map(|port| port.host.as_str()).collect::<Vec<_>>(), ["h1", "h2", "h3"]);
    for port in &ports {
        let devices = sh(&cluster, &port.host, "ip -oneline address show; cat /etc/hosts").expect_success().stdout;
        assert!(devices.contains("lo ") && devices.contains("127.0.0.1/8"), "{devices}");
        for other in &ports {
            assert!(devices.contains(&format!("{} {}\n", other.addresses.0, other.host)), "{devices}");
        }
        assert!(devices.contains(&format!("inet {}/24", port.addresses.0)), "{devices}");
        assert!(devices.contains(&format!("inet6 {}/64", port.addresses.1)), "{devices}");
        assert!(!devices.contains("tentative"), "addresses are usable at once: {devices}");
    }
    let table = cluster.ropeway(&["status"]).expect_success().stdout;
    assert!(table.contains("h3    compute  10.0.1.3"), "{table}");
}

#[test]
fn both_families_carry_connections_by_name() {
    need_box!();
    need_program!("python3");
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    for (family, address) in [("AF_INET", cluster.v4("h2").to_string()), ("AF_INET6", cluster.v6("h2").to_string())] {
        let server = format!(
            "import socket\ns = socket.socket(socket.{family})\n\
             s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\ns.bind(('', 7000))\ns.listen()\n\
             c, who = s.accept()\nc.sendall(who[0].encode())"
        );
        let client = format!(
            "import socket\ns = socket.socket(socket.{family})\nassert '{address}' in \
             [a[4][0] for a in socket.getaddrinfo('h2', 7000)]\ns.connect(('h2', 7000))\nprint(s.recv(100).decode())"
        );
        let server = cluster.spawn("h2", &command("python3", ["-c", &server]));
        server.wait_for_port(7000, LIMIT);
        let seen = cluster.run("h1", &command("python3", ["-c", &client]), LIMIT).expect_success().stdout;
        let port = cluster.port("h1");
        assert!([port.addresses.0.to_string(), port.addresses.1.to_string()].contains(&seen.trim().into()), "{seen}");
        server.succeed(LIMIT);
    }
}

#[test]
fn exec_is_the_program_with_its_output_exit_code_and_signals() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "1"]);
    let finished = sh(&cluster, "h1", "echo out $ROPEWAY_BOX $ROPEWAY_BOX_HOST; echo err >&2; exit 7");
    let out = format!("out {} h1\n", cluster.name());
    assert_eq!((finished.exit, finished.stdout, finished.stderr.as_str()), (Exit::Code(7), out, "err\n"));
    assert_eq!(sh(&cluster, "h1", "kill -KILL $$").exit, Exit::Signal(9));
    let dashes = cluster.run("h1", &command("echo", ["--name", "-n"]), LIMIT);
    assert_eq!(dashes.expect_success().stdout, "--name -n\n");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = directory.path().join("script");
    fs::write(&script, "#! /no/such/interpreter -x\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let script = script.display().to_string();
    for (program, code) in
        [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126), (script.as_str(), 126)]
    {
        let finished = cluster.run("h1", &command(program, [""; 0]), LIMIT);
        assert_eq!(finished.exit, Exit::Code(code), "{program}: {}", finished.stderr);
        assert!(finished.stderr.contains(program), "{}", finished.stderr);
    }
    // A variable that is empty decides nothing about keys, here as elsewhere.
    let mut trusts = command("sh", ["-c", "echo $ROPEWAY_TRUSTED"]);
    trusts.env("ROPEWAY_KEY_FILE", "").env_remove("ROPEWAY_TRUSTED");
    assert_eq!(cluster.run("h1", &trusts, LIMIT).stdout, "1\n");
    let unknown = cluster.run("h2", &command("true", [""; 0]), LIMIT);
    assert_eq!(unknown.exit, Exit::Code(125));
    assert!(unknown.stderr.contains("h1, switch"), "{}", unknown.stderr);
}

#[test]
fn down_takes_everything_away_and_ends_what_runs_inside() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let polite = cluster.spawn("h1", &command("sleep", ["1000"]));
    let stubborn =
        cluster.spawn("h2", &command("sh", ["-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]));
    stubborn.wait_for_output("ready", LIMIT);
    until("both are inside", || [&polite, &stubborn].iter().all(|process| !shares_our_network(process)));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let receive = ["cp", "--receive", &directory.path().display().to_string(), "--bind", "0.0.0.0:7480"];
    let receiver = cluster.spawn("h1", &command(env::ropeway(), receive));
    receiver.wait_for_output("receiving into", LIMIT);
    let board = board_of(&receiver);
    assert!(board.exists(), "{}", board.display());
    cluster.ropeway(&["down"]).expect_success();
    assert!(!board.exists(), "{}", board.display());
    assert_eq!(polite.wait(LIMIT).expect("it ends").exit, Exit::Signal(15));
    assert_eq!(stubborn.wait(LIMIT).expect("it ends").exit, Exit::Signal(9));
    for host in ["h1", "h2", "switch"] {
        let name = cluster.namespace(host);
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name}");
        assert!(!Path::new("/etc/netns").join(&name).exists(), "{name}");
    }
    refused(&cluster, &["down"], &["there is no box", cluster.name()]);
    refused(&cluster, &["status"], &["there is no box"]);
    // The name is free again.
    cluster.ropeway(&["up", "--hosts", "1"]).expect_success();
}

#[test]
fn down_ends_what_is_about_to_run_inside() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "1"]);
    for pause_ms in 0..4 {
        let starting: Vec<Process> = (0..4).map(|_| cluster.spawn("h1", &command("sleep", ["1000"]))).collect();
        std::thread::sleep(Duration::from_millis(pause_ms));
        cluster.ropeway(&["down"]).expect_success();
        for process in starting {
            process.wait(Duration::from_secs(10)).expect("it came too late, or was ended");
        }
        cluster.ropeway(&["up", "--hosts", "1"]).expect_success();
    }
}

#[test]
fn down_ends_what_goes_on_in_its_children() {
    need_box!();
    need_program!("python3");
    let cluster = TestBox::up(&["--hosts", "1"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let alive = directory.path().join("alive");
    // Nobody of them lives for long, but all together for half a minute.
    let chain = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                 end = time.time() + 30\nwhile time.time() < end:\n if os.fork(): os._exit(0)\n \
                 open(sys.argv[1], 'w').write(str(time.time()))\n time.sleep(0.002)";
    let mut cmd = command("python3", ["-c", chain]);
    cmd.arg(&alive);
    for _ in 0..3 {
        let _chains: Vec<Process> = (0..5).map(|_| cluster.spawn("h1", &cmd)).collect();
        until("it goes on", || alive.exists());
        // All of them do.
        std::thread::sleep(Duration::from_millis(500));
        cluster.ropeway(&["down"]).expect_success();
        std::thread::sleep(Duration::from_millis(100));
        let last = fs::read(&alive).expect("it was written");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(fs::read(&alive).expect("it was written"), last, "somebody goes on");
        fs::remove_file(&alive).expect("it is there");
        cluster.ropeway(&["up", "--hosts", "1"]).expect_success();
    }
}

/// Where a process that receives over the network tells others of its user and network namespace what it grants.
fn board_of(process: &Process) -> PathBuf {
    let namespace = fs::metadata(format!("/proc/{}/ns/net", process.pid())).expect("it runs").ino();
    let is_board = |name: &str| name.starts_with("ropeway-gate-") && name.ends_with(&format!("-{namespace}"));
    let mut all = fs::read_dir("/dev/shm").expect("it can be listed").map(|entry| entry.expect("an entry").path());
    let found = all.find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_board));
    found.expect("it has a board")
}

fn shares_our_network(process: &Process) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    namespace(&process.pid().to_string()) == namespace("self")
}

#[test]
fn down_that_waited_leaves_a_box_that_was_made_meanwhile() {
    need_box!();
    let cluster = TestBox::unmade();
    // All that there is of it.
    let switch = cluster.namespace("switch");
    let ip = |does| Process::spawn(command("ip", ["netns", does, &switch])).succeed(LIMIT);
    let path = Path::new("/run/netns").join(&switch);
    let downs = || {
        let held = File::create(Path::new("/run").join(&switch).with_added_extension("lock")).expect("as root");
        held.lock().expect("nobody has it");
        let down = Process::spawn(cluster.ropeway_command(&["down"]));
        let pid = down.pid().to_string();
        let waits = |line: &str| line.contains("->") && line.split_whitespace().any(|word| word == pid);
        until("it waits", || fs::read_to_string("/proc/locks").expect("the kernel says it").lines().any(waits));
        (held, down)
    };
    ip("add");
    let (held, down) = downs();
    ip("del");
    ip("add");
    let made = fs::metadata(&path).expect("it is there").ino();
    drop(held);
    let down = down.wait(LIMIT).expect("it ends");
    assert!(!down.success() && down.stderr.contains("there is no box"), "{}", down.stderr);
    assert_eq!(fs::metadata(&path).expect("it is there").ino(), made);
    // One whose name has gone is none either.
    let (held, down) = downs();
    ip("del");
    drop(held);
    let down = down.wait(LIMIT).expect("it ends");
    assert!(!down.success() && down.stderr.contains("there is no box"), "{}", down.stderr);
}

#[test]
fn a_lock_that_any_user_can_have_holds_up_nobody() {
    need_box!();
    need_program!("setpriv", "flock");
    let cluster = TestBox::up(&["--hosts", "2"]);
    let switch = Path::new("/run/netns").join(cluster.namespace("switch"));
    let mut holding = command("setpriv", ["--reuid=65534", "--regid=65534", "--clear-groups", "flock"]);
    holding.arg(switch).args(["sh", "-c", "echo held; exec sleep 1000"]);
    let holding = Process::spawn(holding);
    holding.wait_for_output("held", LIMIT);
    for args in [&["cut", "h1"][..], &["heal", "h1"], &["loss", "h1", "1%"], &["down"]] {
        let does = Process::spawn(cluster.ropeway_command(args));
        let done = does.wait(Duration::from_secs(20)).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        done.expect_success();
    }
    assert!(holding.is_running());
}

#[test]
fn two_boxes_live_at_once_and_know_nothing_of_each_other() {
    need_box!();
    let (one, two) = (TestBox::up(&["--hosts", "2"]), TestBox::up(&["--hosts", "3", "--rate", "1gbit"]));
    assert_eq!((one.v4("h1"), one.ports().len()), (two.v4("h1"), 2), "addresses are the same, ports are not");
    one.cut("h1");
    assert!(one.port("h1").cut && !two.port("h1").cut);
    let listed = one.ropeway(&["list"]).expect_success().stdout;
    for line in [format!("{}: h1 h2\n", one.name()), format!("{}: h1 h2 h3\n", two.name())] {
        assert!(listed.contains(&line), "{listed}");
    }
    drop(one);
    assert_eq!(two.ports().len(), 3);
}

#[test]
fn a_name_that_is_taken_is_refused_and_its_box_stays() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    refused(&cluster, &["up", "--hosts", "2"], &["there is a box", "down --name"]);
    assert_eq!(cluster.ports().len(), 2);
}

#[test]
fn of_several_that_make_one_box_at_once_one_does_and_the_others_say_that_it_is_there() {
    need_box!();
    let cluster = TestBox::unmade();
    for _ in 0..5 {
        let all: Vec<Process> =
            (0..4).map(|_| Process::spawn(cluster.ropeway_command(&["up", "--hosts", "2"]))).collect();
        let all: Vec<Finished> = all.into_iter().map(|up| up.wait(LIMIT).expect("it ends")).collect();
        let (made, refused): (Vec<_>, Vec<_>) = all.iter().partition(|up| up.success());
        assert_eq!(made.len(), 1);
        assert!(refused.iter().all(|up| up.stderr.contains("there is a box")), "{refused:?}");
        cluster.ropeway(&["down"]).expect_success();
    }
}

#[test]
fn a_box_whose_up_was_killed_says_so_and_can_be_taken_away() {
    need_box!();
    let cluster = TestBox::unmade();
    // Large enough to be far from complete when its first part can be seen.
    let up =
        Process::spawn(cluster.ropeway_command(&["up", "--hosts", "200", "--rate", "1gbit", "--host-rate", "1gbit"]));
    let first = Path::new("/run/netns").join(cluster.namespace("h1"));
    up.wait_until("a host is there", LIMIT, || first.exists()).expect("it runs");
    // Only itself: a program that it started may go on.
    up.signal(Signal::KILL);
    assert_eq!(up.wait(LIMIT).expect("it ends").exit, Exit::Signal(9));
    refused(&cluster, &["status"], &["incomplete", "down --name"]);
    refused(&cluster, &["cut", "h1"], &["incomplete"]);
    refused(&cluster, &["up", "--hosts", "2"], &["there is a box"]);
    cluster.ropeway(&["down"]).expect_success();
    let left = |dir: &str| -> Vec<String> {
        let entries = fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
        let names = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(&cluster.namespace(""))).collect()
    };
    assert_eq!((left("/run/netns"), left("/etc/netns")), (vec![], vec![]));
    cluster.ropeway(&["up", "--hosts", "2"]).expect_success();
}

#[test]
fn without_root_it_says_so() {
    need_box!();
    need_program!("setpriv");
    let dir = tempfile::tempdir().expect("a temporary directory");
    // Where it was built, another user may not be able to go.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("one's own directory");
    let ropeway = dir.path().join("ropeway");
    env::install(&env::ropeway(), &ropeway);
    let as_nobody = |args: &[&str]| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut setpriv = command("setpriv", user);
        setpriv.arg(&ropeway).arg("box").args(args).current_dir("/");
        Process::spawn(setpriv).wait(LIMIT).expect("it ends")
    };
    for args in [&["up", "--hosts", "2"][..], &["down"], &["status"], &["cut", "h1"]] {
        let finished = as_nobody(args);
        assert_eq!(finished.exit, Exit::Code(1), "{args:?}");
        assert!(finished.stderr.contains("needs root") && finished.stderr.contains("sudo"), "{}", finished.stderr);
    }
    assert_eq!(as_nobody(&["exec", "h1", "true"]).exit, Exit::Code(125));
    as_nobody(&["list"]).expect_success();
}

#[test]
fn without_iproute2_it_names_the_package() {
    need_box!();
    need_program!("unshare", "mount");
    // An empty directory in front of every place where `tc` is, for this one process.
    let script = "set -e; for dir in /sbin /usr/sbin /usr/local/sbin; do \
                  [ ! -e $dir/tc ] || mount -t tmpfs none $(readlink -f $dir); done; exec \"$0\" box up --hosts 2 --name none";
    let mut unshare = command("unshare", ["--mount", "sh", "-c", script]);
    unshare.arg(env::ropeway());
    let finished = Process::spawn(unshare).wait(LIMIT).expect("it ends");
    assert_eq!(finished.exit, Exit::Code(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("not installed") && finished.stderr.contains("iproute2"), "{}", finished.stderr);
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_is_made() {
    let cluster = TestBox::unmade();
    let up = |more: &[&'static str]| [&["up", "--hosts", "2"], more].concat();
    refused(&cluster, &["up", "--hosts", "0"], &["1..=200"]);
    refused(&cluster, &["up", "--hosts", "201"], &["1..=200"]);
    refused(&cluster, &up(&["--rate", "0gbit"]), &["carries nothing"]);
    refused(&cluster, &up(&["--rate", "fast"]), &["not a rate", "1gbit"]);
    refused(&cluster, &up(&["--mtu", "1279"]), &["1280..=9216"]);
    refused(&cluster, &up(&["--port-buffer", "1MiB"]), &["--rate"]);
    refused(&cluster, &up(&["--rate", "1gbit", "--port-buffer", "1500"]), &["1518 bytes"]);
    refused(&cluster, &up(&["--gateways", "17"]), &["0..=16"]);
    refused(&cluster, &up(&["--io-hosts", "1"]), &["--gateways"]);
    refused(&cluster, &up(&["--delay", "50"]), &["50us"]);
    refused(&cluster, &["loss", "h1", "0.01"], &["per cent"]);
    refused(&cluster, &["loss", "h1", "100%"], &["box cut"]);
    let listed = cluster.ropeway(&["list"]).expect_success().stdout;
    assert!(!listed.contains(cluster.name()), "{listed}");
    let mut bad = command(env::ropeway(), ["box", "--name", "../x", "list"]);
    bad.stdin(std::process::Stdio::null());
    let bad = Process::spawn(bad).wait(LIMIT).expect("it ends");
    assert_eq!(bad.exit, Exit::Code(2));
    assert!(bad.stderr.contains("not a name for a box"), "{}", bad.stderr);
}

#[test]
fn a_large_box_comes_up_whole() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "65", "--rate", "1gbit"]);
    assert_eq!(cluster.ports().len(), 65);
    // The last host is beyond what one filter of a flood holds.
    let before = cluster.port("h65").sent_packets;
    sh(&cluster, "h1", "ip neighbour flush all; ip route get 10.0.1.65").expect_success();
    let listen = super::receive_frames(&cluster, "h65", super::UNKNOWN_TYPE, 5);
    super::send_frames(&cluster, "h1", "h65", 5);
    assert_eq!(super::received(&listen)[0], 5);
    let broadcast = super::receive_frames(&cluster, "h65", super::UNKNOWN_TYPE, 1);
    let all = super::frames(["send", "eth0", "ff:ff:ff:ff:ff:ff", super::UNKNOWN_TYPE, "1"]);
    cluster.run("h1", &all, Duration::from_secs(10)).expect_success();
    assert_eq!(super::received(&broadcast)[0], 1);
    assert!(cluster.port("h65").sent_packets >= before + 6);
}

#[test]
fn the_documents_name_every_command_and_option() {
    let page = include_str!("../../../../docs/man/ropeway.1").replace("\\-", "-");
    let document = include_str!("../../../../docs/box.md");
    let help = |args: &[&str]| {
        Process::spawn(command(env::ropeway(), [&["box"], args, &["--help"]].concat())).succeed(LIMIT).stdout
    };
    let commands = ["up", "exec", "cut", "heal", "loss", "status", "list", "down"];
    let all = help(&[]);
    assert!(commands.iter().all(|name| all.contains(&format!("\n  {name} "))), "{all}");
    for name in commands {
        assert!(document.contains(&format!("`box {name}")), "{name}");
        let help = help(&[name]);
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && *word != "--help");
        for option in options.map(|word| word.trim_end_matches([',', '>', '.'])) {
            assert!(page.contains(option), "{name}: {option} is not in the manual page");
            assert!(document.contains(option), "{name}: {option} is not in docs/box.md");
        }
    }
    assert!(page.contains(".SS ropeway box"));
}
