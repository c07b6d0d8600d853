//! What happens at the end of connections and processes, and in forked children.

use crate::parts::{BYTES, another, command};
use crate::{SOON, kind, pair};
use ropeway_socket::{Listener, Local, Stream};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_process_that_exits_delivers_what_it_wrote() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut child = another("write and exit", &listener.local_addr().unwrap().to_string(), &[]);
    let (mut stream, _) = listener.accept().unwrap();
    // It is long through with writing when this end begins to read: its exit waits.
    std::thread::sleep(Duration::from_millis(300));
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), BYTES);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_that_exits_delivers_what_it_wrote_and_others_see_the_end() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = another("accept, answer and exit", &port.to_string(), &[]);
    let begin = std::time::Instant::now();
    let mut stream = loop {
        match Stream::connect(port) {
            Ok(stream) => break stream,
            // It is not up yet.
            Err(error) => assert!(begin.elapsed() < SOON, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stream.write_all(b"hello").unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), BYTES);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_client_that_has_come_and_gone_before_it_was_accepted_is_accepted_all_the_same() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    assert!(another("write a little and exit", &to, &[]).wait().unwrap().success());
    listener.set_accept_timeout(Some(SOON)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received, "a little");
}

#[test]
fn an_exit_waits_for_a_silent_peer_as_long_as_it_is_told_and_no_longer() {
    const LINGER: Duration = Duration::from_millis(1500);
    /// Below what it is if nobody says anything, 5 s.
    const TOO_LONG: Duration = Duration::from_millis(4500);
    let at = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut peer = another("accept and hold", &at, &[]);
    let begin = Instant::now();
    let linger = LINGER.as_millis().to_string();
    let mut command = command("write and exit when told", &at, &[("ROPEWAY_LINGER_MS", &linger)]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let (mut child, mut said) = loop {
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut said = said.lines().map_while(Result::ok).filter(|line| line == "connected" || line == "exits");
        if said.next().is_some() {
            break (child, said);
        }
        // The peer is not up yet.
        child.wait().unwrap();
        assert!(begin.elapsed() < SOON, "it never connects");
    };
    // SAFETY: a signal to our own child, which was not waited for.
    assert_eq!(unsafe { libc::kill(peer.id().cast_signed(), libc::SIGSTOP) }, 0);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(said.next().as_deref(), Some("exits"));
    let exits = Instant::now();
    assert!(child.wait().unwrap().success());
    let took = exits.elapsed();
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert!((LINGER * 9 / 10..TOO_LONG).contains(&took), "{took:?}");
}

#[test]
fn dropping_everything_delivers_in_the_background() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(&vec![1; 1_000_000]).unwrap();
    // The last of its engine.
    drop((listener, server));
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 1_000_000);
}

#[test]
fn lingering_for_no_time_resets() {
    let (mut client, server) = pair();
    server.set_linger(Some(Duration::ZERO)).unwrap();
    drop(server);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset);
}

#[test]
fn lingering_waits_for_the_acknowledgment() {
    let (mut client, mut server) = pair();
    client.set_linger(Some(SOON)).unwrap();
    client.write_all(&[7; 1000]).unwrap();
    drop(client);
    server.set_nonblocking(true).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
}

#[test]
fn nothing_is_waited_for_at_the_end_of_a_connection_that_is_being_opened() {
    let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Stream::connect_nonblocking(&mute.local_addr().unwrap().into()).unwrap();
    client.set_linger(Some(Duration::from_secs(8))).unwrap();
    let begun = Instant::now();
    drop(client);
    // As a socket of TCP is closed in SYN-SENT.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn a_listener_that_was_closed_leaves_its_address_to_who_else_has_taken_it_or_to_the_next() {
    let local = Local::bind("127.0.0.1:0").unwrap();
    let at = local.local_addr().unwrap().to_string();
    let closed = Listener::bind_to(&local, 8).unwrap();
    closed.close();
    assert_eq!(Listener::bind(at.as_str()).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(local);
    let next = Listener::bind(at.as_str()).unwrap();
    let _client = Stream::connect(at.as_str()).unwrap();
    // It is there still, and has nothing to do with who comes now.
    assert!(closed.accept().is_err() && closed.try_accept().is_err() && closed.set_backlog(1).is_err());
    next.set_accept_timeout(Some(SOON)).unwrap();
    next.accept().unwrap();
}

#[test]
fn a_forked_child_is_told_that_a_connection_is_its_parents_and_makes_its_own() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let (mut client, mut server) = crate::connect(&listener);
    let child = || -> Result<(), String> {
        let inherited = kind((&client).write(b"from the child"));
        if inherited != ErrorKind::Unsupported {
            return Err(format!("{inherited:?}"));
        }
        let mut own = Stream::connect(&to).map_err(|error| error.to_string())?;
        own.write_all(b"child").map_err(|error| error.to_string())?;
        own.drain(Some(SOON)).map_err(|error| error.to_string())?;
        // The exit of the parent would wait for who is not there when it closes.
        own.read_to_end(&mut Vec::new()).map(drop).map_err(|error| error.to_string())
    };
    // SAFETY: the child uses memory and threads of its own, as any child of glibc may, and leaves without running this process's exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match child() {
            Ok(()) => 0,
            Err(what) => {
                eprintln!("in the child: {what}");
                1
            }
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let (mut from_child, _) = listener.accept().unwrap();
    let mut buffer = [0; 5];
    from_child.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"child");
    drop(from_child);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    // The parent's connection never noticed.
    client.write_all(b"still").unwrap();
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"still");
}

