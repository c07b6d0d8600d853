//! What `ropeway ss` tells of running engines, and what `ropeway tune` does to them.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Finished, Process, command, until};
use ropeway_testkit::{need_box, need_program};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// For everything that a program does in a box by itself, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Where the receivers of these tests listen.
const PORT: u16 = 7480;
/// Through a network that loses one packet in fifty, at least one of so many gets lost.
/// Whole pieces, as a pipe that stays open fills no other; and too few for the receiver to say what it has written, which would lie unread at the sender.
const BYTES: usize = 7 * (128 << 10);

/// A connection from h1 to h2 that is open until it is told to end: `ropeway cp` of a pipe. What runs in the box is dropped before it.
struct Copy {
    sender: Process,
    pipe: Option<ChildStdin>,
    receiver: Process,
    directory: TempDir,
    cluster: TestBox,
}

fn receive(directory: &TempDir, port: u16) -> Command {
    let directory = directory.path().display().to_string();
    command(env::ropeway(), ["cp", "--receive", &directory, "--bind", &format!("0.0.0.0:{port}")])
}

/// A receiver in h2, ready when this returns.
#[track_caller]
fn receiver(cluster: &TestBox, cmd: &Command) -> Process {
    let receiver = cluster.spawn("h2", cmd);
    receiver.wait_for_output("receiving into", LIMIT);
    receiver
}

impl Copy {
    /// `BYTES` have arrived when this returns.
    #[track_caller]
    fn begin(cluster: TestBox) -> Copy {
        let to = cluster.v4("h2");
        Copy::begin_to(cluster, to)
    }

    /// The same to one of several addresses of h2.
    #[track_caller]
    fn begin_to(cluster: TestBox, to: Ipv4Addr) -> Copy {
        let directory = TempDir::new().expect("a temporary directory");
        let receiver = receiver(&cluster, &receive(&directory, PORT));
        let to = format!("{to}:{PORT}");
        let send = command(env::ropeway(), ["cp", "-", &to, "--name", "piped"]);
        let (sender, mut pipe) = Process::spawn_with_stdin(cluster.command("h1", &send));
        std::io::Write::write_all(&mut pipe, &vec![7; BYTES]).expect("it reads its standard input");
        let part = directory.path().join("piped.ropeway-part");
        let arrived = || std::fs::metadata(&part).is_ok_and(|meta| meta.len() == BYTES as u64);
        sender.wait_until("everything arrived", LIMIT, arrived).unwrap_or_else(|e| panic!("{e}"));
        Copy { sender, pipe: Some(pipe), receiver, directory, cluster }
    }

    #[track_caller]
    fn end(&mut self) {
        self.pipe = None;
        self.sender.succeed(LIMIT);
        assert!(self.directory.path().join("piped").is_file());
    }
}

#[track_caller]
fn ropeway(cluster: &TestBox, host: &str, args: &[&str]) -> Finished {
    cluster.run(host, &command(env::ropeway(), args), LIMIT)
}

/// The elements of the array that a command prints.
#[track_caller]
fn listed(cluster: &TestBox, host: &str, args: &[&str]) -> Vec<Value> {
    let printed = ropeway(cluster, host, args).expect_success().stdout;
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e} in: {printed}"))
}

/// The only connection in a host.
#[track_caller]
fn connection(cluster: &TestBox, host: &str) -> Value {
    let rows = listed(cluster, host, &["ss", "--json"]);
    let [row] = &rows[..] else { panic!("not one connection: {rows:?}") };
    row.clone()
}

/// What the only engine in a host has counted.
#[track_caller]
fn counted(cluster: &TestBox, host: &str) -> Value {
    let engines = listed(cluster, host, &["ss", "--counters", "--json"]);
    let [engine] = &engines[..] else { panic!("not one engine: {engines:?}") };
    engine.clone()
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn a_host_is_reached_at_a_further_address_of_its_device_and_the_connection_says_so() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let [a, b, c, d] = cluster.v4("h2").octets();
    let further = Ipv4Addr::new(a, b, c, d + 100);
    let add = command("ip", ["address", "add", &format!("{further}/24"), "dev", "eth0"]);
    cluster.run("h2", &add, LIMIT).expect_success();
    let mut copy = Copy::begin_to(cluster, further);
    let at = format!("{further}:{PORT}");
    let [sending, receiving] = ["h1", "h2"].map(|host| connection(&copy.cluster, host));
    assert_eq!((&sending["peer"], &receiving["local"]), (&at.clone().into(), &at.into()));
    assert_eq!((&receiving["link"], &receiving["carrier"]["rx"]), (&"udp".into(), &"wire".into()));
    copy.end();
}

