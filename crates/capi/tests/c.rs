//! The library as programs in C have it: compiled against its headers, linked with it, run as processes of their own.

mod support;

use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{need_program, need_root};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{Library, compile, example, program, root};

const LIMIT: Duration = Duration::from_secs(60);

fn run(command: Command) -> String {
    let finished = Process::spawn(command).wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert!(finished.success(), "{finished:?}");
    finished.stdout
}

#[test]
fn every_call_keeps_its_word() {
    let library = Library::build();
    assert_eq!(run(library.command(&program("calls"), &[])), "all calls keep their word\n");
}

#[test]
fn every_call_keeps_its_word_over_ethernet() {
    need_root!();
    need_program!("ip", "unshare");
    let library = Library::build();
    // Two devices that are joined, in a network of the program's own.
    let joined =
        "ip link add one type veth peer name other && ip link set one up && ip link set other up && exec \"$@\"";
    let calls = program("calls");
    let calls = calls.to_str().expect("UTF-8");
    let unshare = std::path::Path::new("unshare");
    let mut command = library.command(unshare, &["-n", "sh", "-c", joined, "sh", calls, "one", "other"]);
    command.env("ROPEWAY_TRUSTED", "1");
    assert_eq!(run(command), "all calls keep their word over Ethernet\n");
}

#[test]
fn a_device_that_was_taken_away_can_be_used_again_when_it_is_back() {
    need_root!();
    need_program!("ip", "unshare");
    let library = Library::build();
    let devices = program("devices");
    let unshare = std::path::Path::new("unshare");
    // Whose devices /sys has is settled when it is mounted.
    let own = "mount -t sysfs sysfs /sys && exec \"$@\"";
    for link in ["packet:one", "xdp:one"] {
        let mut command = library.command(unshare, &["-nm", "sh", "-c", own, "sh", devices.to_str().expect("UTF-8")]);
        command.env("ROPEWAY_TRUSTED", "1").env("ROPEWAY_LINK", link);
        command.env("ROPEWAY_NODES", "1=02:00:00:00:00:01,2=02:00:00:00:00:02");
        assert_eq!(run(command), "devices may come back\n", "{link}");
    }
}

#[test]
fn who_listens_on_a_device_whose_mtu_is_raised_can_be_connected_to() {
    need_root!();
    need_program!("ip", "unshare");
    let library = Library::build();
    let devices = program("devices");
    let args = ["-n", devices.to_str().expect("UTF-8"), "raised"];
    let mut command = library.command(std::path::Path::new("unshare"), &args);
    command.env("ROPEWAY_TRUSTED", "1");
    assert_eq!(run(command), "devices may bear more\n");
}

#[test]
fn a_host_that_is_not_there_is_waited_for_no_longer_than_the_caller_waits() {
    need_root!();
    need_program!("ip", "unshare");
    let library = Library::build();
    let devices = program("devices");
    let args = ["-n", devices.to_str().expect("UTF-8"), "absent"];
    let mut command = library.command(std::path::Path::new("unshare"), &args);
    command.env("ROPEWAY_TRUSTED", "1").env("ROPEWAY_LINK", "packet:one").env("ROPEWAY_LINGER_MS", "0");
    assert_eq!(run(command), "hosts may be absent\n");
}

#[test]
fn a_thread_that_is_cancelled_while_the_network_changes_is_so_after_the_call() {
    need_root!();
    need_program!("ip", "unshare");
    let library = Library::build();
    let cancels = program("cancels");
    let cancels = cancels.to_str().expect("UTF-8");
    let mut command = library.command(std::path::Path::new("unshare"), &["-n", cancels]);
    command.env("ROPEWAY_TRUSTED", "1");
    assert_eq!(run(command), "cancelled after the calls\n");
}

#[test]
fn a_program_may_load_the_library_and_let_go_of_it() {
    let library = Library::build();
    let program = program("load");
    let path = library.path();
    assert_eq!(run(library.command(&program, &[path.to_str().expect("UTF-8")])), "loaded and let go\n");
}

#[test]
fn the_librarys_threads_have_their_stacks_however_much_thread_local_memory_the_program_has() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let key = dir.path().join("key");
    std::fs::write(&key, "00112233445566778899aabbccddeeff0f1e2d3c4b5a69788796a5b4c3d2e1f0\n").expect("written");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
    let text = std::fs::read_to_string(root().join("tests/programs/tls.c")).expect("readable");
    std::fs::copy(root().join("tests/programs/check.h"), dir.path().join("check.h")).expect("copied");
    for bytes in ["300000", "4000000"] {
        let source = dir.path().join(format!("tls{bytes}.c"));
        std::fs::write(&source, text.replace("300000", bytes)).expect("written");
        let tls = compile(&source, "cc", "-std=gnu11");
        for key in [None, Some(&key)] {
            let mut command = library.command(&tls, &[]);
            command.envs(key.map(|key| ("ROPEWAY_KEY_FILE", key)));
            assert_eq!(run(command), "there is a stack beside it\n", "{bytes} {key:?}");
        }
    }
}