#[test]
fn an_engine_of_ones_own_may_go_when_a_drain_has_returned() {
    use ropeway_socket::api::{Engine, Options, Target, link::memory};
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let address = ropeway_socket::api::link::Link::local(&other);
    let [near, far] = [(); 2].map(|()| Engine::new(&Options::default()).unwrap());
    let links = (near.add_link(Box::new(one)).unwrap(), far.add_link(Box::new(other)).unwrap());
    let listener = Listener::bind_on(&far, links.1, 7000, 10).unwrap();
    let mut client = Stream::connect_on(&near, Target { link: links.0, address }, 7000, Some(SOON)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    // More than is sent before the peer has answered.
    client.write_all(&vec![7; 1_000_000]).unwrap();
    client.drain(Some(SOON)).unwrap();
    drop((client, near));
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 1_000_000);
}

#[test]
fn an_engine_of_ones_own_serves_as_well() {
    use ropeway_socket::api::{Engine, Options, Target, link::memory};
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let address = ropeway_socket::api::link::Link::local(&other);
    let engines = [Engine::new(&Options::default()).unwrap(), Engine::new(&Options::default()).unwrap()];
    let links = [engines[0].add_link(Box::new(one)).unwrap(), engines[1].add_link(Box::new(other)).unwrap()];
    let listener = Listener::bind_on(&engines[1], links[1], 7000, 10).unwrap();
    let mut client = Stream::connect_on(&engines[0], Target { link: links[0], address }, 7000, Some(SOON)).unwrap();
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
    assert_eq!(from, client.local_addr().unwrap());
    client.write_all(b"hello").unwrap();
    let mut buffer = [0; 5];
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
    assert_eq!(kind(Stream::connect(from)), ErrorKind::Unsupported);
    assert_ne!(Listener::bind_on(&engines[1], links[1], 0, 10).unwrap().port(), 0);
}

/// Its engine lives on.
#[test]
fn the_watch_of_a_listener_goes_with_it_though_it_was_asked_for_behind_the_close() {
    use ropeway_socket::api::{Engine, Options, link::memory};
    let (one, _other) = memory::pair(memory::Config::default()).unwrap();
    let engine = Engine::new(&Options::default()).unwrap();
    let link = engine.add_link(Box::new(one)).unwrap();
    let listener = Listener::bind_on(&engine, link, 7000, 10).unwrap();
    listener.close();
    let descriptor = listener.watch().unwrap().as_fd().try_clone_to_owned().unwrap();
    drop(listener);
    // Nobody has the other half of the pair any more, where the bytes lie that keep this one from being writable.
    let ended = UnixStream::from(descriptor).read_to_end(&mut Vec::new());
    assert_eq!(kind(ended), ErrorKind::ConnectionReset);
}

#[test]
fn a_thread_that_waits_for_a_connection_is_woken_however_the_helper_stands() {
    use ropeway_socket::api::{Engine, Options, link::memory};
    let (one, _other) = memory::pair(memory::Config::default()).unwrap();
    // Without spinning the thread that waits sleeps at once, while the one that slept before it wakes up.
    let engine = Engine::new(&Options { spin: Duration::ZERO, ..Options::default() }).unwrap();
    let link = engine.add_link(Box::new(one)).unwrap();
    for _ in 0..200 {
        // Nobody has called for a while: the helper sleeps on the links.
        std::thread::sleep(Duration::from_millis(3));
        let listener = std::sync::Arc::new(Listener::bind_on(&engine, link, 7000, 10).unwrap());
        std::thread::sleep(Duration::from_millis(2));
        let (told, heard) = std::sync::mpsc::channel();
        let waiter = listener.clone();
        std::thread::spawn(move || told.send(kind(waiter.accept().map(drop))));
        std::thread::sleep(Duration::from_millis(1));
        listener.close();
        assert_eq!(heard.recv_timeout(SOON), Ok(ErrorKind::NotConnected));
    }
}