#[test]
fn a_connection_between_hosts_is_listed_at_both_ends_with_what_it_carried() {
    need_box!();
    // Without a rate a frame is a whole segmented send, of which there are too few to lose one of fifty.
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    let nobody = ropeway(&cluster, "h1", &["ss"]);
    assert!(!nobody.success() && nobody.stderr.contains("no program runs under Ropeway here"), "{}", nobody.stderr);
    cluster.loss("h2", "2%");
    let mut copy = Copy::begin(cluster);
    let cluster = &copy.cluster;
    until("everything is acknowledged", || connection(cluster, "h1")["unacked_bytes"] == 0);
    let receiving = connection(cluster, "h2");
    let sending = connection(cluster, "h1");
    println!("{sending:#}\n{receiving:#}");
    for (row, process, peer) in [(&sending, &copy.sender, "h2"), (&receiving, &copy.receiver, "h1")] {
        assert_eq!((&row["pid"], &row["program"]), (&process.pid().into(), &"ropeway".into()), "{row:#}");
        assert_eq!(row["carrier"], serde_json::json!({ "tx": "wire", "rx": "wire" }), "{row:#}");
        assert_eq!(row["link"], "udp", "{row:#}");
        assert!(row["peer"].as_str().is_some_and(|at| at.starts_with(&format!("{}:", cluster.v4(peer)))), "{row:#}");
        assert!(row["round_trip_us"].as_f64().is_some_and(|time| time > 0.0), "{row:#}");
        assert_eq!((number(&row["queued_bytes"]), number(&row["unread_bytes"])), (0, 0), "{row:#}");
    }
    assert_eq!((&sending["remote_port"], &receiving["local_port"]), (&PORT.into(), &PORT.into()));
    let sent = number(&sending["sent_bytes"]);
    assert!(sent > BYTES as u64, "data and what frames it: {sent}");
    assert_eq!(number(&receiving["received_bytes"]), sent);
    assert_eq!(number(&receiving["sent_bytes"]), number(&sending["received_bytes"]));
    assert!(sending["waited_ms"]["program"].as_f64().is_some_and(|time| time > 0.0), "{sending:#}");

    let (sender, receiver) = (&sending["association"], &receiving["association"]);
    let of = |association: &Value, name: &str| number(&association[name]);
    assert!(of(receiver, "lost") > 0 && of(receiver, "requests_sent") > 0, "{receiver:#}");
    assert!(of(sender, "requests_received") > 0 && of(sender, "resent") > 0, "{sender:#}");
    assert!(of(sender, "lost") < of(receiver, "lost"), "hardly anything goes there: {sender:#}");
    assert!(of(receiver, "packets_received") <= of(sender, "packets_sent"), "{sender:#}\n{receiver:#}");
    assert!(of(sender, "packets_sent") > BYTES as u64 / 1500, "{sender:#}");
    for name in ["duplicates", "spurious_requests", "states_sent", "leases_expired"] {
        assert!(sender[name].is_u64() && receiver[name].is_u64(), "{name}");
    }

    let printed = ropeway(cluster, "h1", &["ss"]).expect_success().stdout;
    println!("{printed}");
    let lines: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
    let [head, line] = &lines[..] else { panic!("not one connection: {printed}") };
    assert!(head.starts_with(&["Program", "Pid", "Recv-Q", "Send-Q"]), "{printed}");
    let (pid, to) = (copy.sender.pid().to_string(), format!("{}:{PORT}", cluster.v4("h2")));
    assert!(line.starts_with(&["ropeway", &pid, "0", "0"]), "{printed}");
    assert!(line.contains(&to.as_str()), "{printed}");
    assert!(line.contains(&format!("{}K", (sent as f64 / 1024.0).round()).as_str()), "{sent} bytes: {printed}");
    copy.end();
}