#[test]
fn the_exit_loses_no_message_and_ends_all_connections_at_once() {
    let library = Library::build();
    assert_eq!(run(library.command(&program("exits"), &[])), "the exit keeps its word\n");
}

#[test]
fn a_leak_checker_has_nothing_to_say_of_a_program_that_exits() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let checked = |name: &str, body: &str| {
        let (source, out) = (dir.path().join(format!("{name}.c")), dir.path().join(name));
        std::fs::write(&source, format!("#include <ropeway.h>\nint main(void) {{ {body} }}\n")).expect("written");
        let mut compiler = command("cc", ["-fsanitize=leak", "-o"]);
        compiler.arg(&out).arg(source).arg("-I").arg(root().join("include"));
        compiler.arg("-L").arg(library.path().parent().expect("a directory")).arg("-lropeway");
        compiler.output().is_ok_and(|output| output.status.success()).then_some(out)
    };
    let finish = |program: &PathBuf| Process::spawn(library.command(program, &[])).wait(LIMIT).expect("in time");
    let idle = checked("idle", "return ropeway_error()[0];");
    if !idle.is_some_and(|idle| finish(&idle).success()) {
        ropeway_testkit::skip!("no program with a checker for leaks can be made, or run, here");
    }
    // One socket is closed, and one is not.
    let body =
        "int l = ropeway_serve(\"127.0.0.1:0\", ROPEWAY_STREAM, 1), s = ropeway_dial(\"127.0.0.1:9\", ROPEWAY_STREAM);
        return l < 0 || s >= 0 || ropeway_serve(\"127.0.0.1:0\", ROPEWAY_STREAM, 1) < 0 || ropeway_close(l);";
    let finished = finish(&checked("user", body).expect("it compiles"));
    assert!(finished.success(), "{finished:?}");
}

#[test]
fn the_calls_of_document_0_keep_theirs() {
    let library = Library::build();
    let cdp = program("cdp");
    let nodes = "1=127.0.0.1,2=127.0.0.2";
    let mut command = library.command(&cdp, &[]);
    command.env("ROPEWAY_NODES", nodes);
    assert_eq!(run(command), "all nine calls keep their word\n");
}

#[test]
fn the_limit_of_document_0_is_kept_when_it_is_asked_for() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = dir.path().join("nodes");
    std::fs::write(&nodes, "# where nodes are\n1 127.0.0.1\n2 127.0.0.2\n").expect("written");
    // The longest datagram of the program but for the one about the limit has 5000 bytes.
    let text =
        std::fs::read_to_string(root().join("tests/programs/cdp.c")).expect("readable").replace("5000]", "1000]");
    let source = dir.path().join("cdp.c");
    std::fs::write(&source, text).expect("written");
    std::fs::copy(root().join("tests/programs/check.h"), dir.path().join("check.h")).expect("copied");
    let mut command = library.command(&compile(&source, "cc", "-std=gnu11"), &[]);
    command.env("ROPEWAY_NODES", &nodes).env("ROPEWAY_CDP_LIMIT", "1472");
    assert_eq!(run(command), "all nine calls keep their word\n");
}

#[test]
fn the_headers_are_c_and_c_plus_plus() {
    let dir = tempfile::tempdir().expect("a directory");
    for header in ["ropeway.h", "cdp.h"] {
        let text = format!("#include <{header}>\n#include <{header}>\nint main() {{ return 0; }}\n");
        let (c, cpp) = (dir.path().join(format!("{header}.c")), dir.path().join(format!("{header}.cpp")));
        std::fs::write(&c, &text).expect("written");
        std::fs::write(&cpp, &text).expect("written");
        Library::build();
        compile(&c, "cc", "-std=c99");
        compile(&cpp, "c++", "-std=c++98");
    }
}

/// A server at a port that the system has chosen, and where that is.
fn serve(library: &Library, program: &std::path::Path) -> (Process, String) {
    let server = Process::spawn(library.command(program, &["serve", "127.0.0.1:0"]));
    server.wait_for_output("\n", LIMIT);
    let address = server.stdout().trim().strip_prefix("listening at ").expect("an address").to_owned();
    (server, address)
}

#[test]
fn an_echo_comes_back() {
    let library = Library::build();
    let echo = example("echo");
    let (_server, address) = serve(library, &echo);
    for text in ["hello", "once more"] {
        assert_eq!(run(library.command(&echo, &["say", &address, text])), format!("{text}\n"));
    }
}

fn free_address() -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").to_string()
}

