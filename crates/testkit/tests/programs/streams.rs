//! Programs that move a lot in one direction, or measure.

use crate::{LONG_LIVED, ONE_STREAM};
use ropeway_testkit::compat::{Case, Found};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::{self, LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{need_program, net};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// iperf3 for two seconds with `options`; both sums of its report are moved bytes, and no stream failed.
fn iperf3(name: &'static str, options: &[&str]) {
    let case = Case::new(name);
    let port = net::free_port().to_string();
    let (server, client) = (case.ropeway("server"), case.ropeway("client"));
    let listening = server.spawn(command("iperf3", ["-s", "-1", "-B", "127.0.0.1", "-p", &port]));
    listening.wait_for_port(port.parse().expect("a port"), START_LIMIT);
    let mut load = command("iperf3", ["-c", "127.0.0.1", "-p", &port, "-t", "2", "-J"]);
    load.args(options);
    let report = client.spawn(load).succeed(LOAD_LIMIT).stdout;
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|e| panic!("not a report ({e}): {report}"));
    assert!(report.get("error").is_none(), "{report:#}");
    let mut sums = vec![("sum_sent", "sum_received")];
    if options.contains(&"--bidir") {
        sums.push(("sum_sent_bidir_reverse", "sum_received_bidir_reverse"));
    }
    for (sent, received) in sums {
        let bytes = |sum: &str| report["end"][sum]["bytes"].as_u64().unwrap_or_else(|| panic!("no {sum}: {report:#}"));
        assert!(
            bytes(received) > 0 && bytes(received) <= bytes(sent),
            "{received} {} {sent} {}",
            bytes(received),
            bytes(sent)
        );
        // What was still under way when the two seconds were over is at most what TCP and the rings hold.
        assert!(bytes(received) * 10 > bytes(sent) * 8, "{received} {} {sent} {}", bytes(received), bytes(sent));
    }
    listening.wait(LOAD_LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
    case.expect_shm(
        LONG_LIVED,
        Found {
            version: servers::version("iperf3", &["--version"]),
            result: "2 s, what was sent was received".into(),
            note: "the control connection is short and stays on TCP",
        },
    );
}

#[test]
fn iperf3_with_one_stream() {
    need_program!("iperf3");
    iperf3("iperf3", &[]);
}

#[test]
fn iperf3_with_eight_streams() {
    need_program!("iperf3");
    iperf3("iperf3 -P 8", &["-P", "8"]);
}

#[test]
fn iperf3_in_both_directions_at_once() {
    need_program!("iperf3");
    iperf3("iperf3 --bidir", &["--bidir"]);
}

#[test]
fn iperf3_reversed() {
    need_program!("iperf3");
    iperf3("iperf3 -R", &["-R"]);
}

/// sockperf's server with a client in one of its modes; the client's summary must contain `proof`.
fn sockperf(name: &'static str, mode: &[&str], proof: &str) {
    let case = Case::new(name);
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, client) = (case.ropeway("server"), case.ropeway("client"));
    let listening = server.spawn(command("sockperf", ["server", "--tcp", "-i", "127.0.0.1", "-p", &port_arg]));
    listening.wait_for_port(port, START_LIMIT);
    let mut load = command("sockperf", mode);
    load.args(["--tcp", "-i", "127.0.0.1", "-p", &port_arg, "-t", "3"]);
    let output = client.spawn(load).succeed(LOAD_LIMIT).stdout;
    assert!(output.contains(proof), "{output}");
    assert!(!output.contains("ERROR") && !output.contains("# dropped messages = 1"), "{output}");
    listening.signal(Signal::INT);
    listening.wait(servers::STOP_LIMIT).unwrap_or_else(|e| panic!("{e}"));
    case.expect_shm(
        LONG_LIVED,
        Found {
            version: servers::version("sockperf", &["--version"]),
            result: "3 s, no message lost or doubled".into(),
            note: "",
        },
    );
}

#[test]
fn sockperf_ping_pong() {
    need_program!("sockperf");
    sockperf(
        "sockperf ping-pong",
        // More messages a second than it makes room for by default.
        &["ping-pong", "--mps=5000000"],
        "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0",
    );
}