#[test]
fn what_an_engine_has_counted_is_shown_by_link_gate_and_reason() {
    need_box!();
    need_program!("bash");
    let cluster = TestBox::up(&["--hosts", "2"]);
    let nobody = ropeway(&cluster, "h2", &["ss", "--counters"]);
    assert!(!nobody.success() && nobody.stderr.contains("no engine runs here"), "{}", nobody.stderr);
    let mut copy = Copy::begin(cluster);
    let cluster = &copy.cluster;
    let address = cluster.v4("h2");
    // Two datagrams that are no packets, of which one is too short for anything.
    for text in ["short", "long enough for a header, and of a version that nobody speaks"] {
        let knock = format!("echo {text} >/dev/udp/{address}/{PORT}");
        cluster.run("h1", &command("bash", ["-c", &knock]), LIMIT).expect_success();
    }
    until("they came", || counted(cluster, "h2")["counters"]["dropped_malformed"] == 2);
    let engine = counted(cluster, "h2");
    println!("{engine:#}");
    assert_eq!((&engine["pid"], &engine["program"]), (&copy.receiver.pid().into(), &"ropeway".into()));
    assert!(engine.get("connections").is_none(), "these are listed without --counters");
    let counters = &engine["counters"];
    assert_eq!((number(&counters["dropped_malformed_truncated"]), number(&counters["dropped_malformed_shim"])), (1, 0));
    assert!(number(&counters["payload_received_bytes"]) > BYTES as u64);
    assert_eq!((number(&counters["channels_accepted"]), number(&counters["associations_ended"])), (1, 0));
    let (grants, granted) = (number(&counters["gate_grants"]), number(&counters["gate_granted_packets"]));
    assert!(grants > 0 && granted >= grants, "{grants} grants of {granted} packets");
    for name in [
        "gate_exhausted",
        "gate_suspects",
        "gate_slow",
        "gate_cuts",
        "gate_acks_held",
        "replies_suppressed",
        "overslept",
    ] {
        assert!(counters[name].is_u64(), "{name}");
    }
    assert!(number(&engine["gate_budget_bytes"]) > 0 && engine["gate_charged_bytes"].is_u64());
    assert!(engine.get("gate_port_estimate_bytes").is_some(), "null where nothing was lost");
    let [link] = &engine["links"].as_array().expect("links")[..] else { panic!("not one link: {engine:#}") };
    assert_eq!((&link["name"], &link["local"]), (&"udp".into(), &format!("0.0.0.0:{PORT}").into()));
    assert!(number(&link["received_bytes"]) > BYTES as u64, "{link:#}");
    assert!(number(&link["received_packets"]) > BYTES as u64 / 1500, "{link:#}");
    for name in ["sent_packets", "sent_bytes", "send_calls", "receive_calls"] {
        assert!(number(&link[name]) > 0, "{name}: {link:#}");
    }
    for name in ["send_errors", "send_fallbacks", "send_full", "send_discarded", "receive_drops", "receive_bad"] {
        assert!(link[name].is_u64(), "{name}: {link:#}");
    }

    let printed = ropeway(cluster, "h2", &["ss", "--counters"]).expect_success().stdout;
    println!("{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], format!("ropeway, process {}", copy.receiver.pid()));
    assert_eq!(lines[1], format!("  link udp 0.0.0.0:{PORT}"));
    let place = |line: &str| lines.iter().position(|&found| found.starts_with(line)).expect(line);
    let (gate, endpoint) = (place("  gate: "), place("  endpoint"));
    assert!(place("    received_packets ") < gate && gate < place("    gate_grants ") && gate < endpoint, "{printed}");
    assert!(endpoint < place("    dropped_malformed_truncated 1"), "{printed}");
    assert!(!lines.iter().any(|line| line.ends_with(" 0")), "what is 0 is left out: {printed}");

    copy.end();
    until("the end is counted by its reason", || {
        let counters = &counted(&copy.cluster, "h2")["counters"];
        number(&counters["associations_ended"]) == 1 && number(&counters["associations_ended_closed"]) == 1
    });
}

#[test]
fn who_has_another_key_is_counted_as_that() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    let key = |name: &str| {
        let path = directory.path().join(name).display().to_string();
        Process::spawn(command(env::ropeway(), ["key", "new", &path])).succeed(LIMIT);
        path
    };
    let (key, other) = (key("key"), key("other"));
    let mut receive = receive(&directory, PORT);
    receive.env("ROPEWAY_KEY_FILE", key);
    let _receiver = receiver(&cluster, &receive);
    let to = format!("{}:{PORT}", cluster.v4("h2"));
    let mut send = command(env::ropeway(), ["cp", &other, &to]);
    send.env("ROPEWAY_KEY_FILE", &other);
    let refused = cluster.run("h1", &send, LIMIT);
    assert!(!refused.success() && refused.stderr.contains("key"), "{}", refused.stderr);
    let counters = &counted(&cluster, "h2")["counters"];
    println!("{counters:#}");
    let unknown = number(&counters["dropped_handshake_unknown"]);
    assert!(unknown > 0 && unknown == number(&counters["dropped_handshake"]), "{counters:#}");
}

