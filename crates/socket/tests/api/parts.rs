//! What other tests do in processes of their own: to exit there, or under another environment.

use crate::kind;
use ropeway_socket::{Address, Listener, Stream, ToAddresses};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BYTES: usize = 5_000_000;

/// This test program again, as a process of its own that does `part`.
pub fn another(part: &str, argument: &str, environment: &[(&str, &str)]) -> Child {
    command(part, argument, environment).spawn().unwrap()
}

pub fn command(part: &str, argument: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "parts::a_part_for_another_process", "--nocapture"]);
    command.env("ROPEWAY_TEST_PART", part).env("ROPEWAY_TEST_ARGUMENT", argument);
    command.env_remove("ROPEWAY_KEY_FILE").env_remove("ROPEWAY_TRUSTED");
    command.env_remove("ROPEWAY_CLUSTER").env_remove("ROPEWAY_NODE").envs(environment.iter().copied());
    command.stdout(Stdio::null());
    command
}

/// Run by other tests, in a process of its own; alone it has nothing to do.
#[test]
fn a_part_for_another_process() {
    let Ok(part) = std::env::var("ROPEWAY_TEST_PART") else { return };
    let argument = std::env::var("ROPEWAY_TEST_ARGUMENT").unwrap();
    match part.as_str() {
        "write and exit" => {
            let mut stream = Stream::connect(argument.as_str()).unwrap();
            stream.write_all(&vec![b'x'; BYTES]).unwrap();
            std::process::exit(0);
        }
        "write a little and exit" => {
            Stream::connect(argument.as_str()).unwrap().write_all(b"a little").unwrap();
            std::process::exit(0);
        }
        "accept, answer and exit" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
            stream.write_all(&vec![b'y'; BYTES]).unwrap();
            std::process::exit(0);
        }
        "accept and hold" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            let _held = listener.accept().unwrap();
            loop {
                std::thread::park();
            }
        }
        "outlive servers" => outlive_servers(&argument),
        "fork during the first call" => fork_during_the_first_call(argument.parse().unwrap()),
        "serve until killed" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            for stream in std::iter::repeat_with(|| listener.accept().unwrap().0) {
                std::thread::spawn(move || {
                    let mut stream = stream;
                    stream.read_exact(&mut [0; 5]).unwrap();
                    stream.write_all(b"world").unwrap();
                    std::thread::park();
                });
            }
        }
        "write and exit when told" => {
            let mut stream = Stream::connect(argument.as_str()).unwrap();
            println!("connected");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            stream.write_all(b"for nobody").unwrap();
            println!("exits");
            std::process::exit(0);
        }
        "talk to oneself" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            let (mut client, mut server) = crate::connect(&listener);
            client.write_all(b"hello").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
        }
        "be asked at several addresses" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            let port = listener.local_addr().unwrap().port();
            for ip in ["127.0.0.2", "127.0.0.1", "127.1.2.3"] {
                let asked = Address::Udp(SocketAddr::new(ip.parse().unwrap(), port));
                let mut client = Stream::connect_timeout(&asked, crate::SOON).unwrap();
                let (mut server, peer) = listener.accept().unwrap();
                assert_eq!((client.peer_addr().unwrap(), server.local_addr().unwrap()), (asked.clone(), asked));
                assert_eq!(client.local_addr().unwrap(), peer);
                let writer = std::thread::spawn(move || client.write_all(&vec![b'x'; BYTES]).map(|()| client));
                server.read_exact(&mut vec![0; BYTES]).unwrap();
                let mut client = writer.join().unwrap().unwrap();
                server.write_all(b"all").unwrap();
                client.read_exact(&mut [0; 3]).unwrap();
            }
        }
        "listen over both protocols" => {
            let six = Listener::bind(argument.as_str()).unwrap();
            let ask = || Stream::connect((Ipv4Addr::LOCALHOST, six.port()));
            assert_eq!(kind(ask()), ErrorKind::ConnectionRefused);
            let four = Listener::bind((Ipv4Addr::UNSPECIFIED, six.port())).unwrap();
            let client = ask().unwrap();
            assert_eq!(four.accept().unwrap().1, client.local_addr().unwrap());
            let client = crate::connect(&six).0;
            assert_eq!(client.peer_addr().unwrap().port(), six.port());
        }
        "serve a node" => {
            let listener = Listener::bind(argument.as_str()).unwrap();
            let (mut stream, peer) = listener.accept().unwrap();
            assert!(peer.to_string().starts_with("@2:"), "{peer}");
            stream.read_exact(&mut vec![0; BYTES]).unwrap();
            stream.write_all(b"all").unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
        }
        "talk to a node" => {
            let mut stream = connect_when_it_is_up(&argument);
            assert_eq!(stream.peer_addr().unwrap().to_string(), argument.replace("node", "@"));
            assert!(stream.local_addr().unwrap().to_string().starts_with("127.0.0.2:"), "{stream:?}");
            stream.write_all(&vec![b'x'; BYTES]).unwrap();
            stream.read_exact(&mut [0; 3]).unwrap();
            stream.write_all(b"bye").unwrap();
        }
        "fail to reach a node" => {
            let (address, expected) = argument.split_once(' ').unwrap();
            let error = Stream::connect(address).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        "resolve" => {
            let (name, port) = argument.rsplit_once(':').unwrap();
            let expected = (name, port.parse::<u16>().unwrap()).to_socket_addrs().unwrap().next().unwrap();
            for found in [argument.to_addresses(), (name, expected.port()).to_addresses()] {
                assert_eq!(found.unwrap()[0], Address::Udp(expected));
            }
        }
        "fail to listen" => {
            let (address, expected) = argument.split_once(' ').unwrap();
            assert_eq!(format!("{:?}", kind(Listener::bind(address))), expected);
        }
        other => panic!("{other}"),
    }
}