#[test]
fn sockperf_throughput() {
    need_program!("sockperf");
    sockperf("sockperf throughput", &["throughput", "-m", "1024"], "Summary: Message Rate is ");
}

#[test]
fn socat_pipes_a_hundred_megabytes() {
    need_program!("socat");
    let case = Case::new("socat");
    let port = net::free_port();
    let (receiver, sender) = (case.ropeway("receiver"), case.ropeway("sender"));
    let (source, copy) = (case.dir().join("source"), case.dir().join("copy"));
    servers::make_file(&source, 100 << 20);
    let listening = receiver.spawn(command(
        "socat",
        ["-u", &format!("TCP-LISTEN:{port},bind=127.0.0.1"), &format!("CREATE:{}", copy.display())],
    ));
    listening.wait_for_port(port, START_LIMIT);
    let sending = ["-u", &format!("OPEN:{}", source.display()), &format!("TCP:127.0.0.1:{port}")];
    sender.spawn(command("socat", sending)).succeed(LOAD_LIMIT);
    listening.succeed(LOAD_LIMIT);
    servers::assert_same_file(&source, &copy);
    case.expect_shm(
        ONE_STREAM,
        Found { version: servers::version("socat", &["-V"]), result: "100 MB right".into(), note: "" },
    );
}

/// A tree with small files, large ones, an empty one, a link and several levels.
fn make_tree(root: &Path) {
    for directory in 0..10 {
        let directory = root.join(format!("d{directory}/deeper"));
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        for file in 0..30 {
            servers::make_file(&directory.join(format!("f{file}")), file * 997);
        }
    }
    for file in 0..4 {
        servers::make_file(&root.join(format!("large{file}")), 12_000_000 + file);
    }
    std::os::unix::fs::symlink("large0", root.join("link")).expect("a link can be made");
}

#[test]
fn rsync_daemon_copies_a_tree_both_ways() {
    need_program!("rsync", "diff");
    let case = Case::new("rsync");
    let dir = case.dir();
    let (tree, up, down) = (dir.join("tree"), dir.join("up"), dir.join("down"));
    make_tree(&tree);
    std::fs::create_dir(&up).expect("a directory can be made");
    let config = dir.join("rsyncd.conf");
    // Started by root the daemon would serve as nobody, who may not keep the times and owners of what it receives.
    let text = format!(
        "uid = 0\ngid = 0\nuse chroot = no\nmunge symlinks = no\npid file = {}/rsync.pid\n[tree]\npath = {}\n[up]\npath = {}\nread only = no\n",
        dir.display(),
        tree.display(),
        up.display()
    );
    std::fs::write(&config, text).expect("the configuration of rsync can be written");
    let port = net::free_port();
    let (server, client) = (case.ropeway("daemon"), case.ropeway("client"));
    let mut daemon = command("rsync", ["--daemon", "--no-detach", "--address=127.0.0.1"]);
    // Without a terminal or a file rsync takes its standard input for a socket of inetd: a pipe is neither.
    daemon.arg(format!("--port={port}")).arg(format!("--config={}", config.display())).arg("--log-file=/dev/null");
    let (daemon, _open) = Process::spawn_with_stdin(server.command(daemon));
    daemon.wait_for_port(port, START_LIMIT);
    let url = |module: &str| format!("rsync://127.0.0.1:{port}/{module}/");
    let local = |path: &Path| format!("{}/", path.display());
    let copy = |from: String, to: String| {
        client.spawn(command("rsync", ["-a", "--checksum", "--whole-file", &from, &to])).succeed(LOAD_LIMIT);
    };
    copy(url("tree"), local(&down));
    copy(local(&tree), url("up"));
    servers::stop(&daemon);
    for copied in [&up, &down] {
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).arg(&tree).arg(copied);
        Process::spawn(diff).succeed(LOAD_LIMIT);
    }
    // The times that -a keeps are part of the right result.
    let modified = |path: &Path| File::open(path).and_then(|f| f.metadata()?.modified()).expect("a file has a time");
    assert_eq!(modified(&tree.join("large1")), modified(&down.join("large1")));
    case.expect_shm(
        ONE_STREAM,
        Found {
            version: servers::version("rsync", &["--version"]),
            result: "a tree of 300 files and 52 MB right, down and up".into(),
            note: "one process per connection",
        },
    );
}