/// The output of `ropeway tune` in h2.
#[track_caller]
fn tune(cluster: &TestBox, args: &[&str]) -> String {
    ropeway(cluster, "h2", &[&["tune"], args].concat()).expect_success().stdout
}

/// What `ropeway tune` in h2 says why it cannot do something.
#[track_caller]
fn tune_error(cluster: &TestBox, args: &[&str]) -> String {
    let finished = ropeway(cluster, "h2", &[&["tune"], args].concat());
    assert!(!finished.success() && finished.stdout.is_empty(), "{}", finished.stdout);
    finished.stderr
}

#[test]
fn a_tunable_that_is_set_takes_effect_in_the_engine_that_was_meant() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    let [one, other] = [PORT, PORT + 1].map(|port| receiver(&cluster, &receive(&directory, port)));
    let budget = |process: &Process| {
        let engines = listed(&cluster, "h2", &["ss", "--counters", "--json"]);
        let engine = engines.iter().find(|engine| engine["pid"] == process.pid()).expect("it has an engine");
        number(&engine["gate_budget_bytes"])
    };
    let (pid, other_pid) = (one.pid().to_string(), other.pid().to_string());
    let of = |pid: &str, value: u64| format!("{pid}\tport_buffer\t{value} bytes\n");
    assert_eq!(tune(&cluster, &["get", "port_buffer", "--pid", &pid]), of(&pid, 131_072));
    let before = budget(&one);
    assert_eq!(budget(&other), before);

    let said = tune(&cluster, &["set", "port_buffer", "65536", "--pid", &pid]);
    assert_eq!(said, format!("{pid}\tport_buffer\t131072 -> 65536\n"));
    assert_eq!((budget(&one), budget(&other)), (before / 2, before), "the gate goes by it");
    let both = tune(&cluster, &["get", "port_buffer"]);
    assert!(both.contains(&of(&pid, 65_536)) && both.contains(&of(&other_pid, 131_072)), "{both}");
    let text = tune(&cluster, &["list", "--pid", &pid]);
    assert!(text.contains("port_buffer = 65536 bytes   (default 131072; 16384 to 1073741824)\n"), "{text}");
    assert!(
        text.contains("\n    more than it can: drops under incast; less: the line idles\n"),
        "what it costs: {text}"
    );
    assert!(text.ends_with(&format!("Values of process {pid}.\n")), "{text}");
    let values = listed(&cluster, "h2", &["tune", "list", "--json", "--pid", &pid]);
    let value = values.iter().find(|value| value["name"] == "port_buffer").expect("it is listed");
    assert_eq!((number(&value["value"]), number(&value["usual"])), (65_536, 131_072));

    // Without a process all of them.
    tune(&cluster, &["set", "port_buffer", "262144"]);
    assert_eq!((budget(&one), budget(&other)), (before * 2, before * 2));
}

#[test]
fn a_copy_goes_by_the_environment_but_for_what_it_sets_itself() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    let mut cmd = receive(&directory, PORT);
    cmd.env("ROPEWAY_TUNE", "lease=20000,give_up=7000");
    let _receiver = receiver(&cluster, &cmd);
    for (name, value) in [("lease", "20000 us"), ("give_up", "5000 ms"), ("send_buffer", "4194304 bytes")] {
        let told = tune(&cluster, &["get", name]);
        assert!(told.ends_with(&format!("\t{value}\n")), "{told}");
    }
    for name in ["ROPEWAY_SPIN_US", "ROPEWAY_URGENT_PRIORITY", "ROPEWAY_PACKET_BYTES", "ROPEWAY_TUNE"] {
        let mut cmd = receive(&directory, PORT + 1);
        let refused = cluster.run("h2", cmd.env(name, "nonsense"), LIMIT);
        assert!(!refused.success() && refused.stderr.contains(name), "{name}: {}", refused.stderr);
    }
}