/// Who comes too early is refused, or, as behind gateways nobody says that nobody is there, waits; and asks again.
fn connect_when_it_is_up(address: &str) -> Stream {
    let begin = Instant::now();
    loop {
        match Stream::connect(address) {
            Ok(stream) => return stream,
            Err(error) if begin.elapsed() > crate::SOON => panic!("{error}"),
            Err(_) => {}
        }
    }
}

fn succeeds(part: &str, argument: &str, environment: &[(&str, &str)]) {
    assert!(another(part, argument, environment).wait().unwrap().success(), "{part} {argument} {environment:?}");
}

/// What TCP's clients are used to: who was killed and is there again can be connected to at once, also by who has not noticed.
#[test]
fn a_server_that_was_killed_is_reached_again_as_soon_as_it_is_back() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    // The last server is not there any more to acknowledge the end.
    let no_linger = ("ROPEWAY_LINGER_MS", "0");
    succeeds("outlive servers", &address, &[no_linger]);
    let dir = tempfile::tempdir().unwrap();
    succeeds("outlive servers", &address, &[no_linger, ("ROPEWAY_KEY_FILE", &key_file(dir.path()))]);
}

fn outlive_servers(address: &str) {
    let key = std::env::var("ROPEWAY_KEY_FILE");
    let environment: Vec<(&str, &str)> = key.iter().map(|key| ("ROPEWAY_KEY_FILE", key.as_str())).collect();
    let serve = || another("serve until killed", address, &environment);
    let talk = |mut stream: Stream| {
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        stream
    };
    let mut server = serve();
    let mut former = talk(connect_when_it_is_up(address));
    for _ in 0..3 {
        server.kill().unwrap();
        server.wait().unwrap();
        server = serve();
        let begin = Instant::now();
        let stream = talk(connect_when_it_is_up(address));
        // With a key nobody can prove that the former one is gone.
        if key.is_err() {
            let error = former.read(&mut [0; 5]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        // Silence would take ten.
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
        former = stream;
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Another thread is at its first call, which reads this process's environment and cluster, for so long when the child is made.
fn fork_during_the_first_call(after: u64) {
    let first = std::thread::spawn(|| Listener::bind("127.0.0.1:0").map(drop));
    std::thread::sleep(Duration::from_micros(after));
    // SAFETY: the child makes calls that a forked child may make, and leaves without running anything of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal for this child only, should it hang.
        unsafe { libc::alarm(10) };
        let is_bound = Listener::bind("127.0.0.1:0").is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_bound)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
    first.join().unwrap().unwrap();
}

#[test]
fn a_child_that_is_forked_during_its_parents_first_call_makes_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.toml");
    // Long enough to be read for milliseconds.
    let nodes = (1..1000).map(|number| {
        let (high, low) = (number / 250, number % 250 + 1);
        format!("[[node]]\nnumber = {number}\nname = \"node{number}\"\naddresses = {{ lan = \"10.0.{high}.{low}\" }}\n")
    });
    std::fs::write(&file, format!("trusted = true\n{}", nodes.collect::<String>())).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    for after_us in [500, 2000, 5000, 10_000] {
        succeeds("fork during the first call", &after_us.to_string(), &[("ROPEWAY_CLUSTER", file.to_str().unwrap())]);
    }
}

/// A key in a file, as its owner keeps it.
fn key_file(dir: &std::path::Path) -> String {
    let file = dir.join("key");
    std::fs::write(&file, "00112233445566778899aabbccddeeff0f1e2d3c4b5a69788796a5b4c3d2e1f0\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn between_hosts_a_key_or_the_word_that_none_is_needed_is_asked_for() {
    succeeds("fail to listen", "0.0.0.0:0 PermissionDenied", &[]);
    succeeds("talk to oneself", "127.0.0.1:0", &[]);
    succeeds("talk to oneself", "0.0.0.0:0", &[("ROPEWAY_TRUSTED", "1")]);
    let dir = tempfile::tempdir().unwrap();
    let file = key_file(dir.path());
    let file = file.as_str();
    let permit = |mode| std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    permit(0o644);
    succeeds("fail to listen", "0.0.0.0:0 PermissionDenied", &[("ROPEWAY_KEY_FILE", file)]);
    permit(0o600);
    for address in ["0.0.0.0:0", "127.0.0.1:0"] {
        succeeds("talk to oneself", address, &[("ROPEWAY_KEY_FILE", file)]);
    }
}

#[test]
fn who_listens_at_all_addresses_is_reached_at_each_and_says_at_which() {
    succeeds("be asked at several addresses", "0.0.0.0:0", &[("ROPEWAY_TRUSTED", "1")]);
}

#[test]
fn who_listens_at_all_addresses_of_ipv6_is_not_reached_over_ipv4_and_may_listen_there_as_well() {
    succeeds("listen over both protocols", "[::]:0", &[("ROPEWAY_TRUSTED", "1")]);
}

#[test]
fn what_is_not_on_this_host_cannot_be_listened_at() {
    let trusted = [("ROPEWAY_TRUSTED", "1")];
    succeeds("fail to listen", "192.0.2.1:0 AddrNotAvailable", &trusted);
    let may = std::process::Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success());
    let expected = if may { "NotFound" } else { "PermissionDenied" };
    succeeds("fail to listen", &format!("no-such-device/*:7000 {expected}"), &trusted);
}

#[test]
fn an_environment_without_sense_fails_what_would_have_needed_it() {
    for (name, value) in [("ROPEWAY_TUNE", "no_such_thing=1"), ("ROPEWAY_LINK", "pigeon"), ("ROPEWAY_SPIN_US", "much")]
    {
        succeeds("fail to listen", "127.0.0.1:0 InvalidInput", &[(name, value)]);
    }
    let all =
        [("ROPEWAY_TUNE", "send_buffer=65536,coalesce=0"), ("ROPEWAY_SPIN_US", "0"), ("ROPEWAY_PACKET_BYTES", "512")];
    succeeds("talk to oneself", "127.0.0.1:0", &all);
}
