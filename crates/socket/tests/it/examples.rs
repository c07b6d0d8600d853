//! The examples do what they say.

use ropeway_testkit::env;
use ropeway_testkit::proc::{Process, command};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

fn example(name: &str, args: &[&str]) -> Command {
    command(env::example(name), args)
}

fn run(command: Command) -> String {
    Process::spawn(command).wait(LIMIT).unwrap_or_else(|error| panic!("{error}")).expect_success().stdout
}

/// Until the server is up nobody is at its port.
fn run_when_it_is_up(client: impl Fn() -> Command) -> String {
    let begin = Instant::now();
    loop {
        let finished = Process::spawn(client()).wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
        if finished.success() {
            return finished.stdout;
        }
        assert!(begin.elapsed() < LIMIT, "{finished:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn free_address() -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address").to_string()
}

/// A server at a port that the system has chosen, and where that is.
fn serve(name: &str) -> (Process, String) {
    let server = Process::spawn(example(name, &["serve", "127.0.0.1:0"]));
    server.wait_for_output("\n", LIMIT);
    let address = server.stdout().trim().strip_prefix("listening at ").expect("an address").to_owned();
    (server, address)
}

#[test]
fn an_echo_comes_back() {
    let (_server, address) = serve("echo");
    for text in ["hello", "once more"] {
        assert_eq!(run(example("echo", &["say", &address, text])), format!("{text}\n"));
    }
}

#[test]
fn a_file_is_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    std::fs::write(path("here"), &content).expect("written");
    let address = free_address();
    let receiver = Process::spawn(example("copy", &["receive", &address, &path("there")]));
    run_when_it_is_up(|| example("copy", &["send", &path("here"), &address]));
    let finished = receiver.wait(LIMIT).unwrap_or_else(|error| panic!("{error}")).expect_success();
    assert!(finished.stderr.contains("100 %"), "{finished:?}");
    assert!(std::fs::read(path("there")).expect("there") == content);
}

#[test]
fn messages_go_to_and_fro_and_their_times_are_told() {
    for size in ["0", "64", "20000"] {
        let (server, address) = serve("pingpong");
        let told = run(example("pingpong", &["measure", &address, size, "300"]));
        assert!(told.starts_with(&format!("300 messages of {size} bytes")) && told.contains("p99.9 "), "{told}");
        server.wait(LIMIT).unwrap_or_else(|error| panic!("{error}")).expect_success();
    }
}