#[test]
fn what_cannot_be_tuned_is_said_clearly_and_changes_nothing() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let list = tune(&cluster, &["list"]);
    assert!(list.contains("port_buffer = 131072 bytes") && list.contains("No engine runs here"), "{list}");
    let told = tune_error(&cluster, &["get", "lease"]);
    assert!(told.contains("no engine runs here"), "{told}");
    let told = tune_error(&cluster, &["set", "lease", "20000"]);
    assert!(told.contains("no engine runs here") && told.contains("ROPEWAY_TUNE"), "{told}");

    let directory = TempDir::new().expect("a temporary directory");
    let receiver = receiver(&cluster, &receive(&directory, PORT));
    let all = tune(&cluster, &["list"]);
    let cases: [(&[&str], &str); 6] = [
        (&["set", "port_buffer", "1"], "port_buffer takes 16384 to 1073741824 bytes, not 1"),
        (&["set", "lease", "1000001"], "lease takes 1000 to 1000000 us, not 1000001"),
        (&["set", "leese", "1000"], "there is no tunable `leese`; `ropeway tune list` names them all"),
        (&["get", "leese"], "there is no tunable `leese`; `ropeway tune list` names them all"),
        (&["set", "lease", "long"], "lease takes a whole number of us, not `long`"),
        (&["get", "lease", "--pid", "1"], "process 1 has no engine"),
    ];
    for (args, text) in cases {
        let told = tune_error(&cluster, args);
        assert!(told.contains(text), "{args:?}: {told}");
    }
    assert_eq!(tune(&cluster, &["list"]), all);
    assert!(receiver.is_running());
}

#[test]
fn who_refuses_a_value_is_named_and_the_others_take_it() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    let mut copy = Copy::begin(cluster);
    let cluster = &copy.cluster;
    // Who has a peer has told it what it may send. The others come before and behind it, whatever the order.
    let others = [PORT + 1, PORT + 2].map(|port| receiver(cluster, &receive(&directory, port)));
    let lower = 128 << 20;
    let set = ["tune", "set", "receive_memory", &lower.to_string()];
    let finished = ropeway(cluster, "h2", &set);
    let refused = format!("ropeway tune: process {}: receive_memory can be raised now", copy.receiver.pid());
    assert!(!finished.success() && finished.stderr.starts_with(&refused), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    let now = tune(cluster, &["get", "receive_memory"]);
    for other in &others {
        let pid = other.pid();
        assert!(
            finished.stdout.contains(&format!("{pid}\treceive_memory\t268435456 -> {lower}\n")),
            "{}",
            finished.stdout
        );
        assert!(now.contains(&format!("{pid}\treceive_memory\t{lower} bytes\n")), "{now}");
    }
    assert!(now.contains(&format!("{}\treceive_memory\t268435456 bytes\n", copy.receiver.pid())), "{now}");
    // Nor does one that is stopped keep them from it.
    let [stopped, other] = &others;
    stopped.signal(Signal::STOP);
    let finished = ropeway(cluster, "h2", &["tune", "set", "lease", "20000"]);
    stopped.signal(Signal::CONT);
    let told = format!("ropeway tune: process {} does not answer\n", stopped.pid());
    assert!(!finished.success() && finished.stderr == told, "{}", finished.stderr);
    for pid in [other.pid(), copy.receiver.pid()] {
        assert!(finished.stdout.contains(&format!("{pid}\tlease\t10000 -> 20000\n")), "{}", finished.stdout);
    }
    copy.end();
}