/// Until the server is up nobody is at its port.
fn run_when_it_is_up(mut client: impl FnMut() -> Command) -> String {
    let begin = std::time::Instant::now();
    loop {
        let finished = Process::spawn(client()).wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
        if finished.success() {
            return finished.stdout;
        }
        assert!(begin.elapsed() < LIMIT, "{finished:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_file_is_copied() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    std::fs::write(path("here"), &content).expect("written");
    let (copy, address) = (example("copy"), free_address());
    let (here, there) = (path("here"), path("there"));
    let receiver = Process::spawn(library.command(&copy, &["receive", &address, there.to_str().expect("UTF-8")]));
    run_when_it_is_up(|| library.command(&copy, &["send", here.to_str().expect("UTF-8"), &address]));
    let finished = receiver.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert!(finished.success() && finished.stderr.contains("100 %"), "{finished:?}");
    assert!(std::fs::read(path("there")).expect("there") == content);
}

#[test]
fn messages_go_to_and_fro_and_their_times_are_told() {
    let library = Library::build();
    let pingpong = example("pingpong");
    for size in ["0", "64", "20000"] {
        let (server, address) = serve(library, &pingpong);
        let told = run(library.command(&pingpong, &["measure", &address, size, "300"]));
        assert!(told.starts_with(&format!("300 messages of {size} bytes")) && told.contains("p99.9 "), "{told}");
        assert!(server.wait(LIMIT).is_ok_and(|finished| finished.success()));
    }
}

#[test]
fn nodes_of_document_0_talk() {
    let library = Library::build();
    let cdp = example("cdp");
    let node = |args: &[&str]| {
        let mut command = library.command(&cdp, args);
        command.env("ROPEWAY_NODES", "1=127.0.0.1,2=127.0.0.2");
        command
    };
    let server = Process::spawn(node(&["1", "lo"]));
    server.wait_for_output("listening\n", LIMIT);
    run(node(&["2", "lo", "some", "words"]));
    let finished = server.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(finished.stdout, "listening\nfrom node 2\nsome\nwords\n", "{finished:?}");
}

/// Nodes 1 and 2 on this host, by name.
fn cluster(dir: &std::path::Path) -> PathBuf {
    let node = |number: u8| {
        format!("[[node]]\nnumber = {number}\nname = \"node{number}\"\naddresses = {{ lan = \"127.0.0.{number}\" }}\n")
    };
    let path = dir.join("cluster.toml");
    std::fs::write(&path, format!("trusted = true\n{}{}", node(1), node(2))).expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("it is ours");
    path
}

#[test]
fn nodes_of_a_cluster_are_addresses() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let path = cluster(dir.path());
    let echo = example("echo");
    let as_node = |node: &str, args: &[&str]| {
        let mut command = library.command(&echo, args);
        command.env("ROPEWAY_CLUSTER", &path).env("ROPEWAY_NODE", node);
        command
    };
    let server = Process::spawn(as_node("node1", &["serve", "node1:0"]));
    server.wait_for_output("\n", LIMIT);
    let line = server.stdout();
    let port = line.trim().strip_prefix("listening at 127.0.0.1:").expect("an address of node 1").to_owned();
    for name in ["node1", "@1"] {
        assert_eq!(run(as_node("2", &["say", &format!("{name}:{port}"), "hello"])), "hello\n");
    }
    let elsewhere = Process::spawn(as_node("2", &["serve", "node1:0"])).wait(LIMIT).expect("in time");
    assert!(!elsewhere.success() && elsewhere.stderr.contains("this is node2"), "{elsewhere:?}");
}

#[test]
fn nodes_of_document_0_are_those_of_the_cluster() {
    let library = Library::build();
    let dir = tempfile::tempdir().expect("a directory");
    let path = cluster(dir.path());
    let mut calls = library.command(&program("cdp"), &[]);
    calls.env("ROPEWAY_CLUSTER", &path).env("CDP_OF_CLUSTER", "1");
    assert_eq!(run(calls), "all nine calls keep their word\n");
}

#[test]
fn only_what_the_headers_declare_is_exported() {
    let library = Library::build();
    let output = command("nm", ["-D", "--defined-only", "--format=posix"]).arg(library.path()).output().expect("nm");
    let exported: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next().map(String::from))
        .collect();
    let declared: String = ["ropeway.h", "cdp.h"]
        .map(|name| std::fs::read_to_string(root().join("include").join(name)).expect("there"))
        .concat();
    assert!(!exported.is_empty(), "{output:?}");
    for name in &exported {
        assert!(declared.contains(&format!("{name}(")), "{name} is exported and not declared");
    }
    let functions = declared.split([' ', '*', '\n']).filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    for name in functions.filter(|name| name.starts_with("ropeway_") || name.starts_with("cdp_")) {
        assert!(exported.iter().any(|exported| exported == name), "{name} is not exported");
    }
}