#[test]
fn an_engine_that_is_stopped_is_there_and_takes_nothing_afterwards() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    let receiver = receiver(&cluster, &receive(&directory, PORT));
    receiver.signal(Signal::STOP);
    for args in [&["ss"][..], &["ss", "--counters"], &["tune", "list"]] {
        let looked = ropeway(&cluster, "h2", args);
        assert!(!looked.success() && looked.stderr.contains("does not answer"), "{}", looked.stderr);
        assert_eq!((looked.stderr.lines().count(), &*looked.stdout), (1, ""), "{}", looked.stderr);
        assert_eq!(ropeway(&cluster, "h2", &[args, &["--json"]].concat()).stdout, "[]\n");
    }
    let told = ropeway(&cluster, "h2", &["tune", "set", "lease", "20000"]);
    assert!(!told.success(), "{}", told.stdout);
    receiver.signal(Signal::CONT);
    let told = ropeway(&cluster, "h2", &["tune", "get", "lease"]).expect_success().stdout;
    assert!(told.ends_with("\tlease\t10000 us\n"), "{told}");
}

#[test]
fn where_nobody_is_there_a_program_reads_an_empty_array_and_people_why() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "1"]);
    for args in [&["ss"][..], &["ss", "--counters"], &["gateway", "--show"], &["tune", "--pid", "1", "list"]] {
        let looked = ropeway(&cluster, "h1", args);
        assert_eq!((looked.success(), &*looked.stdout, looked.stderr.lines().count()), (false, "", 1), "{args:?}");
        let json = ropeway(&cluster, "h1", &[args, &["--json"]].concat());
        assert_eq!((json.success(), &*json.stdout, json.stderr), (false, "[]\n", looked.stderr), "{args:?}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    for args in [&["tune", "list"][..], &["tune", "list", "--json"], &["box", "list", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = command(env::ropeway(), args).stdout(writer).output().expect("it starts");
        assert!(ended.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn engines_of_other_users_are_no_matter_to_a_user_who_tunes() {
    need_box!();
    need_program!("setpriv");
    const USER: &str = "65534";
    let cluster = TestBox::up(&["--hosts", "2"]);
    let directory = TempDir::new().expect("a temporary directory");
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).expect("one's own directory");
    // Where the product lies not everybody may go.
    let program: PathBuf = directory.path().join("ropeway");
    env::install(&env::ropeway(), &program);
    let program = program.display().to_string();
    let of_user = |args: &[&str]| {
        let mut cmd = command("setpriv", ["--reuid", USER, "--regid", USER, "--clear-groups", "--", &program]);
        cmd.args(args).current_dir(directory.path());
        cmd
    };
    let _of_root = receiver(&cluster, &receive(&directory, PORT));
    let path = directory.path().display().to_string();
    let own = receiver(&cluster, &of_user(&["cp", "--receive", &path, "--bind", &format!("0.0.0.0:{}", PORT + 1)]));
    let tune = |args: &[&str]| cluster.run("h2", &of_user(&[&["tune"], args].concat()), LIMIT).expect_success().stdout;
    let pid = own.pid();
    assert_eq!(tune(&["get", "lease"]), format!("{pid}\tlease\t10000 us\n"));
    assert_eq!(tune(&["set", "lease", "20000"]), format!("{pid}\tlease\t10000 -> 20000\n"));
    assert!(tune(&["list"]).ends_with(&format!("Values of process {pid}.\n")));
}

#[test]
fn tools_wait_for_all_silent_ones_of_another_user_together_as_long_as_for_one() {
    need_box!();
    need_program!("python3");
    const SILENT: &str = "\
import os, socket, time
os.setuid(65534)
silent = []
for kind in 'engine', 'gateway':
    for number in range(10):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].bind(f'\\0ropeway-{kind}/65534/1.{number}')
        silent[-1].listen()
print('silent', flush=True)
time.sleep(1000)
";
    let cluster = TestBox::up(&["--hosts", "1"]);
    let silent = cluster.spawn("h1", &command("python3", ["-c", SILENT]));
    silent.wait_for_output("silent", LIMIT);
    let begin = Instant::now();
    let asking: Vec<Process> = [&["tune", "get", "lease"][..], &["tune", "list"], &["gateway", "--show"]]
        .into_iter()
        .map(|args| cluster.spawn("h1", &command(env::ropeway(), args)))
        .collect();
    for tool in asking {
        let looked = tool.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert!(begin.elapsed() < Duration::from_secs(12), "{looked:#?}");
        assert!(!looked.success() && looked.stderr.contains("user 65534: not all were asked"), "{}", looked.stderr);
    }
}
